// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of files between processes.  An exclusive file needs none: requests are granted.  A
//! shared file uses the kernel's locks through a descriptor of the library, because the
//! program's descriptor has no effect in the kernel.
//!
//! The locks belong to open file descriptions (F_OFD_SETLK).  Other record locks disappear as
//! soon as the process closes any descriptor of the file, which the library itself does.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{flock, off_t};

use crate::guarded::lock;
use crate::real::fail;
use crate::state::Desc;

fn is_of_description(what: c_int) -> bool {
    [libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_OFD_GETLK].contains(&what)
}

/// The checks that the kernel makes first.
fn is_valid(desc: &Desc, what: c_int, l: &flock) -> Result<(), c_int> {
    let mode = desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE;
    let allowed = match c_int::from(l.l_type) {
        libc::F_UNLCK => Some(true),
        libc::F_RDLCK => Some(mode != libc::O_WRONLY),
        libc::F_WRLCK => Some(mode != libc::O_RDONLY),
        _ => None,
    };
    // F_GETLK checks this first; the other calls check the range first.
    if what == libc::F_GETLK && (allowed.is_none() || l.l_type == libc::F_UNLCK as i16) {
        return Err(libc::EINVAL);
    }
    let from = match c_int::from(l.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => *lock(&desc.at),
        libc::SEEK_END => desc.file.map().as_ref().ok_or(libc::EIO)?.size(),
        _ => return Err(libc::EINVAL),
    };
    let start = (from as off_t).checked_add(l.l_start).ok_or(libc::EOVERFLOW)?;
    match l.l_len {
        _ if start < 0 => return Err(libc::EINVAL),
        len if len > 0 => start.checked_add(len - 1).map(drop).ok_or(libc::EOVERFLOW)?,
        len if start.checked_add(len).is_none_or(|first| first < 0) => return Err(libc::EINVAL),
        _ => {}
    }
    match allowed {
        None => Err(libc::EINVAL),
        Some(false) if ![libc::F_GETLK, libc::F_OFD_GETLK].contains(&what) => Err(libc::EBADF),
        // Locks of descriptions have no process.
        _ if is_of_description(what) && l.l_pid != 0 => Err(libc::EINVAL),
        Some(_) => Ok(()),
    }
}

/// Implements fcntl(2) with F_SETLK, F_SETLKW or F_GETLK.  Also with the commands for locks of
/// descriptions, if the file is exclusive and open once.
pub fn record(desc: &Desc, what: c_int, l: &mut flock) -> c_int {
    if let Err(errno) = is_valid(desc, what, l) {
        return fail(errno);
    }
    if !desc.file.locks.are_shared() {
        // The file is exclusive, and such locks apply between processes.
        if [libc::F_GETLK, libc::F_OFD_GETLK].contains(&what) {
            l.l_type = libc::F_UNLCK as i16;
        }
        return 0;
    }
    let from = match c_int::from(l.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => *lock(&desc.at),
        libc::SEEK_END => match desc.file.map().as_ref() {
            Some(map) => map.size(),
            None => return fail(libc::EBADF),
        },
        _ => return fail(libc::EINVAL),
    };
    let Some(start) = (from as off_t).checked_add(l.l_start) else { return fail(libc::EOVERFLOW) };
    let mut asked = flock { l_start: start, l_whence: libc::SEEK_SET as i16, ..*l };
    let what = match what {
        libc::F_SETLK => libc::F_OFD_SETLK,
        libc::F_SETLKW => libc::F_OFD_SETLKW,
        _ => libc::F_OFD_GETLK,
    };
    let done = desc.file.locks.control(what, &mut asked);
    match (what, c_int::from(asked.l_type)) {
        (libc::F_OFD_GETLK, libc::F_UNLCK) if done == 0 => l.l_type = asked.l_type,
        (libc::F_OFD_GETLK, _) if done == 0 => *l = asked,
        _ => {}
    }
    done
}

/// Implements lockf(3).
pub fn section(desc: &Desc, how: c_int, n: off_t) -> c_int {
    // SAFETY: all zeroes is a value of it.
    let mut l: flock = unsafe { std::mem::zeroed() };
    (l.l_whence, l.l_len) = (libc::SEEK_CUR as i16, n);
    l.l_type = if how == libc::F_ULOCK { libc::F_UNLCK } else { libc::F_WRLCK } as i16;
    match how {
        libc::F_LOCK => record(desc, libc::F_SETLKW, &mut l),
        libc::F_TLOCK | libc::F_ULOCK => record(desc, libc::F_SETLK, &mut l),
        libc::F_TEST => match record(desc, libc::F_GETLK, &mut l) {
            0 if l.l_type != libc::F_UNLCK as i16 => fail(libc::EACCES),
            done => done,
        },
        _ => fail(libc::EINVAL),
    }
}
