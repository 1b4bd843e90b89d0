// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: killed or told to end at any point, `create` leaves no file, or a whole pool.  Media that
//! was there keeps what it had, or has a whole new pool (only if `create` was told to force), or is
//! never taken for a pool.
//! Method: kill it after times spread over its whole run.

mod common;

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::Bench;
use rustix::process::{kill_process, Pid, Signal};

const TRIES: u32 = 40;

/// Runs the command and sends it the signal after each of many times.
fn at_any_time(words: &[&str], prepare: impl Fn(&Bench), judge: impl Fn(&Bench)) {
    let whole = {
        let b = Bench::new();
        prepare(&b);
        let start = Instant::now();
        assert!(b.command(words).output().unwrap().status.success());
        judge(&b);
        start.elapsed()
    };
    for signal in [Signal::KILL, Signal::TERM] {
        for n in 0..TRIES {
            let b = Bench::new();
            prepare(&b);
            let mut child =
                (b.command(words)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(whole * n / TRIES);
            // The process may have ended already, and then there is nothing to kill.
            kill_process(Pid::from_child(&child), signal).ok();
            child.wait().unwrap();
            judge(&b);
            no_litter(&b);
        }
    }
}

/// No half-made file under another name, which nobody would ever delete.
fn no_litter(b: &Bench) {
    for entry in fs::read_dir(b.directory()).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(name == "pool" || name == "run", "{name:?} was left behind");
    }
}

const CREATE: [&str; 4] = ["create", "pool", "--size", "64M"];

#[test]
fn of_a_new_file() {
    at_any_time(
        &CREATE,
        |_| {},
        |b| {
            if b.path("pool").exists() {
                b.run_ok(&["check", "pool"]);
            }
        },
    );
}

#[test]
fn over_an_old_pool_with_force() {
    at_any_time(
        &["create", "pool", "--force"],
        |b| _ = b.run_ok(&CREATE),
        |b| {
            let out = b.run(&["check", "pool"]);
            let refused = matches!(out.code, Some(3 | 5));
            assert!(out.code == Some(0) || refused, "{}", out.stderr);
        },
    );
}

#[test]
fn an_old_pool_without_force_is_untouched() {
    let b = Bench::new();
    b.run_ok(&CREATE);
    let before = fs::read(b.path("pool")).unwrap();
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        let mut child = b.command(&CREATE).stderr(Stdio::null()).spawn().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(fs::read(b.path("pool")).unwrap() == before);
}
