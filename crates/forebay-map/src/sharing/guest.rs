// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that this process shares with others through the server of the pool.
//!
//! Locks, in this order: that of a growth, the visit's gate, the tracker's lock of a segment, a slot's
//! lock.  A request to the server is made with the first one held at most, except for a frame
//! (`Fill`).

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::board::{Board, Is};
use super::visits::{Server, Visit};
use super::Reply;
use crate::attributes::Glimpse;
use crate::cache::{not_for_ever, HOME_AGAIN};
use crate::common::{Shared, Ticks, Unreadable};
use crate::error::{not_text, Error, Result};
use crate::exclusive::{parts, segments_within};
use crate::features::Features;
use crate::file::Mapped;
use crate::locked::lock;
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::served;
use crate::store::{Place, Synced};
use crate::tracker::{Counts, NotEvicted, Source, Tracker, CHECKING};
use crate::wire::{Answer, Grant, Request};

/// How often to repeat a request while the server waits for others.
const AGAIN: Duration = Duration::from_millis(2);

/// The memory of frames that a server has lent.
pub(crate) trait Lent: Send + Sync + std::fmt::Debug {
    fn memory(&self) -> BorrowedFd<'_>;
    /// Records where a frame is from now on.
    fn learn(&self, frame: u32, place: Option<&Place>) -> Result<()>;
    fn offset(&self, frame: u32) -> Result<u64>;
    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()>;
    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()>;
    fn write_back_caches(&self, frame: u32) -> Result<()>;
    /// Like [`Store::sync`](crate::store::Store::sync).
    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced>;
}

#[derive(Debug, Default)]
struct Slot {
    frame: Option<u32>,
    /// The number of this use of the frame.
    seed: Option<u32>,
    /// Bytes of the segment that a [`Grant`] covers, until the next truncation.
    granted: usize,
    cuts: u64,
}

/// This process's view of the file.
#[derive(Debug)]
struct Stay {
    home: u32,
    path: PathBuf,
    server: Arc<dyn Server>,
    lent: Arc<dyn Lent>,
    shared: Arc<Shared>,
    board: Board,
    slots: Vec<Mutex<Slot>>,
    pins: Vec<AtomicUsize>,
    closed: AtomicBool,
    attributes: Glimpse,
    /// Held by the thread that makes the file longer.
    grows: Mutex<()>,
    /// The offsets of the first byte that it stores and of the end.
    grows_at: AtomicU64,
    growing: AtomicU64,
}

/// The reason why pages are not durable.
enum Lacks {
    /// A grant is missing: of a segment, or, with None, of the size.
    Grant(Option<usize>),
    /// A truncation has not ended.
    End,
    Told(Error),
}

impl From<Error> for Lacks {
    fn from(e: Error) -> Lacks {
        Lacks::Told(e)
    }
}

fn seed_of(grant: &Grant) -> Option<u32> {
    grant.place.as_ref().map(|place| place.seed)
}

fn unexpected(answer: &Answer) -> Error {
    match answer {
        Answer::Failed { why, .. } => Error::Pool(why.clone()),
        answer => served::unexpected(answer),
    }
}

impl Stay {
    fn size(&self) -> u64 {
        self.board.get(Is::Size).min((self.slots.len() * SEGMENT) as u64)
    }

    /// Bytes of a segment that the file has, also those that only this process knows of.
    fn inside(&self, segment: usize) -> usize {
        let size = self.size().max(self.growing.load(Ordering::SeqCst));
        size.saturating_sub((segment * SEGMENT) as u64).min(SEGMENT as u64) as usize
    }

    /// Whether this process stores bytes after the end of the file, and has or may have some in the
    /// segment.  If it were released, the file would get only what lies before the end.
    fn is_growing(&self, segment: usize) -> bool {
        let (size, growing) = (self.size(), self.growing.load(Ordering::SeqCst));
        let first = size.max(self.grows_at.load(Ordering::SeqCst)) as usize / SEGMENT;
        growing > size && segment >= first && !planted::is(Planted::EndReleased)
    }

    fn frame(&self, segment: usize) -> Option<u32> {
        lock(&self.slots[segment]).frame
    }

    fn pinned(&self, segment: usize) -> bool {
        self.pins[segment].load(Ordering::SeqCst) > 0
    }

    fn refused(&self, why: impl Into<String>) -> Error {
        Error::Refused { path: self.path.clone(), why: why.into() }
    }

    fn system(&self, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        Error::system(&self.path, doing)
    }

    /// Asks until the server is not busy with other guests.
    fn ask(&self, request: &Request, slow: bool) -> Result<Answer> {
        loop {
            match self.server.ask(request, slow)? {
                Answer::Wait => std::thread::sleep(AGAIN),
                Answer::Failed { refused: true, why } => return Err(self.refused(why)),
                answer => return Ok(answer),
            }
        }
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.ask(request, true)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn accept(&self, grant: &Grant) -> Result<()> {
        let Some(slot) = self.slots.get(grant.segment as usize) else { return Ok(()) };
        let mut slot = lock(slot);
        // The segment may have been given up meanwhile and brought in again, even in the same
        // frame.  That is another use of the frame, with other words in the pool.
        if slot.frame == Some(grant.frame) && slot.seed == seed_of(grant) {
            self.lent.learn(grant.frame, grant.place.as_ref())?;
            (slot.granted, slot.cuts) = (grant.bytes as usize, grant.cuts);
        }
        Ok(())
    }

    fn ask_grant(&self, segment: Option<usize>) -> Result<()> {
        let segment = segment.map(|s| s as u64);
        match self.ask(&Request::Settle { home: self.home, segment }, false)? {
            Answer::Granted(Some(grant)) => self.accept(&grant),
            Answer::Granted(None) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes pages of a segment durable.  The caller holds the tracker's lock of the segment.
    fn make_durable(&self, segment: usize, pages: &PageSet) -> std::result::Result<(), Lacks> {
        let pages = pages.within(&PageSet::of(0..self.inside(segment).div_ceil(PAGE)));
        let (frame, granted) = {
            let slot = lock(&self.slots[segment]);
            let counts = slot.cuts == self.board.get(Is::Cuts);
            (slot.frame, if counts { slot.granted } else { 0 })
        };
        let (Some(frame), false) = (frame, pages.is_empty()) else { return Ok(()) };
        let enough = pages.within(&PageSet::of(0..granted.div_ceil(PAGE))) == pages;
        if !enough && !planted::is(Planted::NothingGranted) {
            return Err(Lacks::Grant(Some(segment)));
        }
        match self.lent.sync(frame, &pages)? {
            Synced::Durable => Ok(()),
            // The file has grown since the server described the frame.
            Synced::BehindEnd => Err(Lacks::Grant(Some(segment))),
        }
    }
}

/// The segments of a file, for the tracker.
#[derive(Debug)]
struct Visited(Arc<Stay>);

impl Source for Visited {
    fn memory(&self) -> BorrowedFd<'_> {
        self.0.lent.memory()
    }

    fn bring_in(&self, segment: usize) -> io::Result<u64> {
        let stay = &*self.0;
        if stay.closed.load(Ordering::SeqCst) {
            return Err(io::Error::other(stay.refused("it is closed")));
        }
        let fill = Request::Fill { home: stay.home, segment: segment as u64 };
        match stay.server.ask(&fill, false).map_err(io::Error::other)? {
            Answer::Wait => Err(io::ErrorKind::WouldBlock.into()),
            Answer::Granted(Some(grant)) => {
                let learned = stay.lent.learn(grant.frame, grant.place.as_ref());
                learned.map_err(io::Error::other)?;
                *lock(&stay.slots[segment]) =
                    Slot { frame: Some(grant.frame), seed: seed_of(&grant), ..Slot::default() };
                stay.lent.offset(grant.frame).map_err(io::Error::other)
            }
            other => Err(io::Error::other(unexpected(&other))),
        }
    }

    fn cannot_be_touched(&self, segment: usize, why: &io::Error) {
        if let Some(Unreadable(tell)) = &self.0.shared.options.unreadable {
            tell(&self.0.path, (segment * SEGMENT) as u64, why);
        }
    }

    fn copy(&self, segment: usize, _: u64, to: &mut [u8]) {
        let copied = self.0.frame(segment).map(|frame| self.0.lent.copy(frame, 0, to));
        if !matches!(copied, Some(Ok(()))) {
            // A page that cannot be read must differ from its earlier copy, so that all of it
            // is synced.
            let now = self.0.shared.clock.fetch_add(1, Ordering::Relaxed);
            to.chunks_mut(8).for_each(|c| c.copy_from_slice(&now.to_ne_bytes()[..c.len()]));
        }
    }

    fn write_back(&self, segment: usize, _: u64) -> io::Result<()> {
        match self.0.frame(segment) {
            Some(frame) => self.0.lent.write_back_caches(frame).map_err(io::Error::other),
            None => Err(io::Error::other("nothing is there")),
        }
    }
}

/// The mapping, as orders of the server use it.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// Dropped first, so that no thread can fault while the rest is dropped.
    tracker: Tracker<Visited>,
    stay: Arc<Stay>,
}

impl Rooms {
    fn take(&self, pages: std::ops::Range<usize>) -> std::result::Result<(), Lacks> {
        self.tracker.take(pages, |segment, _, pages| self.stay.make_durable(segment, pages))
    }

    /// Syncs for another guest.
    pub fn sync_for_others(&self, first: u64, end: u64, grants: &[Grant]) -> Reply {
        if planted::is(Planted::OthersNotSynced) {
            return Reply::Done;
        }
        if let Some(e) = grants.iter().find_map(|grant| self.stay.accept(grant).err()) {
            return Reply::Failed(e.to_string());
        }
        let checked = self.tracker.check().map_err(self.stay.system(CHECKING));
        // Bytes after the end were not acknowledged.  The file gets them when nobody syncs.
        let end = end.min(self.stay.size().div_ceil(PAGE as u64));
        let pages = first as usize..end.max(first) as usize;
        match checked.map_err(Lacks::Told).and_then(|()| self.take(pages)) {
            Ok(()) => Reply::Done,
            Err(Lacks::Grant(_) | Lacks::End) => Reply::Again,
            Err(Lacks::Told(e)) => Reply::Failed(e.to_string()),
        }
    }

    /// Releases a segment.
    pub fn give_up(&self, segment: u64, grant: Option<&Grant>) -> Reply {
        let (stay, segment) = (&self.stay, segment as usize);
        if segment >= stay.slots.len() {
            return Reply::Done;
        }
        if stay.is_growing(segment) {
            return Reply::InUse;
        }
        let is_free = || !stay.pinned(segment);
        let gone = || lock(&stay.slots[segment]).frame = None;
        let Some(grant) = grant else {
            let asked = std::cell::Cell::new(false);
            let may = || {
                asked.set(true);
                is_free()
            };
            let discarded = self.tracker.discard(segment, may, |_| {
                gone();
                Ok::<(), Error>(())
            });
            return match discarded {
                Ok(()) => Reply::Done,
                // The segment was not present.
                Err(NotEvicted::InUse) if !asked.get() => Reply::Done,
                Err(NotEvicted::InUse) => Reply::InUse,
                Err(NotEvicted::Failed(e)) => Reply::Failed(e.to_string()),
                Err(NotEvicted::Kept(e)) => Reply::Failed(e.to_string()),
            };
        };
        if let Err(e) = stay.accept(grant) {
            return Reply::Failed(e.to_string());
        }
        match self.tracker.try_take(segment, |s, _, pages| stay.make_durable(s, pages)) {
            Ok(true) => {}
            Ok(false) | Err(Lacks::Grant(_) | Lacks::End) => return Reply::InUse,
            Err(Lacks::Told(e)) => return Reply::Failed(e.to_string()),
        }
        let evicted = self.tracker.evict(segment, is_free, |_, late| {
            if !planted::is(Planted::LateForgotten) {
                stay.make_durable(segment, late)?;
            }
            gone();
            Ok::<(), Lacks>(())
        });
        match evicted {
            Ok(()) => Reply::Done,
            Err(NotEvicted::InUse) if self.tracker.is_absent(segment) == Some(true) => Reply::Done,
            Err(NotEvicted::InUse | NotEvicted::Kept(Lacks::Grant(_) | Lacks::End)) => Reply::InUse,
            Err(NotEvicted::Failed(e)) => Reply::Failed(e.to_string()),
            Err(NotEvicted::Kept(Lacks::Told(e))) => Reply::Failed(e.to_string()),
        }
    }
}

/// A file that other processes map too.
#[derive(Debug)]
pub(crate) struct Guest {
    rooms: Arc<Rooms>,
    stay: Arc<Stay>,
    visit: Arc<Visit>,
    number: u32,
}

impl Guest {
    /// Joins the file at `path` with that identity, with at least `room` bytes of address
    /// space.
    pub fn join(
        shared: &Arc<Shared>,
        server: Arc<dyn Server>,
        lent: Arc<dyn Lent>,
        path: &Path,
        identity: &[u8],
        room: u64,
    ) -> Result<Arc<Guest>> {
        let refused = |why: String| Error::Refused { path: path.to_owned(), why };
        let Some(known_by) = path.to_str() else {
            return Err(refused(not_text()));
        };
        let features = shared.options.features.clone();
        let features = features.unwrap_or_else(|| Features::detect(lent.memory(), 0));
        if !features.faults {
            let missing = &features.missing;
            return Err(refused(format!("to share a file needs userfaultfd: {missing:?}")));
        }
        let (number, visit) = server.visits().begin();
        let ended = || server.visits().end(number);
        let join = Request::Join {
            visit: number,
            path: known_by.to_owned(),
            identity: identity.to_vec(),
            room,
        };
        let begun = Instant::now();
        let joined = loop {
            match server.ask_for(&join) {
                Ok((Answer::Wait, _)) => match not_for_ever(path, begun) {
                    Ok(()) => std::thread::sleep(HOME_AGAIN),
                    Err(e) => break Err(e),
                },
                joined => break joined,
            }
        };
        let (home, segments, board) = match joined.inspect_err(|_| ended())? {
            (Answer::Joined { home, segments }, Some(board)) => (home, segments, board),
            (Answer::Failed { refused: true, why }, _) => {
                ended();
                return Err(refused(why));
            }
            (answer, _) => {
                ended();
                return Err(unexpected(&answer));
            }
        };
        let made = (|| {
            use std::os::fd::AsFd;
            let segments = usize::try_from(segments).unwrap_or(usize::MAX);
            let board = Board::of(board.as_fd()).map_err(Error::system(path, "its board"))?;
            let stay = Arc::new(Stay {
                home,
                path: path.to_owned(),
                server: Arc::clone(&server),
                lent,
                shared: Arc::clone(shared),
                board,
                slots: (0..segments).map(|_| Mutex::default()).collect(),
                pins: (0..segments).map(|_| AtomicUsize::new(0)).collect(),
                closed: AtomicBool::new(false),
                attributes: Glimpse::of(path, identity),
                grows: Mutex::new(()),
                grows_at: AtomicU64::new(0),
                growing: AtomicU64::new(0),
            });
            let tracker = Tracker::new(Visited(Arc::clone(&stay)), segments, features);
            let tracker = tracker.map_err(Error::system(path, "map"))?;
            let rooms = Arc::new(Rooms { tracker, stay: Arc::clone(&stay) });
            Ok(Arc::new(Guest { rooms, stay, visit: Arc::clone(&visit), number }))
        })();
        match made {
            Ok(guest) => {
                let _ = visit.rooms.set(Arc::downgrade(&guest.rooms));
                Ok(guest)
            }
            Err(e) => {
                let _ = server.ask(&Request::Leave { home, unsynced: false }, true);
                ended();
                Err(e)
            }
        }
    }

    /// Syncs the stores of this process.
    fn sync_own(&self, at: u64, len: u64) -> std::result::Result<(), Lacks> {
        let board = &self.stay.board;
        let size = self.stay.size();
        if board.get(Is::Cut) != 0 {
            return Err(Lacks::End);
        }
        if board.get(Is::Settled) < size {
            return Err(Lacks::Grant(None));
        }
        let end = at.saturating_add(len).min(size);
        self.rooms.take((at / PAGE as u64) as usize..end.div_ceil(PAGE as u64) as usize)
    }

    fn sync_granted(&self, at: u64, len: u64) -> Result<()> {
        self.rooms.tracker.check().map_err(self.stay.system(CHECKING))?;
        loop {
            let call = self.visit.gate.enter()?;
            let synced = self.sync_own(at, len);
            drop(call);
            match synced {
                Ok(()) => return Ok(()),
                Err(Lacks::Told(e)) => return Err(e),
                Err(Lacks::Grant(segment)) => self.stay.ask_grant(segment)?,
                Err(Lacks::End) => self.stay.done(&Request::EndCut { home: self.stay.home })?,
            }
        }
    }

    /// Writes parts one after another at `at` or at the end, and makes the file longer.  Others see
    /// the size when the bytes are there.  Returns the place, the number of bytes that are there, and
    /// why not all are.
    fn grow(&self, at: Option<u64>, all: &[&[u8]]) -> Result<(u64, u64, Result<()>)> {
        let (stay, home) = (&self.stay, self.stay.home);
        let len = all.iter().map(|part| part.len() as u64).sum();
        let _one = lock(&stay.grows);
        let at = match stay.ask(&Request::Grow { home, at, len }, true)? {
            Answer::At(at) => at,
            other => return Err(unexpected(&other)),
        };
        stay.grows_at.store(at, Ordering::SeqCst);
        stay.growing.store(at.saturating_add(len), Ordering::SeqCst);
        planted::wait();
        let (mut done, mut known) = (0, 0);
        let mut stored = all.iter().try_for_each(|part| {
            for (segment, first, range) in parts(at + done, part.len()) {
                self.write_piece(segment, first, &part[range.clone()])?;
                done += range.len() as u64;
                // Only what the file has can be released if frames are few.
                if (at + done).is_multiple_of(SEGMENT as u64) && done < len {
                    self.grown(at + done, true)?;
                    known = done;
                }
            }
            Ok(())
        });
        // Without any bytes the file keeps its size, also where they belong after a gap.
        match self.grown(if done > 0 { at + done } else { 0 }, false) {
            Ok(()) => known = done,
            Err(e) => {
                let _ = self.grown(0, false);
                stored = stored.and(Err(e));
            }
        }
        stay.growing.store(0, Ordering::SeqCst);
        Ok((at, known, stored))
    }

    /// Tells the server up to where the bytes are there.
    fn grown(&self, end: u64, more: bool) -> Result<()> {
        // Another thread's question may wait for this one on the other connection.
        match self.stay.ask(&Request::Grown { home: self.stay.home, end, more }, false)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes to a segment where the file is long enough, and stays so meanwhile.
    fn write_piece(&self, segment: usize, first: usize, from: &[u8]) -> Result<()> {
        // Copied for the same reason as in `read`.
        let bytes = &from.to_vec()[..];
        let pages = first / PAGE..(first + bytes.len()).div_ceil(PAGE);
        let written =
            self.rooms.tracker.with_stored(segment, pages, |_| match self.stay.frame(segment) {
                Some(frame) => self.stay.lent.fill(frame, first, bytes),
                None => Err(Error::Pool("a segment that was brought in is not there".into())),
            });
        written.map_err(self.stay.system("bring in"))?
    }

    fn leave(&self, unsynced: bool) -> Result<()> {
        let leave = Request::Leave { home: self.stay.home, unsynced };
        let left = self.stay.done(&leave);
        self.stay.server.visits().end(self.number);
        left
    }
}

impl Ticks for Guest {
    fn tick(&self) -> Result<()> {
        let (quiet, keep) = (self.stay.shared.options.quiet, self.stay.shared.options.keep_looking);
        let ticked = self.rooms.tracker.tick(quiet, keep, 64);
        ticked.map(drop).map_err(self.stay.system("watch"))
    }
}

impl Mapped for Guest {
    fn path(&self) -> &Path {
        &self.stay.path
    }

    fn address(&self) -> *mut u8 {
        self.rooms.tracker.address()
    }

    fn room(&self) -> u64 {
        self.rooms.tracker.size() as u64
    }

    fn size(&self) -> u64 {
        self.stay.size()
    }

    fn features(&self) -> &Features {
        self.rooms.tracker.features()
    }

    fn counts(&self) -> Counts {
        self.rooms.tracker.counts()
    }

    fn load(&self, at: u64, to: &mut [u8]) {
        self.rooms.tracker.load(at as usize, to);
    }

    fn store(&self, at: u64, from: &[u8]) {
        self.rooms.tracker.store(at as usize, from);
    }

    fn sync(&self, at: u64, len: u64) -> Result<()> {
        let stay = &self.stay;
        if stay.closed.load(Ordering::SeqCst) {
            return Err(stay.refused("it is closed"));
        }
        // A guest that joined later has stored nothing that this sync must cover.
        if stay.board.get(Is::Guests) > 1 {
            let end = at.saturating_add(len).min(self.room());
            let len = end.saturating_sub(at);
            stay.done(&Request::SyncOthers { home: stay.home, at, len })?;
        }
        self.sync_granted(at, len)?;
        // The server has the file, and writes back all of it.
        match stay.shared.store.lost() {
            None => Ok(()),
            Some(_) => self.write_back().map(drop),
        }
    }

    fn sync_attributes(&self) -> Result<()> {
        let home = self.stay.home;
        // The server has the file's descriptor.
        let ask = |touched| self.stay.done(&Request::SyncAttributes { home, touched });
        self.stay.attributes.settle(ask)
    }

    fn attributes_changed(&self) {
        self.stay.attributes.touched();
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let _call = self.visit.gate.enter()?;
        let n = self.size().saturating_sub(at).min(to.len() as u64) as usize;
        for (segment, from, range) in parts(at, n) {
            // The caller's memory may itself be a mapping and fault on a segment that this
            // thread has locked.  So no lock is held while it is touched.
            let mut bytes = vec![0; range.len()];
            let copied = self.rooms.tracker.with(segment, |_| match self.stay.frame(segment) {
                Some(frame) => self.stay.lent.copy(frame, from, &mut bytes),
                None => Err(Error::Pool("a segment that was brought in is not there".into())),
            });
            copied.map_err(self.stay.system("bring in"))??;
            to[range].copy_from_slice(&bytes);
        }
        Ok(n)
    }

    fn append(&self, all: &[&[u8]]) -> Result<(u64, u64)> {
        if all.iter().all(|part| part.is_empty()) {
            return Ok((self.size(), 0));
        }
        match self.grow(None, all)? {
            (_, 0, Err(e)) => Err(e),
            (at, done, _) => Ok((at, done)),
        }
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let call = self.visit.gate.enter()?;
        if at.saturating_add(from.len() as u64) > self.size() {
            drop(call);
            return self.grow(Some(at), &[from])?.2;
        }
        for (segment, first, range) in parts(at, from.len()) {
            self.write_piece(segment, first, &from[range])?;
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.stay.done(&Request::Resize { home: self.stay.home, size })
    }

    fn allocate(&self, at: u64, len: u64) -> Result<()> {
        self.stay.done(&Request::Allocate { home: self.stay.home, at, len })
    }

    fn lock(&self, at: u64, len: u64) -> Result<()> {
        let stay = &self.stay;
        let segments = segments_within(at, len, self.room());
        stay.shared.pin(&stay.path, segments.len())?;
        for segment in segments.clone() {
            stay.pins[segment].fetch_add(1, Ordering::SeqCst);
        }
        for segment in segments {
            if let Err(e) = self.rooms.tracker.with(segment, |_| ()) {
                self.unlock(at, len);
                return Err(stay.system("bring in")(e));
            }
        }
        Ok(())
    }

    fn unlock(&self, at: u64, len: u64) {
        for segment in segments_within(at, len, self.room()) {
            let less = |p: usize| p.checked_sub(1);
            let pins = &self.stay.pins[segment];
            if pins.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
                self.stay.shared.unpin(1);
            }
        }
    }

    fn drop_cache(&self, at: u64, len: u64) -> Result<()> {
        let end = (at.saturating_add(len).min(self.room()) / SEGMENT as u64) as usize;
        for segment in at.div_ceil(SEGMENT as u64) as usize..end {
            if !self.stay.pinned(segment) {
                let segment = segment as u64;
                self.stay.done(&Request::GiveBack { home: self.stay.home, segment })?;
            }
        }
        Ok(())
    }

    fn change(&self, _: &mut dyn FnMut()) -> Result<()> {
        Err(self.stay.refused(
            "its times cannot be set while it is shared, as others change it; set them when all \
             have closed it",
        ))
    }

    fn write_back(&self) -> Result<usize> {
        match self.stay.ask(&Request::WriteBack { home: self.stay.home }, true)? {
            Answer::At(pages) => Ok(pages as usize),
            other => Err(unexpected(&other)),
        }
    }

    fn is_dirty(&self) -> Result<bool> {
        match self.stay.ask(&Request::IsDirty { home: self.stay.home }, true)? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    fn close(&self) -> Result<()> {
        let stay = &self.stay;
        if stay.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        for pins in &stay.pins {
            stay.shared.unpin(pins.swap(0, Ordering::SeqCst));
        }
        // Threads may store until the mapping is withdrawn.  Others see these stores and count on
        // them, so they are durable before this process leaves.
        let tracker = &self.rooms.tracker;
        let withdraw = |()| tracker.withdraw().map_err(stay.system("withdraw its mapping"));
        let synced = self.sync_granted(0, u64::MAX).and_then(withdraw);
        let mut synced = synced.and_then(|()| self.sync_granted(0, u64::MAX));
        for segment in 0..stay.slots.len() {
            let gone = self.rooms.tracker.discard(
                segment,
                || true,
                |_| {
                    lock(&stay.slots[segment]).frame = None;
                    Ok::<(), Error>(())
                },
            );
            if let Err(NotEvicted::Failed(e)) = gone {
                synced = synced.and(Err(stay.system("unmap")(e)));
            }
        }
        let left = self.leave(synced.is_err());
        synced.and(left)
    }

    #[cfg(test)]
    fn own_bytes(&self) -> &'static mut [u8] {
        self.rooms.tracker.own_bytes()
    }

    #[cfg(test)]
    fn is_here(&self, segment: usize) -> bool {
        self.stay.frame(segment).is_some()
    }
}
