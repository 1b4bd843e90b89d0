// SPDX-License-Identifier: MIT OR Apache-2.0
//! The target of a longjmp(3): the stack pointer that setjmp(3) has stored.
//!
//! The C library stores it mangled, by a value that each thread has (PTR_MANGLE).  How, is not part
//! of its interface, so it is tried at the start of the program, and not used where the result is
//! not what it has to be.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// The stack pointer can be read.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// Words of a `sigjmp_buf`, and more.
const WORDS: usize = 64;

extern "C" {
    fn _setjmp(set: *mut c_void) -> i32;
}

/// At the start of the program: whether what is read is the stack of this function.
pub fn start() {
    let mut set = [0usize; WORDS];
    // SAFETY: it is large enough, and nobody jumps to it.
    unsafe { _setjmp((&raw mut set).cast()) };
    let here = (&raw const set).addr();
    // SAFETY: it was filled.
    let to = unsafe { read((&raw const set).cast()) };
    let is = to.is_some_and(|to| to.abs_diff(here) < 4096);
    KNOWN.store(is, Ordering::Relaxed);
}

/// # Safety
/// `set` was filled by setjmp(3) of this thread.
pub unsafe fn stack_of(set: *const c_void) -> Option<usize> {
    match KNOWN.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        true => unsafe { read(set) },
        false => None,
    }
}

/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
unsafe fn read(set: *const c_void) -> Option<usize> {
    /// In a `jmp_buf`.
    const STACK: usize = 6;
    const ROTATED_BY: u32 = 17;
    let guard: usize;
    // SAFETY: the thread's block of the C library has the value at that place; the caller's promise.
    unsafe {
        std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        Some(set.cast::<usize>().add(STACK).read().rotate_right(ROTATED_BY) ^ guard)
    }
}

/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn read(_: *const c_void) -> Option<usize> {
    None
}
