// SPDX-License-Identifier: MIT OR Apache-2.0
//! setsockopt of SO_ZEROCOPY.
//!
//! With it the kernel sends the program's memory later (MSG_ZEROCOPY), and memory of a mapping may
//! belong to another file by then.  A program that gets this error sends copies.

use std::ffi::{c_int, c_void};

use crate::real::{fail, may_map, raw, told};

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
    if is_zerocopy && may_map() {
        return fail(libc::EOPNOTSUPP);
    }
    let a = [fd as usize, level as usize, name as usize, value.addr(), len as usize, 0];
    // SAFETY: the caller guarantees it.
    told(unsafe { raw(libc::SYS_setsockopt, a) }) as c_int
}
