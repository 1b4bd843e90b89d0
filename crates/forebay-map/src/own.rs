// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is this process's own, or that a server has for the processes that share it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use forebay::FoundMark;

use crate::backing::Backing;
use crate::cache::{segments_of, Reclaimed, Shared};
use crate::content::{Content, Segments};
use crate::error::{Error, Result};
use crate::features::Features;
use crate::file::Mapped;
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::{FileRecord, Stamp};
use crate::track::Track;
use crate::tracker::{Counts, NotEvicted, Tracker};

/// After so long another change of a file has another time: the longest tick of a kernel's clock.
const TICK: Duration = Duration::from_millis(11);

#[derive(Debug)]
pub(crate) struct Inner<T: Track = Tracker<Segments>> {
    /// First: nobody can fault when the rest goes away.
    pub tracker: T,
    pub content: Arc<Content>,
    shared: Arc<Shared>,
    /// The size that the program is told: it follows the file's when the bytes are there, too.
    shown: AtomicU64,
    /// A truncation has the file alone, and so has a write that makes it longer.
    io: RwLock<()>,
    /// Taken after that, for as long as the size changes: rounds and who gives a frame back
    /// only try it.  They must not wait for who has the file alone, or wants to, since he may
    /// wait for a segment that waits for a frame.
    resizing: RwLock<()>,
    /// Rounds since the file lacked something.
    complete: AtomicU32,
}

/// What a cache asks of each file that it has.
pub(crate) trait InPool: Send + Sync {
    fn content(&self) -> &Content;
    fn closed(&self) -> bool;
    /// A round of write-back; how many pages.
    fn round(&self) -> Result<usize>;
    /// Gives a segment's frame back; what was stored and not synced is synced before.
    fn give_back(&self, segment: usize) -> Result<Reclaimed>;
}

/// Parts of a range of bytes, one of each segment: which, where in it, and where in the range.
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

/// Segments that have a part of a range.
pub(crate) fn segments_within(at: u64, len: u64, room: u64) -> Range<usize> {
    let end = at.saturating_add(len).min(room);
    (at.min(end) / SEGMENT as u64) as usize..end.div_ceil(SEGMENT as u64) as usize
}

/// What a mark says, if there is one.
fn said_of(found: &FoundMark) -> Option<String> {
    match found {
        FoundMark::Nothing => None,
        FoundMark::Marked(mark) => Some(mark.to_string()),
        FoundMark::Damaged(why) => {
            Some(format!("it may lack writes: it bears a mark that cannot be read ({why})"))
        }
    }
}

impl Inner {
    /// A file that this process has for itself.
    pub fn open(shared: &Arc<Shared>, backing: Box<dyn Backing>, room: u64) -> Result<Arc<Inner>> {
        let path = backing.path().to_owned();
        let features = shared.options.features.clone();
        let features = features.unwrap_or_else(|| Features::detect(shared.store.memory(), 0));
        let capacity = shared.store.capacity();
        let fits = |segments| {
            match features.faults || segments <= capacity {
            true => Ok(()),
            false => Err(format!(
                "with room for it to grow it has {segments} segments of 2 MiB, and the pool has \
                 frames for {capacity}: all have to be there at once, since this user may not have \
                 them brought in when they are touched ({}); ask for less room (map-run --room), or \
                 take a pool with more (create --maps), or let the user have userfaultfd (sysctl \
                 vm.unprivileged_userfaultfd=1, or the right to open /dev/userfaultfd)",
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

/// Makes a file known to the pool, if it can be had.
pub(crate) fn content_of(
    shared: &Arc<Shared>,
    backing: Box<dyn Backing>,
    room: u64,
    fits: impl FnOnce(usize) -> std::result::Result<(), String>,
) -> Result<Arc<Content>> {
    let path = backing.path().to_owned();
    let size = backing.size().map_err(Error::system(&path, "stat"))?;
    let Some(segments) = segments_of(size.max(room)) else {
        return Err(Error::Refused { path, why: "it is empty, and has no room to grow".into() });
    };
    let Some(known_by) = path.to_str() else {
        return Err(Error::Refused { path, why: "its path is not UTF-8".into() });
    };
    // What is in the pool is not to outlive what the file was when it was opened.
    backing.sync_all().map_err(Error::system(&path, "sync"))?;
    let changed = backing.changed().map_err(Error::system(&path, "stat"))?;
    let record = FileRecord {
        size,
        identity: backing.identity().to_owned(),
        path: known_by.to_owned(),
        stamp: Stamp::Settled(changed),
        ..FileRecord::default()
    };
    if let Some((_, known)) =
        shared.store.files()?.into_iter().find(|(_, f)| f.identity == record.identity)
    {
        let why = format!("the pool has pages of it since a crash, as {}", known.path);
        return Err(Error::Refused { path, why });
    }
    if shared.store.is_brought_home(&record.identity)? {
        return Err(Error::Locked { path, by: None });
    }
    // Of this pool, too: it has nothing of the file, or not so that it can be read.
    if let Some(said) = said_of(&backing.marked().map_err(Error::system(&path, "its mark"))?) {
        let shown = path.display();
        let why = format!(
            "{said}; bring it home with that pool: forebay map recover; if that is gone: \
             forebay origin accept-loss {shown}"
        );
        return Err(Error::Refused { path, why });
    }
    fits(segments).map_err(|why| Error::Refused { path, why })?;
    let id = shared.store.add_file(&record)?;
    let content = Content::new(shared, backing, id, size, segments);
    content.marking.opened(changed);
    Ok(Arc::new(content))
}

impl<T: Track> Inner<T> {
    pub fn of(tracker: T, content: Arc<Content>, shared: &Arc<Shared>) -> Inner<T> {
        let shown = AtomicU64::new(content.size());
        Inner {
            shown,
            tracker,
            content,
            shared: Arc::clone(shared),
            io: RwLock::new(()),
            resizing: RwLock::new(()),
            complete: AtomicU32::new(0),
        }
    }

    pub fn shared_io(&self) -> RwLockReadGuard<'_, ()> {
        self.io.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> (RwLockWriteGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        let io = self.io_alone();
        (io, self.size_alone())
    }

    /// No call is under way.
    pub fn io_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.io.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after that.  From now on frames of the file are not given back.
    pub fn size_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.resizing.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: its size changes now.
    pub fn not_resizing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.resizing.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Asked with `io` held: what is stored after the close is neither in the file nor durable.
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
        self.tracker.check().map_err(content.system("what tells its stores"))?;
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

    /// Zeroes in the pool, of what is there.
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

    /// The last page may have been synced with what a program had stored behind the end.
    /// That counts as soon as the file is larger, so it is to be zero before.
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

    pub fn resize(&self, size: u64) -> Result<()> {
        let content = &self.content;
        self.end_cut()?;
        let old = content.size();
        if size > self.tracker.size() as u64 {
            let path = content.backing.path().to_owned();
            let why = format!("{size} bytes; it was opened with room for {}", self.tracker.size());
            return Err(Error::Refused { path, why });
        }
        if size >= old {
            return content.extend(size, || match planted::is(Planted::TailKept) {
                true => Ok(()),
                false => self.zero(old..size).and_then(|()| self.settle_tail(old)),
            });
        }
        content.cut(size, || self.forget(size))
    }

    /// Ends a truncation that has failed.  The caller has the file alone.
    pub fn end_cut(&self) -> Result<()> {
        match planted::is(Planted::CutNotEnded) {
            true => Ok(()),
            false => self.content.end_cut(|| self.forget(self.content.size())),
        }
    }

    /// What is behind the end is zero, or not there.
    fn forget(&self, size: u64) -> Result<()> {
        let behind = size.div_ceil(SEGMENT as u64) as usize;
        for segment in behind..self.content.segments() {
            let release = || self.content.release(segment, true);
            match self.tracker.discard(segment, || !self.pinned(segment), release) {
                Ok(()) => {}
                // It was not there, is locked, or there are no events: it is made zero.
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
        // A truncation is under way: another time.
        let Some(_same_size) = self.not_resizing() else { return Ok(0) };
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
        let Some(_same_size) = self.not_resizing() else { return Ok(Reclaimed::Busy) };
        if self.closed() || self.pinned(segment) {
            return Ok(Reclaimed::Nothing);
        }
        let content = &self.content;
        if !self.tracker.try_take(segment, |s, pages| content.make_durable(s, pages))? {
            return Ok(Reclaimed::Busy);
        }
        let discard = planted::is(Planted::DirtyDiscarded);
        if !discard {
            content.write_back([segment])?;
        }
        // Who locks it pins it first, and needs its lock then.
        let may = || !self.pinned(segment) || planted::is(Planted::PinNotSeen);
        planted::wait();
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
                return self.sync_range(at, len);
            }
            drop(io);
            let _alone = self.alone();
            self.end_cut()?;
        }
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let _io = self.shared_io();
        let content = &self.content;
        let n = content.size().saturating_sub(at).min(to.len() as u64) as usize;
        for (segment, from, range) in parts(at, n) {
            // The caller's memory may be a mapping, and wait for a segment that this thread
            // has locked: nothing is locked when it is touched.
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

    fn reserve(&self, len: u64) -> Result<u64> {
        let _io = self.alone();
        self.check_open()?;
        let _shows = Shows(self);
        let at = self.content.size();
        self.resize(at.saturating_add(len)).map(|()| at)
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
        Ok(())
    }

    fn expose(&self, f: &mut dyn FnMut() -> bool) -> Result<()> {
        // Most of it beside other calls.
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
            content.marking.give_up(content.of());
        }
        Ok(())
    }

    fn is_own(&self) -> bool {
        self.content.marking.is_own(&self.content.backing)
    }

    fn give_up(&self) {
        self.content.marking.give_up(self.content.of());
    }

    fn go_on(&self) {
        self.content.marking.go_on();
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
        self.close_it()
    }
}

impl Inner {
    /// Within the size; the caller sees to it that this does not change.
    fn write_within(&self, at: u64, from: &[u8]) -> Result<()> {
        let content = &self.content;
        for (segment, first, range) in parts(at, from.len()) {
            // As in `read`.
            let bytes = &from[range.clone()].to_vec()[..];
            // Whole segments that are not there need not come.
            let past = bytes.len() == SEGMENT && {
                self.tracker.with_present(segment, |there| match there {
                    Some(_) => Ok(false),
                    None => content.write_past(at + range.start as u64, bytes).map(|()| true),
                })
            }
            .map_err(self.system("write"))?;
            if !past {
                let pages = match planted::is(Planted::WriteNotTold) {
                    true => 0..0,
                    false => first / PAGE..(first + bytes.len()).div_ceil(PAGE),
                };
                let written = self.tracker.with_stored(segment, pages, |_| {
                    let frame = content.frame(segment).expect("it was brought in");
                    content.store.fill(frame, first, bytes)
                });
                written.map_err(self.system("bring in"))??;
            }
        }
        Ok(())
    }

    /// Writes one part after the other, and makes the file longer before; how much was written.
    /// The caller has it alone until the bytes are there, so that no other call sees zeroes in
    /// their place.  Frames of the file can be given back meanwhile: it may need them.
    fn write_longer(&self, io: RwLockWriteGuard<'_, ()>, at: u64, parts: &[&[u8]]) -> Result<u64> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let (old, end) = (self.content.size(), at.saturating_add(len as u64));
        let mut alone = Some(Alone { _shows: Shows(self), _io: io });
        if end > old {
            let _size = self.size_alone();
            self.resize(end)?;
        }
        let mut _among = None;
        if planted::is(Planted::WrittenBehind) || planted::is(Planted::SizeBeforeBytes) {
            alone = None;
            planted::wait();
            _among = Some(self.shared_io());
        }
        let mut whole = 0;
        for part in parts {
            let Err(e) = self.write_within(at + whole, part) else {
                whole += part.len() as u64;
                continue;
            };
            if end > old && alone.is_some() {
                let _size = self.size_alone();
                // What is not told as written is not there.
                let _ = self.resize(old.max(at + whole));
            }
            return if whole > 0 { Ok(whole) } else { Err(e) };
        }
        Ok(whole)
    }
}

/// Nobody else is at the file; what is there by then is shown before somebody can be.
struct Alone<'a> {
    _shows: Shows<'a>,
    _io: RwLockWriteGuard<'a, ()>,
}

/// The program is told the size as it is by the time that this is dropped, before others can
/// change it.
struct Shows<'a>(&'a Inner);

impl Drop for Shows<'_> {
    fn drop(&mut self) {
        self.0.shown.store(self.0.content.size(), Ordering::SeqCst);
    }
}

impl<T: Track> Inner<T> {
    pub fn close_it(&self) -> Result<()> {
        let closed = self.close_all();
        if closed.is_err() && self.content.backing.check_ours().is_err() {
            self.content.marking.give_up(self.content.of());
        }
        closed
    }

    fn close_all(&self) -> Result<()> {
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
        // Before access is withdrawn: a thread that has blocked SIGSEGV and touches the mapping then
        // ends the program.
        self.sync_range(0, u64::MAX)?;
        // A frame that is released below is soon another file's.  What is stored until here is synced.
        let withdrawn = self.tracker.withdraw().map_err(self.system("withdraw its mapping"));
        self.sync_range(0, u64::MAX)?;
        content.write_back(self.segments())?;
        withdrawn?;
        for segment in self.segments() {
            // Nobody reaches another's frame there.
            match self.tracker.discard(segment, || true, || content.release(segment, false)) {
                Ok(()) => {}
                Err(NotEvicted::InUse) => content.release(segment, false)?,
                Err(e) => return Err(self.not_gone(e)),
            }
        }
        content.trim()?;
        content.settle_promise()?;
        // The record goes last: without it nobody would know whose the mark is.
        content.unmark(|| true)?;
        content.store.remove_file(content.id)?;
        // A round of write-back may have this for as long as another file's sync takes.
        if !planted::is(Planted::LockKept) {
            content.backing.free();
        }
        Ok(())
    }
}
