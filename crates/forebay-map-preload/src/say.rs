// SPDX-License-Identifier: MIT OR Apache-2.0
//! One message for each thing that was refused: what, why, and the way out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_map::stderr;

use crate::real;

/// The kind of call that was refused.
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
    Lease,
    Unshare,
    Direct,
    Aio,
    Rings,
    Mode,
    Mark,
}

static SAID: AtomicU64 = AtomicU64::new(0);

/// Prints one message for each kind of call.
pub fn once(about: About, text: fmt::Arguments<'_>) {
    let bit = 1 << about as u8;
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        say(text);
    }
}

/// At the start of the program.
pub fn start() {
    stderr::say_by(write);
    stderr::tell_panics();
}

/// How long a message waits until stderr takes it.
const WAIT_SECONDS: i64 = 1;

pub fn say(text: fmt::Arguments<'_>) {
    write(format!("forebay map-run: {text}\n").as_bytes());
}

/// Writes to stderr, in one piece if the text is no longer than a page.  The program may have
/// closed stderr and have a file of its own at the number 2: nothing is written to such a file.
fn write(text: &[u8]) {
    if !stderr::is_there() {
        return;
    }
    // A pipe that can be written to takes this many bytes at once.
    for part in text.chunks(libc::PIPE_BUF) {
        if !takes_more() {
            return;
        }
        // SAFETY: the bytes are there.
        unsafe {
            real::raw(libc::SYS_write, [2, part.as_ptr().addr(), part.len(), 0, 0, 0]);
        }
    }
}

/// Whether a write to stderr need not wait.  The reader of a pipe may sleep, and a terminal may be
/// stopped.  Then the message is dropped, and the program goes on.
fn takes_more() -> bool {
    let mut fd = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    let most = libc::timespec { tv_sec: WAIT_SECONDS, tv_nsec: 0 };
    let a = [(&raw mut fd).addr(), 1, (&raw const most).addr(), 0, 0, 0];
    // SAFETY: both are there for the call.
    unsafe { real::raw(libc::SYS_ppoll, a) > 0 }
}
