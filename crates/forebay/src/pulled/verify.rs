// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the disk after the cut, and compares it with the record.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::check::{Check, PullReport};
use super::journal::Journal;
use super::run::Run;
use super::writer::this_boot;
use crate::engine::Memory;
use crate::error::{Error, Result};
use crate::medium::{Claim, Target};

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The parameters of the run that the first block of a disk has.
pub fn run_on(path: &Path) -> Result<Run> {
    let target = Target::open(path, Claim::Read)?;
    let mut memory = buffer(path)?;
    let page = &mut memory.bytes_mut()[..4096];
    let read = target.read(page, 0);
    let run = read.ok().and_then(|()| Run::decode(page));
    run.ok_or_else(|| Error::NotFound {
        path: path.into(),
        way_out: "its first block has no run of forebay media-test: name the run as the receiver does (--run), if there was one".into(),
    })
}

fn buffer(path: &Path) -> Result<Memory> {
    Memory::zeroed(PIECE).map_err(|e| Error::system(path, "allocating memory", e))
}

/// Compares the disk with the record.  `go_on` gets the number of blocks that were read, of how
/// many; if it says no, there is no report.
pub fn verify(
    path: &Path,
    journal: &Journal,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<PullReport>> {
    let target = Target::open(path, Claim::Read)?;
    let run = &journal.run;
    if target.size_bytes() < run.end() {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: format!("smaller than the disk of the run {} ({})", run.uuid, run.device),
            way_out: "name the disk that was written".into(),
        });
    }
    let mut memory = buffer(path)?;
    let mut check = Check::new(journal);
    let unit = run.unit_bytes as usize;
    let first = &mut memory.bytes_mut()[..unit];
    check.parameters(target.read(first, 0).is_ok() && Run::decode(first).as_ref() == Some(run));
    let mut at = 0;
    while at < run.blocks {
        if !go_on(at, run.blocks) {
            return Ok(None);
        }
        let blocks = ((PIECE / unit) as u64).min(run.blocks - at);
        let bytes = &mut memory.bytes_mut()[..blocks as usize * unit];
        let whole = read(&target, bytes, run.byte(at))?;
        for (block, bytes) in (at..).zip(bytes.chunks_exact_mut(unit)) {
            // One that cannot be read takes its neighbours with it: each alone.
            let good = whole || read(&target, bytes, run.byte(block))?;
            check.block(block, good.then_some(&*bytes));
        }
        at += blocks;
    }
    Ok(Some(check.end(run.boot == this_boot())))
}

/// Whether it can be read.  A disk that is gone is an error of the whole verification.
fn read(target: &Target, to: &mut [u8], at: u64) -> Result<bool> {
    match target.read(to, at) {
        Ok(()) => Ok(true),
        Err(e) if is_of_the_medium(&e) => Ok(false),
        Err(e) => Err(Error::system(target.path(), "reading it", e)),
    }
}

fn is_of_the_medium(e: &io::Error) -> bool {
    let known = [Errno::IO, Errno::NODATA, Errno::ILSEQ, Errno::BADMSG].map(|e| e.raw_os_error());
    e.raw_os_error().is_some_and(|e| known.contains(&e))
}
