// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of an open pool, and what tools show of its inside.

use std::time::Instant;

use forebay_engine::sys;

use super::Pool;
use crate::drains::look_by_network;
use crate::engine::{self, EngineResult};
use crate::error::{Error, Result};
use crate::log::log_info;
use crate::report::{
    BlockHistory, CheckReport, ChunkDump, ChunkState, EntryDump, EntryKind, ReportBlock,
    SuperblockDump, VolumeInfo,
};

const NO_VOLUME: u16 = 0xffff;

impl Pool {
    /// Verifies the invariants of the whole pool; with `data` the checksum of
    /// every cached page as well.  All invariants can be verified only while
    /// no volume is attached, those that hold at any moment always.
    pub fn check(&self, data: bool) -> Result<CheckReport> {
        let started = Instant::now();
        // Nothing is attached or detached meanwhile.
        let volumes = self.0.volumes();
        let core = self.0.core();
        let all = core.volumes();
        let quiet = all.iter().all(|v| !v.attached);
        // Attached, they are verified with the rest.
        let (map_checks, _attached) = self.check_maps()?;
        let invariant = self.engine().check(quiet).map_err(|e| core.pool_error(e))?;
        let mut report = CheckReport {
            quiet,
            data,
            invariant,
            damaged_volumes: all.iter().filter(|v| v.damaged).map(|v| v.index).collect(),
            holes: all.iter().map(|v| v.holes + v.holes_unknown).sum(),
            recovery: self.recovery().clone(),
            ..Default::default()
        };
        if data {
            self.check_data(&mut report).map_err(|e| core.pool_error(e))?;
            report.pages_checked += all.iter().map(|v| self.static_pages(v)).sum::<u64>();
        }
        report.logs = self.check_logs(data)?;
        report.maps = map_checks;
        let lost = |mut v| (core.lost_with(&mut v, &report.damaged), v);
        let all: Vec<_> = all.into_iter().map(lost).collect();
        // Origins are asked, and may hang. From here on an index may become another volume's.
        drop(volumes);
        let looks: Vec<_> = all.iter().map(|(_, v)| look_by_network(v)).collect();
        let all = all.into_iter().zip(looks);
        report.volumes = all.map(|((lost, v), look)| core.judge_with(v, lost, look)).collect();
        report.ok = report.exit_code() == 0;
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Pages that a static volume holds, also where they are not counted yet.
    fn static_pages(&self, v: &VolumeInfo) -> u64 {
        if v.static_bytes == 0 || !v.uncounted {
            return if v.static_bytes > 0 { v.pages } else { 0 };
        }
        let blocks = v.size_bytes.div_ceil(u64::from(sys::FBY_PAGE));
        let slots = (0..blocks.min(u64::from(v.static_slots)))
            .filter_map(|slot| self.engine().static_slot_info(v.index, slot, false).ok());
        let live = |w: &&sys::fby_static_way_info| w.live && !w.superseded;
        slots.map(|slot| slot.way.iter().filter(live).count() as u64).sum()
    }

    fn check_data(&self, report: &mut CheckReport) -> EngineResult<()> {
        for chunk in 0..self.chunk_count() {
            if self.engine().chunk_info(chunk)?.live == 0 {
                continue;
            }
            for page in self.data_pages() {
                let entry = self.engine().entry_info(chunk, page, true)?;
                if !entry.linked {
                    continue;
                }
                report.pages_checked += 1;
                if !entry.valid || !entry.data_ok || entry.line.lost != 0 {
                    let block = sys::fby_report_block {
                        block: if entry.valid { entry.line.block } else { u64::MAX },
                        chunk,
                        page: page as u16,
                        volume: entry.line.volume,
                    };
                    report.damaged.push(self.report_block(&block));
                }
            }
        }
        Ok(())
    }

    fn report_block(&self, b: &sys::fby_report_block) -> ReportBlock {
        self.0.core().report_block(b)
    }

    fn chunk_count(&self) -> u32 {
        self.engine().info().sb.nchunks
    }

    fn data_pages(&self) -> std::ops::Range<u32> {
        let sb = self.engine().info().sb;
        engine::first_data_page(sb.chunk_size, sb.unit)..sb.chunk_size / sys::FBY_PAGE
    }

    fn volume_name(&self, index: u16) -> Option<String> {
        match index {
            NO_VOLUME => None,
            i => self.0.core().volume_info(i).ok().map(|v| v.name).filter(|n| !n.is_empty()),
        }
    }

    /// The superblock as it is on the media now.
    pub fn superblock(&self) -> Result<SuperblockDump> {
        let probe = engine::probe(&self.0.core().media);
        probe.superblock.ok_or_else(|| Error::Damaged {
            path: self.path().to_path_buf(),
            cause: "neither superblock is valid any more".into(),
            way_out: "close the pool, which writes them anew, and see the system log".into(),
        })
    }

    pub fn chunk(&self, number: u32) -> Result<ChunkDump> {
        self.check_chunk(number)?;
        let c = self.engine().chunk_info(number).map_err(|e| self.0.core().pool_error(e))?;
        Ok(ChunkDump {
            number,
            state: match c.state {
                0 => ChunkState::Free,
                1 => ChunkState::Open,
                _ => ChunkState::Closed,
            },
            volume: self.volume_name(c.volume),
            log: self.engine().log_info(c.volume).ok().map(|raw| log_info(c.volume, &raw).name),
            epoch: c.epoch,
            seq_min: c.seq_min,
            seq_max: c.seq_max,
            fill: c.fill.saturating_sub(self.data_pages().start),
            live: c.live,
        })
    }

    pub fn chunks(&self) -> Result<Vec<ChunkDump>> {
        (0..self.chunk_count()).map(|c| self.chunk(c)).collect()
    }

    pub(super) fn check_chunk(&self, number: u32) -> Result<()> {
        let chunks = self.chunk_count();
        match number < chunks {
            true => Ok(()),
            false => Err(Error::usage(
                format!("{}: has no chunk {number}", self.path().display()),
                format!("use 0 to {}", chunks - 1),
            )),
        }
    }

    /// All entries of a chunk's header array, valid or not.
    pub fn entries(&self, chunk: u32, check_data: bool) -> Result<Vec<EntryDump>> {
        self.check_chunk(chunk)?;
        let entry = |page| {
            let e = self.engine().entry_info(chunk, page, check_data);
            let e = e.map_err(|e| self.0.core().pool_error(e))?;
            Ok(self.entry_dump(chunk, page, &e, check_data))
        };
        self.data_pages().map(entry).collect()
    }

    fn entry_dump(
        &self,
        chunk: u32,
        page: u32,
        e: &sys::fby_entry_info,
        checked: bool,
    ) -> EntryDump {
        let l = &e.line;
        EntryDump {
            chunk,
            page,
            valid: e.valid,
            current: e.current,
            linked: e.linked,
            data_ok: (checked && e.valid).then_some(e.data_ok),
            kind: EntryKind::of(l.kind.into()),
            seq: l.seq,
            block: l.block,
            volume: self.volume_name(l.volume),
            epoch: l.epoch,
            batch_first: l.batch_first,
            batch_count: l.batch_count,
            valid_sectors: l.valid,
            lost_sectors: l.lost,
            has_checksum: l.flags & sys::FBY_PF_NOCRC == 0,
            data_crc: l.data_crc,
        }
    }

    /// All entries of a block (4 KiB units) that are still readable, oldest
    /// first.
    pub fn block_history(&self, volume: &str, block: u64) -> Result<BlockHistory> {
        let core = self.0.core();
        let index = core.find(volume)?;
        let blocks = core.volume_info(index)?.size_bytes.div_ceil(u64::from(sys::FBY_PAGE));
        if block >= blocks {
            return Err(Error::usage(
                format!("volume {volume}: block {block} of 4 KiB is beyond its end"),
                format!("use 0 to {}", blocks.saturating_sub(1)),
            ));
        }
        let mut entries = Vec::new();
        for chunk in 0..self.chunk_count() {
            for page in self.data_pages() {
                let e = self.engine().entry_info(chunk, page, false);
                let e = e.map_err(|e| core.pool_error(e))?;
                if e.valid && e.line.volume == index && e.line.block == block {
                    let e = self.engine().entry_info(chunk, page, true);
                    let e = e.map_err(|e| core.pool_error(e))?;
                    entries.push(self.entry_dump(chunk, page, &e, true));
                }
            }
        }
        entries.sort_by_key(|e| e.seq);
        let watermark = core.volume_info(index)?.watermark;
        Ok(BlockHistory { volume: volume.into(), block, watermark, entries })
    }
}
