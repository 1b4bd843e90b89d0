// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who flushes a volume, where that is several.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Volume;
use crate::error::Result;
use crate::request::Request;

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
        let told = self.told.load(Ordering::Acquire);
        let mut request = Request::flush_of(self.volume.inner(), told);
        let flushed = request.run();
        self.told.fetch_max(request.told(), Ordering::AcqRel);
        flushed
    }
}
