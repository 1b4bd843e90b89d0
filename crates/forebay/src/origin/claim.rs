// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a file or block device is opened past the page cache, and claimed.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::media::{in_use, lock_soon};

pub(super) fn access(read_only: bool) -> OFlags {
    match read_only {
        true => OFlags::RDONLY,
        false => OFlags::RDWR,
    }
}

/// Opens the file or block device, with O_DIRECT if the file system has it; the second value says
/// whether it does.  The open itself claims a block device (O_EXCL); [`lock`] claims a file.
pub(crate) fn open_claimed(
    path: &Path,
    block_device: bool,
    read_only: bool,
) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = access(read_only) | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if block_device {
        flags |= OFlags::EXCL;
    }
    direct_if_possible(flags, |flags| open_soon(path, flags))
}

/// Opens with O_DIRECT, or without it where the file system has none; the second value says
/// whether O_DIRECT is in use.
pub(crate) fn direct_if_possible(
    flags: OFlags,
    open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> Result<(OwnedFd, bool), Errno> {
    match open(flags | OFlags::DIRECT) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => open(flags).map(|fd| (fd, false)),
        opened => opened.map(|fd| (fd, true)),
    }
}

/// Opens the path, and tries again for a moment while another process claims it: a child that was
/// just forked has the claims of its parent until it executes its program.
fn open_soon(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(2)),
            done => return done,
        }
    }
    rustix::fs::open(path, flags, Mode::empty())
}

/// Locks the file, for readers alone or for one writer.  `way_out` is for a file that another
/// process has locked.
pub(crate) fn lock(path: &Path, fd: &OwnedFd, read_only: bool, way_out: &str) -> Result<()> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match lock_soon(fd, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(in_use(path, fd, read_only, way_out)),
        Err(e) => Err(Error::system(path, "locking it", e.into())),
    }
}
