// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the same for all handles of an open pool: its engine, its reports
//! and its errors.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_engine::sys;

use super::{check_options, raw_duration, raw_verify, OptionsChange, OptionsInfo, Verify};
use crate::bypass::VolumeChange;
use crate::completeness::{Completeness, Verdict, LOST_LISTED};
use crate::destage::Shared;
use crate::drains::Draining;
use crate::engine::{Code, Ticket};
use crate::error::{open_error, origin_way_out, volume_error, Error, Result};
use crate::origin::{self, split_identity};
use crate::printable::printable;
use crate::status::{
    Counters, DestageState, DrainProgress, PoolStatus, RecoveryReport, ReportBlock, Uuid,
    VolumeInfo,
};

/// Between two looks at a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Between two calls of a progress function.
const DRAIN_PROGRESS: Duration = Duration::from_millis(100);
/// Damaged blocks that status lists.
const DAMAGED_LISTED: u32 = 64;

#[derive(Debug)]
pub(crate) struct Core {
    pub shared: Arc<Shared>,
    pub read_only: bool,
    pub recovery: RecoveryReport,
    /// The socket that answers, or why there is none.
    control: OnceLock<std::result::Result<PathBuf, String>>,
}

/// A drain of one volume.
struct Drain<'e> {
    name: String,
    draining: Draining<'e>,
    first: VolumeInfo,
    ended: bool,
}

impl Core {
    pub(super) fn new(
        shared: Shared,
        read_only: bool,
        report: sys::fby_recovery_report,
        threads: usize,
        started: Instant,
    ) -> Core {
        let mut core = Core {
            shared: Arc::new(shared),
            read_only,
            recovery: RecoveryReport::default(),
            control: OnceLock::new(),
        };
        let named = |blocks: &[sys::fby_report_block], n: u32| {
            blocks.iter().take(n as usize).map(|b| core.report_block(b)).collect()
        };
        core.recovery = RecoveryReport {
            clean: report.clean,
            chunks: report.chunks,
            entries: report.entries,
            blocks: report.blocks,
            dropped: report.dropped,
            damaged: report.damaged,
            holes: report.holes,
            lines_repaired: report.lines_repaired,
            chunk_headers_lost: report.chunk_headers_lost,
            dropped_named: named(&report.dropped_named, report.ndropped_named),
            holes_named: named(&report.holes_named, report.nholes_named),
            seconds: started.elapsed().as_secs_f64(),
            threads,
        };
        core
    }

    pub(super) fn set_control(&self, control: std::result::Result<PathBuf, String>) {
        let _ = self.control.set(control);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.shared.media.info().path
    }

    pub(crate) fn uuid(&self) -> Uuid {
        Uuid(self.shared.engine.info().sb.uuid)
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::ReadOnly { what: format!("pool {}", self.path().display()) }),
            false => Ok(()),
        }
    }

    // --- volumes ---------------------------------------------------------

    pub(super) fn find(&self, name: &str) -> Result<u16> {
        let named = self.shared.engine.volume_find(name).ok();
        let shown = || self.volumes().iter().find(|v| v.name == name).map(|v| v.index);
        named.or_else(shown).or_else(|| self.numbered(name)).ok_or_else(|| Error::NoVolume {
            pool: self.path().to_path_buf(),
            name: name.into(),
            known: self.volumes().iter().map(VolumeInfo::label).collect(),
        })
    }

    /// One that has lost its name with its record is addressed as #N.
    fn numbered(&self, name: &str) -> Option<u16> {
        let index = name.strip_prefix('#')?.parse().ok()?;
        let v = self.volume_info(index).ok()?;
        (!v.name.is_empty() || v.damaged).then_some(index)
    }

    pub(crate) fn volumes(&self) -> Vec<VolumeInfo> {
        let n = self.shared.engine.info().sb.nvolumes as u16;
        let all = (0..n).filter_map(|i| self.volume_info(i).ok());
        all.filter(|v| !v.name.is_empty() || v.damaged).collect()
    }

    /// Without a name where the record is not used.
    pub(crate) fn volume_info(&self, index: u16) -> Result<VolumeInfo> {
        let info =
            self.shared.engine.volume_info(index).map_err(|e| self.volume_error(index, e))?;
        let attached = self.shared.attached(index);
        let policy = attached.as_ref().map(|a| &a.policy);
        let limit = policy.map_or(0, |p| p.limit_bytes());
        let when_full = policy.map(|p| p.when_full()).unwrap_or_default();
        let mode = policy.map(|p| p.mode()).unwrap_or_default();
        let recorded = sys::text(&info.spec.identity).into_owned();
        let (id, path) = split_identity(&recorded);
        let last_error = (info.last_error != 0).then(|| {
            let noted = attached.as_ref().and_then(|a| a.last_error());
            noted.unwrap_or_else(|| std::io::Error::from_raw_os_error(info.last_error).to_string())
        });
        Ok(VolumeInfo {
            verdict: Verdict::Unknown,
            origin_changed: None,
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
            origin: attached.map(|a| self.origin_info(a.origin.info())),
            attached: info.attached,
            damaged: info.damaged,
            watermark: info.watermark,
            pages: info.pages,
            cached_bytes: info.pages * 4096,
            chunks: info.chunks,
            lost_blocks: info.lost_blocks,
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
            origin_writes: info.origin_writes,
            origin_written_bytes: info.origin_sectors_written * 512,
            origin_flushes: info.origin_flushes,
            pages_destaged: info.pages_destaged,
            pages_relocated: info.pages_relocated,
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
        })
    }

    fn origin_info(&self, mut info: crate::status::OriginInfo) -> crate::status::OriginInfo {
        if info.method != "O_DIRECT" && info.method != "page cache" {
            return info;
        }
        match self.shared.ring_state() {
            Some(Ok(())) => info.method = format!("io_uring, {}", info.method),
            Some(Err(why)) => {
                info.note = [&info.note, why].map(String::as_str).join("; ");
                info.note = info.note.trim_matches([';', ' ']).into();
            }
            None => {}
        }
        info
    }

    fn volume_name(&self, index: u16) -> Option<String> {
        let info = self.shared.engine.volume_info(index).ok()?;
        info.used.then(|| printable(&sys::text(&info.spec.name)).into_owned())
    }

    pub(super) fn report_block(&self, b: &sys::fby_report_block) -> ReportBlock {
        ReportBlock {
            volume: self.volume_name(b.volume),
            block: (b.block != u64::MAX).then_some(b.block),
            chunk: b.chunk,
            page: b.page,
        }
    }

    // --- status and options ----------------------------------------------

    pub(crate) fn status(&self) -> PoolStatus {
        let engine = &self.shared.engine;
        let info = engine.info();
        let control = self.control.get();
        PoolStatus {
            pid: std::process::id(),
            uuid: Uuid(info.sb.uuid),
            read_only: self.read_only,
            media: self.shared.media.info().clone(),
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
            used_percent: f64::from(info.chunks_used) * 100.0 / f64::from(info.sb.nchunks.max(1)),
            memory_bytes: engine.memory_bytes(),
            destage_memory_bytes: engine.destage_memory_bytes(),
            slots: info.nslots,
            next_seq: info.seq,
            uptime_seconds: self.shared.uptime().as_secs_f64(),
            counters: Counters {
                writes: info.writes,
                written_bytes: info.written_sectors * 512,
                merges: info.merges,
                commits: info.commits,
                media_bytes: info.media_bytes,
                reads: info.reads,
                read_hit_bytes: info.read_hit_sectors * 512,
                read_miss_bytes: info.read_miss_sectors * 512,
                discards: info.discards,
                zeroes: info.zeroes,
                flushes: info.flushes,
                chunks_opened: info.chunks_opened,
                waits_block: info.waits_block,
                waits_slot: info.waits_slot,
                waits_space: info.waits_space,
                damaged_pages: info.damaged_pages,
            },
            volumes: self.volumes().into_iter().map(|v| self.judged(v)).collect(),
            damaged_blocks: {
                let damaged = engine.damaged(DAMAGED_LISTED);
                damaged.iter().map(|b| self.report_block(b)).collect()
            },
            control_socket: match control {
                Some(Ok(socket)) => Some(socket.display().to_string()),
                _ => None,
            },
            control_note: match control {
                Some(Err(why)) => Some(why.clone()),
                _ => None,
            },
            destage_failure: self.shared.failure(),
            checksum_kernel: sys::posix_crc_kernel().into(),
        }
    }

    /// With its verdict, for which its origin is looked at: the one in use, or else what
    /// is at its recorded path.
    fn judged(&self, mut v: VolumeInfo) -> VolumeInfo {
        v.origin_changed = match (self.shared.attached(v.index), &v.origin_path) {
            (Some(attached), _) => attached.origin.changed(),
            (None, Some(path)) => origin::changed(path.as_ref(), &v.identity, v.size_bytes),
            (None, None) => None,
        };
        v.verdict = v.completeness().verdict;
        v
    }

    pub(crate) fn options(&self) -> OptionsInfo {
        let o = self.shared.engine.options();
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
        let mut o = self.shared.engine.options();
        let nanoseconds = |seconds: f64| match Duration::try_from_secs_f64(seconds) {
            Ok(Duration::ZERO) => Ok(0),
            Ok(d) => Ok(raw_duration(d)),
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
        self.shared.engine.set_options(&o).map_err(|e| self.pool_error(e))?;
        self.shared.kick.kick();
        Ok(self.options())
    }

    /// The volume named, or all that are attached.
    pub(crate) fn set_volume(&self, name: Option<&str>, change: &VolumeChange) -> Result<()> {
        for index in self.settable(name)? {
            if let Some(attached) = self.shared.attached(index) {
                attached.policy.change(change);
            }
        }
        self.shared.kick.kick();
        Ok(())
    }

    // --- drain -----------------------------------------------------------

    /// What a drain is about: the volume named, or all that there are.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<Vec<u16>> {
        match name {
            Some(name) => self.find(name).map(|index| vec![index]),
            None => Ok(self.volumes().iter().map(|v| v.index).collect()),
        }
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

    /// Until all that was written to the volumes before is on their origins, as
    /// far as it is not lost.  Returns what is known then of each, attached or
    /// not, and the last progress of the last one.
    pub(crate) fn drain(
        &self,
        volumes: &[u16],
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<(Vec<Completeness>, DrainProgress)> {
        self.check_writable()?;
        let started = Instant::now();
        let mut drains = Vec::new();
        for &index in volumes {
            let first = self.volume_info(index)?;
            if !first.attached {
                continue;
            }
            let draining = self.shared.drains.begin(&self.shared.engine, index);
            let draining = draining.map_err(|e| self.volume_error(index, e))?;
            drains.push(Drain { name: first.name.clone(), draining, first, ended: false });
        }
        let last = self.drain_until_clean(&mut drains, started, progress)?;
        self.flush_all(&drains, started, progress)?;
        let drained = |index| drains.iter().any(|d| d.draining.index == index);
        let judged = volumes.iter().map(|&index| self.judge(index, drained(index)));
        Ok((judged.collect::<Result<_>>()?, last))
    }

    /// Is its origin, alone, all of the volume?  `drained`: all that the question
    /// is about was written and flushed; pages that are there now are newer.
    pub(crate) fn judge(&self, index: u16, drained: bool) -> Result<Completeness> {
        let v = self.volume_info(index)?;
        let lost = match v.lost_blocks {
            0 => Vec::new(),
            _ => self.shared.engine.lost_blocks(index, LOST_LISTED),
        };
        let pages_left = match drained {
            true => 0,
            false => v.pages.saturating_sub(v.lost_blocks),
        };
        let changed = self.shared.attached(index).and_then(|a| a.origin.changed());
        Ok(Completeness::judge(&v, pages_left, lost, changed))
    }

    /// The same of a pool that nobody writes to, with blocks that a check found damaged
    /// and that nobody has read yet.
    pub(super) fn judge_with(&self, mut v: VolumeInfo, found: &[ReportBlock]) -> Completeness {
        let mut lost = self.shared.engine.lost_blocks(v.index, LOST_LISTED);
        let known = lost.len();
        let of_it = found.iter().filter(|b| b.volume.as_ref() == Some(&v.name));
        lost.extend(of_it.filter_map(|b| b.block));
        lost.sort_unstable();
        lost.dedup();
        v.lost_blocks += lost.len().saturating_sub(known) as u64;
        lost.truncate(LOST_LISTED);
        let pages_left = v.pages.saturating_sub(v.lost_blocks);
        Completeness::judge(&v, pages_left, lost, None)
    }

    /// All at once, and each is told of for as long as its origin takes.
    fn flush_all(
        &self,
        drains: &[Drain<'_>],
        started: Instant,
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let mut flushes = Vec::new();
            for d in drains {
                let index = d.draining.index;
                let thread = std::thread::Builder::new()
                    .spawn_scoped(scope, move || self.flush_owed(index))
                    .map_err(|e| self.system("starting a thread", e))?;
                flushes.push((d, thread));
            }
            let (mut told, mut given_up) = (Instant::now(), None);
            while flushes.iter().any(|(_, flush)| !flush.is_finished()) {
                std::thread::sleep(DRAIN_LOOK);
                if told.elapsed() < DRAIN_PROGRESS {
                    continue;
                }
                told = Instant::now();
                for (d, _) in flushes.iter().filter(|(_, flush)| !flush.is_finished()) {
                    let now = self.volume_info(d.draining.index)?;
                    let now = VolumeInfo { destage: DestageState::Flushing, ..now };
                    let p =
                        DrainProgress { pages_left: 0, ..drain_progress(&d.first, &now, started) };
                    if progress(&d.name, &p).is_break() {
                        given_up = Some(d.name.clone());
                    }
                }
            }
            for (_, flush) in flushes {
                flush.join().expect("a flush does not panic")?;
            }
            given_up.map_or(Ok(()), |name| Err(Error::Interrupted { name }))
        })
    }

    /// The origin alone is to be all of it: with what went past the cache.
    fn flush_owed(&self, index: u16) -> Result<()> {
        let Some(attached) = self.shared.attached(index) else { return Ok(()) };
        let flushed = attached.flush(&self.shared, index, &mut Ticket::aside());
        let flushed = flushed.map_err(|source| Error::OriginIo {
            name: self.volume_name(index).unwrap_or_default(),
            doing: "flush",
            offset: 0,
            len: 0,
            source,
        })?;
        flushed.map_err(|e| self.volume_error(index, e))
    }

    fn drain_until_clean(
        &self,
        drains: &mut [Drain<'_>],
        started: Instant,
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        let mut last = DrainProgress::default();
        let mut told = None::<Instant>;
        loop {
            self.shared.kick.kick();
            let tell = told.is_none_or(|t| t.elapsed() >= DRAIN_PROGRESS);
            if tell {
                told = Some(Instant::now());
            }
            for d in drains.iter_mut().filter(|d| !d.ended) {
                let Draining { index, seq, .. } = d.draining;
                let now = self.volume_info(index)?;
                if !now.attached {
                    let why = "detached it, or stops";
                    return Err(Error::Stopped { name: d.name.clone(), why });
                }
                // Not before its pages are let go, so that they are counted.
                let passed = now.watermark >= seq - 1 && now.destage != DestageState::Committing;
                d.ended = passed || self.shared.engine.volume_clean(index);
                if !d.ended {
                    d.draining.go_on();
                }
                if !tell && !d.ended {
                    continue;
                }
                last = drain_progress(&d.first, &now, started);
                if d.ended {
                    last.pages_left = 0;
                }
                if progress(&d.name, &last).is_break() && !d.ended {
                    return Err(Error::Interrupted { name: d.name.clone() });
                }
            }
            if drains.iter().all(|d| d.ended) {
                return Ok(last);
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    // --- errors ----------------------------------------------------------

    pub(super) fn system(&self, doing: &'static str, e: std::io::Error) -> Error {
        Error::system(self.path(), doing, e)
    }

    /// An error of the engine that is not about one volume.
    pub(super) fn pool_error(&self, e: Code) -> Error {
        match e.0 {
            sys::FBY_E_BUSY => {
                Error::PoolInUse { pool: self.path().to_path_buf(), volumes: Vec::new() }
            }
            _ => open_error(self.path(), e),
        }
    }

    pub(crate) fn volume_error(&self, index: u16, e: Code) -> Error {
        let name = self.volume_name(index).unwrap_or_else(|| format!("#{index}"));
        self.named_error(&name, e)
    }

    pub(crate) fn named_error(&self, name: &str, e: Code) -> Error {
        volume_error(name, e)
    }
}

fn drain_progress(first: &VolumeInfo, now: &VolumeInfo, started: Instant) -> DrainProgress {
    DrainProgress {
        pages_start: first.pages - first.lost_blocks.min(first.pages),
        pages_left: now.pages - now.lost_blocks.min(now.pages),
        pages_destaged: now.pages_destaged.saturating_sub(first.pages_destaged),
        origin_written_bytes: now.origin_written_bytes.saturating_sub(first.origin_written_bytes),
        seconds: started.elapsed().as_secs_f64(),
        origin_error: now.last_error.clone(),
        origin_way_out: now.last_error.is_some().then(|| origin_way_out(now.last_errno).into()),
        state: now.destage,
    }
}
