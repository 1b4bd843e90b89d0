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

use super::protocol::{self as nbd, command, error, flag, Request, REPLY_BYTES, REQUEST_BYTES};
use super::{Export, REQUEST_MAX_BYTES};
use crate::warn;

/// A buffer that grew beyond this is given back after its request.
const KEPT_BYTES: usize = 1 << 20;

pub(crate) struct Connection<'c, R, W> {
    export: &'c Export,
    /// A flush that failed is told to each connection.
    flusher: Flusher<'c>,
    threads: u32,
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
        export: &'c Export,
        threads: u32,
        input: R,
        output: W,
        hang_up: &'c (dyn Fn() + Sync),
    ) -> Self {
        let (input, output) = (Mutex::new(Some(input)), Mutex::new(output));
        let (started, idle) = (AtomicU32::new(1), AtomicU32::new(1));
        let flusher = export.volume.flusher();
        Connection { export, flusher, threads, input, output, hang_up, started, idle }
    }

    /// Until the client is done and all is answered.
    pub fn run(&self) {
        std::thread::scope(|scope| self.work(scope));
    }

    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let mut buffer = Vec::new();
        while let Some(request) = self.next(&mut buffer, scope) {
            let error = self.carry_out(&request, &mut buffer);
            self.answer(&request, error, &mut buffer);
            if buffer.len() > KEPT_BYTES {
                buffer = Vec::new();
            }
            self.idle.fetch_add(1, SeqCst);
        }
    }

    /// The data of a write comes with it, after room for the header of the reply.
    fn next<'s>(&'s self, buffer: &mut Vec<u8>, scope: &'s Scope<'s, '_>) -> Option<Request> {
        let mut input = locked(&self.input);
        let request = match input.as_mut().map(|input| read_request(input, buffer)) {
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
    fn carry_out(&self, request: &Request, buffer: &mut [u8]) -> u32 {
        let volume = self.export.volume.name();
        match catch_unwind(AssertUnwindSafe(|| {
            execute(self.export, &self.flusher, request, buffer)
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

    fn answer(&self, request: &Request, error: u32, buffer: &mut Vec<u8>) {
        let data = match (request.command, error) {
            (command::READ, 0) => request.len as usize,
            _ => 0,
        };
        grow(buffer, data);
        buffer[..REPLY_BYTES].copy_from_slice(&nbd::reply(error, request.cookie));
        let sent = locked(&self.output).write_all(&buffer[..REPLY_BYTES + data]);
        if sent.is_err() {
            (self.hang_up)();
        }
    }
}

fn grow(buffer: &mut Vec<u8>, data: usize) {
    if buffer.len() < REPLY_BYTES + data {
        buffer.resize(REPLY_BYTES + data, 0);
    }
}

/// None: the end, or nonsense.
fn read_request(input: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let bytes = nbd::take::<REQUEST_BYTES>(input)?;
    let Some(request) = Request::parse(&bytes) else { return Ok(None) };
    match request.command {
        command::DISCONNECT => Ok(None),
        // Too long to be read and thrown away.
        command::WRITE if request.len > REQUEST_MAX_BYTES => Ok(None),
        command::WRITE => {
            let len = request.len as usize;
            grow(buffer, len);
            input.read_exact(&mut buffer[REPLY_BYTES..][..len])?;
            Ok(Some(request))
        }
        command::READ => {
            grow(buffer, request.len.min(REQUEST_MAX_BYTES) as usize);
            Ok(Some(request))
        }
        _ => Ok(Some(request)),
    }
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

fn execute(
    export: &Export,
    flusher: &Flusher<'_>,
    r: &Request,
    buffer: &mut [u8],
) -> Result<(), Failure> {
    let volume = &export.volume;
    let known = match r.command {
        command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        _ => flag::FUA,
    };
    let writes = matches!(r.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if r.flags & !known != 0 || (r.command == command::READ && r.len > REQUEST_MAX_BYTES) {
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
    let data = REPLY_BYTES..REPLY_BYTES + r.len as usize;
    match r.command {
        command::READ => volume.read_at(&mut buffer[data], r.offset)?,
        // Durable when it returns, but for what went past the cache.
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
            volume.write_zeroes(r.offset, r.len.into())?;
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
