// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segments of a file, as its tracker gets them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::Content;
use crate::backing::Backing;
use crate::common::Unreadable;
use crate::pages::{PAGE, SEGMENT};
use crate::tracker::Source;

impl Content {
    /// Whether the segment has the page at the end, and that gets bytes which the file has not yet.
    pub fn grows_in(&self, segment: usize) -> bool {
        let (at, size) = (self.growing.load(Ordering::SeqCst), self.size());
        at < size.next_multiple_of(PAGE as u64) && size as usize / SEGMENT == segment
    }
}

/// The segments of a file, for the tracker.
#[derive(Clone, Debug)]
pub(crate) struct Segments(pub Arc<Content>);

impl Segments {
    fn of(&self, segment: usize) -> u32 {
        self.0.frame(segment).expect("the tracker asks for what it was given")
    }
}

impl Source for Segments {
    fn memory(&self) -> BorrowedFd<'_> {
        self.0.store.memory()
    }

    fn bring_in(&self, segment: usize) -> io::Result<u64> {
        let filled = self.0.fill(segment);
        match filled.and_then(|f| f.map(|frame| self.0.store.offset(frame)).transpose()) {
            Ok(Some(at)) => Ok(at),
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => Err(io::Error::other(e)),
        }
    }

    fn cannot_be_touched(&self, segment: usize, why: &io::Error) {
        let Some(shared) = self.0.shared.upgrade() else { return };
        if let Some(Unreadable(tell)) = &shared.options.unreadable {
            tell(self.0.backing.path(), (segment * SEGMENT) as u64, why);
        }
    }

    fn copy(&self, segment: usize, _: u64, to: &mut [u8]) {
        // A page that cannot be read must differ from its earlier copy, so that all of it is
        // synced.
        if self.0.store.copy(self.of(segment), 0, to).is_err() {
            let now =
                self.0.shared.upgrade().map_or(0, |s| s.clock.fetch_add(1, Ordering::Relaxed));
            to.chunks_mut(8).for_each(|c| c.copy_from_slice(&now.to_ne_bytes()[..c.len()]));
        }
    }

    fn write_back(&self, segment: usize, _: u64) -> io::Result<()> {
        self.0.store.write_back_caches(self.of(segment)).map_err(io::Error::other)
    }
}
