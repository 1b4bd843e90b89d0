// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls by which the process would go on without the memory or the descriptors of its open files:
//! exec, daemon and unshare.

use std::ffi::{c_char, c_int, c_void};

use crate::child;
use crate::places;
use crate::real::{self, fail};
use crate::say::{once, About};

/// Whether files are open, so that the process must not go on as something that lacks their memory.
/// Then prints a message.
fn keeps_files(about: About, what: &str, way_out: &str) -> bool {
    if !places::any_files() || child::is_elsewhere() {
        return false;
    }
    once(about, format_args!("{what} while a file is mapped onto the pool is refused; {way_out}"));
    true
}

/// The library's threads have the same descriptors as the program's, and its table is by number.
pub fn refuses_unshare() -> bool {
    let what = "descriptors of a thread's own (unshare with CLONE_FILES, CLOSE_RANGE_UNSHARE)";
    keeps_files(About::Unshare, what, "do so before the files are opened, or in a child")
}

/// # Safety
/// The contract of unshare(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn unshare(what: c_int) -> c_int {
    if what & libc::CLONE_FILES != 0 && refuses_unshare() {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller guarantees it.
    unsafe { real::unshare(what) }.unwrap_or_else(|| fail(libc::ENOSYS))
}

fn refuses_exec() -> bool {
    keeps_files(About::Exec, "to exec another program", "fork before, or close the files")
}

macro_rules! execs {
    ($($name:ident($($arg:ident: $type:ty),*) $real:expr;)+) => {$(
        /// # Safety
        /// The contract of exec(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            match refuses_exec() {
                true => fail(libc::EBUSY),
                // SAFETY: the caller guarantees it.
                false => unsafe { $real },
            }
        }
    )+};
}
type Texts = *const *const c_char;
execs! {
    execve(path: *const c_char, argv: Texts, env: Texts) real::execve(path, argv, env);
    execv(path: *const c_char, argv: Texts) real::execv(path, argv).unwrap_or(-1);
    execvp(path: *const c_char, argv: Texts) real::execvp(path, argv).unwrap_or(-1);
    execvpe(path: *const c_char, argv: Texts, env: Texts) real::execvpe(path, argv, env).unwrap_or(-1);
    fexecve(fd: c_int, argv: Texts, env: Texts) real::fexecve(fd, argv, env).unwrap_or(-1);
    execveat(dir: c_int, path: *const c_char, argv: Texts, env: Texts, flags: c_int)
        real::execveat(dir, path, argv, env, flags);
}

/// Returns the C library's function with this number among those that take a list of arguments. The
/// caller jumps to it.  Null: the call is refused.
extern "C" fn list_target(number: usize) -> *mut c_void {
    if refuses_exec() {
        fail::<c_int>(libc::EBUSY);
        return std::ptr::null_mut();
    }
    let target = real::list_target(number);
    if target.is_null() {
        fail::<c_int>(libc::ENOSYS);
    }
    target
}

/// The arguments of these functions stay where the caller has put them, in registers and on the
/// stack, for the C library's function.
#[cfg(target_arch = "x86_64")]
macro_rules! lists {
    ($($name:ident: $number:expr;)+) => {$(
        /// # Safety
        /// The contract of exec(3) applies.
        #[no_mangle]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "mov edi, {number}",
                "call {target}",
                "mov r11, rax",
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "mov eax, -1",
                "ret",
                ".cfi_endproc",
                number = const $number,
                target = sym list_target,
            )
        }
    )+};
}
#[cfg(target_arch = "aarch64")]
macro_rules! lists {
    ($($name:ident: $number:expr;)+) => {$(
        /// # Safety
        /// The contract of exec(3) applies.
        #[no_mangle]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "mov x0, #{number}",
                "bl {target}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_adjust_cfa_offset -80",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov w0, #-1",
                "ret",
                ".cfi_endproc",
                number = const $number,
                target = sym list_target,
            )
        }
    )+};
}
lists! {
    execl: 0;
    execlp: 1;
    execle: 2;
}

/// # Safety
/// The contract of daemon(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn daemon(stay: c_int, keep: c_int) -> c_int {
    if keeps_files(About::Daemon, "to become a daemon", "run it in the foreground") {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller guarantees it.
    unsafe { real::daemon(stay, keep) }.unwrap_or(-1)
}
