// SPDX-License-Identifier: MIT OR Apache-2.0
//! An export of an NBD server as origin.
//!
//! A few links, each a thread with a connection, take requests from one queue and keep
//! several in flight.  A link whose connection ends connects again, and what was in flight
//! is sent anew: a read, a write or a zeroing may be done twice.  A flush goes to each link
//! whose writes it is to cover, since the others may be connected to a server that was
//! started after the one that took these had died.
//!
//! | what happens | what clients and destage are told |
//! |---|---|
//! | the server answers with an error | that error |
//! | it closes the connection, or dies | nothing, if it is back in time; the next flush fails if writes were acknowledged since the last one, which a server that died may have lost |
//! | it is away, or answers nothing | `--when-away`: nothing, or an error after a while |
//! | it comes back with another size | errors as if it were away, and `status` says so |
//!
//! A server that stands still may still write a request that its caller gave up.  So a later
//! request for the same place waits until the server has answered or the connection
//! has ended.  A connection is never ended for being slow.

mod link;
mod look;
#[cfg(test)]
mod tests;
mod uri;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_nbd::{Command, Done, Export, Failure};
use rustix::io::Errno;

use self::link::Link;
pub(super) use self::uri::unescaped;
pub(crate) use self::uri::Uri;
use super::sent::{self, away_text, Sent};
use super::{join_identity, Origin};
use crate::attach::Away;
use crate::error::{Error, Result};
use crate::kick::Kick;
use crate::mark::{MarkedBy, MarkedOn};
use crate::report::OriginInfo;

/// Connections where the server allows several.
const LINKS: usize = 4;
/// Requests in flight on each.
const DEPTH: usize = 16;
/// Bytes of a request, at most.
const MOST: u64 = 4 << 20;
/// Bytes zeroed or trimmed by one request.
const RANGE_MOST: u64 = 1 << 30;
/// A connection that is not up by then is tried again, or when requests fail if sooner.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for requests in flight, from when the last one was sent, when the origin is released.
const LET_GO: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The error of a server that ends.
const SHUTDOWN: i32 = Errno::SHUTDOWN.raw_os_error();

/// An export of an NBD server.
#[derive(Debug)]
pub struct NbdOrigin {
    /// The id of the origin.
    name: String,
    export: Export,
    logical_block: u32,
    links: Links,
}

#[derive(Debug)]
struct Shared {
    uri: String,
    /// The host name to look up.
    host: Option<String>,
    away: Away,
    state: Mutex<State>,
    /// Something has ended, or is not waited for any more.
    changed: Condvar,
    /// The kicks of the links.
    kicks: Vec<Kick>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    queue: VecDeque<Request>,
    sent: HashMap<u64, Sent>,
    ended: HashMap<u64, io::Result<Vec<u8>>>,
    /// Links that are up, a bit each.
    up: u32,
    links: [Written; LINKS],
    /// Since when none is, and why.
    away: Option<(Instant, String)>,
    /// A connection ended while not all of its writes were flushed: the next flush says so.
    lost: bool,
    /// The size that the server reported when it last came back.
    size_now: Option<u64>,
    given_up: bool,
    stop: bool,
}

/// Writes that were acknowledged by a connection, and so many of them are flushed.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    acknowledged: u64,
    flushed: u64,
}

#[derive(Debug)]
struct Request {
    token: u64,
    command: Command,
    offset: u64,
    len: u64,
    /// By no other.
    link: Option<usize>,
    began: Instant,
}

impl State {
    fn push(&mut self, command: Command, offset: u64, len: u64, link: Option<usize>) -> u64 {
        let token = self.next;
        self.next += 1;
        let began = Instant::now();
        self.queue.push_back(Request { token, command, offset, len, link, began });
        token
    }

    /// Links that are up and can take more.
    fn free(&self) -> impl Iterator<Item = usize> + '_ {
        let in_flight = |link| self.sent.values().filter(|sent| sent.link == link).count();
        (0..LINKS).filter(move |&l| self.up >> l & 1 != 0 && in_flight(l) < DEPTH)
    }

    /// Requests that are waited for, and since when the first of them.
    fn waiting(&self) -> (usize, Option<Instant>) {
        let sent = self.sent.values().filter(|sent| sent.wanted).map(|sent| sent.began);
        let all = || sent.clone().chain(self.queue.iter().map(|r| r.began));
        (all().count(), all().min())
    }

    fn next_of(&mut self, link: usize) -> Option<Request> {
        let at = self.queue.iter().position(|r| r.link.is_none_or(|l| l == link))?;
        self.queue.remove(at)
    }

    fn link_up(&mut self, link: usize) {
        self.up |= 1 << link;
        self.away = None;
    }

    fn link_down(&mut self, link: usize, why: &str) {
        self.up &= !(1 << link);
        if self.up == 0 {
            let since = self.away.take().map_or_else(Instant::now, |(since, _)| since);
            self.away = Some((since, why.into()));
        }
    }

    fn end(&mut self, done: Done, link: usize) {
        let Some(sent) = self.sent.remove(&done.token) else { return };
        self.links[link].acknowledged += u64::from(sent.changes && done.result.is_ok());
        // The server may say it once, and said it to somebody who had gone.
        self.lost |= sent.is_stray_flush() && done.result.is_err();
        if sent.wanted {
            let result = match &done.result {
                Ok(()) => Ok(done.data),
                Err(e) => Err(io::Error::from_raw_os_error(e.errno())),
            };
            self.ended.insert(done.token, result);
        }
    }

    /// The connection has ended, and what it wrote may be gone.
    fn lose(&mut self, link: usize) {
        self.up &= !(1 << link);
        let written = &mut self.links[link];
        self.lost |= written.acknowledged > written.flushed;
        written.flushed = written.acknowledged;
        for r in std::mem::take(&mut self.queue) {
            match r.link {
                Some(l) if l == link => {
                    self.ended.insert(r.token, Err(connection_lost()));
                }
                _ => self.queue.push_back(r),
            }
        }
    }

    /// It was in flight on a connection that has ended.
    fn take_back(&mut self, done: Done) {
        match self.sent.remove(&done.token) {
            // The lost writes are those that this flush would have reported.
            Some(sent) if sent.flush && sent.wanted => {
                self.ended.insert(done.token, Err(connection_lost()));
            }
            Some(sent) if sent.wanted => {
                let Done { token, command, .. } = done;
                let Sent { offset, len, began, .. } = sent;
                let link = None;
                self.queue.push_front(Request { token, command, offset, len, link, began });
            }
            Some(sent) => self.lost |= sent.is_stray_flush(),
            None => {}
        }
    }
}

/// Bytes of a request.
fn most(export: &Export) -> u64 {
    match export.block_max {
        0 => MOST,
        most => most.min(MOST),
    }
}

fn connection_lost() -> io::Error {
    io::Error::other("the connection ended before what was written was flushed")
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The server's answer, or the error by which it is done without one.
    fn request(&self, command: Command, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let began = Instant::now();
        let range = offset..offset + len;
        let mut state = self.state();
        while state.sent.values().any(|sent| sent.is_stray_in(&range)) {
            state = self.wait(state, began)?;
        }
        let token = state.push(command, offset, len, None);
        let free: Vec<usize> = state.free().collect();
        drop(state);
        if !free.is_empty() {
            // If none is, the first that will be takes it.
            self.kicks[free[token as usize % free.len()]].kick();
        }
        self.answer(token, began)
    }

    fn answer(&self, token: u64, began: Instant) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        loop {
            if let Some(result) = state.ended.remove(&token) {
                return result;
            }
            state = match self.wait(state, began) {
                Ok(state) => state,
                Err(e) => {
                    self.forget(token);
                    return Err(e);
                }
            };
        }
    }

    /// By each link that has something to flush.
    fn flush(&self) -> io::Result<()> {
        let began = Instant::now();
        let mut state = self.state();
        while state.sent.values().any(Sent::is_stray_flush) {
            state = self.wait(state, began)?;
        }
        if std::mem::take(&mut state.lost) {
            return Err(connection_lost());
        }
        let written = state.links;
        let dirty = (0..LINKS).filter(|&l| written[l].acknowledged > written[l].flushed);
        let flushes: Vec<(usize, u64)> =
            dirty.map(|l| (l, state.push(Command::Flush, 0, 0, Some(l)))).collect();
        drop(state);
        if flushes.is_empty() {
            return self.request(Command::Flush, 0, 0).map(|_| ());
        }
        flushes.iter().for_each(|&(link, _)| self.kicks[link].kick());
        let answers: Vec<_> = flushes.iter().map(|&(_, token)| self.answer(token, began)).collect();
        let mut state = self.state();
        // One that ended meanwhile may have written before this flush.
        let lost = std::mem::take(&mut state.lost);
        for (&(link, _), answer) in flushes.iter().zip(answers) {
            answer?;
            let flushed = &mut state.links[link].flushed;
            *flushed = written[link].acknowledged.max(*flushed);
        }
        match lost {
            true => Err(connection_lost()),
            false => Ok(()),
        }
    }

    /// Until something has changed.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        began: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        let given_up = state.given_up;
        sent::wait((&self.changed, given_up), state, (self.away.limit(), began), |state, limit| {
            let why = state.away.as_ref().map_or("it does not answer", |(_, why)| why);
            format!("{}: away for {} s: {why}", self.uri, limit.as_secs())
        })
    }

    fn forget(&self, token: u64) {
        let mut state = self.state();
        state.queue.retain(|r| r.token != token);
        state.ended.remove(&token);
        if let Some(sent) = state.sent.get_mut(&token) {
            sent.wanted = false;
        }
    }

    fn end(&self, give_up: bool) {
        let mut state = self.state();
        state.given_up = true;
        state.stop |= !give_up;
        drop(state);
        self.changed.notify_all();
        self.kicks.iter().for_each(Kick::kick);
    }
}

/// The id of its URI, however that is written.
pub(super) fn known_by(uri: &Uri) -> String {
    sent::id_of("nbd", &uri.name())
}

// --- the origin --------------------------------------------------------------

/// An export whose server has answered, by one connection.
struct Connected {
    parsed: Uri,
    links: Links,
    export: Export,
    logical_block: u32,
}

fn unsuitable(uri: &str, what: String, way_out: &str) -> Error {
    Error::Unsuitable { path: uri.into(), what, way_out: way_out.into() }
}

/// Its parts, and how the library takes it: schemes in small letters alone.
fn parsed(uri: &str) -> Result<(Uri, String)> {
    let parsed = Uri::parse(uri).map_err(|why| {
        Error::usage(
            format!("{uri}: {why}"),
            "name it nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT",
        )
    })?;
    let uri = uri.split_once("://").map_or_else(
        || uri.to_string(),
        |(scheme, rest)| format!("{}://{rest}", scheme.to_ascii_lowercase()),
    );
    Ok((parsed, uri))
}

fn unreachable(uri: &str, e: Failure) -> Error {
    match e {
        Failure::NoLibrary(e) => Error::Unsupported {
            path: uri.into(),
            cause: format!("libnbd is needed for it, and cannot be used: {e}"),
            way_out: "install it (Debian: apt install libnbd0)".into(),
        },
        e => Error::Unreachable {
            path: uri.into(),
            cause: e.to_string(),
            way_out: "see that its server runs, and serves this export".into(),
        },
    }
}

fn logical_block(uri: &str, export: &Export) -> Result<u32> {
    match export.block_min {
        0..=512 => Ok(512),
        513..=4096 => Ok(4096),
        least => {
            let what = format!("served in blocks of {least} bytes");
            Err(unsuitable(uri, what, "serve it in blocks of 512 or 4096"))
        }
    }
}

fn connect(uri: &str, away: Away) -> Result<Connected> {
    let (parsed, uri) = parsed(uri)?;
    let uri = &uri;
    let system = |e| Error::system(uri.as_ref(), "connecting to it", e);
    let kicks = (0..LINKS).map(|_| Kick::new()).collect::<io::Result<_>>().map_err(system)?;
    let state = Mutex::default();
    let host = parsed.host().map(String::from);
    let changed = Condvar::new();
    let shared = Shared { uri: uri.clone(), host, away, state, changed, kicks };
    let mut links = Links { shared: Arc::new(shared), threads: Vec::new() };
    let (tell, told) = sync_channel(1);
    links.start(None, Some(tell)).map_err(system)?;
    let ended = || Failure::Nbd { text: "its thread ended".into(), errno: 0 };
    let export = told.recv().unwrap_or_else(|_| Err(ended())).map_err(|e| unreachable(uri, e))?;
    let logical_block = logical_block(uri, &export)?;
    Ok(Connected { parsed, links, export, logical_block })
}

/// In whole blocks.
fn size(export: &Export, logical_block: u32) -> u64 {
    let block = u64::from(logical_block);
    export.size_bytes / block * block
}

/// The size of an export that nobody has open: its server is asked.  One that cannot tell it
/// without that is used.
pub(super) fn size_of(uri: &str) -> Result<u64> {
    let (parsed, uri) = parsed(uri)?;
    let told = look::export(&uri, parsed.host()).map_err(|e| unreachable(&uri, e))?;
    match told {
        Some(export) => Ok(size(&export, logical_block(&uri, &export)?)),
        None => {
            let Connected { export, logical_block, .. } = connect(&uri, Away::default())?;
            Ok(size(&export, logical_block))
        }
    }
}

impl NbdOrigin {
    /// Connects to the export; `nbd://HOST[:PORT]/EXPORT` or
    /// `nbd+unix:///EXPORT?socket=PATH`.
    pub fn open(uri: &str, read_only: bool, away: Away) -> Result<NbdOrigin> {
        let Connected { parsed, mut links, export, logical_block } = connect(uri, away)?;
        let shared = links.shared.clone();
        let uri = &shared.uri;
        let system = |e| Error::system(uri.as_ref(), "connecting to it", e);
        let unsuitable = |what: String, way_out| unsuitable(uri, what, way_out);
        if export.read_only && !read_only {
            return Err(unsuitable("read-only".into(), "serve it writable"));
        }
        if !export.can_flush && !read_only {
            return Err(unsuitable(
                "served without flushes, so nothing that is written there is known to last".into(),
                "use a server, or a plugin of it, that can flush",
            ));
        }
        for _ in 1..if export.multi_conn { LINKS } else { 1 } {
            links.start(Some(export), None).map_err(system)?;
        }
        Ok(NbdOrigin { name: known_by(&parsed), export, logical_block, links })
    }

    fn shared(&self) -> &Shared {
        &self.links.shared
    }

    fn most(&self) -> u64 {
        most(&self.export).max(u64::from(self.logical_block))
    }

    /// In pieces that the server takes.
    fn ranges(
        &self,
        range: (u64, u64),
        most: u64,
        each: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        sent::pieces(self.size_bytes(), range, most, each)
    }

    fn write_zero_bytes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.ranges((offset, len), self.most(), |at, n| {
            self.shared().request(Command::Write(vec![0; n as usize]), at, n).map(|_| ())
        })
    }
}

/// The threads with connections; dropped, they end.
#[derive(Debug)]
struct Links {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Links {
    fn start(
        &mut self,
        export: Option<Export>,
        first: Option<SyncSender<std::result::Result<Export, Failure>>>,
    ) -> io::Result<()> {
        let link = Link { shared: self.shared.clone(), number: self.threads.len(), export };
        let thread = std::thread::Builder::new().name("fby-nbd".into());
        self.threads.push(thread.spawn(move || link.run(first))?);
        Ok(())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.end(false);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Origin for NbdOrigin {
    fn size_bytes(&self) -> u64 {
        size(&self.export, self.logical_block)
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// NBD knows no id of an export: its URI is.
    fn identity(&self) -> String {
        join_identity(&self.name, &self.shared().uri)
    }

    fn marked_by(&self) -> Option<MarkedBy<'_>> {
        Some(MarkedBy { name: self.name.clone(), on: MarkedOn::Host })
    }

    fn changed(&self) -> Option<String> {
        let (now, was) = (self.shared().state().size_now?, self.export.size_bytes);
        (now != was).then(|| format!("has {now} bytes, and had {was} when it was attached"))
    }

    fn is_shorter(&self) -> Option<bool> {
        Some(self.shared().state().size_now.is_some_and(|now| now < self.export.size_bytes))
    }

    fn away(&self) -> Option<String> {
        let state = self.shared().state();
        let known = state.away.as_ref().map(|(since, why)| (*since, why.as_str()));
        away_text(known, state.waiting(), &self.shared().away)
    }

    fn info(&self) -> OriginInfo {
        let up = self.shared().state().up.count_ones();
        OriginInfo {
            name: self.shared().uri.clone(),
            method: format!("NBD, {up} of {} connections", self.links.threads.len()),
            note: String::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.ranges((offset, buf.len() as u64), self.most(), |at, n| {
            let data = self.shared().request(Command::Read(n as usize), at, n)?;
            let start = (at - offset) as usize;
            buf[start..start + n as usize].copy_from_slice(&data);
            Ok(())
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.ranges((offset, data.len() as u64), self.most(), |at, n| {
            let start = (at - offset) as usize;
            let piece = data[start..start + n as usize].to_vec();
            self.shared().request(Command::Write(piece), at, n).map(|_| ())
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.shared().flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.export.can_trim {
            return Ok(());
        }
        self.ranges((offset, len), RANGE_MOST, |at, n| {
            self.shared().request(Command::Trim(n), at, n).map(|_| ())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.export.can_zero {
            return self.write_zero_bytes(offset, len);
        }
        self.ranges((offset, len), RANGE_MOST, |at, n| {
            match self.shared().request(Command::Zero(n), at, n) {
                Err(e) if e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                    self.write_zero_bytes(at, n)
                }
                result => result.map(|_| ()),
            }
        })
    }

    fn write_zeroes_is_fast(&self) -> bool {
        self.export.can_zero
    }

    fn give_up(&self) {
        self.shared().end(true);
    }
}
