// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: reads, writes and flushes of whole blocks.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use forebay_engine::lasting::{self, Lasting};
use forebay_engine::Image;
use rustix::io::{Errno, ReadWriteFlags};

/// What lies below an image.  Calls may be in flight together.
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
    size_bytes: u64,
}

impl FileDevice {
    pub(super) fn new(fd: Lasting<OwnedFd>, size_bytes: u64) -> FileDevice {
        FileDevice { fd, size_bytes }
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
        let mut have = 0;
        while have < to.len() {
            match rustix::io::pread(&*self.fd, &mut to[have..], at + have as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        check(&self.fd)?;
        let flags = match fua {
            true => ReadWriteFlags::DSYNC,
            false => ReadWriteFlags::empty(),
        };
        let mut done = 0;
        while done < bytes {
            let rest = (at + done as u64, bytes - done);
            match image.write_to(self.fd.as_fd(), rest.0, rest.1, flags.bits() as i32) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        check(&self.fd)?;
        Ok(rustix::fs::fdatasync(&*self.fd)?)
    }
}
