// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that the server of a pool has open for the processes that share them, and what it
//! answers these.  What they ask is judged: any of them may be hostile.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{Guests, Peer};
use crate::backing::{Backing, RegularFile};
use crate::cache::{Cache, Options, NOT_HOME};
use crate::content::lock;
use crate::error::{Error, Result};
use crate::own::{segments_within, InPool, Inner};
use crate::pages::{PAGE, SEGMENT};
use crate::store::Store;
use crate::track::Track;
use crate::tracker::most_segments;
use crate::wire::{Answer, Request};

/// Address space for a file to grow, at least.
const ROOM: u64 = 1 << 30;

/// What is called for a file that could not be closed: what it has in the pool is for a recovery.
/// Nobody has it open any more.
pub struct GivenUp(pub Box<dyn Fn(u32) + Send + Sync>);

impl fmt::Debug for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenUp")
    }
}

type Home = Inner<Guests>;
/// An answer, and what comes with it.
type Answered = (Answer, Option<OwnedFd>);

/// Segments that are kept in memory by order of a user.
fn pinned(home: &Home) -> usize {
    home.content.pins.iter().filter(|pins| pins.load(Ordering::SeqCst) > 0).count()
}

/// While a question waited, the last guest may have left: its record may be another file's.
fn not_closed(home: &Home) -> Result<()> {
    match home.closed() {
        true => Err(Error::Pool("it is closed".into())),
        false => Ok(()),
    }
}

/// All that are shared of a map.
#[derive(Debug)]
pub struct Homes {
    cache: Cache,
    peers: Mutex<BTreeMap<u64, Arc<dyn Peer>>>,
    /// By the number of its record.
    files: Mutex<BTreeMap<u32, Arc<Home>>>,
    /// One is opened or closed at a time.
    opening: Mutex<()>,
    given_up: GivenUp,
}

impl Homes {
    pub fn new(store: Arc<dyn Store>, options: Options, given_up: GivenUp) -> Result<Homes> {
        Ok(Homes {
            cache: Cache::new(store, options)?,
            peers: Mutex::default(),
            files: Mutex::default(),
            opening: Mutex::new(()),
            given_up,
        })
    }

    /// A round of write-back, where that is the caller's.
    pub fn round(&self) -> Result<usize> {
        self.cache.round()
    }

    /// A process that takes orders.
    pub fn hears(&self, who: u64, peer: Arc<dyn Peer>) {
        lock(&self.peers).insert(who, peer);
    }

    fn all(&self) -> Vec<Arc<Home>> {
        lock(&self.files).values().cloned().collect()
    }

    /// Processes that have a file, by the number of its record.
    pub fn guests_of(&self, file: u32) -> Vec<u32> {
        let home = lock(&self.files).get(&file).cloned();
        home.map_or_else(Vec::new, |home| home.tracker.pids())
    }

    /// Processes that have any file, each once.
    pub fn guests(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.all().iter().flat_map(|h| h.tracker.pids()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether a process has a file.
    pub fn has_any(&self, who: u64) -> bool {
        self.all().iter().any(|home| home.tracker.has(who))
    }

    /// Brings a range of a file in, as far as that reaches, and keeps it there until `unpin`,
    /// whether somebody shares it or not.  How many segments of it are kept now.
    pub fn pin(&self, path: &Path, from: u64, to: u64) -> Result<usize> {
        let identity = RegularFile::look(path)?.identity().to_vec();
        let opening = lock(&self.opening);
        let Some(home) = self.find_or_open(&identity, || self.open(path, 0))? else {
            return Err(Error::Refused { path: path.to_owned(), why: NOT_HOME.into() });
        };
        let size = home.content.size();
        let pins = &home.content.pins;
        let is_free = |&s: &usize| pins[s].load(Ordering::SeqCst) == 0;
        let within = segments_within(from, to.min(size).saturating_sub(from), size);
        let wanted: Vec<usize> = within.filter(is_free).collect();
        if let Err(e) = self.cache.shared().pin(path, wanted.len()) {
            drop(opening);
            return self.close_if_empty(&home).and(Err(e));
        }
        // From now on nobody closes it.
        wanted.iter().for_each(|&segment| pins[segment].store(1, Ordering::SeqCst));
        drop(opening);
        match wanted.into_iter().try_for_each(|segment| home.tracker.keep(segment)) {
            Ok(()) => Ok(pinned(&home)),
            // Nothing is kept by half.
            Err(e) => self.unpin_it(&home).and(Err(e)),
        }
    }

    /// The opposite, of all of it.
    pub fn unpin(&self, path: &Path) -> Result<usize> {
        let identity = RegularFile::look(path)?.identity().to_vec();
        match self.all().into_iter().find(|h| h.content.backing.identity() == identity) {
            Some(home) => self.unpin_it(&home).map(|()| 0),
            None => Ok(0),
        }
    }

    fn unpin_it(&self, home: &Arc<Home>) -> Result<()> {
        for pins in &home.content.pins {
            self.cache.shared().unpin(pins.swap(0, Ordering::SeqCst));
        }
        self.close_if_empty(home)
    }

    pub fn pinned_of(&self, file: u32) -> usize {
        let home = lock(&self.files).get(&file).cloned();
        home.map_or(0, |home| pinned(&home))
    }

    /// It is dead, or has said that nothing of it is mapped any more.  `all_synced`: it has
    /// stored nothing that is not durable.
    pub fn gone(&self, who: u64, all_synced: bool) -> Result<()> {
        {
            // It comes to no file any more.
            let _opening = lock(&self.opening);
            lock(&self.peers).remove(&who);
        }
        let mut all = Ok(());
        for home in self.all() {
            if home.tracker.has(who) {
                all = all.and(self.left(&home, who, all_synced));
            } else if home.tracker.is_left() {
                // Who asked for a sync has seen that it is dead, and has died as well.
                all = all.and(self.close_if_empty(&home));
            }
        }
        all
    }

    fn left(&self, home: &Arc<Home>, who: u64, all_synced: bool) -> Result<()> {
        if all_synced {
            home.tracker.go(who);
        } else {
            let _same_size = home.shared_io();
            home.tracker.lost(who)?;
        }
        self.close_if_empty(home)
    }

    /// The last one has gone.
    fn close_if_empty(&self, home: &Arc<Home>) -> Result<()> {
        let _opening = lock(&self.opening);
        let id = home.content.id;
        let has_any = !home.tracker.is_empty() || pinned(home) > 0;
        if has_any || lock(&self.files).remove(&id).is_none() {
            return Ok(());
        }
        home.close_it().inspect_err(|_| (self.given_up.0)(id))
    }

    fn home(&self, who: u64, file: u32) -> Result<Arc<Home>> {
        let home = lock(&self.files).get(&file).cloned();
        match home.filter(|home| home.tracker.has(who)) {
            Some(home) => Ok(home),
            None => Err(Error::Pool(format!("it does not share a file of number {file}"))),
        }
    }

    /// What a process is answered.  None: that is no question about a file that is shared.
    pub fn answer(&self, who: u64, request: &Request) -> Option<Result<Answered>> {
        let plain = |answer: Result<Answer>| Some(answer.map(|answer| (answer, None)));
        match *request {
            Request::Join { visit, ref path, ref identity, room } => {
                Some(self.join(who, visit, Path::new(path), identity, room))
            }
            Request::Leave { home, unsynced } => plain(self.leave(who, home, unsynced)),
            Request::Fill { home, segment } => plain(self.fill(who, home, segment)),
            Request::Settle { home, segment } => plain(self.settle(who, home, segment)),
            Request::SyncOthers { home, at, len } => plain(self.sync_others(who, home, at, len)),
            Request::EndCut { home } => plain(self.alone(who, home, Home::end_cut)),
            Request::Resize { home, size, grow } => {
                plain(self.alone(who, home, |h| match grow && size <= h.content.size() {
                    true => Ok(()),
                    false => h.resize(size),
                }))
            }
            Request::Allocate { home, at, len } => plain(self.alone(who, home, |h| {
                let end = at.saturating_add(len);
                if end > h.content.size() {
                    h.resize(end)?;
                }
                h.content.allocate(at, len)
            })),
            Request::Reserve { home, len } => {
                let mut at = 0;
                let done = self.alone(who, home, |h| {
                    at = h.content.size();
                    h.resize(at.saturating_add(len))
                });
                plain(done.map(|answer| match answer {
                    Answer::Done => Answer::At(at),
                    other => other,
                }))
            }
            Request::GiveBack { home, segment } => plain(self.home(who, home).and_then(|h| {
                if segment < h.content.segments() as u64 {
                    h.give_back(segment as usize)?;
                }
                Ok(Answer::Done)
            })),
            Request::WriteBack { home } => plain(self.home(who, home).and_then(|h| {
                let _io = h.shared_io();
                let pages = h.content.write_back(0..h.content.segments())?;
                Ok(Answer::At(pages as u64))
            })),
            Request::IsDirty { home } => plain(self.home(who, home).and_then(|h| {
                for segment in 0..h.content.segments() {
                    if h.content.is_dirty(segment)? {
                        return Ok(Answer::Yes(true));
                    }
                }
                Ok(Answer::Yes(false))
            })),
            _ => None,
        }
    }

    fn join(
        &self,
        who: u64,
        visit: u32,
        path: &Path,
        identity: &[u8],
        room: u64,
    ) -> Result<Answered> {
        if !path.is_absolute() {
            let why = "it is not named as it has to be".into();
            return Err(Error::Refused { path: path.to_owned(), why });
        }
        self.join_by(who, visit, identity, || self.open(path, room))
    }

    fn open(&self, path: &Path, room: u64) -> Result<Option<Arc<Home>>> {
        // What nobody has asked for is no more than can be had.
        let most = (most_segments() as u64).saturating_mul(SEGMENT as u64);
        let grown = |size: u64| size.saturating_mul(2).max(ROOM).min(most).max(size);
        self.cache.open_shared(path, |size| grown(size).max(room))
    }

    /// The same of anything that is like a file.
    #[cfg(test)]
    pub(crate) fn join_backing(
        &self,
        who: u64,
        visit: u32,
        backing: Box<dyn Backing>,
        room: u64,
    ) -> Result<Answered> {
        let identity = backing.identity().to_vec();
        self.join_by(who, visit, &identity, || self.cache.share(backing, room).map(Some))
    }

    fn join_by(
        &self,
        who: u64,
        visit: u32,
        identity: &[u8],
        open: impl FnOnce() -> Result<Option<Arc<Home>>>,
    ) -> Result<Answered> {
        let _opening = lock(&self.opening);
        let Some(peer) = lock(&self.peers).get(&who).cloned() else {
            return Err(Error::Pool("it takes no orders: that has to be said before".into()));
        };
        // Who brings it home may have to close another one before.
        let Some(home) = self.find_or_open(identity, open)? else {
            return Ok((Answer::Wait, None));
        };
        let path = || home.content.backing.path().to_owned();
        // While the size changes it would not be among those that are stopped.
        let _same_size = home.shared_io();
        if !home.tracker.come(who, visit, peer) {
            let why = "it is open in this process: clone that";
            return Err(Error::Refused { path: path(), why: why.into() });
        }
        let board = home.tracker.board().file().map_err(Error::system(&path(), "its board"))?;
        let (id, segments) = (home.content.id, home.content.segments() as u64);
        Ok((Answer::Joined { home: id, segments }, Some(board)))
    }

    /// The caller holds `opening`.
    fn find_or_open(
        &self,
        identity: &[u8],
        open: impl FnOnce() -> Result<Option<Arc<Home>>>,
    ) -> Result<Option<Arc<Home>>> {
        let is_it = |home: &Arc<Home>| home.content.backing.identity() == identity;
        if let Some(home) = self.all().into_iter().find(is_it) {
            return Ok(Some(home));
        }
        let Some(home) = open()? else { return Ok(None) };
        if !is_it(&home) {
            let path = home.content.backing.path().to_owned();
            home.close_it().inspect_err(|_| (self.given_up.0)(home.content.id))?;
            let why = "the server of the pool finds another file there (another mount, or it was \
                       replaced)";
            return Err(Error::Refused { path, why: why.into() });
        }
        lock(&self.files).insert(home.content.id, Arc::clone(&home));
        Ok(Some(home))
    }

    fn leave(&self, who: u64, home: u32, unsynced: bool) -> Result<Answer> {
        let home = self.home(who, home)?;
        self.left(&home, who, !unsynced)?;
        Ok(Answer::Done)
    }

    fn fill(&self, who: u64, home: u32, segment: u64) -> Result<Answer> {
        let home = self.home(who, home)?;
        let segment = usize::try_from(segment).unwrap_or(usize::MAX);
        let Some(frame) = home.tracker.fill(segment, who)? else { return Ok(Answer::Wait) };
        home.content.grant_of(segment, frame, 0).map(|grant| Answer::Granted(Some(grant)))
    }

    fn settle(&self, who: u64, home: u32, segment: Option<u64>) -> Result<Answer> {
        let home = self.home(who, home)?;
        let Some(_same_size) = home.not_resizing() else { return Ok(Answer::Wait) };
        not_closed(&home)?;
        let content = &home.content;
        let granted = match segment.map(usize::try_from) {
            None => content.settle_size().map(|()| None),
            Some(Ok(s)) if s < content.segments() => content.grant(s),
            Some(_) => Err(Error::Pool("the file has no such segment".into())),
        };
        home.tracker.publish();
        granted.map(Answer::Granted)
    }

    fn sync_others(&self, who: u64, home: u32, at: u64, len: u64) -> Result<Answer> {
        let home = self.home(who, home)?;
        let Some(_same_size) = home.not_resizing() else { return Ok(Answer::Wait) };
        not_closed(&home)?;
        let end = at.saturating_add(len).min(home.tracker.size() as u64);
        let pages = (at.min(end) / PAGE as u64) as usize..end.div_ceil(PAGE as u64) as usize;
        home.tracker.sync_others(pages, Some(who))?;
        Ok(Answer::Done)
    }

    /// Its size changes, and no call of a guest is under way.
    fn alone(&self, who: u64, home: u32, f: impl FnOnce(&Home) -> Result<()>) -> Result<Answer> {
        let home = self.home(who, home)?;
        let _io = home.io_alone();
        // Calls that are under way may wait for a frame: until they have ended they are given back.
        let _stopped = home.tracker.stop()?;
        let _alone = home.size_alone();
        not_closed(&home)?;
        f(&home).map(|()| Answer::Done)
    }
}
