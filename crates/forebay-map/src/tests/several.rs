// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the guarantees for one thread hold for several, and no thread hangs or dies.  Method:
//! threads store, write, read and sync pages of their own in two files of a machine with fewer
//! frames than segments.  Other threads extend and truncate the files, lock, drop and write
//! back.  Then the machine stands still and its power is cut.  Each page must have its synced
//! content or something newer.  Events that must coincide have tests of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use super::{alone, has, options};
use crate::planted::{self, plant, Planted};
use crate::recover::recover;
use crate::simulated::{open, Machine, Random};
use crate::store::Store;
use crate::{Cache, Features, MapFile, PAGE, SEGMENT};

const ONE: u64 = SEGMENT as u64;
const ONE_SECOND: Duration = Duration::from_secs(1);

pub(super) fn cache(machine: &Arc<Machine>, features: &Features) -> Cache {
    let store: Arc<dyn Store> = Arc::<Machine>::clone(machine);
    Cache::new(store, options(features)).expect("a cache")
}

/// Runs `f`, and ends the process if it takes too long.
pub(super) fn in_time<R>(what: &str, f: impl FnOnce() -> R) -> R {
    within(Duration::from_secs(60), what, f)
}

fn within<R>(limit: Duration, what: &str, f: impl FnOnce() -> R) -> R {
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            if wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: waits for ever");
                std::process::abort();
            }
        });
        let result = f();
        drop(done);
        result
    })
}

struct Page {
    file: usize,
    at: u64,
    begun: AtomicU64,
    synced: AtomicU64,
}

pub(super) fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_ne_bytes(bytes[at as usize..at as usize + 8].try_into().expect("eight"))
}

fn judge(machine: &Machine, pages: &[Page], random: &mut Random) -> Result<(), String> {
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
        let content = [after.content(0), after.content(1)];
        for (i, page) in pages.iter().enumerate() {
            let found = word(&content[page.file], page.at);
            if found < floors[i] || found > most[i] {
                let (file, at) = (page.file, page.at / PAGE as u64);
                let (least, most) = (floors[i], most[i]);
                return Err(format!(
                    "killed: {killed}: file {file}, page {at} is {found}, not {least} to {most}"
                ));
            }
        }
    }
    Ok(())
}

/// A thread that owns every third page.
fn work(files: &[MapFile], pages: &[Page], own: usize, faults: bool, over: &AtomicBool) {
    let mut random = Random(own as u64 + 7);
    while !over.load(Ordering::SeqCst) {
        let i = random.below(pages.len() as u64 / 3) as usize * 3 + own;
        let (page, file) = (&pages[i], &files[pages[i].file]);
        let value = page.begun.load(Ordering::SeqCst);
        match random.below(8) {
            0..=2 => {
                page.begun.store(value + 1, Ordering::SeqCst);
                let bytes = (value + 1).to_ne_bytes();
                match random.below(2) {
                    // A fault that fails would be a SIGBUS.
                    0 if !faults => file.store(page.at, &bytes),
                    _ => while file.write(page.at, &bytes).is_err() {},
                }
            }
            3..=4 => {
                let mut bytes = [0; 8];
                match file.read(page.at, &mut bytes) {
                    Ok(n) => {
                        assert_eq!((n, u64::from_ne_bytes(bytes)), (8, value), "page {}", page.at);
                    }
                    Err(e) => assert!(faults, "{e}"),
                }
            }
            _ => match file.sync(page.at, 8) {
                Ok(()) => page.synced.store(value, Ordering::SeqCst),
                Err(e) => assert!(faults, "{e}"),
            },
        }
    }
}

fn threads(features: &Features, time: Duration, faults: u64) -> Result<usize, String> {
    let machine = Machine::new(3, &[3 * ONE, 3 * ONE], []);
    let cache = cache(&machine, features);
    let files: Vec<MapFile> =
        (0..2).map(|i| cache.open_backing(machine.file(i), 4 * ONE).expect("open")).collect();
    let mut pages = Vec::new();
    for (file, segment, page) in
        (0..2).flat_map(|f| (0..3).flat_map(move |s| [0u64, 7, 300, 511].map(|p| (f, s as u64, p))))
    {
        let at = segment * ONE + page * PAGE as u64;
        pages.push(Page { file, at, begun: AtomicU64::new(0), synced: AtomicU64::new(0) });
    }
    machine.let_fail(faults);
    let over = AtomicBool::new(false);
    let fine = |done: crate::Result<()>| match done {
        Err(e) if faults == 0 => panic!("{e}"),
        _ => {}
    };
    let mut judged = 0;
    let result = std::thread::scope(|s| {
        let (files, pages, over, cache) = (&files, &pages, &over, &cache);
        let mut spawned = Vec::new();
        for own in 0..3 {
            spawned.push(s.spawn(move || work(files, pages, own, faults > 0, over)));
        }
        spawned.push(s.spawn(move || {
            let mut random = Random(99);
            while !over.load(Ordering::SeqCst) {
                let file = &files[random.below(2) as usize];
                match random.below(6) {
                    0..=1 => fine(file.set_size(3 * ONE + random.below(ONE))),
                    2 => fine(file.drop_cache(3 * ONE, ONE)),
                    3 => {
                        // Another thread may hold the only lock.
                        let at = random.below(3) * ONE;
                        if file.lock(at, ONE).is_ok() {
                            assert!(file.is_here((at / ONE) as usize), "it is locked");
                            file.unlock(at, ONE);
                        }
                    }
                    4 => fine(file.write(3 * ONE, &[1; 5000])),
                    _ => fine(cache.round().map(drop)),
                }
            }
        }));
        let end = Instant::now() + time;
        let mut random = Random(5);
        let mut result = Ok(());
        while Instant::now() < end && result.is_ok() && !spawned.iter().any(|t| t.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            result = judge(&machine, pages, &mut random);
            judged += 2;
        }
        over.store(true, Ordering::SeqCst);
        machine.let_fail(0);
        for thread in spawned {
            if thread.join().is_err() {
                result = Err("a thread has panicked".into());
            }
        }
        result
    });
    result?;
    for (i, file) in files.into_iter().enumerate() {
        file.close().map_err(|e| format!("close: {e}"))?;
        let content = machine.content(i);
        for page in pages.iter().filter(|p| p.file == i) {
            let (found, value) = (word(&content, page.at), page.begun.load(Ordering::SeqCst));
            if found != value {
                return Err(format!("closed: page {} is {found}, not {value}", page.at));
            }
        }
    }
    match machine.is_empty() {
        true => Ok(judged),
        false => Err("frames or files stay after close".into()),
    }
}

#[test]
fn data_synced_by_any_thread_survives_a_power_cut() {
    let _alone = alone();
    let Some(features) = has("data_synced_by_any_thread_survives_a_power_cut") else { return };
    for faults in [0, 50] {
        let judged = in_time("threads", || threads(&features, Duration::from_secs(2), faults));
        println!("faults {faults}: {} cuts", judged.expect("what was synced is there"));
    }
}

/// Bytes that were cut off are gone, even if the file could not be truncated at first.
#[test]
fn a_truncation_that_failed_is_ended_before_anything_else() {
    let Some(_) = super::has("it") else { return };
    let _alone = alone();
    for (planted, grown) in [(false, false), (false, true), (true, true)] {
        let machine = Machine::new(3, &[2 * ONE], []);
        let cache = cache(&machine, &Features::detect(machine.memory(), 0));
        let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
        file.write(0, &vec![7; 2 * SEGMENT]).expect("written");
        file.sync(0, u64::MAX).expect("a sync");
        file.write_back().expect("written back");
        machine.fail_resize();
        file.set_size(100).expect_err("it is told");
        assert_eq!(file.size(), 100);
        // A share that learns of each growth would hide the planted bug.
        machine.promises.store(!planted, Ordering::SeqCst);
        plant(planted.then_some(Planted::CutNotEnded));
        if grown {
            file.set_size(2 * ONE).expect("it grows");
        } else {
            file.sync(0, 1).expect("a sync");
            assert_eq!(machine.content(0).len(), 100);
        }
        plant(None);
        let mut rest = vec![1; 2 * SEGMENT];
        let n = file.read(100, &mut rest).expect("read");
        assert_eq!(rest[..n].iter().all(|&b| b == 0), !planted);
    }
}

/// The number of crashes that left a truncation unfinished.
fn truncations(planted: bool) -> Result<usize, String> {
    let machine = Machine::new(2, &[2 * ONE, 2 * ONE], 1..60);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    machine.left();
    plant(planted.then_some(Planted::CutNotMarked));
    file.set_size(100).expect("shorter");
    plant(None);
    let mut crashes: Vec<_> = machine.left().into_iter().map(|left| (left, false)).collect();
    crashes.push((machine.cut(|| ()), true));
    let mut begun = 0;
    for ((left, ended), killed) in crashes.iter().flat_map(|c| [(c, true), (c, false)]) {
        let crashed = || left.machine(&mut Random(5), killed, &[]);
        let after = crashed();
        let is_begun = after.files().expect("records").iter().any(|(_, f)| f.cut);
        let home = recover(&*after, open(&after)).expect("a recovery");
        let size = after.content(0).len() as u64;
        let is_whole = !ended && !is_begun && size == 2 * ONE;
        if !home.refused.is_empty() || !after.is_empty() || (size != 100 && !is_whole) {
            return Err(format!("killed: {killed}, begun: {is_begun}: {size} bytes, {home:?}"));
        }
        if !is_begun {
            continue;
        }
        begun += 1;
        // Either the user has accepted the loss, so that the file lacks nothing, or another
        // file is there.
        for is_another in [false, true] {
            let after = crashed();
            let file = if is_another { 1 } else { 0 };
            after.file(0).unmark().expect("given up");
            let was = after.content(file).len();
            let home = recover(&*after, |_| Ok(after.file(file))).expect("a recovery");
            assert_eq!((home.refused.len(), after.content(file).len()), (1, was), "{home:?}");
        }
    }
    for _ in 0..2 {
        cache.round().expect("a round");
    }
    assert_eq!(machine.lacks_and_tells(), (false, false), "it is complete");
    Ok(begun)
}

/// The truncation is ended once it is in the pool's record, also for a file that lacks nothing,
/// wherever the power is cut.  A file that was given up or replaced keeps its size.
#[test]
fn a_truncation_of_a_complete_file_is_ended_by_recovery() {
    let _alone = alone();
    let begun = truncations(false).expect("it is ended");
    assert!(begun > 1, "{begun}");
    truncations(true).expect_err("CutNotMarked was not found");
}

/// One page is bad, and the others are written back.
#[test]
fn a_page_that_cannot_be_written_does_not_hold_up_others() {
    let _alone = alone();
    let machine = Machine::new(2, &[ONE], []);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let file = cache.open_backing(machine.file(0), ONE).expect("open");
    file.store(0, &vec![1; 8 * PAGE]);
    file.sync(0, u64::MAX).expect("a sync");
    machine.bad_page(3);
    file.write_back().expect_err("it is told");
    for page in 0..8 {
        assert_eq!(machine.content(0)[page * PAGE], u8::from(page != 3));
    }
    machine.bad_page(u64::MAX);
    assert_eq!(file.write_back().expect("now it can be"), 1);
    assert_eq!(machine.content(0)[3 * PAGE], 1);
}

fn locks(features: &Features, time: Duration) -> Result<usize, String> {
    let machine = Machine::new(2, &[4 * ONE], []);
    let cache = cache(&machine, features);
    let file = cache.open_backing(machine.file(0), 4 * ONE).expect("open");
    let over = AtomicBool::new(false);
    let touched = AtomicUsize::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let n = touched.fetch_add(1, Ordering::SeqCst) as u64;
                file.load((1 + n % 3) * ONE, &mut [0]);
            }
        });
        let end = Instant::now() + time;
        let mut found = Ok(());
        // On a busy machine the other thread makes little progress meanwhile.
        let too_few = || touched.load(Ordering::SeqCst) <= 20;
        for n in 0u64.. {
            if found.is_err() || (Instant::now() >= end && !too_few()) {
                break;
            }
            file.lock(0, ONE).expect("a lock");
            let expected = planted::waits();
            planted::tell();
            let begun = Instant::now();
            for look in 0.. {
                if found.is_err() || (look >= 8 && !(expected && begun.elapsed() < ONE_SECOND)) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(50));
                if !file.is_here(0) {
                    found = Err("a locked segment was given back".to_owned());
                }
            }
            file.unlock(0, ONE);
            // Lock it again in the middle of a release.  With the bug that moment is known.
            let begun = Instant::now();
            let moment = Duration::from_micros(100 * (n % 12));
            let not_yet = || planted::is(Planted::PinNotSeen) && !planted::waits();
            while begun.elapsed() < moment || (not_yet() && begun.elapsed() < ONE_SECOND) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        over.store(true, Ordering::SeqCst);
        found
    })?;
    Ok(touched.into_inner())
}

#[test]
fn a_locked_segment_stays_even_during_its_release() {
    let _alone = alone();
    let name = "a_locked_segment_stays_even_during_its_release";
    let Some(features) = has(name) else { return };
    let n = in_time(name, || locks(&features, Duration::from_secs(1))).expect("it stays");
    assert!(n > 20, "{n}");
    plant(Some(Planted::PinNotSeen));
    // The test ends as soon as the bug is found.
    let time = Duration::from_secs(300);
    let found = within(2 * time, name, || locks(&features, time));
    plant(None);
    found.expect_err("PinNotSeen was not found");
}

/// How often the write came last.
fn writes_beside_truncations(features: &Features, rounds: usize) -> Result<usize, String> {
    let machine = Machine::new(3, &[2 * ONE], []);
    let cache = cache(&machine, features);
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    let whole = vec![7; SEGMENT];
    let mut last = 0;
    for round in 0..rounds {
        std::thread::scope(|s| {
            s.spawn(|| file.write(ONE, &whole).expect("written"));
            std::thread::sleep(Duration::from_micros(100 * (round % 10) as u64));
            file.set_size(ONE).expect("shorter");
        });
        let (size, of_file) = (file.size(), machine.content(0).len() as u64);
        if size != of_file {
            return Err(format!("round {round}: {size} bytes, and the file has {of_file}"));
        }
        last += usize::from(size > ONE);
        let mut rest = whole.clone();
        let n = file.read(ONE, &mut rest).expect("read");
        assert!(n as u64 == size - ONE && rest[..n].iter().all(|&b| b == 7));
    }
    Ok(last)
}

/// The file must have the size that it was given.
#[test]
fn a_write_does_not_pass_an_end_set_concurrently() {
    let _alone = alone();
    let name = "a_write_does_not_pass_an_end_set_concurrently";
    let Some(features) = has(name) else { return };
    let run = |rounds| in_time(name, || writes_beside_truncations(&features, rounds));
    run(40).expect("as it is told");
    plant(Some(Planted::WrittenBehind));
    let found = run(2000);
    plant(None);
    found.expect_err("WrittenBehind was not found");
    // A write of nothing extends nothing.
    let machine = Machine::new(1, &[5], []);
    let cache = cache(&machine, &features);
    let file = cache.open_backing(machine.file(0), ONE).expect("open");
    file.write(100, &[]).expect("nothing");
    assert_eq!(file.size(), 5);
}

/// Blocks from fallocate(2) may be gone after a cut until something makes them durable.  A sync
/// that needs them does so.  A sync that finds no hole must not conclude that the blocks are
/// durable.
fn allocated(planted: bool, present: bool) -> Result<(), String> {
    let machine = Machine::new(4, &[2 * ONE], []);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
    file.set_size(3 * ONE).expect("longer, by a hole");
    // The mark and the size are durable already, so nothing else causes an fsync.
    file.store(0, &[1]);
    file.sync(0, 1).expect("a sync");
    if present {
        file.load(2 * ONE, &mut [0]);
    }
    plant(planted.then_some(Planted::BlocksNotAsked));
    file.allocate(2 * ONE, ONE).expect("blocks");
    file.store(2 * ONE, &[2]);
    file.sync(2 * ONE, 1).expect("a sync");
    plant(None);
    let after = machine.cut(|| ()).machine(&mut Random(1), false, &[]);
    let home = recover(&*after, open(&after)).expect("a recovery");
    match (&home.refused[..], after.content(0).get(2 * SEGMENT)) {
        ([], Some(2)) => Ok(()),
        (refused, found) => Err(format!("present: {present}: {found:?}, {refused:?}")),
    }
}

#[test]
fn allocated_blocks_are_durable_before_a_sync_needs_them() {
    let _alone = alone();
    for present in [false, true] {
        allocated(false, present).expect("the page comes home");
        allocated(true, present).expect_err("the disk is full");
    }
}

/// The file has holes.  A sync of a page there allocates its blocks: recovery may find a full disk.
#[test]
fn blocks_of_a_hole_are_allocated_before_a_page_there_is_synced() {
    let _alone = alone();
    let machine = Machine::new(4, &[ONE], []);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
    file.set_size(3 * ONE).expect("longer, by holes");
    for at in [ONE, 2 * ONE] {
        file.store(at, &[2]);
    }
    file.sync(0, u64::MAX).expect("a sync");
    assert_eq!(machine.syncs_and_blocks(0).1, 3 * SEGMENT / PAGE);
    let after = machine.cut(|| ()).machine(&mut Random(1), false, &[]);
    let home = recover(&*after, open(&after)).expect("a recovery");
    assert!(home.refused.is_empty(), "{home:?}");
    let content = after.content(0);
    assert_eq!((content[SEGMENT], content[2 * SEGMENT]), (2, 2));
}

/// A server that was stopped may carry out an earlier request later, when the frame belongs to
/// another file.
fn released(planted: bool) -> Result<(), String> {
    let machine = Machine::new(1, &[ONE, ONE], []);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let files = [0, 1].map(|i| cache.open_backing(machine.file(i), ONE).expect("open"));
    files[0].write(0, b"first").expect("written");
    files[0].sync(0, 5).expect("a sync");
    machine.lose_answer();
    plant(planted.then_some(Planted::UnansweredKept));
    let _ = files[0].drop_cache(0, ONE);
    plant(None);
    files[1].write(0, b"other").expect("it gets the frame");
    // Its own bytes are in its file.  Without its frame it gets none or one of its own.
    let _ = files[0].write(5, b"stale");
    let mut found = [0; 10];
    files[1].read(0, &mut found).expect("read");
    if planted {
        // With a frame that is not its own it cannot even be closed.
        std::mem::forget((files, cache));
    }
    match &found {
        b"other\0\0\0\0\0" => Ok(()),
        _ => Err(format!("another file has {:?}", found.escape_ascii().to_string())),
    }
}

#[test]
fn a_request_without_an_answer_may_have_been_carried_out() {
    let Some(_) = super::has("it") else { return };
    let _alone = alone();
    released(false).expect("its frame is another's");
    println!("{}", released(true).expect_err("the mistake is found"));
}

/// Segments are evicted and brought in after mlockall(MCL_FUTURE).
fn locked(machine: &Arc<Machine>, features: &Features) -> [u8; 2] {
    let cache = cache(machine, features);
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    file.store(0, b"a");
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::FUTURE).expect("root may");
    file.sync(0, 1).expect("a sync");
    // There is one frame for two segments, so each replaces the other.
    for (at, bytes) in [(ONE, b"b"), (0, b"c"), (ONE, b"d"), (0, b"e")] {
        file.store(at, bytes);
        file.sync(at, 1).expect("a sync");
    }
    file.close().expect("closed");
    let content = machine.content(0);
    [content[0], content[SEGMENT]]
}

/// mlockall holds for a whole process, so the test uses one of its own.
#[test]
fn a_program_that_locks_all_its_memory_loses_nothing() {
    const ROLE: &str = "FOREBAY_MAP_LOCKED";
    let _alone = alone();
    let Some(features) = has("a_program_that_locks_all_its_memory_loses_nothing") else { return };
    if let Ok(role) = std::env::var(ROLE) {
        let machine = Machine::new(1, &[2 * ONE], []);
        plant((role == "planted").then_some(Planted::EmptyLocked));
        assert_eq!(&locked(&machine, &features), b"ed");
        return;
    }
    for role in ["right", "planted"] {
        let name = "tests::several::a_program_that_locks_all_its_memory_loses_nothing";
        let me = std::env::current_exe().expect("this program");
        let mut child = std::process::Command::new(me);
        let ended = child.args(["--exact", name]).env(ROLE, role).output().expect("it runs");
        assert_eq!(ended.status.success(), role == "right", "{role}: {ended:?}");
    }
}

#[test]
fn a_file_is_closed_during_rounds() {
    let _alone = alone();
    let Some(features) = has("a_file_is_closed_during_rounds") else { return };
    let machine = Machine::new(2, &[2 * ONE], []);
    let cache = cache(&machine, &features);
    let over = AtomicBool::new(false);
    let scope = || {
        std::thread::scope(|s| {
            let rounds = s.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    cache.round().expect("a round");
                }
            });
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end && !rounds.is_finished() {
                let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
                file.store(5, &[1]);
                file.lock(0, ONE).expect("of an earlier one nothing is locked");
                file.close().expect("close");
            }
            over.store(true, Ordering::SeqCst);
            rounds.join().expect("no panic");
        })
    };
    in_time("close", scope);
    assert!(machine.is_empty());
}

/// Without events, the open brings in all segments itself.
#[test]
fn an_open_does_not_wait_for_itself() {
    let _alone = alone();
    let machine = Machine::new(3, &[2 * ONE, 2 * ONE], []);
    let lacking = Features::default();
    let cache = cache(&machine, &lacking);
    in_time("open", || {
        let first = cache.open_backing(machine.file(0), 2 * ONE).expect("two of three frames");
        let said = cache.open_backing(machine.file(1), 2 * ONE).expect_err("one is left");
        assert!(said.to_string().contains("no frame"), "{said}");
        first.close().expect("close");
        let said = cache.open_backing(machine.file(1), 4 * ONE).expect_err("more than there are");
        assert!(said.to_string().contains("userfaultfd"), "{said}");
        cache.open_backing(machine.file(1), 2 * ONE).expect("now it can be").close().expect("so");
    });
    assert!(machine.is_empty());
}

/// The mappings in a range, as /proc/self/maps shows them.
fn shown(from: usize, len: usize) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let number = |hex: &str| usize::from_str_radix(hex, 16).expect("an address");
    let of = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let is = number(start) < from + len && from < number(end);
        is.then(|| rest.split(' ').next().unwrap_or("").to_owned())
    };
    maps.lines().filter_map(of).collect()
}

/// Without events nothing removes a segment's memory when the process ends, and its frame soon
/// belongs to another file.
#[test]
fn no_thread_stores_to_a_released_frame() {
    let _alone = alone();
    let machine = Machine::new(2, &[2 * ONE], []);
    let cache = cache(&machine, &Features::default());
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    let at = file.address().addr();
    file.store(5, b"stored");
    assert!(shown(at, 2 * SEGMENT).iter().all(|how| how.starts_with("rw")));
    file.end().expect("its end");
    assert!(machine.is_empty());
    assert_eq!(&machine.content(0)[5..11], b"stored");
    let after = shown(at, 2 * SEGMENT);
    assert!(!after.is_empty() && after.iter().all(|how| how.starts_with("---")), "{after:?}");
    assert!(file.sync(0, 1).is_err() && file.write(0, b"late").is_err());
}

/// read(2) and write(2) from one part of a mapping to another and to itself.
#[test]
fn a_file_is_read_into_its_own_mapping() {
    let _alone = alone();
    let Some(features) = has("a_file_is_read_into_its_own_mapping") else { return };
    let machine = Machine::new(2, &[2 * ONE], []);
    let cache = cache(&machine, &features);
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    in_time("read", || {
        file.write(0, b"here").expect("written");
        file.sync(0, 4).expect("a sync");
        let own = file.own_bytes();
        for (at, n) in [(0, 4), (SEGMENT, 4), (100, 2 * SEGMENT - 100)] {
            file.drop_cache(0, 2 * ONE).expect("dropped");
            let got = file.read(0, &mut own[at..at + n]).expect("read");
            assert_eq!(got, n);
        }
        file.drop_cache(0, 2 * ONE).expect("dropped");
        file.write(10, &own[0..4]).expect("written");
        for _ in 0..3 {
            file.sync(0, 2 * ONE).expect("a sync");
            cache.round().expect("a round");
        }
        // The segment is watched.
        file.write(20, &own[0..4]).expect("written");
        let mut is = [0; 4];
        file.read(20, &mut is).expect("read");
        assert_eq!(&is, b"here");
    });
}

/// A round of write-back holds every file for as long as the sync of one takes.
#[test]
fn a_closed_file_can_be_opened_during_a_slow_sync_of_another() {
    let _alone = alone();
    let Some(features) = has("a_closed_file_can_be_opened_during_a_slow_sync_of_another") else {
        return;
    };
    let path = std::env::temp_dir().join(format!("forebay-slow-{}", std::process::id()));
    std::fs::write(&path, vec![1; PAGE]).expect("a file");
    for planted in [true, false] {
        let machine = Machine::new(3, &[ONE], []);
        let cache = cache(&machine, &features);
        let slow = cache.open_backing(machine.file(0), ONE).expect("open");
        slow.store(0, &[1]);
        slow.sync(0, 1).expect("synced");
        let other = cache.open(&path, ONE).expect("a real file");
        plant(planted.then_some(Planted::LockKept));
        machine.stall.store(true, Ordering::SeqCst);
        let opened = std::thread::scope(|s| {
            let round = s.spawn(|| cache.round());
            while !machine.stalled.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            other.close().expect("closed");
            let opened = cache.open(&path, ONE);
            machine.stall.store(false, Ordering::SeqCst);
            round.join().expect("it ends").expect("a round");
            opened
        });
        plant(None);
        assert_eq!(opened.is_err(), planted, "{opened:?}");
    }
    let _ = std::fs::remove_file(path);
}

/// An open waits for a sync of its file, which may take as long as the storage likes.
#[test]
fn a_slow_open_holds_up_no_other() {
    let _alone = alone();
    let Some(features) = has("a_slow_open_holds_up_no_other") else { return };
    let path = std::env::temp_dir().join(format!("forebay-opens-{}", std::process::id()));
    std::fs::write(&path, vec![1; PAGE]).expect("a file");
    let machine = Machine::new(3, &[ONE], []);
    let cache = cache(&machine, &features);
    machine.stall.store(true, Ordering::SeqCst);
    std::thread::scope(|s| {
        let slow = s.spawn(|| cache.open_backing(machine.file(0), ONE));
        while !machine.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // This open of the same file has to wait.
        let again = s.spawn(|| cache.open_backing(machine.file(0), ONE).map(drop));
        within(Duration::from_secs(10), "the open of another file", || {
            cache.open(&path, ONE).expect("opened").close().expect("closed");
        });
        assert!(!slow.is_finished() && !again.is_finished(), "nothing was slow");
        machine.stall.store(false, Ordering::SeqCst);
        let (slow, again) = (slow.join().expect("it ends"), again.join().expect("it ends"));
        assert!(slow.is_ok() != again.is_ok(), "one of two opens of the same file");
    });
    let _ = std::fs::remove_file(path);
}

/// Without the thread no waiter would be woken and no store noticed, so the process must end.
#[test]
fn a_panic_of_a_thread_ends_the_process() {
    const CHILD: &str = "FOREBAY_MAP_PANICS";
    let _alone = alone();
    let Some(features) = has("a_panic_of_a_thread_ends_the_process") else { return };
    if std::env::var_os(CHILD).is_some() {
        let machine = Machine::new(3, &[ONE], []);
        let cache = cache(&machine, &features);
        let file = cache.open_backing(machine.file(0), ONE).expect("open");
        plant(Some(Planted::EventsPanic));
        file.store(0, &[1]);
        panic!("the store is over");
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tests::several::a_panic_of_a_thread_ends_the_process"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break Some(status),
            None if begun.elapsed() > Duration::from_secs(20) => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let signal = ended.and_then(|s| std::os::unix::process::ExitStatusExt::signal(&s));
    assert_eq!(signal, Some(libc::SIGABRT), "{ended:?}: None: it waits for ever");
}
