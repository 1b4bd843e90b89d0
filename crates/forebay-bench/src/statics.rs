// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes: a lookup compared with the index, a write compared with the floor, memory,
//! and open.

use std::time::Instant;

use serde::Serialize;

use crate::memory::Memory;
use crate::pool::Pool;
use crate::reads::fill;
use crate::rounds::{self, median, Plan, Stroke, ThreadsOptions};
use crate::strokes::{Look, Part, Random, Source};
use crate::{BenchError, Figures};

/// Bytes of the pool for chunks, which it cannot be without.
const CHUNKS_BYTES: u64 = 16 << 20;
const CHUNK: u64 = 2 << 20;

/// The result of [`statics()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StaticReport {
    /// One thread, in one run.
    pub lookup_ns: StaticLookup,
    /// One for each number of threads.
    pub threads: Vec<StaticThreads>,
    /// DRAM that the volume adds to the engine's, for each page that its share can hold.
    pub dram_bytes_per_page: f64,
    /// From the media to a volume that can be used, dirty, as after a kill: the median.
    pub open_ms: f64,
    /// Interleaved; all figures are their medians.
    pub rounds: u32,
    /// The media that was written.
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

/// Runs the benchmark; seconds, and more with more rounds.  One static volume has all of the
/// pool but 16 MiB, and twice the pool's size is used.
pub fn statics(options: &ThreadsOptions) -> Result<StaticReport, BenchError> {
    rounds::checked(&options.threads, options.rounds, options.batch)?;
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
    let pool = Pool::create(&memory, pool_bytes, 4, volume, share)?;
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

fn writes(
    options: &ThreadsOptions,
    memory: &Memory,
    pool: &Pool,
    n: u32,
    blocks: u64,
) -> Result<StaticThreads, BenchError> {
    let mut threads = Vec::new();
    for part in Part::of_each(memory, n) {
        let kinds: Vec<Box<dyn Stroke>> =
            vec![Box::new(part.floor()?), Box::new(part.write(pool, blocks))];
        threads.push(kinds);
    }
    let start = Instant::now();
    let figures =
        rounds::run(Plan::new(options.rounds, options.batch), threads, || pool.destage(start))?;
    let (floor, write) = (figures[0], figures[1]);
    Ok(StaticThreads { n, floor, write, over_floor: write.ops_per_s / floor.ops_per_s })
}

/// And what memory a pool has that is like it but for the share.
fn lookups(
    options: &ThreadsOptions,
    pool: &Pool,
    blocks: u64,
) -> Result<(StaticLookup, u64), BenchError> {
    let indexed_bytes = (blocks * 4096 * 5 / 4 + (64 << 20)).next_multiple_of(CHUNK);
    let memory = Memory::new(&options.media, indexed_bytes)?;
    memory.populate();
    let without = {
        let memory = Memory::new(&options.media, CHUNKS_BYTES)?;
        Pool::create(&memory, CHUNKS_BYTES, 4, 16, 0)?.memory_bytes()
    };
    let indexed = Pool::create(&memory, indexed_bytes, 4, blocks, 0)?;
    fill(blocks, |block| Ok(pool.zero(block)? && indexed.zero(block)?))?;
    let look = |pool, seed| Look { pool, random: Random::new(seed), blocks };
    let kinds: Vec<Box<dyn Stroke>> = vec![Box::new(look(pool, 1)), Box::new(look(&indexed, 2))];
    let figures = rounds::run(Plan::new(options.rounds, options.batch), vec![kinds], || Ok(()))?;
    let ns = |f: &Figures| 1e9 / f.ops_per_s;
    Ok((StaticLookup { by_place: ns(&figures[0]), index: ns(&figures[1]) }, without))
}
