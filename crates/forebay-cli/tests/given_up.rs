// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: `forebay drain` gives up what it was told to give up and nothing else, and says in JSON what it
//! left.  Method: two volumes with a damaged block each; a pool that holds nothing.

mod common;

use std::fs;

use common::Bench;
use forebay::{AttachOptions, Pool, PoolOptions};
use serde_json::{json, Value};

const BLOCK: usize = 4096;

/// Two volumes of four blocks, and block 1 of each is damaged.
fn two_volumes() -> Bench {
    let b = Bench::new();
    b.make_pool();
    for (name, origin) in [("v", "of-v"), ("w", "of-w")] {
        b.write(origin, &[1; 1 << 20]);
        b.run_ok(&["volume", "add", "pool", name, origin]);
    }
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    for name in ["v", "w"] {
        let volume = pool.attach(name, &AttachOptions::default()).unwrap();
        volume.write_at(&[7; 4 * BLOCK], 0).unwrap();
        volume.detach().unwrap();
    }
    let places = ["v", "w"].map(|name| {
        let history = pool.block_history(name, 1).unwrap();
        let entry = history.entries.iter().find(|e| e.linked).unwrap();
        pool.superblock().unwrap().page_at(entry.chunk, entry.page) as usize
    });
    pool.close().unwrap();
    b.edit("pool", |bytes| places.into_iter().for_each(|at| bytes[at + 1000] ^= 1));
    b
}

/// The volumes whose blocks are lost.
fn lost(b: &Bench) -> Vec<&'static str> {
    let out = b.run(&["check", "pool"]);
    let is = |name: &&str| {
        let mut lines = out.stdout.lines().chain(out.stderr.lines());
        let volume = format!("volume {name}");
        lines.any(|line| line.contains(&volume) && line.contains("4 KiB block 1 is LOST"))
    };
    ["v", "w"].into_iter().filter(is).collect()
}

/// Block 1 of an origin, and whether the others came from the pool.
fn origin(b: &Bench, name: &str) -> (u8, bool) {
    let bytes = fs::read(b.path(name)).unwrap();
    let block = |n: usize| &bytes[n * BLOCK..(n + 1) * BLOCK];
    (block(1)[0], [0, 2, 3].into_iter().all(|n| block(n) == [7; BLOCK]))
}

#[test]
fn lost_blocks_are_given_up_by_order_and_by_name() {
    let b = two_volumes();
    assert_eq!(b.run(&["drain", "pool"]).code, Some(11));
    assert_eq!((origin(&b, "of-v"), origin(&b, "of-w")), ((1, true), (1, true)));
    assert_eq!(lost(&b), ["v", "w"], "nobody gave them up");
    let out = b.run(&["drain", "pool", "v", "--accept-lost"]);
    let said = format!("{}{}", out.stdout, out.stderr);
    assert!(said.contains("block 1 is lost and given up"), "{out:?}");
    assert!(!said.contains("volume w"), "{out:?}");
    assert_eq!(lost(&b), ["w"], "only v was named: {out:?}");
    assert_eq!(b.run(&["drain", "pool"]).code, Some(11));
    b.run(&["drain", "pool", "--accept-lost"]);
    assert_eq!(lost(&b), [""; 0], "both");
    b.run_ok(&["drain", "pool"]);
}

#[test]
fn what_a_drain_left_is_one_object() {
    let b = Bench::new();
    b.make_pool();
    let drained = || {
        let out = b.run_ok(&["drain", "pool", "--json"]);
        assert!(out.stderr.is_empty(), "{out:?}");
        serde_json::from_str::<Value>(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    };
    let nothing = json!({"drained": {}, "complete": true, "volumes": [], "logs": [], "maps": []});
    assert_eq!(drained(), nothing);
    let out = b.run_ok(&["drain", "pool"]).stdout;
    assert_eq!(out, "the pool has no volumes; there is nothing left to drain\n");
    // With a volume, and without maps.
    b.write("origin", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    b.write_to_volume(0, &[7; BLOCK]);
    let left = drained();
    assert_eq!(
        (&left["complete"], &left["maps"], &left["logs"]),
        (&json!(true), &json!([]), &json!([]))
    );
    assert_eq!((&left["volumes"][0]["volume"], &left["volumes"][1]), (&json!("v"), &Value::Null));
    let out = b.run_ok(&["drain", "pool"]);
    assert!(!out.stdout.contains("no volumes") && !out.stdout.contains("map"), "{out:?}");
}
