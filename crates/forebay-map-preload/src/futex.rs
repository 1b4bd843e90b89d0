// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for a number to change.  A thread that spun would keep the CPU from the one it waits for,
//! if that has a lower priority (SCHED_FIFO).  It takes no memory and no lock, so an allocator may
//! use it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::real::raw;

const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

/// Waits while this is the number.  May return earlier.
pub fn wait(at: &AtomicU32, while_it_is: u32) {
    let a = [at.as_ptr().addr(), WAIT, while_it_is as usize, 0, 0, 0];
    // SAFETY: the kernel reads the number, which outlives the call.
    unsafe { raw(libc::SYS_futex, a) };
}

/// Wakes so many threads that wait.
pub fn wake(at: &AtomicU32, most: u32) {
    // SAFETY: the call takes an address, and reads nothing.
    unsafe { raw(libc::SYS_futex, [at.as_ptr().addr(), WAKE, most as usize, 0, 0, 0]) };
}

/// A lock without an owner: a child of fork may release what its parent has taken.
#[derive(Debug)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and other threads may wait.
const WANTED: u32 = 2;

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    pub fn lock(&self) {
        let free = self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            wait(&self.0, WANTED);
        }
    }

    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            wake(&self.0, 1);
        }
    }
}
