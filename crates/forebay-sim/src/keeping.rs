// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writers exceed the origin's speed, mostly on blocks without dirty neighbours, so that rounds
//! of destage keep pages: tests of the promises for kept pages.

use std::collections::{BTreeMap, BTreeSet};

use forebay_engine::{sys, Attach};

use crate::engine::{identity, volume_spec, Decision, Engine, Io, Wait};
use crate::media::{Flavour, Media};
use crate::origin::Origin;
use crate::rng::Rng;
use crate::script::data;

pub(crate) const NUMBER: u64 = 1;
/// Chunks with 15 pages of data each.
pub(crate) const CHUNKS: u64 = 64;
pub(crate) const BLOCKS: u64 = CHUNKS * 15 * 4;
/// Includes some blocks that are written only once.
pub(crate) const SECTORS: u64 = (BLOCKS + 80) * 8;
/// Time of a request.
const REQUEST_NS: u64 = 1_000_000;
const EIO: i32 = 5;
/// A writer who is not throttled.
const WRITE_NS: u64 = 200_000;
const STEP_NS: u64 = 10_000;

pub(crate) struct Run {
    pub engine: Engine,
    pub rng: Rng,
    nslots: u32,
    pub now_ns: u64,
    /// Volatile: unflushed data may be lost.
    pub origin: Origin,
    /// Newest acknowledged write, by block.
    pub newest: BTreeMap<u64, u64>,
    /// Blocks with a sector that was sent to the origin.
    destaged: BTreeSet<u64>,
    pub next_id: u64,
    /// When the next write is, and the block of the last.
    due_ns: u64,
    written: u64,
    /// Pages that rounds have copied.
    kept: u64,
    /// The origin ends no request, and this one it has.
    hangs: bool,
    hung: Vec<Io>,
    /// Sectors for which the origin takes no request; and of how many others it takes one.
    pub bad: BTreeSet<u64>,
    pub fails: u64,
    /// Requests that it refused: when, and where.
    pub refused: Vec<(u64, u64)>,
}

impl Run {
    fn new(max_age_ns: u64) -> Self {
        Self::with_slots(max_age_ns, 1)
    }

    pub fn with_slots(max_age_ns: u64, nslots: u32) -> Self {
        let media = Media::new(((CHUNKS + 1) << 16) as usize, Flavour::NonTemporal);
        let mut run = Self {
            engine: Engine::new(media),
            rng: Rng::new(1),
            nslots,
            now_ns: 1_000_000_000,
            origin: Origin::new(NUMBER, SECTORS, 1),
            newest: BTreeMap::new(),
            destaged: BTreeSet::new(),
            next_id: 2,
            due_ns: 1_000_000_000,
            written: 0,
            kept: 0,
            hangs: false,
            hung: Vec::new(),
            bad: BTreeSet::new(),
            fails: 0,
            refused: Vec::new(),
        };
        run.engine.format([3; 16], 1 << 16, 1).unwrap();
        run.open(max_age_ns);
        run
    }

    pub fn open(&mut self, max_age_ns: u64) {
        let options = sys::fby_options { nslots: self.nslots, max_age_ns, ..Default::default() };
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
            nrequests: 2,
            buffer_bytes: 64 << 10,
        };
        self.engine.volume_attach(0, &attach).unwrap();
        self.step();
    }

    pub fn volume(&self) -> sys::fby_volume_info {
        self.engine.volume_info(0).unwrap()
    }

    pub fn committing(&self) -> bool {
        self.volume().destage == sys::FBY_DESTAGE_COMMITTING
    }

    /// False: there is nothing to do.
    pub fn step(&mut self) -> bool {
        self.now_ns += STEP_NS;
        let (before, committing) = (self.volume().pages_relocated, self.committing());
        let step = self.engine.destage_step(self.now_ns).unwrap();
        if committing {
            self.kept += self.volume().pages_relocated - before;
        }
        if let Some(io) = step.io {
            if self.hangs {
                self.hung.push(io);
                return true;
            }
            self.now_ns += REQUEST_NS;
            self.end(&io);
            return true;
        }
        step.decision != Decision::Done
    }

    /// The origin has done what it was asked, or a part of it.
    fn end(&mut self, io: &Io) {
        let bad = self.bad.range(io.sector..io.sector + io.nsectors).next().is_some();
        if bad || (self.fails > 0 && io.nsectors > 0 && self.rng.below(100) < self.fails) {
            for (at, bytes) in (io.sector..).zip(io.data.chunks_exact(512)) {
                if !self.bad.contains(&at) && self.rng.one_in(2) {
                    self.origin.write(at, bytes);
                }
            }
            self.refused.push((self.now_ns, io.sector));
            return self.engine.destage_complete(io.id, EIO);
        }
        self.destaged.extend((io.sector..io.sector + io.nsectors).map(|s| s / 8));
        match io.op {
            sys::FBY_IO_WRITE => self.origin.write(io.sector, &io.data),
            sys::FBY_IO_FLUSH => self.origin.flush_all(),
            _ => self.origin.zero(io.sector, io.nsectors),
        }
        self.engine.destage_complete(io.id, 0);
    }

    pub fn write(&mut self, block: u64) -> Result<(), String> {
        let delay_ns = self.engine.write_delay(0, 8, self.now_ns);
        self.due_ns = (self.due_ns + WRITE_NS).max(self.now_ns + delay_ns);
        self.written = block;
        for _ in 0..10_000 {
            if self.try_write(block)? {
                return Ok(());
            }
            self.step();
        }
        Err(format!("no space for block {block}"))
    }

    /// The next write, if its time has come and there is space.
    pub fn due(&mut self, block: u64) -> Result<(), String> {
        if self.due_ns <= self.now_ns && self.try_write(block)? {
            let delay_ns = self.engine.write_delay(0, 8, self.now_ns);
            self.due_ns = self.now_ns + delay_ns.max(WRITE_NS);
        }
        Ok(())
    }

    /// False: there is no space.
    pub fn try_write(&mut self, block: u64) -> Result<bool, String> {
        let bytes = data(NUMBER, block * 8..block * 8 + 8, self.next_id);
        match self.engine.write(0, block * 8, &bytes, &mut 0, &mut 0).unwrap() {
            Decision::Done => {
                self.newest.insert(block, self.next_id);
                self.next_id += 1;
                Ok(true)
            }
            Decision::Wait(Wait::Space) => Ok(false),
            other => Err(format!("{other:?} of a write")),
        }
    }

    /// One of the blocks that the load writes.
    pub fn some_block(&mut self) -> u64 {
        let block = 4 + 4 * self.rng.below(BLOCKS / 4 - 2);
        if self.rng.one_in(4) {
            return block + self.rng.below(3);
        }
        block
    }

    /// A step, and what has become due: one write of four is in a row of three.
    pub fn load(&mut self) -> Result<(), String> {
        self.step();
        while self.due_ns <= self.now_ns {
            let block = self.some_block();
            self.write(block)?;
        }
        Ok(())
    }

    /// Until rounds keep pages.
    pub fn overload(&mut self) -> Result<(), String> {
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

/// A drain that begins while a round is about to keep pages: it keeps none, and when all is home
/// that was written before, which is what a host waits for, nothing is left in the pool.
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
        let upto = run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
        let (kept, mut steps) = (run.kept, 0);
        while run.volume().home < upto || run.committing() {
            run.step();
            steps += 1;
            if steps > 20_000 {
                return Err("a drain does not end".into());
            }
        }
        if run.kept > kept {
            return Err("a round keeps pages, though a drain has begun".into());
        }
        if !run.engine.volume_clean(0) {
            let left = run.volume().pages;
            return Err(format!("a drain has ended, and {left} pages are in the pool alone"));
        }
        run.engine.volume_drain(0, false).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// An origin hangs when the volume has grown too old, or should be drained, while few of the
/// pool's pages are live: writers get the room of the others.  When the origin works again, the
/// drain ends, but not before pages moved meanwhile are on the origin.
fn writers_go_on(max_age_ns: u64, drains: bool) -> Result<(), String> {
    let mut run = Run::new(max_age_ns);
    // So many hot ones that few chunks become empty before there is no room.
    let (cold, hot) = (150, 250);
    let mut order: Vec<u64> = (0..cold + hot).map(|n| 2 * n).collect();
    for n in (1..order.len()).rev() {
        let other = run.rng.below(n as u64 + 1) as usize;
        order.swap(n, other);
    }
    for &block in &order {
        run.write(block)?;
    }
    run.hangs = true;
    let seq = match drains {
        true => run.engine.volume_drain(0, true).map_err(|e| e.to_string())?,
        false => 0,
    };
    let mut steps = 0;
    while run.hung.is_empty() {
        run.now_ns += STEP_NS;
        run.step();
        steps += 1;
        if steps > 1_000_000 {
            return Err("nothing goes to the origin".into());
        }
    }
    let moved = run.volume().pages_relocated;
    run.now_ns += 2_500_000_000; // from when on it counts as one that stands still
                                 // Three turns of the log.
    for n in 0..3 * CHUNKS * 15 {
        for _ in 0..20 {
            run.step();
        }
        let block = 2 * (cold + run.rng.below(hot));
        run.write(block).map_err(|e| format!("write {n} before an origin that hangs: {e}"))?;
    }
    if run.volume().pages_relocated == moved {
        return Err("nothing had to be moved".into());
    }
    run.hangs = false;
    for io in std::mem::take(&mut run.hung) {
        match drains {
            true => run.end(&io),
            false => run.engine.destage_complete(io.id, EIO),
        }
    }
    if !drains {
        return run.engine.check(true);
    }
    steps = 0;
    while run.volume().home + 1 < seq || run.committing() {
        run.now_ns += STEP_NS;
        run.step();
        steps += 1;
        if steps > 1_000_000 {
            return Err("a drain does not end".into());
        }
    }
    match (0..cold).filter(|n| !run.destaged.contains(&(2 * n))).count() {
        0 => run.engine.check(true),
        left => {
            Err(format!("a drain has ended, and {left} blocks of before are not on the origin"))
        }
    }
}

pub fn origins_hang() -> Result<(), String> {
    writers_go_on(2_000_000_000, false)?;
    writers_go_on(0, true)
}

/// Runs to the end of a round that kept a page, as the last of its chunk; returns its place.
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

/// A page acknowledged long ago does not count as a torn write because it was kept: its copy is
/// the last page of an open chunk, and damaged.
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
    origins_hang()?;
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
    fn writers_have_the_room_of_dead_pages_while_the_origin_hangs() {
        super::origins_hang().unwrap();
    }

    #[test]
    fn a_copy_that_was_kept_does_not_pass_for_a_torn_write() {
        super::copies_are_not_torn().unwrap();
    }
}
