// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients: each has at most one request, and takes it one step further
//! when it is its turn.

mod past;

use std::ops::Range;

use forebay_engine::sys;

use crate::engine::{self, Bypass, Decision, Ticket, Wait, Write};
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
    Flush(FlushTask),
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
    past: Option<Past>,
    /// To go past the cache for its size.
    large: bool,
    /// Sectors of it that are to go through the cache all the same.
    through: u64,
    /// It is to be durable before it is acknowledged.
    durable: bool,
    /// For writes that bypassed the cache, in that case.
    gate: Option<Gate>,
    /// The answer to a request that is not durable yet.
    later: Option<Ticket>,
}

/// On its way past the cache.
struct Past {
    part: Bypass,
    /// When it ends.
    due: u64,
}

/// A flush that waits, or that the origin has.
#[derive(Default)]
struct Gate {
    ticket: Ticket,
    /// The content when it was issued, its end, and earlier power cuts.
    sent: Option<(u64, u64, u64, u64)>,
}

/// The state of a flush.
enum Passed {
    NotYet,
    Well,
    Failed,
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
    /// The engine has answered for a block: the part that the origin must add.
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

struct FlushTask {
    number: u64,
    start: u64,
    gate: Gate,
    /// When the engine was asked first.
    begun: Option<u64>,
    /// Something that it covers is lost: it must fail.
    doomed: bool,
}

struct RangeTask {
    number: u64,
    sectors: Range<u64>,
    kind: Kind,
    id: u64,
    done: u64,
    past: Option<Past>,
    /// For zeroes that bypassed the cache.
    gate: Option<Gate>,
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
            Task::Flush(t) => Some(t.number),
        }
    }

    /// It is no more.
    pub fn die(&mut self) {
        self.task = Task::Idle;
        self.asleep = None;
    }

    /// The sectors that it is writing, discarding or zeroing past the cache.
    fn past(&self) -> Option<(u64, Range<u64>)> {
        let (number, first, past) = match &self.task {
            Task::Write(t) => (t.number, t.sectors.start + t.done, t.past.as_ref()?),
            Task::Range(t) => (t.number, t.sectors.start + t.done, t.past.as_ref()?),
            _ => return None,
        };
        Some((number, first..first + u64::from(past.part.nsectors())))
    }

    /// It has sent a flush to the origin of this volume.
    fn flushing(&self, number: u64) -> bool {
        let (n, gate) = match &self.task {
            Task::Write(t) => (t.number, t.gate.as_ref()),
            Task::Range(t) => (t.number, t.gate.as_ref()),
            Task::Flush(t) => (t.number, Some(&t.gate)),
            _ => return false,
        };
        n == number && gate.is_some_and(|g| g.sent.is_some())
    }

    pub fn describe(&self) -> String {
        let what = match &self.task {
            Task::Idle => "idle".into(),
            Task::Write(t) => format!(
                "write {} of {:?} done {} stage {:?} past {:?}",
                t.id,
                t.sectors,
                t.done,
                t.begun.as_ref().map(|b| b.1),
                t.past.as_ref().map(|p| p.part.nsectors())
            ),
            Task::Read(t) => format!("read {:?} at {}", t.sectors, t.at),
            Task::Range(t) => format!("{:?} {:?} done {}", t.kind, t.sectors, t.done),
            Task::Flush(t) => format!("flush since {} on the origin {:?}", t.start, t.gate.sent),
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
            Task::Flush(t) => self.flush_step(i, t)?,
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
            let (from, to) = self.rng.pick(&[(0, 120), (0, 120), (0, 56), (56, 120), (8, 16)]);
            sectors = from..to;
        }
        let dice = self.rng.below(100);
        let task = if dice < self.plan.reads {
            Task::Read(ReadTask { number, at: sectors.start, sectors, origin: None })
        } else if dice < self.plan.reads + self.plan.ranges {
            let kind = if self.rng.one_in(2) { Kind::Zero } else { Kind::Discard };
            let id = self.fresh_id();
            self.model_begin(v, &sectors, id, kind);
            Task::Range(RangeTask { number, sectors, kind, id, done: 0, past: None, gate: None })
        } else if 99 - dice < 100 / self.plan.bypass.flush {
            Task::Flush(FlushTask {
                number,
                start: self.tick,
                gate: Gate::default(),
                begun: None,
                doomed: false,
            })
        } else {
            let id = self.fresh_id();
            self.model_begin(v, &sectors, id, Kind::Data);
            let data = data(number, sectors.clone(), id);
            let whole = self.rng.one_in(8);
            let limit = self.plan.bypass.limit;
            let large = limit != 0 && sectors.end - sectors.start >= limit;
            Task::Write(WriteTask {
                number,
                sectors,
                id,
                data,
                done: 0,
                begun: None,
                whole: whole && !large,
                past: None,
                large,
                through: 0,
                durable: id.is_multiple_of(3),
                gate: None,
                later: None,
            })
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
            Decision::Wait(Wait::Block) => self.tally.waits_block += 1,
            Decision::Wait(Wait::Slot) => self.tally.waits_slot += 1,
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
        if let Decision::Wait(wait) = d {
            self.engine.wait_prepare(wait);
        }
        *announced = Some(d);
        false
    }

    fn index_of(&self, number: u64) -> Result<(usize, u16), String> {
        let v = self.volume_at(number).ok_or("its volume is gone")?;
        Ok((v, self.volumes[v].index.ok_or("its volume has no place")?))
    }

    fn write_step(&mut self, i: usize, mut t: WriteTask) -> Result<Task, String> {
        let (v, index) = self.index_of(t.number)?;
        let total = t.sectors.end - t.sectors.start;
        if let Some(past) = &t.past {
            return match past.due > self.tick && !self.calm {
                true => Ok(Task::Write(t)),
                false => Ok(self.past_ends(v, t)),
            };
        }
        if t.done == total {
            return self.write_gate(i, v, index, t);
        }
        if t.whole && t.begun.is_none() {
            return self.write_whole(i, t, index);
        }
        match t.begun.take() {
            None => {
                let mut announced = None;
                loop {
                    if t.large && t.through <= t.done {
                        match self.past_begin(&mut t, v, index)? {
                            Decision::Done => break,
                            Decision::Wait(Wait::Block)
                                if self.wait(i, Decision::Wait(Wait::Block), &mut announced) =>
                            {
                                break
                            }
                            _ => continue,
                        }
                    }
                    let end = if t.large { t.through } else { total };
                    let (at, n) = (t.sectors.start + t.done, end - t.done);
                    let mut w = Write::default();
                    match self.engine.write_begin(&mut w, index, at, n as u32) {
                        Ok(Decision::Done) => {
                            t.begun = Some((w, Stage::Copy));
                            break;
                        }
                        Ok(Decision::Wait(Wait::Space))
                            if self.plan.bypass.when_full
                                && self.past_begin(&mut t, v, index)? == Decision::Done =>
                        {
                            break;
                        }
                        Ok(d) if self.wait(i, d, &mut announced) => break,
                        Ok(_) => {}
                        Err(e) => return Err(format!("write_begin: {e}")),
                    }
                }
            }
            Some((mut w, Stage::Copy)) => {
                // In pieces of any length, cut anywhere.
                let (a, b) = (self.rng.index(t.data.len()), self.rng.index(t.data.len()));
                let (a, b) = (a.min(b), a.max(b));
                let pieces = [&t.data[..a], &t.data[a..b], &t.data[b..]];
                self.engine.write_copy_pieces(&mut w, &pieces, t.done * 512);
                t.begun = Some((w, Stage::Commit));
            }
            Some((mut w, Stage::Commit)) => {
                self.engine.write_commit(&mut w);
                t.begun = Some((w, Stage::Publish));
            }
            Some((mut w, Stage::Publish)) => {
                t.done += u64::from(w.nsectors());
                let wake = self.engine.write_publish(&mut w);
                self.wake(wake);
                if t.done == total && t.gate.is_none() {
                    return Ok(self.write_done(&mut t));
                }
            }
        }
        Ok(Task::Write(t))
    }

    fn write_done(&mut self, t: &mut WriteTask) -> Task {
        if let (Some(later), Some(v)) = (t.later.as_mut(), self.volume_at(t.number)) {
            if self.engine.flush_later(later).is_err() {
                self.log(|| format!("write {} met a flush that failed", t.id));
                return self.model_fail(v, &t.sectors, t.id);
            }
        }
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
            let mut wake = 0;
            let r = self.engine.write(index, t.sectors.start, &t.data, &mut done, &mut wake);
            t.done = u64::from(done);
            self.wake(wake);
            match r {
                Ok(Decision::Done) if t.gate.is_some() => break,
                Ok(Decision::Done) => return Ok(self.write_done(&mut t)),
                Ok(Decision::Wait(Wait::Space)) if self.plan.bypass.when_full => {
                    let v = self.volume_at(t.number).ok_or("its volume is gone")?;
                    if self.past_begin(&mut t, v, index)? == Decision::Done
                        || self.wait(i, Decision::Wait(Wait::Space), &mut announced)
                    {
                        break;
                    }
                }
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
            self.engine.origin_foreground(index, false);
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
                self.engine.origin_foreground(index, true);
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
        if let Some(past) = &t.past {
            return match past.due > self.tick && !self.calm {
                true => Ok(Task::Range(t)),
                false => Ok(self.range_past_ends(v, t)),
            };
        }
        let n = t.sectors.end - t.sectors.start;
        if t.done == n {
            return self.range_gate(i, v, index, t);
        }
        let kind = if t.kind == Kind::Zero { sys::FBY_KIND_ZERO } else { sys::FBY_KIND_DISCARD };
        let mut announced = None;
        loop {
            let mut wake = 0;
            let past = self.engine.range(index, kind, t.sectors.start, n, &mut t.done, &mut wake);
            self.wake(wake);
            match past {
                Ok(engine::Past::Done) => return self.range_gate(i, v, index, t),
                Ok(engine::Past::Origin(part)) => {
                    let first = t.sectors.start + t.done;
                    let sectors = first..first + u64::from(part.nsectors());
                    if sectors.is_empty() || sectors.end > t.sectors.end {
                        return Err(format!("{sectors:?} of {:?} is for the origin", t.sectors));
                    }
                    if self.bypass_meets(v, sectors.clone()) {
                        return Err(format!("two requests past the cache meet at {sectors:?}"));
                    }
                    t.past = Some(Past { part, due: self.origin_delay() });
                    break;
                }
                Ok(engine::Past::Wait(w)) => {
                    if self.wait(i, Decision::Wait(w), &mut announced) {
                        break;
                    }
                }
                other => return Err(format!("range: {other:?}")),
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
