// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for the library itself.  The C library's allocator has locks.  Code that a signal
//! handler has interrupted may hold them when the handler calls us.
//!
//! Block sizes are powers of two, and each size has a list of free blocks.  Freed blocks are
//! reused and not returned to the kernel.  Larger blocks come from the kernel and are returned
//! to it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;

use crate::futex::Lock;
use crate::real::raw;
use crate::signals::hold;

/// From 16 bytes to 4 MiB.
const LEAST: u32 = 4;
const MOST: u32 = 22;
const SIZES: usize = (MOST - LEAST + 1) as usize;
/// Bytes requested from the kernel at once for small blocks.
const CHUNK: usize = 256 << 10;

struct Free {
    lock: Lock,
    first: UnsafeCell<*mut u8>,
}

// SAFETY: the list is accessed only with the lock held.
unsafe impl Sync for Free {}

pub struct Memory([Free; SIZES]);

impl Memory {
    pub const fn new() -> Memory {
        Memory([const { Free { lock: Lock::new(), first: UnsafeCell::new(null_mut()) } }; SIZES])
    }

    /// Waits until no other thread is in here.  For a fork, whose child has only this thread.
    pub fn stop(&self) {
        self.0.iter().for_each(|free| free.lock.lock());
    }

    pub fn go_on(&self) {
        self.0.iter().for_each(|free| free.lock.unlock());
    }
}

fn from_kernel(bytes: usize) -> *mut u8 {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let a = [0, bytes, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping.
    match unsafe { raw(libc::SYS_mmap, a) } {
        -4095..=-1 => null_mut(),
        at => std::ptr::with_exposed_provenance_mut(at as usize),
    }
}

/// The size of the block for a layout, as a power of two.  None: the kernel allocates it.
/// Blocks are aligned to their size, or to a page.
fn size_of(layout: Layout) -> Option<u32> {
    let bytes = layout.size().max(layout.align()).max(1 << LEAST);
    let bits = bytes.next_power_of_two().trailing_zeros();
    (bits <= MOST && layout.align() <= 4096).then_some(bits)
}

// SAFETY: a block belongs to its user or to a list, and has its size and alignment.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(bits) = size_of(layout) else {
            return match layout.align() <= 4096 {
                true => from_kernel(layout.size()),
                false => null_mut(),
            };
        };
        let bytes = 1usize << bits;
        let free = &self.0[(bits - LEAST) as usize];
        let _busy = hold();
        free.lock.lock();
        // SAFETY: the lock is held, and the first word of a free block is the next one.
        let found = unsafe {
            if (*free.first.get()).is_null() {
                let all = from_kernel(bytes.max(CHUNK));
                if !all.is_null() {
                    for at in (0..bytes.max(CHUNK)).step_by(bytes).rev() {
                        let block = all.add(at);
                        block.cast::<*mut u8>().write(*free.first.get());
                        *free.first.get() = block;
                    }
                }
            }
            let found = *free.first.get();
            if !found.is_null() {
                *free.first.get() = found.cast::<*mut u8>().read();
            }
            found
        };
        free.lock.unlock();
        found
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(bits) = size_of(layout) else {
            // SAFETY: the kernel returned this mapping for this layout.
            unsafe { raw(libc::SYS_munmap, [block.addr(), layout.size(), 0, 0, 0, 0]) };
            return;
        };
        let free = &self.0[(bits - LEAST) as usize];
        let _busy = hold();
        free.lock.lock();
        // SAFETY: the caller frees the block, and the lock is held.
        unsafe {
            block.cast::<*mut u8>().write(*free.first.get());
            *free.first.get() = block;
        }
        free.lock.unlock();
    }
}
