// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bit flips: each bit of each superblock, volume record, chunk header and page
//! header line of a small pool, one at a time, and random ones in data.
//!
//! After each: the pool opens, its volumes can be attached with the damage
//! isolated, no sector reads as anything but what it held or EIO, EIO only in
//! the block whose page was hit, the invariants hold; then everything is
//! drained, and the origin holds nothing wrong; closed and opened again, what
//! was lost is still lost and nothing else.
//!
//! One bit that is wrong in a line, a record or a superblock must not lose
//! anything at all: lines are put right by their checksums, the others have two
//! copies.
//!
//! The pool is met in four states: closed cleanly; killed after its open chunks
//! were sealed by the housekeeping; killed in the middle, where damage in the
//! last batch of a chunk cannot be told from a torn write, and the block may be
//! as it was before that write; and open while the bit flips.

use forebay_engine::sys;
use serde::Serialize;

use crate::engine::{Attach, Decision, Engine};
use crate::hooks;
use crate::media::Media;
use crate::origin::Origin;
use crate::pattern;
use crate::reading::{read_volume, LOST};
use crate::rng::Rng;
use crate::script::{attach_of, name, number, record, Geometry, Op, Recording, Script};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Closed,
    Sealed,
    Killed,
    Open,
}

pub const STATES: [State; 4] = [State::Closed, State::Sealed, State::Killed, State::Open];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    Superblock,
    Record,
    ChunkLine,
    PageLine,
    Data,
}

pub const REGIONS: [Region; 5] =
    [Region::Superblock, Region::Record, Region::ChunkLine, Region::PageLine, Region::Data];

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub state: State,
    pub region: Region,
    pub flips: u64,
    /// All of it reads as before.
    pub harmless: u64,
    /// Some sectors of the block that was hit answer EIO.
    pub isolated: u64,
    /// Taken for a torn write: the block is as it was before that write.
    pub torn: u64,
    /// Isolated cases in which attach needed the order to isolate.
    pub asked: u64,
    /// Cases in which attach needed the order to show older data; there were none.
    pub accepted: u64,
}

fn script(last: &[Op], name: &str) -> Script {
    use Op::*;
    let mut ops = vec![
        // Used twice over and drained: stale lines of older epochs.
        Write(0, 0, 120),
        Write(0, 0, 120),
        Drain(0),
        Write(1, 0, 24),
        Drain(1),
        Write(0, 0, 96),
        Write(0, 8, 8),
        // Partial pages, discards, zeroes.
        Write(0, 65, 2),
        Write(0, 70, 1),
        Discard(0, 16, 8),
        Zero(0, 24, 8),
        Write(0, 27, 2),
        Write(1, 8, 8),
        Write(1, 0, 20),
        Write(0, 32, 8),
    ];
    ops.extend_from_slice(last);
    Script {
        name: format!("flips {name}"),
        geometry: Geometry { chunk_pages: 16, nchunks: 8, nvolumes: 3, nslots: 1, shares: [0; 2] },
        volumes: vec![120, 40],
        block_size: 512,
        ops,
        from: 0,
    }
}

struct Flipper {
    state: State,
    script: Script,
    recording: Recording,
    engine: Engine,
    options: sys::fby_options,
    /// The content of each sector.
    truth: Vec<Vec<u64>>,
    /// Recovery's name of a page: (volume, block), and whether it is on a tail.
    owner: Vec<Option<(usize, u64)>>,
    tail: Vec<bool>,
    /// The content of each sector before the last batches, if that is not on a tail.
    older: Vec<Vec<Vec<u64>>>,
}

type Ids = Vec<Vec<u64>>;

impl Flipper {
    fn new(state: State) -> Result<Self, String> {
        let (last, name): (&[Op], _) = match state {
            State::Closed => (&[Op::Shut], "closed"),
            State::Sealed => (&[Op::Tick, Op::Tick], "sealed"),
            State::Killed => (&[], "killed"),
            State::Open => (&[Op::Tick, Op::Tick], "open"),
        };
        let script = script(last, name);
        let recording = record(&script)?;
        let media = Media::bare(script.geometry.media_bytes());
        media.load(recording.end.bytes());
        let pages = (script.geometry.nchunks * script.geometry.chunk_pages) as usize;
        let mut f = Self {
            state,
            options: sys::fby_options { nslots: 1, ..Default::default() },
            engine: Engine::new(media),
            truth: Vec::new(),
            owner: vec![None; pages],
            tail: vec![false; pages],
            older: Vec::new(),
            script,
            recording,
        };
        f.learn()?;
        Ok(f)
    }

    /// The truth, from the pool without any damage.
    fn learn(&mut self) -> Result<(), String> {
        let g = self.script.geometry;
        let mut open_tail = Vec::new();
        self.engine.open_all(&self.options).map_err(|e| format!("open: {e}"))?;
        let (truth, _) = self.read_all(&self.recording.origins.clone())?;
        for c in 0..g.nchunks {
            let mut last: Option<sys::fby_page_line> = None;
            for page in g.first_page()..g.chunk_pages {
                let e = self.engine.entry_info(c, page, true).map_err(|e| e.to_string())?;
                if e.valid && e.current {
                    last = Some(e.line);
                    self.owner[(c * g.chunk_pages + page) as usize] =
                        Some((usize::from(e.line.volume), e.line.block));
                }
            }
            open_tail.push(last);
        }
        self.engine.abandon();
        if self.state == State::Killed {
            // The last batch of each chunk that had no closed seal on the media.
            for (c, last) in open_tail.iter().enumerate() {
                let Some(l) = last else { continue };
                for p in l.batch_first..l.batch_first + u16::from(l.batch_count) {
                    self.tail[c * g.chunk_pages as usize + usize::from(p)] = true;
                }
            }
        }
        self.older = truth.iter().map(|v| vec![Vec::new(); v.len()]).collect();
        for (_, mark) in &self.recording.marks {
            if let crate::script::Mark::Begin { vol, sectors, id, .. } = mark {
                for s in sectors.clone() {
                    self.older[*vol][s as usize].extend([*id, pattern::ZERO]);
                }
            }
        }
        for (vol, older) in self.older.iter_mut().enumerate() {
            for (s, ids) in older.iter_mut().enumerate() {
                ids.push(self.recording.origins[vol].read(s as u64));
            }
        }
        self.truth = truth;
        self.reset();
        Ok(())
    }

    fn reset(&mut self) {
        if self.engine.is_open() {
            self.engine.abandon();
        }
        self.engine.media.load(self.recording.end.bytes());
    }

    /// Contents, and how attach had to be asked.
    fn read_all(&mut self, origins: &[Origin]) -> Result<(Ids, u32), String> {
        let mut asked = sys::FBY_HOLES_FAIL;
        let mut all = Vec::new();
        for (vol, origin) in origins.iter().enumerate() {
            let index = self
                .engine
                .volume_find(&name(vol))
                .map_err(|e| format!("volume {vol} is not found: {e}"))?;
            let (identity, a) = attach_of(number(vol), origin.sectors());
            let mut result = Ok(());
            for holes in [sys::FBY_HOLES_FAIL, sys::FBY_HOLES_ISOLATE, sys::FBY_HOLES_ACCEPT] {
                result = self
                    .engine
                    .volume_attach(index, &Attach { identity: &identity, holes, ..a.clone() });
                asked = asked.max(holes);
                if result.is_ok() {
                    break;
                }
            }
            result.map_err(|e| format!("attach of volume {vol}: {e}"))?;
            all.push(read_volume(&mut self.engine, index, origin)?);
        }
        Ok((all, asked))
    }

    /// The page that a byte belongs to, by its line or by its data.
    fn page_of(&self, at: u64) -> Option<usize> {
        let g = self.script.geometry;
        let in_chunks = at.checked_sub(g.data_offset())?;
        let chunk = in_chunks / u64::from(g.chunk_size());
        let inside = in_chunks % u64::from(g.chunk_size());
        let first = u64::from(g.first_page());
        let own = u64::from(sys::FBY_CHUNK_LINES);
        let page = match inside / 4096 {
            page if page >= first => page,
            _ => (inside / 64).checked_sub(own)? + first,
        };
        let pages = u64::from(g.chunk_pages);
        (page < pages).then_some((chunk * pages + page) as usize)
    }

    /// Compares with the truth: (sectors lost, blocks as before their last write).
    fn judge(&self, got: &Ids, at: u64) -> Result<(bool, bool), String> {
        let page = self.page_of(at);
        let owner = page.and_then(|p| self.owner[p]);
        let tail = page.is_some_and(|p| self.tail[p]);
        let (mut lost, mut torn) = (false, false);
        for (vol, ids) in got.iter().enumerate() {
            for (sector, &id) in ids.iter().enumerate() {
                if id == self.truth[vol][sector] {
                    continue;
                }
                let mine = owner == Some((vol, sector as u64 / 8));
                if mine && id == LOST {
                    lost = true;
                } else if mine && tail && self.older[vol][sector].contains(&id) {
                    torn = true;
                } else {
                    let want = self.truth[vol][sector];
                    let id = if id == LOST { "EIO".into() } else { format!("write {id}") };
                    return Err(format!(
                        "volume {vol} sector {sector} reads as {id}, holds write {want}, \
                         the flip is in the page of {owner:?}"
                    ));
                }
            }
        }
        Ok((lost, torn))
    }

    fn flip(&mut self, bit: u64, row: &mut Row) -> Result<(), String> {
        row.flips += 1;
        let mut origins = self.recording.origins.clone();
        if self.state == State::Open {
            self.engine.open_all(&self.options).map_err(|e| format!("open: {e}"))?;
            self.engine.media.flip(bit);
        } else {
            self.engine.media.flip(bit);
            self.engine.open_all(&self.options).map_err(|e| format!("open: {e}"))?;
        }
        self.engine.check(true)?;
        let (got, asked) = self.read_all(&origins)?;
        let (lost, torn) = self.judge(&got, bit / 8)?;
        if lost && row.region != Region::Data {
            return Err(format!(
                "one bit of a line was not put right: {:?} is lost",
                self.page_of(bit / 8).and_then(|p| self.owner[p])
            ));
        }
        row.isolated += u64::from(lost);
        row.torn += u64::from(torn && !lost);
        row.harmless += u64::from(!lost && !torn);
        row.asked += u64::from(asked == sys::FBY_HOLES_ISOLATE);
        row.accepted += u64::from(asked == sys::FBY_HOLES_ACCEPT);
        self.drain_all(&mut origins)?;
        for (vol, ids) in got.iter().enumerate() {
            for (sector, &id) in ids.iter().enumerate().filter(|(_, id)| **id != LOST) {
                let alone = origins[vol].read(sector as u64);
                if alone != id {
                    return Err(format!(
                        "drained, volume {vol} sector {sector} is write {alone} on the origin, \
                         read as {id}"
                    ));
                }
            }
        }
        self.engine.check(true).map_err(|e| format!("drained: {e}"))?;
        self.engine.close().map_err(|e| format!("close: {e}"))?;
        self.engine.open_all(&self.options).map_err(|e| format!("second open: {e}"))?;
        let (again, _) = self.read_all(&origins)?;
        if again != got {
            return Err("drained, closed and opened again, it reads otherwise".into());
        }
        Ok(())
    }

    fn drain_all(&mut self, origins: &mut [Origin]) -> Result<(), String> {
        for vol in 0..origins.len() {
            let index = self.engine.volume_find(&name(vol)).map_err(|e| e.to_string())?;
            self.engine.volume_drain(index, true).map_err(|e| format!("drain: {e}"))?;
        }
        for step in 1..5000u64 {
            let s = self.engine.destage_step(step * 1_000_000).map_err(|e| e.to_string())?;
            if let Some(io) = s.io {
                let vol = usize::from(io.volume);
                match io.op {
                    sys::FBY_IO_WRITE => origins[vol].write(io.sector, &io.data),
                    sys::FBY_IO_FLUSH => origins[vol].flush_all(),
                    _ => origins[vol].zero(io.sector, io.nsectors),
                }
                self.engine.destage_complete(io.id, 0);
            } else if s.decision == Decision::Done
                && (0..origins.len()).all(|v| self.engine.volume_clean(v as u16))
            {
                return Ok(());
            }
        }
        Err("the drain does not end".into())
    }

    fn bits(&self, region: Region) -> Vec<std::ops::Range<u64>> {
        let g = self.script.geometry;
        let chunks =
            (0..u64::from(g.nchunks)).map(|c| g.data_offset() + c * u64::from(g.chunk_size()));
        let own = u64::from(sys::FBY_CHUNK_LINES) * 64;
        let bytes: Vec<std::ops::Range<u64>> = match region {
            Region::Superblock => vec![0..512, 4096..4096 + 512],
            Region::Record => {
                let records = (0..u64::from(g.nvolumes)).map(|v| 8192 + v * 512);
                records.map(|at| at..at + 512).collect()
            }
            Region::ChunkLine => chunks.map(|at| at..at + own).collect(),
            Region::PageLine => chunks.map(|at| at + own..at + u64::from(g.lines()) * 64).collect(),
            Region::Data => {
                let data = u64::from(g.first_page()) * 4096;
                chunks.map(|at| at + data..at + u64::from(g.chunk_size())).collect()
            }
        };
        bytes.into_iter().map(|r| r.start * 8..r.end * 8).collect()
    }
}

/// Flips one bit in `every` of the region's (all for 1), or `random` ones.
pub fn flip_region(
    state: State,
    region: Region,
    every: u64,
    random: Option<u64>,
    seed: u64,
) -> Result<Row, String> {
    let mut f = Flipper::new(state)?;
    let mut row =
        Row { state, region, flips: 0, harmless: 0, isolated: 0, torn: 0, asked: 0, accepted: 0 };
    let mut rng = Rng::new(seed);
    let ranges = f.bits(region);
    let bits: Vec<u64> = match random {
        None => ranges.into_iter().flatten().filter(|b| (b + seed).is_multiple_of(every)).collect(),
        Some(n) => (0..n)
            .map(|_| {
                let r = &ranges[rng.index(ranges.len())];
                rng.range(r.start, r.end - 1)
            })
            .collect(),
    };
    for bit in bits {
        hooks::set_context(|| format!("flip of bit {bit} ({region:?}) of a pool {state:?}"));
        let result = f.flip(bit, &mut row);
        f.reset();
        result.map_err(|e| {
            format!("{state:?} {region:?}: bit {} of byte {}: {e}", bit % 8, bit / 8)
        })?;
    }
    Ok(row)
}

/// All states and regions; `data` random flips in all.
pub fn jobs(data: u64) -> Vec<(State, Region, Option<u64>)> {
    let mut jobs = Vec::new();
    for state in STATES {
        for region in REGIONS {
            // The structures that describe the pool are not read while it is open.
            if state == State::Open && region < Region::ChunkLine {
                continue;
            }
            let random = (region == Region::Data).then_some(data / STATES.len() as u64);
            jobs.push((state, region, random));
        }
    }
    jobs
}
