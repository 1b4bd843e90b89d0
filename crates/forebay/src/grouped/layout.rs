// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of a pool's file that are shared with a copy, or were never written.
//!
//! A copy of the pool may share its blocks (reflink) or have holes, and then so has the original.
//! The first write to such a block goes elsewhere, writes metadata as well, and can fail for lack
//! of space.  So an opening for writing gives the file blocks of its own before anything is
//! acknowledged; what they hold stays.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use forebay_engine::Image;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::disk::Disk;
use crate::error::{Error, Result};
use crate::medium::{unfilled, MediumFacts};
use crate::report::human_bytes;

/// Bytes that are written at a time.
const PIECE: u64 = 1 << 20;

/// The writes that are left, and the messages to be told.
#[derive(Debug, Default)]
pub(super) struct Mend {
    fill: Vec<Range<u64>>,
    pub(super) told: Vec<String>,
}

/// Gives a file its own blocks where it shares them, and looks which were never written.
pub(super) fn unshare(fd: &OwnedFd, facts: &mut MediumFacts, size: u64) -> Result<Mend> {
    let mut mend = Mend::default();
    let shared_bytes = |facts: &MediumFacts| facts.file.as_ref().and_then(|f| f.shared_bytes);
    let shared = shared_bytes(facts).unwrap_or(0);
    if shared != 0 {
        let done = rustix::fs::fallocate(fd, FallocateFlags::UNSHARE_RANGE, 0, size)
            .and_then(|()| rustix::fs::fsync(fd));
        match done {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => {
                return Err(Error::allocating(
                    &facts.path,
                    "giving it unshared blocks",
                    shared,
                    e.into(),
                ))
            }
        }
        facts.look_at_file(fd);
        let said = match shared_bytes(facts).unwrap_or(0) {
            0 => format!("{} of the file were shared with a copy (reflink), and are its own now", human_bytes(shared)),
            left => format!("{} of the file share their blocks with a copy (reflink). The first write to each block needs a new one, and can fail for lack of space: use a copy made by cp --reflink=never --sparse=never", human_bytes(left)),
        };
        mend.told.push(said);
    }
    mend.fill = unfilled(fd.as_fd(), size);
    Ok(mend)
}

impl Mend {
    /// Writes the zeroes that blocks hold which were never written.
    pub(super) fn fill(&mut self, disk: &Disk, image: &Image, unit: u64) -> Result<()> {
        // Bytes after the end of the pool are not written.
        let size = image.size() as u64;
        let bytes: u64 = self.fill.iter().map(|r| r.end.min(size).saturating_sub(r.start)).sum();
        for range in self.fill.drain(..) {
            let end = range.end.next_multiple_of(unit).min(size);
            let mut at = range.start / unit * unit;
            while at < end {
                let n = PIECE.min(end - at);
                let written = disk.write_plainly(image, at, n as usize);
                written
                    .map_err(|e| Error::allocating(disk.path(), "filling its holes", bytes, e))?;
                at += n;
            }
        }
        if bytes != 0 {
            self.told.push(format!(
                "{} of the file had no blocks, or blocks that were never written, and were filled",
                human_bytes(bytes)
            ));
        }
        Ok(())
    }
}
