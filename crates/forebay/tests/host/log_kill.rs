// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a log whose appenders are killed at random, and which two processes then want to
//! claim at once, loses nothing that was acknowledged, and hands out nothing twice.
//!
//! Method: a child appends by several threads and syncs, and notes in a file what was
//! acknowledged, until SIGKILL.  Then two children at a time open the pool: one is refused
//! and names the other, which claims and replays, and is killed before or after the effect
//! of a random entry; the next two go on.  An effect is one write to a file, with the
//! header of a log whose consumer keeps it; so such a log repeats nothing.  That of the
//! pool repeats at most the entry at which the replay was killed.
//! `FOREBAY_LOG_KILLS=n` for more rounds.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use forebay::*;

const DIR: &str = "FOREBAY_TEST_LOG_DIR";
const HOME: &str = "FOREBAY_TEST_LOG_HOME";
const THREADS: u64 = 3;
const ROUNDS: u64 = 6;
const WORDS: usize = 6;
/// A part of a page, at whose end SIGKILL may cut a write off.
const RECORD: usize = 256;
/// Kinds of records: of an entry, or of another event.
const ENTRY: u64 = 1;
const SYNC_BEGINS: u64 = 2;
const SYNCED: u64 = 3;
const HEADER: u64 = 4;

/// Records at the end of a file, each in one write: whole, or not there.
struct Notes(File);

impl Notes {
    fn open(dir: &Path, name: &str) -> Notes {
        Notes(OpenOptions::new().append(true).create(true).open(dir.join(name)).unwrap())
    }

    fn add(&self, words: [u64; WORDS], header: &LogHeader) {
        let mut record: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        record.extend(header.to_bytes());
        record.resize(RECORD, 0);
        (&self.0).write_all(&record).unwrap();
    }
}

type Note = ([u64; WORDS], LogHeader);

fn notes(dir: &Path, name: &str) -> Vec<Note> {
    let bytes = std::fs::read(dir.join(name)).unwrap_or_default();
    let note = |record: &[u8]| {
        let word = |i: usize| u64::from_le_bytes(record[i * 8..][..8].try_into().unwrap());
        (
            std::array::from_fn(word),
            LogHeader::from_bytes(&record[WORDS * 8..][..LOG_HEADER_BYTES]).unwrap(),
        )
    };
    let records = bytes.chunks_exact(RECORD);
    assert!(records.remainder().is_empty(), "{name} is torn");
    records.map(note).collect()
}

/// The body of the thread's entry n; lengths vary, and the first words identify it.
fn body(thread: u64, n: u64) -> Vec<u8> {
    let length = if n % 50 == 49 { 9000 } else { 16 + (n * 37) % 400 };
    let mut body: Vec<u8> = (0..length).map(|i| (thread * 31 + n * 7 + i) as u8).collect();
    body[..8].copy_from_slice(&thread.to_le_bytes());
    body[8..16].copy_from_slice(&n.to_le_bytes());
    body
}

struct Bed {
    dir: std::path::PathBuf,
    home: LogHome,
    log: Log,
}

/// Reads the environment; `None`: this is no child.
fn place() -> Option<(std::path::PathBuf, LogHome)> {
    let home = std::env::var(HOME).ok()?.parse().unwrap();
    Some((std::env::var_os(DIR)?.into(), home))
}

impl Bed {
    fn stored(&self) -> LogHeader {
        notes(&self.dir, "effects").last().map_or(LogHeader::default(), |(_, h)| h.clone())
    }

    /// A txg whose sync has begun is known to be stored elsewhere.
    fn claim(&self) -> Claimed {
        let known = sync_begun(&self.dir);
        match self.home {
            LogHome::Embedded => self.log.claim().unwrap(),
            LogHome::Consumer => self.log.claim_with(&self.stored(), known).unwrap(),
        }
    }

    fn store(&self, header: &LogHeader) {
        Notes::open(&self.dir, "effects").add([HEADER, 0, 0, 0, 0, 0], header);
    }
}

fn sync_begun(dir: &Path) -> u64 {
    let begun = notes(dir, "acknowledged").into_iter().filter(|(w, _)| w[0] == SYNC_BEGINS);
    begun.map(|(w, _)| w[3]).max().unwrap_or(0)
}

/// Appends until it is killed.
#[test]
#[ignore = "a helper of the test that kills it"]
fn appender() {
    let Some((dir, home)) = place() else { return };
    let pool = open(&dir.join("pool"));
    let log = pool.log("l", &LogOptions::default()).unwrap();
    let bed = Bed { dir, home, log };
    if home == LogHome::Consumer {
        bed.claim();
    }
    let (log, none) = (&bed.log, LogHeader::default());
    let header = log.create(0).unwrap();
    bed.store(&header);
    let told = Notes::open(&bed.dir, "acknowledged");
    let txg = AtomicU64::new(1);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (told, txg, none) = (&told, &txg, &none);
            s.spawn(move || {
                for n in 0.. {
                    let generation = if n % 3 == 0 { Generation::New } else { Generation::Same };
                    let body = body(thread, n);
                    let (of, name) = loop {
                        let of = txg.load(Ordering::SeqCst);
                        match log.append(of, generation, &[&body]) {
                            Ok(name) => break (of, name),
                            // It was synced meanwhile.
                            Err(e) => assert!(e.to_string().contains("is synced already"), "{e}"),
                        }
                    };
                    told.add([ENTRY, thread, n, of, name.generation, name.id], none);
                }
            });
        }
        loop {
            std::thread::sleep(Duration::from_micros(700));
            // The next one is open before this one is synced.
            let of = txg.fetch_add(1, Ordering::SeqCst);
            told.add([SYNC_BEGINS, 0, 0, of, 0, 0], &none);
            bed.store(&log.sync(of).unwrap());
            told.add([SYNCED, 0, 0, of, 0, 0], &none);
        }
    });
}

/// Replays what is left, but for what it is told on its input: at which entry it stops for
/// good, and whether before the effect of that.
#[test]
#[ignore = "a helper of the test that kills it"]
fn claimer() {
    let Some((dir, home)) = place() else { return };
    let pool = match Pool::open(&dir.join("pool"), &PoolOptions::default()) {
        Ok(pool) => pool,
        Err(e) => return println!("\nrefused {e}"),
    };
    println!("\nopened");
    let mut order = String::new();
    std::io::stdin().read_line(&mut order).unwrap();
    let (at, before) = order.trim().split_once(' ').unwrap();
    let (at, before): (u64, bool) = (at.parse().unwrap(), before.parse().unwrap());
    let log = pool.log("l", &LogOptions::default()).unwrap();
    let bed = Bed { dir, home, log };
    let stops = |now: bool| {
        if now {
            println!("\nstopped");
            std::thread::sleep(Duration::from_secs(3600));
        }
    };
    if bed.log.info().unwrap().state != LogState::None || home == LogHome::Consumer {
        let mut claimed = bed.claim();
        bed.store(&claimed.header().unwrap());
        let (effects, mut n) = (Notes::open(&bed.dir, "effects"), 0);
        claimed
            .replay(|e, checkpoint| {
                let word = |i: usize| u64::from_le_bytes(e.data[i..][..8].try_into().unwrap());
                assert_eq!(e.data, body(word(0), word(8)), "{}", e.name);
                n += 1;
                stops(n == at && before);
                let name = e.name;
                let words = [ENTRY, word(0), word(8), e.txg, name.generation, name.id];
                effects.add(words, checkpoint);
                stops(n == at);
                Effect::Durable
            })
            .unwrap();
        bed.store(&claimed.destroy().unwrap());
        bed.log.release().unwrap();
    }
    println!("\ndone");
}

// --- the judge -------------------------------------------------------------------

fn spawn(test: &str, dir: &Path, home: LogHome) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(HOME, home.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A child, and what it says.
struct Talk {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Talk {
    fn new(mut child: Child) -> Talk {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Talk { child, lines }
    }

    /// The next word of these, and what follows it.
    fn says(&mut self) -> (String, String) {
        const WORDS: [&str; 4] = ["refused", "opened", "stopped", "done"];
        loop {
            let line = self.lines.next().expect("it says something").unwrap();
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            if WORDS.contains(&word) {
                return (word.into(), rest.into());
            }
        }
    }
}

/// Two at once, of which one is refused; true: the other has come to the end.
fn claimed_by_two(dir: &Path, home: LogHome, at: u64, before: bool) -> bool {
    let mut two: Vec<_> =
        (0..2).map(|_| Talk::new(spawn("log_kill::claimer", dir, home))).collect();
    let mut said: Vec<_> = two.iter_mut().map(Talk::says).collect();
    if said[1].0 == "opened" {
        two.swap(0, 1);
        said.swap(0, 1);
    }
    assert_eq!((said[0].0.as_str(), said[1].0.as_str()), ("opened", "refused"), "{said:?}");
    let holder = format!("pool: in use by process {}", two[0].child.id());
    assert!(said[1].1.contains(&holder), "{said:?}, not {holder}");
    assert!(two[1].child.wait().unwrap().success());
    writeln!(two[0].child.stdin.take().unwrap(), "{at} {before}").unwrap();
    let end = two[0].says().0;
    if end == "stopped" {
        two[0].child.kill().unwrap();
    }
    let left = two[0].child.wait().unwrap();
    assert!(end == "stopped" || left.success());
    end == "done"
}

/// The outcome of the killed period.
fn judge(dir: &Path, home: LogHome, kills: &[(usize, bool)]) -> usize {
    let (told, effects) = (notes(dir, "acknowledged"), notes(dir, "effects"));
    let highest = |what| told.iter().filter(|n| n.0[0] == what).map(|n| n.0[3]).max().unwrap_or(0);
    let (begun, synced) = (highest(SYNC_BEGINS), highest(SYNCED));
    let mut came: Vec<_> = effects.iter().filter(|n| n.0[0] == ENTRY).map(|n| n.0).collect();
    // The pool's checkpoint follows the effect: killed between the two, it comes again.
    for &(at, before) in kills.iter().rev() {
        if !before && home == LogHome::Embedded && at < came.len() {
            assert_eq!(came[at - 1], came[at], "after a kill at its effect");
            came.remove(at);
        }
    }
    let mut by_thread = BTreeMap::new();
    for pair in came.windows(2) {
        assert!((pair[0][4], pair[0][5]) < (pair[1][4], pair[1][5]), "order, or twice: {pair:?}");
    }
    for [_, thread, n, txg, ..] in &came {
        assert!(*txg > synced, "obsolete: {thread} {n}");
        by_thread.insert((*thread, *n), *txg);
    }
    assert_eq!(by_thread.len(), came.len(), "twice");
    let mut next = [0; THREADS as usize];
    for ([_, thread, n, txg, gen, id], _) in told.iter().filter(|n| n.0[0] == ENTRY) {
        next[*thread as usize] = n + 1;
        match by_thread.remove(&(*thread, *n)) {
            Some(of) => assert_eq!(of, *txg, "{thread} {n}"),
            None => assert!(*txg <= begun, "lost: {thread} {n}, entry {gen}.{id} of txg {txg}"),
        }
    }
    // Unacknowledged entries: at most the one that each thread was appending.
    for (thread, n) in by_thread.keys() {
        assert_eq!(*n, next[*thread as usize], "never appended by thread {thread}");
    }
    came.len()
}

fn rounds(home: LogHome) {
    let rounds = std::env::var("FOREBAY_LOG_KILLS").map_or(ROUNDS, |n| n.parse().unwrap());
    let dir = Dir::new("log-kill");
    let pool = open(&dir.pool(32));
    pool.log_add("l", home).unwrap();
    pool.close().unwrap();
    let place = dir.path("pool");
    let place = place.parent().unwrap();
    let mut rng = Rng::new(u64::from(std::process::id()));
    let (mut replayed, mut resumed) = (0, 0);
    for round in 0..rounds {
        let _ = std::fs::remove_file(dir.path("acknowledged"));
        // Some while it opens.
        let mut child = spawn("log_kill::appender", place, home);
        let wanted = if round % 4 == 3 { 0 } else { 1 + rng.below(400) };
        while (notes_length(&dir) as u64) < wanted {
            assert!(child.try_wait().unwrap().is_none(), "the appender ended by itself");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let entries = || notes(place, "effects").iter().filter(|n| n.0[0] == ENTRY).count();
        let (mut kills, from) = (Vec::new(), entries());
        for turn in 0.. {
            let (at, before) = match turn {
                ..3 => (1 + rng.below(30), rng.below(2) == 0),
                _ => (u64::MAX, false),
            };
            if claimed_by_two(place, home, at, before) {
                break;
            }
            resumed += 1;
            kills.push((entries() - from, before));
        }
        replayed += judge(place, home, &kills);
        // Knowledge of this period must not count for the next one.
        let header = notes(place, "effects").last().unwrap().1.clone();
        std::fs::remove_file(dir.path("effects")).unwrap();
        Notes::open(place, "effects").add([HEADER, 0, 0, 0, 0, 0], &header);
    }
    println!("{rounds} kills: {replayed} entries replayed, {resumed} replays gone on with");
}

fn notes_length(dir: &Dir) -> usize {
    std::fs::metadata(dir.path("acknowledged")).map_or(0, |m| m.len() as usize / RECORD)
}

#[test]
fn killed_appenders_and_two_that_claim_with_the_header_in_the_pool() {
    rounds(LogHome::Embedded);
}

#[test]
fn killed_appenders_and_two_that_claim_with_the_header_at_the_consumer() {
    rounds(LogHome::Consumer);
}
