// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: after a kill and after a power cut, each cell has its synced value or a newer one, nothing
//! that was cut off returns, and nothing appears that was never in the file.  Method: random calls
//! on two files of a simulated machine with fewer frames than segments.  Before some of the
//! machine's calls the power is cut and the share is recovered.  The files are then compared with a
//! model that knows the possible values of each cell.  In half of the histories calls of the share
//! and of the files fail.  Acknowledged data must hold nevertheless, and other data may have any
//! value that the model allows.  Once nothing fails any more, everything can be written back.
//!
//! These tests find each planted bug; only bugs that are found count.

mod failed_syncs;
mod grows;
mod kept;
mod several;
mod shared;
mod stores_at_close;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::FoundMark;
use rustix::fs::{fallocate, memfd_create, openat, FallocateFlags, MemfdFlags, Mode, OFlags, CWD};

use crate::planted::{plant, Planted};
use crate::recover::{self, recover};
use crate::simulated::{open, Left, Machine, Random};
use crate::store::{FileRecord, Store};
use crate::{Cache, Features, MapFile, Options, PAGE, SEGMENT};

/// Bugs are planted for the whole process.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file for frames: in memory, or in the directory that MAP_MEMORY names, such as one on a
/// file system with DAX.
pub(crate) fn frames_file(bytes: u64) -> File {
    let file = match std::env::var_os("MAP_MEMORY") {
        None => memfd_create("frames", MemfdFlags::CLOEXEC).expect("memfd"),
        Some(dir) => {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            openat(CWD, Path::new(&dir), flags, Mode::from_raw_mode(0o600)).expect("a file")
        }
    };
    let file = File::from(file);
    // Like a pool's file, it has all its blocks.
    fallocate(&file, FallocateFlags::empty(), 0, bytes).expect("fallocate");
    file
}

const CELL: u64 = 512;
const FILES: usize = 2;
const SEGMENTS: u64 = 4;
const FRAMES: usize = 3;

#[derive(Clone, Debug)]
struct Cell {
    now: u64,
    /// The values that it may have after a crash.
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
    Lock(u64),
    Unlock(u64),
    Close,
    Round,
}

/// A random cell, at one of a few pages of a segment.
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
        76..=83 if within => {
            let n = (1 + random.below(20)).min(SEGMENTS * 4096 - cell);
            Call::Write(cell, n, value)
        }
        84..=85 => Call::Write(cell / 4096 * 4096, 4096, value),
        86..=90 => Call::SetSize(cell),
        91..=92 => Call::Drop(random.below(SEGMENTS)),
        93 => Call::Lock(random.below(SEGMENTS)),
        94 => Call::Unlock(random.below(SEGMENTS)),
        95 if random.below(4) == 0 => Call::Close,
        _ => Call::Round,
    }
}

impl Model {
    fn set(&mut self, cell: u64, value: u64) {
        let cell = self.cells.entry(cell).or_default();
        cell.may.push(value);
        cell.now = value;
    }

    /// Records what the call may have done as soon as it has begun.
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

    /// Records what the call has done once it has ended.
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
            Call::Sync(cell, n) => self.synced(cell, n),
            Call::Close => self.synced(0, u64::MAX),
            _ => {}
        }
    }

    fn synced(&mut self, cell: u64, n: u64) {
        let end = cell.saturating_add(n).min(self.size).next_multiple_of(8);
        for (_, c) in self.cells.range_mut(cell / 8 * 8..end.max(cell / 8 * 8)) {
            c.may = vec![c.now];
        }
        self.sizes = vec![self.size];
    }

    /// Records that the call failed and may have done a part.  `before` is the state before it.
    fn failed(&mut self, call: &Call, file: &MapFile, before: &Model) -> Result<(), String> {
        let size = file.size() / CELL;
        match *call {
            Call::Write(cell, n, _) => {
                self.size = size;
                let mut to = vec![1; (n * CELL) as usize];
                let got = file.read(cell * CELL, &mut to).map_err(|e| e.to_string())?;
                for (i, found) in to[..got].chunks(CELL as usize).enumerate() {
                    let now = u64::from_ne_bytes(found[..8].try_into().expect("eight"));
                    let at = cell + i as u64;
                    let own = self.cells.get_mut(&at).expect("was set");
                    let was = before.cells.get(&at).map_or(0, |c| c.now);
                    if now != was && now != own.now || found != bytes(1, now) {
                        return Err(format!("cell {at} is {now}, not {was} or {}", own.now));
                    }
                    own.now = now;
                }
                // Cells that the call did not reach.
                for at in cell.max(size)..cell + n {
                    self.cells.get_mut(&at).expect("was set").now = 0;
                }
            }
            Call::SetSize(new) => {
                if size != new && size != before.size {
                    return Err(format!("{size} cells, not {new} or {}", before.size));
                }
                if size == before.size {
                    // The truncation did not happen now, but a crash may show that it did.
                    for (at, cell) in self.cells.range_mut(new..) {
                        cell.now = before.cells.get(at).map_or(0, |c| c.now);
                    }
                }
                self.size = size;
            }
            _ => {}
        }
        match self.sizes.contains(&self.size) {
            true => Ok(()),
            false => Err(format!("{} cells, not one of {:?}", self.size, self.sizes)),
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
            if may == &[0] && cell.iter().all(|&b| b == 0) {
                continue;
            }
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
        if now == 0 && cell.iter().all(|&b| b == 0) {
            continue;
        }
        if cell != bytes(1, now) {
            let found = u64::from_ne_bytes(cell[..8].try_into().expect("eight"));
            return Err(format!("cell {} is {found}, not {now}", from + i as u64));
        }
    }
    Ok(())
}

/// A file of the machine, with what is known of it.
struct Known {
    file: Option<MapFile>,
    model: Model,
    locked: Vec<u64>,
}

/// The reason why a call failed: an error of the library, or a violation.
enum Failed {
    Told(crate::Error),
    Wrong(String),
}

impl From<crate::Error> for Failed {
    fn from(e: crate::Error) -> Failed {
        Failed::Told(e)
    }
}

impl From<String> for Failed {
    fn from(e: String) -> Failed {
        Failed::Wrong(e)
    }
}

/// Runs `f` while no call fails: a fault that fails would be a SIGBUS.
fn touch<R>(machine: &Machine, f: impl FnOnce() -> R) -> R {
    let one_in = machine.let_fail(0);
    let done = f();
    machine.let_fail(one_in);
    done
}

fn perform(machine: &Machine, cache: &Cache, known: &mut Known, call: &Call) -> Result<(), Failed> {
    let model = &mut known.model;
    let file = known.file.as_ref().expect("open");
    match *call {
        Call::Store(cell, value) | Call::StoreBehind(cell, value) => {
            touch(machine, || file.store(cell * CELL, &bytes(1, value)));
        }
        Call::Write(cell, n, value) => file.write(cell * CELL, &bytes(n, value))?,
        Call::Sync(cell, n) => file.sync(cell * CELL, n.saturating_mul(CELL))?,
        Call::SetSize(size) => file.set_size(size * CELL)?,
        Call::Round => drop(cache.round()?),
        Call::Read(cell, n) => {
            let mut to = vec![1; (n * CELL) as usize];
            let got = file.read(cell * CELL, &mut to)?;
            let there = n.min(model.size.saturating_sub(cell));
            if got as u64 != there * CELL {
                return Err(format!("{got} bytes were read of {there} cells").into());
            }
            read_is(model, &to[..got], cell)?;
            if there > 0 {
                let mut to = vec![1; CELL as usize];
                touch(machine, || file.load(cell * CELL, &mut to));
                read_is(model, &to, cell)?;
            }
        }
        Call::Drop(segment) => {
            let dropped = file.drop_cache(segment * SEGMENT as u64, SEGMENT as u64);
            // Stores that were not synced may be lost, so take the current content.
            let first = segment * 4096;
            let mut to = vec![0; SEGMENT];
            let got = touch(machine, || file.read(first * CELL, &mut to))?;
            for (i, cell) in to[..got].chunks(CELL as usize).enumerate() {
                let now = u64::from_ne_bytes(cell[..8].try_into().expect("eight"));
                if let Some(cell) = model.cells.get_mut(&(first + i as u64)) {
                    if !cell.may.contains(&now) {
                        return Err(format!("dropped: {now}, not one of {:?}", cell.may).into());
                    }
                    cell.now = now;
                } else if now != 0 {
                    return Err(format!("dropped: cell {} is {now}", first + i as u64).into());
                }
            }
            dropped?;
        }
        Call::Lock(segment) => {
            match file.lock(segment * SEGMENT as u64, SEGMENT as u64) {
                Err(crate::Error::Refused { .. }) => {}
                done => done.map(|()| known.locked.push(segment))?,
            };
        }
        Call::Unlock(segment) => {
            if let Some(i) = known.locked.iter().position(|&s| s == segment) {
                known.locked.swap_remove(i);
                file.unlock(segment * SEGMENT as u64, SEGMENT as u64);
            }
        }
        Call::Close => {
            known.locked.clear();
            known.file.take().expect("open").close()?;
        }
    }
    Ok(())
}

pub(crate) fn options(features: &Features) -> Options {
    Options {
        by_hand: true,
        quiet: 0,
        unmark_after: 0,
        features: Some(features.clone()),
        ..Options::default()
    }
}

/// Whether a file lacks pages or awaits a truncation and does not bear the mark.
fn is_untold(after: &Arc<Machine>) -> crate::Result<bool> {
    for of in recover::left(&**after)? {
        let lacks = |r: &FileRecord| r.cut || r.grows.is_some() || of.dirty > 0;
        let Some(record) = of.record.filter(lacks) else { continue };
        let file = open(after)(Path::new(&record.path))?;
        if matches!(file.marked(), Ok(FoundMark::Nothing)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks the state after a cut: files that lack something bear the mark, and a recovery writes
/// everything back and leaves neither data nor marks.
fn recovered(after: &Arc<Machine>, known: &[Known]) -> Result<(), String> {
    if is_untold(after).map_err(|e| e.to_string())? {
        return Err("a file lacks pages, or is to be truncated, and is not marked".into());
    }
    let home = recover(&**after, open(after)).map_err(|e| e.to_string())?;
    if !home.refused.is_empty() {
        return Err(format!("{home:?}"));
    }
    for (i, one) in known.iter().enumerate() {
        one.model.compare(&after.content(i)).map_err(|e| format!("file {i}: {e}"))?;
    }
    if !after.is_empty() {
        return Err(format!("frames or files stay: {after:?}"));
    }
    match after.lacks_and_tells() {
        (false, false) => Ok(()),
        _ => Err("the files have everything, and one is marked".into()),
    }
}

fn judge(left: &Left, known: &[Known], random: &mut Random) -> Result<(), String> {
    for killed in [true, false] {
        let said = format!("cut before call {}, killed: {killed}", left.call);
        let after = left.machine(random, killed, &[1 + random.clone().below(12)]);
        recovered(&after, known).map_err(|e| format!("{said}: {e}"))?;
        for second in after.left() {
            let after = second.machine(random, killed, &[]);
            recovered(&after, known).map_err(|e| format!("{said}: cut in the recovery: {e}"))?;
        }
    }
    Ok(())
}

/// Whether data written directly to the file may be lost because a sync of the file has failed
/// since.  Nothing can find out, and no other copy exists.
fn is_lost(e: &crate::Error) -> bool {
    e.to_string().contains("written to the file itself")
}

/// Runs one history and returns the number of judged cuts.  One in `faults` calls of the
/// machine fails.
fn history(seed: u64, features: &Features, calls: usize, faults: u64) -> Result<usize, String> {
    let mut trace = Vec::new();
    let judged = run(seed, features, calls, faults, &mut trace);
    judged.map_err(|e| format!("seed {seed}, faults {faults}: {e}, after {trace:?}"))
}

fn run(
    seed: u64,
    features: &Features,
    calls: usize,
    faults: u64,
    trace: &mut Vec<(usize, Call, bool)>,
) -> Result<usize, String> {
    let mut random = Random(seed);
    for _ in 0..8 {
        random.below(2);
    }
    let cuts: Vec<u64> = (0..3).map(|_| 3 + random.below(3 * calls as u64 / 2)).collect();
    let sizes: [u64; FILES] = std::array::from_fn(|_| a_cell(&mut random).max(1));
    let machine = Machine::new(FRAMES, &sizes.map(|s| s * CELL), cuts);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let cache = Cache::new(store, options(features)).map_err(|e| e.to_string())?;
    let reopen = |i: usize| {
        let room = SEGMENTS * SEGMENT as u64;
        cache.open_backing(machine.file(i), room).map_err(|e| e.to_string())
    };
    let mut known = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let model = Model { cells: BTreeMap::new(), size, sizes: vec![size] };
        known.push(Known { file: Some(reopen(i)?), model, locked: Vec::new() });
    }
    machine.seed(seed);
    machine.promises.store(seed % 4 > 1, Ordering::SeqCst);
    machine.let_fail(faults);
    let mut judged = 0;
    for value in 1..=calls as u64 {
        let i = random.below(FILES as u64) as usize;
        let call = a_call(&mut random, &known[i].model, value);
        let before = (faults > 0).then(|| known[i].model.clone());
        known[i].model.begin(&call);
        let done = perform(&machine, &cache, &mut known[i], &call);
        trace.push((i, call.clone(), done.is_ok()));
        for left in machine.left() {
            judge(&left, &known, &mut random)?;
            judged += 2;
        }
        let one_in = machine.let_fail(0);
        match done {
            Ok(()) => known[i].model.end(&call),
            Err(Failed::Wrong(e)) => return Err(format!("{call:?}: {e}")),
            Err(Failed::Told(e)) if machine.failed() == 0 => return Err(format!("{call:?}: {e}")),
            Err(Failed::Told(_)) => {
                match known[i].file.clone() {
                    Some(file) => {
                        let before = before.expect("as nothing fails otherwise");
                        known[i].model.failed(&call, &file, &before)?;
                    }
                    // Synced data is kept for a recovery.
                    None => break,
                }
            }
        }
        if known[i].file.is_none() {
            read_is(&known[i].model, &machine.content(i), 0).map_err(|e| format!("closed: {e}"))?;
            known[i].file = Some(reopen(i)?);
        }
        for one in &known {
            let file = one.file.as_ref().expect("open");
            if let Some(gone) = one.locked.iter().find(|&&s| !file.is_here(s as usize)) {
                return Err(format!("segment {gone} is locked, and not there"));
            }
        }
        machine.let_fail(one_in);
    }
    machine.let_fail(0);
    let mut all = true;
    for (i, one) in known.iter_mut().enumerate() {
        let closed = match one.file.take() {
            Some(file) => file.close(),
            None => continue,
        };
        match closed {
            Ok(()) => {
                one.model.end(&Call::Close);
                read_is(&one.model, &machine.content(i), 0).map_err(|e| format!("closed: {e}"))?;
            }
            Err(e) if machine.failed() > 0 && is_lost(&e) => all = false,
            Err(e) => return Err(format!("close: {e}")),
        }
    }
    judge(&machine.cut(|| ()), &known, &mut random)?;
    let closed = trace.last().is_none_or(|t| t.2 || !matches!(t.1, Call::Close));
    match machine.is_empty() && machine.lacks_and_tells() == (false, false) || !all || !closed {
        true => Ok(judged),
        false => Err("frames, files or a mark stay after close".into()),
    }
}

/// Runs a few calls with a power cut before each call of the machine.
fn each_moment(seed: u64, features: &Features) -> Result<usize, String> {
    let mut random = Random(seed);
    let sizes = [10; FILES];
    let machine = Machine::new(FRAMES, &sizes.map(|s| s * CELL), 1..500);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let cache = Cache::new(store, options(features)).map_err(|e| e.to_string())?;
    let mut known = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let file =
            cache.open_backing(machine.file(i), SEGMENT as u64).map_err(|e| e.to_string())?;
        let model = Model { cells: BTreeMap::new(), size, sizes: vec![size] };
        known.push(Known { file: Some(file), model, locked: Vec::new() });
    }
    machine.left();
    machine.promises.store(seed.is_multiple_of(2), Ordering::SeqCst);
    let mut judged = 0;
    let stores = [(0, 1), (20, 2), (50, 3), (96, 4)].map(|(cell, value)| Call::Store(cell, value));
    let calls = [Call::Store(3, 9), Call::Sync(0, 10), Call::SetSize(100)].into_iter();
    let calls = calls.chain(stores);
    let rest = [Call::Sync(0, 100), Call::Round, Call::Round, Call::Round, Call::SetSize(5)];
    for call in calls.chain(rest) {
        known[0].model.begin(&call);
        let done = perform(&machine, &cache, &mut known[0], &call);
        for left in machine.left() {
            judge(&left, &known, &mut random).map_err(|e| format!("{call:?}: {e}"))?;
            judged += 2;
        }
        match done {
            Ok(()) => known[0].model.end(&call),
            Err(Failed::Told(e)) => return Err(format!("{call:?}: {e}")),
            Err(Failed::Wrong(e)) => return Err(format!("{call:?}: {e}")),
        }
    }
    Ok(judged)
}

/// A sync must not be acknowledged before the blocks are allocated.
#[test]
fn a_sync_reports_a_full_disk_and_no_later_call_does() {
    let _alone = alone();
    let machine = Machine::new(2, &[0], []);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let all = Features::detect(store.memory(), 0);
    let cache = Cache::new(store, options(&all)).expect("a cache");
    let file = cache.open_backing(machine.file(0), SEGMENT as u64 * 2).expect("open");
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
    assert_eq!(machine.content(0)[5 * PAGE], 2);
    assert!(file.sync(0, u64::MAX).is_err(), "it is told again");
}

fn has(name: &str) -> Option<Features> {
    let features = Features::detect(Machine::new(1, &[0], []).memory(), 0);
    if features.watch {
        return Some(features);
    }
    forebay_test::skipped!("{name} needs userfaultfd and PAGEMAP_SCAN: {:?}", features.missing);
    None
}

fn histories(
    features: &Features,
    moments: u64,
    time: Duration,
    seeds: std::ops::Range<u64>,
) -> Result<[usize; 2], String> {
    let (mut n, mut judged) = (0, 0);
    for seed in 0..moments {
        judged += each_moment(seed, features).map_err(|e| format!("each moment: {e}"))?;
    }
    let end = Instant::now() + time;
    for seed in seeds {
        if n > 0 && Instant::now() > end {
            break;
        }
        judged += history(seed, features, 120, [0, 40][seed as usize % 2])?;
        n += 1;
    }
    Ok([n, judged])
}

#[test]
fn synced_data_survives_each_power_cut() {
    let _alone = alone();
    let Some(features) = has("synced_data_survives_each_power_cut") else { return };
    let seconds = std::env::var("MAP_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    let first = std::env::var("MAP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let [n, judged] = histories(&features, 3, Duration::from_secs(seconds), first..u64::MAX)
        .expect("what was synced is there");
    println!("{n} histories, {judged} cuts");
    assert!(n > 0 && judged > 0);
    // Features that a kernel may lack.
    let lacking = Features { watch: false, ..features.clone() };
    histories(&lacking, 1, Duration::from_secs(1), 1..u64::MAX).expect("without watching");
    let lacking = Features { scan: false, moves: false, ..lacking };
    histories(&lacking, 1, Duration::from_secs(1), 1..u64::MAX).expect("without a scan");
}

#[test]
fn planted_bugs_of_the_library_are_found() {
    let _alone = alone();
    let Some(features) = has("planted_bugs_of_the_library_are_found") else { return };
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
        Planted::CutNotMarked,
        Planted::BlocksNotSynced,
    ] {
        plant(Some(mistake));
        let found = histories(&features, 6, Duration::from_secs(300), 1..u64::MAX);
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {}", found.split(", after").next().unwrap_or(""));
    }
}
