// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves volumes over NBD on a Unix socket, each as an export of its name.
//!
//! Our own rather than nbdkit's, since there a client that goes away with answers
//! unread ends the process and with it every other client's connection, in versions
//! that are in wide use.  Here a connection is its threads, and shares with the
//! others nothing but the volumes.
mod connection;
mod handshake;
mod protocol;

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use connection::Connection;
use forebay::{printable, Volume};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getrlimit, Resource};

/// The largest request: what clients may rely on without asking.
const REQUEST_MAX_BYTES: u32 = 32 << 20;
/// A page of the cache: less than one has to be merged with what is cached.
const PREFERRED_BYTES: u32 = 4096;
/// So many small requests are taken in with one system call.
const INPUT_BYTES: usize = 64 << 10;
/// A client that has not chosen an export for so long is dropped.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Connections at once, if there are descriptors for them.
const CONNECTIONS_MAX: usize = 1024;
/// Descriptors of one.
const DESCRIPTORS: usize = 2;
/// Descriptors left for what else the process does.
const DESCRIPTORS_LEFT: usize = 96;
/// How soon it is seen that the server is to stop.
const TICK: Duration = Duration::from_millis(20);

/// A volume, and how it is offered.
#[derive(Debug)]
pub struct Export {
    pub volume: Volume,
    pub read_only: bool,
}

/// How to stop.
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct Stop<'s> {
    /// How long requests may go on after it.
    pub grace: Duration,
    /// Called after that, to end what still waits.
    pub abort: &'s (dyn Fn() + Sync),
}

/// Connections by number, to shut them down.
type Connections = Mutex<HashMap<u64, UnixStream>>;

/// Further ones would take descriptors that the pool and its origins need.
fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let left = limit.saturating_sub(open + DESCRIPTORS_LEFT) / DESCRIPTORS;
    left.clamp(1, CONNECTIONS_MAX)
}

/// Accepts connections until `stopping` says so; then takes no more requests, and
/// returns when those that were taken are answered.
pub fn serve(
    listener: &UnixListener,
    exports: &[Export],
    threads: u32,
    stopping: &dyn Fn() -> bool,
    stop: Stop<'_>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let connections = Connections::default();
    let (most, mut full) = (connections_max(), false);
    std::thread::scope(|scope| {
        for number in 0.. {
            let Some(stream) = accept(listener, stopping) else { break };
            let connections = &connections;
            if lock(connections).len() >= most {
                if !std::mem::replace(&mut full, true) {
                    warn(format_args!(
                        "{most} connections are open, and no more are taken until one ends; allow more open files (ulimit -n, LimitNOFILE= of a unit), up to {CONNECTIONS_MAX} connections"
                    ));
                }
                continue;
            }
            full = false;
            let started = stream.try_clone().and_then(|second| {
                lock(connections).insert(number, second);
                let thread = std::thread::Builder::new().name("fby-nbd".into());
                thread.spawn_scoped(scope, move || {
                    let _listed = Listed { connections, number };
                    // A client that breaks off is no news.
                    let _ = converse(&stream, exports, threads);
                })
            });
            if let Err(e) = started {
                warn(format_args!("a connection was refused: {e}"));
                lock(connections).remove(&number);
            }
        }
        wind_down(&connections, &stop);
    });
    Ok(())
}

/// A connection, until its thread ends in whatever way.
struct Listed<'s> {
    connections: &'s Connections,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(self.connections).remove(&self.number);
    }
}

fn lock(connections: &Connections) -> std::sync::MutexGuard<'_, HashMap<u64, UnixStream>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log that takes nothing any more ends no request.
fn warn(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(io::stderr().lock(), "forebay: {}", printable(&text));
}

/// None: to stop.
fn accept(listener: &UnixListener, stopping: &dyn Fn() -> bool) -> Option<UnixStream> {
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    while !stopping() {
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&tick));
            }
            // Out of descriptors or memory: there may be some later.
            Err(_) => std::thread::sleep(TICK),
        }
    }
    None
}

/// Each connection reads the end of its stream; one that does not end by itself in
/// time is cut, which ends what it sends.
fn wind_down(connections: &Connections, stop: &Stop<'_>) {
    let start = Instant::now();
    let mut aborted = false;
    while !lock(connections).is_empty() {
        let late = start.elapsed() > stop.grace;
        for stream in lock(connections).values() {
            let _ = stream.shutdown(if late { Shutdown::Both } else { Shutdown::Read });
        }
        if late && !aborted {
            (stop.abort)();
            aborted = true;
        }
        std::thread::sleep(TICK);
    }
}

/// One connection, from the first byte to the last.
fn converse(stream: &UnixStream, exports: &[Export], threads: u32) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let mut limited = Limited { stream, until: Instant::now() + HANDSHAKE };
    let Some(export) = handshake::negotiate(&mut limited, &mut &*stream, exports)? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let hang_up = || drop(stream.shutdown(Shutdown::Both));
    let input = BufReader::with_capacity(INPUT_BYTES, stream);
    Connection::new(export, threads, input, stream, &hang_up).run();
    Ok(())
}

/// All that is read of it is read before a moment.
struct Limited<'s> {
    stream: &'s UnixStream,
    until: Instant,
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

/// One connection over any stream, on one thread: for tests and fuzzing.
pub fn converse_over(
    mut input: impl Read + Send,
    mut output: impl Write + Send,
    exports: &[Export],
) -> io::Result<()> {
    if let Some(export) = handshake::negotiate(&mut input, &mut output, exports)? {
        Connection::new(export, 1, input, output, &|| {}).run();
    }
    Ok(())
}
