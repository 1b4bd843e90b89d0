// SPDX-License-Identifier: MIT OR Apache-2.0
//! Syncs of the tree that are under way.
//!
//! Linux reports a failed write-back once to each open file, and syncs share descriptors: of
//! two concurrent syncs one gets the error, and the other a false success.  So a success is
//! trusted only after all syncs that had begun by then have reported whether they failed.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    on_the_way: BTreeSet<u64>,
    waiting: usize,
    /// The inode that the background syncs alone.
    one: Option<u64>,
}

/// The background's sync of one inode; dropped when its failure, if it failed, is known to all.
#[derive(Debug)]
pub(super) struct SyncingOne<'a>(&'a Syncs);

/// One that has begun; dropped when its failure, if it failed, is known to all.
#[derive(Debug)]
pub(super) struct Syncing<'a> {
    syncs: &'a Syncs,
    number: u64,
}

impl Syncs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self) -> Syncing<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.on_the_way.insert(number);
        Syncing { syncs: self, number }
    }

    /// Waits until all that have begun have ended.  The caller's own has.
    pub fn wait_for_earlier(&self) {
        let mut state = self.lock();
        let next = state.next;
        state.waiting += 1;
        while state.on_the_way.first().is_some_and(|&n| n < next) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }
}

impl Syncs {
    /// The background syncs this inode, and no other before the end of this one.
    pub fn begin_one(&self, ino: u64) -> SyncingOne<'_> {
        self.lock().one = Some(ino);
        SyncingOne(self)
    }

    /// Waits while the background syncs this inode: that sync may have taken the report of a
    /// failed write-back, and not have told it yet.
    pub fn wait_for_one(&self, ino: u64) {
        let mut state = self.lock();
        state.waiting += 1;
        while state.one == Some(ino) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }
}

impl Drop for SyncingOne<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.one = None;
        if state.waiting > 0 {
            self.0.ended.notify_all();
        }
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.lock();
        state.on_the_way.remove(&self.number);
        if state.waiting > 0 {
            self.syncs.ended.notify_all();
        }
    }
}
