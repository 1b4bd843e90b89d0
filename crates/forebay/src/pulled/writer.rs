// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes step by step, and tells the receiver of each before the next, until the disk is gone.
//!
//! A writer that ends in any other way says so, to the receiver and in the disk's first block:
//! else a cut that comes later, when everything is long on the disk, would count as a test.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::block;
use super::journal::{slot_of, RunEnd};
use super::run::{Modes, PullMode, Run, BLOCKS_LEAST, BLOCKS_MOST, UNIT_MOST};
use super::wire::Link;
use crate::engine::Memory;
use crate::error::{Error, Result};
use crate::mark::now;
use crate::medium::{Claim, MediumFacts, Target, Used};
use crate::overwrite::Overwrite;
use crate::report::{human_bytes, Uuid};

/// Bytes written at once when the disk is filled.
const FILL: usize = 1 << 20;
/// The bytes of a run, if the caller asks for no other size.
const DEFAULT_BYTES: u64 = 1 << 30;
/// The place in the first block where a writer that could still do so has written how it ended.
pub(super) const END_MARK_AT: usize = 512;
/// A step that takes longer is not told: the disk may have lost power and come back, and the
/// kernel may have reset it and tried again.
const STALL: Duration = Duration::from_secs(3);
/// The end of a disk where some file systems and RAIDs have what they need.
const TAIL: u64 = 1 << 20;
/// The longest write of a step, in blocks.
const WRITE_MOST: usize = 16;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct PullOptions {
    pub modes: Modes,
    /// Bytes of the disk that are used, from its start on; `None`: 1 GiB, or all of it.
    pub size_bytes: Option<u64>,
    pub most: Duration,
    /// The content of the disk may be destroyed.
    pub overwrite: Option<Overwrite>,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct PullProgress {
    /// Blocks that were looked at for content, of how many.
    pub looked: u64,
    /// Blocks that are filled before the first step, of how many.
    pub filled: u64,
    pub blocks: u64,
    pub steps: u64,
    pub mode: PullMode,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PullEnd {
    pub run: Run,
    /// Steps that the receiver has.
    pub steps: u64,
    pub end: RunEnd,
    /// The disk's error, if it failed.
    pub disk_error: Option<String>,
    /// The receiver has heard how it ended.
    pub told: bool,
    pub round_trip_us: u64,
    /// Written past the page cache.
    pub direct: bool,
}

/// Writes until the power goes, the disk fails, the time is over, or `go_on` says no.
pub fn write_until_cut(
    path: &Path,
    server: &str,
    o: &PullOptions,
    go_on: &mut dyn FnMut(PullProgress) -> bool,
) -> Result<PullEnd> {
    let facts = MediumFacts::of(path)?;
    // The test writes anywhere, which a zoned disk does not take; everything else is what it is for.
    if let Some(r) =
        facts.refusals().into_iter().find(|r| ["zoned", "swap", "in-use"].contains(&&*r.name))
    {
        let path = path.into();
        return Err(match r.name.as_str() {
            "zoned" => Error::Unsupported { path, cause: r.cause, way_out: r.way_out },
            _ => Error::Busy { path, holder: None, way_out: format!("{}: {}", r.cause, r.way_out) },
        });
    }
    let target = Target::open(path, Claim::Write)?;
    let overwrites = o.overwrite.as_ref().is_some_and(|looked| looked.path() == path);
    let held = |found| Error::HoldsData {
        path: path.into(),
        found,
        way_out: "If that may be destroyed: --overwrite".into(),
    };
    if let Some(found) = target.found()?.filter(|_| !overwrites) {
        return Err(held(found));
    }
    let mut run = new_run(&facts, &target, o)?;
    // A look at some places is enough to name what is there, and not to say that nothing is.
    let used = first_used(&target, &run, &mut |looked| {
        let mode = PullMode::Flush;
        go_on(PullProgress { looked, filled: 0, blocks: run.blocks, steps: 0, mode })
    })?;
    run.blank = match used {
        Used::Nowhere => true,
        Used::At(_) if overwrites => false,
        Used::At(byte) => return Err(held(format!("data of unknown kind (at byte {byte})"))),
        Used::Stopped => {
            return Ok(PullEnd {
                run,
                steps: 0,
                end: RunEnd::Uncut,
                disk_error: None,
                told: false,
                round_trip_us: 0,
                direct: target.is_direct(),
            })
        }
    };
    // First of all the receiver: without it nothing is destroyed.
    let mut link = Link::open(server)?;
    link.begin(&run)?;
    let mut writer = Writer::new(&target, &run)?;
    let ended = writer.fill_and_step(&mut link, o.most, go_on);
    match ended {
        Ok((steps, end, disk_error)) => {
            let told = link.tell_end(&run, end).is_ok();
            if end != RunEnd::DiskFailed {
                writer.mark(end);
            }
            Ok(PullEnd {
                steps,
                end,
                disk_error: disk_error.map(|e| e.to_string()),
                told,
                round_trip_us: link.round_trip_us().into(),
                direct: target.is_direct(),
                run,
            })
        }
        Err(e) => {
            // The receiver may be away: the disk, if it has power, has it too.
            writer.mark(RunEnd::Uncut);
            if !matches!(e, Error::NoReceiver { .. }) {
                let _ = link.tell_end(&run, RunEnd::Uncut);
            }
            Err(e)
        }
    }
}

/// The steps that the receiver has, and how it ended.
type Ended = (u64, RunEnd, Option<io::Error>);

/// The first byte that is not zero: where the run will write, and at the end of the disk.
fn first_used(target: &Target, run: &Run, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Used> {
    let mut memory = target.buffer(FILL)?;
    let size = target.size_bytes() / 4096 * 4096;
    let tail = size.saturating_sub(TAIL).max(run.end());
    for range in [0..run.end(), tail..size] {
        let mut on = |at: u64| go_on(at.min(run.end()) / u64::from(run.unit_bytes));
        match target.first_used(range, memory.bytes_mut(), &mut on)? {
            Used::Nowhere => {}
            found => return Ok(found),
        }
    }
    Ok(Used::Nowhere)
}

/// An error that a disk without power can cause.  Others, such as a full file system, say
/// nothing of its power.
fn is_of_a_cut(e: &io::Error) -> bool {
    let known = [
        Errno::IO,
        Errno::NODEV,
        Errno::NXIO,
        Errno::TIMEDOUT,
        Errno::NOLINK,
        Errno::REMOTEIO,
        Errno::SHUTDOWN,
        Errno::NOTCONN,
        Errno::CONNABORTED,
    ];
    e.raw_os_error().is_some_and(|e| known.iter().any(|known| known.raw_os_error() == e))
}

fn new_run(facts: &MediumFacts, target: &Target, o: &PullOptions) -> Result<Run> {
    let unit = u64::from(facts.unit_bytes);
    if !facts.unit_bytes.is_power_of_two() || facts.unit_bytes > UNIT_MOST {
        return Err(Error::Unsupported {
            path: target.path().into(),
            cause: format!("its physical block has {} bytes", facts.unit_bytes),
            way_out: format!(
                "the test takes disks with a power of two up to {} bytes: name a disk below it",
                UNIT_MOST
            ),
        });
    }
    let size = o.size_bytes.unwrap_or(DEFAULT_BYTES).min(target.size_bytes());
    let blocks = (size / unit).saturating_sub(1);
    if o.size_bytes.is_some_and(|asked| asked > target.size_bytes()) {
        return Err(Error::usage(
            format!("{} has {}", target.path().display(), human_bytes(target.size_bytes())),
            "ask for less (--size)",
        ));
    }
    if !(BLOCKS_LEAST..=BLOCKS_MOST).contains(&blocks) {
        return Err(Error::usage(
            format!("a run of {} is not possible", human_bytes(size)),
            format!(
                "use {} to {} (--size)",
                human_bytes((BLOCKS_LEAST + 1) * unit),
                human_bytes((BLOCKS_MOST + 1) * unit)
            ),
        ));
    }
    let seed = Uuid::random()?;
    let device = facts.device.as_ref();
    let words = [
        Some(facts.path.display().to_string()),
        device.and_then(|d| d.model.clone()),
        device.and_then(|d| d.serial.clone()),
    ];
    Ok(Run {
        uuid: Uuid::random()?,
        unit_bytes: facts.unit_bytes,
        first_byte: unit,
        blocks,
        modes: o.modes,
        seed: u64::from_le_bytes(seed.0[8..].try_into().expect("8 bytes")),
        boot: this_boot(),
        started: now(),
        device: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
        disk: target.identity(),
        fua_is: target.fua_way(facts),
        blank: false,
    })
}

/// The kernel's number of this start of the system; zero if it does not say.
pub(super) fn this_boot() -> Uuid {
    let said = crate::procfs::text("/proc/sys/kernel/random/boot_id").ok();
    said.and_then(|said| said.trim().parse().ok()).unwrap_or(Uuid([0; 16]))
}

struct Writer<'t> {
    target: &'t Target,
    run: &'t Run,
    buffer: Memory,
}

impl<'t> Writer<'t> {
    fn new(target: &'t Target, run: &'t Run) -> Result<Writer<'t>> {
        let bytes = FILL.max(WRITE_MOST * run.unit_bytes as usize);
        Ok(Writer { target, run, buffer: target.buffer(bytes)? })
    }

    /// Fills the disk, then step by step.  An error is none of the disk.
    fn fill_and_step(
        &mut self,
        link: &mut Link,
        most: Duration,
        go_on: &mut dyn FnMut(PullProgress) -> bool,
    ) -> Result<Ended> {
        let run = self.run;
        if !self.fill(go_on)? {
            return Ok((0, RunEnd::Uncut, None));
        }
        let started = Instant::now();
        let mut steps = 0;
        loop {
            let progress = PullProgress {
                looked: run.blocks,
                filled: run.blocks,
                blocks: run.blocks,
                steps,
                mode: run.mode(steps + 1),
            };
            if started.elapsed() >= most || !go_on(progress) {
                return Ok((steps, RunEnd::Uncut, None));
            }
            let began = Instant::now();
            match self.step(steps + 1) {
                Ok(()) if began.elapsed() > STALL => return Ok((steps, RunEnd::Stalled, None)),
                Ok(()) => {}
                Err(e) if is_of_a_cut(&e) => return Ok((steps, RunEnd::DiskFailed, Some(e))),
                Err(e) => return Err(Error::system(self.target.path(), "writing to it", e)),
            }
            link.tell(run, steps + 1)?;
            steps += 1;
        }
    }

    /// The first block: the parameters, and how the writer ended.
    fn first(&mut self, end: Option<RunEnd>) -> io::Result<()> {
        let (run, target) = (self.run, self.target);
        let first = &mut self.buffer.bytes_mut()[..run.unit_bytes as usize];
        first.fill(0);
        let parameters = run.encode();
        first[..parameters.len()].copy_from_slice(&parameters);
        if let Some(end) = end {
            let slot = slot_of(run, end.number(), 0);
            first[END_MARK_AT..END_MARK_AT + slot.len()].copy_from_slice(&slot);
        }
        target.write(first, 0).and_then(|()| target.flush())
    }

    /// For a verification that the receiver can tell nothing of it.
    fn mark(&mut self, end: RunEnd) {
        // A disk that has lost power meanwhile does not take it, and then it is not true.
        let _ = self.first(Some(end));
    }

    /// The content of blocks of a step, in the buffer.
    fn content(&mut self, block: u64, blocks: u64, step: u64) -> &[u8] {
        let unit = self.run.unit_bytes as usize;
        let bytes = &mut self.buffer.bytes_mut()[..blocks as usize * unit];
        for (i, to) in bytes.chunks_exact_mut(unit).enumerate() {
            block::write(self.run, block + i as u64, step, to);
        }
        bytes
    }

    /// Step 0: the parameters, and each block once; `false`: it is not to go on.
    fn fill(&mut self, go_on: &mut dyn FnMut(PullProgress) -> bool) -> Result<bool> {
        let (run, target) = (self.run, self.target);
        let failed = |e: io::Error| Error::system(target.path(), "writing to it", e);
        let piece = FILL as u64 / u64::from(run.unit_bytes);
        let mut at = 0;
        while at < run.blocks {
            let blocks = piece.min(run.blocks - at);
            target.write(self.content(at, blocks, 0), run.byte(at)).map_err(failed)?;
            at += blocks;
            let mode = PullMode::Flush;
            let looked = run.blocks;
            if !go_on(PullProgress { looked, filled: at, blocks: run.blocks, steps: 0, mode }) {
                return Ok(false);
            }
        }
        self.first(None).map_err(failed)?;
        Ok(true)
    }

    /// Durable when it returns.
    fn step(&mut self, step: u64) -> io::Result<()> {
        let (run, target) = (self.run, self.target);
        let mode = run.mode(step);
        let mut done = Ok(());
        run.writes(step, |w| {
            if done.is_ok() {
                let content = self.content(w.block, w.blocks, step);
                let at = run.byte(w.block);
                done = match mode {
                    PullMode::Fua => target.write_durable(content, at),
                    PullMode::Flush => target.write(content, at),
                };
            }
        });
        match mode {
            PullMode::Flush => done.and_then(|()| target.flush()),
            PullMode::Fua => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_a_cut_can_cause_are_one() {
        for (cut, errno) in [
            (true, Errno::IO),
            (true, Errno::NODEV),
            (true, Errno::NXIO),
            (false, Errno::NOSPC),
            (false, Errno::INVAL),
            (false, Errno::NOMEM),
            (false, Errno::FBIG),
        ] {
            assert_eq!(is_of_a_cut(&errno.into()), cut, "{errno}");
        }
        assert!(!is_of_a_cut(&io::ErrorKind::WriteZero.into()));
    }

    /// Disks whose physical block no run has are refused before anything is written.
    #[test]
    fn a_physical_block_that_no_run_has_is_refused() {
        let path = forebay_test::memory().join(format!("fby-unit-{}", std::process::id()));
        std::fs::write(&path, vec![0; 16 << 20]).unwrap();
        let mut facts = MediumFacts::of(&path).unwrap();
        let target = Target::open(&path, Claim::Write).unwrap();
        std::fs::remove_file(&path).unwrap();
        let options = PullOptions {
            modes: Modes::Both,
            size_bytes: None,
            most: Duration::ZERO,
            overwrite: None,
        };
        for (unit, good) in
            [(4096, true), (16384, true), (65536, true), (12288, false), (131_072, false)]
        {
            facts.unit_bytes = unit;
            let run = new_run(&facts, &target, &options);
            match good {
                true => assert!(Run::decode(&run.unwrap().encode()).is_some(), "{unit}"),
                false => assert_eq!(run.unwrap_err().exit_code(), 10, "{unit}"),
            }
        }
    }

    /// Each place that the run writes to, and the end of the disk, is looked at.
    #[test]
    fn content_anywhere_that_is_written_is_found() {
        use std::os::unix::fs::FileExt;
        let path = forebay_test::memory().join(format!("fby-used-{}", std::process::id()));
        let size = 12u64 << 20;
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let target = Target::open(&path, Claim::Read).unwrap();
        std::fs::remove_file(&path).unwrap();
        let run = Run { blocks: 511, ..super::super::run::tests::run(64, Modes::Both) };
        assert_eq!(run.end(), 2 << 20);
        let used = || match first_used(&target, &run, &mut |_| true).unwrap() {
            Used::At(at) => Some(at),
            _ => None,
        };
        assert_eq!(used(), None);
        for (at, is_found) in [
            (0, true),
            (5000, true),
            ((1 << 20) + 600, true),
            ((2 << 20) - 1, true),
            (6 << 20, false),
            (size - (1 << 20), true),
            (size - 1, true),
        ] {
            file.write_all_at(&[1], at).unwrap();
            assert_eq!(used(), is_found.then_some(at), "{at}");
            file.write_all_at(&[0], at).unwrap();
        }
        assert!(matches!(first_used(&target, &run, &mut |_| false), Ok(Used::Stopped)));
    }
}
