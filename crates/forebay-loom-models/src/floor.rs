// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol by which destage chooses a cut that passes nothing that is not yet
//! published: `core/space/slot.h` (slots and their numbers), `chunk_open` and
//! `fby_slot_close` of `core/space/chunk.c`, the end of a write in `core/cache/write.c`, and
//! `cut_below_in_flight` and `fby_round_collect` of `core/drain/collect.c`.
//!
//! Two slots, chunks of two pages, two numbers at a time, so that all of it happens in
//! three writes.  Each write is of a block of its own: nothing is superseded, and a
//! number that the cut has passed must have been seen.

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::{Mutex, MutexGuard};

use crate::{Follows, Steps, Word};

const SLOTS: usize = 2;
const CHUNKS: usize = 4;
const PAGES: u64 = 2;
const SEQ_BLOCK: u64 = 2;
const NO_SEQ: u64 = u64::MAX;
const NO_CHUNK: u64 = u64::MAX;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/space/slot.h fby_slot_try
    load s->busy
    cmpxchg s->busy
core/space/slot.h fby_slot_release
    store_release s->busy
core/space/slot.h fby_slot_give
    call fby_slot_release
    load p->wait_mask
core/space/slot.h fby_slot_give_owed
    call fby_slot_give
    fetch_or p->wake_owed
core/space/slot.h fby_slot_seq
    store s->floor
    load p->seq
    set seq_next
    fetch_add p->seq
    set seq_end
core/space/chunk.c fby_slot_retire
    set seq_next
    set seq_end
    store_release s->floor
core/space/chunk.c chunk_open
    lock
    unlock
    store p->nfree
    store ch->fill
    store ch->clean_for
    store ch->opened_ns
    load p->now_ns
    store ch->copies_ns
    store_release p->opens
    store ch->durable
    store_release ch->epoch
    store ch->seq_max
    store ch->seq_min
    load p->seq
    set seq_last
    store s->volume[owner].open
    unlock
    wmb
    call fby_slot_retire
    call media_lines
    call fby_fence_chunk
core/space/chunk.c fby_chunk_seal_store
    call media_lines
    call media_lines
core/space/chunk.c fby_chunk_seal
    call fby_chunk_seal_store
    call fby_settle_line
    store ch->sealed
core/space/chunk.c fby_slot_seal
    load ch->fill
    load ch->sealed
    call fby_chunk_seal
core/space/chunk.c fby_slot_close
    call fby_chunk_seal
    store s->volume[owner].open
    store ch->seq_max
    lock
    unlock
core/space/chunk.c fby_chunk_walk
    lock
    unlock
core/cache/write.c commit_fresh
    load p->space->chunk[c].seq_max
core/cache/write.c commit
    call commit_fresh
    call fby_slot_seq
    call commit_lines
core/cache/write.c publish
    call publish_page
    call publish_end
core/cache/write.c publish_page
    load p->entry[g->old].state
core/cache/write.c publish_end
    store ch->fill
    set seq_last
    store_release s->floor
    call fby_slot_close
    call fby_slot_release
    load p->space->wait_mask
core/cache/write.c write_batches
    call commit
    call publish
core/cache/write.c commit_lines
    call fby_fence_chunk
    call media_lines
    call fby_fence_chunk
core/drain/request.c fby_round_listed
    rmb
    load e->state
    load e->key
    load fby_chunk_of(p->space, r->page)->seq_min
core/cache/write.c with_checksum
    load p->space->opt.no_checksums
core/cache/write.c write_block
    call with_checksum
    load p->bucket[g.bucket]
    load p->volume[volume].bypassing
    call media_data
    call fby_slot_seq
    call commit_fresh
    call commit_lines
    call publish_page
    call publish_end
core/drain/collect.c cut_below_in_flight
    load_acquire p->space->seq
    call fby_slot_try
    call fby_slot_seal
    call fby_slot_retire
    call fby_slot_give_owed
    load_acquire s->floor
core/drain/collect.c collect_page
    load_acquire p->cache->entry[r.page].state
core/drain/collect.c fby_round_collect
    load_acquire p->cache->volume[volume].gate.lost
    call cut_below_in_flight
    call fby_chunk_walk
    load p->space->chunk[c].seq_min
    load p->space->chunk[c].sealed
    call collect_page
    load p->space->chunk[c].fill
    load p->cache->entry[d->page[i].page].key
",
    guarded: &["seq_next", "seq_end", "seq_last"],
    words: &["busy", "floor", "seq", "seq_max"],
    besides: &[
        ("fby_round_dirty", "a closed chunk or not: the page is verified again where it counts"),
        ("count_dead", "an estimate of the room that a round gains: decides what else it writes"),
        ("fby_moved_note", "the age of what was moved, after the move"),
        (
            "fby_refused_failed",
            "a bound: until the watermark is above it, something refused may be left",
        ),
        (
            "fby_volume_drain_upto",
            "a bound above every number that was given out: the cut decides when it is passed",
        ),
        ("fby_volume_info", "its read is of a failed device, where nothing is appended any more"),
        ("fby_volume_add", "the volume has no entries"),
        ("fby_volume_remove", "no request of the volume is in flight then"),
        ("fby_map_remove", "a map has no entries"),
        ("fby_pool_info", "a figure to show"),
        ("fby_chunk_info", "a figure to show"),
        (
            "fby_cache_again",
            "of a pool on a block device, with the slot: as a write, and its pages are not durable yet",
        ),
        ("close_chunk", "of a pool on a block device: of a log, which no round collects"),
        ("fby_logs_free", "of a log: the highest txg of a chunk that is closed"),
    ],
};

/// One step left out, out of order or weaker, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// A slot takes numbers before it shows its floor.
    FloorAfterCounter,
    /// A slot takes numbers without release, so the floor may be seen later.
    CounterNotReleased,
    /// Destage reads the counter without acquire.
    CounterNotAcquired,
    /// Destage looks at the floors before the counter.
    FloorsBeforeCounter,
    /// A writer moves its floor before its page is linked.
    FloorBeforePublish,
    /// A writer moves its floor before it counts the page in its chunk.
    FloorBeforeFill,
    /// A writer moves its floor without release.
    FloorNotReleased,
    /// Destage reads a floor without acquire.
    FloorNotAcquired,
    /// A slot is released without release.
    SlotNotReleased,
    /// Destage takes an idle slot without acquire.
    SlotNotAcquired,
    /// Destage leaves an idle slot its numbers.
    IdleNotRetired,
    /// Destage retires an idle slot after releasing it.
    RetiredAfterRelease,
    /// Destage does not look at the floors of busy slots.
    BusyIgnored,
    /// Unsealed pages do not lower the cut.
    UnsealedIgnored,
    /// A write takes the numbers it has, although the page it replaces may have higher ones.
    NotFresh,
    /// An open chunk does not say that it may get higher numbers.
    SeqMaxNotSet,
}

struct Slot {
    busy: Word,
    floor: Word,
    // Guarded by busy.
    seq_next: AtomicU64,
    seq_end: AtomicU64,
    open: AtomicU64,
}

struct Page {
    seq: Word,
    linked: Word,
}

struct Chunk {
    seq_min: Word,
    seq_max: Word,
    seq_last: AtomicU64,
    fill: Word,
    sealed: Word,
    page: [Page; PAGES as usize],
}

/// Slots and chunks.
pub struct Pool {
    mutation: Mutation,
    seq: Word,
    slot: [Slot; SLOTS],
    chunk: [Chunk; CHUNKS],
    /// Chunks in the order they were opened; the pool's lock.
    list: Mutex<Vec<usize>>,
    /// The page that the one block has which is written again and again; its bucket.
    block: Mutex<Option<(usize, u64)>>,
}

/// The choice of a round.
#[derive(Clone, Debug)]
pub struct Round {
    pub cut: u64,
    /// Numbers of the pages that it writes.
    pub seen: Vec<u64>,
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Pool {
    pub fn new(mutation: Mutation) -> Self {
        let steps = Steps::new();
        let page = || Page { seq: steps.word(0), linked: steps.word(0) };
        Self {
            mutation,
            seq: steps.word(1),
            slot: std::array::from_fn(|_| Slot {
                busy: steps.word(0),
                floor: steps.word(NO_SEQ),
                seq_next: AtomicU64::new(0),
                seq_end: AtomicU64::new(0),
                open: AtomicU64::new(NO_CHUNK),
            }),
            chunk: std::array::from_fn(|_| Chunk {
                seq_min: steps.word(0),
                seq_max: steps.word(0),
                seq_last: AtomicU64::new(0),
                fill: steps.word(0),
                sealed: steps.word(0),
                page: std::array::from_fn(|_| page()),
            }),
            list: Mutex::new(Vec::new()),
            block: Mutex::new(None),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    // --- slots

    /// `fby_slot_try`
    fn slot_try(&self, s: &Slot) -> bool {
        let order = if self.is(Mutation::SlotNotAcquired) { Relaxed } else { AcqRel };
        s.busy.load(Relaxed) == 0 && s.busy.cmpxchg(0, 1, order)
    }

    /// `fby_slot_release`
    fn slot_release(&self, s: &Slot) {
        s.busy.store(0, if self.is(Mutation::SlotNotReleased) { Relaxed } else { Release });
    }

    /// `fby_slot_retire`
    fn slot_retire(&self, s: &Slot) {
        s.seq_next.store(0, Relaxed);
        s.seq_end.store(0, Relaxed);
        s.floor.store(NO_SEQ, Release);
    }

    /// `fby_slot_seq`, of one number
    fn slot_seq(&self, s: &Slot, fresh: bool) -> u64 {
        let (mut next, mut end) = (s.seq_next.load(Relaxed), s.seq_end.load(Relaxed));
        if next == end || fresh {
            let order = if self.is(Mutation::CounterNotReleased) { Acquire } else { AcqRel };
            let floor = self.seq.load(Relaxed);
            if !self.is(Mutation::FloorAfterCounter) {
                s.floor.store(floor, Relaxed);
            }
            next = self.seq.fetch_add(SEQ_BLOCK, order);
            if self.is(Mutation::FloorAfterCounter) {
                s.floor.store(floor, Relaxed);
            }
            end = next + SEQ_BLOCK;
            s.seq_end.store(end, Relaxed);
        }
        assert!(next < end);
        s.seq_next.store(next + 1, Relaxed);
        next
    }

    /// `chunk_open`
    fn chunk_open(&self, s: &Slot) {
        let mut list = locked(&self.list);
        let c = list.len();
        let ch = &self.chunk[c];
        ch.fill.store(0, Relaxed);
        ch.sealed.store(0, Relaxed);
        if !self.is(Mutation::SeqMaxNotSet) {
            ch.seq_max.store(NO_SEQ, Relaxed);
        }
        let seq_min = self.seq.load(Relaxed);
        ch.seq_min.store(seq_min, Relaxed);
        ch.seq_last.store(seq_min, Relaxed);
        list.push(c);
        drop(list);
        self.slot_retire(s);
        s.open.store(c as u64, Relaxed);
    }

    /// The end of a write: `publish_end`, and `fby_slot_close` if the chunk is full.
    fn publish_end(&self, s: &Slot, ch: &Chunk, seq: u64) {
        let fill = ch.fill.load(Relaxed) + 1;
        let floor = || {
            let next = s.seq_next.load(Relaxed);
            let order = if self.is(Mutation::FloorNotReleased) { Relaxed } else { Release };
            s.floor.store(if next < s.seq_end.load(Relaxed) { next } else { NO_SEQ }, order);
        };
        if self.is(Mutation::FloorBeforeFill) {
            floor();
        }
        ch.fill.store(fill, Relaxed);
        ch.seq_last.store(seq, Relaxed);
        if !self.is(Mutation::FloorBeforeFill) && !self.is(Mutation::FloorBeforePublish) {
            floor();
        }
        if fill == PAGES {
            ch.sealed.store(fill, Relaxed);
            s.open.store(NO_CHUNK, Relaxed);
            ch.seq_max.store(seq, Relaxed);
        }
    }

    /// A write of a block of its own by `cpu`, or `again` of the one block: its number;
    /// `None`: all slots are busy.
    pub fn write(&self, cpu: usize, again: bool) -> Option<u64> {
        let mut block = again.then(|| locked(&self.block));
        let s = (0..SLOTS).map(|i| &self.slot[(cpu + i) % SLOTS]).find(|s| self.slot_try(s))?;
        if s.open.load(Relaxed) == NO_CHUNK {
            self.chunk_open(s);
        }
        let c = s.open.load(Relaxed) as usize;
        let ch = &self.chunk[c];
        let old = block.as_ref().and_then(|b| **b);
        // `commit_fresh`
        let fresh = old.is_some_and(|(old, _)| {
            old != c && self.chunk[old].seq_max.load(Relaxed) >= s.seq_next.load(Relaxed)
        });
        let seq = self.slot_seq(s, fresh && !self.is(Mutation::NotFresh));
        if self.is(Mutation::FloorBeforePublish) {
            let next = s.seq_next.load(Relaxed);
            s.floor.store(if next < s.seq_end.load(Relaxed) { next } else { NO_SEQ }, Release);
        }
        let page = &ch.page[ch.fill.load(Relaxed) as usize];
        page.seq.store(seq, Relaxed);
        page.linked.store(1, Release);
        if let Some(b) = block.as_mut() {
            let before = b.replace((c, seq));
            assert!(before.is_none_or(|(_, s)| s < seq), "a newer version has a lower number");
        }
        drop(block);
        self.publish_end(s, ch, seq);
        self.slot_release(s);
        Some(seq)
    }

    // --- destage

    fn cut_of_counter(&self) -> u64 {
        let order = if self.is(Mutation::CounterNotAcquired) { Relaxed } else { Acquire };
        self.seq.load(order) - 1
    }

    /// `cut_below_in_flight`
    fn cut_below_in_flight(&self) -> u64 {
        let mut cut =
            if self.is(Mutation::FloorsBeforeCounter) { NO_SEQ } else { self.cut_of_counter() };
        for s in &self.slot {
            if self.slot_try(s) {
                let c = s.open.load(Relaxed);
                if c != NO_CHUNK {
                    let ch = &self.chunk[c as usize];
                    ch.sealed.store(ch.fill.load(Relaxed), Relaxed);
                }
                if self.is(Mutation::RetiredAfterRelease) {
                    self.slot_release(s);
                    self.slot_retire(s);
                    continue;
                }
                if !self.is(Mutation::IdleNotRetired) {
                    self.slot_retire(s);
                }
                self.slot_release(s);
                continue;
            }
            let order = if self.is(Mutation::FloorNotAcquired) { Relaxed } else { Acquire };
            let floor = s.floor.load(order);
            if floor != NO_SEQ && floor - 1 < cut && !self.is(Mutation::BusyIgnored) {
                cut = floor - 1;
            }
        }
        if self.is(Mutation::FloorsBeforeCounter) {
            cut = cut.min(self.cut_of_counter());
        }
        cut
    }

    /// `fby_round_collect`
    pub fn collect(&self) -> Round {
        let mut cut = self.cut_below_in_flight();
        let (mut evicted, mut seen, mut at) = (NO_SEQ, Vec::new(), 0);
        loop {
            // `fby_chunk_walk`
            let Some(c) = locked(&self.list).get(at).copied() else { break };
            at += 1;
            let ch = &self.chunk[c];
            let mut low = ch.seq_min.load(Relaxed);
            let sealed = ch.sealed.load(Relaxed);
            if low > cut {
                break;
            }
            for page in &ch.page[..sealed as usize] {
                if page.linked.load(Acquire) == 0 {
                    continue;
                }
                let seq = page.seq.load(Relaxed);
                low = seq + 1;
                if seq <= cut {
                    seen.push(seq);
                }
            }
            if ch.fill.load(Relaxed) > sealed
                && low < evicted
                && !self.is(Mutation::UnsealedIgnored)
            {
                evicted = low;
            }
        }
        if evicted <= cut {
            cut = evicted - 1;
        }
        seen.retain(|s| *s <= cut);
        Round { cut, seen }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
