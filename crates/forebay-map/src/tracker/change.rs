// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transitions between the states of a segment, and why none of them loses a store.  Each
//! runs with the segment's lock held.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{Held, Inner, Kind, NotEvicted, Source, State};
use crate::features;
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};
use crate::system::{Mode, Scan};

impl<S: Source> Inner<S> {
    /// From absent to scanned.
    pub(super) fn bring_in(&self, segment: usize, state: &mut State) -> io::Result<()> {
        assert_eq!(state.kind, Kind::Absent);
        if state.withdrawn {
            return Err(super::withdrawn());
        }
        state.offset = self.source.bring_in(segment)?;
        // The content is kept until it is mapped.
        state.kept = true;
        self.segments[segment].blind.store(false, Ordering::SeqCst);
        if self.features.moves && self.move_in(segment, state).is_ok() {
            return Ok(());
        }
        self.become_scanned(segment, state, state.offset)
    }

    /// Prepares the segment where no other thread can reach it, so that every store is recorded
    /// from the first moment on.  The thread that reads events cannot do this, because the
    /// kernel waits for the event of the move.
    fn move_in(&self, segment: usize, state: &mut State) -> io::Result<()> {
        let (Some(noted), Some(pagemap)) = (&self.noted, &self.pagemap) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let ready = features::ready(noted, pagemap, self.source.memory(), state.offset)?;
        // For the reason, see `become_scanned`.
        let late = planted::is(Planted::LookAfterStore);
        if !late {
            self.look(segment);
        }
        self.space.move_here(segment, ready)?;
        state.is_scanned();
        if late {
            planted::wait();
            self.look(segment);
        }
        Ok(())
    }

    /// From watched to scanned, when a thread wants to store.
    pub(super) fn stored_to(&self, segment: usize, state: &mut State) -> io::Result<()> {
        assert_eq!(state.kind, Kind::Watched);
        // The thread is woken, and its next try is a SIGSEGV.
        if state.withdrawn {
            return Ok(());
        }
        self.become_scanned(segment, state, state.offset)
    }

    /// Before the new mapping is in place no store is possible, because the segment was absent
    /// or write-protected.  A store between that and the end of `Scan::Arm` is not recorded.
    /// But its page is present then, and `Arm` reports it in the step that protects it; it is
    /// kept for the next `take`.  Protecting the segment without a look would lose the store.
    fn become_scanned(&self, segment: usize, state: &mut State, offset: u64) -> io::Result<()> {
        // The bit is set before a store can complete, so that no later sync skips the segment.
        if !planted::is(Planted::LookAfterStore) {
            self.look(segment);
        }
        let ours = self.space.map(segment, self.source.memory(), offset)?;
        state.offset = offset;
        state.is_scanned();
        if !ours {
            // A child may have inherited the segment, and nothing records the child's stores.
            self.make_blind(segment);
        }
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

    /// Implements `Tracker::take`.
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
            Kind::Absent if !state.kept => {
                self.look_no_more(segment);
                return Ok(());
            }
            Kind::Absent => PageSet::EMPTY,
            Kind::Scanned => self.scan(segment, pages.clone(), Scan::Take),
            Kind::Watched if self.blind(segment) => range,
            Kind::Watched => PageSet::EMPTY,
        };
        let told = found.with(&state.pending.within(&range));
        state.in_vain = state.in_vain.saturating_add(1);
        if !told.is_empty() {
            state.told = true;
            state.in_vain = 0;
            // The pages are protected again, so this is the only record of them until they are
            // durable, also if that fails or panics.
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
        let noted = state.kind == Kind::Scanned || self.blind(segment);
        if state.pending.is_empty() && (state.kind == Kind::Absent || !noted) {
            self.look_no_more(segment);
        }
        Ok(())
    }

    /// Does one tick of a segment.  If it can be watched, returns the number of ticks without a
    /// store and the number of looks meanwhile.
    pub(super) fn tick(&self, segment: usize) -> Option<(u32, u32)> {
        let mut state = self.hold(segment);
        if !self.can_be_watched(segment, &state) {
            return None;
        }
        if state.told || !state.pending.is_empty() || !self.untouched(segment) {
            state.told = false;
            state.quiet = 0;
            return None;
        }
        state.quiet = state.quiet.saturating_add(1);
        Some((state.quiet, state.in_vain))
    }

    fn can_be_watched(&self, segment: usize, state: &State) -> bool {
        let may = self.features.watch && !state.withdrawn;
        state.kind == Kind::Scanned && may && !self.blind(segment)
    }

    /// Tries to make a quiet segment watched.  Returns whether it did.
    pub(super) fn watch(&self, segment: usize) -> io::Result<bool> {
        let mut state = self.hold(segment);
        if !self.can_be_watched(segment, &state) || state.told || !state.pending.is_empty() {
            return Ok(false);
        }
        self.become_watched(segment, &mut state)
    }

    /// Whether no store is recorded.  A scan that finds some leaves them recorded.
    fn untouched(&self, segment: usize) -> bool {
        self.scan(segment, 0..SEGMENT_PAGES, Scan::Look).is_empty()
    }

    /// From scanned to watched, if there was no store since the last `take`.
    ///
    /// A new mapping replaces the old one and its record of stores, and it is not yet protected
    /// when it appears.  So the content is copied before the last look and compared once no
    /// thread can store any more.  Pages that differ were stored to meanwhile and are kept for
    /// the next `take`.  A store that was undone by a second store leaves no difference, but
    /// only the first of them may have reached the media.  So the whole segment is written
    /// back.
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
        if !self.space.map(segment, self.source.memory(), offset)? {
            // A child may have inherited the segment.  It stays scanned, and nothing records
            // stores.
            self.make_blind(segment);
            return Ok(false);
        }
        planted::wait();
        let registered = events.register(&self.space, segment..segment + 1, Mode::WriteProtect);
        // The segment counts as watched in any case: some pages may be protected, and a store
        // there is an event.
        state.kind = Kind::Watched;
        if registered.and_then(|()| events.protect(&self.space, segment)).is_err() {
            self.make_blind(segment);
            return Ok(false);
        }
        self.source.copy(segment, offset, &mut after);
        let written = self.source.write_back(segment, offset);
        state.pending = state.pending.with(&differing(&before, &after, written));
        if state.pending.is_empty() {
            self.look_no_more(segment);
        }
        Ok(true)
    }

    /// From watched to absent: no thread can store while the lock is held.  From scanned to
    /// absent, if there was no store since the last `take`: stores between the last look and
    /// the removal of the memory are found by a comparison, as above.
    ///
    /// A sync looks at the segment until the end, because pages that are found late are durable
    /// only then.  If they cannot be made durable, or `f` fails for another reason, the memory
    /// is kept.
    pub(super) fn evict<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64, &PageSet) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        let mut state = self.try_hold(segment).ok_or(NotEvicted::InUse)?;
        let Some(offset) = state.there() else { return Err(NotEvicted::InUse) };
        if !state.pending.is_empty() || !may() {
            return Err(NotEvicted::InUse);
        }
        let mut late = PageSet::EMPTY;
        if state.kind == Kind::Absent {
            // The memory was kept before.
        } else if self.blind(segment) || self.pagemap.is_none() {
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
            let written = self.source.write_back(segment, offset);
            late = differing(&before, &after, written);
        }
        self.gone(segment, &mut state, late, |late| f(offset, late))
    }

    pub(super) fn discard<R, E>(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(u64) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        let mut state = self.hold(segment);
        let Some(offset) = state.there() else { return Err(NotEvicted::InUse) };
        if !may() {
            return Err(NotEvicted::InUse);
        }
        if state.kind != Kind::Absent {
            self.become_absent(segment, &mut state)?;
        }
        self.gone(segment, &mut state, PageSet::ALL, |_| f(offset))
    }

    /// Lets the owner of the memory release it.  If that fails, the pages are kept for the next
    /// `take`.
    fn gone<R, E>(
        &self,
        segment: usize,
        state: &mut State,
        pages: PageSet,
        let_go: impl FnOnce(&PageSet) -> Result<R, E>,
    ) -> Result<R, NotEvicted<E>> {
        if planted::is(Planted::LookedTooEarly) {
            self.look_no_more(segment);
            planted::wait();
        }
        // The pages are recorded first, in case `let_go` panics.
        state.pending = state.pending.with(&pages);
        let done = let_go(&pages).map_err(NotEvicted::Kept)?;
        (state.kept, state.pending) = (false, PageSet::EMPTY);
        self.look_no_more(segment);
        Ok(done)
    }

    /// Makes the segment absent, so that no thread can load or store there.  The memory is
    /// kept.
    fn become_absent<E>(&self, segment: usize, state: &mut State) -> Result<(), NotEvicted<E>> {
        let events = self.events.as_ref().ok_or(NotEvicted::InUse)?;
        // A sync looks at the segment until its pages have been reported or found durable.
        self.look(segment);
        if let Err(e) = self.space.take_away(segment, events) {
            // The segment may have lost its memory, and the record of stores is unknown.
            self.make_blind(segment);
            state.pending = PageSet::ALL;
            let _ = self.space.map(segment, self.source.memory(), state.offset);
            if state.withdrawn {
                let _ = self.space.withdraw(segment, true);
            }
            return Err(NotEvicted::Failed(e));
        }
        (state.kind, state.kept) = (Kind::Absent, true);
        Ok(())
    }
}

/// The pages that differ; all pages if the caches could not be written back.
fn differing(before: &[u8], after: &[u8], written: io::Result<()>) -> PageSet {
    if written.is_err() {
        return PageSet::ALL;
    }
    let mut pages = PageSet::EMPTY;
    for page in 0..SEGMENT_PAGES {
        let bytes = page * PAGE..(page + 1) * PAGE;
        if before[bytes.clone()] != after[bytes] && !planted::is(Planted::NotCompared) {
            pages.insert(page..page + 1);
        }
    }
    pages
}
