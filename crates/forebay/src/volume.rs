// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attached volumes: reads, writes, discards and drains.

mod flusher;

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::attach::{sizes, AttachOptions, Holes};
use crate::bypass::{Mode, VolumeChange, WhenFull};
use crate::destage::{errno_of, Attached, Workers};
use crate::drains::drain_on;
use crate::engine::{self, Code, Decision, Memory, Ticket, Wait};
use crate::error::{Error, Result};
use crate::latency::{sampled, Phase};
use crate::origin::Origin;
use crate::past::Bypass;
use crate::pool;
use crate::status::{DrainProgress, VolumeInfo};
use crate::wait::Waiter;

pub use flusher::Flusher;

/// Longest write handed to the engine at once; it counts bytes in 32 bits.
const WRITE_MAX: usize = 1 << 30;
/// Most bytes read from the origin and not used, rather than asking twice.
const GAP_MAX: u64 = 64 << 10;
/// What a range may take of the cache, about.
const RANGE_CACHED: u64 = 64 << 10;
/// Pages from which on a cleaner's writes wait for the block that they meet, and how
/// long: blocks that are written again and again would keep the pool from emptying.
const NEARLY_CLEAN: u64 = 16384;
const CLEANER_PATIENCE: Duration = Duration::from_millis(100);
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;

/// An attached volume; a handle to clone.  All calls may come from any number
/// of threads.  It is detached when the last handle is dropped, or by
/// [`Volume::detach`], which tells errors; what is cached stays cached.
#[derive(Clone, Debug)]
pub struct Volume(Arc<Inner>);

/// What the handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pool: Arc<pool::Inner>,
    attached: Arc<Attached>,
    /// Some until it is detached.
    workers: Option<Workers>,
    index: u16,
    name: String,
    size: u64,
    block_size: u32,
    full_timeout: Option<Duration>,
}

impl Inner {
    fn detach(&mut self) -> Result<()> {
        let Some(workers) = self.workers.take() else {
            return Ok(());
        };
        let done = self.pool.detach(self.index);
        drop(workers);
        done
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.detach();
    }
}

/// A write of at most WRITE_MAX; counts sectors.
struct Part<'a> {
    sector: u64,
    data: &'a [u8],
    total: u32,
    /// Up to here it is to go through the cache.
    through: u32,
    done: u32,
    past: u32,
    /// Covers what goes past the cache.
    ticket: &'a mut Ticket,
}

enum Past {
    Written,
    /// So many sectors are to go through the cache.
    Cached(u32),
    Busy,
}

/// What the pool has of a part of a block.
enum Held {
    Nothing,
    /// Lost sectors, and nothing that destage could write.
    Lost,
    Data,
}

/// Sectors of a request that are to be read from the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    /// Where it is in what begins at the offset.
    fn place(&self, offset: u64) -> std::ops::Range<usize> {
        (self.start * SECTOR - offset) as usize..(self.end * SECTOR - offset) as usize
    }
}

impl Volume {
    /// The caller holds the pool's lock for attaching, checked the origin, and
    /// that the volume is not attached.
    pub(crate) fn attach(
        pool: &Arc<pool::Inner>,
        index: u16,
        info: &VolumeInfo,
        identity: &str,
        origin: Box<dyn Origin>,
        o: &AttachOptions,
    ) -> Result<Volume> {
        let sizes = sizes(o)?;
        let core = pool.core();
        let attached = Arc::new(Attached::new(origin));
        attached.policy.change(&VolumeChange {
            bypass_limit_bytes: Some(o.bypass_limit_bytes),
            when_full: Some(o.when_full),
            mode: Some(o.mode),
        });
        let started = attached.start(core);
        let workers =
            started.map_err(|e| Error::system(pool.core().path(), "starting a thread", e))?;
        let size = pool.core().volume_info(index)?.size_bytes;
        let raw = engine::Attach {
            origin_sectors: size / SECTOR,
            identity,
            holes: match o.holes {
                Holes::Fail => sys::FBY_HOLES_FAIL,
                Holes::Isolate => sys::FBY_HOLES_ISOLATE,
                Holes::Accept => sys::FBY_HOLES_ACCEPT,
            },
            round_pages: sizes.round_pages,
            nbuffers: sizes.buffers,
            buffer_bytes: sizes.buffer_bytes,
        };
        let table = || core.attached.write().unwrap_or_else(|e| e.into_inner());
        // Before, since requests may come at once.
        table().insert(index, attached.clone());
        if let Err(e) = core.engine.volume_attach(index, &raw) {
            table().remove(&index);
            let named = |e| pool.core().named_error(&info.name, e);
            return Err(engine::attach_error(pool.core().path(), e, named));
        }
        core.kick.kick();
        Ok(Volume(Arc::new(Inner {
            pool: pool.clone(),
            attached,
            workers: Some(workers),
            index,
            name: info.name.clone(),
            size,
            block_size: info.block_size,
            full_timeout: o.full_timeout,
        })))
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Volume {
        Volume(inner)
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn size_bytes(&self) -> u64 {
        self.0.size
    }

    /// Logical block: requests are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.0.block_size
    }

    pub fn read_only(&self) -> bool {
        self.0.pool.core().read_only
    }

    pub fn info(&self) -> Result<VolumeInfo> {
        self.0.pool.core().volume_info(self.0.index)
    }

    pub fn origin(&self) -> &dyn Origin {
        self.0.attached.origin.as_ref()
    }

    /// Detaches it, if this is the only handle; what is cached stays cached.
    pub fn detach(self) -> Result<()> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => inner.detach(),
            Err(inner) => Err(Error::PoolInUse {
                pool: inner.pool.core().path().to_path_buf(),
                volumes: vec![inner.name.clone()],
            }),
        }
    }

    // --- requests --------------------------------------------------------

    /// Reads; each block is as of one moment during the call.  Fails with
    /// [`Error::Lost`] if blocks of the range are lost; the others are read
    /// nevertheless.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        let mut missing = Vec::new();
        let start = sampled().then(Instant::now);
        let lost = self.read_cached(buf, offset, &mut missing)?;
        if let (Some(start), true) = (start, missing.is_empty()) {
            self.0.attached.latency.add(Phase::ReadHit, start.elapsed());
        }
        if !missing.is_empty() {
            self.read_missing(buf, offset, &missing)?;
        }
        match lost.is_empty() {
            true => Ok(()),
            false => Err(Error::Lost { name: self.0.name.clone(), blocks: lost }),
        }
    }

    /// Writes.  Durable when it returns, but for what was let go past the cache
    /// (see [`AttachOptions::bypass_limit_bytes`]): that is, after a flush.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if self.0.attached.policy.mode() == Mode::WriteThrough {
            return self.write_at_durably(data, offset);
        }
        let mut ticket = Ticket::default();
        match self.write(data, offset, &mut ticket)? {
            0 => Ok(()),
            _ => {
                let later = self.0.pool.core().engine.flush_later(&mut ticket);
                later.map_err(|e| self.error(e, offset, data.len() as u64))
            }
        }
    }

    /// Writes.  Durable when it returns, in any case.
    pub fn write_at_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        let (mode, len) = (self.0.attached.policy.mode(), data.len() as u64);
        let mut ticket = Ticket::default();
        let past = self.write(data, offset, &mut ticket)? * SECTOR;
        if past > 0 {
            self.flush_ticket("flush", offset, len, &mut ticket)?;
        }
        match mode {
            Mode::WriteThrough if past < len => self.settle(offset, len),
            _ => Ok(()),
        }
    }

    /// Returns the sectors that went past the cache.
    fn write(&self, data: &[u8], offset: u64, ticket: &mut Ticket) -> Result<u64> {
        self.check(offset, data.len() as u64)?;
        let attached = &self.0.attached;
        let (timed, least) = (sampled(), attached.policy.past(data.len()));
        attached.latency.time_if(timed, Phase::Write, || {
            let mut past = 0;
            let mut sector = offset / SECTOR;
            for data in data.chunks(WRITE_MAX) {
                let total = (data.len() / SECTOR as usize) as u32;
                let through = if least.is_some() { 0 } else { total };
                let mut part = Part { sector, data, total, through, done: 0, past: 0, ticket };
                self.write_part(&mut part, least, timed)?;
                self.throttle(u64::from(total - part.past) * SECTOR);
                sector += u64::from(total);
                past += u64::from(part.past);
            }
            Ok(past)
        })
    }

    /// `least`: it goes past the cache, in pieces of so many sectors and more.
    fn write_part(&self, p: &mut Part<'_>, least: Option<u32>, timed: bool) -> Result<()> {
        let mut waiter = Waiter::default();
        while p.done < p.total {
            let before = p.done;
            let wait = match p.done < p.through {
                true => self.write_through(p, timed)?,
                false => match self.write_past(p, least.unwrap_or(1))? {
                    Past::Written => None,
                    Past::Cached(_) if self.let_go((p.sector + u64::from(p.done)) * SECTOR)? => {
                        None
                    }
                    Past::Cached(n) => {
                        p.through = p.done + n;
                        None
                    }
                    Past::Busy => Some(Wait::Block),
                },
            };
            if p.done > before {
                waiter.reset();
            }
            let bypass = || self.0.attached.policy.when_full() == WhenFull::Bypass;
            match wait {
                None => {}
                Some(Wait::Space) if bypass() => match self.write_past(p, 1)? {
                    Past::Written if least.is_some() => p.through = p.through.max(p.done),
                    Past::Written => {}
                    _ => self.wait(&mut waiter, Wait::Space)?,
                },
                Some(w) => self.wait(&mut waiter, w)?,
            }
        }
        Ok(())
    }

    /// Through the cache, up to `through`, or what it waits for.
    fn write_through(&self, p: &mut Part<'_>, timed: bool) -> Result<Option<Wait>> {
        let core = self.0.pool.core();
        let (index, engine) = (self.0.index, &core.engine);
        let data = &p.data[..p.through as usize * SECTOR as usize];
        let mut wake = 0;
        let decision = match timed {
            false => engine.write(index, p.sector, data, &mut p.done, &mut wake),
            true => {
                let latency = &self.0.attached.latency;
                engine::write_timed(engine, index, p.sector, data, &mut p.done, &mut wake, latency)
            }
        };
        if wake != 0 {
            core.wake(wake);
        }
        match decision.map_err(|e| self.error(e, p.sector * SECTOR, p.data.len() as u64))? {
            Decision::Done => Ok(None),
            Decision::Wait(w) => Ok(Some(w)),
            Decision::Origin | Decision::Again | Decision::Cached => {
                Err(self.error(Code(sys::FBY_E_INVARIANT), p.sector * SECTOR, 0))
            }
        }
    }

    /// Past the cache, the first sectors of what is left.
    fn write_past(&self, p: &mut Part<'_>, least: u32) -> Result<Past> {
        let core = self.0.pool.core();
        let (index, engine) = (self.0.index, &core.engine);
        let sector = p.sector + u64::from(p.done);
        let (offset, left) = (sector * SECTOR, p.total - p.done);
        let begun = engine
            .bypass_begin(index, sector, left, least)
            .map_err(|e| self.error(e, offset, u64::from(left) * SECTOR))?;
        let begun = match begun {
            forebay_engine::Past::Origin(begun) => begun,
            forebay_engine::Past::Cached(n) => return Ok(Past::Cached(n)),
            _ => return Ok(Past::Busy),
        };
        let mut bypass = Bypass::new(engine, begun);
        let n = bypass.nsectors();
        let data = &p.data[p.done as usize * SECTOR as usize..][..n as usize * SECTOR as usize];
        engine.origin_foreground(index, true);
        let latency = &self.0.attached.latency;
        let written = latency.time(Phase::Bypass, || self.origin().write_at(data, offset));
        engine.origin_foreground(index, false);
        self.past_ends(&mut bypass, &written, Some(p.ticket));
        self.origin_io("write past the cache", offset, data.len() as u64, |_| written)?;
        p.done += n;
        p.past += n;
        Ok(Past::Written)
    }

    // --- modes without new data in the pool --------------------------------

    /// Until the origin has the range, flushed: until nothing of it is cached but what
    /// is lost, since a block is let go of only then.  That destage has passed a write
    /// would not be enough, as the block may have been written again meanwhile, and that
    /// is what is destaged.
    fn settle(&self, offset: u64, len: u64) -> Result<()> {
        let failures = self.info()?.origin_errors;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let n = (BLOCK - at % BLOCK).min(end - at);
            match self.held(at, n)? {
                Held::Data => self.wait_for_destage(at, n, failures)?,
                Held::Nothing | Held::Lost => at += n,
            }
        }
        Ok(())
    }

    /// A write came to a block that is cached, and is to go past the cache.  True: the
    /// block was let go of meanwhile.
    fn let_go(&self, offset: u64) -> Result<bool> {
        let limit = match self.0.attached.policy.mode() {
            Mode::WriteThrough => Duration::MAX,
            Mode::Cleaner if self.info()?.pages <= NEARLY_CLEAN => CLEANER_PATIENCE,
            Mode::Cleaner | Mode::WriteBack => return Ok(false),
        };
        let (start, failures) = (Instant::now(), self.info()?.origin_errors);
        let offset = offset - offset % BLOCK;
        let len = BLOCK.min(self.0.size - offset);
        loop {
            match self.held(offset, len)? {
                Held::Nothing => return Ok(true),
                Held::Lost => return Ok(false),
                Held::Data if start.elapsed() >= limit => return Ok(false),
                Held::Data => {}
            }
            match self.wait_for_destage(offset, len, failures) {
                // The cache takes what the origin does not.
                Err(_) if limit == CLEANER_PATIENCE => return Ok(false),
                waited => waited?,
            }
        }
    }

    /// What the pool has of a part of a block.
    fn held(&self, offset: u64, len: u64) -> Result<Held> {
        let (first, n) = (offset % BLOCK / SECTOR, len / SECTOR);
        let bytes = &mut [0; BLOCK as usize][..len as usize];
        let engine = &self.0.pool.core().engine;
        let read = engine.read_block(self.0.index, offset / BLOCK, first as u32, bytes);
        let (origin, lost) = read.masks().map_err(|e| self.error(e, offset, len))?;
        let all = ((1u32 << n) - 1) << first;
        Ok(match (u32::from(origin) & all, u32::from(origin | lost) & all) {
            (not_held, _) if not_held == all => Held::Nothing,
            (_, not_good) if not_good == all => Held::Lost,
            _ => Held::Data,
        })
    }

    /// An error: the origin failed since, or the server stops.
    fn wait_for_destage(&self, offset: u64, len: u64, failures: u64) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(1);
        let core = self.0.pool.core();
        let drained = drain_on(&core.engine, self.0.index);
        drained.map_err(|e| self.error(e, offset, len))?;
        core.kick.kick();
        std::thread::sleep(LOOK);
        let info = self.info()?;
        if info.origin_errors == failures && !core.space.aborted() {
            return Ok(());
        }
        let why = info.last_error.unwrap_or_else(|| "the server stops".into());
        let result = Err(io::Error::other(why));
        self.origin_io("write through the cache", offset, len, |_| result)
    }

    /// Changes what may change while it is attached.
    pub fn set(&self, change: &VolumeChange) {
        self.0.attached.policy.change(change);
        self.0.pool.core().kick.kick();
    }

    /// All acknowledged writes are durable when it returns.  They are anyway,
    /// but for those that went past the cache: for them the origin is flushed,
    /// and once after an attach, since a host that crashed may have left some.
    /// An error is told once; where several flush, each is told by its own [`Flusher`].
    pub fn flush(&self) -> Result<()> {
        self.flush_ticket("flush", 0, self.0.size, &mut Ticket::default())
    }

    fn flush_ticket(
        &self,
        doing: &'static str,
        offset: u64,
        len: u64,
        ticket: &mut Ticket,
    ) -> Result<()> {
        let flushed = self.0.attached.flush(self.0.pool.core(), self.0.index, ticket);
        let told = self.origin_io(doing, offset, len, |_| flushed)?;
        told.map_err(|e| self.error(e, offset, len))
    }

    /// Says that the range is not needed; what it reads as afterwards is up to
    /// the origin.  A hint: parts of a 4 KiB block may be left as they are.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.range(false, offset, len)
    }

    /// The range reads as zeroes afterwards.  Durable when it returns.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.range(true, offset, len)?;
        match self.0.attached.policy.mode() {
            Mode::WriteThrough => self.settle(offset, len),
            Mode::WriteBack | Mode::Cleaner => Ok(()),
        }
    }

    /// Zeroing large ranges is faster than writing them.
    pub fn write_zeroes_is_fast(&self) -> bool {
        self.origin().write_zeroes_is_fast()
    }

    /// Writes all that is cached to the origin, until all that was written
    /// before the call is there and flushed.  The progress function is called
    /// at the start, about ten times a second, and at the end; when it breaks,
    /// the drain ends with [`Error::Interrupted`].  While the origin fails it
    /// goes on trying.  `Ok` says that the origin alone is complete: where blocks
    /// are lost, all else is written and the end is [`Error::Incomplete`].
    pub fn drain(
        &self,
        progress: &mut dyn FnMut(&DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        let core = self.0.pool.core();
        let (judged, last) = core.drain(&[self.0.index], &mut |_, p| progress(p))?;
        match judged.into_iter().find(|c| !c.complete) {
            None => Ok(last),
            Some(incomplete) => Err(Error::Incomplete(Box::new(incomplete))),
        }
    }

    /// Gives lost blocks up: the origin's older data becomes their newest, by
    /// writing it to the volume.  Returns them.  An explicit order, for which
    /// nobody else may write to the volume meanwhile.
    pub fn accept_lost(&self) -> Result<Vec<u64>> {
        let engine = &self.0.pool.core().engine;
        let blocks = engine.lost_blocks(self.0.index, usize::MAX);
        for &block in &blocks {
            let offset = block * BLOCK;
            let mut old = [0; BLOCK as usize];
            let old = &mut old[..(self.0.size - offset).min(BLOCK) as usize];
            let mut cached = [0; BLOCK as usize];
            let cached = &mut cached[..old.len()];
            let read = engine.read_block(self.0.index, block, 0, cached);
            let (_, lost) = read.masks().map_err(|e| self.error(e, offset, BLOCK))?;
            self.read_missing(
                old,
                offset,
                &[Run { start: offset / SECTOR, end: (offset + old.len() as u64) / SECTOR }],
            )?;
            let mut runs = Vec::new();
            add_runs(&mut runs, 0, lost);
            for run in runs {
                let bytes = (run.start * SECTOR) as usize..(run.end * SECTOR) as usize;
                self.write_at_durably(&old[bytes], offset + run.start * SECTOR)?;
            }
        }
        Ok(blocks)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let block = u64::from(self.0.block_size);
        if !(offset | len).is_multiple_of(block) {
            return Err(Error::Alignment {
                name: self.0.name.clone(),
                offset,
                len,
                block_size: self.0.block_size,
            });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.0.size => Ok(()),
            _ => Err(Error::Range { name: self.0.name.clone(), offset, len, size: self.0.size }),
        }
    }

    /// So that intake meets the drain rate.  A short delay is not worth a
    /// sleep: it adds to that of the next write.
    fn throttle(&self, bytes: u64) {
        const SHORTEST: Duration = Duration::from_micros(100);
        let core = self.0.pool.core();
        // Spares a look at the clock, 30 of 700 ns.
        if !core.engine.write_throttled(self.0.index) {
            return;
        }
        let sectors = u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX);
        let delay = core.engine.write_delay(self.0.index, sectors, core.now_ns());
        let delay = Duration::from_nanos(delay);
        if delay >= SHORTEST {
            self.0.attached.latency.time(Phase::Throttle, || std::thread::sleep(delay));
        }
    }

    fn error(&self, e: Code, offset: u64, len: u64) -> Error {
        match e.0 {
            sys::FBY_E_RANGE => {
                Error::Range { name: self.0.name.clone(), offset, len, size: self.0.size }
            }
            _ => self.0.pool.core().named_error(&self.0.name, e),
        }
    }

    fn wait(&self, waiter: &mut Waiter, w: Wait) -> Result<()> {
        let core = self.0.pool.core();
        let timeout = self.0.full_timeout;
        let phase = if w == Wait::Space { Phase::WaitSpace } else { Phase::WaitSlot };
        let waited = self.0.attached.latency.time(phase, || {
            waiter.wait(&core.engine, &core.space, w, timeout, || core.kick.kick())
        });
        waited.map_err(|gave_up| Error::Full {
            name: self.0.name.clone(),
            waited_ms: gave_up.waited.as_millis() as u64,
            last_error: self.0.attached.last_error(),
        })
    }

    fn origin_io<T>(
        &self,
        doing: &'static str,
        offset: u64,
        len: u64,
        f: impl FnOnce(&dyn Origin) -> io::Result<T>,
    ) -> Result<T> {
        f(self.origin()).map_err(|source| Error::OriginIo {
            name: self.0.name.clone(),
            doing,
            offset,
            len,
            source,
        })
    }

    // --- reading ---------------------------------------------------------

    /// Copies what is cached; `missing` gets the rest, ascending and joined.
    /// Returns the blocks that are lost.
    fn read_cached(&self, buf: &mut [u8], offset: u64, missing: &mut Vec<Run>) -> Result<Vec<u64>> {
        let engine = &self.0.pool.core().engine;
        let mut lost = Vec::new();
        let (mut at, len) = (offset, buf.len() as u64);
        let mut rest = buf;
        while !rest.is_empty() {
            let first = (at % BLOCK) / SECTOR;
            let n = (BLOCK - at % BLOCK).min(rest.len() as u64);
            let (dst, after) = std::mem::take(&mut rest).split_at_mut(n as usize);
            let read = engine.read_block(self.0.index, at / BLOCK, first as u32, dst);
            let (origin, lost_mask) = read.masks().map_err(|e| self.error(e, offset, len))?;
            if lost_mask != 0 {
                lost.push(at / BLOCK);
            }
            if origin != 0 {
                add_runs(missing, (at - at % BLOCK) / SECTOR, origin);
            }
            at += n;
            rest = after;
        }
        Ok(lost)
    }

    fn read_missing(&self, buf: &mut [u8], offset: u64, missing: &[Run]) -> Result<()> {
        let engine = &self.0.pool.core().engine;
        engine.origin_foreground(self.0.index, true);
        let latency = &self.0.attached.latency;
        let result = latency.time(Phase::OriginRead, || self.read_groups(buf, offset, missing));
        engine.origin_foreground(self.0.index, false);
        result
    }

    /// Runs with little between them in one request, the others each in one.  Where
    /// that fails each run is read by itself: what lies between them is cached, and
    /// its state on the origin must not matter.
    fn read_groups(&self, buf: &mut [u8], offset: u64, missing: &[Run]) -> Result<()> {
        let close = |a: &Run, b: &Run| (b.start - a.end) * SECTOR <= GAP_MAX;
        for group in missing.chunk_by(close) {
            if group.len() > 1 && self.read_joined(buf, offset, group)? {
                continue;
            }
            for run in group {
                let (at, dst) = (run.start * SECTOR, &mut buf[run.place(offset)]);
                self.origin_io("read", at, dst.len() as u64, |o| o.read_at(dst, at))?;
            }
        }
        Ok(())
    }

    /// In one request, with what is between; false: that failed.
    fn read_joined(&self, buf: &mut [u8], offset: u64, group: &[Run]) -> Result<bool> {
        let start = group[0].start * SECTOR;
        let len = (group[group.len() - 1].end * SECTOR - start) as usize;
        let mut whole = Memory::zeroed(len)
            .map_err(|e| Error::system(self.0.pool.core().path(), "allocating memory", e))?;
        let bytes = &mut whole.bytes_mut()[..len];
        if self.origin().read_at(bytes, start).is_err() {
            return Ok(false);
        }
        for run in group {
            buf[run.place(offset)].copy_from_slice(&bytes[run.place(start)]);
        }
        Ok(true)
    }

    // --- ranges ----------------------------------------------------------

    fn range(&self, zero: bool, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let core = self.0.pool.core();
        let mut waiter = Waiter::default();
        let (mut done, mut ticket) = (0, None);
        loop {
            let (before, mut wake) = (done, 0);
            let (sector, n) = (offset / SECTOR, len / SECTOR);
            let (engine, index) = (&core.engine, self.0.index);
            let kind = if zero { sys::FBY_KIND_ZERO } else { sys::FBY_KIND_DISCARD };
            let step = engine.range(index, kind, sector, n, &mut done, &mut wake);
            if wake != 0 {
                core.wake(wake);
            }
            if done > before {
                waiter.reset();
            }
            match step.map_err(|e| self.error(e, offset, len))? {
                forebay_engine::Past::Done => {
                    if let Some(ticket) = &mut ticket {
                        self.flush_ticket("write of zeroes", offset, len, ticket)?;
                    }
                    self.throttle(len.min(RANGE_CACHED));
                    return Ok(());
                }
                forebay_engine::Past::Wait(w) => self.wait(&mut waiter, w)?,
                forebay_engine::Past::Origin(begun) => {
                    let past = Bypass::new(engine, begun);
                    let n = u64::from(past.nsectors());
                    let ticket = zero.then(|| ticket.get_or_insert_default());
                    self.range_past(zero, (sector + done) * SECTOR, past, ticket)?;
                    done += n;
                }
                forebay_engine::Past::Cached(_) => {}
            }
        }
    }

    fn range_past(
        &self,
        zero: bool,
        offset: u64,
        mut past: Bypass<'_>,
        ticket: Option<&mut Ticket>,
    ) -> Result<()> {
        let len = u64::from(past.nsectors()) * SECTOR;
        let (doing, result) = match zero {
            true => ("write of zeroes", self.origin().write_zeroes(offset, len)),
            false => ("discard", self.origin().discard(offset, len)),
        };
        self.past_ends(&mut past, &result, ticket);
        self.origin_io(doing, offset, len, |_| result)
    }

    fn past_ends(&self, past: &mut Bypass<'_>, r: &io::Result<()>, ticket: Option<&mut Ticket>) {
        let wake = past.end(r.as_ref().err().map_or(0, errno_of), ticket);
        if wake != 0 {
            self.0.pool.core().wake(wake);
        }
    }
}

/// Adds the sectors of a mask, joined with what is before where they touch.
fn add_runs(runs: &mut Vec<Run>, first: u64, mask: u8) {
    for bit in (0..8).filter(|bit| mask >> bit & 1 == 1) {
        let sector = first + bit;
        match runs.last_mut() {
            Some(last) if last.end == sector => last.end += 1,
            _ => runs.push(Run { start: sector, end: sector + 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sectors_are_joined() {
        let mut runs = Vec::new();
        add_runs(&mut runs, 8, 0b1100_0000);
        add_runs(&mut runs, 16, 0b1000_0011);
        add_runs(&mut runs, 24, 0b0000_0001);
        add_runs(&mut runs, 40, 0b0101_0000);
        let pairs: Vec<_> = runs.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(pairs, [(14, 18), (23, 25), (44, 45), (46, 47)]);
    }
}
