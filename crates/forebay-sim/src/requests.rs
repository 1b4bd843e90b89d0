// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients' requests as state machines (host/client_request.h): many in flight on one thread,
//! over an origin whose requests end in any order and some of which fail.
//!
//! One seed decides the requests and their times, the pieces of memory, the answer to each
//! step, changes of the volume's policy, and when the clients give up.  No two requests in
//! flight overlap if one of them writes, so the possible results of a read are known.  At the
//! end the origin loses all unflushed data, and everything acknowledged as durable must be
//! there.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use forebay_engine::request::{Payload, Policy, Request, Runs, Wanted};
use forebay_engine::sys;

use crate::engine::{identity, small_attach, volume_spec, Decision, Engine, Io};
use crate::hooks;
use crate::media::{Flavour, Media};
use crate::origin::{Loss, Origin};
use crate::pattern;
use crate::reading::read_volume;
use crate::rng::Rng;
use crate::script::data;

const NUMBER: u64 = 1;
const SECTORS: u64 = 2400;
const EIO: i32 = 5;
const IN_FLIGHT: usize = 24;
/// Steps of the driver; a run has to end in so many more.
const STEPS: u32 = 3000;
const MORE_STEPS: u32 = 200_000;
const OPS: [&str; 5] = ["read", "write", "discard", "zero", "flush"];

/// A client's request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    op: u8,
    flags: u8,
    sector: u64,
    nsectors: u64,
    /// For reads: how many parts go in one.
    max_runs: usize,
    /// For writes: step by step.
    steps: bool,
}

/// A request and its client's memory.
struct Client {
    request: Request<'static>,
    op: u8,
    sector: u64,
    data: Vec<u8>,
}

impl Client {
    fn new(a: &Asked, data: Vec<u8>) -> Client {
        let w =
            Wanted { volume: 0, op: a.op, flags: a.flags, sector: a.sector, nsectors: a.nsectors };
        let request = Request::new(w, Runs::own(Some(a.max_runs)), a.steps);
        Client { request, op: a.op, sector: a.sector, data }
    }

    /// The lengths are of the pieces that the memory from where the request is comes in.
    fn go(&mut self, e: &Engine, policy: &Policy, result: Option<i32>, cuts: &[usize]) -> i32 {
        let payload = match self.op {
            sys::FBY_OP_READ => Payload::Read(&mut self.data),
            sys::FBY_OP_WRITE => Payload::Write(&self.data),
            _ => Payload::None,
        };
        e.request_go_cut(&mut self.request, policy, payload, cuts, result)
    }

    /// The parts of a read that go together, as bytes of the memory.
    fn parts(&mut self) -> Vec<std::ops::Range<usize>> {
        let io = self.request.asked();
        if io.nruns == 1 {
            let start = (io.sector - self.sector) as usize * 512;
            return std::iter::once(start..start + io.nsectors as usize * 512).collect();
        }
        self.request.parts().map(|r| r.start as usize * 512..r.end as usize * 512).collect()
    }
}

/// The event that a client waits for.
enum At {
    /// It may be resumed at any time: an answer of 0.
    Ready,
    /// The origin has it.
    Origin,
    /// A part is on its way; the request may go on.
    Sent,
    Until(u64),
}

struct Flight {
    asked: Asked,
    id: u64,
    request: Client,
    at: At,
    /// Parts of a read that are on their way, and whether one failed.
    sent: u32,
    sent_failed: bool,
    over: bool,
    /// Sectors.
    done: usize,
    /// For a flush: the values that each sector might have when it began.
    vouched: Vec<(u64, u64)>,
    mode: u8,
}

enum Whose {
    Client(usize),
    /// A part that a read has sent.
    Sent(usize, std::ops::Range<usize>),
    Destage(u32),
}

struct InFlight {
    whose: Whose,
    op: u8,
    sector: u64,
    nsectors: u64,
    data: Vec<u8>,
    mark: u64,
}

/// The values that a sector may have now, and after the origin lost all unflushed data.
#[derive(Clone, Default)]
struct Sector {
    may: Vec<u64>,
    must: Vec<u64>,
    version: u64,
    readers: u32,
    writer: bool,
}

/// How often each answer was given: "write, origin write, error".
pub type Seen = BTreeMap<String, u64>;

struct Run<'s> {
    rng: Rng,
    engine: Engine,
    origin: Origin,
    policy: Box<Policy>,
    sectors: Vec<Sector>,
    /// Cannot be read from the origin.
    bad: Vec<u64>,
    flights: Vec<Option<Flight>>,
    io: Vec<InFlight>,
    now_ns: u64,
    next_id: u64,
    seen: &'s mut Seen,
}

fn add(set: &mut Vec<u64>, id: u64) {
    if !set.contains(&id) {
        set.push(id);
    }
}

impl Run<'_> {
    fn new(seed: u64, seen: &mut Seen) -> Run<'_> {
        let mut rng = Rng::new(seed);
        let mut engine = Engine::new(Media::new(15 << 16, Flavour::NonTemporal));
        engine.format([7; 16], 1 << 16, 2).unwrap();
        let nslots = rng.pick(&[1, 2, 4]);
        engine.open_all(&sys::fby_options { nslots, ..Default::default() }).unwrap();
        engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        let id = identity(NUMBER);
        engine.volume_attach(0, &small_attach(SECTORS, &id, 16)).unwrap();
        let start = Sector { may: vec![1], must: vec![1], ..Default::default() };
        Run {
            engine,
            origin: Origin::new(NUMBER, SECTORS, 1),
            policy: Box::default(),
            sectors: vec![start; SECTORS as usize],
            bad: (0..4).map(|_| rng.below(SECTORS)).collect(),
            flights: (0..IN_FLIGHT).map(|_| None).collect(),
            io: Vec::new(),
            now_ns: 1_000_000_000,
            next_id: 2,
            rng,
            seen,
        }
    }

    fn see(&mut self, op: u8, what: &str, answer: &str) {
        *self.seen.entry(format!("{}, {what}, {answer}", OPS[usize::from(op)])).or_default() += 1;
    }

    fn of(&mut self, a: &Asked) -> &mut [Sector] {
        &mut self.sectors[a.sector as usize..(a.sector + a.nsectors) as usize]
    }

    // --- clients -------------------------------------------------------------

    fn change_policy(&mut self) {
        let p = &self.policy;
        let set = |at: &std::sync::atomic::AtomicU8, n| at.store(n, Ordering::Relaxed);
        match self.rng.below(5) {
            0 => p.bypass_sectors.store(self.rng.pick(&[0, 8, 64]), Ordering::Relaxed),
            1 => set(&p.mode, self.rng.pick(&[0, 0, 1, 2])),
            2 => set(&p.full_bypasses, self.rng.below(2) as u8),
            3 => set(&p.metadata_only, u8::from(self.rng.one_in(4))),
            _ => set(&p.durable, self.rng.below(2) as u8),
        }
    }

    fn start(&mut self, at: usize) {
        let op = match self.rng.below(20) {
            0..=6 => sys::FBY_OP_READ,
            7..=14 => sys::FBY_OP_WRITE,
            15 => sys::FBY_OP_DISCARD,
            16..=17 => sys::FBY_OP_ZERO,
            _ => sys::FBY_OP_FLUSH,
        };
        let mut nsectors = match self.rng.below(4) {
            0 => 8,
            1 => self.rng.range(1, 24),
            _ => self.rng.range(1, 400),
        };
        let mut sector = self.rng.below(SECTORS - nsectors + 1);
        if self.rng.one_in(2) {
            sector -= sector % 8;
            nsectors = (nsectors & !7).max(8).min(SECTORS - sector);
        }
        if op == sys::FBY_OP_FLUSH {
            (sector, nsectors) = (0, SECTORS);
        }
        let writes = op != sys::FBY_OP_READ && op != sys::FBY_OP_FLUSH;
        let flags = match op {
            sys::FBY_OP_WRITE => self.rng.below(16) as u8,
            sys::FBY_OP_FLUSH if self.rng.one_in(4) => sys::FBY_REQ_ASIDE,
            _ => 0,
        };
        let asked = Asked {
            op,
            flags,
            sector,
            nsectors,
            max_runs: self.rng.pick(&[1, 1, 2, 7]),
            steps: op == sys::FBY_OP_WRITE && self.rng.one_in(8),
        };
        let range = self.of(&asked);
        if op != sys::FBY_OP_FLUSH {
            if range.iter().any(|s| s.writer || (writes && s.readers > 0)) {
                return;
            }
            for s in range {
                s.writer |= writes;
                s.readers += u32::from(!writes);
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        let data = match op {
            sys::FBY_OP_WRITE => data(NUMBER, sector..sector + nsectors, id),
            sys::FBY_OP_READ => vec![0xee; nsectors as usize * 512],
            _ => Vec::new(),
        };
        let vouched = match op {
            sys::FBY_OP_FLUSH => {
                let quiet = self.sectors.iter().enumerate().filter(|(_, s)| !s.writer);
                quiet.map(|(at, s)| (at as u64, s.version)).collect()
            }
            _ => Vec::new(),
        };
        let request = Client::new(&asked, data);
        let mode = self.policy.mode.load(Ordering::Relaxed);
        self.flights[at] = Some(Flight {
            asked,
            id,
            request,
            at: At::Ready,
            sent: 0,
            sent_failed: false,
            over: false,
            done: 0,
            vouched,
            mode,
        });
    }

    /// The lengths of pieces of a client's memory: whole, or cut anywhere.
    fn cuts(&mut self, f: &Flight) -> Vec<usize> {
        let left = f.request.data.len() - (f.done * 512).min(f.request.data.len());
        // Between two steps it stays the same.
        if f.asked.steps || self.rng.one_in(2) {
            return vec![left];
        }
        let mut cuts: Vec<usize> = (0..self.rng.range(0, 5))
            .map(|_| self.rng.pick(&[100, 412, 512, 1024, 4096, 9000]))
            .collect();
        // A sector at least, and mostly a whole number of them.
        let sum: usize = cuts.iter().sum();
        if sum < 512 || self.rng.one_in(2) {
            cuts.push((512 - sum % 512) % 512);
        }
        cuts
    }

    fn go(&mut self, at: usize, begins: bool, result: i32) -> Result<(), String> {
        let mut f = self.flights[at].take().expect("it is in flight");
        let cuts = self.cuts(&f);
        let mode = self.policy.mode.load(Ordering::Relaxed);
        if mode != f.mode {
            f.mode = u8::MAX; // some of both
        }
        let result = (!begins).then_some(result);
        let next = f.request.go(&self.engine, &self.policy, result, &cuts);
        let raw = &f.request.request;
        f.done = raw.done() as usize;
        let (why, step) = (raw.why(), raw.step());
        let op = f.asked.op;
        f.at = At::Ready;
        match next {
            sys::FBY_NEXT_WAIT => {
                self.see(op, "wait", &why.to_string());
                if f.asked.flags & sys::FBY_REQ_NOWAIT != 0 || self.rng.one_in(40) {
                    return self.give_up(at, f);
                }
            }
            sys::FBY_NEXT_ORIGIN => {
                f.at = At::Origin;
                self.ask_origin(at, &mut f)?;
            }
            sys::FBY_NEXT_DATA => self.see(op, "data", ""),
            sys::FBY_NEXT_STEP => {
                self.see(op, "step", &step.to_string());
                self.flights[at] = Some(f);
                return self.go(at, false, 0);
            }
            sys::FBY_NEXT_THROTTLE => {
                let ns = self.engine.request_delay(&f.request.request, self.now_ns);
                self.see(op, "throttle", if ns > 0 { "some" } else { "none" });
                f.at = At::Until(self.now_ns + ns);
            }
            sys::FBY_NEXT_DRAIN => {
                self.see(op, "drain", "");
                self.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
                f.at = At::Until(self.now_ns + 1_000_000);
                if self.rng.one_in(200) {
                    return self.give_up(at, f);
                }
            }
            sys::FBY_NEXT_LOST => return Err("a block is lost, and none was".into()),
            0 => {
                self.see(op, "done", "");
                f.over = true;
                return self.over(at, f, Ok(()));
            }
            error if error < 0 => {
                self.see(op, "error", sys::error_name(error));
                f.over = true;
                return self.over(at, f, Err(error));
            }
            other => return Err(format!("unknown answer {other}")),
        }
        self.flights[at] = Some(f);
        Ok(())
    }

    fn ask_origin(&mut self, at: usize, f: &mut Flight) -> Result<(), String> {
        let io = f.request.request.asked();
        let end = io.sector + io.nsectors;
        let (first, last) = (f.asked.sector, f.asked.sector + f.asked.nsectors);
        if io.nsectors == 0 || io.sector < first || end > last {
            return Err(format!("{:?} asks the origin for {}..{end}", f.asked, io.sector));
        }
        let data = match io.op {
            sys::FBY_OP_WRITE => {
                let from = (io.sector - first) as usize * 512;
                f.request.data[from..from + io.nsectors as usize * 512].to_vec()
            }
            _ => Vec::new(),
        };
        let what = format!("origin {}", OPS[usize::from(io.op)]);
        self.see(f.asked.op, &what, if io.nruns > 1 { "joined" } else { "" });
        let sends = io.op == sys::FBY_OP_READ && io.nruns == 1 && self.rng.one_in(2);
        let whose = match sends {
            true => Whose::Sent(at, f.request.parts().remove(0)),
            false => Whose::Client(at),
        };
        let mark = self.origin.flush_mark();
        self.io.push(InFlight {
            whose,
            op: io.op,
            sector: io.sector,
            nsectors: io.nsectors,
            data,
            mark,
        });
        if sends {
            f.sent += 1;
            f.at = At::Sent;
        }
        Ok(())
    }

    fn give_up(&mut self, at: usize, mut f: Flight) -> Result<(), String> {
        self.see(f.asked.op, "given up", "");
        f.over = true;
        self.over(at, f, Err(-sys::FBY_E_BUSY))
    }

    // --- what a client was told ----------------------------------------------------

    /// The machine has ended; parts that were sent may be on their way.
    fn over(&mut self, at: usize, mut f: Flight, result: Result<(), i32>) -> Result<(), String> {
        if f.sent > 0 {
            f.sent_failed |= result.is_err();
            f.at = At::Origin;
            self.flights[at] = Some(f);
            return Ok(());
        }
        self.engine.request_end(&mut f.request.request);
        let result = match f.sent_failed {
            true => Err(-sys::FBY_E_ORIGIN_IO),
            false => result,
        };
        self.judge(&f, result)?;
        if f.asked.op != sys::FBY_OP_FLUSH {
            let writes = f.asked.op != sys::FBY_OP_READ;
            for s in self.of(&f.asked) {
                s.writer &= !writes;
                s.readers -= u32::from(!writes);
                s.version += u64::from(writes);
            }
        }
        Ok(())
    }

    fn judge(&mut self, f: &Flight, result: Result<(), i32>) -> Result<(), String> {
        let why = |e: &str| Err(format!("request {} ({:?}): {e}", f.id, f.asked));
        let through = f.mode == sys::FBY_MODE_WRITE_THROUGH;
        match (f.asked.op, result) {
            (sys::FBY_OP_READ, Ok(())) => {
                for (n, bytes) in f.request.data.chunks_exact(512).enumerate() {
                    let sector = f.asked.sector + n as u64;
                    let id = pattern::read(pattern::place(NUMBER, sector), bytes);
                    let may = &self.sectors[sector as usize].may;
                    if !id.is_some_and(|id| may.contains(&id)) {
                        return why(&format!("sector {sector} reads {id:?}, of {may:?}"));
                    }
                }
            }
            (sys::FBY_OP_READ, Err(_)) => {
                let range = f.asked.sector..f.asked.sector + f.asked.nsectors;
                let bad: Vec<u64> =
                    self.bad.iter().copied().filter(|s| range.contains(s)).collect();
                // Nothing comes to the cache while it is read, so what is bad still is.
                let uncached = |e: &mut Engine, s: u64| {
                    e.read_block(0, s / 8, (s % 8) as u32, &mut [0; 512]).origin != 0
                };
                if !bad.iter().any(|&s| uncached(&mut self.engine, s)) {
                    return why("it fails, and all of it can be read");
                }
            }
            (sys::FBY_OP_WRITE | sys::FBY_OP_ZERO, Ok(())) => {
                let id = if f.asked.op == sys::FBY_OP_ZERO { pattern::ZERO } else { f.id };
                let durable = f.asked.op == sys::FBY_OP_ZERO
                    || f.asked.flags & sys::FBY_REQ_DURABLE != 0
                    || through
                    || f.request.request.past_sectors() == 0;
                for s in self.of(&f.asked) {
                    s.may = vec![id];
                    match durable {
                        true => s.must = vec![id],
                        false => add(&mut s.must, id),
                    }
                }
                let range = f.asked.sector..f.asked.sector + f.asked.nsectors;
                if let (true, Some(s)) =
                    (through, range.clone().find(|&s| self.origin.durable(s) != id))
                {
                    return why(&format!("write-through ended, and the origin lacks sector {s}"));
                }
            }
            (sys::FBY_OP_DISCARD, _) => self.of(&f.asked).iter_mut().for_each(|s| {
                add(&mut s.may, pattern::ZERO);
                add(&mut s.must, pattern::ZERO);
            }),
            (sys::FBY_OP_WRITE | sys::FBY_OP_ZERO, Err(_)) => {
                let id = if f.asked.op == sys::FBY_OP_ZERO { pattern::ZERO } else { f.id };
                for s in self.of(&f.asked) {
                    add(&mut s.may, id);
                    add(&mut s.must, id);
                }
            }
            (_, Ok(())) => {
                for &(at, version) in &f.vouched {
                    let s = &mut self.sectors[at as usize];
                    if s.version == version && !s.writer {
                        s.must = s.may.clone();
                    }
                }
            }
            (_, Err(_)) => {}
        }
        Ok(())
    }

    // --- the origin ------------------------------------------------------------------

    /// One of its requests ends, perhaps badly.
    fn origin_ends(&mut self) -> Result<(), String> {
        if self.io.is_empty() {
            return Ok(());
        }
        let at = self.rng.index(self.io.len());
        let io = self.io.swap_remove(at);
        let range = io.sector..io.sector + io.nsectors;
        let mut fails = self.rng.one_in(30);
        match io.op {
            sys::FBY_OP_READ => fails = self.bad.iter().any(|s| range.contains(s)),
            sys::FBY_OP_WRITE => {
                for (s, bytes) in range.zip(io.data.chunks_exact(512)) {
                    if !fails || self.rng.one_in(2) {
                        self.origin.write_whole(s, bytes);
                    }
                }
            }
            sys::FBY_OP_FLUSH if fails => {
                self.origin.power_cut(Loss::All, &mut self.rng);
                for s in &mut self.sectors {
                    s.must.clone().into_iter().for_each(|id| add(&mut s.may, id));
                    s.version += 1;
                }
            }
            sys::FBY_OP_FLUSH => self.origin.flush(io.mark),
            _ if fails => {}
            sys::FBY_OP_ZERO => self.origin.zero(io.sector, io.nsectors),
            _ => self.origin.discard(io.sector, io.nsectors),
        }
        let error = if fails { EIO } else { 0 };
        match io.whose {
            Whose::Destage(id) => self.engine.destage_complete(id, error),
            Whose::Client(at) => {
                let what = format!("origin {} ended", OPS[usize::from(io.op)]);
                let f = self.flights[at].as_mut().expect("it waits");
                let op = f.asked.op;
                if io.op == sys::FBY_OP_READ && !fails {
                    for bytes in f.request.parts() {
                        for (n, out) in
                            f.request.data[bytes.clone()].chunks_exact_mut(512).enumerate()
                        {
                            self.origin.bytes(f.asked.sector + (bytes.start / 512 + n) as u64, out);
                        }
                    }
                }
                self.see(op, &what, if fails { "error" } else { "well" });
                self.go(at, false, error)?;
            }
            Whose::Sent(at, bytes) => {
                let f = self.flights[at].as_mut().expect("it waits");
                f.sent -= 1;
                f.sent_failed |= fails;
                if !fails {
                    for (n, out) in f.request.data[bytes.clone()].chunks_exact_mut(512).enumerate()
                    {
                        self.origin.bytes(f.asked.sector + (bytes.start / 512 + n) as u64, out);
                    }
                }
                if f.over && f.sent == 0 {
                    let f = self.flights[at].take().expect("it is there");
                    self.over(at, f, Ok(()))?;
                }
            }
        }
        Ok(())
    }

    fn destage(&mut self) -> Result<(), String> {
        self.now_ns += self.rng.pick(&[100, 100, 100, 1_000, 1_000_000]);
        let step = self.engine.destage_step(self.now_ns).map_err(|e| e.to_string())?;
        if let (Decision::Origin, Some(Io { id, op, sector, nsectors, data, .. })) =
            (step.decision, step.io)
        {
            let op = match op {
                sys::FBY_IO_WRITE => sys::FBY_OP_WRITE,
                sys::FBY_IO_FLUSH => sys::FBY_OP_FLUSH,
                _ => sys::FBY_OP_ZERO,
            };
            let mark = self.origin.flush_mark();
            self.io.push(InFlight { whose: Whose::Destage(id), op, sector, nsectors, data, mark });
        }
        Ok(())
    }

    // --- the run ------------------------------------------------------------------------

    fn step(&mut self, may_start: bool) -> Result<(), String> {
        match self.rng.below(10) {
            0..=2 => self.origin_ends(),
            3..=4 => self.destage(),
            5 if may_start && self.rng.one_in(10) => {
                self.change_policy();
                Ok(())
            }
            _ => {
                let at = self.rng.index(IN_FLIGHT);
                let Some(f) = &self.flights[at] else {
                    if may_start {
                        self.start(at);
                        if self.flights[at].is_some() {
                            return self.go(at, true, 0);
                        }
                    }
                    return Ok(());
                };
                match f.at {
                    At::Origin => Ok(()),
                    At::Until(then) if then > self.now_ns => Ok(()),
                    At::Sent => self.go(at, false, sys::FBY_SENT),
                    // Only the answer to DRAIN depends on the result here.
                    At::Ready | At::Until(_) => {
                        let gives_up = i32::from(self.rng.one_in(100)) * EIO;
                        self.go(at, false, gives_up)
                    }
                }
            }
        }
    }

    fn quiet(&self) -> bool {
        self.io.is_empty() && self.flights.iter().all(Option::is_none)
    }

    /// The host dies, and the origin's power is cut.
    fn crash(&mut self) -> Result<(), String> {
        self.engine.abandon();
        self.origin.power_cut(Loss::All, &mut self.rng);
        let options = sys::fby_options::default();
        self.engine.open_all(&options).map_err(|e| e.to_string())?;
        let id = identity(NUMBER);
        self.engine.volume_attach(0, &small_attach(SECTORS, &id, 16)).map_err(|e| e.to_string())?;
        let ids = read_volume(&mut self.engine, 0, &self.origin)?;
        for (at, (id, s)) in ids.iter().zip(&self.sectors).enumerate() {
            if !s.must.contains(id) {
                return Err(format!("after a crash sector {at} is {id}, of {:?}", s.must));
            }
        }
        self.engine.check(true)
    }
}

/// One run; returns what is wrong.  `seen` counts the answers that the requests gave.
pub fn run(seed: u64, seen: &mut Seen) -> Result<(), String> {
    let mut run = Run::new(seed, seen);
    for _ in 0..STEPS {
        run.step(true)?;
    }
    for _ in 0..MORE_STEPS {
        if run.quiet() {
            hooks::progress();
            return run.crash();
        }
        run.step(false)?;
    }
    let left: Vec<_> = run.flights.iter().flatten().map(|f| f.asked).collect();
    Err(format!("requests do not end: {left:?}"))
}

/// A read over a block that is lost says so, and reads all the rest.
pub fn a_lost_block() -> Result<(), String> {
    let mut seen = Seen::new();
    let mut run = Run::new(1, &mut seen);
    run.bad.clear();
    let bytes = data(NUMBER, 8..40, 9);
    run.engine.write(0, 8, &bytes, &mut 0, &mut 0).map_err(|e| e.to_string())?;
    // Its second block: one bit of the media that holds it.
    let mut sector = [0; 512];
    pattern::fill(pattern::place(NUMBER, 18), 9, &mut sector);
    let image = run.engine.media.image();
    let at = image.chunks_exact(512).position(|held| held == sector);
    let at = at.ok_or("the sector is not on the media")? as u64;
    run.engine.media.flip(at * 512 * 8 + 77);
    let asked = Asked {
        op: sys::FBY_OP_READ,
        flags: 0,
        sector: 0,
        nsectors: 48,
        max_runs: 4,
        steps: false,
    };
    let mut request = Client::new(&asked, vec![0xee; 48 * 512]);
    let cuts = [48 * 512];
    let mut said = Vec::new();
    let mut next = request.go(&run.engine, &run.policy, None, &cuts);
    while next > 0 {
        said.push((next, request.request.lost(), request.request.asked().nruns));
        if next == sys::FBY_NEXT_ORIGIN {
            for bytes in request.parts() {
                for (n, out) in request.data[bytes.clone()].chunks_exact_mut(512).enumerate() {
                    run.origin.bytes((bytes.start / 512 + n) as u64, out);
                }
            }
        }
        let left = [48 * 512 - request.request.done() as usize * 512];
        next = request.go(&run.engine, &run.policy, Some(0), &left);
    }
    run.engine.request_end(&mut request.request);
    if next != -sys::FBY_E_LOST || said.len() != 2 || said[0] != (sys::FBY_NEXT_LOST, 16, 0) {
        return Err(format!("it said {said:?} and ended with {next}"));
    }
    for (sector, bytes) in request.data.chunks_exact(512).enumerate().filter(|(s, _)| s / 8 != 2) {
        let id = pattern::read(pattern::place(NUMBER, sector as u64), bytes);
        let want = if (8..40).contains(&sector) { 9 } else { 1 };
        if id != Some(want) {
            return Err(format!("sector {sector} beside it reads {id:?}"));
        }
    }
    Ok(())
}

/// Writes that arrive faster than pages are freed are delayed before they are acknowledged.  A
/// range counts for what it may take of the cache, and no write for its bypassed part.
pub fn a_throttled_write() -> Result<(), String> {
    let mut seen = Seen::new();
    let mut run = Run::new(1, &mut seen);
    let now = run.now_ns;
    let mut block = 0;
    for _ in 0..2000 {
        let (sector, nsectors) = (block * 8, 8);
        let (op, flags, max_runs, steps) = (sys::FBY_OP_WRITE, 0, 1, false);
        let asked = Asked { op, flags, sector, nsectors, max_runs, steps };
        let bytes = data(NUMBER, sector..sector + 8, 9);
        let mut request = Client::new(&asked, bytes);
        let next = request.go(&run.engine, &run.policy, None, &[4096]);
        let (throttled, delay) =
            (next == sys::FBY_NEXT_THROTTLE, run.engine.request_delay(&request.request, now));
        if next != sys::FBY_NEXT_WAIT {
            let end = if throttled {
                request.go(&run.engine, &run.policy, Some(0), &[4096])
            } else {
                next
            };
            if end != sys::FBY_NEXT_DONE || (delay > 0 && !throttled) {
                return Err(format!("block {block}: {next}, {delay} ns, then {end}"));
            }
        }
        run.engine.request_end(&mut request.request);
        // From there on the same block: it takes room and gives it back.
        block += u64::from(next == sys::FBY_NEXT_DONE);
        let _ = run.engine.destage_step(now);
        if delay > 0 {
            return match delay >= sys::FBY_DEFAULT_THROTTLE_SHORTEST_NS.into() {
                true => Ok(()),
                false => Err(format!("a delay of {delay} ns is worth nothing")),
            };
        }
    }
    Err("no write was held".into())
}

/// Some seeds, for the planted bugs.
pub fn quick() -> Result<(), String> {
    let mut seen = Seen::new();
    (1..=60).try_for_each(|seed| run(seed, &mut seen).map_err(|e| format!("seed {seed}: {e}")))
}
