// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes of all bytes, by as many calls as that takes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Reads until the buffer has `least` bytes; it may get more, up to its end.
pub(crate) fn read_full(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    offset: u64,
    least: usize,
) -> io::Result<()> {
    let mut have = 0;
    while have < least {
        match rustix::io::pread(fd, &mut buf[have..], offset + have as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Calls `write` until all bytes are written.  It gets the count of the bytes written so far, and
/// returns how many more it has written.
pub(crate) fn written(
    bytes: usize,
    mut write: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match write(done) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn write_full(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<()> {
    written(data.len(), |done| Ok(rustix::io::pwrite(fd, &data[done..], offset + done as u64)?))
}
