// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that grow by appends: the cost, and the size after a crash.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forebay::FileFate;

use super::{alone, has, options};
use crate::planted::{plant, Planted};
use crate::recover::recover;
use crate::simulated::{open, Machine, Random};
use crate::store::Store;
use crate::{Cache, Features, MapFile, PAGE, SEGMENT};

const ROOM: u64 = 3 * SEGMENT as u64;

fn begin(promises: bool) -> (Arc<Machine>, Cache, MapFile) {
    let machine = Machine::new(3, &[0], []);
    machine.promises.store(promises, Ordering::SeqCst);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let features = Features::detect(store.memory(), 0);
    let cache = Cache::new(store, options(&features)).expect("a cache");
    let file = cache.open_backing(machine.file(0), ROOM).expect("open");
    (machine, cache, file)
}

fn append(file: &MapFile, byte: u8, n: usize) {
    file.write(file.size(), &vec![byte; n]).expect("written");
}

#[test]
fn an_append_costs_no_sync_of_the_file() {
    let _alone = alone();
    let (machine, cache, file) = begin(true);
    let mut content = Vec::new();
    for i in 0..300u64 {
        append(&file, i as u8 | 1, 9000);
        content.extend_from_slice(&[i as u8 | 1; 9000]);
        file.sync(0, u64::MAX).expect("synced");
        if i % 50 == 49 {
            cache.round().expect("a round");
        }
        if i % 37 == 0 {
            let left = machine.cut(|| ());
            for killed in [true, false] {
                let after = left.machine(&mut Random(i), killed, &[]);
                let report = recover(&*after, open(&after)).expect("recovered");
                assert!(report.refused.is_empty(), "{report:?}");
                assert!(after.content(0) == content && after.is_empty(), "after append {i}");
            }
        }
    }
    let (syncs, blocks) = machine.syncs_and_blocks(0);
    // Syncs for the blocks of each segment, for each round, for the open and for the mark.
    assert!(syncs < 40, "{syncs} syncs of 300 appends");
    assert!(blocks * PAGE >= content.len());
    file.close().expect("closed");
    assert!(machine.content(0) == content && machine.is_empty());
    assert_eq!(machine.syncs_and_blocks(0).1, content.len().div_ceil(PAGE), "blocks behind");

    let (machine, _cache, file) = begin(false);
    for _ in 0..30 {
        append(&file, 1, 9000);
        file.sync(0, u64::MAX).expect("synced");
    }
    let (syncs, _) = machine.syncs_and_blocks(0);
    assert!(syncs >= 30, "a store without promises: {syncs} syncs of 30 appends");
}

/// A crash takes what a lost pool has.
#[test]
fn a_sync_of_a_lost_pool_is_in_the_file_or_fails() {
    let _alone = alone();
    let (machine, cache, file) = begin(true);
    append(&file, 1, 9000);
    file.sync(0, u64::MAX).expect("synced");
    assert!(!machine.durable(0).starts_with(&[1; 9000]), "the pool alone has it");
    machine.lose(FileFate::Removed);
    append(&file, 2, 9000);
    file.sync(9000, 9000).expect("synced");
    let content = [[1; 9000], [2; 9000]].concat();
    assert!(machine.durable(0) == content, "the file has what was synced");
    // Nothing was stored since, but the size is another one.
    file.set_size(19000).expect("longer");
    file.sync(0, u64::MAX).expect("synced");
    assert_eq!(machine.durable(0).len(), 19000);
    machine.bad_page(1);
    file.store(PAGE as u64, &[3]);
    file.sync(0, u64::MAX).expect_err("the disk does not take it");
    machine.bad_page(u64::MAX);
    file.sync(0, u64::MAX).expect("the disk takes it");
    assert_eq!(machine.durable(0)[PAGE], 3);

    // Another content lies in the pool's memory.
    machine.lose(FileFate::Overwritten);
    file.store(0, &[4]);
    let refused = file.sync(0, 1).expect_err("it may be anything");
    assert!(refused.to_string().contains("overwritten"), "{refused}");
    cache.round().expect_err("nothing is written back");
    assert_eq!(machine.content(0)[0], 1);
    file.close().expect_err("the file lacks it");
}

/// The file grows by zeroes, by data that was not synced, and by another program after the
/// kill.
fn lengths() -> Result<(), String> {
    for appended in [&[][..], &[7; 5], &[7; PAGE]] {
        let (machine, cache, file) = begin(true);
        append(&file, 1, 100);
        file.sync(0, 100).map_err(|e| e.to_string())?;
        cache.round().map_err(|e| e.to_string())?;
        append(&file, 2, 50);
        file.set_size(5000).map_err(|e| e.to_string())?;
        // Stores after the synced end must not reach the file.
        cache.round().map_err(|e| e.to_string())?;
        let after = machine.cut(|| ()).machine(&mut Random(1), true, &[]);
        if after.content(0).len() != 5000 {
            return Err("the file has another size to others".into());
        }
        after.append(0, appended);
        let report = recover(&*after, open(&after)).map_err(|e| e.to_string())?;
        let (mut expected, found) = (vec![1; 100], after.content(0));
        if !appended.is_empty() {
            expected.resize(5000, 0);
            expected.extend_from_slice(appended);
        }
        if !report.refused.is_empty() || found != expected || !after.is_empty() {
            return Err(format!("{report:?}, {} bytes, not {}", found.len(), expected.len()));
        }
    }
    Ok(())
}

/// Blocks that a truncation freed are allocated again.  A promise is kept after a cut that
/// loses what was not fsynced, and by a close.
fn promises() -> Result<(), String> {
    for seed in 0..8 {
        let (machine, _cache, file) = begin(true);
        append(&file, 1, 3 * PAGE);
        file.sync(0, u64::MAX).map_err(|e| e.to_string())?;
        file.set_size(100).map_err(|e| e.to_string())?;
        append(&file, 2, 3 * PAGE);
        file.sync(0, u64::MAX).map_err(|e| e.to_string())?;
        // No page is dirty and no block is needed.
        file.set_size(9 * PAGE as u64).map_err(|e| e.to_string())?;
        file.sync(0, u64::MAX).map_err(|e| e.to_string())?;
        let mut content = [vec![1; 100], vec![2; 3 * PAGE]].concat();
        content.resize(9 * PAGE, 0);
        let after = machine.cut(|| ()).machine(&mut Random(seed), seed == 0, &[]);
        let report = recover(&*after, open(&after)).map_err(|e| e.to_string())?;
        if !report.refused.is_empty() || after.content(0) != content || !after.is_empty() {
            return Err(format!("{report:?}, {} bytes", after.content(0).len()));
        }
        file.close().map_err(|e| e.to_string())?;
        let lost = machine.cut(|| ()).machine(&mut Random(seed), false, &[]);
        if lost.content(0) != content || lost.lacks_and_tells().1 {
            return Err(format!("closed: {} bytes, or a mark", lost.content(0).len()));
        }
    }
    Ok(())
}

#[test]
fn a_file_has_its_synced_size_after_a_crash() {
    let Some(_) = super::has("it") else { return };
    let _alone = alone();
    lengths().and_then(|()| promises()).expect("as long as was synced");
    for mistake in [
        Planted::AheadLeft,
        Planted::AppendedCut,
        Planted::BlocksKept,
        Planted::PromiseIgnored,
        Planted::PromiseNotMade,
    ] {
        plant(Some(mistake));
        let found = lengths().and_then(|()| promises());
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {found}");
    }
}

/// The size of a file after a truncation that follows a promise whose answer was lost.
fn unanswered() -> usize {
    let (machine, _cache, file) = begin(true);
    append(&file, 1, 100);
    file.sync(0, u64::MAX).expect("synced");
    append(&file, 2, 100);
    machine.lose_answer();
    file.sync(0, u64::MAX).expect_err("nobody knows");
    file.set_size(150).expect("shorter");
    let after = machine.cut(|| ()).machine(&mut Random(1), true, &[]);
    let report = recover(&*after, open(&after)).expect("recovered");
    assert!(report.refused.is_empty() && after.is_empty(), "{report:?}");
    after.content(0).len()
}

#[test]
fn a_promise_without_an_answer_is_truncated() {
    let _alone = alone();
    assert_eq!(unanswered(), 150);
    plant(Some(Planted::UnansweredKept));
    let found = unanswered();
    plant(None);
    assert_eq!(found, 200, "UnansweredKept");
}

#[test]
fn a_record_of_a_file_that_only_grew_is_freed() {
    let _alone = alone();
    let (machine, _cache, file) = begin(true);
    append(&file, 1, 100);
    let after = machine.cut(|| ()).machine(&mut Random(1), true, &[]);
    let report = recover(&*after, open(&after)).expect("recovered");
    assert!(report.refused.is_empty() && after.is_empty(), "{report:?}");
    assert!(after.content(0).is_empty() && after.lacks_and_tells() == (false, false));
}

/// One thread appends while another reads what the size says is there.  Returns the number of
/// reads and the number of those that found zeroes.
fn looks(by_end: bool) -> (u64, u64) {
    const LEN: u64 = 3000;
    let (_machine, _cache, file) = begin(true);
    const APPENDS: u64 = 300;
    let looked = AtomicU64::new(0);
    std::thread::scope(|s| {
        let looker = s.spawn(|| {
            let (mut looks, mut zeroes, mut seen) = (0, 0, 0);
            while seen < APPENDS * LEN {
                let size = file.size();
                if size == seen {
                    continue;
                }
                let mut bytes = [0; 8];
                // The read is by a call or through the mapping.
                match looks % 2 {
                    0 => drop(file.read(size - 8, &mut bytes).expect("read")),
                    _ => file.load(size - 8, &mut bytes),
                }
                (looks, seen) = (looks + 1, size);
                zeroes += u64::from(bytes != [7; 8]);
                // Bytes that arrive now may lie after the size that was read.
                let mut more = vec![7; LEN as usize];
                let n = file.read(size, &mut more).expect("read");
                zeroes += u64::from(more[..n].contains(&0));
                looked.store(size, Ordering::SeqCst);
            }
            (looks, zeroes)
        });
        let bytes = [7; LEN as usize];
        for i in 0..APPENDS {
            // Waits for the reader to see each size as early as it can.
            while looked.load(Ordering::SeqCst) < i * LEN {
                std::thread::yield_now();
            }
            match by_end {
                true => assert_eq!(
                    file.append(&[&bytes[..9], &bytes[9..]]).expect("end"),
                    (i * LEN, LEN)
                ),
                false => file.write(i * LEN, &bytes).expect("written"),
            }
        }
        looker.join().expect("it looked")
    })
}

#[test]
fn a_reader_during_an_append_sees_no_zeroes() {
    let _alone = alone();
    let mut all = 0;
    for by_end in [false, true].repeat(3) {
        let (looks, zeroes) = looks(by_end);
        assert_eq!(zeroes, 0, "of {looks} looks, by_end: {by_end}");
        all += looks;
    }
    assert_eq!(all, 6 * 300, "looks");
    plant(Some(Planted::SizeBeforeBytes));
    let found = (0..20).any(|_| looks(false).1 > 0);
    plant(None);
    assert!(found, "the mistake is not found");
    println!("{all} looks");
}

/// No frame is free: bytes that were not written must not count in the size.
#[test]
fn an_append_that_fails_leaves_the_size() {
    let Some(_) = super::has("it") else { return };
    let _alone = alone();
    let (machine, _cache, file) = begin(true);
    append(&file, 1, 100);
    file.sync(0, u64::MAX).expect("synced");
    let bytes = vec![2; SEGMENT + 100];
    machine.no_frames.store(true, Ordering::SeqCst);
    file.write(100, &bytes).expect_err("no frame for its end");
    assert_eq!(file.size(), 100);
    file.append(&[&bytes]).expect_err("no frame for its end");
    assert_eq!(file.size(), 100);
    machine.no_frames.store(false, Ordering::SeqCst);
    append(&file, 3, 100);
    file.close().expect("closed");
    let content = machine.content(0);
    assert_eq!((content.len(), content[99], content[100]), (200, 1, 3));
}

/// Threads that truncate a file all the time give way to calls that wait.
#[test]
fn truncations_all_the_time_hold_up_no_call() {
    const ONE: u64 = SEGMENT as u64;
    const CALLS: usize = 41;
    const THREADS: usize = 3;
    let _alone = alone();
    let Some(features) = has("truncations_all_the_time_hold_up_no_call") else { return };
    let machine = Machine::new(3, &[ONE], []);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let cache = Cache::new(store, options(&features)).expect("a cache");
    let file = cache.open_backing(machine.file(0), ONE).expect("open");
    let (stop, cuts) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut passed = std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    for size in [ONE / 2, ONE] {
                        file.set_size(size).expect("set");
                        cuts.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let call = |_| {
            let before = cuts.load(Ordering::SeqCst);
            super::several::in_time("a read", || file.read(0, &mut [0; 8]).expect("read"));
            let passed = cuts.load(Ordering::SeqCst) - before;
            std::thread::sleep(Duration::from_millis(1));
            passed
        };
        let passed: Vec<u64> = (0..CALLS).map(call).collect();
        stop.store(true, Ordering::SeqCst);
        passed
    });
    passed.sort_unstable();
    // Each thread may have one under way or ask before the call does, and begin one before the call
    // has asked.
    assert!(passed[CALLS / 2] <= 3 * THREADS as u64, "truncations that pass a call: {passed:?}");
}

/// A round that was turned away three times gets its turn before the size changes again.
#[test]
fn truncations_all_the_time_hold_up_no_round() {
    const ONE: u64 = SEGMENT as u64;
    const TRIES: usize = 5;
    let _alone = alone();
    let Some(features) = has("truncations_all_the_time_hold_up_no_round") else { return };
    // None: the machine was too slow for it.
    let one_try = || {
        let machine = Machine::new(3, &[ONE], []);
        let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
        let cache = Cache::new(store, options(&features)).expect("a cache");
        let file = cache.open_backing(machine.file(0), ONE).expect("open");
        file.write(0, &[7; 64]).expect("written");
        file.sync(0, 64).expect("synced");
        let under_way = || machine.resizes.load(Ordering::SeqCst);
        let wait = || std::thread::sleep(Duration::from_millis(1));
        machine.slow_resize.store(true, Ordering::SeqCst);
        let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                for pages in (1..256).rev().take_while(|_| !stop.load(Ordering::SeqCst)) {
                    file.set_size(pages * PAGE as u64).expect("set");
                    changes.fetch_add(1, Ordering::SeqCst);
                }
            });
            while !under_way() {
                wait();
            }
            let early = (0..3).filter(|_| cache.round().expect("a round") > 0).count();
            while changes.load(Ordering::SeqCst) == 0 {
                wait();
            }
            // The next change is under way now, unless it waits for the round.
            for _ in 0..30 {
                if !under_way() {
                    wait();
                }
            }
            let turn = cache.round().expect("a round") > 0;
            stop.store(true, Ordering::SeqCst);
            (early == 0).then_some(turn)
        })
    };
    for (mistake, often) in [(None, true), (Some(Planted::NoTurn), false)] {
        plant(mistake);
        let tries: Vec<bool> = (0..20).filter_map(|_| one_try()).take(TRIES).collect();
        plant(None);
        let turns = tries.iter().filter(|turn| **turn).count();
        assert_eq!(turns > TRIES / 2, often, "{mistake:?}: {turns} rounds of {tries:?} had a turn");
    }
}
