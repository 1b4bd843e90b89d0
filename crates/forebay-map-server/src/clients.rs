// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves the processes that map files onto the pool.  There is a socket for their requests, a
//! thread for each connection, and a thread that recovers what dead processes left.
//!
//! A process keeps its frames until its pidfd shows that it is dead, or until it reports that
//! it maps nothing any more.  The end of a connection says nothing about its memory.  Nothing
//! here waits for a process, so a stopped process only holds what it has.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::{FileFate, MediaInfo, MediaKind};
use forebay_map::session::only_map;
use forebay_map::sharing::{GivenUp, Homes};
use forebay_map::store::Store;
use forebay_map::wire::{self, Answer, Request, MESSAGE_MAX, VERSION};
use forebay_map::Options;
use forebay_server::PrivateSocket;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::channel::Channel;
use crate::frame_registry::{Client, FrameRegistry, Home, OWN};
use crate::handed::{self, Handed};
use crate::late::Late;
use crate::locked::lock;
use crate::own_store::OwnStore;
use crate::planted::{self, Planted};
use crate::service::Notes;
use crate::warned::warn;

/// The most processes at the same time.
const CLIENTS: usize = 64;
/// The most connections.  A process that shares files has several.
const CONNECTIONS: usize = 4 * CLIENTS;
/// How often a thread checks whether it is to stop.
const TICK: Duration = Duration::from_millis(100);
/// How long a new connection has to name its map.
const GREETS: Duration = Duration::from_secs(5);
/// The time between two attempts to write a file back.
const AGAIN: Duration = Duration::from_millis(200);

/// The service for these processes.
#[derive(Debug)]
pub(crate) struct Clients {
    shared: Arc<Shared>,
    /// The drop removes the socket, so that no one can connect any more.
    _socket: PrivateSocket,
    threads: Vec<JoinHandle<()>>,
}

/// A map, with the files of it that processes share.
#[derive(Clone, Debug)]
struct Served {
    share: Arc<FrameRegistry>,
    homes: Arc<Homes>,
    late: Arc<Late>,
}

impl Served {
    fn has_any(&self, of: &Client) -> bool {
        self.share.has_any(of) || self.homes.has_any(of.number)
    }

    /// The answer, and the descriptor that goes with it.
    fn answer(
        &self,
        of: &Client,
        request: &Request,
        handed: Option<Handed>,
    ) -> (Answer, Option<OwnedFd>) {
        if let Request::Keep { file } = *request {
            return (self.share.keep(of, file, handed), None);
        }
        // It came with a request that takes none.
        drop(handed);
        let slow = planted::is(Planted::SlowDisk) || planted::is(Planted::SilentSlowDisk);
        if slow && matches!(request, Request::AddFile { .. }) {
            std::thread::sleep(Duration::from_secs(1));
        }
        if let Some(answer) = self.late(of.number, request) {
            return (answer, None);
        }
        let forget = || {
            if let Request::Leave { home, .. } = *request {
                self.late.forget(of.number, Some(home));
            }
        };
        forget();
        let answered = match self.homes.answer(of.number, request) {
            Some(answered) => answered.unwrap_or_else(|e| (Answer::from(e), None)),
            None => (self.share.answer(of, request), None),
        };
        // Forgets the requests that came meanwhile.  From here on the process can ask nothing about
        // the file.
        forget();
        answered
    }

    /// The answer to a request that may wait for a file's disk and that a process makes for all
    /// of its files on one connection.  None: the request is another one, or about a file that
    /// the process does not share.
    fn late(&self, who: u64, request: &Request) -> Option<Answer> {
        let (home, segment, is_frame) = match *request {
            Request::Fill { home, segment } => (home, Some(segment), true),
            Request::Settle { home, segment } => (home, segment, false),
            Request::Grown { home, end, .. } if end > 0 => (home, None, true),
            _ => return None,
        };
        if !self.homes.shares(who, home) {
            return None;
        }
        let (homes, request) = (Arc::clone(&self.homes), request.clone());
        let work = move || match homes.answer(who, &request) {
            Some(Ok((answer, _))) => answer,
            Some(Err(e)) => Answer::from(e),
            None => Answer::Wait,
        };
        Some(self.late.answer((who, home, segment, is_frame), work))
    }
}

#[derive(Debug)]
struct Shared {
    shares: Vec<Served>,
    media: MediaInfo,
    notes: Arc<Notes>,
    stop: AtomicBool,
    number: AtomicU64,
    /// Connections whose request is being worked on, with the time of the last report to each.
    working: Mutex<BTreeMap<u64, Instant>>,
    /// Connections that have a thread and may have frames.
    streams: Mutex<BTreeMap<u64, UnixStream>>,
    /// Processes that have named their map, by the number of their first connection.
    known: Mutex<BTreeMap<u64, (Client, Served)>>,
    /// Dead processes whose stores to shared files are not all durable yet.
    lost: Mutex<Vec<(u64, Served)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Set when a process has died.
    dead: Mutex<bool>,
    wake: Condvar,
}

impl Clients {
    pub fn start(
        dir: &Path,
        pool: forebay::Uuid,
        media: MediaInfo,
        shares: Vec<Arc<FrameRegistry>>,
        notes: Arc<Notes>,
    ) -> forebay::Result<Clients> {
        let path = wire::socket_path(dir, pool);
        let system = |doing| {
            let path = path.clone();
            move |e: io::Error| forebay::Error::system(&path, doing, e)
        };
        let socket = PrivateSocket::bind(&path)?;
        let listener = socket.listener().try_clone().map_err(system("setting it up"))?;
        listener.set_nonblocking(true).map_err(system("setting it up"))?;
        let served = shares.into_iter().map(with_homes).collect::<io::Result<Vec<Served>>>();
        let shared = Arc::new(Shared {
            shares: served.map_err(system("sharing files"))?,
            media,
            notes,
            stop: AtomicBool::new(false),
            number: AtomicU64::new(OWN + 1),
            working: Mutex::default(),
            streams: Mutex::default(),
            known: Mutex::default(),
            lost: Mutex::default(),
            threads: Mutex::default(),
            dead: Mutex::new(false),
            wake: Condvar::new(),
        });
        let mut clients = Clients { shared, _socket: socket, threads: Vec::new() };
        let shared = clients.shared.clone();
        let accept = std::thread::Builder::new().name("fby-map".into()).spawn(move || {
            while !shared.stop.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => Shared::begin(&shared, stream),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        wait_for(&[PollFd::new(&listener, PollFlags::IN)]);
                    }
                    // The process has no descriptors or memory left at the moment: it tries again.
                    Err(_) => std::thread::sleep(TICK),
                }
            }
        });
        clients.threads.push(accept.map_err(system("starting a thread"))?);
        let shared = clients.shared.clone();
        let home = std::thread::Builder::new().name("fby-map-home".into());
        let home = home.spawn(move || shared.bring_home());
        clients.threads.push(home.map_err(system("starting a thread"))?);
        let shared = clients.shared.clone();
        let lives = std::thread::Builder::new().name("fby-map-alive".into());
        let lives = lives.spawn(move || shared.tell_of_work());
        clients.threads.push(lives.map_err(system("starting a thread"))?);
        Ok(clients)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.shared.wake.notify_all();
        let mut threads = std::mem::take(&mut self.threads);
        threads.append(&mut lock(&self.shared.threads));
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.shares.iter().for_each(|served| served.late.join());
    }
}

fn with_homes(share: Arc<FrameRegistry>) -> io::Result<Served> {
    let store: Arc<dyn Store> = Arc::new(OwnStore::new(Arc::clone(&share))?);
    let too = Arc::clone(&share);
    // The pins of users count against the same bound as all others, so no limit applies here.
    let options = Options { most_locked: usize::MAX, ..Options::default() };
    let given_up = GivenUp(Box::new(move |file| too.give_up(file)));
    let homes = Homes::new(store, options, given_up).map_err(io::Error::other)?;
    let homes = Arc::new(homes);
    share.shares(&homes);
    Ok(Served { share, homes, late: Arc::default() })
}

fn wait_for(fds: &[PollFd<'_>]) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    let mut fds = fds.to_vec();
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

/// Identifies the peer of a connection, if its user may open the pool.
fn peer(stream: &UnixStream) -> Result<(u32, OwnedFd), String> {
    let who = forebay::Peer::of(stream).map_err(|e| e.to_string())?;
    if who.user != rustix::process::geteuid().as_raw() && who.user != 0 {
        return Err(format!("user {} may not have this pool", who.user));
    }
    let known = who.pid.and_then(|pid| Some((pid, Pid::from_raw(i32::try_from(pid).ok()?)?)));
    let (pid, process) = known.ok_or(
        "this process is outside the server's PID namespace, where its end cannot be seen: run \
         both in one",
    )?;
    let process = pidfd_open(process, PidfdFlags::empty());
    let process = process.map_err(|e| format!("this process cannot be watched: {e}"))?;
    Ok((pid, process))
}

impl Shared {
    /// Starts a thread for a new connection.
    fn begin(shared: &Arc<Shared>, stream: UnixStream) {
        let number = shared.number.fetch_add(1, Ordering::Relaxed);
        let mut threads = lock(&shared.threads);
        threads.retain(|thread| !thread.is_finished());
        let refused = match (threads.len() < CONNECTIONS, peer(&stream), stream.try_clone()) {
            (false, ..) => format!("there are {CONNECTIONS} connections, which is the limit"),
            (_, Err(why), _) => why,
            (.., Err(e)) => e.to_string(),
            (_, Ok((pid, process)), Ok(clone)) => {
                lock(&shared.streams).insert(number, clone);
                let too = shared.clone();
                let of = Client { number, pid, process: Arc::new(process) };
                let thread = std::thread::Builder::new().name("fby-map-client".into());
                let thread = thread.spawn(move || {
                    too.serve(&of, stream);
                    lock(&too.streams).remove(&number);
                });
                match thread {
                    Ok(thread) => threads.push(thread),
                    Err(_) => drop(lock(&shared.streams).remove(&number)),
                }
                return;
            }
        };
        let _ = stream.set_nonblocking(true);
        let _ = tell(&stream, &Answer::Failed { refused: false, why: refused });
    }

    /// Serves a connection until the process is dead or has nothing any more.
    fn serve(&self, of: &Client, stream: UnixStream) {
        let mut role = Role::None;
        let left = stream
            .set_nonblocking(true)
            .and_then(|()| self.answer(of, &stream, &mut role))
            .unwrap_or(Left::Open);
        let Role::First(served) = role else { return };
        drop(stream);
        // The process may have ended a moment ago, or it lives and keeps its memory.
        let lives = left == Left::Open && !planted::is(Planted::TakenFromTheLiving);
        while lives && served.has_any(of) && !wait_for(&[PollFd::new(&*of.process, PollFlags::IN)])
        {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // It has executed another program, say: nobody answers who waits for its leases.
            if !forebay::is_dying(of.pid) {
                served.share.release(of);
            }
        }
        lock(&self.known).remove(&of.number);
        self.has_ended(of, &served);
    }

    fn is_known(&self, of: &Client) -> bool {
        lock(&self.known).contains_key(&of.number)
    }

    /// Handles a process that maps nothing any more.
    fn has_ended(&self, of: &Client, served: &Served) {
        served.late.forget(of.number, None);
        let forgotten = planted::is(Planted::GuestForgotten);
        if let Err(e) = served.homes.gone(of.number, forgotten) {
            warn(&format!("map {}: process {}: {e}", served.share.map, of.pid));
            lock(&self.lost).push((of.number, served.clone()));
        }
        if served.share.died(of) {
            *lock(&self.dead) = true;
            self.wake.notify_all();
        }
    }

    fn answer(&self, of: &Client, stream: &UnixStream, role: &mut Role) -> io::Result<Left> {
        let (mut come, mut handed) = (Vec::new(), None);
        let begun = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let dead = PollFd::new(&*of.process, PollFlags::IN);
            if !wait_for(&[PollFd::new(stream, PollFlags::IN), dead]) {
                if matches!(role, Role::None) && begun.elapsed() > GREETS {
                    return Ok(Left::Open);
                }
                continue;
            }
            // No one waits for the answer to a dead process's request.
            if of.is_dead() {
                return Ok(Left::Dead);
            }
            let mut some = [0; 4096];
            match handed::receive(stream, &mut some, &mut handed) {
                Ok(0) => return Ok(Left::Open),
                Ok(n) => come.extend_from_slice(&some[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            while let Some((request, len)) = message(&come, stream)? {
                come.drain(..len);
                let handed = handed.take();
                match (&request, &*role) {
                    (Request::Bye, Role::First(_)) => {
                        tell(stream, &Answer::Done)?;
                        return Ok(Left::Bye);
                    }
                    (_, Role::First(served)) => {
                        tell_all(stream, self.work(of, || served.answer(of, &request, handed)))?;
                    }
                    (_, Role::Another(of, _)) if !self.is_known(of) => return Ok(Left::Open),
                    (_, Role::Another(first, served)) => {
                        let answer = self.work(of, || served.answer(first, &request, handed));
                        let of = first;
                        if !self.is_known(of) {
                            // The process has ended meanwhile, so what it was just given
                            // belongs to no one.
                            self.has_ended(of, served);
                            return Ok(Left::Open);
                        }
                        tell_all(stream, answer)?;
                    }
                    (Request::Hello { version, map }, Role::None) => {
                        if let Some(served) = self.greet(of, stream, *version, map.as_deref())? {
                            *role = Role::First(served);
                        }
                    }
                    (Request::Also { of: number } | Request::Orders { of: number }, Role::None) => {
                        match self.first(of, *number) {
                            Err(why) => tell(stream, &Answer::Failed { refused: false, why })?,
                            Ok((first, served)) if matches!(request, Request::Also { .. }) => {
                                *role = Role::Another(first, served);
                                tell(stream, &Answer::Done)?;
                            }
                            Ok((first, served)) => {
                                let channel = Channel::new(first.clone(), stream.try_clone()?)?;
                                // Registered before the answer, because the next request may
                                // follow it at once.
                                served.homes.hears(first.number, channel);
                                tell(stream, &Answer::Done)?;
                                return Ok(Left::Open);
                            }
                        }
                    }
                    (_, Role::None) => {
                        let why = "the first request must name the map".into();
                        tell(stream, &Answer::Failed { refused: false, why })?;
                    }
                }
            }
            if come.len() > 4 + MESSAGE_MAX {
                return Ok(Left::Open);
            }
        }
        Ok(Left::Open)
    }

    /// Runs `f`.  Meanwhile the connection gets regular reports that the request is being
    /// worked on.
    fn work<R>(&self, connection: &Client, f: impl FnOnce() -> R) -> R {
        /// Its drop ends the reports, also after a panic.
        struct Works<'a>(&'a Shared, u64);
        impl Drop for Works<'_> {
            fn drop(&mut self) {
                lock(&self.0.working).remove(&self.1);
            }
        }
        lock(&self.working).insert(connection.number, Instant::now());
        let _works = Works(self, connection.number);
        f()
    }

    fn tell_of_work(&self) {
        let lives = match planted::is(Planted::SlowDisk) {
            true => TICK,
            false => wire::LIVES,
        };
        while !self.stop.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            for (number, since) in lock(&self.working).iter_mut() {
                if since.elapsed() < lives {
                    continue;
                }
                *since = Instant::now();
                if let Some(stream) = lock(&self.streams).get(number) {
                    // A peer that has not read the previous report still has something to read.
                    let _ = tell(stream, &Answer::Working);
                }
            }
        }
    }

    /// The first connection of the same process.
    fn first(&self, of: &Client, number: u64) -> Result<(Client, Served), String> {
        let known = lock(&self.known).get(&number).cloned();
        match known.filter(|(first, _)| first.pid == of.pid && !first.is_dead()) {
            Some(known) => Ok(known),
            None => Err(format!("process {} has no connection {number}", of.pid)),
        }
    }

    fn greet(
        &self,
        of: &Client,
        stream: &UnixStream,
        version: u32,
        map: Option<&str>,
    ) -> io::Result<Option<Served>> {
        let names: Vec<String> = self.shares.iter().map(|s| s.share.map.clone()).collect();
        let wanted = match map {
            Some(map) => Ok(map.to_owned()),
            None => only_map(names.clone(), &self.media.path),
        };
        let find = |map: &str| self.shares.iter().find(|s| s.share.map == map);
        let why = match wanted.as_deref().map(find) {
            _ if version != VERSION => {
                format!("it speaks version {version}, and the server {VERSION}: use one version")
            }
            _ if lock(&self.known).len() >= CLIENTS => {
                format!("{CLIENTS} processes have files mapped, which is the limit")
            }
            Err(e) => e.to_string(),
            Ok(None) => {
                let map = map.unwrap_or_default();
                format!("no map {map} is served; the pool has {}", names.join(", "))
            }
            Ok(Some(served)) => {
                let share = &served.share;
                let claim = share.store.claim();
                let hello = Answer::Hello(wire::Share {
                    pid: std::process::id(),
                    number: of.number,
                    media: self.media.id.clone(),
                    media_bytes: self.media.size_bytes,
                    synchronous: self.media.kind == MediaKind::DaxFile,
                    persist: share.store.media().persist().into(),
                    pool: claim.pool,
                    generation: claim.generation,
                    share_bytes: claim.share_bytes,
                    map: share.map.clone(),
                    map_uuid: claim.uuid,
                    at: claim.at.clone(),
                    frames: share.store.capacity() as u32,
                });
                // Registered before the answer, because the process's other connections may
                // follow it at once.
                lock(&self.known).insert(of.number, (of.clone(), served.clone()));
                let given = give_memory(stream, &hello, &*share.store);
                given.inspect_err(|_| drop(lock(&self.known).remove(&of.number)))?;
                return Ok(Some(served.clone()));
            }
        };
        tell(stream, &Answer::Failed { refused: false, why })?;
        Ok(None)
    }

    /// Recovers what processes leave when they die, until it is stopped.
    fn bring_home(&self) {
        let mut told = BTreeMap::new();
        while !self.stop.load(Ordering::Acquire) {
            let dead = lock(&self.dead);
            let waited = self.wake.wait_timeout_while(dead, AGAIN, |dead| !*dead);
            match waited {
                Ok((mut dead, _)) => *dead = false,
                Err(e) => *e.into_inner().0 = false,
            }
            let lost = std::mem::take(&mut *lock(&self.lost));
            let stay =
                lost.into_iter().filter(|(who, served)| served.homes.gone(*who, false).is_err());
            let stay: Vec<_> = stay.collect();
            lock(&self.lost).extend(stay);
            for Served { share, .. } in &self.shares {
                for file in share.of_the_dead() {
                    if self.stop.load(Ordering::Acquire) {
                        return;
                    }
                    match share.bring_home(file) {
                        Ok(Home::All | Home::Locked) => {}
                        Ok(Home::Stays(report)) => self.notes.left(&share.map, report.refused),
                        Err(e) => {
                            share.keep_nobody_waiting(file, &e);
                            let store = &share.store;
                            let why = match store.lost().is_some_and(FileFate::is_foreign) {
                                true => format!(
                                    "{e}; what may be whole is copied, while this server runs, by \
                                     forebay map salvage {} --to DIR",
                                    store.claim().at
                                ),
                                false => e.to_string(),
                            };
                            if told.insert((share.map.clone(), file), why.clone()).as_ref()
                                != Some(&why)
                            {
                                warn(&format!("map {}: file {file}: {why}", share.map));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The role of a connection.
#[derive(Debug)]
enum Role {
    /// The connection has not stated its role yet.
    None,
    /// The first connection of a process.  The process keeps its frames while this connection
    /// or the process exists.
    First(Served),
    /// Another connection of the process.
    Another(Client, Served),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The process may live and keep its memory.
    Open,
    Dead,
    Bye,
}

/// Takes the next request.  A malformed one gets an error answer and ends the connection.
fn message(come: &[u8], stream: &UnixStream) -> io::Result<Option<(Request, usize)>> {
    wire::message_in(come).inspect_err(|e| {
        let why = format!("the request is not understood: {e}");
        let _ = tell(stream, &Answer::Failed { refused: false, why });
    })
}

/// Sends an answer.  Any socket buffer can hold one, so the send fails only for a client that
/// does not read its answers.
fn tell(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    stream.write_all(&wire::bytes_of(answer)?)
}

fn tell_all(stream: &UnixStream, (answer, file): (Answer, Option<OwnedFd>)) -> io::Result<()> {
    match file {
        Some(file) => give(stream, &answer, file.as_fd()),
        None => tell(stream, &answer),
    }
}

/// Sends an answer with the descriptor of the pool's memory.
fn give_memory(stream: &UnixStream, answer: &Answer, store: &dyn Store) -> io::Result<()> {
    if planted::is(Planted::LockNotShared) {
        let mut file = std::fs::OpenOptions::new();
        let other = file.read(true).write(true).open(&store.claim().at)?;
        return give(stream, answer, other.as_fd());
    }
    give(stream, answer, store.memory())
}

fn give(stream: &UnixStream, answer: &Answer, file: BorrowedFd<'_>) -> io::Result<()> {
    let bytes = wire::bytes_of(answer)?;
    let sent = wire::send_first(stream, &bytes, file)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}
