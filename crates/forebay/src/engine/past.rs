// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes past the cache, and flushes.

use forebay_sys as sys;

use super::{decision, done, Decision, Engine, EngineResult};

/// A write, discard or zeroing past the cache; counts as failed if it is dropped
/// before its end.
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

    /// The ticket, if there is one, is to cover it.  Returns the wake mask.
    pub(crate) fn end(&mut self, errno: i32, ticket: Option<&mut Ticket>) -> u32 {
        let mut wake = 0;
        if std::mem::take(&mut self.begun) {
            // SAFETY: the pool is open; raw was begun on it, and ends once.
            unsafe { sys::fby_bypass_end(self.engine.pool, &mut self.raw, errno, &mut wake) };
            if let Some(t) = ticket {
                // SAFETY: the pool is open; raw has ended, the ticket is not in flight.
                unsafe { sys::fby_flush_cover(self.engine.pool, &mut t.0, &self.raw) };
            }
        }
        wake
    }
}

impl Drop for Bypass<'_> {
    fn drop(&mut self) {
        self.end(rustix::io::Errno::IO.raw_os_error(), None);
    }
}

/// A flush that somebody waits for; new, it is for all that was written.
#[derive(Debug, Default)]
pub(crate) struct Ticket(sys::fby_flush);

impl Ticket {
    /// For all as well, but of none of those who have written: what it is told, the
    /// next of theirs is told too.
    pub(crate) fn aside() -> Ticket {
        Ticket(sys::fby_flush { aside: true, ..Default::default() })
    }

    /// Of one of several, who was told so many failures before.
    pub(crate) fn client(told: u32) -> Ticket {
        Ticket(sys::fby_flush { client: true, told, ..Default::default() })
    }

    pub(crate) fn told(&self) -> u32 {
        self.0.told
    }
}

/// A flush that the origin has; counts as failed if it is dropped before its end.
#[derive(Debug)]
pub(crate) struct Flush<'a> {
    engine: &'a Engine,
    ticket: &'a mut Ticket,
    begun: bool,
}

impl Flush<'_> {
    /// The result of the whole flush.
    pub(crate) fn end(&mut self, errno: i32, wake: &mut u32) -> EngineResult<()> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        // SAFETY: the pool is open; the ticket was told to flush the origin, once.
        done(unsafe { sys::fby_flush_end(self.engine.pool, &mut self.ticket.0, errno, wake) })
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        // Whoever waits for it looks again in time.
        let _ = self.end(rustix::io::Errno::IO.raw_os_error(), &mut 0);
    }
}

/// What there is to do for a flush.
#[derive(Debug)]
pub(crate) enum Gate<'a> {
    /// It is durable.
    Done,
    /// Flush the origin.
    Origin(Flush<'a>),
    /// Another flush is in flight.
    Wait,
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

    /// Discards (or zeroes); ORIGIN: this part is the host's to do.
    pub(crate) fn range(
        &self,
        volume: u16,
        zero: bool,
        sector: u64,
        nsectors: u64,
        done: &mut u64,
        wake: &mut u32,
    ) -> EngineResult<(Decision, Bypass<'_>)> {
        let kind = if zero { sys::FBY_KIND_ZERO } else { sys::FBY_KIND_DISCARD };
        let mut raw = sys::fby_bypass::default();
        // SAFETY: the pool is open; the out pointers are ours.
        let d = decision(unsafe {
            sys::fby_range(self.pool, volume, kind, sector, nsectors, done, &mut raw, wake)
        })?;
        Ok((d, Bypass { engine: self, raw, begun: d == Decision::Origin }))
    }

    /// The failures that need not be told to a client that is new.
    pub(crate) fn flush_told(&self, volume: u16) -> u32 {
        // SAFETY: the pool is open, and has the volume.
        unsafe { sys::fby_flush_told(self.pool, volume) }
    }

    /// What the ticket covers is acknowledged without a flush.
    pub(crate) fn flush_later(&self, ticket: &mut Ticket) -> EngineResult<()> {
        // SAFETY: the pool is open; the ticket covers something, and is not in flight.
        done(unsafe { sys::fby_flush_later(self.pool, &mut ticket.0) })
    }

    pub(crate) fn flush<'a>(
        &'a self,
        volume: u16,
        ticket: &'a mut Ticket,
    ) -> EngineResult<Gate<'a>> {
        // SAFETY: the pool is open; the ticket is ours, and not in flight.
        match unsafe { sys::fby_flush_begin(self.pool, volume, &mut ticket.0) } {
            sys::FBY_WAIT_FLUSH => Ok(Gate::Wait),
            sys::FBY_ORIGIN => Ok(Gate::Origin(Flush { engine: self, ticket, begun: true })),
            other => done(other).map(|()| Gate::Done),
        }
    }
}
