// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a small grouped pool with a volume, what its damaged forms are, and what each step of
//! a fixed run costs the device: the end of `tests/golden/grouped.txt`.

use std::fmt::Write;

use forebay_engine::groups::{Durable, MediumInfo};
use forebay_engine::{sys, Step as Destage};

use super::bytes::{change, rows, zero, Damage};
use super::explore::settle;
use super::run::UNIT;
use super::scenes::POOL;
use super::ssd::{Engine, Ssd};
use super::volumes::{attach_as, VolumeScene};
use crate::device::Disk;
use crate::engine::Decision;

const CHUNK: usize = 64 << 10;
const BLOCKS: u64 = 4;

fn scene(durable: Durable) -> VolumeScene {
    VolumeScene {
        name: "bytes".into(),
        geometry: POOL,
        durable,
        volumes: 1,
        ops: Vec::new(),
        from: 0,
        faults: 0,
        refusals: 0,
    }
}

/// Sectors that begin with these letters and are zero else, so that the golden file is short.
fn sectors(letters: &str) -> Vec<u8> {
    let sector = |letter: u8| [vec![letter], vec![0; 511]].concat();
    letters.bytes().flat_map(sector).collect()
}

struct Steps<'a> {
    ssd: &'a Ssd,
    engine: Engine,
    out: String,
    before: MediumInfo,
}

impl Steps<'_> {
    fn count(&mut self, what: &str) {
        let (now, was) = (self.engine.medium_info(), self.before);
        let _ = writeln!(
            self.out,
            "{what}: {} groups of {} records, {} writes of {} bytes, {} flushes",
            now.groups - was.groups,
            now.records - was.records,
            now.writes - was.writes,
            now.written_bytes - was.written_bytes,
            now.flushes - was.flushes
        );
        self.before = now;
    }

    fn write(&self, sector: u64, letters: &str) -> Result<(), String> {
        let (data, mut done) = (sectors(letters), 0);
        match self.engine.write(0, sector, &data, &mut done, &mut 0) {
            Ok(Decision::Done) => Ok(()),
            other => Err(format!("write: {other:?}")),
        }
    }

    fn range(&self, kind: u32, block: u64) -> Result<(), String> {
        let past = self.engine.range(0, kind, block * 8, 8, &mut 0, &mut 0);
        past.map(|_| ()).map_err(|e| format!("range: {e}"))
    }

    fn settle(&mut self, what: &str) -> Result<(), String> {
        settle(self.ssd, &self.engine)?;
        self.count(what);
        Ok(())
    }

    fn drain(&mut self) -> Result<(), String> {
        self.engine.volume_drain(0, true).map_err(|e| format!("drain: {e}"))?;
        let mut now_ns = 1;
        for _ in 0..1000 {
            if self.engine.volume_clean(0) {
                return self.settle("destage of all");
            }
            match self.engine.destage_step(now_ns, &mut 0).map_err(|e| format!("step: {e}"))? {
                Destage::Submit(io) => self.engine.destage_complete(io, 0),
                _ => {
                    settle(self.ssd, &self.engine)?;
                    now_ns += 50_000_000;
                }
            }
        }
        Err("the drain does not end".into())
    }
}

fn durable_now(ssd: &Ssd) -> Disk {
    ssd.state().device.cut().durable().clone()
}

/// The requests of each step; the pool with open chunks, and closed.
fn run(durable: Durable) -> Result<(String, [Disk; 2]), String> {
    let scene = scene(durable);
    let ssd = Ssd::new(scene.start()?, durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    attach_as(&engine, 0, sys::FBY_HOLES_FAIL)?;
    let before = engine.medium_info();
    let mut steps = Steps { ssd: &ssd, engine, out: String::new(), before };
    steps.write(0, "aaaaaaaa")?;
    steps.settle("a block, which opens a chunk")?;
    steps.write(8, "bbbbbbbb")?;
    steps.settle("a block")?;
    steps.write(16, "ccccccccdddddddd")?;
    steps.settle("two blocks by one request")?;
    for letters in ["eeeeeeee", "ffffffff"] {
        steps.write(if letters.starts_with('e') { 0 } else { 8 }, letters)?;
    }
    steps.settle("two blocks by two requests")?;
    steps.write(2, "gg")?;
    steps.settle("a part of a block")?;
    steps.range(sys::FBY_KIND_ZERO, 2)?;
    steps.range(sys::FBY_KIND_DISCARD, 3)?;
    steps.settle("zeroes and a discard")?;
    let open = durable_now(&ssd);
    let mut engine = steps.engine;
    let mut tries = 0..8;
    while engine.close_attached().is_err() {
        tries.next().ok_or("the pool does not close")?;
        settle(&ssd, &engine)?;
    }
    let closed = durable_now(&ssd);
    drop(engine);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open again: {e}"))?;
    attach_as(&engine, 0, sys::FBY_HOLES_FAIL)?;
    let before = engine.medium_info();
    let mut steps = Steps { ssd: &ssd, engine, out: steps.out, before };
    for n in 0..12 {
        steps.write(n % 4 * 8, "hhhhhhhh")?;
        settle(&ssd, &steps.engine)?;
    }
    steps.count("twelve blocks, each for itself, in two chunks");
    steps.drain()?;
    Ok((steps.out, [open, closed]))
}

const GROUPS: usize = CHUNK + 3 * UNIT;

/// The first chunk has groups of 1, 1, 2, 2 and 1 records at blocks 3, 5, 7, 10 and 13, of which the
/// pages at blocks 12 and 14 count; the second one has a group of 2 records at block 3.
const DAMAGES: [(&str, Damage); 13] = [
    ("nothing", |_| {}),
    ("the record is gone", |d| zero(d, UNIT)),
    ("the record and its copy are gone", |d| {
        zero(d, UNIT);
        zero(d, CHUNK / 4 + UNIT);
    }),
    ("both open lines are gone", |d| {
        zero(d, CHUNK);
        zero(d, CHUNK + UNIT);
    }),
    ("the header array is gone", |d| zero(d, CHUNK + 2 * UNIT)),
    ("a line of the header array is gone", |d| {
        change(d, CHUNK + 2 * UNIT + 10 * 64, |bytes| bytes[..64].fill(0))
    }),
    ("the lines of the first group cannot be read", |d| d.set(GROUPS / UNIT, None)),
    ("its page cannot be read", |d| d.set(GROUPS / UNIT + 1, None)),
    ("a bit of a page that counts is another", |d| change(d, GROUPS + 11 * UNIT, |b| b[9] ^= 1)),
    ("a bit of the last group line is another", |d| {
        change(d, GROUPS + CHUNK, |bytes| bytes[16] ^= 1)
    }),
    ("the last group line cannot be read", |d| d.set((GROUPS + CHUNK) / UNIT, None)),
    ("the first group lies in place of the second", |d| {
        let first = d.block(GROUPS / UNIT).cloned();
        d.set(GROUPS / UNIT + 2, first);
    }),
    ("two pages have changed places", |d| {
        let (a, b) = (d.block(GROUPS / UNIT + 8).cloned(), d.block(GROUPS / UNIT + 9).cloned());
        d.set(GROUPS / UNIT + 8, b);
        d.set(GROUPS / UNIT + 9, a);
    }),
];

/// A sector as a letter: `.` is of the origin, `0` zeroes, `!` lost.
fn block(engine: &Engine, index: u16, block: u64) -> Result<String, String> {
    let mut buf = [0; 4096];
    let read = engine.read_block(index, block, 0, &mut buf);
    let (origin, lost) = read.masks().map_err(|e| format!("{e}"))?;
    let sectors = buf.chunks_exact(512).enumerate().map(|(k, bytes)| {
        match (lost >> k & 1, origin >> k & 1, bytes[0]) {
            (1, ..) => '!',
            (_, 1, _) => '.',
            (.., 0) => '0',
            (.., letter) => char::from(letter),
        }
    });
    Ok(sectors.collect())
}

fn outcome(ssd: &Ssd, disk: &Disk) -> String {
    ssd.start(disk);
    let (engine, report) = match Engine::open(ssd.media(), &scene(Durable::Flush).options()) {
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
    let index = match attach_as(&engine, 0, sys::FBY_HOLES_ISOLATE) {
        Ok(index) => index,
        Err(e) => return format!("{out}, {e}"),
    };
    for n in 0..BLOCKS {
        let text = block(&engine, index, n).unwrap_or_else(|e| format!("refused: {e}"));
        let _ = write!(out, " {text}");
    }
    out
}

/// The volume's part of the golden file.
pub(super) fn bytes() -> Result<String, String> {
    let mut out = String::new();
    let mut pools = None;
    for durable in [Durable::Flush, Durable::Fua, Durable::Through] {
        let (counts, disks) = run(durable)?;
        let _ = writeln!(out, "[a volume, {durable:?}]\n{counts}");
        pools.get_or_insert(disks);
    }
    let [open, closed] = pools.ok_or("no pool")?;
    rows(&mut out, "a pool with a volume", &Disk::new(UNIT, open.len()), &open);
    rows(&mut out, "the same, closed", &open, &closed);
    let ssd = Ssd::new(open.clone(), Durable::Flush);
    for (state, disk) in [("open", open), ("closed", closed)] {
        let _ = writeln!(out, "[damaged, a volume, {state}]");
        for (what, damage) in DAMAGES {
            let mut disk = disk.clone();
            damage(&mut disk);
            let _ = writeln!(out, "{what}: {}", outcome(&ssd, &disk));
        }
    }
    Ok(out)
}
