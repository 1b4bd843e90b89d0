// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's lock-free protocols, written again over loom's atomics, each step with the
//! memory order that the C has, so that every execution which C11 allows can be tried.
//! docs/design/testing.md explains why the omitted parts do not matter.
//!
//! | module | what it models |
//! |---|---|
//! | [`reader`] | finding and copying a page without a lock |
//! | [`floor`] | sequence numbers of slots, and the cut of a destage round |
//! | [`bypass`] | writes past the cache beside writes through it |
//! | [`gate`] | who is told of a failed flush |
//! | [`generation`] | appends to a log beside one that begins a generation, a sync, the log's end |
//! | [`static_clean`] | whether a static volume is clean, beside rounds and writers |
#![forbid(unsafe_code)]

/// The C that a model follows; `tests/follows.rs` compares it with the source, so that
/// neither changes alone.
#[derive(Clone, Copy, Debug)]
pub struct Follows {
    /// A line `file function` for each function, and indented what other threads can see
    /// of it, in the order of its text.
    pub functions: &'static str,
    /// Fields that plain stores set under a lock word of the model.
    pub guarded: &'static [&'static str],
    /// Fields, or objects as they are written, that no other function may touch by an
    /// atomic access.
    pub words: &'static [&'static str],
    /// But for these, and why the model need not have them.
    pub besides: &'static [(&'static str, &'static str)],
}

pub mod bypass;
pub mod floor;
pub mod gate;
pub mod generation;
pub mod reader;
pub mod static_clean;

use std::fmt;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};

/// Makes loom try every order of all steps that go through it.
///
/// loom leaves out orders of independent accesses, and remembers for that only the last
/// access of an atomic: a thread that loads a value before it stores it hides that
/// another thread loaded it, and the order in which that load comes last is not tried.
/// So each access to shared memory is an access to this one atomic first.  It is
/// relaxed: it orders nothing.
#[derive(Clone)]
pub(crate) struct Steps(Arc<AtomicU64>);

impl Steps {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    pub(crate) fn word(&self, value: u64) -> Word {
        Word { value: AtomicU64::new(value), steps: self.clone() }
    }
}

/// A word of memory that threads share.
pub(crate) struct Word {
    value: AtomicU64,
    steps: Steps,
}

impl Word {
    fn step(&self) -> &AtomicU64 {
        self.steps.0.fetch_add(1, Ordering::Relaxed);
        &self.value
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.step().load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.step().store(value, order);
    }

    pub(crate) fn fetch_add(&self, n: u64, order: Ordering) -> u64 {
        self.step().fetch_add(n, order)
    }

    pub(crate) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.step().fetch_or(bits, order)
    }

    pub(crate) fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.step().fetch_and(bits, order)
    }

    /// True if it was `old`; relaxed where it was not.
    pub(crate) fn cmpxchg(&self, old: u64, new: u64, order: Ordering) -> bool {
        self.step().compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Word")
    }
}
