// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that the caller of this command ignores or blocks: a process inherits both.
//!
//! The command itself takes all signals.  With SIGCHLD ignored, the end of a child could not be
//! seen; with SIGTERM blocked, nothing but SIGKILL would end a server.  The program that map-run
//! executes gets its signals as the caller had them.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sets of signals; bit 0 is signal 1.
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

const ALL: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// The standard library ignores SIGPIPE before it calls main, so the C library calls this first.
#[used]
#[link_section = ".init_array"]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    for signal in ALL.filter(|signal| is_ignored(*signal)) {
        IGNORED.fetch_or(bit(signal), Relaxed);
    }
    let mut blocked = set_of(0);
    // SAFETY: no new set is given, and the old one has a place.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut blocked) };
    // SAFETY: the set is valid, whether or not the call has changed it.
    for signal in ALL.filter(|signal| unsafe { libc::sigismember(&blocked, *signal) } == 1) {
        BLOCKED.fetch_or(bit(signal), Relaxed);
    }
}

fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// False for those that the C library keeps for itself.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and the old one is read only if the call has written it.
    unsafe {
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn set_of(signals: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes the set, and the others change it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in ALL.filter(|signal| signals & bit(*signal) != 0) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

fn block(signals: u64) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: the set is valid.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Takes all signals, before the first thread starts.
pub fn take_all() -> io::Result<()> {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    block(0)
}

/// The program gets the signals as the caller had them.
pub fn give_back(program: &mut Command) {
    let given = || {
        let ignored = IGNORED.load(Relaxed);
        for signal in ALL.filter(|signal| ignored & bit(*signal) != 0) {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        block(BLOCKED.load(Relaxed))
    };
    // SAFETY: the closure takes no lock and no memory.
    unsafe { program.pre_exec(given) };
}
