// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room on the tree's file system that removed files still take.
//!
//! An inode that lost its last name stays open while an entry that is not synced names it.  When
//! the tree has no room for something else, the groups are synced, and it is asked again.

use rustix::io::Errno;

use super::{Journal, Live};
use crate::tree::{Result, Tree};

/// How often room was made for one operation.
#[derive(Debug, Default)]
pub(super) struct Room {
    made: u32,
}

impl<T: Tree, J: Journal> Live<T, J> {
    /// After this error of the tree another try is worth it.  The caller holds no group.
    pub(super) fn makes_room(&self, room: &mut Room, error: Errno) -> bool {
        // Others remove files, and take what they left, meanwhile.
        const MOST: u32 = 4;
        let no_room = matches!(error, Errno::NOSPC | Errno::DQUOT);
        if !no_room || room.made == MOST || !self.groups.frees() {
            return false;
        }
        room.made += 1;
        self.groups.sync_now()
    }

    /// What the tree says, once there is room if some can be made.  The caller holds no group.
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
