// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is told of a pool in lists and numbers: dumps, checks, names, and lists longer
//! than the engine gives at once; and what each setting of `verify` lets pass.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;

use crate::common::*;
use forebay::control::Client;
use forebay::*;

const PAGE: usize = 4096;

/// Where in the pool's file the data of each linked block is.
fn places(pool: &Pool) -> Vec<(u64, u64)> {
    let sb = pool.superblock().unwrap();
    let mut found = Vec::new();
    for chunk in 0..sb.chunks {
        for e in pool.entries(chunk, false).unwrap().iter().filter(|e| e.linked) {
            let chunk = sb.data_offset_bytes + u64::from(chunk) * u64::from(sb.chunk_size_bytes);
            found.push((e.block, chunk + u64::from(e.page) * PAGE as u64));
        }
    }
    found
}

/// Changes the first byte of the data, beside the engine.
fn spoil(path: &std::path::Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// The engine lists 64 lost blocks at a time: all are told, whatever their number.
#[test]
fn every_lost_block_is_listed() {
    for lost in [63, 64, 65, 128, 150] {
        let dir = Dir::new("lost");
        let path = dir.pool(48);
        let pool = Pool::open(&path, &unthrottled()).unwrap();
        let origin = MemOrigin::new(160 * PAGE).unwrap();
        let volume = attach(&pool, "v", &origin);
        volume.write_at(&vec![1; 160 * PAGE], 0).unwrap();
        let places = places(&pool);
        assert_eq!(places.len(), 160);
        for (_, at) in places.iter().filter(|(block, _)| *block < lost) {
            spoil(&path, *at);
        }
        let mut page = [0; PAGE];
        for block in 0..160 {
            let got = volume.read_at(&mut page, block * PAGE as u64);
            assert_eq!(got.is_err(), block < lost, "block {block}");
        }
        let given_up = volume.accept_lost().unwrap();
        assert_eq!(given_up, (0..lost).collect::<Vec<_>>());
        volume.read_at(&mut page, 0).unwrap();
        assert_eq!(page, [0; PAGE], "what the origin has is the newest");
        assert_eq!(drain(&volume).pages_left, 0);
    }
}

/// A dump names each kind of entry, and says of data what is known: nothing, where it
/// was not looked at.
#[test]
fn a_dump_says_what_it_knows() {
    let dir = Dir::new("dump");
    let path = dir.pool(16);
    let pool = open(&path);
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 3 * PAGE], 0).unwrap();
    volume.write_zeroes(PAGE as u64, PAGE as u64).unwrap();
    volume.discard(2 * PAGE as u64, PAGE as u64).unwrap();
    let of = |check_data| {
        let chunks = pool.superblock().unwrap().chunks;
        let all = (0..chunks).flat_map(|c| pool.entries(c, check_data).unwrap());
        let mut linked: Vec<_> = all.filter(|e| e.linked).collect();
        linked.sort_by_key(|e| e.block);
        linked
    };
    let kinds: Vec<_> = of(false).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EntryKind::Data, EntryKind::Zero, EntryKind::Discard]);
    assert!(of(false).iter().all(|e| e.valid && e.current && e.data_ok.is_none()));
    assert!(of(true).iter().all(|e| e.data_ok == Some(true)));
    let history = pool.block_history("v", 2).unwrap();
    let kinds: Vec<_> = history.entries.iter().map(|e| (e.kind, e.linked)).collect();
    assert_eq!(kinds, [(EntryKind::Data, false), (EntryKind::Discard, true)]);
    assert!(history.entries.windows(2).all(|e| e[0].seq < e[1].seq));

    for (_, at) in places(&pool).iter().filter(|(block, _)| *block == 0) {
        spoil(&path, *at);
    }
    assert_eq!(of(true)[0].data_ok, Some(false));
    assert_eq!(of(false)[0].data_ok, None);
    // An entry that is none has data of which nothing can be known.
    let empty = pool.entries(0, true).unwrap();
    assert!(empty.iter().any(|e| !e.valid) && empty.iter().all(|e| e.valid || e.data_ok.is_none()));
}

/// A check says whether it looked at data, and at how much.
#[test]
fn a_check_says_whether_it_looked_at_data() {
    let dir = Dir::new("checked");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 3 * PAGE], 0).unwrap();
    let (with, without) = (pool.check(true).unwrap(), pool.check(false).unwrap());
    assert_eq!((with.data, with.pages_checked, with.ok), (true, 3, true));
    assert_eq!((without.data, without.pages_checked, without.ok), (false, 0, true));
    assert!(!with.quiet, "a volume is attached");
    volume.detach().unwrap();
    assert!(pool.check(false).unwrap().quiet);
}

/// Always: at each read.  First: at the first of each page.  Never: what is there.
#[test]
fn verify_is_as_often_as_it_says() {
    for verify in [Verify::Always, Verify::First, Verify::Never] {
        let dir = Dir::new("verify");
        let path = dir.pool(16);
        let pool = Pool::open(&path, &PoolOptions { verify, ..Default::default() }).unwrap();
        let origin = MemOrigin::new(64 * PAGE).unwrap();
        let volume = attach(&pool, "v", &origin);
        volume.write_at(&[1; 2 * PAGE], 0).unwrap();
        let mut page = [0; PAGE];
        volume.read_at(&mut page, 0).unwrap();
        places(&pool).iter().for_each(|(_, at)| spoil(&path, *at));
        // Block 0 was read before, block 1 was not.
        for (block, fails) in [(0, verify == Verify::Always), (1, verify != Verify::Never)] {
            let got = volume.read_at(&mut page, block * PAGE as u64);
            assert_eq!(got.is_err(), fails, "{verify:?}, block {block}: {got:?}");
            assert!(fails || page[0] == 0, "{verify:?}, block {block}");
        }
    }
}

/// Names of pools are random, and say that they are: version 4, variant 1.
#[test]
fn a_random_name_is_one() {
    let (mut seen, mut digits) = (BTreeSet::new(), vec![BTreeSet::new(); 36]);
    for _ in 0..1000 {
        let name = Uuid::random().unwrap().to_string();
        assert_eq!((name.len(), &name[14..15]), (36, "4"), "{name}");
        for (i, digit) in name.chars().enumerate() {
            digits[i].insert(digit);
        }
        assert!(seen.insert(name));
    }
    for (i, digits) in digits.iter().enumerate() {
        let many = match i {
            8 | 13 | 18 | 23 => 1, // a dash
            14 => 1,
            19 => 4,
            _ => 16,
        };
        assert_eq!(digits.len(), many, "place {i}: {digits:?}");
    }
    assert_eq!(digits[19], "89ab".chars().collect());
}

/// An answer may have a mebibyte; a longer one is an answer that is too long, and no
/// end of the connection.
#[test]
fn an_answer_that_is_too_long_is_told() {
    let dir = Dir::new("answer");
    let run = dir.path("run");
    std::fs::create_dir(&run).unwrap();
    let uuid = Uuid::random().unwrap();
    let listener = UnixListener::bind(run.join(format!("{uuid}.sock"))).unwrap();
    for (length, told) in [(1 << 10, "closed"), ((1 << 20) - 1, "closed"), (1 << 20, "too long")] {
        let e = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut byte = [0];
                while byte != *b"\n" {
                    stream.read_exact(&mut byte).unwrap();
                }
                // Whoever has read enough may hang up.
                let _ = stream.write_all(&vec![b' '; length]);
            });
            let mut client = Client::connect(&run, uuid).unwrap().unwrap();
            client.status().unwrap_err().to_string()
        });
        assert!(e.contains(told), "{length}: {e}");
    }
}
