// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of each operation on the media: stores, lines, fences and bytes, in a table that is
//! kept in tests/golden/persist.txt.  A difference fails, so a lost or new fence needs a reason
//! in a commit.

use std::fmt::Write as _;

use forebay_engine::logs::Header;
use forebay_engine::sys;
use serde::Serialize;

use crate::engine::{identity, volume_spec, Attach, Decision, Engine, Past, Ticket};
use crate::hooks;
use crate::media::{Counts, Media};
use crate::script::data;

#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub operation: &'static str,
    pub stores: u64,
    pub lines: u64,
    pub fences: u64,
    pub bytes: u64,
}

struct Bench {
    engine: Engine,
    options: sys::fby_options,
    id: u64,
    now_ns: u64,
    costs: Vec<Cost>,
}

type Outcome = Result<(), String>;

const SECTORS: u64 = 1 << 14;
const NUMBER: u64 = 1;

fn text(e: crate::engine::Code) -> String {
    e.to_string()
}

impl Bench {
    fn counts(&self) -> Counts {
        self.engine.media.state().counts
    }

    fn cost(
        &mut self,
        operation: &'static str,
        call: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let before = self.counts();
        call(self).map_err(|e| format!("{operation}: {e}"))?;
        let after = self.counts();
        self.costs.push(Cost {
            operation,
            stores: after.stores - before.stores,
            lines: after.lines - before.lines,
            fences: after.fences - before.fences,
            bytes: after.bytes - before.bytes,
        });
        Ok(())
    }

    fn write(&mut self, sector: u64, n: u64) -> Outcome {
        self.id += 1;
        let bytes = data(NUMBER, sector..sector + n, self.id);
        match self.engine.write(0, sector, &bytes, &mut 0, &mut 0) {
            Ok(Decision::Done) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn range(&mut self, kind: u32, sector: u64, n: u64) -> Outcome {
        match self.engine.range(0, kind, sector, n, &mut 0, &mut 0) {
            Ok(Past::Done) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn bypass(&mut self, sector: u64, n: u32) -> Outcome {
        match self.engine.bypass_begin(0, sector, n, 1) {
            Ok(Past::Origin(b)) if b.nsectors() == n => {
                self.engine.bypass_end(b, 0, None);
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    fn attach(&mut self) -> Outcome {
        let a = Attach {
            origin_sectors: SECTORS,
            identity: &identity(NUMBER),
            holes: sys::FBY_HOLES_FAIL,
            round_pages: 4096,
            nrequests: 4,
            buffer_bytes: 65536,
        };
        self.engine.volume_attach(0, &a).map_err(text)
    }

    fn append(&mut self, txg: u64, bytes: usize) -> Outcome {
        match self.engine.log_append(0, txg, true, &[&vec![7; bytes]], &mut 0).map_err(text)? {
            (Decision::Done, _) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn logs(&mut self) -> Outcome {
        let claim = |b: &mut Self| b.engine.log_claim(0, 0, &mut Header::default()).map_err(text);
        self.cost("log add", |b| b.engine.log_add("l", 0).map(drop).map_err(text))?;
        self.cost("log create", |b| {
            b.engine.log_create(0, &[7; 16], 0, &mut 0).map(drop).map_err(text)
        })?;
        self.append(1, 8)?;
        self.cost("append 128 B", |b| b.append(1, 128))?;
        self.cost("append 100 B", |b| b.append(1, 100))?;
        self.cost("append 4 KiB", |b| b.append(2, 4096))?;
        self.cost("append 64 KiB", |b| b.append(2, 65536))?;
        self.cost("log sync", |b| b.engine.log_sync(0, 1, &mut 0).map(drop).map_err(text))?;
        self.engine.abandon();
        self.cost("recovery, one chunk of a log was open", Bench::open)?;
        self.cost("log claim", |b| claim(b).map(drop))?;
        self.engine.abandon();
        self.open()?;
        let mut nodes = claim(self)?.0;
        self.cost("log replay of two entries", |b| {
            let replay = &mut |_: &_, _: &_| sys::FBY_LOG_REPLAYED;
            b.engine.log_replay(0, &mut nodes, replay).map(drop).map_err(text)
        })?;
        self.cost("log destroy", |b| b.engine.log_destroy(0, &mut 0).map(drop).map_err(text))?;
        self.cost("log remove", |b| b.engine.log_remove(0, false).map(drop).map_err(text))
    }

    fn open(&mut self) -> Outcome {
        self.engine.open_all(&self.options).map(drop).map_err(text)
    }

    /// Until nothing is left; the origin completes at once.
    fn drain(&mut self) -> Outcome {
        self.engine.volume_drain(0, true).map_err(text)?;
        for _ in 0..10_000 {
            self.now_ns += 1000;
            let step = self.engine.destage_step(self.now_ns).map_err(text)?;
            if let Some(io) = step.io {
                self.engine.destage_complete(io.id, 0);
            } else if self.engine.volume_clean(0) && step.decision == Decision::Done {
                return Ok(());
            }
        }
        Err("does not end".into())
    }

    fn tick(&mut self) -> Outcome {
        for _ in 0..2 {
            self.now_ns += 200_000_000;
            self.engine.destage_step(self.now_ns).map_err(text)?;
        }
        Ok(())
    }
}

/// Pool of 8 chunks of 2 MiB, one slot, checksums on.
pub fn measure() -> Result<Vec<Cost>, String> {
    hooks::set_cpu(0);
    let options = sys::fby_options {
        nslots: 1,
        high_watermark: 100,
        low_watermark: 100,
        ..Default::default()
    };
    let mut b = Bench {
        engine: Engine::new(Media::bare(9 * (2 << 20))),
        options,
        id: 1,
        now_ns: 1_000_000_000,
        costs: Vec::new(),
    };
    b.cost("format, 8 chunks, 4 volumes", |b| b.engine.format([7; 16], 2 << 20, 4).map_err(text))?;
    b.cost("open after a clean close", Bench::open)?;
    b.cost("volume add", |b| {
        b.engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).map(drop).map_err(text)
    })?;
    b.cost("attach", Bench::attach)?;
    b.cost("mark of the origin", |b| {
        b.engine.volume_mark(0, sys::FBY_MARK_BEGIN).map_err(text)?;
        b.engine.volume_mark(0, sys::FBY_MARK_SET).map(drop).map_err(text)
    })?;
    b.cost("write 4 KiB, chunk open", |b| b.write(0, 8))?;
    b.cost("write 512 B", |b| b.write(800, 1))?;
    b.cost("write 512 B, merged into a cached page", |b| b.write(3, 1))?;
    b.cost("write 4 KiB", |b| b.write(8, 8))?;
    b.cost("write 4 KiB, unaligned", |b| b.write(84, 8))?;
    b.cost("write 64 KiB", |b| b.write(128, 128))?;
    b.cost("write 1 MiB", |b| b.write(4096, 2048))?;
    b.cost("discard 4 KiB, cached", |b| b.range(sys::FBY_KIND_DISCARD, 0, 8))?;
    b.cost("write zeroes 4 KiB", |b| b.range(sys::FBY_KIND_ZERO, 8, 8))?;
    b.cost("write zeroes 64 KiB", |b| b.range(sys::FBY_KIND_ZERO, 128, 128))?;
    b.cost("flush", |b| {
        let mut ticket = Ticket::default();
        match b.engine.flush_begin(0, &mut ticket).map_err(text)? {
            Decision::Origin => b.engine.flush_end(&mut ticket, 0, &mut 0).map_err(text),
            _ => Ok(()),
        }
    })?;
    b.cost("write 1 MiB past the cache", |b| b.bypass(8192, 2048))?;
    b.cost("housekeeping, one chunk grew", Bench::tick)?;
    b.cost("housekeeping, nothing new", Bench::tick)?;
    b.options.no_checksums = true;
    b.engine.set_options(&b.options).map_err(text)?;
    b.cost("write 4 KiB, no checksums", |b| b.write(8, 8))?;
    b.options.no_checksums = false;
    b.engine.set_options(&b.options).map_err(text)?;
    b.cost("watermark: a drain of one round", Bench::drain)?;
    b.write(0, 8)?;
    b.cost("detach", |b| b.engine.volume_detach(0).map_err(text))?;
    b.cost("clean close", |b| b.engine.close().map_err(text))?;
    b.open()?;
    b.attach()?;
    b.write(0, 8)?;
    b.engine.abandon();
    b.cost("recovery, one chunk was open", Bench::open)?;
    b.engine.abandon();
    b.cost("recovery, nothing was open", Bench::open)?;
    b.cost("volume remove", |b| b.engine.volume_remove(0, true).map(drop).map_err(text))?;
    b.logs()?;
    Ok(b.costs)
}

pub fn table(costs: &[Cost]) -> String {
    let mut out = String::from(
        "# What each operation stores to the media: calls, 64-byte lines, fences, bytes.\n\
         # `forebay-sim golden` compares, `forebay-sim golden --bless` writes this file; a change\n\
         # needs a reason in the commit.  Pool of 8 chunks of 2 MiB, one slot, checksums on.\n",
    );
    let width = costs.iter().map(|c| c.operation.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "{:width$} {:>7} {:>7} {:>7} {:>9}",
        "# operation", "stores", "lines", "fences", "bytes"
    );
    for c in costs {
        let _ = writeln!(
            out,
            "{:width$} {:7} {:7} {:7} {:9}",
            c.operation, c.stores, c.lines, c.fences, c.bytes
        );
    }
    out
}

/// Lines that differ: (kept, measured).
pub fn differences<'a>(kept: &'a str, measured: &'a str) -> Vec<(&'a str, &'a str)> {
    let (mut a, mut b) = (kept.lines(), measured.lines());
    let mut differ = Vec::new();
    loop {
        match (a.next(), b.next()) {
            (None, None) => return differ,
            (x, y) if x != y => differ.push((x.unwrap_or(""), y.unwrap_or(""))),
            _ => {}
        }
    }
}
