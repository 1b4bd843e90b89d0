// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads.  Each runs against the origin alone as well, in the same run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use forebay::{Origin, PhaseLatency};
use rand::rngs::SmallRng;
use rand::Rng;
use rand_distr::{Distribution, Zipf};
use serde::Serialize;

use crate::bed::{self, Bed, BLOCK};
use crate::measure::{run, spread, Latency, Run};
use crate::origin::Speed;

/// Told what happens, for people who wait.
pub type Say<'a> = &'a mut dyn FnMut(&str);

fn write_block(bed: &Bed, rng: &mut SmallRng, block: u64) -> Result<()> {
    let mut buf = [0; BLOCK as usize];
    bed::fill(rng, &mut buf);
    Ok(bed.volume.write_at(&buf, block * BLOCK)?)
}

fn origin_write(bed: &Bed, rng: &mut SmallRng) -> Result<()> {
    let mut buf = [0; BLOCK as usize];
    bed::fill(rng, &mut buf);
    Ok(bed.origin.write_at(&buf, rng.random_range(0..bed.blocks) * BLOCK)?)
}

/// Random 4 KiB writes for long, over several times the cache.
#[derive(Debug, Serialize)]
pub struct Sustained {
    pub speed: Speed,
    pub pool_bytes: u64,
    pub data_bytes: u64,
    pub clients: usize,
    pub seconds: f64,
    /// The origin alone: the same writes straight to it.
    pub origin_per_s: f64,
    /// From the window on in which the cache had filled.
    pub steady_from_s: f64,
    pub steady_per_s: f64,
    pub steady_over_origin: f64,
    /// Of 0.5 s windows, standard deviation over mean.
    pub coefficient_of_variation: f64,
    pub slowest_window_per_s: f64,
    pub latency: Latency,
    /// Where the time went.
    pub phases: Vec<PhaseLatency>,
    pub windows_per_s: Vec<f64>,
}

pub fn sustained(seconds: u64, clients: usize, speed: Speed, say: Say<'_>) -> Result<Sustained> {
    let (pool_bytes, data_bytes) = (256 << 20, 6 * (256 << 20));
    let pool = bed::pool(pool_bytes)?;
    let bed = bed::volume(&pool, "v", data_bytes, speed)?;
    let alone =
        run(clients, Duration::from_secs(5), 1, &|rng| origin_write(&bed, rng), &mut |_, _| ())?;
    say(&format!("origin alone: {:.0} writes/s", alone.per_s));
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
        origin_per_s: alone.per_s,
        steady_from_s: from as f64 / 2.0,
        steady_per_s: mean,
        steady_over_origin: mean / alone.per_s,
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

pub fn mixed(seconds: u64, speed: Speed, say: Say<'_>) -> Result<Vec<MixedCell>> {
    const ROUNDS: u64 = 3;
    let mut cells = Vec::new();
    let cells_n = 5 * 3;
    let each = Duration::from_millis((seconds * 1000 / (cells_n * ROUNDS * 2)).max(500));
    for write_percent in [99, 90, 70, 50, 0] {
        for clients in [1, 4, 16] {
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
                        (true, false) => origin_write(&bed, rng),
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
    Ok(cells)
}

/// Write + flush latency, quiet and during a drain of a full cache.
#[derive(Debug, Serialize)]
pub struct FsyncTail {
    pub speed: Speed,
    pub quiet: Latency,
    pub draining: Latency,
    pub p999_ratio: f64,
}

pub fn fsync_tail(seconds: u64, speed: Speed, say: Say<'_>) -> Result<FsyncTail> {
    let pool = bed::pool(512 << 20)?;
    let bed = bed::volume(&pool, "v", 2 << 30, speed)?;
    let hot = bed.blocks / 64;
    let fsync = |rng: &mut SmallRng| -> Result<()> {
        // A journal's pace: what is measured is the tail, not the throughput.
        std::thread::sleep(Duration::from_micros(200));
        let start = std::time::Instant::now();
        let block = rng.random_range(0..hot);
        write_block(&bed, rng, block)?;
        bed.volume.flush()?;
        LATENCY.with(|l| l.borrow_mut().push(start.elapsed().as_nanos() as u64));
        Ok(())
    };
    let half = Duration::from_secs((seconds / 2).max(1));
    let quiet = tail(half, &fsync)?;
    say(&format!("quiet: p99.9 {:.1} us", quiet.p999_us));
    // Half the pool dirty, then drain it while the same goes on.
    let mut rng: SmallRng = rand::SeedableRng::seed_from_u64(9);
    for block in 0..(200u64 << 20) / BLOCK {
        write_block(&bed, &mut rng, hot + block * 7 % (bed.blocks - hot))?;
    }
    let draining = AtomicBool::new(true);
    let during = std::thread::scope(|scope| -> Result<Latency> {
        scope.spawn(|| {
            let _ = bed.volume.drain(&mut |_| match draining.load(Ordering::Relaxed) {
                true => std::ops::ControlFlow::Continue(()),
                false => std::ops::ControlFlow::Break(()),
            });
        });
        let during = tail(half, &fsync);
        draining.store(false, Ordering::Relaxed);
        during
    })?;
    say(&format!("draining: p99.9 {:.1} us", during.p999_us));
    Ok(FsyncTail { speed, quiet, draining: during, p999_ratio: during.p999_us / quiet.p999_us })
}

thread_local! {
    static LATENCY: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// One client; latencies without its pauses.
fn tail(length: Duration, request: &dyn Fn(&mut SmallRng) -> Result<()>) -> Result<Latency> {
    LATENCY.with(|l| l.borrow_mut().clear());
    let mut rng: SmallRng = rand::SeedableRng::seed_from_u64(5);
    let start = std::time::Instant::now();
    while start.elapsed() < length {
        request(&mut rng)?;
    }
    LATENCY.with(|l| {
        let mut v = l.borrow_mut();
        v.sort_unstable();
        let at = |q: f64| v[((v.len() - 1) as f64 * q) as usize] as f64 / 1e3;
        Ok(Latency { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: at(1.0) })
    })
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
}

pub fn stall(seconds: u64, speed: Speed, say: Say<'_>) -> Result<Stall> {
    let pool = bed::pool(256 << 20)?;
    let well = bed::volume(&pool, "well", 768 << 20, speed)?;
    let ill = bed::volume(&pool, "ill", 768 << 20, speed)?;
    let third = (seconds * 2 / 3).max(4) as usize; // windows
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
            Duration::from_secs(seconds),
            4,
            &|rng| {
                let block = rng.random_range(0..well.blocks);
                write_block(&well, rng, block)
            },
            &mut |n, rate| {
                ill.origin.stall(n >= 2 * third - 1 && n < 3 * third - 1);
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
    // The first third fills the cache.
    let end = (3 * third).min(r.windows.len());
    let (before, _) = spread(&r.windows[third..2 * third]);
    let (during, _) = spread(&r.windows[2 * third..end]);
    Ok(Stall {
        speed,
        stalled_seconds: (end - 2 * third) as f64 / 2.0,
        before_per_s: before,
        during_per_s: during,
        ratio: during / before,
    })
}
