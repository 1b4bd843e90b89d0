// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls without the library's own handling: the C library's functions once our constructor
//! has looked them up, and system calls before that.  A look-up may allocate, an allocator may
//! call us, and a signal handler must not look anything up.  So there is no look-up later.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::{
    epoll_event, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr,
    socklen_t, timespec, timeval,
};

/// Makes a system call.  Returns a negative errno if it fails.
///
/// # Safety
/// The contract of the system call applies.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(n: c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller guarantees it; these registers are the ones that a system call
    // changes.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") n as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
            in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call by an instruction of the library.
///
/// # Safety
/// The contract of the system call applies.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(n: c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller guarantees it.
    unsafe {
        std::arch::asm!("svc 0", in("x8") n, inlateout("x0") a[0] => result, in("x1") a[1],
            in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

/// Sets errno and returns -1.
pub fn fail<T: From<i8>>(errno: c_int) -> T {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

pub fn errno() -> c_int {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() }
}

/// The number of this process.
pub fn process() -> i32 {
    // SAFETY: the call only queries.
    unsafe { raw(libc::SYS_getpid, [0; 6]) as i32 }
}

/// The process whose memory this is, in a program of map-run.
static OWN: AtomicI32 = AtomicI32::new(0);

/// At the start, and in a child that has memory of its own.
pub fn remember_process() {
    OWN.store(process(), Ordering::Relaxed);
}

/// Its number.  Zero: no program of map-run.
pub fn own() -> i32 {
    OWN.load(Ordering::Relaxed)
}

/// Whether files may be mapped here.
pub fn may_map() -> bool {
    OWN.load(Ordering::Relaxed) != 0
}

/// Whether this is a child made by vfork, whose memory is its parent's.
pub fn is_vforked() -> bool {
    may_map() && process() != OWN.load(Ordering::Relaxed)
}

/// The number of this thread.
pub fn thread() -> i32 {
    // SAFETY: the call only queries.
    unsafe { raw(libc::SYS_gettid, [0; 6]) as i32 }
}

/// Converts the result of a system call as the C library does.
pub fn told(result: isize) -> isize {
    match result {
        -4095..=-1 => fail(-result as c_int),
        _ => result,
    }
}

macro_rules! reals {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $number:expr;)+) => {
        #[allow(non_upper_case_globals)]
        mod found {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)+
        }

        fn find_reals() {
            $(
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the name ends with a zero byte.
                let p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
                found::$name.store(p, Ordering::Release);
            )+
        }

        $(
            /// Calls the C library's function.
            ///
            /// # Safety
            /// The contract of the C library's function applies.
            pub unsafe fn $name($($arg: $type),*) -> $ret {
                let p = found::$name.load(Ordering::Acquire);
                if p.is_null() {
                    // SAFETY: the caller guarantees it.
                    return told(unsafe { raw($number, six(&[$($arg as usize),*])) }) as $ret;
                }
                // SAFETY: the C library's function of that name has these arguments.
                unsafe {
                    let f: unsafe extern "C-unwind" fn($($type),*) -> $ret = std::mem::transmute(p);
                    f($($arg),*)
                }
            }
        )+
    };
}

/// These are used before our constructor has run.  For a call that some machines lack, or that
/// has other arguments there, the number is none (ENOSYS).
#[cfg(target_arch = "x86_64")]
const POLL: c_long = libc::SYS_poll;
#[cfg(target_arch = "x86_64")]
const SELECT: c_long = libc::SYS_select;
#[cfg(not(target_arch = "x86_64"))]
const POLL: c_long = -1;
#[cfg(not(target_arch = "x86_64"))]
const SELECT: c_long = -1;

fn six(given: &[usize]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..given.len()].copy_from_slice(given);
    all
}

reals! {
    read(fd: c_int, to: *mut c_void, n: usize) -> isize = libc::SYS_read;
    write(fd: c_int, from: *const c_void, n: usize) -> isize = libc::SYS_write;
    pread64(fd: c_int, to: *mut c_void, n: usize, at: off_t) -> isize = libc::SYS_pread64;
    pwrite64(fd: c_int, from: *const c_void, n: usize, at: off_t) -> isize = libc::SYS_pwrite64;
    readv(fd: c_int, v: *const iovec, n: c_int) -> isize = libc::SYS_readv;
    writev(fd: c_int, v: *const iovec, n: c_int) -> isize = libc::SYS_writev;
    preadv64(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> isize = libc::SYS_preadv;
    pwritev64(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> isize = libc::SYS_pwritev;
    preadv64v2(fd: c_int, v: *const iovec, n: c_int, at: off_t, f: c_int) -> isize = libc::SYS_preadv2;
    pwritev64v2(fd: c_int, v: *const iovec, n: c_int, at: off_t, f: c_int) -> isize = libc::SYS_pwritev2;
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = libc::SYS_openat;
    close(fd: c_int) -> c_int = libc::SYS_close;
    close_range(first: u32, last: u32, flags: c_int) -> c_int = libc::SYS_close_range;
    fsync(fd: c_int) -> c_int = libc::SYS_fsync;
    fdatasync(fd: c_int) -> c_int = libc::SYS_fdatasync;
    syncfs(fd: c_int) -> c_int = libc::SYS_syncfs;
    sync_file_range(fd: c_int, at: off_t, n: off_t, flags: u32) -> c_int = libc::SYS_sync_file_range;
    lseek64(fd: c_int, at: off_t, from: c_int) -> off_t = libc::SYS_lseek;
    ftruncate64(fd: c_int, size: off_t) -> c_int = libc::SYS_ftruncate;
    truncate64(path: *const c_char, size: off_t) -> c_int = libc::SYS_truncate;
    fallocate64(fd: c_int, mode: c_int, at: off_t, n: off_t) -> c_int = libc::SYS_fallocate;
    flock(fd: c_int, how: c_int) -> c_int = libc::SYS_flock;
    fchmod(fd: c_int, mode: mode_t) -> c_int = libc::SYS_fchmod;
    fchown(fd: c_int, user: u32, group: u32) -> c_int = libc::SYS_fchown;
    dup(fd: c_int) -> c_int = libc::SYS_dup;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = libc::SYS_dup3;
    fcntl64(fd: c_int, what: c_int, arg: usize) -> c_int = libc::SYS_fcntl;
    sendfile64(to: c_int, from: c_int, at: *mut off_t, n: usize) -> isize = libc::SYS_sendfile;
    copy_file_range(from: c_int, a: *mut off_t, to: c_int, b: *mut off_t, n: usize, flags: u32) -> isize = libc::SYS_copy_file_range;
    splice(from: c_int, a: *mut off_t, to: c_int, b: *mut off_t, n: usize, flags: u32) -> isize = libc::SYS_splice;
    recvfrom(fd: c_int, to: *mut c_void, n: usize, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> isize = libc::SYS_recvfrom;
    sendto(fd: c_int, from: *const c_void, n: usize, flags: c_int, to: *const sockaddr, len: socklen_t) -> isize = libc::SYS_sendto;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize = libc::SYS_sendmsg;
    sendmmsg(fd: c_int, all: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = libc::SYS_sendmmsg;
    renameat2(from: c_int, a: *const c_char, to: c_int, b: *const c_char, flags: u32) -> c_int = libc::SYS_renameat2;
    execve(path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int = libc::SYS_execve;
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, env: *const *const c_char, flags: c_int) -> c_int = libc::SYS_execveat;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = POLL;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    select(n: c_int, r: *mut u64, w: *mut u64, e: *mut u64, timeout: *mut timeval) -> c_int = SELECT;
    pselect(n: c_int, r: *mut u64, w: *mut u64, e: *mut u64, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
}

/// Looks up all functions.
pub fn find() {
    find_reals();
    for (found, name) in LATER.iter().chain(&WHENEVER).chain(&JUMPS).chain(&LISTS) {
        late(found, name);
    }
}

/// A function of the C library, and its name, which ends with a zero byte.
type Late = (&'static AtomicPtr<c_void>, &'static str);

/// These calls have no fall-back: a program that makes them has run our constructor.
macro_rules! later {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        #[allow(non_upper_case_globals)]
        mod found_later {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)+
        }
        static LATER: [Late; [$(stringify!($name)),+].len()] =
            [$((&found_later::$name, concat!(stringify!($name), "\0"))),+];
        $(
            /// Calls the C library's function.
            ///
            /// # Safety
            /// The contract of the C library's function applies.
            pub unsafe fn $name($($arg: $type),*) -> Option<$ret> {
                // SAFETY: the function has these arguments.
                unsafe {
                    let p = late(&found_later::$name, concat!(stringify!($name), "\0"));
                    if p.is_null() {
                        return None;
                    }
                    let f: unsafe extern "C-unwind" fn($($type),*) -> $ret = std::mem::transmute(p);
                    Some(f($($arg),*))
                }
            }
        )+
    };
}

later! {
    fopen64(path: *const c_char, how: *const c_char) -> *mut libc::FILE;
    freopen64(path: *const c_char, how: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    fdopen(fd: c_int, how: *const c_char) -> *mut libc::FILE;
    execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    execvp(path: *const c_char, argv: *const *const c_char) -> c_int;
    execvpe(path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    lockf64(fd: c_int, how: c_int, n: off_t) -> c_int;
    daemon(stay: c_int, keep: c_int) -> c_int;
    posix_fallocate64(fd: c_int, at: off_t, n: off_t) -> c_int;
    sync() -> ();
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    backtrace_symbols_fd(from: *const *mut c_void, n: c_int, fd: c_int) -> ();
    sigsuspend(mask: *const sigset_t) -> c_int;
    epoll_pwait(epoll: c_int, to: *mut epoll_event, n: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, to: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    unshare(what: c_int) -> c_int;
    fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    isatty(fd: c_int) -> c_int;
    tcgetattr(fd: c_int, to: *mut libc::termios) -> c_int;
    ttyname(fd: c_int) -> *mut c_char;
    ttyname_r(fd: c_int, to: *mut c_char, n: usize) -> c_int;
    setuid(user: u32) -> c_int;
    seteuid(user: u32) -> c_int;
    setreuid(real_user: u32, user: u32) -> c_int;
    setresuid(real_user: u32, user: u32, saved: u32) -> c_int;
    setgid(group: u32) -> c_int;
    setegid(group: u32) -> c_int;
    setregid(real_group: u32, group: u32) -> c_int;
    setresgid(real_group: u32, group: u32, saved: u32) -> c_int;
    setgroups(n: usize, list: *const u32) -> c_int;
    initgroups(user: *const c_char, group: u32) -> c_int;
}

/// Finds a function of the C library that may be called before our constructor.  The name ends
/// with a zero byte.
fn late(found: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    debug_assert!(name.ends_with('\0'));
    let mut p = found.load(Ordering::Acquire);
    if p.is_null() {
        // SAFETY: all callers end the name with a zero byte.
        p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
        found.store(p, Ordering::Release);
    }
    p
}

/// The functions of the C library that take a list of arguments.
static LISTS: [Late; 3] =
    [(&LISTS_FOUND[0], "execl\0"), (&LISTS_FOUND[1], "execlp\0"), (&LISTS_FOUND[2], "execle\0")];
static LISTS_FOUND: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

/// Null: the C library has none.
pub fn list_target(number: usize) -> *mut c_void {
    let (found, name) = LISTS[number];
    late(found, name)
}

/// Programs may install signal handlers before our constructor runs, and the kernel's struct
/// differs from the C library's.
macro_rules! whenever {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        #[allow(non_upper_case_globals)]
        mod found_whenever {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)+
        }
        static WHENEVER: [Late; [$(stringify!($name)),+].len()] =
            [$((&found_whenever::$name, concat!(stringify!($name), "\0"))),+];
        $(
            /// Calls the C library's function.
            ///
            /// # Safety
            /// The contract of the C library's function applies.
            pub unsafe fn $name($($arg: $type),*) -> $ret {
                let p = late(&found_whenever::$name, concat!(stringify!($name), "\0"));
                // SAFETY: the function has these arguments.
                unsafe {
                    if p.is_null() {
                        return fail::<i8>(libc::ENOSYS) as $ret;
                    }
                    let f: unsafe extern "C-unwind" fn($($type),*) -> $ret = std::mem::transmute(p);
                    f($($arg),*)
                }
            }
        )+
    };
}

whenever! {
    sigaction(n: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

macro_rules! jumps {
    ($($name:ident)+) => {
        #[allow(non_upper_case_globals)]
        mod found_jumps {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)+
        }
        static JUMPS: [Late; [$(stringify!($name)),+].len()] =
            [$((&found_jumps::$name, concat!(stringify!($name), "\0"))),+];
        $(
        /// Calls the C library's function.
        ///
        /// # Safety
        /// The contract of longjmp(3) applies.
        pub unsafe fn $name(set: *mut c_void, value: c_int) -> ! {
            let p = late(&found_jumps::$name, concat!(stringify!($name), "\0"));
            // SAFETY: the function has these arguments.
            unsafe {
                if p.is_null() {
                    // The caller has the buffer from a C library of another kind.
                    libc::abort();
                }
                let f: unsafe extern "C-unwind" fn(*mut c_void, c_int) -> ! = std::mem::transmute(p);
                f(set, value)
            }
        }
    )+};
}
jumps!(longjmp _longjmp siglongjmp __longjmp_chk);

/// A string of the program's, or none.
///
/// # Safety
/// Null, or it ends with a zero byte and stays as it is for the call.
pub unsafe fn text<'a>(p: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller guarantees it.
    (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) })
}
