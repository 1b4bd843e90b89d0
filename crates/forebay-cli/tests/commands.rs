// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: each subcommand does what its help says, in text and in JSON.
//! Method: a small pool, the command, and what it prints.

mod common;

use std::fs;

use common::nbd::Served;
use common::Bench;
use forebay::{NewVolume, Pool, PoolOptions};
use serde_json::Value;

fn json(b: &Bench, words: &[&str]) -> Value {
    let out = b.run_ok(&[words, &["--json"]].concat());
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", out.stdout))
}

/// Every subcommand, by its words.
const ALL: &[&str] = &[
    "create",
    "log list",
    "log create",
    "log show",
    "log dump",
    "log replay",
    "log destroy",
    "volume add",
    "volume list",
    "volume remove",
    "map-run",
    "serve",
    "mount",
    "umount",
    "replay",
    "unmark",
    "origin status",
    "origin accept-loss",
    "origin accept-host",
    "attach",
    "detach",
    "list",
    "status",
    "top",
    "set",
    "exporter",
    "media-info",
    "media-test",
    "check",
    "dump superblock",
    "dump volumes",
    "dump chunks",
    "dump entries",
    "dump block",
    "drain",
    "bench engine",
    "bench recovery",
    "bench read",
    "bench static",
    "demo",
    "completions",
    "man",
];

/// Run by Forebay itself.
const INTERNAL: [&str; 2] = ["demo-writer", "systemd-generator"];

/// The defaults in the help are those of a pool that is made and served without options.  A low
/// watermark that is not given follows the high one.
#[test]
fn defaults_are_those_that_help_names() {
    let b = Bench::new();
    b.make_volume();
    let default = |command: &str, option: &str| {
        let help = b.run_ok(&[command, "--help"]).stdout;
        let words: Vec<_> = help.split_whitespace().collect();
        let of_it = words.iter().position(|w| *w == option).unwrap();
        let at = words[of_it..].iter().position(|w| *w == "[default:").unwrap();
        words[of_it + at + 1].trim_end_matches(']').to_string()
    };
    let options = |words: &[&str]| {
        let mut served = Served::start(&b, words);
        let json = b.run_ok(&["set", "pool", "--json"]).stdout;
        assert_eq!(served.stop(), Some(0));
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let all = options(&[]);
    let o = &all["options"];
    let high: u64 = default("serve", "--high-watermark").parse().unwrap();
    let gap: u64 = default("serve", "--low-watermark").parse().unwrap();
    assert_eq!(
        (&o["high_watermark_percent"], &o["low_watermark_percent"]),
        (&high.into(), &(high - gap).into())
    );
    assert_eq!(o["verify"], default("serve", "--verify"));
    assert_eq!(o["checksums"].to_string(), default("serve", "--checksums"));
    assert_eq!((default("serve", "--max-age"), &o["max_age_seconds"]), ("none".into(), &().into()));
    assert_eq!((default("serve", "--idle"), &o["idle_seconds"]), ("none".into(), &().into()));
    let volume = &all["volumes"][0];
    assert_eq!(volume["mode"], default("serve", "--mode"));
    assert_eq!(volume["when_full"], default("serve", "--when-full"));
    assert_eq!(
        (default("serve", "--bypass-limit"), &volume["bypass_limit_bytes"]),
        ("0".into(), &().into())
    );

    let low = options(&["--high-watermark", "40", "--max-age", "none"]);
    assert_eq!(low["options"]["low_watermark_percent"], 40 - gap);
    assert!(low["options"]["max_age_seconds"].is_null());
    let kernel = include_str!("../../../docs/manual/kernel.md");
    assert!(kernel.contains(&format!("destage starts ({high}) and stops ({gap} less)")));

    let made = b.run_ok(&["create", "made", "--size", "16M", "--json"]).stdout;
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["max_volumes"].to_string(), default("create", "--volumes"));
    let chunk = format!("{}M", made["chunk_size_bytes"].as_u64().unwrap() >> 20);
    assert_eq!(chunk, default("create", "--chunk-size"));
}

#[test]
fn help_has_examples_and_exit_codes() {
    let b = Bench::new();
    for command in ALL {
        let mut words: Vec<_> = command.split(' ').collect();
        words.push("--help");
        let help = b.run_ok(&words).stdout;
        assert!(help.contains("Examples:\n  forebay "), "{command}: {help}");
        let example = format!("forebay {command}");
        assert!(help.contains(&example), "{command}: no example of itself");
        assert!(help.contains("Exit codes"), "{command}: {help}");
    }
    let help = b.run_ok(&["--help"]).stdout;
    for (i, (code, meaning)) in forebay::EXIT_CODES.iter().enumerate() {
        assert_eq!(i, usize::from(*code));
        assert!(help.contains(&format!("\n {code:2}  {meaning}\n")), "exit code {code}");
    }
    for word in INTERNAL {
        assert!(!help.contains(word), "{help}");
        assert_eq!(b.run(&[word]).code, Some(2), "{word} is gone");
    }
}

#[test]
fn a_pool_from_creation_to_drain() {
    let b = Bench::new();
    let made = json(&b, &["create", "pool", "--size", "16M"]);
    assert_eq!(made["chunks"], 7);
    assert!(made["uuid"].is_string());
    b.write("origin", &[0; 1 << 20]);
    let add = ["volume", "add", "pool", "v", "origin", "--block-size", "4096"];
    assert_eq!(json(&b, &add)["block_size"], 4096);
    b.write_to_volume(8192, &[5; 4096]);
    b.write_to_volume(8192, &[6; 4096]);

    let list = json(&b, &["volume", "list", "pool"]);
    assert_eq!(list[0]["name"], "v");
    assert_eq!(list[0]["pages"], 1);
    assert!(b.run_ok(&["volume", "list", "pool"]).stdout.contains("4 KiB"));

    let status = json(&b, &["status", "pool"]);
    assert_eq!(status["pages_cached"], 1);
    assert_eq!(status["uuid"], made["uuid"]);
    assert_eq!(status["volumes"][0]["name"], "v");
    let text = b.run_ok(&["status", "pool"]).stdout;
    assert!(text.contains("survives a process, not a power cut"), "{text}");

    assert_eq!(json(&b, &["check", "pool"])["ok"], true);
    assert!(b.run_ok(&["check", "pool"]).stdout.contains("no errors"));

    let drained = json(&b, &["drain", "pool"]);
    assert_eq!(drained["drained"]["v"]["pages_left"], 0);
    assert_eq!(fs::read(b.path("origin")).unwrap()[8192..12288], [6; 4096]);
    assert_eq!(json(&b, &["status", "pool"])["volumes"][0]["pages"], 0);
    let removed = json(&b, &["volume", "remove", "pool", "v"]);
    assert_eq!(removed["removed"], "v");
    assert_eq!(json(&b, &["volume", "list", "pool"]), Value::Array(vec![]));
}

/// A pool refuses one volume more than it can hold.
#[test]
fn the_65th_volume_is_told_the_limit_and_the_way_out() {
    let b = Bench::new();
    let refused = |limit: u32, words: &[&str]| {
        b.run_ok(&[&["create", "pool", "--size", "4M", "--chunk-size", "64K"], words].concat());
        for n in 0..=limit {
            b.write(&format!("origin{n}"), &[0; 4096]);
        }
        let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
        for n in 0..limit {
            let (name, origin) = (format!("v{n}"), b.path(&format!("origin{n}")));
            pool.volume_add(&NewVolume { name, origin, ..Default::default() }).unwrap();
        }
        pool.close().unwrap();
        let out = b.run(&["volume", "add", "pool", "more", &format!("origin{limit}")]);
        fs::remove_file(b.path("pool")).unwrap();
        assert_eq!(out.code, Some(8), "{out:?}");
        out.stderr
    };
    let told = refused(64, &[]);
    assert!(told.contains("the pool has 64 volumes and logs, and none can have more"), "{told}");
    assert!(told.contains("put it into another pool"), "{told}");
    let told = refused(3, &["--volumes", "3"]);
    assert!(told.contains("the pool was made for 3 volumes and logs, and has them"), "{told}");
    assert!(told.contains("forebay create --volumes, up to 64"), "{told}");
}

#[test]
fn dump_finds_every_version_of_a_block() {
    let b = Bench::new();
    b.make_volume();
    // All three versions are in one open chunk, which is not reused, so they stay readable.
    b.write_all_to_volume(&[(4096, &[1; 4096]), (4096, &[2; 4096]), (4096, &[3; 4096])]);
    let superblock = json(&b, &["dump", "superblock", "pool"]);
    assert_eq!(superblock["clean"], true);
    assert_eq!(superblock["chunk_size_bytes"], 2 << 20);
    assert_eq!(json(&b, &["dump", "volumes", "pool"])[0]["name"], "v");

    let history = json(&b, &["dump", "block", "pool", "v", "1"]);
    let entries = history["entries"].as_array().unwrap();
    let linked: Vec<_> = entries.iter().map(|e| e["linked"] == true).collect();
    assert_eq!(linked, [false, false, true], "{history}");
    let seqs: Vec<_> = entries.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted(), "{seqs:?}");

    let used = json(&b, &["dump", "chunks", "pool", "--used"]);
    let all = json(&b, &["dump", "chunks", "pool"]);
    assert_eq!(all.as_array().unwrap().len(), 7);
    assert!(used.as_array().unwrap().len() < 7);
    let chunk = entries[2]["chunk"].to_string();
    let in_chunk = json(&b, &["dump", "entries", "pool", &chunk, "--data"]);
    let newest = in_chunk.as_array().unwrap().iter().find(|e| e["linked"] == true);
    assert_eq!(newest.unwrap()["data_ok"], true);
    let text = b.run_ok(&["dump", "block", "pool", "v", "1"]).stdout;
    assert_eq!(text.matches("superseded").count(), 2, "{text}");
}

#[test]
fn status_watches_until_it_is_told_to_stop() {
    let b = Bench::new();
    b.make_volume();
    let mut command = b.command(&["status", "pool", "--watch=10ms", "--json"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(stdout);
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        let status: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(status["volumes"][0]["name"], "v");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let rest = std::thread::spawn(move || lines.count());
    assert!(child.wait().unwrap().success());
    rest.join().unwrap();
}

#[test]
fn completions_know_every_subcommand() {
    let b = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = b.run_ok(&["completions", shell]).stdout;
        for word in ALL.iter().flat_map(|c| c.split(' ')) {
            assert!(script.contains(word), "{shell}: {word}");
        }
        for word in INTERNAL {
            assert!(!script.contains(word), "{shell} offers {word}");
        }
    }
}

#[test]
fn each_subcommand_has_a_man_page() {
    let b = Bench::new();
    b.run_ok(&["man", "man1"]);
    for command in ALL {
        let name = format!("man1/forebay-{}.1", command.replace(' ', "-"));
        let page = fs::read_to_string(b.path(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".SH OPTIONS"), "{name}");
    }
    let page = fs::read_to_string(b.path("man1/forebay.1")).unwrap();
    assert!(page.contains("Exit codes"), "{page}");
    for word in INTERNAL {
        assert!(!page.contains(&word.replace('-', "\\-")), "{page}");
        assert!(!b.path(&format!("man1/forebay-{word}.1")).exists(), "{word} has a page");
    }
}

/// The text of a synopsis, without typesetter's marks.
fn synopsis(page: &str) -> String {
    let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
    let line = rest.lines().find(|line| !line.starts_with('.')).unwrap();
    line.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-")
}

#[test]
fn a_synopsis_shows_what_options_take() {
    let b = Bench::new();
    b.run_ok(&["man", "man1"]);
    let of = |name: &str| {
        let page = fs::read_to_string(b.path(&format!("man1/{name}.1"))).unwrap();
        synopsis(&page)
    };
    let create = of("forebay-create");
    assert!(create.starts_with("forebay create [--size SIZE] [--chunk-size SIZE] "), "{create}");
    assert!(create.ends_with(" POOL"), "{create}");
    assert!(of("forebay-status").contains(" [--watch[=TIME]]"), "{}", of("forebay-status"));
    assert!(of("forebay-drain").contains(" [--origin NAME=PATH...]"), "{}", of("forebay-drain"));
    assert!(of("forebay-drain").ends_with(" POOL [VOLUMES...]"), "{}", of("forebay-drain"));
    assert!(of("forebay").ends_with(" COMMAND"), "{}", of("forebay"));
}

#[test]
fn benchmarks_print_what_they_measured() {
    let b = Bench::new();
    let small = ["--pool-size", "32M", "--rounds", "1"];
    let engine = json(&b, &[&["bench", "engine", "--threads", "1"], &small[..]].concat());
    for way in ["raw", "floor", "engine"] {
        assert!(engine["threads"][0][way]["ops_per_s"].as_f64().unwrap() > 0.0);
    }
    assert!(engine["dram_bytes_per_page"].as_f64().unwrap() > 0.0);
    let read = json(&b, &[&["bench", "read", "--threads", "1"], &small[..]].concat());
    assert!(read["threads"][0]["hit"]["p50_ns"].as_u64().unwrap() > 0);
    let recovery = json(&b, &[&["bench", "recovery"], &small[..]].concat());
    assert!(recovery["blocks"].as_u64().unwrap() > 0);
    assert!(recovery["pool_bytes_per_s"].as_f64().unwrap() > 0.0);
    let disk = Bench::on_disk();
    let words = ["bench", "ssd", "--dir", ".", "--pool-size", "16M", "--rounds", "1", "--turn"];
    let out = disk.run(&[&words[..], &["100ms", "--threads", "1,16", "--json"]].concat());
    if out.code == Some(10) {
        return forebay_test::skipped!("no place for a pool in groups: {}", out.stderr);
    }
    let ssd: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|_| panic!("{}", out.stderr));
    for (row, threads) in [(0, 1), (1, 16)] {
        let row = &ssd["rows"][row];
        assert_eq!(row["threads"], threads, "{ssd}");
        assert!(row["groups_per_s"].as_f64().unwrap() > 0.0, "{ssd}");
        assert!(row["written_bytes"].as_f64().unwrap() >= 4096.0, "{ssd}");
    }
    // A single append is a write of a header and a page.  Sometimes the array of a closed chunk
    // follows.
    assert!(ssd["rows"][0]["writes"].as_f64().unwrap() >= 1.0, "{ssd}");
    assert_eq!(fs::read_dir(disk.directory()).unwrap().count(), 0, "litter");
}

/// A short run of the whole demo.  The demo verifies itself and reports the result.
#[test]
fn the_demo_loses_nothing() {
    let b = Bench::new();
    // O_DIRECT needs a disk.
    let disk = Bench::on_disk();
    let directory = disk.path("demo");
    let out = b.run_ok(&["demo", "--dir", directory.to_str().unwrap(), "--quick", "--seed", "7"]);
    let text = out.stdout;
    assert!(text.contains("acknowledged writes lost: 0 of "), "{text}");
    assert!(!text.contains("lost: 0 of 0\n"), "{text}");
    assert!(text.contains(" 0 wrong"), "{text}");
    assert!(text.contains("NOT a power"), "{text}");
    let results = fs::read_to_string(directory.join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    assert_eq!(results["safety"]["kills"], 4);
    assert!(results["disk"]["blocks_compared"].as_u64().unwrap() > 0);
    match results["mount"]["commits"].as_u64() {
        Some(commits) => {
            assert!(commits > 0 && results["mount"]["lost"] == 0, "{text}");
            let shown = &results["mount"]["on_disk"]["together_mount_per_s"];
            let why = results["mount"]["on_disk_lacks"].as_str();
            assert!(shown.as_f64().is_some_and(|rate| rate > 0.0) || why.is_some(), "{text}");
        }
        None => assert!(text.contains("not shown: "), "{text}"),
    }
    assert!(fs::read_to_string(directory.join("latency.svg")).unwrap().contains("<svg"));
    assert!(!directory.join("origin-speed.img").exists(), "litter");
}

/// As of a guest that keeps a pool on its disk: made there before the volume, and after it.
#[test]
fn a_pool_inside_a_volume_is_content() {
    let b = Bench::new();
    b.make_pool();
    b.run_ok(&["create", "disk", "--size", "16M"]);
    b.run_ok(&["volume", "add", "pool", "v", "disk", "--accept-pool"]);
    b.write_to_volume(0, &fs::read(b.path("disk")).unwrap()[..8192]);
    b.run_ok(&["drain", "pool"]);
    // By the header, which is the same, and not by what the option has left.
    b.write_to_volume(1 << 20, &[7; 4096]);
    b.run_ok(&["drain", "pool"]);
    let inner = b.run(&["status", "disk"]);
    assert!(inner.code == Some(0), "{inner:?}");
    assert_eq!(fs::read(b.path("disk")).unwrap()[1 << 20..(1 << 20) + 4096], [7; 4096]);
}

/// By either superblock, on each medium, for each kind of volume.
#[test]
fn a_volume_in_front_of_another_pool_is_refused() {
    for (medium, first_lost) in [("memory", false), ("memory", true), ("ssd", false), ("ssd", true)]
    {
        let b = if medium == "ssd" { Bench::on_disk() } else { Bench::new() };
        b.run_ok(&["create", "pool", "--size", "32M", "--static", "4M"]);
        b.run_ok(&["create", "other", "--size", "16M", "--medium", medium]);
        if first_lost {
            b.edit("other", |bytes| bytes[..512].fill(0));
        }
        let before = fs::read(b.path("other")).unwrap();
        let uri = format!("file://{}", b.path("other").display());
        for origin in ["other", &uri] {
            for kind in [&[][..], &["--static", "1M"]] {
                let out = b.run(&[&["volume", "add", "pool", "w", origin][..], kind].concat());
                assert_eq!(out.code, Some(12), "{medium} {origin} {kind:?}: {out:?}");
                for word in ["other: holds a Forebay pool", "nothing was written", "--accept-pool"]
                {
                    assert!(out.stderr.contains(word), "{medium} {origin} {kind:?}: {out:?}");
                }
            }
        }
        assert_eq!(fs::read(b.path("other")).unwrap(), before, "{medium}");
        assert!(b.run_ok(&["volume", "list", "pool"]).stdout.contains("no volumes"));
    }
}
