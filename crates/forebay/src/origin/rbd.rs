// SPDX-License-Identifier: MIT OR Apache-2.0
//! An image of a Ceph cluster as origin, by librbd.
//!
//! It is opened under its exclusive lock, so of two hosts only one destages to it.  librbd's
//! own cache is off: a write that has ended is on the OSDs, and those that are away it waits
//! for by itself, however long.
//!
//! | what happens | what clients and destage are told |
//! |---|---|
//! | OSDs are away | `--when-away`: nothing, or an error after a while; librbd still does what it was told |
//! | another client takes the lock | errors from then on, until the volume is detached and attached again; a thread asks for it every few seconds, since an image that nobody writes to would not tell |
//! | the image is resized | what it can no longer take is an error, and `status` says so |
//!
//! A request that its caller gave up may still be written, so a later one for its place waits
//! until librbd has ended it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use forebay_rbd::{bug, Command, Done, Facts, Failure, Image, Name};
use rustix::io::Errno;

use super::sent::{self, away_text, Sent};
use super::{join_identity, Origin};
use crate::attach::Away;
use crate::bounded::bounded;
use crate::error::{Error, Result};
use crate::mark::{Bears, MarkedBy, MarkedOn, MARK_MOST};
use crate::report::OriginInfo;

/// Requests in flight: librados makes who submits more than 1,024 wait.
const DEPTH: usize = 256;
/// Bytes of a request, at most.
const MOST: u64 = 4 << 20;
/// Bytes zeroed or discarded by one request: librbd makes one of each object of 4 MiB.
const RANGE_MOST: u64 = 256 << 20;
/// The cluster answers by then, or is not to be reached.
const CONNECT: Duration = Duration::from_secs(15);
/// A client that died holds the lock for half a minute by default.
const LOCK: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });
/// Time for requests in flight, and then for the client, when the origin is released.
const LET_GO: Duration = Duration::from_secs(10);
/// How long a caller that asks for the image's state waits for an answer.
const ASK: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 5000 });
/// Time for the removal of the mark when an origin is released.
const MARK_GOES: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Interval of the queries for the lock: one request to one OSD each.
const LOCK_ASK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5000 });
const LOGICAL_BLOCK: u32 = 512;
/// Under which the image's metadata has the mark: `rbd image-meta get POOL/IMAGE forebay_mark`.
const KEY: &CStr = c"forebay_mark";

/// An image of a Ceph cluster.
#[derive(Debug)]
pub struct RbdOrigin {
    facts: Facts,
    shared: Arc<Shared>,
    /// `None` once it is released.
    image: Option<Arc<Image>>,
    /// Dropping it ends the thread that asks for the lock.
    asks: Option<Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    uri: String,
    away: Away,
    state: Mutex<State>,
    /// Something has ended, or is not waited for any more.
    changed: Condvar,
    /// An abandoned request for the mark may still be executed: later requests wait until it
    /// has ended.
    mark_turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    sent: HashMap<u64, Sent>,
    ended: HashMap<u64, io::Result<Vec<u8>>>,
    /// Since when another has the lock.
    lock_lost: Option<Instant>,
    /// The cluster is being asked for it.
    asking: bool,
    /// A flush that nobody waited for has failed: the next one says so.
    flush_failed: bool,
    size_now: Option<u64>,
    /// It has changed, and the cluster did not tell yet how; it is being asked.
    size_owed: bool,
    size_asked: bool,
    given_up: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// On a thread of librbd's.
    fn ended(&self, Done { token, result }: Done) {
        let mut state = self.state();
        let Some(sent) = state.sent.remove(&token) else { return };
        if let Err(errno) = &result {
            if sent.changes && is_shut_out(*errno) && !bug!(LockLossIgnored) {
                state.lock_lost.get_or_insert_with(Instant::now);
            }
            state.flush_failed |= sent.is_stray_flush() && !bug!(FlushFailureForgotten);
        }
        if sent.wanted {
            state.ended.insert(token, result.map_err(io::Error::from_raw_os_error));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Until something has changed.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        began: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        let given_up = state.given_up;
        self.wait_for(given_up, self.away.limit(), state, began)
    }

    /// Like the wait above, for work that remains when nobody waits any more: with a shorter
    /// limit.
    fn wait_at_the_end<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        began: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        let limit = match state.given_up {
            true => Some(self.away.limit().map_or(MARK_GOES, |limit| limit.min(MARK_GOES))),
            false => self.away.limit(),
        };
        let given_up = state.given_up && bug!(MarkLeftAtTheEnd);
        self.wait_for(given_up, limit, state, began)
    }

    fn wait_for<'a>(
        &'a self,
        given_up: bool,
        limit: Option<Duration>,
        state: MutexGuard<'a, State>,
        began: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        sent::wait((&self.changed, given_up), state, (limit, began), |_, limit| {
            format!("{}: the cluster has not answered for {} s", self.uri, limit.as_secs())
        })
    }

    fn lock_lost(&self) -> io::Error {
        io::Error::other(format!(
            "{}: another client has taken its lock, so nothing is written to it; what is cached stays in \
             the pool. See who uses it (rbd lock list), then detach the volume and attach it again",
            self.uri
        ))
    }

    /// The cluster's answer, or the error by which it is done without one.
    fn request(
        &self,
        image: &Image,
        command: Command,
        offset: u64,
        len: u64,
    ) -> io::Result<Vec<u8>> {
        let began = Instant::now();
        let (changes, flush) = (command.changes(), matches!(command, Command::Flush));
        let range = offset..offset + len;
        let mut state = self.state();
        loop {
            if state.lock_lost.is_some() && (changes || flush) {
                return Err(self.lock_lost());
            }
            let stray = |sent: &Sent| sent.is_stray_in(&range) || (flush && sent.is_stray_flush());
            if state.sent.len() < DEPTH && bug!(Overtaken) {
                break;
            }
            if state.sent.len() < DEPTH && !state.sent.values().any(stray) {
                break;
            }
            state = self.wait(state, began)?;
        }
        if flush && std::mem::take(&mut state.flush_failed) {
            return Err(io::Error::other("a flush that was not waited for has failed"));
        }
        let token = state.next;
        state.next += 1;
        let (link, wanted) = (0, true);
        state.sent.insert(token, Sent { changes, flush, offset, len, link, began, wanted });
        drop(state);
        image.submit(token, command, offset);
        let mut state = self.state();
        loop {
            if let Some(result) = state.ended.remove(&token) {
                return match state.lock_lost {
                    Some(_) if result.is_err() => Err(self.lock_lost()),
                    _ => result,
                };
            }
            state = match self.wait(state, began) {
                Ok(state) => state,
                Err(e) => {
                    let mut state = self.state();
                    state.ended.remove(&token);
                    if let Some(sent) = state.sent.get_mut(&token) {
                        sent.wanted = false;
                    }
                    return Err(e);
                }
            };
        }
    }
}

impl RbdOrigin {
    /// Opens `rbd:POOL/[NAMESPACE/]IMAGE[@CONF]`, and takes its exclusive lock.
    pub fn open(uri: &str, read_only: bool, away: Away) -> Result<RbdOrigin> {
        let unsuitable = |what: String, way_out: &str| Error::Unsuitable {
            path: uri.into(),
            what,
            way_out: way_out.into(),
        };
        let name = uri.strip_prefix("rbd:").unwrap_or(uri);
        let name = Name::parse(name).map_err(|why| {
            Error::usage(format!("{uri}: {why}"), "name it rbd:POOL/IMAGE[@CONF]")
        })?;
        if let Some(conf) = configuration(&name).filter(|conf| conf.exists() && !conf.is_file()) {
            return Err(unsuitable(
                format!("its configuration {} is no regular file", conf.display()),
                "name the cluster's: rbd:POOL/IMAGE@/etc/ceph/ceph.conf",
            ));
        }
        let connect = away.limit().map_or(CONNECT, |limit| limit.min(CONNECT));
        let (state, changed, mark_turn) = Default::default();
        let shared = Arc::new(Shared { uri: uri.into(), away, state, changed, mark_turn });
        let teller = shared.clone();
        let opening = Opening::begin(uri, connect + LOCK)?;
        let opened = bounded("fby-rbd", connect + LOCK, move || {
            let tell = Box::new(move |done| teller.ended(done));
            (Image::open(&name, read_only, connect, tell), opening)
        });
        let (image, facts) = match opened {
            Some((Ok(opened), _)) => opened,
            Some((Err(Failure::NoLibrary(e)), _)) => {
                return Err(Error::Unsupported {
                    path: uri.into(),
                    cause: format!("librbd is needed for it, and cannot be used: {e}"),
                    way_out: "install it (Debian: apt install librbd1)".into(),
                })
            }
            Some((Err(e), _)) => {
                let (what, way_out) = told(&e);
                if what == AWAY {
                    let (cause, way_out) = (e.to_string(), way_out.into());
                    return Err(Error::Unreachable { path: uri.into(), cause, way_out });
                }
                return Err(unsuitable(format!("{what}: {e}"), way_out));
            }
            None => {
                return Err(not_opened(
                    uri,
                    format!("it was not opened within {} s", (connect + LOCK).as_secs()),
                ))
            }
        };
        let image = Arc::new(image);
        let mut origin = RbdOrigin { facts, shared, image: Some(image.clone()), asks: None };
        if !read_only {
            let (end, ended) = channel();
            let (shared, image) = (origin.shared.clone(), Arc::downgrade(&image));
            let thread = std::thread::Builder::new().name("fby-rbd-lock".into());
            thread
                .spawn(move || ask_for_lock(&shared, &image, &ended))
                .map_err(|e| Error::system(uri.as_ref(), "watching its lock", e))?;
            origin.asks = Some(end);
        }
        Ok(origin)
    }

    /// Its metadata bears the mark.
    pub(super) fn mark(&self) -> MarkedBy<'static> {
        let image = self.image.as_ref().map(Arc::downgrade).unwrap_or_default();
        let metadata = Metadata { image, shared: self.shared.clone() };
        MarkedBy { name: self.facts.id.clone(), on: MarkedOn::Origin(Arc::new(metadata)) }
    }

    fn request(&self, command: Command, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        match &self.image {
            Some(image) => self.shared.request(image, command, offset, len),
            None => Err(Errno::CANCELED.into()),
        }
    }

    /// In pieces.
    fn ranges(
        &self,
        range: (u64, u64),
        most: u64,
        each: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        sent::pieces(self.size_bytes(), range, most, each)
    }
}

fn not_opened(uri: &str, cause: String) -> Error {
    let way_out =
        "see that the cluster is healthy (ceph -s), and who has the image's lock (rbd lock list)";
    Error::Unreachable { path: uri.into(), cause, way_out: way_out.into() }
}

/// An attempt to open an image, until it has ended and its client is gone.
struct Opening(u64);

struct Attempt {
    uri: String,
    began: Instant,
    limit: Duration,
}

static OPENING: Mutex<BTreeMap<u64, Attempt>> = Mutex::new(BTreeMap::new());

impl Opening {
    fn all() -> MutexGuard<'static, BTreeMap<u64, Attempt>> {
        OPENING.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Refused while an abandoned attempt remains: if the cluster does not answer, it never
    /// ends, and each further attempt would leave one more client.
    fn begin(uri: &str, limit: Duration) -> Result<Opening> {
        let mut all = Opening::all();
        let given_up = |a: &&Attempt| a.uri == uri && a.began.elapsed() >= a.limit;
        if let Some(attempt) = all.values().find(given_up) {
            let since = attempt.began.elapsed().as_secs();
            let cause = format!("an attempt to open it, from {since} s ago, has not ended yet");
            return Err(not_opened(uri, cause));
        }
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, Attempt { uri: uri.into(), began: Instant::now(), limit });
        Ok(Opening(number))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        Opening::all().remove(&self.0);
    }
}

/// The file that librados reads, if one is named: with a FIFO it would wait for the other end.
fn configuration(name: &Name) -> Option<PathBuf> {
    match &name.conf {
        Some(conf) => Some(OsStr::from_bytes(conf.to_bytes()).into()),
        None => std::env::var_os("CEPH_CONF").map(PathBuf::from),
    }
}

/// This client may write no more: shut out by who took the lock, or without it.
fn is_shut_out(errno: i32) -> bool {
    [Errno::SHUTDOWN, Errno::ROFS].map(Errno::raw_os_error).contains(&errno)
}

/// Runs until the origin is released.  The lock counts as lost only after two such answers in a
/// row: librbd takes it under another name if it has lost its connection for a while.
fn ask_for_lock(shared: &Shared, image: &Weak<Image>, end: &Receiver<()>) {
    let mut missed = false;
    while end.recv_timeout(LOCK_ASK) == Err(RecvTimeoutError::Timeout) {
        let mut state = shared.state();
        if state.given_up || state.lock_lost.is_some() {
            return;
        }
        if bug!(LockNotAskedFor) {
            continue;
        }
        // The origin has it too, as it is not given up.
        let Some(image) = image.upgrade() else { return };
        state.asking = true;
        drop(state);
        let owns = image.owns_lock();
        // Dropped before the end is reported: a thread that releases the image closes it.
        drop(image);
        let (lost, misses) = match owns {
            Ok(owns) => ((missed || bug!(LockLostByOneAnswer)) && !owns, !owns),
            Err(Failure::Rbd { errno, .. }) => (is_shut_out(errno), missed),
            Err(_) => (false, missed),
        };
        missed = misses;
        let mut state = shared.state();
        state.asking = false;
        if lost {
            state.lock_lost.get_or_insert_with(Instant::now);
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// One at a time, however long the cluster takes.
struct AskingSize(Arc<Shared>);

impl AskingSize {
    /// An answer counts also when nobody waits for it any more.
    fn ask(self, image: &Image) -> std::result::Result<(), Failure> {
        let size = image.size()?;
        let mut state = self.0.state();
        (state.size_now, state.size_owed) = (Some(size), false);
        Ok(())
    }
}

impl Drop for AskingSize {
    fn drop(&mut self) {
        self.0.state().size_asked = false;
    }
}

/// The image's metadata, where its mark is.
#[derive(Debug)]
struct Metadata {
    /// The origin releases it.
    image: Weak<Image>,
    shared: Arc<Shared>,
}

impl Metadata {
    /// As requests: for as long as `--when-away` says; `at_the_end`: also when the origin is
    /// given up, for a while.
    fn ask<T: Send + 'static>(
        &self,
        at_the_end: bool,
        work: impl FnOnce(&Image) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> io::Result<T> {
        let image = self.image.upgrade().ok_or(Errno::CANCELED)?;
        let asked = Arc::new(Mutex::new(Asked::Wanted));
        let (shared, told) = (self.shared.clone(), asked.clone());
        let ask = move || {
            let turn = shared.mark_turn.lock().unwrap_or_else(|e| e.into_inner());
            let _turn = (!bug!(MarkOvertaken)).then_some(turn);
            if matches!(*asked_of(&told), Asked::Wanted) || bug!(MarkSetLater) {
                let answer = work(&image);
                // Dropped before the answer is given: a thread that releases the image closes
                // it, and waits for that.
                drop(image);
                *asked_of(&told) = Asked::Answered(answer);
                // The lock keeps this from falling between a check of the answer and the wait
                // for it.
                drop(shared.state());
                shared.changed.notify_all();
            }
        };
        std::thread::Builder::new().name("fby-rbd-mark".into()).spawn(ask)?;
        let began = Instant::now();
        let mut state = self.shared.state();
        loop {
            match std::mem::replace(&mut *asked_of(&asked), Asked::Wanted) {
                Asked::Answered(Ok(answer)) => return Ok(answer),
                Asked::Answered(Err(Failure::Rbd { errno, .. })) => {
                    return Err(io::Error::from_raw_os_error(errno))
                }
                Asked::Answered(Err(e)) => return Err(io::Error::other(e.to_string())),
                Asked::Wanted | Asked::GivenUp => {}
            }
            let waited = match at_the_end {
                true => self.shared.wait_at_the_end(state, began),
                false => self.shared.wait(state, began),
            };
            state = match waited {
                Ok(state) => state,
                Err(e) => {
                    *asked_of(&asked) = Asked::GivenUp;
                    return Err(e);
                }
            };
        }
    }
}

/// The state of a question about the mark.
enum Asked<T> {
    Wanted,
    GivenUp,
    Answered(std::result::Result<T, Failure>),
}

fn asked_of<T>(asked: &Mutex<Asked<T>>) -> MutexGuard<'_, Asked<T>> {
    asked.lock().unwrap_or_else(|e| e.into_inner())
}

impl Bears for Metadata {
    fn place(&self) -> String {
        format!("its metadata {}", KEY.to_string_lossy())
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        self.ask(false, |image| image.metadata(KEY, MARK_MOST))
    }

    fn write(&self, mark: &[u8]) -> io::Result<()> {
        let mark = CString::new(mark).map_err(|_| Errno::INVAL)?;
        self.ask(false, move |image| image.set_metadata(KEY, &mark))
    }

    fn remove(&self) -> io::Result<()> {
        self.ask(true, |image| image.remove_metadata(KEY))
    }
}

const AWAY: &str = "not to be reached";

/// The obstacle to opening an image, and the way out.
fn told(e: &Failure) -> (&'static str, &'static str) {
    let Failure::Rbd { doing, errno } = e else { return ("not to be used", "see its library") };
    let is = |e: Errno| *errno == e.raw_os_error();
    match *doing {
        "taking its exclusive lock" if is(Errno::INVAL) => (
            "an image without exclusive locks, so two hosts could write to it",
            "enable them: rbd feature enable POOL/IMAGE exclusive-lock",
        ),
        "taking its exclusive lock" => (
            "in use by another client",
            "see by whom (rbd lock list, rbd status) and end that, or use the volume there",
        ),
        "opening the image" if is(Errno::NOENT) => ("no such image", "rbd ls POOL lists them"),
        "opening the pool" => ("no such pool", "ceph osd lspools lists them"),
        "opening the image" if is(Errno::ROFS) => {
            ("read-only", "a snapshot cannot be an origin: name the image, or a clone")
        }
        "reading its configuration" => {
            ("without a configuration", "name the cluster's: rbd:POOL/IMAGE@/etc/ceph/ceph.conf")
        }
        "connecting to the cluster" if is(Errno::NOENT) => (
            "not to be used without a key, or monitors",
            "name the monitors in its configuration (mon_host), give this client a keyring (/etc/ceph/ceph.client.NAME.keyring), and name it: CEPH_ARGS='--id NAME'",
        ),
        _ if is(Errno::ACCESS) || is(Errno::PERM) => (
            "not allowed to this client",
            "see its key and what it may do (ceph auth get client.NAME: profile rbd), and that it is the one meant: CEPH_ARGS='--id NAME'",
        ),
        _ => (AWAY, "see that the cluster runs (ceph -s)"),
    }
}

impl Drop for RbdOrigin {
    fn drop(&mut self) {
        let shared = &self.shared;
        let end = Instant::now() + LET_GO;
        self.asks = None;
        let mut state = shared.state();
        state.given_up = true;
        shared.changed.notify_all();
        while !state.sent.is_empty() || state.asking {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(state);
        // Closing waits for the cluster, and may do that without us.
        let image = self.image.take();
        bounded("fby-rbd", LET_GO, move || drop(image));
    }
}

impl Origin for RbdOrigin {
    fn size_bytes(&self) -> u64 {
        let block = u64::from(LOGICAL_BLOCK);
        self.facts.size_bytes / block * block
    }

    fn logical_block(&self) -> u32 {
        LOGICAL_BLOCK
    }

    fn identity(&self) -> String {
        join_identity(&self.facts.id, &self.shared.uri)
    }

    fn changed(&self) -> Option<String> {
        let image = self.image.as_ref()?;
        let mut state = self.shared.state();
        state.size_owed |= image.take_changed();
        if state.size_owed {
            let untold = || Some("has changed, and the cluster does not tell how".into());
            if std::mem::replace(&mut state.size_asked, true) {
                return untold();
            }
            state.size_owed = !bug!(ChangeForgotten);
            drop(state);
            let (image, asking) = (image.clone(), AskingSize(self.shared.clone()));
            match bounded("fby-rbd", ASK, move || asking.ask(&image)) {
                Some(Ok(())) => {}
                Some(Err(e)) => return Some(format!("does not tell its size: {e}")),
                None => return untold(),
            }
        } else {
            drop(state);
        }
        let (now, was) = (self.shared.state().size_now?, self.facts.size_bytes);
        (now != was && !bug!(ResizeIgnored))
            .then(|| format!("has {now} bytes, and had {was} when it was attached"))
    }

    /// A change of the image may be a snapshot: nothing is known until the cluster says what it is.
    fn is_shorter(&self) -> Option<bool> {
        let _ = self.changed();
        let state = self.shared.state();
        let shorter = state.size_now.is_some_and(|now| now < self.facts.size_bytes);
        match shorter || !state.size_owed || bug!(ResizeIgnored) {
            true => Some(shorter && !bug!(ResizeIgnored)),
            false => None,
        }
    }

    fn away(&self) -> Option<String> {
        let state = self.shared.state();
        let oldest = state.sent.values().filter(|s| s.wanted).map(|s| s.began).min();
        let waiting = state.sent.values().filter(|s| s.wanted).count();
        let known = state.lock_lost.map(|since| (since, "another client has taken its lock"));
        away_text(known, (waiting, oldest), &self.shared.away)
    }

    fn marked_by(&self) -> Option<MarkedBy<'_>> {
        Some(self.mark())
    }

    fn info(&self) -> OriginInfo {
        OriginInfo {
            name: self.shared.uri.clone(),
            method: "RBD, exclusive lock".into(),
            note: String::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.ranges((offset, buf.len() as u64), MOST, |at, n| {
            let data = self.request(Command::Read(n as usize), at, n)?;
            let start = (at - offset) as usize;
            buf[start..start + n as usize].copy_from_slice(&data);
            Ok(())
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.ranges((offset, data.len() as u64), MOST, |at, n| {
            let start = (at - offset) as usize;
            let piece = data[start..start + n as usize].to_vec();
            self.request(Command::Write(piece), at, n).map(|_| ())
        })
    }

    fn flush(&self) -> io::Result<()> {
        if bug!(FlushNotAsked) {
            return Ok(());
        }
        self.request(Command::Flush, 0, 0).map(|_| ())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.ranges((offset, len), RANGE_MOST, |at, n| {
            self.request(Command::Discard(n), at, n).map(|_| ())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.ranges((offset, len), RANGE_MOST, |at, n| {
            self.request(Command::Zero(n), at, n).map(|_| ())
        })
    }

    fn write_zeroes_is_fast(&self) -> bool {
        true
    }

    fn give_up(&self) {
        self.shared.state().given_up = true;
        self.shared.changed.notify_all();
    }
}
