// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets one at a time do what may never end.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The turns that are taken, by what they are for.
#[derive(Debug)]
pub(crate) struct Turns<K: Ord> {
    since: Mutex<BTreeMap<K, Instant>>,
    ended: Condvar,
}

/// Ends with its drop.
#[derive(Debug)]
pub(crate) struct Turn<'t, K: Ord> {
    of: &'t Turns<K>,
    key: K,
}

impl<K: Ord + Clone> Turns<K> {
    pub const fn new() -> Turns<K> {
        Turns { since: Mutex::new(BTreeMap::new()), ended: Condvar::new() }
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<K, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn.  With a patience, `None` is the answer once the turn of another has taken
    /// that long.
    pub fn take(&self, key: &K, patience: Option<Duration>) -> Option<Turn<'_, K>> {
        const WITHOUT_LIMIT: Duration = Duration::from_secs(3600);
        let mut taken = self.since();
        while let Some(since) = taken.get(key) {
            let left = match patience {
                Some(patience) => patience.saturating_sub(since.elapsed()),
                None => WITHOUT_LIMIT,
            };
            if left.is_zero() {
                return None;
            }
            let waited = self.ended.wait_timeout(taken, left);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.insert(key.clone(), Instant::now());
        Some(Turn { of: self, key: key.clone() })
    }
}

impl<K: Ord> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        let mut taken = self.of.since.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.key);
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn who_waits_too_long_has_no_turn_and_others_wait_for_theirs() {
        let turns = Turns::new();
        let (soon, patience) = (Duration::from_millis(50), Duration::from_secs(60));
        let first = turns.take(&"a", Some(soon)).expect("nobody has it");
        assert!(turns.take(&"a", Some(soon)).is_none(), "the first still has it");
        assert!(turns.take(&"a", Some(soon)).is_none(), "at once, since it has had it for long");
        assert!(turns.take(&"b", Some(soon)).is_some(), "that is another");
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for patience in [Some(patience), None] {
                let (turns, tell) = (&turns, tell.clone());
                scope.spawn(move || {
                    let turn = turns.take(&"a", patience);
                    tell.send(turn.is_some()).expect("a listener");
                });
            }
            assert!(told.recv_timeout(soon).is_err(), "the first still has it");
            drop(first);
            assert_eq!((told.recv(), told.recv()), (Ok(true), Ok(true)));
        });
        assert!(turns.since().is_empty());
    }
}
