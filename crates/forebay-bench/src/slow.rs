// SPDX-License-Identifier: MIT OR Apache-2.0
//! Media slowed to a bandwidth, as persistent memory has one that a few cores
//! exhaust: stores go to a shared bucket of tokens, and the fence waits until the
//! thread's own are due.  It waits on the CPU, as a processor does whose store
//! buffers do not empty: to the scheduler a stalled thread is a busy one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_engine::Pace;

thread_local! {
    /// When the media has taken what this thread stored, by its bucket's clock.
    static DUE_NS: Cell<u64> = const { Cell::new(0) };
}

/// The bandwidth that all writers to a media share.
#[derive(Debug)]
pub(crate) struct Bucket {
    start: Instant,
    /// 0: as fast as it can.
    bytes_per_s: AtomicU64,
    /// When the media has taken all that was stored.
    free_at_ns: AtomicU64,
}

impl Bucket {
    /// Has no limit.
    pub fn new() -> Bucket {
        let (bytes_per_s, free_at_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        Bucket { start: Instant::now(), bytes_per_s, free_at_ns }
    }

    pub fn limit(&self, bytes_per_s: u64) {
        self.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Pace for Bucket {
    fn stored(&self, bytes: usize) {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let cost = (bytes as u128 * 1_000_000_000 / u128::from(rate)) as u64;
        let now = self.now_ns();
        let after = |free: u64| free.max(now) + cost;
        let before = self
            .free_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(after(free)));
        let due = before.map_or(now, after);
        DUE_NS.with(|d| d.set(due));
    }

    fn fenced(&self) {
        let due = DUE_NS.with(|d| d.replace(0));
        while due > self.now_ns() {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No matter how fast the machine is, it is not faster than the limit.
    #[test]
    fn a_bucket_gives_no_more_than_its_rate() {
        let bucket = Bucket::new();
        let store = || {
            bucket.stored(4096);
            bucket.fenced();
        };
        store(); // without a limit
        bucket.limit(4096 * 1000);
        let start = Instant::now();
        for _ in 0..20 {
            store();
        }
        assert!(start.elapsed().as_millis() >= 19);
    }
}
