// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of a file that an entry in the log cuts, punches or zeroes and that are not
//! synced.
//!
//! If the server alone dies, the tree has what programs wrote there since, and the replay would
//! undo it.  So such writes are logged as they come, or the file is synced.

use super::ranges::Ranges;

#[derive(Debug)]
pub(super) struct ReplayHazard {
    pub ranges: Ranges,
    /// No later group has such an entry, or what was logged after it.
    pub txg: u64,
    /// The file was truncated to nothing, and no program has synced it since.  Its new content
    /// is logged even if the truncation is synced.  File systems protect such files in the same
    /// way.
    pub replaces: bool,
    /// The number of bytes that are still logged as they come.
    left: u64,
}

impl ReplayHazard {
    /// Adds a range to what there was before.  A truncation to nothing drops the earlier ranges.
    pub fn add(
        before: Option<ReplayHazard>,
        range: (u64, u64),
        txg: u64,
        limit: u64,
    ) -> ReplayHazard {
        let replaces = range == (0, u64::MAX);
        let new = ReplayHazard { ranges: Ranges::default(), txg, replaces, left: limit };
        let mut hazard = before.filter(|_| !replaces).unwrap_or(new);
        hazard.ranges.add(range.0, range.1);
        hazard.txg = txg;
        hazard
    }

    /// `false`: these bytes are too many to be logged as they come.
    pub fn spend(&mut self, bytes: u64) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}
