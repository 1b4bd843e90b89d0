// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that serves the pool: a thread that accepts, and one for each
//! connection.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay::Error as PoolError;

use super::{Answer, Request, LINE_MAX};
use crate::place::private_directory;
use crate::server::Shared;
use crate::service::{Progress, Work};
use crate::{PrivateSocket, Result};

/// Connections at once; further ones wait to be accepted, which is no longer than
/// an idle one is kept.
const CONNECTIONS: usize = 64;
/// A client that has asked nothing for so long is dropped.
const IDLE: Duration = Duration::from_secs(5);
/// How soon a waiting thread sees that it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// A client that waits hears at least so often that it does not wait for the dead.
const BEAT: Duration = Duration::from_millis(500);
/// A client that does not take its answer for so long is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Responder {
    /// None: being dropped.
    socket: Option<PrivateSocket>,
    /// To the socket.  A pool whose disk hangs is found by it.
    link: Option<PathBuf>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    pub(crate) fn start(dir: &Path, shared: &Arc<Shared>) -> Result<Responder> {
        private_directory(dir, "name another with FOREBAY_RUNTIME_DIR")?;
        let path = forebay::control_socket(dir, shared.pool().uuid());
        let socket = PrivateSocket::bind(&path).map_err(|e| match e {
            PoolError::Busy { path, holder, .. } => PoolError::Busy {
                path,
                holder,
                way_out: "another process answers for a pool of this UUID: a reader of this one, or a copy of it is open".into(),
            },
            e => e,
        })?;
        let system = |doing| {
            let path = path.clone();
            move |e: io::Error| PoolError::system(&path, doing, e)
        };
        let id = &shared.pool().media().id;
        // Without it the pool is read for its UUID.
        let link = (!id.is_empty()).then(|| forebay::control_link(dir, id));
        let link = link.filter(|link| make_link(&path, link).is_ok());
        let listener = socket.listener().try_clone().map_err(system("setting it up"))?;
        listener.set_nonblocking(true).map_err(system("setting it up"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stop_too) = (shared.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("fby-control".into())
            .spawn(move || accept(&listener, &shared, &stop_too))
            .map_err(system("starting a thread"))?;
        Ok(Responder { socket: Some(socket), link, stop, thread: Some(thread) })
    }

    pub(crate) fn socket(&self) -> &Path {
        self.socket.as_ref().expect("there until it is dropped").path()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // Nobody else makes one of this name: the pool is still locked.
        if let Some(link) = &self.link {
            let _ = fs::remove_file(link);
        }
        self.socket = None;
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// In place of one that a server left which was killed.
fn make_link(socket: &Path, link: &Path) -> io::Result<()> {
    let _ = fs::remove_file(link);
    let name = socket.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    std::os::unix::fs::symlink(name, link)
}

/// Until told to stop; ends after all connections.
fn accept(listener: &UnixListener, shared: &Shared, stop: &AtomicBool) {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Acquire) {
            if busy.load(Ordering::Acquire) >= CONNECTIONS {
                std::thread::sleep(TICK);
                continue;
            }
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if again(&e) => {
                    readable(listener);
                    continue;
                }
                // Out of descriptors or memory: there may be some later.
                Err(_) => {
                    std::thread::sleep(TICK);
                    continue;
                }
            };
            busy.fetch_add(1, Ordering::AcqRel);
            let busy = &busy;
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                // A client that went away needs no answer.
                let _ = serve(stream, shared, stop);
                busy.fetch_sub(1, Ordering::AcqRel);
            });
            if started.is_err() {
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    });
}

fn readable(listener: &UnixListener) {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
}

fn serve(stream: UnixStream, shared: &Shared, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut reader = BufReader::new(&stream);
    let mut line = Vec::new();
    let mut asked = Instant::now();
    while !stop.load(Ordering::Acquire) && asked.elapsed() < IDLE && line.len() <= LINE_MAX {
        match read_some(&mut reader, &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {
                answer(&line, &stream, shared, stop)?;
                line.clear();
                asked = Instant::now();
            }
            Ok(_) => {}
            Err(e) if again(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads the available part of the line, so that a client that never ends it is checked in
/// between.
fn read_some(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let come = reader.fill_buf()?;
    let end = come.iter().position(|&b| b == b'\n').map_or(come.len(), |newline| newline + 1);
    line.extend(&come[..end]);
    reader.consume(end);
    Ok(end)
}

fn again(e: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(e.kind(), WouldBlock | TimedOut | Interrupted)
}

fn send(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer(line: &[u8], stream: &UnixStream, shared: &Shared, stop: &AtomicBool) -> io::Result<()> {
    let answer = carry_out(line, stream, shared, stop)
        .unwrap_or_else(|e| Answer::Error { message: e.to_string(), exit_code: e.exit_code() });
    send(stream, &answer)
}

fn carry_out(
    line: &[u8],
    stream: &UnixStream,
    shared: &Shared,
    stop: &AtomicBool,
) -> Result<Answer> {
    let pool = shared.pool();
    let request = serde_json::from_slice::<Request>(line).map_err(|e| {
        PoolError::usage(
            format!("the request is not understood: {e}"),
            "use the same version of Forebay on both sides",
        )
    })?;
    // A client that is gone waits for nothing.
    let go_on = |progress: &Answer| match send(stream, progress) {
        Ok(()) if !stop.load(Ordering::Acquire) => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    Ok(match request {
        Request::Status => Answer::Status(Box::new(shared.status())),
        Request::Set { options } => Answer::Options(pool.set_options(&options)?),
        Request::SetVolume { volume, options } => {
            pool.set_volume(volume.as_deref(), &options)?;
            Answer::Done(true)
        }
        Request::Start { kind, options } => {
            let start = |told: &mut Progress<'_>| shared.start(&kind, options, told);
            Answer::Started(Box::new(beside(&go_on, format!("starting {kind}"), start)?))
        }
        Request::Stop { kind, name, keep } => {
            let stop = |told: &mut Progress<'_>| shared.stop(&kind, &name, keep, told);
            beside(&go_on, format!("stopping {kind} {name}"), stop)?;
            Answer::Done(true)
        }
        Request::Call { kind, request } => {
            let call = |told: &mut Progress<'_>| shared.call(&kind, request, told);
            Answer::Called(beside(&go_on, format!("asking {kind}"), call)?)
        }
        Request::Drain { volume } => {
            let of_services = match volume {
                None => beside(&go_on, "draining".into(), |told| shared.drain(told)),
                Some(_) => Ok(()),
            };
            let drained = pool.drain(volume.as_deref(), &mut |name, progress| {
                go_on(&Answer::Progress { volume: name.into(), progress: progress.clone() })
            });
            let drained = drained.map_err(|e| match e {
                PoolError::Interrupted { name } if stop.load(Ordering::Acquire) => {
                    PoolError::Stopped { name, why: "stops" }
                }
                e => e,
            });
            of_services?;
            Answer::Drained(drained?)
        }
    })
}

/// Does what a service is asked for, on a thread of its own; the client is told what it
/// says of its way, and, while it says nothing, the last of that again.
fn beside<T: Send>(
    go_on: &(impl Fn(&Answer) -> ControlFlow<()> + Sync),
    what: String,
    work: impl FnOnce(&mut Progress<'_>) -> Result<T> + Send,
) -> Result<T> {
    // One of the two sends at a time.
    let last = Mutex::new((Instant::now(), Work { what, ..Work::default() }));
    let lock = &|| -> MutexGuard<'_, (Instant, Work)> {
        last.lock().unwrap_or_else(PoisonError::into_inner)
    };
    let send = &|mut last: MutexGuard<'_, (Instant, Work)>, work: Work| {
        *last = (Instant::now(), work.clone());
        go_on(&Answer::Working(work))
    };
    let (done, wait) = mpsc::channel();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let mut tell = |work: &Work| send(lock(), work.clone());
            // The other side is there until this has come.
            let _ = done.send(work(&mut tell));
        });
        loop {
            match wait.recv_timeout(BEAT) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => {
                    let panic = worker.join().expect_err("it has sent nothing");
                    std::panic::resume_unwind(panic);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let last = lock();
                    if last.0.elapsed() >= BEAT {
                        let again = last.1.clone();
                        // Who has gone away is met by the work itself.
                        let _ = send(last, again);
                    }
                }
            }
        }
    })
}
