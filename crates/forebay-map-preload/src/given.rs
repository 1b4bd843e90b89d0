// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments that point into the program's memory: buffers, and lists of them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use libc::iovec;

use crate::extent;
use crate::real::{own, raw};
use crate::signals;

const PAGE: usize = forebay_map::PAGE;
/// The most buffers of a call.
pub const MOST: usize = 1024;

/// The buffers of a call.
#[derive(Clone, Copy, Debug)]
pub enum Given {
    One(iovec),
    /// A list in the program's memory, and how many.
    Many(*const iovec, usize),
}

pub fn is_mapped(b: &iovec) -> bool {
    b.iov_len > 0 && extent::may_have(b.iov_base.addr(), b.iov_len)
}

impl Given {
    #[inline]
    pub fn one(at: *const c_void, n: usize) -> Given {
        Given::One(iovec { iov_base: at.cast_mut(), iov_len: n })
    }

    /// Whether some of them lie in a mapping.  What is no memory the kernel has to refuse.
    #[inline]
    pub fn has_mapped(&self) -> bool {
        match self {
            Given::One(b) => is_mapped(b),
            Given::Many(..) if !extent::any() => false,
            Given::Many(v, n) => list_has_mapped(*v, *n),
        }
    }

    /// None: there is no such list.
    pub fn all(&self) -> Option<Vec<iovec>> {
        match self {
            Given::One(b) => Some(vec![*b]),
            Given::Many(v, n) => list(*v, *n),
        }
    }
}

const NONE: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

#[cold]
fn list_has_mapped(v: *const iovec, n: usize) -> bool {
    // Few at a time: most lists are short, and nothing is allocated.
    const FEW: usize = 32;
    let mut some = [NONE; FEW];
    let mut from = 0;
    while from < n.min(MOST) && n <= MOST {
        let some = &mut some[..(n - from).min(FEW)];
        if !copy(v.wrapping_add(from), some) {
            return false;
        }
        if some.iter().any(is_mapped) {
            return true;
        }
        from += some.len();
    }
    false
}

/// A list in the program's memory.  None: there is no such memory, or the list is too long.
pub fn list<T: Copy>(from: *const T, n: usize) -> Option<Vec<T>> {
    if n > MOST {
        return None;
    }
    let mut all = vec![zeroes(); n];
    copy(from, &mut all).then_some(all)
}

fn zeroes<T: Copy>() -> T {
    // SAFETY: the types here are structs of the kernel and pointers, of which all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

/// Reads the value at an address of the program.  None: there is no such memory.
pub fn at<T: Copy>(from: *const T) -> Option<T> {
    let mut one = [zeroes()];
    copy(from, &mut one).then_some(one[0])
}

/// Copies from the program's memory.  Returns false if there is none, of which the kernel says EFAULT.
fn copy<T: Copy>(from: *const T, to: &mut [T]) -> bool {
    let bytes = size_of_val(to);
    let here = iovec { iov_base: to.as_mut_ptr().cast(), iov_len: bytes };
    let there = iovec { iov_base: from.cast_mut().cast(), iov_len: bytes };
    let a = [own() as usize, (&raw const here).addr(), 1, (&raw const there).addr(), 1, 0];
    // Addresses of a mapping may belong to another file before the kernel has copied the bytes.
    if bytes > 0 && !is_mapped(&there) {
        // SAFETY: `to` has so many bytes, and may have any.
        match unsafe { raw(libc::SYS_process_vm_readv, a) } {
            n if n == bytes as isize => return true,
            0.. => return false,
            e if e == -libc::EFAULT as isize => return false,
            // It is refused here, as in some containers.
            _ => {}
        }
    }
    if from.is_null() {
        return bytes == 0;
    }
    for (at, to) in to.iter_mut().enumerate() {
        // SAFETY: the program says that it is memory.
        *to = unsafe { from.add(at).read_unaligned() };
    }
    true
}

/// Touches the program's memory before the library has a lock: a handler of the fault may jump
/// away, and the locks would stay.  Signals arrive as usual meanwhile.
///
/// # Safety
/// The first `most` bytes of the buffers may be read.
pub unsafe fn touch(all: &[iovec], most: u64) {
    // SAFETY: the caller guarantees it.
    unsafe { touch_each(all, most, |at| at.cast::<u8>().read_volatile()) };
}

/// Like [`touch`], for memory that the call changes.
///
/// # Safety
/// The first `most` bytes of the buffers may be written.
pub unsafe fn touch_to_write(all: &[iovec], most: u64) {
    // Another thread may store there meanwhile, and then its byte stays.
    // SAFETY: the caller guarantees it.
    let same = |at: *mut c_void| unsafe {
        let now = at.cast::<u8>().read_volatile();
        let _ = AtomicU8::from_ptr(at.cast()).compare_exchange(now, now, SeqCst, SeqCst);
        now
    };
    // SAFETY: as above.
    unsafe { touch_each(all, most, same) };
}

/// # Safety
/// `f` may be called with an address in each page of the first `most` bytes.
unsafe fn touch_each(all: &[iovec], most: u64, f: impl Fn(*mut c_void) -> u8) {
    signals::let_through(|| {
        let mut left = usize::try_from(most).unwrap_or(usize::MAX);
        for b in all {
            let len = b.iov_len.min(left);
            left -= len;
            let mut at = 0;
            while at < len {
                let address = b.iov_base.wrapping_byte_add(at);
                f(address);
                at += PAGE - address.addr() % PAGE;
            }
        }
    });
}
