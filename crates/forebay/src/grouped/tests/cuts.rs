// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sixteen threads append; the power fails at any moment.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_engine::sys;

use super::super::{Durable, GroupedMedium};
use super::bed::{blank, found, options, Bed};
use super::model::{Model, UNIT};
use crate::engine::Code;
use crate::medium::mixed;

const THREADS: u64 = 16;
/// As many fit in the pool, in groups of one entry too, if the cut comes late.
const EACH: u64 = 80;
const KINDS: [Durable; 3] = [Durable::Through, Durable::Fua, Durable::Flush];

/// An entry's number: thread and count.
fn id(thread: u64, n: u64) -> u64 {
    thread << 32 | n
}

/// Appends by all threads to their logs until there are so many, or the device fails.
/// `acknowledged`: what was before `stop`, in each thread's order.
pub fn run_until(
    bed: &Bed,
    model: &Model,
    (threads, each): (u64, u64),
    acknowledged: &Mutex<Vec<u64>>,
    stop: &AtomicBool,
) {
    let logs = bed.logs.len() as u64;
    std::thread::scope(|s| {
        for thread in 0..threads {
            s.spawn(move || {
                let mut seed = thread;
                for n in 0..each {
                    let (log, id) = ((thread % logs) as usize, id(thread, n));
                    let bytes = 16 + mixed(&mut seed) as usize % 3000;
                    let Ok(ticket) = bed.append(log, id, bytes) else { return };
                    let (_, groups, _, _) = model.counts();
                    if bed.sender.wait(bed.logs[log], ticket, &mut 0).is_err() {
                        return;
                    }
                    // The device's word: it is there, by the next group of its log, or the one
                    // after that where the chunk was full.
                    let by = model.durable_by(id);
                    assert!(by.is_some(), "entry {id:x} was told before it was durable");
                    assert!(logs > 1 || by.unwrap() <= groups + 2, "{by:?} after {groups}");
                    let mut all = acknowledged.lock().unwrap();
                    if !stop.load(Ordering::Relaxed) {
                        all.push(id);
                    }
                }
            });
        }
    });
}

/// Runs it to the end.
pub fn run(bed: &Bed, model: &Model, threads: u64, each: u64) -> Vec<u64> {
    let all = Mutex::default();
    run_until(bed, model, (threads, each), &all, &AtomicBool::new(false));
    all.into_inner().unwrap()
}

/// Each log has, of each of its threads, the first entries without a gap, in order, and all that
/// were acknowledged.
pub fn check(found: &[Vec<u64>], acknowledged: &[u64]) {
    let logs = found.len() as u64;
    let mut next = std::collections::HashMap::new();
    for (log, ids) in found.iter().enumerate() {
        for id in ids {
            let (thread, n) = (id >> 32, id & 0xffff_ffff);
            assert_eq!(thread % logs, log as u64);
            let expected = next.entry(thread).or_insert(0);
            assert_eq!(n, *expected, "the order of thread {thread}");
            *expected += 1;
        }
    }
    for id in acknowledged {
        let have = next.get(&(id >> 32)).copied().unwrap_or(0);
        assert!((id & 0xffff_ffff) < have, "acknowledged entry {id:x} is lost: {have}");
    }
}

#[test]
fn everything_acknowledged_is_there_after_a_cut() {
    let (mut seed, mut unacknowledged) = (1u64, 0);
    for (kind, logs, round) in KINDS
        .into_iter()
        .flat_map(|kind| [1, 2].map(|logs| (kind, logs)))
        .flat_map(|(kind, logs)| (0..6).map(move |round| (kind, logs, round)))
    {
        let model = Arc::new(Model::new(blank(), kind, 30, 50));
        let bed = Bed::on(&model, kind, logs);
        let (acknowledged, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let least = 20 + 40 * round;
        let later = Duration::from_micros(mixed(&mut seed) % 300);
        let left = std::thread::scope(|s| {
            let cutter = s.spawn(|| {
                while acknowledged.lock().unwrap().len() < least {
                    std::thread::sleep(Duration::from_micros(200));
                }
                std::thread::sleep(later);
                // Entries that are recorded as acknowledged were so before the cut.
                stop.store(true, Ordering::SeqCst);
                model.cut(&mut seed)
            });
            run_until(&bed, &model, (THREADS, EACH), &acknowledged, &stop);
            cutter.join().unwrap()
        });
        let acknowledged = acknowledged.into_inner().unwrap();
        assert!(acknowledged.len() >= least);
        let found = found(left, kind, logs);
        check(&found, &acknowledged);
        unacknowledged += found.iter().map(Vec::len).sum::<usize>() - acknowledged.len();
        assert_eq!(bed.lost(), 0, "wake-ups were lost");
    }
    println!("{unacknowledged} entries were there that nobody was told of");
}

/// All threads end, each wake-up arrives, and a clean close has everything.
#[test]
fn nobody_is_left_asleep() {
    for kind in KINDS {
        for (logs, threads) in [(1, 1), (1, 2), (1, 16), (2, 16), (3, 7)] {
            let model = Arc::new(Model::new(blank(), kind, 0, 0));
            let bed = Bed::on(&model, kind, logs);
            let each = 400 / threads;
            let acknowledged = run(&bed, &model, threads, each);
            assert_eq!(acknowledged.len() as u64, threads * each);
            assert_eq!(bed.lost(), 0, "{kind:?}, {logs} logs, {threads} threads");
            bed.sender.close().unwrap();
            let left = model.cut(&mut 1);
            check(&found(left, kind, logs), &acknowledged);
        }
    }
}

/// Each thread appends once, while another's entry is on its way: the leader ends, and nobody
/// appends who could take its place.
#[test]
fn who_waits_is_called_when_the_leader_has_gone() {
    for kind in KINDS {
        let model = Arc::new(Model::new(blank(), kind, 3000, 1000));
        let bed = Bed::on(&model, kind, 2);
        std::thread::scope(|s| {
            for thread in 0..THREADS {
                let bed = &bed;
                s.spawn(move || {
                    std::thread::sleep(Duration::from_millis(thread));
                    bed.append_durable(thread as usize % 2, id(thread, 0), 100).unwrap();
                });
            }
        });
        assert_eq!(bed.lost(), 0, "{kind:?}");
    }
}

/// A pool that has something to write is not closed, and says so.
#[test]
fn a_pool_is_closed_when_everything_is_written() {
    for kind in KINDS {
        let model = Arc::new(Model::new(blank(), kind, 0, 0));
        let bed = Bed::on(&model, kind, 1);
        bed.append_durable(0, 0, 100).unwrap();
        assert_eq!(bed.engine.close(), Err(Code(sys::FBY_E_BUSY)), "{kind:?}");
        bed.sender.close().unwrap();
        let model = Arc::new(Model::new(model.cut(&mut 1), kind, 0, 0));
        let medium = GroupedMedium::on(Path::new("(model)"), model, UNIT as u32, kind).unwrap();
        let (_, report) = medium.open_pool(&options(), 1).unwrap();
        assert!(report.clean, "{report:?}");
    }
}

/// One client's entry costs one write and, where the device has a cache, one flush.
#[test]
fn one_client_is_never_held() {
    for (kind, flushes) in [(Durable::Through, 0), (Durable::Fua, 0), (Durable::Flush, 1)] {
        let model = Arc::new(Model::new(blank(), kind, 200, 200));
        let bed = Bed::on(&model, kind, 1);
        bed.append_durable(0, 0, 100).unwrap();
        let before = model.counts();
        for n in 1..=20 {
            bed.append_durable(0, n, 100).unwrap();
        }
        let after = model.counts();
        assert_eq!(after.0 - before.0, 20, "{kind:?}");
        assert_eq!(after.2 - before.2, 20 * flushes, "{kind:?}");
        assert_eq!(after.3 - before.3, 20 * 4096, "{kind:?}");
        assert_eq!(bed.sender.counts().held, 0);
    }
}

/// A group is held for two entries.  The second one is appended, and nobody waits for it.
#[test]
fn a_held_group_is_sent_when_the_entry_comes_for_which_nobody_waits() {
    let model = Arc::new(Model::new(blank(), Durable::Through, 0, 0));
    let bed = Arc::new(Bed::on(&model, Durable::Through, 1));
    bed.sender.took(Duration::from_secs(8000));
    bed.append(0, 0, 100).unwrap();
    bed.append_durable(0, 1, 100).unwrap();
    let (of, (done, told)) = (bed.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || done.send(of.append_durable(0, 2, 100).is_ok()));
    while bed.sender.counts().held == 0 {
        std::thread::yield_now();
    }
    // The leader is asleep by then.
    std::thread::sleep(Duration::from_millis(50));
    let ticket = bed.append(0, 3, 100).unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    bed.sender.wait(bed.logs[0], ticket, &mut 0).unwrap();
    assert_eq!((bed.sender.counts().held, bed.lost()), (1, 0));
}
