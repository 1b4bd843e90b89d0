// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part three of the demo: everything goes to the origins, which are then read
//! without Forebay and compared with what was acknowledged.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Context;
use forebay::{Pool, Volume};
use serde::Serialize;

use super::safety::{self, Expected};
use super::speed::{self, Direct, Page, Versions};
use super::Stage;
use crate::{args, units};

const PAGE: u64 = 4096;

#[derive(Debug, Serialize)]
pub struct Disk {
    pub drained_bytes: u64,
    pub drain_seconds: f64,
    pub blocks_compared: u64,
    /// Blocks of the origins that are not as acknowledged.
    pub wrong: u64,
    /// Writes to the volume whose speed was measured.
    pub writes: u64,
    pub origin_writes: u64,
    pub origin_written_bytes: u64,
}

impl Disk {
    pub fn text(&self) -> String {
        let saved = self.writes.saturating_sub(self.origin_writes);
        format!(
            "  drained {} in {:.1} s; {} blocks of the origin files compared, {} wrong\n  \
             {} writes of 4 KiB became {} origin writes of {} on average:\n  \
             merging saved {} of them ({:.1} %)",
            units::bytes(self.drained_bytes),
            self.drain_seconds,
            units::count(self.blocks_compared),
            self.wrong,
            units::count(self.writes),
            units::count(self.origin_writes),
            units::bytes(self.origin_written_bytes / self.origin_writes.max(1)),
            units::count(saved),
            saved as f64 * 100.0 / self.writes.max(1) as f64,
        )
    }
}

/// Writes that a volume's origin got, and the acknowledged writes that caused them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OriginWrites {
    pub acknowledged: u64,
    pub writes: u64,
    pub bytes: u64,
}

impl OriginWrites {
    /// Counts the writes of a volume since it was attached.
    pub fn of(volume: &Volume) -> forebay::Result<Self> {
        let info = volume.info()?;
        Ok(OriginWrites {
            acknowledged: info.writes,
            writes: info.origin_writes,
            bytes: info.origin_written_bytes,
        })
    }
}

pub fn run(
    stage: &Stage,
    versions: &Versions,
    expected: &mut Expected,
    before: OriginWrites,
) -> anyhow::Result<Disk> {
    let mut disk = Disk {
        drained_bytes: 0,
        drain_seconds: 0.0,
        blocks_compared: 0,
        wrong: 0,
        writes: before.acknowledged,
        origin_writes: before.writes,
        origin_written_bytes: before.bytes,
    };
    drain(stage, &mut disk)?;
    compare_speed(stage, versions, &mut disk)?;
    compare_safety(stage, expected, &mut disk)?;
    Ok(disk)
}

fn drain(stage: &Stage, disk: &mut Disk) -> anyhow::Result<()> {
    let pool = Pool::open(&stage.pool, &args::MediaArgs::default().read_write())?;
    let mut volumes = Vec::new();
    for name in [speed::VOLUME, safety::VOLUME] {
        volumes.push(pool.attach(name, &stage.attach(name))?);
    }
    let bar =
        stage.bar(0, "  drain {bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}, {eta} left");
    let mut of_volume = BTreeMap::new();
    let start = Instant::now();
    let drained = pool.drain(None, &mut |volume, progress| {
        of_volume.insert(volume.to_string(), progress.clone());
        let total: u64 = of_volume.values().map(|p| p.pages_start).sum();
        let left: u64 = of_volume.values().map(|p| p.pages_left).sum();
        bar.set_length(total * PAGE);
        bar.set_position(total.saturating_sub(left) * PAGE);
        match stage.check_interrupt() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    bar.finish_and_clear();
    if let Some(incomplete) = drained?.into_iter().find(|c| !c.complete) {
        return Err(forebay::Error::Incomplete(Box::new(incomplete)).into());
    }
    disk.drain_seconds = start.elapsed().as_secs_f64();
    disk.drained_bytes = of_volume.values().map(|p| p.pages_destaged * PAGE).sum();
    let writes = OriginWrites::of(&volumes[0])?;
    disk.origin_writes += writes.writes;
    disk.origin_written_bytes += writes.bytes;
    for volume in volumes {
        volume.detach()?;
    }
    Ok(pool.close()?)
}

/// Each block that was written holds its last write, stamp and all.
fn compare_speed(stage: &Stage, versions: &Versions, disk: &mut Disk) -> anyhow::Result<()> {
    let origin = Direct::open(&stage.origin(speed::VOLUME))?;
    let (mut found, mut wanted) = (Page::new(), Page::new());
    let blocks: Vec<_> = versions.written().collect();
    let bar = stage.bar(blocks.len() as u64, "  compare {bar:30} {pos}/{len} blocks");
    for (block, version) in blocks {
        wanted.stamp(block, version);
        let read = origin.read(&mut found, block);
        read.with_context(|| format!("{}: cannot read it", stage.origin(speed::VOLUME).display()))?;
        disk.blocks_compared += 1;
        disk.wrong += u64::from(found.0 != wanted.0);
        if block % 1024 == 0 {
            stage.check_interrupt()?;
            bar.set_position(disk.blocks_compared);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn compare_safety(stage: &Stage, expected: &mut Expected, disk: &mut Disk) -> anyhow::Result<()> {
    let origin = File::open(stage.origin(safety::VOLUME))?;
    let losses = safety::compare_all(expected, |buffer, offset| {
        origin.read_exact_at(buffer, offset).is_ok()
    });
    disk.blocks_compared += expected.sector_count() / 8;
    disk.wrong += safety::writes_lost(&losses);
    Ok(())
}
