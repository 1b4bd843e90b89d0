// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attached volumes: reads, writes, discards and drains.

mod extents;
mod flusher;

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_engine::request::{Policy, Runs, NO_RUNS};
use forebay_engine::sys;

use crate::attach::{sizes, AttachOptions, Holes};
use crate::bypass::VolumeChange;
use crate::core::Core;
use crate::destage::{Attached, Workers};
use crate::engine::{self, Code, Wait};
use crate::error::{Error, Result};
use crate::latency::{sampled, Phase, Phases};
use crate::mark::Marker;
use crate::origin::Origin;
use crate::pool;
use crate::request::Request;
use crate::status::{DrainProgress, VolumeInfo};
use crate::wait::Waiter;

pub use flusher::Flusher;

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

/// What a request needs of its volume.
impl Inner {
    pub(crate) fn core(&self) -> &Core {
        self.pool.core()
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.attached.policy.0
    }

    pub(crate) fn latency(&self) -> &Phases {
        &self.attached.latency
    }

    pub(crate) fn origin(&self) -> &dyn Origin {
        self.attached.origin.as_ref()
    }

    pub(crate) fn marker(&self) -> &Marker {
        &self.attached.marker
    }

    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn info(&self) -> Result<VolumeInfo> {
        self.pool.core().volume_info(self.index)
    }

    #[inline(always)]
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        // A power of two.
        let aligned = (offset | len) & u64::from(self.block_size - 1) == 0;
        match offset.checked_add(len) {
            Some(end) if aligned && end <= self.size => Ok(()),
            _ => Err(self.refuse(aligned, offset, len)),
        }
    }

    #[cold]
    fn refuse(&self, aligned: bool, offset: u64, len: u64) -> Error {
        let name = self.name.clone();
        match aligned {
            true => Error::Range { name, offset, len, size: self.size },
            false => Error::Alignment { name, offset, len, block_size: self.block_size },
        }
    }

    #[cold]
    pub(crate) fn error(&self, e: Code, offset: u64, len: u64) -> Error {
        match e.0 {
            sys::FBY_E_RANGE => {
                Error::Range { name: self.name.clone(), offset, len, size: self.size }
            }
            _ => self.pool.core().named_error(&self.name, e),
        }
    }

    pub(crate) fn wait(&self, waiter: &mut Waiter, w: Wait) -> Result<()> {
        let wait = || waiter.wait(self.core(), w, self.full_timeout);
        let waited = match w {
            Wait::Space => self.latency().time(Phase::WaitSpace, wait),
            Wait::Block | Wait::Slot => self.latency().time(Phase::WaitSlot, wait),
            Wait::Flush => {
                let mut wait = wait;
                wait()
            }
        };
        waited.map_err(|gave_up| Error::Full {
            name: self.name.clone(),
            waited_ms: gave_up.waited.as_millis() as u64,
            last_error: self.attached.last_error(),
        })
    }
}

pub(crate) fn raw_holes(holes: Holes) -> u32 {
    match holes {
        Holes::Fail => sys::FBY_HOLES_FAIL,
        Holes::Isolate => sys::FBY_HOLES_ISOLATE,
        Holes::Accept => sys::FBY_HOLES_ACCEPT,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.detach();
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
        marker: Marker,
        o: &AttachOptions,
    ) -> Result<Volume> {
        let sizes = sizes(o)?;
        let core = pool.core();
        let attached = Arc::new(Attached::new(origin, marker));
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
            holes: raw_holes(o.holes),
            round_pages: sizes.round_pages,
            nrequests: sizes.buffers,
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

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
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
        self.0.check(offset, buf.len() as u64)?;
        let mut runs = NO_RUNS;
        let mut request = Request::read_into(&self.0, buf, offset, Runs::Lent(&mut runs));
        request.run_read()
    }

    /// Writes.  Durable when it returns, but for what was let go past the cache
    /// (see [`AttachOptions::bypass_limit_bytes`]): that is, after a flush.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write(data, offset, false)
    }

    /// Writes.  Durable when it returns, in any case.
    pub fn write_at_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write(data, offset, true)
    }

    #[inline(always)]
    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.0.check(offset, data.len() as u64)?;
        if sampled() {
            return self.write_timed(data, offset, durable);
        }
        Request::write_timed(&self.0, data, offset, durable, false).run()
    }

    #[inline(never)]
    fn write_timed(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.0.latency().time(Phase::Write, || {
            Request::write_timed(&self.0, data, offset, durable, true).run_timed()
        })
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
        Request::flush(self)?.run()
    }

    /// Says that the range is not needed; what it reads as afterwards is up to
    /// the origin.  A hint: parts of a 4 KiB block may be left as they are.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        Request::discard(self, offset, len)?.run()
    }

    /// The range reads as zeroes afterwards, and may have no blocks on the origin.  Durable
    /// when it returns.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        Request::write_zeroes(self, offset, len)?.run()
    }

    /// The same, and the range has blocks on the origin, as far as that can tell.
    pub fn allocate_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        Request::write_zeroes(self, offset, len)?.allocating().run()
    }

    /// Zeroing large ranges is faster than writing them.
    pub fn write_zeroes_is_fast(&self) -> bool {
        self.origin().write_zeroes_is_fast()
    }

    /// Writes all that is cached to the origin, until all that was written
    /// before the call is there and flushed.  The progress function is called
    /// at the start, about ten times a second, and at the end; when it breaks,
    /// the drain ends with [`Error::Interrupted`].  While the origin fails it
    /// goes on trying.  `Ok` says that the origin alone has all of that: where blocks
    /// are lost, all else is written and the end is [`Error::Incomplete`].
    pub fn drain(
        &self,
        progress: &mut dyn FnMut(&DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        let core = self.0.pool.core();
        let (judged, last) = core.drain(&[self.0.index], &mut |_, p| progress(p))?;
        match judged.into_iter().find(|c| c.exit_code() != 0) {
            None => Ok(last),
            Some(incomplete) => Err(Error::Incomplete(Box::new(incomplete))),
        }
    }

    /// Gives lost blocks up: the origin's older data becomes their newest, by
    /// writing it to the volume.  Returns them.  An explicit order, for which
    /// nobody else may write to the volume meanwhile.
    pub fn accept_lost(&self) -> Result<Vec<u64>> {
        let engine = &self.0.pool.core().engine;
        if self.info()?.static_bytes > 0 {
            return Err(Error::Volume {
                name: self.0.name.clone(),
                cause: "what is lost of a static volume cannot be given up by itself".into(),
                way_out: "overwrite the blocks, or remove the volume (forebay volume remove --discard), which loses nothing else once it is drained, and add it again".into(),
                code: sys::FBY_E_LOST,
            });
        }
        let blocks = engine.lost_blocks(self.0.index, usize::MAX);
        for &block in &blocks {
            let offset = block * BLOCK;
            let mut old = [0; BLOCK as usize];
            let old = &mut old[..(self.0.size - offset).min(BLOCK) as usize];
            let mut cached = [0; BLOCK as usize];
            let cached = &mut cached[..old.len()];
            let read = engine.read_block(self.0.index, block, 0, cached);
            let (at_origin, lost) = read.masks().map_err(|e| self.0.error(e, offset, BLOCK))?;
            let read = self.origin().read_at(old, offset);
            read.map_err(|source| Error::OriginIo {
                name: self.0.name.clone(),
                doing: "read",
                offset,
                len: old.len() as u64,
                source,
            })?;
            // The pool's own sectors stay as they are.
            let (sector, unit) = (SECTOR as usize, self.0.block_size as usize);
            let bytes = |i: usize| i * sector..(i + 1) * sector;
            for i in (0..old.len() / sector).filter(|i| (at_origin | lost) >> i & 1 == 0) {
                old[bytes(i)].copy_from_slice(&cached[bytes(i)]);
            }
            for start in (0..old.len()).step_by(unit) {
                let mut sectors = start / sector..(start + unit) / sector;
                if sectors.any(|i| lost >> i & 1 == 1) {
                    self.write_at_durably(&old[start..start + unit], offset + start as u64)?;
                }
            }
        }
        Ok(blocks)
    }
}
