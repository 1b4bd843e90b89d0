// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flipped bits of a grouped pool with a volume, one at a time: of superblocks, records, open lines,
//! arrays, group lines and pages.  After each the pool opens, and each sector reads as what was
//! written last, or as an error.  There are two exceptions, both of a chunk whose array was not
//! written.  Damage of its last group passes for a torn group, and the block shows what it had
//! before.  Damage of the lines of an earlier group may hide which blocks it has: the volume is
//! refused then, and shows something older only to those who accept that.  What is destaged is
//! right, too.

use forebay_engine::groups::Durable;
use forebay_engine::{sys, Step as Destage};
use serde::Serialize;

use super::explore::settle;
use super::run::UNIT;
use super::scenes::POOL;
use super::ssd::{Engine, Ssd};
use super::volumes::{attach_as, VolumeScene, SECTORS};
use crate::device::{Block, Disk};
use crate::engine::Decision;
use crate::hooks;
use crate::origin::Origin;
use crate::pattern;

const NUMBER: u64 = 1;
/// In the place of an id: an error.
const LOST: u64 = u64::MAX - 2;
/// Bits of structures are flipped so many times as often as those of pages.
const DENSE: usize = 16;
/// Blocks of a chunk.
const CHUNK: usize = POOL.chunk_pages as usize;
/// One of so many flips is destaged.
const DESTAGED: u64 = 16;

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Flips {
    pub flips: u64,
    /// All reads as before.
    pub harmless: u64,
    /// Some sectors answer with an error.
    pub isolated: u64,
    /// For how many of these attach needed the order to isolate.
    pub asked: u64,
    /// Taken for a torn group.
    pub torn: u64,
    /// The volume was refused until it was accepted that some sectors show something older.
    pub refused: u64,
}

struct State {
    disk: Disk,
    /// The content of each sector, and the content before for those of the last group.
    truth: Vec<u64>,
    before: Vec<u64>,
    /// All that each sector has had.
    had: Vec<Vec<u64>>,
    closed: bool,
}

fn scene() -> VolumeScene {
    VolumeScene {
        name: "flips".into(),
        geometry: POOL,
        durable: Durable::Flush,
        volumes: 1,
        ops: Vec::new(),
        from: 0,
        faults: 0,
        refusals: 0,
    }
}

/// Chunks that were used before, whole and part blocks, groups of one page and of several.
fn states() -> Result<[State; 2], String> {
    let scene = scene();
    let ssd = Ssd::new(scene.start()?, scene.durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (mut engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    attach_as(&engine, 0, sys::FBY_HOLES_FAIL)?;
    let mut truth = vec![NUMBER; SECTORS as usize];
    let (mut before, mut id) = (truth.clone(), 1000);
    let mut had = vec![truth[..1].to_vec(); SECTORS as usize];
    let mut writes = vec![];
    for n in 0..40u64 {
        writes.push((n % 5 * 8, 8));
    }
    writes.extend([(0, 16), (16, 8), (3, 2), (24, 24), (41, 3), (48, 8), (40, 8)]);
    for (sector, n) in writes {
        before.copy_from_slice(&truth);
        let mut data = vec![0; n * pattern::SECTOR];
        for (at, bytes) in (sector..).zip(data.chunks_exact_mut(pattern::SECTOR)) {
            id += 1;
            pattern::fill(pattern::place(NUMBER, at), id, bytes);
            truth[at as usize] = id;
            had[at as usize].push(id);
        }
        match engine.write(0, sector, &data, &mut 0, &mut 0) {
            Ok(Decision::Done) => settle(&ssd, &engine)?,
            other => return Err(format!("write: {other:?}")),
        }
    }
    let now = |ssd: &Ssd| ssd.state().device.cut().durable().clone();
    let open = now(&ssd);
    let mut tries = 0..8;
    while engine.close_attached().is_err() {
        tries.next().ok_or("the pool does not close")?;
        settle(&ssd, &engine)?;
    }
    let state = |disk, closed| State {
        disk,
        truth: truth.clone(),
        before: before.clone(),
        had: had.clone(),
        closed,
    };
    Ok([state(open, false), state(now(&ssd), true)])
}

fn read(engine: &Engine, origin: &Origin) -> Result<Vec<u64>, String> {
    let (mut ids, mut buf) = (Vec::new(), [0; 4096]);
    for block in 0..SECTORS / 8 {
        let read = engine.read_block(0, block, 0, &mut buf);
        let (from_origin, lost) = read.masks().map_err(|e| format!("block {block}: {e}"))?;
        for (k, bytes) in buf.chunks_exact(pattern::SECTOR).enumerate() {
            let sector = block * 8 + k as u64;
            let id = match (lost >> k & 1, from_origin >> k & 1) {
                (1, _) => Some(LOST),
                (_, 1) => Some(origin.read(sector)),
                _ => pattern::read(pattern::place(NUMBER, sector), bytes),
            };
            ids.push(id.ok_or_else(|| format!("sector {sector} has other bytes"))?);
        }
    }
    Ok(ids)
}

/// Destages what can be destaged.
fn destage(ssd: &Ssd, engine: &Engine, origin: &mut Origin) -> Result<(), String> {
    engine.volume_drain(0, true).map_err(|e| format!("drain: {e}"))?;
    for n in 0..400 {
        if engine.volume_clean(0) {
            break;
        }
        match engine.destage_step(n * 50_000_000, &mut 0).map_err(|e| format!("step: {e}"))? {
            Destage::Submit(io) => {
                match io.op {
                    sys::FBY_IO_WRITE => origin.write(io.offset / 512, io.data()),
                    sys::FBY_IO_FLUSH => origin.flush_all(),
                    _ => origin.zero(io.offset / 512, io.len / 512),
                }
                engine.destage_complete(io, 0);
            }
            _ => settle(ssd, engine)?,
        }
    }
    Ok(())
}

/// `groups`: the flipped bit lies in the lines of groups of a chunk.
fn flip(
    ssd: &Ssd,
    state: &State,
    (disk, groups): (&Disk, bool),
    seen: &mut Flips,
) -> Result<(), String> {
    ssd.start(disk);
    seen.flips += 1;
    // Each structure that the open needs has a copy, or can be made again.
    let opened = Engine::open(ssd.media(), &scene().options());
    let (engine, _) = opened.map_err(|e| format!("the pool is refused: {e}"))?;
    let check = |when: &str| match engine.check(true) {
        Ok(None) => Ok(()),
        other => Err(format!("check {when}: {other:?}")),
    };
    check("after recovery")?;
    if attach_as(&engine, 0, sys::FBY_HOLES_FAIL).is_err() {
        match attach_as(&engine, 0, sys::FBY_HOLES_ISOLATE) {
            Ok(_) => seen.asked += 1,
            Err(e) if state.closed || !groups || !e.contains("HOLES") => {
                return Err(format!("the volume is refused: {e}"))
            }
            Err(_) => {
                seen.refused += 1;
                return accepted(&engine, state);
            }
        }
    }
    let mut origin = Origin::new(NUMBER, SECTORS, NUMBER);
    let ids = read(&engine, &origin)?;
    let (mut torn, mut lost) = (false, false);
    for (sector, id) in ids.iter().enumerate() {
        lost |= *id == LOST;
        let older = state.before[sector] != state.truth[sector] && !state.closed;
        torn |= older && *id == state.before[sector];
        if *id != LOST && *id != state.truth[sector] && !(older && *id == state.before[sector]) {
            return Err(format!("sector {sector} has {id}, and not {}", state.truth[sector]));
        }
    }
    if seen.flips.is_multiple_of(DESTAGED) {
        destage(ssd, &engine, &mut origin)?;
        for (sector, id) in (0u64..).zip(&ids) {
            let now = origin.read(sector);
            if *id != LOST && now != *id {
                return Err(format!("destaged, sector {sector} has {now}, and not {id}"));
            }
        }
        check("destaged")?;
    }
    seen.torn += u64::from(torn);
    seen.isolated += u64::from(lost);
    seen.harmless += u64::from(!torn && !lost);
    ssd.misuse().map_or(Ok(()), Err)
}

/// The volume is attached with the order to accept that some sectors show something older.
fn accepted(engine: &Engine, state: &State) -> Result<(), String> {
    attach_as(engine, 0, sys::FBY_HOLES_ACCEPT)?;
    let ids = read(engine, &Origin::new(NUMBER, SECTORS, NUMBER))?;
    let wrong = |(sector, id): &(usize, u64)| *id != LOST && !state.had[*sector].contains(id);
    match ids.into_iter().enumerate().find(wrong) {
        Some((sector, id)) => Err(format!("sector {sector} has {id}, which it never had")),
        None => Ok(()),
    }
}

/// One in so many bits of pages that are not empty, and of all other lines 16 times as many.
pub fn flips(every: usize) -> Result<Flips, String> {
    let mut seen = Flips::default();
    for state in states()? {
        let ssd = Ssd::new(state.disk.clone(), Durable::Flush);
        let mut bit = 0;
        for block in 0..state.disk.len() {
            let whole = state.disk.block(block).cloned().ok_or("an unreadable block")?;
            let groups = whole.bytes().starts_with(b"FOGP");
            let structure = block < CHUNK || block % CHUNK < 3 || groups;
            let step = if structure { every.div_ceil(DENSE) } else { every };
            for line in 0..UNIT / 64 {
                if whole.bytes()[line * 64..][..64].iter().all(|byte| *byte == 0) {
                    continue;
                }
                // The first bit of the line that is the next by count.
                while bit < 512 {
                    let at = line * 64 + bit / 8;
                    let mut bytes = whole.bytes().to_vec();
                    bytes[at] ^= 1 << (bit % 8);
                    let mut disk = state.disk.clone();
                    disk.set(block, Some(Block::new(&bytes)));
                    let closed = if state.closed { "closed" } else { "open" };
                    let name = || format!("{closed}, block {block} byte {at} bit {}", bit % 8);
                    hooks::set_context(|| format!("flips of a volume: {}", name()));
                    flip(&ssd, &state, (&disk, groups), &mut seen)
                        .map_err(|e| format!("{}: {e}", name()))?;
                    bit += step;
                }
                bit -= 512;
            }
        }
    }
    Ok(seen)
}
