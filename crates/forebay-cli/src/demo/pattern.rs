// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of the demo's writers.  Each sector states its number and the write that it is from,
//! and the rest follows from these.  So any sector can be verified and attributed to its write.

use super::random::{mix, Random};

pub const SECTOR: usize = 512;
pub const WORDS: usize = SECTOR / 8;

/// A sector of write `version`; version 0: never written, zeroes.
pub fn fill(sector: &mut [u8], number: u64, version: u64) {
    let words = sector.as_chunks_mut::<8>().0;
    words[0] = number.to_le_bytes();
    words[1] = version.to_le_bytes();
    let mut random = Random::new(mix(number, version));
    for word in &mut words[2..WORDS] {
        *word = random.next().to_le_bytes();
    }
}

/// The write that a sector is from; None: the sector is torn, or another one.
pub fn version_of(sector: &[u8], number: u64) -> Option<u64> {
    if sector.iter().all(|b| *b == 0) {
        return Some(0);
    }
    let words = sector.as_chunks::<8>().0;
    let version = u64::from_le_bytes(words[1]);
    let mut expected = [0; SECTOR];
    fill(&mut expected, number, version);
    (version != 0 && sector == expected).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_knows_itself_and_any_flipped_bit() {
        let mut sector = [0u8; SECTOR];
        assert_eq!(version_of(&sector, 7), Some(0));
        fill(&mut sector, 7, 42);
        assert_eq!(version_of(&sector, 7), Some(42));
        assert_eq!(version_of(&sector, 8), None);
        for byte in 0..SECTOR {
            sector[byte] ^= 1;
            assert_eq!(version_of(&sector, 7), None, "byte {byte}");
            sector[byte] ^= 1;
        }
    }
}
