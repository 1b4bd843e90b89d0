// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that load and store in a mapping while the program ends: the files are closed one
//! after the other, and the kernel would keep the mappings until there is no thread any more.
//! Who touches what is gone already waits for that.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::OnceLock;

use libc::{sigaction, siginfo_t};

use crate::real::raw;
use crate::state;

/// The thread that ends the program; it does not wait for itself.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// What the program does at these.
static BEFORE: [OnceLock<sigaction>; 2] = [const { OnceLock::new() }; 2];
const FAULTS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The thread that has begun to end the program; zero: none.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Whether this thread is to close the files.  If another one does, it ends the program when it
/// has, and this one waits for that.
pub fn is_first() -> bool {
    match FIRST.compare_exchange(0, thread(), Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        Err(first) if first == thread() => false,
        Err(_) => {
            let begun = std::time::Instant::now();
            while begun.elapsed() < std::time::Duration::from_secs(60) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            false
        }
    }
}

pub fn has_begun() -> bool {
    ENDS.load(Ordering::SeqCst) != 0
}

fn thread() -> i32 {
    // SAFETY: it only asks.
    unsafe { raw(libc::SYS_gettid, [0; 6]) as i32 }
}

extern "C" fn fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's, of a fault.
    let address = unsafe { (*info).si_addr() }.addr();
    if state::was_mapped(address) && thread() != ENDS.load(Ordering::SeqCst) {
        loop {
            // SAFETY: it waits for nothing, for ever.
            unsafe { raw(libc::SYS_ppoll, [0; 6]) };
        }
    }
    // The next one is the program's own: the instruction is run again.
    let before = FAULTS.iter().position(|&f| f == signal).and_then(|i| BEFORE[i].get());
    // SAFETY: what was set before, or all zeroes, which is the default.
    unsafe {
        let default = MaybeUninit::zeroed().assume_init();
        sigaction(signal, before.unwrap_or(&default), std::ptr::null_mut());
    }
}

/// From now on threads wait that touch what was mapped.
pub fn begin() {
    ENDS.store(thread(), Ordering::SeqCst);
    for (signal, before) in FAULTS.into_iter().zip(&BEFORE) {
        // SAFETY: the handler only looks at atomics and waits.
        unsafe {
            let mut own: sigaction = MaybeUninit::zeroed().assume_init();
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = fault;
            own.sa_sigaction = handler as usize;
            own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut own.sa_mask);
            let mut old = MaybeUninit::zeroed().assume_init();
            if libc::sigaction(signal, &own, &mut old) == 0 {
                let _ = before.set(old);
            }
        }
    }
}
