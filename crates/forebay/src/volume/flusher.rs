// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who flushes a volume, where that is several.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Volume;
use crate::engine::Ticket;
use crate::error::Result;

/// One of several who flush a volume, such as a connection.  When a flush fails, what it
/// may have lost is told to each of them once, as Linux tells it to each open file, and
/// not only to who asks first; one that is new is told what nobody was told.
#[derive(Debug)]
pub struct Flusher<'v> {
    volume: &'v Volume,
    /// So many failures need not be told it any more.
    told: AtomicU32,
}

impl Volume {
    pub fn flusher(&self) -> Flusher<'_> {
        let told = self.0.pool.core().engine.flush_told(self.0.index);
        Flusher { volume: self, told: AtomicU32::new(told) }
    }
}

impl Flusher<'_> {
    /// As [`Volume::flush`].
    pub fn flush(&self) -> Result<()> {
        let mut ticket = Ticket::client(self.told.load(Ordering::Acquire));
        let flushed = self.volume.flush_ticket("flush", 0, self.volume.0.size, &mut ticket);
        self.told.fetch_max(ticket.told(), Ordering::AcqRel);
        flushed
    }
}
