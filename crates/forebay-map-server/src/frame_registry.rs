// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map whose frames other processes have: the owner of each file and frame, and what a
//! process may do with them.  Every request is checked, because a process may be hostile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use forebay_map::backing::{Backing, RegularFile};
use forebay_map::recover::{keep_stores, open_of, recover_some, Options, Report};
use forebay_map::sharing::Homes;
use forebay_map::store::{FileRecord, FrameInfo, Store};
use forebay_map::wire::{Answer, Request, FRAMES_MAX};
use forebay_map::{Error, PoolStore, Result};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::handed::{Handed, Kept};
use crate::locked::lock;
use crate::planted::{self, Planted};
use crate::warned::warn;

/// How long a process that found no free frame counts as in need.
const NEED: Duration = Duration::from_secs(3);
/// The most frames that a process is asked to release at once.
const BACK: usize = 4;

/// The server's own client number.  It has the files that processes share.
pub(crate) const OWN: u64 = 0;

/// A process with a connection.  `number` is that of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub number: u64,
    pub pid: u32,
    /// The process's pidfd.
    pub process: Arc<OwnedFd>,
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        self.number == other.number
    }
}

impl Client {
    pub fn is_dead(&self) -> bool {
        self.dies_within(Duration::ZERO)
    }

    /// Waits for the death of the process, for this time at most.
    pub fn dies_within(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let process = PollFd::new(&*self.process, PollFlags::IN);
        matches!(poll(&mut [process], Some(&time)), Ok(n) if n > 0)
    }
}

/// A file that a process has mapped, or had mapped when it died.
#[derive(Clone, Debug)]
struct Held {
    client: Client,
    identity: Vec<u8>,
    /// The process is dead, and the file is to be written back by whichever thread finds it
    /// first.
    dead: bool,
    /// The descriptor by which the process had the file open, with its lease and its locks.
    kept: Option<Arc<Kept>>,
}

#[derive(Debug, Default)]
struct Owned {
    files: BTreeMap<u32, Held>,
    /// For each frame the file and the segment of the file.
    frames: BTreeMap<u32, (u32, u64)>,
    /// Processes that need frames, and since when.
    needs: Vec<(u64, Instant)>,
    /// The number of segments that each process has pinned.
    pins: BTreeMap<u64, usize>,
}

impl Owned {
    /// The entry of a file, if this living process owns it.
    fn own(&self, client: &Client, file: u32) -> Result<&Held> {
        match self.files.get(&file) {
            Some(held) if held.client == *client && !held.dead => Ok(held),
            Some(held) if planted::is(Planted::AnyonesFrames) => Ok(held),
            _ => Err(Error::Pool(format!("file {file} of the map is not this process's"))),
        }
    }

    fn own_frame(&self, client: &Client, frame: u32) -> Result<()> {
        match self.frames.get(&frame) {
            Some(&(file, _)) => self.own(client, file).map(drop),
            None => Err(Error::Pool(format!("frame {frame} of the map is not this process's"))),
        }
    }

    /// The number of descriptors that are kept for a process.
    fn kept_of(&self, client: &Client) -> usize {
        self.files.values().filter(|held| held.client == *client && held.kept.is_some()).count()
    }

    fn of_client(&self, number: u64) -> usize {
        let own = |file| self.files.get(file).is_some_and(|h| h.client.number == number);
        self.frames.values().filter(|(file, _)| own(file)).count()
    }
}

/// The result of a recovery of a dead process's file.
#[derive(Debug)]
pub(crate) enum Home {
    /// The pool has nothing of the file any more.
    All,
    /// Another process has the file locked: try again later.
    Locked,
    /// Data that stays, and why.
    Stays(Report),
}

/// Which processes are dying.  Each is asked about once: the answer for a living one takes 2 ms, and
/// one process may have a thousand files.
pub(crate) struct Asked<'a> {
    ask: &'a dyn Fn(u32) -> bool,
    known: RefCell<BTreeMap<u32, bool>>,
}

impl Asked<'_> {
    pub fn new(ask: &dyn Fn(u32) -> bool) -> Asked<'_> {
        Asked { ask, known: RefCell::default() }
    }

    pub fn is_dying(&self, pid: u32) -> bool {
        *self.known.borrow_mut().entry(pid).or_insert_with(|| (self.ask)(pid))
    }
}

/// The result of keeping the stores that a dead process had not synced to a file.
#[derive(Debug, Default)]
struct Stores {
    /// The file, open and locked.  None: the recovery reports why it cannot be opened.
    file: Option<Box<dyn Backing>>,
    /// The file is not found: the report, if stores are lost.
    missing: Option<String>,
    /// Its disk has no room: the report, if stores are lost.
    no_room: Option<String>,
}

/// A map.
#[derive(Debug)]
pub(crate) struct FrameRegistry {
    pub map: String,
    pub store: Arc<PoolStore>,
    owned: Mutex<Owned>,
    /// The files that processes share, while they are served.
    homes: Mutex<Weak<Homes>>,
}

impl FrameRegistry {
    pub fn new(map: String, store: Arc<PoolStore>) -> FrameRegistry {
        FrameRegistry { map, store, owned: Mutex::default(), homes: Mutex::default() }
    }

    /// Allows files to be shared from now on.
    pub fn shares(&self, homes: &Arc<Homes>) {
        *lock(&self.homes) = Arc::downgrade(homes);
    }

    pub fn homes(&self) -> Option<Arc<Homes>> {
        lock(&self.homes).upgrade()
    }

    /// The number of segments that processes have pinned, and the server for users.
    pub fn pinned(&self) -> usize {
        self.owned().pins.values().sum()
    }

    /// Pins a range of a file, or with None unpins the file.  Returns the number of segments
    /// that are pinned now.  None: this needs a server.
    pub fn pin(&self, path: &Path, range: Option<(u64, u64)>) -> Option<Result<usize>> {
        let homes = self.homes()?;
        Some(match range {
            Some((from, to)) => homes.pin(path, from, to),
            None => homes.unpin(path),
        })
    }

    /// The segments of a file that the server keeps in memory for users.
    pub fn pinned_of(&self, file: u32) -> usize {
        self.homes().map_or(0, |homes| homes.pinned_of(file))
    }

    /// The processes that share the file with this number.
    pub fn shared_by(&self, file: u32) -> Vec<u32> {
        self.homes().map_or_else(Vec::new, |homes| homes.guests_of(file))
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        lock(&self.owned)
    }

    /// The process that has the file with this number mapped, or had it when it died.
    pub fn owner(&self, file: u32) -> Option<u32> {
        let held = self.owned().files.get(&file).cloned()?;
        match held.client.number == OWN && !held.dead {
            // The server has the file for its guests, or because it is pinned.
            true => Some(self.shared_by(file).first().copied().unwrap_or(held.client.pid)),
            false => Some(held.client.pid),
        }
    }

    /// Whether a process has the file with this number mapped, or had it when it died.
    pub fn is_mapped(&self, file: u32) -> bool {
        self.owned().files.contains_key(&file)
    }

    /// Whether the server writes the file with this number back, or is about to.  It does if the
    /// process that had the file, or one of those that shared it, is dead or dying.
    pub fn is_ending(&self, file: u32, asked: &Asked<'_>) -> bool {
        let Some(held) = self.owned().files.get(&file).cloned() else { return false };
        match held.client.number {
            _ if held.dead => true,
            OWN => {
                let guests = self.shared_by(file);
                // A file has no guest between the end of its last guest and its close.
                guests.is_empty() && self.pinned_of(file) == 0
                    || guests.into_iter().any(|pid| asked.is_dying(pid))
            }
            _ => held.client.is_dead() || asked.is_dying(held.client.pid),
        }
    }

    /// The processes that have files, without duplicates.
    pub fn clients(&self) -> Vec<u32> {
        let guests = self.homes().map_or_else(Vec::new, |homes| homes.guests());
        let owned = self.owned();
        let others = owned.files.values().filter(|held| held.client.number != OWN);
        let mut pids: Vec<u32> = others.map(|held| held.client.pid).chain(guests).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether a process has files.
    pub fn has_any(&self, client: &Client) -> bool {
        self.owned().files.values().any(|held| held.client == *client)
    }

    /// Answers a request of a process.
    pub fn answer(&self, client: &Client, request: &Request) -> Answer {
        let slow = matches!(request, Request::Release { .. } | Request::Cut { .. });
        if slow && planted::is(Planted::DoneLate) {
            std::thread::sleep(Duration::from_secs(1));
        }
        self.carry_out(client, request).unwrap_or_else(Answer::from)
    }

    /// Keeps the descriptor by which a process has a file open, until that file is closed or
    /// written back.
    pub fn keep(&self, client: &Client, file: u32, handed: Option<Handed>) -> Answer {
        // A descriptor is closed without the lock.
        let (mut before, mut rejected) = (None, None);
        let mut owned = self.owned();
        let answer = match owned.own(client, file) {
            Ok(_) => {
                let has = owned.kept_of(client);
                let kept = handed.and_then(|handed| match handed.keep(has) {
                    Ok(kept) => Some(Arc::new(kept)),
                    Err(handed) => {
                        rejected = Some(handed);
                        None
                    }
                });
                let answer = Answer::Yes(kept.is_some());
                let held = owned.files.get_mut(&file);
                before = held.and_then(|held| std::mem::replace(&mut held.kept, kept));
                answer
            }
            Err(e) => {
                rejected = handed;
                Answer::from(e)
            }
        };
        drop(owned);
        drop((before, rejected));
        answer
    }

    /// Closes the descriptors that a living process has handed over.
    pub fn release(&self, client: &Client) {
        let own = |held: &&mut Held| held.client == *client && !held.dead;
        let kept: Vec<_> =
            self.owned().files.values_mut().filter(own).map(|held| held.kept.take()).collect();
        drop(kept);
    }

    pub fn carry_out(&self, client: &Client, request: &Request) -> Result<Answer> {
        let store = &*self.store;
        // A descriptor is closed without the lock.
        let _removed;
        let mut owned = self.owned();
        let done = |()| Answer::Done;
        match *request {
            Request::Hello { .. }
            | Request::Bye
            | Request::Also { .. }
            | Request::Keep { .. }
            | Request::Orders { .. } => Err(Error::Pool("this request is not allowed now".into())),
            Request::AddFile { ref file } => add_file(store, &mut owned, client, file),
            Request::SetSize { file, size } => {
                owned.own(client, file)?;
                store.set_size(file, size).map(done)
            }
            Request::SetAhead { file, ahead } => {
                owned.own(client, file)?;
                store.set_ahead(file, ahead).map(Answer::Yes)
            }
            Request::Promise { file, size } => {
                owned.own(client, file)?;
                store.promise(file, size).map(done)
            }
            Request::Cut { file, size } => {
                owned.own(client, file)?;
                store.cut(file, size).map(done)
            }
            Request::CutEnd { file } => {
                owned.own(client, file)?;
                store.cut_end(file).map(done)
            }
            Request::SetStamp { file, stamp } => {
                owned.own(client, file)?;
                store.set_stamp(file, stamp).map(done)
            }
            Request::RemoveFile { file } => {
                owned.own(client, file)?;
                store.remove_file(file)?;
                _removed = owned.files.remove(&file);
                Ok(Answer::Done)
            }
            Request::Take { file, segment } => {
                owned.own(client, file)?;
                if owned.frames.values().any(|of| *of == (file, segment)) {
                    let why = format!("segment {segment} of file {file} has a frame");
                    return Err(Error::Pool(why));
                }
                let Some(frame) = take(store, &mut owned, client, file, segment)? else {
                    owned.needs.retain(|(number, _)| *number != client.number);
                    owned.needs.push((client.number, Instant::now()));
                    return Ok(Answer::Taken(None));
                };
                owned.frames.insert(frame, (file, segment));
                Ok(Answer::Taken(Some((frame, store.place(frame)?.into()))))
            }
            Request::Show { frame } => {
                owned.own_frame(client, frame)?;
                store.show(frame)?;
                Ok(Answer::Place(store.place(frame)?.into()))
            }
            Request::Release { frame, discard } => {
                owned.own_frame(client, frame)?;
                store.release(frame, discard)?;
                owned.frames.remove(&frame);
                Ok(Answer::Done)
            }
            Request::Place { frame } => {
                owned.own_frame(client, frame)?;
                Ok(Answer::Place(store.place(frame)?.into()))
            }
            Request::Pin { segments } => {
                // The other half of the frames stays available for segments that are not
                // pinned.
                let all: usize = owned.pins.values().sum();
                let fits = all.saturating_add(segments as usize) <= store.capacity() / 2;
                if fits {
                    *owned.pins.entry(client.number).or_default() += segments as usize;
                }
                Ok(Answer::Yes(fits))
            }
            Request::Unpin { segments } => {
                if let Some(pins) = owned.pins.get_mut(&client.number) {
                    *pins = pins.saturating_sub(segments as usize);
                }
                Ok(Answer::Done)
            }
            Request::IsBroughtHome { ref identity } => {
                let of = |held: &Held| {
                    held.identity == *identity && (held.dead || held.client.is_dead())
                };
                Ok(Answer::Yes(owned.files.values().any(of)))
            }
            Request::Lost => Ok(Answer::Lost(store.lost())),
            Request::Wanted => Ok(Answer::Number(wanted(store, &owned, client))),
            Request::FileFrom { file } => {
                let own = |(_, held): &(&u32, &Held)| held.client == *client && !held.dead;
                let Some((&id, _)) = owned.files.range(file..).find(own) else {
                    return Ok(Answer::File(None));
                };
                let record = store.files()?.into_iter().find(|(of, _)| *of == id);
                Ok(Answer::File(record))
            }
            Request::FramesFrom { frame } => {
                let own = |f: &u32| *f >= frame && owned.own_frame(client, *f).is_ok();
                let all = store.frames()?.into_iter().filter(|f| own(&f.frame));
                Ok(Answer::Frames(all.take(FRAMES_MAX).collect::<Vec<FrameInfo>>()))
            }
            _ => Err(Error::Pool("files are not shared here".into())),
        }
    }

    /// Gives up a file that has no guests any more and could not be closed.  Its data is
    /// recovered like that of a dead process.
    pub fn give_up(&self, file: u32) {
        if let Some(held) = self.owned().files.get_mut(&file) {
            held.dead = true;
        }
    }

    /// Records that a process has died or maps nothing any more, so that nothing stores to its
    /// frames.  Returns whether it had files.
    pub fn died(&self, client: &Client) -> bool {
        let mut owned = self.owned();
        let mut any = false;
        for held in owned.files.values_mut().filter(|held| held.client == *client) {
            (held.dead, any) = (true, true);
        }
        owned.needs.retain(|(number, _)| *number != client.number);
        owned.pins.remove(&client.number);
        any
    }

    /// The files of dead processes.
    pub fn of_the_dead(&self) -> Vec<u32> {
        let owned = self.owned();
        owned.files.iter().filter(|(_, held)| held.dead).map(|(&file, _)| file).collect()
    }

    /// Writes back what a dead process had synced to a file, as a recovery after a crash does.
    pub fn bring_home(&self, file: u32) -> Result<Home> {
        if planted::is(Planted::ForgottenEarly) {
            self.forget(file);
        }
        if planted::is(Planted::ReleasedEarly) {
            let held = self.owned().files.get_mut(&file).map(|held| held.kept.take());
            drop(held);
        }
        // One handle for both steps: its drop releases the locks that the process had.
        let opened = match self.keep_stores(file) {
            Err(e) if is_busy(&e) && !planted::is(Planted::TakenFromTheLiving) => {
                return Ok(Home::Locked);
            }
            Err(e) if is_busy(&e) => Stores::default(),
            opened => opened?,
        };
        let Stores { file: opened, mut missing, no_room } = opened;
        let opened = std::cell::Cell::new(opened.filter(|_| !planted::is(Planted::OpenedTwice)));
        planted::pause_at(&self.store.claim().at);
        let kept = self.kept(file);
        let frames: Vec<u32> = {
            let owned = self.owned();
            owned.frames.iter().filter(|(_, of)| of.0 == file).map(|(&frame, _)| frame).collect()
        };
        for frame in frames {
            // A clean frame, or one that was being filled, is freed at once.  Others stay.
            if self.store.release(frame, planted::is(Planted::DirtyFreed)).is_ok() {
                self.owned().frames.remove(&frame);
                missing.take().iter().for_each(|lost| warn(lost));
            }
        }
        let name = [format!("#{file}").into()];
        let locked = std::cell::Cell::new(false);
        let open = |path: &Path| {
            // The recovery looks whether it is the file of the record.
            let file = opened.take().map_or_else(|| self.open(file, path), Ok);
            locked.set(file.as_ref().is_err_and(is_busy));
            if planted::is(Planted::UnmarkedFirst) {
                let _ = file.as_ref().map(|file| file.unmark());
            }
            file
        };
        let how = Options { only: &name, ..Options::default() };
        let report = recover_some(&*self.store, &open, &how, &mut |_| {})?;
        drop(opened.take());
        if locked.get() {
            return Ok(Home::Locked);
        }
        if let (Some(kept), false) = (&kept, planted::is(Planted::LeaseKept)) {
            kept.release();
        }
        drop(kept);
        self.forget(file);
        no_room.iter().for_each(|lost| warn(lost));
        match report.refused.is_empty() {
            true => Ok(Home::All),
            false => Ok(Home::Stays(report)),
        }
    }

    /// Opens and locks the file of a dead process, and keeps stores that the process had not synced.
    fn keep_stores(&self, file: u32) -> Result<Stores> {
        let record = self.store.files()?.into_iter().find(|(of, _)| *of == file);
        let Some((_, mut record)) = record else { return Ok(Stores::default()) };
        let named = record.path.clone();
        let kept = self.kept(file);
        if let Some(now) = kept.as_ref().and_then(|kept| kept.path()) {
            record.path = now;
        }
        let of = |why: String| Some(format!("map {}: {named}: {why}", self.map));
        let backing = match open_of(&|path| self.open(file, path), &record) {
            Ok(backing) => backing,
            Err(e) if is_busy(&e) => return Err(e),
            Err(e) => {
                // Nobody can see what was stored to a file without a name.
                let missing = match kept.is_some_and(|kept| kept.is_deleted()) {
                    true => None,
                    false => of(format!("what its process stored and did not sync is lost: {e}")),
                };
                return Ok(Stores { missing, ..Stores::default() });
            }
        };
        if planted::is(Planted::GuestForgotten) {
            return Ok(Stores { file: Some(backing), ..Stores::default() });
        }
        let (mut missing, mut no_room) = (None, None);
        if backing.identity() != record.identity {
            let why = "what its process stored and did not sync is lost: another file is there \
                       now, and the file is not found under another name";
            missing = of(why.into());
        } else {
            let lost = keep_stores(&*self.store, file, &*backing)?;
            if lost > 0 {
                no_room = of(format!(
                    "{lost} pages that its process had stored and not synced are lost: its disk \
                     has no room for them"
                ));
            }
        }
        Ok(Stores { file: Some(backing), missing, no_room })
    }

    /// The file of a dead process cannot be written back now: nobody waits for that any more.  Where
    /// the server lacks rights, the descriptor stays: it may not open the path either.  Otherwise it
    /// is closed, so that a file system that fails can be unmounted.
    pub fn keep_nobody_waiting(&self, file: u32, why: &Error) {
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let stays = matches!(why.cause(), Error::System { error, .. } if denied(error));
        let kept = match self.owned().files.get_mut(&file) {
            Some(held) if stays => held.kept.clone(),
            Some(held) => held.kept.take(),
            None => None,
        };
        // It is closed without the lock.
        if let Some(kept) = kept {
            kept.release();
        }
    }

    fn kept(&self, file: u32) -> Option<Arc<Kept>> {
        self.owned().files.get(&file).and_then(|held| held.kept.clone())
    }

    /// Opens a dead process's file by the descriptor that the process had of it, if that is kept
    /// and the file is still there.
    fn open(&self, file: u32, path: &Path) -> Result<Box<dyn Backing>> {
        if let Some(kept) = self.kept(file) {
            if let Some(opened) = kept.open(path)? {
                return Ok(Box::new(opened));
            }
        }
        Ok(Box::new(RegularFile::open(path)?))
    }

    /// Forgets the file's owner.  The record may be free already, and its number may belong to
    /// a file of a living process.
    fn forget(&self, file: u32) {
        let anyones = planted::is(Planted::AnotherForgotten);
        if anyones {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A descriptor is closed without the lock.
        let _removed;
        let mut owned = self.owned();
        if anyones || owned.files.get(&file).is_some_and(|held| held.dead) {
            _removed = owned.files.remove(&file);
            owned.frames.retain(|_, of| of.0 != file);
        }
    }
}

/// Another process has the file locked, or the server lacks descriptors or memory for a moment,
/// which says nothing of the file.
fn is_busy(e: &Error) -> bool {
    let error = match e {
        Error::Locked { .. } => return true,
        Error::System { error, .. } => error,
        _ => return false,
    };
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|e| Some(e.raw_os_error()));
    short.contains(&error.raw_os_error())
}

fn add_file(
    store: &PoolStore,
    owned: &mut Owned,
    client: &Client,
    file: &FileRecord,
) -> Result<Answer> {
    let path = Path::new(&file.path);
    let refuse = |why: String| Err(Error::Refused { path: path.to_owned(), why });
    if !path.is_absolute() || file.identity.is_empty() || file.cut || file.damaged {
        return refuse("its record needs an absolute path and an identity".into());
    }
    let held = owned.files.values().find(|held| held.identity == file.identity);
    match held {
        Some(held) if held.client == *client && !held.dead => {
            return refuse("this process has it already".into());
        }
        // The owner does not hold the lock any more, so it is dead or about to die.
        Some(_) => return Ok(Answer::Wait),
        None => {}
    }
    if let Some((_, known)) = store.files()?.into_iter().find(|f| f.1.identity == file.identity) {
        return refuse(format!("the pool has pages of it since a crash, as {}", known.path));
    }
    let number = store.add_file(file)?;
    // Old entries of the number may be left from a file that was just recovered.
    owned.frames.retain(|_, of| of.0 != number);
    let (client, identity) = (client.clone(), file.identity.clone());
    let held = Held { client, identity, dead: false, kept: None };
    owned.files.insert(number, held);
    Ok(Answer::Number(number))
}

fn take(
    store: &PoolStore,
    owned: &mut Owned,
    client: &Client,
    file: u32,
    segment: u64,
) -> Result<Option<u32>> {
    let taken = store.take(file, segment)?;
    if taken.is_none() && planted::is(Planted::FrameGivenTwice) {
        let others = |of: &u32| owned.files.get(of).is_some_and(|h| h.client != *client);
        let of = owned.frames.iter().find(|(_, (of, _))| others(of)).map(|(&frame, _)| frame);
        if let Some(frame) = of {
            store.release(frame, true)?;
            return store.take(file, segment);
        }
    }
    Ok(taken)
}

/// The number of frames that a process should release: those above its share, while another
/// process is in need.
fn wanted(store: &PoolStore, owned: &Owned, client: &Client) -> u32 {
    let now = Instant::now();
    let need = |(number, since): &(u64, Instant)| {
        *number != client.number && now.duration_since(*since) < NEED
    };
    if !owned.needs.iter().any(need) {
        return 0;
    }
    let mut clients: Vec<u64> = owned.files.values().map(|h| h.client.number).collect();
    clients.sort_unstable();
    clients.dedup();
    let part = store.capacity() / clients.len().max(1);
    owned.of_client(client.number).saturating_sub(part).min(BACK) as u32
}
