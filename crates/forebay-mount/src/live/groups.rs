// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transaction groups: changes that are synced together, first in the tree and then in the log.
//!
//! An operation holds the open group from before its entry until the tree has the change.  To
//! sync a group, the server closes it (the next one opens), waits until no operation holds it,
//! syncs it in the tree and then in the log.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::room::Gone;
use super::Inode;

/// The most groups that are not synced.  The log takes three; one is left unused, so that an
/// operation never meets the limit.
const MOST: u64 = 2;

#[derive(Debug)]
pub(super) struct Groups<N> {
    state: Mutex<State<N>>,
    changed: Condvar,
    /// The bytes of the open group at which it is due.  At several times that, operations wait.
    bytes: u64,
}

#[derive(Debug)]
struct State<N> {
    open: u64,
    synced: u64,
    /// The open group and the one before, indexed by the last bit of the group's number.
    groups: [Group<N>; 2],
    /// Owners of inodes that are gone and that the group named which is being synced.
    frees: Vec<(u32, u32)>,
    /// When the last group was synced that freed inodes.
    freed: Option<Instant>,
    /// An operation waits for space in the log.
    space_wanted: bool,
    /// Counts syncs, for operations that wait for space.
    syncs: u64,
    ending: bool,
    /// Nothing will be synced any more, and no operation may enter.
    over: bool,
}

#[derive(Debug)]
struct Group<N> {
    holders: u64,
    touched: Vec<Arc<Inode<N>>>,
    names: bool,
    bytes: u64,
    since: Option<Instant>,
}

// Not derived: a derive would require `N: Default`.
impl<N> Default for Group<N> {
    fn default() -> Self {
        Group { holders: 0, touched: Vec::new(), names: false, bytes: 0, since: None }
    }
}

/// A closed group that no operation holds.
#[derive(Debug)]
pub(super) struct Closed<N> {
    pub txg: u64,
    /// The inodes that its entries name.
    pub touched: Vec<Arc<Inode<N>>>,
    /// Whether names were changed, and not only data and attributes of files.
    pub names: bool,
}

/// Holds a group open for the operation that entered it.
#[derive(Debug)]
pub(super) struct Hold<'a, N> {
    groups: &'a Groups<N>,
    pub txg: u64,
}

impl<N> Drop for Hold<'_, N> {
    fn drop(&mut self) {
        self.groups.leave(self.txg);
    }
}

impl<N> Hold<'_, N> {
    /// The group, which stays held until [`Groups::leave`].
    pub fn into_group(self) -> u64 {
        std::mem::ManuallyDrop::new(self).txg
    }

    /// Keeps an inode until the group is synced, so that it has one fid in the group.
    pub fn keep(&self, inode: Arc<Inode<N>>) {
        self.groups.lock().group(self.txg).touched.push(inode);
    }

    /// Records that an entry was appended.
    pub fn appended(&self, bytes: u64, names: bool, touched: &mut Vec<Arc<Inode<N>>>) {
        let mut state = self.groups.lock();
        let group = state.group(self.txg);
        let was_due = group.bytes >= self.groups.bytes;
        group.bytes += bytes;
        let due = group.bytes >= self.groups.bytes && !was_due;
        group.names |= names;
        group.touched.append(touched);
        let first = group.since.is_none();
        if first {
            group.since = Some(Instant::now());
        }
        if first || due {
            self.groups.changed.notify_all();
        }
    }
}

impl<N> State<N> {
    fn group(&mut self, txg: u64) -> &mut Group<N> {
        &mut self.groups[(txg & 1) as usize]
    }
}

/// Changes that are not synced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unsynced {
    pub groups: u64,
    pub bytes: u64,
    /// The age of the oldest entry.
    pub age: Duration,
}

impl<N> Groups<N> {
    pub fn new(synced: u64, bytes: u64) -> Groups<N> {
        let state = State {
            open: synced + 1,
            synced,
            groups: Default::default(),
            frees: Vec::new(),
            freed: None,
            space_wanted: false,
            syncs: 0,
            ending: false,
            over: false,
        };
        Groups { state: Mutex::new(state), changed: Condvar::new(), bytes: bytes.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<N>>) -> MutexGuard<'a, State<N>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the open group.  Waits while the group is too large and cannot be closed yet.
    /// `None`: nothing will be synced any more, or the mount is ending.
    pub fn enter(&self) -> Option<Hold<'_, N>> {
        let mut state = self.lock();
        // A mount that is ending takes no new change; otherwise it would not end while programs
        // go on.
        while !state.over && !state.ending {
            let open = state.open;
            let group = state.group(open);
            if group.bytes < self.bytes.saturating_mul(4) {
                group.holders += 1;
                return Some(Hold { groups: self, txg: open });
            }
            state = self.wait(state);
        }
        None
    }

    /// Ends a hold of the group.
    pub fn leave(&self, txg: u64) {
        let mut state = self.lock();
        let group = state.group(txg);
        group.holders -= 1;
        if group.holders == 0 && (txg != state.open || state.ending || state.over) {
            self.changed.notify_all();
        }
    }

    /// Enters the open group if anything in it, or before it, is not synced.
    pub fn enter_if_pending(&self) -> Option<Hold<'_, N>> {
        let mut state = self.lock();
        if state.groups.iter().all(|g| g.since.is_none()) {
            return None;
        }
        let open = state.open;
        state.group(open).holders += 1;
        Some(Hold { groups: self, txg: open })
    }

    /// The numbers of the open group and of the last synced one.
    pub fn numbers(&self) -> (u64, u64) {
        let state = self.lock();
        (state.open, state.synced)
    }

    /// The number of syncs so far.  Read it before an append that may find no space.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Waits for space in the log while the caller holds no group: until a group is synced
    /// after `seen`, or the time is up.
    pub fn wait_for_space(&self, seen: u64, limit: Duration) {
        let mut state = self.lock();
        state.space_wanted = true;
        self.changed.notify_all();
        let end = Instant::now() + limit;
        while state.syncs == seen {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the open group is due, closes it, and waits until no operation holds it.
    /// `None`: the mount is ending, and nothing is left or will come.
    pub fn next(&self, interval: Duration) -> Option<Closed<N>> {
        let mut state = self.lock();
        loop {
            let open = state.open;
            let (wanted, ending) = (state.space_wanted, state.ending);
            if state.over {
                return None;
            }
            let group = state.group(open);
            let Some(since) = group.since else {
                if ending && group.holders == 0 {
                    state.over = true;
                    self.changed.notify_all();
                    return None;
                }
                // There is nothing to sync: operations that want space look again themselves.
                state.space_wanted = false;
                state = self.wait(state);
                continue;
            };
            let left = interval.saturating_sub(since.elapsed());
            if left.is_zero() || group.bytes >= self.bytes || wanted || ending {
                break;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let txg = state.open;
        debug_assert!(txg - state.synced < MOST + 1);
        state.open += 1;
        state.space_wanted = false;
        self.changed.notify_all();
        while state.group(txg).holders > 0 {
            state = self.wait(state);
        }
        let group = state.group(txg);
        let (touched, names) = (std::mem::take(&mut group.touched), group.names);
        state.frees = touched.iter().filter_map(|inode| inode.gone_owner()).collect();
        state.frees.sort_unstable();
        state.frees.dedup();
        Some(Closed { txg, touched, names })
    }

    /// Whether the next sync frees inodes, and whether some belong to this user or group;
    /// `None`: any of them does.
    pub fn gone(&self, owner: Option<(u32, u32)>) -> Gone {
        let state = self.lock();
        let named = state.groups.iter().flat_map(|group| &group.touched);
        let owners = named.filter_map(|inode| inode.gone_owner());
        let mut gone = Gone::default();
        for (uid, gid) in owners.chain(state.frees.iter().copied()) {
            gone.any = true;
            gone.own |= owner.is_none_or(|(user, group)| user == uid || group == gid);
            if gone.own {
                break;
            }
        }
        gone
    }

    /// Whether a group that freed inodes was synced within this time.
    pub fn freed_within(&self, time: Duration) -> bool {
        self.lock().freed.is_some_and(|freed| freed.elapsed() < time)
    }

    /// Records that the log has dropped the group.
    pub fn synced(&self, txg: u64) {
        let mut state = self.lock();
        *state.group(txg) = Group::default();
        if !state.frees.is_empty() {
            state.freed = Some(Instant::now());
        }
        state.frees.clear();
        state.synced = txg;
        state.syncs += 1;
        self.changed.notify_all();
    }

    /// Asks for a sync of everything, after which [`Groups::next`] ends.
    pub fn end(&self) {
        self.lock().ending = true;
        self.changed.notify_all();
    }

    /// Closes the open group at once if it has entries, and waits until everything before is
    /// synced (`true`) or never will be.
    pub fn sync_now(&self) -> bool {
        let mut state = self.lock();
        let target = state.open;
        while state.synced < target {
            if state.groups.iter().all(|g| g.since.is_none()) {
                return true;
            }
            if state.over {
                return false;
            }
            state.space_wanted = true;
            self.changed.notify_all();
            state = self.wait(state);
        }
        true
    }

    /// Waits until that group is synced, without hastening the sync; `false`: it is not synced
    /// yet, or never will be.
    pub fn is_synced_within(&self, group: u64, limit: Duration) -> bool {
        let state = self.lock();
        let waits = |state: &mut State<N>| state.synced < group && !state.over;
        let waited = self.changed.wait_timeout_while(state, limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.synced >= group
    }

    /// Whether nothing will be synced any more.
    pub fn is_over(&self) -> bool {
        self.lock().over
    }

    /// Ends all syncs, and wakes all that wait.
    pub fn fail(&self) {
        let mut state = self.lock();
        state.over = true;
        state.syncs += 1;
        self.changed.notify_all();
    }

    /// Waits, after a failure, until no operation holds a group: then the tree has each change
    /// whose entry is durable.
    pub fn wait_until_left(&self) {
        let mut state = self.lock();
        while state.groups.iter().any(|group| group.holders > 0) {
            state = self.wait(state);
        }
    }

    pub fn unsynced(&self) -> Unsynced {
        let state = self.lock();
        let mut unsynced = Unsynced::default();
        for group in &state.groups {
            if let Some(since) = group.since {
                unsynced.groups += 1;
                unsynced.bytes += group.bytes;
                unsynced.age = unsynced.age.max(since.elapsed());
            }
        }
        unsynced
    }
}
