// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever a pool's state, what each command tells of it is true, in
//! words, in JSON and in its exit code.
//!
//! Method: a table with a row for each state and a column for each command that takes a pool.  Each
//! cell is run in a directory of its own.  Both are enums of which the table is an array, so that a
//! new one without its cells does not compile.  The columns are compared with the command's own man
//! pages.  Two more rules hold in every cell.  A drain says "complete" and gives exit code 0 only
//! when the origin holds byte for byte what was acknowledged; a drain of the whole pool gives exit
//! code 0 only when its log holds nothing any more.  And no command dies of a signal.

mod common;
#[path = "told/states.rs"]
mod states;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use common::Bench;
use forebay::{AttachOptions, Pool, PoolOptions};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use states::*;

// --- columns -----------------------------------------------------------------

/// The command line, split at spaces, and its subcommand.
const COMMANDS: [(&str, &str); 26] = [
    ("status", "status pool"),
    ("top", "top pool"),
    ("volume list", "volume list pool"),
    ("check", "check pool"),
    ("dump superblock", "dump superblock pool"),
    ("dump volumes", "dump volumes pool"),
    ("dump chunks", "dump chunks pool"),
    ("dump entries", "dump entries pool 0"),
    ("dump block", "dump block pool v 0"),
    ("drain", "drain pool --timeout 60s"),
    ("drain", "drain pool --timeout 60s --holes isolate"),
    ("drain", "drain pool --timeout 60s --accept-lost"),
    ("drain", "drain pool v --timeout 60s"),
    ("volume add", "volume add pool x other"),
    ("volume remove", "volume remove pool v"),
    ("set", "set pool --bypass-limit 1M"),
    ("exporter", "exporter pool --textfile metrics"),
    ("serve", "serve pool"),
    ("attach", "attach pool v origin"),
    ("set", "set pool"),
    ("log list", "log list pool"),
    ("log show", "log show pool l"),
    ("log dump", "log dump pool l --data"),
    ("log replay", "log replay --dry-run pool l"),
    ("log create", "log create pool x"),
    ("log destroy", "log destroy pool l"),
];
const DRAINS: std::ops::Range<usize> = 9..13;
/// Drains the volume alone: the log's content does not count.
const DRAIN_VOLUME: usize = 12;
const SERVE: usize = 17;
const STATUS: usize = 0;
const CHECK: usize = 3;
const REPLAY: usize = 23;

/// Subcommands that look at no pool of theirs.
const WITHOUT: [&str; 33] = [
    // crates/forebay/src/mark/host.rs
    "origin accept host",
    // tests/medium.rs
    "media info",
    "media test",
    "create",
    "detach",
    "list",
    // tests/maps.rs
    "map add",
    "map list",
    "map status",
    "map recover",
    "map salvage",
    "map drop",
    "map remove",
    // tests/map/shared.sh
    "map pin",
    // tests/map/run.sh
    "map run",
    "origin status",
    "origin accept loss",
    "bench engine",
    "bench recovery",
    "bench read",
    "bench static",
    "bench slots",
    "bench log",
    "bench ssd",
    "bench mount",
    "bench map",
    "mount",
    "umount",
    "replay",
    "unmark",
    "demo",
    "completions",
    "man",
];

// --- rows --------------------------------------------------------------------

/// A state, how it is made, and the exit codes and words of each column.  Words
/// are those of status, of check, of the three drains of the pool and of a log's replay; ""
/// is for nothing in particular.
struct Row {
    state: &'static str,
    make: fn(&Bench) -> World,
    codes: [i32; COMMANDS.len()],
    status: &'static str,
    check: &'static str,
    drains: [&'static str; 3],
    replay: &'static str,
}

const DRAINED: [&str; 3] = ["the origin alone is complete"; 3];

const ROWS: &[Row] = &[
    Row {
        state: "dirty",
        make: dirty,
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 14, 14, 14, 0, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "detached",
        check: "no errors",
        drains: DRAINED,
        replay: "complete: 2 entries",
    },
    Row {
        state: "clean",
        make: |b| {
            dirty(b);
            b.run_ok(&["drain", "pool", "v"]);
            World::default()
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 14, 14, 14, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "detached",
        check: "no errors",
        drains: DRAINED,
        replay: "complete: 2 entries",
    },
    Row {
        state: "a lost block",
        make: lost,
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 11, 11, 14, 11, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 12,
        ],
        status: "",
        check: "4 KiB block 1 is LOST",
        drains: [
            "4 KiB block 1 is LOST",
            "4 KiB block 1 is LOST",
            "4 KiB block 1 is lost and given up",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a partly lost block",
        make: |b| {
            let world = lost(b);
            // One sector of the block is readable again.
            b.write_to_volume(4096 + 512, &[0xa1; 512]);
            world
        },
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 11, 11, 14, 11, 0, 11, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 12,
        ],
        status: "",
        check: "4 KiB block 1 is LOST",
        drains: [
            "4 KiB block 1 is LOST",
            "4 KiB block 1 is LOST",
            "4 KiB block 1 is lost and given up",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a volume whose records are both damaged",
        make: |b| {
            dirty(b);
            b.edit("pool", |bytes| [8192, 8448].iter().for_each(|at| bytes[at + 40] ^= 1));
            World { hopeless: true, ..World::default() }
        },
        codes: [0, 1, 0, 5, 0, 0, 0, 0, 3, 5, 5, 5, 3, 0, 3, 2, 0, 5, 2, 0, 0, 0, 0, 0, 5, 12],
        status: "volume remove POOL '#0' --discard",
        check: "volume remove POOL '#0' --discard",
        drains: [
            "both copies of the volume's record are damaged",
            "both copies of the volume's record are damaged",
            "both copies of the volume's record are damaged",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a lost entry of a known block",
        make: |b| {
            dirty(b);
            damage_lines(b, &[5]);
            World { hopeless: true, ..World::default() }
        },
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 11, 11, 14, 11, 0, 11, 2, 0, 11, 2, 0, 0, 0, 0, 0, 0, 12,
        ],
        status: "",
        check: "entries are LOST",
        drains: ["isolated", "4 KiB block 5 is LOST", "4 KiB block 5 is lost and given up"],
        replay: "complete: 2 entries",
    },
    Row {
        state: "lost entries of unknown blocks",
        make: |b| {
            dirty(b);
            damage_lines(b, &[10, 11]);
            World { hopeless: true, ..World::default() }
        },
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 11, 11, 14, 11, 0, 11, 2, 0, 11, 2, 0, 0, 0, 0, 0, 0, 12,
        ],
        status: "",
        check: "entries are LOST",
        drains: ["holes accepted", "holes accepted", "were accepted"],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a log with a damaged entry",
        make: |b| damage_log(b, ENTRIES[1], 0),
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 14, 14, 14, 0, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 11, 0, 12,
        ],
        status: "to be claimed",
        check: "log l: 0 entries missing, 1 damaged",
        drains: DRAINED,
        replay: "INCOMPLETE after 1 entries",
    },
    Row {
        state: "a log of which an entry cannot be found",
        make: |b| damage_log(b, ENTRIES[1], 64),
        codes: [
            0, 1, 0, 11, 0, 0, 0, 0, 0, 11, 11, 11, 0, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 11, 0, 12,
        ],
        status: "1 entries MISSING",
        check: "log l: 1 entries missing, 0 damaged",
        drains: DRAINED,
        replay: "1 entries MISSING",
    },
    Row {
        state: "a log whose records are both damaged",
        make: |b| {
            dirty(b);
            b.edit("pool", |bytes| [8704, 8960].iter().for_each(|at| bytes[at + 40] ^= 1));
            World { hopeless: true, log_hopeless: true, ..World::default() }
        },
        codes: [0, 1, 0, 5, 0, 0, 0, 0, 0, 5, 5, 5, 0, 0, 12, 2, 0, 0, 2, 0, 0, 5, 5, 5, 5, 5],
        status: "volume remove POOL '#1' --discard",
        check: "volume remove POOL '#1' --discard",
        drains: ["volume #1: NOT complete"; 3],
        replay: "no log l can be read, but both copies of record #1",
    },
    Row {
        state: "a log whose header is with its consumer",
        make: |b| {
            let world = dirty(b);
            b.run_ok(&["log", "destroy", "pool", "l", "--discard"]);
            b.run_ok(&["log", "create", "pool", "l", "--home", "consumer"]);
            world
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 14, 14, 14, 0, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 2, 0, 12],
        status: "to be claimed, its header is with the consumer",
        check: "no errors",
        drains: DRAINED,
        replay: "is with the consumer",
    },
    Row {
        state: "served",
        make: served,
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 14, 14, 2, 0, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "idle",
        check: "in use by process",
        drains: ["the origin alone is complete", "the origin alone is complete", "stop the server"],
        replay: "in use by process",
    },
    Row {
        state: "served, and a block is lost",
        make: |b| {
            let mut world = lost(b);
            world.server = Some(serve(b, "pool"));
            world
        },
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 11, 11, 2, 11, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "",
        check: "in use by process",
        drains: ["4 KiB block 1 is LOST", "4 KiB block 1 is LOST", "stop the server"],
        replay: "in use by process",
    },
    Row {
        state: "served but for one volume",
        make: |b| {
            let mut world = dirty(b);
            b.write("second", &[0; 1 << 20]);
            b.run_ok(&["volume", "add", "pool", "w", "second"]);
            let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
            pool.attach("w", &AttachOptions::default()).unwrap().write_at(&[1; 4096], 0).unwrap();
            pool.close().unwrap();
            fs::remove_file(b.path("second")).unwrap();
            world.server = Some(serve(b, "pool"));
            world.hopeless = true;
            world
        },
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 6, 6, 2, 0, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "origin CHANGED: is not at",
        check: "in use by process",
        drains: [
            "volume w: NOT complete: its origin is not at",
            "volume w: NOT complete: its origin is not at",
            "stop the server",
        ],
        replay: "in use by process",
    },
    Row {
        state: "a copy of a served pool",
        make: |b| {
            let mut world = dirty(b);
            fs::rename(b.path("pool"), b.path("served")).unwrap();
            fs::copy(b.path("served"), b.path("pool")).unwrap();
            world.server = Some(serve(b, "served"));
            world
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 0, 12, 4, 0, 4, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "",
        check: "no errors",
        drains: [
            "is not the pool that is served",
            "is not the pool that is served",
            "is not the pool that is served",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "open in another process",
        make: |b| {
            let mut world = dirty(b);
            world.pool = Some(Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap());
            world
        },
        codes: [4, 1, 4, 4, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 2, 4, 4, 4, 4, 4, 4, 4],
        status: "in use by process",
        check: "in use by process",
        drains: ["in use by process", "in use by process", "in use by process"],
        replay: "in use by process",
    },
    Row {
        state: "an origin that fails",
        make: |b| {
            let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
            let behind = ["sh", "-c", script, "sh"].map(String::from).to_vec();
            World { behind, patience: Some("1s"), ..dirty(b) }
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 0, 12, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "",
        check: "no errors",
        drains: [
            "allow larger files (ulimit -f",
            "allow larger files (ulimit -f",
            "allow larger files (ulimit -f",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "the origin is gone",
        make: |b| {
            let world = dirty(b);
            fs::remove_file(b.path("origin")).unwrap();
            world
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 0, 12, 2, 0, 6, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "origin CHANGED: is not at",
        check: "no errors",
        drains: [
            "it could not be attached: origin",
            "is not there; connect it, or say where it is now (--origin NAME=PATH)",
            "it could not be attached: origin",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "the origin was truncated",
        make: |b| {
            let world = dirty(b);
            truncate(&b.path("origin"));
            world
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 0, 12, 2, 0, 6, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "has 524288 bytes, the volume 1048576: it was truncated",
        check: "no errors",
        drains: ["it was truncated", "it was truncated", "it was truncated"],
        replay: "complete: 2 entries",
    },
    Row {
        state: "the origin was truncated while it is served",
        make: |b| {
            let world = served(b);
            truncate(&b.path("origin"));
            world
        },
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 6, 6, 2, 6, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "volume v: NOT complete: its origin has 524288 bytes, and had 1048576",
        check: "in use by process",
        drains: [
            "has 524288 bytes, and had 1048576",
            "has 524288 bytes, and had 1048576",
            "stop the server",
        ],
        replay: "in use by process",
    },
    Row {
        state: "the origin was deleted while it is served",
        make: |b| {
            let world = served(b);
            fs::remove_file(b.path("origin")).unwrap();
            world
        },
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 6, 6, 2, 6, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "volume v: NOT complete: its origin was deleted",
        check: "in use by process",
        drains: ["/fd/", "/fd/", "stop the server"],
        replay: "in use by process",
    },
    Row {
        state: "the origin was replaced while it is served",
        make: |b| {
            let mut world = served(b);
            fs::rename(b.path("origin"), b.path("moved")).unwrap();
            fs::rename(b.path("other"), b.path("origin")).unwrap();
            b.write("other", &[0; 1 << 20]);
            world.hopeless = true;
            world
        },
        codes: [0, 1, 0, 4, 0, 4, 4, 4, 4, 6, 6, 2, 6, 4, 4, 0, 0, 4, 2, 0, 0, 0, 4, 4, 4, 4],
        status: "volume v: NOT complete: its origin was moved",
        check: "in use by process",
        drains: ["--origin NAME=PATH", "--origin NAME=PATH", "stop the server"],
        replay: "in use by process",
    },
    Row {
        state: "another origin of the same size",
        make: |b| {
            let world = dirty(b);
            fs::rename(b.path("other"), b.path("origin")).unwrap();
            b.write("other", &[0; 1 << 20]);
            world
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 0, 12, 2, 0, 6, 2, 0, 0, 0, 0, 0, 0, 12],
        status: "origin CHANGED: is another",
        check: "no errors",
        drains: [
            "the volume was made for",
            "say so (--accept-changed-origin)",
            "the volume was made for",
        ],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a server that is stopped",
        make: |b| {
            let world = served(b);
            world.server.as_ref().unwrap().signal(Signal::STOP);
            world
        },
        codes: [7, 1, 7, 4, 0, 4, 4, 4, 4, 7, 7, 7, 7, 4, 4, 7, 7, 4, 2, 7, 7, 7, 4, 4, 4, 4],
        status: "control socket",
        check: "in use by process",
        drains: ["control socket", "control socket", "control socket"],
        replay: "in use by process",
    },
    Row {
        state: "a file system mounted read-only",
        make: |b| {
            let mount =
                "mount --bind \"$PWD\" \"$PWD\" && cd \"$PWD\" && mount -o remount,bind,ro .";
            World { behind: behind_mount(mount), ..dirty(b) }
        },
        codes: [0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 2, 9, 9, 2, 0, 0, 0, 0, 0, 9, 9],
        status: "",
        check: "no errors",
        drains: ["mounted read-only", "mounted read-only", "mounted read-only"],
        replay: "complete: 2 entries",
    },
    Row {
        state: "a sparse pool on a full tmpfs",
        make: |b| {
            let mount = "mkdir full && mount -t tmpfs -o size=256K none full && cp --sparse=always pool full/pool; \
                         cd full && (cat /dev/zero >fill 2>/dev/null || true)";
            World { behind: behind_mount(mount), ..dirty(b) }
        },
        codes: [8, 1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 8, 8, 8],
        status: "no space left",
        check: "no space left",
        drains: ["no space left", "no space left", "no space left"],
        replay: "no space left",
    },
    Row {
        state: "a version that is not known",
        make: |b| {
            let world = dirty(b);
            edit_superblocks(b, |sb| sb[8] = 99);
            world
        },
        codes: [
            10, 1, 10, 10, 0, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 2, 10, 10, 2, 10, 10, 10, 10,
            10, 10, 10,
        ],
        status: "version",
        check: "version",
        drains: ["version", "version", "version"],
        replay: "version",
    },
    Row {
        state: "both superblocks damaged",
        make: |b| {
            let world = dirty(b);
            b.edit("pool", |bytes| [100, 4196].iter().for_each(|at| bytes[*at] ^= 1));
            world
        },
        codes: [5, 1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 2, 5, 5, 2, 5, 5, 5, 5, 5, 5, 5],
        status: "superblock",
        check: "superblock",
        drains: ["superblock", "superblock", "superblock"],
        replay: "superblock",
    },
    Row {
        state: "no pool there",
        make: |b| {
            b.write("origin", &[0; 1 << 20]);
            b.write("other", &[0; 1 << 20]);
            World::default()
        },
        codes: [3, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3],
        status: "no such file",
        check: "no such file",
        drains: ["no such file", "no such file", "no such file"],
        replay: "no such file",
    },
];

// --- the test ----------------------------------------------------------------

struct Said {
    code: Option<i32>,
    signal: Option<i32>,
    text: String,
    json: Option<Value>,
}

fn run(b: &Bench, world: &World, column: usize) -> Said {
    let words = COMMANDS[column].1.replace("60s", world.patience.unwrap_or("60s"));
    let words: Vec<_> = words.split(' ').collect();
    let command = b.command(&words);
    let mut behind = world.behind.iter();
    let mut child = match behind.next() {
        None => command,
        Some(program) => {
            let mut outer = Command::new(program);
            outer.args(behind).arg(command.get_program()).args(command.get_args());
            outer.current_dir(b.directory()).stdin(Stdio::null());
            for (key, value) in command.get_envs() {
                match value {
                    Some(value) => outer.env(key, value),
                    None => outer.env_remove(key),
                };
            }
            outer
        }
    };
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut text = String::new();
    if column == SERVE {
        // The server is ready, or it has ended.
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut text).unwrap();
        if !text.is_empty() {
            kill_process(Pid::from_child(&child), Signal::TERM).ok();
        }
        std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    }
    let out = child.wait_with_output().unwrap();
    text += &String::from_utf8_lossy(&out.stdout);
    text += &String::from_utf8_lossy(&out.stderr);
    Said { code: out.status.code(), signal: out.status.signal(), text, json: None }
}

/// Runs one cell; returns what is wrong.
fn cell(row: &Row, column: usize) -> Vec<String> {
    let b = Bench::new();
    let world = (row.make)(&b);
    if world.behind.first().is_some_and(|program| program == common::APART) && !may_mount() {
        return Vec::new();
    }
    let mut said = run(&b, &world, column);
    let mut wrong = Vec::new();
    if said.signal.is_some() || said.code.is_none_or(|code| code > 64) {
        wrong.push(format!("died: code {:?}, signal {:?}", said.code, said.signal));
    }
    if said.code != Some(row.codes[column]) {
        wrong.push(format!("exit code {:?}, not {}", said.code, row.codes[column]));
    }
    if said.code != Some(0) && said.text.trim().is_empty() {
        wrong.push("says nothing".into());
    }
    let words = match column {
        STATUS => row.status,
        CHECK => row.check,
        REPLAY => row.replay,
        _ => "",
    };
    if !said.text.contains(words) {
        wrong.push(format!("does not say {words:?}"));
    }
    if column == REPLAY && said.code == Some(0) && world.log_hopeless {
        wrong.push("exit code 0, and an entry is lost".into());
    }
    if DRAINS.contains(&column) {
        let of_volume = column == DRAIN_VOLUME;
        let words = match (of_volume, said.code) {
            (true, Some(0)) if row.codes[DRAINS.start] != 0 => "alone is complete",
            (true, Some(3)) => "",
            (true, _) => row.drains[0],
            (false, _) => row.drains[column - DRAINS.start],
        };
        if !said.text.contains(words) {
            wrong.push(format!("does not say {words:?}"));
        }
        // The command runs again with --json, and must report the same rest.
        let drained = fs::read(b.path("origin")).is_ok_and(|found| found == expected());
        let claims = said.text.contains("alone is complete");
        let log_left = !of_volume && said.text.contains("log l: NOT drained");
        if claims && !drained {
            wrong.push("says that the origin is complete, and it is not".into());
        }
        if said.code == Some(0)
            && !drained
            && !said.text.contains("given up")
            && !said.text.contains("accepted")
        {
            wrong.push("exit code 0, and the origin is not complete".into());
        }
        if !world.hopeless && (claims && !log_left) != (said.code == Some(0)) {
            wrong.push("its words and its exit code differ".into());
        }
        said.json = again_as_json(&b, &world, column);
        if let Some(json) = &said.json {
            let complete = json["complete"] == true;
            let each = json["volumes"].as_array().unwrap();
            let left = json["logs"].as_array().unwrap();
            let all = each.iter().all(|v| v["complete"] == true) && left.is_empty();
            if complete != all
                || (said.code != Some(0) && complete)
                || (complete && !drained && !world.hopeless)
            {
                wrong.push(format!("JSON says complete: {complete}: {json}"));
            }
        }
    }
    let told = said.text.trim().replace('\n', "\n      ");
    wrong.into_iter().map(|w| format!("{w}\n      {told}")).collect()
}

/// None: the command ended with an error only.
fn again_as_json(b: &Bench, world: &World, column: usize) -> Option<Value> {
    if !world.behind.is_empty() {
        return None;
    }
    let words: Vec<_> = COMMANDS[column].1.split(' ').chain(["--json"]).collect();
    let said: Value = serde_json::from_str(&b.run(&words).stdout).unwrap();
    said.get("error").is_none().then_some(said)
}

const CELL: &str = "FOREBAY_TEST_CELL";

#[test]
fn every_command_tells_the_truth_in_every_state() {
    if !may_mount() {
        forebay_test::skipped!("no name space of mounts is to be had: rows with a mount");
    }
    let cells = ROWS.len() * COMMANDS.len();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| loop {
                let cell = next.fetch_add(1, Ordering::Relaxed);
                if cell >= cells {
                    return;
                }
                if let Some(failure) = cell_in_a_process(cell) {
                    failures.lock().unwrap().push(failure);
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    assert!(failures.is_empty(), "{} of {cells}:\n{}", failures.len(), failures.join("\n"));
}

/// Runs the cell in a separate process: a thread that opens a pool while another forks would
/// find it in use for a moment.
fn cell_in_a_process(cell: usize) -> Option<String> {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "one_cell", "--ignored", "--nocapture"]).env(CELL, cell.to_string());
    let out = test.output().unwrap();
    let (row, column) = (cell / COMMANDS.len(), cell % COMMANDS.len());
    let told = format!(
        "{}: {}: {}{}",
        ROWS[row].state,
        COMMANDS[column].1,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    (!out.status.success()).then_some(told)
}

#[test]
#[ignore = "a part of the test above"]
fn one_cell() {
    let Ok(number) = std::env::var(CELL) else { return };
    let number: usize = number.parse().unwrap();
    let (row, column) = (&ROWS[number / COMMANDS.len()], number % COMMANDS.len());
    let wrong = cell(row, column);
    if !wrong.is_empty() {
        eprintln!("{}", wrong.join("\n"));
        std::process::exit(1);
    }
}

/// No subcommand may be missing from both lists: the columns, and those without a pool.
#[test]
fn every_subcommand_has_its_place() {
    let b = Bench::new();
    b.run_ok(&["man", "man1"]);
    let pages = fs::read_dir(b.path("man1")).unwrap();
    let mut found: BTreeSet<String> = BTreeSet::new();
    for page in pages {
        let name = page.unwrap().file_name().into_string().unwrap();
        let words = name.trim_end_matches(".1").replace('-', " ");
        found.extend(words.strip_prefix("forebay ").map(str::to_owned));
    }
    // Commands with subcommands.
    let groups: Vec<_> = found
        .iter()
        .filter(|name| found.iter().any(|other| other.starts_with(&format!("{name} "))))
        .cloned()
        .collect();
    let hidden = ["demo writer", "systemd generator", "help"];
    let known: BTreeSet<_> = COMMANDS.iter().map(|c| c.0).chain(WITHOUT).collect();
    let missing: Vec<_> = found
        .iter()
        .filter(|name| !groups.contains(name) && !hidden.contains(&name.as_str()))
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no column, and not among those without: {missing:?}");
    let unknown: Vec<_> = known.iter().filter(|name| !found.contains(**name)).collect();
    assert!(unknown.is_empty(), "there is no such subcommand: {unknown:?}");
}
