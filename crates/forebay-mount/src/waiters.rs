// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests wait for something that a user can withhold for long: room, or a lease.  Each
//! keeps a helper, and all users share those.  So nobody has more than a few that wait for either,
//! and the others are refused at once.  What one user withholds or lacks refuses nobody else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of one user.
pub(crate) const MOST_OF_A_USER: usize = 32;
/// Of all together.  From here on one of each user may wait.
pub(crate) const MOST_OF_ALL: usize = 96;
/// Some helpers are left whatever the number of users is: one person may have many.
pub(crate) const MOST_EVER: usize = 160;

/// Those that wait now.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<HashMap<u32, usize>>);

/// One that waits, until it is dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    of: &'a Waiters,
    user: u32,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: enough of this user wait, or of all.
    pub fn begin(&self, user: u32) -> Option<Waiting<'_>> {
        let mut all = self.lock();
        let (total, own) = (all.values().sum::<usize>(), all.get(&user).copied().unwrap_or(0));
        let may = match own {
            0 => total < MOST_EVER,
            _ => own < MOST_OF_A_USER && total < MOST_OF_ALL,
        };
        may.then(|| {
            all.insert(user, own + 1);
            Waiting { of: self, user }
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.of.lock();
        match all.get_mut(&self.user) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(all.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_keeps_none_of_another() {
        let waiters = Waiters::default();
        let of = |user| std::iter::from_fn(|| waiters.begin(user)).collect::<Vec<_>>();
        let first = of(1);
        assert_eq!(first.len(), MOST_OF_A_USER);
        assert_eq!(of(2).len(), MOST_OF_A_USER);
        // Many users together leave some helpers, and one to each.
        let many: Vec<_> = (10..20).map(of).collect();
        let total: usize = many.iter().map(Vec::len).sum();
        assert!(first.len() + total < MOST_OF_ALL + many.len(), "{total}");
        assert!(many.iter().all(|of| !of.is_empty()));
        // One person with many users.
        let more: Vec<_> = (100..400).filter_map(|user| waiters.begin(user)).collect();
        assert_eq!(waiters.lock().values().sum::<usize>(), MOST_EVER);
        drop(more);
        drop((first, many));
        assert_eq!(of(1).len(), MOST_OF_A_USER);
        assert!(waiters.lock().is_empty());
    }
}
