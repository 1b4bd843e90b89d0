// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file on a full file system that has no space for the mark, or one that this process may not
//! mark any more.  Nothing becomes dirty then: what is synced is written to the file itself.

use super::Content;
use crate::backing::Backing;
use crate::error::{cannot_mark, Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};

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
