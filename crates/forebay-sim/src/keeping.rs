// SPDX-License-Identifier: MIT OR Apache-2.0
//! More is written than an origin takes, to blocks without dirty neighbours mostly, so that
//! rounds of destage keep pages: what is promised of those.

use std::collections::BTreeSet;

use forebay_engine::{sys, Attach};

use crate::engine::{identity, volume_spec, Decision, Engine, Wait};
use crate::media::{Flavour, Media};
use crate::rng::Rng;
use crate::script::data;

const NUMBER: u64 = 1;
/// Of 15 pages of data.
const CHUNKS: u64 = 64;
const BLOCKS: u64 = CHUNKS * 15 * 4;
/// And some that are written but once.
const SECTORS: u64 = (BLOCKS + 80) * 8;
/// What a request takes.
const REQUEST_NS: u64 = 1_000_000;
/// A writer who is not throttled.
const WRITE_NS: u64 = 200_000;
const STEP_NS: u64 = 10_000;

struct Run {
    engine: Engine,
    rng: Rng,
    now_ns: u64,
    /// Blocks of which the origin was sent a sector.
    destaged: BTreeSet<u64>,
    next_id: u64,
    /// When the next write is, and the block of the last.
    due_ns: u64,
    written: u64,
    /// Pages that rounds have copied.
    kept: u64,
}

impl Run {
    fn new(max_age_ns: u64) -> Self {
        let media = Media::new(((CHUNKS + 1) << 16) as usize, Flavour::NonTemporal);
        let mut run = Self {
            engine: Engine::new(media),
            rng: Rng::new(1),
            now_ns: 1_000_000_000,
            destaged: BTreeSet::new(),
            next_id: 2,
            due_ns: 1_000_000_000,
            written: 0,
            kept: 0,
        };
        run.engine.format([3; 16], 1 << 16, 1).unwrap();
        run.open(max_age_ns);
        run
    }

    fn open(&mut self, max_age_ns: u64) {
        let options = sys::fby_options { nslots: 1, max_age_ns, ..Default::default() };
        self.engine.open_all(&options).unwrap();
        let identity = identity(NUMBER);
        if self.engine.volume_find("v").is_err() {
            self.engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        }
        let attach = Attach {
            origin_sectors: SECTORS,
            identity: &identity,
            holes: sys::FBY_HOLES_FAIL,
            round_pages: 1024,
            nbuffers: 2,
            buffer_bytes: 64 << 10,
        };
        self.engine.volume_attach(0, &attach).unwrap();
        self.step();
    }

    fn volume(&self) -> sys::fby_volume_info {
        self.engine.volume_info(0).unwrap()
    }

    fn committing(&self) -> bool {
        self.volume().destage == sys::FBY_DESTAGE_COMMITTING
    }

    /// False: there is nothing to do.
    fn step(&mut self) -> bool {
        self.now_ns += STEP_NS;
        let (before, committing) = (self.volume().pages_relocated, self.committing());
        let step = self.engine.destage_step(self.now_ns).unwrap();
        if committing {
            self.kept += self.volume().pages_relocated - before;
        }
        if let Some(io) = step.io {
            self.now_ns += REQUEST_NS;
            self.destaged.extend((io.sector..io.sector + io.nsectors).map(|s| s / 8));
            self.engine.destage_complete(io.id, 0);
            return true;
        }
        step.decision != Decision::Done
    }

    fn write(&mut self, block: u64) -> Result<(), String> {
        let bytes = data(NUMBER, block * 8..block * 8 + 8, self.next_id);
        self.next_id += 1;
        let delay_ns = self.engine.write_delay(0, 8, self.now_ns);
        self.due_ns = (self.due_ns + WRITE_NS).max(self.now_ns + delay_ns);
        self.written = block;
        for _ in 0..10_000 {
            match self.engine.write(0, block * 8, &bytes, &mut 0, &mut 0).unwrap() {
                Decision::Done => return Ok(()),
                Decision::Wait(Wait::Space) => drop(self.step()),
                other => return Err(format!("{other:?} of a write")),
            }
        }
        Err(format!("no space for block {block}"))
    }

    /// A step, and what has become due: one write of four is in a row of three.
    fn load(&mut self) -> Result<(), String> {
        self.step();
        while self.due_ns <= self.now_ns {
            let mut block = 4 + 4 * self.rng.below(BLOCKS / 4 - 2);
            if self.rng.one_in(4) {
                block += self.rng.below(3);
            }
            self.write(block)?;
        }
        Ok(())
    }

    /// Until rounds keep pages.
    fn overload(&mut self) -> Result<(), String> {
        let (kept, writes) = (self.kept, self.next_id);
        while self.kept < kept + CHUNKS * 15 {
            self.load()?;
            if self.next_id > writes + 50_000 {
                return Err("nothing is kept".into());
            }
        }
        Ok(())
    }

    /// Chunk, page and block of what was written last to the open chunk.
    fn tail(&mut self) -> Option<(u64, u32, u64)> {
        for chunk in 0..CHUNKS as u32 {
            let info = self.engine.chunk_info(chunk).unwrap();
            if info.state == 1 && info.fill > 1 {
                let entry = self.engine.entry_info(chunk, info.fill - 1, true).unwrap();
                return entry.linked.then(|| (chunk.into(), info.fill - 1, entry.line.block));
            }
        }
        None
    }
}

/// Blocks that are written once, alone: most are kept, and all are on the origin when their
/// time has come.
pub fn old_pages_go() -> Result<(), String> {
    const MAX_AGE_NS: u64 = 8_000_000_000;
    let mut run = Run::new(MAX_AGE_NS);
    run.overload()?;
    let cold: Vec<u64> = (0..40).map(|n| BLOCKS + 2 * n).collect();
    for &block in &cold {
        run.write(block)?;
    }
    let (began_ns, mut kept) = (run.now_ns, 0);
    loop {
        run.load()?;
        let left = cold.iter().filter(|block| !run.destaged.contains(block)).count();
        if run.now_ns > began_ns + MAX_AGE_NS / 4 {
            kept = kept.max(left);
        }
        match left {
            0 if kept >= 20 => return Ok(()),
            0 => return Err(format!("but {kept} were kept at first")),
            _ if run.now_ns > began_ns + MAX_AGE_NS + MAX_AGE_NS / 4 => {
                return Err(format!("{left} isolated blocks of max_age are not on the origin"));
            }
            _ => {}
        }
    }
}

/// A drain in the middle of it ends, and copies nothing but what its round had begun.
pub fn drains_end() -> Result<(), String> {
    let mut run = Run::new(0);
    run.overload()?;
    run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
    let rounds = run.volume().rounds;
    let mut kept = 0;
    for _ in 0..20_000 {
        run.step();
        if run.volume().rounds == rounds {
            kept = run.kept;
        }
        if run.kept > kept {
            return Err("a round of a drain keeps pages".into());
        }
        if run.engine.volume_clean(0) {
            return run.engine.check(true);
        }
    }
    Err("a drain does not end".into())
}

/// A drain that begins while a round is about to keep pages: when the watermark has passed
/// what was written before, which is all that a host waits for, nothing is left in the pool.
pub fn drains_bring_all_home() -> Result<(), String> {
    let mut run = Run::new(0);
    for _ in 0..8 {
        run.overload()?;
        for _ in 0..50_000 {
            run.load()?;
            if run.volume().destage == sys::FBY_DESTAGE_FLUSHING {
                break;
            }
        }
        let seq = run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
        let mut steps = 0;
        while run.volume().watermark + 1 < seq || run.committing() {
            run.step();
            steps += 1;
            if steps > 20_000 {
                return Err("a drain does not end".into());
            }
        }
        if !run.engine.volume_clean(0) {
            let left = run.volume().pages;
            return Err(format!("a drain has ended, and {left} pages are in the pool alone"));
        }
        run.engine.volume_drain(0, false).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The end of a round that kept a page, the last of its chunk: where that is.
fn last_is_a_copy(run: &mut Run) -> Result<(u64, u32, u64), String> {
    for _ in 0..50_000 {
        run.load()?;
        if !run.committing() {
            continue;
        }
        let (rounds, kept) = (run.volume().rounds, run.kept);
        while run.volume().rounds == rounds && run.committing() {
            run.step();
        }
        if run.kept > kept && run.volume().rounds > rounds {
            let written = run.written;
            if let Some(tail) = run.tail().filter(|tail| tail.2 != written) {
                return Ok(tail);
            }
        }
    }
    Err("no copy is the last page of its chunk".into())
}

/// What was acknowledged long ago does not pass for a torn write because it was kept: its
/// copy is the last page of an open chunk, and damaged.
pub fn copies_are_not_torn() -> Result<(), String> {
    let mut run = Run::new(0);
    run.overload()?;
    for _ in 0..8 {
        let (chunk, page, block) = last_is_a_copy(&mut run)?;
        let at = ((chunk + 1) << 16) + u64::from(page) * 4096;
        run.engine.media.flip((at + run.rng.below(4096)) * 8);
        run.engine.abandon();
        run.open(0);
        let mut buf = [0; 4096];
        if run.engine.read_block(0, block, 0, &mut buf).lost == 0 {
            return Err(format!("block {block}, of long ago, shows as something older"));
        }
        run.write(block)?;
    }
    Ok(())
}

pub fn all() -> Result<(), String> {
    old_pages_go()?;
    drains_end()?;
    drains_bring_all_home()?;
    copies_are_not_torn()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_old_page_is_not_kept() {
        super::old_pages_go().unwrap();
    }

    #[test]
    fn nothing_is_kept_in_a_drain() {
        super::drains_end().unwrap();
    }

    #[test]
    fn what_a_round_would_have_kept_is_on_the_origin_when_a_drain_has_ended() {
        super::drains_bring_all_home().unwrap();
    }

    #[test]
    fn a_copy_that_was_kept_does_not_pass_for_a_torn_write() {
        super::copies_are_not_torn().unwrap();
    }
}
