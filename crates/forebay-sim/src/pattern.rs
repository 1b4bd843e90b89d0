// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of the simulated clients.  Each 512-byte sector states its write and its place in all
//! of its 64 words, so an old, misplaced, torn or damaged sector is distinguished from a right
//! one.

use crate::rng::mix;

pub const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The id of a sector of zeroes.
pub const ZERO: u64 = 0;

/// The place of a sector: `volume` is the volume's own number, never reused.
pub fn place(volume: u64, sector: u64) -> u64 {
    mix(volume << 40 ^ sector)
}

fn base(place: u64, id: u64) -> u64 {
    mix(place ^ id.wrapping_mul(0xa24b_aed4_963e_e407))
}

pub fn fill(place: u64, id: u64, out: &mut [u8]) {
    assert_eq!(out.len(), SECTOR);
    if id == ZERO {
        out.fill(0);
        return;
    }
    let base = base(place, id);
    out[..8].copy_from_slice(&id.to_le_bytes());
    for (i, word) in out.chunks_exact_mut(8).enumerate().skip(1) {
        word.copy_from_slice(&base.wrapping_add((i as u64).wrapping_mul(STEP)).to_le_bytes());
    }
}

/// The id of the write that a sector holds, or nothing if it is not whole or
/// belongs elsewhere.
pub fn read(place: u64, sector: &[u8]) -> Option<u64> {
    assert_eq!(sector.len(), SECTOR);
    let id = u64::from_le_bytes(sector[..8].try_into().ok()?);
    let (base, step) = if id == ZERO { (0, 0) } else { (base(place, id), STEP) };
    let mut differs = 0;
    for (i, word) in sector.chunks_exact(8).enumerate().skip(1).take(WORDS - 1) {
        let have = u64::from_le_bytes(word.try_into().ok()?);
        differs |= have ^ base.wrapping_add((i as u64).wrapping_mul(step));
    }
    (differs == 0).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_names_its_write_and_no_other() {
        let mut s = [0u8; SECTOR];
        assert_eq!(read(place(1, 2), &s), Some(ZERO));
        fill(place(1, 2), 77, &mut s);
        assert_eq!(read(place(1, 2), &s), Some(77));
        assert_eq!(read(place(1, 3), &s), None);
        assert_eq!(read(place(2, 2), &s), None);
        for bit in 0..SECTOR * 8 {
            s[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(place(1, 2), &s), None, "bit {bit}");
            s[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_torn_sector_is_no_sector() {
        let (mut a, mut b) = ([0u8; SECTOR], [0u8; SECTOR]);
        fill(place(1, 2), 5, &mut a);
        fill(place(1, 2), 6, &mut b);
        for cut in (8..SECTOR).step_by(8) {
            let mut torn = a;
            torn[..cut].copy_from_slice(&b[..cut]);
            assert_eq!(read(place(1, 2), &torn), None);
        }
    }
}
