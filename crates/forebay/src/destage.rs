// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that drives destage for a pool, and those that carry its
//! requests to origins.
//!
//! The engine decides what to write and when; here its steps are run, its
//! requests are started (writes to a file or device through io_uring, all else
//! on a thread of the volume, so that an origin that hangs holds up no other),
//! and their completions handed back.  How many requests of a volume are in flight
//! is the engine's to bound, for each by itself.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_engine::request::{Payload, Request, Runs, Wanted};
use forebay_engine::sys;
use rustix::io::Errno;

use crate::attached::Attached;
use crate::draining::drain_on;
use crate::engine::{Code, EngineResult, Io, Step, Wait};
use crate::errno::errno_or_io;
use crate::report::Mode;
use crate::ring::{Ring, Write};
use crate::shared_pool::SharedPool;
use crate::wait::Waiter;

/// Writes handed to the kernel at once.
const BATCH: usize = 8;
/// Origins without a descriptor are written by so many threads.
const WRITERS: usize = 4;
/// Longest sleep without a look.
const NAP: Duration = Duration::from_millis(500);

/// An origin may be the program's own code.  What it was asked for has an end whatever it
/// does, or the volume would wait for it for ever.
fn or_panic(f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let done = std::panic::catch_unwind(AssertUnwindSafe(f));
    done.unwrap_or_else(|_| Err(io::Error::other("the origin's code panicked")))
}

impl Attached {
    /// Threads for what does not go through io_uring.
    pub(crate) fn start(self: &Arc<Self>, core: &Arc<SharedPool>) -> io::Result<Workers> {
        let rung = matches!(core.ring_state(), Some(Ok(())));
        let n = match self.origin.uring_fd(0, 4096) {
            Some(_) if rung => 1,
            _ => WRITERS,
        };
        let mut workers = Workers { attached: self.clone(), threads: Vec::new() };
        for _ in 0..n {
            let (core, attached) = (core.clone(), self.clone());
            let thread = std::thread::Builder::new()
                .name("fby-origin".into())
                .spawn(move || attached.work(&core))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    fn work(&self, core: &SharedPool) {
        while let Some((io, done)) = self.next_job() {
            let result = or_panic(|| self.run(core, &io, done));
            core.complete(self, io, result);
            core.kick.kick();
        }
    }

    fn run(&self, core: &SharedPool, io: &Io, done: usize) -> io::Result<()> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Errno::CANCELED.into());
        }
        match io.op {
            sys::FBY_IO_WRITE => self.origin.write_at(&io.data()[done..], io.offset + done as u64),
            // The writer may have wanted allocated blocks, which the pool does not record.  If
            // there is no space for blocks, zeroes need none.
            sys::FBY_IO_ZERO => match self.origin.allocate_zeroes(io.offset, io.len) {
                Err(e) if is_full(&e) => self.origin.write_zeroes(io.offset, io.len),
                done => done,
            },
            // First the zeroes that a read must return, then the advice.
            sys::FBY_IO_DISCARD => {
                self.origin.write_zeroes(io.offset, io.len)?;
                let _ = self.origin.discard(io.offset, io.len);
                Ok(())
            }
            _ => {
                self.origin.flush()?;
                self.marker.advance(&core.engine);
                Ok(())
            }
        }
    }

    /// A flush of the host's own, not destage's or a client's: an error that it gets is
    /// reported to the next client, too.  Returns the origin's error, or the engine's.
    pub(crate) fn flush(&self, core: &SharedPool, index: u16) -> io::Result<EngineResult<()>> {
        let (op, flags) = (sys::FBY_OP_FLUSH, sys::FBY_REQ_ASIDE);
        let w = Wanted { volume: index, op, flags, sector: 0, nsectors: 0 };
        let mut request = Request::new(w, Runs::None, false);
        let (mut result, mut flushed) = (None, Ok(()));
        let mut waiter = Waiter::default();
        loop {
            let engine = &core.engine;
            let next = engine.request_go(&mut request, &self.policy.raw, Payload::None, result);
            core.wake(request.wake());
            match next {
                sys::FBY_NEXT_DONE => return flushed.map(Ok),
                sys::FBY_NEXT_WAIT => {
                    let _ = waiter.wait(core, Wait::Flush, None);
                    result = Some(0);
                }
                sys::FBY_NEXT_ORIGIN => {
                    flushed = or_panic(|| self.origin.flush());
                    result = Some(flushed.as_ref().err().map_or(0, errno_or_io));
                }
                error => return flushed.map(|()| Err(Code(-error))),
            }
        }
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
        self.attached.end_jobs();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The thread of a pool; stopped and joined when dropped, which is after all
/// volumes were detached.
#[derive(Debug)]
pub(crate) struct Destage {
    core: Arc<SharedPool>,
    thread: Option<JoinHandle<()>>,
    /// Sends what nobody waits for, to a pool's disk.
    late: Option<JoinHandle<()>>,
}

impl Destage {
    pub(crate) fn start(core: &Arc<SharedPool>, io_uring: bool) -> io::Result<Destage> {
        let opened = match io_uring {
            true => Ring::new(core.kick.fd()).map_err(|e| format!("no io_uring ({e})")),
            false => Err("no io_uring (switched off)".into()),
        };
        let _ = core.ring.set(opened.as_ref().map(|_| ()).map_err(Clone::clone));
        let late = match core.holds_volumes() {
            true => Some(start_late(core)?),
            false => None,
        };
        let for_thread = core.clone();
        let thread = std::thread::Builder::new()
            .name("fby-destage".into())
            .spawn(move || run(&for_thread, opened.ok()))?;
        Ok(Destage { core: core.clone(), thread: Some(thread), late })
    }
}

fn start_late(core: &Arc<SharedPool>) -> io::Result<JoinHandle<()>> {
    let for_thread = core.clone();
    core.late.begin();
    let thread = std::thread::Builder::new().name("fby-groups".into()).spawn(move || {
        let core = for_thread;
        if let Some(sender) = &core.sender {
            core.late.run(sender, |wake| core.wake(wake));
        }
    });
    if thread.is_err() {
        core.late.end();
    }
    thread
}

impl Drop for Destage {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::Release);
        self.core.kick.kick();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(late) = self.late.take() {
            self.core.late.end();
            let _ = late.join();
        }
    }
}

fn run(core: &SharedPool, mut ring: Option<Ring>) {
    loop {
        if let Some(ring) = &mut ring {
            ring.reap(|w, result| ended(core, w, result));
        }
        if core.stop.load(Ordering::Acquire) && core.in_flight.load(Ordering::Acquire) == 0 {
            return;
        }
        let before = ring.as_ref().map_or(0, Ring::unsubmitted);
        let sleep = step(core, &mut ring);
        if sleep.is_some() {
            core.push();
            drain_again(core);
        }
        let batched = ring.as_ref().map_or(0, Ring::unsubmitted);
        // A step that added nothing has other work, which the origin need not wait for.
        if batched > 0 && (sleep.is_some() || batched >= BATCH || batched == before) {
            let ring = ring.as_mut().expect("it has some");
            ring.submit();
            if ring.has_refused() {
                continue;
            }
        }
        if let Some(limit) = sleep {
            core.kick.wait(limit);
        }
    }
}

/// Volumes that keep nothing in the pool: for the step after the sleep.
fn drain_again(core: &SharedPool) {
    let attached = core.attached.read().unwrap_or_else(|e| e.into_inner());
    for (&index, _) in attached.iter().filter(|(_, a)| a.policy.mode() != Mode::WriteBack) {
        if !core.engine.volume_clean(index) {
            // It may be attached only in a moment.
            let _ = drain_on(&core.engine, index);
        }
    }
}

/// The rest of a write that the ring did not finish runs on a thread of the volume: here it
/// would delay all others.
fn ended(core: &SharedPool, w: Write, result: Option<io::Result<()>>) {
    match result {
        Some(result) => core.complete(&w.attached, w.io, result),
        None => w.attached.queue(w.io, w.done),
    }
}

/// One step of the engine.  Some: how long to sleep.
fn step(core: &SharedPool, ring: &mut Option<Ring>) -> Option<Duration> {
    let mut wake = 0;
    let now_ns = core.now_ns();
    let step = core.engine.destage_step(now_ns, &mut wake);
    // Not to oneself.
    core.wake(wake & !sys::FBY_WAKE_DESTAGE);
    match step {
        Ok(Step::Submit(io)) => {
            core.in_flight.fetch_add(1, Ordering::AcqRel);
            dispatch(core, ring, io);
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
            core.failure.get_or_init(|| match core.failed(e) {
                Some(failed) => failed.to_string(),
                None => format!("destage: {} (internal error)", e.message()),
            });
            Some(NAP)
        }
    }
}

fn dispatch(core: &SharedPool, ring: &mut Option<Ring>, io: Io) {
    // A request of a volume that is gone: its round is given up.
    let Some(attached) = core.attached(io.volume) else {
        core.engine.destage_complete(io, Errno::NODEV.raw_os_error());
        core.in_flight.fetch_sub(1, Ordering::AcqRel);
        return;
    };
    // What is read in the pool may be older than what the origin has.
    if core.is_set_back() && io.op != sys::FBY_IO_FLUSH {
        core.complete(&attached, io, Err(Errno::IO.into()));
        return;
    }
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

/// No space, or none for whoever writes.
fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
