// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drains of a volume: any number at once, each until it ends by itself.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::attached::{Attached, Flushing};
use crate::draining::Draining;
use crate::engine::Code;
use crate::error::{Error, Result};
use crate::mark::{mark_at, mark_of};
use crate::origin::{self, Look, Sought};
use crate::report::{
    origin_way_out, Completeness, DestageState, DrainProgress, ReportBlock, Uuid, VolumeInfo,
    LOST_LISTED, LOST_STUCK_WAY_OUT,
};
use crate::shared_pool::SharedPool;

/// Between two looks at a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Between two calls of a progress function.
const DRAIN_PROGRESS: Duration = Duration::from_millis(100);

/// Why an origin cannot be looked at that the pool knows by its id alone, with the way out.
const NO_PATH: &str = "the pool has no path of it, as of one that is long or no UTF-8; to see it, \
     drain the volume with no server running (forebay drain, --origin NAME=PATH)";

/// So often a drain begins anew for what it passed over as damaged, and what reads well after.
const PASSED_OVER_TIMES: u32 = 3;

/// Begins to ask an origin on the network that nobody has open.  While the pool holds something, it
/// is not complete whatever the origin is.
pub(crate) fn look_by_network(v: &VolumeInfo) -> Option<Arc<Look>> {
    let place = v.origin_path.as_deref().map(Path::new)?;
    let asks = !v.attached && !v.may_hold_data() && origin::is_on_network(place);
    asks.then(|| {
        let (place, id) = (place.into(), v.identity.clone());
        Look::begin(Sought { place, id, size_bytes: v.size_bytes })
    })
}

/// A volume that is to be drained.  Its index alone is not enough: it is another volume's once this
/// one is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub index: u16,
    pub uuid: Uuid,
    pub name: String,
    /// One of all volumes of the pool: if it is removed meanwhile, nobody misses it.
    pub one_of_all: bool,
}

impl Asked {
    pub(crate) fn of(v: VolumeInfo, one_of_all: bool) -> Asked {
        Asked { index: v.index, uuid: v.uuid, name: v.name, one_of_all }
    }
}

/// A drain of one volume.
struct Drain<'e> {
    name: String,
    draining: Draining<'e>,
    first: VolumeInfo,
    ended: bool,
    /// Its origin is gone, and the pool keeps what there is.
    gone: bool,
}

impl SharedPool {
    /// The volumes to drain: the named one, or all.
    pub(crate) fn asked(&self, name: Option<&str>) -> Result<Vec<Asked>> {
        match name {
            Some(name) => Ok(vec![Asked::of(self.volume_info(self.find(name)?)?, false)]),
            None => Ok(self.volumes().into_iter().map(|v| Asked::of(v, true)).collect()),
        }
    }

    /// Until all that was written to the volumes before is on their origins, as
    /// far as it is not lost.  Returns what is known then of each, attached or
    /// not, and the last progress of the last one.  A volume that is removed meanwhile is left
    /// out where all were asked for.
    pub(crate) fn drain(
        self: &Arc<Self>,
        volumes: &[Asked],
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<(Vec<Completeness>, DrainProgress)> {
        self.check_writable()?;
        if self.is_set_back() {
            self.check_there()?;
        }
        let started = Instant::now();
        let mut drains = Vec::new();
        for asked in volumes {
            let first = self.info_of(asked.index, asked.uuid)?.filter(|first| first.attached);
            let Some(first) = first else { continue };
            let draining = self.drains.begin(&self.engine, asked.index);
            let draining = draining.map_err(|e| self.drain_error(&asked.name, e))?;
            drains.push(Drain {
                name: first.name.clone(),
                draining,
                first,
                ended: false,
                gone: false,
            });
        }
        let drained =
            |drains: &[Drain<'_>], uuid| drains.iter().any(|d| d.first.uuid == uuid && !d.gone);
        let mut times = 0;
        let (mut judged, last) = loop {
            let last = self.drain_until_clean(&mut drains, started, progress)?;
            self.flush_all(&drains, started, progress)?;
            let mut judged = Vec::new();
            for asked in volumes {
                match self.judge_as(asked.index, asked.uuid, drained(&drains, asked.uuid))? {
                    Some(now) => judged.push((asked.uuid, now)),
                    None if asked.one_of_all => {}
                    None => {
                        let why = "removed it";
                        return Err(Error::Stopped { name: asked.name.clone(), why });
                    }
                }
            }
            let left = |uuid| judged.iter().any(|(of, j)| *of == uuid && j.pages_left > 0);
            times += 1;
            let again = |d: &Drain<'_>| !d.gone && left(d.first.uuid);
            if times == PASSED_OVER_TIMES || !drains.iter().any(again) {
                break (judged, last);
            }
            for d in drains.iter_mut().filter(|d| again(d)) {
                let again = self.drains.begin(&self.engine, d.draining.index);
                d.draining = again.map_err(|e| self.drain_error(&d.name, e))?;
                d.ended = false;
            }
        };
        for d in drains.iter().filter(|d| !d.gone) {
            let (index, uuid) = (d.draining.index, d.first.uuid);
            let attached = self.attached_as(index, uuid);
            // It is not detached meanwhile: the mark is judged by what the index holds.
            let held = attached.and_then(Flushing::begin);
            let cleared = held.map_or(Ok(true), |held| self.clear_mark(&held.0, index, true))?;
            // As it is now, and as the origin itself says it is.
            let Some(mut now) = self.judge_as(index, uuid, true)? else { continue };
            if !cleared {
                let pages = now.pages_since;
                now.written_since(pages);
            }
            if let Some((_, of_it)) = judged.iter_mut().find(|(of, _)| *of == uuid) {
                *of_it = now;
            }
        }
        Ok((judged.into_iter().map(|(_, judged)| judged).collect(), last))
    }

    /// Takes the mark of an origin away that has everything by now.  False: it has not, and
    /// stays marked.
    pub(crate) fn clear_mark(&self, attached: &Attached, index: u16, live: bool) -> Result<bool> {
        let failed = |what| {
            move |source| Error::Marking {
                name: self.volume_name(index).unwrap_or_default(),
                origin: attached.origin.info().name,
                what,
                source,
            }
        };
        match attached.is_cut() {
            _ if self.is_set_back() => Ok(false),
            None => Ok(false),
            Some(true) => {
                attached.marker.mark_loss(&self.engine).map_err(failed("set"))?;
                Ok(false)
            }
            Some(false) => attached.marker.clear(&self.engine, live).map_err(failed("taken away")),
        }
    }

    /// Is its origin, alone, all of the volume?  `drained`: all that the question
    /// is about was written and flushed; pages that are there now are newer, but for those of
    /// a static volume that it passed over.
    pub(crate) fn judge(&self, index: u16, drained: bool) -> Result<Completeness> {
        loop {
            let v = self.volume_info(index)?;
            if !v.is_used() {
                return Err(self.volume_error(index, Code(sys::FBY_E_NO_VOLUME)));
            }
            if let Some(judged) = self.judge_as(index, v.uuid, drained)? {
                return Ok(judged);
            }
        }
    }

    /// The volume of this UUID.  None: it was removed, and the index is unused, or is that of
    /// another volume, a log or a map.
    fn info_of(&self, index: u16, uuid: Uuid) -> Result<Option<VolumeInfo>> {
        match self.volume_info(index) {
            // A removed volume leaves its UUID in its record.
            Ok(v) => Ok(Some(v).filter(|v| v.is_used() && v.uuid == uuid)),
            Err(Error::Volume { code: sys::FBY_E_NO_VOLUME, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The attached volume of this UUID.
    fn attached_as(&self, index: u16, uuid: Uuid) -> Option<Arc<Attached>> {
        self.attached(index).filter(|attached| attached.uuid == uuid)
    }

    /// Judges the volume of this UUID; None: it was removed.
    fn judge_as(&self, index: u16, uuid: Uuid, drained: bool) -> Result<Option<Completeness>> {
        let (mut v, (lost, passed_over)) = loop {
            let Some(v) = self.info_of(index, uuid)? else { return Ok(None) };
            let lost = match v.lost_blocks {
                0 => (Vec::new(), 0),
                _ => self.engine.lost_and_passed_over(index, LOST_LISTED),
            };
            // Both are of one volume, unless the index is another's by now.
            if self.info_of(index, uuid)?.is_some() {
                break (v, lost);
            }
        };
        if v.static_bytes > 0 {
            // Some that were found have been overwritten since.
            v.lost_blocks = lost.len() as u64;
            v.uncounted &= !drained;
        }
        // A watermark that cannot be recorded may have passed pages that the origin lacks.
        let drained = drained && (!self.has_failed() || self.engine.volume_clean(index));
        let pages_left = match drained {
            true => passed_over.into(),
            false => v.pages.saturating_sub(v.lost_blocks),
        };
        // What has failed keeps the pages that the origin has.
        let pages_since = match drained && !self.has_failed() {
            true => v.pages.saturating_sub(v.lost_blocks + pages_left),
            false => 0,
        };
        let look = look_by_network(&v);
        self.look_at_origin(&mut v, look);
        let mut judged = Completeness::judge(&v, pages_left, lost, v.origin_changed.clone());
        if pages_since > 0 {
            judged.written_since(pages_since);
        }
        Ok(Some(judged))
    }

    /// Looks at the origin before its completeness is judged: the origin in use, or the file or
    /// device at its recorded path, or the answer of one on the network.
    pub(crate) fn look_at_origin(&self, v: &mut VolumeInfo, look: Option<Arc<Look>>) {
        if let Some(attached) = self.attached_as(v.index, v.uuid) {
            v.origin_changed = attached.changed();
            return;
        }
        let state = self.marks_in.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let place = v.origin_path.clone().map(PathBuf::from);
        let mut seen = |looked: Result<Option<String>>| {
            looked.unwrap_or_else(|e| {
                v.origin_unseen = Some(e.to_string());
                None
            })
        };
        match place {
            Some(place) => {
                let changed = origin::changed(&place, &v.identity, v.size_bytes);
                let mark = mark_at(&place, state.as_deref());
                (v.origin_changed, v.origin_mark) = (seen(changed), seen(mark));
            }
            // The library was given it, by a program that knows where it is.
            None if !origin::is_own_id(&v.identity) => {}
            None => {
                v.origin_mark = seen(mark_of(&v.identity, state.as_deref()));
                v.origin_unseen.get_or_insert_with(|| NO_PATH.into());
            }
        }
        if let Some(look) = look {
            let seen = look.seen();
            v.origin_changed = seen.changed.or(v.origin_changed.take());
            v.origin_mark = v.origin_mark.take().or(seen.mark);
            v.origin_unseen = v.origin_unseen.take().or(seen.unseen);
        }
    }

    /// One that has lost its end says so by itself from now on, without the pool.
    pub(crate) fn origins_changed(&self) -> Vec<(String, String)> {
        let all = (0..self.engine.info().sb.nvolumes as u16).filter_map(|index| {
            let attached = self.attached(index)?;
            let mut changed = attached.changed()?;
            if attached.is_cut() == Some(true) {
                if let Err(e) = attached.marker.mark_loss(&self.engine) {
                    changed.push_str(&format!("; it cannot be marked for that: {e}"));
                }
            }
            Some((self.volume_name(index).unwrap_or_default(), changed))
        });
        all.collect()
    }

    /// The lost blocks of a volume, with those that a check found damaged and that nobody has
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

    /// Judges a volume of a pool that nobody writes to, with these lost blocks.
    pub(crate) fn judge_with(
        &self,
        mut v: VolumeInfo,
        lost: Vec<u64>,
        look: Option<Arc<Look>>,
    ) -> Completeness {
        let pages_left = v.pages.saturating_sub(v.lost_blocks);
        self.look_at_origin(&mut v, look);
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
        for d in drains.iter().filter(|d| !d.gone) {
            let index = d.draining.index;
            let attached = self.attached_as(index, d.first.uuid);
            let flushing = attached.and_then(Flushing::begin);
            let detached = || self.drain_error(&d.name, Code(sys::FBY_E_VOLUME_DETACHED));
            let (core, flushing) = (self.clone(), flushing.ok_or_else(detached)?);
            let name = d.name.clone();
            let thread = std::thread::Builder::new()
                .name("fby-drain".into())
                .spawn(move || core.flush_owed(&name, index, &flushing.0))
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
                // It may have ended just now, and the volume may be removed.
                let Some(now) = self.info_of(d.draining.index, d.first.uuid)? else { continue };
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
    fn flush_owed(&self, name: &str, index: u16, attached: &Attached) -> Result<()> {
        let flushed = attached.flush(self, index);
        let flushed = flushed.map_err(|source| Error::OriginIo {
            name: name.into(),
            doing: "flush",
            offset: 0,
            len: 0,
            source,
        })?;
        flushed.map_err(|e| self.drain_error(name, e))
    }

    /// It was attached when the drain began.
    fn drain_error(&self, name: &str, e: Code) -> Error {
        match e.0 {
            sys::FBY_E_VOLUME_DETACHED => {
                Error::Stopped { name: name.into(), why: "detached it, or stops" }
            }
            _ => self.named_error(name, e),
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
                let detached = || self.drain_error(&d.name, Code(sys::FBY_E_VOLUME_DETACHED));
                let raw = self.engine.volume_info(index).ok();
                let raw = raw.filter(|raw| raw.spec.uuid == d.first.uuid.0).ok_or_else(detached)?;
                let now = self.info_of(index, d.first.uuid)?.filter(|now| now.attached);
                let now = now.ok_or_else(detached)?;
                // Only after its pages are released, so that they are counted.
                let passed = raw.home >= upto && now.destage != DestageState::Committing;
                d.ended = (passed && !self.has_failed()) || self.engine.volume_clean(index);
                let attached = self.attached_as(index, d.first.uuid);
                d.gone = attached.is_some_and(|attached| attached.origin.is_gone());
                d.ended |= d.gone;
                if !d.ended {
                    d.draining.go_on();
                }
                if !tell && !d.ended {
                    continue;
                }
                last = drain_progress(&d.first, &now, started);
                if d.ended && !d.gone {
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
        pool_failed: now.pool_failed,
        state: now.destage,
    }
}
