// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limit of the process for the size of files (RLIMIT_FSIZE).  A write that goes to the pool does
//! not pass the kernel, which would look at the limit.
//!
//! The limit is read when a file is opened and when the program sets it, so a write costs no system
//! call.  What another process sets (prlimit) counts from the next open on.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{iovec, rlimit};

use crate::planted::{self, Planted};
use crate::real::{self, raw};

static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Reads the limit.
pub fn look() {
    // A child of vfork has a limit of its own, and this memory is its parent's.
    if real::is_vforked() {
        return;
    }
    let mut now = [u64::MAX; 2];
    let a = [0, libc::RLIMIT_FSIZE as usize, 0, now.as_mut_ptr().addr(), 0, 0];
    // SAFETY: the kernel stores two numbers.
    unsafe { raw(libc::SYS_prlimit64, a) };
    LIMIT.store(now[0], Ordering::Relaxed);
}

pub fn is_set() -> bool {
    LIMIT.load(Ordering::Relaxed) != u64::MAX && !planted::is(Planted::LimitIgnored)
}

/// The part of a write that the limit allows.  None: all of it.  An error comes with a signal, as from
/// the kernel.
pub fn clip(all: &[iovec], at: u64, total: u64) -> Result<Option<Vec<iovec>>, c_int> {
    let left = LIMIT.load(Ordering::Relaxed).saturating_sub(at);
    if total <= left {
        return Ok(None);
    }
    if left == 0 {
        let to = [real::process() as usize, real::thread() as usize, libc::SIGXFSZ as usize];
        // SAFETY: it takes numbers.
        unsafe { raw(libc::SYS_tgkill, [to[0], to[1], to[2], 0, 0, 0]) };
        return Err(libc::EFBIG);
    }
    let mut left = left as usize;
    let part = all.iter().map(|b| {
        let iov_len = b.iov_len.min(left);
        left -= iov_len;
        iovec { iov_len, ..*b }
    });
    Ok(Some(part.collect()))
}

macro_rules! limits {
    ($($set:ident $either:ident;)+) => {$(
        /// # Safety
        /// The contract of setrlimit(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $set(what: u32, new: *const rlimit) -> c_int {
            let a = [0, what as usize, new.addr(), 0, 0, 0];
            // SAFETY: the caller guarantees it.
            let done = real::told(unsafe { raw(libc::SYS_prlimit64, a) }) as c_int;
            look();
            done
        }
        /// # Safety
        /// The contract of prlimit(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $either(
            pid: libc::pid_t,
            what: u32,
            new: *const rlimit,
            old: *mut rlimit,
        ) -> c_int {
            let a = [pid as usize, what as usize, new.addr(), old.addr(), 0, 0];
            // SAFETY: the caller guarantees it.
            let done = real::told(unsafe { raw(libc::SYS_prlimit64, a) }) as c_int;
            look();
            done
        }
    )+};
}
limits! {
    setrlimit prlimit;
    setrlimit64 prlimit64;
}
