// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that only this process maps, or that a server has open for the processes that share
//! it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::backing::Backing;
use crate::common::{InPool, Reclaimed, Shared};
use crate::content::{Content, Segments};
use crate::error::{Error, Result};
use crate::fair::FairRw;
use crate::features::Features;
use crate::file::Mapped;
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::size_lock::SizeLock;
use crate::track::Track;
use crate::tracker::{Counts, NotEvicted, Tracker, CHECKING};

/// The longest tick of a kernel's clock.  Two changes of a file that are further apart than
/// this have different times.
const TICK: Duration = Duration::from_millis(11);

mod registered;
mod writes;

pub(crate) use registered::content_of;
use writes::Shows;

#[derive(Debug)]
pub(crate) struct Inner<T: Track = Tracker<Segments>> {
    /// Dropped first, so that no thread can fault while the rest is dropped.
    pub tracker: T,
    pub content: Arc<Content>,
    shared: Arc<Shared>,
    /// The size that the program sees.  It follows the file's size once the bytes are there.
    shown: AtomicU64,
    /// Held exclusively by a truncation and by a write that extends the file.
    io: FairRw,
    /// Taken after `io` while the size changes.
    resizing: SizeLock,
    /// Rounds since the file last lacked something.
    complete: AtomicU32,
}

/// Splits a range of bytes at segment boundaries.  Yields the segment, the offset in it, and
/// the part of the range.
pub(crate) fn parts(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let now = at + done as u64;
        let (segment, from) = ((now / SEGMENT as u64) as usize, (now % SEGMENT as u64) as usize);
        let n = (SEGMENT - from).min(len - done);
        let part = (segment, from, done..done + n);
        done += n;
        (n > 0).then_some(part)
    })
}

/// The segments that overlap a range.
pub(crate) fn segments_within(at: u64, len: u64, room: u64) -> Range<usize> {
    let end = at.saturating_add(len).min(room);
    (at.min(end) / SEGMENT as u64) as usize..end.div_ceil(SEGMENT as u64) as usize
}

impl Inner {
    /// Opens an exclusive file.
    pub fn open(shared: &Arc<Shared>, backing: Box<dyn Backing>, room: u64) -> Result<Arc<Inner>> {
        let path = backing.path().to_owned();
        let features = shared.options.features.clone();
        let features = features.unwrap_or_else(|| Features::detect(shared.store.memory(), 0));
        let capacity = shared.store.capacity();
        let fits = |segments| {
            match features.faults || segments <= capacity {
            true => Ok(()),
            false => Err(format!(
                "with room to grow it has {segments} segments of 2 MiB, and the pool has frames for \
                 {capacity}. All must be in the pool at once, since this user may not load them on \
                 a page fault ({}). Ask for less room (map-run --room), use a pool with more frames \
                 (create --maps), or allow userfaultfd (sysctl vm.unprivileged_userfaultfd=1, or \
                 the right to open /dev/userfaultfd)",
                features.missing.join("; ")
            )),
        }
        };
        let content = content_of(shared, backing, room, fits)?;
        let segments = content.segments();
        let tracker = Tracker::new(Segments(Arc::clone(&content)), segments, features.clone());
        let tracker = tracker.inspect_err(|_| {
            for segment in 0..segments {
                let _ = content.release(segment, true);
            }
            let _ = shared.store.remove_file(content.id);
        });
        let tracker = tracker.map_err(Error::system(&path, "map"))?;
        Ok(Arc::new(Inner::of(tracker, content, shared)))
    }
}

impl<T: Track> Inner<T> {
    pub fn of(tracker: T, content: Arc<Content>, shared: &Arc<Shared>) -> Inner<T> {
        let shown = AtomicU64::new(content.size());
        Inner {
            shown,
            tracker,
            content,
            shared: Arc::clone(shared),
            io: FairRw::new(),
            resizing: SizeLock::new(),
            complete: AtomicU32::new(0),
        }
    }

    pub fn shared_io(&self) -> RwLockReadGuard<'_, ()> {
        self.io.read()
    }

    fn alone(&self) -> (RwLockWriteGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        let io = self.io_alone();
        (io, self.size_alone())
    }

    /// Waits until no call is under way and keeps new ones out.
    pub fn io_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.io.write()
    }

    /// Taken after `io_alone`.  While it is held, no frame of the file is released.
    pub fn size_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.resizing.alone()
    }

    /// Like `size_alone`.  None: others have the lock.
    pub fn try_size_alone(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.resizing.try_alone()
    }

    /// Returns None while the size changes.
    pub fn not_resizing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.resizing.unchanged()
    }

    /// Called with `io` held: a store after the close would be neither in the file nor durable.
    fn check_open(&self) -> Result<()> {
        match self.content.closed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => {
                let path = self.content.backing.path().to_owned();
                Err(Error::Refused { path, why: "it is closed".into() })
            }
        }
    }

    fn pinned(&self, segment: usize) -> bool {
        self.content.pins[segment].load(Ordering::SeqCst) > 0
    }

    fn system(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        self.content.system(doing)
    }

    fn segments(&self) -> Range<usize> {
        0..self.content.segments()
    }

    fn sync_range(&self, at: u64, len: u64) -> Result<()> {
        let content = &self.content;
        self.tracker.check().map_err(content.system(CHECKING))?;
        content.settle_written()?;
        content.settle_size()?;
        let end = at.saturating_add(len).min(content.size());
        let mut last = end.div_ceil(PAGE as u64) as usize;
        if planted::is(Planted::LastPageLeft) {
            last = last.saturating_sub(1);
        }
        let mut synced = 0;
        let taken = self.tracker.take((at / PAGE as u64) as usize..last, |segment, pages| {
            synced += pages.len();
            content.make_durable(segment, pages)
        });
        self.shared.count_synced(synced);
        taken
    }

    fn unmark_if_complete(&self, written: bool) -> Result<()> {
        if written || !self.content.marking.is_borne() || !self.tracker.is_asked() {
            self.complete.store(0, Ordering::Relaxed);
            return Ok(());
        }
        match self.complete.fetch_add(1, Ordering::Relaxed) < self.shared.options.unmark_after {
            true => Ok(()),
            false => self.content.unmark(|| self.tracker.is_asked()),
        }
    }

    fn not_gone(&self, e: NotEvicted<Error>) -> Error {
        match e {
            NotEvicted::InUse => Error::Pool("a segment is in use".into()),
            NotEvicted::Failed(e) => self.system("unmap")(e),
            NotEvicted::Kept(e) => e,
        }
    }

    /// Zeroes a range of bytes in the segments that are present.
    fn zero(&self, bytes: Range<u64>) -> Result<()> {
        let end = bytes.end.min(self.tracker.size() as u64);
        for segment in
            (bytes.start / SEGMENT as u64) as usize..end.div_ceil(SEGMENT as u64) as usize
        {
            let first = (segment * SEGMENT) as u64;
            let from = bytes.start.saturating_sub(first) as usize;
            let to = (end - first).min(SEGMENT as u64) as usize;
            self.tracker.with_present(segment, |there| match self.content.frame(segment) {
                Some(frame) if there => self.content.store.fill(frame, from, &vec![0; to - from]),
                _ => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Zeroes the rest of the page at the end of the file.  A sync may have saved what a
    /// program stored there, and it would appear in the file when the file grows.
    fn settle_tail(&self, end: u64) -> Result<()> {
        if end.is_multiple_of(PAGE as u64) {
            return Ok(());
        }
        let (segment, page) = (end / SEGMENT as u64, end % SEGMENT as u64 / PAGE as u64);
        self.tracker.with_present(segment as usize, |there| {
            match self.content.frame(segment as usize) {
                Some(frame) if there => {
                    let page = PageSet::of(page as usize..page as usize + 1);
                    if self.content.store.dirty(frame)?.0.within(&page).is_empty() {
                        return Ok(());
                    }
                    self.content.make_durable(segment as usize, &page)
                }
                _ => Ok(()),
            }
        })
    }

    fn check_room(&self, size: u64) -> Result<()> {
        if size <= self.tracker.size() as u64 {
            return Ok(());
        }
        let path = self.content.backing.path().to_owned();
        let why = format!("{size} bytes; it was opened with room for {}", self.tracker.size());
        Err(Error::Refused { path, why })
    }

    pub fn resize(&self, size: u64) -> Result<()> {
        let content = &self.content;
        self.end_cut()?;
        let old = content.size();
        self.check_room(size)?;
        if size >= old {
            return self.extend(size, || Ok(()));
        }
        content.cut(size, || self.forget(size))
    }

    /// Extends the file.  `store` puts bytes into the memory after its end, which is zero.
    fn extend(&self, size: u64, store: impl FnOnce() -> Result<()>) -> Result<()> {
        let old = self.content.size();
        self.content.extend(size, || {
            if !planted::is(Planted::TailKept) {
                self.zero(old..size)?;
                self.settle_tail(old)?;
            }
            store()
        })
    }

    /// Prepares the memory after the end for bytes that a guest stores there, up to `end`.  What lies
    /// between the file's end and these bytes is zero.  The caller has the file exclusively.
    pub fn prepare_growth(&self, end: u64) -> Result<()> {
        self.check_room(end)?;
        self.end_cut()?;
        if planted::is(Planted::SizeBeforeBytes) {
            self.resize(self.content.size().max(end))?;
        }
        let old = self.content.size();
        if end > old && !planted::is(Planted::TailKept) {
            self.zero(old..end)?;
            self.settle_tail(old)?;
        }
        Ok(())
    }

    /// Extends the file to `end`, up to where a guest has stored bytes.  The caller has the size
    /// exclusively.
    pub fn grow_to(&self, end: u64) -> Result<()> {
        self.check_room(end)?;
        self.content.extend(end, || Ok(()))
    }

    /// Ends a truncation that failed.  The caller has the file exclusively.
    pub fn end_cut(&self) -> Result<()> {
        match planted::is(Planted::CutNotEnded) {
            true => Ok(()),
            false => self.content.end_cut(|| self.forget(self.content.size())),
        }
    }

    /// Zeroes or drops what lies after the end.
    fn forget(&self, size: u64) -> Result<()> {
        let behind = size.div_ceil(SEGMENT as u64) as usize;
        for segment in behind..self.content.segments() {
            let release = || self.content.release(segment, true);
            match self.tracker.discard(segment, || !self.pinned(segment), release) {
                Ok(()) => {}
                // The segment is absent, locked, or the kernel sends no events: zero it.
                Err(NotEvicted::InUse) => {}
                Err(e) => return Err(self.not_gone(e)),
            }
        }
        self.zero(size..u64::MAX)
    }
}

impl<T: Track> InPool for Inner<T> {
    fn content(&self) -> &Content {
        &self.content
    }

    fn closed(&self) -> bool {
        self.content.closed.load(Ordering::SeqCst)
    }

    fn round(&self) -> Result<usize> {
        // A truncation is under way: skip this round.
        let Some(_same_size) = self.resizing.turn() else { return Ok(0) };
        if self.closed() {
            return Ok(0);
        }
        let written = self.content.write_back(self.segments());
        if let Ok(pages) = &written {
            self.content.marking.settle(self.content.of())?;
            self.unmark_if_complete(*pages > 0)?;
        }
        let (quiet, keep) = (self.shared.options.quiet, self.shared.options.keep_looking);
        self.tracker.tick(quiet, keep, 64).map_err(self.system("watch"))?;
        written
    }

    fn give_back(&self, segment: usize) -> Result<Reclaimed> {
        let Some(_same_size) = self.resizing.turn() else { return Ok(Reclaimed::Busy) };
        if self.closed() || self.pinned(segment) {
            return Ok(Reclaimed::Nothing);
        }
        let content = &self.content;
        // Its page at the end stays dirty for a while.
        if content.grows_in(segment) && !planted::is(Planted::EndReleased) {
            return Ok(Reclaimed::Busy);
        }
        if !self.tracker.try_take(segment, |s, pages| content.make_durable(s, pages))? {
            return Ok(Reclaimed::Busy);
        }
        let discard = planted::is(Planted::DirtyDiscarded);
        if !discard {
            content.write_back([segment])?;
        }
        // A call that locks the segment first pins it and then needs its lock.
        let may = || !self.pinned(segment) || planted::is(Planted::PinNotSeen);
        if segment == 0 {
            planted::wait_until_told(Planted::PinNotSeen);
        }
        let gone = self.tracker.evict(segment, may, |late| {
            content.make_durable(segment, late)?;
            if !discard {
                content.write_back([segment])?;
            }
            content.release(segment, discard)
        });
        match gone {
            Ok(()) => Ok(Reclaimed::Freed),
            Err(NotEvicted::InUse) => Ok(Reclaimed::Nothing),
            Err(e) => Err(self.not_gone(e)),
        }
    }
}

impl Mapped for Inner {
    fn path(&self) -> &Path {
        self.content.backing.path()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.content.backing.file()
    }

    fn mark_directory(&self) -> Option<&Path> {
        self.content.backing.mark_directory()
    }

    fn address(&self) -> *mut u8 {
        self.tracker.address()
    }

    fn room(&self) -> u64 {
        self.tracker.size() as u64
    }

    fn size(&self) -> u64 {
        self.shown.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    fn own_bytes(&self) -> &'static mut [u8] {
        self.tracker.own_bytes()
    }

    #[cfg(test)]
    fn is_here(&self, segment: usize) -> bool {
        self.content.frame(segment).is_some()
    }

    fn features(&self) -> &Features {
        self.tracker.features()
    }

    fn counts(&self) -> Counts {
        self.tracker.counts()
    }

    fn load(&self, at: u64, to: &mut [u8]) {
        self.tracker.load(at as usize, to);
    }

    fn store(&self, at: u64, from: &[u8]) {
        self.tracker.store(at as usize, from);
    }

    fn sync(&self, at: u64, len: u64) -> Result<()> {
        loop {
            let io = self.shared_io();
            self.check_open()?;
            if !self.content.is_cut() || planted::is(Planted::CutNotEnded) {
                self.sync_range(at, len)?;
                return self.content.outlive_pool(segments_within(at, len, self.room()));
            }
            drop(io);
            let _alone = self.alone();
            self.end_cut()?;
        }
    }

    fn sync_attributes(&self) -> Result<()> {
        // It fails as the sync of the pages would, once they are to be written to the file.
        // A failure of this sync has to count, since the kernel tells it once.
        let backing = &self.content.backing;
        backing.settle_attributes(&|| backing.sync_all()).map_err(self.system("sync"))
    }

    fn attributes_changed(&self) {
        self.content.backing.attributes_changed();
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let _io = self.shared_io();
        let content = &self.content;
        let n = content.size().saturating_sub(at).min(to.len() as u64) as usize;
        for (segment, from, range) in parts(at, n) {
            // The caller's memory may itself be a mapping and fault on a segment that this
            // thread has locked.  So no lock is held while it is touched.
            let mut bytes = vec![0; range.len()];
            self.tracker.with_present(segment, |there| match content.frame(segment) {
                Some(frame) if there.is_some() => content.store.copy(frame, from, &mut bytes),
                _ => {
                    let at = at + range.start as u64;
                    let read = content.backing.read_at(at, &mut bytes);
                    let n = read.map_err(self.system("read"))?;
                    bytes[n..].fill(0);
                    Ok(())
                }
            })?;
            to[range].copy_from_slice(&bytes);
        }
        Ok(n)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let end = at.saturating_add(from.len() as u64);
        let io = self.shared_io();
        self.check_open()?;
        if end <= self.content.size() {
            return self.write_within(at, from);
        }
        drop(io);
        let io = self.io_alone();
        self.check_open()?;
        self.write_longer(io, at, &[from]).map(drop)
    }

    fn append(&self, parts: &[&[u8]]) -> Result<(u64, u64)> {
        let io = self.io_alone();
        self.check_open()?;
        let at = self.content.size();
        self.write_longer(io, at, parts).map(|written| (at, written))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let _io = self.alone();
        self.check_open()?;
        let _shows = Shows(self);
        self.resize(size)
    }

    fn allocate(&self, at: u64, len: u64) -> Result<()> {
        let _io = self.alone();
        self.check_open()?;
        let _shows = Shows(self);
        let end = at.saturating_add(len);
        if end > self.content.size() {
            self.resize(end)?;
        }
        self.content.allocate(at, len)
    }

    fn lock(&self, at: u64, len: u64) -> Result<()> {
        let _io = self.shared_io();
        let segments = segments_within(at, len, self.room());
        self.shared.pin(self.content.backing.path(), segments.len())?;
        for segment in segments.clone() {
            self.content.pins[segment].fetch_add(1, Ordering::SeqCst);
        }
        for segment in segments {
            if let Err(e) = self.tracker.with(segment, |_| ()) {
                self.unlock(at, len);
                return Err(self.system("bring in")(e));
            }
        }
        Ok(())
    }

    fn unlock(&self, at: u64, len: u64) {
        for segment in segments_within(at, len, self.room()) {
            let pins = &self.content.pins[segment];
            let less = |p: usize| p.checked_sub(1);
            if pins.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
                self.shared.unpin(1);
            }
        }
    }

    fn drop_cache(&self, at: u64, len: u64) -> Result<()> {
        let _io = self.shared_io();
        let end = (at.saturating_add(len).min(self.room()) / SEGMENT as u64) as usize;
        for segment in at.div_ceil(SEGMENT as u64) as usize..end {
            let dropped = self.tracker.discard(
                segment,
                || !self.pinned(segment),
                |_| {
                    self.content.write_back([segment])?;
                    self.content.release(segment, false)
                },
            );
            match dropped {
                Ok(()) | Err(NotEvicted::InUse) => {}
                Err(e) => return Err(self.not_gone(e)),
            }
        }
        Ok(())
    }

    fn change(&self, f: &mut dyn FnMut()) -> Result<()> {
        let content = &self.content;
        let _change = content.marking.change(content.of())?;
        f();
        content.backing.attributes_changed();
        Ok(())
    }

    fn expose(&self, f: &mut dyn FnMut() -> bool) -> Result<()> {
        // Most of the work is done while other calls run.
        self.sync(0, u64::MAX)?;
        self.write_back()?;
        self.content.marking.settle(self.content.of())?;
        let _alone = self.alone();
        self.check_open()?;
        let content = &self.content;
        self.end_cut()?;
        self.sync_range(0, u64::MAX)?;
        content.write_back(self.segments())?;
        content.marking.settle(content.of())?;
        std::thread::sleep(TICK);
        if !f() {
            content.marking.leave(content.of());
        }
        Ok(())
    }

    fn is_own(&self) -> bool {
        self.content.marking.is_own(&self.content.backing)
    }

    fn leave(&self) {
        self.content.marking.leave(self.content.of());
    }

    fn go_on(&self) {
        self.content.marking.go_on(self.content.of());
    }

    fn leased(&self, seen: Option<Instant>) {
        self.content.marking.leased(seen.map(|seen| (seen, self.shared.patience())));
    }

    fn lease_seen(&self) -> Option<Instant> {
        self.content.marking.lease_seen()
    }

    fn outlast(&self) -> Result<bool> {
        let Content { store, backing, id, .. } = &*self.content;
        let Some(file) = backing.file() else { return Ok(false) };
        backing.check_ours().map_err(self.system("check"))?;
        store.keep(*id, file)
    }

    fn write_back(&self) -> Result<usize> {
        let _io = self.shared_io();
        self.content.write_back(self.segments())
    }

    fn is_dirty(&self) -> Result<bool> {
        for segment in self.segments() {
            if self.content.is_dirty(segment)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn close(&self) -> Result<()> {
        self.close_it(false)
    }

    fn complete(&self, then: &mut dyn FnMut()) -> Result<()> {
        let content = &self.content;
        let _alone = self.alone();
        self.check_open()?;
        self.end_cut()?;
        self.sync_range(0, u64::MAX)?;
        content.write_back(self.segments())?;
        content.trim()?;
        // What the program stores meanwhile by its mappings is synced after this.
        content.unmark(|| true)?;
        then();
        Ok(())
    }

    fn close_to_reopen(&self) -> Result<()> {
        self.close_it(true)
    }
}

impl<T: Track> Inner<T> {
    /// Closes the file.  If it is opened `again` by the same open file description, its locks
    /// stay.
    pub fn close_it(&self, again: bool) -> Result<()> {
        let closed = self.close_all(again);
        if closed.is_err() && self.content.backing.check_ours().is_err() {
            self.content.marking.give_up(self.content.of());
        }
        closed
    }

    fn close_all(&self, again: bool) -> Result<()> {
        let content = &self.content;
        let _alone = self.alone();
        if content.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        for segment in self.segments() {
            let pins = content.pins[segment].swap(0, Ordering::SeqCst);
            self.shared.unpin(pins);
        }
        self.end_cut()?;
        // The sync comes before the mapping is withdrawn: if a thread with SIGSEGV blocked then
        // touches the mapping, the program ends.
        self.sync_range(0, u64::MAX)?;
        // Threads may store until here, and what they have stored is not lost.  A frame that is
        // released below soon belongs to another file.
        let withdrawn = self.tracker.withdraw().map_err(self.system("withdraw its mapping"));
        self.sync_range(0, u64::MAX)?;
        content.write_back(self.segments())?;
        withdrawn?;
        for segment in self.segments() {
            // The mapping is withdrawn, so the segment has no store that was not synced.  No thread
            // can reach the frame after it belongs to another file.
            match self.tracker.discard(segment, || true, || content.release(segment, false)) {
                Ok(()) => {}
                Err(NotEvicted::InUse) => content.release(segment, false)?,
                Err(e) => return Err(self.not_gone(e)),
            }
        }
        content.trim()?;
        content.settle_promise()?;
        // The record is removed last: without it no one could tell whose mark the file bears.
        content.unmark(|| true)?;
        content.store.remove_file(content.id)?;
        // A round of write-back may hold this object for as long as another file's sync takes.
        match again {
            true => content.backing.hand_over(),
            false if planted::is(Planted::LockKept) => {}
            false => content.backing.free(),
        }
        Ok(())
    }
}
