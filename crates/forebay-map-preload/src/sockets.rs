// SPDX-License-Identifier: MIT OR Apache-2.0
//! setsockopt of SO_ZEROCOPY, and MSG_ZEROCOPY.
//!
//! With both the kernel sends the program's memory later, and memory of a mapping may belong to
//! another file by then.  A program that gets an error for the first sends copies.  A socket may have
//! it since before the program, or from another one.  So what a call with the second sends from a
//! mapping is copied to memory that is nobody else's.  What a cipher of the kernel (AF_ALG) writes
//! to who receives it is copied in the same way.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};

use crate::child;
use crate::direct::{self, Beside};
use crate::extent;
use crate::given::{self, Given};
use crate::guarded;
use crate::planted::{self, Planted};
use crate::real::{self, errno, fail, may_map, raw, told};
use crate::signals::{self, hold};

/// # Safety
/// The contract of setsockopt(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: u32,
) -> c_int {
    let is_zerocopy = level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY;
    if is_zerocopy && may_map() && !planted::is(Planted::ZerocopyLetThrough) {
        return fail(libc::EOPNOTSUPP);
    }
    let a = [fd as usize, level as usize, name as usize, value.addr(), len as usize, 0];
    // SAFETY: the caller guarantees it.
    told(unsafe { raw(libc::SYS_setsockopt, a) }) as c_int
}

/// Whether a call sends later what lies in a mapping.
#[inline]
fn is_wanted(flags: c_int, given: impl FnOnce() -> Given) -> bool {
    flags & libc::MSG_ZEROCOPY != 0
        && given().has_mapped()
        && !guarded::is_inside()
        && !child::is_child()
        && !planted::is(Planted::ZerocopyNotCopied)
}

fn buffers(message: &msghdr) -> Given {
    Given::Many(message.msg_iov, message.msg_iovlen)
}

/// # Safety
/// The contract of sendto(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    n: usize,
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> isize {
    let given = Given::one(from, n);
    // SAFETY: the caller guarantees it.
    unsafe {
        let copied =
            || direct::write_beside(given, |v| real::sendto(fd, (*v).iov_base, n, flags, to, len));
        is_wanted(flags, || given)
            .then(copied)
            .flatten()
            .unwrap_or_else(|| real::sendto(fd, from, n, flags, to, len))
    }
}

/// # Safety
/// The contract of send(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    n: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe { sendto(fd, from, n, flags, std::ptr::null(), 0) }
}

/// What the program gives, if there may be a mapping.
#[inline]
fn message_at(message: *const msghdr) -> Option<msghdr> {
    extent::any().then(|| given::at(message)).flatten()
}

/// # Safety
/// The contract of sendmsg(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        let copied = |given: msghdr| {
            let all = buffers(&given);
            let sends = |v: *const iovec| {
                let mut other = given;
                other.msg_iov = v.cast_mut();
                real::sendmsg(fd, &raw const other, flags)
            };
            is_wanted(flags, || all).then(|| direct::write_beside(all, sends)).flatten()
        };
        let given = (flags & libc::MSG_ZEROCOPY != 0).then(|| message_at(message)).flatten();
        given.and_then(copied).unwrap_or_else(|| real::sendmsg(fd, message, flags))
    }
}

/// The kernel sends so many of them, however many are given.
const MOST: usize = 1024;

/// # Safety
/// The contract of sendmmsg(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    all: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        let may = flags & libc::MSG_ZEROCOPY != 0 && extent::any();
        let given = may.then(|| given::list(all.cast_const(), MOST.min(n as usize))).flatten();
        let is = |one: &mmsghdr| is_wanted(flags, || buffers(&one.msg_hdr));
        match given.filter(|given| given.iter().any(is)) {
            Some(given) => send_copies(fd, all, given, flags),
            None => real::sendmmsg(fd, all, n, flags),
        }
    }
}

/// # Safety
/// The contract of sendmmsg(2) applies to `to`, which has `given`.
#[cold]
unsafe fn send_copies(fd: c_int, to: *mut mmsghdr, given: Vec<mmsghdr>, flags: c_int) -> c_int {
    let _busy = hold();
    let mut others = given;
    let mut made = Vec::new();
    for one in &mut others {
        let all = buffers(&one.msg_hdr);
        // What is no list the kernel refuses.
        let Some(all) = is_wanted(flags, || all).then(|| all.all()).flatten() else { continue };
        // SAFETY: the caller guarantees it.
        match unsafe { Beside::filled(all) } {
            Ok(beside) => {
                one.msg_hdr.msg_iov = beside.all.as_ptr().cast_mut();
                made.push(beside);
            }
            Err(errno) => return fail(errno),
        }
    }
    let (first, n) = (others.as_mut_ptr(), others.len() as c_uint);
    let (held, (sent, errno)) = signals::let_through_with(Box::new((others, made)), |_| {
        // SAFETY: the caller guarantees it; the list is nobody else's.
        let sent = unsafe { real::sendmmsg(fd, first, n, flags) };
        (sent, errno())
    });
    if sent < 0 || held.is_none() {
        return fail(errno);
    }
    for at in 0..sent as usize {
        // SAFETY: the caller guarantees it, and the list is there until the end of the function.
        unsafe { (*to.add(at)).msg_len = (*first.add(at)).msg_len };
    }
    drop(held);
    sent
}

/// # Safety
/// The contract of recvfrom(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    n: usize,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        let call = |v: *const iovec| real::recvfrom(fd, (*v).iov_base, n, flags, from, len);
        direct::read(fd, Given::one(to, n), call)
            .unwrap_or_else(|| real::recvfrom(fd, to, n, flags, from, len))
    }
}

/// # Safety
/// The contract of recv(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, n: usize, flags: c_int) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe { recvfrom(fd, to, n, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

extern "C" {
    fn __chk_fail() -> !;
}

/// Programs with _FORTIFY_SOURCE call these.
///
/// # Safety
/// The contract of recv(2) applies, with a buffer of `room` bytes.
#[no_mangle]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    n: usize,
    room: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        match n > room {
            true => __chk_fail(),
            false => recv(fd, to, n, flags),
        }
    }
}

/// # Safety
/// The contract of recvfrom(2) applies, with a buffer of `room` bytes.
#[no_mangle]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    n: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        match n > room {
            true => __chk_fail(),
            false => recvfrom(fd, to, n, flags, from, len),
        }
    }
}
