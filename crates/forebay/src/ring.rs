// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes through io_uring.  The ring keeps the buffer and descriptor that the kernel uses
//! until the kernel has answered.
//!
//! All volumes of a pool share one ring.  It has room for all requests that the engine can have
//! in flight, so that hanging origins do not fill it.  They must not use up the kernel's
//! threads for blocking requests either: there may be as many of these threads as requests.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

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
    unsubmitted: usize,
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
        Ok(Ring { ring, writes, in_kernel: 0, unsubmitted: 0 })
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
        // SAFETY: the buffer (io) and the descriptor (of the origin, in
        // attached) are kept in the table until the completion is seen; drop
        // waits for those that are missing.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(w);
        }
        self.writes[at] = Some(w);
        self.in_kernel += 1;
        self.unsubmitted += 1;
        Ok(())
    }

    /// Hands what is queued to the kernel.
    pub(crate) fn submit(&mut self) {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(n) => self.unsubmitted -= n.min(self.unsubmitted),
                // INTR; AGAIN, BUSY: out of memory for a moment.  What stays
                // queued goes with the next call.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    pub(crate) fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    /// Calls f with each write that ended; without a result: the rest of it is to be
    /// written in another way.
    pub(crate) fn reap(&mut self, mut f: impl FnMut(Write, Option<io::Result<()>>)) {
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

impl Drop for Ring {
    /// The kernel may still use the buffers.
    fn drop(&mut self) {
        while self.in_kernel > 0 {
            let _ = self.ring.submit_and_wait(1);
            self.unsubmitted = 0;
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
            let again = [Errno::INTR, Errno::AGAIN, Errno::BUSY].map(|e| Some(e.raw_os_error()));
            if !again.contains(&e.raw_os_error()) && !self.ring.submission().is_empty() {
                self.broken = true;
                return Err(e);
            }
            std::thread::yield_now();
        }
    }
}
