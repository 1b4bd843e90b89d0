// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves volumes over NBD on a Unix socket, each as an export of its name.
//!
//! Our own rather than nbdkit's, since there a client that goes away with answers
//! unread ends the process and with it every other client's connection, in versions
//! that are in wide use.  Here a connection is its threads, and shares with the
//! others nothing but the volumes.
mod connection;
mod handshake;
mod memory;
mod protocol;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use connection::{Connection, Place};
use forebay::Volume;
use memory::{Bounds, Client, Memory};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getrlimit, Resource};

use crate::warn;

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
/// Memory of large requests, where there is enough.
const MEMORY: Bounds = Bounds {
    all: 256 << 20,
    export: 192 << 20,
    export_least: REQUEST_MAX_BYTES as usize,
    client: 64 << 20,
    watch: Duration::from_secs(5),
};
/// Two requests of any size: a connection has one of them.
const MEMORY_LEAST: usize = 2 * REQUEST_MAX_BYTES as usize;
/// How soon it is seen that the server is to stop.
const TICK: Duration = Duration::from_millis(20);

/// A volume, and how it is offered.
#[derive(Debug)]
pub struct Export {
    pub volume: Volume,
    pub read_only: bool,
}

/// The public side of a running server, and the way to end it.
#[derive(Debug, Default)]
pub(crate) struct Door {
    /// By number, to shut them down.
    connections: Mutex<HashMap<u64, UnixStream>>,
    taken: AtomicU64,
    refused: AtomicU64,
    /// It is to end, and by then without those that have not.
    closed: OnceLock<Instant>,
}

impl Door {
    /// Nobody comes in any more, no more requests are taken, and those that were have so
    /// long.
    pub(crate) fn close(&self, grace: Duration) {
        let _ = self.closed.set(Instant::now() + grace);
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    pub(crate) fn open(&self) -> usize {
        self.connections().len()
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many connections more may be open.  Further ones would take descriptors that the pool and its
/// origins need.
fn left() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    limit.saturating_sub(open + DESCRIPTORS_LEFT) / DESCRIPTORS
}

/// Whether another connection is taken.  `most`: by the descriptors at the start.  `left`: by those
/// that are open now, since mapped files take some, too.
fn is_taken(open: usize, most: usize, left: impl FnOnce() -> usize) -> bool {
    open == 0 || (open < most && left() > 0)
}

/// Accepts connections of a listener that does not block until the door closes; then
/// returns when what was taken is answered.  A connection chooses of the exports that there
/// are when it begins.
pub(crate) fn serve(
    listener: &UnixListener,
    exports: &(dyn Fn() -> Vec<Arc<Export>> + Sync),
    threads: u32,
    door: &Door,
) {
    let (most, mut full) = (left().clamp(1, CONNECTIONS_MAX), false);
    let memory = Memory::new(MEMORY.within(forebay::memory_share(MEMORY_LEAST, MEMORY.all)));
    let cut = |number| {
        if let Some(stream) = door.connections().get(&number) {
            let _ = stream.shutdown(Shutdown::Both);
            warn("a client was cut off: it sent its data or took its answers by less than 1 MiB a second for 5 s, while others waited for the memory");
        }
    };
    let (memory, cut) = (&memory, &cut);
    std::thread::scope(|scope| {
        for number in 0.. {
            let Some(stream) = accept(listener, door) else { break };
            let open = door.open();
            if !is_taken(open, most, left) {
                door.refused.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut full, true) {
                    warn(format_args!(
                        "{open} connections are open, and no more are taken until one ends; allow more open files (ulimit -n, LimitNOFILE= of a unit), up to {CONNECTIONS_MAX} connections"
                    ));
                }
                continue;
            }
            full = false;
            let started = stream.try_clone().and_then(|second| {
                door.connections().insert(number, second);
                door.taken.fetch_add(1, Ordering::Relaxed);
                let thread = std::thread::Builder::new().name("fby-nbd".into());
                thread.spawn_scoped(scope, move || {
                    let _listed = Listed { door, number };
                    // A client that breaks off is no news.
                    let _ = converse(&stream, number, &exports(), threads, (memory, cut));
                })
            });
            if let Err(e) = started {
                warn(format_args!("a connection was refused: {e}"));
                door.connections().remove(&number);
            }
        }
        wind_down(door);
    });
}

/// A connection, until its thread ends in whatever way.
struct Listed<'s> {
    door: &'s Door,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.door.connections().remove(&self.number);
    }
}

/// None: to stop.
fn accept(listener: &UnixListener, door: &Door) -> Option<UnixStream> {
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    while !door.is_closed() {
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
fn wind_down(door: &Door) {
    while door.open() > 0 {
        let late = door.closed.get().is_some_and(|end| Instant::now() > *end);
        for stream in door.connections().values() {
            let _ = stream.shutdown(if late { Shutdown::Both } else { Shutdown::Read });
        }
        std::thread::sleep(TICK);
    }
}

/// One connection, from the first byte to the last.
fn converse(
    stream: &UnixStream,
    number: u64,
    exports: &[Arc<Export>],
    threads: u32,
    (memory, cut): (&Memory, &(dyn Fn(u64) + Sync)),
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let mut limited = Limited { stream, until: Instant::now() + HANDSHAKE };
    let Some(chosen) = handshake::negotiate(&mut limited, &mut &*stream, exports)? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let hang_up = || drop(stream.shutdown(Shutdown::Both));
    let place = Place { client: Client::new(number, address(chosen.export)), memory, cut };
    let input = BufReader::with_capacity(INPUT_BYTES, stream);
    Connection::new(chosen, threads, place, input, stream, &hang_up).run();
    Ok(())
}

/// No other export has the same while it is served.
fn address(export: &Export) -> usize {
    std::ptr::from_ref(export).addr()
}

/// All reads of it must end before a moment.
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
    exports: &[impl Borrow<Export>],
) -> io::Result<()> {
    if let Some(chosen) = handshake::negotiate(&mut input, &mut output, exports)? {
        let most = REQUEST_MAX_BYTES as usize;
        let bounds = Bounds { all: most, export: most, export_least: 0, client: most, ..MEMORY };
        let memory = Memory::new(bounds);
        let client = Client::new(0, address(chosen.export));
        let place = Place { client, memory: &memory, cut: &|_| {} };
        Connection::new(chosen, 1, place, input, output, &|| {}).run();
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::*;
    use super::*;

    #[test]
    fn descriptors_of_others_leave_room_for_fewer_connections() {
        // The first one is always taken.
        assert!(is_taken(0, 1, || 0) && is_taken(1, 5, || 1));
        assert!(!is_taken(5, 5, || 9), "more than the start allowed");
        assert!(!is_taken(1, 5, || 0), "no descriptor is left");
    }

    /// However little memory there is, each request has room, and what is granted together stays
    /// within it.
    #[test]
    fn bounds_fit_into_the_memory_that_there_is() {
        const REQUEST: usize = REQUEST_MAX_BYTES as usize;
        for all in [MEMORY_LEAST, MEMORY_LEAST + 1, 100 << 20, 200 << 20, MEMORY.all] {
            let bounds = MEMORY.within(all);
            assert!(bounds.all == all && bounds.export < all && bounds.client <= bounds.export);
            assert!(bounds.client >= REQUEST && bounds.export >= bounds.export_least, "{bounds:?}");
        }
        let bounds = MEMORY.within(MEMORY.all);
        assert_eq!((bounds.export, bounds.client), (MEMORY.export, MEMORY.client));
    }
    use forebay::*;

    const MIB: usize = 1 << 20;

    /// Connections that had large requests and are idle now hold no memory that a connection of
    /// their volume needs while other volumes hang.
    #[test]
    fn an_idle_connection_keeps_no_memory_from_others() {
        let dir = Dir::new("nbd-idle");
        let pool = open(&dir.pool(24));
        let volume = attach(&pool, "a", &MemOrigin::new(4 * MIB).unwrap());
        let exports: &'static [Export] = vec![Export { volume, read_only: false }].leak();
        // As much for a volume in any case as an idle connection would keep.
        let bounds =
            Bounds { all: 8 * MIB, export: 4 * MIB, export_least: MIB, client: 2 * MIB, ..MEMORY };
        let memory: &'static Memory = Box::leak(Box::new(Memory::new(bounds)));
        // Answers a read of 1 MiB for each byte that it is sent.
        let connect = |number| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
            let serve = move || {
                let mut old = 3u32.to_be_bytes().to_vec();
                old.extend([&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat());
                let mut hello = Vec::new();
                let chosen = handshake::negotiate(&mut &old[..], &mut hello, exports);
                let chosen = chosen.unwrap().unwrap();
                let place = Place { client: Client::new(number, 1), memory, cut: &|_| {} };
                Connection::new(chosen, 1, place, &theirs, &theirs, &|| {}).run();
            };
            std::thread::spawn(serve);
            ours
        };
        let read = |mut stream: &UnixStream| {
            let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
            bytes.extend([[0; 20].as_slice(), &(MIB as u32).to_be_bytes()].concat());
            stream.write_all(&bytes)?;
            stream.read_exact(&mut vec![0; 16 + MIB])
        };
        let idle: Vec<_> = (1..=2).map(connect).collect();
        idle.iter().for_each(|stream| read(stream).unwrap());
        // Volumes whose origins hang hold all that there is.
        let others: Vec<_> = (0..4).map(|n| Client::new(10 + n, 10 + n as usize)).collect();
        let hang: Vec<_> = others.iter().map(|c| hold_in_time(memory, c, 2 * MIB)).collect();
        let third = connect(3);
        let answered = read(&third);
        drop((idle, third, hang));
        answered.expect("a connection waits for memory that idle ones keep");
    }

    /// Takes memory for a request, or waits for it in a thread of its own where there is no room.
    fn hold_in_time(memory: &'static Memory, client: &Client, bytes: usize) -> Option<Hold> {
        let (client, (tell, told)) = (client.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || tell.send(memory.hold(&client, bytes, &|_| {})));
        told.recv_timeout(Duration::from_millis(500)).ok().flatten()
    }

    type Hold = memory::Held<'static>;
}
