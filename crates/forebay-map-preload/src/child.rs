// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is a child of the process that the command has started, and the configuration, which
//! a child does not have.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::OnceLock;

use forebay_map::PAGE;

use crate::config::Config;
use crate::planted::{self, Planted};
use crate::real::process;

pub static CONFIG: OnceLock<Config> = OnceLock::new();
pub static CHILD: AtomicBool = AtomicBool::new(false);
/// Nonzero, except in a child: the kernel zeroes it there, however the child was made.
pub static PARENT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
pub static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The configuration, if the command started the program and this is not a child of it.
pub fn config() -> Option<&'static Config> {
    if is_child() {
        return None;
    }
    CONFIG.get()
}

/// The configuration, in a child that may not open such files.
pub fn refused_config() -> Option<&'static Config> {
    CONFIG.get().filter(|_| is_child())
}

pub fn is_child() -> bool {
    let parent = PARENT.load(Ordering::Relaxed);
    // SAFETY: if there is such a page, it is never unmapped.
    let unknown = || unsafe { !parent.is_null() && parent.read_volatile() == 0 };
    CHILD.load(Ordering::Relaxed) || unknown() && !planted::is(Planted::ChildUnseen)
}

/// Makes a page that only the process has that makes it.
pub fn make_parent() -> std::io::Result<()> {
    let last_error = std::io::Error::last_os_error;
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; one byte of it is written.
    unsafe {
        let p = libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0);
        if p == libc::MAP_FAILED || libc::madvise(p, PAGE, libc::MADV_WIPEONFORK) != 0 {
            return Err(last_error());
        }
        p.cast::<u8>().write_volatile(1);
        PARENT.store(p.cast(), Ordering::SeqCst);
    }
    Ok(())
}

/// Whether this is a child made by fork, or by vfork, of which no one is notified: the table is
/// the parent's.
pub fn is_elsewhere() -> bool {
    is_child() || process() != PROCESS.load(Ordering::Relaxed)
}
