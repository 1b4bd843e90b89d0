// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that bypass the cache, and flushes.

use forebay_sys as sys;

use crate::code::{decision, done, Code, Decision, Result, Wait};
use crate::engine::Engine;
use crate::media::Medium;

/// A write, discard or zeroing past the cache, between its begin and its end.
#[derive(Debug)]
#[must_use = "its blocks are held until Engine::bypass_end"]
pub struct Bypass {
    raw: sys::fby_bypass,
    opening: u64,
}

impl Bypass {
    pub fn nsectors(&self) -> u32 {
        self.raw.nsectors
    }
}

/// The host's task for the first part of a request.
#[derive(Debug)]
pub enum Past {
    /// Nothing: all of it is done.
    Done,
    /// So many sectors on the origin, and then [`Engine::bypass_end`].
    Origin(Bypass),
    /// So many sectors through the cache.
    Cached(u32),
    Wait(Wait),
}

impl Past {
    /// The part for the origin, if there is one.
    pub fn begun(self) -> Option<Bypass> {
        match self {
            Past::Origin(b) => Some(b),
            _ => None,
        }
    }
}

/// A flush that somebody waits for; new, it is for all that was written.
#[derive(Debug, Default)]
pub struct Ticket {
    raw: sys::fby_flush,
    /// The opening on which it was told to flush the origin; 0: it was not.
    sent: u64,
    /// The opening of whose volume it has the number; 0: it has none yet.
    opening: u64,
}

impl Ticket {
    /// A flush of everything that no client asked for: the next client is told its error, too.
    pub fn aside() -> Ticket {
        Ticket { raw: sys::fby_flush { aside: true, ..Default::default() }, ..Ticket::default() }
    }

    /// For one of several clients, which was told of so many failures before.
    pub fn client(told: u32) -> Ticket {
        let raw = sys::fby_flush { client: true, told, ..Default::default() };
        Ticket { raw, ..Ticket::default() }
    }

    pub fn told(&self) -> u32 {
        self.raw.told
    }
}

impl<M: Medium> Engine<M> {
    fn begun(&self, raw: sys::fby_bypass) -> Past {
        Past::Origin(Bypass { raw, opening: self.opening })
    }

    /// May the write, or the first of it, go past the cache?
    pub fn bypass_begin(
        &self,
        volume: u16,
        sector: u64,
        nsectors: u32,
        least: u32,
    ) -> Result<Past> {
        let mut raw = sys::fby_bypass::default();
        // SAFETY: the pool is open; raw is ours.
        let d = decision(unsafe {
            sys::fby_bypass_begin(self.pool, &mut raw, volume, sector, nsectors, least)
        })?;
        match d {
            Decision::Done => Ok(self.begun(raw)),
            Decision::Cached => Ok(Past::Cached(raw.nsectors)),
            Decision::Wait(wait) => Ok(Past::Wait(wait)),
            Decision::Origin | Decision::Again => Err(Code(sys::FBY_E_INVARIANT)),
        }
    }

    /// Discards or zeroes (`FBY_KIND_DISCARD`, `FBY_KIND_ZERO`) from `done` sectors on.
    pub fn range(
        &self,
        volume: u16,
        kind: u32,
        sector: u64,
        nsectors: u64,
        done: &mut u64,
        wake: &mut u32,
    ) -> Result<Past> {
        let mut raw = sys::fby_bypass::default();
        // SAFETY: the pool is open; the out pointers are ours.
        let d = decision(unsafe {
            sys::fby_range(self.pool, volume, kind, sector, nsectors, done, &mut raw, wake)
        })?;
        match d {
            Decision::Done => Ok(Past::Done),
            Decision::Origin => Ok(self.begun(raw)),
            Decision::Wait(wait) => Ok(Past::Wait(wait)),
            Decision::Cached | Decision::Again => Err(Code(sys::FBY_E_INVARIANT)),
        }
    }

    /// The ticket, if there is one, is to cover it.  Returns the wake mask.
    pub fn bypass_end(&self, mut b: Bypass, errno: i32, ticket: Option<&mut Ticket>) -> u32 {
        assert_eq!(b.opening, self.opening);
        let mut wake = 0;
        // SAFETY: the pool is open; b was begun on it, and is consumed: it ends once.
        unsafe { sys::fby_bypass_end(self.pool, &mut b.raw, errno, &mut wake) };
        if let Some(t) = ticket {
            self.take(t);
            // SAFETY: the pool is open; b has ended, the ticket is not in flight.
            unsafe { sys::fby_flush_cover(self.pool, &mut t.raw, &b.raw) };
        }
        wake
    }

    /// The ticket is for this opening and for no other, and not in flight.
    fn take(&self, t: &mut Ticket) {
        assert!(t.sent == 0 && [0, self.opening].contains(&t.opening));
        t.opening = self.opening;
    }

    /// DONE: durable.  ORIGIN: flush the origin, and then [`Engine::flush_end`].
    pub fn flush_begin(&self, volume: u16, t: &mut Ticket) -> Result<Decision> {
        self.take(t);
        // SAFETY: the pool is open; the ticket is ours, and not in flight.
        let d = decision(unsafe { sys::fby_flush_begin(self.pool, volume, &mut t.raw) })?;
        if d == Decision::Origin {
            t.sent = self.opening;
        }
        Ok(d)
    }

    /// The result of the whole flush.
    pub fn flush_end(&self, t: &mut Ticket, errno: i32, wake: &mut u32) -> Result<()> {
        assert_eq!(t.sent, self.opening);
        t.sent = 0;
        // SAFETY: the pool is open; the ticket was told to flush the origin, once.
        done(unsafe { sys::fby_flush_end(self.pool, &mut t.raw, errno, wake) })
    }

    /// The failures that need not be told to a client that is new.
    pub fn flush_told(&self, volume: u16) -> u32 {
        // SAFETY: the pool is open; the engine asserts that there is such a volume.
        unsafe { sys::fby_flush_told(self.pool, volume) }
    }

    /// The write that the ticket covers is acknowledged without a flush.
    pub fn flush_later(&self, t: &mut Ticket) -> Result<()> {
        self.take(t);
        // SAFETY: the pool is open; the ticket is ours, and not in flight.
        done(unsafe { sys::fby_flush_later(self.pool, &mut t.raw) })
    }
}
