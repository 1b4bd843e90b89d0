// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs that end while others use them: the errors returned, and that no entry counts in the
//! next period.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay::*;

fn with_log(dir: &Dir) -> (Pool, Log) {
    let pool = open(&dir.pool(16));
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    (pool, log)
}

/// The pool as a crash leaves it, opened.
fn crashed(dir: &Dir) -> (Pool, Log) {
    let copy = dir.path("crashed");
    std::fs::copy(dir.path("pool"), &copy).unwrap();
    let pool = open(&copy);
    let log = pool.log("l", &LogOptions::default()).unwrap();
    (pool, log)
}

/// Entries that are gone by order are not told to be damaged.
#[test]
fn a_replay_of_a_log_that_was_ended_meanwhile_says_so() {
    for anew in [false, true] {
        let dir = Dir::new("log-ended");
        let (_pool, log) = with_log(&dir);
        log.create(0).unwrap();
        for n in 0..4u8 {
            log.append(1, Generation::New, &[&[n]]).unwrap();
        }
        let (_pool, log) = crashed(&dir);
        let mut claimed = log.claim().unwrap();
        let mut came = 0;
        let replayed = claimed.replay(|_, _| {
            came += 1;
            if came == 2 {
                log.destroy().unwrap();
                if anew {
                    log.create(1).unwrap();
                }
            }
            Effect::Applied
        });
        let e = replayed.unwrap_err();
        assert!(matches!(e, Error::Log { .. }), "{e:?}");
        assert_eq!(came, 2);
        if anew {
            log.append(2, Generation::New, &[b"next"]).unwrap();
        }
    }
}

/// Nothing of a removed log is counted as its successor's, and nothing of a log as written
/// to volumes.
#[test]
fn a_log_counts_from_nothing_and_for_itself() {
    let dir = Dir::new("log-place");
    let (pool, log) = with_log(&dir);
    log.create(0).unwrap();
    for _ in 0..10 {
        log.append(1, Generation::New, &[b"entry"]).unwrap();
    }
    let written = |pool: &Pool| {
        let counters = pool.status().counters;
        (counters.writes, counters.written_bytes)
    };
    assert_eq!(written(&pool), (0, 0));
    let index = log.info().unwrap().index;
    drop(log);
    pool.log_remove("l", true).unwrap();
    let next = pool.log_add("m", LogHome::Embedded).unwrap();
    assert_eq!(next.index, index);
    assert_eq!((next.appends, next.appended_bytes, next.entries, next.chunks), (0, 0, 0, 0));
    let log = pool.log("m", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    log.append(1, Generation::New, &[b"entry"]).unwrap();
    assert_eq!(log.info().unwrap().appends, 1);
    drop(log);
    pool.log_remove("m", true).unwrap();
    assert_eq!(written(&pool), (0, 0));
    let volume = attach(&pool, "v", &MemOrigin::new(1 << 20).unwrap());
    volume.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(pool.volume_info("v").unwrap().index, index);
    assert_eq!(written(&pool), (1, 4096));
}

/// Threads append while another ends the log and begins it again.  After a crash the
/// acknowledged entries of the last period are there, and none of another.
#[test]
fn appends_beside_the_end_of_a_log_are_refused_or_of_one_period() {
    let dir = Dir::new("log-periods");
    let (pool, log) = with_log(&dir);
    let (stop, acknowledged) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let guid = std::thread::scope(|s| {
        for thread in 0..3u64 {
            let (log, stop, acknowledged) = (log.clone(), &stop, &acknowledged);
            s.spawn(move || {
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let body = thread << 32 | n;
                    let generation = if n % 3 == 0 { Generation::New } else { Generation::Same };
                    match log.try_append(1, generation, &[&body.to_le_bytes()]) {
                        Ok(name) => drop(acknowledged.lock().unwrap().insert(name, body)),
                        Err(Error::LogFull { .. }) => std::thread::yield_now(),
                        Err(e) => assert!(e.to_string().contains("append refused"), "{e}"),
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        for _ in 0..60 {
            log.create(0).unwrap();
            std::thread::yield_now();
            std::thread::sleep(Duration::from_micros(300));
            log.destroy().unwrap();
            // An append that had begun gives its chunk back when it is refused.
            let began = Instant::now();
            while log.info().unwrap().chunks > 0 {
                assert!(began.elapsed() < Duration::from_secs(20), "a chunk stays");
                std::thread::yield_now();
            }
        }
        let guid = log.create(0).unwrap().guid();
        std::thread::sleep(Duration::from_millis(2));
        guid
    });
    pool.check(true).unwrap();
    let (_pool, log) = crashed(&dir);
    assert_eq!(log.info().unwrap().guid, Some(guid));
    let acknowledged = acknowledged.into_inner().unwrap();
    let mut claimed = log.claim().unwrap();
    let mut came = BTreeMap::new();
    claimed
        .replay(|e, _| {
            came.insert(e.name, u64::from_le_bytes(e.data.try_into().unwrap()));
            Effect::Applied
        })
        .unwrap();
    // Generations go on from period to period.
    let first = came.keys().next().map_or(u64::MAX, |name| name.generation);
    let last: BTreeMap<_, _> =
        acknowledged.into_iter().filter(|(name, _)| name.generation >= first).collect();
    assert_eq!(came, last);
}
