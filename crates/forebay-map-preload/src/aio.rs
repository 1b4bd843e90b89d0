// SPDX-License-Identifier: MIT OR Apache-2.0
//! io_submit(2), by which the kernel reads and writes the program's memory after the call.
//!
//! A request with memory of a mapping gets memory of its own (`direct.rs`).  A write is submitted with
//! that.  A read is made at once, and what it has read is copied: nothing tells the library when the
//! program looks at the result.  Then the program gets a result like that of the read, by a write
//! of as many bytes to /dev/null.

use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use forebay_map::lasting::{self, Lasting};
use libc::iovec;

use crate::direct::{self, Beside};
use crate::extent;
use crate::planted::{self, Planted};
use crate::real::raw;
use crate::signals::hold;
use crate::state;

/// The kernel's struct iocb.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    what: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    at: i64,
    reserved: u64,
    flags: u32,
    notify: u32,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const READ_ALL: u16 = 7;
const WRITE_ALL: u16 = 8;
/// The most buffers of a request.
const MOST: u64 = 1024;

impl Request {
    /// Its buffers.
    ///
    /// # Safety
    /// A request with several has so many.
    unsafe fn buffers(&self) -> Vec<iovec> {
        let buffer = self.buffer as usize;
        match self.what {
            READ | WRITE => vec![iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(buffer),
                iov_len: self.bytes as usize,
            }],
            READ_ALL | WRITE_ALL if buffer != 0 && self.bytes <= MOST => {
                let all = std::ptr::with_exposed_provenance::<iovec>(buffer);
                // SAFETY: the caller guarantees it.
                unsafe { std::slice::from_raw_parts(all, self.bytes as usize) }.to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn set_buffers(&mut self, all: &[iovec]) {
        match self.what {
            READ | WRITE => self.buffer = all[0].iov_base.addr() as u64,
            _ => self.buffer = all.as_ptr().addr() as u64,
        }
    }
}

/// /dev/null, which takes any number of bytes and looks at none.
fn nowhere() -> Result<c_int, c_int> {
    static NULL: OnceLock<Option<Lasting<OwnedFd>>> = OnceLock::new();
    let open = || {
        let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
        let a = [libc::AT_FDCWD as usize, c"/dev/null".as_ptr().addr(), flags, 0, 0, 0];
        // SAFETY: the path is valid; the descriptor was opened just now; st is there for the call.
        unsafe {
            let fd = raw(libc::SYS_openat, a);
            if fd < 0 {
                return Err(());
            }
            let fd = OwnedFd::from_raw_fd(fd as c_int);
            let mut st: libc::stat = std::mem::zeroed();
            let empty = libc::AT_EMPTY_PATH as usize;
            let a = [fd.as_raw_fd() as usize, c"".as_ptr().addr(), (&raw mut st).addr(), empty];
            let done = raw(libc::SYS_newfstatat, [a[0], a[1], a[2], a[3], 0, 0]);
            let is = done == 0 && st.st_mode & libc::S_IFMT == libc::S_IFCHR;
            (is && st.st_rdev == libc::makedev(1, 3)).then_some(fd).ok_or(())
        }
    };
    let null = NULL.get_or_init(|| state::inside(|| lasting::open(open).ok()));
    let null = null.as_ref().ok_or(libc::EAGAIN)?;
    lasting::check(null.as_fd()).map_err(|_| libc::EAGAIN)?;
    Ok(null.as_raw_fd())
}

fn result(done: isize) -> Result<(), c_int> {
    match done {
        1 => Ok(()),
        ..=-1 => Err(-done as c_int),
        _ => Err(libc::EAGAIN),
    }
}

/// Submits one request after `change`, and undoes that: the kernel tells the result by the address
/// of the request, and has read it when the call is over.
///
/// # Safety
/// It is the program's request.
unsafe fn submit_as(
    context: usize,
    request: *mut Request,
    change: impl FnOnce(&mut Request),
) -> Result<(), c_int> {
    let _busy = hold();
    // SAFETY: the caller guarantees it.
    unsafe {
        let before = *request;
        change(&mut *request);
        let done = raw(libc::SYS_io_submit, [context, 1, (&raw const request).addr(), 0, 0, 0]);
        let key = (*request).key;
        *request = Request { key, ..before };
        result(done)
    }
}

/// Carries out a request with memory of a mapping.
///
/// # Safety
/// It is the program's request.
unsafe fn carry_out(context: usize, request: *mut Request, all: &[iovec]) -> Result<(), c_int> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let Request { what, fd, at, rw_flags, .. } = *request;
        if matches!(what, WRITE | WRITE_ALL) {
            let beside = Beside::of(all, true)?;
            return submit_as(context, request, |request| request.set_buffers(&beside.all));
        }
        let null = nowhere()?;
        let beside = Beside::of(all, false)?;
        let (v, n) = (beside.all.as_ptr().addr(), beside.all.len());
        let a = [fd as usize, v, n, at as usize, 0, rw_flags as usize];
        let read = raw(libc::SYS_preadv2, a);
        if read < 0 {
            // The kernel says why, or that there is no such memory.
            beside.close();
            return submit_as(context, request, |request| request.set_buffers(&beside.all));
        }
        beside.copy_back(all, read as usize);
        let first = beside.all[0].iov_base.addr() as u64;
        submit_as(context, request, |request| {
            (request.what, request.fd, request.rw_flags, request.at) = (WRITE, null as u32, 0, 0);
            (request.buffer, request.bytes) = (first, read as u64);
        })
    }
}

/// The buffers of a request, if the library has to copy them.
///
/// # Safety
/// It is the program's request.
unsafe fn wanted(request: *const Request) -> Option<Vec<iovec>> {
    // SAFETY: the caller guarantees it.
    let request = unsafe { request.as_ref() }?;
    let one = matches!(request.what, READ | WRITE);
    if one && !extent::may_have(request.buffer as usize, request.bytes as usize) {
        return None;
    }
    // SAFETY: as above.
    let all = unsafe { request.buffers() };
    let is = all.iter().any(direct::is_mapped) && request.at >= 0;
    (is && direct::is_direct(request.fd as c_int)).then_some(all)
}

/// Returns the number of requests that were submitted, or a negative errno.
///
/// # Safety
/// The contract of io_submit(2) applies.
pub unsafe fn submit(context: usize, n: c_long, all: *const *mut Request) -> isize {
    // SAFETY: the caller guarantees it.
    let plain = |from: *const *mut Request, n: usize| unsafe {
        raw(libc::SYS_io_submit, [context, n, from.addr(), 0, 0, 0])
    };
    let seen = extent::any() && !state::is_inside() && !planted::is(Planted::AioUnseen);
    let count = usize::try_from(n).unwrap_or(0);
    if !seen || all.is_null() || count == 0 || state::is_child() {
        return plain(all, n as usize);
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        let (mut done, mut from) = (0, 0);
        for at in 0..count {
            let request = *all.add(at);
            let buffers = wanted(request);
            let is_last = at + 1 == count;
            if buffers.is_none() && !is_last {
                continue;
            }
            // All since the last one of a mapping.
            let end = at + usize::from(buffers.is_none());
            if end > from {
                let some = plain(all.add(from), end - from);
                done += some.max(0);
                if some != (end - from) as isize {
                    return if done > 0 { done } else { some };
                }
            }
            from = at + 1;
            if let Some(buffers) = buffers {
                match carry_out(context, request, &buffers) {
                    Ok(()) => done += 1,
                    Err(errno) => return if done > 0 { done } else { -(errno as isize) },
                }
            }
        }
        done
    }
}

/// The function of libaio, which returns a negative errno.
///
/// # Safety
/// The contract of io_submit(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn io_submit(
    context: usize,
    n: c_long,
    all: *const *mut Request,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { submit(context, n, all) as c_int }
}
