// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a share's frames are, as far as that was asked for, and what is done in their memory:
//! the same for a pool that this process has and for one that is served.

use std::io;
use std::sync::{PoisonError, RwLock};

use forebay_engine::maps::Frame;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::pages::{PageSet, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::Synced;

/// A frame, and where its memory is in the pool's file.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub frame: Frame,
    pub at: u64,
}

impl Known {
    /// As [`crate::store::Store::fill_from`]; by the kernel, without a copy in between.
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

/// Frames that were asked for since their files' sizes have changed.
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

    /// Of what is known of a frame; if nothing is, `ask` says it.
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
        // Asked with the lock held: whoever changes what the pool says forgets it afterwards, and
        // not between the question and this.
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        let known = slot.insert(ask()?).clone();
        drop(slot);
        Ok(f(&known))
    }

    /// Said without having been asked.
    pub fn learn(&self, frame: u32, known: Known) -> Result<()> {
        *self.slot(frame)?.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    pub fn forget(&self, frame: u32) {
        if let Ok(slot) = self.slot(frame) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// A file has another size, or is to be truncated.
    pub fn forget_all(&self) {
        (0..self.0.len() as u32).for_each(|frame| self.forget(frame));
    }

    /// As [`crate::store::Store::sync`].
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
            // The file may be larger since the frame was asked for.
            self.forget(frame);
        }
        Ok(Synced::BehindEnd)
    }
}
