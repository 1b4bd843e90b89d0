// SPDX-License-Identifier: MIT OR Apache-2.0
//! Crashes, what they leave, and media that fails.

use forebay_engine::sys;

use crate::origin::Loss;

use super::{Verdict, World, ADMIN};

impl World {
    // --- crashes --------------------------------------------------------------

    /// Now, or at one of the next fences: then it is seen after that step.
    pub(super) fn plan_crash(&mut self) -> Verdict {
        match self.rng.below(4) {
            0 => self.power_cut(),
            1 => self.process_kill(),
            _ => {
                if !self.engine.media.captured() {
                    self.engine.media.arm(self.rng.below(12) as u32);
                }
                Ok(())
            }
        }
    }

    /// Requests in flight may have happened or not.
    fn everybody_dies(&mut self) {
        for i in 0..self.clients.len() {
            self.abandon_past(i);
            self.clients[i].die();
        }
        self.abandon_requests();
        let tick = self.tick;
        for v in &mut self.volumes {
            v.attached = false;
            v.model.iter_mut().for_each(|s| s.crash(tick));
        }
        // Damage in what may be a torn tail is no longer told from a torn tail.
        for (number, block) in std::mem::take(&mut self.soft) {
            if let Some(v) = self.volume_at(number) {
                for s in self.sectors_of(v, block) {
                    let s = &mut self.volumes[v].model[s as usize];
                    if s.may_be_lost() {
                        s.accept_anything();
                    }
                }
            }
        }
        if self.engine.is_open() {
            self.count_relocated();
            self.engine.abandon();
        }
        self.destage_at = 0;
    }

    pub(super) fn power_cut(&mut self) -> Verdict {
        self.log(|| format!("power cut, at a fence: {}", self.engine.media.captured()));
        self.tally.power_cuts += 1;
        self.everybody_dies();
        let loss = self.rng.pick(&[Loss::All, Loss::Nothing, Loss::Some, Loss::Some]);
        for v in 0..self.volumes.len() {
            self.origin_power_cut(v, loss);
            self.volumes[v].health.untold = false;
        }
        self.engine.media.power_cut(&mut self.rng);
        self.reopen_somehow()
    }

    fn process_kill(&mut self) -> Verdict {
        self.log(|| "process killed".into());
        self.tally.process_kills += 1;
        self.everybody_dies();
        self.engine.media.process_kill();
        self.reopen_somehow()
    }

    fn reopen_somehow(&mut self) -> Verdict {
        self.tick += 1;
        if self.rng.one_in(8) {
            self.read_only_visit()?;
        } else if self.rng.one_in(3) {
            self.cut_recovery()?;
        }
        self.reopen().map(|_| ())
    }

    /// Power is cut again inside recovery, at one of its fences.
    pub(super) fn count_relocated(&mut self) {
        for v in &self.volumes {
            let info = v.index.and_then(|index| self.engine.volume_info(index).ok());
            self.tally.relocated += info.map_or(0, |i| i.pages_relocated);
        }
    }

    fn cut_recovery(&mut self) -> Verdict {
        for _ in 0..self.rng.range(1, 3) {
            self.engine.media.arm(self.rng.below(10) as u32);
            self.actor(ADMIN);
            let opened = self.engine.open_all(&self.plan.options);
            opened.map_err(|e| format!("open after a crash: {e}"))?;
            self.engine.abandon();
            if !self.engine.media.captured() {
                self.engine.media.disarm();
                self.engine.media.process_kill();
                continue;
            }
            self.tally.cuts_in_recovery += 1;
            self.engine.media.power_cut(&mut self.rng);
        }
        Ok(())
    }

    /// Opens and recovers; volumes are where their names are.
    pub(super) fn reopen(&mut self) -> Result<sys::fby_recovery_report, String> {
        // That a flush failed is known for as long as the pool is open.
        self.volumes.iter_mut().for_each(|v| v.health.losses_untold.clear());
        if self.rng.one_in(4) {
            self.plan.options.nslots = self.rng.range(1, 4) as u32;
        }
        self.actor(ADMIN);
        let report = self
            .engine
            .open_all(&self.plan.options)
            .map_err(|e| format!("open after a crash: {e}"))?;
        self.log(|| {
            format!(
                "recovered: {} entries, {} blocks, {} dropped, {} damaged, {} holes",
                report.entries, report.blocks, report.dropped, report.damaged, report.holes
            )
        });
        self.tally.entries_dropped += report.dropped;
        if !self.damaged && (report.holes > 0 || report.damaged > 0 || report.lines_repaired > 0) {
            return Err(format!(
                "recovery reports damage without a cause: {} holes, {} damaged, {} repaired",
                report.holes, report.damaged, report.lines_repaired
            ));
        }
        self.engine.check(true).map_err(|e| format!("after recovery: {e}"))?;
        self.opened_full = self.engine.info().chunks_free == 0;
        self.find_volumes()?;
        for v in 0..self.volumes.len() {
            if !self.rng.one_in(6) {
                self.attach(v)?;
            }
        }
        Ok(report)
    }

    fn find_volumes(&mut self) -> Verdict {
        let mut gone = Vec::new();
        for v in 0..self.volumes.len() {
            let name = self.volumes[v].name.clone();
            match self.engine.volume_find(&name) {
                Ok(index) => self.volumes[v].index = Some(index),
                Err(e) if e.is(sys::FBY_E_NO_VOLUME) => gone.push(v),
                Err(e) => return Err(format!("volume {name}: {e}")),
            }
        }
        for v in gone.into_iter().rev() {
            // Only one that was being added or removed when the power went.
            if self.volumes[v].number != self.uncertain {
                return Err(format!("volume {} is gone", self.volumes[v].number));
            }
            self.volumes.swap_remove(v);
        }
        self.uncertain = 0;
        Ok(())
    }

    /// Reads the whole pool and writes nothing; content that was seen must stay.
    fn read_only_visit(&mut self) -> Verdict {
        let options = sys::fby_options { read_only: true, ..self.plan.options };
        self.actor(ADMIN);
        let before = self.engine.media.state().counts;
        self.engine.open_all(&options).map_err(|e| format!("read-only open: {e}"))?;
        self.tally.read_only_opens += 1;
        self.find_volumes()?;
        for v in 0..self.volumes.len() {
            self.attach(v)?;
            self.read_volume(v)?;
        }
        if self.engine.media.state().counts != before {
            return Err("a read-only open wrote to the media".into());
        }
        self.engine.abandon();
        for v in &mut self.volumes {
            v.attached = false;
        }
        Ok(())
    }

    // --- media ------------------------------------------------------------------

    fn sectors_of(&self, v: usize, block: u64) -> std::ops::Range<u64> {
        let size = self.volumes[v].origin.sectors();
        (block * 8).min(size)..((block + 1) * 8).min(size)
    }

    pub(super) fn taint(&mut self, v: usize, block: u64, soft: bool) {
        let tick = self.tick;
        for s in self.sectors_of(v, block) {
            self.volumes[v].model[s as usize].taint(tick);
        }
        if soft {
            self.soft.push((self.volumes[v].number, block));
        }
    }

    /// Damages a page that is in use, its line, or a line of its chunk.
    pub(super) fn media_fault(&mut self) -> Verdict {
        let statics: Vec<usize> =
            (0..self.volumes.len()).filter(|&v| self.volumes[v].is_static).collect();
        if !statics.is_empty() && self.rng.one_in(2) {
            let v = self.rng.pick(&statics);
            return self.static_fault(v);
        }
        let g = self.plan.geometry;
        let c = self.rng.below(u64::from(g.nchunks)) as u32;
        let chunk = self.engine.chunk_info(c).map_err(|e| format!("chunk_info: {e}"))?;
        let place = self.rng.range(u64::from(g.first_page()), u64::from(g.chunk_pages) - 1) as u32;
        let entry =
            self.engine.entry_info(c, place, true).map_err(|e| format!("entry_info: {e}"))?;
        if !entry.linked || !entry.valid || !entry.data_ok {
            return Ok(());
        }
        let (block, index) = (entry.line.block, entry.line.volume);
        let Some(v) = self.volumes.iter().position(|v| v.index == Some(index)) else {
            return Ok(());
        };
        let soft = chunk.state == 1;
        let chunk_at = g.data_offset() + u64::from(c) * u64::from(g.chunk_size());
        let line = (chunk_at / 64) as u32 + g.line_of(place);
        let data = chunk_at + u64::from(place) * 4096;
        let kind = self.rng.below(5);
        self.log(|| {
            format!("media fault {kind} at chunk {c} page {place}: volume {index} block {block}")
        });
        match kind {
            0 | 1 if entry.line.valid != 0 && entry.line.kind as u32 == sys::FBY_KIND_DATA => {
                let held: Vec<u64> = (0..8).filter(|k| entry.line.valid >> k & 1 == 1).collect();
                let at = data + self.rng.pick(&held) * 512;
                if kind == 0 {
                    self.engine.media.flip(at * 8 + self.rng.below(4096));
                } else {
                    self.engine.media.poison((at / 64) as u32 + self.rng.below(8) as u32, 1);
                }
            }
            2 => self.engine.media.poison(line, 1),
            3 => self.engine.media.flip(u64::from(line) * 512 + self.rng.below(512)),
            _ => return Ok(()),
        }
        self.damaged = true;
        self.tally.media_faults += 1;
        self.taint(v, block, soft);
        Ok(())
    }
}
