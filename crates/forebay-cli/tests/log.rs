// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay log`, and what the other commands say of logs.

mod common;

use common::Bench;
use forebay::{Effect, Generation, LogOptions, Pool, PoolOptions};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A pool with the log intent, closed while entries of it are unsynced.
fn bench_with_log() -> Bench {
    let bench = Bench::new();
    bench.make_volume();
    bench.run_ok(&["log", "create", "pool", "intent"]);
    let pool = Pool::open(&bench.path("pool"), &PoolOptions::default()).unwrap();
    let log = pool.log("intent", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    for (txg, text) in [(1, "obsolete"), (2, "first-entry"), (3, "second-entry"), (3, "third")] {
        log.append(txg, Generation::New, &[text.as_bytes()]).unwrap();
    }
    log.sync(1).unwrap();
    drop(log);
    pool.close().unwrap();
    bench
}

/// The name of an entry, as text output shows it.
fn name(entry: &Value) -> String {
    format!("{}.{}", entry["generation"], entry["id"])
}

/// Flips a bit of the only occurrence of a pattern in the pool, or of a byte `back` bytes before
/// it.
fn damage(bench: &Bench, pattern: &[u8], back: usize) {
    bench.edit("pool", |bytes| {
        let at = bytes.windows(pattern.len()).position(|w| w == pattern).unwrap();
        bytes[at - back] ^= 1;
    });
}

#[test]
fn a_log_is_made_listed_shown_and_removed() {
    let bench = Bench::new();
    bench.make_pool();
    let none = bench.run_ok(&["log", "list", "pool"]);
    assert!(none.stdout.contains("forebay log create pool NAME"), "{}", none.stdout);
    let made = bench.run_ok(&["log", "create", "pool", "intent", "--json"]);
    assert_eq!(json(&made.stdout)["state"], "none");
    bench.run_ok(&["log", "create", "pool", "mine", "--home", "consumer"]);
    let list = json(&bench.run_ok(&["log", "list", "pool", "--json"]).stdout);
    assert_eq!((&list[0]["name"], &list[0]["home"]), (&"intent".into(), &"embedded".into()));
    assert_eq!((&list[1]["name"], &list[1]["home"]), (&"mine".into(), &"consumer".into()));
    let shown = bench.run_ok(&["log", "show", "pool", "intent"]).stdout;
    assert!(shown.contains("state           none"), "{shown}");
    assert_eq!(json(&bench.run_ok(&["log", "show", "pool", "mine", "--json"]).stdout), list[1]);
    bench.run_ok(&["log", "destroy", "pool", "intent"]);
    let removed = bench.run_ok(&["log", "destroy", "pool", "mine", "--discard", "--json"]);
    assert_eq!(json(&removed.stdout)["removed"], "mine");
    assert_eq!(json(&bench.run_ok(&["log", "list", "pool", "--json"]).stdout), json("[]"));
}

#[test]
fn what_a_log_holds_is_told_and_kept() {
    let bench = bench_with_log();
    let before = std::fs::read(bench.path("pool")).unwrap();
    let list = bench.run_ok(&["log", "list", "pool"]).stdout;
    assert!(list.contains("to be claimed"), "{list}");
    let status = bench.run_ok(&["status", "pool"]).stdout;
    assert!(status.contains("intent") && status.contains("to be claimed"), "{status}");
    let dump = bench.run_ok(&["log", "dump", "pool", "intent", "--data"]).stdout;
    let lines: Vec<&str> = dump.lines().collect();
    assert_eq!(lines.len(), 4, "{dump}");
    assert!(lines[0].contains("obsolete  data ok  intent"), "{dump}");
    assert!(lines[1].contains("txg      2       11 bytes"), "{dump}");
    let entries = json(&bench.run_ok(&["log", "dump", "pool", "intent", "--json"]).stdout);
    assert_eq!((&entries[3]["txg"], &entries[3]["bytes"]), (&3.into(), &5.into()));
    assert!(lines[3].contains(&name(&entries[3])), "{dump}");
    // `dump entries` takes the chunk for a log's, not for a volume's.
    let chunk = entries[0]["chunk"].to_string();
    let by_chunk = bench.run_ok(&["dump", "entries", "pool", &chunk, "--data"]).stdout;
    assert!(!by_chunk.is_empty() && by_chunk.lines().all(|line| dump.contains(line)), "{by_chunk}");
    let chunks = bench.run_ok(&["dump", "chunks", "pool", "--used"]).stdout;
    assert!(chunks.contains("log intent"), "{chunks}");
    let dry = bench.run_ok(&["log", "replay", "--dry-run", "pool", "intent"]).stdout;
    assert_eq!(dry, "log intent: a replay would be complete: 3 entries; 1 obsolete\n");
    bench.run_ok(&["check", "pool"]);
    assert!(std::fs::read(bench.path("pool")).unwrap() == before);
    let kept = bench.run(&["log", "destroy", "pool", "intent"]);
    assert_eq!(kept.code, Some(12), "{}", kept.stderr);
    assert!(kept.stderr.contains("--discard"), "{}", kept.stderr);
    // All entries can still be replayed, and a dry run continues after the end of an interrupted
    // replay.
    let pool = Pool::open(&bench.path("pool"), &PoolOptions::default()).unwrap();
    let log = pool.log("intent", &LogOptions::default()).unwrap();
    let mut claimed = log.claim().unwrap();
    let mut n = 0;
    let report = claimed.replay(|_, _| {
        n += 1;
        if n == 1 {
            Effect::Durable
        } else {
            Effect::Stop
        }
    });
    assert_eq!(report.unwrap().left, 2);
    drop((claimed, log));
    pool.close().unwrap();
    let dry =
        json(&bench.run_ok(&["log", "replay", "--dry-run", "pool", "intent", "--json"]).stdout);
    assert_eq!((&dry["replay"]["replayed"], &dry["ok"]), (&2.into(), &true.into()));
    bench.run_ok(&["log", "destroy", "pool", "intent", "--discard"]);
    bench.run_ok(&["check", "pool"]);
}

#[test]
fn lost_entries_fail_the_check_and_the_dry_run() {
    for (back, damaged, told) in [(0, 1, "1 damaged, first entry "), (64, 0, "MISSING")] {
        let bench = bench_with_log();
        let entries = json(&bench.run_ok(&["log", "dump", "pool", "intent", "--json"]).stdout);
        let witness = format!("one before entry {} (txg 3)", name(&entries[3]));
        damage(&bench, b"second-entry", back);
        let dry = bench.run(&["log", "replay", "--dry-run", "pool", "intent"]);
        assert_eq!(dry.code, Some(11), "{}{}", dry.stdout, dry.stderr);
        assert!(dry.stdout.contains("INCOMPLETE after 1 entries"), "{}", dry.stdout);
        assert!(dry.stdout.contains(&witness), "{}", dry.stdout);
        assert!(dry.stdout.contains(told), "{}", dry.stdout);
        let check = bench.run(&["check", "pool"]);
        assert_eq!(check.code, Some(11), "{}{}", check.stdout, check.stderr);
        assert!(check.stdout.contains("log intent: "), "{}", check.stdout);
        let report = json(&bench.run(&["check", "pool", "--json"]).stdout);
        assert_eq!(
            (&report["ok"], &report["logs"][0]["damaged"]),
            (&false.into(), &damaged.into())
        );
        let list = bench.run_ok(&["log", "list", "pool"]).stdout;
        assert_eq!(list.contains("1 entries MISSING"), damaged == 0, "{list}");
    }
}

#[test]
fn what_is_refused_names_why() {
    let bench = bench_with_log();
    let refused = |words: &[&str], code: i32, why: &str| {
        let before = std::fs::read(bench.path("pool")).unwrap();
        let out = bench.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {}{}", out.stdout, out.stderr);
        assert!(out.stderr.contains(why), "{words:?}: {}", out.stderr);
        (before, std::fs::read(bench.path("pool")).unwrap())
    };
    refused(&["log", "create", "pool", "intent"], 2, "of this name exists");
    refused(&["log", "create", "pool", "v"], 2, "of this name exists");
    refused(&["log", "create", "pool", "."], 2, "1 to 63 characters");
    refused(&["log", "create", "pool", "x", "--home", "attic"], 2, "use embedded or consumer");
    refused(&["log", "destroy", "pool", "v"], 3, "is a volume, not a log");
    refused(&["log", "dump", "pool", "v"], 3, "is a volume, not a log");
    refused(&["log", "show", "pool", "v"], 3, "not in pool");
    refused(&["log", "destroy", "pool", "x"], 3, "it has intent");
    refused(&["volume", "remove", "pool", "intent", "--discard"], 3, "is a log, not a volume");
    refused(&["drain", "pool", "intent"], 3, "is a log, not a volume");
    refused(&["dump", "block", "pool", "intent", "0"], 3, "is a log, not a volume");
    bench.write("other", &[0; 4096]);
    refused(&["volume", "add", "pool", "intent", "other"], 2, "of this name exists");
    let (before, after) = refused(&["log", "replay", "pool", "intent"], 2, "--dry-run");
    assert!(before == after);
    bench.run_ok(&["log", "create", "pool", "mine", "--home", "consumer"]);
    refused(&["log", "replay", "--dry-run", "pool", "mine"], 2, "is with the consumer");
    let json_error = bench.run(&["log", "show", "pool", "x", "--json"]);
    assert_eq!(json(&json_error.stdout)["error"]["exit_code"], 3);
}

/// `forebay replay` says that the tree lacks nothing only if it could read the log.
#[test]
fn a_log_that_cannot_be_read_is_not_one_that_holds_nothing() {
    type Row = (&'static str, fn(&Bench), i32, &'static [&'static str]);
    let zero_chunk: fn(&Bench) = |bench| {
        bench.edit("pool", |bytes| {
            let entry = b"first-entry";
            let at = bytes.windows(entry.len()).position(|w| w == entry).unwrap();
            let chunk = at / (64 << 10) * (64 << 10);
            bytes[chunk..at + 1].fill(0);
        });
    };
    let damage_record: fn(&Bench) = |bench| {
        bench.edit("pool", |bytes| [8704, 8960].iter().for_each(|at| bytes[at + 40] ^= 1));
    };
    let rows: [Row; 3] = [
        ("typo", |_| (), 3, &["log typo: not in pool pool; it has intent"]),
        ("intent", damage_record, 5, &["no log intent can be read, but both copies of record #1"]),
        ("intent", zero_chunk, 11, &["chunks of it may be LOST", "(--accept=lost-entries)"]),
    ];
    for (log, damage, code, says) in rows {
        let bench = bench_with_log();
        std::fs::create_dir(bench.path("tree")).unwrap();
        damage(&bench);
        for dry in [true, false] {
            let mut words = vec!["replay", "pool", "tree", "--log", log];
            words.extend(dry.then_some("--dry-run"));
            let out = bench.run(&words);
            assert_eq!(out.code, Some(code), "{words:?}: {}{}", out.stdout, out.stderr);
            for says in says {
                assert!(out.stderr.contains(says), "{words:?}: {}{}", out.stdout, out.stderr);
            }
            assert!(!out.stdout.contains("the tree lacks"), "{words:?}: {}", out.stdout);
        }
        // The result does not depend on other remarks about the log's state.
        let listed = bench.run(&["log", "list", "pool"]);
        let (table, told) = (listed.stdout, listed.stderr);
        assert_eq!(table.contains("chunks of it may be LOST"), code == 11, "{table}");
        let damaged = told.contains("record #1 are damaged, which may be a log's");
        assert_eq!(damaged, code == 5, "{told}");
    }
}
