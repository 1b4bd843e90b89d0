// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the fate of a command's output does not change its work or its exit code; and with
//! --json all output is JSON, including errors.  Method: commands whose pipes nobody reads, or
//! that write to /dev/full.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use common::nbd::{Served, WRITE};
use common::Bench;
use serde_json::Value;

/// An output where a write is a broken pipe.
fn nobody_reads() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Makes a pool that has lost a block.
fn pool_with_a_loss() -> Bench {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(0, &[7; 4096]);
    b.edit("pool", |bytes| {
        let page = bytes.windows(64).position(|w| w == [7; 64]).unwrap();
        bytes[page + 5] ^= 1;
    });
    b
}

#[test]
fn a_loss_is_told_though_nobody_reads() {
    let b = pool_with_a_loss();
    for words in [
        &["check", "pool"][..],
        &["check", "pool", "--json"],
        &["drain", "pool"],
        &["drain", "pool", "--json"],
    ] {
        for both in [false, true] {
            let mut command = b.command(words);
            command.stdout(nobody_reads()).stderr(Stdio::null());
            if both {
                command.stderr(nobody_reads());
            }
            assert_eq!(command.status().unwrap().code(), Some(11), "{words:?}, {both}");
        }
    }
    let script = b.command(&["completions", "bash"]).stdout(nobody_reads()).output().unwrap();
    assert_eq!((script.status.code(), &script.stderr[..]), (Some(0), &b""[..]));
    // Repeated output ends too if nobody reads it.
    let mut watch = b.command(&["status", "pool", "--watch", "10ms"]);
    assert_eq!(watch.stdout(nobody_reads()).status().unwrap().code(), Some(0));
}

#[test]
fn an_output_that_takes_nothing_is_named() {
    let b = Bench::new();
    b.make_volume();
    let commands: &[&[&str]] = &[
        &["check", "pool"],
        &["status", "pool", "--json"],
        &["completions", "bash"],
        &["--help"],
        &["-h"],
        &["--version"],
        &["drain", "--help"],
        &["help", "map", "recover"],
    ];
    for words in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let out = b.command(words).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(8), "{words:?}: {told}");
        assert!(told.contains("standard output"), "{told}");
    }
}

/// The reader of the server's messages has gone.  The server still answers requests that fail, and
/// stops when told to.
#[test]
fn a_server_goes_on_without_its_log() {
    let b = Bench::new();
    b.make_volume();
    let mut command = Served::command(&b, "pool");
    command.stderr(nobody_reads());
    let mut served = Served::ready(&b, command).unwrap();
    let mut client = served.connect("v");
    for cookie in 0..3 {
        client.send(WRITE, cookie, 13, &[1; 7]).unwrap();
        assert_eq!(client.reply().unwrap(), (22, cookie));
    }
    assert_eq!(client.write(0, &[2; 512]), 0);
    drop(client);
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn errors_are_json_too() {
    let b = Bench::new();
    b.make_volume();
    for (words, code) in [
        (&["status", "nothing", "--json"][..], 3),
        (&["create", "pool", "--json"], 12),
        (&["volume", "add", "pool", "v", "origin", "--json"], 2),
        (&["volume", "remove", "pool", "w", "--json"], 3),
        (&["drain", "pool", "--timeout", "never", "--json"], 2),
        (&["set", "pool", "--when-full", "wait", "--json"], 2),
        (&["drain", "--json"], 2),
    ] {
        let out = b.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {}", out.stderr);
        let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| {
            panic!("{words:?}: {e}: {:?}", out.stdout);
        });
        assert_eq!(said["error"]["exit_code"], code, "{words:?}");
        let message = said["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && out.stderr.contains(message.lines().next().unwrap()));
    }
    // Output before an error is still one JSON value.
    b.write_to_volume(0, &[1; 4096]);
    fs::remove_file(b.path("origin")).unwrap();
    let out = b.run(&["drain", "pool", "--json"]);
    assert_eq!(out.code, Some(6), "{}", out.stderr);
    assert_eq!(serde_json::from_str::<Value>(&out.stdout).unwrap()["complete"], false);
}

/// A path need not be text.  JSON output has the nearest text.
#[test]
fn paths_of_any_bytes() {
    let b = Bench::new();
    let pool = OsStr::from_bytes(b"p\xff");
    let ok = |words: &[&str]| {
        let out = b.command(words).arg(pool).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    assert_eq!(ok(&["create", "--size", "16M", "--json"])["path"], "p\u{fffd}");
    b.write("origin", &[0; 1 << 20]);
    let add = b.command(&["volume", "add"]).arg(pool).args(["v", "origin"]).status();
    assert!(add.unwrap().success());
    let mut served = Served::ready(&b, Served::command(&b, pool)).unwrap();
    assert_eq!(ok(&["status", "--json"])["media"]["path"], "p\u{fffd}");
    assert_eq!(ok(&["drain", "--json"])["complete"], true);
    ok(&["set", "--when-full", "bypass", "--json"]);
    assert_eq!(served.stop(), Some(0));
}
