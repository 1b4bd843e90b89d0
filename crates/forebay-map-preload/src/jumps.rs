// SPDX-License-Identifier: MIT OR Apache-2.0
//! The target of a longjmp(3): the stack pointer that setjmp(3) has stored.
//!
//! The C library mangles it with a value of each thread (PTR_MANGLE).  The method is not part
//! of its interface.  So it is tried at the start of the program, and not used if the result is
//! wrong.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the stack pointer can be read.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// More than the words of a `sigjmp_buf`.
const WORDS: usize = 64;

extern "C" {
    fn _setjmp(set: *mut c_void) -> i32;
}

/// At the start of the program: checks that the stack pointer that is read is in this
/// function's stack.
pub fn start() {
    let mut set = [0usize; WORDS];
    // SAFETY: the buffer is large enough, and no one jumps to it.
    unsafe { _setjmp((&raw mut set).cast()) };
    let here = (&raw const set).addr();
    // SAFETY: setjmp has filled it.
    let to = unsafe { read((&raw const set).cast()) };
    let is = to.is_some_and(|to| to.abs_diff(here) < 4096);
    KNOWN.store(is, Ordering::Relaxed);
}

/// # Safety
/// `set` was filled by setjmp(3) of this thread.
pub unsafe fn stack_of(set: *const c_void) -> Option<usize> {
    match KNOWN.load(Ordering::Relaxed) {
        // SAFETY: the caller guarantees it.
        true => unsafe { read(set) },
        false => None,
    }
}

/// # Safety
/// The contract of `stack_of` applies.
#[cfg(target_arch = "x86_64")]
unsafe fn read(set: *const c_void) -> Option<usize> {
    /// The index of the stack pointer in a `jmp_buf`.
    const STACK: usize = 6;
    const ROTATED_BY: u32 = 17;
    let guard: usize;
    // SAFETY: the C library's block of the thread has the value at that offset; the rest the
    // caller guarantees.
    unsafe {
        std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        Some(set.cast::<usize>().add(STACK).read().rotate_right(ROTATED_BY) ^ guard)
    }
}

/// # Safety
/// The contract of `stack_of` applies.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn read(_: *const c_void) -> Option<usize> {
    None
}
