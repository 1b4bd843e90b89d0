// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes among the others: half of all, but in worlds that are about chunks.

use forebay_engine::sys;

use crate::engine::volume_spec;
use crate::rng::{mix, Rng};

use super::{Plan, Verdict, World};

const UNIT: u32 = 65536;

impl Plan {
    /// Room for static volumes after the chunks; chosen independently of the rest of the plan.
    pub(super) fn make_room(&mut self) {
        let mut rng = Rng::new(mix(self.seed ^ 0x0f05));
        if !self.periodic && !self.hot {
            self.geometry.shares = [UNIT * rng.range(1, 6) as u32, 0];
        }
    }

    /// Bytes of the volume's share, 0 if it has none, and its period in microseconds.
    pub(super) fn share_of(&self, number: u64) -> (u64, u32) {
        let mut rng = Rng::new(mix(self.seed ^ mix(number)));
        if self.geometry.static_bytes() == 0 || rng.one_in(2) {
            return (0, 0);
        }
        (u64::from(UNIT) * rng.pick(&[1, 1, 2]), rng.pick(&[0, 0, 1_000, 100_000]))
    }
}

impl World {
    /// Offset of the pages of its share: after the lines, found by its head.
    fn share_pages(&self, v: usize) -> Option<u64> {
        let volume = &self.volumes[v];
        let uuid = volume_spec(&volume.name, volume.number, 8, 512).uuid;
        let image = self.engine.media.image();
        let mut at = self.plan.geometry.chunks_end() as usize;
        while at < image.len() {
            if image[at + 16..at + 32] == uuid {
                let slots = u32::from_le_bytes(image[at + 56..at + 60].try_into().ok()?);
                let lines = (u64::from(slots) * 64 + 256).div_ceil(4096) * 4096;
                return Some(at as u64 + 4096 + lines);
            }
            at += UNIT as usize;
        }
        None
    }

    /// Damages a page of it that the origin lacks, one of a slot.  Where both are lost, or
    /// the line, or an era is in doubt, other blocks are lost too, or older data shows:
    /// tests/inside has these.
    pub(super) fn static_fault(&mut self, v: usize) -> Verdict {
        let (index, attached) = (self.volumes[v].index, self.volumes[v].attached);
        let Some(index) = index.filter(|_| attached) else { return Ok(()) };
        let info = self.engine.volume_info(index).map_err(|e| format!("info: {e}"))?;
        let blocks = self.volumes[v].origin.sectors().div_ceil(8);
        let block = self.rng.below(blocks);
        let slot = self.engine.static_slot_info(index, block, true);
        let slot = slot.map_err(|e| format!("static_slot_info: {e}"))?;
        let found = (0..2u64).find(|&way| {
            let w = &slot.way[way as usize];
            w.live && !w.superseded && w.block == block && w.data_ok
        });
        let (Some(way), true) = (found, info.counted) else { return Ok(()) };
        let other = &slot.way[1 - way as usize];
        if other.live && !other.superseded && (!other.data_ok || other.lost_sectors != 0) {
            return Ok(());
        }
        let w = &slot.way[way as usize];
        if w.kind != sys::FBY_KIND_DATA || w.valid == 0 {
            return Ok(());
        }
        let pages = self.share_pages(v).ok_or("a share has no head")?;
        let held: Vec<u64> = (0..8).filter(|k| w.valid >> k & 1 == 1).collect();
        let at = pages + (u64::from(slot.slot) * 2 + way) * 4096 + self.rng.pick(&held) * 512;
        if self.rng.one_in(2) {
            self.engine.media.flip(at * 8 + self.rng.below(4096));
        } else {
            self.engine.media.poison((at / 64) as u32 + self.rng.below(8) as u32, 1);
        }
        self.log(|| {
            format!("media fault at slot {} way {way}: volume {index} block {block}", slot.slot)
        });
        self.damaged = true;
        self.tally.media_faults += 1;
        self.taint(v, block, true);
        Ok(())
    }
}
