// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that the pool's server has open for the processes that share them, and the answers to
//! those processes.  Every request is checked, because any process may be hostile.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{Guests, Peer};
use crate::backing::{identity_at, Backing};
use crate::cache::{Cache, NOT_HOME};
use crate::claims::Claims;
use crate::common::{InPool, Options};
use crate::error::{Error, Result};
use crate::exclusive::{segments_within, Inner};
use crate::locked::lock;
use crate::pages::{PAGE, SEGMENT};
use crate::store::Store;
use crate::track::Track;
use crate::tracker::most_segments;
use crate::wire::{Answer, Request};

/// The least address space for a file to grow.
const ROOM: u64 = 1 << 30;

const ANOTHER: &str =
    "the server of the pool finds another file there (another mount, or it was replaced)";

/// A callback for a file that could not be closed.  Its data stays in the pool for a recovery,
/// and no process has it open any more.
pub struct GivenUp(pub Box<dyn Fn(u32) + Send + Sync>);

impl fmt::Debug for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenUp")
    }
}

type Home = Inner<Guests>;
/// An answer, and the descriptor that goes with it.
type Answered = (Answer, Option<OwnedFd>);

/// The number of segments that a user has pinned.
fn pinned(home: &Home) -> usize {
    home.content.pins.iter().filter(|pins| pins.load(Ordering::SeqCst) > 0).count()
}

/// Fails if the file was closed while a request waited: the last guest may have left, and the
/// record may now be another file's.
fn not_closed(home: &Home) -> Result<()> {
    match home.closed() {
        true => Err(Error::Pool("it is closed".into())),
        false => Ok(()),
    }
}

/// All shared files of a map.
#[derive(Debug)]
pub struct Homes {
    cache: Cache,
    peers: Mutex<BTreeMap<u64, Arc<dyn Peer>>>,
    /// The files by record number.
    files: Mutex<BTreeMap<u32, Arc<Home>>>,
    /// The files that are being opened or closed, by identity.  Each of these may wait for the
    /// file's disk, which must not hold up other files.
    changing: Claims,
    given_up: GivenUp,
}

impl Homes {
    pub fn new(store: Arc<dyn Store>, options: Options, given_up: GivenUp) -> Result<Homes> {
        let by_hand = options.by_hand;
        let cache = Cache::new(store, options)?;
        cache.shared().releases_apart.store(!by_hand, Ordering::SeqCst);
        Ok(Homes {
            cache,
            peers: Mutex::default(),
            files: Mutex::default(),
            changing: Claims::default(),
            given_up,
        })
    }

    /// Runs a round of write-back, for callers that run rounds themselves.
    pub fn round(&self) -> Result<usize> {
        self.cache.round()
    }

    /// Registers the connection on which a process takes orders.
    pub fn hears(&self, who: u64, peer: Arc<dyn Peer>) {
        lock(&self.peers).insert(who, peer);
    }

    fn all(&self) -> Vec<Arc<Home>> {
        lock(&self.files).values().cloned().collect()
    }

    /// The processes that have a file, by the file's record number.
    pub fn guests_of(&self, file: u32) -> Vec<u32> {
        let home = lock(&self.files).get(&file).cloned();
        home.map_or_else(Vec::new, |home| home.tracker.pids())
    }

    /// The processes that have any file, without duplicates.
    pub fn guests(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.all().iter().flat_map(|h| h.tracker.pids()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether a process has any file.
    pub fn has_any(&self, who: u64) -> bool {
        self.all().iter().any(|home| home.tracker.has(who))
    }

    /// Whether a process has the file with this record number.
    pub fn shares(&self, who: u64, file: u32) -> bool {
        self.home(who, file).is_ok()
    }

    /// Brings in a range of a file, as far as the file reaches, and keeps it in the pool until
    /// `unpin`.  It does so whether or not a process shares the file.  Returns the number of
    /// segments of the file that are pinned now.
    pub fn pin(&self, path: &Path, from: u64, to: u64) -> Result<usize> {
        let identity = identity_at(path)?;
        let changing = self.changing.claim(&identity);
        let Some(home) = self.find_or_open(&identity, || self.open(path, &identity, 0))? else {
            return Err(Error::Refused { path: path.to_owned(), why: NOT_HOME.into() });
        };
        let size = home.content.size();
        let pins = &home.content.pins;
        let is_free = |&s: &usize| pins[s].load(Ordering::SeqCst) == 0;
        let within = segments_within(from, to.min(size).saturating_sub(from), size);
        let wanted: Vec<usize> = within.filter(is_free).collect();
        if let Err(e) = self.cache.shared().pin(path, wanted.len()) {
            drop(changing);
            return self.close_if_empty(&home).and(Err(e));
        }
        // The pins keep the file open from here on.
        wanted.iter().for_each(|&segment| pins[segment].store(1, Ordering::SeqCst));
        drop(changing);
        match wanted.into_iter().try_for_each(|segment| home.tracker.keep(segment)) {
            Ok(()) => Ok(pinned(&home)),
            // A pin that fails leaves nothing pinned.
            Err(e) => self.unpin_it(&home).and(Err(e)),
        }
    }

    /// Removes all pins of a file.
    pub fn unpin(&self, path: &Path) -> Result<usize> {
        let identity = identity_at(path)?;
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

    /// Removes a process that is dead or has reported that it maps nothing any more.
    /// `all_synced`: all of its stores are durable.
    pub fn gone(&self, who: u64, all_synced: bool) -> Result<()> {
        // The process can join no file from here on: a join looks again when it is done.
        lock(&self.peers).remove(&who);
        let mut all = Ok(());
        for home in self.all() {
            if home.tracker.has(who) {
                all = all.and(self.left(&home, who, all_synced));
            } else if home.tracker.is_left() {
                // The sync of another guest may have found this one dead, and that guest may
                // have died since.
                all = all.and(self.close_if_empty(&home));
            }
        }
        all
    }

    fn left(&self, home: &Arc<Home>, who: u64, all_synced: bool) -> Result<()> {
        home.tracker.end_growth(who);
        if all_synced {
            home.tracker.go(who);
        } else {
            let _same_size = home.shared_io();
            home.tracker.lost(who)?;
        }
        self.close_if_empty(home)
    }

    /// Closes the file if its last guest has left.
    fn close_if_empty(&self, home: &Arc<Home>) -> Result<()> {
        let _changing = self.changing.claim(home.content.backing.identity());
        self.close_claimed(home)
    }

    /// Like `close_if_empty`.  The caller has claimed the file.
    fn close_claimed(&self, home: &Arc<Home>) -> Result<()> {
        let id = home.content.id;
        let has_any = !home.tracker.is_empty() || pinned(home) > 0;
        if has_any || lock(&self.files).remove(&id).is_none() {
            return Ok(());
        }
        home.close_it(false).inspect_err(|_| (self.given_up.0)(id))
    }

    fn home(&self, who: u64, file: u32) -> Result<Arc<Home>> {
        let home = lock(&self.files).get(&file).cloned();
        match home.filter(|home| home.tracker.has(who)) {
            Some(home) => Ok(home),
            None => Err(Error::Pool(format!("the process does not share file {file}"))),
        }
    }

    /// Answers a request of a process.  None: the request is not about shared files.
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
            Request::SyncAttributes { home, touched } => {
                plain(self.sync_attributes(who, home, touched))
            }
            Request::EndCut { home } => plain(self.alone(who, home, Home::end_cut)),
            Request::Resize { home, size } => plain(self.alone(who, home, |h| h.resize(size))),
            Request::Allocate { home, at, len } => plain(self.alone(who, home, |h| {
                let end = at.saturating_add(len);
                if end > h.content.size() {
                    h.resize(end)?;
                }
                h.content.allocate(at, len)
            })),
            Request::Grow { home, at, len } => {
                let mut from = 0;
                let done = self.alone(who, home, |h| {
                    from = at.unwrap_or(h.content.size());
                    h.prepare_growth(from.saturating_add(len))?;
                    h.tracker.begin_growth(who, from);
                    Ok(())
                });
                plain(done.map(|answer| match answer {
                    Answer::Done => Answer::At(from),
                    other => other,
                }))
            }
            Request::Grown { home, end, more } => plain(self.grown(who, home, end, more)),
            Request::GiveBack { home, segment } => plain(self.home(who, home).and_then(|h| {
                if segment < h.content.segments() as u64 {
                    h.give_back(segment as usize)?;
                }
                Ok(Answer::Done)
            })),
            Request::WriteBack { home } => plain(self.home(who, home).and_then(|h| {
                let _io = h.shared_io();
                let pages = h.content.write_back(0..h.content.segments())?;
                h.content.outlive_pool(0..0)?;
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
            let why = "its path must be absolute".into();
            return Err(Error::Refused { path: path.to_owned(), why });
        }
        self.join_by(who, visit, identity, || self.open(path, identity, room))
    }

    /// Opens the file with that identity, which the caller has claimed.
    fn open(&self, path: &Path, identity: &[u8], room: u64) -> Result<Option<Arc<Home>>> {
        // Otherwise the open would meet one of the other file.
        if identity_at(path)? != identity {
            return Err(Error::Refused { path: path.to_owned(), why: ANOTHER.into() });
        }
        // Address space that was not asked for is limited to what one mapping can have.
        let most = (most_segments() as u64).saturating_mul(SEGMENT as u64);
        let grown = |size: u64| size.saturating_mul(2).max(ROOM).min(most).max(size);
        self.cache.open_shared(path, |size| grown(size).max(room))
    }

    /// Joins with any implementation of [`Backing`].
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
        let _changing = self.changing.claim(identity);
        let Some(peer) = lock(&self.peers).get(&who).cloned() else {
            return Err(Error::Pool("it has no connection for orders: open that one first".into()));
        };
        // A recovery of this file may first have to close another file.
        let Some(home) = self.find_or_open(identity, open)? else {
            return Ok((Answer::Wait, None));
        };
        let path = || home.content.backing.path().to_owned();
        // Without this lock a guest that joins during a change of the size would not be
        // stopped.
        let same_size = home.shared_io();
        if !home.tracker.come(who, visit, peer) {
            let why = "it is open in this process: clone that";
            return Err(Error::Refused { path: path(), why: why.into() });
        }
        if !lock(&self.peers).contains_key(&who) {
            home.tracker.go(who);
            drop(same_size);
            self.close_claimed(&home)?;
            return Err(Error::Pool("the process has ended".into()));
        }
        let board = home.tracker.board().file().map_err(Error::system(&path(), "its board"))?;
        let (id, segments) = (home.content.id, home.content.segments() as u64);
        Ok((Answer::Joined { home: id, segments }, Some(board)))
    }

    /// Returns the open file or opens it.  The caller has claimed it.
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
            home.close_it(false).inspect_err(|_| (self.given_up.0)(home.content.id))?;
            return Err(Error::Refused { path, why: ANOTHER.into() });
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

    fn sync_attributes(&self, who: u64, home: u32, touched: bool) -> Result<Answer> {
        let home = self.home(who, home)?;
        not_closed(&home)?;
        let backing = &home.content.backing;
        if touched {
            backing.attributes_changed();
        }
        let settled = backing.settle_attributes(&|| backing.sync_all());
        settled.map(|()| Answer::Done).map_err(home.content.system("sync"))
    }

    /// Does not wait for other guests: a question of this one may have to be answered for that.
    fn grown(&self, who: u64, home: u32, end: u64, more: bool) -> Result<Answer> {
        let home = self.home(who, home)?;
        let is_longer = end > home.content.size();
        if home.tracker.growth() != Some(who) {
            // Asked again, after an answer that was too late.
            return match is_longer {
                true => Err(Error::Pool("it has no place after the end of the file".into())),
                false => Ok(Answer::Done),
            };
        }
        if is_longer {
            let Some(_alone) = home.try_size_alone() else { return Ok(Answer::Wait) };
            not_closed(&home)?;
            home.grow_to(end)?;
            home.tracker.publish();
        }
        if !more {
            home.tracker.end_growth(who);
        }
        Ok(Answer::Done)
    }

    /// Runs `f`, which changes the size, while no call of a guest is under way.
    fn alone(&self, who: u64, home: u32, f: impl FnOnce(&Home) -> Result<()>) -> Result<Answer> {
        let home = self.home(who, home)?;
        let _io = loop {
            home.tracker.wait_for_growth()?;
            let io = home.io_alone();
            if home.tracker.growth().is_none() {
                break io;
            }
        };
        // Calls that are under way may wait for a frame, so frames can be released until the
        // calls have ended.
        let _stopped = home.tracker.stop()?;
        let _alone = home.size_alone();
        not_closed(&home)?;
        f(&home).map(|()| Answer::Done)
    }
}
