// SPDX-License-Identifier: MIT OR Apache-2.0
//! The known addresses of a share's frames, and operations on their memory.  The same code
//! serves a pool of this process and a pool of a server.

use std::io;
use std::sync::{PoisonError, RwLock};

use forebay_engine::maps::Frame;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::pages::{PageSet, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::Synced;

/// A frame and the place of its memory in the pool's file.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub frame: Frame,
    pub at: u64,
}

impl Known {
    /// Like [`crate::store::Store::fill_from`].  The kernel reads straight into the frame.
    pub fn fill_from(&self, from: &dyn Backing, at: u64, len: usize) -> io::Result<()> {
        let read = match from.file() {
            Some(file) => self.frame.read_from(file, at, len)?,
            None => {
                let mut bytes = vec![0; len];
                let read = from.read_at(at, &mut bytes)?;
                self.frame.copy_in(0, &bytes[..read]);
                read
            }
        };
        if read < SEGMENT {
            self.frame.copy_in(read, &vec![0; SEGMENT - read]);
        }
        Ok(())
    }
}

/// The frames that have been asked for since the sizes of their files changed.
#[derive(Debug)]
pub(crate) struct Frames(Vec<RwLock<Option<Known>>>);

impl Frames {
    pub fn new(n: u32) -> Frames {
        Frames((0..n).map(|_| RwLock::new(None)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn slot(&self, frame: u32) -> Result<&RwLock<Option<Known>>> {
        self.0.get(frame as usize).ok_or_else(|| Error::Pool("no such frame".into()))
    }

    /// Calls `f` with what is known of a frame, and calls `ask` first if nothing is known.
    pub fn with<R>(
        &self,
        frame: u32,
        ask: impl FnOnce() -> Result<Known>,
        f: impl FnOnce(&Known) -> R,
    ) -> Result<R> {
        let slot = self.slot(frame)?;
        if let Some(known) = &*slot.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(f(known));
        }
        if planted::is(Planted::KnownTooLong) {
            let known = ask()?;
            planted::wait();
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
            return Ok(f(&known));
        }
        // `ask` runs with the lock held.  Whoever changes the frame in the pool calls `forget`
        // afterwards, so that cannot happen between `ask` and the insert.
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        let known = slot.insert(ask()?).clone();
        drop(slot);
        Ok(f(&known))
    }

    /// Records a frame without asking.
    pub fn learn(&self, frame: u32, known: Known) -> Result<()> {
        *self.slot(frame)?.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    pub fn forget(&self, frame: u32) {
        if let Ok(slot) = self.slot(frame) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Forgets all frames, because a file has another size or will be truncated.
    pub fn forget_all(&self) {
        (0..self.0.len() as u32).for_each(|frame| self.forget(frame));
    }

    /// Like [`crate::store::Store::sync`].
    pub fn sync(
        &self,
        frame: u32,
        ask: impl Fn() -> Result<Known>,
        pages: &PageSet,
    ) -> Result<Synced> {
        for _ in 0..2 {
            let synced = self.with(frame, &ask, |k| k.frame.sync(&pages.bits()))?;
            if synced.map_err(|e| Error::Pool(e.to_string()))? {
                return Ok(Synced::Durable);
            }
            // The file may have grown since the frame was asked for.
            self.forget(frame);
        }
        Ok(Synced::BehindEnd)
    }
}
