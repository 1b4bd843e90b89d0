// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's volumes: added, removed, attached, drained.

use std::ffi::CString;
use std::sync::Arc;

use forebay_sys as sys;

use crate::code::{decision, done, Code, Decision, Result};
use crate::engine::Engine;
use crate::media::Medium;
use crate::open::{allocate, OpenError};
use crate::policy::mark_number;
use crate::shown::Kind;

/// Arguments of an attach.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    pub origin_sectors: u64,
    pub identity: &'a str,
    /// `FBY_HOLES_x`
    pub holes: u32,
    pub round_pages: u32,
    pub nrequests: u32,
    pub buffer_bytes: u32,
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Code(sys::FBY_E_NAME))
}

impl<M: Medium> Engine<M> {
    pub fn volume_add(&self, spec: &sys::fby_volume_spec) -> Result<u16> {
        let _change = self.change();
        let mut index = 0;
        // SAFETY: the pool is open; the lock keeps volume calls apart.
        done(unsafe { sys::fby_volume_add(self.pool, spec, &mut index) })?;
        Ok(index)
    }

    /// No I/O of the volume may be under way, which it is not: it is not attached.  In a grouped
    /// pool it may have to wait for a ticket.
    pub fn volume_remove(&self, index: u16, discard: bool) -> Result<Decision> {
        let _change = self.change();
        // SAFETY: the pool is open; the lock keeps volume calls apart.
        decision(unsafe { sys::fby_volume_remove(self.pool, index, discard) })
    }

    pub fn volume_find(&self, name: &str) -> Result<u16> {
        self.shown.find(Kind::Volume, name)
    }

    pub fn volume_info(&self, index: u16) -> Result<sys::fby_volume_info> {
        let mut info = sys::fby_volume_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_volume_info(self.pool, index, &mut info) })?;
        Ok(info)
    }

    /// Checks everything that makes an attach fail whatever the origin is; `holes` as in
    /// [`Attach::holes`].
    pub fn volume_ready(&self, index: u16, holes: u32) -> Result<()> {
        assert!(holes <= sys::FBY_HOLES_RESCUE);
        let _admin = self.admin();
        // SAFETY: the pool is open.
        done(unsafe { sys::fby_volume_ready(self.pool, index, holes) })
    }

    /// Records a new identity or a larger size of a volume that is not attached.
    pub fn volume_rebind(&self, index: u16, identity: &str, sectors: u64) -> Result<()> {
        let identity = c_string(identity)?;
        let _admin = self.admin();
        // SAFETY: the pool is open; identity is zero-terminated.
        done(unsafe { sys::fby_volume_rebind(self.pool, index, identity.as_ptr(), sectors) })
    }

    /// Counts a step of marking its origin ([`sys::FBY_MARK_BEGIN`] and so on), durably.
    /// Returns the number that the mark carries then ([`sys::fby_mark_number`]).
    pub fn volume_mark(&self, index: u16, step: u32) -> Result<u32> {
        assert!(step <= sys::FBY_MARK_GONE);
        let (_admin, mut marks) = (self.admin(), 0);
        // SAFETY: the pool is open; admin keeps volume calls and steps apart; marks is ours.
        done(unsafe { sys::fby_volume_mark(self.pool, index, step, &mut marks) })?;
        Ok(mark_number(marks))
    }

    /// Attaches with memory of its own, which is kept until the detach.
    pub fn volume_attach(&self, index: u16, a: &Attach<'_>) -> std::result::Result<(), OpenError> {
        let mut admin = self.change();
        // SAFETY: the pool is open; a plain computation.
        let bytes =
            unsafe { sys::fby_volume_bytes(self.pool, a.round_pages, a.nrequests, a.buffer_bytes) };
        let (memory, identity) = (allocate(bytes, false)?, c_string(a.identity)?);
        let raw = sys::fby_attach {
            origin_sectors: a.origin_sectors,
            identity: identity.as_ptr(),
            holes: a.holes,
            mem: memory.as_ptr().cast(),
            mem_bytes: bytes,
            round_pages: a.round_pages,
            nrequests: a.nrequests,
            buffer_bytes: a.buffer_bytes,
        };
        // SAFETY: the pool is open, admin keeps volume calls apart, and the
        // memory stays in the map until the detach (or until self is dropped,
        // after which no call is made).
        done(unsafe { sys::fby_volume_attach(self.pool, index, &raw) })?;
        admin.insert(index, Arc::new(memory));
        Ok(())
    }

    /// Refused as busy while requests of the volume, destage's included, are in
    /// flight.  What is cached stays cached.
    /// In a grouped pool it may have to wait for a ticket or for the slot of its stream.
    pub fn volume_detach_step(&self, index: u16) -> Result<Decision> {
        let mut admin = self.change();
        // SAFETY: the pool is open; admin keeps volume calls apart.
        let step = decision(unsafe { sys::fby_volume_detach(self.pool, index) })?;
        if step == Decision::Done {
            admin.remove(&index);
        }
        Ok(step)
    }

    /// Detaches a volume of a pool that is written in place, where nothing has to be waited for.
    pub fn volume_detach(&self, index: u16) -> Result<()> {
        match self.volume_detach_step(index)? {
            Decision::Done => Ok(()),
            _ => Err(Code(sys::FBY_E_BUSY)),
        }
    }

    /// Destages all that it holds, for as long as on, or until it is clean.  Returns the
    /// number that `home` of its info reaches when all that was acknowledged before is on the
    /// flushed origin: between two steps, since a page that one moves has a lower number before.
    pub fn volume_drain(&self, index: u16, on: bool) -> Result<u64> {
        let _admin = self.admin();
        let mut upto = 0;
        // SAFETY: the pool is open.
        done(unsafe {
            match on {
                true => sys::fby_volume_drain_upto(self.pool, index, &mut upto),
                false => sys::fby_volume_drain(self.pool, index, false),
            }
        })?;
        Ok(upto)
    }

    /// Has it nothing to destage?
    pub fn volume_clean(&self, index: u16) -> bool {
        // SAFETY: the pool is open.
        unsafe { sys::fby_volume_clean(self.pool, index) }
    }

    /// The device of the pool has failed, and the origin has all that was acknowledged.  The pool
    /// keeps it too: nothing can be recorded there.
    pub fn rescued(&self, index: u16) -> bool {
        let nothing_lost =
            |v: sys::fby_volume_info| v.lost_blocks == 0 && v.holes == 0 && v.holes_unknown == 0;
        self.medium_info().failed
            && self.volume_clean(index)
            && self.volume_info(index).is_ok_and(nothing_lost)
    }
}
