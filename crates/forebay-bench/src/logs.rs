// SPDX-License-Identifier: MIT OR Apache-2.0
//! Appends to logs, compared with their floor: the time of copying, both checksums, a header
//! and one fence on the same media, by the same number of threads.  Then claim and replay of
//! all entries that a killed process left.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use forebay_engine::logs::Name;
use forebay_engine::sys::crc32c;
use forebay_engine::{entry_bytes, sys, Code, Decision, Engine, Media, Step, Wait};
use serde::Serialize;

use crate::memory::{MediaChoice, Memory};
use crate::peer::Peer;
use crate::pool::{failed, failed_open};
use crate::rounds::{self, median, Plan, Stroke};
use crate::strokes::Random;
use crate::{BenchError, Figures};

const HEADER: usize = 128;
const LINE: usize = 64;

/// Options of [`logs()`].
#[derive(Debug, Clone, PartialEq)]
pub struct LogOptions {
    /// The media in place of persistent memory; twice `pool_bytes` of it are used.
    pub media: MediaChoice,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Bytes of an entry.
    pub bytes: Vec<u32>,
    /// Numbers of appending threads: to one log, and to one each.
    pub threads: Vec<u32>,
    /// Rounds for each; in a round each way gets its turn.
    pub rounds: u32,
    /// Bytes of entries of 4 KiB that are claimed and replayed; 0: none.
    pub replay_bytes: u64,
    /// A program that appends to PMDK's libpmemlog: bench/pmemlog.c.
    pub pmemlog: Option<std::path::PathBuf>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            media: MediaChoice::default(),
            pool_bytes: 2 << 30,
            bytes: vec![128, 512, 4096, 65536],
            threads: vec![1, 2],
            rounds: 51,
            replay_bytes: 1 << 30,
            pmemlog: None,
        }
    }
}

/// The result of [`logs()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogReport {
    pub appends: Vec<LogAppends>,
    /// Bodies of entries a second: from the open of what a killed process left to the end
    /// of the claim, and of the replay after it.  None: not asked for.
    pub claim_bytes_per_s: Option<f64>,
    pub replay_bytes_per_s: Option<f64>,
    /// Both, one after the other.
    pub claim_and_replay_bytes_per_s: Option<f64>,
    /// Memory of a claim, for each entry that it holds.
    pub dram_bytes_per_entry: u64,
    /// Interleaved; figures of appends are their medians.
    pub rounds: u32,
    pub media: String,
}

/// Entries of one size by so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LogAppends {
    pub bytes: u32,
    pub threads: u32,
    /// One for all threads, or one for each.
    pub logs: u32,
    pub ops_per_s: f64,
    /// `append.ops_per_s / floor.ops_per_s`.
    pub over_floor: f64,
    /// The median of the rounds' ratios; None: without libpmemlog.
    pub over_libpmemlog: Option<f64>,
    pub append: Figures,
    pub floor: Figures,
}

/// A log, and its newest txg.
struct Log {
    index: u16,
    txg: AtomicU64,
}

/// A pool with logs.
struct Bed {
    engine: Engine,
    logs: Vec<Log>,
}

impl Bed {
    fn create(memory: &Memory, bytes: u64, slots: u32, logs: u32) -> Result<Self, BenchError> {
        let media = memory.media(bytes)?;
        // Another pool each time: entries of the previous one do not count.
        static POOLS: AtomicU64 = AtomicU64::new(0);
        let mut uuid = *b"forebay-logs ...";
        uuid[13..].copy_from_slice(&POOLS.fetch_add(1, Ordering::Relaxed).to_le_bytes()[..3]);
        let format = sys::fby_format { uuid, ..Default::default() };
        forebay_engine::format(&media, &format).map_err(failed("format the pool"))?;
        let options = sys::fby_options { nslots: slots, ..Default::default() };
        let opened = Engine::open_threaded(Arc::new(media), &options, 1);
        let (engine, _) = opened.map_err(failed_open("open the pool"))?;
        let mut all = Vec::new();
        for n in 0..logs {
            let index = engine.log_add(&format!("bench-{n}"), 0).map_err(failed("add a log"))?;
            let mut guid = *b"forebay-bench  .";
            guid[15] = n as u8;
            engine.log_create(index, &guid, 0, &mut 0).map_err(failed("begin a log"))?;
            all.push(Log { index, txg: AtomicU64::new(1) });
        }
        Ok(Self { engine, logs: all })
    }

    /// Work concurrent with the appends: each log's txg is synced and the next begun.
    fn beside(&self, start: Instant) -> Result<(), BenchError> {
        for log in &self.logs {
            let txg = log.txg.fetch_add(1, Ordering::Relaxed);
            if txg > 1 {
                let synced = self.engine.log_sync(log.index, txg - 1, &mut 0);
                synced.map_err(failed("sync a log"))?;
            }
        }
        let now = start.elapsed().as_nanos() as u64;
        while let Step::Again =
            self.engine.destage_step(now, &mut 0).map_err(failed("keep house"))?
        {}
        Ok(())
    }
}

/// Noise to append from.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// A piece of it after the other, small enough to stay in the cache.
struct Pieces {
    noise: Vec<u8>,
    bytes: usize,
    at: usize,
}

impl Pieces {
    fn new(seed: u64, bytes: u32) -> Self {
        let bytes = bytes as usize;
        Self { noise: noise(seed, bytes.max(32 << 10) + bytes), bytes, at: 0 }
    }

    #[inline]
    fn next(&mut self) -> &[u8] {
        self.at = (self.at + self.bytes) % (self.noise.len() - self.bytes + 1);
        &self.noise[self.at..self.at + self.bytes]
    }
}

/// A share of the media as a ring of entries: copy with its checksum, a header with its own
/// checksum, and a fence.
struct Floor {
    media: Media,
    first: u64,
    bytes: u64,
    at: u64,
    n: u64,
    pieces: Pieces,
}

impl Stroke for Floor {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let body = self.pieces.next();
        let all = (HEADER + body.len().next_multiple_of(LINE)) as u64;
        if self.at + all > self.bytes {
            self.at = 0;
        }
        let at = self.first + self.at;
        self.n += 1;
        let body_crc = self.media.write_crc(at + HEADER as u64, body, 0);
        let mut header = sys::fby_log_entry { id: self.n, body_crc, ..Default::default() };
        header.crc = crc32c(0, &entry_bytes(&header)[..HEADER - 4]);
        self.media.write(at, entry_bytes(&header));
        self.media.fence(at, all as usize);
        self.at += all;
        Ok(())
    }
}

/// One append, of the generation that is.
struct Append<'a> {
    bed: &'a Bed,
    log: &'a Log,
    pieces: Pieces,
    stop: &'a AtomicBool,
}

impl Stroke for Append<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let body = self.pieces.next();
        let txg = self.log.txg.load(Ordering::Relaxed);
        let mut name = Name::default();
        let (engine, index) = (&self.bed.engine, self.log.index);
        match engine.log_append_as(index, txg, false, &[body], &mut name, &mut 0) {
            Ok(Decision::Done) => {
                std::hint::black_box(&name);
                Ok(())
            }
            other => again(self.bed, self.log, body, other, self.stop),
        }
    }
}

#[cold]
fn again(
    bed: &Bed,
    log: &Log,
    body: &[u8],
    mut what: Result<Decision, Code>,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    loop {
        match what {
            Ok(Decision::Done) => return Ok(()),
            Ok(Decision::Wait(Wait::Slot | Wait::Space)) => std::hint::spin_loop(),
            Err(e) if e.is(sys::FBY_E_LOG_OBSOLETE) => {} // synced since it was looked at
            Err(e) => return Err(failed("append")(e)),
            Ok(_) => return Err(failed("append")(Code(sys::FBY_E_INVARIANT))),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let txg = log.txg.load(Ordering::Relaxed);
        what = bed.engine.log_append(log.index, txg, false, &[body], &mut 0).map(|(d, _)| d);
    }
}

fn appends(
    o: &LogOptions,
    memory: &Memory,
    bytes: u32,
    n: u32,
    logs: u32,
) -> Result<LogAppends, BenchError> {
    let bed = Bed::create(memory, o.pool_bytes, n.max(4), logs)?;
    let share = memory.len() as u64 / 2 / u64::from(n) / (2 << 20) * (2 << 20);
    let stop = AtomicBool::new(false);
    let mut threads = Vec::new();
    for thread in 0..n {
        let seed = u64::from(n) << 8 | u64::from(thread);
        let kinds: Vec<Box<dyn Stroke + '_>> = vec![
            Box::new(Floor {
                media: memory.media(memory.len() as u64)?,
                first: memory.len() as u64 / 2 + u64::from(thread) * share,
                bytes: share,
                at: 0,
                n: 0,
                pieces: Pieces::new(seed, bytes),
            }),
            Box::new(Append {
                bed: &bed,
                log: &bed.logs[(thread % logs) as usize],
                pieces: Pieces::new(seed, bytes),
                stop: &stop,
            }),
        ];
        threads.push(kinds);
    }
    // About a tenth of a second each.
    let batch = (60_000 / (1 + bytes / 512)).clamp(400, 30_000);
    let plan = Plan::new(o.rounds, batch);
    let start = Instant::now();
    let figures = rounds::run(plan, threads, || bed.beside(start))?;
    let (floor, append) = (figures[0], figures[1]);
    let over_libpmemlog = match &o.pmemlog {
        None => None,
        Some(program) => Some(beside_pmemlog(program, &bed, bytes, n, logs, batch)?),
    };
    Ok(LogAppends {
        bytes,
        threads: n,
        logs,
        ops_per_s: append.ops_per_s,
        over_floor: append.ops_per_s / floor.ops_per_s,
        over_libpmemlog,
        append,
        floor,
    })
}

/// Turns of libpmemlog and of ours, one after the other: the median of the ratios.
fn beside_pmemlog(
    program: &std::path::Path,
    bed: &Bed,
    bytes: u32,
    n: u32,
    logs: u32,
    batch: u32,
) -> Result<f64, BenchError> {
    let mut peer = Peer::start(program, bytes, n, logs)?;
    let stop = AtomicBool::new(false);
    let mut ratios = Vec::new();
    for round in 0..15 {
        let theirs = peer.turn(batch)?;
        let kinds = |thread: u32| -> Vec<Box<dyn Stroke + '_>> {
            vec![Box::new(Append {
                bed,
                log: &bed.logs[(thread % logs) as usize],
                pieces: Pieces::new(u64::from(thread) << 9 | round, bytes),
                stop: &stop,
            })]
        };
        let plan = Plan::new(1, batch);
        let start = Instant::now();
        let figures = rounds::run(plan, (0..n).map(kinds).collect(), || bed.beside(start))?;
        ratios.push(figures[0].ops_per_s / theirs);
    }
    Ok(median(ratios))
}

/// A log full of entries of 4 KiB, left by a process that was killed: how fast it is
/// claimed, and replayed.
fn replay(o: &LogOptions, memory: &Memory) -> Result<(f64, f64, f64), BenchError> {
    let pool_bytes = o.pool_bytes.max(o.replay_bytes + o.replay_bytes / 8);
    let body = noise(1, 4096);
    let entries = o.replay_bytes / 4096;
    let bed = Bed::create(memory, pool_bytes, 4, 1)?;
    for n in 0..entries {
        let (d, _) = bed
            .engine
            .log_append(bed.logs[0].index, 1, n % 64 == 0, &[&body], &mut 0)
            .map_err(failed("append"))?;
        if d != Decision::Done {
            return Err(BenchError::Options("the pool is too small for the replay".to_owned()));
        }
    }
    let index = bed.logs[0].index;
    drop(bed);
    let (mut claims, mut replays, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        let media = memory.media(pool_bytes)?;
        let options = sys::fby_options { nslots: 4, ..Default::default() };
        let start = Instant::now();
        let opened = Engine::open_threaded(Arc::new(media), &options, 2);
        let (engine, _) = opened.map_err(failed_open("open the pool"))?;
        let mut header = Default::default();
        let claimed = engine.log_claim(index, 0, &mut header);
        let (mut nodes, _) = claimed.map_err(failed("claim"))?;
        let claim = start.elapsed().as_secs_f64();
        let (mut room, mut read) = (Vec::new(), 0);
        let replayed = engine.log_replay(index, &mut nodes, &mut |node, _| match engine
            .log_read(index, node, &mut room)
        {
            Ok(body) => {
                read += body.len() as u64;
                sys::FBY_LOG_APPLIED
            }
            Err(_) => sys::FBY_LOG_DAMAGED,
        });
        let outcome = replayed.map_err(failed("replay"))?;
        if outcome.replayed != entries || read != entries * 4096 {
            return Err(BenchError::Options(format!("{} entries replayed", outcome.replayed)));
        }
        let all = start.elapsed().as_secs_f64();
        claims.push(read as f64 / claim);
        replays.push(read as f64 / (all - claim));
        both.push(read as f64 / all);
    }
    Ok((median(claims), median(replays), median(both)))
}

/// Runs the benchmark: a minute or two.
pub fn logs(o: &LogOptions) -> Result<LogReport, BenchError> {
    if o.threads.iter().any(|n| !(1..=32).contains(n)) || o.rounds == 0 {
        return Err(BenchError::Options("threads: 1 to 32; rounds: at least 1".to_owned()));
    }
    let o = LogOptions { pool_bytes: o.pool_bytes.next_multiple_of(2 << 20), ..o.clone() };
    let memory = Memory::new(&o.media, (o.pool_bytes * 2).max(o.replay_bytes * 2))?;
    memory.populate_in_turns(2);
    let mut all = Vec::new();
    for &threads in &o.threads {
        let mut logs = vec![1, threads];
        logs.dedup();
        for logs in logs {
            for &bytes in &o.bytes {
                all.push(appends(&o, &memory, bytes, threads, logs)?);
            }
        }
    }
    let replayed = if o.replay_bytes > 0 { Some(replay(&o, &memory)?) } else { None };
    Ok(LogReport {
        appends: all,
        claim_bytes_per_s: replayed.map(|r| r.0),
        replay_bytes_per_s: replayed.map(|r| r.1),
        claim_and_replay_bytes_per_s: replayed.map(|r| r.2),
        dram_bytes_per_entry: size_of::<sys::fby_log_node>() as u64,
        rounds: o.rounds,
        media: format!("{}, pool of {} MiB", o.media.name(), o.pool_bytes >> 20),
    })
}
