// SPDX-License-Identifier: MIT OR Apache-2.0
//! The durations of syncs in buckets: four for each power of two of nanoseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BUCKETS: usize = 160;

#[derive(Debug)]
pub struct Latency([AtomicU64; BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Latency([const { AtomicU64::new(0) }; BUCKETS])
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = ns.ilog2();
    let quarter = (ns >> (power - 2)) & 3;
    (((power - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// The smallest value above the bucket.
fn above(bucket: usize) -> u64 {
    let (power, quarter) = (bucket / 4 + 2, bucket as u64 % 4);
    (5 + quarter) << (power - 2)
}

impl Latency {
    pub fn took(&self, time: Duration) {
        self.0[bucket(time.as_nanos() as u64)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time that this many of a thousand stayed below; `None`: there were no syncs.
    pub fn below(&self, per_mille: u64) -> Option<Duration> {
        let counts: Vec<u64> = self.0.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let mut left = (all * per_mille).div_ceil(1000).max(1);
        for (i, n) in counts.iter().enumerate() {
            if *n >= left {
                return Some(Duration::from_nanos(above(i)));
            }
            left -= n;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_hold_what_they_say() {
        for ns in (4..100_000u64).chain([1 << 30, (1 << 39) + 5]) {
            let b = bucket(ns);
            assert!(ns < above(b), "{ns} in {b} below {}", above(b));
            assert!(b == 0 || ns >= above(b - 1), "{ns} in {b}");
        }
        let latency = Latency::default();
        assert_eq!(latency.below(500), None);
        for us in 1..=100 {
            latency.took(Duration::from_micros(us));
        }
        let (half, most) = (latency.below(500).unwrap(), latency.below(990).unwrap());
        assert!(half >= Duration::from_micros(50) && half < Duration::from_micros(65), "{half:?}");
        assert!(most >= Duration::from_micros(99) && most < Duration::from_micros(130), "{most:?}");
    }
}
