// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes: a lookup beside the index, a write over the floor, memory, and open.

use std::time::Instant;

use serde::Serialize;

use crate::memory::{MediaChoice, Memory};
use crate::pool::Pool;
use crate::reads::shuffle;
use crate::rounds::{self, median, Plan, Stroke};
use crate::strokes::{Floor, Look, Random, Source, Strip, Write};
use crate::{BenchError, Figures};

/// Of the pool, for chunks, which it cannot be without.
const CHUNKS_BYTES: u64 = 16 << 20;
const CHUNK: u64 = 2 << 20;

/// What [`statics()`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticOptions {
    /// What stands in for persistent memory; twice `pool_bytes` of it are used.
    pub media: MediaChoice,
    /// Size of the pool, all but 16 MiB of it for one static volume.
    pub pool_bytes: u64,
    /// Numbers of writing threads, one after the other.
    pub threads: Vec<u32>,
    /// Rounds for each.
    pub rounds: u32,
    /// Operations of a thread in a turn, once without and once with the clock.
    pub batch: u32,
}

impl Default for StaticOptions {
    fn default() -> Self {
        Self {
            media: MediaChoice::default(),
            pool_bytes: 2 << 30,
            threads: vec![1, 2],
            rounds: 301,
            batch: 1_500,
        }
    }
}

/// What [`statics()`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StaticReport {
    /// Of one thread, in one run.
    pub lookup_ns: StaticLookup,
    /// One for each number of threads.
    pub threads: Vec<StaticThreads>,
    /// DRAM that the volume adds to the engine's, for each page that its share can hold.
    pub dram_bytes_per_page: f64,
    /// From the media to a volume that can be used, dirty, as after a kill: the median.
    pub open_ms: f64,
    /// Interleaved; all figures are their medians.
    pub rounds: u32,
    /// What was written to.
    pub media: String,
}

/// A random block of as many, found by its place, and by the index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StaticLookup {
    /// Reads the slot's line from the media.
    #[serde(rename = "static")]
    pub by_place: f64,
    /// Reads the index in memory.
    pub index: f64,
}

/// Writes of random blocks, each with a slot of its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StaticThreads {
    /// Writing threads.
    pub n: u32,
    /// 4 KiB copied past the caches with their CRC32C, one line, one fence: page after page.
    pub floor: Figures,
    /// A whole write of a random block.
    pub write: Figures,
    /// `write.ops_per_s / floor.ops_per_s`.
    pub over_floor: f64,
}

/// Runs the benchmark; seconds, and more with more rounds.
pub fn statics(options: &StaticOptions) -> Result<StaticReport, BenchError> {
    let most = options.threads.iter().copied().max().unwrap_or(0);
    if options.threads.contains(&0) || !(1..=64).contains(&most) {
        return Err(BenchError::Options("threads: 1 to 64, at least one number".to_owned()));
    }
    if options.rounds == 0 || options.batch == 0 {
        return Err(BenchError::Options("rounds and batch: at least 1".to_owned()));
    }
    let pool_bytes = options.pool_bytes.next_multiple_of(CHUNK);
    if pool_bytes < CHUNKS_BYTES * 3 {
        return Err(BenchError::Options("pool size: at least 48M".to_owned()));
    }
    let mut memory = Memory::new(&options.media, pool_bytes * 2)?;
    memory.populate_in_turns(2);
    let share = pool_bytes - CHUNKS_BYTES;
    // A slot for each, and a quarter of them dirty: destage has no work.
    let volume = share / 8192 / 128 * 126;
    let blocks = volume / 4;
    let pool = Pool::create_static(&memory, pool_bytes, volume, share)?;
    fill(blocks, |block| pool.write(block, Source::new(block).next()))?;
    let threads = options.threads.iter().map(|&n| writes(options, &memory, &pool, n, blocks));
    let threads = threads.collect::<Result<_, _>>()?;
    let with_share = pool.memory_bytes();
    drop(pool);
    let (mut open_ms, mut opened) = (Vec::new(), None);
    for _ in 0..options.rounds.min(9) {
        drop(opened.take());
        let unmapped = memory.unmap();
        let start = Instant::now();
        memory = unmapped.map()?;
        opened = Some(Pool::open(&memory, pool_bytes, 4, 1)?.pool);
        open_ms.push(start.elapsed().as_secs_f64() * 1e3);
        // As a process that dies leaves it: not closed.
    }
    let pool = opened.expect("at least one round");
    let (lookup_ns, without) = lookups(options, &pool, blocks)?;
    Ok(StaticReport {
        lookup_ns,
        threads,
        dram_bytes_per_page: (with_share - without) as f64 / (share / 4096) as f64,
        open_ms: median(open_ms),
        rounds: options.rounds,
        media: format!(
            "{}, pool of {} MiB, {blocks} blocks at random",
            options.media.name(),
            pool_bytes >> 20
        ),
    })
}

/// In an order of which nothing follows.
fn fill(
    blocks: u64,
    mut one: impl FnMut(u64) -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let mut random: Vec<u64> = (0..blocks).collect();
    shuffle(&mut random);
    for block in random {
        if !one(block)? {
            return Err(BenchError::Options("the pool is too small".to_owned()));
        }
    }
    Ok(())
}

fn writes(
    options: &StaticOptions,
    memory: &Memory,
    pool: &Pool,
    n: u32,
    blocks: u64,
) -> Result<StaticThreads, BenchError> {
    let share = memory.len() / 2 / n as usize / CHUNK as usize * CHUNK as usize;
    let mut threads = Vec::new();
    for thread in 0..n {
        let first = memory.len() / 2 + thread as usize * share;
        let seed = u64::from(n) << 8 | u64::from(thread);
        let (source, random) = (Source::new(seed), Random::new(seed + 99));
        let kinds: Vec<Box<dyn Stroke>> = vec![
            Box::new(Floor(Strip::new(memory, first, share)?, Source::new(seed))),
            Box::new(Write { pool, source, random, blocks }),
        ];
        threads.push(kinds);
    }
    let start = Instant::now();
    let figures = rounds::run(plan(options), threads, || pool.destage(start))?;
    let (floor, write) = (figures[0], figures[1]);
    Ok(StaticThreads { n, floor, write, over_floor: write.ops_per_s / floor.ops_per_s })
}

fn plan(options: &StaticOptions) -> Plan {
    Plan { rounds: options.rounds, warm: options.batch / 10, batch: options.batch }
}

/// And what memory a pool has that is like it but for the share.
fn lookups(
    options: &StaticOptions,
    pool: &Pool,
    blocks: u64,
) -> Result<(StaticLookup, u64), BenchError> {
    let indexed_bytes = (blocks * 4096 * 5 / 4 + (64 << 20)).next_multiple_of(CHUNK);
    let memory = Memory::new(&options.media, indexed_bytes)?;
    memory.populate();
    let without = {
        let memory = Memory::new(&options.media, CHUNKS_BYTES)?;
        Pool::create(&memory, CHUNKS_BYTES, 4, 16)?.memory_bytes()
    };
    let indexed = Pool::create(&memory, indexed_bytes, 4, blocks)?;
    fill(blocks, |block| Ok(pool.zero(block)? && indexed.zero(block)?))?;
    let look = |pool, seed| Look { pool, random: Random::new(seed), blocks };
    let kinds: Vec<Box<dyn Stroke>> = vec![Box::new(look(pool, 1)), Box::new(look(&indexed, 2))];
    let figures = rounds::run(plan(options), vec![kinds], || Ok(()))?;
    let ns = |f: &Figures| 1e9 / f.ops_per_s;
    Ok((StaticLookup { by_place: ns(&figures[0]), index: ns(&figures[1]) }, without))
}
