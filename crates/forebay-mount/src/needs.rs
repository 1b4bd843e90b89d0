// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session's share of the process's limits is asked for before anything is mounted or marked.
//!
//! A session that finds a limit while it starts leaves a mount that nobody serves, and memory that
//! cannot be had ends the process.  So all of it is taken at once here, and given back.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

/// Besides one for each thread that reads requests: the device, the tree, its root, files that
/// answers open, /proc, the server's sockets.
const DESCRIPTORS: usize = 16;
/// A thread that reads requests takes its buffer, and memory for an answer.
const BYTES: usize = 20 << 20;
/// Threads that sync, that help, and that a client's request starts.
const OTHER_THREADS: usize = 8;
/// A limit on the address space has to leave this for all else: an arena of the allocator takes
/// 64 MiB, and each thread that comes later may have one.
const SPARE_BYTES: usize = 512 << 20;

/// There is enough for a session of so many threads that read requests.
pub(crate) fn probe(threads: usize) -> io::Result<()> {
    // The server writes for programs that have no such limit, or another.
    if let Some(most) = getrlimit(Resource::Fsize).current {
        let what = format!(
            "the server's limit is {most} bytes a file, and no program could write more: {}",
            io::Error::from(Errno::FBIG)
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let lacks = |what: String, way_out: &'static str| {
        move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}; {way_out}"))
    };
    let wanted = threads + DESCRIPTORS;
    let opened: io::Result<Vec<File>> = (0..wanted).map(|_| File::open("/dev/null")).collect();
    drop(
        opened
            .map_err(lacks(format!("{wanted} more descriptors are needed"), "raise ulimit -n"))?,
    );
    let (mib, all) = ((threads * BYTES) >> 20, threads + OTHER_THREADS);
    let spare = match getrlimit(Resource::As).current {
        Some(_) => SPARE_BYTES,
        None => 0,
    };
    let what = format!("{all} threads and {} MiB are needed", mib + (spare >> 20));
    with_memory(threads, spare)
        .map_err(lacks(what, "raise ulimit -v and -u, or the container's limits"))
}

/// Each thread asks for its own: the allocator gives a thread an arena with its first bytes.  The
/// spare bytes are never touched, so that they are address space alone.
fn with_memory(threads: usize, spare: usize) -> io::Result<()> {
    let mut untouched = Vec::<u8>::new();
    untouched.try_reserve_exact(spare).map_err(|_| io::ErrorKind::OutOfMemory)?;
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let mut held = Vec::new();
        let mut had = Ok(());
        for i in 0..threads + OTHER_THREADS {
            let (end, wait) = mpsc::channel::<()>();
            let (tell, bytes) = (tell.clone(), if i < threads { BYTES } else { 0 });
            let take = move || {
                let (mut few, mut buffer) = (Vec::<u8>::new(), Vec::<u8>::new());
                let had = few.try_reserve_exact(1024).and(buffer.try_reserve_exact(bytes));
                let _ = tell.send(had.is_ok());
                let _ = wait.recv();
            };
            match thread::Builder::new().spawn_scoped(scope, take) {
                Ok(_) => held.push(end),
                Err(e) => {
                    had = Err(e);
                    break;
                }
            }
        }
        drop(tell);
        if !told.iter().take(held.len()).all(|had| had) {
            had = had.and(Err(io::ErrorKind::OutOfMemory.into()));
        }
        had
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_found_and_released() {
        let open = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        let before = open();
        probe(3).expect("a few");
        assert!(open() < before + DESCRIPTORS, "they are closed again");
    }
}
