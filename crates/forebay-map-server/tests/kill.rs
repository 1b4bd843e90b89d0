// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: data that processes have synced to files of a served pool is in the files, whichever
//! process is killed and when.  No other process gets the pool while one of them can still
//! acknowledge a sync.  Method: a server and two processes, each with a file of its own with
//! more segments than there are frames.  They report what they have synced.  In turn one of
//! them is killed, the server is killed, all are killed, one is stopped while the other
//! continues, and one loses its connection and continues.  These tests find each planted bug.

mod bed;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bed::{can, is_marked, say, serve, server, wait, Numbers, Place, Process, ROLE, SEGMENTS};
use forebay::{FoundMark, Pool, PoolOptions};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::{wire, Cache, Options, ServedStore, Session, Wanted, PAGE, SEGMENT};

const TEST: &str = "synced_data_is_in_the_file_whichever_process_is_killed";

/// The process that maps a file.  A page is full of one number, whose highest byte identifies
/// the file.  `alone`: the process loses its connection soon.
fn map(place: &Path, file: u64, first: u64, alone: bool) {
    let pool = place.join("pool");
    let options = Options { interval: Duration::from_millis(60), quiet: 1, ..Options::default() };
    let path = place.join(format!("file{file}"));
    let room = SEGMENTS * SEGMENT as u64;
    // Both must live as long as the file.
    let (session, cache);
    let (opened, connection) = match alone {
        false => {
            session = Session::open(&Wanted::of(&pool), options).expect("served");
            assert!(session.server().is_some(), "by its server");
            (session.map(&path, room), None)
        }
        true => {
            let uuid = forebay::inspect(&pool).expect("a pool").superblock.expect("one").uuid;
            let stream = UnixStream::connect(wire::socket_path(&place.join("run"), uuid));
            let stream = stream.expect("served");
            let too = stream.try_clone().expect("another one");
            let store = Arc::new(ServedStore::over(stream, Some("db"), None).expect("served"));
            cache = Cache::new(store, options).expect("a cache");
            (cache.open(&path, room), Some(too))
        }
    };
    let mapped = match opened {
        Ok(mapped) => mapped,
        Err(e) => return say(&format!("not opened: {e}")),
    };
    mapped.lock(0, SEGMENT as u64).expect("one segment");
    let mut numbers = Numbers(first * 2 + file);
    let mut failed = false;
    for turn in first.. {
        if let (Some(connection), true) = (&connection, turn == first + 40) {
            connection.shutdown(std::net::Shutdown::Both).expect("it ends");
            // The report must come after the loss has taken effect.
            std::thread::sleep(Duration::from_millis(300));
        }
        let value = (file + 1) << 56 | turn;
        let full = value.to_ne_bytes().repeat(PAGE / 8);
        // One of the two processes stays in a segment for which it needs no server.
        let segment = match failed || connection.is_some() || (file == 1 && numbers.below(4) > 0) {
            true => 0,
            false => numbers.below(SEGMENTS),
        };
        let page = segment * 512 + numbers.below(46) * 11;
        let at = page * PAGE as u64;
        let done = match numbers.below(3) {
            0 => mapped.write(at, &full),
            _ => {
                mapped.store(at, &full);
                Ok(())
            }
        };
        let whole = !failed && numbers.below(10) == 0;
        let (at, len) = if whole { (0, u64::MAX) } else { (at, PAGE as u64) };
        match done.and_then(|()| mapped.sync(at, len)) {
            Ok(()) => say(&format!("{page} {value}")),
            Err(_) if !failed => {
                failed = true;
                say("failed");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// The synced numbers of each file.
type Synced = [BTreeMap<u64, u64>; 2];

fn note(synced: &mut BTreeMap<u64, u64>, said: Vec<String>) -> Result<(), String> {
    for line in said {
        if line.contains("not opened") || line.contains("panicked") {
            return Err(line);
        }
        let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
        if let (Some(Some(page)), Some(Some(value))) = (words.next(), words.next()) {
            synced.insert(page, value);
        }
    }
    Ok(())
}

fn check(place: &Place, file: u64, synced: &BTreeMap<u64, u64>) -> Result<(), String> {
    let content = std::fs::read(place.file(file)).expect("the file");
    for (at, word) in content.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().expect("eight"));
        if word != 0 && word >> 56 != file + 1 {
            return Err(format!("file {file}: at {} is {word:#x}, of another file", at * 8));
        }
    }
    for (page, value) in synced {
        let at = *page as usize * PAGE;
        let words = content[at..at + PAGE].chunks_exact(8);
        let least = words.map(|w| u64::from_ne_bytes(w.try_into().expect("eight"))).min();
        if least < Some(*value) {
            return Err(format!(
                "file {file} page {page}: {value:#x} was synced, {least:x?} is there"
            ));
        }
    }
    Ok(())
}

/// Runs one round, which ends in one of the ways.  Returns the number of reports.
fn round(place: &Place, n: u64, synced: &mut Synced, planted: &str) -> Result<usize, String> {
    let mut server_process = server(place, TEST, planted)?;
    let alone = n % 6 == 5;
    let start = |file: u64, alone: bool| {
        let role = format!("map {file} {} {}", (n + 1) << 24, u8::from(alone));
        Process::start(place, TEST, &role, planted)
    };
    let mut clients = [start(0, alone), start(1, false)];
    let begun = |c: &mut Process| c.lines() > 12 || c.has_said("not opened") || !c.lives();
    wait("both to begin", || clients.iter_mut().all(begun))?;
    if !clients.iter_mut().all(Process::lives) {
        return Err(format!("one has ended: {:?}", clients.map(|mut c| c.kill())));
    }
    std::thread::sleep(Duration::from_millis(n * 53 % 400));
    let mut lines = clients[0].lines() + clients[1].lines();
    let mut server_lives = true;
    match n % 6 {
        // One process is killed and started again at once.  It waits until its file is
        // recovered.
        0 | 1 => {
            let which = n % 2;
            let client = &mut clients[which as usize];
            note(&mut synced[which as usize], client.kill())?;
            // Another process holds the file, so that the recovery takes longer than what
            // follows.
            let marked = |file: &RegularFile| file.marked().ok() != Some(FoundMark::Nothing);
            let held = match n % 4 > 1 {
                true => RegularFile::open(&place.file(which)).ok().filter(marked),
                false => None,
            };
            let more = format!("map {which} {} 0", ((n + 1) << 24) + (1 << 23));
            *client = Process::start(place, TEST, &more, planted);
            if held.is_some() {
                std::thread::sleep(Duration::from_millis(400));
            }
            drop(held);
            wait("it to begin again", || client.lines() > 12 || client.has_said("not opened"))?;
            lines += client.lines();
        }
        // The server is killed, and the processes continue for some time.
        2 => {
            server_process.kill();
            server_lives = false;
            let before = clients[1].lines();
            let mut one = || clients[1].lives() && clients[1].lines() < before + 50;
            let _ = wait("", || !one());
            if clients[1].lives() {
                let other = server(place, TEST, planted);
                let said = other.err().unwrap_or_default();
                if !said.contains("busy") {
                    return Err("another server begins while files are mapped".into());
                }
                let named = said.contains(&clients[1].child.id().to_string());
                if clients[1].lives() && !named {
                    return Err(format!("it is not named who has the pool: {said}"));
                }
            }
        }
        // All are killed.
        3 => {
            server_process.kill();
            server_lives = false;
        }
        // One process is stopped.  The other continues, and both keep their frames.
        4 => {
            clients[0].signal("-STOP");
            let before = clients[1].lines();
            let ended = |c: &mut Process| !c.lives() || c.has_said("failed");
            let goes_on =
                wait("the other", || clients[1].lines() > before + 50 || ended(&mut clients[1]));
            clients[0].signal("-CONT");
            goes_on?;
            if ended(&mut clients[1]) {
                return Err("beside one that is stopped another cannot go on".into());
            }
        }
        // One process has lost its connection.
        _ => {
            let before = clients[0].lines().max(52);
            let ended = |c: &mut Process| !c.lives() || c.has_said("failed");
            wait("it to go on", || clients[0].lines() > before + 30 || ended(&mut clients[0]))?;
            if ended(&mut clients[0]) {
                return Err("frames are taken from one that lives".into());
            }
        }
    }
    for (file, client) in clients.iter_mut().enumerate() {
        note(&mut synced[file], client.kill())?;
    }
    if !server_lives {
        server_process = server(place, TEST, planted)?;
    }
    for file in 0..2u64 {
        wait("its file to be complete", || is_marked(place, file) == Some(false))?;
        check(place, file, &synced[file as usize])?;
    }
    server_process.kill();
    let pool = Pool::open(&place.pool(), &PoolOptions::default()).map_err(|e| e.to_string())?;
    let checked = pool.check(false).map_err(|e| e.to_string())?;
    if checked.maps.iter().any(|m| !m.is_ok() || m.dirty_pages > 0) {
        return Err(format!("{:?}", checked.maps));
    }
    pool.close().map_err(|e| e.to_string())?;
    Ok(lines)
}

/// Runs the role of a child process.  False: this process is not one.
fn is_one_of_them() -> bool {
    let (Ok(role), Some(place)) = (std::env::var(ROLE), std::env::var_os("FOREBAY_MAP_PLACE"))
    else {
        return false;
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["serve"] => serve(Path::new(&place)),
        ["map", file, first, alone] => {
            let number = |word: &str| word.parse().expect("a number");
            map(Path::new(&place), number(file), number(first), alone == "1");
        }
        _ => unreachable!("{role}"),
    }
    true
}

#[test]
fn synced_data_is_in_the_file_whichever_process_is_killed() {
    if is_one_of_them() || !can() {
        return;
    }
    let kills = std::env::var("MAP_KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(12);
    let place = Place::new();
    let mut synced = Synced::default();
    let mut lines = 0;
    for n in 0..kills {
        match round(&place, n, &mut synced, "") {
            Ok(said) => lines += said,
            Err(e) => panic!("round {n}: {e}"),
        }
    }
    println!("{kills} rounds, {lines} syncs said");
}

#[test]
fn planted_bugs_are_found() {
    if !can() {
        return;
    }
    for (planted, rounds) in [
        ("DirtyFreed", &[0, 1][..]),
        ("UnmarkedFirst", &[0, 1]),
        ("ForgottenEarly", &[6, 7]),
        ("LockNotShared", &[2, 2]),
        ("TakenFromTheLiving", &[5, 5]),
        ("FrameGivenTwice", &[4, 0, 1]),
    ] {
        let mut found = None;
        for turn in 0..16 {
            let place = Place::new();
            let mut synced = Synced::default();
            found = rounds
                .iter()
                .find_map(|kind| round(&place, kind + 6 * turn, &mut synced, planted).err());
            if found.is_some() {
                break;
            }
        }
        let found = found.unwrap_or_else(|| panic!("{planted} is not found"));
        println!("{planted}: {found}");
    }
}

/// A disk may take any time for a request.  A server that is silent meanwhile counts as dead,
/// and the process cannot continue: the planted bug shows that.
#[test]
fn a_disk_that_stalls_longer_than_a_server_may_be_silent_is_waited_for() {
    if !can() {
        return;
    }
    for (planted, is_opened) in [("SilentSlowDisk", false), ("SlowDisk", true)] {
        let place = Place::new();
        let _server = server(&place, TEST, planted).expect("a server");
        let uuid = forebay::inspect(&place.pool()).expect("a pool").superblock.expect("one").uuid;
        let stream = UnixStream::connect(wire::socket_path(&place.run(), uuid)).expect("served");
        let too = stream.try_clone().expect("another one");
        let store = Arc::new(ServedStore::over(stream, Some("db"), None).expect("served"));
        // A short limit instead of 20 s and a slower disk.
        too.set_read_timeout(Some(Duration::from_millis(500))).expect("its patience");
        let cache = Cache::new(store, Options::default()).expect("a cache");
        match (cache.open(&place.file(0), SEGMENT as u64), is_opened) {
            (Ok(file), true) => {
                file.store(0, &[1]);
                file.sync(0, 1).expect("synced");
                file.close().expect("closed");
            }
            (Err(e), false) => assert!(e.to_string().contains("does not answer"), "{e}"),
            (other, _) => panic!("{planted}: {other:?}"),
        }
    }
}
