// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients: each has at most one request, and takes it one step further
//! when it is its turn.

use std::ops::Range;

use forebay_sys as sys;

use crate::engine::{Decision, Write};
use crate::model::Kind;
use crate::origin::BAD;
use crate::pattern;
use crate::script::data;

use super::{Verdict, World};

#[derive(Default)]
pub(super) struct Client {
    task: Task,
    pub asleep: Option<Decision>,
}

#[derive(Default)]
enum Task {
    #[default]
    Idle,
    Write(WriteTask),
    Read(ReadTask),
    Range(RangeTask),
}

struct WriteTask {
    number: u64,
    sectors: Range<u64>,
    id: u64,
    data: Vec<u8>,
    done: u64,
    begun: Option<(Write, Stage)>,
    /// By the engine's own loop, not step by step.
    whole: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Copy,
    Commit,
    Publish,
}

struct ReadTask {
    number: u64,
    sectors: Range<u64>,
    at: u64,
    /// The engine has answered for a block: what the origin is to add.
    origin: Option<OriginPart>,
}

struct OriginPart {
    block: u64,
    first: u64,
    mask: u8,
    start: u64,
    due: u64,
    /// Power cuts of the origin before it.
    cuts: u64,
}

struct RangeTask {
    number: u64,
    sectors: Range<u64>,
    kind: Kind,
    id: u64,
    done: u64,
    /// Sectors being done on the origin, and when.
    origin: Option<(u64, u64)>,
}

impl Client {
    pub fn idle(&self) -> bool {
        matches!(self.task, Task::Idle)
    }

    /// Is a write of its between begin and publish?
    pub fn holds(&self) -> bool {
        matches!(&self.task, Task::Write(w) if w.begun.is_some())
    }

    /// The number of the volume that it works on.
    pub fn volume(&self) -> Option<u64> {
        match &self.task {
            Task::Idle => None,
            Task::Write(t) => Some(t.number),
            Task::Read(t) => Some(t.number),
            Task::Range(t) => Some(t.number),
        }
    }

    /// It is no more.
    pub fn die(&mut self) {
        self.task = Task::Idle;
        self.asleep = None;
    }

    /// The range that it was discarding or zeroing on the origin, if any.
    pub fn origin_range(&self) -> Option<(u64, Kind, Range<u64>)> {
        let Task::Range(t) = &self.task else { return None };
        let (n, _) = t.origin?;
        let first = t.sectors.start + t.done;
        Some((t.number, t.kind, first..first + n))
    }

    pub fn describe(&self) -> String {
        let what = match &self.task {
            Task::Idle => "idle".into(),
            Task::Write(t) => format!(
                "write {} of {:?} done {} stage {:?}",
                t.id,
                t.sectors,
                t.done,
                t.begun.as_ref().map(|b| b.1)
            ),
            Task::Read(t) => format!("read {:?} at {}", t.sectors, t.at),
            Task::Range(t) => format!("{:?} {:?} done {}", t.kind, t.sectors, t.done),
        };
        format!("{what}, asleep {:?}", self.asleep)
    }
}

impl World {
    pub(super) fn client_step(&mut self) -> Verdict {
        let i = self.rng.index(self.clients.len());
        if self.clients[i].asleep.is_some() {
            return Ok(());
        }
        if self.clients[i].idle() {
            if !self.calm {
                self.new_task(i);
            }
            return Ok(());
        }
        self.actor(i as u16 + 1);
        let task = std::mem::take(&mut self.clients[i].task);
        let next = match task {
            Task::Idle => Task::Idle,
            Task::Write(t) => self.write_step(i, t)?,
            Task::Read(t) => self.read_step(t)?,
            Task::Range(t) => self.range_step(i, t)?,
        };
        self.clients[i].task = next;
        Ok(())
    }

    pub(super) fn volume_at(&self, number: u64) -> Option<usize> {
        self.volumes.iter().position(|v| v.number == number)
    }

    fn new_task(&mut self, i: usize) {
        let attached: Vec<usize> =
            (0..self.volumes.len()).filter(|&v| self.volumes[v].attached).collect();
        if attached.is_empty() {
            return;
        }
        let v = self.rng.pick(&attached);
        let (number, size) = (self.volumes[v].number, self.volumes[v].origin.sectors());
        let unit = u64::from(self.volumes[v].block_size / 512);
        let most = 1 << self.rng.below(self.plan.size_bits + 1);
        // Half of the requests go to one corner, so that they meet.
        let hot = if self.rng.one_in(2) { size.min(32) } else { size } / unit;
        let at = self.rng.below(hot.max(1));
        let n = self.rng.range(1, most.min(size / unit - at));
        let mut sectors = at * unit..(at + n) * unit;
        if self.plan.periodic && !self.rng.one_in(8) {
            let (from, to) = self.rng.pick(&[(0, 64), (0, 64), (0, 32), (32, 64), (8, 16)]);
            sectors = from..to;
        }
        let dice = self.rng.below(100);
        let task = if dice < self.plan.reads {
            Task::Read(ReadTask { number, at: sectors.start, sectors, origin: None })
        } else if dice < self.plan.reads + self.plan.ranges {
            let kind = if self.rng.one_in(2) { Kind::Zero } else { Kind::Discard };
            let id = self.fresh_id();
            self.model_begin(v, &sectors, id, kind);
            Task::Range(RangeTask { number, sectors, kind, id, done: 0, origin: None })
        } else if dice == 99 {
            self.tally.flushes += 1;
            let index = self.volumes[v].index.unwrap_or(0);
            // Flushes cost nothing and need nothing from the origin.
            let r = self.engine.flush(index);
            debug_assert_eq!(r, Ok(Decision::Done));
            Task::Idle
        } else {
            let id = self.fresh_id();
            self.model_begin(v, &sectors, id, Kind::Data);
            let data = data(number, sectors.clone(), id);
            let whole = self.rng.one_in(8);
            Task::Write(WriteTask { number, sectors, id, data, done: 0, begun: None, whole })
        };
        self.clients[i].task = task;
        self.log(|| format!("client {i} volume {number}: {}", self.clients[i].describe()));
    }

    fn model_begin(&mut self, v: usize, sectors: &Range<u64>, id: u64, kind: Kind) {
        let tick = self.tick;
        for s in sectors.clone() {
            self.volumes[v].model[s as usize].write_begin(id, kind, tick);
        }
    }

    /// The request is acknowledged.
    fn model_end(&mut self, number: u64, sectors: &Range<u64>, id: u64) {
        let tick = self.tick;
        if let Some(v) = self.volume_at(number) {
            for s in sectors.clone() {
                self.volumes[v].model[s as usize].write_end(id, tick);
            }
        }
        self.log(|| format!("acknowledged {id} {sectors:?} of volume {number}"));
    }

    /// A WAIT decision: announce, try once more, sleep.  True: it sleeps now.
    fn wait(&mut self, i: usize, d: Decision, announced: &mut Option<Decision>) -> bool {
        match d {
            Decision::WaitBlock => self.tally.waits_block += 1,
            Decision::WaitSlot => self.tally.waits_slot += 1,
            _ => {
                self.tally.waits_space += 1;
                // A host that is out of space calls destage.
                self.destage_at = 0;
            }
        }
        if *announced == Some(d) {
            self.clients[i].asleep = Some(d);
            let free = self.engine.info().chunks_free;
            self.log(|| format!("client {i} sleeps for {d:?}, {free} chunks free"));
            return true;
        }
        self.engine.wait_prepare(d);
        *announced = Some(d);
        false
    }

    fn index_of(&self, number: u64) -> Result<(usize, u16), String> {
        let v = self.volume_at(number).ok_or("its volume is gone")?;
        Ok((v, self.volumes[v].index.ok_or("its volume has no place")?))
    }

    fn write_step(&mut self, i: usize, mut t: WriteTask) -> Result<Task, String> {
        let (_, index) = self.index_of(t.number)?;
        let total = t.sectors.end - t.sectors.start;
        if t.whole && t.begun.is_none() {
            return self.write_whole(i, t, index);
        }
        match t.begun.take() {
            None => {
                let (at, n) = (t.sectors.start + t.done, total - t.done);
                let mut announced = None;
                loop {
                    match self.engine.write_begin(index, at, n as u32) {
                        (Ok(Decision::Done), Some(w)) => {
                            t.begun = Some((w, Stage::Copy));
                            break;
                        }
                        (Ok(d), _) if self.wait(i, d, &mut announced) => break,
                        (Ok(_), _) => {}
                        (Err(e), _) => return Err(format!("write_begin: {e}")),
                    }
                }
            }
            Some((mut w, Stage::Copy)) => {
                // In pieces of any length, cut anywhere.
                let (a, b) = (self.rng.index(t.data.len()), self.rng.index(t.data.len()));
                let (a, b) = (a.min(b), a.max(b));
                let pieces = [&t.data[..a], &t.data[a..b], &t.data[b..]];
                self.engine.write_copy(&mut w, &pieces, t.done * 512);
                t.begun = Some((w, Stage::Commit));
            }
            Some((mut w, Stage::Commit)) => {
                self.engine.write_commit(&mut w);
                t.begun = Some((w, Stage::Publish));
            }
            Some((w, Stage::Publish)) => {
                t.done += u64::from(w.nsectors());
                let wake = self.engine.write_publish(w);
                self.wake(wake);
                if t.done == total {
                    return Ok(self.write_done(&t));
                }
            }
        }
        Ok(Task::Write(t))
    }

    fn write_done(&mut self, t: &WriteTask) -> Task {
        self.tally.writes += 1;
        if !self.engine.media.captured() {
            self.model_end(t.number, &t.sectors, t.id);
        }
        Task::Idle
    }

    fn write_whole(&mut self, i: usize, mut t: WriteTask, index: u16) -> Result<Task, String> {
        let mut done = t.done as u32;
        let mut announced = None;
        loop {
            let (r, wake) = self.engine.write(index, t.sectors.start, &t.data, &mut done);
            t.done = u64::from(done);
            self.wake(wake);
            match r {
                Ok(Decision::Done) => return Ok(self.write_done(&t)),
                Ok(d) if self.wait(i, d, &mut announced) => break,
                Ok(_) => {}
                Err(e) => return Err(format!("write: {e}")),
            }
        }
        Ok(Task::Write(t))
    }

    fn origin_delay(&mut self) -> u64 {
        match self.rng.below(20) {
            _ if self.calm => self.tick,
            0 if self.plan.slow_origin => self.tick + self.rng.range(100, 600),
            1..=5 => self.tick + self.rng.below(40),
            _ => self.tick + self.rng.below(6),
        }
    }

    fn read_step(&mut self, mut t: ReadTask) -> Result<Task, String> {
        let (v, index) = self.index_of(t.number)?;
        if let Some(part) = &t.origin {
            if part.due > self.tick && !self.calm {
                return Ok(Task::Read(t));
            }
            if part.cuts != self.volumes[v].origin.cuts {
                return Ok(Task::Idle); // the origin answered with an error
            }
            self.judge_origin_part(v, part)?;
            t.origin = None;
        } else {
            let start = self.tick;
            let (block, first) = (t.at / 8, t.at % 8);
            let n = (8 - first).min(t.sectors.end - t.at);
            let mut buf = [0; 4096];
            let bytes = &mut buf[..n as usize * pattern::SECTOR];
            let r = self.engine.read_block(index, block, first as u32, bytes);
            match r.result {
                Ok(Decision::Done | Decision::Origin) => {}
                Err(e) if e.is(sys::FBY_E_LOST) => self.tally.lost_reads += 1,
                other => return Err(format!("read of block {block}: {other:?}")),
            }
            for (k, bytes) in buf.chunks_exact(512).take(n as usize).enumerate() {
                let bit = 1u8 << (first + k as u64);
                let sector = t.at + k as u64;
                if r.lost & bit != 0 {
                    self.judge_lost(v, sector)?;
                } else if r.origin & bit == 0 {
                    let id = pattern::read(pattern::place(t.number, sector), bytes);
                    self.judge(v, sector, id, start)?;
                }
            }
            t.at += n;
            if r.origin != 0 {
                let due = self.origin_delay();
                let (mask, cuts) = (r.origin, self.volumes[v].origin.cuts);
                t.origin = Some(OriginPart { block, first: block * 8, mask, start, due, cuts });
            }
        }
        if t.origin.is_none() && t.at == t.sectors.end {
            self.tally.reads += 1;
            return Ok(Task::Idle);
        }
        Ok(Task::Read(t))
    }

    fn judge_origin_part(&mut self, v: usize, part: &OriginPart) -> Verdict {
        debug_assert_eq!(part.block * 8, part.first);
        for k in (0..8).filter(|k| part.mask >> k & 1 == 1) {
            let sector = part.first + k;
            let id = Some(self.volumes[v].origin.read(sector)).filter(|&id| id != BAD);
            self.judge(v, sector, id, part.start)?;
        }
        Ok(())
    }

    fn judge(&mut self, v: usize, sector: u64, id: Option<u64>, start: u64) -> Verdict {
        self.tally.sectors_judged += 1;
        let tick = self.tick;
        let number = self.volumes[v].number;
        let where_ = || format!("volume {number} sector {sector}");
        if id.is_none() && self.volumes[v].model[sector as usize].accepts_anything(start) {
            // Entries were lost and given up: the origin may hold a torn sector.
            return Ok(());
        }
        let id = id.ok_or_else(|| format!("{}: no whole sector of its own", where_()))?;
        self.volumes[v].model[sector as usize]
            .read(id, start, tick)
            .map_err(|e| format!("{}: {e}", where_()))
    }

    fn judge_lost(&mut self, v: usize, sector: u64) -> Verdict {
        if self.volumes[v].model[sector as usize].may_be_lost() {
            return Ok(());
        }
        Err(format!("volume {} sector {sector} is lost without a reason", self.volumes[v].number))
    }

    fn range_step(&mut self, i: usize, mut t: RangeTask) -> Result<Task, String> {
        let (v, index) = self.index_of(t.number)?;
        if let Some((n, due)) = t.origin {
            if due > self.tick && !self.calm {
                return Ok(Task::Range(t));
            }
            let first = t.sectors.start + t.done;
            let origin = &mut self.volumes[v].origin;
            match t.kind {
                Kind::Zero => {
                    origin.zero(first, n);
                    origin.flush_all();
                }
                _ => origin.discard(first, n),
            }
            self.log(|| format!("volume {} origin {:?} {first}+{n}", t.number, t.kind));
            t.done += n;
            t.origin = None;
            return Ok(Task::Range(t));
        }
        let kind = if t.kind == Kind::Zero { sys::FBY_KIND_ZERO } else { sys::FBY_KIND_DISCARD };
        let n = t.sectors.end - t.sectors.start;
        let mut announced = None;
        loop {
            let r = self.engine.range(index, kind, t.sectors.start, n, &mut t.done);
            self.wake(r.wake);
            match r.result {
                Ok(Decision::Done) => {
                    let count = match t.kind {
                        Kind::Zero => &mut self.tally.zeroes,
                        _ => &mut self.tally.discards,
                    };
                    *count += 1;
                    if !self.engine.media.captured() {
                        self.model_end(t.number, &t.sectors, t.id);
                    }
                    return Ok(Task::Idle);
                }
                Ok(Decision::Origin) => {
                    t.origin = Some((r.origin_n, self.origin_delay()));
                    break;
                }
                Ok(d) if self.wait(i, d, &mut announced) => break,
                Ok(_) => {}
                Err(e) => return Err(format!("range: {e}")),
            }
        }
        Ok(Task::Range(t))
    }

    /// All of an attached volume, at once.
    pub(super) fn read_volume(&mut self, v: usize) -> Verdict {
        let (number, end) = (self.volumes[v].number, self.volumes[v].origin.sectors());
        let mut t = ReadTask { number, sectors: 0..end, at: 0, origin: None };
        loop {
            self.tick += 1;
            if let Some(part) = &mut t.origin {
                part.due = 0;
            }
            match self.read_step(t)? {
                Task::Read(next) => t = next,
                _ => return Ok(()),
            }
        }
    }

    /// The origin alone, against the model; all is drained.
    pub(super) fn judge_origin(&mut self, v: usize) -> Verdict {
        self.tick += 1;
        let start = self.tick;
        for sector in 0..self.volumes[v].origin.sectors() {
            if self.volumes[v].model[sector as usize].may_be_lost() {
                continue;
            }
            let id = Some(self.volumes[v].origin.read(sector)).filter(|&id| id != BAD);
            self.judge(v, sector, id, start).map_err(|e| format!("drained, origin alone: {e}"))?;
        }
        Ok(())
    }
}
