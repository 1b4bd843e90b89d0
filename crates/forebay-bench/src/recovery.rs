// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a pool that a killed process left full of dirty pages.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use crate::memory::{MediaChoice, Memory};
use crate::pool::Pool;
use crate::reads::shuffle;
use crate::rounds::median;
use crate::strokes::Source;
use crate::BenchError;

/// Options of [`recovery()`].
#[derive(Debug, Clone, PartialEq)]
pub struct RecoveryOptions {
    /// The media in place of persistent memory.
    pub media: MediaChoice,
    /// Size of the pool, which is filled with as many different blocks as it holds.
    pub pool_bytes: u64,
    /// Threads that scan the pool.
    pub threads: u32,
    /// How often; each time as after a kill.
    pub rounds: u32,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self {
            media: MediaChoice::File(PathBuf::from("/dev/shm")),
            pool_bytes: 8 << 30,
            threads: 2,
            rounds: 5,
        }
    }
}

/// The result of [`recovery()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecoveryReport {
    /// From mapping the media to the first possible write: the median.
    pub seconds: f64,
    /// The worst round.
    pub seconds_max: f64,
    /// Each as after a kill.
    pub rounds: u32,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// `pool_bytes / seconds`.
    pub pool_bytes_per_s: f64,
    /// Threads that scanned.
    pub threads: u32,
    /// Valid entries found.
    pub entries: u64,
    /// Blocks that are cached afterwards.
    pub blocks: u64,
    /// Unacknowledged pages dropped, pages damaged and entries lost: all 0 here.
    pub dropped: u64,
    /// See `dropped`.
    pub damaged: u64,
    /// See `dropped`.
    pub holes: u64,
    /// The media that was recovered.
    pub media: String,
}

/// Runs the benchmark: fills the pool, then opens it again and again.
pub fn recovery(options: &RecoveryOptions) -> Result<RecoveryReport, BenchError> {
    if !(1..=64).contains(&options.threads) || options.rounds == 0 {
        return Err(BenchError::Options("threads: 1 to 64; rounds: at least 1".to_owned()));
    }
    let pool_bytes = options.pool_bytes.next_multiple_of(2 << 20);
    let mut memory = Memory::new(&options.media, pool_bytes)?;
    memory.populate();
    let written = fill(&memory, pool_bytes)?;
    let (mut seconds, mut last) = (Vec::new(), None);
    for _ in 0..options.rounds {
        let unmapped = memory.unmap();
        let start = Instant::now();
        memory = unmapped.map()?;
        let opened = Pool::open(&memory, pool_bytes, 4, options.threads)?;
        seconds.push(start.elapsed().as_secs_f64());
        last = Some(opened.report);
    }
    let report = last.expect("at least one round");
    if report.blocks != written {
        return Err(BenchError::Options(format!(
            "recovery found {} of {written} blocks: these figures would be worth nothing",
            report.blocks
        )));
    }
    let worst = seconds.iter().copied().fold(0.0, f64::max);
    let median = median(seconds);
    Ok(RecoveryReport {
        seconds: median,
        rounds: options.rounds,
        seconds_max: worst,
        pool_bytes,
        pool_bytes_per_s: pool_bytes as f64 / median,
        threads: options.threads,
        entries: report.entries,
        blocks: report.blocks,
        dropped: report.dropped,
        damaged: report.damaged,
        holes: report.holes,
        media: options.media.name(),
    })
}

/// Writes each block once, in no order, until the pool takes no more.
fn fill(memory: &Memory, pool_bytes: u64) -> Result<u64, BenchError> {
    let blocks = pool_bytes / 4096;
    let pool = Pool::create(memory, pool_bytes, 4, blocks, 0)?;
    let mut order: Vec<u64> = (0..blocks).collect();
    shuffle(&mut order);
    let mut source = Source::new(1);
    for (written, block) in order.into_iter().enumerate() {
        if !pool.write(block, source.next())? {
            return Ok(written as u64);
        }
    }
    Ok(blocks)
}
