// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of names and attributes that the tree gets before their entries are durable.
//!
//! A crash may then leave a tree that has more than the log.  The tree says how far it is, by the
//! time of the mark ([`GroupMark::reach`](crate::mark::GroupMark::reach)):
//!
//! 1. A change precedes its entry only when the tree has the changes of all earlier entries.
//! 2. The mark has the entry's number before the tree has the change.
//! 3. Every other change waits until its entry is durable.
//!
//! So if the log lacks the entry of that number, the tree has each change of which the log has an
//! entry.  If the log has it, the tree has no change of which the log lacks the entry.  Both need
//! a file system that keeps no later change without an earlier one.  Some do, where they sync one
//! file alone: before such a sync all entries are durable, and no change precedes its entry
//! meanwhile.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::Ticket;

use crate::replay::planted::{planted, Bug};

/// How long a change waits for earlier ones before it waits for its entry instead.
const PATIENCE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Entries whose changes the tree may lack.
    under_way: BTreeSet<u64>,
    /// The change that precedes its entry and is being made.
    precedes: Option<u64>,
    /// Syncs of single files in the tree.
    single: u32,
    /// A change that preceded its entry, and when.  No later one is known to be durable.
    oldest: Option<(Ticket, Instant)>,
}

/// A change that the tree may lack, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    order: &'a Order,
    number: u64,
}

/// No change precedes its entry until this is dropped.
#[derive(Debug)]
pub(super) struct Single<'a>(&'a Order);

impl Order {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order of the entries.
    pub fn begin(&self, number: u64) {
        self.lock().under_way.insert(number);
    }

    pub fn under_way(&self, number: u64) -> UnderWay<'_> {
        UnderWay { order: self, number }
    }

    /// Whether the change may precede its entry.  If so, no other one does until it is made.
    /// `settled` tells whether an entry is durable, or never will be.
    pub fn precedes(
        &self,
        (number, ticket): (u64, Ticket),
        longest: Duration,
        settled: impl Fn(Ticket) -> bool,
    ) -> bool {
        let end = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while state.under_way.first() != Some(&number) && !planted(Bug::OutOfOrder) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || state.single > 0 {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.single > 0 {
            return false;
        }
        match state.oldest {
            Some((oldest, since)) if !settled(oldest) => {
                if since.elapsed() >= longest {
                    return false;
                }
            }
            _ => state.oldest = Some((ticket, Instant::now())),
        }
        state.precedes = Some(number);
        true
    }

    /// Waits until no change precedes its entry, and lets none do so.
    pub fn single(&self) -> Single<'_> {
        let mut state = self.lock();
        state.single += 1;
        while state.precedes.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Single(self)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.order.lock();
        state.under_way.remove(&self.number);
        if state.precedes == Some(self.number) {
            state.precedes = None;
        }
        self.order.changed.notify_all();
    }
}

impl Drop for Single<'_> {
    fn drop(&mut self) {
        self.0.lock().single -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn never(_: Ticket) -> bool {
        false
    }

    /// A later change comes after all earlier ones, or after its entry.
    #[test]
    fn a_change_precedes_its_entry_only_after_all_earlier_changes() {
        let order = Order::default();
        (1..=3).for_each(|number| order.begin(number));
        let entry = |number| (number, Ticket(number));
        let (one, two) = (order.under_way(1), order.under_way(2));
        assert!(!order.precedes(entry(2), LONG, never), "the tree may lack the first");
        assert!(order.precedes(entry(1), LONG, never));
        drop(two);
        assert!(!order.precedes(entry(3), LONG, never));
        drop(one);
        assert!(order.precedes(entry(3), LONG, never));
    }

    /// A change that is not durable is never older than the bound.
    #[test]
    fn a_change_waits_where_an_earlier_one_has_not_been_durable_for_too_long() {
        let order = Order::default();
        let mut number = 0;
        let mut next = |longest, settled: fn(Ticket) -> bool| {
            number += 1;
            order.begin(number);
            let _under_way = order.under_way(number);
            order.precedes((number, Ticket(number)), longest, settled)
        };
        assert!(next(Duration::ZERO, never));
        assert!(next(LONG, never));
        assert!(!next(Duration::ZERO, never), "the first is not durable");
        assert!(next(Duration::ZERO, |ticket| ticket.0 == 1));
        assert!(!next(Duration::ZERO, |ticket| ticket.0 == 1), "the fourth is not");
    }

    #[test]
    fn no_change_precedes_its_entry_while_a_single_file_is_synced() {
        let order = Order::default();
        (1..=2).for_each(|number| order.begin(number));
        let one = order.under_way(1);
        assert!(order.precedes((1, Ticket(1)), LONG, never));
        std::thread::scope(|scope| {
            let single = scope.spawn(|| order.single());
            while order.lock().single == 0 {
                std::thread::yield_now();
            }
            assert!(!single.is_finished(), "one precedes its entry");
            drop(one);
            let single = single.join().unwrap();
            assert!(!order.precedes((2, Ticket(2)), LONG, never));
            drop(single);
            assert!(order.precedes((2, Ticket(2)), LONG, never));
        });
    }
}
