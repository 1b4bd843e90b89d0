// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a volume whose origin is ill costs its neighbour: the library for real, with
//! threads and time.  Each neighbour is measured beside the other volume in health, and
//! then beside it in each way to be ill.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay::{AttachOptions, Pool};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::bed::{self, Bed, BLOCK};
use crate::cases::Say;
use crate::measure::Latency;
use crate::origin::{Ill, RateOrigin, Speed, PAST_BYTES};

const POOL_BYTES: u64 = 128 << 20;
const VOLUME_BYTES: u64 = 4 * POOL_BYTES;
const CLIENTS: u64 = 4;
/// Between two writes of a client of a light neighbour.
const LIGHT_PAUSE: Duration = Duration::from_millis(8);

const ILLS: [Ill; 5] = [Ill::Errors, Ill::Hangs, Ill::Slow, Ill::PastFails, Ill::DiscardsFail];

#[derive(Debug, Serialize)]
pub struct Isolation {
    pub speed: Speed,
    /// Measured, of each cell, after as long again in which both volumes were well.
    pub seconds: f64,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Had {
    pub writes_per_s: f64,
    pub latency: Latency,
}

#[derive(Debug, Serialize)]
pub struct Cell {
    pub ill: Ill,
    pub neighbour: &'static str,
    pub beside_well: Had,
    pub beside_ill: Had,
    pub throughput_ratio: f64,
    pub p999_ratio: f64,
}

fn attach(pool: &Pool, name: &str, speed: Speed) -> Result<Bed> {
    let origin = RateOrigin::new(VOLUME_BYTES as usize, speed)?;
    pool.volume_add_origin(name, &origin, 512)?;
    let options = AttachOptions {
        queue_depth: 32,
        bypass_limit_bytes: PAST_BYTES as u64,
        ..Default::default()
    };
    let volume = pool.attach_origin(name, Box::new(origin.clone()), &options)?;
    Ok(Bed { volume, origin, blocks: VOLUME_BYTES / BLOCK })
}

/// One request of the other volume; whether it fails is its own affair.
fn other_request(bed: &Bed, ill: Ill, rng: &mut SmallRng, large: &[u8]) {
    let offset = rng.random_range(0..bed.blocks - 64) * BLOCK;
    let odd = rng.random_range(0..10) < 3;
    let done = match ill {
        Ill::PastFails if odd => bed.volume.write_at(large, offset),
        Ill::DiscardsFail if odd => bed.volume.discard(offset, BLOCK),
        _ => bed.volume.write_at(&large[..BLOCK as usize], offset),
    };
    drop(done);
}

/// What the neighbour has in the second half of the time, in which the other is ill.
fn beside(seconds: u64, light: bool, ill: Ill, speed: Speed) -> Result<Had> {
    let pool = bed::pool(POOL_BYTES)?;
    let (well, other) = (attach(&pool, "well", speed)?, attach(&pool, "other", speed)?);
    let (stop, counts) = (AtomicBool::new(false), AtomicBool::new(false));
    let length = Duration::from_secs(seconds);
    let neighbour = |n: u64| -> Result<Histogram<u64>> {
        let mut rng = SmallRng::seed_from_u64(n);
        let mut latencies = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        let data = [7; BLOCK as usize];
        while !stop.load(Ordering::Relaxed) {
            if light {
                std::thread::sleep(LIGHT_PAUSE);
            }
            let start = Instant::now();
            well.volume.write_at(&data, rng.random_range(0..well.blocks) * BLOCK)?;
            if counts.load(Ordering::Relaxed) {
                latencies.saturating_record(start.elapsed().as_nanos() as u64);
            }
        }
        Ok(latencies)
    };
    let all = std::thread::scope(|scope| -> Result<Histogram<u64>> {
        for n in 0..CLIENTS {
            let (other, stop) = (&other, &stop);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(77 + n);
                let large = vec![9; PAST_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    other_request(other, other.origin.illness(), &mut rng, &large);
                }
            });
        }
        let neighbour = &neighbour;
        let threads: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || neighbour(n))).collect();
        std::thread::sleep(length);
        other.origin.fall_ill(ill);
        counts.store(true, Ordering::Relaxed);
        std::thread::sleep(length);
        counts.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        other.origin.fall_ill(Ill::Well);
        let mut all = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        for t in threads {
            all.add(t.join().map_err(|_| anyhow::anyhow!("a client panicked"))??)?;
        }
        pool.abort_waits();
        Ok(all)
    })?;
    Ok(Had { writes_per_s: all.len() as f64 / seconds as f64, latency: Latency::of(&all) })
}

pub fn isolation(seconds: u64, speed: Speed, say: Say<'_>) -> Result<Isolation> {
    let each = (seconds / 4).max(1);
    let mut cells = Vec::new();
    for (neighbour, light) in [("light", true), ("heavy", false)] {
        let beside_well = beside(each, light, Ill::Well, speed)?;
        for ill in ILLS {
            let beside_ill = beside(each, light, ill, speed)?;
            let cell = Cell {
                ill,
                neighbour,
                beside_well,
                beside_ill,
                throughput_ratio: beside_ill.writes_per_s / beside_well.writes_per_s,
                p999_ratio: beside_ill.latency.p999_us / beside_well.latency.p999_us,
            };
            say(&format!(
                "{neighbour:6} beside {ill:?}: throughput {:.2}, p99.9 {:.2} times",
                cell.throughput_ratio, cell.p999_ratio
            ));
            cells.push(cell);
        }
    }
    Ok(Isolation { speed, seconds: each as f64, cells })
}
