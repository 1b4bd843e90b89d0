// SPDX-License-Identifier: MIT OR Apache-2.0
//! How Linux tells of a write-back that failed.

use std::sync::{Condvar, Mutex, MutexGuard};

/// A write-back that failed: whoever asks first is told, and nobody else.
#[derive(Debug, Default)]
pub struct WriteBack {
    state: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    has_failed: bool,
    /// A sync that was told has not returned.
    lingers: bool,
    returns: bool,
    /// The next sync lingers, and does not fail.
    is_held: bool,
}

impl WriteBack {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.state.lock().unwrap()
    }

    pub fn fail(&self) {
        self.lock().has_failed = true;
    }

    pub fn hold(&self) {
        self.lock().is_held = true;
    }

    pub fn take_hold(&self) -> bool {
        std::mem::take(&mut self.lock().is_held)
    }

    pub fn take(&self) -> bool {
        std::mem::take(&mut self.lock().has_failed)
    }

    /// Returns when the test lets it.
    pub fn linger(&self) {
        let mut told = self.lock();
        told.lingers = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(told, |told| !told.returns).unwrap());
    }

    /// Waits until a sync lingers.
    pub fn was_told(&self) {
        drop(self.changed.wait_while(self.lock(), |told| !told.lingers).unwrap());
    }

    pub fn let_return(&self) {
        self.lock().returns = true;
        self.changed.notify_all();
    }
}
