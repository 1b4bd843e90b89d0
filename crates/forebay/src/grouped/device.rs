// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: reads, writes and flushes of whole blocks.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use forebay_engine::lasting::{self, Lasting};
use forebay_engine::Image;
use rustix::io::ReadWriteFlags;

use crate::media::BelowLocks;
use crate::origin::{read_full, written};

/// The storage below an image.  Calls may be in flight together.
pub trait Device: Send + Sync + Debug {
    fn size_bytes(&self) -> u64;
    /// Fills the buffer, which is aligned as a page.
    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes a range of the image to the same place.  `fua`: it is durable when it returns.
    /// After an error it does not arrive later.
    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()>;
    /// All writes that had returned when it was called are durable.
    fn flush(&self) -> io::Result<()>;
}

/// A file or block device that was opened with O_DIRECT.
#[derive(Debug)]
pub struct FileDevice {
    fd: Lasting<OwnedFd>,
    /// The locks of what is below a device.
    _below: BelowLocks,
    size_bytes: u64,
}

impl FileDevice {
    pub(super) fn new(fd: Lasting<OwnedFd>, below: BelowLocks, size_bytes: u64) -> FileDevice {
        FileDevice { fd, _below: below, size_bytes }
    }
}

/// Programs that know nothing of the descriptor may close it (`forebay map-run`), and another
/// file may have its number then.
fn check(fd: &Lasting<OwnedFd>) -> io::Result<()> {
    lasting::check(fd.as_fd())
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let bytes = to.len();
        read_full(self.fd.as_fd(), to, at, bytes)
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        check(&self.fd)?;
        let flags = match fua {
            true => ReadWriteFlags::DSYNC,
            false => ReadWriteFlags::empty(),
        };
        written(bytes, |done| {
            image.write_to(self.fd.as_fd(), at + done as u64, bytes - done, flags.bits() as i32)
        })
    }

    fn flush(&self) -> io::Result<()> {
        check(&self.fd)?;
        Ok(rustix::fs::fdatasync(&*self.fd)?)
    }
}
