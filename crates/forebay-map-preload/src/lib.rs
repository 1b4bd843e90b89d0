// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interposes between a program and the C library (LD_PRELOAD), and maps the files that
//! `forebay map-run --files` selects onto a pool.  docs/manual/map-run.md describes the effect
//! on each call.
//!
//! A panic in a function here ends the program: nothing is acknowledged that is not known to be
//! right.
#![allow(non_snake_case)]

mod aio;
mod aliases;
mod attributes;
mod calls;
mod child;
mod closing;
mod config;
mod direct;
mod ending;
mod extent;
mod forking;
mod formatted;
mod futex;
mod given;
mod guarded;
mod hidden;
mod jumps;
mod kept;
mod lease;
mod left;
mod limit;
mod locks;
mod mapped;
mod masks;
mod memory;
mod memory_own;
mod opening;
mod places;
mod planted;
mod private;
mod ready;
mod real;
mod recorded;
mod remote;
mod rings;
mod say;
mod signals;
mod sockets;
mod state;
mod staying;
mod tending;
mod transfer;
mod trap;
mod turns;
mod users;
mod views;
mod watcher;
mod which;
mod who;
mod window;

use std::ffi::{c_int, c_void};

use config::Config;

#[global_allocator]
static MEMORY: memory_own::Memory = memory_own::Memory::new();

extern "C" fn begin() {
    real::find();
    jumps::start();
    window::handled_by(trap::install);
    let started = match Config::of_environment() {
        Ok(None) => Ok(()),
        Ok(Some(config)) => {
            signals::unblock_never();
            signals::catch_by(trap::catch);
            end_last().and_then(|()| state::start(config)).and_then(|()| forking::start())
        }
        Err(e) => Err(e),
    };
    if let Err(e) = started {
        say::say(format_args!("{e}"));
        // SAFETY: it ends the process, which has not begun to run.
        unsafe { real::raw(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
    }
}

extern "C" fn end(_: *mut c_void) {
    closing::end();
}

extern "C" {
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), with: *mut c_void, of: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(f: extern "C" fn(*mut c_void), of: *mut c_void) -> c_int;
}

/// Handlers that are registered first are called last.  This runs before the C library
/// registers the destructors of all libraries, so those still find the files.
fn end_last() -> Result<(), String> {
    let none = std::ptr::null_mut();
    // SAFETY: the function accepts the argument that it is given, and is never unloaded.
    match unsafe { __cxa_atexit(end, none, none) | __cxa_at_quick_exit(end, none) } {
        0 => Ok(()),
        _ => Err("no memory for what is to be done at the end".into()),
    }
}

#[used]
#[link_section = ".init_array"]
static BEGIN: extern "C" fn() = begin;
