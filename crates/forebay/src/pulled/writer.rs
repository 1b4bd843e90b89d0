// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes step by step, and tells the receiver of each before the next, until the disk is gone.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::block;
use super::journal::END;
use super::run::{Modes, PullMode, Run, BLOCKS_LEAST, BLOCKS_MOST};
use super::wire::Link;
use crate::engine::Memory;
use crate::error::{Error, Result};
use crate::medium::{Claim, MediumFacts, Target};
use crate::report::{human_bytes, Uuid};

/// Bytes written at once when the disk is filled.
const FILL: usize = 1 << 20;
/// Of a run, if nothing else is asked for.
const DEFAULT_BYTES: u64 = 1 << 30;
/// The longest write of a step, in blocks.
const WRITE_MOST: usize = 16;

/// What a run is to do.
#[derive(Clone, Copy, Debug)]
pub struct PullOptions {
    pub modes: Modes,
    /// Bytes of the disk that are used, from its start on; `None`: 1 GiB, or all of it.
    pub size_bytes: Option<u64>,
    pub most: Duration,
    /// What is on the disk may be destroyed.
    pub overwrite: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct PullProgress {
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
    /// The disk's error; `None`: the time was over, or it was told to stop.
    pub disk_error: Option<String>,
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
    if let Some(found) = target.found()?.filter(|_| !o.overwrite) {
        return Err(Error::HoldsData {
            path: path.into(),
            found,
            way_out: "If that may be destroyed: --overwrite".into(),
        });
    }
    let run = new_run(&facts, &target, o)?;
    // First of all the receiver: without it nothing is destroyed.
    let mut link = Link::open(server)?;
    link.begin(&run)?;
    let mut writer = Writer::new(&target, &run)?;
    if !writer.fill(go_on)? {
        return Ok(writer.end(0, None));
    }
    let started = Instant::now();
    let mut steps = 0;
    loop {
        let progress = PullProgress {
            filled: run.blocks,
            blocks: run.blocks,
            steps,
            mode: run.mode(steps + 1),
        };
        if started.elapsed() >= o.most || !go_on(progress) {
            link.tell(&run, END)?;
            return Ok(writer.end(steps, None));
        }
        if let Err(e) = writer.step(steps + 1) {
            return Ok(writer.end(steps, Some(e)));
        }
        link.tell(&run, steps + 1)?;
        steps += 1;
    }
}

fn new_run(facts: &MediumFacts, target: &Target, o: &PullOptions) -> Result<Run> {
    let unit = u64::from(facts.unit_bytes);
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
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
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
        started: since.as_secs(),
        device: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
    })
}

/// The kernel's number of this start of the system; zero if it does not say.
pub(super) fn this_boot() -> Uuid {
    let said = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
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
        let buffer = Memory::zeroed(bytes)
            .map_err(|e| Error::system(target.path(), "allocating memory", e))?;
        Ok(Writer { target, run, buffer })
    }

    fn end(&self, steps: u64, error: Option<io::Error>) -> PullEnd {
        PullEnd {
            run: self.run.clone(),
            steps,
            disk_error: error.map(|e| e.to_string()),
            direct: self.target.is_direct(),
        }
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
            if !go_on(PullProgress { filled: at, blocks: run.blocks, steps: 0, mode }) {
                return Ok(false);
            }
        }
        let first = &mut self.buffer.bytes_mut()[..run.unit_bytes as usize];
        first.fill(0);
        let parameters = run.encode();
        first[..parameters.len()].copy_from_slice(&parameters);
        target.write(first, 0).and_then(|()| target.flush()).map_err(failed)?;
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
