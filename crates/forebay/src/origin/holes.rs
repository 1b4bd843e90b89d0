// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data and holes of a file, as its file system reports them.

use rustix::fd::AsFd;
use rustix::fs::{fstat, seek, SeekFrom};
use rustix::io::{retry_on_intr, Errno};

use super::Extent;

/// Most extents reported at once; the rest of the range is reported as data.
const EXTENTS_MAX: usize = 4096;

/// Covers the range from start to end; unknown parts count as data.  So does all of a file that
/// is shorter than `size`, the origin's: the truncated part is lost, and reads of it have to
/// report that.
pub(super) fn extents(file: impl AsFd, size: u64, offset: u64, len: u64) -> Vec<Extent> {
    let found = scan(&file, offset, len);
    // After the scan: a cut during it shows, too.
    match fstat(&file) {
        Ok(stat) if stat.st_size as u64 >= size => found,
        _ => vec![Extent::data(len)],
    }
}

fn scan(file: impl AsFd, offset: u64, len: u64) -> Vec<Extent> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use rustix::io::pwrite;

    #[test]
    fn what_was_cut_off_is_no_hole() {
        const SIZE: u64 = 1 << 20;
        let file = memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, SIZE).unwrap();
        pwrite(&file, &[1; 4096], 8192).unwrap();
        let whole = [Extent::hole(8192), Extent::data(4096), Extent::hole(SIZE - 12288)];
        assert_eq!(extents(&file, SIZE, 0, SIZE), whole);
        ftruncate(&file, SIZE / 2).unwrap();
        for (offset, len) in [(0, SIZE), (0, 4096), (SIZE / 2, SIZE / 2), (SIZE - 4096, 4096)] {
            assert_eq!(extents(&file, SIZE, offset, len), [Extent::data(len)], "{offset}, {len}");
        }
    }
}
