// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the command lists pages that a crash has left in a map, writes them back, copies them
//! elsewhere or gives them up, and reports the result for each file.  No damage of the share
//! crashes a command.  Method: the library makes the state after a crash.

use std::os::unix::net::UnixStream;
use std::path::Path;

use forebay_map::{wire, Cache, Options, ServedStore, PAGE};
use serde_json::Value;

mod common;
use common::maps::{crashed, make_map, SIZE};
use common::nbd::Served;
use common::Bench;

fn a_pool() -> Bench {
    let bench = Bench::new();
    make_map(&bench);
    bench
}

fn is_home(path: &Path) -> bool {
    let content = std::fs::read(path).unwrap();
    content[PAGE..2 * PAGE].iter().all(|&b| b == 7) && content[..PAGE].iter().all(|&b| b == 0)
}

fn json(bench: &Bench, words: &[&str]) -> (Option<i32>, Value) {
    let words: Vec<_> = words.iter().copied().chain(["--json"]).collect();
    let out = bench.run(&words);
    (out.code, serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}")))
}

#[test]
fn pages_are_listed_and_brought_home() {
    let bench = a_pool();
    let none = bench.run(&["map", "list", "pool"]);
    assert!(none.stdout.contains("nothing to recover"), "{none:?}");
    let file = crashed(&bench, "data");
    let shown = file.display().to_string();

    let listed = bench.run(&["map", "list", "pool"]);
    assert!(listed.stdout.contains(&shown) && listed.stdout.contains("4 KiB"), "{listed:?}");
    assert!(listed.stdout.contains("1 of 16"), "{listed:?}");
    let (code, list) = json(&bench, &["map", "list", "pool"]);
    assert_eq!((code, &list[0]["map"]["name"]), (Some(0), &"db".into()));
    assert_eq!(list[0]["files"][0]["dirty_pages"], 1, "{list}");
    let told = bench.run(&["origin", "status", "data"]);
    assert_eq!(told.code, Some(14), "{told:?}");
    assert!(told.stdout.contains("of map db") && told.stdout.contains("forebay map recover"));
    assert_eq!(bench.run(&["check", "pool"]).code, Some(0));
    let (_, status) = json(&bench, &["status", "pool"]);
    assert_eq!(status["maps"][0]["name"], "db", "{status}");
    let busy = bench.run(&["map", "remove", "pool", "db"]);
    assert!(busy.code == Some(12) && busy.stderr.contains("forebay map recover"), "{busy:?}");

    let trial = bench.run(&["map", "recover", "pool", "--dry-run"]);
    assert!(trial.code == Some(0) && trial.stdout.contains("would write back 4 KiB"), "{trial:?}");
    assert!(!is_home(&file));
    let other = bench.run(&["map", "recover", "pool", "elsewhere"]);
    assert!(other.code == Some(3) && other.stderr.contains("map list"), "{other:?}");
    let (code, done) = json(&bench, &["map", "recover", "pool", &shown]);
    assert_eq!((code, &done["complete"]), (Some(0), &true.into()));
    assert!(is_home(&file));
    assert_eq!(bench.run(&["origin", "status", "data"]).code, Some(0));
    let removed = bench.run(&["map", "remove", "pool", "db"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    let gone = bench.run(&["map", "remove", "pool", "db"]);
    assert!(gone.code == Some(3) && gone.stderr.contains("forebay map add"), "{gone:?}");
}

#[test]
fn pages_of_a_file_that_is_gone_are_salvaged_and_given_up() {
    let bench = a_pool();
    let (gone, other) = (crashed(&bench, "gone"), crashed(&bench, "other"));
    std::fs::remove_file(&gone).unwrap();
    let shown = gone.display().to_string();
    let done = bench.run(&["map", "recover", "pool"]);
    assert_eq!(done.code, Some(11), "{done:?}");
    assert!(
        done.stdout.contains(&format!("{shown}: 1 pages stay: it does not exist any more")),
        "{done:?}"
    );
    assert!(done.stderr.contains("forebay map salvage pool"), "{done:?}");
    assert!(is_home(&other));

    let (code, saved) = json(&bench, &["map", "salvage", "pool", "--to", "saved"]);
    assert_eq!((code, &saved[0]["pages"]), (Some(0), &1.into()));
    assert!(is_home(&bench.path(saved[0]["data"].as_str().unwrap())));
    let again = bench.run(&["map", "salvage", "pool", "--to", "saved"]);
    assert!(again.code != Some(0) && again.stderr.contains("create"), "{again:?}");
    let unsaid = bench.run(&["map", "drop", "pool", &shown]);
    assert_eq!(unsaid.code, Some(2), "{unsaid:?}");
    let dropped = bench.run(&["map", "drop", "pool", &shown, "--discard"]);
    assert!(dropped.code == Some(0) && dropped.stdout.contains("1 pages"), "{dropped:?}");
    assert_eq!(bench.run(&["map", "recover", "pool"]).code, Some(0));
}

#[test]
fn a_file_that_others_changed_is_written_by_order_alone() {
    let bench = a_pool();
    let file = crashed(&bench, "data");
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.edit("data", |bytes| bytes[2 * PAGE] = 1);
    let done = bench.run(&["map", "recover", "pool"]);
    assert!(done.code == Some(11) && done.stdout.contains("changed by others"), "{done:?}");
    assert!(!is_home(&file));
    let done = bench.run(&["map", "recover", "pool", "--accept"]);
    assert!(done.code == Some(0) && is_home(&file), "{done:?}");
}

/// For a pool that nobody serves, status reports the content of its maps, and a drain is not
/// complete before they are empty.
#[test]
fn a_pool_that_nobody_serves_tells_what_files_lack() {
    let bench = a_pool();
    let (home, gone) = (crashed(&bench, "home"), crashed(&bench, "gone"));
    std::fs::remove_file(&gone).unwrap();
    let shown = gone.display().to_string();
    let status = bench.run_ok(&["status", "pool"]).stdout;
    for what in ["2 of 5 frames used, 2 pages dirty, 2 files", "forebay map recover pool"] {
        assert!(status.contains(what), "{what}: {status}");
    }
    let (_, status) = json(&bench, &["status", "pool"]);
    let service = &status["services"][0];
    assert_eq!(
        (&service["kind"], &service["details"]["maps"][0]["dirty_pages"]),
        (&"map".into(), &2.into())
    );
    bench.run_ok(&["exporter", "pool", "--textfile", "metrics.prom"]);
    let metrics = std::fs::read_to_string(bench.path("metrics.prom")).unwrap();
    assert!(
        metrics.contains("\nforebay_map_dirty_bytes{") && metrics.contains("} 8192\n"),
        "{metrics}"
    );

    let drained = bench.run(&["drain", "pool"]);
    assert_eq!(drained.code, Some(14), "{drained:?}");
    assert!(drained.stdout.contains("map db: 4 KiB written back") && is_home(&home), "{drained:?}");
    assert!(drained.stderr.contains(&format!("{shown}: NOT drained: 1 pages stay")), "{drained:?}");
    let (code, drained) = json(&bench, &["drain", "pool"]);
    assert_eq!((code, &drained["complete"]), (Some(14), &false.into()), "{drained}");
    assert_eq!(drained["maps"][0]["file"], shown, "{drained}");
    bench.run_ok(&["map", "drop", "pool", &shown, "--discard"]);
    let drained = bench.run_ok(&["drain", "pool"]);
    assert!(drained.stdout.contains("nothing left to drain"), "{drained:?}");
}

#[test]
fn what_a_pool_has_no_room_for_is_refused() {
    let bench = a_pool();
    bench.run_ok(&["create", "none", "--size", "24M"]);
    let added = bench.run(&["map", "add", "none", "db"]);
    assert!(added.code == Some(2) && added.stderr.contains("create --maps"), "{added:?}");
    for words in [["map", "list", "none"], ["map", "status", "none"], ["map", "recover", "none"]] {
        assert!(bench.run_ok(&words).stdout.contains("no maps; make one"), "{words:?}");
    }
    let more = bench.run(&["map", "add", "pool", "more", "--size", "4M"]);
    assert!(more.code == Some(8) && more.stderr.contains("--maps"), "{more:?}");
    let same = bench.run(&["map", "add", "pool", "db", "--size", "4M"]);
    assert!(same.code == Some(2) && same.stderr.contains("another name"), "{same:?}");
    let odd = bench.run(&["create", "odd", "--size", "24M", "--maps", "3M"]);
    assert!(odd.code == Some(2) && odd.stderr.contains("a multiple of 2 MiB"), "{odd:?}");
    let small = bench.run(&["create", "small", "--size", "24M", "--maps", "24M"]);
    assert!(small.code == Some(2) && small.stderr.contains("make it larger"), "{small:?}");
}

/// Each command reports the damage or is not concerned by it, and ends with the right code.
#[test]
fn a_damaged_share_is_told() {
    let bench = a_pool();
    crashed(&bench, "data");
    let pool = std::fs::read(bench.path("pool")).unwrap();
    let at = |what: &[u8]| -> Vec<usize> {
        (0..pool.len()).step_by(64).filter(|&at| &pool[at..at + 4] == what).collect()
    };
    let (records, lines) = (at(b"FOMF"), at(b"FOMD"));
    assert!(records.len() >= 2 && lines.len() >= 2);
    let mut random = 1u64;
    let mut told = 0;
    for round in 0..24 {
        bench.edit("pool", |bytes| {
            bytes.copy_from_slice(&pool);
            for _ in 0..1 + round % 4 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let n = (random >> 33) as usize;
                match round % 3 {
                    // Damages both copies of a record.
                    0 => records[..2].iter().for_each(|&at| bytes[at + 8 + n % 500] ^= 1),
                    // Damages lines and words of the frames.
                    1 => lines.iter().for_each(|&at| bytes[at + n % 256] ^= 1 << (n % 8)),
                    _ => {
                        let at = lines[n % lines.len()] & !4095;
                        bytes[at + 256..at + 512].fill(n as u8);
                    }
                }
            }
        });
        for words in [
            &["map", "list", "pool"][..],
            &["map", "list", "pool", "--json"],
            &["check", "pool"],
            &["status", "pool"],
            &["map", "recover", "pool", "--dry-run"],
            &["map", "recover", "pool"],
        ] {
            let out = bench.run(words);
            let known = [0, 3, 5, 6, 8, 11];
            assert!(
                out.code.is_some_and(|code| known.contains(&code)),
                "{round} {words:?}: {out:?}"
            );
            told += usize::from(words[0] == "check" && out.code != Some(0));
        }
        std::fs::write(bench.path("data"), vec![0; SIZE]).unwrap();
    }
    assert!(told > 8, "check has found {told} of 24");
}

/// `forebay serve` reports the recovery itself, and the commands get it through the control socket.
#[test]
fn a_server_brings_pages_home_and_takes_orders() {
    let bench = a_pool();
    let (home, gone) = (crashed(&bench, "home"), crashed(&bench, "gone"));
    std::fs::remove_file(&gone).unwrap();
    let shown = gone.display().to_string();
    let log = bench.path("log");
    let mut command = Served::command(&bench, "pool");
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut served = Served::ready(&bench, command).expect("a pool with a map alone is served");
    assert!(is_home(&home));
    let said = std::fs::read_to_string(&log).unwrap();
    for what in [
        &*shown,
        "1 pages stay in the pool: it does not exist any more",
        "forebay map salvage pool",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }

    let (_, status) = json(&bench, &["status", "pool"]);
    let service = &status["services"][0];
    assert_eq!(
        (&service["kind"], &service["details"]["maps"][0]["frames_used"]),
        (&"map".into(), &1.into())
    );
    assert!(service["trouble"][0].as_str().unwrap().contains(&shown), "{service}");
    let text = bench.run_ok(&["status", "pool"]).stdout;
    assert!(text.contains("1 of 5 frames used, 1 pages dirty, 1 files"), "{text}");
    let (code, full) = json(&bench, &["map", "status", "pool"]);
    assert_eq!((code, &full[0]["dirty_pages"], &full[0]["files"]), (Some(0), &1.into(), &1.into()));

    let by_server = bench.run_ok(&["map", "list", "pool"]).stdout;
    let (code, list) = json(&bench, &["map", "list", "pool"]);
    assert_eq!((code, &list[0]["files"][0]["file"]), (Some(0), &shown.clone().into()));
    let drained = bench.run(&["drain", "pool"]);
    let told =
        format!("{shown}: NOT drained: 1 pages stay in the pool: it does not exist any more");
    assert!(drained.code == Some(14) && drained.stderr.contains(&told), "{drained:?}");
    let trial = bench.run(&["map", "recover", "pool", "--dry-run"]);
    assert!(trial.code == Some(11) && trial.stdout.contains("1 pages stay"), "{trial:?}");
    let missing = bench.run(&["map", "recover", "pool", "elsewhere"]);
    assert!(missing.code == Some(3) && missing.stderr.contains("map list"), "{missing:?}");
    let (code, saved) = json(&bench, &["map", "salvage", "pool", "--to", "saved"]);
    assert_eq!((code, &saved[0]["pages"]), (Some(0), &1.into()));
    assert!(is_home(&bench.path(saved[0]["data"].as_str().unwrap())));
    let removed = bench.run(&["map", "remove", "pool", "db"]);
    assert_eq!(removed.code, Some(4), "{removed:?}");
    assert_eq!(served.stop(), Some(0));
    assert_eq!(bench.run_ok(&["map", "list", "pool"]).stdout, by_server);

    let served = Served::start(&bench, &["--read-only"]);
    let refused = bench.run(&["map", "drop", "pool", &shown, "--discard"]);
    assert!(refused.code == Some(9) && refused.stderr.contains("read-only"), "{refused:?}");
    assert_eq!(bench.run(&["map", "recover", "pool"]).code, Some(9));
    assert_eq!(bench.run_ok(&["map", "list", "pool"]).stdout, by_server);
    drop(served);

    let mut served = Served::start(&bench, &[]);
    let dropped = bench.run(&["map", "drop", "pool", &shown, "--discard"]);
    assert!(dropped.code == Some(0) && dropped.stdout.contains("1 pages given up"), "{dropped:?}");
    assert_eq!(bench.run(&["map", "recover", "pool"]).code, Some(0));
    let (_, status) = json(&bench, &["status", "pool"]);
    assert_eq!(status["services"][0]["trouble"], Value::Array(Vec::new()));
    assert_eq!(served.stop(), Some(0));
}

/// After the pool is deleted nobody can say that pages stay in it.
#[test]
fn pages_that_go_with_a_deleted_pool_are_lost() {
    for given_up in [true, false] {
        let bench = a_pool();
        let gone = crashed(&bench, "gone");
        std::fs::remove_file(&gone).unwrap();
        let log = bench.path("log");
        let mut command = Served::command(&bench, "pool");
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut served = Served::ready(&bench, command).unwrap();
        if given_up {
            bench.run_ok(&["map", "drop", "pool", &gone.display().to_string(), "--discard"]);
        }
        std::fs::remove_file(bench.path("pool")).unwrap();
        assert_eq!(served.stop(), Some(if given_up { 0 } else { 11 }));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(said.contains("4096 bytes of mapped files"), !given_up, "{said}");
    }
}

/// While a process maps a file of a served pool, the commands leave it alone, and say so.
#[test]
fn what_a_process_has_mapped_is_named_and_left_alone() {
    let bench = a_pool();
    let mut served = Served::start(&bench, &[]);
    let file = bench.path("data");
    std::fs::write(&file, vec![0; SIZE]).unwrap();
    let shown = file.display().to_string();
    let uuid = forebay::inspect(&bench.path("pool")).unwrap().superblock.unwrap().uuid;
    let socket = wire::socket_path(&bench.path("run"), uuid);
    let store = ServedStore::over(UnixStream::connect(socket).unwrap(), None, None).unwrap();
    let options = Options { by_hand: true, ..Options::default() };
    let cache = Cache::new(std::sync::Arc::new(store), options).unwrap();
    let mapped = cache.open(&file, 0).unwrap();
    mapped.store(0, b"stored");
    mapped.sync(0, 1).unwrap();

    let (pid, listed) = (std::process::id(), bench.run_ok(&["map", "list", "pool"]).stdout);
    assert!(listed.contains(&format!("mapped by process {pid}")), "{listed}");
    assert!(listed.contains("in use"), "{listed}");
    let (_, status) = json(&bench, &["status", "pool"]);
    let service = &status["services"][0];
    assert_eq!(service["details"]["maps"][0]["processes"][0], pid, "{service}");
    assert_eq!(service["trouble"], Value::Array(Vec::new()));
    let dropped = bench.run(&["map", "drop", "pool", &shown, "--discard"]);
    assert!(dropped.code == Some(4) && dropped.stderr.contains("mapped"), "{dropped:?}");
    assert_eq!(bench.run(&["map", "recover", "pool"]).code, Some(14));
    let named = bench.run(&["map", "recover", "pool", &shown]);
    let told = format!("{shown}: is not touched: mapped by process {pid}");
    assert!(named.code == Some(14) && named.stderr.contains(&told), "{named:?}");
    let (_, full) = json(&bench, &["map", "status", "pool"]);
    let held = &full[0]["held_by"][0];
    assert_eq!((&held["process"], &held["frames"]), (&pid.into(), &1.into()), "{full}");
    assert_eq!((&held["files"], &held["dirty_pages"]), (&1.into(), &1.into()), "{full}");
    let text = bench.run_ok(&["map", "status", "pool"]).stdout;
    let command = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert!(text.contains(&format!("{pid} ")) && text.contains(command.trim()), "{text}");
    let drained = bench.run(&["drain", "pool"]);
    let told =
        format!("{shown}: NOT drained: 1 pages stay in the pool: process {pid} has it mapped");
    assert!(drained.code == Some(14) && drained.stderr.contains(&told), "{drained:?}");
    assert!(mapped.is_dirty().unwrap(), "it is this process's to write back");
    mapped.write_back().unwrap();
    assert_eq!(bench.run(&["drain", "pool"]).code, Some(0));
    mapped.close().unwrap();
    assert!(std::fs::read(&file).unwrap().starts_with(b"stored"));
    assert!(bench.run_ok(&["map", "list", "pool"]).stdout.contains("nothing to recover"));
    drop(cache);
    assert_eq!(served.stop(), Some(0));
}
