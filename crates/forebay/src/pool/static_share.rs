// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes: may there be one such as this, and what their slots hold.

use forebay_engine::sys;

use super::{Pool, StaticShare};
use crate::defaults;
use crate::error::{Error, Result};
use crate::report::{human_bytes, EntryKind, SlotDump, WayDump};

impl Pool {
    /// The period in microseconds.
    pub(super) fn check_static(&self, name: &str, p: &StaticShare) -> Result<u32> {
        let pool = self.path().display();
        let room = self.0.core().engine.info().sb.static_bytes;
        let unit = defaults::STATIC_UNIT_BYTES;
        if room == 0 {
            return Err(Error::usage(
                format!("volume {name}: pool {pool} has no room for static volumes"),
                "make a pool that has (forebay create --static SIZE), or add it without --static",
            ));
        }
        if p.share_bytes == 0 || !p.share_bytes.is_multiple_of(unit) {
            return Err(Error::usage(
                format!("volume {name}: a share of {} bytes is not possible", p.share_bytes),
                format!("use a multiple of {}, at least that", human_bytes(unit)),
            ));
        }
        if p.share_bytes > room {
            return Err(Error::usage(
                format!(
                    "volume {name}: a share of {} is larger than all room for static volumes of pool {pool}, {}",
                    human_bytes(p.share_bytes),
                    human_bytes(room)
                ),
                "use a smaller share, or a pool that was made with more (forebay create --static SIZE)",
            ));
        }
        let Some(every) = p.flush_every else { return Ok(0) };
        let us = u32::try_from(every.as_micros()).unwrap_or(0);
        if us == 0 || every > defaults::FLUSH_EVERY_MOST {
            return Err(Error::usage(
                format!("volume {name}: a flush every {every:?} is not possible"),
                format!("use 1us to {:?}, or leave it out", defaults::FLUSH_EVERY_MOST),
            ));
        }
        Ok(us)
    }

    /// All of it together may be enough: shares do not move.
    pub(super) fn no_room(&self, name: &str, share_bytes: u64) -> Error {
        let mut statics = self.volumes();
        statics.retain(|v| v.static_bytes > 0);
        let others: Vec<_> = (statics.iter())
            .map(|v| format!("{} {}", v.label(), human_bytes(v.static_bytes)))
            .collect();
        let all = self.0.core().engine.info().sb.static_bytes;
        Error::Volume {
            name: name.into(),
            cause: format!(
                "the pool has no {} in one piece left for it: of {} for static volumes {} are given ({})",
                human_bytes(share_bytes),
                human_bytes(all),
                human_bytes(statics.iter().map(|v| v.static_bytes).sum()),
                others.join(", ")
            ),
            way_out: "use a smaller share, or remove a static volume that is not needed".into(),
            code: sys::FBY_E_STATIC_FULL,
        }
    }

    /// The slot in which the block (4 KiB units) of a static volume has its place; `None`:
    /// the volume is not static.
    pub fn slot_of_block(&self, volume: &str, block: u64) -> Result<Option<SlotDump>> {
        let core = self.0.core();
        let index = core.find(volume)?;
        let info = core.volume_info(index)?;
        if info.static_bytes == 0 {
            return Ok(None);
        }
        let blocks = info.size_bytes.div_ceil(u64::from(sys::FBY_PAGE));
        if block >= blocks {
            return Err(Error::usage(
                format!("volume {volume}: block {block} of 4 KiB is beyond its end"),
                format!("use 0 to {}", blocks.saturating_sub(1)),
            ));
        }
        let s = self.engine().static_slot_info(index, block, true);
        let s = s.map_err(|e| core.named_error(volume, e))?;
        let way = |w: &sys::fby_static_way_info| WayDump {
            live: w.live,
            lost: w.lost,
            superseded: w.superseded,
            newest: w.newest,
            data_ok: w.live.then_some(w.data_ok),
            kind: EntryKind::of(w.kind),
            block: w.block,
            era: w.era,
            number: w.number,
            valid_sectors: w.valid,
            lost_sectors: w.lost_sectors,
            data_crc: w.data_crc,
        };
        Ok(Some(SlotDump {
            volume: volume.into(),
            block,
            slot: s.slot,
            torn: s.torn,
            ways: s.way.iter().map(way).collect(),
        }))
    }
}
