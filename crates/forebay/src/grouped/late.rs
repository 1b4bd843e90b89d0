// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread sends the appends to volumes that nobody waits for.
//!
//! A write that a later flush makes durable is acknowledged when it is appended.  If no flush
//! comes, its group is sent when it is [`AGE`] old.  Destage has the thread send, too: it waits for
//! groups, headers of chunks and settled copies, and must not wait for the disk itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::sender::Sender;

/// A group that nobody waits for is sent after so long.
const AGE: Duration = Duration::from_millis(1);

const NOTHING: u32 = 0;
/// In a while.
const SOON: u32 = 1;
const NOW: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Late {
    wanted: AtomicU32,
    runs: AtomicBool,
    stop: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Late {
    /// Something was appended.
    pub(crate) fn appended(&self) {
        self.want(SOON);
    }

    /// Asks the thread to send everything that waits.  False: there is no such thread.
    pub(crate) fn wants_now(&self) -> bool {
        self.runs.load(Ordering::Acquire) && {
            self.want(NOW);
            true
        }
    }

    /// The change is seen by the thread before it looks at what there is, or it ends its sleep.
    fn want(&self, what: u32) {
        if self.wanted.fetch_max(what, Ordering::SeqCst) < what {
            drop(self.asleep.lock().unwrap_or_else(|e| e.into_inner()));
            self.wake.notify_all();
        }
    }

    /// Before the thread is started.
    pub(crate) fn begin(&self) {
        self.runs.store(true, Ordering::Release);
    }

    /// The thread is to end.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.runs.store(false, Ordering::Release);
        drop(self.asleep.lock().unwrap_or_else(|e| e.into_inner()));
        self.wake.notify_all();
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sleeps until something is wanted; false: it is to end.
    fn sleep(&self) -> bool {
        let mut asleep = self.asleep.lock().unwrap_or_else(|e| e.into_inner());
        while self.wanted.load(Ordering::SeqCst) == NOTHING && !self.stops() {
            asleep = self.wake.wait(asleep).unwrap_or_else(|e| e.into_inner());
        }
        if self.wanted.load(Ordering::SeqCst) == SOON && !self.stops() {
            let more = |_: &mut ()| self.wanted.load(Ordering::SeqCst) == SOON && !self.stops();
            drop(self.wake.wait_timeout_while(asleep, AGE, more));
        }
        !self.stops()
    }

    /// The thread.  `tell`: whom the host is to wake.
    pub(crate) fn run(&self, sender: &Sender, tell: impl Fn(u32)) {
        while self.sleep() {
            self.wanted.store(NOTHING, Ordering::SeqCst);
            sender.send_all(&tell, || self.stops());
        }
    }
}
