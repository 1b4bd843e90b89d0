// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commit slots: throughput and CPU time of a write against their number, with
//! more writers than the media can serve (ZIL-PMEM, section 7.3.4).  Writers of a volume,
//! or of a log, whose appends take the same slots.
//!
//! The library is what is measured, with the way it waits for a slot.  Cells of
//! the table are visited in turns, so a slow moment of the machine falls on all.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use forebay::{
    create, AttachOptions, CreateOptions, Error, Generation, Log, LogHome, Media, MediaOptions,
    MemOrigin, Persist, Pool, PoolOptions, Volume,
};
use forebay_engine::sys;
use rustix::time::{clock_gettime, ClockId};
use serde::Serialize;

use crate::rounds::median;
use crate::slow::Bucket;
use crate::strokes::{Random, Source};
use crate::BenchError;

const PAGE: u64 = 4096;
/// Between two syncs of a log, while it is written to.
const SYNC: Duration = Duration::from_millis(5);

/// The target of writes: blocks of a volume, or entries of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotsTarget {
    Volume,
    Log,
}

impl SlotsTarget {
    /// Bytes that a write of 4 KiB stores in addition: a line, or an entry's header.
    fn stored(self) -> u64 {
        match self {
            SlotsTarget::Volume => PAGE + 64,
            SlotsTarget::Log => PAGE + size_of::<sys::fby_log_entry>() as u64,
        }
    }
}

/// Options of [`slots()`].
#[derive(Debug, Clone, PartialEq)]
pub struct SlotsOptions {
    pub target: SlotsTarget,
    /// Bandwidth of the media; 0: not limited.
    pub media_bytes_per_s: u64,
    /// Numbers of writing threads.
    pub threads: Vec<u32>,
    /// Numbers of commit slots; a pool for each.
    pub slots: Vec<u32>,
    /// Turns of each cell.
    pub rounds: u32,
    /// Length of a turn.
    pub turn: Duration,
    /// Size of each pool.
    pub pool_bytes: u64,
    /// Blocks that are written at random; 0: a 32nd of what a pool holds, so that
    /// chunks run empty by being overwritten, and destage has no work.
    pub blocks: u64,
    /// A directory for the pools instead of anonymous memory.
    pub dir: Option<PathBuf>,
    /// How the media is made durable.
    pub persist: Persist,
}

impl Default for SlotsOptions {
    fn default() -> Self {
        Self {
            target: SlotsTarget::Volume,
            media_bytes_per_s: 400_000_000,
            threads: vec![1, 2, 4, 16],
            slots: vec![1, 2, 4, 8, 16],
            rounds: 5,
            turn: Duration::from_millis(200),
            pool_bytes: 128 << 20,
            blocks: 0,
            dir: None,
            persist: Persist::Auto,
        }
    }
}

/// The result of [`slots()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotsReport {
    pub target: SlotsTarget,
    /// 0: not limited.
    pub media_bytes_per_s: u64,
    /// Writes that the bandwidth allows, of 4 KiB and their additional bytes; 0: not limited.
    pub media_writes_per_s: f64,
    /// The number that `slots = auto` chooses on this media and machine.
    pub auto_slots: u32,
    pub cpus: usize,
    pub rounds: u32,
    pub turn_ms: u64,
    pub cells: Vec<SlotsCell>,
    /// The media, and how it was slowed.
    pub media: String,
}

/// So many writers and slots: medians of the rounds, and their spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SlotsCell {
    pub threads: u32,
    pub slots: u32,
    pub writes_per_s: f64,
    pub writes_per_s_low: f64,
    pub writes_per_s_high: f64,
    /// CPU time of the writers over their writes.
    pub cpu_ns_per_write: f64,
    pub cpu_ns_per_write_low: f64,
    pub cpu_ns_per_write_high: f64,
}

/// The turns of a cell.
#[derive(Clone, Default)]
struct Seen {
    writes_per_s: Vec<f64>,
    cpu_ns_per_write: Vec<f64>,
}

/// The target that writers share.
enum Target {
    /// Number of its blocks.
    Volume(Volume, u64),
    /// And its newest txg.
    Log(Log, AtomicU64),
}

impl Target {
    fn write(&self, random: &mut Random, data: &[u8]) -> Result<(), BenchError> {
        match self {
            Target::Volume(volume, blocks) => {
                volume.write_at(data, random.below(*blocks) * PAGE)?;
            }
            Target::Log(log, txg) => loop {
                match log.append(txg.load(Ordering::Relaxed), Generation::Same, &[data]) {
                    Ok(_) => break,
                    // Synced since it was looked at.
                    Err(Error::Log { code, .. }) if code == sys::FBY_E_LOG_OBSOLETE => {}
                    Err(e) => return Err(e.into()),
                }
            },
        }
        Ok(())
    }

    /// While others write: so that a log does not fill the pool.
    fn wait(&self, length: Duration) -> Result<(), BenchError> {
        let Target::Log(log, txg) = self else {
            std::thread::sleep(length);
            return Ok(());
        };
        let start = Instant::now();
        while let Some(left) = length.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(SYNC));
            let before = txg.fetch_add(1, Ordering::Relaxed);
            log.sync(before - 1)?;
        }
        Ok(())
    }
}

/// A pool with so many slots.  Dropped in this order.
struct Bed {
    target: Target,
    _pool: Pool,
    bucket: Arc<Bucket>,
    slots: u32,
}

fn media(o: &SlotsOptions) -> Result<Media, BenchError> {
    let options = MediaOptions { persist: o.persist, populate: true, ..Default::default() };
    let Some(dir) = &o.dir else {
        // Formatted as a file, since a pool is made at a path; then copied.
        return Ok(Media::anonymous(o.pool_bytes, &options)?);
    };
    let path = dir.join(format!("forebay-slots-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    create(&path, &CreateOptions { size_bytes: Some(o.pool_bytes), ..Default::default() })?;
    let media = Media::open(&path, &options);
    std::fs::remove_file(&path).map_err(|source| BenchError::System {
        what: format!("removing the name of {}", path.display()),
        source,
    })?;
    Ok(media?)
}

/// Formats anonymous memory as `create` does.
fn format(media: &Media) -> Result<(), BenchError> {
    let format = sys::fby_format { uuid: *b"forebay-slots 01", ..Default::default() };
    let done = forebay_engine::format(media.mapped(), &format);
    done.map_err(|e| BenchError::Engine { what: "format the pool", reason: e.message() })
}

fn bed(o: &SlotsOptions, slots: u32) -> Result<Bed, BenchError> {
    let media = media(o)?;
    if o.dir.is_none() {
        format(&media)?;
    }
    let bucket = Arc::new(Bucket::new());
    let media = media.paced(bucket.clone());
    let pool = Pool::open_media(media, &PoolOptions { slots, ..Default::default() })?;
    let target = match o.target {
        SlotsTarget::Volume => volume(&pool, o)?,
        SlotsTarget::Log => {
            pool.log_add("bench", LogHome::Embedded)?;
            let log = pool.log("bench", &Default::default())?;
            log.create(0)?;
            Target::Log(log, AtomicU64::new(1))
        }
    };
    let bed = Bed { target, slots: pool.options().slots, _pool: pool, bucket };
    bed.bucket.limit(o.media_bytes_per_s);
    Ok(bed)
}

/// Each of its blocks written.
fn volume(pool: &Pool, o: &SlotsOptions) -> Result<Target, BenchError> {
    let blocks = match o.blocks {
        0 => pool.status().pages / 32,
        blocks => blocks,
    };
    let origin = MemOrigin::new((blocks * PAGE) as usize)?;
    pool.volume_add_origin("bench", &origin, 512)?;
    let volume = pool.attach_origin("bench", Box::new(origin), &AttachOptions::default())?;
    let mut source = Source::new(1);
    for block in 0..blocks {
        volume.write_at(source.next(), block * PAGE)?;
    }
    Ok(Target::Volume(volume, blocks))
}

fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// One turn of a cell: writes a second, and CPU nanoseconds of one.
fn turn(bed: &Bed, threads: u32, length: Duration, seed: u64) -> Result<(f64, f64), BenchError> {
    let (start, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let writer = |n: u32| -> Result<(u64, u64, [Instant; 2]), BenchError> {
        let mut source = Source::new(seed + u64::from(n));
        let mut random = Random::new(seed << 8 | u64::from(n));
        start.wait();
        let (began, cpu) = (Instant::now(), thread_cpu_ns());
        let mut writes = 0;
        while !stop.load(Ordering::Relaxed) {
            bed.target.write(&mut random, source.next())?;
            writes += 1;
        }
        Ok((writes, thread_cpu_ns() - cpu, [began, Instant::now()]))
    };
    std::thread::scope(|scope| {
        let writer = &writer;
        let all: Vec<_> = (0..threads).map(|n| scope.spawn(move || writer(n))).collect();
        start.wait();
        let mut waited = bed.target.wait(length);
        stop.store(true, Ordering::Relaxed);
        let (mut writes, mut cpu_ns, mut times) = (0, 0, Vec::new());
        for t in all {
            // One that waits for space sees the end when it has got it.
            while waited.is_ok() && !t.is_finished() {
                waited = bed.target.wait(SYNC);
            }
            let (n, cpu, time) = t.join().expect("writers do not panic")?;
            writes += n;
            cpu_ns += cpu;
            times.extend(time);
        }
        waited?;
        // From the first that began to the last that ended: all writes are within.
        let first = times.iter().min().copied().unwrap_or_else(Instant::now);
        let seconds = times.iter().max().map_or(0.0, |last| (*last - first).as_secs_f64());
        let per_s = writes as f64 / seconds;
        Ok((per_s, cpu_ns as f64 / writes.max(1) as f64))
    })
}

fn spread(values: &[f64]) -> (f64, f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    (median(values.to_vec()), low, high)
}

/// Runs the benchmark: about `threads x slots x rounds x turn`.
pub fn slots(o: &SlotsOptions) -> Result<SlotsReport, BenchError> {
    let wrong = |n: &u32| !(1..=64).contains(n);
    if o.threads.is_empty() || o.slots.is_empty() || o.threads.iter().chain(&o.slots).any(wrong) {
        return Err(BenchError::Options("threads and slots: 1 to 64, at least one of each".into()));
    }
    if o.rounds == 0 || o.turn.is_zero() {
        return Err(BenchError::Options("rounds and their length: more than nothing".into()));
    }
    let auto = bed(o, 0)?;
    let (auto_slots, what) = (auto.slots, auto._pool.media().clone());
    drop(auto);
    let beds = o.slots.iter().map(|&n| bed(o, n)).collect::<Result<Vec<_>, _>>()?;
    let cells: Vec<_> = o.threads.iter().flat_map(|&n| beds.iter().map(move |b| (n, b))).collect();
    let mut seen = vec![Seen::default(); cells.len()];
    for round in 0..o.rounds as usize {
        for i in 0..cells.len() {
            let at = (i + round * 7) % cells.len();
            let (threads, bed) = cells[at];
            let (per_s, cpu) = turn(bed, threads, o.turn, (round * cells.len() + at) as u64)?;
            seen[at].writes_per_s.push(per_s);
            seen[at].cpu_ns_per_write.push(cpu);
        }
    }
    let cell = |(&(threads, bed), seen): (&(u32, &Bed), &Seen)| {
        let (writes_per_s, writes_per_s_low, writes_per_s_high) = spread(&seen.writes_per_s);
        let (cpu_ns_per_write, cpu_ns_per_write_low, cpu_ns_per_write_high) =
            spread(&seen.cpu_ns_per_write);
        SlotsCell {
            threads,
            slots: bed.slots,
            writes_per_s,
            writes_per_s_low,
            writes_per_s_high,
            cpu_ns_per_write,
            cpu_ns_per_write_low,
            cpu_ns_per_write_high,
        }
    };
    let slowed = match o.media_bytes_per_s {
        0 => "not slowed".to_owned(),
        rate => format!(
            "slowed to {} MB/s by a bucket of tokens that all stores share; a fence waits for its \
             own on the CPU",
            rate / 1_000_000
        ),
    };
    Ok(SlotsReport {
        target: o.target,
        media_bytes_per_s: o.media_bytes_per_s,
        media_writes_per_s: o.media_bytes_per_s as f64 / o.target.stored() as f64,
        auto_slots,
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        rounds: o.rounds,
        turn_ms: o.turn.as_millis() as u64,
        cells: cells.iter().zip(&seen).map(cell).collect(),
        media: format!("{}, {}; {slowed}", what.kind, what.persist),
    })
}
