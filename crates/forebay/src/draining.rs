// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many drains each volume has: destage writes a volume as long as it has one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::engine::{Engine, EngineResult};

/// How many drain each volume, by its index.
#[derive(Debug, Default)]
pub(crate) struct Drains(Mutex<HashMap<u16, u32>>);

/// While there is one, destage writes its volume, and nothing moves within the pool.
#[derive(Debug)]
pub(crate) struct Draining<'e> {
    engine: &'e Engine,
    drains: &'e Drains,
    pub index: u16,
    /// `home` of the volume reaches it when what was written before is on the origin.
    pub upto: u64,
}

impl Drains {
    fn counts(&self) -> MutexGuard<'_, HashMap<u16, u32>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn begin<'e>(
        &'e self,
        engine: &'e Engine,
        index: u16,
    ) -> EngineResult<Draining<'e>> {
        let mut counts = self.counts();
        let upto = engine.volume_drain(index, true)?;
        *counts.entry(index).or_default() += 1;
        Ok(Draining { engine, drains: self, index, upto })
    }
}

/// For as long as no drain ends: for whoever asks again and again.
pub(crate) fn drain_on(engine: &Engine, index: u16) -> EngineResult<()> {
    engine.volume_drain(index, true).map(|_| ())
}

impl Draining<'_> {
    /// Destage has ended it if there was nothing to do for a moment.  A volume that
    /// was detached says so itself.
    pub(crate) fn go_on(&self) {
        let _ = drain_on(self.engine, self.index);
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        let mut counts = self.drains.counts();
        let drains = counts.entry(self.index).or_default();
        *drains = drains.saturating_sub(1);
        if *drains == 0 {
            let _ = self.engine.volume_drain(self.index, false);
        }
    }
}
