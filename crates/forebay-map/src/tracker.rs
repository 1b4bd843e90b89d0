// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the pages of a mapping that were stored to since the last query.
//!
//! A [`Tracker`] owns address space in segments.  Each segment is in one of three states:
//!
//! | state | what is mapped | a load | a store |
//! |---|---|---|---|
//! | absent | nothing | event: brought in, becomes scanned | event: brought in, becomes scanned |
//! | scanned | the segment's memory; the kernel records the first store to each page | costs nothing | costs nothing, except for the first to a page |
//! | watched | the same memory, write-protected as a whole | costs nothing | event: becomes scanned |
//!
//! So a sync looks only at segments that may have been stored to: those that are scanned.  A
//! segment without stores for some ticks becomes watched ([`Tracker::tick`]), and a watched one
//! can be made absent ([`Tracker::evict`]).
//!
//! **No store is lost.** The kernel reports a page to [`Tracker::take`] and write-protects it
//! in one step.  So a store comes either before that step and is reported, or after it and is
//! recorded for the next query.  The segment's lock is held until the caller has made the page
//! durable.  Therefore another thread's sync, which finds the page protected again, does not
//! end before.  `tracker/change.rs` has the transitions between states, each with the reason
//! why a concurrent store is not lost.
//!
//! Locks: each segment has its own.  The thread that handles events never waits for one,
//! because the holder may itself wait until an event has been read.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use forebay_engine::lasting::{self, Lasting};
use rustix::event::EventfdFlags;

use crate::features::{self, Features};
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};
use crate::system::{Mode, Pagemap, Reservation, Scan, Uffd};

mod change;
mod handler;
#[cfg(test)]
mod tests;

/// The memory that a tracker maps.
///
/// An implementation must not touch the mapping, since it is called while a fault there waits
/// for it.
pub trait Source: Send + Sync {
    /// The file that backs the memory.
    fn memory(&self) -> BorrowedFd<'_>;
    /// Loads a segment's content into the memory and returns its offset.  After an error the
    /// thread that touched the segment gets SIGBUS, as for a file that cannot be read.
    /// `WouldBlock` makes the tracker release the segment's lock and ask again.
    fn bring_in(&self, segment: usize) -> io::Result<u64>;
    /// Called before the SIGBUS for a segment that was touched and could not be brought in.
    fn cannot_be_touched(&self, _segment: usize, _why: &io::Error) {}
    /// Copies a segment's content from the memory.
    fn copy(&self, segment: usize, offset: u64, to: &mut [u8]);
    /// Writes back the CPU caches of a segment's memory, which makes its content durable.
    fn write_back(&self, segment: usize, offset: u64) -> io::Result<()>;
}

/// The cost of an event (73 us and the work of the thread) divided by the cost of a look (1.7
/// us).
const LOOKS_IN_VAIN: u32 = 64;

/// The operation that the error of a caller of [`Tracker::check`] names.
pub(crate) const CHECKING: &str = "check the descriptors that report its stores";

/// How often a segment is asked for again.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Scanned,
    Watched,
}

#[derive(Debug)]
struct State {
    kind: Kind,
    /// The segment is absent, but its content is still in the memory, because the owner of the
    /// memory could not release it.
    kept: bool,
    /// The offset of the content in the memory.  Without meaning if absent and not kept.
    offset: u64,
    /// Pages found stored to during a change of state, to be reported by the next `take`.
    pending: PageSet,
    /// Pages were reported since the last tick.
    told: bool,
    /// The number of ticks without a store.
    quiet: u32,
    /// The number of looks by syncs since the last store.
    in_vain: u32,
    /// No thread may store to the segment any more.
    withdrawn: bool,
}

impl State {
    /// The offset of the content, if it is in the memory.
    fn there(&self) -> Option<u64> {
        (self.kind != Kind::Absent || self.kept).then_some(self.offset)
    }

    fn is_scanned(&mut self) {
        (self.kind, self.kept) = (Kind::Scanned, false);
        (self.told, self.quiet, self.in_vain) = (true, 0, 0);
    }
}

#[derive(Debug)]
struct Segment {
    state: Mutex<State>,
    /// A thread waits for the segment, but its event could not be handled because the lock was
    /// held.  The thread is woken when the lock is released, and tries again.
    waiting: AtomicBool,
    /// The page tables do not show all stores.  Every page counts as stored to until the
    /// segment is brought in again.
    blind: AtomicBool,
}

struct Inner<S> {
    /// Dropped first, so that no thread can fault while the rest is dropped.
    space: Reservation,
    source: S,
    features: Features,
    segments: Vec<Segment>,
    /// One bit for each segment that `take` has to look at.  It is set before a store to the
    /// segment can complete.
    to_look: Vec<AtomicU64>,
    /// Reports events.  Absent and watched segments are registered here.
    events: Option<Uffd>,
    /// Records stores.  Scanned segments are registered here.
    noted: Option<Uffd>,
    pagemap: Option<Pagemap>,
    /// Held from before an event is read until it takes effect.  The kernel lets a thread that
    /// removes pages continue as soon as its event has been read.
    reading: Mutex<()>,
    stop: Lasting<OwnedFd>,
    stopping: AtomicBool,
    absent_touched: Mutex<VecDeque<usize>>,
    some_touched: Condvar,
}

impl<S> std::fmt::Debug for Inner<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracker").field("features", &self.features).finish_non_exhaustive()
    }
}

/// A mapping that records which of its pages were stored to.
#[derive(Debug)]
pub struct Tracker<S: Source + 'static> {
    inner: Arc<Inner<S>>,
    threads: Vec<JoinHandle<()>>,
}

/// The number of segments in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments without memory.
    pub absent: usize,
    /// Segments that a sync of the whole mapping looks at.
    pub scanned: usize,
    /// Segments without a store for some time.
    pub watched: usize,
}

/// The reason why a segment was not evicted.  Without events no segment can be evicted.
#[derive(Debug)]
pub enum NotEvicted<E> {
    /// The segment has stores that were not taken, or may not be evicted, or is absent.
    InUse,
    /// The kernel failed.
    Failed(io::Error),
    /// The caller could not release the memory and keeps it, so nothing is lost.
    Kept(E),
}

/// A segment's lock.  Its drop wakes threads whose events came while it was held.
struct Held<'a, S: Source> {
    inner: &'a Inner<S>,
    segment: usize,
    state: Option<MutexGuard<'a, State>>,
}

impl<S: Source> std::ops::Deref for Held<'_, S> {
    type Target = State;
    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until dropped")
    }
}

impl<S: Source> std::ops::DerefMut for Held<'_, S> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until dropped")
    }
}

impl<S: Source> Drop for Held<'_, S> {
    fn drop(&mut self) {
        self.state = None;
        // A thread that found the lock held has set `waiting` before.  The fence makes that
        // visible here, after the release of the lock.
        fence(Ordering::SeqCst);
        if self.inner.segments[self.segment].waiting.swap(false, Ordering::SeqCst) {
            self.inner.wake(self.segment);
        }
    }
}

impl<S: Source> Inner<S> {
    fn hold(&self, segment: usize) -> Held<'_, S> {
        let state = self.segments[segment].state.lock().unwrap_or_else(PoisonError::into_inner);
        Held { inner: self, segment, state: Some(state) }
    }

    fn try_hold(&self, segment: usize) -> Option<Held<'_, S>> {
        let state = match self.segments[segment].state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(e)) => e.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(Held { inner: self, segment, state: Some(state) })
    }

    fn wake(&self, segment: usize) {
        if let Some(events) = &self.events {
            events.wake(&self.space, segment);
        }
    }

    fn look(&self, segment: usize) {
        self.to_look[segment / 64].fetch_or(1 << (segment % 64), Ordering::SeqCst);
    }

    fn look_no_more(&self, segment: usize) {
        self.to_look[segment / 64].fetch_and(!(1 << (segment % 64)), Ordering::SeqCst);
    }

    fn blind(&self, segment: usize) -> bool {
        self.segments[segment].blind.load(Ordering::SeqCst)
    }

    /// Makes every page of a segment count as stored to from now on.
    fn make_blind(&self, segment: usize) {
        self.segments[segment].blind.store(true, Ordering::SeqCst);
        self.look(segment);
    }

    /// The pages of a scanned segment that were stored to; `how` says whether to write-protect
    /// them again.
    fn scan(&self, segment: usize, pages: Range<usize>, how: Scan) -> PageSet {
        let found = match &self.pagemap {
            Some(pagemap) if !self.blind(segment) => {
                pagemap.scan(&self.space, segment, pages.clone(), how)
            }
            _ => return PageSet::of(pages),
        };
        // Pages that were removed before the scan caused an event that was read before.
        self.wait_for_events();
        match found {
            Ok(found) if !self.blind(segment) => found,
            Ok(_) => PageSet::of(pages),
            Err(_) => {
                // Some pages may have been protected but not reported.
                self.make_blind(segment);
                PageSet::of(pages)
            }
        }
    }

    /// Waits until all events that were read have taken effect.
    fn wait_for_events(&self) {
        if !planted::is(Planted::EventNotAwaited) {
            drop(self.reading.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl<S: Source + 'static> Tracker<S> {
    /// Makes a mapping of `segments` segments.  All are absent if the features allow that;
    /// otherwise all are brought in.
    pub fn new(source: S, segments: usize, features: Features) -> io::Result<Tracker<S>> {
        check_segments(segments)?;
        let events = match (features.faults, features.watch) {
            (true, true) => Some(Uffd::new(features::STORES, true)?),
            (true, false) => Some(Uffd::new(features::FAULTS, true)?),
            (false, _) => None,
        };
        let (noted, pagemap) = match features.scan {
            true => {
                // Without a thread, no one reads events.
                let wanted = match features.faults {
                    true => features::NOTED,
                    false => features::NOTED_ALONE,
                };
                (Some(Uffd::new(wanted, false)?), Some(Pagemap::new()?))
            }
            false => (None, None),
        };
        let state = || State {
            kind: Kind::Absent,
            kept: false,
            offset: 0,
            pending: PageSet::EMPTY,
            told: false,
            quiet: 0,
            in_vain: 0,
            withdrawn: false,
        };
        let segment = || Segment {
            state: Mutex::new(state()),
            waiting: AtomicBool::new(false),
            blind: AtomicBool::new(false),
        };
        let inner = Arc::new(Inner {
            space: Reservation::new(segments)?,
            source,
            features,
            segments: (0..segments).map(|_| segment()).collect(),
            to_look: (0..segments.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            events,
            noted,
            pagemap,
            reading: Mutex::new(()),
            stop: lasting::open(|| rustix::event::eventfd(0, EventfdFlags::CLOEXEC))?,
            stopping: AtomicBool::new(false),
            absent_touched: Mutex::new(VecDeque::new()),
            some_touched: Condvar::new(),
        });
        let mut tracker = Tracker { inner, threads: Vec::new() };
        tracker.begin()?;
        Ok(tracker)
    }

    fn begin(&mut self) -> io::Result<()> {
        let inner = &self.inner;
        match &inner.events {
            Some(events) => {
                events.register(&inner.space, 0..inner.segments.len(), Mode::Missing)?;
                self.threads = handler::start(inner)?;
            }
            None => {
                for segment in 0..inner.segments.len() {
                    drop(inner.hold_present(segment)?);
                }
            }
        }
        Ok(())
    }

    /// The start address, valid for as long as this lives.  Memory there may change at any
    /// time.  A load or store may wait until a segment has been brought in, and gives SIGBUS if
    /// that is not possible.
    pub fn address(&self) -> *mut u8 {
        self.inner.space.address()
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.inner.segments.len() * SEGMENT
    }

    /// The memory.
    pub fn source(&self) -> &S {
        &self.inner.source
    }

    /// The kernel features in use.
    pub fn features(&self) -> &Features {
        &self.inner.features
    }

    /// Loads through the mapping, as a program would.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        self.inner.space.load(at, to);
    }

    /// Stores through the mapping, as a program would.
    pub fn store(&self, at: usize, from: &[u8]) {
        self.inner.space.store(at, from);
    }

    /// Fails if stores would go unnoticed because someone has closed a descriptor of the
    /// tracker.
    pub fn check(&self) -> io::Result<()> {
        self.inner.events.as_ref().map_or(Ok(()), |events| lasting::check(events.as_fd()))
    }

    /// Passes the pages of a range that were stored to since the last `take` to `make_durable`,
    /// segment by segment: the segment, its offset in the memory, and the pages.  Every store
    /// that had completed when the call began is passed here, or was passed to another thread
    /// whose `make_durable` has ended.  The pages may include some without a store.
    ///
    /// If `make_durable` fails, its pages are passed again next time, and so is the rest of the
    /// range.
    pub fn take<E>(
        &self,
        pages: Range<usize>,
        mut make_durable: impl FnMut(usize, u64, &PageSet) -> Result<(), E>,
    ) -> Result<(), E> {
        let pages = pages.start..pages.end.min(self.size() / PAGE);
        if pages.is_empty() {
            return Ok(());
        }
        self.inner.wait_for_events();
        for segment in
            self.inner.to_look(pages.start / SEGMENT_PAGES..(pages.end - 1) / SEGMENT_PAGES + 1)
        {
            let first = segment * SEGMENT_PAGES;
            let start = pages.start.saturating_sub(first);
            let end = (pages.end - first).min(SEGMENT_PAGES);
            self.inner.take(segment, start..end, &mut make_durable)?;
        }
        Ok(())
    }

    /// Brings a segment in if it is absent, and calls `f` with its offset in the memory.  The
    /// segment stays until `f` has returned.
    pub fn with<R>(&self, segment: usize, f: impl FnOnce(u64) -> R) -> io::Result<R> {
        let state = self.inner.hold_present(segment)?;
        Ok(f(state.offset))
    }

    /// Whether a segment is absent.  None: another thread holds its lock.
    pub fn is_absent(&self, segment: usize) -> Option<bool> {
        self.inner.try_hold(segment).map(|state| state.there().is_none())
    }

    /// Calls `f` with the offset of a segment if its content is in the memory.  The segment
    /// stays as it is meanwhile, present or absent.
    pub fn with_present<R>(&self, segment: usize, f: impl FnOnce(Option<u64>) -> R) -> R {
        let state = self.inner.hold(segment);
        f(state.there())
    }

    /// Like `with`, for a caller whose `f` stores to the pages without the mapping.  The next
    /// `take` reports them.
    pub fn with_stored<R>(
        &self,
        segment: usize,
        pages: Range<usize>,
        f: impl FnOnce(u64) -> R,
    ) -> io::Result<R> {
        let mut state = self.inner.hold_present(segment)?;
        if state.withdrawn {
            return Err(withdrawn());
        }
        state.pending.insert(pages);
        self.inner.look(segment);
        Ok(f(state.offset))
    }

    /// Like [`take`](Tracker::take), for all pages of one segment.  False: another thread holds
    /// the segment, and nothing was done.  For callers that block another segment meanwhile.
    pub fn try_take<E>(
        &self,
        segment: usize,
        mut make_durable: impl FnMut(usize, u64, &PageSet) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(state) = self.inner.try_hold(segment) else { return Ok(false) };
        self.inner.take_held(state, 0..SEGMENT_PAGES, &mut make_durable)?;
        Ok(true)
    }

    /// Makes segments without a store for `quiet` ticks watched, at most `most` of them.  The
    /// caller calls it periodically.  The `keep` segments with the latest stores stay scanned
    /// until looks at one have cost as much as an event.
    pub fn tick(&self, quiet: u32, keep: usize, most: usize) -> io::Result<usize> {
        let mut found = Vec::new();
        for segment in self.inner.to_look(0..self.inner.segments.len()) {
            if let Some((ticks, in_vain)) = self.inner.tick(segment).filter(|f| f.0 >= quiet) {
                found.push((ticks, in_vain, segment));
            }
        }
        found.sort_unstable();
        let mut watched = 0;
        for (i, &(_, in_vain, segment)) in found.iter().enumerate() {
            if watched < most && (i >= keep || in_vain >= LOOKS_IN_VAIN) {
                watched += usize::from(self.inner.watch(segment)?);
            }
        }
        Ok(watched)
    }

    /// Evicts a segment, if it has no stores to take, no other thread holds it, and `may` allows
    /// it.  `may` is called with the segment's lock held.  Then calls `f` with the segment's offset
    /// in the memory and the pages that were stored to during the eviction.  No thread can access
    /// the segment by then.  If `f` fails, these pages are kept for the next `take`.  A later touch
    /// brings the segment in again.  The caller chooses the order of evictions.
    pub fn evict<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64, &PageSet) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        self.inner.evict(segment, may, f)
    }

    /// Evicts a segment if it is present and `may` allows it.  Stores to it are lost, unless
    /// `f` fails.
    pub fn discard<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        self.inner.discard(segment, may, f)
    }

    /// Makes every later store to any segment a SIGSEGV.  So a [`take`](Tracker::take) that comes
    /// next is the last one: no segment that is discarded after it has a store that was not
    /// taken.  No segment can be brought in, nor be stored to by
    /// [`with_stored`](Tracker::with_stored), from now on.
    ///
    /// Without events a segment's memory cannot be removed while threads may access it.  Then every
    /// later load is a SIGSEGV, too.
    pub fn withdraw(&self) -> io::Result<()> {
        if planted::is(Planted::NotWithdrawn) && self.inner.events.is_some() {
            return Ok(());
        }
        (0..self.inner.segments.len()).try_for_each(|segment| {
            let mut state = self.inner.hold(segment);
            state.withdrawn = true;
            self.inner.space.withdraw(segment, self.inner.events.is_some())
        })
    }

    /// The number of segments in each state.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for segment in 0..self.inner.segments.len() {
            match self.inner.hold(segment).kind {
                Kind::Absent => counts.absent += 1,
                Kind::Scanned => counts.scanned += 1,
                Kind::Watched => counts.watched += 1,
            }
        }
        counts
    }

    #[cfg(test)]
    pub(crate) fn own_bytes(&self) -> &'static mut [u8] {
        self.inner.space.own_bytes()
    }

    #[cfg(test)]
    fn space(&self) -> &Reservation {
        &self.inner.space
    }
}

impl<S: Source> Inner<S> {
    /// Takes a segment's lock once the segment is present.
    fn hold_present(&self, segment: usize) -> io::Result<Held<'_, S>> {
        loop {
            let mut state = self.hold(segment);
            if state.kind != Kind::Absent {
                return Ok(state);
            }
            match self.bring_in(segment, &mut state) {
                Ok(()) => return Ok(state),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    drop(state);
                    std::thread::sleep(ASK_AGAIN);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The segments of a range that `take` has to look at.
    fn to_look(&self, segments: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        (segments.start / 64..segments.end.div_ceil(64)).flat_map(move |word| {
            let mut left = self.to_look[word].load(Ordering::SeqCst);
            let segments = segments.clone();
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
            .filter(move |s| segments.contains(s))
        })
    }
}

impl<S: Source + 'static> Drop for Tracker<S> {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        let stop = self.inner.stop.as_fd();
        let _ = lasting::check(stop).map(|()| rustix::io::write(stop, &1u64.to_ne_bytes()));
        drop(self.inner.absent_touched.lock());
        self.inner.some_touched.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn withdrawn() -> io::Error {
    io::Error::other("it is closed")
}

/// Checks that a mapping can have that many segments.
pub(crate) fn check_segments(segments: usize) -> io::Result<()> {
    let most = most_segments();
    if segments == 0 || segments > most {
        let message = format!(
            "a mapping of {segments} segments of 2 MiB; 1 to {most} are possible, as \
             vm.max_map_count has it: raise that, or ask for less room"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// The number of bytes of a file that can be mapped.
pub fn most_room() -> u64 {
    most_segments() as u64 * SEGMENT as u64
}

/// Each segment may need a mapping of its own, and the process needs others.
pub(crate) fn most_segments() -> usize {
    const OTHERS: usize = 8192;
    let limit = forebay::procfs::text("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|l| l.trim().parse().ok()).unwrap_or(65_530usize);
    limit.saturating_sub(OTHERS).max(1)
}
