// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other names of functions that the library replaces.  The C library exports them, and some programs
//! and compilers' libraries call them.

use std::ffi::{c_char, c_int, c_void};

use libc::{mode_t, nfds_t, off_t, pollfd, sigset_t, timeval, FILE};

use crate::{calls, formatted, opening, ready, signals, sockets, transfer};

macro_rules! aliases {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $of:path;)+) => {$(
        /// # Safety
        /// The contract of the function with the usual name applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the caller guarantees it.
            unsafe { $of($($arg),*) }
        }
    )+};
}
aliases! {
    __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = opening::open;
    __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = opening::open64;
    __close(fd: c_int) -> c_int = calls::close;
    __read(fd: c_int, to: *mut c_void, n: usize) -> isize = transfer::read;
    __write(fd: c_int, from: *const c_void, n: usize) -> isize = transfer::write;
    __pread64(fd: c_int, to: *mut c_void, n: usize, at: off_t) -> isize = transfer::pread64;
    __pwrite64(fd: c_int, from: *const c_void, n: usize, at: off_t) -> isize = transfer::pwrite64;
    __lseek(fd: c_int, by: off_t, from: c_int) -> off_t = calls::lseek64;
    llseek(fd: c_int, by: off_t, from: c_int) -> off_t = calls::lseek64;
    __dup2(fd: c_int, to: c_int) -> c_int = calls::dup2;
    __fcntl(fd: c_int, what: c_int, arg: usize) -> c_int = calls::fcntl;
    __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = ready::poll;
    __select(n: c_int, r: *mut u64, w: *mut u64, e: *mut u64, timeout: *mut timeval) -> c_int
        = ready::select;
    __send(fd: c_int, from: *const c_void, n: usize, flags: c_int) -> isize = sockets::send;
    __sigsuspend(mask: *const sigset_t) -> c_int = signals::sigsuspend;
    __backtrace_symbols_fd(from: *const *mut c_void, n: c_int, fd: c_int) -> ()
        = formatted::backtrace_symbols_fd;
    _IO_fopen(path: *const c_char, how: *const c_char) -> *mut FILE = opening::fopen64;
    _IO_fdopen(fd: c_int, how: *const c_char) -> *mut FILE = opening::fdopen;
}
