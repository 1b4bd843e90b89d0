// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no command overwrites or removes what something that can be seen waits for.  Method: a
//! table of the commands, for an origin, a mapped file and a mounted tree after a crash.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::maps::{crashed, make_map};
use common::Bench;
use forebay::{AttachOptions, Pool, PoolOptions};

/// A pool, and what waits for it.
struct Case {
    b: Bench,
    what: &'static str,
    /// The command that removes the holder of the data from the pool.
    remove: &'static [&'static str],
    /// Commands that give up the data in the pool, and commands that write it back.
    give_up: Vec<&'static str>,
    write_back: Vec<&'static str>,
}

impl Case {
    fn refused(&self, words: &[&str], code: i32, says: &[&str]) {
        self.judge(words, code, says, "").unwrap();
    }

    /// Runs the command with a mistake of crates/forebay/src/planted.rs, or with none.
    fn judge(&self, words: &[&str], code: i32, says: &[&str], bug: &str) -> Result<(), String> {
        let before = fs::read(self.b.path("pool")).unwrap();
        let out = self.b.command(words).env("FOREBAY_PLANTED", bug).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        let wrong = |why: &str| Err(format!("{}: {words:?}: {why}: {out:?}", self.what));
        if out.status.code() != Some(code) {
            return wrong("another exit code");
        }
        if let Some(text) = says.iter().find(|text| !stderr.contains(**text)) {
            return wrong(&format!("no {text}"));
        }
        let now = fs::read(self.b.path("pool")).unwrap();
        // A clean open changes only the superblock.
        match now[1 << 16..] == before[1 << 16..] {
            true => Ok(()),
            false => wrong("it was written"),
        }
    }
}

fn volume() -> Case {
    let b = Bench::on_disk();
    b.make_volume();
    b.write_to_volume(0, &[7; 4096]);
    Case {
        b,
        what: "origin",
        remove: &["volume", "remove", "pool", "v"],
        give_up: vec!["origin", "accept-loss", "origin"],
        write_back: vec!["drain", "pool"],
    }
}

/// A crash leaves a page of the file in the pool.
fn mapped() -> Case {
    let b = Bench::on_disk();
    make_map(&b);
    crashed(&b, "file");
    Case {
        b,
        what: "file",
        remove: &["map", "remove", "pool", "db"],
        give_up: vec!["origin", "accept-loss", "file"],
        write_back: vec!["map", "recover", "pool"],
    }
}

/// A kill of the server leaves a dead mount over the tree.
fn tree() -> Option<Case> {
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/dev/fuse").exists() {
        forebay_test::skipped!("a tree that waits needs root and /dev/fuse");
        return None;
    }
    let b = Bench::on_disk();
    b.make_pool();
    fs::create_dir(b.path("tree")).unwrap();
    b.run_ok(&["mount", "pool", "tree", "--sync-interval", "1h"]);
    fs::write(b.path("tree/a"), b"precious").unwrap();
    fs::File::open(b.path("tree/a")).unwrap().sync_all().unwrap();
    let status = b.run_ok(&["status", "pool", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while rustix::process::test_kill_process(pid).is_ok()
        && !fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .is_ok_and(|stat| stat.contains(") Z "))
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(Case {
        b,
        what: "tree",
        remove: &["log", "destroy", "pool", "mount"],
        give_up: vec!["unmark", "tree", "--accept-loss"],
        write_back: vec!["replay", "pool", "tree"],
    })
}

fn unmounted(case: &Case) {
    if case.what == "tree" {
        let done = Command::new("umount").arg("-il").arg(case.b.path("tree")).status().unwrap();
        assert!(done.success());
    }
}

fn cases() -> Vec<Case> {
    [Some(volume()), Some(mapped()), tree()].into_iter().flatten().collect()
}

const OVERWRITE: [&[&str]; 2] = [
    &["create", "pool", "--force"],
    &["media-test", "pool", "--server", "127.0.0.1:1", "--overwrite"],
];

#[test]
fn nothing_overwrites_a_pool_that_is_waited_for() {
    for case in cases() {
        if case.what == "tree" {
            let says = ["tree waits for it: its server has died", "forebay replay pool"];
            case.refused(OVERWRITE[0], 14, &says);
        }
        unmounted(&case);
        let home = case.write_back[..case.write_back.len().min(2)].join(" ");
        let gives_up =
            case.give_up.iter().find(|word| word.contains("mark") || word.contains("loss"));
        let gives_up = gives_up.unwrap();
        for words in OVERWRITE {
            case.refused(words, 14, &[&format!("{} waits for it", case.what), &home, gives_up]);
        }
        // Every command that would lose data without an order to ends with this code.
        case.refused(&["create", "pool"], 12, &["--force"]);
        let kept = case.b.run(case.remove);
        assert!(kept.code == Some(12) && kept.stderr.contains("--discard"), "{kept:?}");
        // Nothing waits any more for a pool whose data was written back.
        case.b.run_ok(&case.write_back);
        let made = case.b.run_ok(OVERWRITE[0]);
        assert!(made.stderr.is_empty(), "{}: {made:?}", case.what);
    }
}

/// Each mistake lets each command overwrite a pool that something waits for.
#[test]
fn each_mistake_is_found() {
    let case = |what: &str| match what {
        "origin" => Some(volume()),
        "file" => Some(mapped()),
        _ => tree(),
    };
    for (bug, what) in [
        ("OriginNotAwaited", "origin"),
        ("PlaceNotAwaited", "file"),
        ("OthersNotAsked", "file"),
        ("OthersNotAsked", "tree"),
    ] {
        // media-test comes first: without a receiver it writes nothing.
        let Some(case) = case(what) else { continue };
        unmounted(&case);
        for words in OVERWRITE.iter().rev() {
            let says = format!("{what} waits for it");
            case.refused(words, 14, &[&says]);
            let found = case.judge(words, 14, &[&says], bug);
            println!("{bug}: {}", found.expect_err("it is not found"));
        }
    }
}

#[test]
fn what_is_given_up_is_named() {
    for case in cases() {
        unmounted(&case);
        case.b.run_ok(&case.give_up);
        let made = case.b.run_ok(OVERWRITE[0]);
        for text in ["this gives up", case.what] {
            assert!(made.stderr.contains(text), "{}: {made:?}", case.what);
        }
    }
}

#[test]
fn a_tree_that_is_not_there_does_not_wait() {
    let Some(case) = tree() else { return };
    unmounted(&case);
    fs::rename(case.b.path("tree"), case.b.path("away")).unwrap();
    let made = case.b.run_ok(OVERWRITE[0]);
    assert!(made.stderr.contains("not there or not marked"), "{made:?}");
}

/// The origin is there, and nobody can see whether it is marked.
fn hidden(case: &Case) {
    fs::rename(case.b.path("origin"), case.b.path("hidden")).unwrap();
    std::os::unix::fs::symlink("origin", case.b.path("origin")).unwrap();
}

/// An error of the look is not the answer that nobody waits.
#[test]
fn a_pool_whose_origin_cannot_be_seen_is_waited_for() {
    let case = volume();
    case.b.run_ok(&["origin", "accept-loss", "origin"]);
    hidden(&case);
    let says =
        ["it cannot be seen whether", "origin waits for it: ", "forebay drain", "blkdiscard -z"];
    for words in OVERWRITE.iter().rev() {
        case.refused(words, 14, &says);
        let found = case.judge(words, 14, &says, "UnseenIsNotAwaited");
        println!("UnseenIsNotAwaited: {}", found.expect_err("it is not found"));
    }
}

/// After a kill nobody has counted yet what a static volume holds.
#[test]
fn a_pool_with_an_uncounted_static_volume_is_waited_for() {
    let b = Bench::on_disk();
    b.run_ok(&["create", "pool", "--size", "32M", "--static", "4M"]);
    b.write("origin", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "v", "origin", "--static", "1M"]);
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
    volume.write_at(&[7; 4096], 0).unwrap();
    fs::copy(b.path("pool"), b.path("crashed")).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
    fs::rename(b.path("crashed"), b.path("pool")).unwrap();
    let case = Case { b, what: "origin", remove: &[], give_up: Vec::new(), write_back: Vec::new() };
    case.b.run_ok(&["origin", "accept-loss", "origin"]);
    hidden(&case);
    for words in OVERWRITE.iter().rev() {
        case.refused(words, 14, &["it cannot be seen whether", "origin waits for it: "]);
    }
    fs::remove_file(case.b.path("origin")).unwrap();
    let made = case.b.run_ok(OVERWRITE[0]);
    assert!(made.stderr.contains("an unknown number of bytes of volume v"), "{made:?}");
}

/// The file of a damaged record is there and marked, and nobody can say which one it is.
#[test]
fn a_pool_with_a_damaged_record_of_a_mapped_file_is_waited_for() {
    let case = mapped();
    let (path, mut bytes) = (case.b.path("pool"), fs::read(case.b.path("pool")).unwrap());
    let name = case.b.path("file");
    let name = name.as_os_str().as_encoded_bytes();
    let found = bytes.windows(name.len()).enumerate().filter(|(_, bytes)| *bytes == name);
    let places: Vec<usize> = found.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "no record has the file's path");
    for at in places {
        bytes[at + name.len() - 1] ^= 1;
    }
    fs::write(&path, bytes).unwrap();
    for words in OVERWRITE.iter().rev() {
        case.refused(words, 14, &["it cannot be seen whether", "its record is damaged"]);
    }
}

/// A lock that another process has for a moment keeps the look from the pool, and is gone when the
/// pool would be written.
#[test]
fn a_pool_that_was_locked_during_the_look_is_not_overwritten() {
    let case = volume();
    for held_ms in [150, 250, 350] {
        let pool = fs::File::open(case.b.path("pool")).unwrap();
        rustix::fs::flock(&pool, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(held_ms));
            drop(pool);
        });
        let out = case.b.run(OVERWRITE[0]);
        release.join().unwrap();
        assert!(matches!(out.code, Some(4 | 14)), "{held_ms} ms: {out:?}");
    }
}

/// No command calls an origin complete that it cannot look at.
#[test]
fn an_origin_that_cannot_be_seen_is_not_called_complete() {
    let case = volume();
    case.b.run_ok(&["drain", "pool"]);
    let status = |bug: &str| {
        let words = ["status", "pool", "--json"];
        let out = case.b.command(&words).env("FOREBAY_PLANTED", bug).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        status["volumes"][0]["verdict"].as_str().unwrap_or_default().to_string()
    };
    assert_eq!(status(""), "complete");
    hidden(&case);
    assert_eq!(status(""), "unknown");
    let drained = case.b.run(&["status", "pool"]);
    println!("{drained:?}");
    assert_eq!(status("UnseenIsComplete"), "complete", "the mistake shows");
}
