// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: `forebay media-info` and `forebay media-test` say what they find, in text, JSON and exit
//! code, and write nothing that was not allowed.
//! `forebay create --medium ssd` makes a pool that the other commands open, or refuse by name.
//! Method: files; tests/serve/media-test.sh has devices, and cuts the power.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};

use common::Bench;
use serde_json::Value;

fn json(b: &Bench, code: i32, words: &[&str]) -> Value {
    let out = b.run(&[words, &["--json"]].concat());
    assert_eq!(out.code, Some(code), "{words:?}: {}{}", out.stdout, out.stderr);
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", out.stdout))
}

#[test]
fn a_directory_is_measured_and_stays_as_it_was() {
    let b = Bench::new();
    b.write("data", b"mine");
    for place in [".", "data", "new"] {
        let info = json(&b, 0, &["media-info", place, "--time", "1s"]);
        assert_eq!(info["measured"]["timings"].as_array().unwrap().len(), 6, "{info}");
        assert_eq!(info["judgement"]["class"], "memory");
        assert_eq!(info["unit_bytes"], 4096);
    }
    let text = b.run_ok(&["media-info", "new", "--time", "1s"]).stdout;
    for words in ["write with FUA", "write, then flush", "kind: memory", "tmpfs"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(json(&b, 0, &["media-info", "new", "--no-measure"])["measured"].is_null());
    assert_eq!(fs::read_dir(b.directory()).unwrap().count(), 1);
    assert_eq!(fs::read(b.path("data")).unwrap(), b"mine");
    assert_eq!(b.run(&["media-info", "data", "--write"]).code, Some(2));
    assert_eq!(b.run(&["media-info", "none/new"]).code, Some(3));
    assert_eq!(b.run(&["media-info", "/dev/null"]).code, Some(2));
}

#[test]
fn a_file_with_holes_is_refused_by_name() {
    let b = Bench::on_disk();
    fs::File::create(b.path("sparse")).unwrap().set_len(1 << 20).unwrap();
    let out = b.run(&["media-info", "sparse", "--json"]);
    let info: Value = serde_json::from_str(&out.stdout).unwrap();
    if info["file"]["hole_bytes"].is_null() {
        return forebay_test::skipped!("the file system has no FIEMAP");
    }
    let names: Vec<_> = info["refusals"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert!(names.contains(&&Value::from("holes")), "{info}");
    assert_eq!(out.code, Some(10));
    assert!(info["measured"].is_null());
    let text = b.run(&["media-info", "sparse"]).stdout;
    assert!(text.contains("refused (holes): 1 MiB") && text.contains("dd if=/dev/zero"), "{text}");
}

/// A receiver, and its address.
struct Receiver(Child, String);

impl Receiver {
    fn start(b: &Bench) -> Receiver {
        let words = ["media-test", "--receive", "127.0.0.1:0", "--directory", "runs", "--json"];
        let mut child = b.command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        Receiver(child, said["address"].as_str().unwrap().into())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_is_written_and_compared() {
    let b = Bench::new();
    let receiver = Receiver::start(&b);
    let server = &*receiver.1;
    fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
    let write = ["media-test", "disk", "--server", server, "--time", "300ms"];
    let ended = json(&b, 17, &write);
    assert!(ended["steps"].as_u64().unwrap() > 0 && ended["disk_error"].is_null(), "{ended}");
    assert_eq!((&ended["end"], &ended["told"]), (&"uncut".into(), &true.into()));
    assert_eq!(ended["run"]["fua_is"], "file-system");
    assert_eq!(ended["run"]["blocks"], 511);

    let verify = ["media-test", "disk", "--server", server, "--verify"];
    let report = json(&b, 17, &verify);
    assert_eq!((&report["end"], &report["steps"]), (&"uncut".into(), &ended["steps"]));
    assert_eq!(report["verdict"], "inconclusive");
    assert!(report["round_trip_us"].as_u64().unwrap() > 0, "{report}");
    assert!(b.run(&verify).stdout.contains("nobody had cut the power"));

    // The data of the run counts as content too.
    let again = b.run(&write);
    assert_eq!(again.code, Some(12));
    assert!(again.stderr.contains("media-test; nothing was written"), "{}", again.stderr);
    json(&b, 17, &[&write[..], &["--overwrite", "--mode", "flush", "--size", "1M"]].concat());
    assert_eq!(json(&b, 17, &verify)["blocks"], 255);
    let disk = fs::File::options().write(true).open(b.path("disk")).unwrap();
    disk.write_all_at(&[0x55; 160 * 4096], 64 * 4096).unwrap();
    // The disk was not blank before the run overwrote it: a block with that older content has lost
    // a write.
    let report = json(&b, 11, &verify);
    assert_eq!(report["verdict"], "lost");
    let example = &report["examples"][0];
    assert_eq!(example["byte"].as_u64().unwrap(), (example["block"].as_u64().unwrap() + 1) * 4096);
    let text = b.run(&verify).stdout;
    assert!(text.contains("content of before the run instead of step"), "{text}");
}

#[test]
fn a_test_that_cannot_be_is_refused() {
    let b = Bench::new();
    fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
    fs::File::create(b.path("small")).unwrap().set_len(64 << 10).unwrap();
    b.write("record", &[0x55; 4096]);
    let nobody = "127.0.0.1:1";
    const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    for (code, words) in [
        (2, &["media-test"][..]),
        (2, &["media-test", "disk"]),
        (2, &["media-test", "disk", "--verify"]),
        (2, &["media-test", "disk", "--receive"]),
        (2, &["media-test", "disk", "--server", nobody, "--mode", "all"]),
        (2, &["media-test", "disk", "--server", nobody, "--overwrit"]),
        (2, &["media-test", "small", "--server", nobody]),
        (2, &["media-test", "disk", "--server", nobody, "--size", "1T"]),
        (2, &["media-test", ".", "--server", nobody]),
        (3, &["media-test", "none", "--server", nobody]),
        (3, &["media-test", "disk", "--server", nobody, "--verify"]),
        (5, &["media-test", "disk", "--verify", "--journal", "record"]),
        (18, &["media-test", "disk", "--server", nobody]),
        (18, &["media-test", "disk", "--verify", "--run", UUID, "--server", nobody]),
        (2, &["media-test", "--receive", "256.0.0.1:1"]),
    ] {
        let out = b.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {}", out.stderr);
    }
    assert!(fs::read(b.path("disk")).unwrap().iter().all(|byte| *byte == 0));
}

/// Nobody cuts the power and nobody says so.  A writer is killed, the session of one ends, and the
/// receiver of one ends.  None of these proves that a disk keeps its promise.
#[test]
fn a_disk_that_never_lost_power_has_kept_nothing() {
    use rustix::process::{kill_process, Pid, Signal};
    let b = Bench::new();
    for (signal, code, end) in [
        (Signal::KILL, None, "uncut"),
        (Signal::HUP, Some(13), "uncut"),
        (Signal::TERM, Some(13), "uncut"),
    ] {
        let receiver = Receiver::start(&b);
        fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
        let words = ["media-test", "disk", "--server", &*receiver.1, "--time", "60s"];
        let mut writer = b.command(&words).stdout(Stdio::null()).spawn().unwrap();
        steps_come(&b, 20);
        kill_process(Pid::from_child(&writer), signal).unwrap();
        assert_eq!(writer.wait().unwrap().code(), code, "{signal:?}");
        let verify = ["media-test", "disk", "--server", &*receiver.1, "--verify"];
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let report = json(&b, 17, &verify);
            assert_eq!(report["verdict"], "inconclusive");
            // The receiver notes the end of a connection with a delay.
            if report["end"] == end {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{report}");
        }
        fs::remove_dir_all(b.path("runs")).unwrap();
    }
    // The receiver ends, so the evidence must come from the disk.
    let receiver = Receiver::start(&b);
    fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
    let words = ["media-test", "disk", "--server", &*receiver.1, "--time", "60s"];
    let mut writer = b.command(&words).stderr(Stdio::null()).spawn().unwrap();
    let file = steps_come(&b, 20);
    drop(receiver);
    assert_eq!(writer.wait().unwrap().code(), Some(18));
    let report = json(&b, 17, &["media-test", "disk", "--verify", "--journal", &file]);
    assert_eq!((&report["verdict"], &report["end"]), (&"inconclusive".into(), &"uncut".into()));
}

/// Waits until a run has that many steps, and returns its file.
fn steps_come(b: &Bench, steps: u64) -> String {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let file = fs::read_dir(b.path("runs")).into_iter().flatten().flatten().next();
        if let Some(file) = file {
            let bytes = fs::read(file.path()).unwrap_or_default();
            let at = |at: usize| bytes.get(at..at + 8).map_or(0, |b| b[0]);
            if u64::from(at(512).max(at(1024))) >= steps {
                return format!("runs/{}", file.file_name().to_string_lossy());
            }
        }
        assert!(std::time::Instant::now() < deadline, "steps come");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Content between the places that are read to identify it counts too.
#[test]
fn content_between_the_places_is_not_overwritten() {
    let b = Bench::new();
    let receiver = Receiver::start(&b);
    fs::File::create(b.path("disk")).unwrap().set_len(4 << 20).unwrap();
    let disk = fs::File::options().write(true).open(b.path("disk")).unwrap();
    disk.write_all_at(&[7; 512], (1 << 20) + 8192).unwrap();
    drop(disk);
    let before = fs::read(b.path("disk")).unwrap();
    let words = ["media-test", "disk", "--server", &*receiver.1, "--time", "300ms"];
    let out = b.run(&words);
    assert_eq!(out.code, Some(12), "{}", out.stderr);
    assert!(out.stderr.contains("(at byte 1056768)"), "{}", out.stderr);
    assert!(fs::read(b.path("disk")).unwrap() == before);
    // Content after the range of the run stays and is not looked for.
    let size = [&words[..], &["--size", "1M", "--json"]].concat();
    assert_eq!(b.run(&size).code, Some(17));
    assert!(fs::read(b.path("disk")).unwrap()[1 << 20..] == before[1 << 20..]);
}

/// A disk that was not part of the run has lost nothing of it.
#[test]
fn another_disk_is_not_called_a_liar() {
    let b = Bench::new();
    let receiver = Receiver::start(&b);
    for name in ["disk", "blank"] {
        fs::File::create(b.path(name)).unwrap().set_len(2 << 20).unwrap();
    }
    fs::write(b.path("full"), vec![0x33; 2 << 20]).unwrap();
    let write = |name: &str| {
        let words = ["media-test", name, "--server", &*receiver.1, "--time", "300ms"];
        json(&b, 17, &words)["run"]["uuid"].as_str().unwrap().to_string()
    };
    let run = write("disk");
    for name in ["blank", "full"] {
        let verify = ["media-test", name, "--server", &*receiver.1, "--verify", "--run", &*run];
        let report = json(&b, 17, &verify);
        assert!(report["because"].as_str().unwrap().contains("another one"), "{report}");
    }
    // This disk has another run.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    write("blank");
    let verify = ["media-test", "blank", "--server", &*receiver.1, "--verify", "--run", &*run];
    let report = json(&b, 17, &verify);
    assert!(report["because"].as_str().unwrap().contains("another run"), "{report}");
}

/// A virtual machine or another program has the file open for writing, and no lock.
#[test]
fn a_file_that_a_program_writes_to_is_refused() {
    let b = Bench::new();
    fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
    let held = fs::File::options().write(true).open(b.path("disk")).unwrap();
    let out = b.run(&["media-test", "disk", "--server", "127.0.0.1:1"]);
    assert_eq!(out.code, Some(4), "{}", out.stderr);
    assert!(out.stderr.contains("open for writing in process"), "{}", out.stderr);
    let info = json(&b, 10, &["media-info", "disk"]);
    assert_eq!(info["refusals"][0]["name"], "in-use");
    drop(held);
    assert_eq!(b.run(&["media-test", "disk", "--server", "127.0.0.1:1"]).code, Some(18));
}

/// Strangers cannot fill the receiver's log.
#[test]
fn refused_connections_are_told_less_and_less() {
    let b = Bench::new();
    let words = ["media-test", "--receive", "127.0.0.1:0", "--directory", "runs", "--json"];
    let child = b.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut receiver = Receiver(child, String::new()); // ends with the test
    let child = &mut receiver.0;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let address = said["address"].as_str().unwrap().to_string();
    assert_eq!(said["reached_at"].as_str(), Some(&*address));
    for _ in 0..300 {
        use std::io::Read;
        let mut stream = std::net::TcpStream::connect(&*address).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read(&mut [0]);
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_child(child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let told = lines.map(Result::unwrap).filter(|line| line.contains("refused")).count();
    assert!((50..70).contains(&told), "{told} lines for 300 connections");
}

/// Makes a pool that is written in groups.  `None`: this directory is not suitable.
fn pool_in_groups(b: &Bench) -> Option<Value> {
    let words =
        ["create", "p", "--size", "16M", "--chunk-size", "64K", "--medium", "ssd", "--json"];
    let out = b.run(&words);
    if out.code == Some(10) {
        forebay_test::skipped!("the directory is no place for such a pool: {}", out.stderr);
        return None;
    }
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    Some(serde_json::from_str(&out.stdout).unwrap())
}

#[test]
fn a_pool_that_is_written_in_groups_is_made_looked_at_and_removed_from() {
    let b = Bench::on_disk();
    let Some(made) = pool_in_groups(&b) else { return };
    assert_eq!(made["media"]["kind"], "disk");
    assert_eq!(made["media"]["persist"], "groups");
    assert_eq!(made["medium"]["measured"]["timings"].as_array().unwrap().len(), 6, "{made}");
    assert!(made["medium"]["device"]["write_cache"].is_string(), "{made}");
    b.run_ok(&["log", "create", "p", "l"]);
    let logs = json(&b, 0, &["log", "list", "p"]);
    assert_eq!((&logs[0]["name"], &logs[0]["state"]), (&"l".into(), &"none".into()), "{logs}");
    let status = json(&b, 0, &["status", "p"]);
    assert_eq!(status["medium"]["unit_bytes"], 4096, "{status}");
    assert_eq!(status["media"]["kind"], "disk");
    let because = status["medium"]["durable_by_because"].as_str().unwrap();
    assert!(because.contains("it is a file"), "{status}");
    let text = b.run_ok(&["status", "p"]).stdout;
    assert!(text.contains("\ndisk      durable by "), "{text}");
    assert!(text.contains(&format!(" ({because})")), "{text}");
    for words in [
        &["check", "p"][..],
        &["dump", "superblock", "p"],
        &["dump", "chunks", "p"],
        &["dump", "volumes", "p"],
        &["dump", "entries", "p", "0"],
        &["log", "show", "p", "l"],
        &["log", "dump", "p", "l", "--data"],
        &["log", "replay", "--dry-run", "p", "l"],
        &["volume", "list", "p"],
        &["map", "list", "p"],
        &["drain", "p"],
        &["log", "destroy", "p", "l"],
    ] {
        assert_eq!(b.run(words).code, Some(0), "{words:?}");
    }
    assert_eq!(json(&b, 0, &["log", "list", "p"]).as_array().unwrap().len(), 0);
    let copies = b.run_ok(&["dump", "superblock", "p"]).stdout;
    assert!(copies.contains("at 0 valid, at 16384 valid"), "{copies}");
}

#[test]
fn commands_that_need_another_pool_are_refused_by_name() {
    let b = Bench::on_disk();
    if pool_in_groups(&b).is_none() {
        return;
    }
    b.write("origin", &[0; 1 << 20]);
    for (words, named) in [
        (&["volume", "add", "p", "v", "origin", "--static", "64K"][..], "no static volumes"),
        (&["map", "add", "p", "m"], "no maps"),
        (
            &["create", "q", "--size", "16M", "--medium", "ssd", "--static", "64K"],
            "no static volumes",
        ),
        (&["create", "q", "--size", "16M", "--medium", "ssd", "--maps", "2M"], "no maps"),
    ] {
        let out = b.run(words);
        assert_eq!(out.code, Some(10), "{words:?}: {}", out.stderr);
        assert!(out.stderr.contains(named), "{words:?}: {}", out.stderr);
        assert!(out.stderr.contains("--medium memory"), "{words:?}: {}", out.stderr);
    }
    for (words, code, named) in [
        (&["attach", "p", "v", "origin"][..], 2, "is a regular file"),
        (&["create", "p", "--medium", "ssd"], 12, "holds a Forebay pool"),
        (&["create", "q", "--medium", "ssd"], 2, "no size was given"),
        (&["create", "q", "--size", "16M", "--medium", "disk"], 2, "use auto, memory or ssd"),
        (
            &["create", "q", "--size", "16M", "--medium", "ssd", "--persist", "msync"],
            2,
            "pools in memory",
        ),
        (&["create", "q", "--size", "16M", "--persist", "groups"], 2, "--medium ssd"),
        (&["log", "create", "p", "l", "--kernel", "generic"], 2, "pools in memory"),
    ] {
        let out = b.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {}", out.stderr);
        assert!(out.stderr.contains(named), "{words:?}: {}", out.stderr);
    }
    assert!(!b.path("q").exists());
    b.run_ok(&["check", "p"]);
    // A plain file is mapped unless it is said, and the output says what there is.
    let text = b.run_ok(&["create", "q", "--size", "16M"]).stdout;
    assert!(text.contains("persist method msync") && text.contains("--medium ssd"), "{text}");
    let memory = Bench::new();
    let out = memory.run(&["create", "q", "--size", "16M", "--medium", "ssd"]);
    assert!(out.code == Some(10) && out.stderr.contains("(memory)"), "{}", out.stderr);
}
