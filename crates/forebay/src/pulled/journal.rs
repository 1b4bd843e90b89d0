// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the receiver keeps of a run: its parameters and the number of its last step.
//!
//! ```text
//! 0     parameters (256 bytes)
//! 512   a step, its CRC     even steps
//! 1024  a step, its CRC     odd steps
//! 1536  END, its CRC        once the writer has ended without a cut
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_engine::sys::crc32c;
use serde::{Deserialize, Serialize};

use super::run::{Run, RUN_BYTES};
use crate::error::{Error, Result};

pub(super) const SLOT_BYTES: usize = 16;
const SLOTS_AT: [u64; 2] = [512, 1024];
const END_AT: u64 = 1536;
const FILE_BYTES: usize = END_AT as usize + SLOT_BYTES;
/// Told instead of a step by a writer that ends because nobody cuts the power.
pub(super) const END: u64 = u64::MAX;

/// The record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    pub run: Run,
    /// The last step that was acknowledged; 0: none was.
    pub steps: u64,
    /// The writer has ended by itself: its disk had power all the time.
    pub uncut: bool,
}

impl Journal {
    /// A receiver's file.
    pub fn read(path: &Path) -> Result<Journal> {
        let file = File::open(path).map_err(|e| Error::system(path, "opening it", e))?;
        Journal::of(file).map_err(|e| Error::system(path, "reading it", e))?.ok_or_else(|| {
            Error::Damaged {
                path: path.into(),
                cause: "it is no record of a run of forebay media-test, or it is damaged".into(),
                way_out: "name the receiver's file of the run, or ask the receiver (--server)"
                    .into(),
            }
        })
    }

    pub(super) fn of(file: File) -> io::Result<Option<Journal>> {
        let mut bytes = Vec::new();
        file.take(FILE_BYTES as u64).read_to_end(&mut bytes)?;
        let Some(run) = Run::decode(&bytes) else { return Ok(None) };
        let at = |at: u64| {
            let slot = bytes.get(at as usize..)?.get(..SLOT_BYTES)?;
            step_of(&run, slot.try_into().ok()?)
        };
        let steps = SLOTS_AT.into_iter().filter_map(at).max().unwrap_or(0);
        let uncut = at(END_AT) == Some(END);
        Ok(Some(Journal { run, steps, uncut }))
    }

    pub(super) fn begin(file: &File, run: &Run) -> io::Result<()> {
        file.write_all_at(&run.encode(), 0)?;
        debug_assert!(RUN_BYTES as u64 <= SLOTS_AT[0]);
        file.sync_all()
    }

    /// Replaces the step before the last one; the end has a place of its own.
    pub(super) fn note(file: &File, run: &Run, step: u64) -> io::Result<()> {
        let at = if step == END { END_AT } else { SLOTS_AT[(step % 2) as usize] };
        file.write_all_at(&slot_of(run, step), at)
    }
}

/// A step with its check, as it is sent and kept.
pub(super) fn slot_of(run: &Run, step: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&step.to_le_bytes());
    let crc = crc32c(crc32c(0, &run.uuid.0), &slot[..8]);
    slot[8..12].copy_from_slice(&crc.to_le_bytes());
    slot
}

pub(super) fn step_of(run: &Run, slot: [u8; SLOT_BYTES]) -> Option<u64> {
    let step = u64::from_le_bytes(slot[..8].try_into().ok()?);
    (slot == slot_of(run, step) && step > 0).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::super::run::Modes;
    use super::*;

    fn file() -> File {
        let fd = rustix::fs::memfd_create("journal", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(fd)
    }

    fn again(file: &File) -> File {
        use std::os::fd::AsRawFd;
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
    }

    #[test]
    fn the_last_step_counts_and_a_torn_one_does_not() {
        let (file, run) = (file(), run(64, Modes::Both));
        Journal::begin(&file, &run).unwrap();
        let read = || Journal::of(again(&file)).unwrap().unwrap().steps;
        assert_eq!(read(), 0);
        for step in 1..10 {
            Journal::note(&file, &run, step).unwrap();
            assert_eq!(read(), step);
        }
        file.write_all_at(&[0xff; 3], 1024 + 2).unwrap();
        assert_eq!(read(), 8);
        let uncut = || Journal::of(again(&file)).unwrap().unwrap().uncut;
        assert!(!uncut());
        Journal::note(&file, &run, END).unwrap();
        assert!(uncut() && read() == 8);
    }

    #[test]
    fn another_file_is_no_record() {
        for bytes in [&b""[..], b"FBYPULL1", &[0; 4096], &[0xff; 4096]] {
            let file = file();
            file.write_all_at(bytes, 0).unwrap();
            assert_eq!(Journal::of(again(&file)).unwrap(), None);
        }
    }

    #[test]
    fn a_step_of_another_run_is_none() {
        let (own, other) = (run(64, Modes::Both), run(64, Modes::Both));
        let other = Run { uuid: crate::report::Uuid([9; 16]), ..other };
        assert_eq!(step_of(&own, slot_of(&own, 5)), Some(5));
        assert_eq!(step_of(&own, slot_of(&other, 5)), None);
        assert_eq!(step_of(&own, [0; SLOT_BYTES]), None);
    }
}
