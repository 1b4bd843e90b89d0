// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the command works whatever signals its caller ignores or blocks, and map-run gives the
//! program the signals of the caller.  Method: env(1) ignores and blocks them, and the kernel says
//! what a process has.

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::maps::make_map;
use common::nbd::Served;
use common::Bench;

/// SIGCHLD, and SIGTERM, as bits of the kernel's sets.
const CHLD: u64 = 1 << 16;
const TERM: u64 = 1 << 14;
/// The C library keeps these two for its threads.
const OF_THE_LIBRARY: u64 = 0b11 << 31;

/// The command, with signals that its caller ignores or blocks.
fn from(caller: &[&str], command: &Command) -> Command {
    let mut by_env = Command::new("env");
    by_env.args(caller).arg(command.get_program()).args(command.get_args());
    by_env.current_dir(command.get_current_dir().expect("a directory"));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => by_env.env(name, value),
            None => by_env.env_remove(name),
        };
    }
    by_env
}

/// A set of signals, as /proc/PID/status has it.
fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    u64::from_str_radix(line.expect("the set").trim(), 16).expect("a number")
}

#[test]
fn a_server_takes_signals_that_its_caller_ignores_or_blocks() {
    let b = Bench::new();
    b.make_volume();
    let command = Served::command(&b, "pool");
    let command = from(&["--ignore-signal=CHLD", "--block-signal=TERM,INT,HUP,BUS"], &command);
    let mut served = Served::ready(&b, command).expect("it serves");
    let path = format!("/proc/{}/status", served.process.id());
    let (begun, look) = (Instant::now(), || fs::read_to_string(&path).unwrap());
    let mut status = look();
    // The C library blocks all while it starts a thread.
    while set(&status, "SigBlk:") != 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{status}");
        std::thread::sleep(Duration::from_millis(10));
        status = look();
    }
    assert_eq!(set(&status, "SigIgn:") & CHLD, 0, "{status}");
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn the_program_of_map_run_has_the_signals_of_the_caller() {
    let b = Bench::new();
    make_map(&b);
    let look = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"];
    let run =
        b.command(&[&["map-run", "--pool", "pool", "--files", "*.mdb", "--"], &look[..]].concat());
    for caller in [
        &[][..],
        &["--ignore-signal=PIPE,XFSZ,CHLD,QUIT"],
        &["--ignore-signal=HUP", "--block-signal=TERM,USR1,RTMIN"],
    ] {
        let said = |mut command: Command| {
            let out = command.output().unwrap();
            assert!(out.status.success(), "{caller:?}: {out:?}");
            String::from_utf8(out.stdout).unwrap()
        };
        let mut plain = Command::new(look[0]);
        plain.args(&look[1..]).current_dir(b.directory());
        let (plain, followed) = (said(from(caller, &plain)), said(from(caller, &run)));
        for name in ["SigBlk:", "SigIgn:"] {
            let of = |status: &str| set(status, name) & !OF_THE_LIBRARY;
            assert_eq!(of(&plain), of(&followed), "{caller:?}: {plain}{followed}");
        }
        let blocks = caller.iter().any(|option| option.contains("TERM"));
        assert_eq!(set(&plain, "SigBlk:") & TERM != 0, blocks, "{caller:?}: {plain}");
    }
}
