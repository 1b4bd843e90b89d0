// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a disk that neither ends nor fails its requests hangs no call that an operator's question
//! is answered by.  Method: one call of the library at a time meets a device that hangs; then
//! everything is asked that status, the lists and the exporter show.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

use super::super::{Durable, GroupedMedium};
use super::bed::blank;
use super::model::{Model, CHUNK, UNIT};
use super::pools::{append, made, KINDS};
use crate::error::Result;
use crate::log::{Effect, Log, LogOptions};
use crate::pool::{Pool, PoolOptions};
use crate::report::{LogHome, PoolStatus};

/// A machine that is busy may take a while for an answer; one that hangs never gives it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Everything that is shown of an open pool.
fn ask(pool: &Pool) -> PoolStatus {
    let shown = pool.status();
    assert_eq!(pool.options(), shown.options);
    let names = |logs: &[crate::report::LogInfo]| -> Vec<_> {
        logs.iter().map(|log| log.name.clone()).collect()
    };
    assert_eq!(names(&pool.logs()), names(&shown.logs));
    for log in shown.logs.iter().filter(|log| log.name.starts_with("log-")) {
        assert_eq!(pool.log_info(&log.name).unwrap().index, log.index);
    }
    assert!(pool.log_info("nowhere").is_err());
    assert!(pool.volume_info("nowhere").is_err());
    assert!(pool.maps().is_empty() && pool.volumes().is_empty());
    let _ = (pool.media(), pool.uuid(), pool.recovery(), pool.durable_write());
    assert_eq!(pool.look_for_loss(), None);
    shown
}

/// The disk hangs after so many requests, and a call meets it: what was shown meanwhile.  `None`:
/// the call makes no more requests than these.
fn shown_while_it_hangs(
    after: u32,
    (model, pool): (&Model, &Pool),
    call: impl FnOnce() -> Result<()> + Send,
) -> std::result::Result<Option<PoolStatus>, String> {
    model.stall(Some(after));
    std::thread::scope(|s| {
        let call = s.spawn(call);
        while model.hanging() == 0 && !call.is_finished() {
            std::thread::sleep(Duration::from_micros(100));
        }
        // The thread that frees chunks may have met it alone.
        std::thread::sleep(Duration::from_millis(5));
        let hangs = !call.is_finished();
        let (tell, told) = channel();
        s.spawn(move || {
            let _ = tell.send(ask(pool));
        });
        let shown = told.recv_timeout(PATIENCE);
        // Whatever came of it, so that the threads end.
        model.stall(None);
        call.join().unwrap().map_err(|e| e.to_string())?;
        let shown = shown.map_err(|_| "no answer while the disk hangs".to_string())?;
        Ok(hangs.then_some(shown))
    })
}

type Call = fn(&Pool, &[Log]) -> Result<()>;

/// Calls of a pool whose log 0 has entries of txg 1.  A step of destage asks the disk of such a
/// pool for nothing.
const CALLS: &[(&str, Call)] = &[
    ("append", |_, logs| append(&logs[0], 2, 7, 100)),
    ("sync", |_, logs| logs[0].sync(1).map(drop)),
    ("add", |pool, _| pool.log_add("new", LogHome::Embedded).map(drop)),
    ("remove", |pool, _| pool.log_remove("gone", true)),
    ("create", |pool, _| pool.log("spare", &LogOptions::default())?.create(0).map(drop)),
    ("destroy", |_, logs| logs[0].destroy().map(drop)),
    ("release", |pool, _| pool.log("kept", &LogOptions::default())?.release()),
    ("close", |pool, _| pool.opened().shut_down()),
];

/// Calls of one that was not closed, and is open again.
const CALLS_AGAIN: &[(&str, Call)] = &[
    ("claim", |pool, _| pool.log("log-0", &LogOptions::default())?.claim().map(drop)),
    ("replay and destroy", |pool, _| {
        let mut claimed = pool.log("log-0", &LogOptions::default())?.claim()?;
        claimed.replay(|_, _| Effect::Durable)?;
        claimed.destroy().map(drop)
    }),
];

/// A pool with two logs that have entries, an empty one, and one whose end was not stored yet.
fn used(model: &Arc<Model>, kind: Durable) -> (Pool, Vec<Log>) {
    let (pool, logs) = made(model, kind, 1);
    pool.log_add("spare", LogHome::Embedded).unwrap();
    pool.log_add("kept", LogHome::Consumer).unwrap();
    let kept = pool.log("kept", &LogOptions::default()).unwrap();
    kept.create(0).unwrap();
    append(&kept, 1, 8, 100).unwrap();
    kept.destroy().unwrap();
    (0..6).for_each(|n| append(&logs[0], 1, n, CHUNK / 4).unwrap());
    pool.log_add("gone", LogHome::Embedded).unwrap();
    let gone = pool.log("gone", &LogOptions::default()).unwrap();
    gone.create(0).unwrap();
    append(&gone, 1, 9, 100).unwrap();
    drop((kept, gone));
    (pool, logs)
}

/// Each request of each call hangs in turn.
#[test]
fn nothing_that_is_shown_waits_for_the_disk() {
    let mut failures = Vec::new();
    let again = CALLS_AGAIN.iter().map(|call| (true, call));
    for (again, (what, call)) in CALLS.iter().map(|call| (false, call)).chain(again) {
        for kind in KINDS {
            let mut hung = 0;
            for after in 0.. {
                let mut model = Arc::new(Model::new(blank(), kind, 0, 0));
                let (mut pool, mut logs) = used(&model, kind);
                if again {
                    model = Arc::new(Model::new(model.cut(&mut 1), kind, 0, 0));
                    logs.clear();
                    let path = Path::new("(model)");
                    let medium = GroupedMedium::on(path, model.clone(), UNIT as u32, kind);
                    pool = Pool::open_on(medium.unwrap(), &PoolOptions::default()).unwrap();
                }
                let shown = shown_while_it_hangs(after, (&model, &pool), || call(&pool, &logs));
                let medium = ask(&pool).medium.unwrap();
                assert!(!medium.failed && medium.hangs.is_none(), "{what}: {medium:?}");
                match shown {
                    Ok(None) => break,
                    Ok(Some(shown)) if shown.medium.as_ref().unwrap().unanswered_seconds > 0.0 => {}
                    Ok(Some(shown)) => failures.push(format!("{what}: {:?}", shown.medium)),
                    Err(why) => {
                        failures.push(format!("{what}, {kind:?}, {after}: {why}"));
                        break;
                    }
                }
                hung += 1;
            }
            assert!(hung > 0, "{what}, {kind:?}: it asks the disk for nothing");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Since when it hangs is told in words, and is gone when it goes on.
#[test]
fn a_disk_that_hangs_is_told_for_as_long_as_it_does() {
    let model = Arc::new(Model::new(blank(), Durable::Flush, 0, 0));
    let (pool, logs) = made(&model, Durable::Flush, 1);
    model.stall(Some(0));
    std::thread::scope(|s| {
        let appended = s.spawn(|| append(&logs[0], 1, 1, 100));
        while pool.status().medium.unwrap().hangs.is_none() {
            assert!(!appended.is_finished());
            std::thread::sleep(Duration::from_millis(20));
        }
        let medium = pool.status().medium.unwrap();
        let hangs = medium.hangs.unwrap();
        let told = "the disk (model) has not answered a write for 1 s: ";
        assert!(hangs.starts_with(told) && hangs.contains("dmesg"), "{hangs}");
        assert!((1.0..3.0).contains(&medium.unanswered_seconds), "{}", medium.unanswered_seconds);
        model.stall(None);
        appended.join().unwrap().unwrap();
    });
    let medium = pool.status().medium.unwrap();
    assert_eq!((medium.hangs, medium.unanswered_seconds), (None, 0.0));
    drop(logs);
    pool.close().unwrap();
}
