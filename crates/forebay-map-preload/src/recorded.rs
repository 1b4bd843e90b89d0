// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that arrived in a thread while the library was busy in it (`signals.rs`).
//!
//! Nothing here has a lock: whatever interrupts the thread has ended when the thread goes on.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::siginfo_t;

use crate::planted::{self, Planted};
use crate::real::process;

/// A signal that arrived while the library was busy.
struct Record {
    info: UnsafeCell<MaybeUninit<siginfo_t>>,
    signal: Cell<c_int>,
    /// The process that the signal was sent to.  A child that is forked meanwhile has a copy of
    /// this record but not the signal.
    process: Cell<c_int>,
}

/// All of them, in their order.
pub struct Kept {
    all: [Record; RECORDS],
    /// The numbers of signals that were recorded, and of those that were taken out again.  They grow
    /// only, so each change of them by an interruption is seen.
    recorded: AtomicUsize,
    taken: AtomicUsize,
    /// The mask of the interrupted code.
    pub mask: Cell<u64>,
    /// The thread has sent itself the signal whose handler handles the recorded ones.
    pub carried: Cell<bool>,
}
const RECORDS: usize = 8;

impl Kept {
    pub const fn new() -> Kept {
        Kept {
            all: [const {
                Record {
                    info: UnsafeCell::new(MaybeUninit::zeroed()),
                    signal: Cell::new(0),
                    process: Cell::new(0),
                }
            }; RECORDS],
            recorded: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            mask: Cell::new(0),
            carried: Cell::new(false),
        }
    }

    pub fn has_any(&self) -> bool {
        self.recorded.load(Ordering::Relaxed) != self.taken.load(Ordering::Relaxed)
    }

    /// Called with all signals blocked.  False: there is no room.
    ///
    /// # Safety
    /// The address is that of the signal's record by the kernel.
    pub unsafe fn add(&self, signal: c_int, info: *const siginfo_t) -> bool {
        if planted::is(Planted::OneSignal) {
            self.recorded.store(self.taken.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let at = self.recorded.load(Ordering::Relaxed);
        // One stays free: it is being read, perhaps.
        if at - self.taken.load(Ordering::Relaxed) >= RECORDS - 1 {
            return false;
        }
        let one = &self.all[at % RECORDS];
        // SAFETY: the caller guarantees it, and nobody reads this entry.
        unsafe { (*one.info.get()).write(*info) };
        one.process.set(process());
        one.signal.set(signal);
        self.recorded.store(at + 1, Ordering::Relaxed);
        true
    }

    /// The signals that are recorded, as a mask.
    pub fn signals(&self) -> u64 {
        let all = self.taken.load(Ordering::Relaxed)..self.recorded.load(Ordering::Relaxed);
        all.fold(0, |mask, at| mask | 1 << (self.all[at % RECORDS].signal.get() - 1))
    }

    /// Takes out the first one of this process.
    pub fn take(&self) -> Option<(c_int, siginfo_t)> {
        loop {
            let at = self.taken.load(Ordering::Relaxed);
            if at == self.recorded.load(Ordering::Relaxed) {
                return None;
            }
            let relaxed = Ordering::Relaxed;
            if self.taken.compare_exchange(at, at + 1, relaxed, relaxed).is_err() {
                continue;
            }
            let one = &self.all[at % RECORDS];
            if one.process.get() == process() {
                // SAFETY: it was written before it was counted as recorded for this thread's code.
                return Some((one.signal.get(), unsafe { (*one.info.get()).assume_init_read() }));
            }
        }
    }
}
