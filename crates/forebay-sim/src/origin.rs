// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated origin: a disk with a volatile cache.
//!
//! A sector is not kept as bytes but as the id of the write it holds (see
//! pattern.rs), or BAD if its bytes are no whole sector that belongs there.

use crate::pattern;
use crate::rng::Rng;

/// The sector holds the pieces of several writes, or bytes from elsewhere.
pub const BAD: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Unflushed {
    sector: u64,
    id: u64,
    may_tear: bool,
}

#[derive(Clone, Debug)]
pub struct Origin {
    /// The volume's own number, which its sectors name.
    pub number: u64,
    /// A discard leaves the old contents.
    pub ignores_discard: bool,
    now: Vec<u64>,
    durable: Vec<u64>,
    cache: Vec<Unflushed>,
    flushed: u64,
    /// Power cuts so far: a read that one of them met has failed.
    pub cuts: u64,
}

/// Which of the cached writes reach the disk when its power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    All,
    Nothing,
    /// Any of them, in any order, some torn.
    Some,
}

impl Origin {
    /// Every sector holds the write `id`.
    pub fn new(number: u64, sectors: u64, id: u64) -> Self {
        let now = vec![id; sectors as usize];
        Self {
            number,
            ignores_discard: false,
            durable: now.clone(),
            now,
            cache: Vec::new(),
            flushed: 0,
            cuts: 0,
        }
    }

    pub fn sectors(&self) -> u64 {
        self.now.len() as u64
    }

    pub fn read(&self, sector: u64) -> u64 {
        self.now[sector as usize]
    }

    /// The sector's value when all unflushed data is lost.
    pub fn durable(&self, sector: u64) -> u64 {
        self.durable[sector as usize]
    }

    /// The sector's possible content after a power cut: the durable write, one that no flush covers,
    /// or pieces of it.
    pub fn after_cut(&self, sector: u64) -> impl Iterator<Item = u64> + '_ {
        let unflushed = self.cache.iter().filter(move |u| u.sector == sector);
        let ids = unflushed.flat_map(|u| [u.id, if u.may_tear { BAD } else { u.id }]);
        std::iter::once(self.durable(sector)).chain(ids)
    }

    pub fn volatile(&self) -> bool {
        !self.cache.is_empty()
    }

    fn apply(&mut self, sector: u64, id: u64, may_tear: bool) {
        self.now[sector as usize] = id;
        self.cache.push(Unflushed { sector, id, may_tear });
    }

    /// The bytes of whole sectors from `sector` on.
    pub fn write(&mut self, sector: u64, data: &[u8]) {
        for (at, bytes) in (sector..).zip(data.chunks_exact(pattern::SECTOR)) {
            let id = pattern::read(pattern::place(self.number, at), bytes).unwrap_or(BAD);
            self.apply(at, id, true);
        }
    }

    /// As above, for a caller who relies on whole sectors, as disks provide them.
    pub fn write_whole(&mut self, sector: u64, data: &[u8]) {
        let before = self.cache.len();
        self.write(sector, data);
        self.cache[before..].iter_mut().for_each(|u| u.may_tear = false);
    }

    pub fn zero(&mut self, sector: u64, n: u64) {
        (sector..sector + n).for_each(|at| self.apply(at, pattern::ZERO, false));
    }

    pub fn discard(&mut self, sector: u64, n: u64) {
        for at in sector..sector + n {
            // A discarded sector may read as anything; pieces are not modelled.
            if !self.ignores_discard || self.read(at) == BAD {
                self.zero(at, 1);
            }
        }
    }

    /// The mark up to which a flush issued now makes data durable.
    pub fn flush_mark(&self) -> u64 {
        self.flushed + self.cache.len() as u64
    }

    /// A flush ends: `mark` is from its issue.
    pub fn flush(&mut self, mark: u64) {
        let n = mark.saturating_sub(self.flushed) as usize;
        for u in self.cache.drain(..n.min(self.cache.len())) {
            self.durable[u.sector as usize] = u.id;
        }
        self.flushed = self.flushed.max(mark);
    }

    pub fn flush_all(&mut self) {
        self.flush(self.flush_mark());
    }

    /// Power is cut and comes back.
    pub fn power_cut(&mut self, loss: Loss, rng: &mut Rng) {
        self.cuts += 1;
        let lands = rng.range(5, 95);
        for u in std::mem::take(&mut self.cache) {
            self.flushed += 1;
            // The older of two writes to a sector may be the one that stays.
            let id = match loss {
                Loss::All => continue,
                Loss::Nothing => u.id,
                Loss::Some if !rng.percent(lands) => continue,
                Loss::Some if u.may_tear && rng.one_in(12) => BAD,
                Loss::Some => u.id,
            };
            self.durable[u.sector as usize] = id;
        }
        self.now.copy_from_slice(&self.durable);
    }

    /// A copy takes its place that is durable and has nothing of these sectors.
    pub fn replace(&mut self, without: &[bool]) {
        for (id, _) in self.now.iter_mut().zip(without).filter(|(_, without)| **without) {
            *id = BAD;
        }
        self.flush_all();
        self.durable.copy_from_slice(&self.now);
    }

    /// The bytes of a sector, for a host that reads it.
    pub fn bytes(&self, sector: u64, out: &mut [u8]) {
        match self.read(sector) {
            BAD => out.fill(0xbd),
            id => pattern::fill(pattern::place(self.number, sector), id, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_vouches_for_what_came_before_it() {
        let mut o = Origin::new(1, 8, 5);
        o.zero(1, 1);
        let mark = o.flush_mark();
        o.zero(2, 1);
        o.flush(mark);
        o.power_cut(Loss::All, &mut Rng::new(1));
        assert_eq!([o.read(1), o.read(2)], [pattern::ZERO, 5]);
    }

    #[test]
    fn unflushed_writes_land_tear_or_are_lost() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let mut o = Origin::new(1, 8, 5);
            let mut bytes = [0; 512];
            pattern::fill(pattern::place(1, 3), 9, &mut bytes);
            o.write(3, &bytes);
            assert_eq!(o.read(3), 9);
            o.power_cut(Loss::Some, &mut Rng::new(seed));
            seen.insert(o.read(3));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [5, 9, BAD]);
    }
}
