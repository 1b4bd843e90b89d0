// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drains of a volume: any number at once, each until it ends by itself.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::attached::{Attached, Flushing};
use crate::core::Core;
use crate::draining::Draining;
use crate::engine::Code;
use crate::error::{Error, Result};
use crate::mark::mark_at;
use crate::origin;
use crate::report::{
    origin_way_out, Completeness, DestageState, DrainProgress, ReportBlock, VolumeInfo,
    LOST_LISTED, LOST_STUCK_WAY_OUT,
};

/// Between two looks at a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Between two calls of a progress function.
const DRAIN_PROGRESS: Duration = Duration::from_millis(100);

/// So often a drain begins anew for what it passed over as damaged, and what reads well after.
const PASSED_OVER_TIMES: u32 = 3;

/// A drain of one volume.
struct Drain<'e> {
    name: String,
    draining: Draining<'e>,
    first: VolumeInfo,
    ended: bool,
}

impl Core {
    /// The volumes to drain: the named one, or all.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<Vec<u16>> {
        match name {
            Some(name) => self.find(name).map(|index| vec![index]),
            None => Ok(self.volumes().iter().map(|v| v.index).collect()),
        }
    }

    /// Until all that was written to the volumes before is on their origins, as
    /// far as it is not lost.  Returns what is known then of each, attached or
    /// not, and the last progress of the last one.
    pub(crate) fn drain(
        self: &Arc<Self>,
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
            let draining = self.drains.begin(&self.engine, index);
            let draining = draining.map_err(|e| self.drain_error(index, e))?;
            drains.push(Drain { name: first.name.clone(), draining, first, ended: false });
        }
        let mut times = 0;
        let (mut judged, last) = loop {
            let last = self.drain_until_clean(&mut drains, started, progress)?;
            self.flush_all(&drains, started, progress)?;
            let drained = |index| drains.iter().any(|d| d.draining.index == index);
            let judged = volumes.iter().map(|&index| self.judge(index, drained(index)));
            let judged: Vec<Completeness> = judged.collect::<Result<_>>()?;
            let left =
                |index| volumes.iter().zip(&judged).any(|(&v, j)| v == index && j.pages_left > 0);
            times += 1;
            if times == PASSED_OVER_TIMES || !drains.iter().any(|d| left(d.draining.index)) {
                break (judged, last);
            }
            for d in drains.iter_mut().filter(|d| left(d.draining.index)) {
                let index = d.draining.index;
                let again = self.drains.begin(&self.engine, index);
                d.draining = again.map_err(|e| self.drain_error(index, e))?;
                d.ended = false;
            }
        };
        for d in &drains {
            let index = d.draining.index;
            let cleared =
                self.attached(index).map_or(Ok(true), |a| self.clear_mark(&a, index, true))?;
            // As it is now, and as the origin itself says it is.
            let now = self.judge(index, true)?;
            let Some(of_it) = volumes.iter().position(|v| *v == index) else { continue };
            judged[of_it] = now;
            if !cleared {
                let pages = judged[of_it].pages_since;
                judged[of_it].written_since(pages);
            }
        }
        Ok((judged, last))
    }

    /// Takes the mark of an origin away that has everything by now.  False: it has not, and
    /// stays marked.
    pub(crate) fn clear_mark(&self, attached: &Attached, index: u16, live: bool) -> Result<bool> {
        attached.marker.clear(&self.engine, live).map_err(|source| Error::Marking {
            name: self.volume_name(index).unwrap_or_default(),
            origin: attached.origin.info().name,
            what: "taken away",
            source,
        })
    }

    /// Is its origin, alone, all of the volume?  `drained`: all that the question
    /// is about was written and flushed; pages that are there now are newer, but for those of
    /// a static volume that it passed over.
    pub(crate) fn judge(&self, index: u16, drained: bool) -> Result<Completeness> {
        let (mut v, (lost, passed_over)) = loop {
            let v = self.volume_info(index)?;
            let lost = match v.lost_blocks {
                0 => (Vec::new(), 0),
                _ => self.engine.lost_and_passed_over(index, LOST_LISTED),
            };
            // Both are of one volume, unless the index is another's by now.
            if self.volume_info(index)?.uuid == v.uuid {
                break (v, lost);
            }
        };
        if v.static_bytes > 0 {
            // Some that were found have been overwritten since.
            v.lost_blocks = lost.len() as u64;
            v.uncounted &= !drained;
        }
        let pages_left = match drained {
            true => passed_over.into(),
            false => v.pages.saturating_sub(v.lost_blocks),
        };
        let pages_since = match drained {
            true => v.pages.saturating_sub(v.lost_blocks + pages_left),
            false => 0,
        };
        self.look_at_origin(&mut v);
        let mut judged = Completeness::judge(&v, pages_left, lost, v.origin_changed.clone());
        if pages_since > 0 {
            judged.written_since(pages_since);
        }
        Ok(judged)
    }

    /// Looks at the origin before its completeness is judged: the origin in use, or the file or
    /// device at its recorded path.
    pub(crate) fn look_at_origin(&self, v: &mut VolumeInfo) {
        let place = v.origin_path.as_deref().map(Path::new);
        let attached = self.attached(v.index).filter(|attached| attached.uuid == v.uuid);
        (v.origin_changed, v.origin_mark) = match (attached, place) {
            (Some(attached), _) => (attached.origin.changed(), None),
            (None, Some(place)) => {
                (origin::changed(place, &v.identity, v.size_bytes), mark_at(place))
            }
            (None, None) => (None, None),
        };
    }

    /// What is lost of a volume, with blocks that a check found damaged and that nobody has
    /// read yet. Nobody removes a volume meanwhile: they are asked for by its index.
    pub(crate) fn lost_with(&self, v: &mut VolumeInfo, found: &[ReportBlock]) -> Vec<u64> {
        let mut lost = self.engine.lost_blocks(v.index, LOST_LISTED);
        if v.static_bytes > 0 && lost.len() < LOST_LISTED {
            v.lost_blocks = lost.len() as u64; // found by reading all of it, just now
        }
        let known = lost.len();
        let of_it = found.iter().filter(|b| b.volume.as_ref() == Some(&v.name));
        lost.extend(of_it.filter_map(|b| b.block));
        lost.sort_unstable();
        lost.dedup();
        v.lost_blocks += lost.len().saturating_sub(known) as u64;
        lost.truncate(LOST_LISTED);
        lost
    }

    /// The same judgement of a pool that nobody writes to, with what is lost.
    pub(crate) fn judge_with(&self, mut v: VolumeInfo, lost: Vec<u64>) -> Completeness {
        let pages_left = v.pages.saturating_sub(v.lost_blocks);
        self.look_at_origin(&mut v);
        Completeness::judge(&v, pages_left, lost, v.origin_changed.clone())
    }

    /// All at once, and each is told of for as long as its origin takes.  Those that are not
    /// waited for any more end by themselves, or when the volume is detached.
    fn flush_all(
        self: &Arc<Self>,
        drains: &[Drain<'_>],
        started: Instant,
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut flushes = Vec::new();
        for d in drains {
            let index = d.draining.index;
            let flushing = self.attached(index).and_then(Flushing::begin);
            let detached = || self.drain_error(index, Code(sys::FBY_E_VOLUME_DETACHED));
            let (core, flushing) = (self.clone(), flushing.ok_or_else(detached)?);
            let thread = std::thread::Builder::new()
                .name("fby-drain".into())
                .spawn(move || core.flush_owed(index, &flushing.0))
                .map_err(|e| self.system("starting a thread", e))?;
            flushes.push((d, thread));
        }
        let mut told = Instant::now();
        while flushes.iter().any(|(_, flush)| !flush.is_finished()) {
            std::thread::sleep(DRAIN_LOOK);
            if told.elapsed() < DRAIN_PROGRESS {
                continue;
            }
            told = Instant::now();
            for (d, _) in flushes.iter().filter(|(_, flush)| !flush.is_finished()) {
                let now = self.volume_info(d.draining.index)?;
                let now = VolumeInfo { destage: DestageState::Flushing, ..now };
                let p = DrainProgress { pages_left: 0, ..drain_progress(&d.first, &now, started) };
                if progress(&d.name, &p).is_break() {
                    return Err(Error::Interrupted { name: d.name.clone() });
                }
            }
        }
        flushes.into_iter().try_for_each(|(_, flush)| flush.join().expect("a flush does not panic"))
    }

    /// The origin alone is to be all of it: with what went past the cache.
    fn flush_owed(&self, index: u16, attached: &Attached) -> Result<()> {
        let flushed = attached.flush(self, index);
        let flushed = flushed.map_err(|source| Error::OriginIo {
            name: self.volume_name(index).unwrap_or_default(),
            doing: "flush",
            offset: 0,
            len: 0,
            source,
        })?;
        flushed.map_err(|e| self.drain_error(index, e))
    }

    /// It was attached when the drain began.
    fn drain_error(&self, index: u16, e: Code) -> Error {
        match (e.0, self.volume_name(index)) {
            (sys::FBY_E_VOLUME_DETACHED, Some(name)) => {
                Error::Stopped { name, why: "detached it, or stops" }
            }
            _ => self.volume_error(index, e),
        }
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
            self.kick.kick();
            let tell = told.is_none_or(|t| t.elapsed() >= DRAIN_PROGRESS);
            if tell {
                told = Some(Instant::now());
            }
            for d in drains.iter_mut().filter(|d| !d.ended) {
                let Draining { index, upto, .. } = d.draining;
                let raw = self.engine.volume_info(index).map_err(|e| self.drain_error(index, e))?;
                let now = self.volume_info(index)?;
                if !now.attached {
                    return Err(self.drain_error(index, Code(sys::FBY_E_VOLUME_DETACHED)));
                }
                // Only after its pages are released, so that they are counted.
                let passed = raw.home >= upto && now.destage != DestageState::Committing;
                d.ended = passed || self.engine.volume_clean(index);
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
        stuck: now.lost_stuck.then(|| {
            format!(
                "{} blocks are lost, and the pool has no free chunk for their marks; {LOST_STUCK_WAY_OUT}",
                now.lost_blocks
            )
        }),
        origin_away: now.origin_away.clone(),
        state: now.destage,
    }
}
