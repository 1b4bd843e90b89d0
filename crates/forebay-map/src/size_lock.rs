// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of a file's size.  A change of the size has it alone.  Rounds of write-back, and
//! threads that release a frame, only try it: they must not wait for a thread that wants to change
//! the size, because that thread may wait for a segment that needs a frame.
//!
//! A file whose size changes all the time would never be written back.  So a change waits, for a
//! moment, for those who were turned away too often.

use std::sync::{
    Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use crate::locked::lock;
use crate::planted::{self, Planted};

/// So many rounds and releases in a row may skip a file because its size changes.
const SKIPS_MOST: u32 = 3;
/// How long each later change of the size waits for one of them.
const TURN_WAIT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct SizeLock {
    size: RwLock<()>,
    /// Rounds and releases in a row that found it taken.
    skipped: Mutex<u32>,
    /// One of them has tried it.
    tried: Condvar,
}

impl SizeLock {
    pub fn new() -> SizeLock {
        SizeLock { size: RwLock::new(()), skipped: Mutex::new(0), tried: Condvar::new() }
    }

    /// For a change of the size.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let often = |skipped: &mut u32| *skipped >= SKIPS_MOST && !planted::is(Planted::NoTurn);
        drop(self.tried.wait_timeout_while(lock(&self.skipped), TURN_WAIT, often));
        self.size.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns None while the size changes.
    pub fn unchanged(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.size.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The same for a round or a release.
    pub fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let unchanged = self.unchanged();
        let mut skipped = lock(&self.skipped);
        match unchanged {
            Some(_) => *skipped = 0,
            None => *skipped = skipped.saturating_add(1),
        }
        self.tried.notify_all();
        unchanged
    }
}
