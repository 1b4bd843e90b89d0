// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount that programs use.  Their writes reach the server first.
//!
//! The kernel holds pages of open files (see `front/holes.rs`), and an aborted connection loses
//! them.  syncfs(2) does not help, because the kernel does not wait for the pages of FUSE file
//! systems (Linux 6.18).  So the server does for each file that the kernel knows what a search
//! for a hole does: the kernel writes back its pages of the file and waits for the requests.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use crate::front::{kernel_waits, number_for_kernel, TreeLive};
use crate::known::Known;

/// How long the tree's disk may take for the pages that the kernel holds.
pub(crate) const WRITE_BACK_WAIT: Duration = Duration::from_secs(60);

/// Programs continue to write: a second pass finds what they have written during the first.
const LOOKS: usize = 2;

/// The number of files that are requested at the same time: as many as helpers take their
/// bytes.
const AT_ONCE: usize = 64;

/// Makes the kernel write back its pages of all files.  An error says what is lost.
pub(crate) fn write_back(
    live: &Arc<TreeLive>,
    kernel: &Arc<OnceLock<Notifier>>,
    mountpoint: Option<&Path>,
    limit: Duration,
) -> Result<(), String> {
    let refused = || live.counters.refused_write_backs.load(Ordering::Acquire);
    let before = refused();
    let (tell, told) = mpsc::channel();
    let (of, kernel) = (live.clone(), kernel.clone());
    let mountpoint = mountpoint.map(Path::to_path_buf);
    let look = move || {
        // Many files at once are written back sooner than one after another.
        let _ = mountpoint.and_then(|at| rustix::fs::syncfs(fs::File::open(at).ok()?).ok());
        let _ = tell.send(look_at_all(&of, &kernel));
    };
    let named = thread::Builder::new().name("mount-end".into());
    named.spawn(look).map_err(|e| format!("no thread asks the kernel for them: {e}"))?;
    match told.recv_timeout(limit) {
        Ok(done) => done?,
        Err(_) => {
            return Err(format!("the tree's disk did not take them within {limit:?}"));
        }
    }
    match refused() - before {
        0 => Ok(()),
        n => Err(format!("the tree's file system refused {n} requests to write them")),
    }
}

fn look_at_all(live: &TreeLive, kernel: &OnceLock<Notifier>) -> Result<(), String> {
    let Some(kernel) = kernel.get() else { return Ok(()) };
    for _ in 0..LOOKS {
        each(&live.files_of_kernel(), |ino| {
            let number = INodeNo(number_for_kernel(ino, live.root().ino));
            kernel.inval_inode(number, 0, 0)
        })
        .map_err(|e| format!("the kernel does not write them back: {e}"))?;
    }
    Ok(())
}

/// Looks at several files at once: a file waits for the disk, and many that wait together take
/// no longer than one.  Looks at all files, whatever happens to others, and returns the first
/// error.
fn each(files: &[u64], look: impl Fn(u64) -> io::Result<()> + Sync) -> io::Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Ok(())));
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = look(*file) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.is_ok() {
                    *failed = Err(e);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(files.len()) {
            // With fewer threads it only takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no request is queued, as far as active programs allow it: Linux before 6.16
/// calls a page written back when its request is queued.
pub(crate) fn wait_for_queue(known: &Known) {
    const LONGEST: Duration = Duration::from_secs(10);
    if kernel_waits() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < LONGEST && !known.is_idle() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a disk that takes 20 ms for each of a thousand files, one after another takes 20 s.
    #[test]
    fn many_files_take_no_longer_than_a_few() {
        let looked = AtomicUsize::new(0);
        let files: Vec<u64> = (0..1000).collect();
        let begun = Instant::now();
        let done = each(&files, |file| {
            thread::sleep(Duration::from_millis(20));
            looked.fetch_add(1, Ordering::Relaxed);
            if file == 3 {
                Err(io::ErrorKind::OutOfMemory.into())
            } else {
                Ok(())
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(looked.into_inner(), files.len(), "an error keeps none from the others");
        assert_eq!(done.expect_err("one failed").kind(), io::ErrorKind::OutOfMemory);
    }
}
