// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: what was synced is there after a kill and after a power cut, cell by cell, nothing
//! that was cut off comes back, and nothing is there that was never in the file.  Method:
//! random calls on a simulated machine with fewer frames than segments; before some of its
//! calls the power is cut, the share recovered, and the file compared with a model that
//! knows of each cell what it may be.
//!
//! Each planted mistake is found by this, and only found mistakes count.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::planted::{plant, Planted};
use crate::recover::recover;
use crate::simulated::{open, Machine, Random};
use crate::store::Store;
use crate::{Cache, Features, MapFile, Options, PAGE, SEGMENT};

/// Mistakes are planted for the whole process.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

const CELL: u64 = 512;
const SEGMENTS: u64 = 4;
const FRAMES: usize = 2;

#[derive(Clone, Debug)]
struct Cell {
    now: u64,
    /// What it may be after a crash.
    may: Vec<u64>,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell { now: 0, may: vec![0] }
    }
}

#[derive(Clone, Debug)]
struct Model {
    cells: BTreeMap<u64, Cell>,
    size: u64,
    sizes: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Call {
    Store(u64, u64),
    StoreBehind(u64, u64),
    Write(u64, u64, u64),
    Read(u64, u64),
    Sync(u64, u64),
    SetSize(u64),
    Drop(u64),
    Round,
}

/// Cells that are used: at some pages of each segment.
fn a_cell(random: &mut Random) -> u64 {
    let pages = [0, 1, 7, 300, 511];
    let segment = random.below(SEGMENTS);
    let page = segment * (SEGMENT / PAGE) as u64 + pages[random.below(5) as usize];
    page * 8 + random.below(8)
}

fn a_call(random: &mut Random, model: &Model, value: u64) -> Call {
    let cell = a_cell(random);
    let within = cell < model.size;
    match random.below(100) {
        0..=44 if within => Call::Store(cell, value),
        0..=44 => Call::StoreBehind(cell, value),
        45..=62 => Call::Sync(cell, 1 + random.below(20)),
        63..=66 => Call::Sync(0, u64::MAX / CELL),
        67..=75 => Call::Read(cell, 1 + random.below(30)),
        76..=84 if within => {
            let n = (1 + random.below(20)).min(SEGMENTS * 4096 - cell);
            Call::Write(cell, n, value)
        }
        85 => Call::Write(cell / 4096 * 4096, 4096, value),
        86..=90 => Call::SetSize(cell),
        91..=92 => Call::Drop(random.below(SEGMENTS)),
        _ => Call::Round,
    }
}

impl Model {
    fn set(&mut self, cell: u64, value: u64) {
        let cell = self.cells.entry(cell).or_default();
        cell.may.push(value);
        cell.now = value;
    }

    /// What the call may have done, as soon as it has begun.
    fn begin(&mut self, call: &Call) {
        match *call {
            Call::Store(cell, value) => self.set(cell, value),
            Call::Write(cell, n, value) => {
                (cell..cell + n).for_each(|c| self.set(c, value));
                self.sizes.push(self.size.max(cell + n));
            }
            Call::SetSize(size) => {
                let behind: Vec<u64> = self.cells.range(size..).map(|(&c, _)| c).collect();
                behind.into_iter().for_each(|c| self.set(c, 0));
                self.sizes.push(size);
            }
            _ => {}
        }
    }

    /// What it has done, when it has ended.
    fn end(&mut self, call: &Call) {
        match *call {
            Call::Write(cell, n, _) => self.size = self.size.max(cell + n),
            Call::SetSize(size) => {
                if size < self.size {
                    self.cells.retain(|&c, _| c < size);
                    self.sizes = vec![size];
                }
                self.size = size;
            }
            Call::Sync(cell, n) => {
                let end = (cell + n).min(self.size).next_multiple_of(8);
                for (_, c) in self.cells.range_mut(cell / 8 * 8..end.max(cell / 8 * 8)) {
                    c.may = vec![c.now];
                }
                self.sizes = vec![self.size];
            }
            _ => {}
        }
    }

    fn compare(&self, content: &[u8]) -> Result<(), String> {
        let size = content.len() as u64 / CELL;
        if !self.sizes.contains(&size) {
            return Err(format!("{size} cells, not one of {:?}", self.sizes));
        }
        let none = Cell::default();
        for (i, cell) in content.chunks(CELL as usize).enumerate() {
            let may = &self.cells.get(&(i as u64)).unwrap_or(&none).may;
            for word in cell.chunks(8) {
                let word = u64::from_ne_bytes(word.try_into().expect("eight"));
                if !may.contains(&word) {
                    return Err(format!("cell {i} has {word}, not one of {may:?}, of {size}"));
                }
            }
        }
        Ok(())
    }
}

fn bytes(n: u64, value: u64) -> Vec<u8> {
    value.to_ne_bytes().repeat((n * CELL / 8) as usize)
}

fn read_is(model: &Model, content: &[u8], from: u64) -> Result<(), String> {
    for (i, cell) in content.chunks(CELL as usize).enumerate() {
        let now = model.cells.get(&(from + i as u64)).map_or(0, |c| c.now);
        if cell != bytes(1, now) {
            let found = u64::from_ne_bytes(cell[..8].try_into().expect("eight"));
            return Err(format!("cell {} is {found}, not {now}", from + i as u64));
        }
    }
    Ok(())
}

fn perform(file: &MapFile, cache: &Cache, model: &mut Model, call: &Call) -> Result<(), String> {
    let told = |e: crate::Error| format!("{call:?}: {e}");
    match *call {
        Call::Store(cell, value) | Call::StoreBehind(cell, value) => {
            file.store(cell * CELL, &bytes(1, value));
        }
        Call::Write(cell, n, value) => file.write(cell * CELL, &bytes(n, value)).map_err(told)?,
        Call::Sync(cell, n) => file.sync(cell * CELL, n.saturating_mul(CELL)).map_err(told)?,
        Call::SetSize(size) => file.set_size(size * CELL).map_err(told)?,
        Call::Round => drop(cache.round().map_err(told)?),
        Call::Read(cell, n) => {
            let mut to = vec![1; (n * CELL) as usize];
            let got = file.read(cell * CELL, &mut to).map_err(told)?;
            let there = n.min(model.size.saturating_sub(cell));
            if got as u64 != there * CELL {
                return Err(format!("{got} bytes were read of {there} cells"));
            }
            read_is(model, &to[..got], cell)?;
            if there > 0 {
                let mut to = vec![1; CELL as usize];
                file.load(cell * CELL, &mut to);
                read_is(model, &to, cell)?;
            }
        }
        Call::Drop(segment) => {
            file.drop_cache(segment * SEGMENT as u64, SEGMENT as u64).map_err(told)?;
            // What was not synced may be gone: it is what it is now.
            let first = segment * 4096;
            let mut to = vec![0; SEGMENT];
            let got = file.read(first * CELL, &mut to).map_err(told)?;
            for (i, cell) in to[..got].chunks(CELL as usize).enumerate() {
                let now = u64::from_ne_bytes(cell[..8].try_into().expect("eight"));
                if let Some(cell) = model.cells.get_mut(&(first + i as u64)) {
                    if !cell.may.contains(&now) {
                        return Err(format!("dropped: {now}, not one of {:?}", cell.may));
                    }
                    cell.now = now;
                } else if now != 0 {
                    return Err(format!("dropped: cell {} is {now}", first + i as u64));
                }
            }
        }
    }
    Ok(())
}

fn options(features: &Features) -> Options {
    Options {
        by_hand: true,
        quiet: 0,
        unmark_after: 0,
        features: Some(features.clone()),
        ..Options::default()
    }
}

/// After a cut the file says that it lacks something, if it does; a recovery brings all home,
/// and nothing is left, not the mark either.
fn recovered(after: &Arc<Machine>, model: &Model) -> Result<(), String> {
    if after.lacks_and_tells() == (true, false) {
        return Err("the file lacks pages, and is not marked".into());
    }
    let home = recover(&**after, open(after)).map_err(|e| e.to_string())?;
    if !home.refused.is_empty() {
        return Err(format!("{home:?}"));
    }
    model.compare(&after.content())?;
    if !after.is_empty() {
        return Err(format!("frames or files stay: {after:?}"));
    }
    match after.lacks_and_tells() {
        (false, false) => Ok(()),
        _ => Err("the file has everything, and is marked".into()),
    }
}

/// One history; how many cuts were judged.
fn history(seed: u64, features: &Features, calls: usize) -> Result<usize, String> {
    let mut random = Random(seed);
    for _ in 0..8 {
        random.below(2);
    }
    let cuts: Vec<u64> = (0..3).map(|_| 3 + random.below(3 * calls as u64 / 2)).collect();
    let size = a_cell(&mut random).max(1);
    let machine = Machine::new(FRAMES, size * CELL, cuts);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let cache = Cache::new(store, options(features)).map_err(|e| e.to_string())?;
    let room = SEGMENTS * SEGMENT as u64;
    let file = cache.open_backing(machine.file(), room).map_err(|e| e.to_string())?;
    let mut model = Model { cells: BTreeMap::new(), size, sizes: vec![size] };
    let mut judged = 0;
    let mut trace = Vec::new();
    for value in 1..=calls as u64 {
        let call = a_call(&mut random, &model, value);
        trace.push(call.clone());
        model.begin(&call);
        let failed = perform(&file, &cache, &mut model, &call);
        let with_trace = |e: String| format!("seed {seed}: {e}, after {trace:?}");
        failed.map_err(with_trace)?;
        for left in machine.left() {
            for killed in [true, false] {
                let said = format!("cut before call {}, killed: {killed}", left.call);
                let with_cut = |e: String| with_trace(format!("{said}: {e}"));
                let again = [1 + random.below(12)];
                let after = left.machine(&mut random, killed, &again);
                recovered(&after, &model).map_err(with_cut)?;
                for second in after.left() {
                    let after = second.machine(&mut random, killed, &[]);
                    let said = |e| with_cut(format!("cut in the recovery: {e}"));
                    recovered(&after, &model).map_err(said)?;
                    judged += 1;
                }
                judged += 1;
            }
        }
        model.end(&call);
    }
    file.close().map_err(|e| format!("seed {seed}: close: {e}"))?;
    read_is(&model, &machine.content(), 0).map_err(|e| format!("seed {seed}: closed: {e}"))?;
    match machine.is_empty() && machine.lacks_and_tells() == (false, false) {
        true => Ok(judged),
        false => Err(format!("seed {seed}: frames, files or the mark stay after close")),
    }
}

/// Blocks are had before a sync is acknowledged, or the sync is not.
#[test]
fn a_full_disk_is_told_by_the_sync_and_not_later() {
    let _alone = alone();
    let machine = Machine::new(2, 0, []);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let all = Features::detect(store.memory(), 0);
    let cache = Cache::new(store, options(&all)).expect("a cache");
    let file = cache.open_backing(machine.file(), SEGMENT as u64 * 2).expect("open");
    file.set_size(SEGMENT as u64 * 2).expect("larger");
    file.store(0, &[1]);
    file.sync(0, 1).expect("there is room");
    machine.fill_disk();
    file.store(5 * PAGE as u64, &[2]);
    file.sync(0, SEGMENT as u64).expect("its blocks are there");
    file.store(SEGMENT as u64, &[3]);
    let said = file.sync(0, u64::MAX).expect_err("no blocks").to_string();
    assert!(said.contains("allocate"), "{said}");
    cache.round().expect("what was synced has blocks");
    assert_eq!(machine.content()[5 * PAGE], 2);
    assert!(file.sync(0, u64::MAX).is_err(), "it is told again");
}

fn has(name: &str) -> Option<Features> {
    let features = Features::detect(Machine::new(1, 0, []).memory(), 0);
    if features.watch {
        return Some(features);
    }
    eprintln!("skipped: {name} needs userfaultfd and PAGEMAP_SCAN: {:?}", features.missing);
    None
}

fn histories(
    features: &Features,
    time: Duration,
    seeds: std::ops::Range<u64>,
) -> Result<[usize; 2], String> {
    let end = Instant::now() + time;
    let (mut n, mut judged) = (0, 0);
    for seed in seeds {
        if Instant::now() > end {
            break;
        }
        judged += history(seed, features, 120)?;
        n += 1;
    }
    Ok([n, judged])
}

#[test]
fn what_was_synced_is_there_after_each_cut() {
    let _alone = alone();
    let Some(features) = has("what_was_synced_is_there_after_each_cut") else { return };
    let seconds = std::env::var("MAP_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    let first = std::env::var("MAP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let [n, judged] = histories(&features, Duration::from_secs(seconds), first..u64::MAX)
        .expect("what was synced is there");
    println!("{n} histories, {judged} cuts");
    assert!(n > 0 && judged > 0);
    // What the kernel may lack.
    let lacking = Features { watch: false, ..features.clone() };
    histories(&lacking, Duration::from_secs(2), 1..u64::MAX).expect("without watching");
    let lacking = Features { scan: false, ..lacking };
    histories(&lacking, Duration::from_secs(2), 1..u64::MAX).expect("without a scan");
}

#[test]
fn planted_mistakes_of_the_library_are_found() {
    let _alone = alone();
    let Some(features) = has("planted_mistakes_of_the_library_are_found") else { return };
    for mistake in [
        Planted::SizeNotSynced,
        Planted::ClearedBeforeSync,
        Planted::CutNotTold,
        Planted::TailKept,
        Planted::DirtyDiscarded,
        Planted::WriteNotTold,
        Planted::LastPageLeft,
        Planted::MarkedAfter,
        Planted::UnmarkedEarly,
        Planted::NotStamped,
    ] {
        plant(Some(mistake));
        let found = histories(&features, Duration::from_secs(60), 1..u64::MAX);
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {}", found.split(", after").next().unwrap_or(""));
    }
}
