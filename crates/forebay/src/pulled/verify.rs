// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the disk after the cut, and compares it with the record.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::check::{Check, DiskIs, First, PullReport, Seen};
use super::journal::{read_slot, Journal, RunEnd, SLOT_BYTES};
use super::run::Run;
use super::writer::{this_boot, END_MARK_AT};
use crate::error::{Error, Result};
use crate::media::RUN_MAGIC;
use crate::medium::{Claim, Target};
use crate::report::Uuid;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The parameters of the run that the first block of a disk has.
pub fn run_on(path: &Path) -> Result<Run> {
    let target = Target::open(path, Claim::Read)?;
    let mut memory = target.buffer(PIECE)?;
    let page = &mut memory.bytes_mut()[..4096];
    let read = target.read(page, 0);
    let run = read.ok().and_then(|()| Run::decode(page));
    run.ok_or_else(|| Error::NotFound {
        path: path.into(),
        way_out: "its first block has no run of forebay media-test: name the run as the receiver does (--run), if there was one".into(),
    })
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
    let size = target.size_bytes();
    if size < run.end() {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: format!("smaller than the disk of the run {} ({})", run.uuid, run.device),
            way_out: "name the disk that was written".into(),
        });
    }
    let mut memory = target.buffer(PIECE)?;
    let Some(mut check) = Check::new(journal, &mut || go_on(0, run.blocks)) else {
        return Ok(None);
    };
    let unit = run.unit_bytes as usize;
    let (first, end) = first_block(&target, run, &mut memory.bytes_mut()[..unit])?;
    let (mut at, mut readable, mut unreadable) = (0, None, None);
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
            match good {
                true => readable = Some(block),
                false => unreadable = Some(block),
            }
            check.block(block, good.then_some(&*bytes));
        }
        at += blocks;
    }
    if unreadable.is_some() {
        // Nothing of a disk that is gone can be read, not even blocks that were read before.
        let again = &mut memory.bytes_mut()[..unit];
        let there = match readable {
            Some(block) => Target::open(path, Claim::Read)
                .is_ok_and(|t| t.size_bytes() == size && t.read(again, run.byte(block)).is_ok()),
            None => false,
        };
        if !there {
            return Err(Error::Io {
                path: path.into(),
                doing: "reading it",
                source: Errno::IO.into(),
                way_out: "it does not answer any more, or nothing on it can be read: attach it again, and verify again".into(),
            });
        }
    }
    let boot = this_boot();
    let unknown = Uuid([0; 16]);
    Ok(Some(check.end(Seen {
        first,
        end,
        same_boot: run.boot == boot || run.boot == unknown || boot == unknown,
        direct: target.is_direct(),
        disk: match (run.disk, target.identity()) {
            (0, _) | (_, 0) => DiskIs::Unknown,
            (then, now) if then == now => DiskIs::Same,
            _ => DiskIs::Other,
        },
    })))
}

/// The block before the run's: its parameters, and how its writer ended, if it could say so.
fn first_block(target: &Target, run: &Run, to: &mut [u8]) -> Result<(First, Option<RunEnd>)> {
    if !read(target, to, 0)? {
        return Ok((First::Damaged, None));
    }
    let first = match Run::decode(to) {
        Some(found) if found == *run => First::Own,
        Some(found) if found.started >= run.started => First::Later,
        Some(_) => First::Earlier,
        None if to.iter().all(|b| *b == 0) => First::Old,
        None if !run.blank && !to.starts_with(RUN_MAGIC) => First::Old,
        None => First::Damaged,
    };
    let slot = to[END_MARK_AT..][..SLOT_BYTES].try_into().expect("16 bytes");
    let end = read_slot(run, slot).and_then(|(number, _)| RunEnd::of_number(number));
    Ok((first, end.filter(|_| first == First::Own)))
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
