// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open pool as its handles keep it: its threads, its volumes and logs that have handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use forebay_engine::{sys, Decision};

use crate::destage::Destage;
use crate::engine::Code;
use crate::error::Result;
use crate::grouped::Sender;
use crate::shared_pool::SharedPool;
use crate::{log, volume};

pub(crate) type Logs = HashMap<u16, Vec<Weak<log::Inner>>>;

/// State that handles and volumes keep open: dropping the last of them stops the threads and
/// closes the pool.
#[derive(Debug)]
pub(crate) struct OpenPool {
    destage: Mutex<Option<Destage>>,
    core: Arc<SharedPool>,
    /// One add, remove, attach or detach at a time.  Guards the attached volumes, and those that
    /// are about to be attached, which have no handle yet.  Nobody asks an origin while he has
    /// it, but the pool's disk may be waited for: calls that only read do not take it.  Rank:
    /// before all other locks.
    volumes: Mutex<HashMap<u16, Weak<volume::Inner>>>,
    /// Logs that have handles, by number.
    logs: Mutex<Logs>,
    closed: Mutex<bool>,
    io_uring: bool,
}

pub(crate) type Volumes<'a> = MutexGuard<'a, HashMap<u16, Weak<volume::Inner>>>;

impl OpenPool {
    pub(crate) fn new(core: Arc<SharedPool>, io_uring: bool) -> OpenPool {
        OpenPool {
            destage: Mutex::new(None),
            core,
            volumes: Mutex::default(),
            logs: Mutex::default(),
            closed: Mutex::new(false),
            io_uring,
        }
    }

    pub(crate) fn core(&self) -> &Arc<SharedPool> {
        &self.core
    }

    pub(crate) fn logs(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn volumes(&self) -> Volumes<'_> {
        self.volumes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Stops all threads and closes the pool, once.
    pub(crate) fn shut_down(&self) -> Result<()> {
        let mut closed = self.closed.lock().unwrap_or_else(|e| e.into_inner());
        if *closed {
            return Ok(());
        }
        *closed = true;
        drop(self.destage.lock().unwrap_or_else(|e| e.into_inner()).take());
        match &self.core.sender {
            Some(sender) if !self.core.read_only => sender.close(),
            // What lies in the file now is another's.
            _ if self.core.is_foreign() => Ok(()),
            _ => self.core.engine.close().map_err(|e| self.core.pool_error(e)),
        }
    }

    /// The destage thread runs from the first attach on.
    pub(crate) fn start_destage(&self) -> Result<()> {
        let mut destage = self.destage.lock().unwrap_or_else(|e| e.into_inner());
        if destage.is_none() && !self.core.read_only {
            let started = Destage::start(&self.core, self.io_uring);
            *destage = Some(started.map_err(|e| self.core.system("starting a thread", e))?);
        }
        Ok(())
    }

    /// Called when the last handle of a volume goes.
    pub(crate) fn detach(&self, index: u16) -> Result<()> {
        let (core, mut cleared) = (&self.core, Ok(()));
        if let Some(attached) = core.attached(index) {
            attached.stopping.store(true, std::sync::atomic::Ordering::Release);
            attached.origin.give_up();
            attached.wait_for_flushes();
            // Nobody writes any more.
            cleared = core.clear_mark(&attached, index, false).map(drop);
        }
        // Requests in flight end, new ones are refused by us, and so the
        // round; a slot may be busy for a moment.
        const YIELDS: u32 = 100;
        let mut tries = 0;
        // Not locked while it waits: the origin may hang, and others are to be attached.
        let (mut volumes, done) = loop {
            let volumes = self.volumes();
            let seen = core.sender.as_ref().map_or(0, Sender::ends);
            match (core.engine.volume_detach_step(index), &core.sender) {
                (Ok(Decision::Wait(wait)), Some(sender)) => {
                    drop(volumes);
                    core.help(sender, wait, seen);
                }
                (Err(Code(sys::FBY_E_BUSY)), _) => drop(volumes),
                (done, _) => break (volumes, done.map(drop)),
            }
            match tries {
                ..YIELDS => std::thread::yield_now(),
                _ => {
                    core.kick.kick();
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
            tries += 1;
        };
        core.attached.write().unwrap_or_else(|e| e.into_inner()).remove(&index);
        volumes.remove(&index);
        // Chunks were closed and may be free now.
        core.space.wake();
        done.map_err(|e| self.core.volume_error(index, e)).and(cleared)
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // Nobody is left to tell; an unclean close loses nothing.
        let _ = self.shut_down();
    }
}
