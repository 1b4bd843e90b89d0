// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check whether a static volume is clean, concurrent with rounds and writers:
//! `fby_static_clean` in `core/drain/static_round.c`, the bits of `core/static/static.h`.
//!
//! One slot with one page, which is live or not, and its bit.  Where the C waits for a writer
//! that holds the stripe, the model leaves the slot to the next round.  What the origin has is
//! kept beside loom, by what really runs when.  Who asks has written before: of others' writes it
//! learns by what the host orders (the mark's barrier on all CPUs).

use std::sync::atomic::{AtomicU64 as Count, Ordering::SeqCst};

use loom::sync::atomic::fence;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst as Full};

use crate::{Follows, Steps, Word};

const IDLE: u64 = 0;
const WRITE: u64 = 1;
const STORES: u64 = 1;
const ONE: u64 = 2;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/drain/static_round.c fby_static_clean
    load_acquire v->collects
    load_acquire p->volume[volume].destage.phase
    call any_dirty
    rmb
    load v->collects
core/drain/static_round.c any_dirty
    load p->statics->dirty[bit / 64]
    call fby_static_dirty
core/drain/static_round.c idle_step
    store v->done_era
    store v->passes_done
    call any_dirty
    load v->miscounted
    store d->drain
    store d->phase
    fetch_add v->collects
    load_acquire p->cache->volume[volume].gate.lost
    call collect_pass
    store_release d->phase
core/drain/static_round.c collect_pass
    call fby_static_dirty
    call fby_static_dirty_clear
    call collect_slot
core/drain/static_round.c collect_slot
    call again
    call fby_place_snapshot
    call again
core/drain/static_round.c again
    call fby_static_dirty_set
core/drain/static_round.c give_back
    call again
core/drain/static_round.c flush_step
    store d->phase
    call give_back
    store_release d->phase
    store d->phase
core/drain/static_round.c release_step
    store dv->last_error
    store_release d->phase
core/drain/static_round.c backoff_step
    call give_back
    store_release d->phase
core/static/place.c fby_place_put
    load v->era
    call media_lines
    call media_fence
    mb_after_atomic
    call fby_static_dirty_set
core/static/place.c stripe_quiet
    load_acquire stripe
core/static/place.c stripe_same
    rmb
    load stripe
core/static/place.c fby_place_snapshot
    call stripe_quiet
    call stripe_same
core/static/place.c fby_place_release
    call fby_stripe_try
    call fby_stripe_release
    call media_lines
    call media_fence
    load v->surveyed
    fetch_add v->count[0].live
    call fby_stripe_release
core/static/static.h fby_stripe_try
    load stripe
    cmpxchg stripe
core/static/static.h fby_stripe_release
    load stripe
    store_release stripe
core/static/static.h fby_static_dirty
    load p->dirty[bit / 64]
core/static/static.h fby_static_dirty_set
    load p->dirty[bit / 64]
    fetch_or p->dirty[bit / 64]
core/static/static.h fby_static_dirty_clear
    fetch_and p->dirty[bit / 64]
    mb_after_atomic
",
    guarded: &[],
    words: &["collects", "dirty"],
    besides: &[],
};

/// One step left out, out of order or weaker, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// Who asks does not look whether a round is on.
    PhaseIgnored,
    /// It does so without acquire.
    PhaseRelaxed,
    /// It does not look whether a round has begun meanwhile.
    CollectsIgnored,
    /// It does so before it looks at the bits.
    CollectsEarly,
    /// No barrier between the two.
    AskNoBarrier,
    /// A round counts before it is seen to be on.
    CollectsBeforePhase,
    /// A round takes its bits before it counts.
    BitsBeforeCollects,
    /// Bits go without release.
    ClearRelaxed,
    /// No barrier after a bit is cleared.
    ClearNoBarrier,
    /// A writer reads the bit without a barrier after taking its stripe.
    SetNoBarrier,
    /// A round is over before its pages are on the origin.
    IdleEarly,
    /// A round that failed is over before its bits are back.
    IdleBeforeBack,
    /// A round is over without release.
    IdleRelaxed,
    /// A round releases a page that was written since.
    ReleaseNewer,
}

pub struct StaticVolume {
    mutation: Mutation,
    bit: Word,
    stripe: Word,
    /// Number of the write that is live; 0: none.
    page: Word,
    phase: Word,
    collects: Word,
    /// The newest write that the origin has.
    origin: Count,
}

impl StaticVolume {
    pub fn new(mutation: Mutation) -> Self {
        let steps = Steps::new();
        let word = |value| steps.word(value);
        Self {
            mutation,
            bit: word(0),
            stripe: word(0),
            page: word(0),
            phase: word(IDLE),
            collects: word(0),
            origin: Count::new(0),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// `fby_static_dirty_set`
    fn dirty_set(&self) {
        if self.bit.load(Relaxed) == 0 {
            self.bit.fetch_or(1, AcqRel);
        }
    }

    /// `fby_static_dirty_clear`
    fn dirty_clear(&self) {
        let order = if self.is(Mutation::ClearRelaxed) { Relaxed } else { AcqRel };
        self.bit.fetch_and(0, order);
        if !self.is(Mutation::ClearNoBarrier) {
            fence(Full);
        }
    }

    /// `fby_place_put`, of write number n, with `fby_stripe_try` before it; false: the stripe
    /// is held.
    pub fn write(&self, n: u64) -> bool {
        let word = self.stripe.load(Relaxed);
        if word & STORES != 0 || !self.stripe.cmpxchg(word, word | STORES, AcqRel) {
            return false;
        }
        self.page.store(n, Relaxed);
        if !self.is(Mutation::SetNoBarrier) {
            fence(Full);
        }
        self.dirty_set();
        self.stripe.store(word + ONE, Release);
        true
    }

    /// `fby_place_snapshot`; none: a writer is at it.
    fn snapshot(&self) -> Option<u64> {
        let word = self.stripe.load(Acquire);
        let page = self.page.load(Relaxed);
        fence(Acquire);
        (word & STORES == 0 && self.stripe.load(Relaxed) == word).then_some(page)
    }

    /// `collect_pass`; 0: there is nothing.
    fn collect(&self) -> u64 {
        if self.bit.load(Relaxed) == 0 {
            return 0;
        }
        self.dirty_clear();
        self.snapshot().unwrap_or_else(|| {
            self.dirty_set();
            0
        })
    }

    /// `fby_place_release`; false: the stripe is held.
    fn release(&self, listed: u64) -> bool {
        let word = self.stripe.load(Relaxed);
        if word & STORES != 0 || !self.stripe.cmpxchg(word, word | STORES, AcqRel) {
            return false;
        }
        if self.page.load(Relaxed) == listed || self.is(Mutation::ReleaseNewer) {
            self.page.store(0, Relaxed);
        }
        self.stripe.store(word + ONE, Release);
        true
    }

    fn idle(&self) {
        self.phase.store(IDLE, if self.is(Mutation::IdleRelaxed) { Relaxed } else { Release });
    }

    /// A round, of which the origin takes what there is, or fails: `idle_step`, `give_back`,
    /// `release_step`.
    pub fn round(&self, fails: bool) {
        let early = self.is(Mutation::BitsBeforeCollects).then(|| self.collect());
        if self.is(Mutation::CollectsBeforePhase) {
            self.collects.fetch_add(1, AcqRel);
            self.phase.store(WRITE, Relaxed);
        } else {
            self.phase.store(WRITE, Relaxed);
            self.collects.fetch_add(1, AcqRel);
        }
        let listed = early.unwrap_or_else(|| self.collect());
        if listed == 0 {
            self.idle();
            return;
        }
        if self.is(Mutation::IdleEarly) || (fails && self.is(Mutation::IdleBeforeBack)) {
            self.idle();
        }
        // Another access, so that others run between.
        self.collects.load(Relaxed);
        if !fails {
            self.origin.fetch_max(listed, SeqCst);
        }
        if fails || !self.release(listed) {
            self.dirty_set();
        }
        self.idle();
    }

    /// `fby_static_clean`
    fn clean(&self) -> bool {
        let before = self.collects.load(Acquire);
        let order = if self.is(Mutation::PhaseRelaxed) { Relaxed } else { Acquire };
        if self.phase.load(order) != IDLE && !self.is(Mutation::PhaseIgnored) {
            return false;
        }
        let early = self.is(Mutation::CollectsEarly).then(|| self.collects.load(Relaxed));
        if self.bit.load(Relaxed) != 0 {
            return false;
        }
        if !self.is(Mutation::AskNoBarrier) {
            fence(Acquire);
        }
        let after = early.unwrap_or_else(|| self.collects.load(Relaxed));
        after == before || self.is(Mutation::CollectsIgnored)
    }

    /// Who has made write n asks: clean is only what the origin has.
    pub fn judge(&self, n: u64) {
        if self.clean() {
            assert!(self.origin.load(SeqCst) >= n, "clean, and the origin lacks write {n}");
        }
    }

    /// With all at rest: the next round finds every live page.
    pub fn judge_at_rest(&self, n: u64) {
        self.round(false);
        assert!(self.origin.load(SeqCst) >= n, "no round finds write {n}");
        assert!(self.clean(), "nothing is left, and it is not clean");
    }
}

impl std::fmt::Debug for StaticVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticVolume").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
