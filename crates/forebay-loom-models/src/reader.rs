// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol by which the engine's readers find and copy a page without a
//! lock, written again over loom's atomics: `core/cache/index.h` (find, put, delete),
//! `core/cache/read.c` (copy, then look whether the page was the block's all the
//! while) and `chunk_open` of `core/space/chunk.c`.  Each step here carries the name
//! and the memory order of the C it stands for; docs/design/testing.md argues why what
//! is left out does not matter.
//!
//! One bucket, so all blocks collide; one page a chunk, so a chunk is reused as
//! soon as its page is dead.

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{fence, AtomicU32, AtomicU64};

use crate::Follows;

/// "No page": the end of a chain.
pub const NO_PAGE: u32 = 0;
const LOCK: u32 = 1 << 31;
const LINKED: u32 = 1;
const PAGES: usize = 4;

/// The C functions that this model follows.
pub const FOLLOWS: Follows = Follows {
    functions: "
core/cache/index.h fby_index_try
    load p->bucket[b]
    cmpxchg p->bucket[b]
core/cache/index.h fby_index_release
    load p->bucket[b]
    store_release p->bucket[b]
core/cache/index.h fby_index_get_locked
    load p->bucket[b]
core/cache/index.h fby_index_place_locked
    load at
core/cache/index.h fby_index_put_locked
    call fby_index_place_locked
    load at
    store e->key
    store e->next
    store_release e->state
    store_release at
    load at
    store p->entry[old].state
core/cache/index.h fby_index_del_locked
    call fby_index_place_locked
    store_release at
    load at
    store p->entry[page].state
core/cache/index.h fby_index_find_once
    load_acquire p->space->opens
    load_acquire p->bucket[b]
    load p->entry[page].key
    load_acquire p->entry[page].next
    load_acquire p->space->opens
    load_acquire fby_chunk_of(p->space, page)->epoch
    load_acquire p->entry[page].state
    rmb
    load p->space->opens
    load p->bucket[b]
core/cache/index.h fby_index_find
    call fby_index_find_once
core/drain/request.c pull
    call fby_page_read
    rmb
    load fby_chunk_of(p->space, f.page)->epoch
core/cache/read.c still_there
    rmb
    load fby_chunk_of(p->space, f->page)->epoch
core/cache/read.c read_cached
    call fby_page_read
    call still_there
    load p->space->opt.verify
core/cache/read.c fby_cache_read_block
    fetch_add rs->reads
    call fby_index_find
    fetch_add rs->miss_sectors
    call media_failed
    call read_cached
    fetch_add rs->hit_sectors
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
    store s->volume[owner].open
    unlock
    wmb
    call media_lines
    call fby_fence_chunk
core/cache/write.c publish_page
    load p->entry[g->old].state
    call fby_index_put_locked
    call fby_index_release
core/cache/write.c publish
    call publish_page
core/cache/write.c store_runs
    call media_data
core/cache/write.c with_checksum
    load p->space->opt.no_checksums
core/cache/write.c copy
    call with_checksum
    call store_runs
    call store_runs
core/cache/write.c commit_lines
    call fby_fence_chunk
    call media_lines
    call fby_fence_chunk
core/cache/write.c commit
    call commit_lines
core/cache/page.c fby_page_read
core/cache/write.c write_batches
    call copy
    call commit
    call publish
core/cache/write.c write_block
    call with_checksum
    call fby_index_try
    load p->bucket[g.bucket]
    load p->volume[volume].bypassing
    call fby_index_release
    call media_data
    call commit_lines
    call publish_page
core/drain/destage.c release_page
    call fby_index_try
    call fby_index_release
    load p->cache->entry[page].state
    fetch_add cv->lost_blocks
    fetch_add cv->lost_only
    store o->cleaned
    call fby_index_del_locked
    call fby_index_release
",
    guarded: &[],
    words: &["opens", "epoch", "bucket"],
    besides: &[
        ("fby_round_clean", "the bucket is held"),
        (
            "page_line_repairable",
            "whether a damaged line may be repaired; still_there looks after it",
        ),
        ("begin_lock", "a hint what to prefetch"),
        ("fby_index_held", "in assertions"),
        ("fby_chunk_info", "a figure to show"),
        ("fby_entry_info", "a figure to show"),
    ],
};

/// One step left out or out of order, which the model has to catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// The reader does not look at the epoch after its copy.
    EpochNotChecked,
    /// The reader looks at the epoch without a fence after its copy.
    NoReadFence,
    /// A chunk is opened without `fby_wmb` before new bytes.
    NoWriteFence,
    /// A new `opens` may be seen before the unlinking that went before it.
    OpensRelaxed,
    /// The new epoch may be seen before `opens` has moved.
    EpochRelaxed,
    /// A chunk is opened without a new epoch.
    EpochNotMoved,
    /// A search does not look at `opens` again.
    OpensNotChecked,
    /// A replacement takes the old page out before it links the new one.
    UnlinkThenLink,
    /// A page is linked before its data is there.
    LinkBeforeData,
    /// Destage unlinks a page before the origin has its data.
    DeleteBeforeOrigin,
}

struct Entry {
    key: AtomicU64,
    next: AtomicU32,
    state: AtomicU32,
}

/// The index, the epochs of the chunks, the data of the pages and of the origin.
pub struct Pool {
    mutation: Mutation,
    bucket: AtomicU32,
    opens: AtomicU64,
    entry: [Entry; PAGES],
    epoch: [AtomicU64; PAGES],
    /// Two words a page: a copy is not one step.
    data: [[AtomicU64; 2]; PAGES],
    /// The origin's answer for block `1`, the one that is read.
    origin: AtomicU64,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Copied from the pool: its two words.
    Cached(u64, u64),
    /// Not cached, read from the origin.
    Origin(u64),
    /// Raced as often as the model's bound allows; the engine would go on.
    GaveUp,
}

impl Pool {
    pub fn new(mutation: Mutation) -> Self {
        Self {
            mutation,
            bucket: AtomicU32::new(NO_PAGE),
            opens: AtomicU64::new(1),
            entry: std::array::from_fn(|_| Entry {
                key: AtomicU64::new(0),
                next: AtomicU32::new(NO_PAGE),
                state: AtomicU32::new(0),
            }),
            epoch: std::array::from_fn(|_| AtomicU64::new(1)),
            data: std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
            origin: AtomicU64::new(0),
        }
    }

    // --- writers; the model has one at a time, as the bucket's lock and the pool's lock see to it

    fn lock(&self) {
        let head = self.bucket.load(Relaxed);
        assert!(self.bucket.compare_exchange(head, head | LOCK, AcqRel, Relaxed).is_ok());
    }

    fn unlock(&self) {
        let head = self.bucket.load(Relaxed);
        self.bucket.store(head & !LOCK, Release);
    }

    /// `chunk_open`: readers see the new epoch before any new byte, and new
    /// entries after `opens`.
    pub fn open_chunk(&self, page: u32) {
        let page = page as usize;
        let order = if self.mutation == Mutation::OpensRelaxed { Relaxed } else { Release };
        self.opens.store(self.opens.load(Relaxed) + 1, order);
        if self.mutation != Mutation::EpochNotMoved {
            let order = if self.mutation == Mutation::EpochRelaxed { Relaxed } else { Release };
            self.epoch[page].store(self.epoch[page].load(Relaxed) + 1, order);
        }
        if self.mutation != Mutation::NoWriteFence {
            fence(Release);
        }
    }

    fn store_data(&self, page: u32, value: u64) {
        for word in &self.data[page as usize] {
            word.store(value, Relaxed);
        }
    }

    /// A write: copy, then publish in the place of `old`, if there is one.
    pub fn write(&self, key: u64, page: u32, value: u64, old: u32) {
        self.lock();
        if self.mutation != Mutation::LinkBeforeData {
            self.store_data(page, value);
        }
        self.put(key, page, old);
        self.unlock();
        if self.mutation == Mutation::LinkBeforeData {
            self.store_data(page, value);
        }
    }

    /// The place in the chain that holds the number of `page`.
    fn place(&self, page: u32) -> &AtomicU32 {
        let mut at = &self.bucket;
        loop {
            let here = at.load(Relaxed) & !LOCK;
            if here == page {
                return at;
            }
            assert_ne!(here, NO_PAGE);
            at = &self.entry[here as usize].next;
        }
    }

    /// `fby_index_put_locked`
    fn put(&self, key: u64, page: u32, mut old: u32) {
        if self.mutation == Mutation::UnlinkThenLink && old != NO_PAGE {
            self.unlink(old);
            old = NO_PAGE;
        }
        let (at, next) = if old == NO_PAGE {
            (&self.bucket, self.bucket.load(Relaxed) & !LOCK)
        } else {
            (self.place(old), self.entry[old as usize].next.load(Relaxed))
        };
        let entry = &self.entry[page as usize];
        entry.key.store(key, Relaxed);
        entry.next.store(next, Relaxed);
        entry.state.store(LINKED, Release);
        at.store(page | (at.load(Relaxed) & LOCK), Release);
        if old != NO_PAGE {
            self.entry[old as usize].state.store(0, Relaxed);
        }
    }

    /// `fby_index_del_locked`
    fn unlink(&self, page: u32) {
        let at = self.place(page);
        let next = self.entry[page as usize].next.load(Relaxed);
        at.store(next | (at.load(Relaxed) & LOCK), Release);
        self.entry[page as usize].state.store(0, Relaxed);
    }

    /// Destages the block that is read: the origin gets `value`, then the page is released.
    pub fn destage(&self, page: u32, value: u64) {
        if self.mutation != Mutation::DeleteBeforeOrigin {
            self.origin.store(value, Relaxed);
        }
        self.lock();
        self.unlink(page);
        self.unlock();
        if self.mutation == Mutation::DeleteBeforeOrigin {
            self.origin.store(value, Relaxed);
        }
    }

    // --- the reader

    /// `fby_index_find_once`: the page and its chunk's epoch; `None`: raced.
    fn find_once(&self, key: u64) -> Option<(u32, u64)> {
        let opens = self.opens.load(Acquire);
        let head = self.bucket.load(Acquire) & !LOCK;
        let mut page = head;
        let mut steps = 0;
        while page != NO_PAGE && self.entry[page as usize].key.load(Relaxed) != key {
            page = self.entry[page as usize].next.load(Acquire);
            steps += 1;
            if steps == PAGES {
                return None; // the engine looks at opens every 64 steps
            }
        }
        let (mut epoch, mut state) = (0, 0);
        if page != NO_PAGE {
            epoch = self.epoch[page as usize].load(Acquire);
            state = self.entry[page as usize].state.load(Acquire);
        }
        fence(Acquire);
        if self.mutation != Mutation::OpensNotChecked && self.opens.load(Relaxed) != opens {
            return None;
        }
        if page != NO_PAGE {
            return (state & LINKED != 0).then_some((page, epoch));
        }
        (self.bucket.load(Relaxed) & !LOCK == head).then_some((NO_PAGE, 0))
    }

    /// `fby_read_block`, at most `attempts` times.
    pub fn read(&self, key: u64, attempts: u32) -> Read {
        for _ in 0..attempts {
            let Some((page, epoch)) = self.find_once(key) else {
                loom::thread::yield_now();
                continue;
            };
            if page == NO_PAGE {
                return Read::Origin(self.origin.load(Relaxed));
            }
            let words = &self.data[page as usize];
            let got = (words[0].load(Relaxed), words[1].load(Relaxed));
            if self.mutation != Mutation::NoReadFence {
                fence(Acquire);
            }
            if self.mutation == Mutation::EpochNotChecked
                || self.epoch[page as usize].load(Relaxed) == epoch
            {
                return Read::Cached(got.0, got.1);
            }
            loom::thread::yield_now();
        }
        Read::GaveUp
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}
