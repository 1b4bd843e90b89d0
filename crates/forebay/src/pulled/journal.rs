// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver's record of a run: its parameters, the number of its last step, and how its
//! writer ended, if that is known.
//!
//! ```text
//! 0     parameters (256 bytes)
//! 512   a step, its CRC, the round trip     even steps
//! 1024  a step, its CRC, the round trip     odd steps
//! 1536  how the writer ended, its CRC       a number above all steps
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
/// No run has more steps.
pub(super) const STEPS_MOST: u64 = 1 << 48;
/// Sent from time to time, so that a long fill or a slow step is not taken for a cut.
pub(super) const ALIVE: u64 = u64::MAX - 3;

/// How a writer ended.  A machine that loses power says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunEnd {
    /// The writer ended by itself or was killed, and its disk had power.
    Uncut,
    /// The disk failed in the step after the last acknowledged one.
    DiskFailed,
    /// A step took so long that the disk may have lost power and come back within it.
    Stalled,
}

impl RunEnd {
    const ALL: [RunEnd; 3] = [RunEnd::Uncut, RunEnd::DiskFailed, RunEnd::Stalled];

    /// The number that is sent and kept instead of a step's.
    pub(super) fn number(self) -> u64 {
        match self {
            RunEnd::Uncut => u64::MAX,
            RunEnd::DiskFailed => u64::MAX - 1,
            RunEnd::Stalled => u64::MAX - 2,
        }
    }

    pub(super) fn of_number(number: u64) -> Option<RunEnd> {
        RunEnd::ALL.into_iter().find(|end| end.number() == number)
    }
}

/// The record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    pub run: Run,
    /// The last step that was acknowledged; 0: none was.
    pub steps: u64,
    /// How long the writer waited for the receiver, as it said with that step; 0: unknown.
    pub round_trip_us: u32,
    /// `None`: nothing was heard, as of a machine without power.
    pub end: Option<RunEnd>,
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
            read_slot(&run, slot.try_into().ok()?)
        };
        let is_step = |slot: &(u64, u32)| slot.0 <= STEPS_MOST;
        let last = SLOTS_AT.into_iter().filter_map(at).filter(is_step).max();
        let (steps, round_trip_us) = last.unwrap_or_default();
        let end = at(END_AT).and_then(|(number, _)| RunEnd::of_number(number));
        Ok(Some(Journal { run, steps, round_trip_us, end }))
    }

    pub(super) fn begin(file: &File, run: &Run) -> io::Result<()> {
        file.write_all_at(&run.encode(), 0)?;
        debug_assert!(RUN_BYTES as u64 <= SLOTS_AT[0]);
        file.sync_all()
    }

    /// Replaces the step before the last one.
    pub(super) fn note(file: &File, slot: [u8; SLOT_BYTES], step: u64) -> io::Result<()> {
        file.write_all_at(&slot, SLOTS_AT[(step % 2) as usize])
    }

    pub(super) fn note_end(file: &File, run: &Run, end: RunEnd) -> io::Result<()> {
        file.write_all_at(&slot_of(run, end.number(), 0), END_AT)
    }
}

/// A number with its check, as it is sent and kept: a step's, an end's, or [`ALIVE`].
pub(super) fn slot_of(run: &Run, number: u64, round_trip_us: u32) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&number.to_le_bytes());
    slot[12..].copy_from_slice(&round_trip_us.to_le_bytes());
    let of_run = crc32c(0, &run.uuid.0);
    let crc = crc32c(crc32c(of_run, &slot[..8]), &slot[12..]);
    slot[8..12].copy_from_slice(&crc.to_le_bytes());
    slot
}

/// The number and the round trip of a slot of this run.
pub(super) fn read_slot(run: &Run, slot: [u8; SLOT_BYTES]) -> Option<(u64, u32)> {
    let number = u64::from_le_bytes(slot[..8].try_into().ok()?);
    let round_trip_us = u32::from_le_bytes(slot[12..].try_into().ok()?);
    let known = (1..=STEPS_MOST).contains(&number) || number >= ALIVE;
    (known && slot == slot_of(run, number, round_trip_us)).then_some((number, round_trip_us))
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
            Journal::note(&file, slot_of(&run, step, 7), step).unwrap();
            assert_eq!(read(), step);
        }
        file.write_all_at(&[0xff; 3], 1024 + 2).unwrap();
        assert_eq!(read(), 8);
        let journal = || Journal::of(again(&file)).unwrap().unwrap();
        assert_eq!((journal().end, journal().round_trip_us), (None, 7));
        for end in RunEnd::ALL {
            Journal::note_end(&file, &run, end).unwrap();
            assert_eq!((journal().end, journal().steps), (Some(end), 8));
        }
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
        assert_eq!(read_slot(&own, slot_of(&own, 5, 9)), Some((5, 9)));
        assert_eq!(read_slot(&own, slot_of(&other, 5, 9)), None);
        assert_eq!(read_slot(&own, [0; SLOT_BYTES]), None);
        // No step has such a number, and one that is kept as a step's is none.
        for number in [0, STEPS_MOST + 1, ALIVE - 1] {
            assert_eq!(read_slot(&own, slot_of(&own, number, 0)), None);
        }
        let file = file();
        Journal::begin(&file, &own).unwrap();
        Journal::note(&file, slot_of(&own, u64::MAX, 0), 1).unwrap();
        assert_eq!(Journal::of(again(&file)).unwrap().unwrap().steps, 0);
    }
}
