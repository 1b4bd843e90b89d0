// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock by which entries are dated: that of the tree's file system.
//!
//! A replay compares the times of entries with those of files.  The tree's clock may be another than
//! this machine's, as on NFS, and then times of both say nothing together.  So entries have the time
//! of the tree's clock.  A change of an inode of our own in the tree shows it.
//!
//! | the tree's clock | dates by |
//! |---|---|
//! | is this machine's, or a second away from it at most | this machine's clock, whoever sets it |
//! | is another | the time since boot, which nobody sets, and what the tree's clock was ahead of that |
//!
//! The clock is looked at when the mount begins and with each group that is synced, and when a file
//! has a time that it should not have yet.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{clock_gettime, ClockId};

use super::ns_of;
use crate::record::Time;
use crate::replay::planted::{planted, Bug};

/// Clocks that differ by no more than this are one clock: some file systems know only seconds.
const NEAR_NS: i64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Clock {
    /// How far another clock is ahead of the time since boot (ns); zero: it is this machine's.
    apart_ns: AtomicI64,
    /// How far this machine's clock is set ahead, for tests.
    #[cfg(test)]
    pub set_ns: AtomicI64,
}

impl Clock {
    /// The time by the tree's clock, in nanoseconds since 1970.
    pub fn now_ns(&self) -> u64 {
        match self.apart_ns.load(Ordering::Relaxed) {
            0 => self.here_ns(),
            apart => boot_ns().saturating_add(apart),
        }
        .max(0) as u64
    }

    /// Whether the tree shows a time that its clock should not have reached.
    pub fn is_ahead(&self, time_ns: u64) -> bool {
        time_ns > self.now_ns().saturating_add(NEAR_NS as u64)
    }

    /// Looks at the tree's clock.  `show` changes an inode of the tree and returns the time of that;
    /// `None`: it is unknown, and the clock goes on as it does.
    pub fn look(&self, show: impl FnOnce() -> Option<Time>) {
        let (boot, here) = (boot_ns(), self.here_ns());
        let Some(shown) = show() else { return };
        let shown = i64::try_from(ns_of(shown)).unwrap_or(i64::MAX);
        // The change may have taken long, and happened at any moment of that.
        let (boot_after, here_after) = (boot_ns(), self.here_ns());
        let near = here.saturating_sub(NEAR_NS)..=here_after.saturating_add(NEAR_NS);
        let before = self.apart_ns.load(Ordering::Relaxed);
        let apart = match near.contains(&shown) {
            _ if planted(Bug::ClockOfOurs) => before,
            true => 0,
            false => {
                let before = if before == 0 { here.saturating_sub(boot) } else { before };
                let (least, most) = (shown.saturating_sub(boot_after), shown.saturating_sub(boot));
                let apart = match before {
                    _ if before < least.saturating_sub(NEAR_NS) => least,
                    _ if before > most.saturating_add(NEAR_NS) => most,
                    near => near,
                };
                // Zero says that it is this machine's.
                if apart == 0 {
                    1
                } else {
                    apart
                }
            }
        };
        self.apart_ns.store(apart, Ordering::Relaxed);
    }

    fn here_ns(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        #[cfg(test)]
        let now = now.saturating_add(self.set_ns.load(Ordering::Relaxed));
        now
    }
}

/// Nanoseconds since the boot, the time of a suspend included.
fn boot_ns() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
