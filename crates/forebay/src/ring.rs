// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes through io_uring.  The ring keeps the buffer and descriptor that the kernel uses
//! until the kernel has answered.
//!
//! All volumes of a pool share one ring.  It has room for all requests that the engine can have
//! in flight, so that hanging origins do not fill it.  They must not use up the kernel's
//! threads for blocking requests either: there may be as many of these threads as requests.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types, IoUring};
use rustix::io::Errno;

use crate::attached::Attached;
use crate::engine::Io;

/// A write that the kernel has.
#[derive(Debug)]
pub(crate) struct Write {
    pub attached: Arc<Attached>,
    pub io: Io,
    /// Bytes written by earlier tries.
    pub done: usize,
}

/// Requests handed over at once.
const ENTRIES: u32 = 128;
/// Requests in flight, at most: 64 for each of 64 volumes, as the engine numbers them.
const IN_FLIGHT: u32 = 64 * 64;

/// An io_uring with a table of what is in it.
pub(crate) struct Ring {
    ring: IoUring,
    writes: Vec<Option<Write>>,
    in_kernel: usize,
    /// The places of the writes that the kernel has not taken yet, in order.
    queued: VecDeque<usize>,
    /// The kernel refuses the ring; what is queued there never goes to it.
    broken: bool,
    /// What was queued then.
    refused: Vec<Write>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_kernel", &self.in_kernel).finish_non_exhaustive()
    }
}

impl Ring {
    /// Completions are announced on the eventfd.
    pub(crate) fn new(eventfd: BorrowedFd<'_>) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_cqsize(IN_FLIGHT).build(ENTRIES)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        // Linux 5.15 and later; before, four for each CPU do.
        let _ = ring.submitter().register_iowq_max_workers(&mut [IN_FLIGHT, IN_FLIGHT]);
        let writes = (0..IN_FLIGHT).map(|_| None).collect();
        let (queued, refused) = Default::default();
        Ok(Ring { ring, writes, in_kernel: 0, queued, broken: false, refused })
    }

    /// Queues a write.  Given back if the origin has no descriptor for it.
    pub(crate) fn write(&mut self, attached: Arc<Attached>, io: Io) -> Result<(), Io> {
        let at = io.id as usize;
        match self.writes.get(at) {
            Some(None) => self.push(at, Write { attached, io, done: 0 }).map_err(|w| w.io),
            _ => Err(io),
        }
    }

    fn push(&mut self, at: usize, w: Write) -> Result<(), Write> {
        let data = &w.io.data()[w.done..];
        let offset = w.io.offset + w.done as u64;
        let Some(fd) = w.attached.origin.uring_fd(offset, data.len() as u64) else {
            return Err(w);
        };
        let Ok(len) = u32::try_from(data.len()) else {
            return Err(w);
        };
        let entry = opcode::Write::new(types::Fd(fd.as_raw_fd()), data.as_ptr(), len)
            .offset(offset)
            .build()
            .user_data(at as u64);
        if self.ring.submission().is_full() {
            self.submit();
        }
        if self.broken {
            return Err(w);
        }
        // SAFETY: the buffer (io) and the descriptor (of the origin, in
        // attached) are kept in the table until the completion is seen; drop
        // waits for those that are missing.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(w);
        }
        self.writes[at] = Some(w);
        self.in_kernel += 1;
        self.queued.push_back(at);
        Ok(())
    }

    /// Hands what is queued to the kernel.
    pub(crate) fn submit(&mut self) {
        while !self.queued.is_empty() && !self.broken {
            match self.ring.submit() {
                Ok(taken) => drop(self.queued.drain(..taken.min(self.queued.len()))),
                Err(e) if is_passing(&e) => std::thread::yield_now(),
                Err(_) => self.give_up(),
            }
        }
    }

    /// A filter of system calls, for example, refuses the ring for ever.
    fn give_up(&mut self) {
        self.broken = true;
        let left = self.ring.submission().len().min(self.queued.len());
        for at in self.queued.split_off(self.queued.len() - left) {
            self.refused.extend(self.writes[at].take());
            self.in_kernel -= 1;
        }
        self.queued.clear();
    }

    pub(crate) fn unsubmitted(&self) -> usize {
        self.queued.len()
    }

    /// Whether the next [`Ring::reap`] gives back writes that the kernel has refused.
    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Calls f with each write that ended; without a result: the rest of it is to be
    /// written in another way.
    pub(crate) fn reap(&mut self, mut f: impl FnMut(Write, Option<io::Result<()>>)) {
        self.refused.drain(..).for_each(|w| f(w, None));
        loop {
            let Some(entry) = self.ring.completion().next() else {
                return;
            };
            let at = entry.user_data() as usize;
            let Some(mut w) = self.writes.get_mut(at).and_then(Option::take) else {
                continue;
            };
            self.in_kernel -= 1;
            let left = w.io.data().len() - w.done;
            match entry.result() {
                n if n > 0 && (n as usize) < left => {
                    w.done += n as usize;
                    if let Err(w) = self.push(at, w) {
                        // Not aligned any more: the plain way.
                        f(w, None);
                    }
                }
                n if n > 0 => f(w, Some(Ok(()))),
                0 => f(w, Some(Err(io::ErrorKind::WriteZero.into()))),
                e if [Errno::INTR, Errno::AGAIN].contains(&Errno::from_raw_os_error(-e)) => {
                    f(w, None);
                }
                e => f(w, Some(Err(io::Error::from_raw_os_error(-e)))),
            }
        }
    }
}

/// An interruption, or a lack of memory for a moment: the same call may succeed.
fn is_passing(e: &io::Error) -> bool {
    [Errno::INTR, Errno::AGAIN, Errno::BUSY]
        .iter()
        .any(|p| e.raw_os_error() == Some(p.raw_os_error()))
}

impl Drop for Ring {
    /// The kernel may still use the buffers.
    fn drop(&mut self) {
        while self.in_kernel > 0 {
            // A ring that is refused still has what is queued there, without its buffers.
            match self.broken {
                true => std::thread::sleep(Duration::from_millis(1)),
                false => {
                    let _ = self.ring.submit_and_wait(1);
                    self.queued.clear();
                }
            }
            self.reap(|_, _| {});
        }
    }
}

/// `RWF_DSYNC` of linux/fs.h: the write is durable when it ends.
const DSYNC: i32 = 2;

/// Durable writes, one at a time.
///
/// Linux sends such a write to a block device with FUA.  If the request is synchronous, it
/// flushes the device's whole cache after that; a request of io_uring is FUA alone.
pub(crate) struct DurableWrites {
    ring: IoUring,
    /// The kernel refuses the ring; what is queued there never goes to it.
    broken: bool,
}

impl std::fmt::Debug for DurableWrites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DurableWrites").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl DurableWrites {
    pub(crate) fn new() -> io::Result<DurableWrites> {
        Ok(DurableWrites { ring: IoUring::new(2)?, broken: false })
    }

    /// The number of bytes that are durable, from the start of the data on.
    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        data: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        let len = u32::try_from(data.len()).unwrap_or(1 << 30);
        let entry = opcode::Write::new(types::Fd(fd.as_raw_fd()), data.as_ptr(), len)
            .offset(offset)
            .rw_flags(DSYNC)
            .build();
        if self.broken {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: buffer and descriptor outlive this call, which returns when the kernel has
        // answered, or has not taken the entry: the ring is not used again then.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        loop {
            let waited = self.ring.submit_and_wait(1);
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    n if n >= 0 => Ok(n as usize),
                    e => Err(io::Error::from_raw_os_error(-e)),
                };
            }
            let Err(e) = waited else { continue };
            if !is_passing(&e) && !self.ring.submission().is_empty() {
                self.broken = true;
                return Err(e);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::mpsc;

    use super::*;
    use crate::{AttachOptions, CreateOptions, NewVolume, Pool, PoolOptions};

    /// Refuses io_uring_enter to this thread, and to those that it starts.
    fn refuse_enter() -> io::Result<()> {
        const ENTER: u32 = 426;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut filter = [
            step(0x20, 0, 0, 0), // the number of the call
            step(0x15, 0, 1, ENTER),
            step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the first call takes no pointer, and the other one a program that is there.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        done.then_some(()).ok_or_else(io::Error::last_os_error)
    }

    /// The content of an origin after a drain, and how it was to be written.
    fn drained() -> (Vec<u8>, String) {
        let name = format!("forebay-ring-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let (path, origin) = (directory.join("pool"), directory.join("origin"));
        std::fs::write(&origin, vec![0; 1 << 20]).unwrap();
        let options = CreateOptions { size_bytes: Some(16 << 20), ..Default::default() };
        crate::create(&path, &options).unwrap();
        let pool = Pool::open(&path, &PoolOptions::default()).unwrap();
        let new = NewVolume { name: "v".into(), origin: origin.clone(), ..Default::default() };
        pool.volume_add(&new).unwrap();
        let volume = pool.attach("v", &AttachOptions::default()).unwrap();
        for page in 0..64 {
            volume.write_at(&[7; 4096], page * 3 * 4096).unwrap();
        }
        let method = volume.info().unwrap().origin.map_or_else(String::new, |o| o.method);
        volume.drain(&mut |_| ControlFlow::Continue(())).unwrap();
        volume.detach().unwrap();
        pool.close().unwrap();
        let written = std::fs::read(&origin).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        (written, method)
    }

    /// A filter of system calls may allow io_uring_setup alone.
    #[test]
    fn what_the_kernel_never_takes_is_written_by_a_thread() {
        let (end, ended) = mpsc::channel();
        let work = move || end.send(refuse_enter().map(|()| drained()));
        std::thread::spawn(work);
        let ended = ended.recv_timeout(Duration::from_secs(120)).expect("a drain that ends");
        let (written, method) = match ended {
            Ok(ended) => ended,
            Err(e) => return forebay_test::skipped!("no filter of system calls: {e}"),
        };
        for (page, bytes) in written.chunks(4096).take(192).enumerate() {
            assert_eq!(bytes, [if page % 3 == 0 { 7 } else { 0 }; 4096], "{page}");
        }
        if !method.contains("io_uring") {
            forebay_test::skipped!("the temporary directory is not written by io_uring: {method}");
        }
    }
}
