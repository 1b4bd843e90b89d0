// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever is lost of a log is told by its replay, by the dry run and by check, also
//! where no later entry shows it.
//!
//! Method: a log of three entries, of which the pool is closed; then lines of its chunk are
//! damaged, each row in another way.

use std::path::Path;

use crate::common::*;
use forebay::*;

/// In the superblock.
const POOL_UUID_AT: usize = 40;
const POOL_SALT_AT: usize = 140;
const ENTRIES: [&str; 3] = ["first-entry", "second-entry", "third-entry"];

fn made(dir: &Dir) {
    let pool = open(&dir.pool(12));
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    for entry in ENTRIES {
        log.append(1, Generation::New, &[entry.as_bytes()]).unwrap();
    }
    drop(log);
    pool.close().unwrap();
}

/// Offset of an entry's header; its body begins two lines after it.
fn header_at(bytes: &[u8], entry: &str) -> usize {
    let at = bytes.windows(entry.len()).position(|w| w == entry.as_bytes()).unwrap();
    at - 128
}

fn edit(path: &Path, edit: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    edit(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn zero_header(bytes: &mut [u8], entry: usize) {
    let at = header_at(bytes, ENTRIES[entry]);
    bytes[at..at + 128].fill(0);
}

/// The lines that open and seal the chunk, and its first entry.
fn zero_chunk(bytes: &mut [u8]) {
    let at = header_at(bytes, ENTRIES[0]) / CHUNK as usize * CHUNK as usize;
    bytes[at..at + 512 + 128].fill(0);
}

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!seed, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The last entry has the name of the one before it, and says the same of those before.
fn two_of_one_name(bytes: &mut [u8]) {
    let (second, third) = (header_at(bytes, ENTRIES[1]), header_at(bytes, ENTRIES[2]));
    bytes.copy_within(second + 32..second + 80, third + 32);
    let uuid = POOL_UUID_AT..POOL_UUID_AT + 16;
    let salt = POOL_SALT_AT..POOL_SALT_AT + 4;
    let seed = crc32c(crc32c(0, &bytes[uuid]), &bytes[salt]);
    let crc = crc32c(seed, &bytes[third..third + 124]);
    bytes[third + 124..third + 128].copy_from_slice(&crc.to_le_bytes());
}

/// The change, and the entries that are replayed all the same.
type Row = (&'static str, fn(&mut [u8]), &'static [&'static str]);

const ROWS: &[Row] = &[
    ("two of one name", two_of_one_name, &["first-entry"]),
    ("the last entry", |bytes| zero_header(bytes, 2), &["first-entry", "second-entry"]),
    ("the last two", |bytes| (1..3).for_each(|n| zero_header(bytes, n)), &["first-entry"]),
    ("all", |bytes| (0..3).for_each(|n| zero_header(bytes, n)), &[]),
    ("the chunk's lines, and the first entry", zero_chunk, &[]),
    (
        "all, and the chunk's lines",
        |bytes| {
            (1..3).for_each(|n| zero_header(bytes, n));
            zero_chunk(bytes);
        },
        &[],
    ),
];

#[test]
fn a_replay_that_misses_entries_is_never_complete() {
    for (what, damage, left) in ROWS {
        let dir = Dir::new("log-losses");
        made(&dir);
        let path = dir.path("pool");
        edit(&path, damage);
        // Told again where it was told before, and the pool was closed since.
        for turn in 0..2 {
            let what = format!("{what}, turn {turn}");
            let pool = open(&path);
            let check = pool.check(true).unwrap();
            assert!(!check.logs[0].is_ok(), "{what}: {}", check.logs[0]);
            let dry = pool.log_replay_dry("l").unwrap();
            assert!(dry.end != ReplayEnd::Complete, "{what}: {dry}");
            assert_eq!(dry.twins > 0, what.contains("one name"), "{what}: {dry}");
            let log = pool.log("l", &LogOptions::default()).unwrap();
            let mut claimed = log.claim().unwrap();
            assert_eq!(claimed.report().end, dry.end, "{what}");
            let mut all = Vec::new();
            let replayed = claimed.replay(|e, _| {
                all.push(String::from_utf8(e.data.to_vec()).unwrap());
                Effect::Applied
            });
            assert_eq!(all, *left, "{what}");
            let e = replayed.expect_err(&what);
            assert!(matches!(e, Error::LogIncomplete { .. }) && e.exit_code() == 11, "{what}: {e}");
            assert!(claimed.destroy().is_err(), "{what}");
            drop(log);
            pool.close().unwrap();
        }
        // It is given up only by order; later users are not told of it.
        let pool = open(&path);
        let log = pool.log("l", &LogOptions::default()).unwrap();
        log.claim().unwrap().give_up().unwrap();
        log.create(1).unwrap();
        log.append(2, Generation::New, &[b"anew"]).unwrap();
        drop(log);
        pool.close().unwrap();
        let pool = open(&path);
        assert!(pool.check(true).unwrap().logs[0].is_ok(), "{what}");
        let mut claimed = pool.log("l", &LogOptions::default()).unwrap().claim().unwrap();
        assert_eq!(claimed.replay(|_, _| Effect::Durable).unwrap().replayed, 1, "{what}");
    }
}
