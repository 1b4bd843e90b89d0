// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to an attached volume: reads, writes, flushes, discards and drains.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_engine::request::{Runs, NO_RUNS};
use forebay_engine::sys;

use crate::drains::Asked;
use crate::error::{Error, Result};
use crate::latency::{sampled, Phase};
use crate::report::DrainProgress;
use crate::request::Request;
use crate::volume::{Volume, BLOCK, SECTOR};

impl Volume {
    /// Reads; each block is as of one moment during the call.  Fails with
    /// [`Error::Lost`] if blocks of the range are lost; the others are read
    /// nevertheless.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner().check(offset, buf.len() as u64)?;
        let mut runs = NO_RUNS;
        let mut request = Request::read_into(self.inner(), buf, offset, Runs::Lent(&mut runs));
        request.run_read()
    }

    /// Writes.  The data is durable when the call returns, except data that bypassed the cache
    /// (see [`AttachOptions::bypass_limit_bytes`]), and that of a volume with a volatile cache
    /// ([`Volume::has_volatile_cache`]).  A flush makes it durable.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write(data, offset, false)
    }

    /// Writes.  Durable when it returns, in any case.
    pub fn write_at_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write(data, offset, true)
    }

    #[inline(always)]
    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.inner().check(offset, data.len() as u64)?;
        if sampled() {
            return self.write_timed(data, offset, durable);
        }
        Request::write_timed(self.inner(), data, offset, durable, false).run()
    }

    #[inline(never)]
    fn write_timed(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.inner().latency().time(Phase::Write, || {
            Request::write_timed(self.inner(), data, offset, durable, true).run_timed()
        })
    }

    /// All acknowledged writes are durable when it returns.  Writes through the cache are
    /// durable anyway, unless the volume has a volatile cache ([`Volume::has_volatile_cache`]): the
    /// flush waits for those.  For those that bypassed the cache, the origin is flushed.  It is also flushed
    /// once after an attach, since a host that crashed may have left unflushed writes.  An
    /// error is reported once; if several clients flush, each gets it from its own [`Flusher`].
    pub fn flush(&self) -> Result<()> {
        Request::flush(self)?.run()
    }

    /// Says that the range is not needed; its content afterwards is up to the origin.  A hint:
    /// parts of a 4 KiB block may be left as they are.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        Request::discard(self, offset, len)?.run()
    }

    /// The range reads as zeroes afterwards, and may have no blocks on the origin.  Durable
    /// when it returns.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        Request::write_zeroes(self, offset, len)?.run()
    }

    /// Like `write_zeroes`, and the range gets blocks on the origin, as far as the origin
    /// supports that.
    pub fn allocate_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        Request::write_zeroes(self, offset, len)?.allocating().run()
    }

    /// Zeroing large ranges is faster than writing them.
    pub fn write_zeroes_is_fast(&self) -> bool {
        self.origin().write_zeroes_is_fast()
    }

    /// Writes all cached data to the origin, until everything written before the call is there
    /// and flushed.  The progress function is called at the start, about ten times a second,
    /// and at the end; when it breaks, the drain ends with [`Error::Interrupted`].  While the
    /// origin fails, the drain retries.  `Ok` means that the origin alone has all of that data.
    /// If blocks are lost, everything else is written, and the drain ends with
    /// [`Error::Incomplete`].
    pub fn drain(
        &self,
        progress: &mut dyn FnMut(&DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        let core = self.inner().core();
        let asked = Asked::of(self.info()?, false);
        let (judged, last) = core.drain(&[asked], &mut |_, p| progress(p))?;
        match judged.into_iter().find(|c| !c.complete && c.exit_code() != 0) {
            None => Ok(last),
            Some(incomplete) => Err(Error::Incomplete(Box::new(incomplete))),
        }
    }

    /// Gives lost blocks up: the origin's older data becomes their newest, by
    /// writing it to the volume.  Returns them.  An explicit order, for which
    /// nobody else may write to the volume meanwhile.
    pub fn accept_lost(&self) -> Result<Vec<u64>> {
        let engine = &self.inner().core().engine;
        if self.info()?.static_bytes > 0 {
            return Err(Error::Volume {
                name: self.name().into(),
                cause: "lost blocks of a static volume cannot be given up one by one".into(),
                way_out: "overwrite the blocks. Or drain the volume, remove it (forebay volume remove --discard) and add it again, which loses nothing else".into(),
                code: sys::FBY_E_LOST,
            });
        }
        let blocks = engine.lost_blocks(self.inner().index(), usize::MAX);
        for &block in &blocks {
            let offset = block * BLOCK;
            let mut old = [0; BLOCK as usize];
            let old = &mut old[..(self.inner().size() - offset).min(BLOCK) as usize];
            let mut cached = [0; BLOCK as usize];
            let cached = &mut cached[..old.len()];
            let read = engine.read_block(self.inner().index(), block, 0, cached);
            let (at_origin, lost) =
                read.masks().map_err(|e| self.inner().error(e, offset, BLOCK))?;
            let read = self.origin().read_at(old, offset);
            read.map_err(|source| Error::OriginIo {
                name: self.name().into(),
                doing: "read",
                offset,
                len: old.len() as u64,
                source,
            })?;
            // The pool's own sectors stay as they are.
            let (sector, unit) = (SECTOR as usize, self.block_size() as usize);
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

/// One of several who flush a volume, such as a connection.  When a flush fails, what it
/// may have lost is told to each of them once, as Linux tells it to each open file, and
/// not only to who asks first; one that is new is told what nobody was told.
#[derive(Debug)]
pub struct Flusher<'v> {
    volume: &'v Volume,
    /// So many failures need not be told it any more.
    told: AtomicU32,
}

impl Volume {
    pub fn flusher(&self) -> Flusher<'_> {
        let told = self.inner().core().engine.flush_told(self.inner().index());
        Flusher { volume: self, told: AtomicU32::new(told) }
    }
}

impl Flusher<'_> {
    /// As [`Volume::flush`].
    pub fn flush(&self) -> Result<()> {
        let told = self.told.load(Ordering::Acquire);
        let mut request = Request::flush_of(self.volume.inner(), told);
        let flushed = request.run();
        self.told.fetch_max(request.told(), Ordering::AcqRel);
        flushed
    }
}
