// SPDX-License-Identifier: MIT OR Apache-2.0
//! A full cache in virtual time: more is written than an origin of a steady rate
//! takes, and what comes out is what the throttle and the planner make of it.
//! Nothing here depends on the machine, so a change of a percent shows.
//!
//! One client stands for many: it writes blocks by a pattern and goes on when the
//! engine lets its write end; so many of a hundred requests are reads, which it
//! does not wait for.

mod ideal;
mod pattern;

use serde::Serialize;

use pattern::Blocks;
pub use pattern::Pattern;

use crate::drains::EIO;
use crate::engine::{identity, small_attach, volume_spec, Attach, Decision, Engine};
use crate::hooks;
use crate::media::Media;
use forebay_engine::sys;

const NUMBER: u64 = 1;
/// A client's time for a request that is not delayed.
const THINK_NS: u64 = 10_000;
const WINDOW_NS: u64 = 500_000_000;
/// A write that waits for so long, ten times the longest pause of destage, waits for ever.
const STANDS_NS: u64 = 300_000_000_000;

/// Serves one request after the other, and answers some time after that.
#[derive(Clone, Copy, Debug, Serialize, clap::Args)]
pub struct Disk {
    /// Microseconds in which the disk serves nothing but one request
    #[arg(long = "service", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub service_us: u64,
    /// Additional microseconds of a request
    #[arg(long = "latency", default_value_t = 500)]
    pub latency_us: u64,
    /// Microseconds of a flush
    #[arg(long = "flush", default_value_t = 1000)]
    pub flush_us: u64,
    /// Microseconds that the disk stands still in the middle of the measured time
    #[arg(long = "stop", default_value_t = 0)]
    pub stop_us: u64,
    /// Microseconds in which the disk refuses each write, from there on
    #[arg(long = "fail", default_value_t = 0)]
    pub fail_us: u64,
    /// One block of so many is bad: the disk refuses writes with it; 0: none is
    #[arg(long = "bad", default_value_t = 0)]
    pub bad_of: u64,
}

impl Disk {
    /// Takes no time, and all that it is sent.
    pub const NONE: Disk =
        Disk { service_us: 0, latency_us: 0, flush_us: 0, stop_us: 0, fail_us: 0, bad_of: 0 };

    /// Spread over it, the same ones each time.
    fn is_bad(&self, block: u64) -> bool {
        self.bad_of > 0 && block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (1 << 32) / self.bad_of
    }
}

#[derive(Clone, Copy, Debug, Serialize, clap::Args)]
pub struct Load {
    /// MiB of the pool
    #[arg(long = "pool", default_value_t = 64)]
    pub pool_mib: u64,
    /// KiB of a chunk
    #[arg(long = "chunk", default_value_t = 256)]
    pub chunk_kib: u32,
    /// Data, in sizes of the pool
    #[arg(long, default_value_t = 6)]
    pub times: u64,
    /// Reads in a hundred requests
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..100))]
    pub reads: u64,
    /// Most pages of a round of destage; the default is that of hosts
    #[arg(long = "round", default_value_t = 16384)]
    pub round_pages: u32,
    /// Seconds of virtual time after as much was written as the pool holds
    #[arg(long = "settle", default_value_t = 2)]
    pub settle_s: u64,
    /// Measured, of virtual time, after that
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub pattern: Pattern,
    /// Seconds after which the origin is to have what was written; 0: no limit
    #[arg(long = "max-age", default_value_t = 0)]
    pub max_age_s: u64,
    /// Nanoseconds of destage for each page that it moves within the pool
    #[arg(long = "copy", default_value_t = 1000)]
    pub copy_ns: u64,
}

impl Load {
    fn blocks(&self) -> u64 {
        self.pool_mib * self.times * 256
    }

    /// Uses the same blocks each time.
    fn pattern(&self) -> Blocks {
        Blocks::new(self.pattern, self.blocks(), self.seed)
    }
}

/// Figures of the measured time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub load: Load,
    pub disk: Disk,
    pub writes_per_s: f64,
    pub reads_per_s: f64,
    pub origin_writes_per_s: f64,
    /// Taken in for one that the origin was sent: overwritten in the cache or merged.
    pub writes_per_origin_write: f64,
    /// The ratio of an ideal planner, if at most four fifths of the pool, or nine tenths, are
    /// ever dirty and the longest run goes first.
    pub ideal_at_80: f64,
    pub ideal_at_90: f64,
    pub pages_per_origin_write: f64,
    pub rounds_per_s: f64,
    /// Pages that were moved within the pool, for each write.
    pub copies_per_write: f64,
    /// Share of the time in which the disk served requests, and in which it flushed.
    pub disk_busy: f64,
    pub disk_flushing: f64,
    /// Seconds that the origin lacked a block as it was written last.
    pub oldest_s: f64,
    /// Share of the pool that held live pages at the end.
    pub live: f64,
    /// Variation of the write rate between windows of 0.5 s.
    pub coefficient_of_variation: f64,
    pub slowest_window_per_s: f64,
    pub windows_with_nothing: u32,
    /// Seconds from when the disk refused nothing any more until a window had half of what the
    /// mean one had before it did; none: it had not, or the disk never refused any.
    pub well_after_s: Option<f64>,
    /// Writes that found the pool full.
    pub waits_space: u64,
}

enum Request {
    /// And the blocks in it, with when they were written.
    Destage(u32, Vec<(u64, u64)>),
    Flush(u32),
    Read,
}

struct Bed {
    engine: Engine,
    disk: Disk,
    now_ns: u64,
    /// The disk has nothing more to do from then on.
    free_ns: u64,
    busy_ns: u64,
    flushing_ns: u64,
    /// From when to when it stands still, and refuses.
    stop: (u64, u64),
    fail: (u64, u64),
    in_flight: Vec<(u64, Request)>,
    next_step_ns: u64,
    copy_ns: u64,
    copied: u64,
    /// Destage moves pages until then.
    copying_ns: u64,
    /// When each block was written last, 0 where the origin has that; and what it was sent
    /// since its last flush.
    dirty_ns: Vec<u64>,
    sent: Vec<(u64, u64)>,
    oldest_ns: u64,
}

impl Bed {
    fn new(load: &Load, disk: &Disk) -> Result<Self, String> {
        let text = |e| {
            format!("a pool of {} MiB with chunks of {} KiB: {e}", load.pool_mib, load.chunk_kib)
        };
        let sectors = load.pool_mib * load.times * 2048;
        let mut engine = Engine::new(Media::bare((load.pool_mib << 20) as usize));
        let max_age_ns = load.max_age_s * 1_000_000_000;
        let options =
            sys::fby_options { nslots: 2, no_checksums: true, max_age_ns, ..Default::default() };
        engine.format([7; 16], load.chunk_kib << 10, 1).map_err(text)?;
        engine.open_all(&options).map_err(text)?;
        engine.volume_add(&volume_spec("v", NUMBER, sectors, 512)).map_err(text)?;
        let identity = identity(NUMBER);
        let memory = Attach {
            nrequests: sys::FBY_DEFAULT_QUEUE_DEPTH,
            buffer_bytes: sys::FBY_DEFAULT_BUFFER_BYTES,
            ..small_attach(sectors, &identity, load.round_pages)
        };
        engine.volume_attach(0, &memory).map_err(text)?;
        let mut bed = Self {
            engine,
            disk: *disk,
            now_ns: 1_000_000_000,
            free_ns: 0,
            busy_ns: 0,
            flushing_ns: 0,
            stop: (0, 0),
            fail: (0, 0),
            in_flight: Vec::new(),
            next_step_ns: 0,
            copy_ns: load.copy_ns,
            copied: 0,
            copying_ns: 0,
            dirty_ns: vec![0; load.blocks() as usize],
            sent: Vec::new(),
            oldest_ns: 0,
        };
        bed.destage();
        Ok(bed)
    }

    fn submit(&mut self, request: Request, flush: bool) {
        let service_us = if flush { self.disk.flush_us } else { self.disk.service_us };
        let mut start = self.free_ns.max(self.now_ns);
        if start >= self.stop.0 {
            start = start.max(self.stop.1);
        }
        self.free_ns = start + service_us * 1000;
        *(if flush { &mut self.flushing_ns } else { &mut self.busy_ns }) += service_us * 1000;
        let latency_us = if flush { 0 } else { self.disk.latency_us };
        self.in_flight.push((self.free_ns + latency_us * 1000, request));
    }

    /// Runs destage until it has nothing to do now.
    fn destage(&mut self) {
        loop {
            if self.copying_ns > self.now_ns {
                self.next_step_ns = self.copying_ns;
                return;
            }
            let step = self.engine.destage_step(self.now_ns).expect("the pool is sound");
            self.next_step_ns = step.next_ns;
            let copied = volume(self).pages_relocated;
            self.copying_ns = self.now_ns + (copied - self.copied) * self.copy_ns;
            self.copied = copied;
            match step.io {
                Some(io) if io.op == sys::FBY_IO_FLUSH => self.submit(Request::Flush(io.id), true),
                Some(io) => {
                    let blocks = io.sector / 8..(io.sector + io.nsectors) / 8;
                    let blocks = blocks.map(|b| (b, self.dirty_ns[b as usize])).collect();
                    self.submit(Request::Destage(io.id, blocks), false);
                }
                None if step.decision == Decision::Again => {}
                None => return,
            }
        }
    }

    /// The next requests are sent when this one has ended.
    fn flushed(&mut self) {
        for (block, written_ns) in std::mem::take(&mut self.sent) {
            let dirty_ns = &mut self.dirty_ns[block as usize];
            if *dirty_ns == written_ns && written_ns != 0 {
                self.oldest_ns = self.oldest_ns.max(self.now_ns - written_ns);
                *dirty_ns = 0;
            }
        }
    }

    fn next_event_ns(&self) -> u64 {
        let ends = self.in_flight.iter().map(|(at, _)| *at);
        ends.chain([self.next_step_ns.max(self.now_ns + 1)]).min().expect("one at least")
    }

    /// To that time, with all that happens on the way.
    fn advance(&mut self, to_ns: u64) {
        loop {
            let at_ns = self.next_event_ns();
            if at_ns > to_ns {
                break;
            }
            self.now_ns = at_ns;
            hooks::progress();
            let (ended, left) = std::mem::take(&mut self.in_flight)
                .into_iter()
                .partition(|(at, _)| *at <= self.now_ns);
            self.in_flight = left;
            let fails = (self.fail.0..self.fail.1).contains(&self.now_ns);
            for (_, request) in ended {
                match request {
                    Request::Destage(id, blocks) => {
                        let refused = fails || blocks.iter().any(|(b, _)| self.disk.is_bad(*b));
                        self.sent.extend(blocks.into_iter().filter(|_| !refused));
                        self.engine.destage_complete(id, if refused { EIO } else { 0 });
                    }
                    Request::Flush(id) => {
                        self.flushed();
                        self.engine.destage_complete(id, 0);
                    }
                    Request::Read => self.engine.origin_foreground(0, false),
                }
            }
            self.destage();
        }
        self.now_ns = to_ns;
    }

    fn write(&mut self, block: u64) -> Result<(), String> {
        let came_ns = self.now_ns;
        loop {
            let mut wake = 0;
            let decision = self.engine.write(0, block * 8, &[0; 4096], &mut 0, &mut wake);
            if decision == Ok(Decision::Done) {
                self.dirty_ns[block as usize] = self.now_ns;
            }
            if wake != 0 {
                self.destage();
            }
            match decision.expect("the pool is sound") {
                Decision::Done => break,
                Decision::Wait(wait) => {
                    if self.now_ns - came_ns > STANDS_NS {
                        let waited_s = STANDS_NS / 1_000_000_000;
                        return Err(format!("a write has waited for {wait:?} for {waited_s} s"));
                    }
                    self.engine.wait_prepare(wait);
                    self.advance(self.next_event_ns());
                }
                other => unreachable!("{other:?} of a write"),
            }
        }
        let delay_ns = self.engine.write_delay(0, 8, self.now_ns);
        self.advance(self.now_ns + delay_ns.max(THINK_NS));
        Ok(())
    }

    fn read(&mut self, block: u64) {
        let mut buf = [0; 4096];
        let read = self.engine.read_block(0, block, 0, &mut buf);
        read.result.expect("the pool is sound");
        if read.origin != 0 {
            self.engine.origin_foreground(0, true);
            self.submit(Request::Read, false);
        }
    }
}

/// Errors: a pool that cannot be made, or has no room for the volume's record; and one that
/// stands, so that a write waits for ever.
pub fn run(load: &Load, disk: &Disk) -> Result<Report, String> {
    let mut bed = Bed::new(load, disk)?;
    let mut blocks = load.pattern();
    let (mut writes, mut reads) = (0, 0);
    let mut request = |bed: &mut Bed| {
        if blocks.rng.percent(load.reads) {
            bed.read(blocks.any());
            reads += 1;
        } else {
            bed.write(blocks.written())?;
            writes += 1;
        }
        Ok::<_, String>((writes, reads))
    };

    let mut before = (0, 0);
    while before.0 < load.pool_mib * 256 {
        before = request(&mut bed)?;
    }
    let settled_ns = bed.now_ns + load.settle_s * 1_000_000_000;
    while bed.now_ns < settled_ns {
        before = request(&mut bed)?;
    }
    let (start_ns, info, pool) = (bed.now_ns, volume(&mut bed), bed.engine.info());
    bed.oldest_ns = 0;
    let (busy_ns, flushing_ns) = (bed.busy_ns, bed.flushing_ns);
    let middle_ns = start_ns + load.seconds * 500_000_000;
    bed.stop = (middle_ns, middle_ns + disk.stop_us * 1000);
    bed.fail = (middle_ns, middle_ns + disk.fail_us * 1000);
    let mut windows = vec![0; (load.seconds * 2) as usize];
    let mut after = before;
    while bed.now_ns < start_ns + load.seconds * 1_000_000_000 {
        let window = ((bed.now_ns - start_ns) / WINDOW_NS) as usize;
        let counted = after.0;
        after = request(&mut bed)?;
        windows[window] += after.0 - counted;
    }

    let left = bed.dirty_ns.iter().filter(|&&ns| ns != 0).map(|ns| bed.now_ns - ns).max();
    let oldest_ns = bed.oldest_ns.max(left.unwrap_or(0));
    let (now, end) = (volume(&mut bed), bed.engine.info());
    let seconds = (bed.now_ns - start_ns) as f64 / 1e9;
    let rate = |n: u64| n as f64 / seconds;
    let sent = (now.origin_writes - info.origin_writes) as f64;
    let mean = windows.iter().sum::<u64>() as f64 / windows.len() as f64;
    let square =
        windows.iter().map(|&w| (w as f64 - mean).powi(2)).sum::<f64>() / windows.len() as f64;
    let ideal = |percent: u64| {
        let most = load.pool_mib * 256 * percent / 100;
        let writes = after.0 - before.0;
        ideal::writes_per_request(load.pattern(), load.blocks(), most, writes)
    };
    Ok(Report {
        load: *load,
        disk: *disk,
        writes_per_s: rate(after.0 - before.0),
        reads_per_s: rate(after.1 - before.1),
        origin_writes_per_s: sent / seconds,
        writes_per_origin_write: (after.0 - before.0) as f64 / sent,
        ideal_at_80: ideal(80),
        ideal_at_90: ideal(90),
        pages_per_origin_write: (now.origin_sectors_written - info.origin_sectors_written) as f64
            / 8.0
            / sent,
        rounds_per_s: rate(now.rounds - info.rounds),
        copies_per_write: (now.pages_relocated - info.pages_relocated) as f64
            / (after.0 - before.0) as f64,
        disk_busy: rate(bed.busy_ns - busy_ns) / 1e9,
        disk_flushing: rate(bed.flushing_ns - flushing_ns) / 1e9,
        oldest_s: oldest_ns as f64 / 1e9,
        live: now.pages as f64 / (load.pool_mib * 256) as f64,
        coefficient_of_variation: square.sqrt() / mean,
        slowest_window_per_s: windows.iter().min().map_or(0.0, |&w| w as f64 * 2.0),
        windows_with_nothing: windows.iter().filter(|&&w| w == 0).count() as u32,
        well_after_s: well_after(&windows, disk.fail_us),
        waits_space: end.waits_space - pool.waits_space,
    })
}

fn well_after(windows: &[u64], fail_us: u64) -> Option<f64> {
    let (before, behind) = windows.split_at(windows.len() / 2);
    let mean = before.iter().sum::<u64>() / before.len().max(1) as u64;
    let failing = (fail_us * 1000).div_ceil(WINDOW_NS) as usize;
    let well = behind.iter().skip(failing).position(|&w| w >= mean / 2)?;
    (fail_us > 0).then(|| well as f64 * WINDOW_NS as f64 / 1e9)
}

fn volume(bed: &mut Bed) -> sys::fby_volume_info {
    bed.engine.volume_info(0).expect("it was added")
}
