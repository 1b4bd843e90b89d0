// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: static volumes by the command.  Impossible requests are refused with the way out,
//! acknowledged data survives a killed server, and each command that reports on a pool includes
//! them.  Method: the command, and clients of its server.

mod common;

use std::fs;

use common::nbd::{Client, Served, TRIM, WRITE_ZEROES};
use common::Bench;
use serde_json::Value;

/// Makes a pool with 16 MiB for shares, and a volume v of 4 MiB with a share of 1 MiB: 126 slots
/// with up to 9 blocks each.
fn made(options: &[&str]) -> Bench {
    let b = Bench::new();
    b.run_ok(&["create", "pool", "--size", "32M", "--static", "16M"]);
    b.write("origin", &[0; 4 << 20]);
    let add = ["volume", "add", "pool", "v", "origin", "--static", "1M"];
    b.run_ok(&[&add, options].concat());
    b
}

fn json(b: &Bench, words: &[&str]) -> Value {
    let out = b.run_ok(&[words, &["--json"]].concat());
    serde_json::from_str(&out.stdout).unwrap()
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    let b = Bench::new();
    b.write("origin", &[0; 1 << 20]);
    for (words, why) in [
        ("create pool --size 16M --static 1G", "leave less for them"),
        ("create pool --size 16M --static 1000", "use a multiple of 64"),
        ("create pool --size 16M --static -1", "unexpected argument"),
        ("create pool --size 16M --static some", "is not a size"),
    ] {
        let out = b.run(&words.split(' ').collect::<Vec<_>>());
        assert!(out.code == Some(2) && out.stderr.contains(why), "{words}: {out:?}");
        assert!(!b.path("pool").exists(), "{words}");
    }
    b.run_ok(&["create", "pool", "--size", "16M"]);
    let out = b.run(&["volume", "add", "pool", "v", "origin", "--static", "1M"]);
    assert!(out.code == Some(2) && out.stderr.contains("create --static SIZE"), "{out:?}");
    fs::remove_file(b.path("pool")).unwrap();
    b.run_ok(&["create", "pool", "--size", "32M", "--static", "4M"]);
    for (words, code, why) in [
        ("--static 0", 2, "use a multiple of 64"),
        ("--static 100000", 2, "use a multiple of 64"),
        ("--static 5M", 2, "larger than all room"),
        ("--static 1T", 2, "larger than all room"),
        ("--static 1M --flush-every 2h", 2, "use 1us to"),
        ("--static 1M --flush-every 0s", 2, "is not a time"),
        ("--flush-every 10ms", 2, "--static"),
    ] {
        let add = ["volume", "add", "pool", "v", "origin"];
        let words: Vec<_> = add.into_iter().chain(words.split(' ')).collect();
        let out = b.run(&words);
        assert!(out.code == Some(code) && out.stderr.contains(why), "{words:?}: {out:?}");
    }
    assert!(json(&b, &["volume", "list", "pool"]).as_array().unwrap().is_empty());
    b.run_ok(&["volume", "add", "pool", "v", "origin", "--static", "3M"]);
    b.write("other", &[0; 1 << 20]);
    let out = b.run(&["volume", "add", "pool", "w", "other", "--static", "2M"]);
    assert!(out.code == Some(8) && out.stderr.contains("in one piece"), "{out:?}");
    assert!(out.stderr.contains("use a smaller share"), "{out:?}");
    b.run_ok(&["volume", "add", "pool", "w", "other", "--static", "1M"]);
    // The module does not support static volumes.  The command says so without a module.
    let out = b.run(&["attach", "pool", "v", "origin"]);
    assert!(out.code != Some(0), "{out:?}");
}

/// A static volume and a cached one go through the life of a pool.
#[test]
fn all_that_tells_of_a_pool_tells_of_them() {
    let b = made(&["--flush-every", "30s"]);
    b.write("other", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "w", "other"]);
    let text = b.run_ok(&["create", "another", "--size", "32M", "--static", "16M"]).stdout;
    assert!(text.contains("16 MiB for static volumes"), "{text}");
    let serve = Served::start(&b, &[]);
    let (mut v, mut w) = (serve.connect("v"), serve.connect("w"));
    assert_eq!((v.write(0, &[1; 8192]), w.write(0, &[1; 4096])), (0, 0));
    let status = json(&b, &["status", "pool"]);
    assert_eq!(status["static_bytes"], 16 << 20);
    assert_eq!(status["static_given_bytes"], 1 << 20);
    assert_eq!(status["static_cached_bytes"], 8192);
    assert_eq!(status["counters"]["writes"], 3);
    let volume = |status: &Value, i: usize| status["volumes"][i].clone();
    assert_eq!(volume(&status, 0)["static_slots"], 126);
    assert_eq!(volume(&status, 0)["flush_every_seconds"], 30.0);
    assert_eq!(volume(&status, 0)["verdict"], "cached");
    assert_eq!(volume(&status, 1)["static_bytes"], 0);
    let text = b.run_ok(&["status", "pool"]).stdout;
    assert!(text.contains("8 KiB cached of 1 MiB given to static volumes, of 16 MiB"), "{text}");
    assert!(text.contains("up to 9 blocks share one, all to the origin every 30s"), "{text}");
    b.run_ok(&["exporter", "pool", "--textfile", b.path("prom").to_str().unwrap()]);
    let metrics = fs::read_to_string(b.path("prom")).unwrap();
    for line in [
        "volume_static_bytes",
        "volume_conflicts_total",
        "volume_eras_used_ratio",
        "volume_uncounted",
    ] {
        assert!(metrics.contains(&format!("forebay_{line}{{")), "{line}");
    }
    drop((v, w));
    // The stop did not drain the volume.  It is served again, and the server drains it.
    let mut serve = serve;
    assert_eq!(serve.stop(), Some(0));
    let text = b.run_ok(&["volume", "list", "pool"]).stdout;
    assert!(text.contains("8 KiB"), "{text}");
    b.run_ok(&["check", "pool"]);
    let dump = json(&b, &["dump", "block", "pool", "v", "1"]);
    assert_eq!((&dump["slot"], &dump["ways"][1]["block"]), (&Value::from(1), &Value::from(1)));
    assert!(b.run_ok(&["dump", "superblock", "pool"]).stdout.contains("static volumes  16777216"));
    let out = b.run(&["volume", "remove", "pool", "v"]);
    assert!(out.code == Some(12) && out.stderr.contains("--discard"), "{out:?}");
    let out = b.run(&["origin", "status", "origin"]);
    assert!(out.code == Some(14) && out.stdout.contains("may lack"), "{out:?}");
    let out = b.run_ok(&["drain", "pool"]).stdout;
    assert!(out.contains("volume v: ") && out.contains("the origin alone is complete"), "{out}");
    assert!(json(&b, &["origin", "status", "origin"])["complete"] == true);
    assert_eq!(fs::read(b.path("origin")).unwrap()[..8192], [1; 8192]);
    b.run_ok(&["volume", "remove", "pool", "v"]);
    b.run_ok(&["volume", "add", "pool", "x", "origin", "--static", "16M"]);
    let added = json(&b, &["volume", "list", "pool"]);
    assert_eq!(added[0]["static_bytes"], 16 << 20);
}

/// The blocks share slots, so destage runs all the time.  After each kill, everything that was
/// acknowledged is there, and after a drain it is on the origin.
#[test]
fn a_server_that_is_killed_loses_nothing() {
    let b = made(&["--flush-every", "10ms"]);
    let mut model = vec![0u8; 4 << 20];
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    for round in 0..6u8 {
        let mut served = Served::start(&b, &[]);
        let mut client: Client = served.connect("v");
        for at in (0..model.len()).step_by(1 << 20) {
            let found = client.read(at as u64, 1 << 20).unwrap();
            assert!(found == model[at..at + (1 << 20)], "round {round}");
        }
        for n in 0..400u64 {
            let len = [512, 4096, 12288, 65536][below(4) as usize];
            let at = below((4 << 20) / 512 - len / 512) * 512;
            let bytes = &mut model[at as usize..(at + len) as usize];
            if n % 16 == 7 {
                let op = if n % 32 == 7 { TRIM } else { WRITE_ZEROES };
                if op == WRITE_ZEROES {
                    client.send_raw(0, op, n, at, len as u32, &[]).unwrap();
                    assert_eq!(client.reply().unwrap().0, 0);
                    bytes.fill(0);
                }
                continue;
            }
            bytes.fill(below(255) as u8 + 1);
            assert_eq!(client.write(at, bytes), 0);
        }
        served.process.kill().unwrap();
        served.process.wait().unwrap();
    }
    let status = b.run_ok(&["status", "pool"]).stdout;
    assert!(status.contains("it was not closed, and may hold more"), "{status}");
    b.run_ok(&["check", "pool"]);
    let out = b.run_ok(&["drain", "pool"]).stdout;
    assert!(out.contains("the origin alone is complete"), "{out}");
    assert!(fs::read(b.path("origin")).unwrap() == model);
    b.run_ok(&["check", "pool"]);
}

/// Nobody has counted the content yet.  So it is not reported as empty, and all of it is verified.
#[test]
fn what_a_killed_server_left_is_not_told_as_nothing() {
    let b = made(&[]);
    let mut served = Served::start(&b, &[]);
    let mut client: Client = served.connect("v");
    for block in 0..60u64 {
        assert_eq!(client.write(block * 4096, &[7; 4096]), 0);
    }
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    for words in [["volume", "list", "pool"].as_slice(), &["status", "pool"]] {
        let out = b.run_ok(words).stdout;
        assert!(out.contains(">= "), "{out}");
    }
    assert_eq!(json(&b, &["check", "pool"])["pages_checked"], 60);
    b.run_ok(&["drain", "pool"]);
    assert_eq!(json(&b, &["check", "pool"])["pages_checked"], 0);
}
