// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short alternating rounds: every kind of stroke gets its turn in every round,
//! each time without a clock (throughput) and then with one (latencies).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::{sched_setaffinity, CpuSet};

use crate::memory::MediaChoice;
use crate::{BenchError, Figures};

/// One operation of one thread, over and over.
pub(crate) trait Stroke: Send {
    fn stroke(&mut self) -> Result<(), BenchError>;
}

/// How a benchmark is run that asks the same of several numbers of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadsOptions {
    /// The media in place of persistent memory.
    pub media: MediaChoice,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Numbers of threads, one after the other.
    pub threads: Vec<u32>,
    /// Rounds for each.
    pub rounds: u32,
    /// Operations of a thread in a turn, once without and once with the clock.
    pub batch: u32,
}

impl Default for ThreadsOptions {
    fn default() -> Self {
        Self {
            media: MediaChoice::default(),
            pool_bytes: 2 << 30,
            threads: vec![1, 2],
            rounds: 301,
            batch: 1_500,
        }
    }
}

/// The largest number of threads, where all of them and the rest can be.
pub(crate) fn checked(threads: &[u32], rounds: u32, batch: u32) -> Result<u32, BenchError> {
    let most = threads.iter().copied().max().unwrap_or(0);
    if threads.contains(&0) || !(1..=64).contains(&most) {
        return Err(BenchError::Options("threads: 1 to 64, at least one number".to_owned()));
    }
    if rounds == 0 || batch == 0 {
        return Err(BenchError::Options("rounds and batch: at least 1".to_owned()));
    }
    Ok(most)
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub rounds: u32,
    /// Operations of a thread before the clock starts, and while it runs.
    pub warm: u32,
    pub batch: u32,
}

impl Plan {
    pub fn new(rounds: u32, batch: u32) -> Plan {
        Plan { rounds, warm: batch / 10, batch }
    }
}

/// The measurements of one thread for one kind.
#[derive(Default)]
struct Seen {
    ops_per_s: Vec<f64>,
    latency_ns: Vec<u32>,
}

/// Runs `threads[t][kind]`; meanwhile calls `beside` every few milliseconds.  Returns one
/// result for each kind.
pub(crate) fn run(
    plan: Plan,
    threads: Vec<Vec<Box<dyn Stroke + '_>>>,
    mut beside: impl FnMut() -> Result<(), BenchError>,
) -> Result<Vec<Figures>, BenchError> {
    let barrier = Barrier::new(threads.len());
    let failed = AtomicBool::new(false);
    let (barrier, failed) = (&barrier, &failed);
    let seen = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .into_iter()
            .enumerate()
            .map(|(cpu, kinds)| scope.spawn(move || worker(plan, cpu, kinds, barrier, failed)))
            .collect();
        let mut beside_result = Ok(());
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(2));
            if beside_result.is_ok() {
                beside_result = beside();
                failed.fetch_or(beside_result.is_err(), Ordering::Relaxed);
            }
        }
        let seen: Result<Vec<_>, _> = workers
            .into_iter()
            .map(|worker| worker.join().expect("workers do not panic"))
            .collect();
        beside_result.and(seen)
    })?;
    Ok((0..seen[0].len()).map(|kind| figures(seen.iter().map(|thread| &thread[kind]))).collect())
}

fn worker(
    plan: Plan,
    cpu: usize,
    mut kinds: Vec<Box<dyn Stroke + '_>>,
    barrier: &Barrier,
    failed: &AtomicBool,
) -> Result<Vec<Seen>, BenchError> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    // A hint: if it is refused, the scheduler places the thread.
    let _ = sched_setaffinity(None, &cpus);
    let mut seen: Vec<Seen> = kinds.iter().map(|_| Seen::default()).collect();
    for kind in &mut seen {
        // Touched, so that no page fault is taken for a slow operation.
        kind.latency_ns = vec![u32::MAX; (plan.rounds * plan.batch) as usize];
        kind.latency_ns.clear();
    }
    let n = kinds.len();
    let mut result = Ok(());
    for round in 0..plan.rounds as usize {
        for kind in (0..n).map(|i| (round + i) % n) {
            // All threads see the same answer: it changes before they part.
            barrier.wait();
            let stop = failed.load(Ordering::Relaxed);
            barrier.wait();
            if stop {
                return result.map(|()| seen);
            }
            if let Err(error) = turn(plan, &mut *kinds[kind], &mut seen[kind]) {
                result = Err(error);
                failed.store(true, Ordering::Relaxed);
            }
        }
    }
    result.map(|()| seen)
}

fn turn(plan: Plan, stroke: &mut dyn Stroke, seen: &mut Seen) -> Result<(), BenchError> {
    for _ in 0..plan.warm {
        stroke.stroke()?;
    }
    let start = Instant::now();
    for _ in 0..plan.batch {
        stroke.stroke()?;
    }
    seen.ops_per_s.push(f64::from(plan.batch) / start.elapsed().as_secs_f64());
    let mut before = Instant::now();
    for _ in 0..plan.batch {
        stroke.stroke()?;
        let now = Instant::now();
        let ns = u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX);
        seen.latency_ns.push(ns);
        before = now;
    }
    Ok(())
}

/// All threads for one kind: the sum of their rates in each round.
fn figures<'a>(threads: impl Iterator<Item = &'a Seen> + Clone) -> Figures {
    let rounds = threads.clone().map(|seen| seen.ops_per_s.len()).min().unwrap_or(0);
    let mut sums: Vec<f64> =
        (0..rounds).map(|round| threads.clone().map(|seen| seen.ops_per_s[round]).sum()).collect();
    sums.sort_unstable_by(f64::total_cmp);
    let tenth = |n: usize| sums.get((rounds.saturating_sub(1) * n).div_ceil(10)).copied();
    let (p10, p90) = (tenth(1).unwrap_or(0.0), tenth(9).unwrap_or(0.0));
    let mut ns: Vec<u32> = threads.flat_map(|seen| seen.latency_ns.iter().copied()).collect();
    ns.sort_unstable();
    Figures {
        ops_per_s: median(sums),
        ops_per_s_p10: p10,
        ops_per_s_p90: p90,
        p50_ns: quantile(&ns, 500),
        p99_ns: quantile(&ns, 990),
        p999_ns: quantile(&ns, 999),
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The smallest value that `per_mille` of all are not above.
pub(crate) fn quantile(sorted: &[u32], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).map_or(0, |&ns| u64::from(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        let thousand: Vec<u32> = (1..=1000).collect();
        assert_eq!(quantile(&thousand, 500), 500);
        assert_eq!(quantile(&thousand, 999), 999);
        assert_eq!(quantile(&[7], 999), 7);
        assert_eq!(quantile(&[], 500), 0);
    }

    struct Count<'a>(&'a std::sync::atomic::AtomicU32, u32);

    impl Stroke for Count<'_> {
        fn stroke(&mut self) -> Result<(), BenchError> {
            if self.0.fetch_add(1, Ordering::Relaxed) >= self.1 {
                return Err(BenchError::Options("enough".to_owned()));
            }
            Ok(())
        }
    }

    fn counted(limit: u32) -> (Result<Vec<Figures>, BenchError>, u32) {
        let counter = std::sync::atomic::AtomicU32::new(0);
        let thread = || -> Vec<Box<dyn Stroke + '_>> {
            vec![Box::new(Count(&counter, limit)), Box::new(Count(&counter, limit))]
        };
        let plan = Plan { rounds: 3, warm: 2, batch: 5 };
        let result = run(plan, vec![thread(), thread()], || Ok(()));
        (result, counter.into_inner())
    }

    #[test]
    fn every_kind_gets_its_strokes() {
        let (result, strokes) = counted(u32::MAX);
        assert_eq!(result.unwrap().len(), 2);
        assert_eq!(strokes, 3 * 2 * 2 * (2 + 5 + 5));
    }

    #[test]
    fn a_failure_ends_all_threads() {
        let (result, strokes) = counted(40);
        assert!(matches!(result, Err(BenchError::Options(text)) if text == "enough"));
        assert!(strokes < 3 * 2 * 2 * (2 + 5 + 5));
    }
}
