// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that wait for fsync, on a directory and on a mount of such a directory, in turns: a
//! slow phase of the machine affects both.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::rounds::{median, quantile};
use crate::BenchError;

/// A client's repeated operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountCase {
    /// Writes at the end of a file, and fdatasync.
    Append,
    /// Writes somewhere in a file of 4 MiB, and fdatasync.
    InPlace,
    /// Creates a file, writes, fsync, renames it over another, fsync of the directory.
    Replace,
}

impl MountCase {
    pub const ALL: [MountCase; 3] = [MountCase::Append, MountCase::InPlace, MountCase::Replace];

    pub fn name(self) -> &'static str {
        match self {
            MountCase::Append => "append",
            MountCase::InPlace => "in-place",
            MountCase::Replace => "replace",
        }
    }
}

/// Options of [`mounts()`].
#[derive(Debug, Clone, PartialEq)]
pub struct MountBenchOptions {
    /// A directory, and the mount of another on the same file system.
    pub plain: PathBuf,
    pub mount: PathBuf,
    pub cases: Vec<MountCase>,
    pub bytes: Vec<u32>,
    pub clients: Vec<u32>,
    pub rounds: u32,
    pub turn: Duration,
}

/// One case of so many clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MountRow {
    pub what: MountCase,
    pub bytes: u32,
    pub clients: u32,
    /// Medians of the rounds.
    pub plain_per_s: f64,
    pub mount_per_s: f64,
    /// Latencies of all operations.
    pub plain_p50_us: f64,
    pub mount_p50_us: f64,
    pub plain_p99_us: f64,
    pub mount_p99_us: f64,
    /// The median of the rounds' ratios.
    pub ratio: f64,
}

/// The result of [`mounts()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MountReport {
    pub rows: Vec<MountRow>,
    pub rounds: u32,
    pub turn_ms: u64,
}

/// Size of the file that is written in place.
const FILE: u64 = 4 << 20;
/// An appended file begins anew above this.
const APPENDED: u64 = 64 << 20;

struct Client {
    case: MountCase,
    dir: PathBuf,
    handle: File,
    file: File,
    bytes: Vec<u8>,
    at: u64,
    seed: u64,
}

impl Client {
    fn new(case: MountCase, dir: &Path, bytes: u32, number: u32) -> io::Result<Client> {
        let dir = dir.join(format!("client-{number}"));
        fs::create_dir_all(&dir)?;
        let path = dir.join("file");
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        if case == MountCase::InPlace {
            file.write_all_at(&vec![1; FILE as usize], 0)?;
        }
        file.sync_all()?;
        let handle = File::open(&dir)?;
        let seed = u64::from(number) + 1;
        Ok(Client { case, dir, handle, file, bytes: vec![0x5a; bytes as usize], at: 0, seed })
    }

    fn step(&mut self) -> io::Result<()> {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        match self.case {
            MountCase::Append => {
                if self.at >= APPENDED {
                    self.file.set_len(0)?;
                    self.at = 0;
                }
                self.file.write_all_at(&self.bytes, self.at)?;
                self.at += self.bytes.len() as u64;
                self.file.sync_data()
            }
            MountCase::InPlace => {
                let blocks = FILE / self.bytes.len() as u64;
                let at = (self.seed >> 33) % blocks * self.bytes.len() as u64;
                self.file.write_all_at(&self.bytes, at)?;
                self.file.sync_data()
            }
            MountCase::Replace => {
                let new = self.dir.join("new");
                let file = File::create(&new)?;
                file.write_all_at(&self.bytes, 0)?;
                file.sync_all()?;
                drop(file);
                fs::rename(&new, self.dir.join("file"))?;
                self.handle.sync_all()
            }
        }
    }
}

/// Runs a turn of the clients: returns operations a second of all together.
fn turn(clients: &mut [Client], time: Duration, taken: &mut Vec<u32>) -> io::Result<f64> {
    let barrier = Barrier::new(clients.len());
    let done: io::Result<Vec<(Vec<u32>, f64)>> = std::thread::scope(|scope| {
        let all: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut ns = Vec::new();
                    barrier.wait();
                    client.step()?;
                    let start = Instant::now();
                    let mut before = start;
                    while before - start < time {
                        client.step()?;
                        let now = Instant::now();
                        ns.push(u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX));
                        before = now;
                    }
                    let rate = ns.len() as f64 / (before - start).as_secs_f64();
                    Ok((ns, rate))
                })
            })
            .collect();
        all.into_iter().map(|c| c.join().expect("clients do not panic")).collect()
    });
    let mut rate = 0.0;
    for (ns, of_one) in done? {
        taken.extend(ns);
        rate += of_one;
    }
    Ok(rate)
}

/// Runs every case on both in turns; `progress` is told how many of how many are done.
pub fn mounts(
    options: &MountBenchOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<MountReport, BenchError> {
    let mut rows = Vec::new();
    let all = options.cases.len() * options.bytes.len() * options.clients.len();
    for &what in &options.cases {
        for &bytes in &options.bytes {
            for &clients in &options.clients {
                progress(rows.len(), all);
                rows.push(row(options, what, bytes, clients)?);
            }
        }
    }
    progress(all, all);
    let turn_ms = options.turn.as_millis() as u64;
    Ok(MountReport { rows, rounds: options.rounds, turn_ms })
}

fn row(
    options: &MountBenchOptions,
    what: MountCase,
    bytes: u32,
    clients: u32,
) -> Result<MountRow, BenchError> {
    let mut sides = Vec::new();
    for dir in [&options.plain, &options.mount] {
        let failed = |source| BenchError::System {
            what: format!("use {} (is it a directory with space left?)", dir.display()),
            source,
        };
        let made: io::Result<Vec<Client>> =
            (0..clients).map(|n| Client::new(what, dir, bytes, n)).collect();
        sides.push((made.map_err(failed)?, Vec::new(), Vec::new(), failed));
    }
    for round in 0..options.rounds as usize {
        for side in 0..2 {
            let (clients, rates, taken, failed) = &mut sides[(round + side) % 2];
            rates.push(turn(clients, options.turn, taken).map_err(&*failed)?);
        }
    }
    let ratios = sides[1].1.iter().zip(&sides[0].1).map(|(m, p)| m / p).collect();
    for side in &mut sides {
        side.2.sort_unstable();
    }
    let us = |side: usize, per_mille| quantile(&sides[side].2, per_mille) as f64 / 1000.0;
    Ok(MountRow {
        what,
        bytes,
        clients,
        plain_per_s: median(sides[0].1.clone()),
        mount_per_s: median(sides[1].1.clone()),
        plain_p50_us: us(0, 500),
        mount_p50_us: us(1, 500),
        plain_p99_us: us(0, 990),
        mount_p99_us: us(1, 990),
        ratio: median(ratios),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_runs_on_two_directories() {
        let dir = std::env::temp_dir().join(format!("forebay-bench-mounts-{}", std::process::id()));
        let (plain, mount) = (dir.join("plain"), dir.join("mount"));
        fs::create_dir_all(&plain).unwrap();
        fs::create_dir_all(&mount).unwrap();
        let options = MountBenchOptions {
            plain,
            mount,
            cases: MountCase::ALL.to_vec(),
            bytes: vec![128],
            clients: vec![1, 2],
            rounds: 2,
            turn: Duration::from_millis(5),
        };
        let mut told = Vec::new();
        let report = mounts(&options, |done, all| told.push((done, all))).unwrap();
        assert_eq!(report.rows.len(), 6);
        assert!(report.rows.iter().all(|r| r.plain_per_s > 0.0 && r.mount_p50_us > 0.0));
        assert_eq!(told.last(), Some(&(6, 6)));
        let gone = MountBenchOptions { mount: dir.join("none/such"), ..options };
        fs::remove_dir_all(&dir).unwrap();
        File::create(&dir).unwrap();
        let refused = mounts(&gone, |_, _| ()).unwrap_err();
        assert!(refused.to_string().contains("plain"), "{refused}");
        fs::remove_file(&dir).unwrap();
    }
}
