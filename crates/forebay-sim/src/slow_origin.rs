// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin that works, but so slowly that each round of destage takes seconds, and a drain
//! while writers overwrite what is hot, in a pool of many dead pages: the drain ends.

use std::collections::BTreeSet;

use forebay_engine::sys;

use crate::engine::{identity, small_attach, volume_spec, Attach, Decision, Engine, Wait};
use crate::media::{Flavour, Media};
use crate::rng::Rng;
use crate::script::data;

const NUMBER: u64 = 1;
/// Chunks with 15 pages of data each.
const CHUNKS: u64 = 64;
const SECTORS: u64 = CHUNKS * 15 * 2 * 8;
/// Blocks that are written but once, and those that are written again and again.
const COLD: u64 = 150;
const HOT: u64 = 250;
const TICK_NS: u64 = 2_000_000;
const SECOND_NS: u64 = 1_000_000_000;

struct Run {
    engine: Engine,
    rng: Rng,
    request_ns: u64,
    flush_ns: u64,
    now_ns: u64,
    /// The origin serves one request after the other, and is free then.
    free_ns: u64,
    /// When each ends, its number, and its blocks.
    in_flight: Vec<(u64, u32, std::ops::Range<u64>)>,
    /// Blocks that the origin has been sent.
    destaged: BTreeSet<u64>,
    /// The writer, who is throttled.
    due_ns: u64,
    next_id: u64,
}

impl Run {
    fn new(request_ns: u64, flush_ns: u64) -> Self {
        let media = Media::new(((CHUNKS + 1) << 16) as usize, Flavour::NonTemporal);
        let mut engine = Engine::new(media);
        engine.format([3; 16], 1 << 16, 1).unwrap();
        engine.open_all(&sys::fby_options { nslots: 1, ..Default::default() }).unwrap();
        engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        let identity = identity(NUMBER);
        let memory = Attach { nrequests: 64, ..small_attach(SECTORS, &identity, 1024) };
        engine.volume_attach(0, &memory).unwrap();
        Self {
            engine,
            rng: Rng::new(3),
            request_ns,
            flush_ns,
            now_ns: SECOND_NS,
            free_ns: 0,
            in_flight: Vec::new(),
            destaged: BTreeSet::new(),
            due_ns: 0,
            next_id: 2,
        }
    }

    fn tick(&mut self) {
        self.now_ns += TICK_NS;
        for (end_ns, id, blocks) in std::mem::take(&mut self.in_flight) {
            if end_ns > self.now_ns {
                self.in_flight.push((end_ns, id, blocks));
                continue;
            }
            self.destaged.extend(blocks);
            self.engine.destage_complete(id, 0);
        }
        loop {
            let step = self.engine.destage_step(self.now_ns).unwrap();
            match step.io {
                Some(io) => {
                    let flush = io.op == sys::FBY_IO_FLUSH;
                    let takes_ns = if flush { self.flush_ns } else { self.request_ns };
                    self.free_ns = self.free_ns.max(self.now_ns) + takes_ns;
                    let blocks = io.sector / 8..(io.sector + io.nsectors) / 8;
                    self.in_flight.push((self.free_ns, io.id, blocks));
                }
                None if step.decision == Decision::Again => {}
                None => return,
            }
        }
    }

    /// False: there is no space.
    fn write(&mut self, block: u64) -> bool {
        let bytes = data(NUMBER, block * 8..block * 8 + 8, self.next_id);
        match self.engine.write(0, block * 8, &bytes, &mut 0, &mut 0).unwrap() {
            Decision::Done => {
                self.next_id += 1;
                self.due_ns = self.now_ns + self.engine.write_delay(0, 8, self.now_ns);
                true
            }
            Decision::Wait(Wait::Space) => false,
            other => panic!("{other:?} of a write"),
        }
    }
}

/// Milliseconds of a request and of a flush.
fn drain_ends(request_ms: u64, flush_ms: u64) -> Result<(), String> {
    let mut run = Run::new(request_ms * 1_000_000, flush_ms * 1_000_000);
    let mut order: Vec<u64> = (0..COLD + HOT).map(|n| 2 * n).collect();
    for n in (1..order.len()).rev() {
        let other = run.rng.below(n as u64 + 1) as usize;
        order.swap(n, other);
    }
    for &block in &order {
        while !run.write(block) {
            run.tick();
        }
    }
    let upto = run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
    // Twice the time for all pages one by one, and for so many flushes.
    let most_ns = 2 * ((COLD + HOT) * run.request_ns + 8 * run.flush_ns);
    let began_ns = run.now_ns;
    loop {
        run.tick();
        if run.due_ns <= run.now_ns {
            let block = 2 * (COLD + run.rng.below(HOT));
            run.write(block);
        }
        if run.engine.volume_clean(0) || run.engine.volume_info(0).unwrap().home >= upto {
            break;
        }
        if run.now_ns - began_ns > most_ns {
            return Err(format!(
                "a drain has not ended after {} s, before an origin that takes {request_ms} ms for a request and {flush_ms} ms for a flush",
                most_ns / SECOND_NS
            ));
        }
        // As hosts do: it ends when there is nothing to do for a moment.
        run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
    }
    match (0..COLD).filter(|n| !run.destaged.contains(&(2 * n))).count() {
        0 => run.engine.check(true),
        left => Err(format!("a drain has ended, and {left} blocks are not on the origin")),
    }
}

pub fn drains_end() -> Result<(), String> {
    drain_ends(5, 4000)?;
    drain_ends(100, 5000)?;
    drain_ends(200, 3000)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_drain_before_a_slow_origin_ends_while_writers_go_on() {
        super::drains_end().unwrap();
    }
}
