// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the C library that write text to a descriptor past write(2): dprintf(3) and
//! backtrace_symbols_fd(3).

use std::ffi::{c_char, c_int, c_void};

use crate::planted::{self, Planted};
use crate::real;
use crate::state;
use crate::transfer;

/// A va_list as an argument: on both machines it is passed by its address.
type List = *mut c_void;

extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, list: List) -> c_int;
    fn __vasprintf_chk(
        to: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        list: List,
    ) -> c_int;
    fn backtrace_symbols(from: *const *mut c_void, n: c_int) -> *mut *mut c_char;
}

/// Writes all of it, as far as the file takes it.
///
/// # Safety
/// There are `n` bytes.
unsafe fn write_all(fd: c_int, from: *const c_char, n: usize) -> bool {
    let mut done = 0;
    while done < n {
        // SAFETY: the caller guarantees it.
        match unsafe { transfer::write(fd, from.add(done).cast(), n - done) } {
            ..1 => return false,
            more => done += more as usize,
        }
    }
    true
}

/// # Safety
/// `make` makes text with malloc(3) and returns its length.
unsafe fn print(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let n = make(&raw mut text);
    if n < 0 {
        return n;
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        let is_written = write_all(fd, text, n as usize);
        let errno = real::errno();
        libc::free(text.cast());
        if is_written {
            n
        } else {
            real::fail(errno)
        }
    }
}

/// # Safety
/// The contract of vdprintf(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, list: List) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match state::is_ours(fd) && !planted::is(Planted::PrintedPast) {
            true => print(fd, |to| vasprintf(to, format, list)),
            false => real::vdprintf(fd, format, list).unwrap_or(-1),
        }
    }
}

/// # Safety
/// The contract of vdprintf(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: List,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match state::is_ours(fd) {
            true => print(fd, |to| __vasprintf_chk(to, flag, format, list)),
            false => real::__vdprintf_chk(fd, flag, format, list).unwrap_or(-1),
        }
    }
}

/// # Safety
/// The contract of backtrace_symbols_fd(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn backtrace_symbols_fd(
    from: *const *mut c_void,
    n: c_int,
    fd: c_int,
) {
    // SAFETY: the caller guarantees it; the C library makes one string for each address.
    unsafe {
        if !state::is_ours(fd) {
            let _ = real::backtrace_symbols_fd(from, n, fd);
            return;
        }
        let all = backtrace_symbols(from, n);
        if all.is_null() {
            return;
        }
        for at in 0..n.max(0) as usize {
            let line = *all.add(at);
            write_all(fd, line, libc::strlen(line));
            write_all(fd, c"\n".as_ptr(), 1);
        }
        libc::free(all.cast());
    }
}

/// These take a list of arguments of their own: it becomes a va_list.  A thread may be cancelled in
/// the call, so the unwinder has to know the frame.  `$named` is the number of
/// arguments before the list, and `$with` the register for the va_list.
#[cfg(target_arch = "x86_64")]
macro_rules! lists {
    ($($name:ident: $target:ident, $named:expr, $with:literal, $on_aarch64:literal;)+) => {$(
        /// # Safety
        /// The contract of dprintf(3) applies.
        #[no_mangle]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 0xd8",
                ".cfi_adjust_cfa_offset 0xd8",
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                "mov dword ptr [rsp], {used}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 16], rax",
                concat!("mov ", $with, ", rsp"),
                "call {target}",
                "add rsp, 0xd8",
                ".cfi_adjust_cfa_offset -0xd8",
                "ret",
                ".cfi_endproc",
                used = const 8 * $named,
                target = sym $target,
            )
        }
    )+};
}
#[cfg(target_arch = "aarch64")]
macro_rules! lists {
    ($($name:ident: $target:ident, $named:expr, $on_x86_64:literal, $with:literal;)+) => {$(
        /// # Safety
        /// The contract of dprintf(3) applies.
        #[no_mangle]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-224]!",
                ".cfi_adjust_cfa_offset 224",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x2, x3, [sp, #48]",
                "stp x4, x5, [sp, #64]",
                "stp x6, x7, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "add x9, sp, #224",
                "str x9, [sp, #16]",
                "str x9, [sp, #32]",
                "add x9, sp, #96",
                "str x9, [sp, #24]",
                "mov w9, #{left}",
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $with, ", sp, #16"),
                "bl {target}",
                "ldp x29, x30, [sp], #224",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_adjust_cfa_offset -224",
                "ret",
                ".cfi_endproc",
                left = const 8 * ($named - 8),
                target = sym $target,
            )
        }
    )+};
}
lists! {
    dprintf: vdprintf, 2, "rdx", "x2";
    __dprintf_chk: __vdprintf_chk, 3, "rcx", "x3";
}
