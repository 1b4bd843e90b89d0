// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of a mapped pool's file that another file has as well (`cp --reflink`, which is how cp
//! copies where it can; a snapshot).  The first store to each needs a new block, and would end the
//! process by SIGBUS when the disk is full.  So an opening for writing gives the file blocks of its
//! own; what they hold stays.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::ioctl::file_extents;
use crate::report::human_bytes;

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

pub(super) fn unshare(path: &Path, fd: &OwnedFd, size: u64) -> Result<()> {
    let bytes = |shared: &[Range<u64>]| shared.iter().map(|r| r.end - r.start).sum();
    let shared = shared(fd, size);
    if shared.is_empty() {
        return Ok(());
    }
    let done = match rustix::fs::fallocate(fd, FallocateFlags::UNSHARE_RANGE, 0, size) {
        Err(Errno::OPNOTSUPP) => rewrite(fd, &shared),
        done => done.map_err(Into::into),
    };
    done.and_then(|()| Ok(rustix::fs::fsync(fd)?))
        .map_err(|e| Error::allocating(path, "giving it unshared blocks", bytes(&shared), e))?;
    match bytes(&self::shared(fd, size)) {
        0 => Ok(()),
        left => Err(Error::Unsuitable {
            path: path.into(),
            what: format!(
                "a file that shares {} with a copy (reflink, snapshot), so that a store may find \
                 no space",
                human_bytes(left)
            ),
            way_out: "copy it with `cp --reflink=never --sparse=never` and use the copy".into(),
        }),
    }
}

/// Writes what is there, as a file system takes it that copies on write.
fn rewrite(fd: &OwnedFd, shared: &[Range<u64>]) -> std::io::Result<()> {
    let (file, mut bytes) = (File::from(fd.try_clone()?), vec![0; PIECE]);
    for range in shared {
        let mut at = range.start;
        while at < range.end {
            let n = bytes.len().min((range.end - at) as usize);
            file.read_exact_at(&mut bytes[..n], at)?;
            file.write_all_at(&bytes[..n], at)?;
            at += n as u64;
        }
    }
    Ok(())
}

/// Within the pool.  A file system that does not tell shares nothing.
fn shared(fd: &OwnedFd, size: u64) -> Vec<Range<u64>> {
    let (mut at, mut shared) = (0, Vec::new());
    while at < size {
        let Ok(found) = file_extents(fd.as_fd(), at) else { break };
        let Some(last) = found.last() else { break };
        at = at.max(last.start.saturating_add(last.len));
        let own = |e: &crate::ioctl::FileExtent| e.start..e.start.saturating_add(e.len).min(size);
        shared.extend(found.iter().filter(|e| e.shared && e.start < size).map(own));
    }
    shared
}
