// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages on standard error from within a program that is not Forebay's.  The program may have
//! closed standard error, and have another file at that number: nothing is written to that.

use std::ffi::c_char;
use std::sync::OnceLock;

use forebay_sys as sys;

static BY: OnceLock<fn(&[u8])> = OnceLock::new();

/// Writes a message, if standard error is still that.  It waits at most a second for its reader,
/// and does not report errors.  A signal handler may call it.
pub fn say(text: &[u8]) {
    // SAFETY: reads the slice and nothing else.
    unsafe { sys::fby_posix_say(text.as_ptr().cast(), text.len()) }
}

/// Whether descriptor 2 is a pipe, a terminal, or what it was at the start of the program.
pub fn is_there() -> bool {
    // SAFETY: the call only queries.
    unsafe { sys::fby_posix_has_stderr() }
}

/// From now on `by` writes the messages, those of the engine as well.  The first call decides.
/// `by` does only what a signal handler may do.
pub fn say_by(by: fn(&[u8])) {
    let _ = BY.set(by);
    // SAFETY: the function may be called at any time from now on.
    unsafe { sys::fby_posix_say_by(Some(said)) };
}

/// A panic of this library's own Rust code is told like any message.  For libraries that have a
/// standard library of their own: in others the hook is the program's.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| say(format!("forebay: {panic}\n").as_bytes())));
}

unsafe extern "C" fn said(text: *const c_char, n: usize) {
    // SAFETY: the engine passes a text of n bytes, which is there during the call.
    let text = unsafe { std::slice::from_raw_parts(text.cast(), n) };
    if let Some(by) = BY.get() {
        by(text);
    }
}
