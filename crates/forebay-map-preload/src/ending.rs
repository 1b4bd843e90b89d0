// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that load and store in a mapping while the program ends.  The files are closed one
//! after another, but the kernel would keep the mappings until the last thread has ended.  A
//! thread that touches a mapping that is already gone waits for that.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

use libc::{sigaction, siginfo_t};

use crate::extent;
use crate::real::{raw, thread};
use crate::signals;

/// The thread that ends the program; it does not wait for itself.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// The program's own actions for these signals.
static BEFORE: [OnceLock<sigaction>; 2] = [const { OnceLock::new() }; 2];
const FAULTS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The thread that first began to end the program; zero: none.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Whether it has closed the files.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// The thread that closes the files; when this is dropped, they are closed.
#[derive(Debug)]
pub struct First(());

impl Drop for First {
    fn drop(&mut self) {
        CLOSED.store(true, Ordering::SeqCst);
    }
}

/// Makes this thread the one that closes the files.  None: another thread does or did.  This
/// thread waits for that, however long a close takes: ending the program earlier would lose
/// stores.
pub fn first() -> Option<First> {
    match FIRST.compare_exchange(0, thread(), Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => return Some(First(())),
        Err(first) if first == thread() => {}
        Err(_) => {
            while !CLOSED.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    None
}

/// In a child: the parent's threads do not exist, so what they have begun does not count.
pub fn in_child() {
    FIRST.store(0, Ordering::SeqCst);
    CLOSED.store(false, Ordering::SeqCst);
    ENDS.store(0, Ordering::SeqCst);
}

pub fn has_begun() -> bool {
    ENDS.load(Ordering::SeqCst) != 0
}

/// Stops a thread that would otherwise see a file closed by the end of the program, or would
/// open a file that no one closes.
pub fn stay_if_begun() {
    if has_begun() && thread() != ENDS.load(Ordering::SeqCst) {
        stay();
    }
}

/// Waits until the process ends.
fn stay() -> ! {
    loop {
        // SAFETY: it waits for nothing, forever.
        unsafe { raw(libc::SYS_ppoll, [0; 6]) };
    }
}

extern "C" fn fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes it for a fault.
    let address = unsafe { (*info).si_addr() }.addr();
    let ends = ENDS.load(Ordering::SeqCst);
    if ends != 0 && extent::may_have(address, 1) && thread() != ends {
        stay();
    }
    // The instruction is run again, and the next fault is the program's own.
    let before = FAULTS.iter().position(|&f| f == signal).and_then(|i| BEFORE[i].get());
    // SAFETY: it is the action that was set before, or all zeroes, which is the default.
    unsafe {
        let default = MaybeUninit::zeroed().assume_init();
        sigaction(signal, before.unwrap_or(&default), std::ptr::null_mut());
    }
}

/// Blocks the signals in this thread that have a handler, as far as the library blocks them while it
/// works.  Others end the process as ever.
pub fn block_handled() {
    let mut mask = 0u64;
    for signal in (1..=64).filter(|signal: &c_int| signals::BLOCKED & 1 << (signal - 1) != 0) {
        // The kernel's struct, whose first part is the handler.
        let mut action = [0usize; 8];
        let a = [signal as usize, 0, action.as_mut_ptr().addr(), size_of::<u64>(), 0, 0];
        // SAFETY: the kernel stores the action, which is shorter.
        let known = unsafe { raw(libc::SYS_rt_sigaction, a) } == 0;
        if known && action[0] != libc::SIG_DFL && action[0] != libc::SIG_IGN {
            mask |= 1 << (signal - 1);
        }
    }
    signals::block(mask);
}

/// Makes threads wait that touch a mapping that is gone.
pub fn begin() {
    ENDS.store(thread(), Ordering::SeqCst);
    for (signal, before) in FAULTS.into_iter().zip(&BEFORE) {
        // SAFETY: the handler only reads atomics and waits.
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
