// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of volumes in a grouped pool, and of their origins, after a cut.  For each image:
//!
//! * open, recovery, fby_check() and attach find nothing wrong or missing;
//! * each sector shows the last version that was acknowledged or read, or a newer one, whatever
//!   the origin has kept of what it had not flushed;
//! * cut again inside that recovery, the same holds;
//! * destaged to the end, the origin has what the volume showed.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::Step as Destage;

use super::explore::{orders, settle, Bounds, Explored};
use super::ssd::{Engine, Ssd};
use super::volumes::{attach, name, Floors, Known, Run, VolumeScene, SECTORS};
use crate::bed::Same;
use crate::device::{Cut, Disk};
use crate::engine::Decision;
use crate::hooks;
use crate::origin::{Loss, Origin};
use crate::pattern;
use crate::rng::{mix, Rng};

/// The pool's content of each sector, by volume; None: the origin's counts.
type Found = Vec<Vec<Option<u64>>>;

pub(super) struct Cuts<'a> {
    scene: &'a VolumeScene,
    bounds: Bounds,
    bed: Ssd,
    seen: HashMap<u64, Rc<Found>, BuildHasherDefault<Same>>,
    out: Explored,
}

fn check(bed: &Ssd, engine: &Engine, when: &str) -> Result<(), String> {
    if let Some(misuse) = bed.misuse() {
        return Err(format!("{when}: {misuse}"));
    }
    match engine.check(true) {
        Ok(None) => Ok(()),
        Ok(Some(text)) => Err(format!("{when}: check: {text}")),
        Err(e) => Err(format!("{when}: check: {e}")),
    }
}

fn read(engine: &Engine, index: u16, volume: usize) -> Result<Vec<Option<u64>>, String> {
    let (mut ids, mut buf) = (Vec::with_capacity(SECTORS as usize), [0; 4096]);
    for block in 0..SECTORS / 8 {
        let read = engine.read_block(index, block, 0, &mut buf);
        match read.result {
            Ok(Decision::Done | Decision::Origin) => {}
            other => return Err(format!("read of block {block}: {other:?}")),
        }
        for (k, bytes) in buf.chunks_exact(pattern::SECTOR).enumerate() {
            let place = pattern::place(volume as u64 + 1, block * 8 + k as u64);
            ids.push(match read.origin >> k & 1 {
                1 => None,
                _ => Some(pattern::read(place, bytes).ok_or("bytes that nobody wrote")?),
            });
        }
    }
    Ok(ids)
}

impl Cuts<'_> {
    fn recover(&mut self, disk: &Disk) -> Result<(Engine, Found, Vec<Cut>), String> {
        self.bed.start(disk);
        self.bed.state_mut().device.record();
        let opened = Engine::open(self.bed.media(), &self.scene.options());
        let (engine, report) = opened.map_err(|e| format!("open after the cut: {e}"))?;
        if report.holes != 0 || report.damaged != 0 {
            return Err(format!("recovery reports {} holes", report.holes));
        }
        if report.groups_lost != 0 {
            return Err("a group counts as lost by a device that lost none".into());
        }
        check(&self.bed, &engine, "after recovery")?;
        let mut found = Vec::new();
        for volume in 0..self.scene.volumes {
            let ids = attach(&engine, volume).and_then(|index| read(&engine, index, volume));
            found.push(ids.map_err(|e| format!("{}: {e}", name(volume)))?);
        }
        let cuts = self.bed.events();
        Ok((engine, found, cuts))
    }

    /// Destages all that an image has to what a cut leaves of the origins.
    fn drain(
        &mut self,
        engine: &Engine,
        found: &Found,
        known: &[Known],
        pick: u64,
    ) -> Result<(), String> {
        let mut rng = Rng::new(pick);
        let mut origins: Vec<Origin> = Vec::new();
        for known in known {
            let mut origin = known.origin.clone();
            origin.power_cut(Loss::Some, &mut rng);
            origins.push(origin);
        }
        let mut now_ns = 1;
        for volume in 0..found.len() {
            let drain = engine.volume_drain(volume as u16, true);
            drain.map_err(|e| format!("drain: {e}"))?;
        }
        for _ in 0..5000 {
            if (0..found.len()).all(|v| engine.volume_clean(v as u16)) {
                break;
            }
            match engine.destage_step(now_ns, &mut 0).map_err(|e| format!("destage: {e}"))? {
                Destage::Submit(io) => {
                    let (origin, sector) = (&mut origins[usize::from(io.volume)], io.offset / 512);
                    match io.op {
                        forebay_engine::sys::FBY_IO_WRITE => origin.write(sector, io.data()),
                        forebay_engine::sys::FBY_IO_FLUSH => origin.flush_all(),
                        _ => origin.zero(sector, io.len / 512),
                    }
                    engine.destage_complete(io, 0);
                }
                _ => {
                    settle(&self.bed, engine)?;
                    now_ns += 50_000_000;
                }
            }
        }
        for (volume, ids) in found.iter().enumerate() {
            if !engine.volume_clean(volume as u16) {
                return Err("a recovered volume cannot be destaged".into());
            }
            for (sector, id) in (0u64..).zip(ids) {
                let now = origins[volume].durable(sector);
                if id.is_some_and(|id| id != now) {
                    let name = name(volume);
                    return Err(format!(
                        "{name}: the origin has {now} in sector {sector}, not {id:?}"
                    ));
                }
            }
        }
        self.out.drained += 1;
        check(&self.bed, engine, "destaged")
    }

    fn judge(&self, known: &[Known], floors: &Floors, found: &Found) -> Result<(), String> {
        for (volume, (known, ids)) in known.iter().zip(found).enumerate() {
            for (sector, id) in (0u64..).zip(ids) {
                let floor = floors[volume][sector as usize];
                let old = match id {
                    Some(id) => Some(*id).filter(|id| !known.is_new(sector, floor, *id)),
                    None => known.after_cut(sector).find(|id| !known.is_new(sector, floor, *id)),
                };
                if let Some(old) = old {
                    let (by, name) = (if id.is_some() { "pool" } else { "origin" }, name(volume));
                    return Err(format!("{name}: the {by} has {old} in sector {sector}"));
                }
            }
        }
        Ok(())
    }

    fn nested(
        &mut self,
        cuts: &[Cut],
        known: &[Known],
        floors: &Floors,
        pick: u64,
    ) -> Result<(), String> {
        for (at, cut) in cuts.iter().enumerate() {
            self.out.nested_cuts += 1;
            let (mut disks, bounds) = (Vec::new(), self.bounds.nested);
            cut.images(bounds, pick ^ at as u64, |image| {
                disks.push(image.disk.clone());
                Ok::<(), String>(())
            })?;
            for disk in disks {
                self.out.images += 1;
                let found = self.found(&disk, known, floors, false);
                let judged = found.and_then(|found| self.judge(known, floors, &found));
                judged.map_err(|e| format!("second cut, at event {at} of the recovery: {e}"))?;
            }
        }
        Ok(())
    }

    fn found(
        &mut self,
        disk: &Disk,
        known: &[Known],
        floors: &Floors,
        further: bool,
    ) -> Result<Rc<Found>, String> {
        if let Some(found) = self.seen.get(&disk.hash()) {
            return Ok(Rc::clone(found));
        }
        let pick = mix(disk.hash());
        let (engine, found, cuts) = self.recover(disk)?;
        let found = Rc::new(found);
        self.seen.insert(disk.hash(), Rc::clone(&found));
        if further && (pick >> 24).is_multiple_of(self.bounds.nested_every) {
            drop(engine);
            self.nested(&cuts, known, floors, pick)?;
        } else if further && (pick >> 8).is_multiple_of(self.bounds.go_on_every) {
            self.drain(&engine, &found, known, pick)?;
        }
        Ok(found)
    }

    /// A cut of the run, in which this is known.
    pub(super) fn cut(
        &mut self,
        cut: &Cut,
        known: &[Known],
        floors: &Floors,
    ) -> Result<(), String> {
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
            let found = self.found(&image.disk, known, floors, true);
            let judged = found.and_then(|found| self.judge(known, floors, &found));
            judged.map_err(|e| format!("image {n} (hash {:016x}): {e}", image.disk.hash()))
        })
    }

    /// A run has ended.
    pub(super) fn count(&mut self, engine: &Engine, index: &[u16]) {
        for info in index.iter().filter_map(|index| engine.volume_info(*index).ok()) {
            self.out.rounds += info.rounds;
            self.out.copies += info.pages_relocated;
        }
    }

    pub(super) fn rescued(&mut self) {
        self.out.rescued += 1;
    }
}

/// Explores one scene: all orders, or as many as the bounds want, and then others at random.
pub fn explore_volumes(
    scene: &VolumeScene,
    bounds: Bounds,
    limit: Option<Duration>,
) -> Result<Explored, String> {
    let start = scene.start()?;
    let machine = Ssd::new(start.clone(), scene.durable);
    let mut x = Cuts {
        scene,
        bounds,
        bed: Ssd::new(start.clone(), scene.durable),
        seen: HashMap::default(),
        out: Explored { scenes: 1, ..Explored::default() },
    };
    let (runs, complete) = orders(&scene.name, bounds.runs, limit, |choices| {
        Run::new(scene, &machine, &start)?.all(choices, &mut x)
    })?;
    (x.out.runs, x.out.complete) = (runs, complete.into());
    x.out.distinct = x.seen.len() as u64;
    Ok(x.out)
}
