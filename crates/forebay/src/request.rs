// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of a volume that block nowhere, for front ends that have many in flight.
//!
//! [`Volume::read_at`] and the like carry a request out on the caller's thread.  A
//! [`Request`] is what they are made of: [`Request::resume`] says what is to be done next,
//! and is told how that went.  So one thread can have thousands in flight, over an
//! origin that is read and written by io_uring or however else.
//!
//! ```no_run
//! # use forebay::{Request, Step, Volume};
//! # fn later(_: std::time::Duration) {}
//! # fn example(volume: &Volume) -> forebay::Result<()> {
//! let mut block = [0; 4096];
//! let mut request = Request::read(volume, &mut block, 0)?;
//! let mut step = request.begin();
//! loop {
//!     step = match step {
//!         Step::Done(result) => return result,
//!         Step::Origin(io) => {
//!             let result = request.perform(&io); // or later, elsewhere
//!             request.resume(result)
//!         }
//!         Step::Wait(_, at_most) => {
//!             later(at_most);
//!             request.resume(Ok(()))
//!         }
//!     };
//! }
//! # }
//! ```

use std::io;
use std::time::{Duration, Instant};

use forebay_engine::request::{Payload, Runs, Wanted};
use forebay_engine::sys;

use crate::draining::drain_on;
use crate::engine::{Code, Memory, Wait};
use crate::errno::errno_or_io;
use crate::error::{Error, Result};
use crate::grouped::Sender;
use crate::latency::{sampled, Phase};
use crate::volume::{Inner, Volume};
use crate::wait::Waiter;

const SECTOR: u64 = 512;

/// The next step of a request.
#[derive(Debug)]
pub enum Step {
    /// It has ended.
    Done(Result<()>),
    /// This is to be done on the origin; then resume with the result.
    Origin(OriginIo),
    /// Resume after so long, or sooner where it is known that what it waits for has come;
    /// for the throttle not sooner.  It holds nothing meanwhile.
    Wait(Why, Duration),
}

/// The reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another request has the block, or a commit slot.
    Busy,
    /// The pool's disk: what was appended is to be durable, or a group has to end first.
    /// [`Request::wait_for_disk`] waits for it.
    Disk,
    /// The cache is full.
    Space,
    /// Another flush is in flight.
    Flush,
    /// The origin is to have what is cached.
    Destage,
    /// It is done; its caller is held, so that intake matches what the origin takes.
    Throttle,
}

/// A request to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginIo {
    pub op: OriginOp,
    /// Bytes.
    pub offset: u64,
    pub len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginOp {
    /// See [`Request::fill`].
    Read,
    /// See [`Request::data`].
    Write,
    WriteZeroes,
    Discard,
    Flush,
    /// The origin is to be marked, before the first write is acknowledged that it lacks:
    /// [`Request::perform`] does it.
    Mark,
}

/// A request of a volume.  Dropping it before its end abandons it; if it has written, each
/// block then holds the old data or the new.
#[derive(Debug)]
pub struct Request<'a> {
    volume: &'a Inner,
    machine: forebay_engine::request::Request<'a>,
    payload: Payload<'a>,
    /// Bytes.
    offset: u64,
    len: u64,
    /// When it ends, a pool may hold what the origin lacks.
    changes: bool,
    /// Zeroes are to have blocks.
    allocates: bool,
    asked: Asked,
    /// Requests to the pool's disk that had ended before the last call.
    ends: u64,
    /// Details of a failure.
    ill: Option<Box<Ill>>,
}

#[derive(Debug, Default)]
struct Ill {
    lost: Vec<u64>,
    /// The last part that the origin did not do.
    failure: Option<(&'static str, OriginIo, io::Error)>,
}

/// The step whose result `resume` expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Origin,
    Destage,
    Mark,
}

impl<'a> Request<'a> {
    /// Reads, see [`Volume::read_at`].
    pub fn read(volume: &'a Volume, buf: &'a mut [u8], offset: u64) -> Result<Request<'a>> {
        volume.inner().check(offset, buf.len() as u64)?;
        Ok(Request::read_into(volume.inner(), buf, offset, Runs::own(None)))
    }

    /// The caller has checked the range, here and below.
    #[inline(always)]
    pub(crate) fn read_into(
        volume: &'a Inner,
        buf: &'a mut [u8],
        offset: u64,
        runs: Runs<'a>,
    ) -> Request<'a> {
        let len = buf.len() as u64;
        Request::new(volume, sys::FBY_OP_READ, 0, offset, len, Payload::Read(buf), runs, false)
    }

    /// Writes, see [`Volume::write_at`]; durable in any case, if asked.
    pub fn write(
        volume: &'a Volume,
        data: &'a [u8],
        offset: u64,
        durable: bool,
    ) -> Result<Request<'a>> {
        volume.inner().check(offset, data.len() as u64)?;
        Ok(Request::write_timed(volume.inner(), data, offset, durable, false))
    }

    /// See [`Volume::discard`].
    pub fn discard(volume: &'a Volume, offset: u64, len: u64) -> Result<Request<'a>> {
        Request::range(volume.inner(), sys::FBY_OP_DISCARD, offset, len)
    }

    /// See [`Volume::write_zeroes`].
    pub fn write_zeroes(volume: &'a Volume, offset: u64, len: u64) -> Result<Request<'a>> {
        Request::range(volume.inner(), sys::FBY_OP_ZERO, offset, len)
    }

    /// See [`Volume::allocate_zeroes`].
    pub fn allocating(mut self) -> Request<'a> {
        self.allocates = true;
        self
    }

    /// See [`Volume::flush`].
    pub fn flush(volume: &'a Volume) -> Result<Request<'a>> {
        let volume = volume.inner();
        Request::range(volume, sys::FBY_OP_FLUSH, 0, volume.size())
    }

    /// For one of several clients; `told`: failures that it was told of before.
    pub(crate) fn flush_of(volume: &'a Inner, told: u32) -> Request<'a> {
        let (op, flags, size) = (sys::FBY_OP_FLUSH, sys::FBY_REQ_CLIENT, volume.size());
        let mut r = Request::new(volume, op, flags, 0, size, Payload::None, Runs::None, false);
        r.machine.set_told(told);
        r
    }

    /// ... and how many it need not be told after this.
    pub(crate) fn told(&self) -> u32 {
        self.machine.told()
    }

    fn range(volume: &'a Inner, op: u8, offset: u64, len: u64) -> Result<Request<'a>> {
        volume.check(offset, len)?;
        Ok(Request::new(volume, op, 0, offset, len, Payload::None, Runs::None, false))
    }

    #[inline(always)]
    pub(crate) fn write_timed(
        volume: &'a Inner,
        data: &'a [u8],
        offset: u64,
        durable: bool,
        timed: bool,
    ) -> Request<'a> {
        let flags = if durable { sys::FBY_REQ_DURABLE } else { 0 };
        let len = data.len() as u64;
        let payload = Payload::Write(data);
        Request::new(volume, sys::FBY_OP_WRITE, flags, offset, len, payload, Runs::None, timed)
    }

    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn new(
        volume: &'a Inner,
        op: u8,
        flags: u8,
        offset: u64,
        len: u64,
        payload: Payload<'a>,
        runs: Runs<'a>,
        timed: bool,
    ) -> Request<'a> {
        let (sector, nsectors) = (offset / SECTOR, len / SECTOR);
        let flags = flags | volume.tickets();
        let w = Wanted { volume: volume.index(), op, flags, sector, nsectors };
        let machine = forebay_engine::request::Request::new(w, runs, timed);
        // A flush, too, says that what can be read is durable, and the origin lacks it.
        let changes = op != sys::FBY_OP_READ;
        let (allocates, asked, ill) = (false, Asked::Nothing, None);
        Request { volume, machine, payload, offset, len, changes, allocates, asked, ends: 0, ill }
    }

    /// Once, first.
    #[inline(always)]
    pub fn begin(&mut self) -> Step {
        if self.volume.core().is_lost() && (self.changes || self.volume.core().is_set_back()) {
            return self.end_if_there();
        }
        let next = self.go(None);
        self.step(next)
    }

    /// Takes the result of the step; for a wait `Ok`, or an error if waiting should end.
    pub fn resume(&mut self, result: io::Result<()>) -> Step {
        if self.asked == Asked::Mark {
            return match result {
                Ok(()) => self.end_if_there(),
                Err(source) => Step::Done(Err(self.marking_failed(source))),
            };
        }
        let errno = result.as_ref().err().map_or(0, errno_or_io);
        let failed = result.err().filter(|_| self.asked == Asked::Origin);
        let failure = failed.map(|e| (self.doing(), self.origin_io(), e));
        if failure.is_some() || self.ill.is_some() {
            self.ill().failure = failure;
        }
        let next = self.go(Some(errno));
        self.step(next)
    }

    #[inline(always)]
    fn go(&mut self, result: Option<i32>) -> i32 {
        let (engine, policy) = (&self.volume.core().engine, self.volume.policy());
        if self.volume.is_grouped() {
            self.note_ends();
        }
        let next = engine.request_go(&mut self.machine, policy, self.payload.lend(), result);
        if self.machine.wake() != 0 {
            self.volume.core().wake(self.machine.wake());
        }
        next
    }

    #[cold]
    fn note_ends(&mut self) {
        self.ends = self.volume.core().sender.as_ref().map_or(0, Sender::ends);
    }

    /// Sends what is to be written if the request waits for the pool's disk, or sleeps until another
    /// thread has sent it.  Returns at once if the request waits for nothing there.
    pub fn wait_for_disk(&self) {
        let core = self.volume.core();
        let Some(sender) = &core.sender else { return };
        let mut wake = 0;
        match self.machine.awaits() {
            0 => sender.help(self.ends, &mut wake),
            // It looks at the ticket itself.
            ticket => drop(sender.wait(self.volume.index(), ticket, &mut wake)),
        }
        core.wake(wake);
    }

    #[inline(always)]
    fn step(&mut self, next: i32) -> Step {
        match next {
            sys::FBY_NEXT_DONE => self.done(),
            other => self.other_step(other),
        }
    }

    /// A write may be acknowledged if the origin is marked.
    #[inline(always)]
    fn done(&mut self) -> Step {
        match !self.changes || self.volume.marker().is_on() {
            true if self.changes && self.volume.core().is_lost() => self.end_if_there(),
            true => Step::Done(Ok(())),
            false => self.marking(),
        }
    }

    /// The end of a change.  A pool whose file is lost acknowledges nothing that it would have to
    /// keep.
    #[cold]
    fn end_if_there(&self) -> Step {
        Step::Done(self.volume.core().check_there())
    }

    #[cold]
    fn marking(&mut self) -> Step {
        self.asked = Asked::Mark;
        Step::Origin(OriginIo { op: OriginOp::Mark, offset: 0, len: 0 })
    }

    /// The pool counts the marks, so a failed disk of its own may be the cause.
    #[cold]
    fn marking_failed(&self, source: io::Error) -> Error {
        self.volume.core().disk_failed().unwrap_or_else(|| Error::Marking {
            name: self.volume.name().into(),
            origin: self.volume.origin().info().name,
            what: "set",
            source,
        })
    }

    #[inline(never)]
    fn other_step(&mut self, mut next: i32) -> Step {
        const BUSY: Duration = Duration::from_micros(50);
        const DISK: Duration = Duration::from_millis(1);
        loop {
            match next {
                sys::FBY_NEXT_DONE => return self.done(),
                sys::FBY_NEXT_ORIGIN => {
                    self.asked = Asked::Origin;
                    return Step::Origin(self.origin_io());
                }
                sys::FBY_NEXT_WAIT => {
                    let (why, ns) = match self.machine.why() {
                        sys::FBY_WAIT_SPACE => (Why::Space, sys::FBY_DEFAULT_SPACE_RETRY_NS),
                        sys::FBY_WAIT_FLUSH => (Why::Flush, sys::FBY_DEFAULT_FLUSH_RETRY_NS),
                        sys::FBY_WAIT_TICKET => return Step::Wait(Why::Disk, DISK),
                        _ => return Step::Wait(Why::Busy, BUSY),
                    };
                    return Step::Wait(why, Duration::from_nanos(ns.into()));
                }
                sys::FBY_NEXT_THROTTLE => match self.delay_ns() {
                    0 => {}
                    ns => return Step::Wait(Why::Throttle, Duration::from_nanos(ns)),
                },
                sys::FBY_NEXT_DRAIN => match self.drain() {
                    Ok(()) => {
                        let ns = sys::FBY_DEFAULT_DRAIN_LOOK_NS;
                        return Step::Wait(Why::Destage, Duration::from_nanos(ns.into()));
                    }
                    Err(e) => return Step::Done(Err(e)),
                },
                sys::FBY_NEXT_LOST => {
                    let block = self.machine.lost() / 8;
                    self.ill().lost.push(block);
                }
                sys::FBY_NEXT_STEP => {
                    next = self.timed_step();
                    continue;
                }
                sys::FBY_NEXT_DATA => {}
                error => return Step::Done(Err(self.error(Code(-error)))),
            }
            next = self.go(Some(0));
        }
    }

    fn delay_ns(&self) -> u64 {
        let core = self.volume.core();
        core.engine.request_delay(&self.machine, core.now_ns())
    }

    /// A step of a sampled write was made, and another is to be.
    fn timed_step(&mut self) -> i32 {
        let phase = match self.machine.step() {
            1 => Phase::Copy,
            2 => Phase::Commit,
            3 => Phase::Publish,
            _ => return self.go(Some(0)),
        };
        let volume = self.volume;
        volume.latency().time(phase, || self.go(Some(0)))
    }

    fn drain(&mut self) -> Result<()> {
        self.asked = Asked::Destage;
        let core = self.volume.core();
        drain_on(&core.engine, self.volume.index()).map_err(|e| self.error(e))?;
        core.kick.kick();
        Ok(())
    }

    // --- the origin's part ------------------------------------------------------

    fn origin_io(&self) -> OriginIo {
        let asked = self.machine.asked();
        let op = match asked.op {
            sys::FBY_OP_READ => OriginOp::Read,
            sys::FBY_OP_WRITE => OriginOp::Write,
            sys::FBY_OP_ZERO => OriginOp::WriteZeroes,
            sys::FBY_OP_DISCARD => OriginOp::Discard,
            _ => OriginOp::Flush,
        };
        OriginIo { op, offset: asked.sector * SECTOR, len: asked.nsectors * SECTOR }
    }

    fn doing(&self) -> &'static str {
        match self.machine.asked().op {
            sys::FBY_OP_READ => "read",
            sys::FBY_OP_WRITE => "write past the cache",
            sys::FBY_OP_ZERO => "write of zeroes",
            sys::FBY_OP_DISCARD => "discard",
            _ => "flush",
        }
    }

    fn bytes(&self, io: &OriginIo) -> std::ops::Range<usize> {
        let start = (io.offset - self.offset) as usize;
        start..start + io.len as usize
    }

    /// The data that the origin should write.
    pub fn data(&self, io: &OriginIo) -> &[u8] {
        match &self.payload {
            Payload::Write(data) if io.op == OriginOp::Write => &data[self.bytes(io)],
            _ => &[],
        }
    }

    /// The memory for all that the origin reads; `None`: parts of it are cached, and newer
    /// there.
    pub fn place(&mut self, io: &OriginIo) -> Option<&mut [u8]> {
        let (bytes, whole) = (self.bytes(io), self.machine.asked().nruns == 1);
        match &mut self.payload {
            Payload::Read(buf) if whole => Some(&mut buf[bytes]),
            _ => None,
        }
    }

    /// All of what the origin has read, of which each part goes to its place.
    pub fn fill(&mut self, io: &OriginIo, whole: &[u8]) {
        assert_eq!(whole.len() as u64, io.len);
        if let Some(place) = self.place(io) {
            place.copy_from_slice(whole);
            return;
        }
        let first = self.bytes(io).start;
        let runs: Vec<_> = self.machine.parts().collect();
        let Payload::Read(buf) = &mut self.payload else { return };
        for run in runs {
            let (start, end) = (run.start as usize * 512, run.end as usize * 512);
            buf[start..end].copy_from_slice(&whole[start - first..end - first]);
        }
    }

    /// Does it, on the volume's own origin and the caller's thread.
    pub fn perform(&mut self, io: &OriginIo) -> io::Result<()> {
        let (origin, latency) = (self.volume.origin(), self.volume.latency());
        match io.op {
            OriginOp::Write => {
                latency.time(Phase::Bypass, || origin.write_at(self.data(io), io.offset))
            }
            OriginOp::WriteZeroes if self.allocates => origin.allocate_zeroes(io.offset, io.len),
            OriginOp::WriteZeroes => origin.write_zeroes(io.offset, io.len),
            OriginOp::Discard => origin.discard(io.offset, io.len),
            OriginOp::Flush => origin.flush(),
            OriginOp::Mark => self.volume.marker().mark(&self.volume.core().engine),
            OriginOp::Read => latency.time(Phase::OriginRead, || match self.place(io) {
                Some(place) => origin.read_at(place, io.offset),
                None => {
                    let mut whole = Memory::zeroed(io.len as usize)?;
                    let whole = &mut whole.bytes_mut()[..io.len as usize];
                    origin.read_at(whole, io.offset)?;
                    self.fill(io, whole);
                    Ok(())
                }
            }),
        }
    }

    /// Carries it out on the caller's thread.
    #[inline(always)]
    pub(crate) fn run(&mut self) -> Result<()> {
        match self.begin() {
            Step::Done(result) => result,
            step => self.run_on(step),
        }
    }

    /// A write, begun with a look at the clock.
    pub(crate) fn run_timed(&mut self) -> Result<()> {
        let volume = self.volume;
        let next = volume.latency().time(Phase::Begin, || self.go(None));
        let step = self.step(next);
        self.run_on(step)
    }

    #[inline(never)]
    fn run_on(&mut self, mut step: Step) -> Result<()> {
        let (volume, mut waiter) = (self.volume, Waiter::default());
        let mut done = 0;
        loop {
            if self.machine.done() > done {
                done = self.machine.done();
                waiter.reset();
            }
            let result = match step {
                Step::Done(result) => return result,
                Step::Origin(io) => self.perform(&io),
                Step::Wait(Why::Throttle, delay) => {
                    volume.latency().time(Phase::Throttle, || std::thread::sleep(delay));
                    Ok(())
                }
                Step::Wait(Why::Destage, pause) => {
                    std::thread::sleep(pause);
                    match volume.core().space.aborted() {
                        true => Err(io::Error::other("the server stops")),
                        false => Ok(()),
                    }
                }
                Step::Wait(Why::Disk, _) => {
                    volume.latency().time(Phase::WaitSlot, || self.wait_for_disk());
                    Ok(())
                }
                Step::Wait(why, _) => {
                    if why == Why::Space {
                        volume.core().help_space(self.ends);
                    }
                    let wait = match why {
                        Why::Space => Wait::Space,
                        Why::Flush => Wait::Flush,
                        _ => Wait::Block,
                    };
                    volume.wait(&mut waiter, wait)?;
                    Ok(())
                }
            };
            step = self.resume(result);
        }
    }

    /// Reads, and counts those that need nothing of the origin.
    #[inline(always)]
    pub(crate) fn run_read(&mut self) -> Result<()> {
        let start = sampled().then(Instant::now);
        let step = self.begin();
        if let (Some(start), Step::Done(Ok(()))) = (start, &step) {
            self.volume.latency().add(Phase::ReadHit, start.elapsed());
        }
        match step {
            Step::Done(result) => result,
            step => self.run_on(step),
        }
    }

    fn ill(&mut self) -> &mut Ill {
        self.ill.get_or_insert_default()
    }

    #[cold]
    fn error(&mut self, e: Code) -> Error {
        let Ill { lost, failure } = *self.ill.take().unwrap_or_default();
        let name = || self.volume.name().to_string();
        match (e.0, failure) {
            (sys::FBY_E_LOST, _) if !lost.is_empty() => Error::Lost { name: name(), blocks: lost },
            (sys::FBY_E_ORIGIN_IO, None) if self.asked == Asked::Destage => {
                let last = self.volume.info().ok().and_then(|info| info.last_error);
                let why = last.unwrap_or_else(|| "the server stops".into());
                let (doing, source) = ("write through the cache", io::Error::other(why));
                Error::OriginIo { name: name(), doing, offset: self.offset, len: self.len, source }
            }
            (sys::FBY_E_ORIGIN_IO, Some((doing, io, source))) => {
                let OriginIo { offset, len, .. } = io;
                Error::OriginIo { name: name(), doing, offset, len, source }
            }
            _ => self.volume.error(e, self.offset, self.len),
        }
    }
}

impl Drop for Request<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Waiters for its blocks look again in time.
        let _ = self.volume.core().engine.request_end(&mut self.machine);
        // It may have appended what nobody waits for.
        if self.volume.is_grouped() && self.changes {
            self.volume.core().late.appended();
        }
    }
}
