// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two damages at once, a damaged range, and damage with a cut in the recovery
//! that follows.
//!
//! The cases begin with a small pool after a kill, a clean close, a recovery or the removal of
//! a volume.  Its structures are the two superblocks, each copy of each record, and each line
//! of each header array.  For each single structure and each pair, every one is zeroed or has a
//! bit flipped; each range of adjacent lines is zeroed, too.  Then the pool is recovered, once
//! or twice, and read.  Each sector has its content, or
//!
//! * it answers EIO, and its block is that of a damaged page,
//! * or the volume, or the pool, refuses until it is told that older data may show,
//! * or it may pass: see `may_pass`, the one thing that does (docs/design/testing.md).
//!
//! With cuts, all of that holds for each image that a cut at any fence of the recovery of a
//! damaged pool may leave: a loss is not forgotten.

use std::collections::{BTreeMap, HashSet};
use std::mem::offset_of;

use forebay_engine::sys;
use serde::Serialize;

use crate::bed::{lay, take_away};
use crate::engine::{Attach, Engine};
use crate::hooks;
use crate::images::{hash_overlay, hash_region, Images, Layout, Overlay, Words};
use crate::media::{settle, Flavour, LineStore, Media, MediaEvent, Region};
use crate::origin::Origin;
use crate::pattern;
use crate::reading::{read_volume, LOST};
use crate::rng::mix;
use crate::script::{attach_of, name, number, record, Geometry, Mark, Op, Script};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Killed at once: the last pages are not sealed.
    Killed,
    /// Killed when the housekeeping had sealed all.
    Sealed,
    Closed,
    /// Killed, recovered, killed again.
    Recovered,
    /// Killed after a volume was removed.
    Removed,
}

pub const STATES: [State; 5] =
    [State::Killed, State::Sealed, State::Closed, State::Recovered, State::Removed];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    One,
    /// Pairs in one chunk, or outside of the chunks.
    Near,
    /// All other pairs.
    Far,
    Ranges,
    /// Ones and ranges, the recovery cut.
    Cuts,
    /// Near pairs, the recovery cut.
    PairCuts,
}

pub const KINDS: [Kind; 6] =
    [Kind::One, Kind::Near, Kind::Far, Kind::Ranges, Kind::Cuts, Kind::PairCuts];

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub state: State,
    pub kind: Kind,
    pub images: u64,
    /// All reads as before, and nothing was asked.
    pub harmless: u64,
    /// Some sectors answer EIO, all others read as before.
    pub isolated: u64,
    /// A volume says that older data may show.
    pub accepted: u64,
    /// A volume or the pool is refused altogether.
    pub refused: u64,
    /// Older data, and nobody said so: as documented.
    pub passed: u64,
}

impl Row {
    fn new(state: State, kind: Kind) -> Self {
        Self {
            state,
            kind,
            images: 0,
            harmless: 0,
            isolated: 0,
            accepted: 0,
            refused: 0,
            passed: 0,
        }
    }

    pub fn add(&mut self, o: &Self) {
        self.images += o.images;
        self.harmless += o.harmless;
        self.isolated += o.isolated;
        self.accepted += o.accepted;
        self.refused += o.refused;
        self.passed += o.passed;
    }

    fn count(&mut self, fate: Fate) {
        self.images += 1;
        *match fate {
            Fate::Harmless => &mut self.harmless,
            Fate::Isolated => &mut self.isolated,
            Fate::Accepted => &mut self.accepted,
            Fate::Refused => &mut self.refused,
            Fate::Passed => &mut self.passed,
        } += 1;
    }
}

/// In ascending order of how bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Harmless,
    Isolated,
    Accepted,
    Refused,
    Passed,
}

fn script(state: State) -> Script {
    use Op::*;
    let mut ops = vec![
        Add(2),
        // A chunk of one page.
        Write(2, 0, 8),
        // Used and drained: free chunks with entries of older epochs.
        Write(0, 0, 120),
        Write(0, 0, 120),
        Drain(0),
        Write(1, 0, 16),
        Drain(1),
        // A whole chunk of the newest entries, then some of them again.
        Write(0, 0, 40),
        Write(0, 88, 40),
        Write(0, 72, 16),
        Write(0, 8, 8),
        Write(0, 65, 2),
        Discard(0, 16, 8),
        Write(1, 8, 8),
        Write(1, 0, 16),
        Write(0, 32, 8),
        Write(1, 24, 3),
        Write(0, 72, 8),
        Write(0, 80, 8),
        Write(1, 0, 8),
    ];
    match state {
        State::Killed => {}
        State::Sealed => ops.extend([Tick, Tick]),
        State::Closed => ops.push(Shut),
        State::Recovered => ops.push(Kill),
        State::Removed => ops.extend([Tick, Tick, Remove(2)]),
    }
    Script {
        name: format!("damage {state:?}").to_lowercase(),
        geometry: Geometry { chunk_pages: 16, nchunks: 8, nvolumes: 3, nslots: 1, shares: [0; 2] },
        volumes: vec![128, 32, 24],
        block_size: 512,
        ops,
        from: 0,
    }
}

/// A thing that is damaged as one: its first line, and how many.
#[derive(Clone, Copy, Debug)]
struct Unit {
    line: u32,
    lines: u32,
    /// Set for a page line.
    page: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Zero,
    /// By a number that chooses the bit.
    Flip(u64),
}

/// A page line of its chunk's epoch.
#[derive(Clone, Copy, Debug)]
struct Page {
    volume: usize,
    block: u64,
    batch_first: usize,
    sealed: bool,
}

/// The damage of an image: lines over the base, and the pages whose lines these are.
#[derive(Clone, Debug, Default)]
struct Damage {
    lines: Overlay,
    pages: Vec<usize>,
    text: String,
}

enum Contents {
    Absent,
    Refused,
    /// How attach had to be asked, and what each sector reads as.
    Read(u32, Vec<u64>),
}

pub struct Bench {
    state: State,
    script: Script,
    engine: Engine,
    base: Region,
    base_hash: u64,
    layout: Layout,
    options: sys::fby_options,
    origins: Vec<Origin>,
    /// None: the volume is not there.
    truth: Vec<Option<Vec<u64>>>,
    older: Vec<Vec<Vec<u64>>>,
    units: Vec<Unit>,
    pages: Vec<Option<Page>>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl Bench {
    pub fn new(state: State) -> Result<Self, String> {
        let script = script(state);
        let g = script.geometry;
        let recording = record(&script)?;
        let media = Media::bare(g.media_bytes());
        media.load(recording.end.bytes());
        let mut b = Self {
            state,
            engine: Engine::new(media),
            base_hash: hash_region(&recording.end),
            base: recording.end,
            layout: Layout::of(&g),
            options: sys::fby_options { nslots: 1, ..Default::default() },
            truth: Vec::new(),
            older: script
                .volumes
                .iter()
                .zip(&recording.origins)
                .map(|(&n, o)| (0..n).map(|s| vec![o.read(s), pattern::ZERO]).collect())
                .collect(),
            origins: recording.origins,
            units: Vec::new(),
            pages: vec![None; (g.nchunks * g.chunk_pages) as usize],
            script,
        };
        for (_, mark) in &recording.marks {
            if let Mark::Begin { vol, sectors, id, .. } = mark {
                for s in sectors.clone() {
                    b.older[*vol][s as usize].push(*id);
                }
            }
        }
        b.find_units();
        b.learn_pages();
        b.load(&Overlay::new());
        b.open()?.map_err(|e| format!("undamaged: {e}"))?;
        for vol in 0..b.script.volumes.len() {
            let truth = match b.contents(vol)? {
                Contents::Absent => None,
                Contents::Read(sys::FBY_HOLES_FAIL, ids) => Some(ids),
                _ => return Err(format!("undamaged: volume {vol} is refused")),
            };
            b.truth.push(truth);
        }
        if (state == State::Removed) != b.truth[2].is_none() {
            return Err("the script removes another volume".into());
        }
        b.unload(&Overlay::new());
        Ok(b)
    }

    fn chunk_line(&self, chunk: u32, line: u32) -> u32 {
        let g = self.script.geometry;
        (g.data_offset() as u32 + chunk * g.chunk_size()) / 64 + line
    }

    fn find_units(&mut self) {
        let g = self.script.geometry;
        let unit = |line, lines| Unit { line, lines, page: None };
        self.units.extend([unit(0, 8), unit(64, 8)]);
        self.units.extend((0..2 * g.nvolumes).map(|n| unit(128 + 4 * n, 4)));
        for chunk in 0..g.nchunks {
            for i in [0, 1, 2, 3, 6, 7] {
                self.units.push(Unit { line: self.chunk_line(chunk, i), lines: 1, page: None });
            }
            for i in g.first_page()..g.chunk_pages {
                let line = self.chunk_line(chunk, g.line_of(i));
                let page = Some((chunk * g.chunk_pages + i) as usize);
                self.units.push(Unit { line, lines: 1, page });
            }
        }
    }

    /// Finds the pages with a line of their chunk's epoch, from the bytes alone.
    fn learn_pages(&mut self) {
        use sys::{fby_open_line as open, fby_page_line as page, fby_seal_line as seal};
        let g = self.script.geometry;
        for chunk in 0..g.nchunks {
            let at = self.chunk_line(chunk, 0) as usize * 64;
            let lines: Vec<&[u8]> = self.base.bytes()[at..at + 4096].chunks_exact(64).collect();
            let magic = |l: &[u8]| u32::from_le_bytes([l[0], l[1], l[2], l[3]]);
            let epoch =
                (0..2).map(|i| u64_at(lines[i], offset_of!(open, epoch))).max().unwrap_or(0);
            let seals = lines[2..8].iter().filter(|l| {
                magic(l) == sys::FBY_SEAL_MAGIC && u64_at(l, offset_of!(seal, epoch)) == epoch
            });
            let sealed = seals.map(|l| u16_at(l, offset_of!(seal, fill))).max().unwrap_or(0);
            for i in g.first_page() as usize..g.chunk_pages as usize {
                let l = lines[g.line_of(i as u32) as usize];
                if u64_at(l, offset_of!(page, epoch)) != epoch {
                    continue;
                }
                let first = chunk as usize * g.chunk_pages as usize;
                self.pages[first + i] = Some(Page {
                    volume: u16_at(l, offset_of!(page, volume)).into(),
                    block: u64_at(l, offset_of!(page, block)),
                    batch_first: first + usize::from(u16_at(l, offset_of!(page, batch_first))),
                    sealed: i < usize::from(sealed) || self.state == State::Closed,
                });
            }
        }
    }

    /// The one undetected effect of two damages: pages disappear from the end of a chunk, none
    /// of them sealed, with a damaged line in each batch from there on.  Nothing distinguishes
    /// them from a torn write.
    fn may_pass(&self, vol: usize, block: u64, damage: &Damage) -> bool {
        let g = self.script.geometry.chunk_pages as usize;
        damage.pages.iter().any(|&at| {
            let Some(p) = self.pages[at] else { return false };
            let batches = |n: &usize| self.pages[*n].map(|page| page.batch_first);
            let after = (p.batch_first..at - at % g + g).filter_map(|n| batches(&n));
            let hit: HashSet<usize> = damage.pages.iter().filter_map(batches).collect();
            (p.volume, p.block, p.sealed) == (vol, block, false)
                && after.into_iter().all(|batch| hit.contains(&batch))
        })
    }

    // --- images ----------------------------------------------------------------

    fn load(&mut self, over: &Overlay) {
        lay(&self.engine, over.iter().map(|(line, words)| (*line, words)));
    }

    fn unload(&mut self, over: &Overlay) {
        take_away(&mut self.engine, &self.base, over.keys().copied());
    }

    fn damage(&self, hits: &[(usize, How)]) -> Damage {
        let mut d = Damage::default();
        for &(n, how) in hits {
            let u = self.units[n];
            d.pages.extend(u.page);
            d.text += &format!("{u:?} {how:?}; ");
            let (hit, bit) = match how {
                How::Zero => (None, 0),
                How::Flip(r) => (Some((r / 512 % u64::from(u.lines)) as u32), r % 512),
            };
            for i in 0..u.lines {
                let line = u.line + i;
                let mut words = d.lines.get(&line).copied().unwrap_or(self.base.line(line));
                match hit {
                    None => words = [0; 8],
                    Some(at) if at == i => words[bit as usize / 64] ^= 1 << (bit % 64),
                    Some(_) => continue,
                }
                d.lines.insert(line, words);
            }
        }
        d
    }

    fn zeroed(&self, from: u32, to: u32) -> Damage {
        let mut d = Damage { text: format!("lines {from}..{to} zeroed"), ..Damage::default() };
        d.lines.extend((from..to).map(|line| (line, [0; 8])));
        let hit = |u: &&Unit| (from..to).contains(&u.line);
        d.pages.extend(self.units.iter().filter(hit).filter_map(|u| u.page));
        d
    }

    // --- judging ---------------------------------------------------------------

    /// The outer error is a violation, the inner one a pool that is refused.
    fn open(&mut self) -> Result<Result<(), String>, String> {
        if let Err(e) = self.engine.open_all(&self.options) {
            let told = e.is(sys::FBY_E_BAD_SUPERBLOCK) || e.is(sys::FBY_E_NO_SUPERBLOCK);
            return if told { Ok(Err(e.to_string())) } else { Err(format!("open: {e}")) };
        }
        if let Some(misuse) = self.engine.media.misuse() {
            return Err(misuse);
        }
        self.engine.check(true)?;
        Ok(Ok(()))
    }

    fn contents(&mut self, vol: usize) -> Result<Contents, String> {
        let Ok(index) = self.engine.volume_find(&name(vol)) else {
            let info = self.engine.volume_info(vol as u16).map_err(|e| e.to_string())?;
            return Ok(if info.damaged { Contents::Refused } else { Contents::Absent });
        };
        let (identity, a) = attach_of(number(vol), self.script.volumes[vol]);
        let policies = [sys::FBY_HOLES_FAIL, sys::FBY_HOLES_ISOLATE, sys::FBY_HOLES_ACCEPT];
        for holes in policies {
            let a = Attach { identity: &identity, holes, ..a.clone() };
            match self.engine.volume_attach(index, &a) {
                Ok(()) => {
                    let ids = read_volume(&mut self.engine, index, &self.origins[vol])?;
                    return Ok(Contents::Read(holes, ids));
                }
                Err(e) if e.is(sys::FBY_E_HOLES) || e.is(sys::FBY_E_HOLES_KNOWN) => {}
                Err(e) => return Err(format!("attach of volume {vol}: {e}")),
            }
        }
        Err(format!("volume {vol} is refused, holes accepted"))
    }

    fn judge_sector(
        &self,
        (vol, sector): (usize, usize),
        id: u64,
        asked: u32,
        damage: &Damage,
    ) -> Result<Fate, String> {
        let truth = self.truth[vol].as_ref().expect("of a volume that is there");
        let block = sector as u64 / 8;
        let of_damaged = damage
            .pages
            .iter()
            .filter_map(|&n| self.pages[n])
            .any(|p| (p.volume, p.block) == (vol, block));
        let older = self.older[vol][sector].contains(&id);
        match (id == truth[sector], id == LOST) {
            (true, _) => Ok(Fate::Harmless),
            (_, true) if of_damaged => Ok(Fate::Isolated),
            _ if asked == sys::FBY_HOLES_ACCEPT && (id == LOST || older) => Ok(Fate::Accepted),
            _ if older && self.may_pass(vol, block, damage) => Ok(Fate::Passed),
            _ => Err(format!(
                "volume {vol} sector {sector} reads as {}, holds write {}",
                if id == LOST { "EIO".into() } else { format!("write {id}") },
                truth[sector]
            )),
        }
    }

    /// Judges the loaded image; recovered twice if `again`.
    fn judge(&mut self, damage: &Damage, again: bool) -> Result<Fate, String> {
        for _ in 0..=u32::from(again) {
            if self.engine.is_open() {
                self.engine.abandon();
            }
            if self.open()?.is_err() {
                return Ok(Fate::Refused);
            }
        }
        let mut fate = Fate::Harmless;
        for vol in 0..self.truth.len() {
            let contents = self.contents(vol)?;
            let (asked, ids) = match (contents, &self.truth[vol]) {
                (Contents::Refused, _) => {
                    fate = fate.max(Fate::Refused);
                    continue;
                }
                (Contents::Absent, None) => continue,
                (Contents::Absent, Some(_)) => return Err(format!("volume {vol} is gone")),
                (Contents::Read(..), None) => return Err(format!("volume {vol} is there again")),
                (Contents::Read(asked, ids), Some(_)) => (asked, ids),
            };
            if asked == sys::FBY_HOLES_ACCEPT {
                fate = fate.max(Fate::Accepted);
            }
            for (sector, id) in ids.into_iter().enumerate() {
                fate = fate.max(self.judge_sector((vol, sector), id, asked, damage)?);
            }
        }
        Ok(fate)
    }

    fn try_one(&mut self, damage: &Damage, again: bool, row: &mut Row) -> Result<(), String> {
        let state = self.state;
        hooks::set_context(|| format!("damage {state:?}: {}", damage.text));
        self.load(&damage.lines);
        let result = self.judge(damage, again);
        self.unload(&damage.lines);
        row.count(result.map_err(|e| format!("{state:?}, {}: {e}", damage.text))?);
        Ok(())
    }

    /// Each image that a cut at a fence of the recovery may leave, at most `bound` a fence.
    fn try_cuts(&mut self, damage: &Damage, bound: u64, row: &mut Row) -> Result<(), String> {
        self.load(&damage.lines);
        let opened = self.open();
        let trace = self.engine.media.state().trace.clone().unwrap_or_default();
        self.unload(&damage.lines);
        if opened?.is_err() {
            return Ok(());
        }
        let mut durable = damage.lines.clone();
        let mut pending: Vec<LineStore> = Vec::new();
        let mut seen = HashSet::new();
        for (at, event) in trace.iter().enumerate() {
            let actor = match event {
                MediaEvent::Store(s) => {
                    pending.push(*s);
                    continue;
                }
                MediaEvent::Fence(actor) => *actor,
            };
            let images = Images::new(
                (&self.base, self.base_hash),
                &durable,
                &pending,
                Flavour::NonTemporal,
                self.layout,
                bound,
                mix(at as u64 ^ hash_overlay(&self.base, self.base_hash, &durable)),
            );
            for image in images.filter(|i| seen.insert(i.hash)) {
                let over: BTreeMap<u32, Words> = image.lines.into_iter().collect();
                self.load(&over);
                let result = self.judge(damage, false);
                self.unload(&over);
                row.count(result.map_err(|e| {
                    let text = &damage.text;
                    format!("{:?}, {text}, its recovery cut at event {at}: {e}", self.state)
                })?);
            }
            settle(&mut pending, actor, |s| {
                durable.insert(s.line, s.words);
            });
        }
        Ok(())
    }

    // --- what is damaged -------------------------------------------------------

    /// Two ways to damage a unit; which bit depends on the unit and on the seed.
    fn ways(n: usize, seed: u64) -> [(usize, How); 2] {
        [(n, How::Zero), (n, How::Flip(mix(n as u64 ^ mix(seed))))]
    }

    fn ones(&self, seed: u64) -> Vec<Damage> {
        let units = 0..self.units.len();
        units.flat_map(|n| Self::ways(n, seed)).map(|hit| self.damage(&[hit])).collect()
    }

    fn pairs(&self, near: bool) -> Vec<(usize, usize)> {
        let n = self.units.len();
        let place = |unit: usize| u64::from(self.units[unit].line) * 64 / self.layout.chunk_size;
        let all = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        all.filter(|&(a, b)| (place(a) == place(b)) == near).collect()
    }

    fn pair(&self, (a, b): (usize, usize), seed: u64) -> Vec<Damage> {
        let both = |x| Self::ways(b, seed).map(|y| self.damage(&[x, y]));
        Self::ways(a, seed).into_iter().flat_map(both).collect()
    }

    /// From 2 adjacent lines to as many as a header array has.
    fn ranges(&self) -> Vec<Damage> {
        let g = self.script.geometry;
        let records = 128 + 8 * g.nvolumes;
        let mut areas = vec![(0, 8), (64, 72), (128, records)];
        areas.extend((0..g.nchunks).map(|c| {
            let first = self.chunk_line(c, 0);
            (first, first + g.lines())
        }));
        let within = |(from, to): (u32, u32)| {
            (from..to - 1).flat_map(move |a| (a + 2..=to).map(move |b| (a, b)))
        };
        areas.into_iter().flat_map(within).map(|(a, b)| self.zeroed(a, b)).collect()
    }
}

/// A part of the work: the damages of a kind whose number is `part` modulo `parts`, and of
/// these one in `every`.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub state: State,
    pub kind: Kind,
    pub part: usize,
    pub parts: usize,
    pub every: usize,
    pub seed: u64,
    /// Most images of a cut.
    pub bound: u64,
}

pub fn run(job: &Job) -> Result<Row, String> {
    let mut b = Bench::new(job.state)?;
    let mut row = Row::new(job.state, job.kind);
    let step = job.parts * job.every;
    let first = job.part + job.parts * (job.seed as usize % job.every);
    match job.kind {
        Kind::One | Kind::Ranges | Kind::Cuts => {
            let mut all = if job.kind == Kind::Ranges { Vec::new() } else { b.ones(job.seed) };
            if job.kind != Kind::One {
                all.extend(b.ranges());
            }
            for (n, damage) in all.iter().enumerate().skip(first).step_by(step) {
                if job.kind == Kind::Cuts {
                    b.try_cuts(damage, job.bound, &mut row)?;
                } else {
                    b.try_one(damage, n % 2 == 1, &mut row)?;
                    b.try_one(damage, n % 2 == 0, &mut row)?;
                }
            }
        }
        Kind::Near | Kind::Far | Kind::PairCuts => {
            for (n, pair) in
                b.pairs(job.kind != Kind::Far).into_iter().enumerate().skip(first).step_by(step)
            {
                for (way, damage) in b.pair(pair, job.seed).iter().enumerate() {
                    if job.kind == Kind::PairCuts {
                        b.try_cuts(damage, job.bound, &mut row)?;
                    } else {
                        b.try_one(damage, (n + way) % 2 == 0, &mut row)?;
                    }
                }
            }
        }
    }
    Ok(row)
}

/// All states and kinds, in parts for several threads.  Near pairs and ranges are few, and
/// likely to matter: none of them is left out.
pub fn jobs(every: usize, seed: u64, bound: u64, pair_cuts: bool) -> Vec<Job> {
    let parts = 8;
    let mut jobs = Vec::new();
    for kind in KINDS.into_iter().filter(|k| pair_cuts || *k != Kind::PairCuts) {
        let every = if matches!(kind, Kind::Near | Kind::Ranges) { 1 } else { every };
        for state in STATES {
            jobs.extend((0..parts).map(|part| Job {
                state,
                kind,
                part,
                parts,
                every,
                seed,
                bound,
            }));
        }
    }
    jobs
}
