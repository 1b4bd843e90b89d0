// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol by which a write past the cache and a write through it never both proceed with
//! one block.  `core/cache/bypass.c` publishes the range, then takes each block's bucket
//! briefly; `core/cache/write.c` takes the bucket, then reads the ranges.
//!
//! The model has one block.  The origin's content is a word, and so is the block's page.  A
//! write through the cache publishes, and destage writes the page to the origin and releases
//! it.  Active threads are counted outside of loom, in the order in which they really run.

use std::sync::atomic::{AtomicU64 as Count, Ordering::SeqCst};

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::{Mutex, MutexGuard};

use crate::{Follows, Steps, Word};

const LOCK: u64 = 1;
const RANGES: usize = 2;
const BLOCK: u64 = 7;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/cache/index.h fby_index_try
    load p->bucket[b]
    cmpxchg p->bucket[b]
core/cache/index.h fby_index_release
    load p->bucket[b]
    store_release p->bucket[b]
core/cache/bypass.c fby_bypass_meets
    load_acquire v->bypassing
    load r->first
    load r->end
core/cache/bypass.c range_claim
    lock
    load_acquire v->bypassing
    load r->end
    load r->first
    load r->first
    store v->range[*place].first
    store v->range[*place].end
    fetch_or v->bypassing
    unlock
core/cache/bypass.c range_release
    fetch_and v->bypassing
core/cache/bypass.c uncached_until
    call fby_index_try
    call fby_index_release
core/cache/bypass.c fby_past_begin
    call range_claim
    fetch_add p->waits[FBY_WAIT_BLOCK]
    load v->gate.lost
    call uncached_until
    store v->range[b->place].end
    call range_release
    call range_release
    fetch_add p->waits[FBY_WAIT_BLOCK]
core/cache/bypass.c fby_cache_bypass_end
    fetch_add v->bypasses
    fetch_add v->bypassed_sectors
    fetch_add v->gate.ended
    call range_release
    load p->space->wait_mask
core/cache/write.c begin_lock
    call fby_index_try
    load p->bucket[g->bucket]
    call fby_index_release
core/cache/write.c begin_shrink
    call fby_index_release
core/cache/write.c begin_bypassing
    call fby_bypass_meets
    call begin_shrink
core/cache/write.c begin
    call begin_lock
    load p->volume[volume].bypassing
    call begin_bypassing
    call begin_shrink
core/cache/write.c with_checksum
    load p->space->opt.no_checksums
core/cache/write.c write_block
    call with_checksum
    call fby_index_try
    load p->bucket[g.bucket]
    load p->volume[volume].bypassing
    call fby_bypass_meets
    call fby_index_release
    call media_data
core/drain/destage.c release_page
    call fby_index_try
    call fby_index_release
    load p->cache->entry[page].state
    fetch_add cv->lost_blocks
    fetch_add cv->lost_only
    store o->cleaned
    call fby_index_release
",
    guarded: &[],
    words: &["bypassing", "range"],
    besides: &[
        ("gate_owes", "flushes; the model has none"),
        ("fby_volume_detach", "no request of the volume is in flight then"),
        ("fby_volume_info", "a figure to show"),
        ("place_take", "as begin_lock and begin: a static volume's stripe in the bucket's place"),
    ],
};

/// One step left out, out of order or weaker, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// A write past the cache looks at the bucket before it shows its range.
    RangeAfterBucket,
    /// It does not look at the bucket.
    BucketIgnored,
    /// It looks for the block's page without taking the bucket.
    BucketNotTaken,
    /// It goes past the cache although the block is cached.
    CachedIgnored,
    /// Its range is removed before its origin write has ended.
    RangeGoneEarly,
    /// Ranges are claimed without the pool's lock.
    ClaimNotLocked,
    /// Ranges are claimed without a look at the others.
    OthersIgnored,
    /// A write through the cache looks at the ranges before it takes the bucket.
    LookBeforeBucket,
    /// It does not look at the ranges.
    RangesIgnored,
    /// A bucket is taken without acquire.
    BucketNotAcquired,
    /// A bucket is unlocked without release.
    BucketNotReleased,
    /// Destage releases a page before the origin has it.
    ReleasedBeforeOrigin,
}

/// The block's bucket, the volume's ranges, and the origin.
pub struct Volume {
    mutation: Mutation,
    bucket: Word,
    /// The block's page: 0, or what it holds.
    page: Word,
    bypassing: Word,
    first: [Word; RANGES],
    end: [Word; RANGES],
    origin: Word,
    lock: Mutex<()>,
    past_at_work: Count,
    cached_at_work: Count,
    cached: Count,
}

fn locked(m: &Mutex<()>) -> MutexGuard<'_, ()> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Volume {
    pub fn new(mutation: Mutation) -> Self {
        let steps = Steps::new();
        Self {
            mutation,
            bucket: steps.word(0),
            page: steps.word(0),
            bypassing: steps.word(0),
            first: std::array::from_fn(|_| steps.word(0)),
            end: std::array::from_fn(|_| steps.word(0)),
            origin: steps.word(0),
            lock: Mutex::new(()),
            past_at_work: Count::new(0),
            cached_at_work: Count::new(0),
            cached: Count::new(0),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// `fby_index_try`
    fn bucket_try(&self) -> bool {
        let order = if self.is(Mutation::BucketNotAcquired) { Relaxed } else { AcqRel };
        self.bucket.load(Relaxed) == 0 && self.bucket.cmpxchg(0, LOCK, order)
    }

    /// `fby_index_release`
    fn bucket_release(&self) {
        self.bucket.store(0, if self.is(Mutation::BucketNotReleased) { Relaxed } else { Release });
    }

    // --- past the cache

    /// `range_claim`
    fn range_claim(&self) -> Option<usize> {
        let guard = (!self.is(Mutation::ClaimNotLocked)).then(|| locked(&self.lock));
        let busy = self.bypassing.load(Acquire);
        let place = (0..RANGES).find(|i| busy >> i & 1 == 0)?;
        for i in (0..RANGES).filter(|i| busy >> i & 1 == 1) {
            if !self.is(Mutation::OthersIgnored)
                && BLOCK < self.end[i].load(Relaxed)
                && BLOCK + 1 > self.first[i].load(Relaxed)
            {
                return None;
            }
        }
        self.first[place].store(BLOCK, Relaxed);
        self.end[place].store(BLOCK + 1, Relaxed);
        self.bypassing.fetch_or(1 << place, AcqRel);
        drop(guard);
        Some(place)
    }

    /// `uncached_until`, of the one block: neither busy nor cached
    fn uncached(&self) -> bool {
        if self.is(Mutation::BucketIgnored) {
            return true;
        }
        if self.is(Mutation::BucketNotTaken) {
            return self.page.load(Relaxed) == 0;
        }
        if !self.bucket_try() {
            return false;
        }
        let cached = self.page.load(Relaxed) != 0 && !self.is(Mutation::CachedIgnored);
        self.bucket_release();
        !cached
    }

    /// `range_release`
    fn range_release(&self, place: usize) {
        self.bypassing.fetch_and(!(1 << place), AcqRel);
    }

    /// A write past the cache; false: it has to wait, or go through the cache.
    pub fn past(&self, value: u64) -> bool {
        let early = self.is(Mutation::RangeAfterBucket);
        if early && !self.uncached() {
            return false;
        }
        let Some(place) = self.range_claim() else { return false };
        if !early && !self.uncached() {
            self.range_release(place);
            return false;
        }
        let others = self.past_at_work.fetch_add(1, SeqCst);
        assert_eq!(others, 0, "two writes past the cache of one block");
        assert_eq!(self.cached_at_work.load(SeqCst), 0, "past the cache beside a write through it");
        assert_eq!(self.cached.load(SeqCst), 0, "past the cache, and the block is cached");
        if self.is(Mutation::RangeGoneEarly) {
            self.range_release(place);
        }
        self.origin.store(value, Relaxed);
        self.past_at_work.fetch_sub(1, SeqCst);
        if !self.is(Mutation::RangeGoneEarly) {
            self.range_release(place);
        }
        true
    }

    // --- through the cache

    /// The look at the ranges in `begin`, and `fby_bypass_meets`
    fn meets(&self) -> bool {
        if self.is(Mutation::RangesIgnored) || self.bypassing.load(Relaxed) == 0 {
            return false;
        }
        let busy = self.bypassing.load(Acquire);
        (0..RANGES).any(|i| {
            busy >> i & 1 == 1
                && BLOCK >= self.first[i].load(Relaxed)
                && BLOCK < self.end[i].load(Relaxed)
        })
    }

    /// A write through the cache; false: it has to wait.
    pub fn through(&self, value: u64) -> bool {
        let early = self.is(Mutation::LookBeforeBucket);
        if early && self.meets() {
            return false;
        }
        if !self.bucket_try() {
            return false;
        }
        if !early && self.meets() {
            self.bucket_release();
            return false;
        }
        self.cached_at_work.fetch_add(1, SeqCst);
        assert_eq!(self.past_at_work.load(SeqCst), 0, "through the cache beside a write past it");
        self.page.store(value, Relaxed);
        self.cached.store(1, SeqCst);
        self.cached_at_work.fetch_sub(1, SeqCst);
        self.bucket_release();
        true
    }

    /// A round of destage: the page to the origin, and `release_page`; false: busy.
    pub fn destage(&self) -> bool {
        let value = self.page.load(Relaxed);
        if value == 0 {
            return true;
        }
        if !self.is(Mutation::ReleasedBeforeOrigin) {
            self.origin.store(value, Relaxed);
        }
        if !self.bucket_try() {
            return false;
        }
        if self.page.load(Relaxed) == value {
            self.page.store(0, Relaxed);
            self.cached.store(0, SeqCst);
        }
        self.bucket_release();
        if self.is(Mutation::ReleasedBeforeOrigin) {
            self.origin.store(value, Relaxed);
        }
        true
    }

    /// The result of a read with all at rest.
    pub fn read(&self) -> u64 {
        match self.page.load(Acquire) {
            0 => self.origin.load(Acquire),
            value => value,
        }
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
