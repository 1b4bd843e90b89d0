// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin that serves many requests at once and ends them in any order, some not at all for
//! long, some with an error: as many are in flight as there is room for in the buffers' ring,
//! nothing in them changes, and nothing that was acknowledged is lost when the process ends in
//! the middle of it.

use forebay_engine::sys;
use forebay_sim::engine::{identity, volume_spec, Attach, Decision, Engine, Io, Past, Wait};
use forebay_sim::media::{Flavour, Media};
use forebay_sim::origin::{Loss, Origin};
use forebay_sim::pattern;
use forebay_sim::reading::read_volume;
use forebay_sim::rng::Rng;
use forebay_sim::script::data;

const NUMBER: u64 = 1;
/// Chunks with 15 pages of data each.
const CHUNKS: u64 = 128;
const BLOCKS: u64 = CHUNKS * 15 * 3;
const SECTORS: u64 = BLOCKS * 8;
const REQUEST_NS: u64 = 1_000_000;
const STEP_NS: u64 = 20_000;
const EIO: i32 = 5;
/// One request in so many takes fifty times as long, or fails.
const SELDOM: u64 = 400;

struct Run {
    engine: Engine,
    rng: Rng,
    origin: Origin,
    /// The content of each sector.
    truth: Vec<u64>,
    next_id: u64,
    now_ns: u64,
    /// With when each ends.
    in_flight: Vec<(u64, Io)>,
    deepest: usize,
    /// Looks that found fewer in flight than there are to be.
    ring_full: u64,
    failed: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let media = Media::new(((CHUNKS + 1) << 16) as usize, Flavour::NonTemporal);
        let mut run = Self {
            engine: Engine::new(media),
            rng: Rng::new(seed),
            origin: Origin::new(NUMBER, SECTORS, 1),
            truth: vec![1; SECTORS as usize],
            next_id: 2,
            now_ns: 1_000_000_000,
            in_flight: Vec::new(),
            deepest: 0,
            ring_full: 0,
            failed: 0,
        };
        run.engine.format([3; 16], 1 << 16, 1).unwrap();
        run.open();
        run
    }

    fn open(&mut self) {
        self.engine.open_all(&sys::fby_options { nslots: 2, ..Default::default() }).unwrap();
        if self.engine.volume_find("v").is_err() {
            self.engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        }
        // The smallest buffers hold no more than the deepest queue.
        let first = self.next_id == 2;
        let buffer_bytes = 4096 * if first { 4 } else { self.rng.range(2, 5) as u32 };
        let attach = Attach {
            origin_sectors: SECTORS,
            identity: &identity(NUMBER),
            holes: sys::FBY_HOLES_FAIL,
            round_pages: 2048,
            nrequests: 64,
            buffer_bytes,
        };
        self.engine.volume_attach(0, &attach).unwrap();
    }

    fn volume(&self) -> sys::fby_volume_info {
        self.engine.volume_info(0).unwrap()
    }

    /// The request takes effect, where it failed on some sectors.
    fn land(&mut self, io: &Io, ok: bool) {
        match io.op {
            sys::FBY_IO_FLUSH if ok => self.origin.flush_all(),
            sys::FBY_IO_FLUSH => {}
            sys::FBY_IO_WRITE => {
                for (at, bytes) in (io.sector..).zip(io.data.chunks_exact(512)) {
                    if ok || self.rng.one_in(2) {
                        self.origin.write(at, bytes);
                    }
                }
            }
            _ if ok => self.origin.zero(io.sector, io.nsectors),
            _ => {}
        }
    }

    fn issue(&mut self, io: Io) {
        let end = io.sector + io.nsectors;
        let meets = |other: &Io| io.sector < other.sector + other.nsectors && other.sector < end;
        assert!(!self.in_flight.iter().any(|(_, other)| meets(other)), "two writes of a block");
        let slow = if self.rng.one_in(SELDOM) { 50 } else { 1 };
        let takes_ns = REQUEST_NS * slow + self.rng.below(REQUEST_NS / 3);
        self.in_flight.push((self.now_ns + takes_ns, io));
        self.deepest = self.deepest.max(self.in_flight.len());
    }

    fn tick(&mut self) {
        self.now_ns += STEP_NS;
        while let Some(n) = self.in_flight.iter().position(|(end_ns, _)| *end_ns <= self.now_ns) {
            let (_, io) = self.in_flight.swap_remove(n);
            let fails = self.rng.one_in(SELDOM);
            self.failed += u64::from(fails);
            self.land(&io, !fails);
            if fails && io.op == sys::FBY_IO_FLUSH {
                self.origin.power_cut(Loss::Some, &mut self.rng);
            }
            self.engine.destage_complete(io.id, if fails { EIO } else { 0 });
        }
        for _ in 0..200 {
            let step = self.engine.destage_step(self.now_ns).unwrap();
            match step.io {
                Some(io) => self.issue(io),
                None if step.decision == Decision::Again => {}
                None => break,
            }
        }
        let writing = self.volume().destage == sys::FBY_DESTAGE_WRITING;
        let few = self.in_flight.len() < self.volume().origin_depth as usize;
        self.ring_full += u64::from(writing && few && self.in_flight.len() > 16);
    }

    /// Some sectors, or blocks, or a range of zeroes.
    fn client(&mut self) {
        let n = match self.rng.below(10) {
            0 => self.rng.range(1, 8),
            1 => 8 * self.rng.range(1, 8),
            _ => 8,
        };
        let at = match n % 8 {
            0 => 8 * self.rng.below(BLOCKS - 8),
            _ => self.rng.below(SECTORS - 8),
        };
        let id = self.next_id;
        let bytes = data(NUMBER, at..at + n, id);
        let (mut done, mut zeroed) = (0, 0);
        let zeroes = n % 8 == 0 && self.rng.one_in(20);
        for _ in 0..1_000_000 {
            let decision = match zeroes {
                true => {
                    match self.engine.range(0, sys::FBY_KIND_ZERO, at, n, &mut zeroed, &mut 0) {
                        Ok(Past::Done) => Decision::Done,
                        Ok(Past::Wait(wait)) => Decision::Wait(wait),
                        Ok(Past::Origin(past)) => {
                            // Nothing of it is cached.
                            let (at, n) = (at + zeroed, past.nsectors());
                            self.origin.zero(at, n.into());
                            self.truth[at as usize..][..n as usize].fill(pattern::ZERO);
                            zeroed += u64::from(n);
                            self.engine.bypass_end(past, 0, None);
                            match zeroed < bytes.len() as u64 / 512 {
                                true => continue,
                                false => Decision::Done,
                            }
                        }
                        other => panic!("{other:?} of a range"),
                    }
                }
                false => self.engine.write(0, at, &bytes, &mut done, &mut 0).unwrap(),
            };
            match decision {
                Decision::Done => {
                    let id = if zeroes { pattern::ZERO } else { id };
                    self.truth[at as usize..(at + n) as usize].fill(id);
                    self.next_id += 1;
                    return;
                }
                Decision::Wait(Wait::Space) => self.tick(),
                other => panic!("{other:?} of a write"),
            }
        }
        panic!("no space");
    }

    fn judge(&mut self) {
        let ids = read_volume(&mut self.engine, 0, &self.origin).unwrap();
        let wrong = (0..).zip(&ids).zip(&self.truth).find(|((_, id), truth)| id != truth);
        assert!(wrong.is_none(), "sector, what it is, and what it should be: {wrong:?}");
        self.engine.check(true).unwrap();
    }

    /// The process ends, and the origin's power is cut.
    fn crash(&mut self) {
        for (_, io) in std::mem::take(&mut self.in_flight) {
            self.land(&io, false);
        }
        self.engine.abandon();
        self.origin.power_cut(Loss::Some, &mut self.rng);
        self.open();
    }

    fn drain(&mut self) {
        self.engine.volume_drain(0, true).unwrap();
        for _ in 0..10_000_000 {
            self.tick();
            if self.engine.volume_clean(0) && self.in_flight.is_empty() {
                self.origin.power_cut(Loss::All, &mut self.rng);
                let wrong = (0..SECTORS).find(|s| self.origin.read(*s) != self.truth[*s as usize]);
                return assert!(wrong.is_none(), "the drained origin lacks sector {wrong:?}");
            }
        }
        panic!("a drain does not end");
    }
}

#[test]
fn many_requests_in_flight_end_in_any_order() {
    for seed in 1..=2 {
        let mut run = Run::new(seed);
        for _ in 0..2 {
            for _ in 0..24_000 {
                run.client();
                run.tick();
            }
            run.judge();
            run.crash();
            run.judge();
        }
        let told = format!("{} deep, {} full, {} failed", run.deepest, run.ring_full, run.failed);
        println!("seed {seed}: {told}");
        assert!(run.deepest > 32 && run.ring_full > 1000 && run.failed > 10, "{told}");
        run.drain();
    }
}
