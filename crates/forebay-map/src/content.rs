// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file's content in the pool: its frames, the pages that the file lacks, and its size.
//!
//! Locks, in this order.  A thread may leave out any, and takes none that stands above one it holds:
//!
//! | lock | where | what it guards |
//! |---|---|---|
//! | `io` | `exclusive.rs` | calls, against a truncation and an append; threads get it in order |
//! | `resizing` | `size_lock.rs` | the size, against rounds and threads that release a frame, which only try it |
//! | a segment's | `tracker.rs` | the state of the segment; another segment's only by try_lock |
//! | `durable` | here | what the store knows of the size |
//! | `borne` | `marking.rs` | the mark, while it is set or removed |
//! | `on` | `marking.rs` | that the file is marked, for reading while a page becomes dirty |
//! | `writing` | here | one write-back at a time, and the release of a frame |
//! | a slot | here | the frame of a segment |
//! | `unsynced` | here | what was written past the pool |
//! | `changes` | `marking.rs` | the stamp; not together with `one` |
//! | `one` | `counted.rs` | one sync of the file at a time |
//! | the store's | `store.rs` | the pool's records |
//!
//! One case is the other way round: a truncation holds `durable` while it takes segments' locks.
//! It has `io` and `resizing` exclusively, so no thread that makes pages durable holds a segment's
//! lock then.  A fault may, and takes no `durable`.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crate::backing::Backing;
use crate::common::{Reclaimed, Shared};
use crate::counted::Counted;
use crate::error::{Error, Result};
use crate::locked::lock;
use crate::marking::{Change, Marking, Of};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::recover;
use crate::store::{not_foreign, Store, Synced};
use crate::wire::Grant;

mod no_space;
mod segments;

pub(crate) use segments::Segments;

/// For how long a fault waits for a frame.
const FRAME_WAIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub frame: Option<u32>,
    /// A frame that could be neither shown nor released.
    spare: Option<u32>,
    /// Bytes of the segment, from its start, whose blocks are allocated and durable.
    blocks: usize,
    /// Blocks were asked for and may not be durable yet.
    asked: bool,
}

#[derive(Debug)]
struct Durable {
    /// The size that the store knows.
    size: u64,
    /// The store may have a larger size: it did not answer.
    perhaps: bool,
    /// The store was told that the file may grow to this size.
    ahead: Option<u64>,
    /// The store knows of a truncation to the current size that has not ended.
    told: bool,
    /// The store is to learn of a truncation once that has ended: the file could not be marked.
    untold: bool,
    /// The file may have bytes after its end, from a truncation that has not ended.
    behind: bool,
}

#[derive(Debug)]
pub(crate) struct Content {
    pub store: Arc<dyn Store>,
    pub backing: Counted,
    pub shared: Weak<Shared>,
    /// The number of the file in the store.
    pub id: u32,
    pub size: AtomicU64,
    /// A copy of the size that the store knows, for readers that cannot wait for `durable`.
    known_size: AtomicU64,
    /// The store's size may be a promise: the file system may not have it durably.
    grows: AtomicBool,
    /// The number of truncations so far.
    cuts: AtomicU64,
    /// The store cannot promise sizes.
    unpromised: AtomicBool,
    /// The file has grown, so blocks are allocated ahead.
    has_grown: AtomicBool,
    /// The file may have blocks allocated after its end.
    blocks_behind: AtomicBool,
    durable: Mutex<Durable>,
    slots: Vec<Mutex<Slot>>,
    /// For each segment the time of its last use, to find the least recently used one.
    pub used: Vec<AtomicU64>,
    pub pins: Vec<AtomicUsize>,
    /// Threads that release a frame for another file.
    pub releases: Arc<AtomicUsize>,
    /// Allows one write-back at a time.
    writing: Mutex<()>,
    /// The file was written to directly, not through the pool, and has not been synced since.
    /// Holds the number of failed syncs before the first such write.  The lock is held during
    /// the sync, so that a concurrent sync does not end before it.
    unsynced: Mutex<Option<u64>>,
    pub closed: AtomicBool,
    /// A process stores bytes from this offset on, and the file gets them when they are there.
    /// `u64::MAX`: no process does.
    pub growing: AtomicU64,
    pub marking: Marking,
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
            backing: Counted::new(backing),
            shared: Arc::downgrade(shared),
            id,
            size: AtomicU64::new(size),
            known_size: AtomicU64::new(size),
            grows: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            unpromised: AtomicBool::new(false),
            has_grown: AtomicBool::new(false),
            blocks_behind: AtomicBool::new(false),
            durable: Mutex::new(Durable {
                size,
                perhaps: false,
                ahead: None,
                told: false,
                untold: false,
                behind: false,
            }),
            slots: (0..segments).map(|_| Mutex::default()).collect(),
            used: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            pins: (0..segments).map(|_| AtomicUsize::new(0)).collect(),
            releases: Arc::default(),
            writing: Mutex::new(()),
            unsynced: Mutex::new(None),
            closed: AtomicBool::new(false),
            growing: AtomicU64::new(u64::MAX),
            marking: Marking::default(),
        }
    }

    pub fn of(&self) -> Of<'_> {
        Of { store: &*self.store, id: self.id, backing: &self.backing }
    }

    /// Removes the mark of a file that has everything, if `may` allows it.  `may` is called when no
    /// page can become dirty meanwhile.
    pub fn unmark(&self, may: impl FnOnce() -> bool) -> Result<()> {
        // A recovery that has to end a truncation looks for the mark.
        if self.is_cut() {
            return Ok(());
        }
        self.settle_promise()?;
        self.marking.unmark(self.of(), || {
            if self.grows.load(Ordering::SeqCst) || !may() {
                return Ok(true);
            }
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
    pub fn inside(&self, segment: usize) -> usize {
        self.size().saturating_sub((segment * SEGMENT) as u64).min(SEGMENT as u64) as usize
    }

    /// Returns None if other threads are busy with frames and may free one.
    fn take_frame(&self, segment: usize) -> Result<Option<u32>> {
        let end = Instant::now() + FRAME_WAIT;
        loop {
            if let Some(frame) = self.store.take(self.id, segment as u64)? {
                return Ok(Some(frame));
            }
            let why = match self.shared.upgrade().map(|shared| shared.reclaim()) {
                Some(Ok(Reclaimed::Freed)) => continue,
                Some(Ok(Reclaimed::Busy)) => return Ok(None),
                Some(Err(e)) => e.to_string(),
                Some(Ok(Reclaimed::Nothing)) | None => "all are in use".into(),
            };
            if Instant::now() > end {
                return Err(Error::Full(why));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Brings a segment in.  The caller holds the tracker's lock of the segment.  None: the
    /// caller must try again without that lock.
    pub fn fill(&self, segment: usize) -> Result<Option<u32>> {
        if let Some(frame) = self.frame(segment) {
            return Ok(Some(frame));
        }
        if self.closed.load(Ordering::SeqCst) {
            let path = self.backing.path().to_owned();
            return Err(Error::Refused { path, why: "it is closed".into() });
        }
        self.release_spare(segment)?;
        let Some(frame) = self.take_frame(segment)? else { return Ok(None) };
        let filled = (|| {
            let inside = self.inside(segment);
            let at = (segment * SEGMENT) as u64;
            self.store.fill_from(frame, &self.backing, at, inside)?.map_err(self.system("read"))?;
            self.store.show(frame)
        })();
        let mut slot = self.slot(segment);
        if let Err(e) = filled {
            if self.give_up(frame, true).is_err() {
                slot.spare = Some(frame);
            }
            return Err(e);
        }
        // Blocks that were asked for before may not be durable still.
        *slot = Slot { frame: Some(frame), asked: slot.asked, ..Slot::default() };
        drop(slot);
        self.touch(segment);
        Ok(Some(frame))
    }

    /// Returns a frame to the pool.  If the store did not answer, the frame may belong to another
    /// file now or later, so this process does not touch it any more.
    fn give_up(&self, frame: u32, discard: bool) -> Result<()> {
        match self.store.release(frame, discard) {
            Err(Error::Unknown(_)) if !planted::is(Planted::UnansweredKept) => Ok(()),
            done => done,
        }
    }

    fn release_spare(&self, segment: usize) -> Result<()> {
        let mut slot = self.slot(segment);
        if let Some(frame) = slot.spare {
            self.give_up(frame, true)?;
            slot.spare = None;
        }
        Ok(())
    }

    fn failures(&self) -> u64 {
        self.backing.failures()
    }

    fn sync_file(&self, since: u64) -> Result<()> {
        self.backing.sync_since(since).map_err(self.system("sync"))
    }

    /// Writes to the file, past the pool.
    pub fn write_past(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let _change = self.marking.change(self.of()).map_err(io::Error::other)?;
        self.write_changing(at, from)
    }

    fn write_changing(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let since = self.failures();
        let written = self.backing.write_at(at, from);
        let mut unsynced = lock(&self.unsynced);
        // A later count would hide that the disk may lack what was written before.  Of two writes
        // at once the one that began first may come here last.
        let before = unsynced.filter(|_| !planted::is(Planted::FirstCountLost));
        let since = before.map_or(since, |before| match planted::is(Planted::LastCountLost) {
            true => before,
            false => before.min(since),
        });
        *unsynced = Some(since);
        written
    }

    /// Writes after the end of the file, past the pool.  The caller holds the segment's lock.
    pub fn append_past(&self, at: u64, from: &[u8]) -> Result<()> {
        let end = at + from.len() as u64;
        self.announce(end)?;
        let _change = self.marking.change(self.of())?;
        if let Err(e) = self.write_changing(at, from) {
            // The file may have a part of it.
            lock(&self.durable).behind = true;
            return Err(self.system("write")(e));
        }
        self.has_grown.store(true, Ordering::SeqCst);
        self.size.store(end, Ordering::SeqCst);
        Ok(())
    }

    /// Makes durable what was written to the file directly.
    pub fn settle_written(&self) -> Result<()> {
        let mut unsynced = lock(&self.unsynced);
        let Some(since) = *unsynced else { return Ok(()) };
        if since != self.failures() && !planted::is(Planted::FailureForgotten) {
            let path = self.backing.path().to_owned();
            let why = "a sync has failed since whole segments were written to the file itself, \
                       and the disk may lack them; what was synced before is kept in the pool";
            return Err(Error::Refused { path, why: why.into() });
        }
        self.sync_file(since)?;
        *unsynced = None;
        Ok(())
    }

    /// Makes the size durable, as a promise of the store or in the file system.
    pub fn settle_size(&self) -> Result<()> {
        let mut durable = lock(&self.durable);
        let size = self.size();
        if durable.size >= size {
            return Ok(());
        }
        if durable.ahead.is_some_and(|ahead| size <= ahead) {
            let promise = || self.store.promise(self.id, size);
            let promised = self.marking.with_mark(self.of(), promise);
            if !matches!(&promised, Err(e) if self.cannot_mark(e)) {
                return self.learns(&mut durable, size, promised);
            }
        }
        self.make_size(&mut durable)
    }

    /// Records the answer of the store to a larger size.
    fn learns(&self, durable: &mut Durable, size: u64, answer: Result<()>) -> Result<()> {
        let unknown = matches!(answer, Err(Error::Unknown(_)));
        durable.perhaps |= unknown && !planted::is(Planted::UnansweredKept);
        answer.map(|()| self.knows(durable, size))
    }

    fn knows(&self, durable: &mut Durable, size: u64) {
        durable.size = size;
        self.known_size.store(size, Ordering::SeqCst);
    }

    /// Makes the size durable in the file system and tells the store, so that nothing is only
    /// promised.
    fn make_size(&self, durable: &mut Durable) -> Result<()> {
        let size = self.size();
        if !planted::is(Planted::SizeNotSynced) {
            self.sync_file(self.failures())?;
        }
        let told = self.store.set_size(self.id, size);
        self.learns(durable, size, told)?;
        durable.ahead = None;
        self.grows.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Makes a promised size durable before the mark or the record is removed.  Does nothing
    /// while the file is longer than what was synced: after a crash the file must have the
    /// synced size.
    pub fn settle_promise(&self) -> Result<()> {
        let mut durable = lock(&self.durable);
        let grown = durable.size < self.size();
        if !self.grows.load(Ordering::SeqCst) || grown || planted::is(Planted::PromiseNotMade) {
            return Ok(());
        }
        self.make_size(&mut durable)
    }

    /// Tells the store the largest size that the file may have, before the file grows to it.
    fn announce(&self, size: u64) -> Result<()> {
        let mut durable = lock(&self.durable);
        if self.unpromised.load(Ordering::SeqCst) || durable.ahead.is_some_and(|a| size <= a) {
            return Ok(());
        }
        let ahead = size.next_multiple_of(SEGMENT as u64);
        // Recovery changes the size of a file that bears the mark, and of no other.
        let told = self.marking.with_mark(self.of(), || {
            self.grows.store(true, Ordering::SeqCst);
            self.store.set_ahead(self.id, ahead)
        });
        if matches!(&told, Err(e) if self.cannot_mark(e)) {
            return Ok(()); // the next sync makes the size durable in the file
        }
        match told? {
            true => durable.ahead = Some(ahead),
            false => {
                self.grows.store(false, Ordering::SeqCst);
                self.unpromised.store(true, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// The size up to which pages are written back: at most the size that the store knows.  The
    /// file is zero after that size, except where it was written to directly.
    fn written_size(&self) -> u64 {
        match self.unpromised.load(Ordering::SeqCst) {
            true => self.size(),
            false => self.size().min(self.known_size.load(Ordering::SeqCst)),
        }
    }

    /// Makes pages of a segment durable in the pool.  The caller holds the tracker's lock of
    /// the segment.  The blocks that the pages will need in the file are made durable before.
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
        // A dirty page is written back as far as the store knows the size.
        if self.written_size() < self.size() {
            self.settle_size()?;
        }
        let sync = || self.marking.with_mark(self.of(), || self.store.sync(frame, &pages));
        let synced = match sync() {
            Err(e) if self.cannot_mark(&e) => return self.write_through(segment, frame, &pages),
            synced => synced?,
        };
        if synced == Synced::BehindEnd {
            self.settle_size()?;
            if sync()? == Synced::BehindEnd {
                return Err(Error::Pool("a page within the file is after its end".into()));
            }
        }
        self.touch(segment);
        Ok(())
    }

    /// Returns what a guest needs to make pages of a segment durable itself, after the steps
    /// that come first in `make_durable`.  The caller ensures that the size does not change and
    /// that the mark stays as long as there are guests.
    pub fn grant(&self, segment: usize) -> Result<Option<Grant>> {
        let Some(frame) = self.frame(segment) else { return Ok(None) };
        let bytes = self.inside(segment);
        self.settle_blocks(segment)?;
        self.settle_size()?;
        self.marking.with_mark(self.of(), || Ok(()))?;
        self.touch(segment);
        self.grant_of(segment, frame, bytes).map(Some)
    }

    /// Like `grant`, but allocates no blocks: grants zero bytes if the segment lacks blocks.
    pub fn granted(&self, segment: usize) -> Result<Option<Grant>> {
        let Some(frame) = self.frame(segment) else { return Ok(None) };
        let has_blocks = self.slot(segment).blocks >= self.inside(segment);
        match has_blocks {
            true => self.grant(segment),
            false => self.grant_of(segment, frame, 0).map(Some),
        }
    }

    /// Makes a grant for a number of bytes.
    pub fn grant_of(&self, segment: usize, frame: u32, bytes: usize) -> Result<Grant> {
        let (segment, bytes, cuts) = (segment as u64, bytes as u32, self.cuts());
        let place = self.store.place_of(frame)?;
        Ok(Grant { segment, frame, bytes, cuts, place })
    }

    /// The number of truncations.  A grant from before a truncation is not valid any more.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    /// The size that is durable.
    pub fn settled_size(&self) -> u64 {
        self.known_size.load(Ordering::SeqCst)
    }

    /// The pages of a segment, within the file, that may not be durable as they are in memory.
    /// The file has other data for these pages, or lacks them.  For a page that the file lacks,
    /// the pool may hold an older durable version, and the file may hold data that is not
    /// durable yet.
    pub fn differing(&self, segment: usize) -> PageSet {
        let Some(frame) = self.frame(segment) else { return PageSet::EMPTY };
        let inside = self.inside(segment);
        let all = PageSet::of(0..inside.div_ceil(PAGE));
        let at = (segment * SEGMENT) as u64;
        let differing = recover::differing(&*self.store, frame, &self.backing, at, inside);
        // The dirty pages are read last: a page that is clean by then is durable in the file.
        match self.store.dirty(frame) {
            Ok((dirty, _)) => differing.with(&dirty.within(&all)),
            Err(_) => all,
        }
    }

    fn settle_blocks(&self, segment: usize) -> Result<()> {
        let inside = self.inside(segment);
        let asked = match &*self.slot(segment) {
            slot if slot.blocks >= inside => return Ok(()),
            slot => slot.asked || lock(&self.unsynced).is_some(),
        };
        let (at, len) = ((segment * SEGMENT) as u64, inside as u64);
        let mut blocks = inside;
        // A recovery will allocate the blocks.
        if self.marking.is_given_up() {
            return Ok(());
        }
        if asked || self.backing.has_hole(at, len).map_err(self.system("look for holes"))? {
            self.slot(segment).asked = true;
            let since = self.failures();
            let _change = self.marking.change(self.of())?;
            if self.allocate_ahead(segment, inside) {
                blocks = SEGMENT;
            } else {
                self.backing.allocate(at, len).map_err(self.system("allocate"))?;
            }
            if !planted::is(Planted::BlocksNotSynced) {
                self.sync_file(since)?;
            }
        }
        let mut slot = self.slot(segment);
        (slot.blocks, slot.asked) = (blocks, false);
        Ok(())
    }

    /// Allocates blocks for the whole of the last segment of a file that grows.  False if the
    /// segment is not the last one, the file does not grow, or the blocks cannot be had.
    fn allocate_ahead(&self, segment: usize, inside: usize) -> bool {
        if inside == SEGMENT || !self.has_grown.load(Ordering::SeqCst) {
            return false;
        }
        self.blocks_behind.store(true, Ordering::SeqCst);
        self.backing.allocate((segment * SEGMENT) as u64, SEGMENT as u64).is_ok()
    }

    /// Frees blocks after the end of the file.  The caller has the file exclusively, and
    /// nothing will be synced any more.
    pub fn trim(&self) -> Result<()> {
        let size = self.size();
        let longer = || self.backing.size().map_or(true, |now| now != size);
        if !self.blocks_behind.load(Ordering::SeqCst) || longer() {
            return Ok(());
        }
        let _change = self.marking.change(self.of())?;
        // A failure only wastes disk space.
        let _ = self.backing.cut_behind(size);
        Ok(())
    }

    /// Ends a sync: once the pool's file is lost, the pages have to be in this file.
    pub fn outlive_pool(&self, segments: Range<usize>) -> Result<()> {
        if self.store.lost().is_none() {
            return Ok(());
        }
        let since = self.failures();
        self.write_back(segments)?;
        match self.grows.load(Ordering::SeqCst) {
            true => self.sync_file(since),
            false => Ok(()),
        }
    }

    /// Writes dirty pages of the segments to the file and returns their number.  A page that
    /// cannot be read or written stays dirty and does not hold up the others.
    pub fn write_back(&self, segments: impl IntoIterator<Item = usize>) -> Result<usize> {
        not_foreign(&*self.store)?;
        let _writing = lock(&self.writing);
        let since = self.failures();
        let (mut begun, mut count, mut failed) = (Vec::new(), 0, Ok(()));
        // One for all runs: to begin one and to end it costs as much as to write a page.
        let mut change = None;
        for segment in segments {
            let Some(frame) = self.frame(segment) else { continue };
            let mut pages = PageSet::EMPTY;
            match self.store.write_begin(frame, &PageSet::ALL) {
                Ok(dirty) => {
                    for run in dirty.runs() {
                        match self.write_run(&mut change, segment, frame, run.clone()) {
                            Ok(whole) => pages.insert(whole),
                            // One bad page fails the whole run, so try the pages one by one.
                            Err(e) if run.len() == 1 => failed = Err(e),
                            Err(_) => run.for_each(|page| {
                                let page_alone = page..page + 1;
                                match self.write_run(&mut change, segment, frame, page_alone) {
                                    Ok(whole) => pages.insert(whole),
                                    Err(e) => failed = Err(e),
                                }
                            }),
                        }
                    }
                }
                Err(e) => failed = Err(e),
            }
            if !pages.is_empty() {
                count += pages.len();
                begun.push((frame, pages));
            }
        }
        drop(change);
        if !begun.is_empty() {
            if !planted::is(Planted::ClearedBeforeSync) {
                self.sync_file(since)?;
            }
            for (frame, pages) in &begun {
                if let Err(e) = self.store.write_end(*frame, pages) {
                    failed = Err(e);
                }
            }
            if planted::is(Planted::ClearedBeforeSync) {
                self.sync_file(since)?;
            }
        }
        failed.map(|()| count)
    }

    /// Returns the pages that are written.
    fn write_run<'a>(
        &'a self,
        change: &mut Option<Change<'a>>,
        segment: usize,
        frame: u32,
        run: Range<usize>,
    ) -> Result<Range<usize>> {
        let at = run.start * PAGE;
        let to = (segment * SEGMENT + at) as u64;
        // The size is read after the write-back of the pages has begun: a later sync makes the
        // pages dirty again.  The page at the end may have been synced with bytes that the file gets
        // only when it has grown, so it stays dirty until then.
        let growing = self.grows_in(segment) && !planted::is(Planted::EndWritten);
        let inside = self.written_size().saturating_sub(to).min((run.len() * PAGE) as u64) as usize;
        let mut bytes = vec![0; inside];
        self.store.copy(frame, at, &mut bytes)?;
        match change {
            Some(change) => change.next()?,
            None => *change = Some(self.marking.change(self.of())?),
        }
        self.backing.write_at(to, &bytes).map_err(self.system("write"))?;
        Ok(run.start..if growing { run.start + inside / PAGE } else { run.end })
    }

    /// Releases a segment's frame, which no thread can load from or store to any more.
    pub fn release(&self, segment: usize, discard: bool) -> Result<()> {
        self.release_spare(segment)?;
        // The lock keeps write-backs of the segment out.
        let _writing = lock(&self.writing);
        let mut slot = self.slot(segment);
        if let Some(frame) = slot.frame {
            self.give_up(frame, discard)?;
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

    /// Truncates.  An earlier truncation that failed must have ended ([`Content::end_cut`]).
    /// The caller has the file exclusively, except for faults.  `forget` removes or zeroes what
    /// lies after the new end; the store records the truncation before that.  From then on the
    /// size is the new one, even if this call fails.
    pub fn cut(&self, size: u64, forget: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut told = Ok(());
        {
            let mut durable = lock(&self.durable);
            let shorter = size < durable.size || durable.perhaps;
            if shorter && !planted::is(Planted::CutNotTold) {
                // Recovery ends a truncation only in a file with the mark: without the mark the
                // file was given up or replaced.
                let tell = || self.store.cut(self.id, size);
                told = match planted::is(Planted::CutNotMarked) {
                    true => tell(),
                    false => self.marking.with_mark(self.of(), tell),
                };
                // The store may have recorded the truncation or may still do so, so nothing
                // after the new end is acknowledged any more.
                let unknown = matches!(told, Err(Error::Unknown(_)));
                let untold = matches!(&told, Err(e) if self.cannot_mark(e));
                if untold {
                    told = Ok(());
                } else if told.is_err() && !unknown {
                    return told;
                }
                (durable.told, durable.untold) = (!untold, untold);
            }
            let known = size.min(durable.size);
            self.knows(&mut durable, known);
            durable.behind = true;
            self.cuts.fetch_add(1, Ordering::SeqCst);
            self.size.store(size, Ordering::SeqCst);
        }
        told.and_then(|()| self.end_cut(forget))
    }

    /// Whether a truncation has not ended.
    pub fn is_cut(&self) -> bool {
        let durable = lock(&self.durable);
        durable.behind || durable.told || durable.untold
    }

    /// Ends a truncation that has not ended.  This comes before the file grows and before a
    /// sync.
    pub fn end_cut(&self, forget: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut durable = lock(&self.durable);
        if durable.behind {
            forget()?;
            self.forget_blocks(self.size());
            let _change = self.marking.change(self.of())?;
            let since = self.failures();
            self.backing.set_size(self.size()).map_err(self.system("truncate"))?;
            self.sync_file(since)?;
            durable.behind = false;
        }
        if durable.untold {
            // The file has everything and is shorter by now, durably.
            durable.perhaps = true;
            let told = self.store.cut(self.id, self.size());
            durable.told = matches!(told, Ok(()) | Err(Error::Unknown(_)));
            durable.untold = !durable.told;
            told?;
            durable.perhaps = false;
        }
        if durable.told {
            self.store.cut_end(self.id)?;
            durable.told = false;
            durable.ahead = None;
            self.grows.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Forgets the blocks after the end of a file that is truncated.
    fn forget_blocks(&self, size: u64) {
        if planted::is(Planted::BlocksKept) {
            return;
        }
        for (segment, slot) in self.slots.iter().enumerate().skip((size / SEGMENT as u64) as usize)
        {
            let mut slot = lock(slot);
            let kept = size.saturating_sub((segment * SEGMENT) as u64).min(SEGMENT as u64) as usize;
            slot.blocks = slot.blocks.min(kept);
        }
    }

    /// Allocates blocks for a range within the size.
    pub fn allocate(&self, at: u64, len: u64) -> Result<()> {
        // The next sync asks for the blocks again: they may be allocated but not durable.
        let (first, end) = (at / SEGMENT as u64, at.saturating_add(len).div_ceil(SEGMENT as u64));
        for slot in self.slots.iter().take(end as usize).skip(first as usize) {
            lock(slot).asked = !planted::is(Planted::BlocksNotAsked);
        }
        let _change = self.marking.change(self.of())?;
        self.backing.allocate(at, len).map_err(self.system("allocate"))
    }

    /// Extends the file.  `prepare` puts what it gets into the memory after its end.
    pub fn extend(&self, size: u64, prepare: impl FnOnce() -> Result<()>) -> Result<()> {
        if size == self.size() {
            return Ok(());
        }
        prepare()?;
        self.announce(size)?;
        let _change = self.marking.change(self.of())?;
        self.backing.set_size(size).map_err(self.system("extend"))?;
        self.has_grown.store(true, Ordering::SeqCst);
        self.size.store(size, Ordering::SeqCst);
        Ok(())
    }
}
