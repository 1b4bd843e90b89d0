// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever happens to the media of a dirty pool while nobody has it open, check, dump,
//! reads, writes and a drain end without a crash or a hang.  They return for each block its
//! newest content or an error, never other or older data.  A drain that reports no loss leaves
//! a complete origin.  For a log in the same pool, dump, claim and replay return only appended
//! entries, in order, each once; and a replay that reports completeness has all of them.
//!
//! Method: pools in three states (killed in the middle of a write's 200 ms, killed after its
//! seals, closed), each with its expected content.  The test applies one mutation of the image
//! after another: flipped bits, zeroed ranges, lines and pages swapped, pieces of older states
//! of the same pool.  Each hundred mutations have a separate process, so that a crash is one
//! finding and not the end.
//!
//! HOSTILE_COUNT=5000 HOSTILE_SEED=1 for more (`make hostile`); HOSTILE_ONLY=n tells what
//! mutation n is, and does it alone.
//!
//! Two results are allowed.  In the killed pool the last batch of a chunk counts as torn
//! (docs/design/testing.md), so it may show an older version.  In a pool that was not closed, a
//! consistent piece of an older state cannot be distinguished from that state.

#[path = "host/common.rs"]
#[allow(dead_code)]
mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use forebay::*;

const BLOCKS: u64 = 48;
const CHUNKS: u64 = 18;
/// The last synced txg of the log; three later ones have entries.
const SYNCED: u64 = 4;
const BATCH: u64 = 100;
const LIMIT: Duration = Duration::from_secs(120);

/// A pool as somebody left it.
struct State {
    name: &'static str,
    image: Vec<u8>,
    /// Earlier images of the same pool.
    older: Vec<Vec<u8>>,
    origin: Vec<u8>,
    /// Entries of the log.
    entries: Vec<Entry>,
    /// By block: the count of its newest acknowledged write; 0: never written.
    newest: Vec<u64>,
    /// An older version of a block may show without an error.
    torn_passes: bool,
    closed: bool,
}

/// The n-th entry that was appended to the log.
#[derive(Clone)]
struct Entry {
    name: EntryName,
    txg: u64,
}

fn body(n: usize) -> Vec<u8> {
    let bytes = 8 + n * 37 % 900;
    (0..bytes).map(|i| if i < 8 { n.to_le_bytes()[i] } else { (n * 7 + i) as u8 }).collect()
}

fn page(block: u64, count: u64) -> Vec<u8> {
    (0..8).flat_map(|s| sector(1, block * 8 + s, count)).collect()
}

/// The write that a page is from; `None`: of none, or of several.
fn page_count(bytes: &[u8], block: u64) -> Option<u64> {
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let whole = if count == 0 { vec![0; 4096] } else { page(block, count) };
    (bytes == whole).then_some(count)
}

/// Writes rounds of random blocks, some drained, and leaves the pool in three ways.
fn states(dir: &Dir, seed: u64) -> Vec<State> {
    let mut rng = Rng::new(seed);
    let path = dir.pool(CHUNKS);
    let origin = MemOrigin::with_content(vec![0; (BLOCKS * 4096) as usize], 512).unwrap();
    let pool = open(&path);
    let volume = attach(&pool, "v", &origin);
    let (mut newest, mut older, mut count) = (vec![0; BLOCKS as usize], Vec::new(), 0);
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    let mut entries = Vec::new();
    let image = || std::fs::read(&path).unwrap();
    for round in 0..6 {
        for _ in 0..20 {
            let (first, n) = (rng.below(BLOCKS - 3), 1 + rng.below(3));
            count += 1;
            let data: Vec<u8> = (first..first + n).flat_map(|b| page(b, count)).collect();
            volume.write_at(&data, first * 4096).unwrap();
            (first..first + n).for_each(|b| newest[b as usize] = count);
        }
        for _ in 0..12 {
            let txg = round + 1 + rng.below(2);
            let generation = if rng.below(3) == 0 { Generation::Same } else { Generation::New };
            let name = log.append(txg, generation, &[&body(entries.len())]).unwrap();
            entries.push(Entry { name, txg });
        }
        log.sync(round.min(SYNCED)).unwrap();
        if round == 2 {
            drain(&volume);
        }
        older.push(image());
    }
    let state = |name, image, older: &[Vec<u8>], torn_passes, closed| State {
        name,
        image,
        older: older.to_vec(),
        origin: origin.content(),
        entries: entries.clone(),
        newest: newest.clone(),
        torn_passes,
        closed,
    };
    let now = older.pop().unwrap();
    let killed = state("killed", now, &older, true, false);
    // Until each open chunk is sealed.
    std::thread::sleep(Duration::from_millis(700));
    let sealed = state("sealed", image(), &older, false, false);
    volume.detach().unwrap();
    drop(log);
    pool.close().unwrap();
    let closed = state("closed", image(), &older, false, true);
    vec![killed, sealed, closed]
}

/// Mutation n of the image, and what it is.
fn mutate(state: &State, seed: u64, n: u64, image: &mut [u8]) -> String {
    let mut rng = Rng::new(seed ^ n.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let len = image.len() as u64;
    // Half of them where structures are: the first page of a chunk, or before all chunks.
    let place = |unit: u64, rng: &mut Rng| {
        let at = match rng.below(4) {
            0 => rng.below(u64::from(CHUNK)),
            1 => rng.below(len / u64::from(CHUNK)) * u64::from(CHUNK) + rng.below(1024),
            _ => rng.below(len),
        };
        ((at / unit * unit).min(len - unit)) as usize
    };
    match n % 4 {
        0 => {
            let bits = 1 + rng.below(4);
            let places: Vec<usize> = (0..bits).map(|_| place(1, &mut rng)).collect();
            places.iter().for_each(|&at| image[at] ^= 1 << rng.below(8));
            format!("bits flipped in bytes {places:?}")
        }
        1 => {
            let unit = [8, 64, 512, 4096][rng.below(4) as usize];
            let at = place(unit, &mut rng);
            let n = (unit * (1 + rng.below(4))).min(len - at as u64) as usize;
            image[at..at + n].fill(0);
            format!("{n} bytes zeroed at {at}")
        }
        2 => {
            let unit = [64, 4096][rng.below(2) as usize];
            let (a, b) = (place(unit, &mut rng), place(unit, &mut rng));
            for i in 0..unit as usize {
                image.swap(a + i, b + i);
            }
            format!("{unit} bytes at {a} and {b} swapped")
        }
        _ => {
            let old = rng.below(state.older.len() as u64) as usize;
            let unit = [64, 512, 4096][rng.below(3) as usize];
            let at = place(unit, &mut rng);
            let n = (unit * (1 + rng.below(3))).min(len - at as u64) as usize;
            image[at..at + n].copy_from_slice(&state.older[old][at..at + n]);
            format!("{n} bytes at {at} from state {old}")
        }
    }
}

/// Is what a block shows without an error what it may?
fn judge(state: &State, replayed: bool, block: u64, bytes: &[u8], what: &str) -> Option<String> {
    let newest = state.newest[block as usize];
    match page_count(bytes, block) {
        Some(c) if c == newest => None,
        Some(c) if c < newest && (state.torn_passes || (replayed && !state.closed)) => None,
        Some(c) => Some(format!("block {block}, {what}: version {c}, the newest is {newest}")),
        None => Some(format!("block {block}, {what}: not what was ever written")),
    }
}

/// Does everything that a user may do with the log; returns what is wrong.
fn try_log(pool: &Pool, state: &State, replayed: bool) -> Result<(), String> {
    let (_, dry) = (pool.log_entries("l", true), pool.log_replay_dry("l"));
    let Ok(log) = pool.log("l", &LogOptions::default()) else { return Ok(()) };
    let Ok(mut claimed) = log.claim() else { return Ok(()) };
    let (mut last, mut came, mut wrong) = (EntryName::default(), Vec::new(), None);
    let end = claimed.replay(|e, _| {
        let n = e.data.first_chunk().map_or(usize::MAX, |n| usize::from_le_bytes(*n));
        let appended = state.entries.get(n).filter(|of| of.name == e.name && of.txg == e.txg);
        if appended.is_none() || e.data != body(n) {
            wrong = Some(format!("entry {} was not appended", e.name));
        }
        if e.name <= last || (e.txg <= SYNCED && !replayed) {
            wrong = Some(format!("entry {} again, or obsolete", e.name));
        }
        last = e.name;
        came.push(n);
        Effect::Applied
    });
    if let Some(text) = wrong {
        return Err(format!("log: {text}"));
    }
    let counts = |e: &&Entry| e.txg > SYNCED;
    let lacks = state.entries.iter().filter(counts).count().saturating_sub(came.len());
    // A crash can tear only the last entry of a chunk.
    if end.is_ok() && lacks > 0 && !replayed && !state.torn_passes {
        return Err(format!("log: a complete replay lacks {lacks} entries"));
    }
    let complete = dry.is_ok_and(|r| r.end == ReplayEnd::Complete);
    if complete != end.is_ok() {
        return Err(format!("log: the dry run says complete: {complete}, the replay {end:?}"));
    }
    claimed.give_up().map_err(|e| format!("log: give up: {e}"))?;
    log.create(9).map_err(|e| format!("log: create: {e}"))?;
    match log.try_append(10, Generation::New, &[b"anew"]) {
        Ok(_) | Err(Error::LogFull { .. }) => Ok(()),
        Err(e) => Err(format!("log: append: {e}")),
    }
}

/// Does everything that a user may do with the pool; returns what is wrong.
fn try_all(path: &Path, state: &State, replayed: bool) -> Result<&'static str, String> {
    let origin = MemOrigin::with_content(state.origin.clone(), 512).unwrap();
    let Ok(pool) = Pool::open(path, &PoolOptions::default()) else { return Ok("not opened") };
    let _ = pool.check(true);
    try_log(&pool, state, replayed)?;
    let _ = pool.superblock();
    for chunk in 0..CHUNKS as u32 {
        let _ = (pool.chunk(chunk), pool.entries(chunk, true));
    }
    for block in 0..BLOCKS {
        let _ = pool.block_history("v", block);
    }
    let options =
        |holes| AttachOptions { holes, accept_changed_origin: true, ..Default::default() };
    let attach = |holes| pool.attach_origin("v", Box::new(origin.clone()), &options(holes));
    let Ok(volume) = attach(Holes::Fail).or_else(|_| attach(Holes::Isolate)) else {
        return Ok("not attached");
    };
    let (mut lost, mut buf) = (0, vec![0; 4096]);
    for block in 0..BLOCKS {
        match volume.read_at(&mut buf, block * 4096) {
            Err(_) => lost += 1,
            Ok(()) => {
                if let Some(text) = judge(state, replayed, block, &buf, "read") {
                    return Err(text);
                }
            }
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    let drained = volume.drain(&mut |_| match Instant::now() < until {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    });
    let known = volume.info().map(|i| i.lost_blocks).unwrap_or(1);
    if matches!(drained, Err(Error::Interrupted { .. })) {
        return Err("the drain does not end".into());
    }
    let content = origin.content();
    for block in (0..BLOCKS).filter(|_| drained.is_ok() && known == 0) {
        let bytes = &content[(block * 4096) as usize..][..4096];
        if let Some(text) = judge(state, replayed, block, bytes, "drained") {
            return Err(text);
        }
    }
    volume.write_at(&page(3, 9999), 3 * 4096).map_err(|e| format!("a write: {e}"))?;
    volume.read_at(&mut buf, 3 * 4096).map_err(|e| format!("what was written: {e}"))?;
    if page_count(&buf, 3) != Some(9999) {
        return Err("a write does not read back".into());
    }
    volume.detach().map_err(|e| format!("detach: {e}"))?;
    pool.close().map_err(|e| format!("close: {e}"))?;
    Ok(if lost == 0 { "nothing lost" } else { "blocks lost, and known" })
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Run by the test below, with HOSTILE_FROM and HOSTILE_TO.
#[test]
#[ignore = "a part of mutated_pools"]
fn batch() {
    let (seed, from, to) =
        (number("HOSTILE_SEED", 1), number("HOSTILE_FROM", 0), number("HOSTILE_TO", 0));
    let dir = Dir::new("hostile");
    let states = states(&dir, seed.wrapping_add(from / BATCH));
    let path: PathBuf = dir.path("mutant");
    for n in from..to {
        let state = &states[(n / 4 % 3) as usize];
        let mut image = state.image.clone();
        let what = mutate(state, seed, n, &mut image);
        println!("at {n}: {}: {what}", state.name);
        std::fs::write(&path, &image).unwrap();
        match try_all(&path, state, n % 4 == 3) {
            Ok(how) => println!("\nend {how}"),
            Err(text) => println!("\nWRONG {n}: {}, {what}: {text}", state.name),
        }
    }
}

#[test]
fn mutated_pools() {
    let only = number("HOSTILE_ONLY", u64::MAX);
    let count = number("HOSTILE_COUNT", 300);
    let (mut ends, mut wrong) = (std::collections::BTreeMap::<String, u32>::new(), Vec::new());
    let mut at = if only == u64::MAX { 0 } else { only };
    let end = if only == u64::MAX { count } else { only + 1 };
    while at < end {
        let to = (at / BATCH * BATCH + BATCH).min(end);
        let dir = Dir::new("hostile-log");
        let log = dir.path("log");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "batch", "--ignored", "--nocapture", "--test-threads=1"])
            .env("HOSTILE_FROM", at.to_string())
            .env("HOSTILE_TO", to.to_string())
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let ended = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if started.elapsed() > LIMIT => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        for line in text.lines() {
            if let Some(how) = line.strip_prefix("end ") {
                *ends.entry(how.into()).or_default() += 1;
            } else if let Some(w) = line.strip_prefix("WRONG ") {
                wrong.push(w.to_string());
            }
        }
        let last = text.lines().rfind(|l| l.starts_with("at ")).unwrap_or("before the first");
        match ended {
            Some(status) if status.success() => at = to,
            ended => {
                let how = ended.map_or("does not end".into(), |s| format!("crash, {s}"));
                wrong.push(format!("{how}: {last}"));
                let n = last.split([' ', ':']).nth(1).and_then(|n| n.parse::<u64>().ok());
                at = n.expect("it ended before its first mutation") + 1;
            }
        }
    }
    println!("hostile: {} mutations: {ends:?}, {} wrong", end.min(count), wrong.len());
    assert!(wrong.is_empty(), "HOSTILE_SEED={}:\n{}", number("HOSTILE_SEED", 1), wrong.join("\n"));
}
