// SPDX-License-Identifier: MIT OR Apache-2.0
//! io_uring in a program that has a file mapped.
//!
//! A ring reads and writes memory after the call that asked for it, by no call at all or after the
//! program has closed the file, and nothing says when.  The memory may be another file's by then.  So a
//! program has either a mapping or rings.  From its first mapping on the kernel makes no ring for it and
//! lets it use none (a filter), and with a ring it gets no mapping.

use std::ffi::c_int;
use std::io;
use std::sync::Mutex;

use crate::guarded::{inside, lock};
use crate::mapped::Mapped;
use crate::planted::{self, Planted};
use crate::real::{fail, raw, told};
use crate::say::{once, About};
use crate::{which, window};

/// Whether the filter is there.
static REFUSED: Mutex<bool> = Mutex::new(false);

/// Before the first mapping of the program.
pub fn none_from_now_on(file: &Mapped) -> Result<(), c_int> {
    let mut refused = lock(&REFUSED);
    if *refused || planted::is(Planted::RingsKept) {
        return Ok(());
    }
    let path = file.path.display();
    let has_ring = || {
        let has = inside(which::has_ring);
        if has {
            once(
                About::Rings,
                format_args!(
                    "{path}: mmap is refused: the program has an io_uring, by which the kernel reads and \
                     writes memory of a mapping that is another file's by then: have the program use no \
                     io_uring, or leave the file out of --files"
                ),
            );
        }
        has
    };
    // A program whose mapping is refused goes on with its rings.
    if has_ring() {
        return Err(libc::EBUSY);
    }
    window::refuse_rings().map_err(|e: io::Error| {
        once(About::Rings, format_args!("{path}: the kernel takes no filter of io_uring: {e}"));
        libc::EIO
    })?;
    // A ring that another thread has made before the filter was there.
    if has_ring() {
        return Err(libc::EBUSY);
    }
    *refused = true;
    Ok(())
}

/// io_uring_setup by syscall(2).
///
/// # Safety
/// The contract of the system call applies.
pub unsafe fn setup(a: [usize; 6]) -> isize {
    // SAFETY: the caller guarantees it.
    let made = unsafe { raw(libc::SYS_io_uring_setup, a) };
    if made == -libc::EPERM as isize && *lock(&REFUSED) {
        once(
            About::Rings,
            format_args!(
                "io_uring is refused in a program that has a file mapped: the kernel would read and \
                 write memory of the mapping that is another file's by then"
            ),
        );
        return fail(libc::EPERM);
    }
    told(made)
}
