// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs: appended entries are handed back after a crash, once and in order; refused calls write
//! nothing.

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use forebay::*;

fn log_of(pool: &Pool, name: &str) -> Log {
    pool.log(name, &LogOptions::default()).unwrap()
}

/// A pool with a log in no state.
fn pool_with_log(dir: &Dir, home: LogHome) -> Pool {
    let pool = open(&dir.pool(12));
    pool.log_add("l", home).unwrap();
    pool
}

/// The state after a crash: a copy of the pool while its user runs, opened.
fn crashed(dir: &Dir) -> Pool {
    let copy = dir.path("crashed");
    std::fs::copy(dir.path("pool"), &copy).unwrap();
    open(&copy)
}

fn append(log: &Log, txg: u64, generation: Generation, text: &str) -> EntryName {
    log.append(txg, generation, &[text.as_bytes()]).unwrap()
}

fn replayed(claimed: &mut Claimed) -> Vec<String> {
    let mut all = Vec::new();
    let report = claimed.replay(|e, _| {
        all.push(String::from_utf8(e.data.to_vec()).unwrap());
        Effect::Durable
    });
    assert_eq!(report.unwrap().replayed, all.len() as u64);
    all
}

/// It is refused so, and the log stays what it was.
fn refused<T: std::fmt::Debug>(log: &Log, result: Result<T>, cause: &str) {
    let e = result.unwrap_err();
    assert!(e.to_string().starts_with("log l: ") && e.to_string().contains(cause), "{e}");
    assert!(e.exit_code() != 0 && e.errno() != 0, "{e}");
    let state = log.info().unwrap().state;
    assert!(matches!(e, Error::Log { .. } | Error::LogFull { .. }), "{e:?} {state}");
}

#[test]
fn what_is_left_of_a_log_comes_back_in_order() {
    let dir = Dir::new("log-order");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    assert_eq!(log.create(0).unwrap().state(), LogState::Logging);
    let first = append(&log, 1, Generation::New, "a");
    let second = append(&log, 2, Generation::Same, "b");
    let third = append(&log, 3, Generation::New, "c");
    assert!(first.generation == second.generation && first.id != second.id, "{first} {second}");
    assert_eq!(third.generation, second.generation + 1);
    let whole = log.append(3, Generation::New, &[b"d", b"", &[b'e'; 700]]).unwrap();
    let info = log.info().unwrap();
    assert_eq!((info.entries, info.unsynced_txgs, info.appends), (4, 3, 4));
    assert_eq!((info.appended_bytes, info.held_chunks, info.missing), (704, 0, 0));
    log.sync(1).unwrap();
    assert_eq!(log.info().unwrap().entries, 3);

    let pool = crashed(&dir);
    let info = pool.log_info("l").unwrap();
    assert_eq!((info.state, info.claimed), (LogState::Logging, false));
    assert!(info.held_chunks > 0 && info.held_chunks == info.chunks);
    assert_eq!(pool.status().logs, pool.logs());
    let log = log_of(&pool, "l");
    let mut claimed = log.claim().unwrap();
    assert_eq!((claimed.report().replayed, claimed.report().obsolete), (3, 1));
    let mut names = Vec::new();
    let report = claimed.replay(|e, checkpoint| {
        assert_eq!(checkpoint.replayed(), Some(e.name));
        names.push((e.name, e.txg, e.data.len()));
        Effect::Durable
    });
    assert_eq!(report.unwrap().end, ReplayEnd::Complete);
    assert_eq!((names[0], names[1]), ((second, 2, 1), (third, 3, 1)));
    assert_eq!(names[2], (whole, 3, 701));
    assert_eq!(replayed(&mut claimed), [""; 0]);
    claimed.destroy().unwrap();
    assert_eq!(log.info().unwrap().state, LogState::None);
    log.create(3).unwrap();
    append(&log, 4, Generation::New, "next");
    drop(log);
    pool.close().unwrap();
}

#[test]
fn a_replay_goes_on_where_it_was_cut_off() {
    let dir = Dir::new("log-resume");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    for n in 0..10 {
        append(&log, 1 + n / 4, Generation::New, &n.to_string());
    }
    let first = crashed(&dir);
    let log = log_of(&first, "l");
    let mut claimed = log.claim().unwrap();
    let mut n = 0;
    let report = claimed.replay(|_, _| {
        n += 1;
        if n <= 4 {
            Effect::Durable
        } else {
            Effect::Stop
        }
    });
    let report = report.unwrap();
    assert_eq!((report.end, report.replayed, report.left), (ReplayEnd::Stopped, 4, 6));
    refused(&log, claimed.destroy(), "not replayed to its end");
    drop((log, first));

    let second = open(&dir.path("crashed"));
    let log = log_of(&second, "l");
    assert_eq!(log.info().unwrap().state, LogState::Replaying);
    let mut claimed = log.claim().unwrap();
    assert_eq!(replayed(&mut claimed), ["4", "5", "6", "7", "8", "9"]);
    claimed.destroy().unwrap();
}

/// An applied entry becomes durable with the next durable one.
#[test]
fn what_is_only_applied_comes_again() {
    let dir = Dir::new("log-applied");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    for n in 0..6 {
        append(&log, 1, Generation::New, &n.to_string());
    }
    let first = crashed(&dir);
    let mut claimed = log_of(&first, "l").claim().unwrap();
    let replay = claimed.replay(|e, _| match e.data {
        b"2" => Effect::Durable,
        b"5" => Effect::Stop,
        _ => Effect::Applied,
    });
    assert_eq!(replay.unwrap().replayed, 5);
    drop((claimed, first));
    let second = open(&dir.path("crashed"));
    assert_eq!(replayed(&mut log_of(&second, "l").claim().unwrap()), ["3", "4", "5"]);
}

/// A consumer that panics ends its replay, not the process; the entry was not replayed.
#[test]
fn a_panic_of_the_consumer_is_its_own() {
    let dir = Dir::new("log-panic");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    for n in 0..3 {
        append(&log, 1, Generation::New, &n.to_string());
    }
    let pool = crashed(&dir);
    let mut claimed = log_of(&pool, "l").claim().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        claimed.replay(|e, _| {
            assert_ne!(e.data, b"1", "as the test wants it");
            Effect::Durable
        })
    }));
    let told = panicked.unwrap_err();
    assert!(told.downcast_ref::<String>().unwrap().contains("as the test wants it"));
    assert_eq!(replayed(&mut claimed), ["1", "2"]);
    claimed.destroy().unwrap();
}

#[test]
fn a_consumer_keeps_the_header() {
    let dir = Dir::new("log-consumer");
    let pool = pool_with_log(&dir, LogHome::Consumer);
    let log = log_of(&pool, "l");
    let mut stored = log.create(7).unwrap().to_bytes();
    let names = [("0", 8), ("1", 9), ("2", 10)];
    let names = names.map(|(text, txg)| append(&log, txg, Generation::New, text));
    // The consumer stores it, or had not come to it: both are right.
    let older = stored;
    stored = log.sync(8).unwrap().to_bytes();
    for (stored, left) in [(stored, &["1", "2"][..]), (older, &["0", "1", "2"])] {
        let pool = crashed(&dir);
        let log = log_of(&pool, "l");
        refused(&log, log.claim(), "with the consumer");
        refused(&log, log.append(9, Generation::New, &[b"x"]), "claimed and replayed first");
        refused(&log, log.sync(9), "claimed and replayed first");
        let header = LogHeader::from_bytes(&stored).unwrap();
        let mut claimed = log.claim_with(&header, 0).unwrap();
        let mut kept = claimed.header().unwrap();
        assert_eq!((kept.state(), kept.guid()), (LogState::Replaying, header.guid()));
        let replay = claimed.replay(|e, checkpoint| {
            kept = checkpoint.clone();
            if e.name == names[1] {
                Effect::Stop
            } else {
                Effect::Durable
            }
        });
        assert_eq!(replay.unwrap().end, ReplayEnd::Stopped);
        assert_eq!(kept.replayed(), Some(names[1]));
        let all = replayed(&mut claimed);
        assert_eq!(all, left[left.len() - 2..]);
        assert_eq!(claimed.destroy().unwrap().state(), LogState::None);
        log.release().unwrap();
        assert_eq!(log.create(10).unwrap().state(), LogState::Logging);
    }
    // The txg that the consumer knows to be synced counts, though the stored header is older.
    let pool = crashed(&dir);
    let log = log_of(&pool, "l");
    let mut claimed = log.claim_with(&LogHeader::from_bytes(&older).unwrap(), 9).unwrap();
    assert_eq!(replayed(&mut claimed), ["2"]);
    claimed.give_up().unwrap();
}

/// From a backup of the consumer's store, say: nothing of the newer period may be given up,
/// or taken for all that there is.
#[test]
fn a_header_of_an_earlier_period_is_refused_while_there_is_a_newer_one() {
    let dir = Dir::new("log-stale");
    let pool = pool_with_log(&dir, LogHome::Consumer);
    let log = log_of(&pool, "l");
    let logging = log.create(7).unwrap();
    append(&log, 8, Generation::New, "of the first period");
    let ended = log.destroy().unwrap();
    assert_eq!((ended.state(), ended.guid()), (LogState::None, logging.guid()));
    log.release().unwrap();
    refused(&log, log.create_as(logging.guid(), 8), "or period has this GUID");
    let newest = log.create(8).unwrap();
    let in_crashed = |f: &dyn Fn(&Log)| f(&log_of(&crashed(&dir), "l"));
    let given_up = |log: &Log| {
        log.destroy().unwrap();
        log.release().unwrap();
    };
    // It was not stored, and nothing appended: the end of the one before is right.
    in_crashed(&|log| {
        refused(log, log.claim_with(&logging, 0), "newest period: ");
        assert_eq!(log.claim_with(&ended, 0).unwrap().report().replayed, 0);
    });
    append(&log, 9, Generation::New, "of the second");
    in_crashed(&|log| {
        assert_eq!(log.info().unwrap().guid, Some(newest.guid()));
        let both = format!("{}, and that of {} was brought", newest.guid(), ended.guid());
        for (stale, says) in [
            (&LogHeader::default(), "and none was brought"),
            (&logging, both.as_str()),
            (&ended, "whoever has lost that gives up what the log holds"),
        ] {
            refused(log, log.claim_with(stale, 0), says);
            refused(log, log.create(9), "claimed and replayed first");
        }
        assert_eq!(replayed(&mut log.claim_with(&newest, 0).unwrap()), ["of the second"]);
    });
    // All of it is synced, and its chunks are given back.
    log.sync(9).unwrap();
    in_crashed(&|log| refused(log, log.claim_with(&ended, 0), "newest period: "));
    // Given up by name, by one who stores nothing of what is in no state.
    in_crashed(&|log| {
        given_up(log);
        log.create(9).unwrap();
    });
    given_up(&log);
    in_crashed(&|log| {
        refused(log, log.claim_with(&newest, 0), "has ended since then");
        assert_eq!(log.claim_with(&LogHeader::default(), 0).unwrap().report().replayed, 0);
    });
}

#[test]
fn replay_may_write_to_a_full_volume_of_the_same_pool() {
    let dir = Dir::new("log-volume");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let origin = MemOrigin::new(4 << 20).unwrap();
    pool.volume_add_origin("v", &origin, 512).unwrap();
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    for n in 0..200u64 {
        log.append(1, Generation::New, &[&n.to_le_bytes()]).unwrap();
    }
    let pool = crashed(&dir);
    let volume =
        pool.attach_origin("v", Box::new(origin.clone()), &AttachOptions::default()).unwrap();
    let mut claimed = log_of(&pool, "l").claim().unwrap();
    // More than the pool holds, so that writes wait for destage.
    let report = claimed.replay(|e, _| {
        let n = u64::from_le_bytes(e.data.try_into().unwrap());
        volume.write_at(&[n as u8; 4096], n * 4096).unwrap();
        Effect::Durable
    });
    assert_eq!(report.unwrap().replayed, 200);
    let mut back = [0; 4096];
    volume.read_at(&mut back, 199 * 4096).unwrap();
    assert_eq!(back, [199; 4096]);
}

// --- what is missing -----------------------------------------------------------

/// The only place of the pattern in the pool.
fn place_of(pool: &Path, pattern: &[u8]) -> usize {
    let bytes = std::fs::read(pool).unwrap();
    let found: Vec<usize> =
        (0..bytes.len() - pattern.len()).filter(|&i| bytes[i..].starts_with(pattern)).collect();
    assert_eq!(found.len(), 1, "{}", String::from_utf8_lossy(pattern));
    found[0]
}

fn flip(pool: &Path, at: usize) {
    let mut bytes = std::fs::read(pool).unwrap();
    bytes[at] ^= 1;
    std::fs::write(pool, bytes).unwrap();
}

/// Three generations of one entry and one of two, the third damaged: its body, or its header.
fn damaged_third(dir: &Dir, back: usize) -> (Pool, Claimed, Vec<String>, Box<ReplayReport>) {
    let pool = pool_with_log(dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    let names = ["first-entry", "second-entry", "third-entry", "fourth-entry"];
    let names = names.map(|name| append(&log, 1, Generation::New, name));
    let fifth = append(&log, 1, Generation::Same, "fifth-entry");
    let witness = names[3].min(fifth);
    drop(log);
    pool.close().unwrap();
    let path = dir.path("pool");
    flip(&path, place_of(&path, b"third-entry") - back);
    let pool = open(&path);
    let log = log_of(&pool, "l");
    let mut claimed = log.claim().unwrap();
    let mut all = Vec::new();
    let e = claimed.replay(|e, _| {
        all.push(String::from_utf8(e.data.to_vec()).unwrap());
        Effect::Durable
    });
    let e = e.unwrap_err();
    assert_eq!(e.exit_code(), 11, "{e}");
    let text = e.to_string();
    assert!(text.contains("log l: replay INCOMPLETE after 2 entries"), "{text}");
    let told = format!("before entry {witness} (txg 1) is missing or damaged");
    assert!(text.contains(&told), "{text}");
    let Error::LogIncomplete { report, .. } = e else { panic!("{e:?}") };
    let named = |name: EntryName| Witness { generation: name.generation, id: name.id, txg: 1 };
    assert_eq!(report.witness, Some(named(witness)));
    assert_eq!(report.first_damaged, (report.damaged > 0).then(|| named(names[2])));
    (pool, claimed, all, report)
}

#[test]
fn a_damaged_entry_is_named_and_what_depends_on_it_is_left() {
    let dir = Dir::new("log-damaged");
    let (_pool, claimed, all, report) = damaged_third(&dir, 0);
    assert_eq!(all, ["first-entry", "second-entry"]);
    assert_eq!((report.damaged, report.left), (1, 2));
    assert!(report.to_string().contains("1 damaged, first entry "), "{report}");
    assert!(report.to_string().ends_with("(txg 1); 2 left"), "{report}");
    refused(&log_of(&_pool, "l"), claimed.destroy(), "not replayed to its end");
}

#[test]
fn an_entry_without_a_header_is_missed_by_its_witness() {
    let dir = Dir::new("log-missing");
    let (pool, claimed, all, report) = damaged_third(&dir, 64);
    assert_eq!(all, ["first-entry", "second-entry"]);
    assert_eq!((report.damaged, report.left), (0, 2));
    assert_eq!(pool.log_info("l").unwrap().missing, 1);
    assert_eq!(claimed.give_up().unwrap().state(), LogState::None);
    let log = log_of(&pool, "l");
    log.create(1).unwrap();
    append(&log, 2, Generation::New, "anew");
}

// --- bad input --------------------------------------------------------------------

#[test]
fn appends_and_syncs_out_of_order_are_refused() {
    let dir = Dir::new("log-refused");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    let new = Generation::New;
    refused(&log, log.append(1, new, &[b"x"]), "in no state");
    refused(&log, log.sync(1), "in no state");
    log.create(5).unwrap();
    refused(&log, log.create(5), "in use");
    append(&log, 6, new, "kept");
    refused(
        &log,
        log.append(5, new, &[b"x"]),
        "txg 5 refused: txg 5 is synced already; append to txg 6 to 8",
    );
    refused(&log, log.append(9, new, &[b"x"]), "txg 9 refused: it is more than three above 5");
    refused(&log, log.append(u64::MAX, new, &[b"x"]), "more than three above");
    let most = log.info().unwrap().largest_entry_bytes as usize;
    refused(&log, log.append(6, new, &[&vec![0; most + 1]]), "refused: the largest entry has");
    log.append(6, new, &[&vec![7; most]]).unwrap();
    log.sync(6).unwrap();
    refused(&log, log.sync(5), "a later transaction group is synced already");
    assert_eq!(log.info().unwrap().synced_txg, 6);
    assert_eq!(log.info().unwrap().appends, 2);
}

#[test]
fn a_log_that_was_not_claimed_or_is_replaying_takes_no_appends() {
    let dir = Dir::new("log-unclaimed");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    append(&log, 1, Generation::New, "a");
    let pool = crashed(&dir);
    let log = log_of(&pool, "l");
    refused(&log, log.append(1, Generation::New, &[b"x"]), "claimed and replayed first");
    refused(&log, log.sync(1), "claimed and replayed first");
    refused(&log, log.create(1), "");
    let mut claimed = log.claim().unwrap();
    refused(&log, log.append(1, Generation::New, &[b"x"]), "being replayed");
    refused(&log, log.sync(1), "being replayed");
    refused(&log, log.create(1), "being replayed");
    refused(&log, log.claim(), "claimed already");
    // Given up by another handle: there is nothing to replay any more.
    log.destroy().unwrap();
    refused(&log, claimed.replay(|_, _| panic!("it is gone")), "in no state");
}

#[test]
fn a_full_pool_is_told_or_waited_for() {
    let dir = Dir::new("log-full");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    let body = [9; 30 << 10];
    let mut n = 0;
    let e = loop {
        match log.try_append(1, Generation::New, &[&body]) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
        assert!(n < 1000);
    };
    assert!(matches!(e, Error::LogFull { .. }), "{e}");
    assert_eq!((e.exit_code(), n > 4), (8, true), "{e}");
    let limit = LogOptions { full_timeout: Some(Duration::from_millis(20)) };
    let patient = pool.log("l", &limit).unwrap();
    let e = patient.append(1, Generation::New, &[&body]).unwrap_err();
    assert!(matches!(e, Error::LogFull { waited_ms, .. } if waited_ms >= 20), "{e}");
    assert_eq!(log.info().unwrap().appends, n);
    // Another thread's sync ends the wait of the append.
    std::thread::scope(|s| {
        let waiting = s.spawn(|| log.append(2, Generation::New, &[&body]));
        std::thread::sleep(Duration::from_millis(20));
        log.sync(1).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(log.info().unwrap().appends, n + 1);
}

#[test]
fn names_and_guids_are_of_one_log() {
    let dir = Dir::new("log-names");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let origin = MemOrigin::new(1 << 20).unwrap();
    pool.volume_add_origin("v", &origin, 512).unwrap();
    let told = |e: Error, exit: u8, text: &str| {
        assert!(e.to_string().contains(text), "{e}");
        assert_eq!(e.exit_code(), exit, "{e}");
    };
    let o = LogOptions::default();
    told(pool.log_add("l", LogHome::Embedded).unwrap_err(), 2, "of this name exists");
    told(pool.log_add("v", LogHome::Embedded).unwrap_err(), 2, "of this name exists");
    told(pool.log_add("-", LogHome::Embedded).unwrap_err(), 2, "1 to 63");
    told(pool.log("v", &o).unwrap_err(), 3, "is a volume, not a log");
    told(pool.log("x", &o).unwrap_err(), 3, "it has l");
    told(pool.volume_info("l").unwrap_err(), 3, "is a log, not a volume");
    told(pool.volume_remove("l", true).unwrap_err(), 3, "is a log, not a volume");
    told(pool.log_remove("v", true).unwrap_err(), 3, "is a volume, not a log");
    let other = MemOrigin::new(1 << 20).unwrap();
    told(pool.volume_add_origin("l", &other, 512).unwrap_err(), 2, "of this name exists");
    // One period, one GUID.
    pool.log_add("m", LogHome::Embedded).unwrap();
    let (log, second) = (log_of(&pool, "l"), log_of(&pool, "m"));
    let guid = log.create(0).unwrap().guid();
    told(second.create_as(guid, 0).unwrap_err(), 2, "another log or period has this GUID");
    told(second.create_as(Uuid::default(), 0).unwrap_err(), 2, "GUID");
    second.create(0).unwrap();
    told(pool.log_remove("m", true).unwrap_err(), 4, "handles of it are in use");
    drop(second);
    told(pool.log_remove("m", false).unwrap_err(), 12, "discard");
    pool.log_remove("m", true).unwrap();
    assert_eq!(pool.logs().len(), 1);
    let used = pool.close().unwrap_err();
    assert!(matches!(used, Error::PoolInUse { .. }), "{used}");
}

#[test]
fn a_pool_opened_for_reading_shows_its_logs_and_changes_none() {
    let dir = Dir::new("log-read-only");
    let pool = pool_with_log(&dir, LogHome::Embedded);
    let log = log_of(&pool, "l");
    log.create(0).unwrap();
    append(&log, 1, Generation::New, "a");
    drop(log);
    pool.close().unwrap();
    let before = std::fs::read(dir.path("pool")).unwrap();
    let read_only = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open(&dir.path("pool"), &read_only).unwrap();
    assert_eq!(pool.logs()[0].entries, 1);
    let log = log_of(&pool, "l");
    for e in [
        log.append(1, Generation::New, &[b"x"]).unwrap_err(),
        log.sync(1).unwrap_err(),
        log.destroy().unwrap_err(),
        pool.log_add("m", LogHome::Embedded).unwrap_err(),
        pool.log_remove("l", true).unwrap_err(),
    ] {
        assert_eq!(e.exit_code(), 9, "{e}");
    }
    // It can be looked at.
    let mut claimed = log.claim().unwrap();
    assert_eq!(replayed(&mut claimed), ["a"]);
    drop((claimed, log));
    pool.close().unwrap();
    assert!(std::fs::read(dir.path("pool")).unwrap() == before);
}
