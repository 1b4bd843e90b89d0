// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests in flight to an origin on the network, and their fate when nobody waits for them
//! any more.  They may still be executed, so later requests for the same place wait for them.

use std::io;
use std::ops::Range;
use std::sync::{Condvar, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::check_range;
use crate::attach::Away;

/// An origin that has not answered for so long is said to stand still.
const STILL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Sent {
    /// The request changes the origin's content.
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

/// Until something has changed, or the request that began then has waited for `limit`.
pub(super) fn wait<'a, S>(
    (changed, given_up): (&Condvar, bool),
    state: MutexGuard<'a, S>,
    (limit, began): (Option<Duration>, Instant),
    timed_out: impl FnOnce(&S, Duration) -> String,
) -> io::Result<MutexGuard<'a, S>> {
    if given_up {
        return Err(Errno::CANCELED.into());
    }
    let Some(limit) = limit else {
        return Ok(changed.wait(state).unwrap_or_else(|e| e.into_inner()));
    };
    let left = limit.saturating_sub(began.elapsed());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, timed_out(&state, limit)));
    }
    Ok(changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0)
}

/// A range of an origin of this size, in pieces of at most so many bytes.
pub(super) fn pieces(
    size: u64,
    (offset, len): (u64, u64),
    most: u64,
    mut each: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    check_range(size, offset, len)?;
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let n = (end - at).min(most);
        each(at, n)?;
        at += n;
    }
    Ok(())
}

/// An id made of a URI, for what has no better one.
pub(super) fn id_of(kind: &str, uri: &str) -> String {
    let crc = |seed| forebay_engine::sys::crc32c(seed, uri.as_bytes());
    format!("{kind}:{:08x}{:08x}", crc(0), crc(1))
}
