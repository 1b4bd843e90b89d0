// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: `forebay media-info` and `forebay media-test` say what they find, in text, JSON and exit
//! code, and write nothing that was not allowed.
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
    assert_eq!(ended["run"]["blocks"], 511);

    let verify = ["media-test", "disk", "--server", server, "--verify"];
    let report = json(&b, 17, &verify);
    assert_eq!((&report["uncut"], &report["steps"]), (&true.into(), &ended["steps"]));
    assert_eq!(report["verdict"], "inconclusive");
    assert!(b.run(&verify).stdout.contains("nobody had cut the power"));

    // What the run has written is content too.
    let again = b.run(&write);
    assert_eq!(again.code, Some(12));
    assert!(again.stderr.contains("media-test; nothing was written"), "{}", again.stderr);
    json(&b, 17, &[&write[..], &["--overwrite", "--mode", "flush", "--size", "1M"]].concat());
    assert_eq!(json(&b, 17, &verify)["blocks"], 255);
    let disk = fs::File::options().write(true).open(b.path("disk")).unwrap();
    disk.write_all_at(&[0x55; 160 * 4096], 64 * 4096).unwrap();
    let report = json(&b, 16, &verify);
    assert_eq!(report["verdict"], "collateral");
    let example = &report["examples"][0];
    assert_eq!(example["byte"].as_u64().unwrap(), (example["block"].as_u64().unwrap() + 1) * 4096);
    let text = b.run(&verify).stdout;
    assert!(text.contains("content that was never written instead of step"), "{text}");
}

#[test]
fn a_test_that_cannot_be_is_refused() {
    let b = Bench::new();
    fs::File::create(b.path("disk")).unwrap().set_len(2 << 20).unwrap();
    fs::File::create(b.path("small")).unwrap().set_len(64 << 10).unwrap();
    b.write("record", &[0x55; 4096]);
    let nobody = "127.0.0.1:1";
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
        (7, &["media-test", "disk", "--server", nobody]),
        (2, &["media-test", "--receive", "256.0.0.1:1"]),
    ] {
        let out = b.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {}", out.stderr);
    }
    assert!(fs::read(b.path("disk")).unwrap().iter().all(|byte| *byte == 0));
}
