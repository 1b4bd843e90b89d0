// SPDX-License-Identifier: MIT OR Apache-2.0
//! States of a pool, as the table of told.rs has them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use forebay::{Generation, LogOptions, Pool, PoolOptions};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use crate::common::{crc32c, Bench, APART};

/// The surroundings of the pool while a command runs.
#[derive(Default)]
pub struct World {
    pub server: Option<Server>,
    /// A command line that runs the actual one.
    pub behind: Vec<String>,
    /// The time limit of a drain, instead of the usual one.
    pub patience: Option<&'static str>,
    pub pool: Option<Pool>,
    /// Some acknowledged data is lost, or belongs to another volume.
    pub hopeless: bool,
    /// Some entries of the log are lost.
    pub log_hopeless: bool,
}

pub struct Server {
    child: Child,
}

impl Server {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        self.child.wait().ok();
    }
}

pub const BLOCKS: u64 = 24;
/// The entries of log l, each in its own generation.
pub const ENTRIES: [&str; 2] = ["the first entry", "the second entry"];

pub fn data(block: u64) -> [u8; 4096] {
    [0xa0 + block as u8; 4096]
}

/// The acknowledged data, as the origin alone should have it.
pub fn expected() -> Vec<u8> {
    let mut all = vec![0; 1 << 20];
    for block in 0..BLOCKS {
        all[block as usize * 4096..][..4096].copy_from_slice(&data(block));
    }
    all
}

pub fn dirty(b: &Bench) -> World {
    b.make_volume();
    b.write("other", &[0; 1 << 20]);
    let all: Vec<_> = (0..BLOCKS).map(|block| (block * 4096, data(block))).collect();
    let all: Vec<_> = all.iter().map(|(at, data)| (*at, &data[..])).collect();
    b.write_all_to_volume(&all);
    b.run_ok(&["log", "create", "pool", "l"]);
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    for entry in ENTRIES {
        log.append(1, Generation::New, &[entry.as_bytes()]).unwrap();
    }
    drop(log);
    pool.close().unwrap();
    World::default()
}

pub fn serve(b: &Bench, pool: &str) -> Server {
    let mut command = b.command(&["serve", pool, "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert!(ready["ready"] == true, "{line}");
    Server { child }
}

pub fn served(b: &Bench) -> World {
    let mut world = dirty(b);
    world.server = Some(serve(b, "pool"));
    world
}

/// The offsets of a block's entry and data.
pub fn place(b: &Bench, block: u64) -> (usize, usize) {
    let options = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open(&b.path("pool"), &options).unwrap();
    let history = pool.block_history("v", block).unwrap();
    let entry = history.entries.iter().find(|e| e.linked).expect("it is cached");
    let sb = pool.superblock().unwrap();
    let (line, data) = (sb.line_at(entry.chunk, entry.page), sb.page_at(entry.chunk, entry.page));
    (line as usize, data as usize)
}

/// Flips a bit of the entry with this body, or of a byte `back` bytes before it.
pub fn damage_log(b: &Bench, body: &str, back: usize) -> World {
    dirty(b);
    b.edit("pool", |bytes| {
        let mut places = bytes.windows(body.len());
        let at = places.position(|w| w == body.as_bytes()).unwrap();
        bytes[at - back] ^= 1;
    });
    World { log_hopeless: true, ..World::default() }
}

pub fn damage_lines(b: &Bench, blocks: &[u64]) {
    let lines: Vec<_> = blocks.iter().map(|block| place(b, *block).0).collect();
    b.edit("pool", |bytes| {
        for line in lines {
            bytes[line + 8..line + 16].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
    });
}

pub fn lost(b: &Bench) -> World {
    dirty(b);
    let at = place(b, 1).1;
    b.edit("pool", |bytes| bytes[at + 1000] ^= 1);
    World { hopeless: true, ..World::default() }
}

pub fn edit_superblocks(b: &Bench, edit: fn(&mut [u8])) {
    b.edit("pool", |bytes| {
        for at in [0, 4096] {
            let sb = &mut bytes[at..at + 512];
            edit(sb);
            let crc = crc32c(&sb[..508]);
            sb[508..].copy_from_slice(&crc.to_le_bytes());
        }
    });
}

/// Runs a command in a mount namespace of its own, after `mount`.
pub fn behind_mount(mount: &str) -> Vec<String> {
    let script = format!("{mount} && exec \"$@\"");
    [APART, ".", "sh", "-c", &script, "sh"].map(String::from).to_vec()
}

pub fn truncate(path: &Path) {
    fs::File::options().write(true).open(path).unwrap().set_len(512 << 10).unwrap();
}

pub fn may_mount() -> bool {
    let tried = Command::new(APART).args([".", "true"]).status();
    tried.is_ok_and(|status| status.success())
}
