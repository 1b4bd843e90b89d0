// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that changes its user, as daemons do after they have opened their files.
//!
//! The new user may lack what the library needs for an open file: the kernel gives a lease to the
//! file's owner alone (or with CAP_LEASE), and the mark of the file takes the right to write to it.
//! Then the program ends before the change, with everything in the file.  Whether it is so, the kernel
//! is asked by a thread that changes its own user, which Linux keeps for each thread.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};

use crate::closing;
use crate::real::{self, fail, raw};
use crate::state::{self, inside, quietly, read, PLACES};

const F_SETLEASE: usize = 1024;
const SYS_FACCESSAT2: libc::c_long = 439;

/// A system call that changes the user of the calling thread.
#[derive(Clone, Copy)]
struct Call(libc::c_long, [u32; 3]);

impl Call {
    fn run(self) -> isize {
        let Call(number, [a, b, c]) = self;
        // SAFETY: it takes numbers.
        unsafe { raw(number, [a as usize, b as usize, c as usize, 0, 0, 0]) }
    }
}

fn users() -> [u32; 3] {
    let mut all = [0u32; 3];
    let [real, effective, saved] = &mut all;
    let a = [(&raw mut *real).addr(), (&raw mut *effective).addr(), (&raw mut *saved).addr()];
    // SAFETY: the kernel stores one number to each.
    unsafe { raw(libc::SYS_getresuid, [a[0], a[1], a[2], 0, 0, 0]) };
    all
}

/// The thread is one of those that did not ask to keep its capabilities, as the library's are.
fn keep_no_capabilities() {
    // SAFETY: it takes numbers.
    unsafe { raw(libc::SYS_prctl, [libc::PR_SET_KEEPCAPS as usize, 0, 0, 0, 0, 0]) };
}

/// What the thread's user may not do with an open file.
fn lacks(fd: RawFd) -> Option<&'static str> {
    // A lease to read is never given for a file that is open to write, but the right to have one is
    // looked at first.
    let a = [fd as usize, F_SETLEASE, libc::F_RDLCK as usize, 0, 0, 0];
    // SAFETY: it takes numbers.
    if unsafe { raw(libc::SYS_fcntl, a) } == -(libc::EACCES as isize) {
        return Some("have a lease of it, since the file is another user's");
    }
    let flags = (libc::AT_EMPTY_PATH | libc::AT_EACCESS) as usize;
    let a = [fd as usize, c"".as_ptr().addr(), libc::W_OK as usize, flags, 0, 0];
    // SAFETY: the path ends with a zero byte.
    match unsafe { raw(SYS_FACCESSAT2, a) } == -(libc::EACCES as isize) {
        true => Some("mark it as incomplete, since the file is not writable for that user"),
        false => None,
    }
}

/// Ends the program if it could not keep its files after the call.
fn look(call: Call) {
    let is_ours = state::config().is_some() && !state::is_inside() && !state::is_elsewhere();
    if !state::any_files() || !is_ours {
        return;
    }
    let files = inside(|| read(&PLACES).open.clone());
    let try_it = || {
        keep_no_capabilities();
        let before = users();
        // A change that fails, or that the program can undo, is left to it.
        if call.run() != 0 || users().contains(&before[1]) {
            return None;
        }
        files.iter().find_map(|file| {
            let map = file.map();
            // A file that is shared has none, and no lease.
            let fd = map.as_ref()?.file()?.as_raw_fd();
            Some((file, lacks(fd)?))
        })
    };
    let found = quietly(|| {
        std::thread::scope(|s| {
            let thread = std::thread::Builder::new().spawn_scoped(s, || inside(try_it));
            thread.ok()?.join().ok().flatten()
        })
    });
    if let Some((file, what)) = found {
        closing::stop(format_args!(
            "{}: the program changes its user while the file is open, and the new user may not {what}: \
             all that was stored is in the file, and the program ends; start the program as that user, \
             give the file to that user, or leave the file out of --files",
            file.path.display()
        ));
    }
}

macro_rules! changes {
    ($($name:ident($($arg:ident),+) = $number:expr, [$a:expr, $b:expr, $c:expr];)+) => {$(
        /// # Safety
        /// The same as for the C library's function.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: u32),+) -> c_int {
            look(Call($number, [$a, $b, $c]));
            // SAFETY: it takes numbers.
            unsafe { real::$name($($arg),+) }.unwrap_or_else(|| fail(libc::ENOSYS))
        }
    )+};
}

const SAME: u32 = u32::MAX;

changes! {
    setuid(user) = libc::SYS_setuid, [user, 0, 0];
    seteuid(user) = libc::SYS_setresuid, [SAME, user, SAME];
    setreuid(real_user, user) = libc::SYS_setreuid, [real_user, user, 0];
    setresuid(real_user, user, saved) = libc::SYS_setresuid, [real_user, user, saved];
}
