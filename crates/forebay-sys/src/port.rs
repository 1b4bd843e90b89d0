// SPDX-License-Identifier: MIT OR Apache-2.0
//! `port/posix.h`: the media and its operations in user space.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};

use crate::errors::static_text;

/// The operations of a kind of media; `core/medium/port.h` has the contract of each.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_media_ops {
    pub write: unsafe extern "C" fn(*mut fby_media, u64, *const c_void, usize),
    pub write_crc: unsafe extern "C" fn(*mut fby_media, u64, *const c_void, usize, u32) -> u32,
    pub fence: unsafe extern "C" fn(*mut fby_media, u64, usize),
    pub read_crc: unsafe extern "C" fn(*mut fby_media, *mut c_void, u64, usize, *mut u32) -> c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_media {
    pub base: *mut u8,
    pub size: u64,
    pub ops: *const fby_media_ops,
    pub host: *mut c_void,
    /// `fby_device`; NULL: the media is memory
    pub device: *mut crate::groups::fby_device,
}

/// `enum fby_persist`
pub const FBY_PERSIST_NT: u32 = 0;
pub const FBY_PERSIST_CLWB: u32 = 1;
pub const FBY_PERSIST_EADR: u32 = 2;
pub const FBY_PERSIST_MSYNC: u32 = 3;

extern "C" {
    pub fn fby_crc32c(crc: u32, p: *const c_void, n: usize) -> u32;
    pub fn fby_cpu() -> c_uint;
    pub fn fby_posix_media_ops(persist: u32, kernel: *const c_char) -> *const fby_media_ops;
    pub fn fby_posix_watch(base: *const c_void, size: u64, name: *const c_char) -> c_int;
    pub fn fby_posix_unwatch(place: c_int);
    pub fn fby_posix_say(text: *const c_char, n: usize);
    pub fn fby_posix_say_by(say: Option<unsafe extern "C" fn(*const c_char, usize)>);
    pub fn fby_posix_has_stderr() -> bool;
    pub fn fby_posix_kernels() -> *const *const c_char;
    pub fn fby_posix_crc_kernel() -> *const c_char;
}

/// CRC32C of `bytes`, continued from `crc` (0 to begin).
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: reads the slice and nothing else.
    unsafe { fby_crc32c(crc, bytes.as_ptr().cast(), bytes.len()) }
}

/// The copy kernels that this CPU can run, best first.
pub fn posix_kernels() -> Vec<&'static str> {
    let mut names = Vec::new();
    // SAFETY: a NULL-terminated array of string constants, fixed before main.
    unsafe {
        let mut name = fby_posix_kernels();
        while !(*name).is_null() {
            names.push(CStr::from_ptr(*name).to_str().unwrap_or(""));
            name = name.add(1);
        }
    }
    names
}

/// The implementation that `fby_crc32c` uses.
pub fn posix_crc_kernel() -> &'static str {
    // SAFETY: returns a string constant.
    static_text(unsafe { fby_posix_crc_kernel() })
}

/// Media operations by persist method (`FBY_PERSIST_*`) and copy kernel (`None`:
/// the best); `None` if the machine lacks one of them.
pub fn posix_media_ops(persist: u32, kernel: Option<&str>) -> Option<&'static fby_media_ops> {
    let name = kernel.map(CString::new).transpose().ok()?;
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    // SAFETY: name is NULL or zero-terminated; the result is NULL or a table that
    // lives as long as the program.
    unsafe { fby_posix_media_ops(persist, name).as_ref() }
}
