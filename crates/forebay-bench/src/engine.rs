// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes: the engine against the floor below it.

use std::time::Instant;

use forebay_engine::sys::posix_kernels;
use serde::Serialize;

use crate::memory::{MediaChoice, Memory};
use crate::pool::Pool;
use crate::rounds::{self, Plan, Stroke};
use crate::strokes::{Part, Random, Source};
use crate::{BenchError, Figures};

/// Options of [`engine()`].
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// The media in place of persistent memory; twice `pool_bytes` of it are used.
    pub media: MediaChoice,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Blocks that are written at random; 0: a 32nd of what the pool holds,
    /// so that chunks run empty by being overwritten, and destage has no work.
    pub blocks: u64,
    /// Numbers of writing threads, one after the other.
    pub threads: Vec<u32>,
    /// Rounds for each; in a round each of the three ways gets its turn.
    pub rounds: u32,
    /// Writes of a thread in a turn, once without and once with the clock.
    pub batch: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            media: MediaChoice::default(),
            pool_bytes: 2 << 30,
            blocks: 0,
            threads: vec![1, 2],
            rounds: 301,
            batch: 1_500,
        }
    }
}

/// The result of [`engine()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineReport {
    /// One for each number of threads.
    pub threads: Vec<EngineThreads>,
    /// DRAM of engine and volume, everything included, for each page that the
    /// pool can hold.
    pub dram_bytes_per_page: f64,
    /// Interleaved; all figures are their medians.
    pub rounds: u32,
    /// The media and the method of writing.
    pub media: String,
}

/// The three ways with one number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EngineThreads {
    /// Writing threads.
    pub n: u32,
    /// 4 KiB non-temporal copy and fence.
    pub raw: Figures,
    /// A copy with CRC32C and one header line before the fence.
    pub floor: Figures,
    /// A whole write of a random block.
    pub engine: Figures,
    /// `engine.ops_per_s / floor.ops_per_s`.
    pub engine_over_floor: f64,
}

/// Runs the benchmark; seconds, and more with more rounds.
pub fn engine(options: &EngineOptions) -> Result<EngineReport, BenchError> {
    let most = rounds::checked(&options.threads, options.rounds, options.batch)?;
    let pool_bytes = options.pool_bytes.next_multiple_of(2 << 20);
    let memory = Memory::new(&options.media, pool_bytes * 2)?;
    memory.populate_in_turns(2);
    let pool = Pool::create(&memory, pool_bytes, most.max(4), pool_bytes / 4096, 0)?;
    let blocks = match options.blocks {
        0 => pool.info().pages / 32,
        blocks => blocks.min(pool_bytes / 4096),
    };
    settle(&pool, blocks)?;
    let threads = options.threads.iter().map(|&n| run(options, &memory, &pool, n, blocks));
    Ok(EngineReport {
        threads: threads.collect::<Result<_, _>>()?,
        dram_bytes_per_page: pool.dram_bytes_per_page(),
        rounds: options.rounds,
        media: format!(
            "{}, pool of {} MiB, {blocks} blocks at random, {} nt",
            options.media.name(),
            pool_bytes >> 20,
            posix_kernels()[0]
        ),
    })
}

/// Writes until every chunk has been used and the pool is as it will stay.
fn settle(pool: &Pool, blocks: u64) -> Result<(), BenchError> {
    let (mut source, mut random) = (Source::new(1), Random::new(1));
    let start = Instant::now();
    for block in 0..blocks + pool.info().pages {
        let block = if block < blocks { block } else { random.below(blocks) };
        while !pool.write(block, source.next())? {
            pool.destage(start)?;
        }
    }
    Ok(())
}

fn run(
    options: &EngineOptions,
    memory: &Memory,
    pool: &Pool,
    n: u32,
    blocks: u64,
) -> Result<EngineThreads, BenchError> {
    let mut threads = Vec::new();
    for part in Part::of_each(memory, n) {
        let kinds: Vec<Box<dyn Stroke>> = vec![
            Box::new(part.raw()?),
            Box::new(part.floor()?),
            Box::new(part.write(pool, blocks)),
        ];
        threads.push(kinds);
    }
    let plan = Plan::new(options.rounds, options.batch);
    let start = Instant::now();
    let figures = rounds::run(plan, threads, || pool.destage(start))?;
    let (raw, floor, engine) = (figures[0], figures[1], figures[2]);
    Ok(EngineThreads {
        n,
        raw,
        floor,
        engine,
        engine_over_floor: engine.ops_per_s / floor.ops_per_s,
    })
}
