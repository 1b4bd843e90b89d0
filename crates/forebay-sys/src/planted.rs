// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/medium/planted.h`: the engine's deliberate mistakes, for the tests that must
//! find each of them.

use std::ffi::c_char;

use crate::errors::static_text;

pub const FBY_BUG_NONE: u32 = 0;

extern "C" {
    /// Which bug is active; set it while no pool is open.
    pub static mut fby_planted: u32;
    pub fn fby_planted_name(id: u32) -> *const c_char;
    pub fn fby_planted_what(id: u32) -> *const c_char;
}

/// Every planted bug that the engine was compiled with: number, name and what is
/// wrong.
pub fn planted_bugs() -> Vec<(u32, &'static str, &'static str)> {
    (1..planted_bug_count())
        // SAFETY: both return string constants for numbers below the count.
        .map(|id| unsafe {
            (id, static_text(fby_planted_name(id)), static_text(fby_planted_what(id)))
        })
        .collect()
}

/// `FBY_BUG_COUNT`: one more than the highest number.
pub fn planted_bug_count() -> u32 {
    extern "C" {
        static fby_layout_bug_count: u32;
    }
    // SAFETY: a constant of layout.c.
    unsafe { fby_layout_bug_count }
}
