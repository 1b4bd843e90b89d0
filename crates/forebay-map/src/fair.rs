// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutex that threads get in the order in which they asked for it.  With a plain mutex, a thread
//! that has just released it may take it again before a waiter has woken up.  So a thread that
//! loops may keep all others out.

use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};

use crate::locked::lock;

/// A mutex with a queue.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    queue: Mutex<Queue>,
    turn: Condvar,
    value: Mutex<T>,
}

#[derive(Debug)]
struct Queue {
    /// The number of the next thread that asks.
    next: u64,
    /// The number of the thread that has the value, or may take it.
    now: u64,
}

/// The value, as long as a thread has it.
#[derive(Debug)]
pub(crate) struct FairGuard<'a, T> {
    /// Released before the turn ends.  None: it was released.
    value: Option<MutexGuard<'a, T>>,
    of: &'a Fair<T>,
}

impl<T> Fair<T> {
    pub fn new(value: T) -> Fair<T> {
        let queue = Mutex::new(Queue { next: 0, now: 0 });
        Fair { queue, turn: Condvar::new(), value: Mutex::new(value) }
    }

    /// Waits for the threads that asked before.
    pub fn lock(&self) -> FairGuard<'_, T> {
        let mut queue = lock(&self.queue);
        let own = queue.next;
        queue.next += 1;
        while queue.now != own {
            queue = self.turn.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        FairGuard { value: Some(lock(&self.value)), of: self }
    }
}

/// A lock for readers and writers, in the order in which they asked.  A plain one lets writers pass
/// readers that wait.
#[derive(Debug)]
pub(crate) struct FairRw {
    /// Held by the thread that gets the lock next, until it has it.
    next: Fair<()>,
    lock: RwLock<()>,
}

impl FairRw {
    pub fn new() -> FairRw {
        FairRw { next: Fair::new(()), lock: RwLock::new(()) }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, ()> {
        // Most readers need not wait, and have nothing in common then.  This fails while a writer
        // waits.
        match self.lock.try_read() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(e)) => return e.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        let _next = self.next.lock();
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, ()> {
        let _next = self.next.lock();
        self.lock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_deref().expect("it is held until the drop")
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().expect("it is held until the drop")
    }
}

impl<T> Drop for FairGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        let mut queue = lock(&self.of.queue);
        queue.now += 1;
        // Nobody is woken in vain.
        let waited_for = queue.now != queue.next;
        drop(queue);
        if waited_for {
            self.of.turn.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    /// The threads ask one after another while this one has the value, and it asks again at once.
    #[test]
    fn threads_get_it_in_the_order_in_which_they_ask() {
        const OTHERS: u32 = 4;
        for _ in 0..5 {
            let fair = Fair::new(Vec::new());
            let mut had = fair.lock();
            std::thread::scope(|s| {
                for own in 0..OTHERS {
                    s.spawn({
                        let fair = &fair;
                        move || fair.lock().push(own)
                    });
                    while lock(&fair.queue).next != u64::from(own) + 2 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                had.push(OTHERS);
                drop(had);
                let all: Vec<u32> = fair.lock().drain(..).collect();
                assert_eq!(all, [OTHERS, 0, 1, 2, 3]);
            });
        }
    }
}
