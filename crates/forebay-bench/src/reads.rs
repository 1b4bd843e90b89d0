// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads of cached blocks, verified.

use serde::Serialize;

use crate::memory::Memory;
use crate::pool::Pool;
use crate::rounds::{self, Plan, Stroke, ThreadsOptions};
use crate::strokes::{Random, Read, Source};
use crate::{BenchError, Figures};

/// The result of [`reads()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadReport {
    /// One for each number of threads.
    pub threads: Vec<ReadThreads>,
    /// All figures are their medians.
    pub rounds: u32,
    /// The media that was read.
    pub media: String,
}

/// Read hits with one number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReadThreads {
    /// Reading threads.
    pub n: u32,
    /// 4 KiB reads of random cached blocks, line and data checksums verified.
    pub hit: Figures,
    /// `hit.ops_per_s / n`.
    pub ops_per_s_per_thread: f64,
}

/// Runs the benchmark; seconds.  The pool is filled.
pub fn reads(options: &ThreadsOptions) -> Result<ReadReport, BenchError> {
    if options.threads.iter().any(|n| !(1..=64).contains(n)) {
        return Err(BenchError::Options("threads: 1 to 64".to_owned()));
    }
    let pool_bytes = options.pool_bytes.next_multiple_of(2 << 20);
    let memory = Memory::new(&options.media, pool_bytes)?;
    memory.populate();
    let pool = Pool::create(&memory, pool_bytes, 4, pool_bytes / 4096, 0)?;
    let (blocks, mut source) = (pool.info().pages / 8 * 7, Source::new(1));
    fill(blocks, |block| pool.write(block, source.next()))?;
    let plan = Plan::new(options.rounds, options.batch);
    let mut threads = Vec::new();
    for &n in &options.threads {
        let thread = |i| -> Vec<Box<dyn Stroke + '_>> {
            let random = Random::new(u64::from(i) + 1);
            vec![Box::new(Read { pool: &pool, random, blocks, data: Box::new([0; 4096]) })]
        };
        let hit = rounds::run(plan, (0..n).map(thread).collect(), || Ok(()))?[0];
        threads.push(ReadThreads { n, hit, ops_per_s_per_thread: hit.ops_per_s / f64::from(n) });
    }
    Ok(ReadReport {
        threads,
        rounds: options.rounds,
        media: format!(
            "{}, pool of {} MiB, {blocks} blocks cached",
            options.media.name(),
            pool_bytes >> 20
        ),
    })
}

/// All blocks, in an order of which nothing follows.
pub(crate) fn fill(
    blocks: u64,
    mut one: impl FnMut(u64) -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let mut random: Vec<u64> = (0..blocks).collect();
    shuffle(&mut random);
    for block in random {
        if !one(block)? {
            return Err(BenchError::Options("the pool is too small to be read".to_owned()));
        }
    }
    Ok(())
}

/// Shuffles blocks, so that neighbours are not adjacent in the pool.
pub(crate) fn shuffle(blocks: &mut [u64]) {
    let mut random = Random::new(7);
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random.below(i as u64 + 1) as usize);
    }
}
