// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that the demo kills: threads that write, and note each
//! acknowledged write in a log outside the pool.
//!
//! A seed determines every write of every thread.  So the log only needs to say how far each thread
//! came: 16 bytes, thread and number.  One system call appends them after the write was
//! acknowledged.  Every write in the log was acknowledged.  Of the other writes, only the next one
//! of each thread can have happened.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use anyhow::Context;
use forebay::{AttachOptions, Pool, Volume};

use super::pattern::{self, SECTOR};
use super::random::{mix, Random};
use crate::args;

pub const THREADS: usize = 2;
pub const LOG_ENTRY: usize = 16;

/// One write of a thread, by its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub first: u64,
    pub count: u64,
    pub version: u64,
}

impl Op {
    /// Determines write `number` of a thread, which has its own part of the volume.  Most writes
    /// are whole blocks; some are parts of one, or runs of several.
    pub fn of(seed: u64, thread: usize, number: u64, sectors: u64) -> Op {
        let mut random = Random::new(mix(mix(seed, thread as u64), number));
        let part = sectors / THREADS as u64 / 8 * 8;
        let (first, count) = match random.below(10) {
            0..=5 => (8 * random.below(part / 8), 8),
            6..=7 => {
                let within = random.below(8);
                let count = 1 + random.below(8 - within);
                (8 * random.below(part / 8) + within, count)
            }
            _ => {
                let count = 2 + random.below(30);
                (random.below(part - count), count)
            }
        };
        Op { first: thread as u64 * part + first, count, version: number }
    }

    pub fn fill(&self, buffer: &mut Vec<u8>) {
        buffer.resize(self.count as usize * SECTOR, 0);
        for (sector, number) in buffer.chunks_exact_mut(SECTOR).zip(self.first..) {
            pattern::fill(sector, number, self.version);
        }
    }
}

pub fn run(a: &args::DemoWriter) -> anyhow::Result<u8> {
    anyhow::ensure!(a.first.len() == THREADS, "a first write for each thread");
    let log: File = std::io::stdout().as_fd().try_clone_to_owned()?.into();
    let pool = Pool::open(&a.pool, &args::MediaArgs::default().read_write())?;
    let origin = AttachOptions { origin: Some(a.origin.clone()), ..Default::default() };
    let volume = pool.attach(&a.volume, &origin)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (a.first.iter().enumerate())
            .map(|(thread, &first)| {
                let (volume, log) = (&volume, &log);
                scope.spawn(move || write_on(volume, log, a.seed, thread, first))
            })
            .collect();
        for thread in threads {
            thread.join().expect("a writer does not panic")?;
        }
        Ok(0)
    })
}

/// Writes until the process is killed or a write fails.
fn write_on(
    volume: &Volume,
    mut log: &File,
    seed: u64,
    thread: usize,
    first: u64,
) -> anyhow::Result<()> {
    let sectors = volume.size_bytes() / SECTOR as u64;
    let mut buffer = Vec::new();
    for number in first.. {
        let op = Op::of(seed, thread, number, sectors);
        op.fill(&mut buffer);
        volume.write_at(&buffer, op.first * SECTOR as u64)?;
        let mut entry = [0; LOG_ENTRY];
        entry[..8].copy_from_slice(&(thread as u64).to_le_bytes());
        entry[8..].copy_from_slice(&number.to_le_bytes());
        log.write_all(&entry).context("the log of acknowledged writes")?;
    }
    Ok(())
}
