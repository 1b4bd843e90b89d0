// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long the phases of requests take: histograms that any thread adds to.
//!
//! A write takes about as long as twenty readings of the clock, so only one in
//! [`SAMPLE`] is timed, step by step; waits and reads of the origin are timed
//! always.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// One in so many writes, and reads from the cache, is timed.
pub(crate) const SAMPLE: u32 = 64;

/// Buckets to each power of two.
const STEPS: u32 = 4;
const BUCKETS: usize = 40 * STEPS as usize;

/// A phase whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A whole write, waits included.
    Write,
    /// Locking the block, taking a slot, room and sequence numbers.
    Begin,
    /// The data to the media, with its checksum.
    Copy,
    /// Headers and the fence.
    Commit,
    /// Making it visible.
    Publish,
    /// Waiting for another request to release a block or a slot.
    WaitSlot,
    /// Waiting for destage to free space.
    WaitSpace,
    /// To meet the drain rate.
    Throttle,
    /// A read that needed nothing of the origin.
    ReadHit,
    /// Reads of the origin.
    OriginRead,
    /// A write past the cache, on the origin.
    Bypass,
}

impl Phase {
    const ALL: [(Phase, &'static str); 11] = [
        (Phase::Write, "write"),
        (Phase::Begin, "begin"),
        (Phase::Copy, "copy"),
        (Phase::Commit, "commit"),
        (Phase::Publish, "publish"),
        (Phase::WaitSlot, "wait_slot"),
        (Phase::WaitSpace, "wait_space"),
        (Phase::Throttle, "throttle"),
        (Phase::ReadHit, "read_hit"),
        (Phase::OriginRead, "origin_read"),
        (Phase::Bypass, "bypass"),
    ];

    fn sampled(self) -> bool {
        !matches!(
            self,
            Phase::WaitSlot
                | Phase::WaitSpace
                | Phase::Throttle
                | Phase::OriginRead
                | Phase::Bypass
        )
    }
}

/// The time of a phase, since the volume was attached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseLatency {
    /// "write", "begin", "copy", "commit", "publish", "wait_slot",
    /// "wait_space", "throttle", "read_hit", "origin_read" or "bypass".
    pub phase: String,
    /// One in so many was timed; the figures are of those.
    pub sampled_one_in: u32,
    pub count: u64,
    pub total_seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Upper end of the highest bucket that is not empty.
    pub max_us: f64,
    /// Upper bound in seconds and how many were at most that; each power of
    /// two from 128 ns on, as far as any.
    pub buckets: Vec<(f64, u64)>,
}

#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

/// The phases of a volume.
#[derive(Debug)]
pub(crate) struct Phases([Histogram; Phase::ALL.len()]);

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Is this request one to be timed?
pub(crate) fn sampled() -> bool {
    TURN.with(|t| {
        let turn = t.get().wrapping_add(1);
        t.set(turn);
        turn.is_multiple_of(SAMPLE)
    })
}

/// The bucket of a time: its highest bits.
fn bucket(ns: u64) -> usize {
    if ns < u64::from(STEPS) {
        return ns as usize;
    }
    let log = ns.ilog2();
    let step = (ns >> (log - STEPS.ilog2())) as u32 - STEPS;
    (((log - 1) * STEPS + step) as usize).min(BUCKETS - 1)
}

/// The first time that is beyond a bucket.
fn bucket_end(i: usize) -> u64 {
    let (i, steps) = (i as u32, STEPS);
    if i < steps {
        return u64::from(i) + 1;
    }
    let log = i / steps + 1;
    u64::from(steps + i % steps + 1) << (log - steps.ilog2())
}

impl Histogram {
    const fn new() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], total_ns: AtomicU64::new(0) }
    }

    fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn summary(&self, phase: &str, sampled_one_in: u32) -> Option<PhaseLatency> {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let last = counts.iter().rposition(|c| *c > 0)?;
        let at = |q: f64| {
            let rank = (count as f64 * q).ceil().max(1.0) as u64;
            let mut sum = 0;
            let found = counts.iter().position(|c| {
                sum += c;
                sum >= rank
            });
            bucket_end(found.unwrap_or(last)) as f64 / 1e3
        };
        let mut cumulative = Vec::new();
        let mut sum = 0;
        for (i, c) in counts.iter().enumerate().take(last.max(bucket(127)) + STEPS as usize) {
            sum += c;
            let end = bucket_end(i);
            if end.is_power_of_two() && end >= 128 {
                cumulative.push((end as f64 / 1e9, sum));
            }
        }
        Some(PhaseLatency {
            phase: phase.to_string(),
            sampled_one_in,
            count,
            total_seconds: self.total_ns.load(Ordering::Relaxed) as f64 / 1e9,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: bucket_end(last) as f64 / 1e3,
            buckets: cumulative,
        })
    }
}

impl Default for Phases {
    fn default() -> Phases {
        Phases([const { Histogram::new() }; Phase::ALL.len()])
    }
}

impl Phases {
    pub(crate) fn add(&self, phase: Phase, time: Duration) {
        self.0[phase as usize].add(time);
    }

    /// Times what it does.
    pub(crate) fn time<T>(&self, phase: Phase, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = f();
        self.add(phase, start.elapsed());
        result
    }

    /// Phases that took place.
    pub(crate) fn summaries(&self) -> Vec<PhaseLatency> {
        let each = |(phase, name): &(Phase, &str)| {
            let one_in = if phase.sampled() { SAMPLE } else { 1 };
            self.0[*phase as usize].summary(name, one_in)
        };
        Phase::ALL.iter().filter_map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_falls_in_one_bucket() {
        for (i, (phase, _)) in Phase::ALL.iter().enumerate() {
            assert_eq!(*phase as usize, i, "the table is in order");
        }
        let mut ns = 0;
        for i in 0..BUCKETS - 1 {
            assert_eq!(bucket(ns), i, "{ns}");
            let end = bucket_end(i);
            assert!(end > ns);
            assert_eq!(bucket(end - 1), i, "{end}");
            ns = end;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn summaries_say_what_was_added() {
        let phases = Phases::default();
        assert!(phases.summaries().is_empty());
        for us in 1..=1000 {
            phases.add(Phase::WaitSpace, Duration::from_micros(us));
        }
        let all = phases.summaries();
        assert_eq!(all.len(), 1);
        let s = &all[0];
        assert_eq!((s.phase.as_str(), s.count, s.sampled_one_in), ("wait_space", 1000, 1));
        assert!((s.total_seconds - 0.5005).abs() < 1e-9);
        // A bucket is a quarter of a power of two wide.
        assert!((500.0..=640.0).contains(&s.p50_us), "{}", s.p50_us);
        assert!((990.0..=1200.0).contains(&s.p99_us), "{}", s.p99_us);
        assert!((s.p99_us..=1200.0).contains(&s.p999_us), "{}", s.p999_us);
        assert!((1000.0..=1200.0).contains(&s.max_us), "{}", s.max_us);
        // 128 ns and on, in seconds: at most 512 microseconds took 512 of them.
        assert_eq!(s.buckets[0], (128e-9, 0));
        let half = s.buckets.iter().find(|b| (b.0 - 524288e-9).abs() < 1e-12).unwrap();
        assert_eq!(half.1, 524);
        assert!(s.buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
        assert_eq!(s.buckets.last().unwrap().1, 1000);
    }

    #[test]
    fn one_in_so_many_is_sampled() {
        let n = (0..10 * SAMPLE).filter(|_| sampled()).count();
        assert_eq!(n, 10);
    }
}
