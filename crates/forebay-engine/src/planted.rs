// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's deliberate mistakes, for the tests that must find each of them.

use forebay_sys as sys;

/// Activates one for the whole process; call it before any pool is open.
pub fn plant(id: u32) {
    // SAFETY: an aligned word that the engine reads and nobody else writes: only
    // the thread that starts the run calls this, before the others.
    unsafe { sys::fby_planted = id };
}
