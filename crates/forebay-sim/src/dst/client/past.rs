// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of the clients that bypass the cache, and their flushes.

use std::ops::Range;

use forebay_engine::sys;

use crate::dst::host::EIO;
use crate::dst::World;
use crate::engine::{self, Decision, Wait};
use crate::model::{Kind, Sector};

use super::{Client, FlushTask, Gate, Passed, Past, RangeTask, Task, WriteTask};

impl World {
    /// DONE: the rest of the write, or its first part, is in flight.
    pub(super) fn past_begin(
        &mut self,
        t: &mut WriteTask,
        v: usize,
        index: u16,
    ) -> Result<Decision, String> {
        let (at, left) = (t.sectors.start + t.done, t.sectors.end - t.sectors.start - t.done);
        let least = if t.large { self.plan.bypass.least } else { 1 };
        let past = self.engine.bypass_begin(index, at, left as u32, least);
        if let Ok(engine::Past::Origin(b)) = past {
            let n = b.nsectors();
            let sectors = at..at + u64::from(n);
            if n == 0 || u64::from(n) > left {
                return Err(format!("{n} of {left} sectors are to go past the cache"));
            }
            if self.bypass_meets(v, sectors.clone()) {
                return Err(format!("two writes past the cache meet at {sectors:?}"));
            }
            let due = self.origin_delay();
            self.log(|| format!("write {} past the cache: {sectors:?}", t.id));
            t.past = Some(Past { part: b, due });
            return Ok(Decision::Done);
        }
        match past {
            Ok(engine::Past::Cached(n)) if n == 0 || u64::from(n) > left => {
                Err(format!("{n} of {left} sectors are to go through the cache"))
            }
            Ok(engine::Past::Cached(n)) => {
                t.through = t.done + u64::from(n);
                Ok(Decision::Cached)
            }
            Ok(engine::Past::Wait(Wait::Block)) => Ok(Decision::Wait(Wait::Block)),
            other => Err(format!("bypass_begin: {other:?}")),
        }
    }

    /// The origin ends it, perhaps with an error.
    pub(super) fn past_ends(&mut self, v: usize, mut t: WriteTask) -> Task {
        let Some(past) = t.past.take() else { return Task::Write(t) };
        let n = u64::from(past.part.nsectors());
        let fails = self.origin_fails(v);
        self.past_lands(v, &t, n, !fails);
        let ticket = match t.durable {
            true => &mut t.gate.get_or_insert_default().ticket,
            false => t.later.get_or_insert_default(),
        };
        let error = if fails { EIO } else { 0 };
        let wake = self.engine.bypass_end(past.part, error, Some(ticket));
        self.log(|| format!("write {} past the cache ends, failed: {fails}", t.id));
        self.wake(wake);
        self.tally.bypasses += 1;
        if fails {
            self.tally.bypass_errors += 1;
            return self.model_fail(v, &t.sectors, t.id);
        }
        t.done += n;
        match t.done == t.sectors.end - t.sectors.start && t.gate.is_none() {
            true => self.write_done(&mut t),
            false => Task::Write(t),
        }
    }

    /// If it failed, it took effect on some sectors or none.
    fn past_lands(&mut self, v: usize, t: &WriteTask, n: u64, ok: bool) {
        let volume = &mut self.volumes[v];
        for k in t.done..t.done + n {
            let at = t.sectors.start + k;
            if ok || self.rng.one_in(2) {
                let bytes = &t.data[k as usize * 512..(k as usize + 1) * 512];
                volume.origin.write_whole(at, bytes);
                volume.model[at as usize].write_bypassed(t.id);
            }
        }
    }

    /// Discards and zeroes, likewise.
    fn range_lands(&mut self, v: usize, t: &RangeTask, n: u64, ok: bool) {
        let volume = &mut self.volumes[v];
        for at in t.sectors.start + t.done..t.sectors.start + t.done + n {
            if !ok && self.rng.one_in(2) {
                continue;
            }
            match t.kind {
                Kind::Zero => volume.origin.zero(at, 1),
                _ => volume.origin.discard(at, 1),
            }
            volume.model[at as usize].write_bypassed(t.id);
        }
    }

    /// The client dies: its bypassing request ends in any way.
    pub(in crate::dst) fn abandon_past(&mut self, i: usize) {
        let Some((number, sectors)) = self.clients[i].past() else { return };
        let Some(v) = self.volume_at(number) else { return };
        let (n, ok) = (sectors.end - sectors.start, self.rng.one_in(2));
        match std::mem::take(&mut self.clients[i].task) {
            Task::Write(t) => self.past_lands(v, &t, n, ok),
            Task::Range(t) => self.range_lands(v, &t, n, ok),
            _ => {}
        }
    }

    /// Is any block of the sectors on its way past the cache?
    pub(in crate::dst) fn bypass_meets(&self, v: usize, sectors: Range<u64>) -> bool {
        let number = self.volumes[v].number;
        let (first, end) = (sectors.start / 8, sectors.end.div_ceil(8));
        self.clients.iter().filter_map(Client::past).any(|(other, past)| {
            other == number && first < past.end.div_ceil(8) && past.start / 8 < end
        })
    }

    /// A flush failed.  If something is lost, those that wait for one of all and cover it
    /// must be told, and then each until one that covers it was told.
    pub(in crate::dst) fn doom(&mut self, v: usize) {
        let number = self.volumes[v].number;
        let lost: Vec<u64> = self.volumes[v].model.iter().flat_map(Sector::lost).collect();
        for c in &mut self.clients {
            if let Task::Flush(t) = &mut c.task {
                let covers = |begun| lost.iter().any(|at| *at <= begun);
                t.doomed |= t.number == number && t.begun.is_some_and(covers);
            }
        }
        self.volumes[v].health.losses_untold.extend(lost);
    }

    /// Has the origin a flush of some client's?
    pub(in crate::dst) fn client_flushes(&self, v: usize) -> bool {
        self.clients.iter().any(|c| c.flushing(self.volumes[v].number))
    }

    fn gate_step(
        &mut self,
        i: usize,
        v: usize,
        index: u16,
        g: &mut Gate,
    ) -> Result<Passed, String> {
        let Some((mark, due, cuts, since)) = g.sent else {
            return match self.engine.flush_begin(index, &mut g.ticket) {
                Ok(Decision::Done) => Ok(Passed::Well),
                Ok(Decision::Wait(Wait::Flush)) => {
                    self.tally.waits_flush += 1;
                    self.clients[i].asleep = Some(Decision::Wait(Wait::Flush));
                    Ok(Passed::NotYet)
                }
                Ok(Decision::Origin) if self.client_flushes(v) || self.destage_flushes(v) => {
                    Err("two flushes of one origin are in flight".into())
                }
                Ok(Decision::Origin) => {
                    let (due, o) = (self.origin_delay(), &self.volumes[v].origin);
                    g.sent = Some((o.flush_mark(), due, o.cuts, self.tick));
                    Ok(Passed::NotYet)
                }
                Err(e) if e.is(sys::FBY_E_ORIGIN_IO) => Ok(Passed::Failed),
                other => Err(format!("flush: {other:?}")),
            };
        };
        if due > self.tick && !self.calm {
            return Ok(Passed::NotYet);
        }
        g.sent = None;
        self.tally.origin_flushes += 1;
        let error = self.flush_lands(v, mark, cuts);
        if error == 0 {
            // A flush covers all requests that had ended when it was sent, whoever asked for
            // it.
            self.volumes[v].model.iter_mut().for_each(|s| s.flushed(since));
        }
        let mut wake = 0;
        let result = self.engine.flush_end(&mut g.ticket, error, &mut wake);
        self.wake(wake);
        match result {
            Ok(()) if error == 0 => Ok(Passed::Well),
            Ok(()) => Err("a flush that failed is acknowledged".into()),
            Err(_) => Ok(Passed::Failed),
        }
    }

    pub(super) fn flush_step(&mut self, i: usize, mut t: FlushTask) -> Result<Task, String> {
        let (v, index) = self.index_of(t.number)?;
        let begun = *t.begun.get_or_insert(self.tick);
        let untold = &mut self.volumes[v].health.losses_untold;
        t.doomed |= untold.iter().any(|at| *at <= begun);
        match self.gate_step(i, v, index, &mut t.gate)? {
            Passed::NotYet => return Ok(Task::Flush(t)),
            Passed::Failed => {
                self.volumes[v].health.losses_untold.retain(|at| *at > begun);
                self.log(|| format!("the flush since {} fails", t.start));
            }
            Passed::Well if t.doomed => {
                return Err(format!("the flush since {} is not told of a loss", t.start));
            }
            Passed::Well => {
                self.tally.flushes += 1;
                self.volumes[v].model.iter_mut().for_each(|s| s.flushed(t.start));
                self.log(|| format!("acknowledged the flush since {}", t.start));
            }
        }
        Ok(Task::Idle)
    }

    /// The whole write is done; bypassed parts may have to be durable.
    pub(super) fn write_gate(
        &mut self,
        i: usize,
        v: usize,
        index: u16,
        mut t: WriteTask,
    ) -> Result<Task, String> {
        let passed = match &mut t.gate {
            Some(gate) => self.gate_step(i, v, index, gate)?,
            None => return Ok(self.write_done(&mut t)),
        };
        match passed {
            Passed::NotYet => Ok(Task::Write(t)),
            Passed::Failed => Ok(self.model_fail(v, &t.sectors, t.id)),
            Passed::Well => {
                self.model_flushed(v, &t.sectors, t.id);
                Ok(self.write_done(&mut t))
            }
        }
    }

    fn model_flushed(&mut self, v: usize, sectors: &Range<u64>, id: u64) {
        for s in sectors.clone() {
            self.volumes[v].model[s as usize].write_flushed(id);
        }
    }

    pub(super) fn model_fail(&mut self, v: usize, sectors: &Range<u64>, id: u64) -> Task {
        let tick = self.tick;
        for s in sectors.clone() {
            self.volumes[v].model[s as usize].write_fail(id, tick);
        }
        Task::Idle
    }

    pub(super) fn range_past_ends(&mut self, v: usize, mut t: RangeTask) -> Task {
        let Some(past) = t.past.take() else { return Task::Range(t) };
        let n = u64::from(past.part.nsectors());
        let fails = self.origin_fails(v);
        self.range_lands(v, &t, n, !fails);
        self.log(|| {
            let first = t.sectors.start + t.done;
            format!("volume {} origin {:?} {first}+{n}, failed: {fails}", t.number, t.kind)
        });
        let zero = t.kind == Kind::Zero;
        let ticket = zero.then(|| &mut t.gate.get_or_insert_default().ticket);
        let error = if fails { EIO } else { 0 };
        let wake = self.engine.bypass_end(past.part, error, ticket);
        self.wake(wake);
        if fails {
            return self.model_fail(v, &t.sectors, t.id);
        }
        t.done += n;
        Task::Range(t)
    }

    /// All of the range is done; zeroes are to be durable.
    pub(super) fn range_gate(
        &mut self,
        i: usize,
        v: usize,
        index: u16,
        mut t: RangeTask,
    ) -> Result<Task, String> {
        if let Some(gate) = &mut t.gate {
            match self.gate_step(i, v, index, gate)? {
                Passed::NotYet => return Ok(Task::Range(t)),
                Passed::Failed => return Ok(self.model_fail(v, &t.sectors, t.id)),
                Passed::Well => self.model_flushed(v, &t.sectors, t.id),
            }
        }
        match t.kind {
            Kind::Zero => self.tally.zeroes += 1,
            _ => self.tally.discards += 1,
        }
        if !self.engine.media.captured() {
            self.model_end(t.number, &t.sectors, t.id);
        }
        Ok(Task::Idle)
    }
}
