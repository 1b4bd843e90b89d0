// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients in threads, what they achieve in windows of time, and how long each
//! of their requests takes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::SeedableRng;
use serde::Serialize;

/// Length of a window.
pub const WINDOW: Duration = Duration::from_millis(500);

/// Latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Latency {
    pub fn of(h: &Histogram<u64>) -> Latency {
        let at = |q| h.value_at_quantile(q) as f64 / 1e3;
        Latency {
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: h.max() as f64 / 1e3,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Requests a second over all of it.
    pub per_s: f64,
    /// Requests in each window, as a rate a second.
    pub windows: Vec<f64>,
    pub latency: Latency,
}

/// Mean and coefficient of variation.
pub fn spread(windows: &[f64]) -> (f64, f64) {
    if windows.is_empty() {
        return (0.0, 0.0);
    }
    let mean = windows.iter().sum::<f64>() / windows.len() as f64;
    let var = windows.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / windows.len() as f64;
    (mean, if mean > 0.0 { var.sqrt() / mean } else { 0.0 })
}

/// Runs `clients` threads for so long; each calls `request` again and again
/// with a generator of its own.  `each_window` is told when a window ends.
pub fn run(
    clients: usize,
    length: Duration,
    seed: u64,
    request: &(dyn Fn(&mut SmallRng) -> Result<()> + Sync),
    each_window: &mut dyn FnMut(usize, f64),
) -> Result<Run> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let client = |n: usize| -> Result<Histogram<u64>> {
        let mut rng = SmallRng::seed_from_u64(seed ^ (n as u64) << 32);
        let mut latencies = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            request(&mut rng)?;
            latencies.saturating_record(start.elapsed().as_nanos() as u64);
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(latencies)
    };
    std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || client(n))).collect();
        let start = Instant::now();
        let (mut windows, mut before, mut last) = (Vec::new(), 0, start);
        while start.elapsed() < length {
            let next = start + WINDOW * (windows.len() as u32 + 1);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let (now, sum) = (Instant::now(), done.load(Ordering::Relaxed));
            let rate = (sum - before) as f64 / (now - last).as_secs_f64();
            (before, last) = (sum, now);
            windows.push(rate);
            each_window(windows.len(), rate);
        }
        let seconds = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let mut all = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        for t in threads {
            all.add(t.join().map_err(|_| anyhow::anyhow!("a client panicked"))??)
                .context("adding latencies")?;
        }
        Ok(Run { per_s: before as f64 / seconds, windows, latency: Latency::of(&all) })
    })
}
