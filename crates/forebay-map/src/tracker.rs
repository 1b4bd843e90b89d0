// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pages of a mapping were stored to since they were last asked for.
//!
//! A [`Tracker`] owns address space in segments.  Each is in one of three states:
//!
//! | state | what is there | a load | a store |
//! |---|---|---|---|
//! | absent | nothing | event: brought in, becomes scanned | the same |
//! | scanned | the segment's memory; the kernel notes the first store to each page | costs nothing | costs nothing, but for the first to a page |
//! | watched | the same, write-protected as a whole | costs nothing | event: becomes scanned |
//!
//! So a sync looks only at segments that may have been stored to: those that are scanned.  A
//! segment that was not stored to for some ticks becomes watched ([`Tracker::tick`]), and a
//! watched one can be made absent ([`Tracker::evict`]).
//!
//! **No store is lost.**  A page is told by [`Tracker::take`] and write-protected in one step
//! of the kernel's, so a store is either before that, and told, or after, and noted for the
//! next.  The segment's lock is held until whoever asked has made the page durable, so that
//! another thread's sync, which finds the page protected again, does not end before.  The
//! steps between two states are in `tracker/change.rs`, each with its reason why a store
//! that happens meanwhile is not lost.
//!
//! Locks: a segment's, by itself; the thread that handles events never waits for one, since
//! whoever holds it may wait for an event to be read.

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

/// Whose memory is mapped.
///
/// Nothing in here may touch the mapping itself, since it is called while a fault there
/// waits for it.
pub trait Source: Send + Sync {
    /// The file that is the memory.
    fn memory(&self) -> BorrowedFd<'_>;
    /// Makes a segment's content be in the memory; where that is.  After an error, whoever
    /// touched the segment gets SIGBUS, as of a file that cannot be read; but after
    /// `WouldBlock` it is asked again, and the segment's lock is free meanwhile.
    fn bring_in(&self, segment: usize) -> io::Result<u64>;
    /// Told of a segment that was touched and could not be brought in, before there is SIGBUS.
    fn cannot_be_touched(&self, _segment: usize, _why: &io::Error) {}
    /// Copies a segment as it is in the memory.
    fn copy(&self, segment: usize, offset: u64, to: &mut [u8]);
    /// Makes durable what is in the memory of a segment: caches are written back.
    fn write_back(&self, segment: usize, offset: u64) -> io::Result<()>;
}

/// What an event costs, 73 us and the work of the thread, over what a look costs, 1.7 us.
const LOOKS_IN_VAIN: u32 = 64;

/// After which a segment is asked for again.
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
    /// Absent, and its content is in the memory still: whoever takes the memory away could
    /// not let go of it.
    kept: bool,
    /// In the memory; of no meaning when absent and not kept.
    offset: u64,
    /// Stored to, and to be told by the next `take`: found while the state was changed.
    pending: PageSet,
    /// Something was told since the last tick.
    told: bool,
    /// Ticks without a store.
    quiet: u32,
    /// Looks of syncs since there was one.
    in_vain: u32,
}

impl State {
    /// Where its content is, if it is in the memory.
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
    /// A thread waits for the segment, and its event could not be handled, as the lock was
    /// held: it is woken when the lock is given back, and tries again.
    waiting: AtomicBool,
    /// Page tables do not tell what was stored to; every page counts, until it is brought
    /// in again.
    blind: AtomicBool,
}

struct Inner<S> {
    /// First, so that nothing can fault any more when the rest goes away.
    space: Reservation,
    source: S,
    features: Features,
    segments: Vec<Segment>,
    /// One bit a segment: `take` has to look at it.  Set before a store to the segment can
    /// be over.
    to_look: Vec<AtomicU64>,
    /// Where events are told; segments that are absent or watched are registered here.
    events: Option<Uffd>,
    /// Segments that are scanned are registered here.
    noted: Option<Uffd>,
    pagemap: Option<Pagemap>,
    /// Held from before an event is read until it counts: the kernel lets a thread that takes
    /// pages away go on as soon as its event was read.
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

/// A mapping, and what of it was stored to.
#[derive(Debug)]
pub struct Tracker<S: Source + 'static> {
    inner: Arc<Inner<S>>,
    threads: Vec<JoinHandle<()>>,
}

/// How many segments are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nothing is there.
    pub absent: usize,
    /// A sync of the whole looks at these.
    pub scanned: usize,
    /// Nobody stored to these for some time.
    pub watched: usize,
}

/// Why a segment was not taken away.  (With no events, none can be.)
#[derive(Debug)]
pub enum NotEvicted<E> {
    /// It was stored to and not taken since, it may not go, or nothing is there.
    InUse,
    /// The kernel could not.
    Failed(io::Error),
    /// The caller could not let go of its memory, and keeps it: nothing is forgotten.
    Kept(E),
}

/// A segment's lock, that wakes who came while it was held.
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
        // Who found the lock held had set `waiting` before: it is seen here, after the lock
        // was given back.
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

    /// From now on every page of it counts.
    fn make_blind(&self, segment: usize) {
        self.segments[segment].blind.store(true, Ordering::SeqCst);
        self.look(segment);
    }

    /// Pages of a segment that is scanned, write-protected again where `how` says so.
    fn scan(&self, segment: usize, pages: Range<usize>, how: Scan) -> PageSet {
        let found = match &self.pagemap {
            Some(pagemap) if !self.blind(segment) => {
                pagemap.scan(&self.space, segment, pages.clone(), how)
            }
            _ => return PageSet::of(pages),
        };
        // Pages that were taken away before the scan have an event that was read before.
        self.wait_for_events();
        match found {
            Ok(found) if !self.blind(segment) => found,
            Ok(_) => PageSet::of(pages),
            Err(_) => {
                // Some pages may have been protected and not told.
                self.make_blind(segment);
                PageSet::of(pages)
            }
        }
    }

    /// All events that were read count.
    fn wait_for_events(&self) {
        if !planted::is(Planted::EventNotAwaited) {
            drop(self.reading.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl<S: Source + 'static> Tracker<S> {
    /// Address space of so many segments, of which none is brought in, if the features
    /// allow that, or all are.
    pub fn new(source: S, segments: usize, features: Features) -> io::Result<Tracker<S>> {
        check_segments(segments)?;
        let events = match (features.faults, features.watch) {
            (true, true) => Some(Uffd::new(features::STORES, true)?),
            (true, false) => Some(Uffd::new(features::FAULTS, true)?),
            (false, _) => None,
        };
        let (noted, pagemap) = match features.scan {
            true => {
                // Nobody reads its events where there is no thread for that.
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

    /// Where it begins.  What is there may change at any time.  The addresses are good for
    /// as long as this lives; loads and stores there may wait for a segment to be brought
    /// in, and give SIGBUS if that cannot be done.
    pub fn address(&self) -> *mut u8 {
        self.inner.space.address()
    }

    /// In bytes.
    pub fn size(&self) -> usize {
        self.inner.segments.len() * SEGMENT
    }

    /// Whose memory it is.
    pub fn source(&self) -> &S {
        &self.inner.source
    }

    /// What is counted on.
    pub fn features(&self) -> &Features {
        &self.inner.features
    }

    /// Loads by the mapping, as a program would.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        self.inner.space.load(at, to);
    }

    /// Stores by the mapping, as a program would.
    pub fn store(&self, at: usize, from: &[u8]) {
        self.inner.space.store(at, from);
    }

    /// Fails if stores would not be told, since somebody has closed what tells them.
    pub fn check(&self) -> io::Result<()> {
        self.inner.events.as_ref().map_or(Ok(()), |events| lasting::check(events.as_fd()))
    }

    /// Pages of a range that were stored to since they were last taken, segment by segment,
    /// to `make_durable`: segment, offset in the memory, pages.  All stores that were over
    /// when this began are told, or were told to another thread whose `make_durable` of them
    /// has ended.  What is told may be more than what was stored to.
    ///
    /// Pages for which `make_durable` fails are told again; the rest of the range waits for
    /// the next time.
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

    /// Brings a segment in, if it is not there, and calls `f` with its offset in the memory;
    /// it stays there until `f` has returned.
    pub fn with<R>(&self, segment: usize, f: impl FnOnce(u64) -> R) -> io::Result<R> {
        let state = self.inner.hold_present(segment)?;
        Ok(f(state.offset))
    }

    /// Whether nothing of a segment is there.  None: somebody is at work on it.
    pub fn is_absent(&self, segment: usize) -> Option<bool> {
        self.inner.try_hold(segment).map(|state| state.there().is_none())
    }

    /// Calls `f` with the offset of a segment if its content is in the memory, and keeps it
    /// where it is meanwhile: absent, too.
    pub fn with_present<R>(&self, segment: usize, f: impl FnOnce(Option<u64>) -> R) -> R {
        let state = self.inner.hold(segment);
        f(state.there())
    }

    /// The same for a caller that stores to the pages in `f`, past the mapping: they are told
    /// by the next `take`.
    pub fn with_stored<R>(
        &self,
        segment: usize,
        pages: Range<usize>,
        f: impl FnOnce(u64) -> R,
    ) -> io::Result<R> {
        let mut state = self.inner.hold_present(segment)?;
        state.pending.insert(pages);
        self.inner.look(segment);
        Ok(f(state.offset))
    }

    /// As [`take`](Tracker::take), of all pages of one segment.  False: somebody else is at
    /// it, and nothing was done.  For callers that keep another segment from going on.
    pub fn try_take<E>(
        &self,
        segment: usize,
        mut make_durable: impl FnMut(usize, u64, &PageSet) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(state) = self.inner.try_hold(segment) else { return Ok(false) };
        self.inner.take_held(state, 0..SEGMENT_PAGES, &mut make_durable)?;
        Ok(true)
    }

    /// To be called now and then: segments that were not stored to for `quiet` ticks become
    /// watched, `most` of them at once.  But `keep` stay scanned, those that were stored to
    /// last, until looking at one has cost as much as an event does.
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

    /// Takes a segment away, if nothing in it waits to be taken, nobody else is at it, and
    /// `may` says so, asked with its lock held: `f` is called when nobody can load or store
    /// there any more, with its offset in the memory, and pages that were stored to while
    /// that was done.  It is brought in again when it is touched.  If `f` fails, these pages
    /// wait to be taken.  The order of segments to be evicted is the caller's.
    pub fn evict<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64, &PageSet) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        self.inner.evict(segment, may, f)
    }

    /// Takes a segment away, if it is there and `may` says so, whatever was stored to it:
    /// that is forgotten, but where `f` fails.
    pub fn discard<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        self.inner.discard(segment, may, f)
    }

    /// Without events a segment's memory cannot be taken away while somebody may store to it.  From
    /// now on a touch of any of them is SIGSEGV.  With events this does nothing.
    pub fn withdraw(&self) -> io::Result<()> {
        if self.inner.events.is_some() {
            return Ok(());
        }
        (0..self.inner.segments.len()).try_for_each(|segment| {
            let _state = self.inner.hold(segment);
            self.inner.space.withdraw(segment)
        })
    }

    /// How many segments are in which state.
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
    /// A segment's lock, when it is there.
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

    /// Segments of a range at which `take` has to look.
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

/// Whether a mapping can have so many.
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

/// How many bytes of a file can be mapped.
pub fn most_room() -> u64 {
    most_segments() as u64 * SEGMENT as u64
}

/// Each segment may need a mapping of its own, and the process others.
pub(crate) fn most_segments() -> usize {
    const OTHERS: usize = 8192;
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|l| l.trim().parse().ok()).unwrap_or(65_530usize);
    limit.saturating_sub(OTHERS).max(1)
}
