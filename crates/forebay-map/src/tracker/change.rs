// SPDX-License-Identifier: MIT OR Apache-2.0
//! From one state of a segment to another, and why no store is lost on the way.  The
//! segment's lock is held in each.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{Held, Inner, Kind, NotEvicted, Source, State};
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};
use crate::system::{Mode, Scan};

impl<S: Source> Inner<S> {
    /// Absent to scanned.
    pub(super) fn bring_in(&self, segment: usize, state: &mut State) -> io::Result<()> {
        assert_eq!(state.kind, Kind::Absent);
        let offset = self.source.bring_in(segment)?;
        self.segments[segment].blind.store(false, Ordering::SeqCst);
        self.become_scanned(segment, state, offset)
    }

    /// Watched to scanned: somebody wants to store.
    pub(super) fn stored_to(&self, segment: usize, state: &mut State) -> io::Result<()> {
        assert_eq!(state.kind, Kind::Watched);
        self.become_scanned(segment, state, state.offset)
    }

    /// Until the new mapping is there, nobody can have stored: the segment was absent or
    /// write-protected.  Between that and the end of `Scan::Arm` a store is not noted, but
    /// that page is present then, and `Arm` tells it, in the step that protects it: it is
    /// kept for the next `take`.  (To protect the segment without a look would lose it.)
    fn become_scanned(&self, segment: usize, state: &mut State, offset: u64) -> io::Result<()> {
        // Before a store can be over, so that no sync that comes after it passes by.
        if !planted::is(Planted::LookAfterStore) {
            self.look(segment);
        }
        self.space.map(segment, self.source.memory(), offset)?;
        state.kind = Kind::Scanned;
        state.offset = offset;
        state.told = true;
        state.quiet = 0;
        if let Some(noted) = &self.noted {
            planted::wait();
            match noted.register(&self.space, segment..segment + 1, Mode::WriteProtect) {
                Ok(()) if planted::is(Planted::ProtectWithoutLook) => {
                    let _ = noted.protect(&self.space, segment);
                }
                Ok(()) => {
                    let touched = self.scan(segment, 0..SEGMENT_PAGES, Scan::Arm);
                    state.pending = state.pending.with(&touched);
                }
                Err(_) => self.make_blind(segment),
            }
        }
        Ok(())
    }

    /// See `Tracker::take`.
    pub(super) fn take<E>(
        &self,
        segment: usize,
        pages: Range<usize>,
        make_durable: &mut impl FnMut(usize, u64, &PageSet) -> Result<(), E>,
    ) -> Result<(), E> {
        self.take_held(self.hold(segment), pages, make_durable)
    }

    pub(super) fn take_held<E>(
        &self,
        mut state: Held<'_, S>,
        pages: Range<usize>,
        make_durable: &mut impl FnMut(usize, u64, &PageSet) -> Result<(), E>,
    ) -> Result<(), E> {
        let segment = state.segment;
        let range = PageSet::of(pages.clone());
        let found = match state.kind {
            Kind::Absent => {
                self.look_no_more(segment);
                return Ok(());
            }
            Kind::Scanned => self.scan(segment, pages.clone(), Scan::Take),
            Kind::Watched if self.blind(segment) => range,
            Kind::Watched => PageSet::EMPTY,
        };
        let told = found.with(&state.pending.within(&range));
        if !told.is_empty() {
            state.told = true;
            // They are protected again, so nothing else knows of them until they are
            // durable: also if that fails, or panics.
            state.pending = state.pending.with(&told);
            let offset = state.offset;
            if planted::is(Planted::UnlockedWhileDurable) {
                state.pending = state.pending.without(&told);
                drop(state);
                planted::wait();
                return make_durable(segment, offset, &told);
            }
            make_durable(segment, offset, &told)?;
            state.pending = state.pending.without(&told);
            if planted::is(Planted::ProtectedAfterDurable) && state.kind == Kind::Scanned {
                planted::wait();
                self.scan(segment, pages, Scan::Take);
            }
        }
        if state.kind == Kind::Watched && state.pending.is_empty() && !self.blind(segment) {
            self.look_no_more(segment);
        }
        Ok(())
    }

    /// One tick of a segment; whether it has become watched.
    pub(super) fn tick(&self, segment: usize, quiet: u32, may: bool) -> io::Result<bool> {
        let mut state = self.hold(segment);
        if state.kind != Kind::Scanned || !self.features.watch || self.blind(segment) {
            return Ok(false);
        }
        if state.told || !state.pending.is_empty() || !self.untouched(segment) {
            state.told = false;
            state.quiet = 0;
            return Ok(false);
        }
        state.quiet = state.quiet.saturating_add(1);
        if state.quiet < quiet || !may {
            return Ok(false);
        }
        self.become_watched(segment, &mut state)
    }

    /// Nothing is noted; what a scan finds stays noted.
    fn untouched(&self, segment: usize) -> bool {
        self.scan(segment, 0..SEGMENT_PAGES, Scan::Look).is_empty()
    }

    /// Scanned to watched, if nothing was stored to since it was last taken.
    ///
    /// A new mapping takes the place of the old one and what was noted there is gone with
    /// it; and it is not yet protected when it is there.  So the content is copied before
    /// the last look, and compared when nobody can store any more: what differs was stored
    /// meanwhile, and is kept for the next `take`.  What was stored and stored back does not
    /// differ, but the first of these may have reached the media and the second not: so all
    /// of it is written back.
    fn become_watched(&self, segment: usize, state: &mut State) -> io::Result<bool> {
        let (Some(events), offset) = (&self.events, state.offset) else {
            return Ok(false);
        };
        let (mut before, mut after) = (vec![0; SEGMENT], vec![0; SEGMENT]);
        self.source.copy(segment, offset, &mut before);
        if !self.untouched(segment) {
            state.quiet = 0;
            return Ok(false);
        }
        planted::wait();
        self.space.map(segment, self.source.memory(), offset)?;
        planted::wait();
        let registered = events.register(&self.space, segment..segment + 1, Mode::WriteProtect);
        if registered.and_then(|()| events.protect(&self.space, segment)).is_err() {
            // It stays scanned, and nothing notes stores.
            self.make_blind(segment);
            return Ok(false);
        }
        state.kind = Kind::Watched;
        self.source.copy(segment, offset, &mut after);
        self.source.write_back(segment, offset);
        state.pending = state.pending.with(&differing(&before, &after));
        if state.pending.is_empty() {
            self.look_no_more(segment);
        }
        Ok(true)
    }

    /// Watched to absent: with the lock held, nobody can store.  Scanned to absent, where
    /// nothing was stored to since it was last taken: what is stored between the last look
    /// and the step that takes the memory away is found by a comparison, as above.
    pub(super) fn evict<R>(
        &self,
        segment: usize,
        f: impl FnOnce(u64, &PageSet) -> R,
    ) -> Result<R, NotEvicted> {
        let mut state = self.try_hold(segment).ok_or(NotEvicted::InUse)?;
        if state.kind == Kind::Absent || !state.pending.is_empty() {
            return Err(NotEvicted::InUse);
        }
        let offset = state.offset;
        let mut late = PageSet::EMPTY;
        if self.blind(segment) || self.pagemap.is_none() {
            self.become_absent(segment, &mut state)?;
            late = PageSet::ALL;
        } else if state.kind == Kind::Watched {
            self.become_absent(segment, &mut state)?;
        } else {
            let (mut before, mut after) = (vec![0; SEGMENT], vec![0; SEGMENT]);
            self.source.copy(segment, offset, &mut before);
            if !self.untouched(segment) {
                return Err(NotEvicted::InUse);
            }
            planted::wait();
            self.become_absent(segment, &mut state)?;
            self.source.copy(segment, offset, &mut after);
            self.source.write_back(segment, offset);
            late = differing(&before, &after);
        }
        Ok(f(offset, &late))
    }

    pub(super) fn discard<R>(
        &self,
        segment: usize,
        f: impl FnOnce(u64) -> R,
    ) -> Result<R, NotEvicted> {
        let mut state = self.hold(segment);
        if state.kind == Kind::Absent {
            return Err(NotEvicted::InUse);
        }
        self.become_absent(segment, &mut state)?;
        Ok(f(state.offset))
    }

    fn become_absent(&self, segment: usize, state: &mut State) -> Result<(), NotEvicted> {
        let events = self.events.as_ref().ok_or(NotEvicted::InUse)?;
        self.space.take_away(segment, events).map_err(NotEvicted::Failed)?;
        state.kind = Kind::Absent;
        state.pending = PageSet::EMPTY;
        self.look_no_more(segment);
        Ok(())
    }
}

fn differing(before: &[u8], after: &[u8]) -> PageSet {
    let mut pages = PageSet::EMPTY;
    for page in 0..SEGMENT_PAGES {
        let bytes = page * PAGE..(page + 1) * PAGE;
        if before[bytes.clone()] != after[bytes] && !planted::is(Planted::NotCompared) {
            pages.insert(page..page + 1);
        }
    }
    pages
}
