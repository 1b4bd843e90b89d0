// SPDX-License-Identifier: MIT OR Apache-2.0
//! All files that are mapped onto one share of a pool: who has frames, and who has to give one
//! back.  The thread that writes back is here too.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backing::{identity_at, Backing, RegularFile};
use crate::claims::{Claim, Claims};
use crate::error::{Error, Result};
use crate::exclusive::{content_of, InPool, Inner};
use crate::features::Features;
use crate::file::MapFile;
use crate::locked::lock;
use crate::pages::SEGMENT;
use crate::patience::Patience;
use crate::sharing::{Guest, Guests, Lent, Server};
use crate::store::Store;
use crate::threads;
use crate::tracker::check_segments;

/// How long an open waits until the pages of a process that died have been written back.
const HOME_WAIT: Duration = Duration::from_secs(120);
pub(crate) const NOT_HOME: &str = "the server of the pool is still writing back what a process \
     that died has left of it: try again, and see forebay map list";

/// How long the search for a free frame waits for one file's disk before it goes on with other
/// files.
const RELEASE_WAIT: Duration = Duration::from_millis(20);
/// The most threads that wait for one file's disk in such searches.
const RELEASES: usize = 4;

/// How often a waiting open tries again.
pub(crate) const HOME_AGAIN: Duration = Duration::from_millis(20);

/// Fails if an open has waited since `begun` for longer than [`HOME_WAIT`].
pub(crate) fn not_for_ever(path: &Path, begun: Instant) -> Result<()> {
    match begun.elapsed() > HOME_WAIT {
        true => Err(Error::Refused { path: path.to_owned(), why: NOT_HOME.into() }),
        false => Ok(()),
    }
}

/// Called with a file, a byte of it, and a cause.
pub type Tell = dyn Fn(&Path, u64, &io::Error) + Send + Sync;

/// A callback for a segment that was touched and cannot be brought in.  It gets the file, the
/// offset of the segment and the cause.  The thread that touched the segment then gets SIGBUS. The
/// callback runs on a thread of this crate that also brings in other segments.  So it must be
/// quick, must not touch a mapping and must not call this crate.
#[derive(Clone)]
pub struct Unreadable(pub Arc<Tell>);

impl fmt::Debug for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unreadable")
    }
}

/// How files are mapped.
#[derive(Clone, Debug)]
pub struct Options {
    /// Between two rounds of write-back.
    pub interval: Duration,
    /// Dirty pages from which on a round begins at once; a sync does not wait for it.
    pub most_dirty: usize,
    /// Rounds without a store after which a segment is watched.
    pub quiet: u32,
    /// Segments of a file that syncs look at though they are quiet.  The first store to one of them
    /// is fast, and a sync of the whole takes up to 2 us longer for each.
    pub keep_looking: usize,
    /// Rounds without dirty pages after which the mark of a file is removed.
    pub unmark_after: u32,
    /// Segments that may be locked, of all files together.
    pub most_locked: usize,
    /// Starts no thread: the caller runs the rounds ([`Cache::round`]).
    pub by_hand: bool,
    /// The kernel features to use.  None: those that the kernel has.
    pub features: Option<Features>,
    /// Called before a SIGBUS.  None: nothing is called.
    pub unreadable: Option<Unreadable>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            interval: Duration::from_millis(500),
            most_dirty: 16 << 10,
            quiet: 2,
            keep_looking: 8,
            unmark_after: 4,
            most_locked: 64,
            by_hand: false,
            features: None,
            unreadable: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub options: Options,
    pub clock: AtomicU64,
    locked: AtomicUsize,
    files: Mutex<Vec<Weak<dyn InPool>>>,
    /// Files that are shared, of another process.
    visits: Mutex<Vec<Weak<Guest>>>,
    /// The files that are being opened.  No lock is held meanwhile: an open waits for storage, and
    /// may need a frame.
    opening: Claims,
    /// Pages synced since the last round.
    synced: AtomicUsize,
    stop: AtomicBool,
    wake: Condvar,
    awake: Mutex<bool>,
    /// Why the last round failed.
    failure: Mutex<Option<String>>,
    /// Whether threads of their own release frames.  One slow disk must not hold up the processes
    /// that wait for frames of other files.
    pub releases_apart: AtomicBool,
    releasing: Mutex<Vec<JoinHandle<()>>>,
    /// Open from the first lease of a file on.
    patience: OnceLock<Arc<Patience>>,
}

/// Files mapped onto one share.
#[derive(Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A thread that releases a frame.
struct Releases(Arc<AtomicUsize>);

impl Drop for Releases {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Cache {
    /// Makes a cache without files.  Pages that a crash left must have been recovered before
    /// ([`recover`](crate::recover::recover)).
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Cache> {
        let by_hand = options.by_hand;
        // The first sync knows it.
        store.look_for_loss();
        let shared = Arc::new(Shared {
            store,
            options,
            clock: AtomicU64::new(0),
            locked: AtomicUsize::new(0),
            files: Mutex::default(),
            visits: Mutex::default(),
            opening: Claims::default(),
            synced: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake: Condvar::new(),
            awake: Mutex::new(false),
            failure: Mutex::new(None),
            releases_apart: AtomicBool::new(false),
            releasing: Mutex::default(),
            patience: OnceLock::new(),
        });
        let mut cache = Cache { shared, thread: None };
        if !by_hand {
            let shared = Arc::clone(&cache.shared);
            let spawned = threads::spawn("map-write-back", move || shared.work());
            cache.thread = Some(spawned.map_err(|e| Error::Pool(format!("no thread: {e}")))?);
        }
        Ok(cache)
    }

    /// Opens a file for mapping, with room for it to grow to `room` bytes.  If a process that
    /// had the file mapped has died, the open waits until its pages have been written back.
    pub fn open(&self, path: &Path, room: u64) -> Result<MapFile> {
        self.when_home(path, |file| self.open_backing(Box::new(file), room))
    }

    /// Opens a file again after a close, by the open file description that it had.
    pub(crate) fn open_again(&self, path: &Path, room: u64, file: OwnedFd) -> Result<MapFile> {
        self.open_backing(Box::new(RegularFile::again(file, path)?), room)
    }

    /// Opens a file for guests.  `room` computes the room from the file's size.  Returns None,
    /// without waiting, while the pages of a process that died are being written back.
    pub(crate) fn open_shared(
        &self,
        path: &Path,
        room: impl Fn(u64) -> u64,
    ) -> Result<Option<Arc<Inner<Guests>>>> {
        self.if_home(path, |file| {
            file.free_records().map_err(Error::system(path, "free its records"))?;
            let size = file.size().map_err(Error::system(path, "stat"))?;
            self.share(Box::new(file), room(size))
        })
    }

    /// Waits while the pages of a dead process are being written back.
    pub(crate) fn wait_until_home(&self, path: &Path) -> Result<()> {
        let begun = Instant::now();
        while self.is_brought_home(path)? {
            not_for_ever(path, begun)?;
            std::thread::sleep(HOME_AGAIN);
        }
        Ok(())
    }

    fn is_brought_home(&self, path: &Path) -> Result<bool> {
        // The open that follows reports the reason if there is no such file.
        let identity = identity_at(path).ok();
        identity.map_or(Ok(false), |identity| self.shared.store.is_brought_home(&identity))
    }

    fn when_home<R>(&self, path: &Path, open: impl Fn(RegularFile) -> Result<R>) -> Result<R> {
        let begun = Instant::now();
        loop {
            if let Some(opened) = self.if_home(path, &open)? {
                return Ok(opened);
            }
            not_for_ever(path, begun)?;
            std::thread::sleep(HOME_AGAIN);
        }
    }

    fn if_home<R>(
        &self,
        path: &Path,
        open: impl Fn(RegularFile) -> Result<R>,
    ) -> Result<Option<R>> {
        let mut looked_again = false;
        loop {
            // The lease of a dead process would hold up this open until its pages are written back.
            if self.is_brought_home(path)? {
                return Ok(None);
            }
            let (locked, by_store) = match RegularFile::open(path) {
                Ok(file) => match open(file) {
                    // The store refuses while a dead process's pages are being written back.
                    // The file has to be unlocked for that.
                    Err(e @ Error::Locked { .. }) => (e, true),
                    done => return done.map(Some),
                },
                Err(e @ Error::Locked { .. }) => (e, false),
                Err(e) => return Err(e),
            };
            let identity = identity_at(path)?;
            if by_store || self.shared.store.is_brought_home(&identity)? {
                return Ok(None);
            }
            // A recovery that has just ended may have held the lock a moment ago, so look once
            // more.
            if std::mem::replace(&mut looked_again, true) {
                return Err(locked);
            }
        }
    }

    /// Opens any implementation of [`Backing`].
    pub fn open_backing(&self, backing: Box<dyn Backing>, room: u64) -> Result<MapFile> {
        let _opening = self.begin_to_open(&*backing)?;
        let file = Inner::open(&self.shared, backing, room)?;
        let in_pool: Arc<dyn InPool> = Arc::<Inner>::clone(&file);
        lock(&self.shared.files).push(Arc::downgrade(&in_pool));
        Ok(MapFile::of(file))
    }

    /// Opens a file for guests.
    pub(crate) fn share(&self, backing: Box<dyn Backing>, room: u64) -> Result<Arc<Inner<Guests>>> {
        let _opening = self.begin_to_open(&*backing)?;
        let path = backing.path().to_owned();
        let content = content_of(&self.shared, backing, room, |segments| {
            // The limit is checked here, because a guest may ask for any size.
            check_segments(segments).map_err(|e| e.to_string())
        })?;
        let guests = Guests::new(Arc::clone(&content)).inspect_err(|_| {
            let _ = self.shared.store.remove_file(content.id);
        });
        let guests = guests.map_err(Error::system(&path, "its board"))?;
        let home = Arc::new(Inner::of(guests, content, &self.shared));
        let in_pool: Arc<dyn InPool> = Arc::<Inner<Guests>>::clone(&home);
        lock(&self.shared.files).push(Arc::downgrade(&in_pool));
        Ok(home)
    }

    /// Waits for another open of the same file.
    fn begin_to_open(&self, backing: &dyn Backing) -> Result<Claim<'_>> {
        let opening = self.shared.opening.claim(backing.identity());
        lock(&self.shared.files).retain(|f| f.strong_count() > 0);
        for file in self.shared.all() {
            // A round may still hold a file that is closed.
            if !file.closed() && file.content().backing.identity() == backing.identity() {
                let path = backing.path().to_owned();
                return Err(Error::Refused { path, why: "it is open here: clone that".into() });
            }
        }
        Ok(opening)
    }

    /// Maps a file that other processes map too.  A server has the file open for them.
    pub(crate) fn visit(
        &self,
        server: Arc<dyn Server>,
        lent: Arc<dyn Lent>,
        path: &Path,
        identity: &[u8],
        room: u64,
    ) -> Result<MapFile> {
        let guest = Guest::join(&self.shared, server, lent, path, identity, room)?;
        let mut visits = lock(&self.shared.visits);
        visits.retain(|v| v.strong_count() > 0);
        visits.push(Arc::downgrade(&guest));
        Ok(MapFile::of(guest))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs a round of write-back: writes dirty pages to the files and starts to watch segments
    /// that are quiet.  Returns the number of pages written.
    pub fn round(&self) -> Result<usize> {
        self.shared.round()
    }

    /// The error of the thread's last round, if it failed.  The pages stay dirty, and the next
    /// round tries again.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let releasing = std::mem::take(&mut *lock(&self.shared.releasing));
        for thread in releasing {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// How long the kernel delays others while there is a lease.
    pub fn patience(&self) -> Arc<Patience> {
        Arc::clone(self.patience.get_or_init(|| Arc::new(Patience::open())))
    }

    fn all(&self) -> Vec<Arc<dyn InPool>> {
        lock(&self.files).iter().filter_map(Weak::upgrade).collect()
    }

    fn wake_up(&self) {
        *lock(&self.awake) = true;
        self.wake.notify_all();
    }

    /// Counts more segments as locked, if the limits allow it.
    pub fn pin(&self, path: &Path, segments: usize) -> Result<()> {
        // The other half of the frames is for segments that are not locked.
        let half = self.store.capacity() / 2;
        let most = self.options.most_locked.min(half);
        let more = |l: usize| (l + segments <= most).then_some(l + segments);
        let refused = |of: &str| Error::Refused {
            path: path.to_owned(),
            why: format!("{segments} segments to be locked; {most} may be, of all files{of}"),
        };
        let pinned = self.locked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        pinned.map_err(|_| refused(""))?;
        match self.store.pin(segments) {
            Ok(true) => Ok(()),
            told => {
                self.locked.fetch_sub(segments, Ordering::SeqCst);
                told.and_then(|_| Err(refused(", and half of the map's of all processes")))
            }
        }
    }

    pub fn unpin(&self, segments: usize) {
        if segments > 0 {
            self.locked.fetch_sub(segments, Ordering::SeqCst);
            self.store.unpin(segments);
        }
    }

    /// Counts synced pages, and wakes the write-back when there are many.
    pub fn count_synced(&self, pages: usize) {
        let most = self.options.most_dirty;
        let before = self.synced.fetch_add(pages, Ordering::Relaxed);
        if before < most && before + pages >= most {
            self.wake_up();
        }
    }

    fn work(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut awake = lock(&self.awake);
            if !*awake {
                awake = match self.wake.wait_timeout(awake, self.options.interval) {
                    Ok((awake, _)) => awake,
                    Err(e) => e.into_inner().0,
                };
            }
            *awake = false;
            drop(awake);
            let failure = self.round().err().map(|e| e.to_string());
            *lock(&self.failure) = failure;
        }
    }

    fn round(&self) -> Result<usize> {
        self.synced.store(0, Ordering::Relaxed);
        self.store.look_for_loss();
        let (mut written, mut failed) = (0, Ok(0));
        for file in self.all() {
            match file.round() {
                Ok(pages) => written += pages,
                // The other files do not wait for this one.
                Err(e) => failed = Err(e),
            }
        }
        let visits: Vec<_> = lock(&self.visits).iter().filter_map(Weak::upgrade).collect();
        for visit in visits {
            if let Err(e) = visit.tick() {
                failed = Err(e);
            }
        }
        // Other processes have too few frames.
        for _ in 0..self.store.wanted() {
            if !matches!(self.reclaim(), Ok(Reclaimed::Freed)) {
                break;
            }
        }
        failed.map(|_| written)
    }

    /// Releases a segment's frame.  The file may be on a disk that does not answer.
    fn give_back(&self, file: &Arc<dyn InPool>, segment: usize) -> Result<Reclaimed> {
        if !self.releases_apart.load(Ordering::SeqCst) {
            return file.give_back(segment);
        }
        let more = |n: usize| (n < RELEASES).then_some(n + 1);
        let count = &file.content().releases;
        if count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return Ok(Reclaimed::Busy);
        }
        let releases = Releases(Arc::clone(count));
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let other = Arc::clone(file);
        let spawned = threads::spawn("map-release", move || {
            let _releases = releases;
            // The send fails if the thread that asked has stopped waiting.
            let _ = tell.send(other.give_back(segment));
        });
        let Ok(thread) = spawned else { return file.give_back(segment) };
        let mut releasing = lock(&self.releasing);
        releasing.retain(|thread| !thread.is_finished());
        releasing.push(thread);
        drop(releasing);
        told.recv_timeout(RELEASE_WAIT).unwrap_or(Ok(Reclaimed::Busy))
    }

    /// Makes a frame free: the least recently used one that can be made so.  Waits for no
    /// lock of a segment, and for no truncation, since the caller may hold one's lock.
    pub fn reclaim(&self) -> Result<Reclaimed> {
        let mut candidates = Vec::new();
        for file in self.all() {
            for segment in 0..file.content().segments() {
                if file.content().frame(segment).is_some() {
                    let used = file.content().used[segment].load(Ordering::Relaxed);
                    candidates.push((used, Arc::clone(&file), segment));
                }
            }
        }
        candidates.sort_by_key(|c| c.0);
        let mut found = Ok(Reclaimed::Nothing);
        for (_, file, segment) in candidates {
            match self.give_back(&file, segment) {
                Ok(Reclaimed::Freed) => return Ok(Reclaimed::Freed),
                Ok(Reclaimed::Busy) => found = Ok(Reclaimed::Busy),
                Ok(Reclaimed::Nothing) => {}
                Err(e) if !matches!(found, Ok(Reclaimed::Busy)) => found = Err(e),
                Err(_) => {}
            }
        }
        found
    }
}

/// The result of a search for a free frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reclaimed {
    /// A frame is free.
    Freed,
    /// Other threads are busy with frames and do not depend on the caller: try again.
    Busy,
    /// No frame can be freed now.
    Nothing,
}

/// The number of segments for a number of bytes.
pub(crate) fn segments_of(bytes: u64) -> Option<usize> {
    usize::try_from(bytes.div_ceil(SEGMENT as u64)).ok().filter(|&n| n > 0)
}
