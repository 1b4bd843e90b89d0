// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks during which no signal handler of the program runs, and parts of the library whose calls are
//! not the program's.

use std::ops::{Deref, DerefMut};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use crate::signals::{self, hold, Busy};

/// A lock that is held.  No signal handler runs in the thread meanwhile.
#[derive(Debug)]
pub struct Locked<G> {
    pub guard: G,
    pub busy: Busy,
}

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub fn lock<T>(m: &Mutex<T>) -> Locked<MutexGuard<'_, T>> {
    let busy = hold();
    Locked { guard: m.lock().unwrap_or_else(PoisonError::into_inner), busy }
}

pub fn read<T>(l: &RwLock<T>) -> Locked<RwLockReadGuard<'_, T>> {
    let busy = hold();
    Locked { guard: l.read().unwrap_or_else(PoisonError::into_inner), busy }
}

/// None: a thread has it for writing, or waits for it.
pub fn try_read<T>(l: &RwLock<T>) -> Option<Locked<RwLockReadGuard<'_, T>>> {
    let busy = hold();
    let guard = match l.try_read() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(e)) => e.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(Locked { guard, busy })
}

pub fn write<T>(l: &RwLock<T>) -> Locked<RwLockWriteGuard<'_, T>> {
    let busy = hold();
    Locked { guard: l.write().unwrap_or_else(PoisonError::into_inner), busy }
}

thread_local! {
    /// Nonzero while the library works for this thread: its calls are not the program's.
    static INSIDE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Runs a part of the library.
pub fn inside<R>(f: impl FnOnce() -> R) -> R {
    struct Out;
    impl Drop for Out {
        fn drop(&mut self) {
            let _ = INSIDE.try_with(|n| n.set(n.get() - 1));
        }
    }
    let _busy = hold();
    let _ = INSIDE.try_with(|n| n.set(n.get() + 1));
    let _out = Out;
    f()
}

/// Runs a part of the library that may make threads.  They handle none of the program's
/// signals, whose handlers may wait for them.
pub fn quietly<R>(f: impl FnOnce() -> R) -> R {
    signals::blocked(|| inside(f))
}

pub fn is_inside() -> bool {
    INSIDE.try_with(|n| n.get() > 0).unwrap_or(true)
}
