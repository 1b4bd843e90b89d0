// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drains of a volume: any number at once, each until it ends by itself.

use forebay_sys as sys;

use super::{done, Engine, EngineResult};

/// While there is one, destage writes its volume, and nothing moves within the pool.
#[derive(Debug)]
pub(crate) struct Draining<'e> {
    engine: &'e Engine,
    pub index: u16,
    /// What was written before has a lower number, and keeps it.
    pub seq: u64,
}

impl Engine {
    pub(crate) fn drain(&self, index: u16) -> EngineResult<Draining<'_>> {
        // Between two steps: a page that one moves has the lower number before.
        let mut admin = self.admin();
        self.set_drain(index, true)?;
        *admin.drains.entry(index).or_default() += 1;
        Ok(Draining { engine: self, index, seq: self.info().seq })
    }

    /// For as long as no drain ends: for whoever asks again and again.
    pub(crate) fn drain_on(&self, index: u16) -> EngineResult<()> {
        let _admin = self.admin();
        self.set_drain(index, true)
    }

    fn set_drain(&self, index: u16, on: bool) -> EngineResult<()> {
        // SAFETY: the pool is open.
        done(unsafe { sys::fby_volume_drain(self.pool, index, on) })
    }
}

impl Draining<'_> {
    /// Destage has ended it if there was nothing to do for a moment.  A volume that
    /// was detached says so itself.
    pub(crate) fn go_on(&self) {
        let _ = self.engine.drain_on(self.index);
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        let mut admin = self.engine.admin();
        let drains = admin.drains.entry(self.index).or_default();
        *drains = drains.saturating_sub(1);
        if *drains == 0 {
            let _ = self.engine.set_drain(self.index, false);
        }
    }
}
