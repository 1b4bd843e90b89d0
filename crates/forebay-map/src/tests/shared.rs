// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the guarantees for an exclusive file hold for a shared one.  Each process sees the others'
//! stores, a sync by any of them makes all stores durable, and the stores of a process survive its
//! death.  Method: the histories of the module above, with calls by several processes in turn,
//! whose messages are function calls.  They run on a simulated machine whose power is cut;
//! processes are killed and come again.  Threads of three processes also run at once, with pages
//! that one stores and another syncs.  Each planted bug is found by one of the two methods.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use forebay::FileFate;
use forebay_engine::lasting::Lasting;

use super::several::{in_time, word};
use super::{
    a_call, a_cell, alone, bytes, has, judge, options, perform, read_is, Call, Failed, Known,
    Model, CELL, FRAMES, SEGMENTS,
};
use crate::locked::lock;
use crate::planted::{plant, Planted};
use crate::recover::recover;
use crate::sharing::{GivenUp, Heard, Homes, Lent, Order, Peer, Reply, Server, Visits};
use crate::simulated::{open, Machine, Random};
use crate::store::{Place, Store, Synced};
use crate::wire::{Answer, Request};
use crate::{Cache, Error, Features, MapFile, PageSet, Result, PAGE, SEGMENT};

mod leaves;
mod moments;

const ONE: u64 = SEGMENT as u64;

/// A process, as its server and its library see it.
#[derive(Debug)]
struct Messages {
    who: u64,
    homes: Arc<Homes>,
    machine: Arc<Machine>,
    visits: Arc<Visits>,
    /// Allows one order at a time.
    order: Mutex<()>,
    dead: AtomicBool,
    /// A file of another process, which extends it just before this process does.
    first: Mutex<Option<MapFile>>,
    /// Runs when its bytes are there, before the file has grown.
    before_grown: Mutex<Option<Event>>,
}

struct Event(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Event")
    }
}

impl Messages {
    fn lives(&self) -> Result<()> {
        match self.dead.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::Pool("it is dead".into())),
        }
    }
}

impl Server for Messages {
    fn ask(&self, request: &Request, _: bool) -> Result<Answer> {
        self.ask_for(request).map(|(answer, _)| answer)
    }

    fn ask_for(&self, request: &Request) -> Result<(Answer, Option<Lasting<OwnedFd>>)> {
        self.lives()?;
        let resizes = matches!(request, Request::Resize { .. } | Request::Grow { .. });
        if let Some(file) = lock(&self.first).take_if(|_| resizes) {
            file.set_size(file.room())?;
        }
        if matches!(request, Request::Grown { .. }) {
            if let Some(Event(event)) = lock(&self.before_grown).take() {
                event();
            }
        }
        let answered = match request {
            Request::Join { visit, path, room, .. } => {
                let file = if path.ends_with('a') { 0 } else { 1 };
                self.homes.join_backing(self.who, *visit, self.machine.file(file), *room)
            }
            other => self.homes.answer(self.who, other).expect("of a file that is shared"),
        };
        let (answer, file) = answered.unwrap_or_else(|e| (e.into(), None));
        Ok((answer, file.map(Lasting::from)))
    }

    fn visits(&self) -> &Arc<Visits> {
        &self.visits
    }
}

impl Peer for Messages {
    fn pid(&self) -> u32 {
        self.who as u32
    }

    fn ask(&self, order: &Order, waits: bool) -> Heard {
        let _one = match (self.order.try_lock(), waits) {
            (Ok(one), _) => one,
            (Err(TryLockError::WouldBlock), true) => lock(&self.order),
            (Err(TryLockError::WouldBlock), false) => return Heard::Busy,
            (Err(TryLockError::Poisoned(e)), _) => e.into_inner(),
        };
        let is_dead = || self.dead.load(Ordering::SeqCst);
        if is_dead() {
            return Heard::Dead;
        }
        let said = self.visits.obey(order);
        // The reply of a process that dies is lost.
        if is_dead() {
            return Heard::Dead;
        }
        Heard::Said(said)
    }
}

/// The memory that the process has while it lives, and the use of each frame that it knows.
#[derive(Debug)]
struct Memory(Arc<Messages>, Mutex<BTreeMap<u32, u32>>);

impl Lent for Memory {
    fn memory(&self) -> BorrowedFd<'_> {
        self.0.machine.memory()
    }

    fn learn(&self, frame: u32, place: Option<&Place>) -> Result<()> {
        lock(&self.1).insert(frame, place.expect("it comes with it").seed);
        Ok(())
    }

    fn offset(&self, frame: u32) -> Result<u64> {
        self.0.machine.offset(frame)
    }

    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()> {
        self.0.lives()?;
        self.0.machine.fill(frame, at, from)
    }

    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.0.machine.copy(frame, at, to)
    }

    fn write_back_caches(&self, frame: u32) -> Result<()> {
        self.0.lives()?;
        self.0.machine.write_back_caches(frame)
    }

    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced> {
        self.0.lives()?;
        let now = self.0.machine.place_of(frame)?.map(|place| place.seed);
        match lock(&self.1).get(&frame).copied() == now {
            true => self.0.machine.sync(frame, pages),
            false => Err(Error::Pool("what it knows of the frame is of another use".into())),
        }
    }
}

struct Process {
    messages: Arc<Messages>,
    cache: Cache,
}

impl Process {
    fn map(&self, file: usize, room: u64) -> Result<MapFile> {
        let server: Arc<dyn Server> = Arc::<Messages>::clone(&self.messages);
        let lent: Arc<dyn Lent> = Arc::new(Memory(Arc::clone(&self.messages), Mutex::default()));
        let path = ["/simulated/a", "/simulated/b"][file];
        self.cache.visit(server, lent, Path::new(path), path.as_bytes(), room)
    }
}

/// A server and the processes that ask it.
struct World {
    machine: Arc<Machine>,
    homes: Arc<Homes>,
    features: Features,
    next: AtomicU64,
    given_up: Arc<AtomicBool>,
}

impl World {
    fn new(machine: &Arc<Machine>, features: &Features) -> World {
        let given_up = Arc::new(AtomicBool::new(false));
        let too = Arc::clone(&given_up);
        let store: Arc<dyn Store> = Arc::<Machine>::clone(machine);
        let hook = GivenUp(Box::new(move |_| too.store(true, Ordering::SeqCst)));
        let homes = Homes::new(store, options(features), hook).expect("a server");
        World {
            machine: Arc::clone(machine),
            homes: Arc::new(homes),
            features: features.clone(),
            next: AtomicU64::new(1),
            given_up,
        }
    }

    fn process(&self) -> Process {
        let messages = Arc::new(Messages {
            who: self.next.fetch_add(1, Ordering::SeqCst),
            homes: Arc::clone(&self.homes),
            machine: Arc::clone(&self.machine),
            visits: Arc::default(),
            order: Mutex::new(()),
            dead: AtomicBool::new(false),
            first: Mutex::new(None),
            before_grown: Mutex::new(None),
        });
        let peer: Arc<dyn Peer> = Arc::<Messages>::clone(&messages);
        self.homes.hears(messages.who, peer);
        let store: Arc<dyn Store> = Arc::<Machine>::clone(&self.machine);
        let cache = Cache::new(store, options(&self.features)).expect("a cache");
        Process { messages, cache }
    }

    /// Kills a process without notice.  It has no memory any more.
    fn kill(&self, process: &Process, files: Vec<MapFile>) -> Result<()> {
        process.messages.dead.store(true, Ordering::SeqCst);
        drop(files);
        self.homes.gone(process.messages.who, false)
    }
}

/// Runs one history of calls by three processes and returns the number of judged cuts.
fn history(
    seed: u64,
    features: &Features,
    calls: usize,
    faults: u64,
) -> std::result::Result<usize, String> {
    let mut trace = Vec::new();
    let judged = run(seed, features, calls, faults, &mut trace);
    judged.map_err(|e| format!("seed {seed}, faults {faults}: {e}, after {trace:?}"))
}

fn run(
    seed: u64,
    features: &Features,
    calls: usize,
    faults: u64,
    trace: &mut Vec<(usize, String, bool)>,
) -> std::result::Result<usize, String> {
    let mut random = Random(seed);
    for _ in 0..8 {
        random.below(2);
    }
    let cuts: Vec<u64> = (0..3).map(|_| 3 + random.below(3 * calls as u64 / 2)).collect();
    let size = a_cell(&mut random).max(1);
    let machine = Machine::new(FRAMES, &[size * CELL, 0], cuts);
    let world = World::new(&machine, features);
    let room = SEGMENTS * ONE;
    let model = Model { cells: BTreeMap::new(), size, sizes: vec![size] };
    let mut known = vec![
        Known { file: None, model, locked: Vec::new() },
        Known {
            file: None,
            model: Model { cells: BTreeMap::new(), size: 0, sizes: vec![0] },
            locked: Vec::new(),
        },
    ];
    let mut processes: Vec<Process> = (0..3).map(|_| world.process()).collect();
    let mut files: Vec<Option<(MapFile, Vec<u64>)>> = Vec::new();
    for process in &processes {
        files.push(Some((process.map(0, room).map_err(|e| e.to_string())?, Vec::new())));
    }
    machine.seed(seed);
    machine.promises.store(seed % 4 > 1, Ordering::SeqCst);
    machine.let_fail(faults);
    let mut judged = 0;
    for value in 1..=calls as u64 {
        let i = random.below(3) as usize;
        let (file, locked) = files[i].take().expect("open");
        if random.below(25) == 0 {
            machine.let_fail(0);
            trace.push((i, "kill".into(), true));
            world.kill(&processes[i], vec![file]).map_err(|e| format!("killed: {e}"))?;
            for left in machine.left() {
                judge(&left, &known, &mut random)?;
                judged += 2;
            }
            processes[i] = world.process();
            files[i] = Some((processes[i].map(0, room).map_err(|e| e.to_string())?, Vec::new()));
            machine.let_fail(faults);
            continue;
        }
        let call = a_call(&mut random, &known[0].model, value);
        let before = (faults > 0).then(|| known[0].model.clone());
        known[0].model.begin(&call);
        (known[0].file, known[0].locked) = (Some(file), locked);
        let mut done = perform(&machine, &processes[i].cache, &mut known[0], &call);
        if matches!(call, Call::Round) && done.is_ok() {
            done = world.homes.round().map(drop).map_err(Failed::Told);
        }
        trace.push((i, format!("{call:?}"), done.is_ok()));
        for left in machine.left() {
            judge(&left, &known, &mut random)?;
            judged += 2;
        }
        let one_in = machine.let_fail(0);
        match done {
            // The other processes may have data that is not synced.
            Ok(()) if matches!(call, Call::Close) => {}
            Ok(()) => known[0].model.end(&call),
            Err(Failed::Wrong(e)) => return Err(format!("{call:?}: {e}")),
            Err(Failed::Told(e)) if machine.failed() == 0 => return Err(format!("{call:?}: {e}")),
            Err(Failed::Told(_)) => {
                if let Some(file) = known[0].file.clone() {
                    let before = before.expect("as nothing fails otherwise");
                    known[0].model.failed(&call, &file, &before)?;
                }
            }
        }
        let open = match known[0].file.take() {
            Some(file) => (file, std::mem::take(&mut known[0].locked)),
            None if machine.failed() > 0 && !matches!(trace.last(), Some((_, _, true))) => {
                // The process may still be a guest, because it failed to leave.
                world.kill(&processes[i], Vec::new()).map_err(|e| format!("killed: {e}"))?;
                processes[i] = world.process();
                (processes[i].map(0, room).map_err(|e| e.to_string())?, Vec::new())
            }
            None => (processes[i].map(0, room).map_err(|e| e.to_string())?, Vec::new()),
        };
        if let Some(gone) = open.1.iter().find(|&&s| !open.0.is_here(s as usize)) {
            return Err(format!("segment {gone} is locked, and not there"));
        }
        files[i] = Some(open);
        machine.let_fail(one_in);
    }
    machine.let_fail(0);
    for (i, file) in files.into_iter().enumerate() {
        let (file, _) = file.expect("open");
        if i == 0 {
            let mut all = vec![1; (known[0].model.size * CELL) as usize];
            let n = file.read(0, &mut all).map_err(|e| e.to_string())?;
            read_is(&known[0].model, &all[..n], 0).map_err(|e| format!("in the end: {e}"))?;
        }
        file.close().map_err(|e| format!("close: {e}"))?;
    }
    known[0].model.end(&Call::Close);
    read_is(&known[0].model, &machine.content(0), 0).map_err(|e| format!("closed: {e}"))?;
    judge(&machine.cut(|| ()), &known, &mut random)?;
    match machine.is_empty() && machine.lacks_and_tells() == (false, false) {
        true if world.given_up.load(Ordering::SeqCst) => Err("it was given up".into()),
        true => Ok(judged),
        false => Err(format!("frames, files or a mark stay after close: {machine:?}")),
    }
}

fn histories(
    features: &Features,
    time: Duration,
    faults: &[u64],
) -> std::result::Result<[usize; 2], String> {
    let (end, mut n, mut judged) = (Instant::now() + time, 0, 0);
    for seed in 1.. {
        if n > 0 && Instant::now() > end {
            break;
        }
        judged += history(seed, features, 100, faults[seed as usize % faults.len()])?;
        n += 1;
    }
    Ok([n, judged])
}

struct Page {
    at: u64,
    begun: AtomicU64,
    stored: AtomicU64,
    synced: AtomicU64,
}

fn judge_pages(
    machine: &Machine,
    pages: &[Page],
    random: &mut Random,
) -> std::result::Result<(), String> {
    let mut floors = Vec::new();
    let left =
        machine.cut(|| floors = pages.iter().map(|p| p.synced.load(Ordering::SeqCst)).collect());
    let most: Vec<_> = pages.iter().map(|p| p.begun.load(Ordering::SeqCst)).collect();
    for killed in [true, false] {
        let after = left.machine(random, killed, &[]);
        let home = recover(&*after, open(&after)).map_err(|e| e.to_string())?;
        if !home.refused.is_empty() || !after.is_empty() {
            return Err(format!("killed: {killed}: {home:?}"));
        }
        let content = after.content(0);
        for (i, page) in pages.iter().enumerate() {
            let found = word(&content, page.at);
            if found < floors[i] || found > most[i] {
                let (at, least, most) = (page.at / PAGE as u64, floors[i], most[i]);
                return Err(format!(
                    "killed: {killed}: page {at} is {found}, not {least} to {most}"
                ));
            }
        }
    }
    Ok(())
}

/// Stores to the thread's own pages and syncs those of any thread.
fn work(file: &MapFile, pages: &[Page], own: usize, over: &AtomicBool) {
    let mut random = Random(own as u64 + 7);
    while !over.load(Ordering::SeqCst) {
        let i = random.below(pages.len() as u64 / 3) as usize * 3 + own;
        let page = &pages[i];
        let value = page.begun.load(Ordering::SeqCst);
        match random.below(8) {
            0..=3 => {
                page.begun.store(value + 1, Ordering::SeqCst);
                let bytes = (value + 1).to_ne_bytes();
                match random.below(2) {
                    0 => file.store(page.at, &bytes),
                    _ => file.write(page.at, &bytes).expect("a write"),
                }
                page.stored.store(value + 1, Ordering::SeqCst);
            }
            4 => {
                let mut bytes = [0; 8];
                let n = file.read(page.at, &mut bytes).expect("a read");
                assert_eq!((n, u64::from_ne_bytes(bytes)), (8, value), "page {}", page.at);
            }
            _ => {
                let page = &pages[random.below(pages.len() as u64) as usize];
                let stored = page.stored.load(Ordering::SeqCst);
                let (at, len) = if random.below(9) == 0 { (0, u64::MAX) } else { (page.at, 8) };
                file.sync(at, len).expect("a sync");
                page.synced.fetch_max(stored, Ordering::SeqCst);
            }
        }
    }
}

/// Runs three processes.  A fourth extends and truncates the file and is killed now and then.
fn threads(features: &Features, time: Duration) -> std::result::Result<usize, String> {
    let machine = Machine::new(3, &[3 * ONE, 0], []);
    let world = World::new(&machine, features);
    let processes: Vec<Process> = (0..3).map(|_| world.process()).collect();
    let files: Vec<MapFile> = processes.iter().map(|p| p.map(0, 5 * ONE).expect("open")).collect();
    let mut pages = Vec::new();
    for (segment, page) in (0..3u64).flat_map(|s| [0u64, 7, 300, 511].map(|p| (s, p))) {
        let at = segment * ONE + page * PAGE as u64;
        let none = || AtomicU64::new(0);
        pages.push(Page { at, begun: none(), stored: none(), synced: none() });
    }
    let over = AtomicBool::new(false);
    let mut judged = 0;
    let result = std::thread::scope(|s| {
        let (pages, over, world) = (&pages, &over, &world);
        let mut spawned = Vec::new();
        for (own, file) in files.iter().enumerate() {
            spawned.push(s.spawn(move || work(file, pages, own, over)));
        }
        spawned.push(s.spawn(move || {
            let mut random = Random(99);
            while !over.load(Ordering::SeqCst) {
                let process = world.process();
                let file = process.map(0, 5 * ONE).expect("open");
                for turn in 1u64.. {
                    // No other process uses the bytes after the end.
                    match random.below(8) {
                        0 => file.set_size(3 * ONE + random.below(2 * ONE)).expect("a size"),
                        1 => file.drop_cache(3 * ONE, 2 * ONE).expect("dropped"),
                        2 => {
                            let at = random.below(3) * ONE;
                            if file.lock(at, ONE).is_ok() {
                                assert!(file.is_here((at / ONE) as usize), "it is locked");
                                file.unlock(at, ONE);
                            }
                        }
                        3 => file.write(3 * ONE, &[1; 5000]).expect("written"),
                        4 => file.sync(3 * ONE, ONE).expect("a sync"),
                        5 => {
                            let (at, done) = file.append(&[&[1; 600]]).expect("appended");
                            assert!(at >= 3 * ONE && file.size() >= at + 600, "{at}");
                            assert_eq!(done, 600);
                        }
                        6 => process.cache.round().map(drop).expect("a tick"),
                        _ => world.homes.round().map(drop).expect("a round"),
                    }
                    if turn == 40 {
                        break;
                    }
                }
                match random.below(2) {
                    0 => file.close().expect("closed"),
                    _ => world.kill(&process, vec![file]).expect("killed"),
                }
            }
        }));
        let end = Instant::now() + time;
        let mut random = Random(5);
        let mut result = Ok(());
        while Instant::now() < end && result.is_ok() && !spawned.iter().any(|t| t.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            result = judge_pages(&machine, pages, &mut random);
            judged += 2;
        }
        over.store(true, Ordering::SeqCst);
        for thread in spawned {
            if thread.join().is_err() {
                result = Err("a thread has panicked".into());
            }
        }
        result
    });
    result?;
    for file in files {
        file.close().map_err(|e| format!("close: {e}"))?;
    }
    let content = machine.content(0);
    for page in &pages {
        let (found, value) = (word(&content, page.at), page.begun.load(Ordering::SeqCst));
        if found != value {
            return Err(format!("closed: page {} is {found}, not {value}", page.at));
        }
    }
    match machine.is_empty() {
        true => Ok(judged),
        false => Err("frames or files stay after close".into()),
    }
}

#[test]
fn data_synced_by_any_process_survives_each_power_cut() {
    let _alone = alone();
    let Some(features) = has("data_synced_by_any_process_survives_each_power_cut") else { return };
    let seconds = std::env::var("MAP_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    let done =
        in_time("histories", || histories(&features, Duration::from_secs(seconds), &[0, 60]));
    let [n, judged] = done.expect("what was synced is there");
    println!("{n} histories of three processes, {judged} cuts");
    assert!(n > 0 && judged > 0);
    let judged = in_time("threads", || threads(&features, Duration::from_secs(2)));
    println!("threads of three processes: {} cuts", judged.expect("what was synced is there"));
}

#[test]
fn planted_bugs_of_sharing_are_found() {
    let _alone = alone();
    let Some(features) = has("planted_bugs_of_sharing_are_found") else { return };
    for (mistake, at_once) in [
        (Planted::OthersNotSynced, false),
        (Planted::StoresOfTheDeadLost, false),
        (Planted::NothingGranted, false),
        (Planted::LateForgotten, true),
    ] {
        plant(Some(mistake));
        let time = Duration::from_secs(300);
        let found = match at_once {
            true => threads(&features, time).map(drop),
            false => histories(&features, time, &[0]).map(drop),
        };
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {}", found.split(", after").next().unwrap_or(""));
    }
}

/// A store is visible to the other process at once.  After the death of the first process the
/// other one and the file still have it.
#[test]
fn stores_are_visible_to_others_and_outlive_their_process() {
    let _alone = alone();
    let Some(features) = has("stores_are_visible_to_others_and_outlive_their_process") else {
        return;
    };
    let machine = Machine::new(3, &[2 * ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
    first.store(100, &bytes(1, 7));
    let mut seen = vec![0; CELL as usize];
    second.load(100, &mut seen);
    assert_eq!(seen, bytes(1, 7), "by a load");
    seen.fill(0);
    second.read(100, &mut seen).expect("read");
    assert_eq!(seen, bytes(1, 7), "by read");
    world.kill(&a, vec![first]).expect("killed");
    second.load(100, &mut seen);
    assert_eq!(seen, bytes(1, 7), "after its death");
    second.close().expect("closed");
    assert_eq!(machine.content(0)[100..612], bytes(1, 7), "in the file");
}

/// A crash takes what a lost pool has.
#[test]
fn a_sync_of_a_lost_pool_writes_the_shared_file() {
    let _alone = alone();
    let Some(features) = has("a_sync_of_a_lost_pool_writes_the_shared_file") else { return };
    let machine = Machine::new(3, &[2 * ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
    machine.lose(FileFate::Removed);
    first.store(100, &bytes(1, 7));
    second.sync(0, 2 * ONE).expect("a sync");
    assert_eq!(machine.durable(0)[100..612], bytes(1, 7));
}

/// A guest syncs by itself, so the mark stays as long as there is one.
#[test]
fn the_mark_stays_while_a_process_shares_the_file() {
    let _alone = alone();
    let Some(features) = has("the_mark_stays_while_a_process_shares_the_file") else { return };
    for planted in [false, true] {
        let machine = Machine::new(3, &[ONE, 0], []);
        let world = World::new(&machine, &features);
        let process = world.process();
        let file = process.map(0, ONE).expect("open");
        plant(planted.then_some(Planted::UnmarkedUnderGuests));
        for value in 1..3 {
            file.store(0, &[value]);
            file.sync(0, 1).expect("a sync");
            assert_eq!(machine.lacks_and_tells(), (true, !planted || value == 1));
            (0..3).for_each(|_| {
                world.homes.round().expect("a round");
            });
            assert!(!machine.lacks_and_tells().0, "it was written back");
        }
        plant(None);
        file.close().expect("closed");
        assert_eq!(machine.lacks_and_tells(), (false, false));
    }
}

/// A page that a guest syncs while the end moves could reappear later from after the end.
#[test]
fn no_call_of_a_guest_is_under_way_while_the_size_changes() {
    let _alone = alone();
    let Some(features) = has("no_call_of_a_guest_is_under_way_while_the_size_changes") else {
        return;
    };
    for (planted, size) in [(false, ONE), (false, 3 * ONE), (true, ONE)] {
        let machine = Machine::new(3, &[2 * ONE, 0], []);
        let world = World::new(&machine, &features);
        let (a, b) = (world.process(), world.process());
        let [first, second] = [&a, &b].map(|p| p.map(0, 3 * ONE).expect("open"));
        first.store(0, &[1]);
        first.sync(0, u64::MAX).expect("a sync");
        machine.slow_resize.store(true, Ordering::SeqCst);
        plant(planted.then_some(Planted::GuestsNotStopped));
        std::thread::scope(|s| {
            let resized = s.spawn(|| second.set_size(size));
            while !machine.resizes.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            first.read(0, &mut [0; 8]).expect("a read");
            assert_eq!(machine.resizes.load(Ordering::SeqCst), planted, "{size}");
            resized.join().expect("no panic").expect("another size");
        });
        plant(None);
        machine.slow_resize.store(false, Ordering::SeqCst);
        assert_eq!(first.size(), size);
    }
}

/// Two concurrent appends get different places, and a new size is visible to both processes.
#[test]
fn all_processes_see_the_same_size() {
    let _alone = alone();
    let Some(features) = has("all_processes_see_the_same_size") else { return };
    let machine = Machine::new(3, &[1000, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
    assert_eq!(first.append(&[&[1; 10]]).expect("a"), (1000, 10));
    assert_eq!(second.append(&[&[2; 20]]).expect("b"), (1010, 20));
    assert_eq!((first.size(), second.size()), (1030, 1030));
    second.write(1020, &[9; 10]).expect("written");
    first.set_size(1025).expect("shorter");
    assert_eq!(second.size(), 1025);
    first.set_size(1030).expect("longer");
    let mut rest = [1; 10];
    second.read(1020, &mut rest).expect("read");
    assert_eq!(rest, [9, 9, 9, 9, 9, 0, 0, 0, 0, 0]);
    let refused = first.change(|| ()).expect_err("times are not to be set").to_string();
    assert!(refused.contains("shared"), "{refused}");
    let told = first.set_size(3 * ONE).expect_err("there is no room").to_string();
    assert!(told.contains("room"), "{told}");
    first.close().expect("closed");
    assert!(machine.content(0).len() == 1030 && !machine.is_empty(), "the other one has it");
    second.close().expect("closed");
    assert!(machine.is_empty());
}

/// A grant may arrive late: the segment was released and has the same frame again.
#[test]
fn a_grant_of_an_older_use_of_a_frame_is_void() {
    let _alone = alone();
    let Some(features) = has("a_grant_of_an_older_use_of_a_frame_is_void") else {
        return;
    };
    let machine = Machine::new(1, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let process = world.process();
    let file = process.map(0, ONE).expect("open");
    file.store(0, &[1]);
    let home = machine.files().expect("files")[0].0;
    let settle = Request::Settle { home, segment: Some(0) };
    let Ok(Answer::Granted(Some(late))) = process.messages.ask_for(&settle).map(|(a, _)| a) else {
        panic!("no grant")
    };
    file.drop_cache(0, ONE).expect("given back");
    file.store(0, &[2]);
    let order = Order::Sync { visit: 0, first: 0, end: 1, grants: vec![late.clone()] };
    assert_eq!(process.messages.visits.obey(&order), Reply::Again);
    let order = Order::GiveUp { visit: 0, segment: 0, grant: Some(late) };
    assert_eq!(process.messages.visits.obey(&order), Reply::InUse);
    file.sync(0, 1).expect("a sync");
    file.close().expect("closed");
    assert_eq!(machine.content(0)[0], 2);
}

/// With two guests, the other one must be asked.
#[test]
fn each_of_two_processes_syncs_the_others_stores() {
    let _alone = alone();
    let Some(features) = has("each_of_two_processes_syncs_the_others_stores") else {
        return;
    };
    let machine = Machine::new(2, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    first.store(0, &[1]);
    second.sync(0, 1).expect("a sync");
    let after = machine.cut(|| ()).machine(&mut Random(1), false, &[]);
    recover(&*after, open(&after)).expect("recovered");
    assert_eq!(after.content(0)[0], 1);
    first.close().and(second.close()).expect("closed");
}

/// A write that finds the file too short extends it.  It must not set the size that it needs
/// itself, because another process may have extended the file further.
#[test]
fn a_write_to_the_end_never_makes_the_file_shorter() {
    let _alone = alone();
    let Some(features) = has("a_write_to_the_end_never_makes_the_file_shorter") else { return };
    let machine = Machine::new(2, &[1000, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    let room = second.room();
    *lock(&a.messages.first) = Some(second.clone());
    first.write(1000, &[1; 10]).expect("written");
    assert_eq!((first.size(), second.size()), (room, room));
    first.close().and(second.close()).expect("closed");
}

/// The server may find the death itself when it asks for a frame.
#[test]
fn stores_of_a_guest_found_dead_during_a_reclaim_are_kept() {
    let _alone = alone();
    let Some(features) = has("stores_of_a_guest_found_dead_during_a_reclaim_are_kept") else {
        return;
    };
    let machine = Machine::new(1, &[2 * ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
    first.store(100, &[7]);
    a.messages.dead.store(true, Ordering::SeqCst);
    drop(first);
    second.store(ONE, &[8]);
    let mut seen = [0];
    second.load(100, &mut seen);
    assert_eq!(seen, [7]);
    world.homes.gone(a.messages.who, false).expect("seen off");
    second.close().expect("closed");
    assert_eq!((machine.content(0)[100], machine.content(0)[SEGMENT]), (7, 8));
}

/// A recovery handles what the last guest leaves and what cannot be closed.
#[test]
fn a_file_that_cannot_be_closed_is_given_up() {
    let _alone = alone();
    let Some(features) = has("a_file_that_cannot_be_closed_is_given_up") else { return };
    let machine = Machine::new(1, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let file = world.process().map(0, ONE).expect("open");
    file.store(0, &[1]);
    file.sync(0, 1).expect("a sync");
    machine.fail_sync();
    file.close().expect_err("a sync of the file fails");
    assert!(world.given_up.load(Ordering::SeqCst));
}
