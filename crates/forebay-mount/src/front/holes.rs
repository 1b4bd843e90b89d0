// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEEK_DATA and SEEK_HOLE: the tree's answer, after the kernel has written back the pages that
//! it holds where the tree has nothing.
//!
//! The tree does not know the pages that a program has stored to through a mapping nor, with
//! `--write-back`, those that it has written.  A range counts as a hole only if the kernel has
//! written back its pages first.  Data of the tree is data whatever the kernel holds, so its
//! cached pages stay cached.
//!
//! Linux before 6.16 calls a page written back once its WRITE is queued, before the tree has
//! it.  No hole is certain there, so none is reported ([`kernel_waits`]).

use fuser::{INodeNo, ReplyLseek};
use rustix::io::Errno;

use super::terms::errno;
use crate::notified::Kernel;
use crate::tree::Result;

/// The number of looks at a file that others change meanwhile; then the whole rest is written
/// back.
const LOOKS: usize = 64;

/// The queries that make an answer.
pub(super) struct Seeker<A, W> {
    /// The next data, or with `true` the next hole, at or after an offset, in the tree.
    pub ask: A,
    /// Makes the kernel write back and drop its pages of [start, end); `None`: up to the end.
    pub write_back: W,
}

impl<A, W> Seeker<A, W>
where
    A: Fn(u64, bool) -> Result<u64>,
    W: Fn(u64, Option<u64>) -> Result<()>,
{
    pub fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        match hole {
            true => self.hole(offset),
            false => self.data(offset),
        }
    }

    /// The offset of the data after a hole; `None`: there is none.
    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match (self.ask)(offset, false) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn data(&self, offset: u64) -> Result<u64> {
        // The kernel holds nothing from the offset to here.
        let mut clean = Some(offset);
        for look in 0..=LOOKS {
            let found = self.next_data(offset)?;
            let is_known = match (clean, found) {
                (None, _) => true,
                (Some(clean), Some(found)) => found <= clean,
                (Some(_), None) => false,
            };
            if is_known {
                return found.ok_or(Errno::NXIO);
            }
            let end = found.filter(|_| look + 1 < LOOKS);
            (self.write_back)(offset, end)?;
            clean = end;
        }
        // Reporting data where there may be none is correct.
        Ok(offset)
    }

    fn hole(&self, offset: u64) -> Result<u64> {
        // The kernel holds nothing in this range.
        let mut clean = (offset, Some(offset));
        for look in 0..=LOOKS {
            let found = match (self.ask)(offset, true) {
                // The file ends before the offset, as far as the tree knows.
                Err(Errno::NXIO) if clean.1.is_some() => {
                    (self.write_back)(offset, None)?;
                    clean = (offset, None);
                    continue;
                }
                found => found?,
            };
            if clean.0 <= found && clean.1.is_none_or(|end| found < end) {
                return Ok(found);
            }
            let end = match look + 1 < LOOKS {
                true => self.next_data(found)?,
                false => None,
            };
            (self.write_back)(found, end)?;
            clean = (found, end);
        }
        (self.ask)(offset, true)
    }
}

/// Makes the kernel write back and drop its pages of [start, end) of a file.
pub(super) fn write_back(
    kernel: &Kernel,
    ino: INodeNo,
    start: u64,
    end: Option<u64>,
) -> Result<()> {
    let start = i64::try_from(start).map_err(|_| Errno::NXIO)?;
    // None: to the end of the file as the kernel knows it.
    let length = end.map_or(0, |end| i64::try_from(end).unwrap_or(i64::MAX) - start);
    kernel.write_back(ino, start, length).map_err(|_| Errno::IO)
}

/// Whether the kernel counts a page as written back only when the server has it.
pub(crate) fn kernel_waits() -> bool {
    waits_by_release(&rustix::system::uname().release().to_string_lossy())
}

/// Whether the release is Linux 6.16 or later.  An unknown release may be any.
fn waits_by_release(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (6, 16),
        _ => false,
    }
}

/// The answer without a request to the kernel: everything up to the end of the file is data.
/// `None`: the offset is after the tree's end of the file, and the kernel may hold more.
pub(super) fn all_data(
    offset: u64,
    hole: bool,
    size: u64,
    write_back: bool,
) -> Option<Result<u64>> {
    match (offset < size, hole) {
        (true, false) => Some(Ok(offset)),
        (true, true) => Some(Ok(size)),
        (false, _) => (!write_back).then_some(Err(Errno::NXIO)),
    }
}

pub(super) fn seeked(reply: ReplyLseek, found: Result<u64>) {
    match found {
        Ok(at) => reply.offset(at as i64),
        Err(e) => reply.error(errno(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// A file with so many pages: those that the tree has, and those that the kernel holds.
    #[derive(Clone, Debug)]
    struct Pages {
        tree: Vec<bool>,
        held: Vec<bool>,
        writes_back: bool,
    }

    impl Pages {
        fn size(pages: &[bool]) -> usize {
            pages.len()
        }

        fn ask(&self, offset: u64, hole: bool) -> Result<u64> {
            let size = Pages::size(&self.tree) as u64;
            if offset >= size {
                return Err(Errno::NXIO);
            }
            let found = (offset..size).find(|&at| self.tree[at as usize] != hole);
            match hole {
                true => Ok(found.unwrap_or(size)),
                false => found.ok_or(Errno::NXIO),
            }
        }

        fn write_back(&mut self, start: u64, end: Option<u64>) {
            let end = end.map_or(usize::MAX, |end| end as usize);
            for at in start as usize..self.held.len().min(end) {
                if std::mem::take(&mut self.held[at]) && self.writes_back {
                    if self.tree.len() <= at {
                        self.tree.resize(at + 1, false);
                    }
                    self.tree[at] = true;
                }
            }
        }

        /// The file as a program sees it.
        fn seen(&self) -> Pages {
            let mut seen = Pages { writes_back: true, ..self.clone() };
            seen.write_back(0, None);
            seen
        }
    }

    fn seek(pages: Pages, offset: u64, hole: bool) -> Result<u64> {
        let pages = RefCell::new(pages);
        let seeker = Seeker {
            ask: |offset, hole| pages.borrow().ask(offset, hole),
            write_back: |start, end| {
                pages.borrow_mut().write_back(start, end);
                Ok(())
            },
        };
        seeker.seek(offset, hole)
    }

    proptest! {
        /// The answer is the same as if the kernel held nothing.
        #[test]
        fn held_pages_are_data(
            tree in proptest::collection::vec(any::<bool>(), 0..160),
            held in proptest::collection::vec(proptest::bool::weighted(0.4), 0..200),
            offset in 0u64..220,
            hole in any::<bool>(),
        ) {
            let pages = Pages { tree, held, writes_back: true };
            let wanted = pages.seen().ask(offset, hole);
            prop_assert_eq!(seek(pages, offset, hole), wanted);
        }
    }

    #[test]
    fn pages_that_are_not_written_back_are_missed() {
        let pages = Pages { tree: vec![false; 4], held: vec![false, true], writes_back: false };
        assert_ne!(seek(pages.clone(), 0, false), pages.seen().ask(0, false));
    }

    #[test]
    fn holes_are_certain_since_linux_6_16() {
        for release in ["6.16.0", "6.16-rc1", "6.18.44-fc-v669", "7.0-rc1", "7.2", "10.0.1"] {
            assert!(waits_by_release(release), "{release}");
        }
        for release in [
            "4.19.0-27-amd64",
            "5.8",
            "6.1.0-13-amd64",
            "6.1.0-28-amd64",
            "6.15.9",
            "6.15.11",
            "6",
            "x.y",
            "",
        ] {
            assert!(!waits_by_release(release), "{release}");
        }
    }

    proptest! {
        /// The answer without a request to the kernel never calls a byte a hole that may be
        /// data.
        #[test]
        fn everything_is_data_if_the_kernel_cannot_be_asked(
            tree in proptest::collection::vec(any::<bool>(), 0..40),
            held in proptest::collection::vec(any::<bool>(), 0..60),
            offset in 0u64..70,
            hole in any::<bool>(),
            write_back: bool,
        ) {
            // Without write-back the kernel holds nothing after the tree's size.
            let held = if write_back { held } else { held.into_iter().take(tree.len()).collect() };
            let pages = Pages { tree, held, writes_back: true };
            let wanted = pages.seen().ask(offset, hole);
            match (all_data(offset, hole, pages.tree.len() as u64, write_back), hole) {
                (None, _) => prop_assert!(write_back && offset >= pages.tree.len() as u64),
                (Some(Err(e)), _) => prop_assert_eq!(wanted, Err(e)),
                (Some(Ok(at)), false) => prop_assert_eq!(at, offset),
                // The next query, for data, begins there.
                (Some(Ok(at)), true) => prop_assert_eq!(at, pages.tree.len() as u64),
            }
        }
    }

    #[test]
    fn a_file_that_changes_for_ever_ends_in_an_answer() {
        let size = RefCell::new(1u64);
        let seeker = Seeker {
            ask: |offset, hole| {
                *size.borrow_mut() += 1;
                Ok(if hole { *size.borrow() } else { offset + *size.borrow() })
            },
            write_back: |_, _| Ok(()),
        };
        assert!(seeker.seek(0, true).is_ok() && seeker.seek(0, false).is_ok());
    }
}
