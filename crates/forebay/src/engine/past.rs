// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes past the cache, and flushes.

use forebay_sys as sys;

use super::{decision, done, Decision, Engine, EngineResult};

/// A write past the cache; counts as failed if it is dropped before its end.
#[derive(Debug)]
pub(crate) struct Bypass<'a> {
    engine: &'a Engine,
    raw: sys::fby_bypass,
    begun: bool,
}

impl Bypass<'_> {
    pub(crate) fn nsectors(&self) -> u32 {
        self.raw.nsectors
    }

    /// Returns the wake mask.
    pub(crate) fn end(&mut self, errno: i32) -> u32 {
        let mut wake = 0;
        if std::mem::take(&mut self.begun) {
            // SAFETY: the pool is open; raw was begun on it, and ends once.
            unsafe { sys::fby_bypass_end(self.engine.pool, &mut self.raw, errno, &mut wake) };
        }
        wake
    }
}

impl Drop for Bypass<'_> {
    fn drop(&mut self) {
        self.end(rustix::io::Errno::IO.raw_os_error());
    }
}

impl Engine {
    /// DONE: the first so many sectors may go past the cache; CACHED: through it.
    pub(crate) fn bypass_begin(
        &self,
        volume: u16,
        sector: u64,
        nsectors: u32,
        least: u32,
    ) -> EngineResult<(Decision, Bypass<'_>)> {
        let mut raw = sys::fby_bypass::default();
        // SAFETY: the pool is open; raw is ours.
        let d = decision(unsafe {
            sys::fby_bypass_begin(self.pool, &mut raw, volume, sector, nsectors, least)
        })?;
        Ok((d, Bypass { engine: self, raw, begun: d == Decision::Done }))
    }

    /// ORIGIN: the origin is to be flushed, and `flush_end` to be told the
    /// number and the errno.
    pub(crate) fn flush(&self, volume: u16) -> EngineResult<(Decision, u64)> {
        let mut upto = 0;
        // SAFETY: the pool is open; the out pointer is ours.
        let d = decision(unsafe { sys::fby_flush(self.pool, volume, &mut upto) })?;
        Ok((d, upto))
    }

    /// Of every flush that is not destage's; `upto` is 0 if it was not asked for
    /// by `flush`.  The result is that of the flush.
    pub(crate) fn flush_end(&self, volume: u16, upto: u64, errno: i32) -> EngineResult<()> {
        // SAFETY: the pool is open, and the volume is one that is attached.
        done(unsafe { sys::fby_flush_end(self.pool, volume, upto, errno) })
    }
}
