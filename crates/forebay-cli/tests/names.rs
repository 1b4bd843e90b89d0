// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a pool has one user at a time, whatever names its bytes have.  Method: a pool in a file,
//! its loop devices, and one over a loop device; who has it by one name, and each command by each
//! other name.  The pool is as it was after all of them.

mod common;

use std::fs;
use std::path::Path;

use common::Bench;
use forebay::Pool;
use forebay_test::Loop;

/// Words of commands that open a pool; POOL is its name.
const COMMANDS: [&str; 6] = [
    "check POOL",
    "serve POOL",
    "drain POOL",
    "mount POOL tree",
    "volume add POOL w other",
    "create POOL --medium ssd --force",
];

fn bench() -> Bench {
    let b = Bench::on_disk();
    b.run_ok(&["create", "pool", "--size", "16M", "--chunk-size", "64K", "--medium", "ssd"]);
    for origin in ["origin", "other"] {
        b.write(origin, &[0; 1 << 20]);
    }
    fs::create_dir(b.path("tree")).unwrap();
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    b
}

/// A loop device over a file.  Without one the test ends, which is reported.
macro_rules! loop_over {
    ($file:expr, $options:expr) => {
        match Loop::attach($file, $options) {
            Ok(device) => device,
            Err(why) => return forebay_test::skipped!("{why}"),
        }
    };
}

/// Each command by this name is refused with the code, and says so.
fn refused(b: &Bench, case: &str, name: &Path, code: i32, says: &str) {
    let name = name.to_str().unwrap();
    // A disk whose file is gone is none for a new pool, and that is said first.
    let commands = if code == 2 { &COMMANDS[..COMMANDS.len() - 1] } else { &COMMANDS };
    for command in commands {
        let words: Vec<_> =
            command.split(' ').map(|w| if w == "POOL" { name } else { w }).collect();
        let out = b.run(&words);
        assert_eq!(out.code, Some(code), "{case}: {words:?}: {out:?}");
        assert!(out.stderr.contains(says), "{case}: {words:?}: no \"{says}\": {out:?}");
    }
}

/// The module is not asked to attach it.
fn not_attached(b: &Bench, case: &str, name: &Path, code: i32, says: &str) {
    let origin = loop_over!(&b.path("other"), &[]);
    let words = ["attach", name.to_str().unwrap(), "v", origin.path().to_str().unwrap()];
    let control = b.path("none");
    let out = b.command(&words).env("FOREBAY_CONTROL", control).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{case}: {words:?}: {said}");
    assert!(said.contains(says), "{case}: {words:?}: no \"{says}\": {said}");
}

#[test]
fn a_pool_is_opened_by_one_of_its_names() {
    let b = bench();
    let file = b.path("pool");
    let me = format!("process {}", std::process::id());
    let same = |device: &Loop| format!("{} has the same bytes", device.path().display());
    let disk = |device: &Loop| format!("it is the disk of {}", device.path().display());
    // The file is open as a pool; its loop device, and one over that.
    let pool = Pool::open(&file, &Default::default()).unwrap();
    let one = loop_over!(&file, &[]);
    let before = fs::read(&file).unwrap();
    refused(&b, "the file is open", one.path(), 4, &me);
    not_attached(&b, "the file is open", one.path(), 4, &me);
    let upper = loop_over!(one.path(), &[]);
    refused(&b, "the file is open", upper.path(), 4, &me);
    not_attached(&b, "the file is open", upper.path(), 4, &me);
    assert!(fs::read(&file).unwrap() == before, "something was written to a pool in use");
    drop(upper);
    pool.close().unwrap();
    // Nobody has it open; the module may have a loop device.
    refused(&b, "it has a loop device", &file, 4, &disk(&one));
    {
        let two = loop_over!(&file, &[]);
        refused(&b, "it has two", one.path(), 4, &same(&two));
        refused(&b, "it has two", two.path(), 4, &same(&one));
        not_attached(&b, "it has two", two.path(), 4, &same(&one));
    }
    {
        let upper = loop_over!(one.path(), &[]);
        refused(&b, "it has one over one", one.path(), 4, &disk(&upper));
        not_attached(&b, "it has one over one", one.path(), 4, &disk(&upper));
    }
    // A loop device is open as a pool.
    let pool = Pool::open(one.path(), &Default::default()).unwrap();
    refused(&b, "the device is open", &file, 4, &me);
    {
        let two = loop_over!(&file, &[]);
        let before = fs::read(&file).unwrap();
        refused(&b, "the device is open", two.path(), 4, &me);
        not_attached(&b, "the device is open", two.path(), 4, &me);
        assert!(fs::read(&file).unwrap() == before, "something was written to a pool in use");
    }
    pool.close().unwrap();
    // One name alone is opened, and the module is asked.
    b.run_ok(&["check", one.path().to_str().unwrap()]);
    b.run_ok(&["drain", one.path().to_str().unwrap()]);
    not_attached(&b, "one name", one.path(), 10, "not loaded");
    // It is found where it was moved to.  What cannot be looked at is no answer.
    let moved = b.path("moved");
    fs::rename(&file, &moved).unwrap();
    fs::write(&file, "another").unwrap();
    b.run_ok(&["check", one.path().to_str().unwrap()]);
    fs::remove_file(&moved).unwrap();
    refused(&b, "its file is gone", one.path(), 2, "cannot be looked at");
    not_attached(&b, "its file is gone", one.path(), 2, "cannot be looked at");
}

/// A server that somebody does not know of may have the pool by a name that is not known as one.  It
/// has the origins, too.
#[test]
fn a_server_without_origins_has_written_nothing() {
    let b = bench();
    let one = loop_over!(&b.path("pool"), &[]);
    let name = one.path().to_str().unwrap();
    b.run_ok(&["volume", "add", name, "w", "other"]);
    let [origin, other] =
        ["origin", "other"].map(|o| forebay::FileOrigin::open(&b.path(o), false).unwrap());
    let before = fs::read(b.path("pool")).unwrap();
    let out = b.run(&["serve", name]);
    assert_eq!(out.code, Some(4), "{out:?}");
    assert!(out.stderr.contains(&format!("process {}", std::process::id())), "{out:?}");
    assert!(fs::read(b.path("pool")).unwrap() == before, "the refused server has written");
    // One of them is free: it serves that.
    drop(other);
    let mut server = b.command(&["serve", name, "--ready-file", "ready"]).spawn().unwrap();
    while !b.path("ready").exists() && server.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(b.path("ready").exists() && server.wait().unwrap().success());
    drop(origin);
}

/// Pools in two parts of a file, and a pool in one of them by two names.
#[test]
fn parts_of_a_file_are_pools_of_their_own() {
    let b = bench();
    let file = b.path("image");
    fs::write(&file, vec![0; 32 << 20]).unwrap();
    let low = ["--sizelimit", "16777216"];
    let high = ["--offset", "16777216"];
    let one = loop_over!(&file, &low);
    let two = loop_over!(&file, &high);
    let name = |device: &Loop| device.path().to_str().unwrap().to_string();
    for device in [&one, &two] {
        b.run_ok(&["create", &name(device), "--chunk-size", "64K", "--medium", "ssd"]);
    }
    let open = |device: &Loop| Pool::open(device.path(), &Default::default()).unwrap();
    let both = [open(&one), open(&two)];
    for pool in both {
        pool.close().unwrap();
    }
    let middle = ["--offset", "8388608", "--sizelimit", "16777216"];
    let across = loop_over!(&file, &middle);
    for device in [&one, &two] {
        refused(&b, "two overlap", device.path(), 4, &format!("{} has the same", name(&across)));
    }
}
