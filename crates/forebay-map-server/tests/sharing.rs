// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a file that several processes map is one file for all of them, with a real server and
//! real sockets.  It has all data that any of them has synced, whichever process stored it and
//! whichever is killed.  Stores of a killed process are not lost while the server lives.
//! Method: a server and three processes on one file.  There is a frame for each of its segments:
//! only tests with two files need frames back.  Each process stores rising numbers to pages of its
//! own and reports that, syncs pages of all, and reports what it has seen and synced.  One of them
//! is killed and starts again, the server is killed, all are killed, one is stopped.  Events that
//! must coincide have tests of their own.

mod bed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bed::{
    can, is_marked, say, serve, server, wait, Here, Numbers, Place, Process, ROLE, SEGMENTS,
};
use forebay::{Pool, PoolOptions};
use forebay_map::{MapFile, Options, Session, Wanted, PAGE, SEGMENT};
use forebay_server::Service;

const TEST: &str = "data_synced_by_any_process_is_in_the_file_whichever_is_killed";
const PROCESSES: u64 = 3;

/// A random page of the process with this number.
fn a_page(numbers: &mut Numbers, of: u64) -> u64 {
    let place = numbers.below(30) * PROCESSES + of;
    numbers.below(SEGMENTS) * 512 + place * 5
}

fn session(place: &Path) -> Session {
    let interval = Duration::from_millis(60);
    let options = Options { interval, quiet: 1, ..Options::default() };
    Session::open(&Wanted::of(&place.join("pool")), options).expect("served")
}

/// One of the processes that share the file.
fn share(place: &Path, own: u64, first: u64) {
    let session = session(place);
    let mapped = match session.map_shared(&place.join("file0"), 0) {
        Ok(mapped) => mapped,
        Err(e) => return say(&format!("not opened: {e}")),
    };
    let mut numbers = Numbers(first * 7 + own);
    let mut failed = false;
    for value in first.. {
        let full = value.to_ne_bytes().repeat(PAGE / 8);
        let page = a_page(&mut numbers, own);
        let at = page * PAGE as u64;
        if !failed {
            let is_stored = match numbers.below(3) {
                0 => mapped.write(at, &full).is_ok(),
                _ => {
                    mapped.store(at, &full);
                    true
                }
            };
            // The store may be lost only if the server dies too.
            if is_stored {
                say(&format!("stored {page} {value}"));
            }
        }
        let others = a_page(&mut numbers, value % PROCESSES);
        let mut seen = [0; PAGE];
        let read = mapped.read(others * PAGE as u64, &mut seen);
        let (from, len) = match numbers.below(8) {
            0 => (0, u64::MAX),
            _ => (others * PAGE as u64, PAGE as u64),
        };
        match read.and_then(|_| mapped.sync(from, len)) {
            // A process that is killed while it stores to a page leaves the rest of it as it was.
            Ok(()) => say(&format!("synced {others} {}", least_of(&seen))),
            Err(_) if !failed => {
                failed = true;
                say("failed");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// The least number that each page must have.
#[derive(Default)]
struct Least {
    synced: BTreeMap<u64, u64>,
    stored: BTreeMap<u64, u64>,
}

fn note(least: &mut Least, said: Vec<String>) -> Result<(), String> {
    for line in said {
        if line.contains("not opened") || line.contains("panicked") {
            return Err(line);
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [what, page, value] = words[..] else { continue };
        let (Ok(page), Ok(value)) = (page.parse::<u64>(), value.parse::<u64>()) else { continue };
        let of = match what {
            "synced" => &mut least.synced,
            "stored" => &mut least.stored,
            _ => continue,
        };
        let now = of.entry(page).or_default();
        *now = value.max(*now);
    }
    Ok(())
}

fn words(page: &[u8]) -> impl Iterator<Item = u64> + '_ {
    page.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight")))
}

fn least_of(page: &[u8]) -> u64 {
    words(page).min().expect("a page")
}

/// The runs of equal words.  A torn page has two, a newer one and then an older one.
fn runs(page: &[u8]) -> String {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for word in words(page) {
        match runs.last_mut() {
            Some((of, n)) if *of == word => *n += 1,
            _ => runs.push((word, 1)),
        }
    }
    let most = 16;
    let shown: Vec<String> =
        runs.iter().take(most).map(|(word, n)| format!("{n} x {word:#x}")).collect();
    let more = if runs.len() > most { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

fn check(place: &Place, least: &BTreeMap<u64, u64>) -> Result<(), String> {
    let content = std::fs::read(place.file(0)).expect("the file");
    for (page, value) in least {
        let at = *page as usize * PAGE;
        let found = &content[at..at + PAGE];
        if least_of(found) < *value {
            return Err(format!("page {page}: {value:#x} was there, now {}", runs(found)));
        }
    }
    Ok(())
}

/// Runs one round, which ends in one of the ways.  Returns the number of reports.
fn round(place: &Place, n: u64, least: &mut Least, planted: &str) -> Result<usize, String> {
    let mut server_process = server(place, TEST, planted)?;
    let start = |own: u64, first: u64| {
        Process::start(place, TEST, &format!("share {own} {first}"), planted)
    };
    let base = (n + 1) << 24;
    let mut guests: Vec<Process> = (0..PROCESSES).map(|own| start(own, base)).collect();
    let begun = |c: &mut Process| c.lines() > 20 || c.has_said("not opened") || !c.lives();
    wait("all to begin", || guests.iter_mut().all(begun))?;
    std::thread::sleep(Duration::from_millis(n * 53 % 300));
    let mut lines: usize = guests.iter().map(Process::lines).sum();
    let mut server_lives = true;
    match n % 4 {
        // One process is killed while the others continue, and starts again.
        0 => {
            for turn in 1..4u64 {
                let own = (n + turn) % PROCESSES;
                note(least, guests[own as usize].kill())?;
                guests[own as usize] = start(own, base + (turn << 20));
                wait("it to begin again", || begun(&mut guests[own as usize]))?;
            }
        }
        // The server is killed: no sync that includes others' stores is acknowledged any more.
        1 => {
            server_process.kill();
            server_lives = false;
            let stopped = |c: &mut Process| !c.lives() || c.has_said("failed");
            wait("all to be told", || guests.iter_mut().all(stopped))?;
        }
        2 => {
            server_process.kill();
            server_lives = false;
        }
        // One process is stopped for a while and then continues.
        _ => {
            guests[1].signal("-STOP");
            std::thread::sleep(Duration::from_millis(500));
            guests[1].signal("-CONT");
            let before: Vec<usize> = guests.iter().map(Process::lines).collect();
            let on = |(c, before): (&mut Process, &usize)| c.lines() > before + 20 || !c.lives();
            wait("all to go on", || guests.iter_mut().zip(&before).all(on))?;
            if guests.iter().any(|c| c.has_said("failed")) {
                return Err("beside one that was stopped a sync has failed".into());
            }
        }
    }
    for guest in &mut guests {
        lines += guest.lines();
        note(least, guest.kill())?;
    }
    if !server_lives {
        server_process = server(place, TEST, planted)?;
        least.stored.clear();
    }
    wait("its file to be complete", || is_marked(place, 0) == Some(false))?;
    check(place, &least.synced).map_err(|e| format!("synced: {e}"))?;
    check(place, &least.stored).map_err(|e| format!("stored: {e}"))?;
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
    let number = |word: &str| word.parse().expect("a number");
    match words[..] {
        ["serve"] => serve(Path::new(&place)),
        ["share", own, first] => share(Path::new(&place), number(own), number(first)),
        ["half"] => {
            let session = session(Path::new(&place));
            let mapped = session.map_shared(&Path::new(&place).join("file0"), 0).expect("open");
            let full = |value: u64| value.to_ne_bytes().repeat(PAGE / 8);
            mapped.store(0, &full(1));
            mapped.sync(0, PAGE as u64).expect("synced");
            mapped.store(0, &full(2)[..PAGE / 2]);
            say("half");
            std::thread::sleep(Duration::from_secs(3600));
        }
        ["sleep", how] => {
            let session = session(Path::new(&place));
            let other = (how == "both").then(|| {
                let other = session.map(&Path::new(&place).join("file1"), 0).expect("open");
                other.store(0, &[2]);
                other
            });
            let path = Path::new(&place).join("file0");
            let mapped = match how {
                "shared" | "both" => session.map_shared(&path, 0),
                _ => session.map(&path, SEGMENTS * SEGMENT as u64),
            };
            let mapped = mapped.expect("open");
            mapped.store(0, &[1]);
            let end = mapped.size();
            mapped.write(end, &[7; 100]).expect("it grows");
            say("stored");
            std::thread::sleep(Duration::from_secs(3600));
            drop(other);
        }
        _ => unreachable!("{role}"),
    }
    true
}

#[test]
fn data_synced_by_any_process_is_in_the_file_whichever_is_killed() {
    if is_one_of_them() || !can() {
        return;
    }
    let rounds = std::env::var("MAP_KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(8);
    let place = Place::new();
    let (mut least, mut lines) = (Least::default(), 0);
    for n in 0..rounds {
        match round(&place, n, &mut least, "") {
            Ok(said) => lines += said,
            Err(e) => panic!("round {n}: {e}"),
        }
    }
    println!("{rounds} rounds, {lines} lines said");
}

/// A process is killed while it stores to a page.  What another process then reads and syncs is in
/// the file: the torn page.
#[test]
fn a_torn_page_is_no_loss() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let _server = server(&place, TEST, "").expect("a server");
    let mut half = Process::start(&place, TEST, "half", "");
    wait("it", || half.has_said("half") || !half.lives()).expect("begun");
    half.kill();
    let wanted = Wanted { sockets: place.run(), ..Wanted::of(&place.pool()) };
    let session = Session::open(&wanted, Options::default()).expect("served");
    let mut opened = None;
    wait("the file", || {
        opened = session.map_shared(&place.file(0), 0).ok();
        opened.is_some()
    })
    .expect("opened");
    let (file, mut seen) = (opened.expect("opened"), [0; PAGE]);
    file.read(0, &mut seen).expect("read");
    file.sync(0, PAGE as u64).expect("synced");
    file.close().expect("closed");
    let content = std::fs::read(place.file(0)).expect("the file");
    assert_eq!(runs(&content[..PAGE]), "256 x 0x2, 256 x 0x1");
    let floor = |value| BTreeMap::from([(0, value)]);
    check(&place, &floor(least_of(&seen))).expect("nothing is lost");
    // The first word alone says nothing of the page.
    let first = words(&seen).next().expect("a word");
    let said = check(&place, &floor(first)).expect_err("the floor is too high");
    assert!(said.contains("0x2 was there, now 256 x 0x2, 256 x 0x1"), "{said}");
}

/// A process that has not answered yet has not synced.  A stopped process shows that.
#[test]
fn a_stopped_process_is_waited_for() {
    if is_one_of_them() || !can() {
        return;
    }
    let planted = "AnsweredForTheStopped";
    let found = (0..8).find_map(|turn| {
        let place = Place::new();
        round(&place, 3 + 4 * turn, &mut Least::default(), planted).err()
    });
    println!("{planted}: {}", found.unwrap_or_else(|| panic!("{planted} is not found")));
}

/// The file also has stores that were not synced, and its size: the memory lives as long as the
/// server.
#[test]
fn stores_of_a_killed_process_are_in_the_file() {
    if is_one_of_them() || !can() {
        return;
    }
    for (how, planted) in
        [("shared", ""), ("alone", ""), ("shared", "GuestForgotten"), ("alone", "GuestForgotten")]
    {
        let place = Place::new();
        // The file has room to grow.
        let size = (SEGMENTS - 1) * SEGMENT as u64;
        std::fs::File::create(place.file(0)).and_then(|f| f.set_len(size)).expect("a file");
        let _server = server(&place, TEST, planted).expect("a server");
        let mut sleeper = Process::start(&place, TEST, &format!("sleep {how}"), "");
        wait("it", || sleeper.has_said("stored")).expect("begun");
        assert_eq!(std::fs::read(place.file(0)).expect("the file")[0], 0, "it is not synced");
        sleeper.kill();
        wait("its file to be complete", || is_marked(&place, 0) == Some(false)).expect("home");
        let content = std::fs::read(place.file(0)).expect("the file");
        let there = planted.is_empty();
        assert_eq!(content[0], u8::from(there), "{how} {planted}");
        assert_eq!(content.ends_with(&[7; 100]), there, "{how} {planted}");
    }
}

fn byte(file: &MapFile, at: u64) -> u8 {
    let mut to = [0];
    file.load(at, &mut to);
    to[0]
}

/// Each process sees all stores of the other, frames of both are released, and refusals name
/// their reason.
#[test]
fn two_processes_share_one_file() {
    if is_one_of_them() || !can() {
        return;
    }
    let here = Here::new();
    let (a, b) = (here.session(), here.session());
    let path = here.place.file(0);
    let [first, second] = [&a, &b].map(|s| s.map_shared(&path, 0).expect("shared"));
    for turn in 1..4u8 {
        for segment in 0..SEGMENTS {
            let at = segment * SEGMENT as u64 + 7;
            first.store(at, &[turn]);
            assert_eq!(byte(&second, at), turn, "segment {segment}");
            second.store(at + 5000, &[turn + 100]);
        }
        first.sync(0, u64::MAX).expect("a sync");
        for segment in 0..SEGMENTS {
            assert_eq!(byte(&first, segment * SEGMENT as u64 + 5007), turn + 100);
        }
    }
    let said = a.map_shared(&path, 0).expect_err("twice").to_string();
    assert!(said.contains("clone"), "{said}");
    let said = b.map(&path, 0).expect_err("for itself").to_string();
    assert!(said.contains("has it mapped"), "{said}");
    let own = a.map(&here.place.file(1), 0).expect("for itself");
    let said = b.map_shared(&here.place.file(1), 0).expect_err("it is another's").to_string();
    assert!(said.contains("has it mapped"), "{said}");
    own.close().expect("closed");
    let go_on = &mut |_: &_| std::ops::ControlFlow::Continue(());
    let listed = here.service.call(serde_json::json!({"do": "list"}), go_on).expect("a list");
    let pids = &listed[0]["files"][0]["shared_by"];
    assert_eq!(pids.as_array().map(Vec::len), Some(2), "{listed}");
    first.close().expect("closed");
    assert_eq!(byte(&second, 7), 3);
    second.close().expect("closed");
    assert_eq!(here.frames_used(), 0);
    let content = std::fs::read(&path).expect("the file");
    assert_eq!((content[7], content[5007]), (3, 103));
}

/// A file in a pool without a server, a file that does not exist, and one that the server
/// cannot see.
#[test]
fn a_file_that_cannot_be_shared_is_refused_by_name() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let alone = session(&place.0);
    let said = alone.map_shared(&place.file(0), 0).expect_err("nobody serves").to_string();
    assert!(said.contains("forebay serve"), "{said}");
    alone.close().expect("closed");
    let here = Here::new();
    let session = here.session();
    let said = session.map_shared(&here.place.0.join("none"), 0).expect_err("none").to_string();
    assert!(said.contains("none") && said.contains("open"), "{said}");
    let said = session.map_shared(&here.place.0, 0).expect_err("a directory").to_string();
    assert!(said.contains("open"), "{said}");
}

/// A process that does not answer is named within a bounded time, and nothing is acknowledged
/// meanwhile.  Once it continues, the others do too.
#[test]
fn a_sync_while_another_is_stopped_fails_and_names_it() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let _server = server(&place, TEST, "").expect("a server");
    let sleeper = Process::start(&place, TEST, "sleep shared", "");
    wait("it", || sleeper.has_said("stored")).expect("begun");
    let wanted = Wanted { sockets: place.run(), ..Wanted::of(&place.pool()) };
    let session = Session::open(&wanted, Options::default()).expect("served");
    let file = session.map_shared(&place.file(0), 0).expect("shared");
    file.store(5000, &[2]);
    sleeper.signal("-STOP");
    let begun = Instant::now();
    let said = file.sync(0, u64::MAX).expect_err("it may have stored there").to_string();
    sleeper.signal("-CONT");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    let pid = sleeper.child.id().to_string();
    assert!(said.contains(&pid) && said.contains("does not answer"), "{said}");
    file.sync(0, u64::MAX).expect("it answers");
    file.close().expect("closed");
}

/// The stopped process is asked for frames too, and a thread that touches a segment does not
/// wait for it.
#[test]
fn a_stopped_process_keeps_no_other_from_frames() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let _server = server(&place, TEST, "").expect("a server");
    let sleeper = Process::start(&place, TEST, "sleep shared", "");
    wait("it", || sleeper.has_said("stored")).expect("begun");
    let wanted = Wanted { sockets: place.run(), ..Wanted::of(&place.pool()) };
    let session = Session::open(&wanted, Options::default()).expect("served");
    let files = [0, 1].map(|n| session.map_shared(&place.file(n), 0).expect("shared"));
    sleeper.signal("-STOP");
    let begun = Instant::now();
    let mut read = Ok(0);
    for _ in 0..3 {
        for (file, segment) in files.iter().flat_map(|f| (0..SEGMENTS).map(move |s| (f, s))) {
            read = read.and(file.read(segment * SEGMENT as u64, &mut [0; 8]));
        }
    }
    let took = begun.elapsed();
    sleeper.signal("-CONT");
    read.expect("there are others that give frames back");
    assert!(took < Duration::from_secs(15), "{took:?}");
    for file in files {
        file.close().expect("closed");
    }
}

/// A file system of its own, which can be frozen.
struct Freezer {
    at: PathBuf,
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
    std::process::Command::new(program).args(args).status().is_ok_and(|s| s.success())
}

impl Freezer {
    /// None: this user may not mount one, or a program is missing.
    fn new(place: &Path) -> Option<Freezer> {
        let (image, at) = (place.join("image"), place.join("frozen"));
        std::fs::create_dir(&at).expect("a directory");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(64 << 20).expect("its size");
        let made = run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        match made {
            true => Some(Freezer { at }),
            false => {
                forebay_test::skipped!("no file system can be mounted");
                None
            }
        }
    }

    fn freeze(&self) {
        assert!(run("fsfreeze", &["-f".as_ref(), self.at.as_os_str()]), "not frozen");
    }

    fn thaw(&self) {
        assert!(run("fsfreeze", &["-u".as_ref(), self.at.as_os_str()]), "still frozen");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::process::Command::new("fsfreeze")
            .arg("-u")
            .arg(&self.at)
            .stderr(std::process::Stdio::null())
            .status();
        run("umount", &[self.at.as_os_str()]);
    }
}

/// How long `f` takes, in a thread of its own.  None: longer than 1.5 s.
fn soon<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let (end, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || end.send(f()));
    ends.recv_timeout(Duration::from_secs(20)).ok()
}

/// A sync waits for blocks of a frozen file system.
#[test]
fn a_frozen_file_system_keeps_no_other_file_from_frames() {
    if is_one_of_them() || !can() {
        return;
    }
    let here = Here::new();
    let Some(freezer) = Freezer::new(&here.place.0) else { return };
    let slow_path = freezer.at.join("slow");
    let made = std::fs::File::create(&slow_path).expect("a file");
    made.set_len(2 * SEGMENT as u64).expect("its size");
    drop(made);
    let sessions = [here.session(), here.session()];
    let slow = sessions[0].map_shared(&slow_path, 0).expect("shared");
    // These files have more segments than there are frames.
    let fast = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(session, file)| {
        let session: &Session = &sessions[session];
        session.map_shared(&here.place.file(file), 0).expect("shared")
    });
    slow.store(0, &[1]);
    freezer.freeze();
    let syncs = {
        let slow = slow.clone();
        std::thread::spawn(move || slow.sync(0, PAGE as u64))
    };
    std::thread::sleep(Duration::from_millis(200));
    let mut late = Vec::new();
    for (of, file) in fast.iter().enumerate() {
        for segment in 0..SEGMENTS {
            let file = file.clone();
            let at = segment * SEGMENT as u64;
            if soon(move || file.read(at, &mut [0; 8]).expect("a read")).is_none() {
                late.push((of, segment));
                break;
            }
        }
    }
    let waited = !syncs.is_finished();
    freezer.thaw();
    syncs.join().expect("no panic").expect("a sync");
    assert!(waited, "the sync has not waited for the frozen file system");
    assert!(late.is_empty(), "the first segment of a view that comes late: {late:?}");
    for file in fast.into_iter().chain([slow]) {
        file.close().expect("closed");
    }
    drop(sessions);
}

/// A close waits until the file's last pages are in a frozen file system.
#[test]
fn a_frozen_file_system_keeps_no_other_file_from_being_opened_or_closed() {
    if is_one_of_them() || !can() {
        return;
    }
    let here = Here::new();
    let Some(freezer) = Freezer::new(&here.place.0) else { return };
    let slow_path = freezer.at.join("slow");
    std::fs::write(&slow_path, [0; PAGE]).expect("a file");
    let sessions = [here.session(), here.session()];
    let slow = sessions[0].map_shared(&slow_path, 0).expect("shared");
    slow.store(0, &[1]);
    slow.sync(0, 1).expect("a sync");
    freezer.freeze();
    let closes = std::thread::spawn(move || slow.close());
    std::thread::sleep(Duration::from_millis(200));
    let [first, second] = sessions;
    let path = here.place.file(0);
    let other = soon(move || (second.map_shared(&path, 0).and_then(|file| file.close()), second));
    let waited = !closes.is_finished();
    freezer.thaw();
    closes.join().expect("no panic").expect("closed");
    assert!(waited, "the close has not waited for the frozen file system");
    let (closed, _second) = other.expect("another file is opened and closed late");
    closed.expect("opened and closed");
    assert_eq!(std::fs::read(&slow_path).expect("the file")[0], 1);
    drop(first);
}

/// The killed process also had a file exclusively, which is available once its pages have been
/// written back.
#[test]
fn a_file_of_a_killed_process_can_be_shared_soon() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let _server = server(&place, TEST, "").expect("a server");
    let mut sleeper = Process::start(&place, TEST, "sleep both", "");
    wait("it", || sleeper.has_said("stored")).expect("begun");
    let wanted = Wanted { sockets: place.run(), ..Wanted::of(&place.pool()) };
    let session = Session::open(&wanted, Options::default()).expect("served");
    let killed = std::thread::scope(|s| {
        let opened = s.spawn(|| loop {
            // While the process dies, the file is no longer locked and still has its mark.
            let words = ["has it mapped", "which had it, has ended", "may lack writes"];
            let early = |e: &str| words.iter().any(|words| e.contains(words));
            match session.map_shared(&place.file(1), 0) {
                Err(e) if early(&e.to_string()) => {}
                opened => return (opened, Instant::now()),
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        sleeper.kill();
        let (opened, at) = opened.join().expect("no panic");
        let file = opened.expect("shared");
        assert_eq!(byte(&file, 0), 2);
        file.close().expect("closed");
        at - killed
    });
    assert!(killed < Duration::from_secs(20), "{killed:?}");
}
