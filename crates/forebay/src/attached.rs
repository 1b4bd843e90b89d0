// SPDX-License-Identifier: MIT OR Apache-2.0
//! An attached volume as the threads of its pool share it: its origin, the requests of destage
//! that wait for a thread, and what went wrong.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::bypass::{Policy, VolumeChange};
use crate::engine::Io;
use crate::latency::Phases;
use crate::mark::Marker;
use crate::origin::Origin;
use crate::report::Uuid;

/// Between two looks for pages that the origin refused.
const REFUSED_LOOK: Duration = Duration::from_secs(1);

/// The origin of an attached volume and what destage needs for it.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The volume's; its index may be another volume's later.
    pub uuid: Uuid,
    pub origin: Box<dyn Origin>,
    /// It is being detached: requests fail at once, which ends the round.
    pub stopping: AtomicBool,
    /// Flushes at the end of drains, and one has ended.
    flushing: Mutex<u32>,
    flushed: Condvar,
    jobs: Mutex<Jobs>,
    ready: Condvar,
    last_error: Mutex<Option<String>>,
    /// Its origin was seen shorter than the volume since the attach.
    cut: AtomicBool,
    /// The last result and time of a search for refused pages.
    refused: Mutex<Option<(Instant, (u32, u64))>>,
    pub latency: Phases,
    pub policy: Policy,
    pub marker: Marker,
}

/// A drain that flushes the origin: the volume is not detached before it has ended.
pub(crate) struct Flushing(pub Arc<Attached>);

impl Flushing {
    /// None: it is being detached.
    pub(crate) fn begin(attached: Arc<Attached>) -> Option<Flushing> {
        let mut flushing = attached.flushing.lock().unwrap_or_else(|e| e.into_inner());
        if attached.stopping.load(Ordering::Acquire) {
            return None;
        }
        *flushing += 1;
        drop(flushing);
        Some(Flushing(attached))
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        *self.0.flushing.lock().unwrap_or_else(|e| e.into_inner()) -= 1;
        self.0.flushed.notify_all();
    }
}

#[derive(Debug, Default)]
struct Jobs {
    /// And so many bytes of it are done.
    queue: VecDeque<(Io, usize)>,
    end: bool,
}

impl Attached {
    pub(crate) fn new(uuid: Uuid, origin: Box<dyn Origin>, marker: Marker) -> Attached {
        Attached {
            uuid,
            origin,
            stopping: AtomicBool::new(false),
            flushing: Mutex::new(0),
            flushed: Condvar::new(),
            jobs: Mutex::default(),
            ready: Condvar::new(),
            last_error: Mutex::new(None),
            cut: AtomicBool::new(false),
            refused: Mutex::new(None),
            latency: Phases::default(),
            policy: Policy::default(),
            marker,
        }
    }

    /// Changes what may change while it is attached.  `durable_write`: how long one takes the pool's
    /// disk, if that is known.
    pub(crate) fn change(&self, durable_write: Option<Duration>, change: &VolumeChange) {
        self.policy.change(change, durable_write);
    }

    /// When the origin is given up: no drain flushes it any more.
    pub(crate) fn wait_for_flushes(&self) {
        let mut flushing = self.flushing.lock().unwrap_or_else(|e| e.into_inner());
        while *flushing > 0 {
            flushing = self.flushed.wait(flushing).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// A request for a thread of the volume, of which so many bytes are done.
    pub(crate) fn queue(&self, io: Io, done: usize) {
        self.jobs().queue.push_back((io, done));
        self.ready.notify_one();
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next request for a thread; `None` when no more come.
    pub(crate) fn next_job(&self) -> Option<(Io, usize)> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            if jobs.end {
                return None;
            }
            jobs = self.ready.wait(jobs).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// No more requests come: each thread ends when the queue is empty.
    pub(crate) fn end_jobs(&self) {
        self.jobs().end = true;
        self.ready.notify_all();
    }

    pub(crate) fn note_error(&self, io: &Io, e: &io::Error) {
        let op = match io.op {
            sys::FBY_IO_WRITE => "write",
            sys::FBY_IO_ZERO => "write of zeroes",
            sys::FBY_IO_DISCARD => "discard",
            _ => "flush",
        };
        let text = match io.op {
            sys::FBY_IO_FLUSH => format!("{op}: {e}"),
            _ => format!("{op} of {} bytes at offset {}: {e}", io.len, io.offset),
        };
        *self.last_error.lock().unwrap_or_else(|e| e.into_inner()) = Some(text);
    }

    /// Its origin is shorter than the volume, or was so since the attach: to make it longer again
    /// brings back no data, so that only a new attach takes it as it is.  `None`: it was not, and
    /// does not tell now.
    pub(crate) fn is_cut(&self) -> Option<bool> {
        let shorter = self.origin.is_shorter();
        if shorter == Some(true) {
            self.cut.store(true, Ordering::Release);
        }
        match self.cut.load(Ordering::Acquire) {
            true => Some(true),
            false => shorter,
        }
    }

    /// How its origin differs from the one that was attached.
    pub(crate) fn changed(&self) -> Option<String> {
        let cut = self.is_cut() == Some(true);
        self.origin.changed().or_else(|| {
            cut.then(|| {
                "was shorter for a while since it was attached, and what it had there is lost: \
                 restore that from a backup, and attach it again"
                    .into()
            })
        })
    }

    /// How many pages the origin has refused, and the lowest block of these; looked for
    /// once a second at most, since all pages are looked at for that.
    pub(crate) fn refused(&self, look: impl FnOnce() -> (u32, u64)) -> (u32, u64) {
        let mut known = self.refused.lock().unwrap_or_else(|e| e.into_inner());
        match *known {
            Some((at, refused)) if at.elapsed() < REFUSED_LOOK => refused,
            _ => known.insert((Instant::now(), look())).1,
        }
    }

    /// The last error of destage since the volume was attached.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}
