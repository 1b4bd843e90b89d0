// SPDX-License-Identifier: MIT OR Apache-2.0
//! setsockopt of SO_ZEROCOPY, and MSG_ZEROCOPY.
//!
//! With both the kernel sends the program's memory later, and memory of a mapping may belong to
//! another file by then.  A program that gets an error for the first sends copies.  A socket may have
//! it since before the program, or from another one.  So what a call with the second sends from a
//! mapping is copied to memory that is nobody else's.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};

use crate::direct::{is_mapped, Beside};
use crate::planted::{self, Planted};
use crate::real::{self, fail, may_map, raw, told};
use crate::signals::hold;
use crate::state;

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

/// The most buffers of a message.
const MOST: usize = 1024;

/// The buffers of a message, if some lie in a mapping and are to be sent later.
///
/// # Safety
/// `v` has `n` entries, or is null.
#[inline]
unsafe fn wanted<'a>(flags: c_int, v: *const iovec, n: usize) -> Option<&'a [iovec]> {
    if flags & libc::MSG_ZEROCOPY == 0 || v.is_null() || n > MOST {
        return None;
    }
    // SAFETY: the caller guarantees it.
    let all = unsafe { std::slice::from_raw_parts(v, n) };
    let is = all.iter().any(is_mapped) && !state::is_inside() && !state::is_child();
    (is && !planted::is(Planted::ZerocopyNotCopied)).then_some(all)
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
    let one = iovec { iov_base: from.cast_mut(), iov_len: n };
    // SAFETY: the caller guarantees it.
    unsafe {
        let Some(all) = wanted(flags, &raw const one, 1) else {
            return real::sendto(fd, from, n, flags, to, len);
        };
        let _busy = hold();
        match Beside::of(all, true) {
            Ok(beside) => real::sendto(fd, beside.all[0].iov_base, n, flags, to, len),
            Err(errno) => fail(errno),
        }
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

/// # Safety
/// The contract of sendmsg(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        let of = |message: &msghdr| wanted(flags, message.msg_iov, message.msg_iovlen);
        let given = message.as_ref().filter(|_| flags & libc::MSG_ZEROCOPY != 0);
        let Some((given, all)) = given.and_then(|given| Some((given, of(given)?))) else {
            return real::sendmsg(fd, message, flags);
        };
        let _busy = hold();
        match Beside::of(all, true) {
            Ok(beside) => {
                let mut other = *given;
                other.msg_iov = beside.all.as_ptr().cast_mut();
                real::sendmsg(fd, &raw const other, flags)
            }
            Err(errno) => fail(errno),
        }
    }
}

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
        if flags & libc::MSG_ZEROCOPY == 0 || all.is_null() || n as usize > MOST {
            return real::sendmmsg(fd, all, n, flags);
        }
        let all = std::slice::from_raw_parts_mut(all, n as usize);
        let of = |one: &mmsghdr| wanted(flags, one.msg_hdr.msg_iov, one.msg_hdr.msg_iovlen);
        let _busy = hold();
        let mut others = all.to_vec();
        let mut made = Vec::new();
        for one in &mut others {
            let Some(buffers) = of(one) else { continue };
            match Beside::of(buffers, true) {
                Ok(beside) => {
                    one.msg_hdr.msg_iov = beside.all.as_ptr().cast_mut();
                    made.push(beside);
                }
                Err(errno) => return fail(errno),
            }
        }
        let sent = real::sendmmsg(fd, others.as_mut_ptr(), n, flags);
        for (one, other) in all.iter_mut().zip(&others) {
            one.msg_len = other.msg_len;
        }
        sent
    }
}
