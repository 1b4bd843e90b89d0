// SPDX-License-Identifier: MIT OR Apache-2.0
//! Appends to a log of a pool that is written in groups, in turns with those to a mapped pool in
//! a file of the same disk: rates, and what an append costs the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{
    create, CreateOptions, Generation, Log, LogHome, LogOptions, MediumChoice, MediumStatus, Pool,
    PoolOptions,
};
use serde::Serialize;

use crate::rounds::{median, quantile};
use crate::BenchError;

/// Txgs are synced so often: space comes by that.
const SYNC: Duration = Duration::from_millis(50);

/// Options of [`ssd()`].
#[derive(Debug, Clone, PartialEq)]
pub struct SsdOptions {
    /// Directory for both pools, on the disk.
    pub dir: PathBuf,
    /// Size of each.
    pub pool_bytes: u64,
    /// Bytes of an entry.
    pub bytes: u32,
    /// Numbers of threads, one after the other.
    pub threads: Vec<u32>,
    pub rounds: u32,
    /// How long each of both has its turn in a round.
    pub turn: Duration,
}

impl Default for SsdOptions {
    fn default() -> Self {
        Self {
            dir: std::env::temp_dir(),
            pool_bytes: 256 << 20,
            bytes: 4096,
            threads: vec![1, 4, 16],
            rounds: 5,
            turn: Duration::from_millis(500),
        }
    }
}

/// The result of [`ssd()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SsdReport {
    pub rows: Vec<SsdRow>,
    pub bytes: u32,
    pub rounds: u32,
    pub turn_ms: u64,
    /// How a write becomes durable.
    pub durable_by: String,
    pub media: String,
}

/// The figures of one number of threads: rates are medians of the rounds, counts are of all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SsdRow {
    pub threads: u32,
    /// Durable appends a second.
    pub groups_per_s: f64,
    pub mapped_per_s: f64,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub mapped_p50_ns: u64,
    pub mapped_p99_ns: u64,
    /// Requests and bytes that the disk gets for each append.
    pub writes: f64,
    pub flushes: f64,
    pub written_bytes: f64,
}

/// A pool with a log, removed at the end.
struct Bed {
    path: PathBuf,
    log: Option<Log>,
    pool: Option<Pool>,
    txg: AtomicU64,
}

impl Drop for Bed {
    fn drop(&mut self) {
        drop((self.log.take(), self.pool.take()));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A file that was written once: the blocks of one that is only reserved cost more.
fn written(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = std::fs::File::create_new(path)?;
    let copied = std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), &mut file)?;
    debug_assert_eq!(copied, bytes);
    file.sync_all()
}

impl Bed {
    fn new(o: &SsdOptions, medium: MediumChoice) -> Result<Bed, BenchError> {
        let path = o.dir.join(format!("forebay-ssd-{medium}-{}", std::process::id()));
        let system = |source| BenchError::System {
            what: format!("writing {} (name another directory, --dir)", path.display()),
            source,
        };
        written(&path, o.pool_bytes).map_err(system)?;
        let mut bed = Bed { path: path.clone(), log: None, pool: None, txg: AtomicU64::new(1) };
        create(&path, &CreateOptions { medium, ..Default::default() })?;
        let pool = bed.pool.insert(Pool::open(&path, &PoolOptions::default())?);
        pool.log_add("bench", LogHome::Embedded)?;
        let log = pool.log("bench", &LogOptions::default())?;
        log.create(0)?;
        bed.log = Some(log);
        Ok(bed)
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("open until it is dropped")
    }

    fn log(&self) -> &Log {
        self.log.as_ref().expect("open until it is dropped")
    }

    fn medium(&self) -> MediumStatus {
        self.pool().status().medium.unwrap_or_default()
    }

    /// Appends by so many threads; the time of each, and the rate.
    fn turn(&self, o: &SsdOptions, threads: u32) -> Result<(Vec<u32>, f64), BenchError> {
        let (stop, began) = (AtomicBool::new(false), Instant::now());
        let all: Result<Vec<Vec<u32>>, BenchError> = std::thread::scope(|s| {
            let stop = &stop;
            let append = |thread| s.spawn(move || self.append(o, thread, stop));
            let appenders: Vec<_> = (0..threads).map(append).collect();
            let synced = self.sync_until(began + o.turn);
            stop.store(true, Ordering::Relaxed);
            let joined = appenders.into_iter().map(|t| t.join().expect("it does not panic"));
            let all = joined.collect();
            synced.and(all)
        });
        let took = began.elapsed().as_secs_f64();
        let all = all?.concat();
        let rate = all.len() as f64 / took;
        Ok((all, rate))
    }

    fn append(
        &self,
        o: &SsdOptions,
        thread: u32,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, BenchError> {
        let body = vec![thread as u8; o.bytes as usize];
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let txg = self.txg.load(Ordering::Relaxed);
            match self.log().append(txg, Generation::Same, &[&body]) {
                Ok(_) => times.push(began.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32),
                // Synced since it was looked at.
                Err(forebay::Error::Log { .. }) if txg != self.txg.load(Ordering::Relaxed) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(times)
    }

    fn sync_until(&self, end: Instant) -> Result<(), BenchError> {
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            std::thread::sleep(left.min(SYNC));
            let before = self.txg.fetch_add(1, Ordering::Relaxed);
            self.log().sync(before - 1)?;
        }
        Ok(())
    }
}

/// The result of one kind of pool.
#[derive(Default)]
struct Done {
    times: Vec<u32>,
    rates: Vec<f64>,
}

impl Done {
    fn add(&mut self, (times, rate): (Vec<u32>, f64)) {
        self.times.extend(times);
        self.rates.push(rate);
    }

    fn quantiles(&mut self) -> (u64, u64) {
        self.times.sort_unstable();
        (quantile(&self.times, 500), quantile(&self.times, 990))
    }
}

/// Measures both kinds of pools in turns.
pub fn ssd(o: &SsdOptions) -> Result<SsdReport, BenchError> {
    crate::rounds::checked(&o.threads, o.rounds, 1)?;
    let (groups, mapped) = (Bed::new(o, MediumChoice::Ssd)?, Bed::new(o, MediumChoice::Memory)?);
    let mut rows = Vec::new();
    for &threads in &o.threads {
        let (mut ours, mut theirs) = (Done::default(), Done::default());
        let mut cost = [0u64; 3];
        for _ in 0..o.rounds {
            let before = groups.medium();
            ours.add(groups.turn(o, threads)?);
            let after = groups.medium();
            for (sum, of) in cost.iter_mut().zip([
                |m: &MediumStatus| m.writes,
                |m: &MediumStatus| m.flushes,
                |m: &MediumStatus| m.written_bytes,
            ]) {
                *sum += of(&after) - of(&before);
            }
            theirs.add(mapped.turn(o, threads)?);
        }
        let ratios =
            ours.rates.iter().zip(&theirs.rates).map(|(a, b)| a / b.max(f64::MIN_POSITIVE));
        let ratio = median(ratios.collect());
        let [writes, flushes, written_bytes] =
            cost.map(|n| n as f64 / ours.times.len().max(1) as f64);
        let ((p50_ns, p99_ns), (mapped_p50_ns, mapped_p99_ns)) =
            (ours.quantiles(), theirs.quantiles());
        rows.push(SsdRow {
            threads,
            groups_per_s: median(ours.rates),
            mapped_per_s: median(theirs.rates),
            ratio,
            p50_ns,
            p99_ns,
            mapped_p50_ns,
            mapped_p99_ns,
            writes,
            flushes,
            written_bytes,
        });
    }
    Ok(SsdReport {
        rows,
        bytes: o.bytes,
        rounds: o.rounds,
        turn_ms: o.turn.as_millis() as u64,
        durable_by: groups.medium().durable_by,
        media: format!("files in {}", o.dir.display()),
    })
}
