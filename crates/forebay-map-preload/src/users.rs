// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that changes its user or its groups in all threads, as daemons do after they have
//! opened their files.  The threads that lend rights (`lent.rs`) change with it.
//!
//! The new user may lack what the library needs for an open file.  The kernel gives a lease only to
//! the owner of the file (or with CAP_LEASE), and the mark of the file needs the right to write to
//! it.  In that case the program ends before the change, with everything in the file.  To find out,
//! a short-lived process changes its own user and asks the kernel.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};

use crate::closing;
use crate::lease::{control, F_SETLEASE};
use crate::opening;
use crate::real::{self, fail, raw};
use crate::state::{self, inside, quietly, read, PLACES};
use crate::who::{self, groups, users, SAME};

/// A system call that changes the user or the groups of the caller.
#[derive(Clone, Copy)]
struct Call(libc::c_long, [usize; 3]);

impl Call {
    fn run(self) -> isize {
        let Call(number, [a, b, c]) = self;
        // SAFETY: it takes numbers, or a list that the caller has valid.
        unsafe { raw(number, [a, b, c, 0, 0, 0]) }
    }

    /// Who may have any groups can take a change of the groups back.
    fn can_be_undone(self) -> bool {
        use libc::{SYS_setgid, SYS_setgroups, SYS_setregid, SYS_setresgid};
        let of_groups = [SYS_setgid, SYS_setgroups, SYS_setregid, SYS_setresgid];
        of_groups.contains(&self.0) && who::may_change_groups()
    }
}

/// Clears the flag that keeps capabilities when the user changes: the library's threads do not have
/// it.
fn keep_no_capabilities() {
    // SAFETY: it takes numbers.
    unsafe { raw(libc::SYS_prctl, [libc::PR_SET_KEEPCAPS as usize, 0, 0, 0, 0, 0]) };
}

/// The right that the user lacks for an open file.
fn lacks(fd: RawFd) -> Option<&'static str> {
    // The kernel grants no read lease of a file that is open for writing, but it checks the right
    // to have one first.
    if control(fd, F_SETLEASE, libc::F_RDLCK as usize) == Err(libc::EACCES) {
        return Some("have a lease of it, since the file is another user's");
    }
    match opening::may(fd, libc::O_WRONLY) {
        Err(libc::EACCES) => {
            Some("mark it as incomplete, since the file is not writable for that user")
        }
        _ => None,
    }
}

/// Sets the effective user of this thread alone.  Returns whether that was possible.
fn become_user(user: u32) -> bool {
    Call(libc::SYS_setresuid, [SAME, user, SAME].map(|id| id as usize)).run() == 0
}

/// The users of this thread, in the order in which it can become each of them without
/// capabilities.  The first change loses a user that is only the effective one.
fn in_order() -> [u32; 3] {
    let [real, effective, saved] = users();
    [effective, real, saved]
}

/// A file that is open.
struct OpenFile {
    fd: RawFd,
    /// The right that every user tried so far lacks, in the words for the first of them.
    lacks: Option<&'static str>,
}

/// A change of the user that is tried, and the files that it is tried for.
struct Trial<'a> {
    call: Call,
    files: &'a mut [OpenFile],
    /// The trial has run to its end.
    is_over: bool,
}

impl Trial<'_> {
    /// Runs the trial, with system calls only.
    fn run(&mut self) {
        keep_no_capabilities();
        let before = (users(), groups());
        if self.call.run() != 0 {
            return;
        }
        let after = (users(), groups());
        let all_in = |before: [u32; 3], after: [u32; 3]| before.iter().all(|id| after.contains(id));
        // A change that the program can undo is left to it.
        let is_list = self.call.0 == libc::SYS_setgroups;
        if all_in(before.0, after.0) && all_in(before.1, after.1) && !is_list {
            return;
        }
        // The program may become each of its users again, so each is tried.
        let [effective, others @ ..] = in_order();
        for file in self.files.iter_mut() {
            file.lacks = lacks(file.fd);
        }
        for user in others.into_iter().filter(|&user| user != effective) {
            if become_user(user) {
                for file in self.files.iter_mut() {
                    file.lacks = file.lacks.filter(|_| lacks(file.fd).is_some());
                }
            }
        }
    }
}

extern "C" fn tries(trial: *mut c_void) -> c_int {
    // SAFETY: it is the caller's, which waits.
    let trial = unsafe { &mut *trial.cast::<Trial<'_>>() };
    trial.run();
    trial.is_over = true;
    0
}

/// Runs a trial in a process that shares this one's memory and descriptors, and has users of its
/// own.  The program may be in a signal handler that has interrupted the C library while it makes a
/// thread.  So this function makes no thread, and allocates only by system calls.
fn run_apart(trial: &mut Trial<'_>) {
    const STACK: usize = 64 << 10;
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let a = [0, STACK, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping, which is removed below.
    let stack = unsafe { raw(libc::SYS_mmap, a) };
    if (-4095..0).contains(&stack) {
        return;
    }
    let top = std::ptr::with_exposed_provenance_mut::<c_void>(stack as usize + STACK);
    // With CLONE_VFORK this thread waits until the process has ended.  The process sends no signal
    // at its end, so no wait of the program finds it, except one that asks for such processes.
    let how = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_VFORK;
    // SAFETY: the stack is the new process's alone.  The process makes system calls, and this
    // thread and its memory stay as they are meanwhile.
    unsafe {
        let process = libc::clone(tries, top, how, std::ptr::from_mut(trial).cast());
        if process > 0 {
            let wait = [process as usize, 0, libc::__WALL as usize, 0, 0, 0];
            while raw(libc::SYS_wait4, wait) == -(libc::EINTR as isize) {}
        }
        raw(libc::SYS_munmap, [stack as usize, STACK, 0, 0, 0, 0]);
    }
}

/// Ends the program if it could not keep its files after the call.
fn look(call: Call) {
    let is_ours = state::config().is_some() && !state::is_inside() && !state::is_elsewhere();
    if !state::any_files() || !is_ours || call.can_be_undone() {
        return;
    }
    let files = inside(|| read(&PLACES).open.clone());
    let found = quietly(|| {
        // With these locks held no thread closes a file.  Otherwise its number could become another
        // file's.
        let maps: Vec<_> = files.iter().map(|file| file.map()).collect();
        // A shared file has no descriptor here, and no lease.
        let fd = |at: usize| Some(maps[at].as_ref()?.file()?.as_raw_fd());
        let (places, mut all): (Vec<_>, Vec<_>) = (0..files.len())
            .filter_map(|at| Some((at, OpenFile { fd: fd(at)?, lacks: None })))
            .unzip();
        let first = *places.first()?;
        let mut trial = Trial { call, files: &mut all, is_over: false };
        run_apart(&mut trial);
        let is_over = trial.is_over;
        let found = || all.iter().zip(&places).find_map(|(f, &at)| Some((at, Some(f.lacks?))));
        let found = if is_over { found()? } else { (first, None) };
        // The program may have given up rights for a while, but this thread completes the files
        // next. So it becomes a user that may.
        let may_all = |user| become_user(user) && all.iter().all(|f| lacks(f.fd).is_none());
        in_order().into_iter().any(may_all);
        Some(found)
    });
    let Some((file, lacks)) = found else { return };
    let path = files[file].path.display();
    let stays = "all that was stored is in the file, and the program ends";
    match lacks {
        Some(what) => closing::stop(format_args!(
            "{path}: the program changes its user or its groups while the file is open, and may then not \
             {what}: {stays}; start the program as that user, give the file to that user, or leave \
             the file out of --files"
        )),
        None => closing::stop(format_args!(
            "{path}: the program changes its user or its groups while the file is open, and whether the new user may \
             keep it cannot be tried, since no process can be made for that (clone, mmap): {stays}; \
             allow the program one more process, start it as that user, or leave the file out of --files"
        )),
    }
}

macro_rules! changes {
    ($($name:ident($($arg:ident),+) = $number:expr, [$a:expr, $b:expr, $c:expr];)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: u32),+) -> c_int {
            look(Call($number, [$a, $b, $c].map(|id| id as usize)));
            who::may_differ();
            // SAFETY: it takes numbers.
            unsafe { real::$name($($arg),+) }.unwrap_or_else(|| fail(libc::ENOSYS))
        }
    )+};
}

changes! {
    setuid(user) = libc::SYS_setuid, [user, 0, 0];
    seteuid(user) = libc::SYS_setresuid, [SAME, user, SAME];
    setreuid(real_user, user) = libc::SYS_setreuid, [real_user, user, 0];
    setresuid(real_user, user, saved) = libc::SYS_setresuid, [real_user, user, saved];
    setgid(group) = libc::SYS_setgid, [group, 0, 0];
    setegid(group) = libc::SYS_setresgid, [SAME, group, SAME];
    setregid(real_group, group) = libc::SYS_setregid, [real_group, group, 0];
    setresgid(real_group, group, saved) = libc::SYS_setresgid, [real_group, group, saved];
}

/// # Safety
/// The contract of setgroups(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn setgroups(n: usize, list: *const u32) -> c_int {
    look(Call(libc::SYS_setgroups, [n, list.addr(), 0]));
    who::may_differ();
    // SAFETY: the caller guarantees it.
    unsafe { real::setgroups(n, list) }.unwrap_or_else(|| fail(libc::ENOSYS))
}

/// # Safety
/// The contract of initgroups(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn initgroups(user: *const c_char, group: u32) -> c_int {
    who::may_differ();
    // SAFETY: the caller guarantees it.
    unsafe { real::initgroups(user, group) }.unwrap_or_else(|| fail(libc::ENOSYS))
}
