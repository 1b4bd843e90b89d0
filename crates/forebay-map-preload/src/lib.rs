// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stands between a program and the C library (LD_PRELOAD), and maps the program's files onto
//! a pool: those that `forebay map-run --files` chose.  docs/map-run.md has what it does for
//! which call.
//!
//! A panic in a function here ends the program: what is not known to be right is not
//! acknowledged.
#![allow(non_snake_case)]

mod attributes;
mod calls;
mod config;
mod ending;
mod kept;
mod lease;
mod locks;
mod mapped;
mod memory;
mod opening;
mod planted;
mod real;
mod say;
mod state;
mod transfer;
mod trap;
mod views;
mod which;
mod window;

use config::Config;

extern "C" fn begin() {
    real::find();
    let started = match Config::of_environment() {
        Ok(None) => Ok(()),
        Ok(Some(config)) => state::start(config),
        Err(e) => Err(e),
    };
    if let Err(e) = started {
        say::say(format_args!("{e}"));
        // SAFETY: it ends the process, of which nothing has run yet.
        unsafe { real::raw(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
    }
}

extern "C" fn end() {
    state::end();
}

#[used]
#[link_section = ".init_array"]
static BEGIN: extern "C" fn() = begin;

#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;
