// SPDX-License-Identifier: MIT OR Apache-2.0
//! One message for each thing that was refused: what, why, and the way out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::real;

/// What was refused.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum About {
    Open,
    Sync,
    Io,
    Close,
    Child,
    Memory,
    Room,
    Copy,
    Stdio,
    Exec,
    Daemon,
    Lock,
    Rename,
    Pool,
    Descriptors,
    Allocate,
    Call,
    Instruction,
    Ours,
    Touch,
}

static SAID: AtomicU64 = AtomicU64::new(0);

/// Once for each kind of thing.
pub fn once(about: About, text: fmt::Arguments<'_>) {
    let bit = 1 << about as u8;
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        say(text);
    }
}

/// On stderr, in one piece.
pub fn say(text: fmt::Arguments<'_>) {
    let line = format!("forebay map-run: {text}\n");
    // SAFETY: the bytes are there.
    unsafe {
        real::raw(libc::SYS_write, [2, line.as_ptr().addr(), line.len(), 0, 0, 0]);
    }
}
