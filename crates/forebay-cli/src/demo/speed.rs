// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part one of the demo: synchronous random writes of 4 KiB, straight to the
//! origin file and through Forebay.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay::Volume;
use rustix::fs::OFlags;
use serde::Serialize;

use super::histogram::{self, Histogram};
use super::random::{mix, Random};
use super::Stage;
use crate::units;

pub const VOLUME: &str = "speed";
pub const BLOCK: usize = 4096;

/// A buffer that O_DIRECT accepts.
#[repr(C, align(4096))]
pub struct Page(pub [u8; BLOCK]);

impl Page {
    /// Makes a page with the same words each time; only the stamp of each sector differs.
    pub fn new() -> Box<Page> {
        let mut page = Box::new(Page([0; BLOCK]));
        let mut random = Random::new(1);
        for word in page.0.as_chunks_mut::<8>().0 {
            *word = random.next().to_le_bytes();
        }
        page
    }

    /// Stamps each sector with its block and the number of the write.
    pub fn stamp(&mut self, block: u64, version: u64) {
        for sector in self.0.chunks_exact_mut(512) {
            sector[..8].copy_from_slice(&block.to_le_bytes());
            sector[8..16].copy_from_slice(&version.to_le_bytes());
        }
    }
}

/// A target of synchronous writes.
pub trait Target: Sync {
    /// Writes a page, durably.
    fn write(&self, page: &Page, block: u64) -> anyhow::Result<()>;
}

/// The origin itself: each write goes to the disk before it returns.
pub struct Direct(File);

impl Direct {
    pub fn open(path: &Path) -> anyhow::Result<Direct> {
        let flags = OFlags::DIRECT | OFlags::DSYNC;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .with_context(|| {
                let path = path.display();
                format!(
                    "{path}: cannot open it with O_DIRECT; choose another file system with --dir"
                )
            })?;
        Ok(Direct(file))
    }

    pub fn read(&self, page: &mut Page, block: u64) -> std::io::Result<()> {
        self.0.read_exact_at(&mut page.0, block * BLOCK as u64)
    }
}

impl Target for Direct {
    fn write(&self, page: &Page, block: u64) -> anyhow::Result<()> {
        Ok(self.0.write_all_at(&page.0, block * BLOCK as u64)?)
    }
}

impl Target for Volume {
    fn write(&self, page: &Page, block: u64) -> anyhow::Result<()> {
        Ok(self.write_at(&page.0, block * BLOCK as u64)?)
    }
}

/// One row of the table.
pub struct Measured {
    pub name: String,
    pub threads: usize,
    pub through_forebay: bool,
    /// Blocks that are written at random.
    pub blocks: u64,
    pub seconds: f64,
    pub histogram: Histogram,
}

#[derive(Serialize)]
pub struct Row<'a> {
    pub name: &'a str,
    pub threads: usize,
    pub set_bytes: u64,
    pub writes: u64,
    pub writes_per_s: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Measured {
    pub fn rate(&self) -> f64 {
        self.histogram.len() as f64 / self.seconds
    }

    pub fn row(&self) -> Row<'_> {
        let h = &self.histogram;
        Row {
            name: &self.name,
            threads: self.threads,
            set_bytes: self.blocks * BLOCK as u64,
            writes: h.len(),
            writes_per_s: self.rate(),
            p50_ns: h.value_at_quantile(0.5),
            p99_ns: h.value_at_quantile(0.99),
            p999_ns: h.value_at_quantile(0.999),
            max_ns: h.max(),
        }
    }
}

/// A counter on cache lines of its own: shared lines would slow the writers.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU64);

/// The parameters of a measurement.
pub struct Run<'a> {
    pub name: &'a str,
    pub threads: usize,
    pub through_forebay: bool,
    /// The first of these blocks are written.
    pub blocks: u64,
    pub time: Duration,
}

/// The last version of each block that the writers have written.
pub struct Versions(Vec<AtomicU64>);

impl Versions {
    pub fn new(blocks: u64) -> Self {
        Versions((0..blocks).map(|_| AtomicU64::new(0)).collect())
    }

    /// Blocks that were written, with their last version.
    pub fn written(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let versions = self.0.iter().map(|v| v.load(Ordering::Relaxed));
        (0..).zip(versions).filter(|(_, version)| *version > 0)
    }
}

pub fn measure(
    stage: &Stage,
    run: &Run,
    target: &impl Target,
    versions: &Versions,
) -> anyhow::Result<Measured> {
    let bar = stage.bar(run.time.as_millis() as u64, "{prefix} {bar:30} {msg}");
    bar.set_prefix(format!("  {:24}", run.name));
    let done: Vec<_> = (0..run.threads).map(|_| Counter::default()).collect();
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let histograms = std::thread::scope(|scope| {
        let stop = &stop;
        let writers: Vec<_> = (done.iter().enumerate())
            .map(|(thread, done)| {
                let seed = mix(stage.seed, thread as u64);
                scope.spawn(move || {
                    let written = write(run, target, versions, thread, seed, &done.0, stop);
                    // A thread that fails ends the others.
                    stop.fetch_or(written.is_err(), Ordering::Relaxed);
                    written
                })
            })
            .collect();
        let mut before = 0;
        while !stop.load(Ordering::Relaxed) && start.elapsed() < run.time {
            std::thread::sleep(Duration::from_millis(200).min(run.time));
            let now = done.iter().map(|n| n.0.load(Ordering::Relaxed)).sum::<u64>();
            bar.set_position(start.elapsed().as_millis() as u64);
            bar.set_message(format!("{:>12} writes/s", units::count((now - before) * 5)));
            before = now;
            if stage.check_interrupt().is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let join = |w: std::thread::ScopedJoinHandle<_>| w.join().expect("a writer does not panic");
        writers.into_iter().map(join).collect::<Vec<_>>()
    });
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    stage.check_interrupt()?;
    let mut histogram = histogram::new();
    for of_thread in histograms {
        histogram.add(of_thread?)?;
    }
    Ok(Measured {
        name: run.name.into(),
        threads: run.threads,
        through_forebay: run.through_forebay,
        blocks: run.blocks,
        seconds,
        histogram,
    })
}

/// Runs one thread.  Each thread has its own blocks, so it knows their content.
fn write(
    run: &Run,
    target: &impl Target,
    versions: &Versions,
    thread: usize,
    seed: u64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> anyhow::Result<Histogram> {
    let mut histogram = histogram::new();
    let mut random = Random::new(seed);
    let mut page = Page::new();
    let own = run.blocks / run.threads as u64;
    while !stop.load(Ordering::Relaxed) {
        let block = thread as u64 * own + random.below(own);
        let version = versions.0[block as usize].load(Ordering::Relaxed) + 1;
        page.stamp(block, version);
        let start = Instant::now();
        target.write(&page, block)?;
        histogram.record(start.elapsed().as_nanos() as u64)?;
        versions.0[block as usize].store(version, Ordering::Relaxed);
        done.store(histogram.len(), Ordering::Relaxed);
    }
    Ok(histogram)
}
