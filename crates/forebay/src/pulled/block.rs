// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a block: each sector of 512 bytes has its own number and checksum, so that a
//! torn block shows.
//!
//! ```text
//! 0   magic           8
//! 8   run's UUID     16
//! 24  block           8
//! 32  step            8
//! 40  sector          4
//! 44  random bytes  464
//! 508 CRC32C          4
//! ```

use forebay_engine::sys::crc32c;

use super::run::Run;
use crate::medium::fill_random;

const SECTOR: usize = 512;
const MAGIC: &[u8; 8] = b"FBYPULLS";
const HEAD: usize = 44;
const CRC_AT: usize = SECTOR - 4;

/// The step that wrote something; `None`: it is from before the run.
pub(super) type Version = Option<u64>;

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Sectors of this block, from the oldest to the newest.  Zeroes are from before the run, or
    /// what a drive gives for a block that it could not finish.
    Versions { oldest: Version, newest: Version, zeroes: bool },
    /// At least one sector of another block of this run.
    OtherBlock,
    /// At least one sector that nobody wrote.
    Garbage,
}

/// Puts the content of a block in place; `to` has the run's unit.
pub(super) fn write(run: &Run, block: u64, step: u64, to: &mut [u8]) {
    for (i, sector) in to.chunks_exact_mut(SECTOR).enumerate() {
        let mut seed = block ^ step.rotate_left(24) ^ (i as u64).rotate_left(56);
        sector[..HEAD].copy_from_slice(&head(run, block, step, i));
        fill_random(&mut sector[HEAD..CRC_AT], &mut seed);
        let crc = crc32c(0, &sector[..CRC_AT]);
        sector[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn head(run: &Run, block: u64, step: u64, sector: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..24].copy_from_slice(&run.uuid.0);
    head[24..32].copy_from_slice(&block.to_le_bytes());
    head[32..40].copy_from_slice(&step.to_le_bytes());
    head[40..].copy_from_slice(&(sector as u32).to_le_bytes());
    head
}

/// A sector, at its place in its block.
enum Sector {
    Of(Version),
    Zeroes,
    OtherBlock,
    Garbage,
}

fn is_of_run(run: &Run, sector: &[u8]) -> bool {
    sector[..8] == *MAGIC && sector[8..24] == run.uuid.0
}

/// Whether any of these bytes are a sector of the run.
pub(super) fn has_sector_of(run: &Run, bytes: &[u8]) -> bool {
    bytes.chunks_exact(SECTOR).any(|sector| is_of_run(run, sector))
}

fn sector(run: &Run, block: u64, number: usize, bytes: &[u8]) -> Sector {
    if bytes.iter().all(|b| *b == 0) {
        return Sector::Zeroes;
    }
    let crc = u32::from_le_bytes(bytes[CRC_AT..].try_into().expect("4 bytes"));
    let intact = bytes[..8] == *MAGIC && crc == crc32c(0, &bytes[..CRC_AT]);
    match (is_of_run(run, bytes), intact) {
        (true, true) => {}
        (true, false) => return Sector::Garbage,
        // The sector is of an earlier run, or was there before this one.
        (false, true) => return Sector::Of(None),
        (false, false) if !run.blank => return Sector::Of(None),
        (false, false) => return Sector::Garbage,
    }
    let step = u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"));
    match bytes[..HEAD] == head(run, block, step, number) {
        true => Sector::Of(Some(step)),
        false => Sector::OtherBlock,
    }
}

/// Looks at the content of a block.
pub(super) fn read(run: &Run, block: u64, bytes: &[u8]) -> Found {
    let mut versions: Option<(Version, Version)> = None;
    let (mut other, mut zeroes) = (false, false);
    for (i, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
        let version = match sector(run, block, i, bytes) {
            Sector::Garbage => return Found::Garbage,
            Sector::OtherBlock => {
                other = true;
                continue;
            }
            Sector::Zeroes => {
                zeroes = true;
                None
            }
            Sector::Of(version) => version,
        };
        let (oldest, newest) = versions.unwrap_or((version, version));
        versions = Some((oldest.min(version), newest.max(version)));
    }
    match versions {
        Some((oldest, newest)) if !other => Found::Versions { oldest, newest, zeroes },
        _ => Found::OtherBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::super::run::Modes;
    use super::*;

    #[test]
    fn a_block_is_told_from_all_that_it_is_not() {
        let own = run(64, Modes::Both);
        let content = |block, step| {
            let mut bytes = vec![0; 4096];
            write(&own, block, step, &mut bytes);
            bytes
        };
        let whole = |version| Found::Versions { oldest: version, newest: version, zeroes: false };
        let good = content(3, 9);
        assert_eq!(read(&own, 3, &good), whole(Some(9)));
        assert_eq!(read(&own, 4, &good), Found::OtherBlock);
        let empty = Found::Versions { oldest: None, newest: None, zeroes: true };
        assert_eq!(read(&own, 3, &[0; 4096]), empty);
        let other = Run { uuid: crate::report::Uuid([8; 16]), ..own.clone() };
        assert_eq!(read(&other, 3, &good), whole(None));
        assert!(has_sector_of(&own, &good) && !has_sector_of(&other, &good));
        for sector in 0..8 {
            let mut torn = good.clone();
            torn[sector * 512..][..512].copy_from_slice(&content(3, 4)[sector * 512..][..512]);
            let found = |oldest, zeroes| Found::Versions { oldest, newest: Some(9), zeroes };
            assert_eq!(read(&own, 3, &torn), found(Some(4), false));
            torn[sector * 512..][..512].fill(0);
            assert_eq!(read(&own, 3, &torn), found(None, true));
            // Content of a disk that was not blank is older, and no damage.
            torn[sector * 512..][..512].fill(0x5a);
            assert_eq!(read(&own, 3, &torn), Found::Garbage);
            let full = Run { blank: false, ..own.clone() };
            assert_eq!(read(&full, 3, &torn), found(None, false));
            assert_eq!(read(&full, 3, &[0x5a; 4096]), whole(None));
            torn.copy_from_slice(&good);
            torn[sector * 512 + 100] ^= 1;
            assert_eq!(read(&full, 3, &torn), Found::Garbage, "of this run, and damaged");
        }
        let mut shifted = good.clone();
        shifted.rotate_left(512);
        assert_eq!(read(&own, 3, &shifted), Found::OtherBlock);
        for bit in (0..4096 * 8).step_by(7) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&own, 3, &bad), Found::Garbage, "bit {bit}");
        }
    }
}
