// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of a volume with a faulty origin on its neighbour: the real library, with threads
//! and time.  Each neighbour is measured while the other volume's origin is sound, and then
//! with each fault.

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
const LIGHT_PAUSE: Duration = Duration::from_millis(2);

const ILLS: [Ill; 5] = [Ill::Errors, Ill::Hangs, Ill::Slow, Ill::PastFails, Ill::DiscardsFail];
/// The other volume's requests: the same with a sound and a faulty origin.
const MIXES: [Ill; 3] = [Ill::Well, Ill::PastFails, Ill::DiscardsFail];
/// Pools in a round: two neighbours, each with a sound origin for each mix, and with all
/// faults.
const POOLS: usize = 2 * (ILLS.len() + MIXES.len());

/// The promise of docs/manual/isolation.md.
const LEAST_THROUGHPUT: f64 = 0.9;
const MOST_P999: f64 = 2.0;

#[derive(Debug, Serialize)]
pub struct Isolation {
    pub speed: Speed,
    pub rounds: usize,
    /// Measured in each round of each cell, after half as long in which both volumes were
    /// well and half as long after that.
    pub seconds: f64,
    pub cells: Vec<Cell>,
}

/// All rounds together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Had {
    pub writes: u64,
    pub writes_per_s: f64,
    pub latency: Latency,
}

#[derive(Debug, Serialize)]
pub struct Cell {
    pub ill: Ill,
    pub neighbour: &'static str,
    pub beside_well: Had,
    pub beside_ill: Had,
    /// Each round, relative to the sound volume of the same round.
    pub throughput_ratios: Vec<f64>,
    pub p999_ratios: Vec<f64>,
    /// Their medians.
    pub throughput_ratio: f64,
    pub p999_ratio: f64,
    pub kept: bool,
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

/// The place in MIXES of what goes with an illness.
fn mix_of(ill: Ill) -> usize {
    MIXES.iter().position(|mix| *mix == ill).unwrap_or(0)
}

/// One request of the other volume; whether it fails is its own affair.
fn other_request(bed: &Bed, mix: Ill, rng: &mut SmallRng, large: &[u8]) {
    let offset = rng.random_range(0..bed.blocks - 64) * BLOCK;
    let odd = rng.random_range(0..10) < 3;
    let done = match mix {
        Ill::PastFails if odd => bed.volume.write_at(large, offset),
        Ill::DiscardsFail if odd => bed.volume.discard(offset, BLOCK),
        _ => bed.volume.write_at(&large[..BLOCK as usize], offset),
    };
    drop(done);
}

/// Latencies of the neighbour while the other is ill, for so long.
fn beside(
    length: Duration,
    light: bool,
    (mix, ill): (Ill, Ill),
    speed: Speed,
) -> Result<Histogram<u64>> {
    let pool = bed::pool(POOL_BYTES)?;
    let (well, other) = (attach(&pool, "well", speed)?, attach(&pool, "other", speed)?);
    let (stop, counts) = (AtomicBool::new(false), AtomicBool::new(false));
    let neighbour = |n: u64| -> Result<Histogram<u64>> {
        let mut rng = SmallRng::seed_from_u64(n);
        let mut latencies = empty()?;
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
    std::thread::scope(|scope| -> Result<Histogram<u64>> {
        for n in 0..CLIENTS {
            let (other, stop) = (&other, &stop);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(77 + n);
                let large = vec![9; PAST_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    other_request(other, mix, &mut rng, &large);
                }
            });
        }
        let neighbour = &neighbour;
        let threads: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || neighbour(n))).collect();
        std::thread::sleep(length / 2);
        other.origin.fall_ill(ill);
        std::thread::sleep(length / 2);
        counts.store(true, Ordering::Relaxed);
        std::thread::sleep(length);
        counts.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        other.origin.fall_ill(Ill::Well);
        let mut all = empty()?;
        for t in threads {
            all.add(t.join().map_err(|_| anyhow::anyhow!("a client panicked"))??)?;
        }
        pool.abort_waits();
        Ok(all)
    })
}

fn empty() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000_000, 3)?)
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        _ => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

fn had(rounds: &[Histogram<u64>], length: Duration) -> Result<Had> {
    let mut all = empty()?;
    for h in rounds {
        all.add(h)?;
    }
    let seconds = length.as_secs_f64() * rounds.len() as f64;
    Ok(Had {
        writes: all.len(),
        writes_per_s: all.len() as f64 / seconds,
        latency: Latency::of(&all),
    })
}

fn ratios(
    of: &[Histogram<u64>],
    to: &[Histogram<u64>],
    what: fn(&Histogram<u64>) -> f64,
) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| what(of) / what(to)).collect()
}

/// Rounds of the whole table, so that what else the machine does meets all cells alike.
pub fn isolation(seconds: u64, rounds: usize, speed: Speed, say: Say<'_>) -> Result<Isolation> {
    let length = Duration::from_secs(seconds).div_f64(2.0 * POOLS as f64);
    let mut cells = Vec::new();
    for (neighbour, light) in [("light", true), ("heavy", false)] {
        let mut well: [Vec<Histogram<u64>>; MIXES.len()] = Default::default();
        let mut ill: [Vec<Histogram<u64>>; ILLS.len()] = Default::default();
        for round in 0..rounds {
            say(&format!("{neighbour} neighbour, round {}", round + 1));
            for (all, mix) in well.iter_mut().zip(MIXES) {
                all.push(beside(length, light, (mix, Ill::Well), speed)?);
            }
            for (all, kind) in ill.iter_mut().zip(ILLS) {
                all.push(beside(length, light, (MIXES[mix_of(kind)], kind), speed)?);
            }
        }
        for (all, kind) in ill.iter().zip(ILLS) {
            let well = &well[mix_of(kind)];
            let throughput_ratios = ratios(all, well, |h| h.len() as f64);
            let p999_ratios = ratios(all, well, |h| h.value_at_quantile(0.999) as f64);
            let (throughput_ratio, p999_ratio) = (median(&throughput_ratios), median(&p999_ratios));
            cells.push(Cell {
                ill: kind,
                neighbour,
                beside_well: had(well, length)?,
                beside_ill: had(all, length)?,
                throughput_ratios,
                p999_ratios,
                throughput_ratio,
                p999_ratio,
                kept: throughput_ratio >= LEAST_THROUGHPUT && p999_ratio <= MOST_P999,
            });
        }
    }
    Ok(Isolation { speed, rounds, seconds: length.as_secs_f64(), cells })
}

impl Isolation {
    /// As docs/manual/isolation.md has it.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| neighbour | the other | writes/s | beside health | ratio (each round) | p99.9 us \
             | beside health | ratio (each round) | kept |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        let list =
            |all: &[f64]| all.iter().map(|r| format!("{r:.2}")).collect::<Vec<_>>().join(" ");
        for c in &self.cells {
            text += &format!(
                "| {} | {} | {:.0} | {:.0} | {:.2} ({}) | {:.0} | {:.0} | {:.2} ({}) | {} |\n",
                c.neighbour,
                c.ill.words(),
                c.beside_ill.writes_per_s,
                c.beside_well.writes_per_s,
                c.throughput_ratio,
                list(&c.throughput_ratios),
                c.beside_ill.latency.p999_us,
                c.beside_well.latency.p999_us,
                c.p999_ratio,
                list(&c.p999_ratios),
                if c.kept { "yes" } else { "no" },
            );
        }
        text
    }
}
