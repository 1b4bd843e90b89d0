// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for what the engine says to wait for.
//!
//! A block or a slot is held for about a microsecond: spin, then give way,
//! then sleep a little, which matters only when its holder lost the CPU.
//! Space comes when destage has freed a chunk: announce, try once more, sleep.
//! Each sleep has a limit, so that a wake-up that is lost costs time only.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::engine::Wait;
use crate::shared_pool::SharedPool;

/// Turns of about 0.3 us each.
const SPINS: u32 = 16;
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep for space, or for a flush, before it is looked for again.
const SPACE_NAP: Duration = Duration::from_nanos(sys::FBY_DEFAULT_SPACE_RETRY_NS as u64);
const FLUSH_NAP: Duration = Duration::from_nanos(sys::FBY_DEFAULT_FLUSH_RETRY_NS as u64);

/// Threads that wait for a flush of an origin to end.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    ended: Mutex<u64>,
    condvar: Condvar,
}

impl Flushes {
    /// Read it before asking the engine.
    pub(crate) fn ended(&self) -> u64 {
        *self.ended.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn wake(&self) {
        *self.ended.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        self.condvar.notify_all();
    }

    /// Sleeps until another ended after `seen`.
    pub(crate) fn sleep(&self, seen: u64) {
        let ended = self.ended.lock().unwrap_or_else(|e| e.into_inner());
        drop(self.condvar.wait_timeout_while(ended, FLUSH_NAP, |n| *n == seen));
    }
}

/// Threads that wait for space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Times that space came.
    came: Mutex<u64>,
    condvar: Condvar,
    waiting: AtomicU32,
    /// Nobody may wait any more.
    aborted: AtomicBool,
}

impl Space {
    fn came(&self) -> u64 {
        *self.came.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn wake(&self) {
        *self.came.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        self.condvar.notify_all();
    }

    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sleeps until space comes after `seen`.
    fn sleep(&self, seen: u64, limit: Duration) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let came = self.came.lock().unwrap_or_else(|e| e.into_inner());
        drop(self.condvar.wait_timeout_while(came, limit, |came| *came == seen));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The waits of one request.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    turns: u32,
    /// Announced at this count, and tried once more since.
    announced: Option<u64>,
    space_since: Option<Instant>,
}

/// The wait for space was given up.
#[derive(Debug)]
pub(crate) struct GaveUp {
    pub waited: Duration,
}

impl Waiter {
    /// Waits a while; the request is to be tried again after it.
    pub(crate) fn wait(
        &mut self,
        core: &SharedPool,
        w: Wait,
        timeout: Option<Duration>,
    ) -> Result<(), GaveUp> {
        match w {
            Wait::Space => return self.wait_for_space(core, timeout),
            // Tried once more, so that no end of a flush is slept over.
            Wait::Flush => match self.announced.take() {
                None => self.announced = Some(core.flushes.ended()),
                Some(seen) => core.flushes.sleep(seen),
            },
            Wait::Block | Wait::Slot | Wait::Ticket => self.wait_short(),
        }
        Ok(())
    }

    fn wait_for_space(
        &mut self,
        core: &SharedPool,
        timeout: Option<Duration>,
    ) -> Result<(), GaveUp> {
        let space = &core.space;
        let since = *self.space_since.get_or_insert_with(Instant::now);
        let waited = since.elapsed();
        if space.aborted() || timeout.is_some_and(|t| waited >= t) {
            return Err(GaveUp { waited });
        }
        match self.announced.take() {
            None => {
                self.announced = Some(space.came());
                core.engine.wait_prepare(Wait::Space);
                core.kick.kick();
            }
            Some(seen) => {
                let left = timeout.map_or(SPACE_NAP, |t| t - waited);
                space.sleep(seen, left.min(SPACE_NAP));
            }
        }
        Ok(())
    }

    /// Progress was made: the next wait begins anew.
    pub(crate) fn reset(&mut self) {
        *self = Waiter::default();
    }

    fn wait_short(&mut self) {
        self.turns += 1;
        match self.turns {
            t if t <= SPINS => (0..16).for_each(|_| std::hint::spin_loop()),
            t if t <= YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event between the announcement and the sleep ends the sleep.
    #[test]
    fn space_that_came_before_the_sleep_ends_it() {
        let space = Space::default();
        let seen = space.came();
        space.wake();
        let start = Instant::now();
        space.sleep(seen, Duration::from_secs(20));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(space.waiting(), 0);
    }

    #[test]
    fn sleepers_are_woken() {
        let space = Space::default();
        let seen = space.came();
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| {
                let start = Instant::now();
                space.sleep(seen, Duration::from_secs(20));
                start.elapsed()
            });
            while space.waiting() == 0 {
                std::thread::yield_now();
            }
            space.wake();
            assert!(sleeper.join().unwrap() < Duration::from_secs(10));
        });
    }
}
