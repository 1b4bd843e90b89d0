// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a client's behaviour on its own connection affects nobody else, and a server that
//! reports readiness can be reached.  Method: clients that hang up at every moment, and one
//! that verifies what it reads; servers restarted at once after a signal.  `FOREBAY_HANGUPS`
//! and `FOREBAY_RESTARTS` try more.  Servers that are stopped or lose their memory are reported
//! as such.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::nbd::{Client, Served, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use common::Bench;

fn count(variable: &str, short: u32) -> u32 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

fn pool_of_two() -> Bench {
    let bench = Bench::new();
    bench.make_pool();
    for name in ["v", "w"] {
        bench.write(name, &[0; 4 << 20]);
        bench.run_ok(&["volume", "add", "pool", name, name]);
    }
    bench
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Sends many requests, and reads no reply or a few.
fn hang_up(served: &Served, random: &mut Random) {
    let mut client = served.connect("v");
    client.0.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let data = vec![7; 64 << 10];
    for cookie in 0..random.below(64) {
        let offset = random.below(60) << 16;
        let sent = match random.below(8) {
            0 => client.send(WRITE, cookie, offset, &data),
            1 => client.send_raw(0, FLUSH, cookie, 0, 0, &[]),
            2 => client.send_raw(0, TRIM, cookie, offset, 1 << 16, &[]),
            3 => client.send_raw(0, WRITE_ZEROES, cookie, offset, 1 << 16, &[]),
            // The client ends in the middle of a request.
            4 if random.below(8) == 0 => {
                let _ = client.send_raw(0, WRITE, cookie, offset, 1 << 16, &data[..1000]);
                return;
            }
            _ => client.send_raw(0, READ, cookie, offset, 1 << 16, &[]),
        };
        // Nobody reads the replies, so in the end the server takes no more requests.
        if sent.is_err() {
            return;
        }
    }
    if random.below(4) == 0 {
        let _ = client.reply();
    }
}

#[test]
fn a_client_that_hangs_up_is_noticed_by_nobody_else() {
    let bench = pool_of_two();
    let served = Served::start(&bench, &[]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let verified = scope.spawn(|| {
            let mut client = served.connect("w");
            let mut n = 0u64;
            while !ended.load(Ordering::Relaxed) {
                let (offset, data) = ((n * 7 % 512) << 12, vec![n as u8; 8192]);
                assert_eq!(client.write(offset, &data), 0);
                assert_eq!(client.read(offset, data.len()).unwrap(), data);
                n += 1;
            }
            n
        });
        let mut random = Random(7);
        for _ in 0..count("FOREBAY_HANGUPS", 60) {
            hang_up(&served, &mut random);
        }
        ended.store(true, Ordering::Relaxed);
        assert!(verified.join().unwrap() > 0);
    });
    let mut served = served;
    assert_eq!(served.stop(), Some(0));
    assert!(!served.ready_line(), "it was started anew meanwhile");
}

#[test]
fn a_server_that_says_it_is_ready_can_be_reached() {
    let bench = pool_of_two();
    let mut before: Option<Served> = None;
    let mut busy = 0;
    for round in 0..count("FOREBAY_RESTARTS", 20) {
        let signal = if round % 2 == 0 { "-TERM" } else { "-KILL" };
        if let Some(served) = &before {
            served.signal(signal);
        }
        let start = Instant::now();
        let served = loop {
            match Served::try_start(&bench, &[]) {
                Ok(served) => break served,
                Err(code) => assert_eq!(code, 4, "refused, and not because the pool is in use"),
            }
            busy += 1;
            assert!(start.elapsed() < Duration::from_secs(60), "in use for ever");
        };
        // The server before this one must have ended.
        if let Some(mut old) = before.take() {
            old.wait().expect("it was told to end");
        }
        let mut client = Client::connect(&served.socket, "v")
            .unwrap_or_else(|e| panic!("round {round}, after {signal}: {e}"));
        assert_eq!(client.write(0, &[round as u8; 4096]), 0);
        drop(client);
        bench.run_ok(&["status", "pool", "--json"]);
        before = Some(served);
    }
    println!("found in use {busy} times");
}

/// A process that waits for the file would take the server for dead.
#[test]
fn a_server_that_is_refused_leaves_the_ready_file_of_the_one_that_runs() {
    let bench = pool_of_two();
    let ready = bench.path("ready");
    let option = ["--ready-file", ready.to_str().unwrap()];
    let mut first = Served::start(&bench, &option);
    assert!(ready.exists());
    assert_eq!(Served::try_start(&bench, &option).err(), Some(4));
    assert!(ready.exists(), "the second one took it away");
    assert_eq!(first.stop(), Some(0));
    assert!(!ready.exists());
    // A killed server leaves its file, which is no obstacle.
    let mut killed = Served::start(&bench, &option);
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(ready.exists());
    let mut last = Served::start(&bench, &option);
    assert_eq!((last.stop(), ready.exists()), (Some(0), false));
}

/// timeout(1) sends a signal to the process and to its group.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let bench = pool_of_two();
    for _ in 0..10 {
        let mut served = Served::start(&bench, &[]);
        let pid = served.process.id().to_string();
        let kill = format!("kill -INT {pid}; kill -TERM {pid}");
        let killed = std::process::Command::new("bash").args(["-c", &kill]).output().unwrap();
        assert!(killed.stderr.is_empty(), "{killed:?}");
        assert_eq!(served.wait(), Some(0));
        let superblock = bench.run_ok(&["dump", "superblock", "pool", "--json"]);
        assert!(superblock.stdout.contains("\"clean\": true"), "{}", superblock.stdout);
    }
}

/// The server's clients may need all threads that it may have.
#[test]
fn a_server_that_can_start_no_thread_stops_in_order() {
    let bench = pool_of_two();
    std::fs::create_dir(bench.path("run")).unwrap();
    let words = ["serve", "--json", "--socket", "run/nbd", "pool"];
    let private = "chmod 700 run;";
    let mut served = Served::ready(&bench, common::as_a_user(&bench, private, &words)).unwrap();
    let mut limit = std::process::Command::new("prlimit");
    limit.args(["--nproc=1:1", "--pid", &served.process.id().to_string()]);
    assert!(common::of_a_user(&bench, &mut limit).status().unwrap().success());
    assert_eq!(served.stop(), Some(0));
    let superblock = bench.run_ok(&["dump", "superblock", "pool", "--json"]);
    assert!(superblock.stdout.contains("\"clean\": true"), "{}", superblock.stdout);
}

/// Its looks have threads before there is something to see.
#[test]
fn a_server_that_can_start_no_thread_sees_what_happens_to_its_file() {
    let bench = pool_of_two();
    std::fs::create_dir(bench.path("run")).unwrap();
    let words = ["serve", "--json", "--socket", "run/nbd", "pool"];
    let (command, lines) = with_log(common::as_a_user(&bench, "chmod 700 run;", &words));
    let mut served = Served::ready(&bench, command).unwrap();
    let pid = served.process.id();
    let looks = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let name = |thread: std::fs::DirEntry| std::fs::read(thread.path().join("comm"));
        threads.filter_map(|thread| name(thread).ok()).any(|name| name == b"fby-look\n")
    };
    let begun = Instant::now();
    while !looks() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no look begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut limit = std::process::Command::new("prlimit");
    limit.args(["--nproc=1:1", "--pid", &pid.to_string()]);
    assert!(common::of_a_user(&bench, &mut limit).status().unwrap().success());
    std::fs::remove_file(bench.path("pool")).unwrap();
    let told = lines.recv_timeout(Duration::from_secs(60)).expect("nothing was told");
    assert!(told.contains("its file was deleted"), "{told}");
    served.stop();
}

/// Returns the log of a server by line.
fn with_log(mut command: std::process::Command) -> (std::process::Command, Lines) {
    let (reader, writer) = std::io::pipe().unwrap();
    command.stderr(writer);
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(reader).lines().try_for_each(|line| send.send(line.unwrap()))
    });
    (command, lines)
}

type Lines = std::sync::mpsc::Receiver<String>;

/// The server continues with the rest of the pool, and reports the loss in time.
#[test]
fn a_pool_that_is_cut_short_and_an_origin_that_changes_are_told_once() {
    let bench = pool_of_two();
    let (command, lines) = with_log(Served::command(&bench, "pool"));
    let mut served = Served::ready(&bench, command).unwrap();
    assert_eq!(served.connect("v").write(0, &[7; 4096]), 0);
    let next = || lines.recv_timeout(Duration::from_secs(60)).expect("nothing was told");
    std::fs::rename(bench.path("w"), bench.path("moved")).unwrap();
    let told = next();
    assert!(told.contains("volume w: its origin was moved"), "{told}");
    let whole = std::fs::metadata(bench.path("pool")).unwrap().len();
    let file = std::fs::File::options().write(true).open(bench.path("pool")).unwrap();
    file.set_len(whole - (1 << 20)).unwrap();
    let told = next();
    assert!(told.contains("its file was cut short"), "{told}");
    assert_eq!(served.stop(), Some(5));
    let rest: Vec<_> = lines.iter().collect();
    let last = rest.last().unwrap();
    assert!(last.contains(&format!("truncate -s {whole}")), "{rest:?}");
    assert!(rest.iter().all(|line| !line.contains("volumes and mounts take no more")), "{rest:?}");
    file.set_len(whole).unwrap();
    bench.run_ok(&["drain", "pool", "v"]);
    assert_eq!(std::fs::read(bench.path("v")).unwrap()[..4096], [7; 4096]);
}

/// A volume that is added later gets the options that were set for all.
#[test]
fn a_volume_that_comes_late_has_what_was_set_for_all() {
    let bench = pool_of_two();
    std::fs::rename(bench.path("w"), bench.path("away")).unwrap();
    let mut served = Served::start(&bench, &[]);
    bench.run_ok(&["set", "pool", "--mode", "write-through"]);
    bench.run_ok(&["set", "pool", "--bypass-limit", "1M"]);
    std::fs::rename(bench.path("away"), bench.path("w")).unwrap();
    let start = Instant::now();
    let volumes = loop {
        let status = bench.run_ok(&["status", "pool", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        if status["volumes"][1]["attached"] == true {
            break status["volumes"].clone();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it is not tried again");
        std::thread::sleep(Duration::from_millis(100));
    };
    for v in volumes.as_array().unwrap() {
        assert_eq!(
            (&v["mode"], &v["bypass_limit_bytes"]),
            (&"write-through".into(), &(1 << 20).into())
        );
    }
    assert_eq!(served.stop(), Some(0));
}

/// No data moves in a pool that is only read, whatever its options are.
#[test]
fn options_without_effect_are_not_set() {
    let bench = pool_of_two();
    let mut served = Served::start(&bench, &["--read-only"]);
    for option in [["--mode", "cleaner"], ["--max-age", "1s"], ["--bypass-limit", "1M"]] {
        let out = bench.run(&["set", "pool", option[0], option[1]]);
        assert_eq!(out.code, Some(9), "{out:?}");
        assert!(out.stderr.contains("read-only"), "{out:?}");
    }
    bench.run_ok(&["set", "pool", "--verify", "first"]);
    let shown = bench.run_ok(&["set", "pool"]).stdout;
    assert!(shown.contains("first") && !shown.contains("cleaner"), "{shown}");
    assert_eq!(served.stop(), Some(0));
}

/// A rename puts a backup in the place of the origin.  A file without a name ends with its server.
/// So the pool releases nothing that was written to that file, and no flush reports that it is
/// durable.
#[test]
fn what_a_deleted_origin_has_stays_in_the_pool() {
    for mode in ["write-back", "write-through", "cleaner"] {
        let bench = pool_of_two();
        let mut served = Served::start(&bench, &["--mode", mode]);
        let mut client = served.connect("v");
        assert_eq!((client.write(0, &[7; 4096]), client.flush()), (0, 0), "{mode}");
        std::fs::copy(bench.path("v"), bench.path("backup")).unwrap();
        std::fs::remove_file(bench.path("v")).unwrap();
        let (written, flushed) = (client.write(4096, &[8; 4096]), client.flush());
        let out = bench.run(&["drain", "pool", "--timeout", "60s"]);
        assert_eq!(out.code, Some(6), "{mode}: {out:?}");
        assert!(out.stderr.contains("its origin was deleted"), "{mode}: {out:?}");
        assert_eq!(served.stop(), Some(0), "{mode}");
        let anew = ["--origin", "v=backup", "--accept-changed-origin", "--accept-mark"];
        bench.run_ok(&[&["drain", "pool"][..], &anew].concat());
        let found = std::fs::read(bench.path("backup")).unwrap();
        let acknowledged = written == 0 && flushed == 0;
        assert!(!acknowledged || found[4096..8192] == [8; 4096], "{mode}: acknowledged, and lost");
        assert_eq!(acknowledged, mode == "write-back", "{mode}: {written} {flushed}");
    }
}

/// A cleaner of /dev/shm deletes the pool.  The server writes what it holds to the origins by itself,
/// and `forebay drain` waits for that.
#[test]
fn a_pool_that_is_deleted_under_its_server_is_told() {
    for drained in [true, false] {
        let bench = pool_of_two();
        let mut command = Served::command(&bench, "pool");
        let (reader, writer) = std::io::pipe().unwrap();
        command.stderr(writer);
        let mut served = Served::ready(&bench, command).unwrap();
        assert_eq!(served.connect("v").write(0, &[7; 4096]), 0);
        std::fs::remove_file(bench.path("pool")).unwrap();
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(reader).lines().try_for_each(|line| send.send(line.unwrap()))
        });
        let told = lines.recv_timeout(Duration::from_secs(60)).expect("nothing was told");
        assert!(told.contains("its file was deleted"), "{told}");
        let (_, way_out) = told.split_once("forebay drain ").unwrap();
        if drained {
            bench.run_ok(&["drain", way_out.split_once(')').unwrap().0]);
            assert_eq!(std::fs::read(bench.path("v")).unwrap()[..4096], [7; 4096]);
        }
        assert_eq!(served.stop(), Some(20));
        let rest: Vec<_> = lines.iter().collect();
        assert!(rest.iter().all(|line| !line.contains("is lost")), "{rest:?}");
        assert_eq!(std::fs::read(bench.path("v")).unwrap()[..4096], [7; 4096]);
    }
}

/// A server that stops at that moment is not an error of an origin.  Commands that can look without
/// the server do so, and the others report that it stopped.
#[test]
fn a_server_that_hangs_up_before_it_answers_has_stopped() {
    let bench = pool_of_two();
    let superblock = bench.run_ok(&["dump", "superblock", "pool", "--json"]).stdout;
    let superblock: serde_json::Value = serde_json::from_str(&superblock).unwrap();
    let run = bench.path("run");
    std::fs::create_dir(&run).unwrap();
    let socket = run.join(format!("{}.sock", superblock["uuid"].as_str().unwrap()));
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut line = String::new();
            BufReader::new(stream.unwrap()).read_line(&mut line).unwrap();
        }
    });
    assert!(bench.run_ok(&["status", "pool"]).stdout.contains("served    no"));
    for words in [&["drain", "pool"][..], &["set", "pool", "--idle", "1s"]] {
        let out = bench.run(words);
        assert_eq!(out.code, Some(13), "{words:?}: {}", out.stderr);
    }
}

/// The links are like those in /dev/mapper and /dev/disk/by-id, and one leads to another link.
#[test]
fn a_pool_is_found_by_a_symbolic_link() {
    let bench = pool_of_two();
    std::fs::rename(bench.path("pool"), bench.path("file")).unwrap();
    std::os::unix::fs::symlink("file", bench.path("link")).unwrap();
    std::os::unix::fs::symlink("link", bench.path("pool")).unwrap();
    let mut served = Served::start(&bench, &[]); // by the name of the outer link
    assert_eq!(served.connect("v").write(4096, &[5; 4096]), 0);
    for name in ["pool", "link", "file"] {
        let status = bench.run_ok(&["status", name, "--json"]).stdout;
        let pid = format!("\"pid\": {},", served.process.id());
        assert!(status.contains(&pid), "{name}: {status}");
        bench.run_ok(&["exporter", name, "--textfile", "metrics"]);
        let metrics = std::fs::read_to_string(bench.path("metrics")).unwrap();
        assert!(metrics.contains("forebay_volume_cached_bytes"), "{metrics}");
        bench.run_ok(&["set", name, "--bypass-limit", "1M"]);
        let told = bench.run(&["check", name]);
        assert!(told.code == Some(4) && told.stderr.contains("in use by process"), "{told:?}");
    }
    let drained = bench.run_ok(&["drain", "link"]).stdout;
    assert!(drained.contains("volume v: 4 KiB to its origin"), "{drained}");
    assert_eq!(std::fs::read(bench.path("v")).unwrap()[4096..8192], [5; 4096]);
    assert_eq!(served.stop(), Some(0));
    bench.write("other", &[0; 1 << 20]);
    bench.run_ok(&["volume", "add", "pool", "x", "other"]);
    for words in ["check pool", "drain pool", "volume list pool", "dump superblock pool"] {
        bench.run_ok(&words.split(' ').collect::<Vec<_>>());
    }
}

fn set(bench: &Bench, words: &[&str]) -> serde_json::Value {
    let out = bench.run_ok(&[&["set", "pool", "--json"], words].concat());
    serde_json::from_str(&out.stdout).unwrap()
}

#[test]
fn options_are_shown_and_set_until_the_next_start() {
    let bench = pool_of_two();
    let defaults = set(&bench, &[]);
    assert_eq!((&defaults["served"], &defaults["changed"]), (&false.into(), &false.into()));
    let text = bench.run_ok(&["set", "pool"]).stdout;
    assert!(text.contains("high-watermark  60 %") && text.contains("not served"), "{text}");
    let out = bench.run(&["set", "pool", "--max-age", "5s"]);
    assert!(out.code == Some(2) && out.stderr.contains("a pool keeps no options"), "{out:?}");

    let mut served = Served::start(&bench, &["--max-age", "30s", "--mode", "write-through"]);
    let now = set(&bench, &[]);
    assert_eq!((&now["served"], &now["options"]["max_age_seconds"]), (&true.into(), &30.0.into()));
    assert_eq!(now["volumes"][1]["mode"], "write-through");
    let text = bench.run_ok(&["set", "pool"]).stdout;
    assert!(text.contains("max-age         30 s"), "{text}");
    assert!(text.contains("w       write-through          none  wait"), "{text}");
    let words = "--high-watermark 80 --low-watermark 40 --max-age none --idle 2s --verify first \
                 --checksums false --bypass-limit 1M --when-full bypass --mode cleaner";
    let now = set(&bench, &words.split_whitespace().collect::<Vec<_>>());
    let options = serde_json::json!({
        "slots": defaults["options"]["slots"], "checksums": false, "verify": "first",
        "high_watermark_percent": 80, "low_watermark_percent": 40,
        "max_age_seconds": null, "idle_seconds": 2.0,
    });
    assert_eq!((&now["options"], &now["changed"]), (&options, &true.into()));
    let volume = |name| {
        serde_json::json!({
            "name": name, "mode": "cleaner", "bypass_limit_bytes": 1 << 20, "when_full": "bypass",
            "durable": null, "durable_because": null,
        })
    };
    assert_eq!(now["volumes"], serde_json::json!([volume("v"), volume("w")]));
    let now = set(&bench, &["--volume", "w", "--mode", "write-back"]);
    assert_eq!(now["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(set(&bench, &[])["volumes"][0], volume("v"));
    // The request is refused as a whole, with the reason.
    for (words, code, says) in [
        ("--low-watermark 90", 2, "watermarks of 80 % and 90 %"),
        ("--volume w --max-age 1s", 2, "are the pool's"),
        ("--volume no --mode cleaner", 3, "volume no: not in pool"),
        ("--volume no", 3, "volume no: not in pool"),
        ("--mode through", 2, "write-back, write-through or cleaner"),
        ("--max-age soon", 2, "or none"),
    ] {
        let words: Vec<_> = ["set", "pool"].into_iter().chain(words.split(' ')).collect();
        let out = bench.run(&words);
        assert!(out.code == Some(code) && out.stderr.contains(says), "{words:?}: {out:?}");
    }
    assert_eq!(set(&bench, &[])["options"], options);
    assert_eq!(served.stop(), Some(0));
    let served = Served::start(&bench, &[]);
    assert_eq!(set(&bench, &[])["options"], defaults["options"], "options were kept");
    drop(served);
}

/// The help says that --cleaner empties the pool, and that clients notice nothing of that.
#[test]
fn a_cleaner_empties_the_pool_and_write_through_keeps_it_empty() {
    let bench = pool_of_two();
    let mut served = Served::start(&bench, &[]);
    assert_eq!(served.connect("v").write(0, &[1; 65536]), 0);
    assert_eq!(served.stop(), Some(0));
    let mut served = Served::start(&bench, &["--cleaner"]);
    let pages = || {
        let status = bench.run_ok(&["status", "pool", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["pages_cached"].as_u64().unwrap()
    };
    let start = Instant::now();
    while pages() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the pool does not empty");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::read(bench.path("v")).unwrap()[..65536], [1; 65536]);
    let text = bench.run_ok(&["status", "pool"]).stdout;
    assert!(text.contains("cleaner, idle"), "{text}");
    assert_eq!(served.stop(), Some(0));
    let served = Served::start(&bench, &["--write-through"]);
    assert_eq!(served.connect("w").write(4096, &[2; 4096]), 0);
    assert_eq!(std::fs::read(bench.path("w")).unwrap()[4096..8192], [2; 4096]);
    assert_eq!(pages(), 0);
    for words in ["--cleaner --write-through", "--cleaner --mode write-back"] {
        let words: Vec<_> = ["serve", "pool"].into_iter().chain(words.split(' ')).collect();
        assert_eq!(bench.run(&words).code, Some(2), "{words:?}");
    }
}

/// The drain gives up at once, because its time is over before it begins.
#[test]
fn a_drain_that_runs_out_of_time_says_what_is_left() {
    let bench = Bench::new();
    bench.make_volume();
    bench.write_to_volume(0, &[7; 512 << 10]);
    for server in [false, true] {
        let served = server.then(|| Served::start(&bench, &[]));
        let words = ["drain", "pool", "--timeout", "0.000001s"];
        let out = bench.run(&words);
        assert_eq!(out.code, Some(14), "{out:?}");
        let says = "the pool holds 128 pages of 4 KiB that the origin lacks; drain it again";
        assert!(out.stderr.contains(says) && !out.stdout.contains("complete"), "{out:?}");
        drop(served);
    }
    let out = bench.run(&["drain", "pool", "--timeout", "60s", "--json"]);
    assert!(out.code == Some(0) && out.stdout.contains("\"complete\": true"), "{out:?}");
    assert_eq!(std::fs::read(bench.path("origin")).unwrap()[..512 << 10], [7; 512 << 10]);
}

/// The origin takes nothing, so the drain goes on until its server is told to stop.
#[test]
fn a_drain_whose_server_stops_says_that_the_pool_still_has_it() {
    let bench = Bench::new();
    bench.make_volume();
    bench.write_to_volume(0, &[7; 512 << 10]);
    let nbd = bench.path("run/nbd");
    let serve = bench.command(&["serve", "pool", "--socket", nbd.to_str().unwrap(), "--json"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]);
    limited.arg(serve.get_program()).args(serve.get_args()).current_dir(bench.directory());
    limited.env("FOREBAY_RUNTIME_DIR", bench.path("run")).stderr(std::process::Stdio::null());
    let mut server = limited.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = server.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\":true"), "{line}");
    let mut drain = bench.command(&["drain", "pool"]);
    let drain = drain.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !bench.run_ok(&["status", "pool", "--json"]).stdout.contains("\"draining\": true") {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not drain");
    }
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let out = drain.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(13), "{said}");
    assert!(
        said.contains("volume v: the drain did not end, because whoever has the pool open"),
        "{said}"
    );
    assert!(said.contains("stays in the pool") && said.contains("drain it again"), "{said}");
    assert!(server.wait().unwrap().success());
    bench.run_ok(&["drain", "pool"]);
    assert_eq!(std::fs::read(bench.path("origin")).unwrap()[..512 << 10], [7; 512 << 10]);
}

#[test]
fn a_stopped_server_is_told_as_such() {
    let bench = pool_of_two();
    let served = Served::start(&bench, &[]);
    served.signal("-STOP");
    let out = bench.run(&["status", "pool"]);
    served.signal("-CONT");
    assert_eq!(out.code, Some(7), "{out:?}");
    assert!(out.stderr.contains("no answer for 10 s"), "{out:?}");
    bench.run_ok(&["status", "pool"]);
}

/// A store that reaches no memory is never acknowledged, and the server ends with the reason.
#[test]
fn memory_that_cannot_be_written_ends_the_server_with_a_message() {
    let bench = pool_of_two();
    let mut command = bench.command(&["serve", "pool", "--json", "--ready-file", "ready"]);
    let log = std::fs::File::create(bench.path("log")).unwrap();
    let mut process = command.stderr(log).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut message = String::new();
    let stdout = process.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut message).unwrap();
    let (_, socket) = message.split_once("\"socket\":\"").expect("it is ready");
    let socket = std::path::Path::new(socket.split('"').next().unwrap());
    let mut client = Client::connect(socket, "v").unwrap();
    assert_eq!(client.write(0, &[1; 4096]), 0);
    let pool = std::fs::OpenOptions::new().write(true).open(bench.path("pool")).unwrap();
    pool.set_len(64 << 10).unwrap();
    client.send(WRITE, 1, 4096, &[2; 4096]).unwrap();
    assert!(client.reply().is_err(), "a write was acknowledged that is nowhere");
    assert_eq!(process.wait().unwrap().code(), Some(7));
    let log = std::fs::read_to_string(bench.path("log")).unwrap();
    assert!(log.contains("pool: the memory at byte") && log.contains("cut short"), "{log}");
}

/// A server behaves like a daemon: it has nothing to reload, and the end of a terminal is no order.
#[test]
fn a_hangup_ends_no_server() {
    let bench = pool_of_two();
    let mut command = Served::command(&bench, "pool");
    command.stderr(std::fs::File::create(bench.path("log")).unwrap());
    let mut served = Served::ready(&bench, command).unwrap();
    let mut client = served.connect("v");
    assert_eq!(client.write(0, &[1; 4096]), 0);
    served.signal("-HUP");
    let start = Instant::now();
    while !std::fs::read_to_string(bench.path("log")).unwrap().contains("nothing to reload") {
        assert!(served.process.try_wait().unwrap().is_none(), "it ended");
        assert!(start.elapsed() < Duration::from_secs(60), "it says nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    drop(client);
    assert_eq!(served.stop(), Some(0));
}

/// There are more connections than descriptors.  The server refuses some and reports that, and the
/// existing connections continue.
#[test]
fn too_many_connections_are_refused_and_the_others_go_on() {
    let bench = pool_of_two();
    let serve = Served::command(&bench, "pool");
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -Sn 100 && ulimit -Hn 200; exec \"$@\"", "sh"]);
    limited.arg(serve.get_program()).args(serve.get_args()).current_dir(bench.directory());
    limited.env("FOREBAY_RUNTIME_DIR", bench.path("run"));
    limited.stderr(std::fs::File::create(bench.path("log")).unwrap());
    let mut served = Served::ready(&bench, limited).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", served.process.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(files, ["200", "200"], "the soft limit is raised");
    let mut first = served.connect("v");
    let others: Vec<_> = (0..250).map(|_| Client::greeted(&served.socket)).collect();
    let refused = others.iter().filter(|client| client.is_err()).count();
    assert!((50..250).contains(&refused), "{refused} of 250 were refused");
    assert_eq!(first.write(0, &[1; 4096]), 0);
    bench.run_ok(&["status", "pool"]);
    let log = || std::fs::read_to_string(bench.path("log")).unwrap();
    assert_eq!(
        log().matches("connections are open, and no more are taken").count(),
        1,
        "{}",
        log()
    );
    drop(others);
    let start = Instant::now();
    while Client::connect(&served.socket, "v").is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "for ever");
    }
    drop(first);
    assert_eq!(served.stop(), Some(0));
}

/// `forebay exporter` on a free port of this machine; killed when dropped.
struct Exporter(std::process::Child, String);

impl Exporter {
    fn start(bench: &Bench) -> Exporter {
        let mut command = bench.command(&["exporter", "pool", "--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once("http://").expect("it says where it listens");
        Exporter(process, address.trim_end_matches("/metrics").into())
    }

    fn connect(&self) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(&self.1)
            .unwrap_or_else(|e| panic!("nobody listens at {}: {e}", self.1));
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The whole answer.  Empty: the exporter hung up.
    fn get(&self, target: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = self.connect();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exporter makes the missing directory, like a server.
#[test]
fn the_exporter_has_a_socket_where_no_server_was_yet() {
    let bench = pool_of_two();
    assert!(!bench.path("run").exists());
    let mut command = bench.command(&["exporter", "pool"]);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answers = std::os::unix::net::UnixStream::connect(bench.path("run/metrics.sock"));
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(answers.is_ok() && line.contains("metrics of pool"), "{line}");
}

#[test]
fn the_exporter_says_its_port_and_takes_parameters() {
    let bench = pool_of_two();
    let exporter = Exporter::start(&bench);
    for target in ["/metrics", "/metrics?x=1", "/metrics?"] {
        let text = exporter.get(target);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {text}");
        assert!(text.contains("\nforebay_up 1\n"), "{target}: {text}");
    }
    assert!(exporter.get("/metric").starts_with("HTTP/1.1 404 "));
    assert!(exporter.get("/?x").starts_with("HTTP/1.1 200 "));
}

/// There are more clients than the exporter serves at once, and none of them sends anything.
#[test]
fn the_exporter_answers_beside_many_that_say_nothing() {
    let bench = pool_of_two();
    let exporter = Exporter::start(&bench);
    let idle: Vec<_> = (0..100).map(|_| exporter.connect()).collect();
    assert!(exporter.get("/metrics").starts_with("HTTP/1.1 200 "));
    drop(idle);
}

#[test]
fn the_exporter_says_that_a_server_does_not_answer() {
    let bench = pool_of_two();
    let served = Served::start(&bench, &[]);
    let exporter = Exporter::start(&bench);
    assert!(exporter.get("/metrics").starts_with("HTTP/1.1 200 "));
    served.signal("-STOP");
    let text = exporter.get("/metrics");
    let out = bench.run(&["exporter", "pool", "--textfile", "metrics"]);
    served.signal("-CONT");
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("no answer for"), "{text:?}");
    assert_eq!(out.code, Some(7), "{out:?}");
    let written = std::fs::read_to_string(bench.path("metrics")).unwrap();
    assert!(written.ends_with("\nforebay_up 0\n"), "{written}");
    assert!(exporter.get("/metrics").starts_with("HTTP/1.1 200 "));
}

/// A scrape gets its answer, whatever other clients do.
#[test]
fn the_exporter_answers_beside_clients_that_do_not() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let bench = pool_of_two();
    std::fs::create_dir(bench.path("run")).unwrap();
    let socket = bench.path("run/metrics");
    let words = ["exporter", "pool", "--socket", socket.to_str().unwrap()];
    bench.write("run/metrics", b"precious");
    let out = bench.run(&words);
    assert!(out.code == Some(2) && out.stderr.contains("left as it is"), "{out:?}");
    assert_eq!(std::fs::read(&socket).unwrap(), b"precious");
    std::fs::remove_file(&socket).unwrap();
    let mut exporter = bench.command(&words).stdout(std::process::Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let get = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut greedy = UnixStream::connect(&socket).unwrap();
    greedy.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while greedy.write_all(get).is_ok() {}
    let mut long = UnixStream::connect(&socket).unwrap();
    long.write_all(b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n").unwrap();
    let mut endless = UnixStream::connect(&socket).unwrap();
    let _ = endless.write_all(&[b'x'; 1 << 20]);
    let _silent = UnixStream::connect(&socket).unwrap();
    let mut scrape = UnixStream::connect(&socket).unwrap();
    scrape.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    scrape.write_all(get).unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("forebay_chunks{pool="), "{text}");
    assert_eq!(exporter.try_wait().unwrap(), None, "it ended");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
}
