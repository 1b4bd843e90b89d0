// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that the origin has: they end, with an error, also where a thread gives
//! them up.

use crate::engine::{Code, Decision, Engine, EngineResult, Ticket};
use forebay_engine::sys;

/// A write, discard or zeroing past the cache; counts as failed if it is dropped
/// before its end.
#[derive(Debug)]
pub(crate) struct Bypass<'a> {
    engine: &'a Engine,
    begun: Option<forebay_engine::Bypass>,
}

impl Bypass<'_> {
    pub(crate) fn new(engine: &Engine, begun: forebay_engine::Bypass) -> Bypass<'_> {
        Bypass { engine, begun: Some(begun) }
    }

    /// 0 once it has ended.
    pub(crate) fn nsectors(&self) -> u32 {
        self.begun.as_ref().map_or(0, forebay_engine::Bypass::nsectors)
    }

    /// The ticket, if there is one, is to cover it.  Returns the wake mask.
    pub(crate) fn end(&mut self, errno: i32, ticket: Option<&mut Ticket>) -> u32 {
        self.begun.take().map_or(0, |b| self.engine.bypass_end(b, errno, ticket))
    }
}

impl Drop for Bypass<'_> {
    fn drop(&mut self) {
        self.end(rustix::io::Errno::IO.raw_os_error(), None);
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
        self.engine.flush_end(self.ticket, errno, wake)
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

/// What there is to do for the ticket.
pub(crate) fn gate<'a>(
    engine: &'a Engine,
    volume: u16,
    ticket: &'a mut Ticket,
) -> EngineResult<Gate<'a>> {
    match engine.flush_begin(volume, ticket)? {
        Decision::Done => Ok(Gate::Done),
        Decision::Wait(_) => Ok(Gate::Wait),
        Decision::Origin => Ok(Gate::Origin(Flush { engine, ticket, begun: true })),
        Decision::Again | Decision::Cached => Err(Code(sys::FBY_E_INVARIANT)),
    }
}
