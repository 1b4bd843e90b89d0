// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that changes its rights while it has files open, as daemons do after they have opened
//! theirs.
//!
//! The kernel gives a lease only to the owner of the file (or with CAP_LEASE), and the mark of the
//! file needs the right to write to it.  The C library changes the user and the groups of all threads,
//! also of the library's.  If the file could not be kept then, the program ends before the change, with
//! everything in the file.  A change of one thread alone would leave the library's threads with other
//! rights than that one has: the program ends before it, too.  To find out, a short-lived process makes
//! the change itself and asks the kernel.
//!
//! So all threads have the rights that each open file needs, and nobody lends any.

use std::ffi::{c_char, c_int, c_ulong, c_void, CStr, CString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use crate::child;
use crate::closing;
use crate::given;
use crate::guarded::{self, inside, quietly, read};
use crate::lease::{control, F_SETLEASE};
use crate::places::{self, PLACES};
use crate::planted::{self, Planted};
use crate::real::{self, fail, raw, thread};
use crate::watcher;
use crate::who::{self, Header, Rights, SAME};

/// A system call that changes rights of the caller.
#[derive(Clone, Copy)]
struct Call(libc::c_long, [usize; 3]);

impl Call {
    /// The error, if it fails.
    fn run(self) -> Option<c_int> {
        let Call(number, [a, b, c]) = self;
        // SAFETY: it takes numbers, or what the caller has valid.
        let done = unsafe { raw(number, [a, b, c, 0, 0, 0]) };
        (-4095..0).contains(&done).then_some(-done as c_int)
    }
}

/// Whose rights a call changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    AllThreads,
    OneThread,
}

/// Clears the flag that keeps capabilities when the user changes: the library's threads may not have
/// it.
fn keep_no_capabilities() {
    // SAFETY: it takes numbers.
    unsafe { raw(libc::SYS_prctl, [libc::PR_SET_KEEPCAPS as usize, 0, 0, 0, 0, 0]) };
}

/// An open file, and the directory of its mark if that is a file of its own.
struct Open {
    fd: RawFd,
    marks: Option<CString>,
}

/// The right that the user lacks for an open file.
fn lacks(Open { fd, marks }: &Open) -> Option<&'static str> {
    let fd = *fd;
    // The kernel grants no read lease of a file that is open for writing, but it checks the right
    // to have one first.
    if control(fd, F_SETLEASE, libc::F_RDLCK as usize) == Err(libc::EACCES) {
        return Some("have a lease of it, since the file is another user's");
    }
    match who::may(fd, libc::O_WRONLY) {
        Err(libc::EACCES) => {
            Some("mark it as incomplete, since the file is not writable for that user")
        }
        _ => marks.as_deref().filter(|marks| !may_change(marks)).map(|_| {
            "remove its mark, which is in a directory that is not writable for that user \
             (FOREBAY_STATE_DIR)"
        }),
    }
}

fn may_change(dir: &CStr) -> bool {
    who::judged(libc::AT_FDCWD, dir, libc::W_OK | libc::X_OK, 0) != Err(libc::EACCES)
}

/// A change that is tried, and the open files that it is tried for.
struct Trial<'a> {
    call: Call,
    of: Of,
    files: &'a [Open],
    /// For [`Rights::of_thread`].
    memory: *mut u32,
    found: Found,
}

#[derive(Clone, Copy)]
enum Found {
    /// The trial has not run to its end.
    Nothing,
    /// It fails with this error.
    Fails(c_int),
    /// It changes nothing, or nothing that matters.
    GoesOn,
    /// It changes rights of one thread.
    Differs,
    /// The file with this place lacks a right.
    Lacks(usize, &'static str),
}

impl Trial<'_> {
    /// Runs the trial, with system calls only.
    fn run(&self) -> Found {
        if self.of == Of::AllThreads {
            keep_no_capabilities();
        }
        // SAFETY: the memory is there while the trial runs, and is used here only.
        let rights = || unsafe { Rights::of_thread(self.memory) };
        let before = rights();
        if let Some(error) = self.call.run() {
            return Found::Fails(error);
        }
        if before == rights() {
            return Found::GoesOn;
        }
        if self.of == Of::OneThread {
            return Found::Differs;
        }
        let mut all = self.files.iter().enumerate();
        let lacking = all.find_map(|(at, file)| Some(Found::Lacks(at, lacks(file)?)));
        lacking.unwrap_or(Found::GoesOn)
    }
}

extern "C" fn tries(trial: *mut c_void) -> c_int {
    // SAFETY: it is the caller's, which waits.
    let trial = unsafe { &mut *trial.cast::<Trial<'_>>() };
    trial.found = trial.run();
    0
}

/// Runs a trial in a process that shares this one's memory and descriptors, and has rights of its
/// own.  The program may be in a signal handler that has interrupted the C library while it makes a
/// thread.  So this function makes no thread, and allocates only by system calls.
fn run_apart(call: Call, of: Of, files: &[Open]) -> Found {
    const STACK: usize = 64 << 10;
    const ALL: usize = STACK + who::LIST;
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let a = [0, ALL, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping, which is removed below.
    let stack = unsafe { raw(libc::SYS_mmap, a) };
    if (-4095..0).contains(&stack) {
        return Found::Nothing;
    }
    let top = std::ptr::with_exposed_provenance_mut::<c_void>(stack as usize + STACK);
    let mut trial = Trial { call, of, files, memory: top.cast(), found: Found::Nothing };
    // With CLONE_VFORK this thread waits until the process has ended.  The process sends no signal
    // at its end, so no wait of the program finds it, except one that asks for such processes.
    let how = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_VFORK;
    // SAFETY: the stack is the new process's alone.  The process makes system calls, and this
    // thread and its memory stay as they are meanwhile.
    unsafe {
        let process = libc::clone(tries, top, how, (&raw mut trial).cast());
        if process > 0 {
            let wait = [process as usize, 0, libc::__WALL as usize, 0, 0, 0];
            while raw(libc::SYS_wait4, wait) == -(libc::EINTR as isize) {}
        }
        raw(libc::SYS_munmap, [stack as usize, ALL, 0, 0, 0, 0]);
    }
    // SAFETY: the process may have written it.
    unsafe { (&raw const trial.found).read_volatile() }
}

/// Ends the program if it could not keep its files after the call.  Returns the error with which a
/// change of all threads fails: the C library ends the program if some can and some cannot.
fn look(call: Call, of: Of) -> Option<c_int> {
    let is_ours = child::config().is_some() && !guarded::is_inside() && !child::is_elsewhere();
    let has_threads = of == Of::AllThreads && watcher::number() != 0;
    if !is_ours || !(places::any_files() || has_threads) || planted::is(Planted::RightsUnseen) {
        return None;
    }
    let files = inside(|| read(&PLACES).open.clone());
    let (found, places) = quietly(|| {
        // With these locks held no thread closes a file.  Otherwise its number could become another
        // file's.
        let maps: Vec<_> = files.iter().map(|file| file.map()).collect();
        // A shared file has no descriptor here, and no lease.
        let open = |at: usize| {
            let map = maps[at].as_ref()?;
            let marks = map.mark_directory().map(|dir| dir.as_os_str().as_bytes());
            let marks = marks.and_then(|dir| CString::new(dir).ok());
            Some(Open { fd: map.file()?.as_raw_fd(), marks })
        };
        let (places, all): (Vec<_>, Vec<_>) =
            (0..files.len()).filter_map(|at| Some((at, open(at)?))).unzip();
        (run_apart(call, of, &all), places)
    });
    let (at, lacks) = match found {
        Found::Fails(error) => return Some(error).filter(|_| of == Of::AllThreads),
        Found::GoesOn => return None,
        Found::Nothing | Found::Differs => (*places.first()?, None),
        Found::Lacks(at, what) => (places[at], Some(what)),
    };
    let path = files[at].path.display();
    let stays = "all that was stored is in the file, and the program ends";
    match lacks {
        Some(what) => closing::stop(format_args!(
            "{path}: the program changes its user or its groups while the file is open, and may then not \
             {what}: {stays}; start the program as that user, give the file to that user, or leave \
             the file out of --files"
        )),
        None if matches!(found, Found::Differs) => closing::stop(format_args!(
            "{path}: a thread of the program changes its rights alone while the file is open (setfsuid, capset, \
             prctl, or setuid and the like by syscall), and other threads would keep theirs: {stays}; \
             change them before the file is opened, or by setuid and the like of the C library, or leave the \
             file out of --files"
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
            let call = Call($number, [$a, $b, $c].map(|id| id as usize));
            match look(call, Of::AllThreads) {
                Some(errno) => fail(errno),
                // SAFETY: it takes numbers.
                None => unsafe { real::$name($($arg),+) }.unwrap_or_else(|| fail(libc::ENOSYS)),
            }
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
    match look(Call(libc::SYS_setgroups, [n, list.addr(), 0]), Of::AllThreads) {
        Some(errno) => fail(errno),
        // SAFETY: the caller guarantees it.
        None => unsafe { real::setgroups(n, list) }.unwrap_or_else(|| fail(libc::ENOSYS)),
    }
}

/// # Safety
/// The contract of initgroups(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn initgroups(user: *const c_char, group: u32) -> c_int {
    const MOST: usize = 1 << 16;
    if !places::any_files() && watcher::number() == 0 {
        // SAFETY: the caller guarantees it.
        return unsafe { real::initgroups(user, group) }.unwrap_or_else(|| fail(libc::ENOSYS));
    }
    let mut list = inside(|| vec![0u32; MOST]);
    let mut n = MOST as c_int;
    // SAFETY: the caller guarantees it, and there is room for so many.
    let done = unsafe { libc::getgrouplist(user, group, list.as_mut_ptr(), &raw mut n) };
    let n = if done < 0 { MOST } else { n as usize };
    // SAFETY: there are so many.
    let done = unsafe { setgroups(n, list.as_ptr()) };
    inside(|| drop(list));
    done
}

/// A change of this thread's rights by its number.
pub fn alone(number: libc::c_long, a: [usize; 3]) {
    let is_change = match number {
        libc::SYS_setuid
        | libc::SYS_setreuid
        | libc::SYS_setresuid
        | libc::SYS_setgid
        | libc::SYS_setregid
        | libc::SYS_setresgid
        | libc::SYS_setgroups => true,
        libc::SYS_setfsuid | libc::SYS_setfsgid => a[0] as u32 != SAME,
        libc::SYS_prctl => {
            [libc::PR_SET_KEEPCAPS, libc::PR_SET_SECUREBITS].contains(&(a[0] as c_int))
        }
        libc::SYS_capset => return capset_alone(a),
        _ => false,
    };
    if is_change {
        look(Call(number, a), Of::OneThread);
    }
}

/// The trial is another thread, whose own number is another one, too.
fn capset_alone([header, sets, _]: [usize; 3]) {
    if !places::any_files() {
        return;
    }
    let given = given::at(std::ptr::with_exposed_provenance::<Header>(header));
    let Some(mut given) = given.filter(|given| [0, thread()].contains(&given.thread)) else {
        return;
    };
    given.thread = 0;
    look(Call(libc::SYS_capset, [(&raw mut given).addr(), sets, 0]), Of::OneThread);
}

macro_rules! of_one_thread {
    ($($name:ident($($arg:ident: $type:ty),+) = $number:expr, $args:expr;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),+) -> c_int {
            let a: [usize; 6] = $args;
            alone($number, [a[0], a[1], a[2]]);
            // SAFETY: the caller guarantees it.
            real::told(unsafe { raw($number, a) }) as c_int
        }
    )+};
}
of_one_thread! {
    setfsuid(id: u32) = libc::SYS_setfsuid, [id as usize, 0, 0, 0, 0, 0];
    setfsgid(id: u32) = libc::SYS_setfsgid, [id as usize, 0, 0, 0, 0, 0];
    capset(header: *mut c_void, sets: *const c_void) = libc::SYS_capset,
        [header.addr(), sets.addr(), 0, 0, 0, 0];
    prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) = libc::SYS_prctl,
        [what as usize, a as usize, b as usize, c as usize, d as usize, 0];
}
