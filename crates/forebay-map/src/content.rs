// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file has in the pool: its frames, what of them the file lacks, and its size.
//!
//! Locks, in this order: the file's `io` (`file.rs`), a segment's of the tracker, a slot's or
//! `writing`, the store's.  Whoever holds a segment's lock and needs another one only tries.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::backing::Backing;
use crate::cache::Shared;
use crate::error::{Error, Result};
use crate::marking::{Marking, Of};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::{Store, Synced};
use crate::tracker::Source;

/// For how long a fault waits for a frame.
const FRAME_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub frame: Option<u32>,
    /// Its part of the file has blocks, durable.
    pub whole: bool,
}

#[derive(Debug)]
pub(crate) struct Content {
    pub store: Arc<dyn Store>,
    pub backing: Box<dyn Backing>,
    pub shared: Weak<Shared>,
    /// In the store.
    pub id: u32,
    pub size: AtomicU64,
    /// What the store knows of it.
    durable_size: Mutex<u64>,
    slots: Vec<Mutex<Slot>>,
    /// By which the least recently used one is found.
    pub used: Vec<AtomicU64>,
    pub pins: Vec<AtomicUsize>,
    /// One write-back at a time.
    writing: Mutex<()>,
    /// The file was written to past the pool since it was synced.  Held while it is synced,
    /// so that another sync does not end before.
    unsynced: Mutex<bool>,
    pub marking: Marking,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Content {
    pub fn new(
        shared: &Arc<Shared>,
        backing: Box<dyn Backing>,
        id: u32,
        size: u64,
        segments: usize,
    ) -> Content {
        Content {
            store: Arc::clone(&shared.store),
            backing,
            shared: Arc::downgrade(shared),
            id,
            size: AtomicU64::new(size),
            durable_size: Mutex::new(size),
            slots: (0..segments).map(|_| Mutex::default()).collect(),
            used: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            pins: (0..segments).map(|_| AtomicUsize::new(0)).collect(),
            writing: Mutex::new(()),
            unsynced: Mutex::new(false),
            marking: Marking::default(),
        }
    }

    pub fn of(&self) -> Of<'_> {
        Of { store: &*self.store, id: self.id, backing: &*self.backing }
    }

    /// The file has everything, and says so.
    pub fn unmark(&self) -> Result<()> {
        self.marking.unmark(self.of(), || {
            for segment in 0..self.segments() {
                if self.is_dirty(segment)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    pub fn segments(&self) -> usize {
        self.slots.len()
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    pub fn slot(&self, segment: usize) -> MutexGuard<'_, Slot> {
        lock(&self.slots[segment])
    }

    pub fn frame(&self, segment: usize) -> Option<u32> {
        self.slot(segment).frame
    }

    pub fn system(&self, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        Error::system(self.backing.path(), doing)
    }

    pub fn touch(&self, segment: usize) {
        if let Some(shared) = self.shared.upgrade() {
            let now = shared.clock.fetch_add(1, Ordering::Relaxed) + 1;
            self.used[segment].store(now, Ordering::Relaxed);
        }
    }

    /// Bytes of a segment that the file has.
    fn inside(&self, segment: usize) -> usize {
        self.size().saturating_sub((segment * SEGMENT) as u64).min(SEGMENT as u64) as usize
    }

    fn take_frame(&self, segment: usize) -> Result<u32> {
        let end = Instant::now() + FRAME_WAIT;
        loop {
            if let Some(frame) = self.store.take(self.id, segment as u64)? {
                return Ok(frame);
            }
            let found = self.shared.upgrade().map(|shared| shared.reclaim());
            if !matches!(found, Some(Ok(true))) {
                if Instant::now() > end {
                    let why = match found {
                        Some(Err(e)) => e.to_string(),
                        _ => "all are in use".into(),
                    };
                    return Err(Error::Full(why));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Brings a segment in.  The caller holds its lock of the tracker.
    fn fill(&self, segment: usize) -> Result<u32> {
        if let Some(frame) = self.frame(segment) {
            return Ok(frame);
        }
        let frame = self.take_frame(segment)?;
        let filled = (|| {
            let mut bytes = vec![0; SEGMENT];
            let inside = self.inside(segment);
            let at = (segment * SEGMENT) as u64;
            self.backing.read_at(at, &mut bytes[..inside]).map_err(self.system("read"))?;
            self.store.fill(frame, 0, &bytes)?;
            self.store.show(frame)
        })();
        if let Err(e) = filled {
            let _ = self.store.release(frame, true);
            return Err(e);
        }
        *self.slot(segment) = Slot { frame: Some(frame), whole: false };
        self.touch(segment);
        Ok(frame)
    }

    /// Writes to the file, past the pool.
    pub fn write_past(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let _change = self.marking.change(self.of()).map_err(io::Error::other)?;
        let written = self.backing.write_at(at, from);
        *lock(&self.unsynced) = true;
        written
    }

    /// What was written past the pool is durable.
    pub fn settle_written(&self) -> Result<()> {
        let mut unsynced = lock(&self.unsynced);
        if *unsynced {
            self.backing.sync().map_err(self.system("sync"))?;
            *unsynced = false;
        }
        Ok(())
    }

    /// Makes the size durable in the file system, and tells the store.
    pub fn settle_size(&self) -> Result<()> {
        let mut durable = lock(&self.durable_size);
        let size = self.size();
        if *durable < size {
            if !planted::is(Planted::SizeNotSynced) {
                self.backing.sync().map_err(self.system("sync"))?;
            }
            self.store.set_size(self.id, size)?;
            *durable = size;
        }
        Ok(())
    }

    /// What was stored to the pages is durable.  The caller holds the segment's lock of the
    /// tracker.  Before, the file has the blocks that the pages will need, durable.
    pub fn make_durable(&self, segment: usize, pages: &PageSet) -> Result<()> {
        let inside = PageSet::of(0..self.inside(segment).div_ceil(PAGE));
        let pages = pages.within(&inside);
        let Some(frame) = self.frame(segment) else {
            debug_assert!(pages.is_empty(), "nothing is there");
            return Ok(());
        };
        if pages.is_empty() {
            return Ok(());
        }
        self.settle_blocks(segment)?;
        let sync = || self.marking.with_mark(self.of(), || self.store.sync(frame, &pages));
        if sync()? == Synced::BehindEnd {
            self.settle_size()?;
            if sync()? == Synced::BehindEnd {
                return Err(Error::Pool("a page within the file is behind its end".into()));
            }
        }
        self.touch(segment);
        Ok(())
    }

    fn settle_blocks(&self, segment: usize) -> Result<()> {
        if self.slot(segment).whole {
            return Ok(());
        }
        let (at, len) = ((segment * SEGMENT) as u64, self.inside(segment) as u64);
        if self.backing.has_hole(at, len).map_err(self.system("look for holes"))? {
            let _change = self.marking.change(self.of())?;
            self.backing.allocate(at, len).map_err(self.system("allocate"))?;
            self.backing.sync().map_err(self.system("sync"))?;
        }
        self.slot(segment).whole = true;
        Ok(())
    }

    /// Writes what is dirty of the segments to the file.  Returns how many pages.
    pub fn write_back(&self, segments: impl IntoIterator<Item = usize>) -> Result<usize> {
        let _writing = lock(&self.writing);
        let mut begun = Vec::new();
        let mut count = 0;
        let mut bytes = Vec::new();
        for segment in segments {
            let Some(frame) = self.frame(segment) else { continue };
            let pages = self.store.write_begin(frame, &PageSet::ALL)?;
            let inside = self.inside(segment);
            for run in pages.runs() {
                let at = run.start * PAGE;
                bytes.resize(inside.saturating_sub(at).min(run.len() * PAGE), 0);
                self.store.copy(frame, at, &mut bytes)?;
                let to = (segment * SEGMENT + at) as u64;
                let _change = self.marking.change(self.of())?;
                self.backing.write_at(to, &bytes).map_err(self.system("write"))?;
            }
            if !pages.is_empty() {
                count += pages.len();
                begun.push((frame, pages));
            }
        }
        if begun.is_empty() {
            return Ok(0);
        }
        if planted::is(Planted::ClearedBeforeSync) {
            for (frame, pages) in begun.drain(..) {
                self.store.write_end(frame, &pages)?;
            }
        }
        self.backing.sync().map_err(self.system("sync"))?;
        for (frame, pages) in begun {
            self.store.write_end(frame, &pages)?;
        }
        Ok(count)
    }

    /// Lets go of a segment's frame, which nobody can load from or store to any more.
    pub fn release(&self, segment: usize, discard: bool) -> Result<()> {
        // Nobody writes it back any more.
        let _writing = lock(&self.writing);
        let mut slot = self.slot(segment);
        if let Some(frame) = slot.frame {
            self.store.release(frame, discard)?;
            slot.frame = None;
        }
        Ok(())
    }

    /// Whether a segment's frame has what the file lacks.
    pub fn is_dirty(&self, segment: usize) -> Result<bool> {
        match self.frame(segment) {
            Some(frame) => self.store.dirty(frame).map(|(d, u)| !d.is_empty() || !u.is_empty()),
            None => Ok(false),
        }
    }

    /// Truncates.  The caller has it alone, but for faults, and `forget` takes away or makes
    /// zero what is behind the new end: the store counts the truncation from before that on.
    pub fn cut(&self, size: u64, forget: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut durable = lock(&self.durable_size);
        let known = size < *durable && !planted::is(Planted::CutNotTold);
        if known {
            self.store.cut(self.id, size)?;
        }
        self.size.store(size, Ordering::SeqCst);
        forget()?;
        let _change = self.marking.change(self.of())?;
        self.backing.set_size(size).map_err(self.system("truncate"))?;
        self.backing.sync().map_err(self.system("sync"))?;
        if known {
            self.store.cut_end(self.id)?;
        }
        *durable = size.min(*durable);
        Ok(())
    }

    /// Extends by zeroes.
    pub fn extend(&self, size: u64, forget: impl FnOnce() -> Result<()>) -> Result<()> {
        forget()?;
        let _change = self.marking.change(self.of())?;
        self.backing.set_size(size).map_err(self.system("extend"))?;
        self.size.store(size, Ordering::SeqCst);
        for slot in &self.slots {
            lock(slot).whole = false;
        }
        Ok(())
    }
}

/// A file's segments, for the tracker.
#[derive(Clone, Debug)]
pub(crate) struct Segments(pub Arc<Content>);

impl Segments {
    fn of(&self, segment: usize) -> u32 {
        self.0.frame(segment).expect("the tracker asks for what it was given")
    }
}

impl Source for Segments {
    fn memory(&self) -> BorrowedFd<'_> {
        self.0.store.memory()
    }

    fn bring_in(&self, segment: usize) -> io::Result<u64> {
        let brought = self.0.fill(segment).and_then(|frame| self.0.store.offset(frame));
        brought.map_err(io::Error::other)
    }

    fn copy(&self, segment: usize, _: u64, to: &mut [u8]) {
        // What cannot be read differs from what was there before: all of it is synced.
        if self.0.store.copy(self.of(segment), 0, to).is_err() {
            let now =
                self.0.shared.upgrade().map_or(0, |s| s.clock.fetch_add(1, Ordering::Relaxed));
            to.chunks_mut(8).for_each(|c| c.copy_from_slice(&now.to_ne_bytes()[..c.len()]));
        }
    }

    fn write_back(&self, segment: usize, _: u64) {
        // It fails as a sync would, which the next one tells.
        let _ = self.0.store.write_back_caches(self.of(segment));
    }
}
