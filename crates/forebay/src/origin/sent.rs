// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is under way to an origin on the network, and what becomes of it when nobody waits for
//! it any more.  It may still be done, so what comes later for the same place waits for it.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::attach::Away;

/// An origin that has not answered for so long is said to stand still.
const STILL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Sent {
    /// What the origin holds.
    pub changes: bool,
    pub flush: bool,
    pub offset: u64,
    pub len: u64,
    /// The connection it went by, of several.
    pub link: usize,
    pub began: Instant,
    /// Somebody waits for it.
    pub wanted: bool,
}

impl Sent {
    /// A flush that may yet be told what no other will be.
    pub fn is_stray_flush(&self) -> bool {
        !self.wanted && self.flush
    }

    /// A write that may still be done, though nobody waits for it.
    pub fn is_stray_in(&self, range: &Range<u64>) -> bool {
        let overlaps = self.offset < range.end && range.start < self.offset + self.len;
        !self.wanted && self.changes && overlaps
    }
}

/// For [`Origin::away`](super::Origin::away): since when and why, if it is known; else the first
/// of `waiting` requests tells that nothing is answered.
pub(super) fn away_text(
    known: Option<(Instant, &str)>,
    (waiting, oldest): (usize, Option<Instant>),
    away: &Away,
) -> Option<String> {
    let still = oldest.filter(|since| since.elapsed() >= STILL);
    let (since, why) = known.or(still.map(|since| (since, "it does not answer")))?;
    let then = match away.limit() {
        Some(limit) => format!("fail after {} s", limit.as_secs()),
        None => "wait for it".into(),
    };
    Some(format!("for {} s, {why}; {waiting} requests {then}", since.elapsed().as_secs()))
}
