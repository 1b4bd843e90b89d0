// SPDX-License-Identifier: MIT OR Apache-2.0
//! poll, select and epoll on descriptors with which the kernel does nothing, and vmsplice of
//! memory that may later belong to another file.
//!
//! A regular file can always be read and written, so poll and select report that at once; epoll
//! refuses regular files.

use std::ffi::{c_int, c_uint};
use std::ptr::from_mut;

use libc::{epoll_event, iovec, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::child;
use crate::given::Given;
use crate::kept;
use crate::places;
use crate::real::{self, fail};
use crate::signals;
use crate::state;

/// The events that the kernel reports for any regular file.
const ALWAYS: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

fn is_ours(fd: c_int) -> bool {
    state::is_ours(fd) && state::is_current(fd)
}

/// # Safety
/// `fds` has `n` entries; `wait` polls that many, and returns at once if asked to.
unsafe fn poll_with(
    fds: *mut pollfd,
    n: nfds_t,
    wait: impl Fn(*mut pollfd, bool) -> c_int,
) -> c_int {
    if !places::any_files() || fds.is_null() || n > kept::MOST as nfds_t {
        return wait(fds, true);
    }
    // SAFETY: the caller guarantees it.
    let all = unsafe { std::slice::from_raw_parts_mut(fds, n as usize) };
    if !all.iter().any(|one| is_ours(one.fd)) {
        return wait(fds, true);
    }
    let mut others = all.to_vec();
    let mut ready = 0;
    for (one, other) in all.iter_mut().zip(&mut others).filter(|(one, _)| is_ours(one.fd)) {
        // The kernel skips the entry.
        other.fd = -1;
        one.revents = one.events & ALWAYS;
        ready += c_int::from(one.revents != 0);
    }
    let found = wait(others.as_mut_ptr(), ready == 0);
    if found < 0 {
        return found;
    }
    for (one, other) in all.iter_mut().zip(&others).filter(|(_, other)| other.fd >= 0) {
        one.revents = other.revents;
    }
    found + ready
}

/// # Safety
/// The contract of poll(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { poll_with(fds, n, |fds, waits| real::poll(fds, n, if waits { timeout } else { 0 })) }
}

/// # Safety
/// The contract of ppoll(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the caller guarantees it.
    unsafe {
        poll_with(fds, n, |fds, waits| {
            let timeout = if waits { timeout } else { &raw const none };
            signals::with_mask(mask, |mask| real::ppoll(fds, n, timeout, mask))
        })
    }
}

extern "C" {
    fn __chk_fail() -> !;
}

/// # Safety
/// The contract of poll(2), with an array of `room` bytes applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match room / size_of::<pollfd>() < n as usize {
            true => __chk_fail(),
            false => poll(fds, n, timeout),
        }
    }
}

/// # Safety
/// The contract of ppoll(2), with an array of `room` bytes applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match room / size_of::<pollfd>() < n as usize {
            true => __chk_fail(),
            false => ppoll(fds, n, timeout, mask),
        }
    }
}

/// Sets of descriptors for select(2), as words of 64 bits: programs may use larger sets than
/// the C library's type.
type Set = *mut u64;

/// # Safety
/// The sets have `n` bits or are null; `wait` is select.
unsafe fn select_with(n: c_int, sets: [Set; 3], wait: impl Fn(bool) -> c_int) -> c_int {
    let mut ours = [const { Vec::new() }; 3];
    if places::any_files() {
        for (set, ours) in sets.iter().zip(&mut ours).filter(|(set, _)| !set.is_null()) {
            for fd in 0..n.clamp(0, kept::MOST as c_int) {
                // SAFETY: the caller guarantees it.
                let word = unsafe { &mut *set.add(fd as usize / 64) };
                let bit = 1u64 << (fd % 64);
                if *word & bit != 0 && is_ours(fd) {
                    *word &= !bit;
                    ours.push(fd);
                }
            }
        }
    }
    // A file never has an exceptional condition.
    let ready = ours[0].len() + ours[1].len();
    let found = wait(ready == 0);
    if found < 0 {
        return found;
    }
    for (set, fd) in
        sets.iter().zip(&ours).take(2).flat_map(|(s, all)| all.iter().map(move |fd| (s, fd)))
    {
        // SAFETY: the caller guarantees it.
        unsafe { *set.add(*fd as usize / 64) |= 1 << (fd % 64) };
    }
    found + ready as c_int
}

/// # Safety
/// The contract of select(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn select(
    n: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *mut timeval,
) -> c_int {
    let mut none = timeval { tv_sec: 0, tv_usec: 0 };
    let none = from_mut(&mut none);
    // SAFETY: the caller guarantees it.
    unsafe {
        select_with(n, [read, write, except], |waits| {
            real::select(n, read, write, except, if waits { timeout } else { none })
        })
    }
}

/// # Safety
/// The contract of pselect(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn pselect(
    n: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the caller guarantees it.
    unsafe {
        select_with(n, [read, write, except], |waits| {
            let timeout = if waits { timeout } else { &raw const none };
            signals::with_mask(mask, |mask| real::pselect(n, read, write, except, timeout, mask))
        })
    }
}

/// # Safety
/// The contract of epoll_pwait(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    to: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let waits = |mask| unsafe { real::epoll_pwait(epoll, to, n, timeout, mask) };
    // SAFETY: the caller guarantees it.
    unsafe { signals::with_mask(mask, waits) }.unwrap_or_else(|| fail(libc::ENOSYS))
}

/// # Safety
/// The contract of epoll_pwait2(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    to: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let waits = |mask| unsafe { real::epoll_pwait2(epoll, to, n, timeout, mask) };
    // SAFETY: the caller guarantees it.
    unsafe { signals::with_mask(mask, waits) }.unwrap_or_else(|| fail(libc::ENOSYS))
}

/// # Safety
/// The contract of epoll_ctl(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    what: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if state::is_ours(fd) && !child::is_child() {
        // The kernel gives the same error for any regular file.
        return fail(libc::EPERM);
    }
    let a = [epoll as usize, what as usize, fd as usize, event.addr(), 0, 0];
    // SAFETY: the caller guarantees it.
    real::told(unsafe { real::raw(libc::SYS_epoll_ctl, a) }) as c_int
}

/// Copies the bytes into the pipe, because memory of a mapping may belong to another file when
/// the pipe is read.
///
/// # Safety
/// The contract of vmsplice(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn vmsplice(
    fd: c_int,
    v: *const iovec,
    n: usize,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        let writes = || real::fcntl64(fd, libc::F_GETFL, 0) & libc::O_ACCMODE != libc::O_RDONLY;
        if places::any_files() && Given::Many(v, n).has_mapped() && writes() {
            let wait = match flags & libc::SPLICE_F_NONBLOCK {
                0 => 0,
                _ => libc::RWF_NOWAIT,
            };
            return real::pwritev64v2(fd, v, n as c_int, -1, wait);
        }
        let a = [fd as usize, v.addr(), n, flags as usize, 0, 0];
        real::told(real::raw(libc::SYS_vmsplice, a))
    }
}
