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

/// What is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Sectors of this block, from the oldest to the newest.
    Versions { oldest: Version, newest: Version },
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
    OtherBlock,
    Garbage,
}

fn sector(run: &Run, block: u64, number: usize, bytes: &[u8]) -> Sector {
    if bytes.iter().all(|b| *b == 0) {
        return Sector::Of(None);
    }
    let crc = u32::from_le_bytes(bytes[CRC_AT..].try_into().expect("4 bytes"));
    if bytes[..8] != *MAGIC || crc != crc32c(0, &bytes[..CRC_AT]) {
        return Sector::Garbage;
    }
    if bytes[8..24] != run.uuid.0 {
        return Sector::Of(None); // of an earlier run
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
    let mut other = false;
    for (i, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
        match sector(run, block, i, bytes) {
            Sector::Garbage => return Found::Garbage,
            Sector::OtherBlock => other = true,
            Sector::Of(version) => {
                let (oldest, newest) = versions.unwrap_or((version, version));
                versions = Some((oldest.min(version), newest.max(version)));
            }
        }
    }
    match versions {
        Some((oldest, newest)) if !other => Found::Versions { oldest, newest },
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
        let whole = |version| Found::Versions { oldest: version, newest: version };
        let good = content(3, 9);
        assert_eq!(read(&own, 3, &good), whole(Some(9)));
        assert_eq!(read(&own, 4, &good), Found::OtherBlock);
        assert_eq!(read(&own, 3, &[0; 4096]), whole(None));
        let other = Run { uuid: crate::report::Uuid([8; 16]), ..own.clone() };
        assert_eq!(read(&other, 3, &good), whole(None));
        for sector in 0..8 {
            let mut torn = good.clone();
            torn[sector * 512..][..512].copy_from_slice(&content(3, 4)[sector * 512..][..512]);
            assert_eq!(read(&own, 3, &torn), Found::Versions { oldest: Some(4), newest: Some(9) });
            torn[sector * 512..][..512].fill(0);
            assert_eq!(read(&own, 3, &torn), Found::Versions { oldest: None, newest: Some(9) });
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
