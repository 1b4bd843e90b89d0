// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file on a full file system that has no space for the mark, or one that this process may not
//! mark any more.  Nothing becomes dirty then: what is synced is written to the file itself.

use std::io;

use super::Content;
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};

/// Whether a file system refused a change for lack of space.
pub(crate) fn lacks_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the kernel refused a change for lack of rights.
pub(crate) fn lacks_rights(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Whether a file cannot be marked, though it may be written: for lack of space or of rights.  It is
/// asked of a change of the mark, and not of its sync.
pub(crate) fn cannot_mark(error: &io::Error) -> bool {
    lacks_space(error) || lacks_rights(error)
}

impl Content {
    /// Whether a change that needs the mark has failed because the file system has no space for
    /// it, or because the process has given up the right to set it.  Then the file has everything
    /// that was synced before.
    pub(super) fn cannot_mark(&self, e: &Error) -> bool {
        let Error::System { error, .. } = e.cause() else { return false };
        cannot_mark(error) && !self.marking.is_on()
    }

    /// Makes pages durable in the file.  The caller holds the segment's lock.
    pub(super) fn write_through(&self, segment: usize, frame: u32, pages: &PageSet) -> Result<()> {
        let since = self.failures();
        let change = self.marking.change(self.of())?;
        for run in pages.runs() {
            let at = run.start * PAGE;
            let mut bytes = vec![0; self.inside(segment).min(run.end * PAGE) - at];
            self.store.copy(frame, at, &mut bytes)?;
            change.next()?;
            let to = (segment * SEGMENT + at) as u64;
            self.backing.write_at(to, &bytes).map_err(self.system("write"))?;
        }
        drop(change);
        self.sync_file(since)
    }
}
