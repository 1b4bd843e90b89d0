// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rights by which the kernel judges what a thread does with files.

use std::ffi::{c_int, CStr};

use crate::real::raw;

/// No user or group has this number: a call with it changes nothing.
pub const SAME: u32 = u32::MAX;

/// The most groups that a thread has.
const GROUPS: usize = 1 << 16;
/// The memory that [`Rights::of_thread`] needs.
pub const LIST: usize = GROUPS * size_of::<u32>();

/// The rights of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    users: [u32; 3],
    groups: [u32; 3],
    for_files: [u32; 2],
    /// Effective, permitted and inheritable ones.
    capabilities: [[u32; 3]; 2],
    /// The bits that say what a change of the user does to them (PR_GET_SECUREBITS).
    how: isize,
    /// The number of the other groups, and a sum of them.
    list: (usize, u64),
}

/// The three numbers that such a call returns.
fn three(call: libc::c_long) -> [u32; 3] {
    let mut all = [0u32; 3];
    let [real, effective, saved] = &mut all;
    let a = [(&raw mut *real).addr(), (&raw mut *effective).addr(), (&raw mut *saved).addr()];
    // SAFETY: the kernel stores one number to each.
    unsafe { raw(call, [a[0], a[1], a[2], 0, 0, 0]) };
    all
}

/// The header of capget(2) and capset(2).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub version: u32,
    pub thread: c_int,
}

fn capabilities() -> [[u32; 3]; 2] {
    let mut header = Header { version: 0x2008_0522, thread: 0 };
    let mut sets = [[0; 3]; 2];
    let a = [(&raw mut header).addr(), (&raw mut sets).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel stores two sets of three.
    unsafe { raw(libc::SYS_capget, a) };
    sets
}

/// # Safety
/// There are so many bytes of memory that nobody else uses.
unsafe fn list(memory: *mut u32) -> (usize, u64) {
    // SAFETY: the kernel stores so many numbers at most.
    let n = unsafe { raw(libc::SYS_getgroups, [GROUPS, memory.addr(), 0, 0, 0, 0]) };
    let n = usize::try_from(n).unwrap_or(0);
    // FNV-1a.  The kernel keeps them in order.
    let sum = (0..n).fold(0xcbf2_9ce4_8422_2325, |sum: u64, at| {
        // SAFETY: the kernel has stored it.
        (sum ^ u64::from(unsafe { memory.add(at).read() })).wrapping_mul(0x100_0000_01b3)
    });
    (n, sum)
}

impl Rights {
    /// Those of this thread.  It makes system calls only.
    ///
    /// # Safety
    /// The memory has [`LIST`] bytes that nobody else uses.
    pub unsafe fn of_thread(memory: *mut u32) -> Rights {
        // They return the value and change nothing.
        let for_files = [libc::SYS_setfsuid, libc::SYS_setfsgid].map(|call| {
            // SAFETY: it takes a number.
            unsafe { raw(call, [SAME as usize, 0, 0, 0, 0, 0]) as u32 }
        });
        let how = [libc::PR_GET_SECUREBITS as usize, 0, 0, 0, 0, 0];
        Rights {
            users: three(libc::SYS_getresuid),
            groups: three(libc::SYS_getresgid),
            for_files,
            capabilities: capabilities(),
            // SAFETY: it takes numbers.
            how: unsafe { raw(libc::SYS_prctl, how) },
            // SAFETY: the caller guarantees it.
            list: unsafe { list(memory) },
        }
    }
}

/// The kernel's answer to an open with these flags.
pub fn may(fd: c_int, flags: c_int) -> Result<(), c_int> {
    let wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => libc::R_OK,
        libc::O_WRONLY => libc::W_OK,
        _ => libc::R_OK | libc::W_OK,
    };
    let wanted = if flags & libc::O_TRUNC != 0 { wanted | libc::W_OK } else { wanted };
    judged(fd, c"", wanted, libc::AT_EMPTY_PATH)
}

/// Whether the thread may write to the file at a path now, as the kernel judges a call by path.
pub fn may_write(path: &CStr) -> Result<(), c_int> {
    judged(libc::AT_FDCWD, path, libc::W_OK, 0)
}

pub fn judged(dir: c_int, path: &CStr, wanted: c_int, how: c_int) -> Result<(), c_int> {
    let how = (how | libc::AT_EACCESS) as usize;
    let a = [dir as usize, path.as_ptr().addr(), wanted as usize, how, 0, 0];
    // SAFETY: the path is valid.
    match unsafe { raw(libc::SYS_faccessat2, a) } {
        e @ ..=-1 => Err(-e as c_int),
        _ => Ok(()),
    }
}
