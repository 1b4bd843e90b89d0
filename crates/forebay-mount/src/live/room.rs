// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room on the tree's file system that removed files still take.
//!
//! An inode that lost its last name stays open while an entry that is not synced names it.  If
//! the tree has no room for a change, the groups are synced and the change is tried again.
//!
//! Any user can run out of room at any time, so this must not cost others more than the regular
//! sync of a group does.  A change that a quota refuses is tried again only if something was
//! removed, and only once if another owner removed it.  There is at most one such sync a
//! second; operations that come in between wait for it or for a regular sync of a group.
//!
//! A file system may free the room a moment after the sync: btrfs removes the extents of a large
//! file in the background.  So a change is tried again until a second after the sync, and for a
//! second at most.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Journal, Live};
use crate::rights;
use crate::tree::{Result, Tree};

/// Between two syncs that are for room alone.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long after a sync the file system may free the room of the files that it has removed.
const LATE: Duration = Duration::from_secs(1);
/// Between two tries meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

/// How often room was made for one operation.
#[derive(Debug, Default)]
pub(super) struct Room {
    made: u32,
    /// Since when it is tried again without another sync.
    late: Option<Instant>,
}

/// Unsynced groups name inodes that have no name any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub any: bool,
    /// Some belong to the user or group who is asked for.
    pub own: bool,
}

impl<T: Tree, J: Journal> Live<T, J> {
    /// After this error of the tree another try is worth it.  The caller holds no group.
    pub(super) fn makes_room(&self, room: &mut Room, error: Errno) -> bool {
        if !matches!(error, Errno::NOSPC | Errno::DQUOT) {
            return false;
        }
        // A user can have any number of changes that find no room.
        let waiting = self.waiting.begin(rights::user());
        waiting.is_some_and(|_waiting| self.waits_for(room, error))
    }

    fn waits_for(&self, room: &mut Room, error: Errno) -> bool {
        // Others remove files, and take what they left, meanwhile.
        const MOST: u32 = 4;
        let gone = self.groups.gone(rights::acting().map(|caller| (caller.uid, caller.gid)));
        let most = match error {
            Errno::NOSPC if gone.any => MOST,
            Errno::DQUOT if gone.own => MOST,
            // It may count for the same project.
            Errno::DQUOT if gone.any => 1,
            _ => 0,
        };
        if room.made >= most {
            return error == Errno::NOSPC && self.comes_late(room);
        }
        room.made += 1;
        self.sync_for_room()
    }

    /// Waits a moment if the file system may still free what the last groups have removed.
    fn comes_late(&self, room: &mut Room) -> bool {
        let waited = room.late.get_or_insert_with(Instant::now).elapsed();
        if waited >= LATE || !self.groups.freed_within(LATE) {
            return false;
        }
        std::thread::sleep(AGAIN);
        !self.groups.is_over()
    }

    fn sync_for_room(&self) -> bool {
        let wanted = self.groups.numbers().0;
        loop {
            let left = {
                let mut last = self.room_made.lock().unwrap_or_else(|e| e.into_inner());
                let since = last.map_or(INTERVAL, |last| last.elapsed());
                if since >= INTERVAL {
                    *last = Some(Instant::now());
                }
                INTERVAL.saturating_sub(since)
            };
            if left.is_zero() {
                return self.groups.sync_now();
            }
            if self.groups.is_synced_within(wanted, left) {
                return true;
            }
            if self.groups.is_over() {
                return false;
            }
        }
    }

    /// Returns the tree's answer, after room was made if that is possible.  The caller holds no
    /// group.
    pub(super) fn with_room<R>(&self, tree: impl Fn() -> Result<R>) -> Result<R> {
        let mut room = Room::default();
        loop {
            match tree() {
                Err(e) if self.makes_room(&mut room, e) => {}
                done => return done,
            }
        }
    }
}
