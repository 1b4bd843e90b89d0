// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers of the program to the engine's port.  The linker puts these functions in place: with
//! `--wrap=fby_cpu` and `--wrap=fby_assert_failed` (build.rs).  They stand in no other crate, so
//! that a build of the whole workspace gives no other program or library these symbols.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, CStr};
use std::sync::OnceLock;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// The CPU that the engine believes to run on, for this thread.
pub fn set_cpu(cpu: u32) {
    CPU.set(cpu);
}

/// Told of a failed assertion: its condition, file and line.
pub type Failed = fn(&str, &str, i32) -> !;

static FAILED: OnceLock<Failed> = OnceLock::new();

/// Whom to tell; the first one counts.
pub fn on_failed_assertion(failed: Failed) {
    let _ = FAILED.set(failed);
}

#[no_mangle]
extern "C" fn __wrap_fby_cpu() -> c_uint {
    CPU.get()
}

/// # Safety
/// Called by FBY_ASSERT with string constants.
#[no_mangle]
unsafe extern "C" fn __wrap_fby_assert_failed(
    condition: *const c_char,
    file: *const c_char,
    line: c_int,
) -> ! {
    // SAFETY: string constants of the C code.
    let (condition, file) = unsafe { (CStr::from_ptr(condition), CStr::from_ptr(file)) };
    let (condition, file) = (condition.to_string_lossy(), file.to_string_lossy());
    let file = file.rsplit('/').next().unwrap_or("");
    match FAILED.get() {
        Some(failed) => failed(&condition, file, line),
        None => {
            eprintln!("assertion {condition} failed ({file}:{line})");
            std::process::abort()
        }
    }
}
