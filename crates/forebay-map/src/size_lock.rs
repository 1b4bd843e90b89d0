// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of a file's size.  A change of the size has it alone.  Rounds of write-back, and
//! threads that release a frame, only try it.  They must not wait for a thread that wants to change
//! the size, because that thread may wait for a segment that needs a frame.
//!
//! Without further rules, a file whose size changes all the time would never be written back.  So a
//! change of the size waits for a moment if rounds or releases were turned away too often.

use std::sync::{
    Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use crate::locked::lock;
use crate::planted::{self, Planted};

/// The most rounds and releases in a row that skip a file because its size changes.
const SKIPS_MOST: u32 = 3;
/// How long each later change of the size waits for a round or a release.
const TURN_WAIT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct SizeLock {
    size: RwLock<()>,
    /// Rounds and releases in a row that found the lock taken.
    skipped: Mutex<u32>,
    /// Notified when a round or a release has tried the lock.
    tried: Condvar,
}

impl SizeLock {
    pub fn new() -> SizeLock {
        SizeLock { size: RwLock::new(()), skipped: Mutex::new(0), tried: Condvar::new() }
    }

    /// Locks the size for a change of it.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let often = |skipped: &mut u32| *skipped >= SKIPS_MOST && !planted::is(Planted::NoTurn);
        drop(self.tried.wait_timeout_while(lock(&self.skipped), TURN_WAIT, often));
        self.size.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like `alone`.  None: others have the lock.
    pub fn try_alone(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.size.try_write() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns None while the size changes.
    pub fn unchanged(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.size.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Like `unchanged`, for a round or a release.
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
