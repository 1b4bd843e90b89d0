// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate of a log's generations.  In `core/log/append.c` a slot publishes that its entry is
//! in flight, then reads the gate; the thread that begins a generation publishes that at the
//! gate, then reads the slots.  `core/log/period.c` ends a log and syncs it.
//!
//! The model has two slots and one log.  An entry counts as stored when its header is, and as
//! durable when its slot releases it; both are counted outside of loom, in the order in which
//! they really happen.  A mutex stands for the log's lock.

use std::sync::atomic::{AtomicU64 as Count, Ordering::SeqCst};
use std::sync::Mutex as Entries;

use loom::sync::atomic::fence;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst as Full};
use loom::sync::{Mutex, MutexGuard};

use crate::{Follows, Steps, Word};

const OPEN: u64 = 1;
const NEXT: u64 = 2;
const LOG: u64 = 1;
const NONE: u64 = 0;
const SLOTS: usize = 2;
const TXGS: u64 = 3;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/log/append.c fby_logs_in_flight
    load_acquire p->space->slot[i].log
core/log/append.c next_generation
core/log/append.c begin_generation
    lock
    load l->gate
    load l->gate
    fetch_or l->gate
    mb_after_atomic
    call fby_logs_in_flight
    call next_generation
    store_release s->log
    fetch_and l->gate
    unlock
core/log/append.c enter
    cmpxchg s->log
    mb_after_atomic
    load_acquire l->gate
    store_release s->log
    call begin_generation
core/log/append.c take_order
    load_acquire l->synced
core/log/append.c append_begin
    call enter
    call take_order
    store_release s->log
core/log/append.c append_commit
    call media_lines
    call media_fence
    store_release s->log
core/log/period.c fby_logs_create
    store_release l->gate
core/log/period.c fby_logs_sync
    load l->gate
    store_release l->synced
core/log/period.c fby_logs_destroy
    lock
    fetch_and l->gate
    mb_after_atomic
    call fby_logs_in_flight
    unlock
",
    guarded: &[],
    words: &["l->gate", "s->log"],
    besides: &[
        ("append_check", "refuses early; enter looks again"),
        ("fby_logs_tick", "excluded from create and destroy by the host's mutex"),
        ("fby_logs_unsynced", "a figure to show"),
        ("want_generation", "as begin_generation where others are in flight"),
    ],
};

/// One step left out, out of order or weaker, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// An append looks at the gate before it shows that it is in flight.
    GateBeforeFlight,
    /// No barrier between the two.
    EnterNoBarrier,
    /// An append does not look at the gate.
    GateIgnored,
    /// Who begins a generation looks at the slots before it says so at the gate.
    SlotsBeforeGate,
    /// No barrier between the two.
    BeginNoBarrier,
    /// It does not wait for those in flight.
    NotWaited,
    /// The gate is cleared before the generation has begun.
    GateClearedEarly,
    /// A slot releases its entry before that is durable.
    LetGoEarly,
    /// A slot releases its entry with a relaxed store.
    LetGoRelaxed,
    /// Who looks at the slots does so without acquire.
    LookRelaxed,
    /// Generations begin without the log's lock.
    NotLocked,
    /// A log ends without a look at the slots.
    EndNotWaited,
    /// A log ends without the log's lock.
    EndNotLocked,
    /// A txg counts as synced before the record says so.
    SyncedBeforeRecord,
    /// An entry has its place before it is in flight.
    OrderBeforeFlight,
}

/// The content of a header.
#[derive(Clone, Copy, Debug)]
struct Entry {
    gen: u64,
    /// Entries of earlier generations.
    before: u64,
    period: u64,
}

pub struct Log {
    mutation: Mutation,
    gate: Word,
    slot: [Word; SLOTS],
    gen: Word,
    last: Word,
    live: Word,
    period: Word,
    synced: Word,
    part_gen: [Word; SLOTS],
    part: [Word; SLOTS],
    lock: Mutex<()>,
    /// Headers that are stored, of each slot the one that is not durable.
    stored: Entries<Vec<Entry>>,
    pending: [Count; SLOTS],
    recorded: Count,
    /// Periods that have ended.
    ended: Count,
}

fn locked(m: &Mutex<()>) -> MutexGuard<'_, ()> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Log {
    pub fn new(mutation: Mutation) -> Self {
        let steps = Steps::new();
        let word = |value| steps.word(value);
        Self {
            mutation,
            gate: word(OPEN),
            slot: std::array::from_fn(|_| word(NONE)),
            gen: word(1),
            last: word(0),
            live: word(0),
            period: word(1),
            synced: word(0),
            part_gen: std::array::from_fn(|_| word(0)),
            part: std::array::from_fn(|_| word(0)),
            lock: Mutex::new(()),
            stored: Entries::new(Vec::new()),
            pending: std::array::from_fn(|_| Count::new(0)),
            recorded: Count::new(0),
            ended: Count::new(0),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// `fby_logs_in_flight`
    fn in_flight(&self) -> bool {
        let order = if self.is(Mutation::LookRelaxed) { Relaxed } else { Acquire };
        self.slot.iter().any(|s| s.load(order) == LOG)
    }

    /// `next_generation`: plain accesses in the C
    fn next_generation(&self) {
        let gen = self.gen.load(Relaxed);
        let mut live = self.live.load(Relaxed);
        for i in 0..SLOTS {
            if self.part_gen[i].load(Relaxed) == gen {
                live += self.part[i].load(Relaxed);
            }
        }
        self.live.store(live, Relaxed);
        self.last.store(live, Relaxed);
        self.gen.store(gen + 1, Relaxed);
    }

    fn clear_next(&self) {
        self.gate.fetch_and(!NEXT, AcqRel);
    }

    /// `begin_generation`
    fn begin_generation(&self, slot: usize, new: bool) -> bool {
        let guard = (!self.is(Mutation::NotLocked)).then(|| locked(&self.lock));
        if self.gate.load(Relaxed) & OPEN == 0 {
            return false;
        }
        if new || self.gate.load(Relaxed) & NEXT != 0 {
            let early = self.is(Mutation::SlotsBeforeGate) && self.in_flight();
            self.gate.fetch_or(NEXT, AcqRel);
            if !self.is(Mutation::BeginNoBarrier) {
                fence(Full);
            }
            let busy = match self.mutation {
                Mutation::SlotsBeforeGate => early,
                Mutation::NotWaited => false,
                _ => self.in_flight(),
            };
            if busy {
                return false;
            }
            if self.is(Mutation::GateClearedEarly) {
                self.clear_next();
            }
            self.next_generation();
        }
        // In either order: who looks at the slots holds the lock.
        self.slot[slot].store(LOG, Release);
        self.clear_next();
        drop(guard);
        true
    }

    /// `enter`
    fn enter(&self, slot: usize, new: bool) -> bool {
        if new {
            return self.begin_generation(slot, true);
        }
        let early = self.is(Mutation::GateBeforeFlight).then(|| self.gate.load(Acquire));
        self.slot[slot].cmpxchg(NONE, LOG, AcqRel);
        if !self.is(Mutation::EnterNoBarrier) {
            fence(Full);
        }
        let gate = early.unwrap_or_else(|| self.gate.load(Acquire));
        if gate == OPEN || self.is(Mutation::GateIgnored) {
            return true;
        }
        self.slot[slot].store(NONE, Release);
        self.begin_generation(slot, false)
    }

    /// `take_order`
    fn take_order(&self, slot: usize) -> Entry {
        let gen = self.gen.load(Relaxed);
        if self.part_gen[slot].load(Relaxed) != gen {
            self.part_gen[slot].store(gen, Relaxed);
            self.part[slot].store(0, Relaxed);
        }
        self.part[slot].store(self.part[slot].load(Relaxed) + 1, Relaxed);
        Entry { gen, before: self.last.load(Relaxed), period: self.period.load(Relaxed) }
    }

    /// An append by the slot's owner, of the newest txg that it may be of; false: it has to
    /// wait, or the log has ended.
    pub fn append(&self, slot: usize, new: bool) -> bool {
        let early = self.is(Mutation::OrderBeforeFlight).then(|| self.take_order(slot));
        if !self.enter(slot, new) {
            return false;
        }
        let txg = self.synced.load(Acquire) + TXGS;
        let entry = early.unwrap_or_else(|| self.take_order(slot));
        assert!(txg <= self.recorded.load(SeqCst) + TXGS, "a txg that the record has no room for");
        assert!(entry.period > self.ended.load(SeqCst), "an entry of a period that has ended");
        for other in self.pending.iter().map(|p| p.load(SeqCst)).filter(|&gen| gen != 0) {
            assert!(other >= entry.gen, "an earlier generation is not durable");
        }
        if self.is(Mutation::LetGoEarly) {
            self.slot[slot].store(NONE, Release);
        }
        self.pending[slot].store(entry.gen, SeqCst);
        self.stored.lock().unwrap_or_else(|e| e.into_inner()).push(entry);
        // The fence; another access, so that others run between.
        self.gate.load(Relaxed);
        self.pending[slot].store(0, SeqCst);
        let order = if self.is(Mutation::LetGoRelaxed) { Relaxed } else { Release };
        self.slot[slot].store(NONE, order);
        true
    }

    /// `fby_logs_sync`, of the next txg
    pub fn sync(&self) {
        let txg = self.synced.load(Relaxed) + 1;
        if self.is(Mutation::SyncedBeforeRecord) {
            self.synced.store(txg, Release);
            // Another access, so that others run between.
            self.gate.load(Relaxed);
        }
        self.recorded.store(txg, SeqCst);
        self.synced.store(txg, Release);
    }

    /// `fby_logs_destroy`; false: an append is under way
    pub fn destroy(&self) -> bool {
        let guard = (!self.is(Mutation::EndNotLocked)).then(|| locked(&self.lock));
        self.gate.fetch_and(!OPEN, AcqRel);
        fence(Full);
        let busy = self.in_flight() && !self.is(Mutation::EndNotWaited);
        drop(guard);
        if busy {
            return false;
        }
        self.ended.store(self.period.load(Relaxed), SeqCst);
        true
    }

    /// `fby_logs_create`
    pub fn create(&self) {
        self.period.store(self.period.load(Relaxed) + 1, Relaxed);
        self.gen.store(self.gen.load(Relaxed) + 1, Relaxed);
        self.live.store(0, Relaxed);
        self.last.store(0, Relaxed);
        self.gate.store(OPEN, Release);
    }

    /// With all at rest: each entry says how many of its period come before it.
    pub fn judge(&self) {
        let stored = self.stored.lock().unwrap_or_else(|e| e.into_inner());
        for e in stored.iter() {
            let before = stored.iter().filter(|o| o.period == e.period && o.gen < e.gen).count();
            assert_eq!(e.before, before as u64, "{e:?} miscounts {stored:?}");
        }
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
