// SPDX-License-Identifier: MIT OR Apache-2.0
//! The home's record of which guests have which segments mapped.  Where an exclusive file's
//! tracker finds stores itself, this module asks the guests.
//!
//! A dead guest cannot say what it had stored without a sync.  Its memory still exists, as a
//! kernel's page cache would.  Pages that differ from the file are kept (`pending`) until they
//! are durable, and are then written back.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use super::board::{Board, Is};
use super::{Heard, Order, Peer, Reply};
use crate::content::Content;
use crate::error::{Error, Result};
use crate::locked::lock;
use crate::pages::{PageSet, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};
use crate::track::Track;
use crate::tracker::NotEvicted;
use crate::wire::Grant;

/// The number of segments in one order.
const GRANTS: usize = 128;
/// How long a change of the size waits for calls of guests.  The wait starts again while a call
/// itself waits for the server.
const STOPS: Duration = Duration::from_secs(15);
/// How often a guest is asked again whether its calls have ended.
const STOPS_AGAIN: Duration = Duration::from_millis(1);
/// How often a guest is asked whether it is there while the file grows by it.
const GROWS_AGAIN: Duration = Duration::from_millis(500);
/// How often an order is repeated to a guest that lacks a grant: the guest brings in segments
/// meanwhile.
const TRIES: usize = 1000;

/// How long to look for a frame that is to be kept.
const KEEP_WAIT: Duration = Duration::from_secs(20);
/// How often to try again while other threads are busy with the frame.
const AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Segment {
    /// Whether the segment has a frame.
    there: bool,
    /// Guests that may have the segment mapped.
    mapped_by: Vec<u64>,
    /// Pages with stores of dead guests that are not durable yet.
    pending: PageSet,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment { there: false, mapped_by: Vec::new(), pending: PageSet::EMPTY }
    }
}

#[derive(Clone, Debug)]
struct Visitor {
    visit: u32,
    peer: Arc<dyn Peer>,
}

/// The guests of one file.
#[derive(Debug)]
pub(crate) struct Guests {
    content: Arc<Content>,
    segments: Vec<Mutex<Segment>>,
    visitors: RwLock<BTreeMap<u64, Visitor>>,
    /// Whether there has been a guest.
    visited: AtomicBool,
    board: Board,
    /// The guest that stores bytes after the end just now.  Nobody else changes the size meanwhile.
    growth: Mutex<Option<u64>>,
    grown: Condvar,
}

fn silent(peer: &dyn Peer, why: &str) -> Error {
    Error::Pool(format!(
        "process {}, which has the file mapped as well, does not answer ({why}): it may have stored \
         what is to be durable; let it go on, or end it",
        peer.pid()
    ))
}

impl Guests {
    pub fn new(content: Arc<Content>) -> io::Result<Guests> {
        let segments = (0..content.segments()).map(|_| Mutex::default()).collect();
        let guests = Guests {
            content,
            segments,
            visitors: RwLock::default(),
            visited: AtomicBool::new(false),
            board: Board::new()?,
            growth: Mutex::default(),
            grown: Condvar::new(),
        };
        guests.publish();
        Ok(guests)
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Publishes the size to the guests.  They are stopped while the size shrinks.
    pub fn publish(&self) {
        let size = self.content.size();
        self.board.set(Is::Cut, u64::from(self.content.is_cut()));
        self.board.set(Is::Cuts, self.content.cuts());
        self.board.set(Is::Settled, self.content.settled_size().min(size));
        self.board.set(Is::Size, size);
    }

    /// A guest may store bytes after the end, from `at` on.  The caller has stopped the guests.
    pub fn begin_growth(&self, who: u64, at: u64) {
        *lock(&self.growth) = Some(who);
        self.content.growing.store(at, Ordering::SeqCst);
    }

    /// The guest has stored them, or has ended.
    pub fn end_growth(&self, who: u64) {
        if lock(&self.growth).take_if(|by| *by == who).is_some() {
            self.content.growing.store(u64::MAX, Ordering::SeqCst);
            self.grown.notify_all();
        }
    }

    pub fn growth(&self) -> Option<u64> {
        *lock(&self.growth)
    }

    /// Waits for the end of a growth, as long as its guest is there.
    pub fn wait_for_growth(&self) -> Result<()> {
        loop {
            let growth = lock(&self.growth);
            let waited =
                self.grown.wait_timeout_while(growth, GROWS_AGAIN, |growth| growth.is_some());
            let who = *waited.unwrap_or_else(PoisonError::into_inner).0;
            let Some(who) = who else { return Ok(()) };
            let Some(Visitor { visit, peer }) = self.visitor(who) else {
                self.end_growth(who);
                continue;
            };
            // Nothing is to be synced: only whether it answers counts.  A `Go` is not sent to a guest
            // that is not stopped.
            let nothing = Order::Sync { visit, first: 0, end: 0, grants: Vec::new() };
            match peer.ask(&nothing, true) {
                Heard::Said(_) | Heard::Busy => {}
                Heard::Dead => self.end_growth(who),
                Heard::Silent(why) => return Err(silent(&*peer, &why)),
            }
        }
    }

    fn all(&self) -> Vec<(u64, Visitor)> {
        let visitors = self.visitors.read().unwrap_or_else(PoisonError::into_inner);
        visitors.iter().map(|(who, v)| (*who, v.clone())).collect()
    }

    fn visitor(&self, who: u64) -> Option<Visitor> {
        self.visitors.read().unwrap_or_else(PoisonError::into_inner).get(&who).cloned()
    }

    pub fn has(&self, who: u64) -> bool {
        self.visitor(who).is_some()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.all().iter().map(|(_, v)| v.peer.pid()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.visitors.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether there were guests and all have left.
    pub fn is_left(&self) -> bool {
        self.is_empty() && self.visited.load(Ordering::SeqCst)
    }

    /// Adds a guest.  False: the process is a guest already.
    pub fn come(&self, who: u64, visit: u32, peer: Arc<dyn Peer>) -> bool {
        let mut visitors = self.visitors.write().unwrap_or_else(PoisonError::into_inner);
        if visitors.contains_key(&who) {
            return false;
        }
        visitors.insert(who, Visitor { visit, peer });
        self.visited.store(true, Ordering::SeqCst);
        self.board.set(Is::Guests, visitors.len() as u64);
        true
    }

    /// Removes a guest that has nothing mapped any more and whose stores are all durable.
    pub fn go(&self, who: u64) {
        for segment in &self.segments {
            lock(segment).mapped_by.retain(|of| *of != who);
        }
        let mut visitors = self.visitors.write().unwrap_or_else(PoisonError::into_inner);
        visitors.remove(&who);
        self.board.set(Is::Guests, visitors.len() as u64);
    }

    /// Handles a guest that is dead or reports stores that may not be durable.  It counts as a
    /// guest until they are.  The caller ensures that the file's size does not change
    /// meanwhile.
    pub fn lost(&self, who: u64) -> Result<()> {
        for segment in 0..self.segments.len() {
            let mut state = lock(&self.segments[segment]);
            if state.mapped_by.contains(&who) {
                self.left(segment, &mut state, who);
            }
        }
        let mut all = Ok(());
        for segment in 0..self.segments.len() {
            let mut state = lock(&self.segments[segment]);
            all = all.and(self.settle(segment, &mut state));
        }
        all.map(|()| self.go(who))
    }

    fn left(&self, segment: usize, state: &mut Segment, who: u64) {
        state.mapped_by.retain(|of| *of != who);
        if !planted::is(Planted::StoresOfTheDeadLost) {
            state.pending = state.pending.with(&self.content.differing(segment));
        }
    }

    fn settle(&self, segment: usize, state: &mut Segment) -> Result<()> {
        if !state.pending.is_empty() {
            self.content.make_durable(segment, &state.pending)?;
            state.pending = PageSet::EMPTY;
        }
        Ok(())
    }

    /// Gets a frame for a guest that touched a segment.  None: the guest must try again without
    /// holding a lock.
    pub fn fill(&self, segment: usize, who: u64) -> Result<Option<u32>> {
        let Some(slot) = self.segments.get(segment) else {
            return Err(Error::Pool(format!("the file has no segment {segment}")));
        };
        let Some(mut state) = try_lock(slot) else { return Ok(None) };
        if !self.has(who) {
            return Err(Error::Pool("it is no guest of this file".into()));
        }
        let Some(frame) = self.content.fill(segment)? else { return Ok(None) };
        state.there = true;
        if !state.mapped_by.contains(&who) {
            state.mapped_by.push(who);
        }
        Ok(Some(frame))
    }

    /// Brings in a segment that is already pinned.
    pub fn keep(&self, segment: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut state = lock(&self.segments[segment]);
            if self.content.fill(segment)?.is_some() {
                state.there = true;
                return Ok(());
            }
            drop(state);
            if begun.elapsed() > KEEP_WAIT {
                return Err(Error::Full("other threads are using all of them".into()));
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Makes the stores of all guests except one durable.
    pub fn sync_others(&self, pages: Range<usize>, but: Option<u64>) -> Result<()> {
        for (who, visitor) in self.all() {
            if Some(who) != but {
                self.sync_of(who, &visitor, pages.clone())?;
            }
        }
        // A thread that evicts a segment may find first that a guest is dead, and then the
        // guest is not asked here.
        let segments = pages.start / SEGMENT_PAGES..pages.end.div_ceil(SEGMENT_PAGES);
        for segment in segments.start..segments.end.min(self.segments.len()) {
            let mut state = lock(&self.segments[segment]);
            self.settle(segment, &mut state)?;
        }
        Ok(())
    }

    fn sync_of(&self, who: u64, visitor: &Visitor, pages: Range<usize>) -> Result<()> {
        let has = |&s: &usize| lock(&self.segments[s]).mapped_by.contains(&who);
        let first = pages.start / SEGMENT_PAGES;
        let last = pages.end.div_ceil(SEGMENT_PAGES).min(self.segments.len());
        for _ in 0..TRIES {
            let mine: Vec<usize> = (first..last).filter(has).collect();
            let mut again = false;
            for some in mine.chunks(GRANTS) {
                let (Some(from), Some(to)) = (some.first(), some.last()) else { continue };
                let mut grants = Vec::new();
                for &segment in some {
                    grants.extend(self.content.grant(segment)?);
                }
                let order = Order::Sync {
                    visit: visitor.visit,
                    first: (from * SEGMENT_PAGES).max(pages.start) as u64,
                    end: ((to + 1) * SEGMENT_PAGES).min(pages.end) as u64,
                    grants,
                };
                match visitor.peer.ask(&order, true) {
                    Heard::Said(Reply::Done) => {}
                    Heard::Said(Reply::Failed(why)) => return Err(silent(&*visitor.peer, &why)),
                    Heard::Said(_) | Heard::Busy => again = true,
                    Heard::Dead => return self.lost(who),
                    Heard::Silent(why) => return Err(silent(&*visitor.peer, &why)),
                }
            }
            if !again {
                return Ok(());
            }
        }
        Err(silent(&*visitor.peer, "it brings segments in all the time"))
    }

    /// Waits until no call of a guest is under way.  None begins until the result is dropped.
    pub fn stop(&self) -> Result<Stopped<'_>> {
        let mut stopped = Stopped { guests: self, all: Vec::new() };
        if planted::is(Planted::GuestsNotStopped) {
            return Ok(stopped);
        }
        for (_, visitor) in self.all() {
            stopped.all.push(visitor.clone());
            let mut begun = Instant::now();
            loop {
                match visitor.peer.ask(&Order::Stop { visit: visitor.visit }, true) {
                    Heard::Said(Reply::Done) | Heard::Dead => break,
                    Heard::Said(Reply::Failed(why)) | Heard::Silent(why) => {
                        return Err(silent(&*visitor.peer, &why));
                    }
                    // The call waits for an answer of this server, and so will end.
                    Heard::Said(Reply::Asks) => {
                        begun = Instant::now();
                        std::thread::sleep(STOPS_AGAIN);
                    }
                    Heard::Said(_) | Heard::Busy if begun.elapsed() > STOPS => {
                        let why = "it has calls under way that do not end";
                        return Err(silent(&*visitor.peer, why));
                    }
                    // The guest carries out other orders meanwhile.
                    Heard::Said(_) | Heard::Busy => std::thread::sleep(STOPS_AGAIN),
                }
            }
        }
        Ok(stopped)
    }

    /// Makes every guest release a segment.  Returns whether all have.  The caller holds the
    /// segment's lock.
    fn give_up(
        &self,
        segment: usize,
        state: &mut Segment,
        grant: Option<&Grant>,
        waits: bool,
    ) -> Result<bool> {
        for who in state.mapped_by.clone() {
            let Some(visitor) = self.visitor(who) else {
                state.mapped_by.retain(|of| *of != who);
                continue;
            };
            let order = Order::GiveUp {
                visit: visitor.visit,
                segment: segment as u64,
                grant: grant.cloned(),
            };
            match visitor.peer.ask(&order, waits) {
                Heard::Said(Reply::Done) => state.mapped_by.retain(|of| *of != who),
                Heard::Said(_) | Heard::Busy => return Ok(false),
                Heard::Dead => self.left(segment, state, who),
                Heard::Silent(why) => return Err(silent(&*visitor.peer, &why)),
            }
        }
        Ok(true)
    }
}

fn try_lock(slot: &Mutex<Segment>) -> Option<MutexGuard<'_, Segment>> {
    match slot.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Guests that are stopped.
#[derive(Debug)]
pub(crate) struct Stopped<'a> {
    guests: &'a Guests,
    all: Vec<Visitor>,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.guests.publish();
        for visitor in &self.all {
            // A guest that does not answer now will read the order later.
            let _ = visitor.peer.ask(&Order::Go { visit: visitor.visit }, true);
        }
    }
}

impl Track for Guests {
    fn size(&self) -> usize {
        self.segments.len() * SEGMENT
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Guests make their own stores durable.
    fn take(
        &self,
        pages: Range<usize>,
        _: impl FnMut(usize, &PageSet) -> Result<()>,
    ) -> Result<()> {
        self.sync_others(pages.start..pages.end.min(self.size() / crate::PAGE), None)
    }

    /// The stores are synced when the segment is released.
    fn try_take(&self, _: usize, _: impl FnMut(usize, &PageSet) -> Result<()>) -> Result<bool> {
        Ok(true)
    }

    fn evict(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(&PageSet) -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>> {
        let mut state = try_lock(&self.segments[segment]).ok_or(NotEvicted::InUse)?;
        if !state.there || !may() {
            return Err(NotEvicted::InUse);
        }
        // A segment that was only read needs no blocks, so try first without allocating any.
        let mut gone = false;
        for grant in [Content::granted, Content::grant] {
            let grant = grant(&self.content, segment).map_err(NotEvicted::Kept)?;
            let given_up = self.give_up(segment, &mut state, grant.as_ref(), false);
            gone = given_up.map_err(NotEvicted::Kept)?;
            let all = |g: &Grant| g.bytes as usize >= self.content.inside(segment);
            if gone || grant.as_ref().is_none_or(all) {
                break;
            }
        }
        if !gone {
            return Err(NotEvicted::InUse);
        }
        f(&state.pending).map_err(NotEvicted::Kept)?;
        *state = Segment::default();
        Ok(())
    }

    fn discard(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>> {
        let mut state = lock(&self.segments[segment]);
        if !state.there || !may() {
            return Err(NotEvicted::InUse);
        }
        if !self.give_up(segment, &mut state, None, true).map_err(NotEvicted::Kept)? {
            return Err(NotEvicted::InUse);
        }
        f().map_err(NotEvicted::Kept)?;
        *state = Segment::default();
        Ok(())
    }

    fn with_present<R>(&self, segment: usize, f: impl FnOnce(bool) -> R) -> R {
        let state = lock(&self.segments[segment]);
        f(state.there)
    }

    fn tick(&self, _: u32, _: usize, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    /// False while there are guests, because they make pages dirty themselves.
    fn is_asked(&self) -> bool {
        self.is_empty() || planted::is(Planted::UnmarkedUnderGuests)
    }
}
