// SPDX-License-Identifier: MIT OR Apache-2.0
//! A volume as its user sees it: which write each sector holds.

use forebay_engine::sys;

use crate::engine::{Decision, Engine};
use crate::origin::Origin;
use crate::pattern;

/// In the place of an id: the sector answers EIO.
pub const LOST: u64 = u64::MAX - 2;

/// Reads all of an attached volume through the cache, with its origin for what is not
/// cached.
pub fn read_volume(engine: &mut Engine, index: u16, origin: &Origin) -> Result<Vec<u64>, String> {
    let mut ids = Vec::with_capacity(origin.sectors() as usize);
    let mut buf = [0; 4096];
    for block in 0..origin.sectors().div_ceil(8) {
        let n = (origin.sectors() - block * 8).min(8) as usize;
        let r = engine.read_block(index, block, 0, &mut buf[..n * pattern::SECTOR]);
        match r.result {
            Ok(Decision::Done | Decision::Origin) => {}
            Err(e) if e.is(sys::FBY_E_LOST) => {}
            other => {
                return Err(format!("read of block {block} of volume {}: {other:?}", origin.number))
            }
        }
        for (k, bytes) in buf.chunks_exact(pattern::SECTOR).take(n).enumerate() {
            let sector = block * 8 + k as u64;
            let id = match (r.lost >> k & 1, r.origin >> k & 1) {
                (1, _) => Some(LOST),
                (_, 1) => Some(origin.read(sector)),
                _ => pattern::read(pattern::place(origin.number, sector), bytes),
            };
            ids.push(id.ok_or_else(|| {
                format!("volume {} sector {sector} holds no whole sector", origin.number)
            })?);
        }
    }
    Ok(ids)
}
