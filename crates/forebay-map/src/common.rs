// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a cache share the options, the frames, and the choice of the file that has to give
//! one back.  The work of the thread that writes back is here too.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backing::Backing;
use crate::claims::{Claim, Claims};
use crate::content::Content;
use crate::error::{Error, Result};
use crate::features::Features;
use crate::locked::lock;
use crate::patience::Patience;
use crate::store::Store;
use crate::threads;

/// How long the search for a free frame waits for one file's disk before it goes on with other
/// files.
const RELEASE_WAIT: Duration = Duration::from_millis(20);
/// The most threads that wait for one file's disk in such searches.
const RELEASES: usize = 4;

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
    /// Starts no thread: the caller runs the rounds ([`Cache::round`](crate::Cache::round)).
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
    pub files: Mutex<Vec<Weak<dyn InPool>>>,
    /// Files that are shared, of another process.
    pub visits: Mutex<Vec<Weak<dyn Ticks>>>,
    /// The files that are being opened.  No lock is held meanwhile: an open waits for storage, and
    /// may need a frame.
    opening: Claims,
    /// Pages synced since the last round.
    synced: AtomicUsize,
    pub stop: AtomicBool,
    wake: Condvar,
    awake: Mutex<bool>,
    /// Why the last round failed.
    pub failure: Mutex<Option<String>>,
    /// Whether threads of their own release frames.  One slow disk must not hold up the processes
    /// that wait for frames of other files.
    pub releases_apart: AtomicBool,
    pub releasing: Mutex<Vec<JoinHandle<()>>>,
    /// Open from the first lease of a file on.
    patience: OnceLock<Arc<Patience>>,
}

/// The calls of a cache to each of its files.
pub(crate) trait InPool: Send + Sync {
    fn content(&self) -> &Content;
    fn closed(&self) -> bool;
    /// Runs a round of write-back and returns the number of pages written.
    fn round(&self) -> Result<usize>;
    /// Releases a segment's frame, after a sync of the stores that were not synced.
    fn give_back(&self, segment: usize) -> Result<Reclaimed>;
}

/// A shared file of another process, as its cache sees it.
pub(crate) trait Ticks: Send + Sync {
    /// Starts to watch segments that are quiet.
    fn tick(&self) -> Result<()>;
}

/// A thread that releases a frame.
struct Releases(Arc<AtomicUsize>);

impl Drop for Releases {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    pub fn new(store: Arc<dyn Store>, options: Options) -> Shared {
        Shared {
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
        }
    }

    /// How long the kernel delays others while there is a lease.
    pub fn patience(&self) -> Arc<Patience> {
        Arc::clone(self.patience.get_or_init(|| Arc::new(Patience::open())))
    }

    /// Waits for another open of the same file.
    pub fn begin_to_open(&self, backing: &dyn Backing) -> Result<Claim<'_>> {
        let opening = self.opening.claim(backing.identity());
        lock(&self.files).retain(|f| f.strong_count() > 0);
        for file in self.all() {
            // A round may still hold a file that is closed.
            if !file.closed() && file.content().backing.identity() == backing.identity() {
                let path = backing.path().to_owned();
                return Err(Error::Refused { path, why: "it is open here: clone that".into() });
            }
        }
        Ok(opening)
    }

    fn all(&self) -> Vec<Arc<dyn InPool>> {
        lock(&self.files).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn wake_up(&self) {
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

    pub fn work(&self) {
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

    pub fn round(&self) -> Result<usize> {
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
