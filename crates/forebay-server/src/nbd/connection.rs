// SPDX-License-Identifier: MIT OR Apache-2.0
//! The second part of a connection: requests, carried out by several threads at
//! once and answered in any order.
//!
//! A thread takes the next request off the stream, lets the next thread at it,
//! carries the request out and answers.  A thread is added when none is left to
//! take the next request, up to the limit, so an idle connection has one.
//!
//! A client that takes no answers stops its own threads, and nobody else's: none
//! holds a lock of the engine while it sends.  One that is gone is found out by
//! whoever sends next; then the connection is shut down, and its other threads end
//! at their next look at it.

use std::io::{self, Read, Write};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use forebay::Flusher;

use super::handshake::Chosen;
use super::memory::{Client, Held, Memory, SMALL_BYTES};
use super::protocol::{
    self as nbd, chunk, command, error, flag, Request, DATA_HEAD_BYTES, REQUEST_BYTES,
};
use super::{Export, REQUEST_MAX_BYTES};
use crate::warn;

/// Data of a large request is received and sent in pieces of so many bytes, so that the
/// memory that it takes follows what its client does.
const PIECE_BYTES: usize = 256 << 10;

/// A larger read is several reads of the volume.
const READ_BYTES: usize = 4 << 20;

/// Room for the longest header of a reply, before the data.
const HEAD_BYTES: usize = DATA_HEAD_BYTES;
/// Extents in one answer; a client asks again for what follows.
const EXTENTS_MAX: usize = 1024;

/// Who the client is, and what bounds its memory.
pub(crate) struct Place<'c> {
    pub client: Client,
    pub memory: &'c Memory,
    /// Ends the connection of a number.
    pub cut: &'c (dyn Fn(u64) + Sync),
}

/// Room for the header of a reply, and for the data of a request.
struct Buffer<'c> {
    bytes: Vec<u8>,
    /// None: it is small.
    held: Option<Held<'c>>,
}

impl<'c> Buffer<'c> {
    /// May wait for others to give some back. An error: the client is cut off.
    fn reserve(&mut self, place: &Place<'c>, data: usize) -> io::Result<()> {
        if data <= SMALL_BYTES || self.held.as_ref().is_some_and(|held| data <= held.bytes()) {
            return Ok(());
        }
        self.clear();
        let held = place.memory.hold(&place.client, data, place.cut);
        let mut held = held.ok_or(io::ErrorKind::ConnectionAborted)?;
        self.bytes = held.buffer();
        self.held = Some(held);
        Ok(())
    }

    fn grow(&mut self, data: usize) {
        if self.bytes.len() < HEAD_BYTES + data {
            self.bytes.resize(HEAD_BYTES + data, 0);
        }
    }

    /// Between two requests nothing is held: whether the next one is large is not known, and
    /// the client may be idle.
    fn done(&mut self) {
        if let Some(held) = self.held.take() {
            held.end(std::mem::take(&mut self.bytes));
        }
    }

    fn clear(&mut self) {
        self.bytes = Vec::new();
        self.held = None;
    }

    fn waits_for_client(&self, waits: bool) {
        if let Some(held) = &self.held {
            held.waits_for_client(waits);
        }
    }
}

pub(crate) struct Connection<'c, R, W> {
    chosen: Chosen<'c>,
    export: &'c Export,
    /// A flush that failed is told to each connection.
    flusher: Flusher<'c>,
    threads: u32,
    place: Place<'c>,
    /// None: the client said good-bye, or is gone.
    input: Mutex<Option<R>>,
    output: Mutex<W>,
    /// Ends what the other threads wait for.
    hang_up: &'c (dyn Fn() + Sync),
    started: AtomicU32,
    /// Threads that will take the next request.
    idle: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'c, R: Read + Send, W: Write + Send> Connection<'c, R, W> {
    pub fn new(
        chosen: Chosen<'c>,
        threads: u32,
        place: Place<'c>,
        input: R,
        output: W,
        hang_up: &'c (dyn Fn() + Sync),
    ) -> Self {
        let (input, output) = (Mutex::new(Some(input)), Mutex::new(output));
        let (started, idle) = (AtomicU32::new(1), AtomicU32::new(1));
        let export = chosen.export;
        let flusher = export.volume.flusher();
        Connection {
            chosen,
            export,
            flusher,
            threads,
            place,
            input,
            output,
            hang_up,
            started,
            idle,
        }
    }

    /// Until the client is done and all is answered.
    pub fn run(&self) {
        std::thread::scope(|scope| self.work(scope));
        self.place.memory.forget(&self.place.client);
    }

    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let mut buffer = Buffer { bytes: Vec::new(), held: None };
        while let Some(request) = self.next(&mut buffer, scope) {
            let error = self.carry_out(&request, &mut buffer);
            self.answer(&request, error, &mut buffer);
            buffer.done();
            self.idle.fetch_add(1, SeqCst);
        }
    }

    /// The data of a write comes with it, after room for the header of the reply.
    fn next<'s>(&'s self, buffer: &mut Buffer<'c>, scope: &'s Scope<'s, '_>) -> Option<Request> {
        let mut input = locked(&self.input);
        let request = match input.as_mut().map(|input| self.read_request(input, buffer)) {
            Some(Ok(request)) => request,
            // At the end of the stream or, after a request that is none, given up.
            Some(Err(_)) | None => None,
        };
        if request.is_none() {
            *input = None;
            return None;
        }
        if self.idle.fetch_sub(1, SeqCst) == 1 && self.started.load(SeqCst) < self.threads {
            // Without it, this one goes on alone.
            let thread = std::thread::Builder::new().name("fby-nbd".into());
            if thread.spawn_scoped(scope, move || self.work(scope)).is_ok() {
                self.started.fetch_add(1, SeqCst);
                self.idle.fetch_add(1, SeqCst);
            }
        }
        request
    }

    /// The error as the protocol has it, or 0.
    fn carry_out(&self, request: &Request, buffer: &mut Buffer<'c>) -> u32 {
        let volume = self.export.volume.name();
        match catch_unwind(AssertUnwindSafe(|| {
            if request.command == command::BLOCK_STATUS {
                return block_status(&self.chosen, request, buffer);
            }
            execute(&self.chosen, &self.flusher, request, &mut buffer.bytes)
        })) {
            Ok(Ok(())) => 0,
            Ok(Err(failure)) => {
                if let Some(message) = failure.message {
                    warn(message);
                }
                failure.error
            }
            // To a test it is a finding.
            Err(panic) if cfg!(debug_assertions) => resume_unwind(panic),
            Err(_) => {
                warn(format_args!("volume {volume}: a request panicked; please report it"));
                error::IO
            }
        }
    }

    fn answer(&self, request: &Request, error: u32, buffer: &mut Buffer<'c>) {
        let data = match (request.command, error) {
            (command::READ, 0) => request.len as usize,
            (command::BLOCK_STATUS, 0) => buffer.bytes.len().saturating_sub(HEAD_BYTES),
            _ => 0,
        };
        buffer.grow(data);
        let start = self.head(request, error, data as u32, &mut buffer.bytes[..HEAD_BYTES]);
        let answer = &buffer.bytes[start..HEAD_BYTES + data];
        // The turn of another thread of this connection is the client's to end, too.
        buffer.waits_for_client(true);
        let mut output = locked(&self.output);
        let sent = match data <= SMALL_BYTES {
            true => output.write_all(answer).inspect(|()| self.place.client.moved(answer.len())),
            false => answer.chunks(PIECE_BYTES).try_for_each(|piece| {
                output.write_all(piece)?;
                self.place.client.moved(piece.len());
                Ok(())
            }),
        };
        drop(output);
        buffer.waits_for_client(false);
        if sent.is_err() {
            (self.hang_up)();
        }
    }

    /// Writes what comes before the data to the end of the room for it, and returns where that
    /// begins.
    fn head(&self, request: &Request, error: u32, data: u32, room: &mut [u8]) -> usize {
        let (cookie, structured) = (request.cookie, self.chosen.structured);
        let mut put = |head: &[u8], rest: &[u8]| {
            let start = room.len() - head.len() - rest.len();
            let (first, second) = room[start..].split_at_mut(head.len());
            first.copy_from_slice(head);
            second.copy_from_slice(rest);
            start
        };
        match (request.command, error) {
            (command::READ, 0) if structured => {
                let head = nbd::chunk(chunk::OFFSET_DATA, cookie, 8 + data);
                put(&head, &request.offset.to_be_bytes())
            }
            (command::BLOCK_STATUS, 0) => {
                let head = nbd::chunk(chunk::BLOCK_STATUS, cookie, 4 + data);
                put(&head, &nbd::ALLOCATION_ID.to_be_bytes())
            }
            // The error, and a text of no bytes.
            (command::READ | command::BLOCK_STATUS, _) if structured => {
                let [a, b, c, d] = error.to_be_bytes();
                put(&nbd::chunk(chunk::ERROR, cookie, 6), &[a, b, c, d, 0, 0])
            }
            _ => put(&nbd::reply(error, cookie), &[]),
        }
    }

    /// None: the end, or nonsense.
    fn read_request(&self, input: &mut R, buffer: &mut Buffer<'c>) -> io::Result<Option<Request>> {
        let bytes = nbd::take::<REQUEST_BYTES>(input)?;
        let Some(request) = Request::parse(&bytes) else { return Ok(None) };
        match request.command {
            command::DISCONNECT => Ok(None),
            // Too long to be read and thrown away.
            command::WRITE if request.len > REQUEST_MAX_BYTES => Ok(None),
            command::WRITE => {
                self.receive(input, request.len as usize, buffer)?;
                Ok(Some(request))
            }
            command::READ if reads(self.export, &request) => {
                buffer.reserve(&self.place, request.len as usize)?;
                buffer.grow(request.len as usize);
                Ok(Some(request))
            }
            _ => Ok(Some(request)),
        }
    }

    /// The buffer grows with what comes.
    fn receive(&self, input: &mut R, len: usize, buffer: &mut Buffer<'c>) -> io::Result<()> {
        buffer.reserve(&self.place, len)?;
        if len <= SMALL_BYTES {
            buffer.grow(len);
            return input.read_exact(&mut buffer.bytes[HEAD_BYTES..][..len]);
        }
        buffer.waits_for_client(true);
        // At once, and no byte of it is touched before it comes.
        buffer.bytes.reserve((HEAD_BYTES + len).saturating_sub(buffer.bytes.len()));
        let mut come = 0;
        while come < len {
            let piece = PIECE_BYTES.min(len - come);
            buffer.grow(come + piece);
            input.read_exact(&mut buffer.bytes[HEAD_BYTES + come..][..piece])?;
            self.place.client.moved(piece);
            come += piece;
        }
        buffer.waits_for_client(false);
        Ok(())
    }
}

/// Whether the range of a read, as that which it may have at most, can be read.
fn reads(export: &Export, r: &Request) -> bool {
    let end = r.offset.checked_add(r.len.into());
    (1..=REQUEST_MAX_BYTES).contains(&r.len)
        && end.is_some_and(|end| end <= export.volume.size_bytes())
}

/// For the client, and for whoever runs the server.
struct Failure {
    error: u32,
    message: Option<String>,
}

impl From<forebay::Error> for Failure {
    fn from(e: forebay::Error) -> Failure {
        Failure { error: nbd::error_of(e.errno()), message: Some(e.to_string()) }
    }
}

/// Refusals that the protocol names are the client's to report.
fn refuse(error: u32) -> Result<(), Failure> {
    Err(Failure { error, message: None })
}

/// The extents, each of 8 bytes, in place of data.
fn block_status(chosen: &Chosen<'_>, r: &Request, buffer: &mut Buffer<'_>) -> Result<(), Failure> {
    let volume = &chosen.export.volume;
    let end = r.offset.checked_add(r.len.into());
    let inside = r.len > 0 && end.is_some_and(|end| end <= volume.size_bytes());
    let block = u64::from(volume.block_size());
    let whole = r.offset.is_multiple_of(block) && u64::from(r.len).is_multiple_of(block);
    if !chosen.allocation || r.flags & !flag::REQ_ONE != 0 || !inside || !whole {
        return refuse(error::INVAL);
    }
    let most = if r.flags & flag::REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
    let extents = volume.extents(r.offset, r.len.into(), most)?;
    buffer.clear();
    buffer.grow(0);
    for e in extents {
        let state =
            if e.hole { nbd::STATE_HOLE } else { 0 } | if e.zero { nbd::STATE_ZERO } else { 0 };
        // No longer than the request.
        buffer.bytes.extend((e.len as u32).to_be_bytes());
        buffer.bytes.extend(state.to_be_bytes());
    }
    Ok(())
}

fn execute(
    chosen: &Chosen<'_>,
    flusher: &Flusher<'_>,
    r: &Request,
    buffer: &mut [u8],
) -> Result<(), Failure> {
    let export = chosen.export;
    let volume = &export.volume;
    let known = match r.command {
        command::READ if chosen.structured => flag::FUA | flag::DF,
        command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        _ => flag::FUA,
    };
    let writes = matches!(r.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if r.flags & !known != 0 || (r.command == command::READ && !reads(export, r)) {
        return refuse(error::INVAL);
    }
    if export.read_only && writes {
        return refuse(error::PERM);
    }
    if r.offset.checked_add(r.len.into()).is_none_or(|end| end > volume.size_bytes()) {
        return refuse(match r.command {
            command::WRITE | command::WRITE_ZEROES => error::NOSPC,
            _ => error::INVAL,
        });
    }
    let fua = r.flags & flag::FUA != 0;
    let data = HEAD_BYTES..HEAD_BYTES + r.len as usize;
    match r.command {
        command::READ => {
            // Each needs as much again where a part of it is cached.
            let parts = buffer[data].chunks_mut(READ_BYTES).zip((r.offset..).step_by(READ_BYTES));
            for (part, offset) in parts {
                volume.read_at(part, offset)?;
            }
        }
        // Without FUA, what went past the cache is not durable yet, and neither is a write to a pool on
        // a disk that is slow (`Volume::has_volatile_cache`).
        command::WRITE if fua => volume.write_at_durably(&buffer[data], r.offset)?,
        command::WRITE => volume.write_at(&buffer[data], r.offset)?,
        command::FLUSH => flusher.flush()?,
        command::TRIM => trim(export, flusher, r, fua)?,
        // Always zeroes, never a mere discard: a discarded range of an origin may
        // read as anything.  Who asks for a fast one has the data to write instead.
        command::WRITE_ZEROES => {
            if r.flags & flag::FAST_ZERO != 0 && !volume.write_zeroes_is_fast() {
                return refuse(error::NOTSUP);
            }
            match r.flags & flag::NO_HOLE != 0 {
                true => volume.allocate_zeroes(r.offset, r.len.into())?,
                false => volume.write_zeroes(r.offset, r.len.into())?,
            }
        }
        _ => return refuse(error::INVAL),
    }
    Ok(())
}

/// A hint: only the whole blocks of the range are discarded.
fn trim(export: &Export, flusher: &Flusher<'_>, r: &Request, fua: bool) -> Result<(), Failure> {
    let volume = &export.volume;
    let block = u64::from(volume.block_size());
    let start = r.offset.next_multiple_of(block);
    let end = (r.offset + u64::from(r.len)) / block * block;
    if start < end {
        volume.discard(start, end - start)?;
    }
    if fua {
        flusher.flush()?;
    }
    Ok(())
}
