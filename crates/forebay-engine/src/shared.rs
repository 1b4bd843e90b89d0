// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that others may change at any time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

/// A range of memory, read and written by atomic accesses of eight bytes, or of one at the
/// edges.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    start: NonNull<u8>,
    len: usize,
}

impl SharedBytes {
    /// # Safety
    ///
    /// The memory is there, for loads and stores, for as long as this is used, and no
    /// reference is made to it.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> SharedBytes {
        SharedBytes { start, len }
    }

    /// The start of the memory.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// In bytes.
    #[allow(clippy::len_without_is_empty)] // a range of memory is not asked for that
    pub fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `len` bytes from `at` on.  Panics if they are not within the memory.
    pub fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}, {len} of {}", self.len);
        // SAFETY: within the memory, as was just asserted.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Loads what lies there.  Panics if it is not within.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len());
        let (words, rest) = to.split_at_mut(if at.is_multiple_of(8) { to.len() & !7 } else { 0 });
        for (i, word) in words.chunks_exact_mut(8).enumerate() {
            // SAFETY: within the memory and aligned, by an access that any other may meet.
            let value = unsafe { AtomicU64::from_ptr(from.add(i * 8).cast()) };
            word.copy_from_slice(&value.load(Ordering::Relaxed).to_ne_bytes());
        }
        for (i, byte) in rest.iter_mut().enumerate() {
            // SAFETY: the same, of a byte.
            *byte =
                unsafe { AtomicU8::from_ptr(from.add(words.len() + i)) }.load(Ordering::Relaxed);
        }
    }

    /// Stores it there.  Panics if that is not within.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len());
        let whole = if at.is_multiple_of(8) { from.len() & !7 } else { 0 };
        for (i, word) in from[..whole].chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().expect("chunks of eight"));
            // SAFETY: within the memory and aligned, by an access that any other may meet.
            unsafe { AtomicU64::from_ptr(to.add(i * 8).cast()) }.store(word, Ordering::Relaxed);
        }
        for (i, byte) in from[whole..].iter().enumerate() {
            // SAFETY: the same, of a byte.
            unsafe { AtomicU8::from_ptr(to.add(whole + i)) }.store(*byte, Ordering::Relaxed);
        }
    }
}
