// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes through io_uring.  Keeps what the kernel uses (buffer, descriptor)
//! until it has answered.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{opcode, types, IoUring};
use rustix::io::Errno;

use crate::destage::Attached;
use crate::engine::Io;

/// A write that the kernel has.
#[derive(Debug)]
pub(crate) struct Write {
    pub attached: Arc<Attached>,
    pub io: Io,
    /// Bytes written by earlier tries.
    done: usize,
}

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
    pub(crate) fn new(depth: u32, eventfd: BorrowedFd<'_>) -> io::Result<Ring> {
        let ring = IoUring::new(depth)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let writes = (0..depth).map(|_| None).collect();
        Ok(Ring { ring, writes, in_kernel: 0, unsubmitted: 0 })
    }

    /// Queues a write.  Given back if there is no room, or the origin has no
    /// descriptor for it.
    pub(crate) fn write(&mut self, attached: Arc<Attached>, io: Io) -> Result<(), Io> {
        let Some(free) = self.writes.iter().position(Option::is_none) else {
            return Err(io);
        };
        self.push(free, Write { attached, io, done: 0 }).map_err(|w| w.io)
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

    /// Calls f with each write that ended.
    pub(crate) fn reap(&mut self, mut f: impl FnMut(Write, io::Result<()>)) {
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
                        // Not aligned any more, or no room: the plain way.
                        let rest = &w.io.data()[w.done..];
                        let result = w.attached.origin.write_at(rest, w.io.offset + w.done as u64);
                        f(w, result);
                    }
                }
                n if n > 0 => f(w, Ok(())),
                0 => f(w, Err(io::ErrorKind::WriteZero.into())),
                e if [Errno::INTR, Errno::AGAIN].contains(&Errno::from_raw_os_error(-e)) => {
                    let result = w
                        .attached
                        .origin
                        .write_at(&w.io.data()[w.done..], w.io.offset + w.done as u64);
                    f(w, result);
                }
                e => f(w, Err(io::Error::from_raw_os_error(-e))),
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
