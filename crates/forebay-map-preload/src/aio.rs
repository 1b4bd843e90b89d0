// SPDX-License-Identifier: MIT OR Apache-2.0
//! io_submit(2), by which the kernel reads and writes the program's memory after the call.
//!
//! A request with memory of a mapping is refused.  The memory may be another file's before the
//! request is over.  And the library cannot give other memory to it: the kernel knows the request
//! by the address of what the program may change as soon as it has the result.

use std::ffi::{c_int, c_long};

use libc::iovec;

use crate::child;
use crate::extent;
use crate::given::{self, Given};
use crate::guarded;
use crate::planted::{self, Planted};
use crate::real::raw;
use crate::say::{once, About};

/// The kernel's struct iocb.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    _before: [u64; 2],
    what: u16,
    _priority: i16,
    _fd: u32,
    buffer: u64,
    bytes: u64,
    _after: [u64; 3],
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const READ_ALL: u16 = 7;
const WRITE_ALL: u16 = 8;

/// Whether a request has memory of a mapping.  What is no request the kernel refuses.
fn is_refused(request: *const Request) -> bool {
    let Some(request) = given::at(request) else { return false };
    let (at, n) = (request.buffer as usize, request.bytes as usize);
    match request.what {
        READ | WRITE => Given::one(std::ptr::with_exposed_provenance(at), n).has_mapped(),
        READ_ALL | WRITE_ALL => {
            Given::Many(std::ptr::with_exposed_provenance::<iovec>(at), n).has_mapped()
        }
        _ => false,
    }
}

/// Returns the number of requests that were submitted, or a negative errno.
///
/// # Safety
/// The contract of io_submit(2) applies.
pub unsafe fn submit(context: usize, n: c_long, all: *const *mut Request) -> isize {
    let sees = extent::any() && !guarded::is_inside() && !child::is_child();
    let mut most = n;
    if sees && !planted::is(Planted::AioUnseen) {
        let request = |at: c_long| given::at(all.wrapping_add(at as usize));
        // The kernel looks at no request after one that it cannot read.
        let mut there = (0..n).map_while(|at| Some((at, request(at)?)));
        let refused = there.find(|(_, request)| is_refused(*request));
        if let Some((at, _)) = refused {
            once(
                About::Aio,
                format_args!(
                    "io_submit with memory of a mapped file is refused: the kernel would read and write \
                     it after the call, when it may be another file's: use pread and pwrite, or a \
                     buffer that is not a mapping"
                ),
            );
            if at == 0 {
                return -libc::EINVAL as isize;
            }
            most = at;
        }
    }
    // SAFETY: the caller guarantees it.
    unsafe { raw(libc::SYS_io_submit, [context, most as usize, all.addr(), 0, 0, 0]) }
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
