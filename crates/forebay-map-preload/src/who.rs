// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user by which the kernel judges what a thread does with files.
//!
//! A program may act as another user for a while (seteuid, setfsuid).  With an open descriptor the
//! kernel lets it go on.  So the library does its work on a file as the user that opened it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::planted::{self, Planted};
use crate::real::{self, raw};

/// No user or group has this number: a call with it changes nothing.
pub const SAME: u32 = u32::MAX;

/// Set when the program changes a user of its own.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// The user and the group by which the kernel judges what this thread does with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who([u32; 2]);

/// The calls that set the two.  They return the earlier value, also if they change nothing.
const FILE_USER: [libc::c_long; 2] = [libc::SYS_setfsuid, libc::SYS_setfsgid];

impl Who {
    fn set(self) {
        for (call, id) in FILE_USER.into_iter().zip(self.0) {
            // SAFETY: it takes a number.
            unsafe { raw(call, [id as usize, 0, 0, 0, 0, 0]) };
        }
    }

    pub fn of_thread() -> Who {
        // No user has this number, so nothing changes.
        // SAFETY: it takes a number.
        Who(FILE_USER.map(|call| unsafe { raw(call, [SAME as usize, 0, 0, 0, 0, 0]) } as u32))
    }

    /// Makes this thread act as this user until the result is dropped.  The caller holds signal
    /// handlers off.
    pub fn acts(self) -> Acts {
        if !CHANGED.load(Ordering::Relaxed) || planted::is(Planted::AsOtherUser) {
            return Acts(None);
        }
        let before = Who::of_thread();
        if before == self {
            return Acts(None);
        }
        let capabilities = Capabilities::of_thread();
        if !before.can_return(&capabilities) {
            return Acts(None);
        }
        self.set();
        Acts(Some((before, capabilities)))
    }

    /// Whether the kernel lets this thread return to that user.
    fn can_return(self, capabilities: &Capabilities) -> bool {
        let Who([user, group]) = self;
        let user = users().contains(&user) || capabilities.have(CAP_SETUID);
        user && (groups().contains(&group) || capabilities.have(CAP_SETGID))
    }
}

/// The rights by which the kernel judges a call that needs no open descriptor.
#[derive(Debug)]
pub struct Rights(Who, Capabilities);

impl Rights {
    pub fn of_thread() -> Rights {
        Rights(Who::of_thread(), Capabilities::of_thread())
    }

    /// Gives this thread its own rights again while it acts as a file's opener, until the result is
    /// dropped.
    pub fn act(&self) -> Acts {
        let before = Rights::of_thread();
        if before.0 == self.0 || planted::is(Planted::PathAsOpener) {
            return Acts(None);
        }
        self.0.set();
        self.1.restore();
        Acts(Some((before.0, before.1)))
    }
}

/// A thread that acts as another user for a moment.
#[derive(Debug)]
pub struct Acts(Option<(Who, Capabilities)>);

impl Drop for Acts {
    fn drop(&mut self) {
        let Some((before, capabilities)) = self.0.take() else { return };
        before.set();
        capabilities.restore();
    }
}

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;

/// The capabilities of a thread.  The kernel removes them when the thread's user for files stops
/// being root.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Capabilities {
    version: u32,
    thread: c_int,
    sets: [[u32; 3]; 2],
}

impl Capabilities {
    fn of_thread() -> Capabilities {
        let mut all = Capabilities { version: 0x2008_0522, thread: 0, sets: [[0; 3]; 2] };
        let a = [(&raw mut all.version).addr(), (&raw mut all.sets).addr(), 0, 0, 0, 0];
        // SAFETY: the kernel stores two sets of three.
        unsafe { raw(libc::SYS_capget, a) };
        all
    }

    fn have(&self, number: u32) -> bool {
        let [[effective, ..], _] = self.sets;
        effective & 1 << number != 0
    }

    fn restore(&self) {
        let mut all = *self;
        if all.sets != Capabilities::of_thread().sets {
            let a = [(&raw mut all.version).addr(), (&raw const all.sets).addr(), 0, 0, 0, 0];
            // SAFETY: the kernel reads two sets of three.
            unsafe { raw(libc::SYS_capset, a) };
        }
    }
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

pub fn users() -> [u32; 3] {
    three(libc::SYS_getresuid)
}

fn groups() -> [u32; 3] {
    three(libc::SYS_getresgid)
}

/// Records that the program changes a user of its own.
pub fn may_differ() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// # Safety
/// The contract of the C library's function applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn setfsuid(user: u32) -> c_int {
    may_differ();
    // SAFETY: it takes a number.
    real::told(unsafe { raw(libc::SYS_setfsuid, [user as usize, 0, 0, 0, 0, 0]) }) as c_int
}
