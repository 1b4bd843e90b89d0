// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools on a block device: `core/api/groups.h`, which has the contract of each call.

use forebay_sys as sys;
pub use forebay_sys::{
    fby_medium_info as MediumInfo, fby_medium_io as Request, fby_medium_load as Load,
};

use crate::code::{decision, Decision, Result};
pub use crate::durable::{Durable, Persisted};
use crate::engine::Engine;
use crate::media::Medium;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketState {
    Durable,
    Pending,
    /// The pool has failed first.
    Failed,
}

impl<M: Medium> Engine<M> {
    /// DONE with a request: it is to be sent now, and to be reported by `medium_end`.
    pub fn medium_next(&self, wake: &mut u32) -> Result<(Decision, Request)> {
        let mut io = Request::default();
        // SAFETY: the pool is open; io is ours.
        let d = decision(unsafe { sys::fby_medium_next(self.pool, &mut io, wake) })?;
        Ok((d, io))
    }

    /// The request has ended; errno 0: well.
    pub fn medium_end(&self, io: &Request, errno: i32, wake: &mut u32) {
        // SAFETY: the pool is open; the engine takes the request as one of its own or not.
        unsafe { sys::fby_medium_end(self.pool, io, errno, wake) }
    }

    /// The ticket of everything that was appended to the volume; 0: there is nothing to wait for.
    pub fn volume_ticket(&self, index: u16) -> u64 {
        // SAFETY: the pool is open.
        unsafe { sys::fby_volume_ticket(self.pool, index) }
    }

    pub fn ticket(&self, ticket: u64) -> TicketState {
        // SAFETY: the pool is open.
        match unsafe { sys::fby_ticket_state(self.pool, ticket) } {
            sys::FBY_TICKET_DURABLE => TicketState::Durable,
            sys::FBY_TICKET_PENDING => TicketState::Pending,
            _ => TicketState::Failed,
        }
    }

    pub fn medium_load(&self, ticket: u64) -> Load {
        let mut load = Load::default();
        // SAFETY: the pool is open; load is ours.
        unsafe { sys::fby_medium_load(self.pool, ticket, &mut load) };
        load
    }

    pub fn medium_info(&self) -> MediumInfo {
        let mut info = MediumInfo::default();
        // SAFETY: the pool is open; info is ours.
        unsafe { sys::fby_medium_info(self.pool, &mut info) };
        info
    }
}
