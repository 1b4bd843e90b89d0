// SPDX-License-Identifier: MIT OR Apache-2.0
//! The explorer of grouped pools.  For each image that a cut may leave:
//!
//! * open, recovery, fby_check() and claim find nothing wrong or missing;
//! * replay hands out each entry that was acknowledged and is unsynced, and no other than in
//!   logs/known.rs;
//! * cut again inside that recovery, claim and replay, the next one hands out the rest;
//! * begun anew, the log holds what is appended then and nothing else.
//!
//! An image is recovered once, whenever it comes again: what it holds depends on nothing else.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_engine::sys;
use serde::Serialize;

use super::run::{Run, Scene};
use super::ssd::{Engine, Ssd};
use crate::bed::Same;
use crate::device::{Choices, Cut, Disk, End, Images, Path};
use crate::engine::Decision;
use crate::hooks;
use crate::logs::script::{body, guid, id_of, name, Mark};
use crate::logs::{self, Known};
use crate::rng::mix;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Images of one cut.
    pub images: Images,
    /// Images of one cut inside a recovery.
    pub nested: Images,
    /// One of so many images has its recovery cut too.
    pub nested_every: u64,
    /// One of so many images is used further after recovery.
    pub go_on_every: u64,
    /// Most runs of one scene; where there are more, the same number is drawn.
    pub runs: u64,
}

impl Bounds {
    /// All images of a cut where there are no more than `images`.
    pub fn new(images: u64, runs: u64) -> Self {
        Self {
            images: Images { complete: images, random: 24 },
            nested: Images { complete: 16, random: 2 },
            nested_every: 32,
            go_on_every: 16,
            runs,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Explored {
    pub scenes: u64,
    /// How many of these scenes were run in all orders.
    pub complete: u64,
    pub runs: u64,
    pub cuts: u64,
    pub nested_cuts: u64,
    /// Images that were judged, and different ones, which were recovered.
    pub images: u64,
    pub distinct: u64,
    pub replayed: u64,
    /// Entries never acknowledged that were there all the same.
    pub unacknowledged: u64,
    pub again: u64,
    /// In scenes with volumes: rounds of destage, pages copied within the pool, images that were
    /// destaged, and runs in which the device failed and the origins got everything.
    pub rounds: u64,
    pub copies: u64,
    pub drained: u64,
    pub rescued: u64,
}

impl Explored {
    pub fn add(&mut self, o: &Self) {
        self.scenes += o.scenes;
        self.complete += o.complete;
        self.runs += o.runs;
        self.cuts += o.cuts;
        self.nested_cuts += o.nested_cuts;
        self.images += o.images;
        self.distinct += o.distinct;
        self.replayed += o.replayed;
        self.unacknowledged += o.unacknowledged;
        self.again += o.again;
        self.rounds += o.rounds;
        self.copies += o.copies;
        self.drained += o.drained;
        self.rescued += o.rescued;
    }
}

/// The result of a recovery for each log: None for a log that is in no period.
type Found = Vec<Option<Vec<u64>>>;

/// A recovery with its replay.
struct Recovered {
    engine: Engine,
    found: Found,
    cuts: Vec<Cut>,
    /// Each with the number of events before it.
    marks: Vec<(usize, Mark)>,
}

pub(super) struct Explorer<'a> {
    scene: &'a Scene,
    bounds: Bounds,
    options: sys::fby_options,
    bed: Ssd,
    seen: HashMap<u64, Rc<Found>, BuildHasherDefault<Same>>,
    out: Explored,
    tally: logs::Explored,
}

/// Carries out all requests, oldest first.
pub(super) fn settle(ssd: &Ssd, engine: &Engine) -> Result<(), String> {
    for _ in 0..1000 {
        let (decision, io) = engine.medium_next(&mut 0).map_err(|e| format!("next: {e}"))?;
        if decision == Decision::Done {
            ssd.send(io, Path::Straight);
            continue;
        }
        let Some((id, _)) = ssd.in_flight().first().copied() else { return Ok(()) };
        if let Some((io, ok)) = ssd.end(id, End::Done) {
            engine.medium_end(&io, if ok { 0 } else { 5 }, &mut 0);
        }
    }
    Err("requests without end".into())
}

impl Explorer<'_> {
    fn claim(
        &mut self,
        engine: &Engine,
        log: usize,
        marks: &mut Vec<(usize, Mark)>,
    ) -> Result<Option<Vec<u64>>, String> {
        let index = engine.log_find(&name(log)).map_err(|e| format!("find: {e}"))?;
        let info = engine.log_info(index).map_err(|e| format!("info: {e}"))?;
        if info.missing != 0 || info.incomplete {
            return Err(format!("recovery misses {} entries, or chunks", info.missing));
        }
        let mut header = info.header;
        if header.state == sys::FBY_LOG_NONE {
            return Ok(None);
        }
        let claimed = engine.log_claim(index, 0, &mut header);
        let (mut nodes, claim) = claimed.map_err(|e| format!("claim: {e}"))?;
        if claim.end != sys::FBY_LOG_COMPLETE || claim.twins != 0 {
            return Err(format!("claim: {claim:?}"));
        }
        // A plain cut leaves no copies, which a claim would drop.
        if info.found != nodes.len() as u64 {
            return Err(format!("recovery finds {} entries, a claim {}", info.found, nodes.len()));
        }
        let (mut ids, mut wrong, mut room) = (Vec::new(), None, Vec::new());
        let replayed = engine.log_replay(index, &mut nodes, &mut |node, _| {
            let id = engine.log_read(index, node, &mut room).ok().and_then(id_of);
            let Some(id) = id else {
                wrong = Some((node.gen, node.id));
                return sys::FBY_LOG_DAMAGED;
            };
            ids.push(id);
            marks.push((self.bed.state().device.recorded(), Mark::Effect { log, id }));
            sys::FBY_LOG_REPLAYED
        });
        let result = replayed.map_err(|e| format!("replay: {e}"))?;
        if let Some(name) = wrong {
            return Err(format!("the body of entry {name:?} is not what was appended"));
        }
        match result.end {
            sys::FBY_LOG_COMPLETE => Ok(Some(ids)),
            _ => Err(format!("replay: {result:?}")),
        }
    }

    fn check(&self, engine: &Engine, when: &str) -> Result<(), String> {
        if let Some(misuse) = self.bed.misuse() {
            return Err(format!("{when}: {misuse}"));
        }
        match engine.check(true) {
            Ok(None) => Ok(()),
            Ok(Some(text)) => Err(format!("{when}: check: {text}")),
            Err(e) => Err(format!("{when}: check: {e}")),
        }
    }

    fn recover(&mut self, disk: &Disk) -> Result<Recovered, String> {
        self.bed.start(disk);
        self.bed.state_mut().device.record();
        let opened = Engine::open(self.bed.media(), &self.options);
        let (engine, report) = opened.map_err(|e| format!("open after the cut: {e}"))?;
        if report.holes != 0 || report.damaged != 0 {
            return Err(format!("recovery reports {} holes", report.holes));
        }
        if report.groups_lost != 0 {
            return Err("a group counts as lost by a device that lost none".into());
        }
        self.check(&engine, "after recovery")?;
        let (mut found, mut marks) = (Vec::new(), Vec::new());
        for log in 0..self.scene.logs {
            let ids = self.claim(&engine, log, &mut marks);
            found.push(ids.map_err(|e| format!("{}: {e}", name(log)))?);
        }
        settle(&self.bed, &engine)?;
        self.check(&engine, "after replay")?;
        let cuts = self.bed.events();
        Ok(Recovered { engine, found, cuts, marks })
    }

    /// Begins a new period of each log: it must hold only entries appended then.
    fn begin_anew(&mut self, engine: Engine) -> Result<(), String> {
        let mut expected = Vec::new();
        for log in 0..self.scene.logs {
            let index = engine.log_find(&name(log)).map_err(|e| e.to_string())?;
            let state = engine.log_info(index).map_err(|e| e.to_string())?.header.state;
            if state != sys::FBY_LOG_NONE {
                engine.log_destroy(index, &mut 0).map_err(|e| format!("destroy: {e}"))?;
            }
            let created = engine.log_create(index, &guid(log, 1000), 9, &mut 0);
            created.map_err(|e| format!("create: {e}"))?;
            for (id, txg, bytes) in [(5000, 10, 50), (5001, 12, 5000)] {
                let body = body(id, bytes);
                for _ in 0..4 {
                    match engine.log_append(index, txg, true, &[&body], &mut 0) {
                        Ok((Decision::Done, _)) => break,
                        Ok((Decision::Wait(_), _)) => settle(&self.bed, &engine)?,
                        other => return Err(format!("append after the replay: {other:?}")),
                    }
                }
            }
            expected.push(Some(vec![5000, 5001]));
        }
        settle(&self.bed, &engine)?;
        self.check(&engine, "begun anew")?;
        drop(engine);
        let disk = self.bed.state().device.cut().durable().clone();
        let found = self.recover(&disk).map_err(|e| format!("begun anew: {e}"))?.found;
        match found == expected {
            true => Ok(()),
            false => Err(format!("begun anew, {found:?} is there instead of {expected:?}")),
        }
    }

    /// Cuts inside the recovery and the replay of an image: what the first one found, the second
    /// must hand out, but for what had its effect.
    fn nested(&mut self, first: &Recovered, pick: u64) -> Result<(), String> {
        for (at, cut) in first.cuts.iter().enumerate() {
            self.out.nested_cuts += 1;
            // The mark at the very place of the cut may have come before it or after it.
            let states = [at, at + 1].map(|most| {
                let mut known: Vec<Known> = vec![Known::default(); first.found.len()];
                for (log, ids) in first.found.iter().enumerate() {
                    for id in ids.iter().flatten() {
                        known[log].apply(&Mark::Begin { log, id: *id, txg: u64::MAX });
                        known[log].apply(&Mark::End { log, id: *id });
                    }
                }
                for (_, mark) in first.marks.iter().filter(|(pos, _)| *pos <= most) {
                    if let Mark::Effect { log, .. } = mark {
                        known[*log].apply(mark);
                    }
                }
                known
            });
            let mut disks = Vec::new();
            let bounds = self.bounds.nested;
            cut.images(bounds, pick ^ at as u64, |image| {
                disks.push(image.disk.clone());
                Ok::<(), String>(())
            })?;
            for disk in disks {
                self.out.images += 1;
                let found = self.found(&disk, false);
                let judged = found.and_then(|found| {
                    states.iter().try_for_each(|known| self.judge(known, &found))
                });
                judged.map_err(|e| format!("second cut, at event {at} of the recovery: {e}"))?;
            }
        }
        Ok(())
    }

    /// The result of recovery on a disk.
    fn found(&mut self, disk: &Disk, further: bool) -> Result<Rc<Found>, String> {
        if let Some(found) = self.seen.get(&disk.hash()) {
            return Ok(Rc::clone(found));
        }
        let pick = mix(disk.hash());
        let recovered = self.recover(disk)?;
        let found = Rc::new(recovered.found.clone());
        self.seen.insert(disk.hash(), Rc::clone(&found));
        if further && (pick >> 24).is_multiple_of(self.bounds.nested_every) {
            self.nested(&recovered, pick)?;
            // The bed is another machine by now.
            return Ok(found);
        }
        if further && (pick >> 8).is_multiple_of(self.bounds.go_on_every) {
            self.begin_anew(recovered.engine)?;
        }
        Ok(found)
    }

    fn judge(&mut self, known: &[Known], found: &Found) -> Result<(), String> {
        for (log, (known, ids)) in known.iter().zip(found).enumerate() {
            let all = ids.as_deref().unwrap_or(&[]);
            let judged = known.judge(all, ids.is_none(), &mut self.tally);
            judged.map_err(|e| format!("{}: {e}", name(log)))?;
        }
        Ok(())
    }

    /// A cut of the run, in which this is known.
    pub(super) fn cut(&mut self, cut: &Cut, known: &[Known]) -> Result<(), String> {
        self.out.cuts += 1;
        let mut n = 0;
        let (bounds, seed) = (self.bounds.images, mix(self.out.cuts));
        cut.images(bounds, seed, |image| {
            self.out.images += 1;
            n += 1;
            let context = || format!("scene '{}' cut {}", self.scene.name, self.out.cuts);
            if n == 1 {
                hooks::set_context(context);
            }
            let found = self.found(&image.disk, true);
            let judged = found.and_then(|found| self.judge(known, &found));
            judged.map_err(|e| format!("image {n} (hash {:016x}): {e}", image.disk.hash()))
        })
    }
}

/// Runs in all orders, or as many as are wanted, and then in others at random; how many runs, and
/// whether these were all.
pub(super) fn orders(
    scene: &str,
    most: u64,
    limit: Option<Duration>,
    mut run: impl FnMut(&mut Choices) -> Result<(), String>,
) -> Result<(u64, bool), String> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let late = || deadline.is_some_and(|d| Instant::now() > d);
    let (mut choices, mut runs) = (Choices::all(), 0);
    let mut named = |choices: &mut Choices| {
        runs += 1;
        run(choices).map_err(|e| format!("scene '{scene}', run {runs}: {e}"))?;
        Ok::<u64, String>(runs)
    };
    loop {
        let runs = named(&mut choices)?;
        if !choices.advance() {
            return Ok((runs, true));
        }
        if runs >= most || late() {
            break;
        }
    }
    for seed in 0..most {
        if late() {
            break;
        }
        named(&mut Choices::drawn(seed))?;
    }
    Ok((runs, false))
}

/// Explores one scene: all orders, or as many as the bounds want, and then others at random.
pub fn explore(scene: &Scene, bounds: Bounds, limit: Option<Duration>) -> Result<Explored, String> {
    let start = scene.start()?;
    let machine = Ssd::new(start.clone(), scene.durable);
    let mut x = Explorer {
        scene,
        bounds,
        options: scene.options(),
        bed: Ssd::new(start.clone(), scene.durable),
        seen: HashMap::default(),
        out: Explored { scenes: 1, ..Explored::default() },
        tally: logs::Explored::default(),
    };
    let (runs, complete) = orders(&scene.name, bounds.runs, limit, |choices| {
        Run::new(scene, &machine, &start)?.all(choices, &mut x)
    })?;
    (x.out.runs, x.out.complete) = (runs, complete.into());
    x.out.distinct = x.seen.len() as u64;
    x.out.replayed = x.tally.replayed;
    x.out.unacknowledged = x.tally.unacknowledged;
    x.out.again = x.tally.again;
    Ok(x.out)
}
