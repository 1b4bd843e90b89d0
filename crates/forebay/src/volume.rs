// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attached volumes: reads, writes, discards and drains.

mod extents;

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_engine::request::Policy;
use forebay_engine::sys;

use crate::attach::{sizes, AttachOptions, Holes};
use crate::attached::Attached;
use crate::bypass::VolumeChange;
use crate::destage::Workers;
use crate::engine::{self, Code, Wait};
use crate::error::{Error, Result};
use crate::latency::{Phase, Phases};
use crate::mark::Marker;
use crate::opened::OpenPool;
use crate::origin::Origin;
use crate::report::VolumeInfo;
use crate::shared_pool::SharedPool;
use crate::wait::Waiter;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const SECTOR: u64 = 512;

/// A handle to an attached volume, which can be cloned.  All calls may come from any number of
/// threads.  The volume is detached when the last handle is dropped, or by [`Volume::detach`],
/// which reports errors; cached data stays cached.
#[derive(Clone, Debug)]
pub struct Volume(Arc<Inner>);

/// The state that the handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pool: Arc<OpenPool>,
    attached: Arc<Attached>,
    /// Some until it is detached.
    workers: Option<Workers>,
    index: u16,
    name: String,
    size: u64,
    block_size: u32,
    full_timeout: Option<Duration>,
    /// The pool is written in groups: requests wait for tickets.
    grouped: bool,
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

/// Services for requests.
impl Inner {
    pub(crate) fn core(&self) -> &Arc<SharedPool> {
        self.pool.core()
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.attached.policy.raw
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

    /// `FBY_REQ_x` of a request that begins now: what it waits for, of a pool that is written in
    /// groups.
    #[inline(always)]
    pub(crate) fn tickets(&self) -> u8 {
        match (self.grouped, self.grouped && self.attached.policy.is_later()) {
            (false, _) => 0,
            (_, false) => sys::FBY_REQ_TICKETS,
            (_, true) => sys::FBY_REQ_TICKETS | sys::FBY_REQ_LATER,
        }
    }

    #[inline(always)]
    pub(crate) fn is_grouped(&self) -> bool {
        self.grouped
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
            Wait::Block | Wait::Slot | Wait::Ticket => self.latency().time(Phase::WaitSlot, wait),
            Wait::Flush => {
                let mut wait = wait;
                wait()
            }
        };
        waited.map_err(|gave_up| Error::Full {
            name: self.name.clone(),
            waited_ms: gave_up.waited.as_millis() as u64,
            last_error: self.attached.last_error(),
            held: self.core().held_by_detached(&self.core().volumes()).map(Box::new),
        })
    }
}

pub(crate) fn raw_holes(o: &AttachOptions) -> u32 {
    match o.holes {
        _ if o.rescue => sys::FBY_HOLES_RESCUE,
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
        pool: &Arc<OpenPool>,
        index: u16,
        info: &VolumeInfo,
        identity: &str,
        origin: Box<dyn Origin>,
        marker: Marker,
        o: &AttachOptions,
    ) -> Result<Volume> {
        let sizes = sizes(o)?;
        let core = pool.core();
        let attached = Arc::new(Attached::new(info.uuid, origin, marker));
        let asked = VolumeChange {
            bypass_limit_bytes: Some(o.bypass_limit_bytes),
            when_full: Some(o.when_full),
            mode: Some(o.mode),
            durable: Some(o.durable),
        };
        attached.change(core.durable_write(), &asked);
        let started = attached.start(core);
        let workers =
            started.map_err(|e| Error::system(pool.core().path(), "starting a thread", e))?;
        let size = pool.core().volume_info(index)?.size_bytes;
        let raw = engine::Attach {
            origin_sectors: size / SECTOR,
            identity,
            holes: raw_holes(o),
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
            grouped: pool.core().sender.is_some(),
        })))
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    #[inline(always)]
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

    /// A write may be acknowledged before it is durable: a flush makes it so.
    pub fn has_volatile_cache(&self) -> bool {
        self.0.grouped && self.0.attached.policy.is_later()
    }

    pub fn info(&self) -> Result<VolumeInfo> {
        self.0.pool.core().volume_info(self.0.index)
    }

    pub fn origin(&self) -> &dyn Origin {
        self.0.attached.origin.as_ref()
    }

    /// Changes what may change while it is attached.
    pub fn set(&self, change: &VolumeChange) {
        self.0.attached.change(self.0.pool.core().durable_write(), change);
        self.0.pool.core().kick.kick();
    }

    /// Detaches the volume, if this is the only handle; cached data stays cached.
    pub fn detach(self) -> Result<()> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => inner.detach(),
            Err(inner) => Err(Error::PoolInUse {
                pool: inner.pool.core().path().to_path_buf(),
                volumes: vec![inner.name.clone()],
            }),
        }
    }
}
