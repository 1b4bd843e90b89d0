// SPDX-License-Identifier: MIT OR Apache-2.0
//! All files that are mapped onto one share of a pool, and how they are opened.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backing::{identity_at, Backing, RegularFile};
use crate::common::{InPool, Options, Shared, Ticks};
use crate::error::{Error, Result};
use crate::exclusive::{content_of, Inner};
use crate::file::MapFile;
use crate::locked::lock;
use crate::sharing::{Guest, Guests, Lent, Server};
use crate::store::Store;
use crate::threads;
use crate::tracker::check_segments;

/// How long an open waits until the pages of a process that died have been written back.
const HOME_WAIT: Duration = Duration::from_secs(120);
pub(crate) const NOT_HOME: &str = "the server of the pool is still writing back what a process \
     that died has left of it: try again, and see forebay map list";

/// How often a waiting open tries again.
pub(crate) const HOME_AGAIN: Duration = Duration::from_millis(20);

/// Fails if an open has waited since `begun` for longer than [`HOME_WAIT`].
pub(crate) fn not_for_ever(path: &Path, begun: Instant) -> Result<()> {
    match begun.elapsed() > HOME_WAIT {
        true => Err(Error::Refused { path: path.to_owned(), why: NOT_HOME.into() }),
        false => Ok(()),
    }
}

/// Files mapped onto one share.
#[derive(Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Cache {
    /// Makes a cache without files.  Pages that a crash left must have been recovered before
    /// ([`recover`](crate::recover::recover)).
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Cache> {
        let by_hand = options.by_hand;
        // The first sync knows it.
        store.look_for_loss();
        let shared = Arc::new(Shared::new(store, options));
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
        let _opening = self.shared.begin_to_open(&*backing)?;
        let file = Inner::open(&self.shared, backing, room)?;
        let in_pool: Arc<dyn InPool> = Arc::<Inner>::clone(&file);
        lock(&self.shared.files).push(Arc::downgrade(&in_pool));
        Ok(MapFile::of(file))
    }

    /// Opens a file for guests.
    pub(crate) fn share(&self, backing: Box<dyn Backing>, room: u64) -> Result<Arc<Inner<Guests>>> {
        let _opening = self.shared.begin_to_open(&*backing)?;
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
        let ticks: Arc<dyn Ticks> = Arc::<Guest>::clone(&guest);
        visits.push(Arc::downgrade(&ticks));
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
