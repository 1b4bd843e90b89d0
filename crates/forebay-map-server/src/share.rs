// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map that other processes have frames of: whose each file and frame is, and what a
//! process may have done with them.  What it asks for is judged here; it may be hostile.

use std::collections::BTreeMap;
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

use crate::planted::{self, Planted};
use crate::service::lock;

/// Who has found no free frame counts as in need for so long.
const NEED: Duration = Duration::from_secs(3);
/// So many frames at once are asked back of a process.
const BACK: usize = 4;

/// The number of the server itself, which has files for processes that share them.
pub(crate) const OWN: u64 = 0;

/// A process that has a connection, by the number of that.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub number: u64,
    pub pid: u32,
    /// Its pidfd.
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

    /// Waits for that, so long at most.
    pub fn dies_within(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let process = PollFd::new(&*self.process, PollFlags::IN);
        matches!(poll(&mut [process], Some(&time)), Ok(n) if n > 0)
    }
}

/// A file that a process has mapped, or had when it died.
#[derive(Clone, Debug)]
struct Held {
    client: Client,
    identity: Vec<u8>,
    /// Its pages are being brought home, by whoever sees that first.
    dead: bool,
}

#[derive(Debug, Default)]
struct Owned {
    files: BTreeMap<u32, Held>,
    /// Which file's, and which segment of it.
    frames: BTreeMap<u32, (u32, u64)>,
    /// Who needs frames, and since when.
    needs: Vec<(u64, Instant)>,
    /// Segments that each process has locked.
    pins: BTreeMap<u64, usize>,
}

impl Owned {
    /// Of a living process.
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

    fn of_client(&self, number: u64) -> usize {
        let own = |file| self.files.get(file).is_some_and(|h| h.client.number == number);
        self.frames.values().filter(|(file, _)| own(file)).count()
    }
}

/// What became of a file that a process had when it died.
#[derive(Debug)]
pub(crate) enum Home {
    /// The pool has nothing of it any more.
    All,
    /// Somebody has the file locked: later.
    Locked,
    /// What stays, and why.
    Stays(Report),
}

/// A map.
#[derive(Debug)]
pub(crate) struct Share {
    pub map: String,
    pub store: Arc<PoolStore>,
    owned: Mutex<Owned>,
    /// Files that processes share, as long as they are served.
    homes: Mutex<Weak<Homes>>,
}

impl Share {
    pub fn new(map: String, store: Arc<PoolStore>) -> Share {
        Share { map, store, owned: Mutex::default(), homes: Mutex::default() }
    }

    /// From now on files can be shared.
    pub fn shares(&self, homes: &Arc<Homes>) {
        *lock(&self.homes) = Arc::downgrade(homes);
    }

    fn homes(&self) -> Option<Arc<Homes>> {
        lock(&self.homes).upgrade()
    }

    /// Segments that processes have locked, and the server for its users.
    pub fn pinned(&self) -> usize {
        self.owned().pins.values().sum()
    }

    /// Keeps a part of a file in memory, or no more of it.  How many segments that is now; none:
    /// that needs a server.
    pub fn pin(&self, path: &Path, range: Option<(u64, u64)>) -> Option<Result<usize>> {
        let homes = self.homes()?;
        Some(match range {
            Some((from, to)) => homes.pin(path, from, to),
            None => homes.unpin(path),
        })
    }

    /// Segments of a file that the server keeps in memory for its users.
    pub fn pinned_of(&self, file: u32) -> usize {
        self.homes().map_or(0, |homes| homes.pinned_of(file))
    }

    /// The processes that share a file of this number.
    pub fn shared_by(&self, file: u32) -> Vec<u32> {
        self.homes().map_or_else(Vec::new, |homes| homes.guests_of(file))
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        lock(&self.owned)
    }

    /// The process that has a file of this number mapped, or had when it died.
    pub fn owner(&self, file: u32) -> Option<u32> {
        let held = self.owned().files.get(&file).cloned()?;
        match held.client.number == OWN && !held.dead {
            // The server has it for them, or to keep it in memory.
            true => Some(self.shared_by(file).first().copied().unwrap_or(held.client.pid)),
            false => Some(held.client.pid),
        }
    }

    /// Whether processes have a file of this number mapped, or one had when it died.
    pub fn is_mapped(&self, file: u32) -> bool {
        self.owned().files.contains_key(&file)
    }

    /// Processes that have files, each once.
    pub fn clients(&self) -> Vec<u32> {
        let guests = self.homes().map_or_else(Vec::new, |homes| homes.guests());
        let owned = self.owned();
        let others = owned.files.values().filter(|held| held.client.number != OWN);
        let mut pids: Vec<u32> = others.map(|held| held.client.pid).chain(guests).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether it has files or frames.
    pub fn has_any(&self, client: &Client) -> bool {
        self.owned().files.values().any(|held| held.client == *client)
    }

    /// What a process is answered.
    pub fn answer(&self, client: &Client, request: &Request) -> Answer {
        let slow = matches!(request, Request::Release { .. } | Request::Cut { .. });
        if slow && planted::is(Planted::DoneLate) {
            std::thread::sleep(Duration::from_secs(1));
        }
        self.carry_out(client, request).unwrap_or_else(Answer::from)
    }

    pub fn carry_out(&self, client: &Client, request: &Request) -> Result<Answer> {
        let store = &*self.store;
        let mut owned = self.owned();
        let done = |()| Answer::Done;
        match *request {
            Request::Hello { .. }
            | Request::Bye
            | Request::Also { .. }
            | Request::Orders { .. } => Err(Error::Pool("that was not to be said now".into())),
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
                owned.files.remove(&file);
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
                // The other half is for what is not locked.
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

    /// A file that nobody shares any more, and that could not be closed: what of it is in the
    /// pool is brought home as that of a process that has died.
    pub fn give_up(&self, file: u32) {
        if let Some(held) = self.owned().files.get_mut(&file) {
            held.dead = true;
        }
    }

    /// The process has died, or has nothing mapped any more: nobody stores to its frames.
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

    /// Files of processes that have died.
    pub fn of_the_dead(&self) -> Vec<u32> {
        let owned = self.owned();
        owned.files.iter().filter(|(_, held)| held.dead).map(|(&file, _)| file).collect()
    }

    /// Brings home what a process that has died had synced to a file, as recovery does after a
    /// crash of all.
    pub fn bring_home(&self, file: u32) -> Result<Home> {
        if planted::is(Planted::ForgottenEarly) {
            self.forget(file);
        }
        if self.keep_stores(file)? && !planted::is(Planted::TakenFromTheLiving) {
            return Ok(Home::Locked);
        }
        let frames: Vec<u32> = {
            let owned = self.owned();
            owned.frames.iter().filter(|(_, of)| of.0 == file).map(|(&frame, _)| frame).collect()
        };
        for frame in frames {
            // One that is clean, or was to be filled, is free at once; others stay.
            if self.store.release(frame, planted::is(Planted::DirtyFreed)).is_ok() {
                self.owned().frames.remove(&frame);
            }
        }
        let name = [format!("#{file}").into()];
        let locked = std::cell::Cell::new(false);
        let open = |path: &Path| -> Result<Box<dyn Backing>> {
            match RegularFile::open(path) {
                Ok(file) => {
                    if planted::is(Planted::UnmarkedFirst) {
                        let _ = file.unmark();
                    }
                    Ok(Box::new(file))
                }
                Err(e) => {
                    locked.set(matches!(e, Error::Locked { .. }));
                    Err(e)
                }
            }
        };
        let how = Options { only: &name, ..Options::default() };
        let report = recover_some(&*self.store, &open, &how, &mut |_| {})?;
        if locked.get() {
            return Ok(Home::Locked);
        }
        self.forget(file);
        match report.refused.is_empty() {
            true => Ok(Home::All),
            false => Ok(Home::Stays(report)),
        }
    }

    /// What the process had stored and not synced goes home as well.  Whether that has to wait,
    /// as somebody has the file locked.
    fn keep_stores(&self, file: u32) -> Result<bool> {
        if planted::is(Planted::GuestForgotten) {
            return Ok(false);
        }
        let record = self.store.files()?.into_iter().find(|(of, _)| *of == file);
        let Some((_, record)) = record else { return Ok(false) };
        let open =
            |path: &Path| -> Result<Box<dyn Backing>> { Ok(Box::new(RegularFile::open(path)?)) };
        match open_of(&open, &record) {
            Ok(backing) => keep_stores(&*self.store, file, &*backing).map(|()| false),
            Err(Error::Locked { .. }) => Ok(true),
            // The recovery tells it.
            Err(_) => Ok(false),
        }
    }

    /// It is nobody's from now on.  Its record may be free already, and then another file of a
    /// process that lives may have the number.
    fn forget(&self, file: u32) {
        let anyones = planted::is(Planted::AnotherForgotten);
        if anyones {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut owned = self.owned();
        if anyones || owned.files.get(&file).is_some_and(|held| held.dead) {
            owned.files.remove(&file);
            owned.frames.retain(|_, of| of.0 != file);
        }
    }
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
        return refuse("it is not named as it has to be".into());
    }
    let held = owned.files.values().find(|held| held.identity == file.identity);
    match held {
        Some(held) if held.client == *client && !held.dead => {
            return refuse("this process has it already".into());
        }
        // It has not been locked by that one any more, so that one is gone, or about to be.
        Some(_) => return Ok(Answer::Wait),
        None => {}
    }
    if let Some((_, known)) = store.files()?.into_iter().find(|f| f.1.identity == file.identity) {
        return refuse(format!("the pool has pages of it since a crash, as {}", known.path));
    }
    let number = store.add_file(file)?;
    // What is known of the number may be of a file that was brought home a moment ago.
    owned.frames.retain(|_, of| of.0 != number);
    let held = Held { client: client.clone(), identity: file.identity.clone(), dead: false };
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

/// How many frames a process is to give back: what it has more than its part of all, as long as
/// another one is in need.
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
