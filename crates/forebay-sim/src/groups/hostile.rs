// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever happens to a grouped pool's blocks while nobody has it open: flipped bits, zeroes,
//! lines and blocks that change places, pieces of older states of the same pool, unreadable
//! blocks.  Open, check, dump, claim, replay and the next period end with an error or go on.  A
//! replay hands out entries that were appended, in order, each once.  One that reports nothing
//! missing has all of them, with two exceptions: the last group of a chunk whose array was not
//! written counts as torn, and a consistent piece of an older state cannot be distinguished from
//! that state.

use std::ops::Range;

use forebay_engine::groups::{Durable, TicketState};
use forebay_engine::logs::Cursor;
use forebay_engine::sys;
use serde::Serialize;

use super::explore::settle;
use super::run::{Scene, UNIT};
use super::scenes::{BIG, POOL};
use super::ssd::{Engine, Ssd};
use crate::device::{Block, Disk};
use crate::engine::{Decision, Wait};
use crate::hooks;
use crate::logs::script::{body, guid, id_of, name};
use crate::rng::{mix, Rng};
use crate::script::Geometry;

const LOGS: usize = 2;
const TWELVE: Geometry = Geometry { nchunks: 12, ..POOL };

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    txg: u64,
}

/// A pool as somebody left it, and earlier states of it.
struct State {
    name: &'static str,
    disk: Disk,
    older: Vec<Disk>,
    /// The entries of each log, and what it has synced.
    entries: [Vec<Entry>; LOGS],
    synced: [u64; LOGS],
    /// Entries of the last group of each log.
    last: u64,
    closed: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Hostile {
    pub mutations: u64,
    /// The pool opened.
    pub opened: u64,
    /// A loss was reported.
    pub told: u64,
    /// Every entry came.
    pub whole: u64,
}

/// Its ticket, unless the pool is full.
pub(super) fn append(
    ssd: &Ssd,
    engine: &Engine,
    log: u16,
    txg: u64,
    body: &[u8],
) -> Result<Option<u64>, String> {
    let mut waits = Wait::Ticket;
    for _ in 0..8 {
        match engine.log_append(log, txg, true, &[body], &mut 0) {
            Ok((Decision::Done, name)) => return Ok(Some(name.ticket)),
            Ok((Decision::Wait(wait), _)) => waits = wait,
            other => return Err(format!("append: {other:?}")),
        }
        settle(ssd, engine)?;
    }
    match waits {
        Wait::Space => Ok(None),
        _ => Err("an append waits for ever".into()),
    }
}

fn states() -> Result<Vec<State>, String> {
    let (durable, name_of) = (Durable::Flush, "hostile".into());
    let scene = Scene {
        name: name_of,
        geometry: TWELVE,
        durable,
        logs: LOGS,
        ops: vec![],
        from: 0,
        faults: 0,
    };
    let ssd = Ssd::new(scene.start()?, durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (mut engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    let (mut entries, mut synced) = ([const { Vec::new() }; LOGS], [0; LOGS]);
    for log in 0..LOGS {
        let created = engine.log_create(log as u16, &guid(log, 1), 0, &mut 0);
        created.map_err(|e| format!("create: {e}"))?;
    }
    let durable_now = |ssd: &Ssd| ssd.state().device.cut().durable().clone();
    let (mut older, mut id) = (vec![durable_now(&ssd)], 0);
    for txg in 1..=7 {
        for (log, bytes) in [(0, 90), (1, 300), (1, BIG), (0, 5000), (0, BIG), (1, 40), (0, 70)] {
            id += 1;
            append(&ssd, &engine, log as u16, txg, &body(id, bytes))?.ok_or("the pool is full")?;
            entries[log].push(Entry { id, txg });
            if !id.is_multiple_of(3) {
                settle(&ssd, &engine)?;
            }
        }
        settle(&ssd, &engine)?;
        older.push(durable_now(&ssd));
        for (log, synced) in synced.iter_mut().enumerate().filter(|_| txg > 1) {
            *synced = txg - 1;
            engine.log_sync(log as u16, txg - 1, &mut 0).map_err(|e| format!("sync: {e}"))?;
        }
    }
    let killed = durable_now(&ssd);
    let mut is_closed = false;
    for _ in 0..8 {
        is_closed = is_closed || engine.close_attached().is_ok();
        settle(&ssd, &engine)?;
    }
    if !is_closed {
        return Err("the pool does not close".into());
    }
    let closed = durable_now(&ssd);
    let state = |name, disk, closed| State {
        name,
        disk,
        older: older.clone(),
        entries: entries.clone(),
        synced,
        last: 2,
        closed,
    };
    Ok(vec![state("killed", killed, false), state("closed", closed, true)])
}

fn bytes_at(disk: &Disk, range: Range<usize>) -> Vec<u8> {
    range.map(|at| disk.block(at / UNIT).map_or(0, |b| b.bytes()[at % UNIT])).collect()
}

fn store(disk: &mut Disk, at: usize, bytes: &[u8]) {
    let (first, end) = (at / UNIT, (at + bytes.len()).div_ceil(UNIT));
    for block in first..end {
        let mut now = bytes_at(disk, block * UNIT..(block + 1) * UNIT);
        for (i, byte) in bytes.iter().enumerate() {
            if (at + i) / UNIT == block {
                now[(at + i) % UNIT] = *byte;
            }
        }
        disk.set(block, Some(Block::new(&now)));
    }
}

/// Mutation `n` of the disk, and what it is.  True: it may show an older state.
fn mutate(state: &State, disk: &mut Disk, n: u64) -> (String, bool) {
    let mut rng = Rng::new(mix(n ^ 0x4057));
    let chunk = TWELVE.chunk_size() as usize;
    let len = disk.bytes();
    // Half of them where structures are: before all chunks, and in the first blocks of one.
    let place = |unit: usize, rng: &mut Rng| {
        let at = match rng.below(4) {
            0 => rng.index(chunk),
            1 => rng.index(len / chunk) * chunk + rng.index(4 * UNIT),
            2 => rng.index(len / UNIT) * UNIT + rng.index(512),
            _ => rng.index(len),
        };
        (at / unit * unit).min(len - unit)
    };
    match n % 5 {
        0 => {
            let places: Vec<usize> = (0..=rng.below(4)).map(|_| place(1, &mut rng)).collect();
            for &at in &places {
                let bit = 1 << rng.below(8);
                let byte = bytes_at(disk, at..at + 1)[0] ^ bit;
                store(disk, at, &[byte]);
            }
            (format!("bits flipped in bytes {places:?}"), false)
        }
        1 => {
            let unit = rng.pick(&[8, 64, 512, 4096]);
            let at = place(unit, &mut rng);
            let bytes = (unit * rng.range(1, 4) as usize).min(len - at);
            store(disk, at, &vec![0; bytes]);
            (format!("{bytes} bytes zeroed at {at}"), false)
        }
        2 => {
            let unit = rng.pick(&[64, 4096]);
            let (a, b) = (place(unit, &mut rng), place(unit, &mut rng));
            let (at_a, at_b) = (bytes_at(disk, a..a + unit), bytes_at(disk, b..b + unit));
            store(disk, a, &at_b);
            store(disk, b, &at_a);
            (format!("{unit} bytes at {a} and {b} swapped"), false)
        }
        3 => {
            let blocks: Vec<usize> =
                (0..=rng.below(3)).map(|_| place(UNIT, &mut rng) / UNIT).collect();
            blocks.iter().for_each(|&block| disk.set(block, None));
            (format!("blocks {blocks:?} unreadable"), false)
        }
        _ => {
            let old = rng.index(state.older.len());
            let unit = rng.pick(&[64, 512, 4096]);
            let at = place(unit, &mut rng);
            let bytes = (unit * rng.range(1, 3) as usize).min(len - at);
            store(disk, at, &bytes_at(&state.older[old], at..at + bytes));
            (format!("{bytes} bytes at {at} from state {old}"), true)
        }
    }
}

fn dump(engine: &Engine) -> Result<(), String> {
    for chunk in 0..TWELVE.nchunks {
        engine.chunk_info(chunk).map_err(|e| format!("chunk {chunk}: {e}"))?;
        let (mut at, mut n) = (Cursor::default(), 0);
        while let Ok(Some(_)) = engine.log_entry_info(chunk, &mut at, true) {
            n += 1;
            if n > TWELVE.chunk_size() / 128 {
                return Err(format!("the dump of chunk {chunk} does not end"));
            }
        }
    }
    Ok(())
}

/// The entries that a replay of the log hands out, and whether it reported a loss; None: refused.
fn replay(
    engine: &Engine,
    state: &State,
    log: usize,
    old: bool,
) -> Result<Option<(Vec<u64>, bool)>, String> {
    let Ok(info) = engine.log_info(log as u16) else { return Ok(None) };
    let mut header = info.header;
    let Ok((mut nodes, claim)) = engine.log_claim(log as u16, 0, &mut header) else {
        return Ok(None);
    };
    if header.state == sys::FBY_LOG_NONE {
        return Ok(None);
    }
    let mut told = info.missing > 0 || info.incomplete || claim.end != sys::FBY_LOG_COMPLETE;
    let (mut ids, mut wrong, mut room) = (Vec::new(), None, Vec::new());
    let replayed = engine.log_replay(log as u16, &mut nodes, &mut |node, _| {
        let Ok(found) = engine.log_read(log as u16, node, &mut room) else {
            return sys::FBY_LOG_DAMAGED;
        };
        let id = id_of(found);
        let entry = id.and_then(|id| state.entries[log].iter().find(|e| e.id == id));
        match entry {
            Some(e) if e.txg == node.txg && (old || e.txg > state.synced[log]) => ids.push(e.id),
            _ => wrong = Some(format!("entry {:?} is none, or obsolete", (node.gen, node.id))),
        }
        sys::FBY_LOG_REPLAYED
    });
    let result = replayed.map_err(|e| format!("replay: {e}"))?;
    told |= result.end != sys::FBY_LOG_COMPLETE || result.damaged > 0;
    if !ids.is_sorted_by(|a, b| a < b) {
        wrong = Some(format!("{ids:?} are not in order"));
    }
    wrong.map_or(Ok(Some((ids, told))), Err)
}

/// The next period of the log, if it can have one.
fn next_period(ssd: &Ssd, engine: &Engine, log: u16) -> Result<bool, String> {
    let mut ended = false;
    for _ in 0..8 {
        match engine.log_destroy(log, &mut 0) {
            Ok((Decision::Done, _)) => ended = true,
            Ok((Decision::Wait(_), _)) => settle(ssd, engine)?,
            _ => return Ok(false),
        }
        if ended {
            break;
        }
    }
    if engine.log_create(log, &guid(log.into(), 9), 9, &mut 0).is_err() {
        return Ok(false);
    }
    let small = append(ssd, engine, log, 10, &body(901, 60))?;
    let large = append(ssd, engine, log, 11, &body(902, 6000))?;
    settle(ssd, engine)?;
    let mut tickets = small.into_iter().chain(large);
    match tickets.all(|ticket| engine.ticket(ticket) == TicketState::Durable) {
        true => Ok(small.is_some() && large.is_some()),
        false => Err("what is appended next does not become durable".into()),
    }
}

fn check(engine: &Engine, when: &str) -> Result<(), String> {
    match engine.check(true) {
        Ok(None) => Ok(()),
        other => Err(format!("check {when}: {other:?}")),
    }
}

fn try_all(ssd: &Ssd, state: &State, old: bool, seen: &mut Hostile) -> Result<(), String> {
    let options = sys::fby_options { nslots: TWELVE.nslots, ..Default::default() };
    let Ok((engine, report)) = Engine::open(ssd.media(), &options) else { return Ok(()) };
    seen.opened += 1;
    check(&engine, "after recovery")?;
    dump(&engine)?;
    let (mut next, mut whole, mut any_told) = (Vec::new(), true, false);
    for log in 0..LOGS {
        let at = |e: String| format!("{}: {e}", name(log));
        let Some((ids, told)) = replay(&engine, state, log, old).map_err(at)? else {
            (whole, any_told) = (false, true);
            continue;
        };
        let told = told || report.holes > 0 || report.damaged > 0;
        let owed = state.entries[log].iter().filter(|e| e.txg > state.synced[log]);
        let lost: Vec<u64> = owed.map(|e| e.id).filter(|id| !ids.contains(id)).collect();
        let newest = state.entries[log].last().map_or(0, |e| e.id);
        let torn = !state.closed && lost.len() as u64 <= state.last && lost.contains(&newest);
        if !lost.is_empty() && !told && !torn && !old {
            return Err(at(format!("{lost:?} are lost, and nothing was said")));
        }
        whole &= lost.is_empty();
        any_told |= told;
        if next_period(ssd, &engine, log as u16).map_err(at)? {
            next.push(log);
        }
    }
    check(&engine, "after the next period's begin")?;
    seen.whole += u64::from(whole);
    seen.told += u64::from(any_told);
    drop(engine);
    let disk = ssd.state().device.cut().durable().clone();
    ssd.start(&disk);
    let again = Engine::open(ssd.media(), &options);
    let (engine, _) = again.map_err(|e| format!("a pool that opened does not open again: {e}"))?;
    check(&engine, "after the next recovery")?;
    for log in next {
        let (mut ids, mut room) = (Vec::new(), Vec::new());
        let mut header = engine.log_info(log as u16).map_err(|e| e.to_string())?.header;
        let claimed = engine.log_claim(log as u16, 0, &mut header);
        let (mut nodes, _) = claimed.map_err(|e| format!("the next claim: {e}"))?;
        let replayed = engine.log_replay(log as u16, &mut nodes, &mut |node, _| {
            ids.extend(engine.log_read(log as u16, node, &mut room).ok().and_then(id_of));
            sys::FBY_LOG_REPLAYED
        });
        replayed.map_err(|e| format!("the next replay: {e}"))?;
        if ids != [901, 902] {
            return Err(format!("{}: {ids:?} instead of what was appended next", name(log)));
        }
    }
    ssd.misuse().map_or(Ok(()), Err)
}

/// So many mutations, by their numbers.
pub fn hostile(numbers: Range<u64>) -> Result<Hostile, String> {
    let states = states()?;
    let ssd = Ssd::new(states[0].disk.clone(), Durable::Flush);
    let mut seen = Hostile::default();
    for n in numbers {
        let state = &states[(n / 5) as usize % states.len()];
        let mut disk = state.disk.clone();
        let (what, old) = mutate(state, &mut disk, n);
        hooks::set_context(|| format!("hostile {n}: {}: {what}", state.name));
        ssd.start(&disk);
        seen.mutations += 1;
        try_all(&ssd, state, old, &mut seen)
            .map_err(|e| format!("hostile {n}: {}: {what}: {e}", state.name))?;
    }
    Ok(seen)
}
