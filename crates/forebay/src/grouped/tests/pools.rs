// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own calls on a device that forgets what was not flushed, and fails: pools and
//! logs, with the thread that frees chunks meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::{Durable, GroupedMedium};
use super::bed::{blank, found};
use super::cuts::check;
use super::model::{Model, CHUNK, TAG, UNIT};
use crate::error::{Error, Result};
use crate::log::{Generation, Log, LogOptions};
use crate::medium::mixed;
use crate::pool::{Pool, PoolOptions};
use crate::report::{LogHome, Uuid};

pub const KINDS: [Durable; 3] = [Durable::Through, Durable::Fua, Durable::Flush];

/// A new pool with logs that are in use.
pub fn made(model: &Arc<Model>, kind: Durable, logs: usize) -> (Pool, Vec<Log>) {
    let path = Path::new("(model)");
    super::bed::watch_the_machine();
    let medium = GroupedMedium::on(path, model.clone(), UNIT as u32, kind).unwrap();
    medium.format(Uuid([7; 16]), CHUNK as u32, 8).unwrap();
    let pool = Pool::open_on(medium, &PoolOptions::default()).unwrap();
    let logs = (0..logs).map(|n| {
        let name = format!("log-{n}");
        pool.log_add(&name, LogHome::Embedded).unwrap();
        let log = pool.log(&name, &LogOptions::default()).unwrap();
        log.create(0).unwrap();
        log
    });
    let logs = logs.collect();
    (pool, logs)
}

pub fn append(log: &Log, txg: u64, id: u64, bytes: usize) -> Result<()> {
    let mut body = vec![id as u8; bytes.max(16)];
    body[..8].copy_from_slice(TAG);
    body[8..16].copy_from_slice(&id.to_le_bytes());
    log.append(txg, Generation::New, &[&body]).map(drop)
}

/// Eight threads append by the library until the power fails.
#[test]
fn a_pool_keeps_what_its_appends_acknowledged() {
    let mut seed = 3u64;
    for round in 0..30u64 {
        let kind = KINDS[round as usize % 3];
        let logs = 1 + round as usize % 2;
        let model = Arc::new(Model::new(blank(), kind, 20, 40));
        let (pool, handles) = made(&model, kind, logs);
        let (told, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let least = 10 + 20 * (round as usize % 7);
        let left = std::thread::scope(|s| {
            for thread in 0..8u64 {
                let (log, told, stop) = (&handles[thread as usize % logs], &told, &stop);
                s.spawn(move || {
                    let mut seed = thread;
                    for n in 0.. {
                        let id = thread << 32 | n;
                        if append(log, 1, id, mixed(&mut seed) as usize % 3000).is_err() {
                            return;
                        }
                        let mut all = told.lock().unwrap();
                        if !stop.load(Ordering::Relaxed) {
                            all.push(id);
                        }
                    }
                });
            }
            while told.lock().unwrap().len() < least {
                std::thread::sleep(Duration::from_micros(100));
            }
            std::thread::sleep(Duration::from_micros(mixed(&mut seed) % 300));
            stop.store(true, Ordering::SeqCst);
            model.cut(&mut seed)
        });
        check(&found(left, kind, logs), &told.into_inner().unwrap());
        drop(handles);
        assert!(pool.close().is_err(), "the device is gone");
    }
}

/// Nothing that would change the pool succeeds, or hangs, once the device has failed, and each
/// error names it; reads go on.
#[test]
fn a_failed_device_is_named_by_each_call() {
    for kind in KINDS {
        let model = Arc::new(Model::new(blank(), kind, 0, 0));
        let (pool, logs) = made(&model, kind, 2);
        append(&logs[0], 1, 5, 100).unwrap();
        let (writes, ..) = model.counts();
        model.plan(|plan| plan.dead_from = Some(writes));
        let calls: [(&str, &dyn Fn() -> Result<()>); 6] = [
            ("append", &|| append(&logs[0], 1, 6, 100)),
            ("append to another", &|| append(&logs[1], 1, 7, 100)),
            ("sync", &|| logs[0].sync(1).map(drop)),
            ("destroy", &|| logs[1].destroy().map(drop)),
            ("add", &|| pool.log_add("new", LogHome::Embedded).map(drop)),
            ("append again", &|| append(&logs[0], 2, 8, 100)),
        ];
        for (what, call) in &calls {
            let e = call().expect_err(what);
            let text = e.to_string();
            assert!(matches!(e, Error::Io { .. }), "{what}: {e:?}");
            assert!(text.contains("(model)") && text.contains("ddrescue"), "{what}: {text}");
            assert_eq!(e.exit_code(), 7, "{what}: {text}");
        }
        let medium = pool.status().medium.unwrap();
        assert!(medium.failed && medium.write_errors > 0, "{medium:?}");
        assert!(medium.trouble.unwrap().contains("a write to it failed"), "{kind:?}");
        assert!(logs[0].info().unwrap().appends >= 1, "what was appended can be looked at");
        drop(logs);
        assert_eq!(pool.close().unwrap_err().exit_code(), 7);
        assert!(found(model.cut(&mut 1), kind, 1)[0].contains(&5));
    }
}

/// One write that fails is written again elsewhere, and nobody is told; status is.
#[test]
fn one_error_is_told_by_status_alone() {
    let model = Arc::new(Model::new(blank(), Durable::Fua, 0, 0));
    let (pool, logs) = made(&model, Durable::Fua, 1);
    let (writes, ..) = model.counts();
    model.plan(|plan| {
        plan.writes.insert(writes + 1, super::model::Landed::First);
    });
    (0..6).for_each(|n| append(&logs[0], 1, n, 100).unwrap());
    let medium = pool.status().medium.unwrap();
    assert_eq!((medium.write_errors, medium.failed), (1, false), "{medium:?}");
    assert!(medium.again == 1 && medium.trouble.is_none(), "{medium:?}");
    let mended = medium.mended.unwrap();
    assert!(mended.contains("a write to it failed once, 0 s ago"), "{mended}");
    assert_eq!((medium.durable_by.as_str(), medium.records), ("fua", 6));
    drop(logs);
    pool.close().unwrap();
}

/// A sync next to threads that append without a pause sends what it left, and a few requests of
/// theirs: it does not become their sender.
#[test]
fn a_sync_ends_while_others_append() {
    const SYNCS: u64 = 60;
    for kind in KINDS {
        let model = Arc::new(Model::new(super::bed::room(128), kind, 200, 100));
        let (pool, logs) = made(&model, kind, 8);
        let (synced, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut most = 0;
        std::thread::scope(|s| {
            for thread in 0..24usize {
                let (log, synced, stop) = (&logs[thread % 8], &synced, &stop);
                s.spawn(move || {
                    for n in 0.. {
                        // One that falls behind is refused.
                        let txg = synced.load(Ordering::Relaxed) + 2;
                        let _ = append(log, txg, (thread as u64) << 32 | n, 100);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let watch = s.spawn(|| {
                let began = std::time::Instant::now();
                while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(10) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                !stop.swap(true, Ordering::Relaxed)
            });
            for txg in 1..=SYNCS {
                for log in &logs {
                    let before = model.sent_here();
                    log.sync(txg).unwrap();
                    most = most.max(model.sent_here() - before);
                }
                synced.store(txg, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(!watch.join().unwrap(), "{kind:?}: a sync did not end while others appended");
        });
        assert!(most <= 12, "{kind:?}: one sync has sent {most} requests");
        let sender = pool.sender().expect("it is written in groups");
        assert_eq!(super::bed::lost_by(sender), 0, "{kind:?}: wake-ups were lost");
        drop(logs);
        pool.close().unwrap();
    }
}
