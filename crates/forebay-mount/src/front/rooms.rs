// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides where a request is answered: by the thread that reads it, or later by a helper.
//!
//! The last thread that reads requests answers none ([`Slots`]).  It copies its request for a
//! helper, and the number of copied bytes is bounded ([`Memory`]).

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the last thread that reads requests waits for another one before it hands its
/// request to a helper, which costs a copy of the written bytes.  If the log is on a disk, it
/// does not wait: the other threads wait for that disk, and entries that are appended meanwhile
/// share the next write.
const MOMENT: Duration = Duration::from_millis(1);
/// How long a write waits for memory before it looks for a slot again.
const LOOK: Duration = Duration::from_millis(10);

/// The place where a request is answered.
#[derive(Debug)]
pub(crate) enum Room {
    Here(Here),
    /// By a helper, for which the request is copied.
    Later(Held),
}

thread_local! {
    /// The slot of the request that this thread answers, until it replies.
    static SLOT: Cell<Option<Slot>> = const { Cell::new(None) };
}

/// The calling thread answers its request.  Its slot is released by [`replies`], or at the drop.
#[derive(Debug)]
pub(crate) struct Here(());

impl Here {
    fn new(slot: Slot) -> Here {
        SLOT.set(Some(slot));
        Here(())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        SLOT.take();
    }
}

/// The calling thread makes its reply, and waits for nothing more.  Its slot is released first: the
/// client may make its next request before this thread returns, and should find the slot free.
pub(super) fn replies() {
    SLOT.take();
}

/// The calling thread makes replies and waits again.  It keeps its slot until the result is dropped.
pub(super) fn replies_and_waits() -> Option<Slot> {
    SLOT.take()
}

#[derive(Debug)]
pub(crate) struct Rooms {
    slots: Slots,
    memory: Memory,
    moment: Duration,
}

impl Rooms {
    /// `waiting`: how many threads that read requests may wait, one fewer than there are.
    pub fn new(waiting: usize, log_on_disk: bool) -> Rooms {
        let moment = if log_on_disk { Duration::ZERO } else { MOMENT };
        Rooms { slots: Slots::new(waiting), memory: Memory::new(), moment }
    }

    /// The most requests that the kernel may make by itself at a time.
    pub fn most_background(&self) -> u16 {
        self.memory.most_background()
    }

    /// `None`: this is the last thread that reads requests, and a helper has to answer.
    pub fn here(&self) -> Option<Here> {
        self.slots.take_soon(self.moment).map(Here::new)
    }

    /// Finds the place for a request with that many bytes.
    pub fn room(&self, bytes: usize) -> Room {
        match self.here() {
            Some(slot) => Room::Here(slot),
            None => Room::Later(self.memory.take(bytes)),
        }
    }

    /// Finds the place for a write(2), which waits while the memory is full.
    pub fn room_for_write(&self, bytes: usize) -> Room {
        loop {
            if let Some(slot) = self.here() {
                return Room::Here(slot);
            }
            if let Some(held) = self.memory.take_write(bytes, LOOK) {
                return Room::Later(held);
            }
        }
    }
}

/// Bytes of requests that the kernel makes by itself and that wait for helpers: copies in this
/// process's memory, while a disk that hangs takes none.  The kernel bounds them.  It is less where
/// the process may have little memory.
const MOST_HELD: usize = 256 << 20;
const LEAST_HELD: usize = 32 << 20;

/// The number of held bytes.  What the kernel makes by itself and short requests, of names and
/// attributes, are always taken.  A write(2) waits for room in twice the bound.  It is never taken
/// in part: the loop driver of the kernel, among others, does not look at a short count.
#[derive(Clone, Debug)]
struct Memory {
    held: Arc<Bytes>,
    most: usize,
}

#[derive(Debug, Default)]
struct Bytes {
    state: Mutex<Sum>,
    less: Condvar,
}

#[derive(Debug, Default)]
struct Sum {
    held: usize,
    /// Threads that wait for room.
    waiting: usize,
}

/// A part of these bytes, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Held(Memory, usize);

impl Memory {
    pub fn new() -> Memory {
        Memory { held: Arc::default(), most: forebay::memory_share(LEAST_HELD, MOST_HELD) }
    }

    /// So many requests of 1 MiB that the kernel makes by itself leave a quarter of the bound.
    pub fn most_background(&self) -> u16 {
        ((self.most / 4 * 3) >> 20) as u16
    }

    fn lock(&self) -> MutexGuard<'_, Sum> {
        self.held.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For all of a request.
    pub fn take(&self, bytes: usize) -> Held {
        self.lock().held += bytes;
        Held(self.clone(), bytes)
    }

    /// For all of a write(2), if there is room within the time.  A write always has room where
    /// nothing else is held.
    pub fn take_write(&self, bytes: usize, time: Duration) -> Option<Held> {
        let most = 2 * self.most;
        let full = |sum: &mut Sum| sum.held > 0 && sum.held.saturating_add(bytes) > most;
        let mut sum = self.lock();
        sum.waiting += 1;
        let waited = self.held.less.wait_timeout_while(sum, time, full);
        (sum, _) = waited.unwrap_or_else(PoisonError::into_inner);
        sum.waiting -= 1;
        if full(&mut sum) {
            return None;
        }
        sum.held += bytes;
        Some(Held(self.clone(), bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut sum = self.0.lock();
        sum.held -= self.1;
        if sum.waiting > 0 {
            self.0.held.less.notify_all();
        }
    }
}

/// A limit on concurrent work.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    state: Mutex<Count>,
    freed: Condvar,
}

#[derive(Debug)]
struct Count {
    free: usize,
    /// Threads that wait for a slot.
    waiting: usize,
    /// A thread has waited without success, and no slot was released since.
    stalled: bool,
}

/// One slot, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Slots);

impl Slots {
    pub fn new(free: usize) -> Slots {
        let state = Mutex::new(Count { free, waiting: 0, stalled: false });
        Slots(Arc::new(Counted { state, freed: Condvar::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot; `None`: all are taken.
    pub fn take(&self) -> Option<Slot> {
        let mut state = self.lock();
        state.free = state.free.checked_sub(1)?;
        Some(Slot(self.clone()))
    }

    /// Takes a slot that others keep only briefly: waits a moment for one.  After a wait
    /// without success no thread waits until a slot is released.
    pub fn take_soon(&self, moment: Duration) -> Option<Slot> {
        // A holder that was preempted runs then, and need not wake anyone.
        const YIELDS: u32 = 16;
        let mut state = self.lock();
        for _ in 0..YIELDS {
            if state.free > 0 || state.stalled {
                break;
            }
            drop(state);
            thread::yield_now();
            state = self.lock();
        }
        if state.free == 0 && !state.stalled {
            state.waiting += 1;
            let none = |state: &mut Count| state.free == 0;
            let waited = self.0.freed.wait_timeout_while(state, moment, none);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
            state.stalled = state.free == 0;
        }
        state.free = state.free.checked_sub(1)?;
        Some(Slot(self.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.free += 1;
        state.stalled = false;
        if state.waiting > 0 {
            self.0 .0.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SOON: Duration = Duration::from_secs(60);

    /// Writes fill twice the bound and no more.  Whatever else comes is taken, and one write has
    /// room where nothing is held.
    #[test]
    fn held_bytes_are_bounded() {
        const MIB: usize = 1 << 20;
        let memory = Memory { most: MOST_HELD, ..Memory::new() };
        let all: Vec<Held> =
            std::iter::from_fn(|| memory.take_write(MIB, Duration::ZERO)).take(10_000).collect();
        assert_eq!(all.len(), 2 * MOST_HELD / MIB);
        assert!(memory.take_write(1, Duration::ZERO).is_none(), "it is full");
        let other = memory.take(MIB);
        assert_eq!(memory.lock().held, 2 * MOST_HELD + MIB);
        drop((all, other));
        assert!(memory.take_write(4 * MOST_HELD, Duration::ZERO).is_some(), "a long one alone");
        assert_eq!(memory.lock().held, 0, "who had no room holds nothing");
        let background = |most| Memory { most, ..Memory::new() }.most_background();
        assert_eq!([LEAST_HELD, MOST_HELD].map(background), [24, 192]);
    }

    /// No slot is free and the memory is full: a write takes no CPU until either changes.
    #[test]
    fn a_write_that_waits_takes_no_cpu() {
        use rustix::time::{clock_gettime, ClockId};
        const LONG: Duration = Duration::from_millis(500);
        for slot_is_freed in [false, true] {
            let rooms = Rooms {
                slots: Slots::new(usize::from(slot_is_freed)),
                memory: Memory { most: 1000, ..Memory::new() },
                moment: MOMENT,
            };
            let slot = rooms.slots.take();
            let held = rooms.memory.take(2000);
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let room = rooms.room_for_write(1);
                    let cpu = clock_gettime(ClockId::ThreadCPUTime);
                    (room, Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32))
                });
                thread::sleep(LONG);
                assert!(!waiter.is_finished());
                match slot_is_freed {
                    true => drop(slot),
                    false => drop(held),
                }
                let (room, cpu) = waiter.join().expect("a write that waits");
                assert_eq!(matches!(room, Room::Here(_)), slot_is_freed, "{room:?}");
                assert!(cpu < LONG / 50, "{cpu:?} of {LONG:?}");
            });
        }
    }

    /// Memory that is released wakes a write that waits.
    #[test]
    fn a_write_gets_the_memory_that_is_released() {
        let memory = Memory { most: 1000, ..Memory::new() };
        let (first, second) = (memory.take(1500), memory.take(500));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| memory.take_write(1000, SOON).is_some());
            while memory.lock().waiting == 0 {
                thread::yield_now();
            }
            drop(second);
            // 500 bytes are too few, so it waits for more.
            assert_eq!(memory.lock().waiting, 1);
            drop(first);
            assert!(waiter.join().expect("a write that waits"));
        });
        assert_eq!(memory.lock().held, 0);
    }

    #[test]
    fn slots_come_back() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take(), slots.take());
        assert!(first.is_some() && second.is_some() && slots.take().is_none());
        drop(first);
        let again = slots.take();
        assert!(again.is_some() && slots.take().is_none());
        drop(again);
        assert_eq!(slots.lock().free, 1);
    }

    /// A slot is free when the reply is made, and not before.  A thread that replies and waits again
    /// keeps it.
    #[test]
    fn a_reply_releases_the_slot() {
        let rooms = Rooms::new(1, true);
        let free = || rooms.slots.lock().free;
        let here = rooms.here().expect("a slot");
        assert_eq!(free(), 0);
        replies();
        assert_eq!(free(), 1);
        replies();
        drop(here);
        assert_eq!(free(), 1, "it is released once");

        let here = rooms.here().expect("a slot");
        let waits = replies_and_waits();
        replies();
        drop(here);
        assert_eq!(free(), 0, "it waits still");
        drop(waits);
        assert_eq!(free(), 1);
        drop(rooms.here());
        assert_eq!(free(), 1, "without a reply");
    }

    /// A thread that needs a slot waits while slots are released, and not when none is.
    #[test]
    fn who_has_waited_in_vain_waits_no_more() {
        const MOMENT: Duration = Duration::from_millis(50);
        let took = |slots: &Slots, moment| {
            let began = Instant::now();
            (slots.take_soon(moment), began.elapsed())
        };
        let slots = Slots::new(1);
        let (first, _) = took(&slots, MOMENT);
        assert!(first.is_some());
        let (none, waited) = took(&slots, MOMENT);
        assert!(none.is_none() && waited >= MOMENT);
        // The limit of the wait must not pass sooner, either.
        assert!(took(&slots, SOON).0.is_none() && slots.lock().stalled);
        drop(first);
        let second = slots.take();
        assert!(second.is_some() && !slots.lock().stalled);
        let waits = slots.clone();
        let waiter = thread::spawn(move || waits.take_soon(SOON).is_some());
        while slots.lock().waiting == 0 {
            thread::yield_now();
        }
        drop(second);
        assert!(waiter.join().expect("one who waits"), "it gets the one that comes back");
    }
}
