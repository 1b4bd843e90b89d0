// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a file has data, by its file system.

use rustix::fd::AsFd;
use rustix::fs::{seek, SeekFrom};
use rustix::io::{retry_on_intr, Errno};

use super::Extent;

/// Extents told at once; what follows is told as data.
const EXTENTS_MAX: usize = 4096;

/// From the start of the range to its end; what cannot be asked has data.
pub(super) fn extents(file: impl AsFd, offset: u64, len: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    let (mut at, end) = (offset, offset + len);
    while at < end && found.len() < EXTENTS_MAX {
        let ask = |from| retry_on_intr(|| seek(&file, from));
        let data = match ask(SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end,
            Err(_) => break,
        };
        if data > at {
            found.push(Extent::hole(data - at));
        }
        at = data;
        if at == end {
            break;
        }
        let Ok(hole) = ask(SeekFrom::Hole(at)) else { break };
        let hole = hole.clamp(at, end);
        if hole == at {
            break; // it was made just now
        }
        found.push(Extent::data(hole - at));
        at = hole;
    }
    if at < end {
        found.push(Extent::data(end - at));
    }
    found
}
