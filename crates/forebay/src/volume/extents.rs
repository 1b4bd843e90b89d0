// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts of a volume have data, without reading it: the pool knows cached parts, the
//! origin the others.

use std::sync::atomic::Ordering::Relaxed;

use super::{Volume, BLOCK, SECTOR};
use crate::error::Result;
use crate::origin::Extent;

/// One call looks at no more, so that it is over soon.
const LOOK_BYTES: u64 = 256 << 20;

/// The pool's part of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cached {
    /// All of it is the origin's.
    No,
    Data,
    Zeroes,
}

impl Volume {
    /// Describes the range from its start on: up to `most` adjacent extents, at least one,
    /// which may end before the range does.  The statement about a byte was true at a moment
    /// during the call.
    pub fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>> {
        self.inner().check(offset, len)?;
        let end = (offset + len).min((offset / BLOCK * BLOCK).saturating_add(LOOK_BYTES));
        // The pool is asked first: data that is destaged and released meanwhile is found on the
        // origin.
        let mut runs: Vec<(u64, Cached)> = Vec::new();
        let mut at = offset;
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let cached = self.cached(at, next);
            match runs.last_mut() {
                Some((to, last)) if *last == cached => *to = next,
                _ => runs.push((next, cached)),
            }
            at = next;
        }
        let mut found = Vec::new();
        let mut at = offset;
        for (to, cached) in runs {
            match cached {
                Cached::Data => add(&mut found, Extent::data(to - at)),
                Cached::Zeroes => {
                    add(&mut found, Extent { len: to - at, hole: false, zero: true });
                }
                Cached::No => {
                    self.origin().extents(at, to - at).into_iter().for_each(|e| add(&mut found, e));
                }
            }
            at = to;
            if found.len() > most {
                break;
            }
        }
        found.truncate(most.max(1));
        Ok(found)
    }

    /// A block, or its part in the range.
    fn cached(&self, at: u64, to: u64) -> Cached {
        let mut data = [0; BLOCK as usize];
        let data = &mut data[..(to - at) as usize];
        let (first, sectors) = ((at % BLOCK / SECTOR) as u32, (to - at) / SECTOR);
        let engine = &self.inner().core().engine;
        let all = ((1u32 << sectors) - 1) as u8;
        let all = all.checked_shl(first).unwrap_or(0);
        let looked = &self.inner().core().looked;
        let found = engine.read_block(self.inner().index(), at / BLOCK, first, data).masks();
        let of_origin = found.as_ref().map_or(0, |(origin, _)| u64::from(origin.count_ones()));
        looked.reads.fetch_add(1, Relaxed);
        looked.miss_sectors.fetch_add(of_origin, Relaxed);
        looked.hit_sectors.fetch_add(sectors - of_origin, Relaxed);
        match found {
            Ok((origin, 0)) if origin & all == all => Cached::No,
            Ok((0, 0)) if data.iter().all(|byte| *byte == 0) => Cached::Zeroes,
            // A lost or unknown block is no hole.
            _ => Cached::Data,
        }
    }
}

/// One extent of two alike.
fn add(found: &mut Vec<Extent>, e: Extent) {
    match found.last_mut() {
        Some(last) if (last.hole, last.zero) == (e.hole, e.zero) => last.len += e.len,
        _ => found.push(e),
    }
}
