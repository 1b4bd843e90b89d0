// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of a pool in memory, mapped before they are needed.
//!
//! The first store to a page of a mapping costs a fault, of 1.4 us for 4 KiB on a virtual
//! machine: as much as the rest of what appends so much to a log.

use std::sync::{Arc, Weak};

use crate::report::MediaKind;
use crate::shared_pool::SharedPool;

/// Pages of an open pool, which this does not keep open.
#[derive(Debug)]
pub struct Pages {
    core: Weak<SharedPool>,
    at: u64,
}

impl Pages {
    pub(crate) fn of(core: &Arc<SharedPool>) -> Pages {
        Pages { core: Arc::downgrade(core), at: 0 }
    }

    /// Maps the next 128 KiB, so few because the kernel holds a lock of the process meanwhile,
    /// also while others have the CPU; no byte is changed.  `false`: there are no more, or the
    /// system cannot do that for such media, or the pool is closed.
    pub fn map_next(&mut self) -> bool {
        const STEP: u64 = 128 << 10;
        let Some(core) = self.core.upgrade() else { return false };
        // A file's pages would be read from its disk, and written back.
        let in_memory = match core.media.info().kind {
            MediaKind::Shm | MediaKind::DaxFile | MediaKind::DevDax => true,
            MediaKind::File | MediaKind::FsdaxBlock => false,
            // Its image was filled when it was opened.
            MediaKind::Disk => false,
        };
        let mapped = core.media.mapped();
        let bytes = mapped.size().saturating_sub(self.at).min(STEP);
        let done = in_memory && bytes > 0 && mapped.populate(self.at, bytes);
        self.at += bytes;
        done
    }
}

#[cfg(test)]
mod tests {
    use crate::{create, CreateOptions, Pool, PoolOptions};

    #[test]
    fn all_of_a_pool_in_memory_is_mapped_while_it_is_open() {
        let path = format!("/dev/shm/forebay-pages-{}", std::process::id());
        let path = std::path::Path::new(&path);
        let size = CreateOptions { size_bytes: Some(17 << 20), ..Default::default() };
        create(path, &size).unwrap();
        let pool = Pool::open(path, &PoolOptions::default()).unwrap();
        let (mut pages, mut other) = (pool.pages(), pool.pages());
        let steps = std::iter::from_fn(|| pages.map_next().then_some(())).count();
        assert!(steps == 17 * 8 || !other.map_next(), "{steps} steps");
        pool.close().unwrap();
        assert!(!other.map_next() && !pages.map_next());
        std::fs::remove_file(path).unwrap();
    }
}
