// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of a volume with a faulty origin on its neighbour, in virtual time.
//!
//! Two volumes share a pool.  The origin of one develops one of several faults while its
//! clients go on writing as fast as they can; the other's is sound.  The neighbour is measured
//! from that moment on, and once more with a sound origin on both.  Nothing here depends on the
//! machine.
//!
//! Waiting clients run again when a wake mask has their bit and at no other time, so a
//! wake that is lost shows as a neighbour that stands still.

use serde::Serialize;

use crate::engine::{identity, small_attach, volume_spec, Attach, Decision, Engine, Past, Wait};
use crate::hooks;
use crate::media::Media;
use crate::rng::Rng;
use forebay_engine::sys;

/// Time of a write that nothing delays.
const WRITE_NS: u64 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;
const EIO: i32 = 5;
const ILL_CLIENTS: usize = 4;
const SLOTS: u32 = 4;

/// How the origin of the other volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ill {
    Well,
    /// Every request fails.
    Errors,
    /// No request ends.
    Hangs,
    /// A hundred times slower.
    Slow,
    /// Writes past the cache fail, and its clients write past it.
    PastFails,
    /// Discards fail, and its clients discard.
    DiscardsFail,
}

pub const ILLS: [Ill; 5] = [Ill::Errors, Ill::Hangs, Ill::Slow, Ill::PastFails, Ill::DiscardsFail];

/// How much the neighbour writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbour {
    /// A few hundred blocks a second, far below what its origin takes.
    Light,
    /// As fast as it can.
    Heavy,
}

pub const NEIGHBOURS: [Neighbour; 2] = [Neighbour::Light, Neighbour::Heavy];

#[derive(Clone, Copy, Debug, Serialize, clap::Args)]
pub struct Bench {
    /// MiB of the pool
    #[arg(long = "pool", default_value_t = 16)]
    pub pool_mib: u64,
    /// KiB of a chunk
    #[arg(long = "chunk", default_value_t = 128)]
    pub chunk_kib: u32,
    /// Microseconds in which an origin serves nothing but one request
    #[arg(long = "service", default_value_t = 200)]
    pub service_us: u64,
    /// Microseconds of a flush
    #[arg(long = "flush", default_value_t = 1000)]
    pub flush_us: u64,
    /// Blocks a second of a light neighbour
    #[arg(long, default_value_t = 500)]
    pub light_per_s: u64,
    /// Further attached volumes, which nobody writes
    #[arg(long, default_value_t = 0)]
    pub idle: u32,
    /// Nanoseconds of destage for each page that it moves within the pool
    #[arg(long = "copy", default_value_t = 1000)]
    pub copy_ns: u64,
    /// Measured, of virtual time
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The figures of the neighbour.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Had {
    pub writes_per_s: f64,
    pub p50_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Pages that were moved within the pool meanwhile, of both volumes.
    pub copies_per_s: f64,
}

/// The neighbour's figures with the sound volume, and with the faulty one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cell {
    pub ill: Ill,
    pub neighbour: Neighbour,
    pub beside_well: Had,
    pub beside_ill: Had,
    pub throughput_ratio: f64,
    pub p999_ratio: f64,
    /// Chunks of the ill volume at the end, and of the pool.
    pub ill_chunks: u32,
    pub chunks: u32,
}

struct Origin {
    free_ns: u64,
    ill: Ill,
}

struct InFlight {
    end_ns: u64,
    id: u32,
    error: i32,
}

struct Client {
    volume: u16,
    cpu: u32,
    /// Between the beginnings of two writes; 0: one after the other.
    pace_ns: u64,
    next_ns: u64,
    /// Start of the present write.
    begun_ns: Option<u64>,
    block: u64,
    asleep: bool,
}

struct Bed {
    bench: Bench,
    engine: Engine,
    rng: Rng,
    blocks: u64,
    now_ns: u64,
    next_step_ns: u64,
    /// Pages that destage has moved within the pool, and until when it does so.
    copied: u64,
    copying_ns: u64,
    origins: Vec<Origin>,
    in_flight: Vec<InFlight>,
    clients: Vec<Client>,
    /// Latencies of the neighbour's writes.
    latencies_ns: Vec<u64>,
}

const NEIGHBOUR: u16 = 0;
const OTHER: u16 = 1;

impl Bed {
    fn new(bench: &Bench, neighbour: Neighbour) -> Result<Self, String> {
        let text = |e| {
            format!("a pool of {} MiB with chunks of {} KiB: {e}", bench.pool_mib, bench.chunk_kib)
        };
        // So many that next to nothing is overwritten while it is cached.  Overwrites that
        // the pool absorbs come on top of what the origin takes, and how many these are
        // goes by the room that a volume happens to hold.
        let sectors = bench.pool_mib * 64 * 2048;
        let volumes = 2 + bench.idle;
        let mut engine = Engine::new(Media::bare((bench.pool_mib << 20) as usize));
        let options = sys::fby_options { nslots: SLOTS, no_checksums: true, ..Default::default() };
        engine.format([7; 16], bench.chunk_kib << 10, volumes).map_err(text)?;
        engine.open_all(&options).map_err(text)?;
        for number in 0..u64::from(volumes) {
            let spec = volume_spec(&format!("v{number}"), number, sectors, 512);
            let index = engine.volume_add(&spec).map_err(text)?;
            let identity = identity(number);
            let memory = Attach {
                nrequests: sys::FBY_DEFAULT_QUEUE_DEPTH,
                buffer_bytes: 256 << 10,
                ..small_attach(sectors, &identity, 4096)
            };
            engine.volume_attach(index, &memory).map_err(text)?;
        }
        let client = |volume, cpu, pace_ns| Client {
            volume,
            cpu,
            pace_ns,
            next_ns: SECOND_NS,
            begun_ns: None,
            block: 0,
            asleep: false,
        };
        let pace_ns = match neighbour {
            Neighbour::Light => u64::from(SLOTS) * SECOND_NS / bench.light_per_s,
            Neighbour::Heavy => 0,
        };
        let mut clients: Vec<_> = (0..SLOTS).map(|cpu| client(NEIGHBOUR, cpu, pace_ns)).collect();
        clients.extend((0..ILL_CLIENTS).map(|n| client(OTHER, n as u32, 0)));
        Ok(Self {
            bench: *bench,
            engine,
            rng: Rng::new(bench.seed),
            blocks: sectors / 8,
            now_ns: SECOND_NS,
            next_step_ns: 0,
            copied: 0,
            copying_ns: 0,
            origins: (0..volumes).map(|_| Origin { free_ns: 0, ill: Ill::Well }).collect(),
            in_flight: Vec::new(),
            clients,
            latencies_ns: Vec::new(),
        })
    }

    fn wake(&mut self, mask: u32) {
        if mask & sys::FBY_WAKE_SPACE == 0 {
            return;
        }
        for c in self.clients.iter_mut().filter(|c| c.asleep) {
            c.asleep = false;
            c.next_ns = self.now_ns;
        }
    }

    /// When a request that begins now ends; none: never.
    fn serve(&mut self, volume: u16, flush: bool) -> Option<u64> {
        let origin = &mut self.origins[usize::from(volume)];
        let times = match origin.ill {
            Ill::Hangs => return None,
            Ill::Slow => 100,
            _ => 1,
        };
        let service_us = if flush { self.bench.flush_us } else { self.bench.service_us };
        origin.free_ns = origin.free_ns.max(self.now_ns) + service_us * times * 1000;
        Some(origin.free_ns)
    }

    /// By both volumes: nobody writes at others.
    fn copied(&mut self) -> u64 {
        let of = |v| self.engine.volume_info(v).expect("it was added").pages_relocated;
        [NEIGHBOUR, OTHER].into_iter().map(of).sum()
    }

    /// Runs destage until it has nothing to do now.
    fn destage(&mut self) {
        hooks::set_cpu(0);
        loop {
            if self.copying_ns > self.now_ns {
                self.next_step_ns = self.copying_ns;
                return;
            }
            let step = self.engine.destage_step(self.now_ns).expect("the pool is sound");
            self.next_step_ns = step.next_ns;
            self.wake(step.wake);
            let copied = self.copied();
            self.copying_ns = self.now_ns + (copied - self.copied) * self.bench.copy_ns;
            self.copied = copied;
            match step.io {
                Some(io) => {
                    let ill = self.origins[usize::from(io.volume)].ill;
                    let fails = ill == Ill::Errors
                        || (ill == Ill::DiscardsFail && io.op == sys::FBY_IO_DISCARD);
                    let end_ns = self.serve(io.volume, io.op == sys::FBY_IO_FLUSH);
                    self.in_flight.extend(end_ns.map(|end_ns| InFlight {
                        end_ns,
                        id: io.id,
                        error: if fails { EIO } else { 0 },
                    }));
                }
                None if step.decision == Decision::Again => {}
                None => return,
            }
        }
    }

    /// Other requests of the client of a faulty origin, besides writes through the cache.
    /// True: this was one.
    fn other_request(&mut self, c: usize) -> bool {
        let (volume, block) = (self.clients[c].volume, self.clients[c].block);
        let odd = self.rng.percent(30);
        match self.origins[usize::from(volume)].ill {
            Ill::PastFails if odd => {
                let past = self.engine.bypass_begin(volume, block * 8, 8, 1);
                let Ok(Past::Origin(bypass)) = past else { return false };
                let end_ns = self.serve(volume, false).expect("it does not hang");
                let wake = self.engine.bypass_end(bypass, EIO, None);
                self.wake(wake);
                self.end(c, end_ns);
                true
            }
            Ill::DiscardsFail if odd => {
                let (kind, mut wake) = (sys::FBY_KIND_DISCARD, 0);
                let r = self.engine.range(volume, kind, block * 8, 8, &mut 0, &mut wake);
                self.wake(wake);
                let cached = matches!(r, Ok(Past::Done));
                if let Ok(Past::Origin(past)) = r {
                    let wake = self.engine.bypass_end(past, EIO, None);
                    self.wake(wake);
                }
                if cached {
                    self.end(c, self.now_ns + WRITE_NS);
                }
                cached
            }
            _ => false,
        }
    }

    fn end(&mut self, c: usize, end_ns: u64) {
        let client = &mut self.clients[c];
        let begun_ns = client.begun_ns.take().expect("a write is under way");
        if client.volume == NEIGHBOUR {
            self.latencies_ns.push(end_ns - begun_ns);
        }
        // Paced ones are not in step with each other.
        let pause = client.pace_ns / 2 + self.rng.below(client.pace_ns.max(1));
        client.next_ns = end_ns.max(begun_ns + pause);
    }

    fn client(&mut self, c: usize) {
        hooks::set_cpu(self.clients[c].cpu);
        let volume = self.clients[c].volume;
        if self.clients[c].begun_ns.is_none() {
            self.clients[c].begun_ns = Some(self.now_ns);
            self.clients[c].block = self.rng.below(self.blocks);
            if self.other_request(c) {
                return;
            }
        }
        let sector = self.clients[c].block * 8;
        for announced in [false, true] {
            let mut wake = 0;
            let decision = self.engine.write(volume, sector, &[0; 4096], &mut 0, &mut wake);
            self.wake(wake);
            if wake & sys::FBY_WAKE_DESTAGE != 0 {
                self.next_step_ns = self.now_ns;
            }
            match decision.expect("the pool is sound") {
                Decision::Done => {
                    let delay_ns = self.engine.write_delay(volume, 8, self.now_ns);
                    return self.end(c, self.now_ns + delay_ns + WRITE_NS);
                }
                Decision::Wait(Wait::Space) if !announced => {
                    self.engine.wait_prepare(Wait::Space);
                }
                Decision::Wait(Wait::Space) => {}
                other => unreachable!("{other:?}: nothing else goes on"),
            }
        }
        self.clients[c].asleep = true;
        self.next_step_ns = self.now_ns;
    }

    fn run_to(&mut self, end_ns: u64) {
        loop {
            let client = (0..self.clients.len())
                .filter(|&c| !self.clients[c].asleep)
                .min_by_key(|&c| self.clients[c].next_ns);
            let client_ns = client.map_or(u64::MAX, |c| self.clients[c].next_ns);
            let io = (0..self.in_flight.len()).min_by_key(|&i| self.in_flight[i].end_ns);
            let io_ns = io.map_or(u64::MAX, |i| self.in_flight[i].end_ns);
            let at_ns = client_ns.min(io_ns).min(self.next_step_ns).max(self.now_ns);
            if at_ns > end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.now_ns = at_ns;
            hooks::progress();
            match (io, client) {
                (Some(i), _) if io_ns <= at_ns => {
                    let io = self.in_flight.swap_remove(i);
                    self.engine.destage_complete(io.id, io.error);
                    self.destage();
                }
                _ if self.next_step_ns <= at_ns => self.destage(),
                (_, Some(c)) => self.client(c),
                _ => unreachable!("the step is always due at some time"),
            }
        }
    }

    /// Until the pool has settled, then falls ill, and what the neighbour had since.
    fn measure(&mut self, ill: Ill) -> Had {
        let settle_ns = 10 * SECOND_NS;
        self.run_to(self.now_ns + settle_ns);
        self.origins[usize::from(OTHER)].ill = ill;
        self.latencies_ns.clear();
        let copied = self.copied();
        self.run_to(self.now_ns + self.bench.seconds * SECOND_NS);
        // A write that is still waiting counts for as long as it has waited.
        for c in self.clients.iter().filter(|c| c.volume == NEIGHBOUR && c.asleep) {
            self.latencies_ns.extend(c.begun_ns.map(|begun| self.now_ns - begun));
        }
        let copies_per_s = (self.copied() - copied) as f64 / self.bench.seconds as f64;
        let ns = &mut self.latencies_ns;
        ns.sort_unstable();
        let at = |q: f64| match ns.len() {
            0 => f64::INFINITY,
            n => ns[((n - 1) as f64 * q) as usize] as f64 / 1e3,
        };
        Had {
            writes_per_s: ns.len() as f64 / self.bench.seconds as f64,
            p50_us: at(0.5),
            p999_us: at(0.999),
            max_us: at(1.0),
            copies_per_s,
        }
    }
}

/// Errors: a pool that cannot be made.
fn beside_well(bench: &Bench, neighbour: Neighbour) -> Result<Had, String> {
    Ok(Bed::new(bench, neighbour)?.measure(Ill::Well))
}

fn cell(bench: &Bench, ill: Ill, neighbour: Neighbour, beside_well: Had) -> Result<Cell, String> {
    let mut bed = Bed::new(bench, neighbour)?;
    let beside_ill = bed.measure(ill);
    Ok(Cell {
        ill,
        neighbour,
        beside_well,
        beside_ill,
        throughput_ratio: beside_ill.writes_per_s / beside_well.writes_per_s,
        p999_ratio: beside_ill.p999_us / beside_well.p999_us,
        ill_chunks: bed.engine.volume_info(OTHER).map_err(|e| e.to_string())?.chunks,
        chunks: bed.engine.info().sb.nchunks,
    })
}

/// Every fault with such a neighbour.
pub fn run(bench: &Bench, neighbour: Neighbour) -> Result<Vec<Cell>, String> {
    let well = beside_well(bench, neighbour)?;
    ILLS.iter().map(|ill| cell(bench, *ill, neighbour, well)).collect()
}

/// The promise: at least nine tenths of the throughput, at most twice the tail.
pub fn kept(c: &Cell) -> Result<(), String> {
    match c.throughput_ratio >= 0.9 && c.p999_ratio <= 2.0 {
        true => Ok(()),
        false => Err(format!("a volume held up its neighbour: {c:?}")),
    }
}

/// The one cell that shows most, for the hunt of planted bugs.
pub fn quick() -> Result<(), String> {
    let bench = Bench {
        pool_mib: 8,
        chunk_kib: 128,
        service_us: 200,
        flush_us: 1000,
        light_per_s: 500,
        idle: 0,
        copy_ns: 1000,
        seconds: 5,
        seed: 1,
    };
    let well = beside_well(&bench, Neighbour::Light)?;
    kept(&cell(&bench, Ill::Errors, Neighbour::Light, well)?)
}
