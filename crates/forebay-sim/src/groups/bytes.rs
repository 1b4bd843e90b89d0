// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a small grouped pool, while its chunks are open and when it is closed, and what
//! recovery makes of its damaged forms.  `tests/golden/grouped.txt` keeps both: a pool that was
//! made once has to open later as it does now.

use std::fmt::Write;

use forebay_engine::groups::Durable;
use forebay_engine::sys;

use super::explore::settle;
use super::run::{Scene, UNIT};
use super::scenes::POOL;
use super::ssd::{Engine, Ssd};
use super::volume_bytes;
use crate::device::{Block, Disk};
use crate::engine::Decision;
use crate::logs::script::{body, guid, id_of, name};

const ROW: usize = 32;
const CHUNK: usize = 64 << 10;

/// An operation on a pool.
pub(super) type Damage = fn(&mut Disk);

fn scene() -> Scene {
    let (name, ops, durable) = ("bytes".into(), Vec::new(), Durable::Flush);
    Scene { name, geometry: POOL, durable, logs: 2, ops, from: 0, faults: 0 }
}

/// With open chunks, and closed.
fn pools() -> Result<[Disk; 2], String> {
    let scene = scene();
    let ssd = Ssd::new(scene.start()?, scene.durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (mut engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    let now = |ssd: &Ssd| ssd.state().device.cut().durable().clone();
    for log in 0..2 {
        let created = engine.log_create(log as u16, &guid(log, 1), 0, &mut 0);
        created.map_err(|e| format!("create: {e}"))?;
    }
    // Groups of one entry, and of two.
    for (id, (log, next, last)) in
        [(0, true, true), (1, true, true), (0, true, false), (0, false, true)].iter().enumerate()
    {
        match engine.log_append(*log, 1, *next, &[&body(id as u64 + 1, 40)], &mut 0) {
            Ok((Decision::Done, _)) if *last => settle(&ssd, &engine)?,
            Ok((Decision::Done, _)) => {}
            other => return Err(format!("append: {other:?}")),
        }
    }
    let open = now(&ssd);
    for _ in 0..8 {
        if engine.close_attached().is_ok() {
            return Ok([open, now(&ssd)]);
        }
        settle(&ssd, &engine)?;
    }
    Err("the pool does not close".into())
}

fn row(disk: &Disk, at: usize) -> &[u8] {
    let block = disk.block(at / UNIT).expect("a block that can be read");
    &block.bytes()[at % UNIT..][..ROW]
}

/// The rows that are not what they were before.
pub(super) fn rows(out: &mut String, title: &str, before: &Disk, now: &Disk) {
    let _ = writeln!(out, "[{title}]");
    for at in (0..now.bytes()).step_by(ROW).filter(|&at| row(before, at) != row(now, at)) {
        let hex: String = row(now, at).iter().map(|b| format!("{b:02x}")).collect();
        let _ = writeln!(out, "{at:06x} {hex}");
    }
}

pub(super) fn change(disk: &mut Disk, at: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = disk.block(at / UNIT).map_or(vec![0; UNIT], |b| b.bytes().to_vec());
    change(&mut bytes[at % UNIT..]);
    disk.set(at / UNIT, Some(Block::new(&bytes)));
}

pub(super) fn zero(disk: &mut Disk, at: usize) {
    change(disk, at, |bytes| bytes.fill(0));
}

/// Both superblocks, with the right checksum.
fn superblocks(disk: &mut Disk, at: usize, value: u32) {
    for copy in [0, CHUNK / 4] {
        change(disk, copy, |bytes| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let crc = sys::crc32c(0, &bytes[..508]);
            bytes[508..512].copy_from_slice(&crc.to_le_bytes());
        });
    }
}

const FIRST: usize = CHUNK;
const GROUPS: usize = CHUNK + 3 * UNIT;

/// For log 0, which has chunk 0, with a group at block 3 and one at block 4.
const DAMAGES: [(&str, Damage); 18] = [
    ("nothing", |_| {}),
    ("the superblock is gone", |d| zero(d, 0)),
    ("its copy is gone", |d| zero(d, CHUNK / 4)),
    ("both are gone", |d| {
        zero(d, 0);
        zero(d, CHUNK / 4);
    }),
    ("the unit is larger", |d| superblocks(d, 136, 8192)),
    ("a cut tears a batch", |d| superblocks(d, 92, 16)),
    ("the feature bit is gone", |d| superblocks(d, 32, 0)),
    ("a record is gone", |d| zero(d, UNIT)),
    ("a record and its copy are gone", |d| {
        zero(d, UNIT);
        zero(d, CHUNK / 4 + UNIT);
    }),
    ("an open line is gone", |d| zero(d, FIRST)),
    ("the other open line is gone", |d| zero(d, FIRST + UNIT)),
    ("both open lines are gone", |d| {
        zero(d, FIRST);
        zero(d, FIRST + UNIT);
    }),
    ("the header array is gone", |d| zero(d, FIRST + 2 * UNIT)),
    ("the first group cannot be read", |d| d.set(GROUPS / UNIT, None)),
    ("the last group cannot be read", |d| d.set(GROUPS / UNIT + 1, None)),
    ("a bit of a group line is another", |d| change(d, GROUPS + 16, |bytes| bytes[0] ^= 1)),
    ("a bit of the last entry is another", |d| {
        change(d, GROUPS + UNIT + 64 + 192 + 130, |b| b[0] ^= 1)
    }),
    ("the first group lies in place of the last", |d| {
        let first = d.block(GROUPS / UNIT).cloned();
        d.set(GROUPS / UNIT + 1, first);
    }),
];

fn log(engine: &Engine, n: usize) -> Result<String, forebay_engine::Code> {
    let index = engine.log_find(&name(n))?;
    let info = engine.log_info(index)?;
    let mut header = info.header;
    let (mut nodes, claim) = engine.log_claim(index, 0, &mut header)?;
    let (mut ids, mut room, mut bad) = (Vec::new(), Vec::new(), 0);
    let result = engine.log_replay(index, &mut nodes, &mut |node, _| {
        match engine.log_read(index, node, &mut room).ok().and_then(id_of) {
            Some(id) => ids.push(id),
            None => {
                bad += 1;
                return sys::FBY_LOG_DAMAGED;
            }
        }
        sys::FBY_LOG_REPLAYED
    })?;
    let complete = [claim.end, result.end].iter().all(|end| *end == sys::FBY_LOG_COMPLETE);
    Ok(format!(
        "entries {ids:?}, {}{}{}",
        if complete { "complete" } else { "not complete" },
        if info.missing > 0 { format!(", {} missing", info.missing) } else { String::new() },
        if info.incomplete || bad > 0 { ", damaged" } else { "" }
    ))
}

fn outcome(ssd: &Ssd, disk: &Disk) -> String {
    ssd.start(disk);
    let (engine, report) = match Engine::open(ssd.media(), &scene().options()) {
        Ok(opened) => opened,
        Err(e) => return format!("refused: {e}"),
    };
    let mut out = String::from(if report.clean { "clean" } else { "recovered" });
    for (n, what) in [
        (report.chunk_headers_lost, "headers lost"),
        (report.holes, "losses"),
        (report.groups_lost, "durable groups lost"),
    ] {
        if n > 0 {
            let _ = write!(out, ", {n} {what}");
        }
    }
    for n in 0..2 {
        let text = log(&engine, n).unwrap_or_else(|e| format!("refused: {e}"));
        let _ = write!(out, "\n    {}: {text}", name(n));
    }
    out
}

/// The expected content of `tests/golden/grouped.txt`.
pub fn bytes() -> Result<String, String> {
    let [open, closed] = pools()?;
    let mut out = String::new();
    rows(&mut out, "a pool with open chunks", &Disk::new(UNIT, open.len()), &open);
    rows(&mut out, "the same, closed", &open, &closed);
    let ssd = Ssd::new(open.clone(), Durable::Flush);
    for (state, disk) in [("open", open), ("closed", closed)] {
        let _ = writeln!(out, "[damaged, {state}]");
        for (what, damage) in DAMAGES {
            let mut disk = disk.clone();
            damage(&mut disk);
            let _ = writeln!(out, "{what}: {}", outcome(&ssd, &disk));
        }
    }
    out.push_str(&volume_bytes::bytes()?);
    Ok(out)
}
