// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host: destage, the origins' requests in flight, volumes that come and go.

use forebay_engine::sys;

use crate::engine::{identity, volume_spec, Attach, Decision, Io};
use crate::model::Sector;
use crate::origin::{Loss, Origin};

use super::{Verdict, Volume, World, ADMIN, DESTAGE};

/// A request of destage's that an origin has.
pub(super) struct Request {
    io: Io,
    due: u64,
    /// For a flush: the content when it was issued, and earlier power cuts.
    mark: u64,
    cuts: u64,
    start: u64,
}

#[derive(Default)]
pub(super) struct OriginHealth {
    /// The n-th request from now fails.
    pub fail_in: Option<u32>,
    /// So many requests fail, whatever they are.
    pub failing: u32,
    /// Sectors that it takes no request for: first and end.
    pub bad: Vec<(u64, u64)>,
    /// Its power was cut: the next flush says so, and no other.
    pub untold: bool,
    /// When that was acknowledged which a flush has lost since, where no flush of all
    /// that covers it was told.
    pub losses_untold: Vec<u64>,
}

pub(super) const EIO: i32 = 5;

impl World {
    // --- destage ---------------------------------------------------------------

    pub(super) fn destage_step(&mut self) -> Verdict {
        if self.plan.strict && !self.calm && self.destage_at > self.now_ns {
            return Ok(());
        }
        self.destage_once()?;
        match self.plan.other_origins && self.faulty {
            true => self.move_after_round(),
            false => Ok(()),
        }
    }

    /// A round has ended, and some of what it wrote along is still cached: a good moment
    /// to attach the volume to another origin.
    fn move_after_round(&mut self) -> Verdict {
        for v in 0..self.volumes.len() {
            let Some(index) = self.volumes[v].index.filter(|_| self.volumes[v].attached) else {
                continue;
            };
            let info = self.engine.volume_info(index).map_err(|e| format!("info: {e}"))?;
            let ended = info.rounds != std::mem::replace(&mut self.volumes[v].rounds, info.rounds);
            if ended && info.pages > 0 && !self.in_use(v) && !self.engine.media.captured() {
                self.attach_anew(v)?;
            }
        }
        Ok(())
    }

    fn attach_anew(&mut self, v: usize) -> Verdict {
        self.idle_origin(v)?;
        self.detach(v)?;
        match self.volumes[v].attached {
            true => Ok(()),
            false => self.attach(v),
        }
    }

    fn destage_once(&mut self) -> Result<Decision, String> {
        self.actor(DESTAGE);
        let step =
            self.engine.destage_step(self.now_ns).map_err(|e| format!("destage step: {e}"))?;
        self.destage_at = if step.decision == Decision::Done { step.next_ns } else { 0 };
        self.wake(step.wake);
        if let Some(io) = step.io {
            self.issue(io)?;
        }
        Ok(step.decision)
    }

    fn issue(&mut self, io: Io) -> Verdict {
        self.tally.origin_requests += 1;
        let v = self
            .volumes
            .iter()
            .position(|v| v.attached && v.index == Some(io.volume))
            .ok_or("destage asks for a volume that is not attached")?;
        let end = io.sector + io.nsectors;
        if io.op != sys::FBY_IO_FLUSH
            && (io.nsectors == 0 || end > self.volumes[v].origin.sectors())
        {
            return Err(format!("origin request out of range: {}+{}", io.sector, io.nsectors));
        }
        let meets = |r: &Request| {
            r.io.op != sys::FBY_IO_FLUSH
                && io.sector < r.io.sector + r.io.nsectors
                && r.io.sector < end
        };
        if io.op != sys::FBY_IO_FLUSH && self.volumes[v].queue.iter().any(meets) {
            return Err(format!("two origin writes in flight at sector {}", io.sector));
        }
        if io.op != sys::FBY_IO_FLUSH && self.bypass_meets(v, io.sector..end) {
            return Err(format!("destage writes sector {} beside a bypassed write", io.sector));
        }
        if io.op == sys::FBY_IO_FLUSH && self.client_flushes(v) {
            return Err("destage flushes the origin beside a client".into());
        }
        self.log(|| format!("origin request {} op {} {}+{}", io.id, io.op, io.sector, io.nsectors));
        let due = match self.rng.below(20) {
            _ if self.calm => self.tick,
            _ if self.plan.periodic => self.tick + self.rng.range(1, 200),
            0 if self.plan.slow_origin => self.tick + self.rng.range(100, 800),
            1..=5 => self.tick + self.rng.below(60),
            _ => self.tick + self.rng.below(8),
        };
        let origin = &self.volumes[v].origin;
        let (mark, cuts) = (origin.flush_mark(), origin.cuts);
        self.volumes[v].queue.push(Request { io, due, mark, cuts, start: self.tick });
        Ok(())
    }

    /// Has the origin a flush of destage's?
    pub(super) fn destage_flushes(&self, v: usize) -> bool {
        self.volumes[v].queue.iter().any(|r| r.io.op == sys::FBY_IO_FLUSH)
    }

    /// One request of some origin ends, in any order.
    pub(super) fn origin_step(&mut self) -> Verdict {
        if self.volumes.is_empty() {
            return Ok(());
        }
        let v = self.rng.index(self.volumes.len());
        let tick = self.tick;
        let ready: Vec<usize> = (0..self.volumes[v].queue.len())
            .filter(|&i| self.calm || self.volumes[v].queue[i].due <= tick)
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        let at = self.rng.pick(&ready);
        let request = self.volumes[v].queue.remove(at);
        let error = match request.io.op {
            sys::FBY_IO_FLUSH => {
                let error = self.flush_lands(v, request.mark, request.cuts);
                if error == 0 {
                    self.volumes[v].model.iter_mut().for_each(|s| s.flushed(request.start));
                }
                error
            }
            _ => {
                let fails = self.origin_fails(v) || self.bad_sector(v, &request.io);
                self.land(v, &request, !fails);
                if fails {
                    EIO
                } else {
                    0
                }
            }
        };
        self.log(|| format!("origin request {} ends with {error}", request.io.id));
        self.actor(DESTAGE);
        self.engine.destage_complete(request.io.id, error);
        self.destage_at = 0;
        Ok(())
    }

    pub(super) fn origin_fails(&mut self, v: usize) -> bool {
        let health = &mut self.volumes[v].health;
        let nth = match &mut health.fail_in {
            Some(0) => {
                health.fail_in = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        };
        let fails = nth || health.failing > 0;
        health.failing = health.failing.saturating_sub(1);
        self.tally.origin_errors += u64::from(fails);
        fails
    }

    fn bad_sector(&mut self, v: usize, io: &Io) -> bool {
        let meets =
            |(first, end): &(u64, u64)| *first < io.sector + io.nsectors && io.sector < *end;
        let fails = self.volumes[v].health.bad.iter().any(meets);
        self.tally.bad_sectors += u64::from(fails);
        fails
    }

    /// The request takes effect; if it failed, on some sectors or none.
    fn land(&mut self, v: usize, request: &Request, ok: bool) {
        let io = &request.io;
        let rng = &mut self.rng;
        let origin = &mut self.volumes[v].origin;
        match io.op {
            sys::FBY_IO_WRITE if ok => origin.write(io.sector, &io.data),
            sys::FBY_IO_WRITE => {
                for (at, bytes) in (io.sector..).zip(io.data.chunks_exact(512)) {
                    if rng.one_in(2) {
                        origin.write(at, bytes);
                    }
                }
            }
            sys::FBY_IO_ZERO | sys::FBY_IO_DISCARD if ok => origin.zero(io.sector, io.nsectors),
            _ => {}
        }
    }

    /// A flush ends; the errno that it has.
    pub(super) fn flush_lands(&mut self, v: usize, mark: u64, cuts: u64) -> i32 {
        let cut = cuts != self.volumes[v].origin.cuts;
        let told = std::mem::take(&mut self.volumes[v].health.untold) || cut;
        let fails = self.origin_fails(v);
        if fails && self.rng.one_in(2) {
            // The flushed data may be lost for good.
            self.origin_power_cut(v, Loss::Some);
        } else if !fails && !told {
            self.volumes[v].origin.flush(mark);
        }
        if fails || told {
            self.doom(v);
            EIO
        } else {
            0
        }
    }

    /// Every request in flight ends as the disk pleases; nobody is told.
    pub(super) fn abandon_requests(&mut self) {
        for v in 0..self.volumes.len() {
            while !self.volumes[v].queue.is_empty() {
                let at = self.rng.index(self.volumes[v].queue.len());
                let request = self.volumes[v].queue.swap_remove(at);
                let ok = self.rng.one_in(2) && request.io.op != sys::FBY_IO_FLUSH;
                if ok || request.io.op == sys::FBY_IO_WRITE {
                    self.land(v, &request, ok);
                }
            }
        }
    }

    pub(super) fn break_sectors(&mut self, v: usize) {
        let first = self.rng.below(self.volumes[v].origin.sectors());
        let end = first + self.rng.range(1, 24);
        self.log(|| format!("volume {}: bad {first} to {end}", self.volumes[v].number));
        self.volumes[v].health.bad.push((first, end));
    }

    pub(super) fn origin_fault(&mut self) {
        if self.volumes.is_empty() {
            return;
        }
        let v = self.rng.index(self.volumes.len());
        if self.plan.bad_sectors && self.rng.one_in(2) {
            self.break_sectors(v);
            return;
        }
        let kind = self.rng.below(4);
        self.log(|| format!("origin fault {kind} at volume {}", self.volumes[v].number));
        match kind {
            0 => self.volumes[v].health.fail_in = Some(self.rng.below(6) as u32),
            1 => self.volumes[v].health.failing = self.rng.range(1, 12) as u32,
            // The next flush.
            2 => self.volumes[v].health.fail_in = Some(self.volumes[v].queue.len() as u32),
            _ => {
                // Its power is cut, and the flush after that says so.
                self.tally.origin_power_cuts += 1;
                self.origin_power_cut(v, Loss::Some);
                self.volumes[v].health.untold = true;
            }
        }
    }

    pub(super) fn heal_origins(&mut self) {
        for v in &mut self.volumes {
            // A loss by a power cut must still be reported, once.
            v.health.failing = 0;
            v.health.fail_in = None;
            v.health.bad.clear();
        }
    }

    /// Completes what is in flight; no new requests are taken.
    fn idle_origin(&mut self, v: usize) -> Verdict {
        while !self.volumes[v].queue.is_empty() {
            self.volumes[v].queue.iter_mut().for_each(|r| r.due = 0);
            self.origin_step()?;
        }
        Ok(())
    }

    /// Drains one volume: a bounded number of steps, whatever was before.
    pub(super) fn drain(&mut self, v: usize) -> Verdict {
        let Some(index) = self.volumes[v].index.filter(|_| self.volumes[v].attached) else {
            return Ok(());
        };
        self.actor(ADMIN);
        self.engine.volume_drain(index, true).map_err(|e| format!("drain: {e}"))?;
        for step in 0..20_000 {
            self.tick += 1;
            self.now_ns += if step % 16 == 0 { 40_000_000 } else { 10_000 };
            let leaps = step < 18_000 && self.destage_at != u64::MAX;
            if leaps && self.volumes[v].queue.is_empty() {
                // Nothing comes before, and a pause of half a minute is a step like others; but
                // for the last ones, which find a round that has no room in its pause.
                self.now_ns = self.now_ns.max(self.destage_at);
            }
            self.destage_once()?;
            self.origin_step()?;
            self.check()?;
            self.opened_full &= self.engine.info().chunks_free == 0;
            if self.volumes[v].queue.is_empty() && self.engine.volume_clean(index) {
                self.tally.drains += 1;
                return Ok(());
            }
            if step == 3_000 {
                if !self.opened_full {
                    self.all_but_bad_is_home(v, index)?;
                }
                self.volumes[v].health.bad.clear();
            }
        }
        if self.wedged() {
            return Ok(());
        }
        Err(format!("drain of volume {} does not end", self.volumes[v].number))
    }

    /// A drain has had time to retry everything: only pages of bad sectors are left.
    fn all_but_bad_is_home(&mut self, v: usize, index: u16) -> Verdict {
        if self.damaged || self.volumes[v].is_static || self.volumes[v].health.bad.is_empty() {
            return Ok(());
        }
        let geometry = self.plan.geometry;
        for (chunk, page) in
            (0..geometry.nchunks).flat_map(|c| (1..geometry.chunk_pages).map(move |p| (c, p)))
        {
            let Ok(entry) = self.engine.entry_info(chunk, page, false) else { continue };
            let first = entry.line.block * 8;
            let bad = |(from, end): &(u64, u64)| *from < first + 8 && first < *end;
            if entry.linked
                && entry.line.volume == index
                && !self.volumes[v].health.bad.iter().any(bad)
            {
                return Err(format!(
                    "block {} of volume {} is not home, and its origin is bad elsewhere",
                    entry.line.block, self.volumes[v].number
                ));
            }
            self.tally.not_home += u64::from(entry.linked && entry.line.volume == index);
        }
        Ok(())
    }

    /// Only lost blocks can be left.  Their chunks may be packed for the space, but not for
    /// ever: nobody writes, so the rounds must end.
    pub(super) fn rest(&mut self) -> Verdict {
        let rounds = |w: &mut Self| -> u64 {
            let index: Vec<u16> = w.volumes.iter().filter_map(|v| v.index).collect();
            index.iter().filter_map(|&i| w.engine.volume_info(i).ok()).map(|i| i.rounds).sum()
        };
        if !self.damaged {
            return Ok(());
        }
        let (before, most) = (rounds(self), u64::from(self.plan.geometry.nchunks));
        for step in 0..64 * most {
            self.tick += 1;
            self.now_ns += if step % 16 == 0 { 40_000_000 } else { 10_000 };
            self.destage_once()?;
            self.origin_step()?;
            self.check()?;
        }
        let n = rounds(self) - before;
        if n > most {
            return Err(format!("{n} rounds of destage and no end, with only lost blocks left"));
        }
        self.tally.rests += 1;
        Ok(())
    }

    // --- volumes -----------------------------------------------------------------

    pub(super) fn add_volume(&mut self) -> Verdict {
        let number = self.next_number;
        self.next_number += 1;
        let whole_blocks = self.rng.one_in(3) || self.plan.other_origins;
        let block_size = if whole_blocks { 4096 } else { 512 };
        let sectors = match self.rng.below(4) {
            0 => self.rng.range(1, 16),
            1 | 2 => self.rng.range(16, 200),
            _ => self.rng.range(200, 1500),
        };
        let sectors = match block_size {
            // A chunk of 16 pages.
            _ if self.plan.periodic => 120,
            // Two fifths of the pool.
            _ if self.plan.hot => u64::from(self.plan.geometry.nchunks) * 48,
            _ if self.plan.other_origins => 240,
            4096 => sectors.div_ceil(8) * 8,
            _ => sectors,
        };
        let id = self.fresh_id();
        let name = format!("v{number}");
        let mut spec = volume_spec(&name, number, sectors, block_size);
        (spec.static_bytes, spec.flush_us) = self.plan.share_of(number);
        self.actor(ADMIN);
        self.uncertain = number;
        let index = match self.engine.volume_add(&spec) {
            Ok(index) => Some(index),
            Err(e) if e.is(sys::FBY_E_VOLUME_TABLE_FULL) || e.is(sys::FBY_E_STATIC_FULL) => {
                return Ok(())
            }
            Err(e) => return Err(format!("volume_add: {e}")),
        };
        let is_static = spec.static_bytes != 0;
        self.tally.volumes_added += 1;
        self.tally.static_volumes += u64::from(is_static);
        self.log(|| {
            format!("volume {number} of {sectors} sectors added as {index:?}, static {is_static}")
        });
        let mut origin = Origin::new(number, sectors, id);
        origin.ignores_discard = self.rng.one_in(3);
        self.volumes.push(Volume {
            number,
            name,
            block_size,
            index,
            attached: false,
            is_static,
            origin,
            model: vec![Sector::new(id); sectors as usize],
            queue: Vec::new(),
            health: OriginHealth::default(),
            rounds: 0,
        });
        if !self.engine.media.captured() {
            self.uncertain = 0;
        }
        self.attach(self.volumes.len() - 1)
    }

    pub(super) fn attach(&mut self, v: usize) -> Verdict {
        let Some(index) = self.volumes[v].index else { return Ok(()) };
        let identity = identity(self.volumes[v].number);
        // Small rounds leave neighbours to be written along.
        let rounds: &[u32] = if self.plan.other_origins { &[16] } else { &[16, 17, 64, 256] };
        let mut a = Attach {
            origin_sectors: self.volumes[v].origin.sectors(),
            identity: &identity,
            holes: sys::FBY_HOLES_FAIL,
            round_pages: self.rng.pick(rounds),
            nrequests: self.rng.range(1, 4) as u32,
            buffer_bytes: 4096 * self.rng.range(1, 16) as u32,
        };
        let damaged = self.damaged;
        for holes in [sys::FBY_HOLES_FAIL, sys::FBY_HOLES_ISOLATE, sys::FBY_HOLES_ACCEPT] {
            self.actor(ADMIN);
            a.holes = holes;
            match self.engine.volume_attach(index, &a) {
                Ok(()) => {
                    if holes == sys::FBY_HOLES_ACCEPT {
                        self.accept_losses(v);
                    }
                    self.volumes[v].attached = true;
                    if self.plan.other_origins && self.rng.one_in(2) {
                        self.change_origin(v, index)?;
                    }
                    return Ok(());
                }
                Err(e) if damaged && (e.is(sys::FBY_E_HOLES) || e.is(sys::FBY_E_HOLES_KNOWN)) => {}
                Err(e) => return Err(format!("attach of volume {}: {e}", self.volumes[v].number)),
            }
        }
        Err(format!("volume {} cannot be attached", self.volumes[v].number))
    }

    /// The volume turns out to be attached to another origin: it has all that is not
    /// cached, flushed, and nothing of what is.
    fn change_origin(&mut self, v: usize, index: u16) -> Verdict {
        if self.volumes[v].health.untold {
            return Ok(()); // that a power cut took something must be told by the same
        }
        let sectors = self.volumes[v].origin.sectors();
        let mut cached = vec![false; sectors as usize];
        for block in 0..sectors.div_ceil(8) {
            let mut buf = [0; 4096];
            let n = (sectors - block * 8).min(8) as usize;
            let r = self.engine.read_block(index, block, 0, &mut buf[..n * 512]);
            match r.result {
                Ok(Decision::Done | Decision::Origin) => {}
                Err(e) if e.is(sys::FBY_E_LOST) => {}
                other => return Err(format!("look at block {block}: {other:?}")),
            }
            for k in 0..n {
                cached[block as usize * 8 + k] = (r.origin | r.lost) >> k & 1 == 0;
            }
        }
        self.log(|| format!("volume {} has another origin", self.volumes[v].number));
        self.tally.origins_changed += 1;
        let tick = self.tick;
        self.volumes[v].origin.replace(&cached);
        self.volumes[v].model.iter_mut().for_each(|s| s.flushed(tick));
        Ok(())
    }

    /// The user said that older data may show.
    fn accept_losses(&mut self, v: usize) {
        for s in &mut self.volumes[v].model {
            if s.may_be_lost() {
                s.accept_anything();
            }
        }
    }

    fn in_use(&self, v: usize) -> bool {
        let number = self.volumes[v].number;
        self.clients.iter().any(|c| c.volume() == Some(number))
    }

    pub(super) fn admin(&mut self) -> Verdict {
        let what = self.rng.below(10);
        match what {
            0 => return self.add_volume(),
            1 => return self.clean_close(),
            2 => return self.change_options(),
            _ => {}
        }
        if self.volumes.is_empty() {
            return Ok(());
        }
        let v = self.rng.index(self.volumes.len());
        let Some(index) = self.volumes[v].index else { return Ok(()) };
        self.actor(ADMIN);
        match what {
            3..=5 if self.volumes[v].attached => {
                let on = !self.rng.one_in(4);
                self.engine.volume_drain(index, on).map_err(|e| format!("drain: {e}"))?;
                self.destage_at = 0;
            }
            6 | 7 if !self.volumes[v].attached => self.attach(v)?,
            6..=8 if self.volumes[v].attached && !self.in_use(v) => {
                self.idle_origin(v)?;
                self.detach(v)?;
            }
            9 if !self.volumes[v].attached && self.quiet() => {
                self.log(|| format!("removing volume {}", self.volumes[v].number));
                match self.engine.volume_remove(index, self.rng.one_in(2)) {
                    Ok(_) => {
                        self.tally.volumes_removed += 1;
                        self.wake(sys::FBY_WAKE_SPACE);
                        // Until it is known whether it is: see reopen.
                        if self.engine.media.captured() {
                            self.uncertain = self.volumes[v].number;
                            self.volumes[v].index = None;
                            return Ok(());
                        }
                        self.volumes.swap_remove(v);
                    }
                    Err(e) if e.is(sys::FBY_E_VOLUME_DIRTY) => {}
                    Err(e) => return Err(format!("volume_remove: {e}")),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn detach(&mut self, v: usize) -> Verdict {
        let Some(index) = self.volumes[v].index else { return Ok(()) };
        self.actor(ADMIN);
        match self.engine.volume_detach(index) {
            Ok(()) => {
                self.volumes[v].attached = false;
                self.wake(sys::FBY_WAKE_SPACE);
            }
            Err(e) if e.is(sys::FBY_E_BUSY) => {}
            Err(e) => return Err(format!("detach: {e}")),
        }
        Ok(())
    }

    fn change_options(&mut self) -> Verdict {
        let o = &mut self.plan.options;
        o.high_watermark = self.rng.range(20, 90) as u32;
        o.low_watermark = self.rng.range(1, u64::from(o.high_watermark)) as u32;
        if self.plan.media_fault == 0 {
            o.no_checksums = self.rng.one_in(3);
            o.verify = self.rng.below(3) as u32;
        }
        let o = *o;
        self.engine.set_options(&o).map_err(|e| format!("set_options: {e}"))
    }

    /// All requests end; the pool is closed, and opened again.
    fn clean_close(&mut self) -> Verdict {
        if self.clients.iter().any(|c| !c.idle()) {
            return Ok(());
        }
        for v in 0..self.volumes.len() {
            self.idle_origin(v)?;
        }
        self.actor(ADMIN);
        self.count_relocated();
        match self.engine.close() {
            Ok(()) => {}
            Err(e) if e.is(sys::FBY_E_BUSY) => return Ok(()),
            Err(e) => return Err(format!("close: {e}")),
        }
        self.log(|| "closed".into());
        self.tally.clean_closes += 1;
        if self.engine.media.captured() {
            return Ok(()); // the cut came in the middle of it
        }
        self.volumes.iter_mut().for_each(|v| v.attached = false);
        let clean = !self.damaged;
        let report = self.reopen()?;
        if clean && !report.clean {
            return Err("a clean close is not seen by the next open".into());
        }
        Ok(())
    }
}
