// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an object in use, or with data, is refused until that is over or the operator orders
//! it, and then the order is executed.  Method: the state, the command, the way out.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{crc32c, Bench};
use forebay_test::Loop;

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

/// These options have no effect together.  A user who gives both expects one.
#[test]
fn options_without_effect_together_are_refused_by_name() {
    let (serve, mount) = ("serve pool --read-only", "mount pool tree --read-only");
    let writers = [
        "--mode cleaner",
        "--mode write-through",
        "--cleaner",
        "--write-through",
        "--bypass-limit 1M",
        "--when-full bypass",
        "--slots 2",
        "--checksums false",
        "--high-watermark 50",
        "--low-watermark 10",
        "--max-age 1s",
        "--idle none",
    ];
    let live = [
        "--write-back",
        "--log-writes",
        "--slow-log",
        "--names-at-sync",
        "--sync-interval 2s",
        "--sync-bytes 1M",
    ];
    let others = [
        ("serve pool --cleaner", "--mode cleaner"),
        ("serve pool --cleaner", "--write-through"),
        ("serve pool --write-through", "--mode cleaner"),
        ("set pool --volume v", "--max-age 1s"),
        ("set pool --volume v", "--checksums false"),
        ("map pin pool f --off", "--from 1M"),
        ("map pin pool f --off", "--to 1M"),
        ("volume add pool w origin", "--flush-every 1s"),
        ("exporter pool --socket s", "--textfile f"),
        ("exporter pool --socket s", "--listen 127.0.0.1:0"),
        ("exporter pool --listen 127.0.0.1:0", "--every 1s"),
    ];
    let pairs = writers.map(|option| (serve, option)).into_iter();
    let pairs = pairs.chain(live.map(|option| (mount, option))).chain(others);
    let b = Bench::new();
    b.make_volume();
    fs::create_dir(b.path("tree")).unwrap();
    for (command, option) in pairs {
        let words: Vec<_> = command.split(' ').chain(option.split(' ')).collect();
        // If the command accepts the options, it serves until it is stopped.
        let mut child = b.command(&words);
        child.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let out = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{command} {option}: {told}");
        let name = option.split(' ').next().unwrap();
        assert!(told.contains(name) || told.contains("--volume"), "{command} {option}: {told}");
    }
    // The default mode is not an option that was given.
    b.run_ok(&["drain", "pool"]);
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

/// No lock keeps a reader from that, so the message says whom to end.
#[test]
fn a_reader_that_locks_an_origin_is_named() {
    let b = Bench::new();
    b.make_volume();
    for (path, mode) in [(b.path("."), 0o755), (b.path("origin"), 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The file is root's, and a user who may only read it has locked it.
    let nobody = 61_857;
    let mut reader = Command::new("flock");
    reader.args(["-s", "-F", "origin", "sleep", "1000"]).current_dir(b.directory());
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        reader.uid(nobody).gid(nobody);
    }
    let mut reader = reader.spawn().unwrap();
    let locked = || {
        let mut tried = Command::new("flock");
        tried.args(["-n", "-x", "origin", "true"]).current_dir(b.directory());
        !tried.status().unwrap().success()
    };
    let start = Instant::now();
    while !locked() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not locked");
    }
    let process = format!("by process {} (sleep) of user ", reader.id());
    for command in ["drain pool", "serve pool", "volume add pool w origin"] {
        let words: Vec<_> = command.split_whitespace().collect();
        let out = b.run(&words);
        assert_eq!(out.code, Some(4), "{command}: {}", out.stderr);
        for says in ["origin: in use", "locked for reading alone", &process, "chmod"] {
            assert!(out.stderr.contains(says), "{command}: no \"{says}\": {}", out.stderr);
        }
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    b.run_ok(&["drain", "pool"]);
}

/// A mount of the loop device writes to the file, and asks for no lock.
#[test]
fn an_origin_that_is_a_loop_device_is_refused() {
    let b = Bench::new();
    b.make_volume();
    let device = match Loop::attach(&b.path("origin"), &[]) {
        Ok(device) => device,
        Err(why) => return forebay_test::skipped!("{why}"),
    };
    let the_disk = format!("the disk of {}", device.path().display());
    let commands = ["drain pool", "volume add pool w origin"];
    let tried = commands.map(|command| b.run(&command.split(' ').collect::<Vec<_>>()));
    drop(device);
    for out in tried {
        assert_eq!(out.code, Some(4), "{out:?}");
        assert!(out.stderr.contains(&the_disk), "{out:?}");
    }
    b.run_ok(&["drain", "pool"]);
}

#[test]
fn a_volume_that_holds_data_is_removed_only_when_told() {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(4096, &[7; 4096]);
    let out = b.run(&["volume", "remove", "pool", "v"]);
    assert_eq!(out.code, Some(12));
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

/// The volume has neither a name nor data that can be trusted.
#[test]
fn a_volume_without_a_good_record_is_removed_by_its_number() {
    let b = Bench::new();
    b.make_volume();
    b.write("other", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "w", "other"]);
    b.write_to_volume(0, &[7; 4096]);
    b.edit("pool", |bytes| [8192, 8448].iter().for_each(|at| bytes[at + 40] ^= 1));
    for words in ["status pool", "volume list pool", "volume remove pool v", "drain pool #0"] {
        let out = b.run(&words.split(' ').collect::<Vec<_>>());
        let told = out.stdout + &out.stderr;
        assert!(told.contains("#0"), "{words}: {told}");
    }
    let out = b.run(&["volume", "remove", "pool", "#0"]);
    assert!(out.code == Some(12) && out.stderr.contains("volume #0: "), "{out:?}");
    for words in ["#2", "#64", "#", "#x"] {
        let out = b.run(&["volume", "remove", "pool", words]);
        assert!(out.code == Some(3) && out.stderr.contains("it has #0, w"), "{out:?}");
    }
    b.run_ok(&["volume", "remove", "pool", "#0", "--discard"]);
    b.run_ok(&["volume", "remove", "pool", "#1"]);
    assert_eq!(b.run_ok(&["check", "pool", "--json"]).code, Some(0));
    // The origin still lacks the data that the volume held.
    let out = b.run(&["volume", "add", "pool", "v", "origin"]);
    assert!(out.code == Some(6) && out.stderr.contains("accept-loss origin"), "{out:?}");
    b.run_ok(&["origin", "accept-loss", "origin"]);
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
}

/// The error states the cause and the way out if an origin takes no writes.
#[test]
fn an_origin_without_space_is_told_as_that() {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(0, &[7; 512 << 10]);
    let drain = b.command(&[
        "drain",
        "pool",
        "--timeout",
        "1s",
        "--origin",
        "v=small/origin",
        "--accept-changed-origin",
        "--accept-mark",
    ]);
    let script = "mkdir small && mount -t tmpfs -o size=64K none small || exit 99; \
                  truncate -s 1M small/origin; exec \"$@\"";
    let mut outer = Command::new(common::APART);
    outer.args([".", "sh", "-c", script, "sh"]).arg(drain.get_program());
    outer.args(drain.get_args()).current_dir(b.directory());
    let out = outer.env("FOREBAY_RUNTIME_DIR", b.path("run")).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    if matches!(out.status.code(), Some(1 | 99)) && !told.contains("forebay:") {
        forebay_test::skipped!("no name space of mounts is to be had");
        return;
    }
    assert_eq!(out.status.code(), Some(7), "{told}");
    for words in ["No space left on device", "free space on the file system of the origin"] {
        assert_eq!(told.matches(words).count(), 2, "while it tries, and at the end: {told}");
    }
}

/// Renames the volume v in both of its records.
fn rename_on_media(b: &Bench, name: &str) {
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
}

const EVIL: &str = "v\x1b[31m\nforged\u{9b}";

fn says_no_controls(what: &str, out: &common::Output) {
    let told = format!("{}{}", out.stdout, out.stderr);
    let bad = told.contains(|c: char| c.is_control() && c != '\n');
    assert!(!bad && !told.contains("\nforged"), "{what}: {told:?}");
}

/// Such names come from damaged media and from arguments.
#[test]
fn control_characters_are_shown_and_do_nothing() {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(0, &[7; 4096]);
    rename_on_media(&b, EVIL);
    b.run_ok(&["origin", "accept-loss", "origin"]);
    for words in [
        "status pool",
        "volume list pool",
        "set pool",
        "check pool",
        "dump volumes pool",
        "dump chunks pool",
        "drain pool x",
        "drain pool --timeout 0.000001s",
        "drain pool",
        "drain pool --accept-mark",
    ] {
        let out = b.run(&words.split(' ').collect::<Vec<_>>());
        says_no_controls(words, &out);
        let names = words != "check pool";
        let shown = (out.stdout + &out.stderr).contains("v\\u{1b}[31m\\nforged");
        assert_eq!(shown, names, "{words}");
    }
    for words in [
        &["status", EVIL][..],
        &["volume", "add", "pool", "w", EVIL],
        &["volume", "add", "pool", EVIL, "other"],
        &["volume", "remove", "pool", "w", EVIL],
        &["serve", "pool", "--origin", EVIL],
        &[EVIL],
    ] {
        let out = b.run(words);
        assert_ne!(out.code, Some(0), "{out:?}");
        says_no_controls(&format!("{words:?}"), &out);
    }
    // It can be addressed by what is shown.
    b.run_ok(&["volume", "remove", "pool", "v\\u{1b}[31m\\nforged\\u{9b}"]);
}

#[test]
fn a_volume_whose_name_is_refused_today_is_removed_by_it() {
    for name in ["-x", "--", ".", ".."] {
        let b = Bench::new();
        b.make_volume();
        rename_on_media(&b, name);
        b.run_ok(&["volume", "remove", "pool", "--", name]);
        assert_eq!(b.run_ok(&["volume", "list", "pool", "--json"]).stdout.trim(), "[]");
    }
}

/// The server of a mount has another current directory than the command that asks it.
#[test]
fn a_directory_of_all_processes_is_named_from_the_root() {
    let b = Bench::new();
    b.make_volume();
    for name in ["FOREBAY_RUNTIME_DIR", "FOREBAY_STATE_DIR"] {
        for words in [&["status", "pool"][..], &["origin", "status", "pool"], &["umount", "x"]] {
            let out = b.command(words).env(name, "state").output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{name} {words:?}: {said}");
            assert!(said.contains(name), "{name} {words:?}: {said}");
        }
    }
    assert!(!b.path("state/forebay").exists());
}
