// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user and the capabilities by which the kernel judges what a thread does with files.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_map::rights::Opener;

use crate::real::{self, raw};

/// No user or group has this number: a call with it changes nothing.
pub const SAME: u32 = u32::MAX;

/// Set when the program changes rights of its own.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// The user and the group by which the kernel judges what this thread does with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who([u32; 2]);

/// The calls that set the two.  They return the earlier value, also if they change nothing.
const FILE_USER: [libc::c_long; 2] = [libc::SYS_setfsuid, libc::SYS_setfsgid];

impl From<Opener> for Who {
    fn from(opener: Opener) -> Who {
        Who([(opener.0 >> 32) as u32, opener.0 as u32])
    }
}

impl From<Who> for Opener {
    fn from(Who([user, group]): Who) -> Opener {
        Opener(u64::from(user) << 32 | u64::from(group))
    }
}

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

    /// Makes this thread act as this user, until the result is dropped.  It has all capabilities that
    /// it may have, except those that change users.
    pub fn acts(who: Option<Who>) -> Acts {
        let before = Acts(Who::of_thread(), Capabilities::of_thread());
        let all = before.1.raised();
        all.restore();
        if let Some(who) = who.filter(|who| *who != before.0) {
            who.set();
        }
        // The kernel has removed some if the user for files is not root any more.
        all.without(&CHANGE_USERS).restore();
        before
    }
}

/// For [`Opener`].
pub fn opener() -> Opener {
    Who::of_thread().into()
}

/// The users that this thread may become, with its present group.
pub fn openers() -> [Opener; 3] {
    let Who([_, group]) = Who::of_thread();
    users().map(|user| Who([user, group]).into())
}

/// A thread that acts as another user for a moment.
#[derive(Debug)]
pub struct Acts(Who, Capabilities);

impl Drop for Acts {
    fn drop(&mut self) {
        self.1.raised().restore();
        self.0.set();
        self.1.restore();
    }
}

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CHANGE_USERS: [u32; 3] = [CAP_SETGID, CAP_SETUID, CAP_SETPCAP];

/// The capabilities of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Capabilities {
    version: u32,
    thread: c_int,
    /// Effective, permitted and inheritable ones.
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

    /// With all permitted ones in effect.
    fn raised(&self) -> Capabilities {
        let sets = self.sets.map(|[_, permitted, inheritable]| [permitted, permitted, inheritable]);
        Capabilities { sets, ..*self }
    }

    /// With these not in effect.
    fn without(&self, numbers: &[u32]) -> Capabilities {
        let mut all = *self;
        numbers.iter().for_each(|number| all.sets[0][0] &= !(1 << number));
        all
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

/// Whether this thread may have any groups.
pub fn may_change_groups() -> bool {
    Capabilities::of_thread().have(CAP_SETGID)
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

pub fn groups() -> [u32; 3] {
    three(libc::SYS_getresgid)
}

/// Records that the program changes rights of its own.
pub fn may_differ() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// Whether it has.
pub fn differs() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// The calls that change the rights of the thread that makes them.
pub fn changes(number: libc::c_long) -> bool {
    matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setfsuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
            | libc::SYS_capset
    )
}

macro_rules! for_files {
    ($($name:ident = $number:expr;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(id: u32) -> c_int {
            may_differ();
            // SAFETY: it takes a number.
            real::told(unsafe { raw($number, [id as usize, 0, 0, 0, 0, 0]) }) as c_int
        }
    )+};
}
for_files! {
    setfsuid = libc::SYS_setfsuid;
    setfsgid = libc::SYS_setfsgid;
}

/// # Safety
/// The contract of capset(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn capset(header: *mut c_void, sets: *const c_void) -> c_int {
    may_differ();
    // SAFETY: the caller guarantees it.
    real::told(unsafe { raw(libc::SYS_capset, [header.addr(), sets.addr(), 0, 0, 0, 0]) }) as c_int
}
