// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads.  Each runs against the origin alone as well, in the same run.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay::{Origin, PhaseLatency};
use rand::rngs::SmallRng;
use rand::Rng;
use rand_distr::{Distribution, Zipf};
use serde::Serialize;

use crate::bed::{self, Bed, BLOCK};
use crate::measure::{run, spread, Latency, Run, WINDOW};
use crate::origin::{RateOrigin, Speed};

/// Told what happens, for people who wait.
pub type Say<'a> = &'a mut dyn FnMut(&str);

fn write_block(bed: &Bed, rng: &mut SmallRng, block: u64) -> Result<()> {
    let mut buf = [0; BLOCK as usize];
    bed::fill(rng, &mut buf);
    Ok(bed.volume.write_at(&buf, block * BLOCK)?)
}

fn origin_write(origin: &RateOrigin, rng: &mut SmallRng) -> Result<()> {
    let mut buf = [0; BLOCK as usize];
    bed::fill(rng, &mut buf);
    let blocks = origin.size_bytes() / BLOCK;
    Ok(origin.write_at(&buf, rng.random_range(0..blocks) * BLOCK)?)
}

/// Random 4 KiB writes for long, over several times the cache.
#[derive(Debug, Serialize)]
pub struct Sustained {
    pub speed: Speed,
    pub pool_bytes: u64,
    pub data_bytes: u64,
    pub clients: usize,
    pub seconds: f64,
    /// The origin alone: the same writes straight to a similar one, before and after.
    pub origin_per_s: f64,
    pub origin_per_s_rounds: [f64; 2],
    /// From the window on in which the cache had filled.
    pub steady_from_s: f64,
    pub steady_per_s: f64,
    pub steady_over_origin: f64,
    /// Standard deviation over mean of 0.5 s windows.
    pub coefficient_of_variation: f64,
    pub slowest_window_per_s: f64,
    pub latency: Latency,
    /// Time of each phase.
    pub phases: Vec<PhaseLatency>,
    pub windows_per_s: Vec<f64>,
}

pub fn sustained(seconds: u64, clients: usize, speed: Speed, say: Say<'_>) -> Result<Sustained> {
    let (pool_bytes, data_bytes) = (256 << 20, 6 * (256 << 20));
    let pool = bed::pool(pool_bytes)?;
    let bed = bed::volume(&pool, "v", data_bytes, speed)?;
    let other = RateOrigin::new(data_bytes as usize, speed)?;
    let alone = |seed| -> Result<f64> {
        let length = Duration::from_secs(seconds.clamp(1, 5));
        let r = run(clients, length, seed, &|rng| origin_write(&other, rng), &mut |_, _| ())?;
        Ok(r.per_s)
    };
    let before = alone(1)?;
    say(&format!("origin alone: {before:.0} writes/s"));
    let mut filled = None;
    let r = run(
        clients,
        Duration::from_secs(seconds),
        2,
        &|rng| {
            let block = rng.random_range(0..bed.blocks);
            write_block(&bed, rng, block)
        },
        &mut |n, rate| {
            let info = bed.volume.info().ok();
            if filled.is_none()
                && info.as_ref().is_some_and(|i| i.intake_limit_bytes_per_s.is_some())
            {
                filled = Some(n);
            }
            if n % 4 == 0 {
                let state = info.map(|i| {
                    format!(
                        "drain {} pages/s, depth {}, {} pages cached",
                        i.drain_bytes_per_s / BLOCK,
                        i.origin_depth,
                        i.pages
                    )
                });
                say(&format!(
                    "{:6.1} s {rate:9.0} writes/s  {}",
                    n as f64 / 2.0,
                    state.unwrap_or_default()
                ));
            }
        },
    )?;
    let after = alone(3)?;
    let origin_per_s = (before + after) / 2.0;
    // A few windows for the controller to learn the rate.
    let from = filled.map_or(0, |n| n + 6).min(r.windows.len());
    let steady = &r.windows[from..];
    let (mean, variation) = spread(steady);
    Ok(Sustained {
        speed,
        pool_bytes,
        data_bytes,
        clients,
        seconds: seconds as f64,
        origin_per_s,
        origin_per_s_rounds: [before, after],
        steady_from_s: from as f64 / 2.0,
        steady_per_s: mean,
        steady_over_origin: mean / origin_per_s,
        coefficient_of_variation: variation,
        slowest_window_per_s: steady.iter().copied().fold(f64::INFINITY, f64::min),
        latency: r.latency,
        phases: bed.volume.info()?.latency,
        windows_per_s: r.windows,
    })
}

/// Zipf-distributed writes over ten times the cache.
#[derive(Debug, Serialize)]
pub struct HotSet {
    pub speed: Speed,
    pub exponent: f64,
    pub writes: u64,
    pub origin_writes: u64,
    pub origin_blocks: u64,
    /// Blocks written to the origin over blocks taken in.
    pub blocks_over_writes: f64,
    pub latency: Latency,
}

pub fn hot_set(seconds: u64, speed: Speed, say: Say<'_>) -> Result<HotSet> {
    let pool_bytes = 128u64 << 20;
    let pool = bed::pool(pool_bytes)?;
    let bed = bed::volume(&pool, "v", 10 * pool_bytes, speed)?;
    let exponent = 1.2;
    let zipf = Zipf::new(bed.blocks as f64, exponent)?;
    let r = run(
        8,
        Duration::from_secs(seconds),
        3,
        &|rng| {
            // Spread over the volume, so that hot blocks are not neighbours.
            let rank = zipf.sample(rng) as u64 - 1;
            write_block(&bed, rng, rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % bed.blocks)
        },
        &mut |n, rate| {
            if n % 4 == 0 {
                say(&format!("{:6.1} s {rate:9.0} writes/s", n as f64 / 2.0));
            }
        },
    )?;
    let info = bed.volume.info()?;
    let (origin_writes, origin_bytes) = bed.origin.written();
    Ok(HotSet {
        speed,
        exponent,
        writes: info.writes,
        origin_writes,
        origin_blocks: origin_bytes / BLOCK,
        blocks_over_writes: (origin_bytes / BLOCK) as f64 / info.writes as f64,
        latency: r.latency,
    })
}

/// Reads and writes in several shares, from several clients.
#[derive(Debug, Serialize)]
pub struct Mixed {
    pub speed: Speed,
    /// Interleaved with the origin alone, of each cell.
    pub rounds: u64,
    pub round_seconds: f64,
    pub cells: Vec<MixedCell>,
}

/// One cell of the mixed table: medians of interleaved rounds.
#[derive(Debug, Serialize)]
pub struct MixedCell {
    pub write_percent: u32,
    pub clients: usize,
    pub origin_per_s: f64,
    pub forebay_per_s: f64,
    pub ratio: f64,
    /// Lowest and highest ratio of a round: the noise.
    pub ratio_low: f64,
    pub ratio_high: f64,
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

pub fn mixed(seconds: u64, speed: Speed, say: Say<'_>) -> Result<Mixed> {
    const ROUNDS: u64 = 3;
    const SHARES: [u32; 5] = [99, 90, 70, 50, 0];
    const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];
    let mut cells = Vec::new();
    let cells_n = (SHARES.len() * CLIENTS.len()) as u64;
    let each = Duration::from_millis((seconds * 1000 / (cells_n * ROUNDS * 2)).max(500));
    for write_percent in SHARES {
        for clients in CLIENTS {
            let pool = bed::pool(256 << 20)?;
            let bed = bed::volume(&pool, "v", 1536 << 20, speed)?;
            let (mut alone, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let mix = |rng: &mut SmallRng, cached: bool| -> Result<()> {
                    let block = rng.random_range(0..bed.blocks);
                    let write = rng.random_range(0..100) < write_percent;
                    let mut buf = [0; BLOCK as usize];
                    match (write, cached) {
                        (true, true) => write_block(&bed, rng, block),
                        (true, false) => origin_write(&bed.origin, rng),
                        (false, true) => Ok(bed.volume.read_at(&mut buf, block * BLOCK)?),
                        (false, false) => Ok(bed.origin.read_at(&mut buf, block * BLOCK)?),
                    }
                };
                let go = |cached: bool| -> Result<Run> {
                    run(clients, each, round, &|rng| mix(rng, cached), &mut |_, _| ())
                };
                let (a, w) = (go(false)?.per_s, go(true)?.per_s);
                alone.push(a);
                with.push(w);
                ratios.push(w / a);
            }
            let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let high = ratios.iter().copied().fold(0.0, f64::max);
            let cell = MixedCell {
                write_percent,
                clients,
                origin_per_s: median(&mut alone),
                forebay_per_s: median(&mut with),
                ratio: median(&mut ratios),
                ratio_low: low,
                ratio_high: high,
            };
            say(&format!(
                "{write_percent:3} % writes, {clients:2} clients: {:9.0} -> {:9.0} /s, {:.2} ({low:.2} to {high:.2})",
                cell.origin_per_s, cell.forebay_per_s, cell.ratio
            ));
            cells.push(cell);
        }
    }
    Ok(Mixed { speed, rounds: ROUNDS, round_seconds: each.as_secs_f64(), cells })
}

/// Write + flush latency, quiet and during a drain of a full cache, in turns.
#[derive(Debug, Serialize)]
pub struct FsyncTail {
    pub speed: Speed,
    pub rounds: Vec<FsyncRound>,
    /// Medians of the rounds.
    pub quiet_p999_us: f64,
    pub draining_p999_us: f64,
    pub p999_ratio: f64,
    /// Lowest and highest of a round.
    pub p999_ratio_low: f64,
    pub p999_ratio_high: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct FsyncRound {
    pub quiet: Latency,
    pub draining: Latency,
    pub drained_seconds: f64,
}

pub fn fsync_tail(seconds: u64, speed: Speed, say: Say<'_>) -> Result<FsyncTail> {
    const ROUNDS: u64 = 3;
    let pool = bed::pool(512 << 20)?;
    let bed = bed::volume(&pool, "v", 2 << 30, speed)?;
    let hot = bed.blocks / 64;
    let mut rng: SmallRng = rand::SeedableRng::seed_from_u64(5);
    let mut fsync = || -> Result<u64> {
        // A journal's pace: the tail is measured, not the throughput.
        std::thread::sleep(Duration::from_micros(200));
        let start = Instant::now();
        let block = rng.random_range(0..hot);
        write_block(&bed, &mut rng, block)?;
        bed.volume.flush()?;
        Ok(start.elapsed().as_nanos() as u64)
    };
    let length = Duration::from_millis((seconds * 1000 / (2 * ROUNDS)).max(1000));
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let start = Instant::now();
        let quiet = tail(&mut || start.elapsed() < length, &mut fsync)?;
        // Half the pool dirty, then drain it while the same goes on.
        let mut other: SmallRng = rand::SeedableRng::seed_from_u64(9 + round);
        for block in 0..(200u64 << 20) / BLOCK {
            write_block(&bed, &mut other, hot + block * 7 % (bed.blocks - hot))?;
        }
        let done = AtomicBool::new(false);
        let start = Instant::now();
        let draining = std::thread::scope(|scope| -> Result<Latency> {
            scope.spawn(|| {
                let _ = bed.volume.drain(&mut |_| match start.elapsed() > 4 * length {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                });
                done.store(true, Ordering::Relaxed);
            });
            tail(&mut || !done.load(Ordering::Relaxed), &mut fsync)
        })?;
        let drained_seconds = start.elapsed().as_secs_f64();
        say(&format!(
            "p99.9: quiet {:.1} us, during {drained_seconds:.1} s of draining {:.1} us",
            quiet.p999_us, draining.p999_us
        ));
        rounds.push(FsyncRound { quiet, draining, drained_seconds });
        // The rest of what was cached must not be in the next quiet round.
        bed.volume.drain(&mut |_| ControlFlow::Continue(()))?;
    }
    let of = |f: fn(&FsyncRound) -> f64| rounds.iter().map(f).collect::<Vec<_>>();
    let mut ratios = of(|r| r.draining.p999_us / r.quiet.p999_us);
    Ok(FsyncTail {
        speed,
        quiet_p999_us: median(&mut of(|r| r.quiet.p999_us)),
        draining_p999_us: median(&mut of(|r| r.draining.p999_us)),
        p999_ratio: median(&mut ratios),
        p999_ratio_low: ratios[0],
        p999_ratio_high: ratios[ratios.len() - 1],
        rounds,
    })
}

/// One client; latencies without its pauses.
fn tail(
    more: &mut dyn FnMut() -> bool,
    request: &mut dyn FnMut() -> Result<u64>,
) -> Result<Latency> {
    let mut ns = Vec::new();
    while more() || ns.is_empty() {
        ns.push(request()?);
    }
    ns.sort_unstable();
    let at = |q: f64| ns[((ns.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    Ok(Latency { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: at(1.0) })
}

/// Two volumes; the origin of one stalls.
#[derive(Debug, Serialize)]
pub struct Stall {
    pub speed: Speed,
    pub stalled_seconds: f64,
    /// Writes a second of the other volume, in windows without and with the stall.
    pub before_per_s: f64,
    pub during_per_s: f64,
    pub ratio: f64,
    /// Standard deviation over mean of windows.
    pub before_variation: f64,
    pub during_variation: f64,
    pub windows_per_s: Vec<f64>,
}

/// `seconds` to fill the cache and to see what is usual, then the stall.
pub fn stall(seconds: u64, stalled: u64, speed: Speed, say: Say<'_>) -> Result<Stall> {
    let pool = bed::pool(256 << 20)?;
    let well = bed::volume(&pool, "well", 768 << 20, speed)?;
    let ill = bed::volume(&pool, "ill", 768 << 20, speed)?;
    let half = seconds.max(4) as usize; // windows
    let (from, to) = (2 * half, 2 * half + 2 * stalled.max(1) as usize);
    let stop = AtomicBool::new(false);
    let r = std::thread::scope(|scope| -> Result<Run> {
        for n in 0..4 {
            let (ill, stop) = (&ill, &stop);
            scope.spawn(move || {
                let mut rng: SmallRng = rand::SeedableRng::seed_from_u64(77 + n);
                while !stop.load(Ordering::Relaxed) {
                    let block = rng.random_range(0..ill.blocks);
                    if write_block(ill, &mut rng, block).is_err() {
                        return;
                    }
                }
            });
        }
        let r = run(
            4,
            WINDOW * to as u32,
            4,
            &|rng| {
                let block = rng.random_range(0..well.blocks);
                write_block(&well, rng, block)
            },
            &mut |n, rate| {
                ill.origin.stall(n + 1 >= from && n + 1 < to);
                if n % 4 == 0 {
                    say(&format!("{:6.1} s {rate:9.0} writes/s", n as f64 / 2.0));
                }
            },
        );
        stop.store(true, Ordering::Relaxed);
        ill.origin.stall(false);
        pool.abort_waits();
        r
    })?;
    // The first half of the time before the stall fills the cache.
    let end = to.min(r.windows.len());
    let (before, before_variation) = spread(&r.windows[half..from]);
    let (during, during_variation) = spread(&r.windows[from..end]);
    Ok(Stall {
        speed,
        stalled_seconds: (end - from) as f64 / 2.0,
        before_per_s: before,
        during_per_s: during,
        ratio: during / before,
        before_variation,
        during_variation,
        windows_per_s: r.windows,
    })
}
