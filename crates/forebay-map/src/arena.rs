// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the addresses of reservations.  By default the kernel chooses.  A process may
//! instead set a range of addresses, which is then used for reservations alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pages::SEGMENT;

/// A range of addresses and the parts of it that are in use: start and length in bytes.
#[derive(Debug)]
struct Arena {
    range: Range<usize>,
    given: BTreeMap<usize, usize>,
}

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

fn arena() -> MutexGuard<'static, Option<Arena>> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that are mapped from now on lie within these addresses.  It is said once, before the
/// first of them; false: it was said before.
pub fn reserve_within(range: Range<usize>) -> bool {
    let mut arena = arena();
    if arena.is_some() {
        return false;
    }
    *arena = Some(Arena { range, given: BTreeMap::new() });
    true
}

/// The address for a reservation of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The kernel chooses.
    Anywhere,
    At(usize),
    /// The range has no room.
    Nowhere,
}

pub(crate) fn take(bytes: usize) -> Place {
    match arena().as_mut() {
        None => Place::Anywhere,
        Some(arena) => arena.take(bytes).map_or(Place::Nowhere, Place::At),
    }
}

pub(crate) fn give_back(at: usize) {
    if let Some(arena) = arena().as_mut() {
        arena.given.remove(&at);
    }
}

impl Arena {
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.checked_next_multiple_of(SEGMENT)?;
        let mut from = self.range.start.checked_next_multiple_of(SEGMENT)?;
        for (&at, &n) in &self.given {
            if from.checked_add(bytes)? <= at {
                break;
            }
            from = at + n;
        }
        if from.checked_add(bytes)? > self.range.end {
            return None;
        }
        self.given.insert(from, bytes);
        Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_do_not_overlap() {
        let range = 16 * SEGMENT + 1..32 * SEGMENT;
        let mut arena = Arena { range: range.clone(), given: BTreeMap::new() };
        assert_eq!(arena.take(4 * SEGMENT), Some(17 * SEGMENT));
        assert_eq!(arena.take(4 * SEGMENT - 1), Some(21 * SEGMENT));
        assert_eq!(arena.take(6 * SEGMENT), Some(25 * SEGMENT));
        assert_eq!(arena.take(SEGMENT), Some(31 * SEGMENT));
        assert_eq!(arena.take(1), None);
        arena.given.remove(&(21 * SEGMENT));
        assert_eq!(arena.take(5 * SEGMENT), None);
        assert_eq!(arena.take(SEGMENT), Some(21 * SEGMENT));
        assert_eq!(arena.take(3 * SEGMENT), Some(22 * SEGMENT));
        assert_eq!(arena.take(usize::MAX), None);
        assert_eq!(arena.take(usize::MAX - range.end), None);
    }
}
