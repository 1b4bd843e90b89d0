// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for space in the log, which a status tells of.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One who waits for space in the log.
pub(super) struct Wait<'a> {
    waits: &'a Mutex<Vec<Instant>>,
    since: Instant,
}

impl<'a> Wait<'a> {
    pub fn begin(waits: &'a Mutex<Vec<Instant>>) -> Wait<'a> {
        let since = Instant::now();
        waits.lock().unwrap_or_else(PoisonError::into_inner).push(since);
        Wait { waits, since }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = waits.iter().position(|since| *since == self.since) {
            waits.swap_remove(i);
        }
    }
}
