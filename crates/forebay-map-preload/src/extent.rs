// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lowest and the highest address at which a file is or was mapped.

use std::sync::atomic::{AtomicUsize, Ordering};

static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Records a mapping.
pub fn add(from: usize, room: usize) {
    LEAST.fetch_min(from, Ordering::SeqCst);
    LAST.fetch_max(from + room, Ordering::SeqCst);
}

/// Whether a range may overlap an address at which a file is or was mapped.
pub fn may_have(from: usize, len: usize) -> bool {
    from < LAST.load(Ordering::Relaxed) && from.saturating_add(len) > LEAST.load(Ordering::Relaxed)
}

/// Whether any file is or was mapped.
pub fn any() -> bool {
    LAST.load(Ordering::Relaxed) > 0
}
