// SPDX-License-Identifier: MIT OR Apache-2.0
//! process_vm_writev(2) and process_vm_readv(2) of the process's own mappings.
//!
//! The kernel pins such memory before it copies.  A sync may look between the two, and then does
//! not find what is copied after it; an eviction may give the memory to another file.  So the library
//! copies by itself, as a program loads and stores.

use std::ffi::{c_int, c_long, c_ulong};

use libc::iovec;

use crate::child;
use crate::direct::{file_of, is_in_file};
use crate::extent;
use crate::given::{self, is_mapped, touch, touch_to_write};
use crate::guarded;
use crate::planted::{self, Planted};
use crate::real::{process, raw, told};
use crate::signals::hold;

/// Bytes that are copied at once, in memory of the call's own frame: a handler may jump away.
const PIECE: usize = 4096;

/// Whether a number is that of this process or of one of its threads.
fn is_own(id: c_int) -> bool {
    // SAFETY: signal 0 only asks.
    let is_thread =
        || unsafe { raw(libc::SYS_tgkill, [process() as usize, id as usize, 0, 0, 0, 0]) == 0 };
    id > 0 && (id == process() || is_thread())
}

/// Makes a call whose other side is not mapped, or that the library has to split.
struct Call {
    number: c_long,
    id: c_int,
}

impl Call {
    /// Returns the number of bytes, or a negative errno.
    ///
    /// # Safety
    /// The contract of the call applies.
    unsafe fn kernel(&self, here: &iovec, there: &iovec) -> isize {
        let (here, there) = (&raw const *here, &raw const *there);
        // SAFETY: the caller guarantees it.
        unsafe { raw(self.number, [self.id as usize, here.addr(), 1, there.addr(), 1, 0]) }
    }

    /// Copies between two buffers of the same length.
    ///
    /// # Safety
    /// The contract of the call applies.
    unsafe fn copy(&self, here: &iovec, there: &iovec) -> isize {
        if !is_in_file(there) {
            // SAFETY: the caller guarantees it.
            return unsafe { self.kernel(here, there) };
        }
        let mut done = 0;
        while done < here.iov_len {
            let n = (here.iov_len - done).min(PIECE);
            let part =
                |b: &iovec| iovec { iov_base: b.iov_base.wrapping_byte_add(done), iov_len: n };
            // SAFETY: the caller guarantees it.
            let moved = unsafe { self.copy_piece(&part(here), &part(there)) };
            if moved < 0 {
                return if done > 0 { done as isize } else { moved };
            }
            done += moved as usize;
            if (moved as usize) < n {
                break;
            }
        }
        done as isize
    }

    /// # Safety
    /// The contract of the call applies.
    unsafe fn copy_piece(&self, here: &iovec, there: &iovec) -> isize {
        let mut piece = [0u8; PIECE];
        let mine = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: here.iov_len };
        let me = Call { number: self.number, id: process() };
        let in_piece = mine.iov_base.cast::<u8>();
        let in_file = there.iov_base.cast::<u8>();
        let both = std::slice::from_ref(there);
        // The kernel says whether there is memory at `here`.  The file is held for the copy alone.
        // SAFETY: the caller guarantees it; the piece has as many bytes.
        unsafe {
            if self.number == libc::SYS_process_vm_writev {
                let moved = me.kernel(here, &mine);
                let Ok(n @ 1..) = usize::try_from(moved) else { return moved };
                touch_to_write(both, n as u64);
                let _busy = hold();
                let Some(_file) = file_of(there) else {
                    return self.kernel(&iovec { iov_len: n, ..*here }, there);
                };
                std::ptr::copy_nonoverlapping(in_piece, in_file, n);
                moved
            } else {
                touch(both, u64::MAX);
                {
                    let _busy = hold();
                    let Some(_file) = file_of(there) else { return self.kernel(here, there) };
                    std::ptr::copy_nonoverlapping(in_file, in_piece, here.iov_len);
                }
                me.kernel(here, &mine)
            }
        }
    }
}

/// None: the kernel may make the call as it is.
///
/// # Safety
/// The contract of the call applies.
unsafe fn own(number: c_long, a: [usize; 6]) -> Option<isize> {
    let (here, there) = (
        std::ptr::with_exposed_provenance::<iovec>(a[1]),
        std::ptr::with_exposed_provenance::<iovec>(a[3]),
    );
    let is_seen = extent::any() && !guarded::is_inside() && !child::is_child();
    if !is_seen || planted::is(Planted::RemoteUnseen) {
        return None;
    }
    if a[5] != 0 {
        return None;
    }
    let (here, there) = (given::list(here, a[2])?, given::list(there, a[4])?);
    if !there.iter().any(is_mapped) || !is_own(a[0] as c_int) {
        return None;
    }
    let call = Call { number, id: a[0] as c_int };
    let all_there: usize = there.iter().map(|b| b.iov_len).fold(0, usize::saturating_add);
    let mut left = here.iter().map(|b| b.iov_len).fold(0, usize::saturating_add).min(all_there);
    let mut done = 0;
    let (mut i, mut j, mut in_i, mut in_j) = (0, 0, 0, 0);
    while left > 0 {
        let n = (here[i].iov_len - in_i).min(there[j].iov_len - in_j);
        if n > 0 {
            let part =
                |b: &iovec, at| iovec { iov_base: b.iov_base.wrapping_byte_add(at), iov_len: n };
            // SAFETY: the caller guarantees it.
            let moved = unsafe { call.copy(&part(&here[i], in_i), &part(&there[j], in_j)) };
            if moved < 0 {
                return Some(if done > 0 { done } else { moved });
            }
            done += moved;
            if (moved as usize) < n {
                return Some(done);
            }
        }
        (in_i, in_j, left) = (in_i + n, in_j + n, left - n);
        if in_i == here[i].iov_len {
            (i, in_i) = (i + 1, 0);
        }
        if in_j == there[j].iov_len {
            (j, in_j) = (j + 1, 0);
        }
    }
    Some(done)
}

/// Returns as the C library's functions do.
///
/// # Safety
/// The contract of the call applies.
pub unsafe fn by_number(number: c_long, a: [usize; 6]) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe { told(own(number, a).unwrap_or_else(|| raw(number, a))) }
}

macro_rules! copies {
    ($($name:ident = $number:ident;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            id: c_int,
            here: *const iovec,
            n: c_ulong,
            there: *const iovec,
            m: c_ulong,
            flags: c_ulong,
        ) -> isize {
            let a = [id as usize, here.addr(), n as usize, there.addr(), m as usize, flags as usize];
            // SAFETY: the caller guarantees it.
            unsafe { by_number(libc::$number, a) }
        }
    )+};
}
copies! {
    process_vm_writev = SYS_process_vm_writev;
    process_vm_readv = SYS_process_vm_readv;
}
