// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crash explorer.  For each cut of a script's trace it builds the images
//! that the hardware may leave (images.rs) and asks of each:
//!
//! * open and recovery succeed, and report neither damage nor holes;
//! * fby_check() finds the invariants to hold;
//! * each sector reads as the last acknowledged write or a newer one;
//! * cut again inside that recovery, the same of the next one.  It need not come
//!   to the same contents: a torn line of a write never acknowledged can be made
//!   whole by part of what voids it, and nobody has read anything in between;
//! * written on, killed, recovered and drained, nothing comes back, and the
//!   origin alone holds all of it.
//!
//! Cuts are taken before each fence and at each mark.  What a cut at another
//! store may leave, the cut before the next fence may leave too.  Each image is
//! judged once for each state of the oracle; distinct images are counted by
//! hash of the whole media.

use std::time::{Duration, Instant};

use forebay_engine::sys;
use serde::Serialize;

pub use crate::bed::Bounds;
use crate::bed::{Bed, Hashes};
use crate::engine::{Attach, Decision, Engine, Wait};
use crate::hooks;
use crate::images::{Image, Layout, Overlay};
use crate::media::{settle, Flavour, LineStore, MediaEvent, Region};
use crate::model::Sector;
use crate::origin::{Loss, Origin};
use crate::pattern;
use crate::reading::{read_volume, LOST};
use crate::rng::{mix, Rng};
use crate::script::{attach_of, data, name, number, record, Mark, Script, FIRST_ID};

/// The value that each sector of each volume reads as.
pub(crate) type Ids = Vec<Vec<u64>>;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Explored {
    pub scripts: u64,
    pub cuts: u64,
    pub cuts_exhaustive: u64,
    pub recovery_cuts: u64,
    pub images: u64,
    pub distinct: u64,
    pub recoveries: u64,
    pub dropped: u64,
    pub gone_on: u64,
    /// Second cuts after which an unacknowledged write is there that the first
    /// recovery had dropped, or the other way round.
    pub changed: u64,
}

impl Explored {
    pub fn add(&mut self, o: &Self) {
        self.scripts += o.scripts;
        self.cuts += o.cuts;
        self.cuts_exhaustive += o.cuts_exhaustive;
        self.recovery_cuts += o.recovery_cuts;
        self.images += o.images;
        self.distinct += o.distinct;
        self.recoveries += o.recoveries;
        self.dropped += o.dropped;
        self.gone_on += o.gone_on;
        self.changed += o.changed;
    }
}

/// The volume is not there; as the contents of each of its sectors.
const ABSENT: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    No,
    Maybe,
    Yes,
}

/// The state of a volume at a place in the trace.
#[derive(Clone)]
pub(crate) struct Known {
    presence: Presence,
    sectors: Vec<Sector>,
    ids: Vec<u64>,
    origin: Origin,
}

impl Known {
    /// The state of volume `vol` when the recording begins.
    pub fn new(vol: usize, sectors: u64, present: bool) -> Self {
        Self {
            presence: if present { Presence::Yes } else { Presence::No },
            sectors: vec![Sector::new(FIRST_ID); sectors as usize],
            ids: vec![FIRST_ID],
            origin: Origin::new(number(vol), sectors, FIRST_ID),
        }
    }

    pub fn apply(&mut self, mark: &Mark, now: u64) {
        match mark {
            Mark::Begin { sectors, id, kind, .. } => {
                for s in sectors.clone() {
                    self.sectors[s as usize].write_begin(*id, *kind, now);
                }
                self.ids.push(*id);
            }
            Mark::End { sectors, id, .. } => {
                for s in sectors.clone() {
                    self.sectors[s as usize].write_end(*id, now);
                }
            }
            Mark::OriginWrite { sector, data, .. } => self.origin.write(*sector, data),
            Mark::OriginZero { sectors, .. } => {
                self.origin.zero(sectors.start, sectors.end - sectors.start);
            }
            Mark::OriginPast { sector, id, data, .. } => {
                self.origin.write_whole(*sector, data);
                let n = data.len() / pattern::SECTOR;
                for s in &mut self.sectors[*sector as usize..][..n] {
                    s.write_bypassed(*id);
                }
            }
            Mark::Flushed { .. } => self.sectors.iter_mut().for_each(|s| s.flushed(now)),
            Mark::OriginFlush { .. } => self.origin.flush_all(),
            Mark::Adding(_) => {
                // A new volume knows the origin as it is, and nothing of before.
                self.sectors =
                    (0..self.origin.sectors()).map(|s| Sector::new(self.origin.read(s))).collect();
                self.ids = (0..self.origin.sectors()).map(|s| self.origin.read(s)).collect();
                self.ids.sort_unstable();
                self.ids.dedup();
                self.presence = Presence::Maybe;
            }
            Mark::Added(_) => self.presence = Presence::Yes,
            Mark::Removing(_) => self.presence = Presence::Maybe,
            Mark::Removed(_) => self.presence = Presence::No,
        }
    }

    /// The values that each sector may read as after a cut.
    fn allowed(&self, now: u64) -> Vec<Vec<u64>> {
        let one = |s: &Sector| {
            let mut crashed = s.clone();
            crashed.crash(now);
            crashed.lose_volatile();
            let mut ids = self.ids.clone();
            ids.push(pattern::ZERO);
            ids.retain(|&id| crashed.clone().read(id, now + 1, now + 2).is_ok());
            ids
        };
        self.sectors.iter().map(one).collect()
    }
}

pub(crate) fn volume_of(mark: &Mark) -> usize {
    match mark {
        Mark::Begin { vol, .. }
        | Mark::End { vol, .. }
        | Mark::OriginWrite { vol, .. }
        | Mark::OriginPast { vol, .. }
        | Mark::Flushed { vol }
        | Mark::OriginZero { vol, .. }
        | Mark::OriginFlush { vol }
        | Mark::Adding(vol)
        | Mark::Added(vol)
        | Mark::Removing(vol)
        | Mark::Removed(vol) => *vol,
    }
}

/// The conditions after a cut at one place.
pub(crate) struct Oracle {
    presence: Vec<Presence>,
    allowed: Vec<Vec<Vec<u64>>>,
    /// Ways for the origins to have been left.
    pub origins: Vec<Vec<Origin>>,
}

impl Oracle {
    /// Each sector is what it was read as, and the origins are these.
    pub fn exactly(ids: &Ids, origins: Vec<Origin>) -> Self {
        let there = |v: &Vec<u64>| if v[0] == ABSENT { Presence::No } else { Presence::Yes };
        Self {
            presence: ids.iter().map(there).collect(),
            allowed: ids.iter().map(|v| v.iter().map(|id| vec![*id]).collect()).collect(),
            origins: vec![origins],
        }
    }

    pub fn judge(&self, got: &Ids) -> Result<(), String> {
        for (vol, ids) in got.iter().enumerate() {
            match (ids[0] == ABSENT, self.presence[vol]) {
                (true, Presence::Yes) => return Err(format!("volume {vol} is gone")),
                (false, Presence::No) => return Err(format!("volume {vol} is there again")),
                (true, _) => continue,
                (false, _) => {}
            }
            for (sector, id) in ids.iter().enumerate() {
                let allowed = &self.allowed[vol][sector];
                if !allowed.contains(id) {
                    return Err(format!(
                        "volume {vol} sector {sector} reads as write {id}, allowed are {allowed:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// All sectors of all volumes, with the origins as given; attaches them.
pub(crate) fn read_all(
    engine: &mut Engine,
    volumes: &[u64],
    origins: &[Origin],
) -> Result<Ids, String> {
    let one = |(vol, &sectors): (usize, &u64)| {
        let index = match engine.volume_find(&name(vol)) {
            Ok(index) => index,
            Err(e) if e.is(sys::FBY_E_NO_VOLUME) => return Ok(vec![ABSENT; sectors as usize]),
            Err(e) => return Err(format!("volume {vol}: {e}")),
        };
        let (identity, a) = attach_of(number(vol), sectors);
        engine
            .volume_attach(index, &Attach { identity: &identity, ..a })
            .map_err(|e| format!("attach of volume {vol}: {e}"))?;
        let ids = read_volume(engine, index, &origins[vol])?;
        match ids.contains(&LOST) {
            true => Err(format!("volume {vol} has lost a sector")),
            false => Ok(ids),
        }
    };
    volumes.iter().enumerate().map(one).collect()
}

struct Explorer<'a> {
    script: &'a Script,
    bounds: Bounds,
    bed: Bed,
    options: sys::fby_options,
    seen: Hashes,
    out: Explored,
    deadline: Option<Instant>,
}

impl Explorer<'_> {
    fn recover(&mut self) -> Result<(), String> {
        self.out.recoveries += 1;
        let report = self
            .bed
            .engine
            .open_all(&self.options)
            .map_err(|e| format!("open after the cut: {e}"))?;
        if report.holes != 0 || report.damaged != 0 {
            let (holes, damaged) = (report.holes, report.damaged);
            return Err(format!("recovery reports {holes} holes and {damaged} damaged entries"));
        }
        self.out.dropped += report.dropped;
        if let Some(misuse) = self.bed.engine.media.misuse() {
            return Err(misuse);
        }
        self.bed.engine.check(true).map_err(|e| format!("after recovery: {e}"))
    }

    fn read_all(&mut self, origins: &[Origin]) -> Result<Ids, String> {
        read_all(&mut self.bed.engine, &self.script.volumes, origins)
    }

    /// One image of a first cut.
    fn image(&mut self, image: &Image, oracle: &Oracle) -> Result<(), String> {
        let pick = mix(image.hash);
        let origins = &oracle.origins[(pick % oracle.origins.len() as u64) as usize];
        self.bed.load(image);
        let result = self.recover().and_then(|()| {
            let got = self.read_all(origins)?;
            oracle.judge(&got)?;
            Ok((got, self.bed.trace().len()))
        });
        let (got, recovery) = match result {
            Ok(ok) => ok,
            Err(e) => {
                self.bed.unload(image);
                return Err(e);
            }
        };
        let trace: Vec<MediaEvent> = self.bed.trace()[..recovery].to_vec();
        let mut result = Ok(());
        if (pick >> 8).is_multiple_of(self.bounds.go_on_every) {
            result = self.go_on(got.clone(), origins, pick);
        }
        self.bed.unload(image);
        result?;
        if (pick >> 24).is_multiple_of(self.bounds.nested_every) {
            self.cut_recovery(image, &trace, &got, (oracle, origins), pick)?;
        }
        Ok(())
    }

    /// Writes on, is killed, recovers, drains: all by the engine alone.
    fn go_on(
        &mut self,
        mut want: Vec<Vec<u64>>,
        origins: &[Origin],
        pick: u64,
    ) -> Result<(), String> {
        self.out.gone_on += 1;
        let mut rng = Rng::new(pick);
        let mut origins = origins.to_vec();
        for id in 0..rng.range(1, 4) {
            let id = 1_000_000 + id;
            let vol = rng.index(want.len());
            if want[vol][0] == ABSENT {
                continue;
            }
            let index = self.bed.engine.volume_find(&name(vol)).map_err(|e| e.to_string())?;
            let unit = u64::from(self.script.block_size / 512);
            let size = want[vol].len() as u64 / unit;
            let at = rng.below(size);
            let n = rng.range(1, (size - at).min(20));
            let (at, n) = (at * unit, n * unit);
            let bytes = data(number(vol), at..at + n, id);
            let mut done = 0;
            let r = self.bed.engine.write(index, at, &bytes, &mut done, &mut 0);
            if !matches!(r, Ok(Decision::Done | Decision::Wait(Wait::Space))) {
                return Err(format!("write after recovery: {r:?}"));
            }
            want[vol][at as usize..(at + u64::from(done)) as usize].fill(id);
        }
        self.bed.engine.check(true).map_err(|e| format!("written on: {e}"))?;
        self.bed.engine.abandon();
        self.recover().map_err(|e| format!("written on: {e}"))?;
        let same = |got: &[Vec<u64>], what: &str| {
            differs(got, &want).map_or(Ok(()), |d| Err(format!("{what}: {d}")))
        };
        let got = self.read_all(&origins)?;
        same(&got, "written on and recovered")?;
        self.drain_all(&mut origins)?;
        for (vol, origin) in origins.iter().enumerate().filter(|(v, _)| want[*v][0] != ABSENT) {
            let alone: Vec<u64> = (0..origin.sectors()).map(|s| origin.read(s)).collect();
            if let Some(d) = differs(&[alone], &want[vol..=vol]) {
                return Err(format!("drained, the origin of volume {vol} alone: {d}"));
            }
        }
        self.bed.engine.check(true).map_err(|e| format!("drained: {e}"))
    }

    fn drain_all(&mut self, origins: &mut [Origin]) -> Result<(), String> {
        let index: Vec<Option<u16>> =
            (0..origins.len()).map(|v| self.bed.engine.volume_find(&name(v)).ok()).collect();
        for i in index.iter().flatten() {
            self.bed.engine.volume_drain(*i, true).map_err(|e| format!("drain: {e}"))?;
        }
        for step in 1..20_000 {
            let s =
                self.bed.engine.destage_step(step * 1000).map_err(|e| format!("destage: {e}"))?;
            if let Some(io) = s.io {
                let vol = index.iter().position(|i| *i == Some(io.volume)).ok_or("no volume")?;
                match io.op {
                    sys::FBY_IO_WRITE => origins[vol].write(io.sector, &io.data),
                    sys::FBY_IO_FLUSH => origins[vol].flush_all(),
                    _ => origins[vol].zero(io.sector, io.nsectors),
                }
                self.bed.engine.destage_complete(io.id, 0);
            } else if s.decision == Decision::Done {
                let dirty = index.iter().flatten().find(|i| !self.bed.engine.volume_clean(**i));
                return dirty.map_or(Ok(()), |i| Err(format!("volume {i} stays dirty")));
            }
        }
        Err("a drain does not end".into())
    }

    /// Cuts inside the recovery of `image`, whose stores are in `trace`.
    fn cut_recovery(
        &mut self,
        image: &Image,
        trace: &[MediaEvent],
        want: &[Vec<u64>],
        (oracle, origins): (&Oracle, &[Origin]),
        pick: u64,
    ) -> Result<(), String> {
        let mut durable: Overlay = image.lines.iter().copied().collect();
        let mut pending: Vec<LineStore> = Vec::new();
        for event in trace {
            match event {
                MediaEvent::Store(s) => pending.push(*s),
                MediaEvent::Fence(actor) => {
                    self.out.recovery_cuts += 1;
                    let images = self.bed.images(
                        &durable,
                        &pending,
                        Flavour::NonTemporal,
                        self.bounds.nested,
                        pick ^ self.out.recovery_cuts,
                    );
                    for nested in images {
                        self.nested_image(&nested, want, (oracle, origins)).map_err(|e| {
                            format!("second cut, inside the recovery of the first: {e}")
                        })?;
                    }
                    settle(&mut pending, *actor, |s| {
                        durable.insert(s.line, s.words);
                    });
                }
            }
        }
        Ok(())
    }

    fn nested_image(
        &mut self,
        image: &Image,
        want: &[Vec<u64>],
        (oracle, origins): (&Oracle, &[Origin]),
    ) -> Result<(), String> {
        self.out.images += 1;
        if !self.seen.insert(image.hash) {
            return Ok(());
        }
        self.bed.load(image);
        let got = self.recover().and_then(|()| self.read_all(origins));
        self.bed.unload(image);
        let got = got?;
        self.out.changed += u64::from(got != want);
        oracle.judge(&got)
    }

    /// All images of one cut.
    fn cut(&mut self, pending: &[LineStore], oracle: &Oracle, at: usize) -> Result<(), String> {
        self.out.cuts += 1;
        let mut here = Hashes::default();
        let mut exhaustive = true;
        for flavour in [Flavour::NonTemporal, Flavour::Cached] {
            let seed = mix(at as u64 ^ (flavour as u64) << 32);
            let none = Overlay::new();
            let images = self.bed.images(&none, pending, flavour, self.bounds.images, seed);
            exhaustive &= images.exhaustive();
            if flavour == Flavour::Cached && exhaustive {
                break; // every one of them has been among the others
            }
            for (n, image) in images.enumerate() {
                self.out.images += 1;
                let hash = image.hash;
                if !here.insert(hash) {
                    continue;
                }
                self.seen.insert(hash);
                hooks::set_context(|| {
                    format!(
                        "script '{}' cut at event {at}, {flavour:?} image {n}",
                        self.script.name
                    )
                });
                self.image(&image, oracle).map_err(|e| {
                    format!("cut at event {at}, {flavour:?} image {n} (hash {hash:016x}): {e}")
                })?;
            }
            if self.deadline.is_some_and(|d| Instant::now() > d) {
                break;
            }
        }
        self.out.cuts_exhaustive += u64::from(exhaustive);
        Ok(())
    }
}

fn differs(got: &[Vec<u64>], want: &[Vec<u64>]) -> Option<String> {
    got.iter().zip(want).enumerate().find_map(|(vol, (g, w))| {
        let at = (0..g.len()).find(|&s| g[s] != w[s])?;
        Some(format!("volume {vol} sector {at} reads as write {}, before as {}", g[at], w[at]))
    })
}

pub(crate) fn oracle(known: &[Known], now: u64) -> Oracle {
    let mut origins = vec![known.iter().map(|k| k.origin.clone()).collect::<Vec<_>>()];
    if known.iter().any(|k| k.origin.volatile()) {
        for (loss, seed) in [(Loss::All, 1), (Loss::Some, 2), (Loss::Some, 3)] {
            let mut rng = Rng::new(mix(now) ^ seed);
            let mut some = origins[0].clone();
            some.iter_mut().for_each(|o| o.power_cut(loss, &mut rng));
            origins.push(some);
        }
    }
    Oracle {
        presence: known.iter().map(|k| k.presence).collect(),
        allowed: known.iter().map(|k| k.allowed(now)).collect(),
        origins,
    }
}

/// Ready to explore what follows `start`.
fn explorer(script: &Script, bounds: Bounds, start: Region) -> Explorer<'_> {
    let g = script.geometry;
    Explorer {
        script,
        bounds,
        bed: Bed::new(start, Layout::of(&g)),
        options: sys::fby_options {
            nslots: g.nslots,
            statics: g.static_bytes() != 0,
            ..Default::default()
        },
        seen: Hashes::default(),
        out: Explored { scripts: 1, ..Explored::default() },
        deadline: None,
    }
}

impl Explorer<'_> {
    /// Formatting was cut: there is the old pool with all that it held, the new
    /// one with nothing, or none, and that is said.
    fn formatted(&mut self, image: &Image, origins: &[Origin], old: &Ids) -> Result<bool, String> {
        self.bed.load(image);
        let result = match self.bed.engine.open_all(&self.options) {
            Err(e) if e.is(sys::FBY_E_NO_SUPERBLOCK) || e.is(sys::FBY_E_BAD_SUPERBLOCK) => {
                Ok(false)
            }
            Err(e) => Err(format!("open: {e}")),
            Ok(report) => self.bed.engine.check(true).and_then(|()| {
                let got = self.read_all(origins)?;
                if got == *old {
                    Ok(false)
                } else if report.entries == 0 && got.iter().all(|v| v[0] == ABSENT) {
                    Ok(true)
                } else {
                    Err(format!("neither the old pool nor the new: {got:?}"))
                }
            }),
        };
        self.bed.unload(image);
        result
    }
}

/// Explores the cuts of formatting a media that holds the pool of the script.
pub fn explore_format(script: &Script, bounds: Bounds) -> Result<Explored, String> {
    let recording = record(script)?;
    let g = script.geometry;
    let mut x = explorer(script, bounds, recording.end);
    let origins = recording.origins;
    let none = Image { lines: Vec::new(), hash: 0 };
    x.bed.load(&none);
    x.recover()?;
    let old = x.read_all(&origins)?;
    x.bed.unload(&none);
    x.bed.load(&none);
    x.bed.engine.format_geometry([0xf0; 16], &g).map_err(|e| format!("format: {e}"))?;
    let trace: Vec<MediaEvent> = x.bed.trace().to_vec();
    x.bed.unload(&none);
    let mut pending: Vec<LineStore> = Vec::new();
    let mut made = false;
    for (at, event) in trace.iter().enumerate() {
        match event {
            MediaEvent::Store(s) => pending.push(*s),
            MediaEvent::Fence(actor) => {
                x.out.cuts += 1;
                let images = x.bed.images(
                    &Overlay::new(),
                    &pending,
                    Flavour::NonTemporal,
                    bounds.images,
                    mix(at as u64),
                );
                x.out.cuts_exhaustive += u64::from(images.exhaustive());
                for image in images {
                    x.out.images += 1;
                    if !x.seen.insert(image.hash) {
                        continue;
                    }
                    hooks::set_context(|| format!("format cut at event {at}"));
                    x.out.recoveries += 1;
                    made |= x
                        .formatted(&image, &origins, &old)
                        .map_err(|e| format!("format cut at event {at}: {e}"))?;
                }
                x.bed.settle(&mut pending, *actor);
            }
        }
    }
    if !made || !x.formatted(&none, &origins, &old)? {
        return Err("formatting made no pool".into());
    }
    x.out.distinct = x.seen.len() as u64;
    Ok(x.out)
}

/// Explores one script.  `limit` ends it early, with what was seen so far.
pub fn explore(
    script: &Script,
    bounds: Bounds,
    limit: Option<Duration>,
) -> Result<Explored, String> {
    let recording = record(script)?;
    let mut x = explorer(script, bounds, recording.start);
    x.deadline = limit.map(|l| Instant::now() + l);
    let mut known: Vec<Known> = (0..script.volumes.len())
        .map(|v| Known::new(v, script.volumes[v], recording.present[v]))
        .collect();
    let mut marks = recording.marks.iter().peekable();
    let mut pending: Vec<LineStore> = Vec::new();
    let named = |e: String| format!("script '{}': {e}", script.name);
    let mut now = 0;
    for at in 0..=recording.trace.len() {
        if x.deadline.is_some_and(|d| Instant::now() > d) {
            break;
        }
        while let Some((_, mark)) = marks.next_if(|(pos, _)| *pos == at) {
            now += 1;
            known[volume_of(mark)].apply(mark, now * 10);
            if at >= recording.from {
                x.cut(&pending, &oracle(&known, now * 10 + 5), at).map_err(named)?;
            }
        }
        let event = recording.trace.get(at);
        let fence = matches!(event, Some(MediaEvent::Fence(_)) | None);
        if fence && !pending.is_empty() && at >= recording.from {
            x.cut(&pending, &oracle(&known, now * 10 + 5), at).map_err(named)?;
        }
        match event {
            Some(MediaEvent::Store(s)) => pending.push(*s),
            Some(MediaEvent::Fence(actor)) => x.bed.settle(&mut pending, *actor),
            None => {}
        }
    }
    x.out.distinct = x.seen.len() as u64;
    Ok(x.out)
}
