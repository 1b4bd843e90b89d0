// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that drives destage for a pool, and those that carry its
//! requests to origins.
//!
//! The engine decides what to write and when; here its steps are run, its
//! requests are started (writes to a file or device through io_uring, all else
//! on a thread of the volume, so that an origin that hangs holds up no other),
//! and their completions handed back.  How many requests of a volume are in flight
//! is the engine's to bound, for each by itself.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_engine::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::bypass::{Mode, Policy};
use crate::drains::{drain_on, Drains};
use crate::engine::{Engine, EngineResult, Io, Step, Ticket};
use crate::error::{Error, Result};
use crate::latency::Phases;
use crate::media::Media;
use crate::origin::Origin;
use crate::past::{gate, Gate};
use crate::ring::{Ring, Write};
use crate::wait::{Flushes, Space};

/// Writes handed to the kernel at once.
const BATCH: usize = 8;
/// Origins without a descriptor are written by so many threads.
const WRITERS: usize = 4;
/// Longest sleep without a look.
const NAP: Duration = Duration::from_millis(500);

/// Wakes the destage thread.
#[derive(Debug)]
pub(crate) struct Kick(OwnedFd);

impl Kick {
    pub(crate) fn new() -> io::Result<Kick> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Kick(rustix::event::eventfd(0, flags)?))
    }

    pub(crate) fn kick(&self) {
        // Fails only where the counter is full, and then it is kicked.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn wait(&self, limit: Duration) {
        let timeout = rustix::event::Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // INTR or whatever: the caller looks for work either way.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// What the threads of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub media: Media,
    pub engine: Engine,
    pub drains: Drains,
    pub space: Space,
    pub flushes: Flushes,
    pub kick: Kick,
    /// By index.  An entry is there from before the engine attaches the volume
    /// until after it detached it.
    pub attached: RwLock<HashMap<u16, Arc<Attached>>>,
    /// Destage requests in flight.
    in_flight: AtomicU32,
    stop: AtomicBool,
    start: Instant,
    /// Whether destage writes go through io_uring, or why not; once the thread
    /// was started.
    ring: OnceLock<std::result::Result<(), String>>,
    /// Why destage does not work at all: an internal error.
    failure: OnceLock<String>,
}

impl Shared {
    pub(crate) fn new(media: Media, engine: Engine) -> Result<Shared> {
        let kick =
            Kick::new().map_err(|e| Error::system(&media.info().path, "making an eventfd", e))?;
        Ok(Shared {
            media,
            engine,
            drains: Drains::default(),
            space: Space::default(),
            flushes: Flushes::default(),
            kick,
            attached: RwLock::default(),
            in_flight: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            start: Instant::now(),
            ring: OnceLock::new(),
            failure: OnceLock::new(),
        })
    }

    /// Wakes whom the mask of an engine call names.
    pub(crate) fn wake(&self, mask: u32) {
        if mask & sys::FBY_WAKE_SPACE != 0 {
            self.space.wake();
        }
        if mask & sys::FBY_WAKE_FLUSH != 0 {
            self.flushes.wake();
        }
        if mask & sys::FBY_WAKE_DESTAGE != 0 {
            self.kick.kick();
        }
    }

    pub(crate) fn attached(&self, index: u16) -> Option<Arc<Attached>> {
        self.attached.read().unwrap_or_else(|e| e.into_inner()).get(&index).cloned()
    }

    /// Time for the engine: never 0.
    pub(crate) fn now_ns(&self) -> u64 {
        1_000_000_000 + u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether destage writes go through io_uring, or why not; `None` before
    /// the thread was started.
    pub(crate) fn ring_state(&self) -> Option<&std::result::Result<(), String>> {
        self.ring.get()
    }

    /// Why destage does not work at all, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// A request ended: the engine is told, and the thread.
    fn complete(&self, attached: &Attached, io: Io, result: io::Result<()>) {
        let errno = result.as_ref().err().map_or(0, errno_of);
        if let Err(e) = result {
            attached.note_error(&io, &e);
        }
        self.engine.destage_complete(io, errno);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) fn errno_of(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error())
}

/// The origin of an attached volume and what destage needs for it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub origin: Box<dyn Origin>,
    /// It is being detached: requests fail at once, which ends the round.
    pub stopping: AtomicBool,
    jobs: Mutex<Jobs>,
    ready: Condvar,
    last_error: Mutex<Option<String>>,
    pub latency: Phases,
    pub policy: Policy,
}

#[derive(Debug, Default)]
struct Jobs {
    /// And so many bytes of it are done.
    queue: VecDeque<(Io, usize)>,
    end: bool,
}

impl Attached {
    pub(crate) fn new(origin: Box<dyn Origin>) -> Attached {
        Attached {
            origin,
            stopping: AtomicBool::new(false),
            jobs: Mutex::default(),
            ready: Condvar::new(),
            last_error: Mutex::new(None),
            latency: Phases::default(),
            policy: Policy::default(),
        }
    }

    /// Threads for what does not go through io_uring.
    pub(crate) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> io::Result<Workers> {
        let rung = matches!(shared.ring_state(), Some(Ok(())));
        let n = match self.origin.uring_fd(0, 4096) {
            Some(_) if rung => 1,
            _ => WRITERS,
        };
        let mut workers = Workers { attached: self.clone(), threads: Vec::new() };
        for _ in 0..n {
            let (shared, attached) = (shared.clone(), self.clone());
            let thread = std::thread::Builder::new()
                .name("fby-origin".into())
                .spawn(move || attached.work(&shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    fn work(&self, shared: &Shared) {
        loop {
            let mut jobs = self.jobs.lock().unwrap_or_else(|e| e.into_inner());
            let (io, done) = loop {
                if let Some(job) = jobs.queue.pop_front() {
                    break job;
                }
                if jobs.end {
                    return;
                }
                jobs = self.ready.wait(jobs).unwrap_or_else(|e| e.into_inner());
            };
            drop(jobs);
            let result = self.run(&io, done);
            shared.complete(self, io, result);
            shared.kick.kick();
        }
    }

    fn run(&self, io: &Io, done: usize) -> io::Result<()> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Errno::CANCELED.into());
        }
        match io.op {
            sys::FBY_IO_WRITE => self.origin.write_at(&io.data()[done..], io.offset + done as u64),
            sys::FBY_IO_ZERO => self.origin.write_zeroes(io.offset, io.len),
            // What it is to read as first, and then the advice.
            sys::FBY_IO_DISCARD => {
                self.origin.write_zeroes(io.offset, io.len)?;
                let _ = self.origin.discard(io.offset, io.len);
                Ok(())
            }
            _ => self.origin.flush(),
        }
    }

    /// A flush that is not destage's: the origin's error, or the engine's.
    pub(crate) fn flush(
        &self,
        shared: &Shared,
        index: u16,
        ticket: &mut Ticket,
    ) -> io::Result<EngineResult<()>> {
        loop {
            let seen = shared.flushes.ended();
            match gate(&shared.engine, index, ticket) {
                Ok(Gate::Done) => return Ok(Ok(())),
                Ok(Gate::Wait) => shared.flushes.sleep(seen),
                Ok(Gate::Origin(mut flush)) => {
                    let mut wake = 0;
                    let flushed = self.origin.flush();
                    let errno = flushed.as_ref().err().map_or(0, errno_of);
                    let told = flush.end(errno, &mut wake);
                    shared.wake(wake);
                    return flushed.map(|()| told);
                }
                Err(e) => return Ok(Err(e)),
            }
        }
    }

    fn queue(&self, io: Io, done: usize) {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner()).queue.push_back((io, done));
        self.ready.notify_one();
    }

    fn note_error(&self, io: &Io, e: &io::Error) {
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

    /// Of destage, since it was attached.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// The threads of an attached volume.  Dropped after the engine detached it:
/// the queue is empty then.
#[derive(Debug)]
pub(crate) struct Workers {
    attached: Arc<Attached>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.attached.jobs.lock().unwrap_or_else(|e| e.into_inner()).end = true;
        self.attached.ready.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The thread of a pool; stopped and joined when dropped, which is after all
/// volumes were detached.
#[derive(Debug)]
pub(crate) struct Destage {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Destage {
    pub(crate) fn start(shared: &Arc<Shared>, io_uring: bool) -> io::Result<Destage> {
        let opened = match io_uring {
            true => Ring::new(shared.kick.fd()).map_err(|e| format!("no io_uring ({e})")),
            false => Err("no io_uring (switched off)".into()),
        };
        let _ = shared.ring.set(opened.as_ref().map(|_| ()).map_err(Clone::clone));
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("fby-destage".into())
            .spawn(move || run(&for_thread, opened.ok()))?;
        Ok(Destage { shared: shared.clone(), thread: Some(thread) })
    }
}

impl Drop for Destage {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.kick.kick();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, mut ring: Option<Ring>) {
    loop {
        if let Some(ring) = &mut ring {
            ring.reap(|w, result| ended(shared, w, result));
        }
        if shared.stop.load(Ordering::Acquire) && shared.in_flight.load(Ordering::Acquire) == 0 {
            return;
        }
        let sleep = step(shared, &mut ring);
        if sleep.is_some() {
            drain_again(shared);
        }
        let batched = ring.as_ref().map_or(0, Ring::unsubmitted);
        if batched > 0 && (sleep.is_some() || batched >= BATCH) {
            ring.as_mut().expect("it has some").submit();
        }
        if let Some(limit) = sleep {
            shared.kick.wait(limit);
        }
    }
}

/// Volumes that keep nothing in the pool: for the step after the sleep.
fn drain_again(shared: &Shared) {
    let attached = shared.attached.read().unwrap_or_else(|e| e.into_inner());
    for (&index, _) in attached.iter().filter(|(_, a)| a.policy.mode() != Mode::WriteBack) {
        if !shared.engine.volume_clean(index) {
            // It may be attached only in a moment.
            let _ = drain_on(&shared.engine, index);
        }
    }
}

/// What the ring left of a write goes on a thread of the volume: here it would hold up
/// all others.
fn ended(shared: &Shared, w: Write, result: Option<io::Result<()>>) {
    match result {
        Some(result) => shared.complete(&w.attached, w.io, result),
        None => w.attached.queue(w.io, w.done),
    }
}

/// One step of the engine.  Some: how long to sleep.
fn step(shared: &Shared, ring: &mut Option<Ring>) -> Option<Duration> {
    let mut wake = 0;
    let now_ns = shared.now_ns();
    let step = shared.engine.destage_step(now_ns, &mut wake);
    // Not to oneself.
    shared.wake(wake & !sys::FBY_WAKE_DESTAGE);
    match step {
        Ok(Step::Submit(io)) => {
            shared.in_flight.fetch_add(1, Ordering::AcqRel);
            dispatch(shared, ring, io);
            None
        }
        Ok(Step::Again) => {
            std::thread::yield_now();
            None
        }
        Ok(Step::Sleep { next_ns }) => {
            let next = Duration::from_nanos(next_ns.saturating_sub(now_ns));
            Some(next.clamp(Duration::from_micros(100), NAP))
        }
        // Nothing that a retry would make worse, or could repair.
        Err(e) => {
            shared.failure.get_or_init(|| format!("destage: {} (internal error)", e.message()));
            Some(NAP)
        }
    }
}

fn dispatch(shared: &Shared, ring: &mut Option<Ring>, io: Io) {
    // A request of a volume that is gone: its round is given up.
    let Some(attached) = shared.attached(io.volume) else {
        shared.engine.destage_complete(io, Errno::NODEV.raw_os_error());
        shared.in_flight.fetch_sub(1, Ordering::AcqRel);
        return;
    };
    let io = match ring {
        Some(ring) if io.op == sys::FBY_IO_WRITE && !attached.stopping.load(Ordering::Acquire) => {
            match ring.write(attached.clone(), io) {
                Ok(()) => return,
                Err(io) => io,
            }
        }
        _ => io,
    };
    attached.queue(io, 0);
}
