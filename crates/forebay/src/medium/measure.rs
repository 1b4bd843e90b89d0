// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long durable writes take: each way in turns, so that what else the machine does meets
//! all of them.
//!
//! A file system is measured in a nameless temporary file.  A device is measured only if the
//! caller says that it may be written and nothing is found on it; the region that is written is
//! zeroed again.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::facts::{MediumFacts, Place};
use super::target::{Claim, FuaWay, Target, Used};
use crate::engine::Memory;
use crate::error::{Error, Result};

/// Bytes that are written again and again.
const REGION: u64 = 16 << 20;
/// The start of a disk is where partition tables lie.
const REGION_AT: u64 = 1 << 20;
const LARGE: usize = 64 << 10;
const SIZES: [usize; 2] = [4 << 10, LARGE];

/// A way to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Not durable yet: the time is for comparison.
    Write,
    /// A write that is durable when it ends: FUA where the device has it.
    Fua,
    /// A write, and then a flush.
    Flush,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Write, Way::Fua, Way::Flush];
}

/// Times of one way, for one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    pub way: Way,
    pub bytes: u32,
    pub samples: u32,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub timings: Vec<Timing>,
    /// The requests that a write with FUA became at the device.
    pub fua_is: FuaWay,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// The time was over before there were enough samples.
    pub cut_short: bool,
}

impl Measured {
    /// The median for a way and a size.
    pub fn p50_ns(&self, way: Way, bytes: usize) -> Option<u64> {
        let timing = |t: &&Timing| t.way == way && t.bytes as usize == bytes;
        self.timings.iter().find(timing).map(|t| t.p50_ns)
    }

    /// The faster of the two durable ways, at 4 KiB.
    pub fn durable_ns(&self) -> Option<u64> {
        let of = |way| self.p50_ns(way, SIZES[0]);
        Some(of(Way::Fua)?.min(of(Way::Flush)?))
    }
}

/// Bounds of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct MeasureLimits {
    /// Samples of each way and size.
    pub samples: u32,
    pub most: Duration,
    /// A device may be written.
    pub write_device: bool,
}

impl Default for MeasureLimits {
    fn default() -> Self {
        MeasureLimits { samples: 200, most: Duration::from_secs(10), write_device: false }
    }
}

/// Times the ways to write on a medium; `stop` ends it early.
pub fn measure(
    facts: &MediumFacts,
    limits: &MeasureLimits,
    stop: &dyn Fn() -> bool,
) -> Result<Measured> {
    match facts.place {
        Place::BlockDevice => measure_device(facts, limits, stop),
        Place::File | Place::NewFile => {
            let directory = facts.directory();
            let target = Target::nameless(&directory)?;
            // A file of another file system can be mounted on a name of this one.
            let of_file = match facts.place {
                Place::File => Some(rustix::fs::stat(&facts.path)),
                _ => None,
            };
            let system = |e| Error::system(&facts.path, "looking at it", e);
            if let Some(st) = of_file.transpose().map_err(|e| system(e.into()))? {
                if st.st_dev != target.file_system().map_err(system)? {
                    return Err(Error::Unsupported {
                        path: facts.path.clone(),
                        cause: format!("it is of another file system than its directory {}", directory.display()),
                        way_out: "measure a directory of its own file system, or leave that out (--no-measure)".into(),
                    });
                }
            }
            Run::new(&target, 0, REGION)?.measure(facts, limits, stop)
        }
    }
}

fn measure_device(
    facts: &MediumFacts,
    limits: &MeasureLimits,
    stop: &dyn Fn() -> bool,
) -> Result<Measured> {
    let path = &facts.path;
    if !limits.write_device {
        return Err(Error::usage(
            format!("{}: a device is measured by writing to it", path.display()),
            "allow that with --write; it is refused if anything is found there",
        ));
    }
    let target = Target::open(path, Claim::Write)?;
    let (at, len) = region(target.size_bytes()).ok_or_else(|| Error::Unsuitable {
        path: path.into(),
        what: "too small to be measured".into(),
        way_out: "name a device of at least 1 MiB".into(),
    })?;
    let held = |found| Error::HoldsData {
        path: path.into(),
        found,
        way_out: "name an empty partition, or a directory of its file system".into(),
    };
    if let Some(found) = target.found()? {
        return Err(held(found));
    }
    let mut run = Run::new(&target, at, len)?;
    let used = target.first_used(at..at + len, run.buffer.bytes_mut(), &mut |_| true)?;
    if let Used::At(byte) = used {
        return Err(held(format!("data of unknown kind (at byte {byte})")));
    }
    let measured = run.measure(facts, limits, stop);
    let zeroed = run.fill(false);
    let measured = measured?;
    zeroed?;
    Ok(measured)
}

/// The part of a device of this size that is written, from a byte on.
fn region(size: u64) -> Option<(u64, u64)> {
    let large = LARGE as u64;
    let at = if size >= 2 * REGION_AT { REGION_AT } else { 0 };
    let len = REGION.min(size - at) / large * large;
    (len >= 8 * large).then_some((at, len))
}

struct Run<'t> {
    target: &'t Target,
    at: u64,
    len: u64,
    buffer: Memory,
}

impl<'t> Run<'t> {
    fn new(target: &'t Target, at: u64, len: u64) -> Result<Run<'t>> {
        Ok(Run { target, at, len, buffer: target.buffer(LARGE)? })
    }

    fn failed(&self, doing: &'static str) -> impl Fn(io::Error) -> Error + '_ {
        move |e| Error::system(self.target.path(), doing, e)
    }

    /// Writes all of the region and flushes: bytes that nothing compresses, or zeroes.
    fn fill(&mut self, random: bool) -> Result<()> {
        let mut seed = self.at + 1;
        self.buffer.bytes_mut().fill(0);
        for at in (self.at..self.at + self.len).step_by(LARGE) {
            if random {
                fill_random(self.buffer.bytes_mut(), &mut seed);
            }
            let written = self.target.write(self.buffer.bytes_mut(), at);
            written.map_err(self.failed("writing to it"))?;
        }
        self.target.flush().map_err(self.failed("flushing it"))
    }

    /// Each round has one write of each size and way.
    fn measure(
        &mut self,
        facts: &MediumFacts,
        limits: &MeasureLimits,
        stop: &dyn Fn() -> bool,
    ) -> Result<Measured> {
        // Blocks that were never written take longer, once.
        self.fill(true)?;
        let started = Instant::now();
        let mut times: Vec<Vec<u64>> = vec![Vec::new(); SIZES.len() * Way::ALL.len()];
        let (mut next, mut seed) = (0, 7);
        let over = |n: u32| n > 0 && (started.elapsed() >= limits.most || stop());
        let mut rounds = 0;
        while rounds < limits.samples && !over(rounds) {
            for (i, times) in times.iter_mut().enumerate() {
                let (bytes, way) = (SIZES[i / Way::ALL.len()], Way::ALL[i % Way::ALL.len()]);
                fill_random(&mut self.buffer.bytes_mut()[..512], &mut seed);
                let at = self.at + next;
                next = (next + LARGE as u64) % self.len;
                let took = self.one(way, bytes, at).map_err(self.failed("writing to it"))?;
                times.push(took);
            }
            rounds += 1;
        }
        let timing = |(i, times): (usize, &mut Vec<u64>)| {
            times.sort_unstable();
            let of_100 = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
            Timing {
                way: Way::ALL[i % Way::ALL.len()],
                bytes: SIZES[i / Way::ALL.len()] as u32,
                samples: times.len() as u32,
                p50_ns: of_100(50),
                p99_ns: of_100(99),
            }
        };
        Ok(Measured {
            fua_is: self.target.fua_way(facts),
            direct: self.target.is_direct(),
            cut_short: rounds < limits.samples,
            timings: if rounds == 0 {
                vec![]
            } else {
                times.iter_mut().enumerate().map(timing).collect()
            },
        })
    }

    fn one(&mut self, way: Way, bytes: usize, at: u64) -> io::Result<u64> {
        let data = &self.buffer.bytes_mut()[..bytes];
        let began = Instant::now();
        match way {
            Way::Write => self.target.write(data, at)?,
            Way::Fua => self.target.write_durable(data, at)?,
            Way::Flush => {
                self.target.write(data, at)?;
                self.target.flush()?;
            }
        }
        let took = began.elapsed();
        if way == Way::Write {
            // The next one does not pay for this one.
            self.target.flush()?;
        }
        Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Bytes that no drive compresses.
pub(crate) fn fill_random(to: &mut [u8], seed: &mut u64) {
    for word in to.chunks_mut(8) {
        let next = mixed(seed).to_le_bytes();
        word.copy_from_slice(&next[..word.len()]);
    }
}

/// The next number of a sequence (splitmix64).
pub(crate) fn mixed(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *seed;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_directory_is_measured_in_a_file_without_a_name() {
        let dir = std::env::temp_dir().join(format!("fby-measure-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let facts = MediumFacts::of(&dir.join("pool")).unwrap();
        assert_eq!(facts.place, Place::NewFile);
        let limits = MeasureLimits { samples: 3, ..Default::default() };
        let measured = measure(&facts, &limits, &|| false);
        let left = std::fs::read_dir(&dir).unwrap().count();
        std::fs::remove_dir(&dir).unwrap();
        let measured = match measured {
            Err(Error::Unsupported { .. }) => {
                return forebay_test::skipped!("no nameless files in the temporary directory")
            }
            measured => measured.unwrap(),
        };
        assert_eq!(left, 0);
        assert_eq!(measured.timings.len(), 6);
        assert!(measured
            .timings
            .iter()
            .all(|t| t.samples == 3 && 0 < t.p50_ns && t.p50_ns <= t.p99_ns));
        assert!(measured.durable_ns().is_some() && !measured.cut_short);
    }

    #[test]
    fn a_measurement_ends_in_time() {
        let facts = MediumFacts::of(Path::new("/dev/shm")).unwrap();
        for (most, stop) in [(Duration::ZERO, false), (Duration::from_secs(60), true)] {
            let limits = MeasureLimits { most, ..Default::default() };
            let measured = measure(&facts, &limits, &|| stop).unwrap();
            assert!(measured.cut_short && measured.timings.iter().all(|t| t.samples == 1));
        }
    }

    #[test]
    fn the_region_of_a_device_lies_within_it() {
        for size in [512 << 10, (1 << 20) + 512, 2 << 20, (3 << 20) + 4096, 17 << 20, 1 << 40] {
            let (at, len) = region(size).unwrap();
            assert!(len >= 512 << 10 && len % LARGE as u64 == 0 && at + len <= size, "{size}");
        }
        assert_eq!(region(0), None);
        assert_eq!(region((512 << 10) - 1), None);
    }
}
