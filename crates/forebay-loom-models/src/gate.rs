// SPDX-License-Identifier: MIT OR Apache-2.0
//! A failed flush is told once to each who has to know: `core/cache/flush.c`.  The flush that fails
//! holds the gate, a client flushes all that was written, and a write past the cache is acknowledged
//! meanwhile.
//!
//! The model has one flush that fails, and requests past the cache as a count.

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::{Follows, Steps, Word};

const HELD: u64 = 1;
const UNKNOWN: u64 = u64::MAX;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/cache/flush.c gate_release
    fetch_and g->held
core/cache/flush.c gate_failed
    store g->lost_upto
    fetch_add g->lost
    store g->lost_upto
    load_acquire g->ended
core/cache/flush.c fby_cache_flush_later
    fetch_add g->ended
    fetch_add g->lost
core/cache/flush.c ticket_new
    load g->told
    load_acquire g->ended
    fetch_add p->space->slot[fby_cpu() % p->space->opt.nslots].flushes
core/cache/flush.c ticket_fails
    load g->lost_upto
    store g->told
core/cache/flush.c ticket_look
    load_acquire g->flushed
    load_acquire g->lost
    load g->told
    load g->lost_upto
    call ticket_fails
core/cache/flush.c fby_cache_flush_begin
    call ticket_new
    call ticket_look
    cmpxchg v->gate.held
    load_acquire v->gate.ended
core/cache/flush.c fby_cache_flush_end
    call gate_failed
    call ticket_fails
    call ticket_look
    call gate_release
",
    guarded: &[],
    words: &["lost_upto", "told"],
    besides: &[("fby_cache_flush_told", "what a new client begins with")],
};

/// One step left out, out of order or weaker, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// A ticket is told while it is unknown how much the failure stands for.
    ToldWhileUnknown,
    /// The failure shows before it says that this is unknown.
    UnknownAfterLost,
    /// How much it stands for is looked up before the failure shows.
    EndedBeforeLost,
    /// A ticket reads the count of failures without acquire.
    LostNotAcquired,
    /// A ticket counts for all, also for what was acknowledged after it began.
    TellsForLater,
    /// A write past the cache is acknowledged without a look at the failures.
    LaterUnseen,
}

/// The answer to a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Fails,
    Waits,
    /// It flushes, and nothing failed that it has to be told of.
    Flushes,
}

/// A flush of everything.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    seen: u64,
    upto: u64,
}

impl Ticket {
    /// It stands for a write past the cache that had ended.
    pub fn covers_past(&self) -> bool {
        self.upto == 3
    }
}

/// The gate of one volume, held by the flush that fails.
pub struct Gate {
    mutation: Mutation,
    held: Word,
    lost: Word,
    told: Word,
    lost_upto: Word,
    ended: Word,
}

impl Gate {
    pub fn new(mutation: Mutation) -> Self {
        let steps = Steps::new();
        Self {
            mutation,
            held: steps.word(HELD),
            lost: steps.word(0),
            told: steps.word(0),
            lost_upto: steps.word(0),
            ended: steps.word(1),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// `gate_failed`, `gate_release`
    pub fn fails(&self) {
        let before = self.ended.load(Acquire);
        if !self.is(Mutation::UnknownAfterLost) {
            self.lost_upto.store(UNKNOWN, Relaxed);
        }
        self.lost.fetch_add(1, AcqRel);
        let upto = match self.is(Mutation::EndedBeforeLost) {
            true => before,
            false => self.ended.load(Acquire),
        };
        self.lost_upto.store(upto, Relaxed);
        self.held.fetch_and(!HELD, AcqRel);
    }

    /// `ticket_new`
    pub fn ticket(&self) -> Ticket {
        Ticket { seen: self.told.load(Relaxed), upto: self.ended.load(Acquire) }
    }

    /// `ticket_look`; nothing succeeds before the ticket's own flush.
    fn look(&self, t: &Ticket) -> Option<Answer> {
        let order = if self.is(Mutation::LostNotAcquired) { Relaxed } else { Acquire };
        let lost = self.lost.load(order);
        if lost == t.seen {
            return None;
        }
        let unknown = self.lost_upto.load(Relaxed) == UNKNOWN;
        if unknown && !self.is(Mutation::ToldWhileUnknown) {
            return Some(Answer::Waits);
        }
        // ticket_fails
        if t.upto >= self.lost_upto.load(Relaxed) || self.is(Mutation::TellsForLater) {
            self.told.store(lost, Relaxed);
        }
        Some(Answer::Fails)
    }

    /// `fby_cache_flush_begin`, and `fby_cache_flush_end` of a flush that succeeds
    pub fn begin(&self, t: &Ticket) -> Answer {
        if let Some(answer) = self.look(t) {
            return answer;
        }
        if !self.held.cmpxchg(0, HELD, AcqRel) {
            return Answer::Waits;
        }
        let answer = self.look(t).unwrap_or(Answer::Flushes);
        assert_ne!(answer, Answer::Waits, "who holds the gate waits for itself");
        self.held.fetch_and(!HELD, AcqRel);
        answer
    }

    /// A write past the cache ends: `fby_cache_bypass_end`, and `fby_flush_later` for one that
    /// began before anything failed.  True: it is acknowledged.
    pub fn past(&self) -> bool {
        self.ended.fetch_add(1, AcqRel);
        self.ended.fetch_add(1, AcqRel);
        self.lost.fetch_add(0, AcqRel) == 0 || self.is(Mutation::LaterUnseen)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
