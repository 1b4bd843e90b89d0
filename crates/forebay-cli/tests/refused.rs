// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: what is in use, or holds data, is refused until that is over or the
//! operator says so, and then done.  Method: the state, the command, the way out.

mod common;

use std::fs;

use common::{crc32c, Bench};

#[test]
fn a_busy_pool_is_refused_and_its_holder_named() {
    let b = Bench::new();
    b.make_volume();
    let pool = forebay::Pool::open(&b.path("pool"), &Default::default()).unwrap();
    let me = format!("process {}", std::process::id());
    for command in [
        "volume add pool w origin",
        "volume remove pool v",
        "check pool",
        "serve pool",
        "drain pool",
        "create pool",
        "create pool --force",
    ] {
        let words: Vec<_> = command.split_whitespace().collect();
        let out = b.run(&words);
        assert_eq!(out.code, Some(4), "{command}: {}", out.stderr);
        assert!(out.stderr.contains(&me), "{command}: {}", out.stderr);
    }
    pool.close().unwrap();
    assert_eq!(b.run(&["check", "pool"]).code, Some(0));
}

#[test]
fn a_busy_origin_is_refused() {
    let b = Bench::new();
    b.make_volume();
    let origin = forebay::FileOrigin::open(&b.path("origin"), false).unwrap();
    for command in ["drain pool", "serve pool", "volume add pool w origin"] {
        let words: Vec<_> = command.split_whitespace().collect();
        let out = b.run(&words);
        assert_eq!(out.code, Some(4), "{command}: {}", out.stderr);
        assert!(out.stderr.contains("origin: in use"), "{command}: {}", out.stderr);
    }
    drop(origin);
    b.run_ok(&["drain", "pool"]);
}

#[test]
fn a_volume_that_holds_data_is_removed_only_when_told() {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(4096, &[7; 4096]);
    let out = b.run(&["volume", "remove", "pool", "v"]);
    assert_ne!(out.code, Some(0));
    assert!(out.stderr.contains("or discard what it holds"), "{}", out.stderr);
    assert_eq!(b.run(&["drain", "pool"]).code, Some(0));
    let origin = fs::read(b.path("origin")).unwrap();
    assert!(origin[4096..8192].iter().all(|byte| *byte == 7));
    assert_eq!(b.run(&["volume", "remove", "pool", "v"]).code, Some(0));

    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    b.write_to_volume(0, &[8; 4096]);
    b.run_ok(&["volume", "remove", "pool", "v", "--discard"]);
    let origin = fs::read(b.path("origin")).unwrap();
    assert!(origin[..4096].iter().all(|byte| *byte == 0));
}

/// As it was taken before.
#[test]
fn a_volume_whose_name_is_refused_today_is_removed_by_it() {
    for name in ["-x", "--", ".", ".."] {
        let b = Bench::new();
        b.make_volume();
        b.edit("pool", |bytes| {
            for record in [8192, 8448] {
                let record = &mut bytes[record..record + 256];
                assert_eq!(&record[48..50], b"v\0");
                // Two checksums differ by the same whatever they begin with.
                let before = crc32c(&record[..252]);
                record[48..48 + name.len()].copy_from_slice(name.as_bytes());
                let change = (before ^ crc32c(&record[..252])).to_le_bytes();
                record[252..].iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
            }
        });
        b.run_ok(&["volume", "remove", "pool", "--", name]);
        assert_eq!(b.run_ok(&["volume", "list", "pool", "--json"]).stdout.trim(), "[]");
    }
}
