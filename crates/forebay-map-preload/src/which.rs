// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file a descriptor or a path is of, without opening it.

use std::ffi::{c_int, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::real;

/// The device and inode of a descriptor's file, if that is a regular one; its size; links.
pub fn regular(fd: c_int) -> Option<((u64, u64), u64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let empty = c"".as_ptr();
    // SAFETY: st is there for the call.
    let done = unsafe {
        let at =
            [fd as usize, empty.addr(), (&raw mut st).addr(), libc::AT_EMPTY_PATH as usize, 0, 0];
        real::raw(libc::SYS_newfstatat, at)
    };
    let is = done == 0 && st.st_mode & libc::S_IFMT == libc::S_IFREG;
    is.then_some(((st.st_dev, st.st_ino), st.st_size as u64))
}

/// The same by a path, without opening it.
pub fn identity_at(dir: c_int, path: &CStr, flags: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: both are there for the call.
    let done = unsafe {
        let at = [dir as usize, path.as_ptr().addr(), (&raw mut st).addr(), flags as usize, 0, 0];
        real::raw(libc::SYS_newfstatat, at)
    };
    (done == 0).then_some((st.st_dev, st.st_ino))
}

pub fn is_at(path: &Path, id: (u64, u64)) -> bool {
    let path = CString::new(path.as_os_str().as_bytes());
    let there = path.ok().and_then(|p| identity_at(libc::AT_FDCWD, &p, libc::AT_SYMLINK_NOFOLLOW));
    there == Some(id)
}

/// Where a descriptor's file is.
pub fn path_of(fd: c_int) -> Option<CString> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    CString::new(link.as_os_str().as_bytes()).ok()
}
