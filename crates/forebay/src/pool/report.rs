// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of an open pool, and the options that change while it is open.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::sys;

use super::{check_options, raw_duration, raw_verify, OptionsChange};
use crate::bypass::VolumeChange;
use crate::drains::look_by_network;
use crate::engine::Code;
use crate::error::{Error, Result};
use crate::grouped::Durable;
use crate::origin::{split_identity, Look};
use crate::printable::printable;
use crate::report::{
    Chunks, Counters, DestageState, HeldByDetached, MediumStatus, OptionsInfo, OriginUse,
    PoolStatus, ReportBlock, Uuid, Verdict, Verify, VolumeInfo,
};
use crate::shared_pool::SharedPool;

/// Damaged blocks that status lists.
const DAMAGED_LISTED: u32 = 64;

impl SharedPool {
    // --- volumes ---------------------------------------------------------

    pub(crate) fn volumes(&self) -> Vec<VolumeInfo> {
        let n = self.engine.info().sb.nvolumes as u16;
        let all = (0..n).filter_map(|i| self.volume_info(i).ok());
        all.filter(VolumeInfo::is_used).collect()
    }

    /// Has no name if the record is unused.
    pub(crate) fn volume_info(&self, index: u16) -> Result<VolumeInfo> {
        let info = self.engine.volume_info(index).map_err(|e| self.volume_error(index, e))?;
        let attached = self.attached(index);
        let policy = attached.as_ref().map(|a| &a.policy);
        let limit = policy.map_or(0, |p| p.limit_bytes());
        let when_full = policy.map(|p| p.when_full()).unwrap_or_default();
        let mode = policy.map(|p| p.mode()).unwrap_or_default();
        let durable = policy.filter(|_| self.sender.is_some()).map(|p| p.durable());
        let recorded = sys::text(&info.spec.identity).into_owned();
        let (id, path) = split_identity(&recorded);
        let refused = match &attached {
            Some(a) if info.last_error != 0 => a.refused(|| self.engine.refused_pages(index)),
            _ => (0, 0),
        };
        let last_error = (info.last_error != 0).then(|| {
            let noted = attached.as_ref().and_then(|a| a.last_error());
            let noted = noted
                .unwrap_or_else(|| std::io::Error::from_raw_os_error(info.last_error).to_string());
            match refused {
                (0, _) => noted,
                (n, block) => format!(
                    "{noted}; {n} pages that it refused are not written back, the first at offset {}",
                    block * 4096
                ),
            }
        });
        let mut v = VolumeInfo {
            verdict: Verdict::Unknown,
            origin_changed: None,
            origin_mark: None,
            origin_unseen: None,
            name: match info.used {
                true => printable(&sys::text(&info.spec.name)).into_owned(),
                false => String::new(),
            },
            index,
            uuid: Uuid(info.spec.uuid),
            size_bytes: info.spec.origin_sectors * 512,
            block_size: info.spec.block_size,
            identity: id.into(),
            origin_path: path.map(Into::into),
            latency: attached.as_ref().map(|a| a.latency.summaries()).unwrap_or_default(),
            origin_away: attached.as_ref().and_then(|a| a.origin.away()),
            origin: attached.map(|a| self.origin_info(a.origin.info())),
            attached: info.attached,
            damaged: info.damaged,
            watermark: info.watermark,
            pages: info.pages,
            cached_bytes: info.pages * 4096,
            chunks: info.chunks,
            static_bytes: info.spec.static_bytes,
            static_slots: info.slots,
            flush_every_seconds: (info.spec.flush_us != 0)
                .then_some(f64::from(info.spec.flush_us) / 1e6),
            uncounted: info.slots != 0 && !info.counted,
            conflicts: info.conflicts,
            eras_percent: info.eras_percent,
            lost_blocks: info.lost_blocks,
            lost_stuck: info.lost_stuck,
            holes: info.holes,
            holes_unknown: info.holes_unknown,
            destage: match info.destage {
                sys::FBY_DESTAGE_WRITING => DestageState::Writing,
                sys::FBY_DESTAGE_FLUSHING => DestageState::Flushing,
                sys::FBY_DESTAGE_COMMITTING => DestageState::Committing,
                sys::FBY_DESTAGE_BACKOFF => DestageState::Backoff,
                _ => DestageState::Idle,
            },
            draining: info.draining,
            last_error,
            last_errno: (info.last_error != 0).then_some(info.last_error),
            origin_errors: info.origin_errors,
            pages_refused: refused.0.into(),
            refused_offset: (refused.0 > 0).then(|| refused.1 * 4096),
            origin_writes: info.origin_writes,
            origin_written_bytes: info.origin_sectors_written * 512,
            origin_flushes: info.origin_flushes,
            pages_destaged: info.pages_destaged,
            pages_relocated: info.pages_relocated,
            origin_use: None,
            writes: info.writes,
            written_bytes: info.written_sectors * 512,
            rounds: info.rounds,
            throttled_seconds: info.throttle_ns as f64 / 1e9,
            intake_limit_bytes_per_s: (info.intake_limit != 0)
                .then_some(u64::from(info.intake_limit) * 4096),
            drain_bytes_per_s: u64::from(info.drain_rate) * 4096,
            origin_depth: info.origin_depth,
            bypasses: info.bypasses,
            bypassed_bytes: info.bypassed_sectors * 512,
            flush_owed: info.flush_owed,
            bypass_limit_bytes: (limit != 0).then_some(limit),
            when_full,
            mode,
            durable: durable.map(|(when, _)| when),
            durable_because: durable.and_then(|(_, because)| Some(because?.to_string())),
            rescued: info.attached && self.rescued(index),
            pool_failed: self.has_failed() || self.is_lost(),
            pool_lost: self.is_lost(),
        };
        v.origin_use = OriginUse::of(&v);
        Ok(v)
    }

    fn origin_info(&self, mut info: crate::report::OriginInfo) -> crate::report::OriginInfo {
        if info.method != "O_DIRECT" && info.method != "page cache" {
            return info;
        }
        match self.ring_state() {
            Some(Ok(())) => info.method = format!("io_uring, {}", info.method),
            Some(Err(why)) => {
                info.note = [&info.note, why].map(String::as_str).join("; ");
                info.note = info.note.trim_matches([';', ' ']).into();
            }
            None => {}
        }
        info
    }

    pub(crate) fn report_block(&self, b: &sys::fby_report_block) -> ReportBlock {
        ReportBlock {
            volume: self.volume_name(b.volume),
            block: (b.block != u64::MAX).then_some(b.block),
            chunk: b.chunk,
            page: b.page,
        }
    }

    // --- status and options ----------------------------------------------

    /// `None`, unless writers get no chunk because of volumes that are not attached.
    pub(crate) fn held_by_detached(&self, volumes: &[VolumeInfo]) -> Option<HeldByDetached> {
        let info = self.engine.info();
        let chunks =
            Chunks { all: info.sb.nchunks, free: info.chunks_free, reserved: info.chunks_reserved };
        HeldByDetached::of(chunks, volumes)
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let engine = &self.engine;
        let info = engine.info();
        let volumes = self.volumes();
        // All at once, so that several that hang take no longer than one.
        let looks: Vec<_> = volumes.iter().map(look_by_network).collect();
        let judged = volumes.into_iter().zip(looks).map(|(v, look)| self.judged(v, look));
        let volumes: Vec<_> = judged.collect();
        let statics = || volumes.iter().filter(|v| v.static_bytes > 0);
        PoolStatus {
            pid: std::process::id(),
            uuid: Uuid(info.sb.uuid),
            read_only: self.read_only,
            media: self.media.info().clone(),
            recovery: self.recovery.clone(),
            options: self.options(),
            chunk_size_bytes: info.sb.chunk_size,
            chunks: info.sb.nchunks,
            chunks_free: info.chunks_free,
            chunks_open: info.chunks_open,
            chunks_used: info.chunks_used,
            pages: info.pages,
            pages_cached: info.pages_linked,
            capacity_bytes: info.pages * 4096,
            cached_bytes: info.pages_linked * 4096,
            static_bytes: info.sb.static_bytes,
            static_given_bytes: statics().map(|v| v.static_bytes).sum(),
            static_cached_bytes: statics().map(|v| v.cached_bytes).sum(),
            used_percent: f64::from(info.chunks_used) * 100.0 / f64::from(info.sb.nchunks.max(1)),
            memory_bytes: engine.memory_bytes(),
            destage_memory_bytes: engine.destage_memory_bytes(),
            slots: info.nslots,
            next_seq: info.seq,
            uptime_seconds: self.uptime().as_secs_f64(),
            counters: Counters {
                writes: info.writes + statics().map(|v| v.writes).sum::<u64>(),
                written_bytes: info.written_sectors * 512
                    + statics().map(|v| v.written_bytes).sum::<u64>(),
                merges: info.merges,
                commits: info.commits,
                media_bytes: info.media_bytes,
                reads: info.reads.saturating_sub(self.looked.reads.load(Relaxed)),
                read_hit_bytes: info
                    .read_hit_sectors
                    .saturating_sub(self.looked.hit_sectors.load(Relaxed))
                    * 512,
                read_miss_bytes: info
                    .read_miss_sectors
                    .saturating_sub(self.looked.miss_sectors.load(Relaxed))
                    * 512,
                discards: info.discards,
                zeroes: info.zeroes,
                flushes: info.flushes,
                chunks_opened: info.chunks_opened,
                waits_block: info.waits_block,
                waits_slot: info.waits_slot,
                waits_space: info.waits_space,
                damaged_pages: info.damaged_pages,
            },
            held_by_detached: self.held_by_detached(&volumes),
            volumes,
            logs: self.logs(),
            map_bytes: info.sb.map_bytes,
            maps: self.maps(),
            damaged_blocks: {
                let damaged = engine.damaged(DAMAGED_LISTED);
                damaged.iter().map(|b| self.report_block(b)).collect()
            },
            medium: self.medium_status(),
            file_trouble: self.file_trouble.lock().unwrap_or_else(|e| e.into_inner()).clone(),
            destage_failure: self.failure(),
            checksum_kernel: sys::posix_crc_kernel().into(),
        }
    }

    fn medium_status(&self) -> Option<MediumStatus> {
        let sender = self.sender.as_ref()?;
        let disk = sender.disk();
        let info = self.engine.medium_info();
        Some(MediumStatus {
            unit_bytes: info.unit,
            durable_by: match disk.durable() {
                Durable::Through => "write-through",
                Durable::Fua => "fua",
                Durable::Flush => "flush",
            }
            .into(),
            durable_by_because: disk.durable_by_because().into(),
            durable_write_seconds: disk.durable_write().map(|takes| takes.as_secs_f64()),
            groups: info.groups,
            records: info.records,
            writes: info.writes,
            written_bytes: info.written_bytes,
            flushes: info.flushes,
            write_errors: info.write_errors,
            flush_errors: info.flush_errors,
            again: info.again,
            held: sender.counts().held,
            failed: info.failed,
            // No error of a failed pool is over.
            trouble: disk.trouble().or_else(|| disk.mended().filter(|_| info.failed)),
            mended: disk.mended().filter(|_| !info.failed),
            unanswered_seconds: disk.unanswered().as_secs_f64(),
            hangs: disk.hangs(),
        })
    }

    /// With its verdict, for which its origin is looked at: the one in use, or else what
    /// is at its recorded path.
    fn judged(&self, mut v: VolumeInfo, look: Option<Arc<Look>>) -> VolumeInfo {
        self.look_at_origin(&mut v, look);
        v.verdict = v.completeness().verdict;
        v
    }

    pub(crate) fn options(&self) -> OptionsInfo {
        let o = self.engine.options();
        let seconds = |ns: u64| (ns != 0).then_some(ns as f64 / 1e9);
        OptionsInfo {
            slots: o.nslots,
            checksums: !o.no_checksums,
            verify: match o.verify {
                sys::FBY_VERIFY_ALWAYS => Verify::Always,
                sys::FBY_VERIFY_FIRST => Verify::First,
                _ => Verify::Never,
            },
            high_watermark_percent: o.high_watermark,
            low_watermark_percent: o.low_watermark,
            max_age_seconds: seconds(o.max_age_ns),
            idle_seconds: seconds(o.idle_ns),
        }
    }

    pub(crate) fn set_options(&self, change: &OptionsChange) -> Result<OptionsInfo> {
        // In a pool that is read alone nothing else has an effect.
        let of_reads = OptionsChange { verify: change.verify, ..Default::default() };
        if *change != of_reads {
            self.check_writable()?;
        }
        let mut o = self.engine.options();
        let nanoseconds = |seconds: f64| match Duration::try_from_secs_f64(seconds) {
            Ok(Duration::ZERO) if seconds == 0.0 => Ok(0),
            // The least there is: 0 is none.
            Ok(d) => Ok(raw_duration(d.max(Duration::from_nanos(1)))),
            Err(_) => Err(Error::usage(
                format!("{seconds} seconds are not possible"),
                "use a number of seconds, or 0 for none",
            )),
        };
        if let Some(on) = change.checksums {
            o.no_checksums = !on;
        }
        if let Some(verify) = change.verify {
            o.verify = raw_verify(verify);
        }
        if let Some(percent) = change.high_watermark_percent {
            o.high_watermark = percent;
        }
        if let Some(percent) = change.low_watermark_percent {
            o.low_watermark = percent;
        }
        if let Some(seconds) = change.max_age_seconds {
            o.max_age_ns = nanoseconds(seconds)?;
        }
        if let Some(seconds) = change.idle_seconds {
            o.idle_ns = nanoseconds(seconds)?;
        }
        check_options(&o)?;
        self.engine.set_options(&o).map_err(|e| self.pool_error(e))?;
        self.kick.kick();
        Ok(self.options())
    }

    /// The volume named, or all that are attached.
    pub(crate) fn set_volume(&self, name: Option<&str>, change: &VolumeChange) -> Result<()> {
        if name.is_none_or(|name| self.find(name).is_ok()) && *change != VolumeChange::default() {
            self.check_writable()?;
        }
        // Held until all have it, so that one which is attached meanwhile gets nothing older after.
        let all = name.is_none().then(|| self.for_all.lock().unwrap_or_else(|e| e.into_inner()));
        let _held = all.map(|mut all| {
            all.then(change);
            all
        });
        for index in self.settable(name)? {
            if let Some(attached) = self.attached(index) {
                attached.change(self.durable_write(), change);
            }
        }
        self.kick.kick();
        Ok(())
    }

    /// Indices of attached volumes, all or the one named.
    fn settable(&self, name: Option<&str>) -> Result<Vec<u16>> {
        match name {
            Some(name) => {
                let index = self.find(name)?;
                match self.volume_info(index)?.attached {
                    true => Ok(vec![index]),
                    false => Err(self.named_error(name, Code(sys::FBY_E_VOLUME_DETACHED))),
                }
            }
            None => Ok(self.volumes().iter().filter(|v| v.attached).map(|v| v.index).collect()),
        }
    }
}
