// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own descriptors: those of the pool, of files, and of the reports of stores.
//! The program has not opened them, and may close everything that it has not opened, as daemons
//! do.
//!
//! They get high numbers, and the C library's functions do not close them.  A program may still
//! close one by an instruction of its own.  That is noticed before the number is used for an
//! operation that must not reach another file or be skipped, and the operation fails.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_map::lasting::{keep_by, Keeper};

use crate::child::is_elsewhere;
use crate::futex;
use crate::guarded::lock;
use crate::planted::{self, Planted};
use crate::real::raw;

/// Higher descriptors are refused.
pub const MOST: usize = 1 << 16;

/// For each descriptor number whether it is the library's; 0: it is not.  `OF_PROCESS`: a child
/// must not have it.
static KEPT: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
const OF_PROCESS: u8 = 2;
/// All numbers marked `OF_PROCESS` are below this.
static OF_PROCESSES: AtomicUsize = AtomicUsize::new(0);
/// The number of the library's descriptors.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held between the moment when a number becomes or stops being a descriptor and the update of
/// `KEPT`.
static CHANGE: Mutex<()> = Mutex::new(());

/// For a fork: `forking.rs` keeps the guard until the fork is done.
pub fn unchanged() -> MutexGuard<'static, ()> {
    CHANGE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn start() {
    keep_by(Keeper { keep, duplicate, close, check });
}

fn of(fd: c_int) -> Option<&'static AtomicU8> {
    usize::try_from(fd).ok().and_then(|fd| KEPT.get(fd))
}

/// Whether a descriptor belongs to the library in this process, so that the program cannot
/// close it.
pub fn is(fd: c_int) -> bool {
    let known = of(fd).is_some_and(|what| what.load(Ordering::Relaxed) != 0);
    known && !planted::is(Planted::ClosesOurs) && !is_elsewhere()
}

pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The first number for the library's descriptors: the upper quarter of the limit, as long as a
/// table of descriptors stays small.
pub fn first() -> usize {
    // SAFETY: all zeroes is a value of it, and it is there for the call.
    let most = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        match libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) {
            0 => limit.rlim_cur as usize,
            _ => 0,
        }
    };
    most.min(4096) / 4 * 3
}

pub use crate::watcher::SIGN;
const F_SETSIG: usize = 10;
pub const F_GETSIG: c_int = 11;

fn control(fd: RawFd, what: usize, argument: usize) -> isize {
    // SAFETY: these calls take numbers.
    unsafe { raw(libc::SYS_fcntl, [fd as usize, what, argument, 0, 0, 0]) }
}

/// Whether nothing is open at a number.
fn is_free(number: usize) -> bool {
    control(number as RawFd, libc::F_GETFD as usize, 0) == -(libc::EBADF as isize)
}

/// A duplicate at a free number.  It must not be a number of ours that was closed without us: the
/// user of that number would take this descriptor for the old one.  A duplicate of a descriptor of
/// ours has the mark of ours, so it must not be at such a number even for a moment.
fn number_from(least: usize, fd: RawFd) -> Option<OwnedFd> {
    let is_known = |what: &AtomicU8| what.load(Ordering::SeqCst) != 0;
    let mut from = least;
    loop {
        from += KEPT.get(from..)?.iter().position(|what| !is_known(what))?;
        if !is_free(from) {
            from += 1;
            continue;
        }
        let new = control(fd, libc::F_DUPFD_CLOEXEC as usize, from);
        // SAFETY: a duplicate is a new descriptor that no one else owns.
        let new = (new >= 0).then(|| unsafe { OwnedFd::from_raw_fd(new as RawFd) })?;
        if !of(new.as_raw_fd()).is_some_and(is_known) {
            return Some(new);
        }
        // Another thread has taken the number.
        close_number(new);
    }
}

fn number(fd: RawFd) -> Option<OwnedFd> {
    number_from(first(), fd).or_else(|| number_from(3, fd))
}

/// A duplicate of one of ours, which is to become lasting.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    let _alone = lock(&CHANGE);
    number(fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
}

fn keep(opened: OwnedFd) -> OwnedFd {
    let _alone = lock(&CHANGE);
    let at = opened.as_raw_fd();
    let is_new = of(at).is_some_and(|what| what.load(Ordering::SeqCst) == 0);
    let moved = match at as usize >= first() && is_new {
        true => None,
        false => number(at),
    };
    let kept = match moved {
        Some(new) => {
            close_number(opened);
            new
        }
        // It has such a number, or no other one is free.
        None => opened,
    };
    if let Some(what) = of(kept.as_raw_fd()) {
        assert_eq!(what.swap(1, Ordering::SeqCst), 0, "a descriptor was closed past the library");
        control(kept.as_raw_fd(), F_SETSIG, SIGN);
        COUNT.fetch_add(1, Ordering::SeqCst);
    }
    kept
}

/// Marks a descriptor whose resource must end with the process, even if a child outlives it.
pub fn ends_with_process(fd: RawFd) {
    if let Some(what) = of(fd).filter(|what| what.load(Ordering::SeqCst) != 0) {
        what.store(OF_PROCESS, Ordering::SeqCst);
        OF_PROCESSES.fetch_max(fd as usize + 1, Ordering::SeqCst);
    }
}

/// Closes those descriptors in a child, just after fork; makes system calls only.
pub fn leave_to_parent() {
    let below = OF_PROCESSES.load(Ordering::SeqCst);
    for (fd, what) in KEPT.iter().enumerate().take(below) {
        if what.load(Ordering::SeqCst) == OF_PROCESS {
            // SAFETY: it is a copy of one of ours, and no code of ours uses it in a child.
            unsafe { raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Closes a descriptor without the checks for programs.
fn close_number(fd: OwnedFd) {
    let fd = fd.into_raw_fd();
    // SAFETY: it was owned, and no one uses it any more.
    unsafe { raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

fn close(fd: OwnedFd) {
    let _alone = lock(&CHANGE);
    let number = fd.as_raw_fd();
    if check(number).is_ok() {
        close_number(fd);
    } else {
        // It was closed, and the number may belong to the program by now.
        let _ = fd.into_raw_fd();
    }
    if of(number).is_some_and(|what| what.swap(0, Ordering::SeqCst) != 0) {
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// For each descriptor the number of threads that have cleared its mark for a moment.
static CHANGES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// All such numbers are below this.
static CHANGED: AtomicUsize = AtomicUsize::new(0);

/// Runs `f`, during which the mark may be missing of these descriptors of ours, which have one open
/// file description.
pub fn changing<R>(fds: &[RawFd], f: impl FnOnce() -> R) -> R {
    let changes = |&fd: &RawFd| usize::try_from(fd).ok().and_then(|fd| CHANGES.get(fd));
    for (changes, &fd) in fds.iter().filter_map(|fd| Some((changes(fd)?, fd))) {
        CHANGED.fetch_max(fd as usize + 1, Ordering::SeqCst);
        changes.fetch_add(1, Ordering::SeqCst);
    }
    let result = f();
    for changes in fds.iter().filter_map(changes) {
        if changes.fetch_sub(1, Ordering::SeqCst) == 1 {
            futex::wake(changes, i32::MAX as u32);
        }
    }
    result
}

/// Waits while threads have cleared the mark.  False: there was none.
fn wait_for_changes(fd: RawFd) -> bool {
    let changes = usize::try_from(fd).ok().and_then(|fd| CHANGES.get(fd));
    let Some(changes) = changes else { return false };
    let now = changes.load(Ordering::SeqCst);
    if now > 0 {
        futex::wait(changes, now);
    }
    now > 0
}

/// In a child: the threads that cleared marks do not exist.
pub fn nothing_changes() {
    for changes in &CHANGES[..CHANGED.load(Ordering::SeqCst)] {
        changes.store(0, Ordering::SeqCst);
    }
}

pub fn check(fd: RawFd) -> io::Result<()> {
    let known = of(fd).is_some_and(|what| what.load(Ordering::Relaxed) != 0);
    let has_sign = || control(fd, F_GETSIG as usize, 0) == SIGN as isize;
    let mut is = !known || has_sign();
    while !is && wait_for_changes(fd) {
        is = has_sign();
    }
    // The change may have ended between the two.
    let is = is || has_sign();
    match is || planted::is(Planted::ClosedUnseen) {
        true => Ok(()),
        false => Err(io::Error::other(
            "the program has closed a descriptor of the library by a system call of its own",
        )),
    }
}

/// The parts of a range that are not the library's.
pub fn others(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let ours = first..=last.min(MOST as u32 - 1);
    let mut from = Some(first);
    let between = ours.filter(|&fd| is(fd as c_int)).map(Some).chain([None]);
    between.filter_map(move |next| {
        let start = from?;
        let end = match next {
            None => last,
            Some(fd) => {
                from = fd.checked_add(1).filter(|&after| after <= last);
                fd.checked_sub(1)?
            }
        };
        (start <= end).then_some((start, end))
    })
}
