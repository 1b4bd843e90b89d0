// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part two of the demo.  A process that writes is killed again and again.  After each recovery
//! every sector of its volume is compared with the log.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use forebay::Pool;
use serde::Serialize;

use super::pattern::{self, SECTOR};
use super::random::{mix, Random};
use super::writer::{Op, LOG_ENTRY, THREADS};
use super::Stage;
use crate::args;

pub const VOLUME: &str = "safety";

#[derive(Debug, Default, Serialize)]
pub struct Safety {
    pub kills: u32,
    /// Kills during the opening and recovery of the pool.
    pub kills_in_recovery: u32,
    pub acknowledged: u64,
    pub lost: u64,
    pub sectors_compared: u64,
    pub torn_pages_dropped: u64,
    pub slowest_recovery_seconds: f64,
}

/// The content that the volume must have, according to the log so far.
pub struct Expected {
    seed: u64,
    /// Last write known to be in each sector.
    versions: Vec<u64>,
    /// Writes that a kill left undecided.
    undecided: Vec<Op>,
    /// Next write of each thread.
    next: [u64; THREADS],
    acknowledged: u64,
}

/// A sector that is not what it must be.
#[derive(Debug, PartialEq, Eq)]
pub struct Loss {
    pub sector: u64,
    pub expected: u64,
    /// None: the sector is not whole, or could not be read.
    pub found: Option<u64>,
}

impl Expected {
    pub fn new(seed: u64, sectors: u64) -> Self {
        Expected {
            seed,
            versions: vec![0; sectors as usize],
            undecided: Vec::new(),
            next: [1; THREADS],
            acknowledged: 0,
        }
    }

    fn op(&self, thread: usize, number: u64) -> Op {
        Op::of(self.seed, thread, number, self.versions.len() as u64)
    }

    /// Takes the entries that one writer's life added to the log.
    pub fn take_log(&mut self, entries: &[u8]) -> anyhow::Result<()> {
        for entry in entries.chunks(LOG_ENTRY) {
            let (Some(thread), Some(number)) = (number_at(entry, 0), number_at(entry, 8)) else {
                bail!("the log of acknowledged writes ends within an entry");
            };
            let thread = thread as usize;
            if thread >= THREADS || number != self.next[thread] {
                bail!("the log of acknowledged writes is not in order");
            }
            let op = self.op(thread, number);
            self.sectors(&op).fill(number);
            self.next[thread] += 1;
            self.acknowledged += 1;
        }
        // The writer's next writes may have happened, or not, or in part.
        for thread in 0..THREADS {
            self.undecided.push(self.op(thread, self.next[thread]));
            self.next[thread] += 1;
        }
        Ok(())
    }

    fn sectors(&mut self, op: &Op) -> &mut [u64] {
        &mut self.versions[op.first as usize..][..op.count as usize]
    }

    /// Compares the content with the expected one.  From then on, the content of undecided writes
    /// must stay.
    pub fn compare(&mut self, first: u64, found: &[Option<u64>]) -> Vec<Loss> {
        let mut losses = Vec::new();
        for (sector, &found) in (first..).zip(found) {
            let expected = self.versions[sector as usize];
            let allowed = |version: u64| {
                version == expected
                    || self.undecided.iter().any(|op| {
                        op.version == version
                            && version > expected
                            && (op.first..op.first + op.count).contains(&sector)
                    })
            };
            match found {
                Some(version) if allowed(version) => self.versions[sector as usize] = version,
                _ => losses.push(Loss { sector, expected, found }),
            }
        }
        losses
    }

    pub fn decided(&mut self) {
        self.undecided.clear();
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub fn sector_count(&self) -> u64 {
        self.versions.len() as u64
    }
}

fn number_at(entry: &[u8], at: usize) -> Option<u64> {
    let bytes = entry.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The number of distinct acknowledged writes among the losses.
pub fn writes_lost(losses: &[Loss]) -> u64 {
    let mut versions: Vec<_> = losses.iter().map(|l| (l.expected, l.sector / 8)).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.len() as u64
}

pub fn run(stage: &Stage) -> anyhow::Result<(Safety, Expected)> {
    let mut expected = Expected::new(stage.seed, stage.safety_sectors()?);
    let mut safety = Safety::default();
    let mut random = Random::new(mix(stage.seed, 0x6b69_6c6c));
    let mut log = Log::create(&stage.path("acknowledged.log"))?;
    let bar = stage.bar(u64::from(stage.kills), "{prefix} {bar:30} {pos}/{len} kills  {msg}");
    bar.set_prefix("  SIGKILL");
    while safety.kills < stage.kills {
        let while_writing = Duration::from_millis(20 + random.below(380));
        log.kill_a_writer(stage, &mut expected, Moment::AfterFirstWrite(while_writing))?;
        safety.kills += 1;
        // One recovery in two, on average, is killed as well.
        if safety.kills < stage.kills && random.below(2) == 0 {
            let while_opening = Duration::from_micros(random.below(30_000));
            log.kill_a_writer(stage, &mut expected, Moment::AfterStart(while_opening))?;
            safety.kills += 1;
            safety.kills_in_recovery += 1;
        }
        verify(stage, &mut expected, &mut safety)?;
        safety.acknowledged = expected.acknowledged();
        bar.set_position(safety.kills.into());
        bar.set_message(format!(
            "{} acknowledged, {} lost",
            crate::units::count(safety.acknowledged),
            safety.lost
        ));
    }
    bar.finish_and_clear();
    Ok((safety, expected))
}

/// The moment at which the writer is killed.
#[derive(Clone, Copy)]
enum Moment {
    AfterFirstWrite(Duration),
    AfterStart(Duration),
}

/// The log of acknowledged writes, outside the pool.
struct Log {
    path: PathBuf,
    file: File,
    taken: u64,
}

impl Log {
    fn create(path: &Path) -> anyhow::Result<Log> {
        std::fs::remove_file(path).ok();
        let mut options = OpenOptions::new();
        let file = options
            .create_new(true)
            .read(true)
            .append(true)
            .open(path)
            .with_context(|| format!("{}: cannot make the log", path.display()))?;
        Ok(Log { path: path.into(), file, taken: 0 })
    }

    fn length(&self) -> anyhow::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn kill_a_writer(
        &mut self,
        stage: &Stage,
        expected: &mut Expected,
        moment: Moment,
    ) -> anyhow::Result<()> {
        let mut writer = Writer::start(stage, self.file.try_clone()?, expected)?;
        let wait = match moment {
            Moment::AfterStart(time) => time,
            Moment::AfterFirstWrite(time) => {
                while self.length()? == self.taken {
                    writer.alive(stage)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                time
            }
        };
        let end = Instant::now() + wait;
        while Instant::now() < end {
            writer.alive(stage)?;
            std::thread::sleep(Duration::from_millis(1).min(end - Instant::now().min(end)));
        }
        writer.kill()?;
        let mut entries = vec![0; (self.length()? - self.taken) as usize];
        self.file
            .read_exact_at(&mut entries, self.taken)
            .with_context(|| format!("{}: cannot read the log", self.path.display()))?;
        self.taken += entries.len() as u64;
        expected.take_log(&entries)
    }
}

/// The process that writes; it is killed when dropped.
struct Writer(Child);

impl Writer {
    fn start(stage: &Stage, log: File, expected: &Expected) -> anyhow::Result<Writer> {
        let child = Command::new(std::env::current_exe()?)
            .arg("demo-writer")
            .arg(&stage.pool)
            .arg(VOLUME)
            .arg(stage.origin(VOLUME))
            .arg(stage.seed.to_string())
            .args(expected.next.map(|n| n.to_string()))
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .context("cannot start the writer process")?;
        Ok(Writer(child))
    }

    fn alive(&mut self, stage: &Stage) -> anyhow::Result<()> {
        stage.check_interrupt()?;
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the writer process ended by itself ({status})"),
        }
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill().context("cannot kill the writer process")?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Recovers the pool, checks it, and reads the whole volume.
fn verify(stage: &Stage, expected: &mut Expected, safety: &mut Safety) -> anyhow::Result<()> {
    let pool = Pool::open(&stage.pool, &args::MediaArgs::default().read_write())?;
    let report = pool.recovery();
    safety.slowest_recovery_seconds = safety.slowest_recovery_seconds.max(report.seconds);
    safety.torn_pages_dropped += report.dropped;
    let check = pool.check(true)?;
    if !check.ok {
        bail!("{}: the check after a kill found: {check}", stage.pool.display());
    }
    let volume = pool.attach(VOLUME, &stage.attach(VOLUME))?;
    let losses = compare_all(expected, |buffer, offset| volume.read_at(buffer, offset).is_ok());
    safety.sectors_compared += expected.sector_count();
    safety.lost += writes_lost(&losses);
    for loss in losses.iter().take(5) {
        crate::out::warn(format_args!("LOST: {loss:?}"));
    }
    volume.detach()?;
    Ok(pool.close()?)
}

/// Reads in pieces of 64 KiB.  If a piece fails, its sectors are read one by one.
pub fn compare_all(expected: &mut Expected, read: impl Fn(&mut [u8], u64) -> bool) -> Vec<Loss> {
    const PIECE: usize = 64 << 10;
    let mut losses = Vec::new();
    let bytes = expected.sector_count() * SECTOR as u64;
    let mut buffer = vec![0; PIECE];
    for offset in (0..bytes).step_by(PIECE) {
        let length = PIECE.min((bytes - offset) as usize);
        let piece = &mut buffer[..length];
        let whole = read(piece, offset);
        let first = offset / SECTOR as u64;
        let found: Vec<_> = (first..)
            .zip(piece.chunks_exact_mut(SECTOR))
            .map(|(number, sector)| {
                let good = whole || read(sector, number * SECTOR as u64);
                good.then(|| pattern::version_of(sector, number)).flatten()
            })
            .collect();
        losses.extend(expected.compare(first, &found));
    }
    expected.decided();
    losses
}

#[cfg(test)]
mod tests {
    //! Goal: the demo's verifier sees every loss there can be, and takes an
    //! undecided write for none.  Method: a disk in memory, written as the log
    //! says, then damaged.

    use super::*;

    const SECTORS: u64 = 4096;

    struct Disk(Vec<u8>);

    impl Disk {
        fn write(&mut self, op: &Op) {
            let mut data = Vec::new();
            op.fill(&mut data);
            self.0[op.first as usize * SECTOR..][..data.len()].copy_from_slice(&data);
        }

        fn compare(&self, expected: &mut Expected) -> Vec<Loss> {
            compare_all(expected, |buffer, offset| {
                buffer.copy_from_slice(&self.0[offset as usize..][..buffer.len()]);
                true
            })
        }
    }

    fn entry(thread: u64, number: u64) -> Vec<u8> {
        [thread.to_le_bytes(), number.to_le_bytes()].concat()
    }

    fn written(writes: u64) -> (Disk, Expected) {
        let mut disk = Disk(vec![0; SECTORS as usize * SECTOR]);
        let mut expected = Expected::new(1, SECTORS);
        let mut log = Vec::new();
        for number in 1..=writes {
            for thread in 0..THREADS {
                disk.write(&expected.op(thread, number));
                log.extend(entry(thread as u64, number));
            }
        }
        expected.take_log(&log).unwrap();
        (disk, expected)
    }

    #[test]
    fn all_there_is_no_loss() {
        let (disk, mut expected) = written(500);
        assert_eq!(disk.compare(&mut expected), []);
        assert_eq!(expected.acknowledged(), 1000);
    }

    #[test]
    fn each_acknowledged_write_that_is_undone_is_seen() {
        for number in [1, 250, 500] {
            let (mut disk, mut expected) = written(500);
            let op = expected.op(1, number);
            let current = expected.sectors(&op).contains(&number);
            disk.0[op.first as usize * SECTOR..][..op.count as usize * SECTOR].fill(0);
            let losses = disk.compare(&mut expected);
            assert!(!losses.is_empty(), "{number}");
            assert!(!current || losses.iter().any(|l| l.expected == number));
            assert!(writes_lost(&losses) > 0);
        }
    }

    #[test]
    fn one_flipped_bit_is_seen() {
        let (mut disk, mut expected) = written(500);
        let op = expected.op(0, 500);
        disk.0[op.first as usize * SECTOR + 300] ^= 4;
        let losses = disk.compare(&mut expected);
        assert_eq!((losses.len(), losses[0].found), (1, None));
    }

    #[test]
    fn an_undecided_write_may_be_there_in_part_and_then_stays() {
        let (mut disk, mut expected) = written(500);
        let op = expected.op(0, 501);
        let before = disk.0.clone();
        disk.write(&op);
        assert_eq!(disk.compare(&mut expected), []);
        disk.0 = before;
        let losses = disk.compare(&mut expected);
        assert_eq!(losses.len() as u64, op.count, "it was there and is gone");
    }

    #[test]
    fn a_write_that_nobody_asked_for_is_seen() {
        let (mut disk, mut expected) = written(500);
        disk.write(&expected.op(0, 502));
        assert!(!disk.compare(&mut expected).is_empty());
    }

    #[test]
    fn a_log_out_of_order_is_refused() {
        let mut expected = Expected::new(1, SECTORS);
        assert!(expected.take_log(&entry(0, 2)).is_err());
        assert!(expected.take_log(&entry(9, 1)).is_err());
        assert!(expected.take_log(&entry(0, 1)[..15]).is_err());
    }
}
