// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools that are written in groups, in a file on a disk: what was acknowledged is there after a
//! crash, everything that such a pool does not hold is refused by name, and a device that is not
//! what it was is told.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::common::*;
use forebay::*;

const CHUNKS: u64 = 24;

fn options() -> CreateOptions {
    CreateOptions { medium: MediumChoice::Ssd, ..small(CHUNKS) }
}

/// `None`: the directory for temporary files is on no disk that can keep the promise.
fn made(dir: &Dir) -> Option<PathBuf> {
    let path = dir.path("pool");
    match create(&path, &options()) {
        Err(e @ Error::Unsupported { .. }) => {
            forebay_test::skipped!("the temporary directory is no place for such a pool: {e}");
            None
        }
        made => {
            let made = made.unwrap();
            assert_eq!((made.media.kind, made.media.persist), (MediaKind::Disk, Persist::Groups));
            assert!(made.media.durable && made.media.id.starts_with("file:"), "{made:?}");
            Some(path)
        }
    }
}

fn in_use(pool: &Pool, name: &str, home: LogHome) -> Log {
    pool.log_add(name, home).unwrap();
    let log = pool.log(name, &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    log
}

/// A copy of what is on the disk while its user runs, as a crash leaves it.
fn crashed(dir: &Dir, name: &str) -> PathBuf {
    let copy = dir.path(name);
    std::fs::copy(dir.path("pool"), &copy).unwrap();
    // A copy may share its blocks, or have holes.
    let whole = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, whole).unwrap();
    std::fs::File::open(&copy).unwrap().sync_all().unwrap();
    copy
}

fn replayed(pool: &Pool, name: &str) -> BTreeSet<String> {
    let log = pool.log(name, &LogOptions::default()).unwrap();
    let mut claimed = log.claim().unwrap();
    let mut all = BTreeSet::new();
    let report = claimed.replay(|e, _| {
        assert!(all.insert(String::from_utf8(e.data.to_vec()).unwrap()), "handed out twice");
        Effect::Durable
    });
    assert_eq!(report.unwrap().end, ReplayEnd::Complete);
    claimed.destroy().unwrap();
    all
}

#[test]
fn what_was_acknowledged_is_there_after_a_crash() {
    let dir = Dir::on_disk("grouped-crash");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let logs = [in_use(&pool, "a", LogHome::Embedded), in_use(&pool, "b", LogHome::Embedded)];
    let told = [Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new())];
    std::thread::scope(|s| {
        for thread in 0..8 {
            let (log, told) = (&logs[thread % 2], &told[thread % 2]);
            s.spawn(move || {
                for n in 0..12 {
                    let text = format!("entry {n} of thread {thread}");
                    log.append(1, Generation::Same, &[text.as_bytes()]).unwrap();
                    told.lock().unwrap().insert(text);
                }
            });
        }
    });
    let status = pool.status();
    let medium = status.medium.unwrap();
    assert_eq!((medium.records, medium.failed, medium.write_errors), (96, false, 0), "{medium:?}");
    assert!(medium.groups <= 96 && medium.written_bytes >= medium.groups * 4096, "{medium:?}");
    assert_eq!(status.logs.iter().map(|l| l.entries).sum::<u64>(), 96);

    let crashed = open(&crashed(&dir, "crashed"));
    assert!(!crashed.recovery().clean && crashed.recovery().groups_lost == 0);
    let report = crashed.check(true).unwrap();
    assert_eq!(report.exit_code(), 0, "{report}");
    for (name, told) in ["a", "b"].iter().zip(&told) {
        assert_eq!(replayed(&crashed, name), *told.lock().unwrap());
    }
    crashed.close().unwrap();
    drop(logs);
    pool.close().unwrap();
    let again = open(&path);
    assert!(again.recovery().clean);
    assert_eq!(replayed(&again, "a"), *told[0].lock().unwrap());
    again.close().unwrap();
}

/// Entries that are submitted become durable together, in their order.
#[test]
fn entries_that_are_submitted_share_a_write() {
    let dir = Dir::on_disk("grouped-submit");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let log = in_use(&pool, "l", LogHome::Embedded);
    let before = pool.status().medium.unwrap();
    let submitted: Vec<_> = (0..20)
        .map(|n| {
            let text = format!("entry {n}");
            log.try_submit(1, Generation::New, &[text.as_bytes()]).unwrap().1
        })
        .collect();
    let last = *submitted.last().unwrap();
    assert!(!last.is_durable() && !log.is_settled(last));
    log.wait(last).unwrap();
    assert!(submitted.iter().all(|ticket| log.is_settled(*ticket)));
    for ticket in submitted {
        log.wait(ticket).unwrap();
    }
    let after = pool.status().medium.unwrap();
    assert_eq!((after.records - before.records, after.groups - before.groups), (20, 1));
    let crashed = open(&crashed(&dir, "crashed"));
    assert_eq!(replayed(&crashed, "l").len(), 20);
    crashed.close().unwrap();
    drop(log);
    pool.close().unwrap();
}

/// A log goes round in the pool: synced entries free their chunks, also of a full pool.
#[test]
fn space_comes_when_a_log_is_synced() {
    let dir = Dir::on_disk("grouped-full");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let log = in_use(&pool, "l", LogHome::Embedded);
    let body = vec![7; 4096];
    let mut txg = 1;
    let mut appended = 0u64;
    // Four times the pool.
    while appended * 8192 < 4 * CHUNKS * u64::from(CHUNK) {
        match log.try_append(txg, Generation::Same, &[&body]) {
            Ok(_) => appended += 1,
            Err(e @ Error::LogFull { .. }) => {
                assert_eq!(e.exit_code(), 8);
                log.sync(txg).unwrap();
                txg += 1;
                let deadline = std::time::Instant::now() + Duration::from_secs(20);
                while let Err(e) = log.try_append(txg, Generation::Same, &[&body]) {
                    assert!(matches!(e, Error::LogFull { .. }), "{e}");
                    assert!(std::time::Instant::now() < deadline, "no chunk is freed: {e}");
                    std::thread::sleep(Duration::from_millis(2));
                }
                appended += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(txg > 3, "it was never full");
    drop(log);
    pool.close().unwrap();
}

/// One that waits for space is woken by another's sync.
#[test]
fn an_append_that_waits_for_space_goes_on() {
    let dir = Dir::on_disk("grouped-wait");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let log = in_use(&pool, "l", LogHome::Embedded);
    let body = vec![7; 4096];
    while log.try_append(1, Generation::Same, &[&body]).is_ok() {}
    std::thread::scope(|s| {
        let waits = s.spawn(|| log.append(2, Generation::Same, &[&body]).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        log.sync(1).unwrap();
        waits.join().unwrap().unwrap();
    });
    drop(log);
    pool.close().unwrap();
}

#[test]
fn a_log_of_a_consumer_is_released_and_removed() {
    let dir = Dir::on_disk("grouped-consumer");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let log = in_use(&pool, "l", LogHome::Consumer);
    log.append(1, Generation::New, &[b"text"]).unwrap();
    let header = log.destroy().unwrap();
    assert_eq!(header.state(), LogState::None);
    log.release().unwrap();
    log.create(0).unwrap();
    log.append(1, Generation::New, &[b"text"]).unwrap();
    drop(log);
    let e = pool.log_remove("l", false).unwrap_err();
    assert!(matches!(e, Error::Log { .. }), "{e}");
    pool.log_remove("l", true).unwrap();
    assert!(pool.logs().is_empty());
    pool.close().unwrap();
    let again = open(&path);
    assert!(again.logs().is_empty() && again.check(true).unwrap().exit_code() == 0);
}

#[test]
fn what_it_does_not_hold_is_refused_by_name() {
    let dir = Dir::on_disk("grouped-refused");
    let Some(path) = made(&dir) else { return };
    let pool = open(&path);
    let origin = MemOrigin::new(1 << 20).unwrap();
    let (name, static_share) = ("v", StaticShare { share_bytes: 64 << 10, flush_every: None });
    let other = |change: fn(&mut CreateOptions)| {
        let mut o = options();
        change(&mut o);
        create(&dir.path("other"), &o).map(drop)
    };
    let refused = [
        ("static volumes", pool.volume_add_static(name, &origin, 0, Some(static_share)).map(drop)),
        ("maps", pool.map_add("m", 4 << 20).map(drop)),
        ("maps", pool.map("m").map(drop)),
        ("static volumes", other(|o| o.static_bytes = 64 << 10)),
        ("maps", other(|o| o.map_bytes = 4 << 20)),
    ];
    for (what, result) in refused {
        let e = result.unwrap_err();
        assert_eq!(e.exit_code(), 10, "{e}");
        let text = e.to_string();
        assert!(text.contains(what) && text.contains("written in groups, and holds no"), "{text}");
        assert!(text.contains("--medium memory"), "{text}");
    }
    assert!(!dir.path("other").exists());
}

#[test]
fn options_of_memory_and_wrong_sizes_are_refused() {
    let dir = Dir::on_disk("grouped-options");
    let Some(path) = made(&dir) else { return };
    let other = dir.path("other");
    let with = |media: MediaOptions| CreateOptions { media, ..options() };
    let persist = MediaOptions { persist: Persist::Msync, ..Default::default() };
    let kernel = MediaOptions { kernel: Some("generic".into()), ..Default::default() };
    let weaker = MediaOptions { allow_weaker: true, ..Default::default() };
    for media in [persist, kernel, weaker] {
        let opened = Pool::open(&path, &PoolOptions { media: media.clone(), ..Default::default() });
        for e in [opened.map(drop).unwrap_err(), create(&other, &with(media)).unwrap_err()] {
            assert!(e.exit_code() == 2 && e.to_string().contains("pools in memory"), "{e}");
        }
    }
    for (bytes, exit) in [(None, 2), (Some(64 << 10), 8), (Some(1 << 50), 2)] {
        let e = create(&other, &CreateOptions { size_bytes: bytes, ..options() }).unwrap_err();
        assert_eq!(e.exit_code(), exit, "{e}");
    }
    let many = CreateOptions { max_volumes: 40, ..options() };
    let e = create(&other, &many).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("--chunk-size"), "{e}");
    assert!(!other.exists(), "nothing is left of what was refused");
    let in_memory = forebay_test::memory().join(format!("fby-grouped-{}", std::process::id()));
    let e = create(&in_memory, &options()).unwrap_err();
    assert!(e.exit_code() == 10 && e.to_string().contains("--medium memory"), "{e}");
    assert!(!in_memory.exists());
    // Existing content stays, unless it may be destroyed.
    let e = create(&path, &CreateOptions { size_bytes: None, ..options() }).unwrap_err();
    assert_eq!(e.exit_code(), 12, "{e}");
    create(&path, &CreateOptions { size_bytes: None, force: true, ..options() }).unwrap();
    let auto = CreateOptions { size_bytes: None, medium: MediumChoice::Auto, ..options() };
    assert_eq!(create(&path, &auto).unwrap_err().exit_code(), 12);
    let mapped = create(&path, &CreateOptions { force: true, ..auto }).unwrap();
    assert_eq!(mapped.media.kind, MediaKind::File, "a plain file is mapped unless it is said");
    open(&path).close().unwrap();
    // And back.
    create(&path, &CreateOptions { size_bytes: None, force: true, ..options() }).unwrap();
    assert_eq!(open(&path).media().kind, MediaKind::Disk);
    let empty = dir.file("empty", 0);
    create(&empty, &many).unwrap_err();
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0, "it is as it was found");
    create(&empty, &options()).unwrap();
    assert_eq!(open(&empty).media().size_bytes, options().size_bytes.unwrap());
    // One byte that is set, between the places that a large disk is looked at.
    let mut bytes = vec![0; options().size_bytes.unwrap() as usize];
    bytes[(5 << 16) + 4000] = 1;
    let other = dir.path("data");
    std::fs::write(&other, bytes).unwrap();
    std::fs::File::open(&other).unwrap().sync_all().unwrap();
    let e = create(&other, &options()).unwrap_err();
    assert!(e.exit_code() == 12 && e.to_string().contains("at byte 331680"), "{e}");
}

/// A size that no pool can have is refused before a disk is measured, which writes to it.
#[test]
fn a_size_is_compared_first() {
    let dir = Dir::on_disk("grouped-size");
    let huge = CreateOptions { size_bytes: Some(1 << 50), ..options() };
    let path = dir.path("pool");
    assert_eq!(huge.check_room(&path).unwrap_err().exit_code(), 2);
    let small = CreateOptions { size_bytes: Some(64 << 10), ..options() };
    assert_eq!(small.check_room(&path).unwrap_err().exit_code(), 8);
    let sparse = dir.file("sparse", 1 << 40);
    let all = CreateOptions { size_bytes: None, ..options() };
    assert_eq!(all.check_room(&sparse).unwrap_err().exit_code(), 2);
    options().check_room(&path).unwrap();
}

fn told(path: &Path) -> (u8, String) {
    let e = Pool::open(path, &PoolOptions::default()).map(drop).unwrap_err();
    (e.exit_code(), e.to_string())
}

#[test]
fn a_disk_that_is_not_what_it_was_is_told() {
    let dir = Dir::on_disk("grouped-other");
    let Some(path) = made(&dir) else { return };
    let first = open(&path);
    let (code, text) = told(&path);
    assert!(code == 4 && text.contains("pool"), "{text}");
    let reader = PoolOptions { read_only: true, ..Default::default() };
    assert_eq!(Pool::open(&path, &reader).map(drop).unwrap_err().exit_code(), 4);
    assert_eq!(inspect(&path).unwrap().state, InspectionState::Pool);
    first.close().unwrap();

    let whole = std::fs::read(&path).unwrap();
    let copy = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let (mut bytes, to) = (whole.clone(), dir.path(name));
        change(&mut bytes);
        std::fs::write(&to, bytes).unwrap();
        std::fs::File::open(&to).unwrap().sync_all().unwrap();
        to
    };
    let copied = open(&copy("copied", &|_| ()));
    assert_eq!(copied.uuid(), inspect(&path).unwrap().superblock.unwrap().uuid);
    copied.close().unwrap();
    let shrunk = copy("shrunk", &|b| b.truncate(whole.len() - CHUNK as usize));
    assert!(matches!(told(&shrunk), (5, text) if text.contains("it was truncated")));
    assert_eq!(inspect(&shrunk).unwrap().state, InspectionState::PoolUnusable);
    // One of the two superblocks is enough.
    let first_gone = copy("first", &|b| b[..4096].fill(0xff));
    open(&first_gone).close().unwrap();
    let second_gone = copy("second", &|b| b[CHUNK as usize / 4..][..4096].fill(0xff));
    open(&second_gone).close().unwrap();
    let both = copy("both", &|b| {
        b[16..4096].fill(0xff);
        b[CHUNK as usize / 4 + 16..][..4080].fill(0xff);
    });
    assert!(matches!(told(&both), (5, text) if text.contains("superblock")));
    // It has holes, and the first write of a block there could fail: the open fills them.
    let holes = dir.path("holes");
    std::fs::write(&holes, &whole[..whole.len() - CHUNK as usize]).unwrap();
    let file = std::fs::File::options().write(true).open(&holes).unwrap();
    file.set_len(whole.len() as u64).unwrap();
    file.sync_all().unwrap();
    let hole_bytes = || MediumFacts::of(&holes).unwrap().file.unwrap().hole_bytes;
    assert!(hole_bytes().unwrap() > 0);
    // Nothing is written to be read.
    let pool = Pool::open(&holes, &reader).unwrap();
    assert_eq!(pool.check(true).unwrap().exit_code(), 0);
    pool.close().unwrap();
    assert!(hole_bytes().unwrap() > 0);
    drop(file);
    open(&holes).close().unwrap();
    assert_eq!(hole_bytes(), Some(0));
}
