// SPDX-License-Identifier: MIT OR Apache-2.0
//! A volume that holds some of everything, drained while its origin fails.

use std::ops::Range;

use crate::engine::{identity, small_attach, volume_spec, Decision, Engine, Io, Past, Ticket};
use crate::media::{Flavour, Media};
use crate::origin::{Loss, Origin};
use crate::pattern;
use crate::reading::read_volume;
use crate::rng::Rng;
use crate::script::data;
use forebay_engine::sys;

pub const SECTORS: u64 = 240;
const NUMBER: u64 = 1;
pub const EIO: i32 = 5;
/// Steps of destage in which a drain must end.
const STEPS: u32 = 5000;

pub struct Run {
    pub engine: Engine,
    pub origin: Origin,
    /// The content of each sector.
    pub truth: Vec<u64>,
    now_ns: u64,
}

impl Default for Run {
    fn default() -> Self {
        Self::new()
    }
}

impl Run {
    pub fn new() -> Self {
        let media = Media::new(9 << 16, Flavour::NonTemporal);
        let mut run = Self {
            engine: Engine::new(media),
            origin: Origin::new(NUMBER, SECTORS, 1),
            truth: vec![1; SECTORS as usize],
            now_ns: 1_000_000_000,
        };
        run.engine.format([3; 16], 1 << 16, 2).unwrap();
        run.engine.open_all(&sys::fby_options::default()).unwrap();
        run.engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        run.attach();
        run.write(2, 0, 40);
        run.write(3, 13, 2);
        run.write(4, 64, 8);
        run.write(5, 80, 8);
        run.write(6, 100, 20);
        run.range(sys::FBY_KIND_ZERO, 16, 8);
        run.range(sys::FBY_KIND_DISCARD, 64, 8);
        run.range(sys::FBY_KIND_DISCARD, 104, 8);
        run
    }

    pub fn attach(&mut self) {
        let identity = identity(NUMBER);
        self.engine.volume_attach(0, &small_attach(SECTORS, &identity, 16)).unwrap();
    }

    pub fn write(&mut self, id: u64, at: u64, n: u64) {
        let bytes = data(NUMBER, at..at + n, id);
        assert_eq!(self.engine.write(0, at, &bytes, &mut 0, &mut 0), Ok(Decision::Done));
        self.truth[at as usize..(at + n) as usize].fill(id);
    }

    pub fn range(&mut self, kind: u32, at: u64, n: u64) {
        let r = self.engine.range(0, kind, at, n, &mut 0, &mut 0);
        assert!(matches!(r, Ok(Past::Done)), "{r:?}");
        self.truth[at as usize..(at + n) as usize].fill(pattern::ZERO);
    }

    /// The next request of a drain, or none when all is clean.
    fn next_request(&mut self, steps: &mut Range<u32>) -> Result<Option<Io>, String> {
        for _ in steps {
            self.now_ns += 50_000_000;
            let step = self.engine.destage_step(self.now_ns).unwrap();
            if step.io.is_some() {
                return Ok(step.io);
            }
            if self.engine.volume_clean(0) && step.decision == Decision::Done {
                return Ok(None);
            }
        }
        Err("the drain does not end".into())
    }

    /// Destages until all is clean, or until the `fail`th request has failed if
    /// `stop`.  Returns whether it came to that request.
    pub fn drain(&mut self, fail: u32, stop: bool, rng: &mut Rng) -> bool {
        let (mut requests, mut steps) = (0, 0..STEPS);
        self.engine.volume_drain(0, true).unwrap();
        while let Some(io) = self
            .next_request(&mut steps)
            .unwrap_or_else(|e| panic!("{e} after request {fail} failed"))
        {
            requests += 1;
            let fails = requests == fail;
            match io.op {
                sys::FBY_IO_WRITE => {
                    for (at, bytes) in (io.sector..).zip(io.data.chunks_exact(512)) {
                        if !fails || rng.one_in(2) {
                            self.origin.write(at, bytes);
                        }
                    }
                }
                sys::FBY_IO_FLUSH if fails => self.origin.power_cut(Loss::Some, rng),
                sys::FBY_IO_FLUSH => self.origin.flush_all(),
                _ if fails => {}
                _ => self.origin.zero(io.sector, io.nsectors),
            }
            self.engine.destage_complete(io.id, if fails { EIO } else { 0 });
            if fails && stop {
                return true;
            }
        }
        requests >= fail
    }

    pub fn read_all(&mut self) -> Vec<u64> {
        read_volume(&mut self.engine, 0, &self.origin).expect("whole sectors")
    }
}

impl Run {
    /// Drains.  Before each request that is no flush `f` is called with its number.
    pub fn drain_beside(&mut self, mut f: impl FnMut(&mut Run, u32)) -> Result<u32, String> {
        let (mut requests, mut steps) = (0, 0..STEPS);
        self.engine.volume_drain(0, true).unwrap();
        while let Some(io) = self.next_request(&mut steps)? {
            requests += 1;
            if io.op != sys::FBY_IO_FLUSH {
                f(self, requests);
            }
            self.serve(&io);
            self.engine.destage_complete(io.id, 0);
        }
        Ok(requests)
    }

    /// Drains up to its flush, which is in flight then.
    pub fn drain_to_the_flush(&mut self) -> Io {
        self.engine.volume_drain(0, true).unwrap();
        let mut steps = 0..STEPS;
        loop {
            let io = self.next_request(&mut steps).unwrap().expect("a flush comes");
            if io.op == sys::FBY_IO_FLUSH {
                return io;
            }
            self.serve(&io);
            self.engine.destage_complete(io.id, 0);
        }
    }

    pub fn serve(&mut self, io: &Io) {
        match io.op {
            sys::FBY_IO_WRITE => self.origin.write(io.sector, &io.data),
            sys::FBY_IO_FLUSH => self.origin.flush_all(),
            _ => self.origin.zero(io.sector, io.nsectors),
        }
    }

    /// A flush of all, and the error of the origin if it comes to that.
    pub fn flush(&mut self, error: i32) -> crate::engine::Result<Decision> {
        let mut t = Ticket::default();
        let decision = self.engine.flush_begin(0, &mut t)?;
        if decision == Decision::Origin {
            if error == 0 {
                self.origin.flush_all();
            }
            self.engine.flush_end(&mut t, error, &mut 0)?;
        }
        Ok(decision)
    }

    /// Drops all data that was not flushed.
    pub fn lose(&mut self) {
        self.origin.power_cut(Loss::All, &mut Rng::new(1));
    }

    pub fn assert_drained(&self) {
        assert_eq!((0..SECTORS).map(|s| self.origin.read(s)).collect::<Vec<_>>(), self.truth);
    }

    pub fn past(&mut self, id: u64, at: u64, n: u64) {
        let past = self.engine.bypass_begin(0, at, n as u32, 1).unwrap();
        let begun = past.begun().expect("blocks that are not cached");
        assert_eq!(u64::from(begun.nsectors()), n);
        self.origin.write_whole(at, &data(NUMBER, at..at + n, id));
        self.engine.bypass_end(begun, 0, None);
        self.truth[at as usize..(at + n) as usize].fill(id);
    }
}

/// At each request of a drain in turn a caller's flush is told that the origin
/// lost all it had not flushed.  The origin tells that once, so destage has to
/// write its own again.
pub fn told_once() -> Result<(), String> {
    for n in 1.. {
        let (mut run, mut hit, mut told) = (Run::new(), false, true);
        run.drain_beside(|run, request| {
            if request == n {
                hit = true;
                run.lose();
                told = run.flush(EIO).is_err();
            }
        })?;
        if !told {
            return Err("the first flush after an attach is not forwarded".into());
        }
        run.lose();
        let alone: Vec<u64> = (0..SECTORS).map(|s| run.origin.read(s)).collect();
        if alone != run.truth {
            return Err(format!(
                "a flush beside request {n} of a drain was told, and data is lost"
            ));
        }
        if !hit && n > 8 {
            return Ok(());
        }
    }
    Ok(())
}

impl Run {
    /// One round of a drain, that writes some pages along, and no more.
    fn one_round(&mut self) -> Result<(), String> {
        self.engine.volume_drain(0, true).unwrap();
        let before = self.engine.volume_info(0).unwrap().rounds;
        for _ in 0..STEPS {
            self.now_ns += 50_000_000;
            if let Some(io) = self.engine.destage_step(self.now_ns).unwrap().io {
                match io.op {
                    sys::FBY_IO_WRITE => self.origin.write(io.sector, &io.data),
                    sys::FBY_IO_FLUSH => self.origin.flush_all(),
                    _ => self.origin.zero(io.sector, io.nsectors),
                }
                self.engine.destage_complete(io.id, 0);
            }
            if self.engine.volume_info(0).unwrap().rounds > before {
                return Ok(());
            }
        }
        Err("a round does not end".into())
    }
}

/// A volume is detached between two rounds and attached to another origin, a copy of
/// the first that has nothing of what is still cached.  What the first round wrote along
/// is not on it.
pub fn another_origin() -> Result<(), String> {
    let mut run = Run::new();
    run.drain(0, false, &mut Rng::new(1));
    // The first twelve make a round; some of the others lie between them.
    let order = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 2, 4];
    for (id, block) in (10..).zip(order) {
        run.write(id, block * 8, 8);
    }
    run.one_round()?;
    let pages = run.engine.volume_info(0).unwrap().pages;
    run.engine.volume_detach(0).map_err(|e| format!("detach: {e}"))?;
    if pages == 0 {
        return Err("nothing is left for the other origin".into());
    }
    let mut other = Origin::new(NUMBER, SECTORS, 1);
    run.attach();
    let mut buf = [0; 4096];
    for block in 0..SECTORS / 8 {
        let cached = !run.engine.read_block(0, block, 0, &mut buf).origin;
        for k in (0..8).filter(|k| cached >> k & 1 == 0) {
            let (at, mut bytes) = (block * 8 + k, [0; 512]);
            run.origin.bytes(at, &mut bytes);
            other.write(at, &bytes);
        }
    }
    other.flush_all();
    run.origin = other;
    run.drain(0, false, &mut Rng::new(1));
    run.origin.power_cut(Loss::All, &mut Rng::new(1));
    let alone: Vec<u64> = (0..SECTORS).map(|s| run.origin.read(s)).collect();
    match alone == run.truth {
        true => Ok(()),
        false => {
            Err(format!("drained to another origin, it has {alone:?} and not {:?}", run.truth))
        }
    }
}
