// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers GET over HTTP/1, one request a connection: all that a collector of
//! metrics needs.  Each connection has a thread and ends in time whatever the client
//! does, so one that sends or takes nothing holds up nobody.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::PrivateSocket;

/// For the answer to be taken, from when there is one.
const ANSWER: Duration = Duration::from_secs(5);
/// For the request: who is silent makes room sooner.
const REQUEST: Duration = Duration::from_secs(2);
/// Further ones wait to be accepted.
const CONNECTIONS: usize = 32;
/// Request line and headers.  A body is not read.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// How soon it is seen that the server is to stop.
const TICK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub enum Listener {
    Unix(PrivateSocket),
    Tcp(TcpListener),
}

#[derive(Debug)]
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: String,
}

impl Answer {
    pub fn text(status: &'static str, body: impl Into<String>) -> Answer {
        Answer { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Until `stopping` says so; `get` answers for a path.
pub fn serve(
    listener: &Listener,
    stopping: &dyn Fn() -> bool,
    get: &(dyn Fn(&str) -> Answer + Sync),
) -> io::Result<()> {
    match listener {
        Listener::Unix(socket) => socket.listener().set_nonblocking(true)?,
        Listener::Tcp(listener) => listener.set_nonblocking(true)?,
    }
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while !stopping() {
            if busy.load(Ordering::Acquire) >= CONNECTIONS {
                std::thread::sleep(TICK);
                continue;
            }
            let Some(stream) = listener.accept() else { continue };
            let busy = &busy;
            busy.fetch_add(1, Ordering::AcqRel);
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                // A client that hung up needs no answer.
                let _ = converse(stream, get);
                busy.fetch_sub(1, Ordering::AcqRel);
            });
            if started.is_err() {
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    });
    Ok(())
}

impl Listener {
    /// None: nobody came for a tick.
    fn accept(&self) -> Option<Timed> {
        let accepted = match self {
            Listener::Unix(socket) => socket.listener().accept().map(|(s, _)| Stream::Unix(s)),
            Listener::Tcp(listener) => listener.accept().map(|(s, _)| Stream::Tcp(s)),
        };
        match accepted {
            Ok(stream) => Some(Timed { stream, until: Instant::now() + REQUEST }),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let fd = match self {
                    Listener::Unix(socket) => socket.listener().as_fd(),
                    Listener::Tcp(listener) => listener.as_fd(),
                };
                let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&tick));
                None
            }
            // Out of descriptors or memory: there may be some later.
            Err(_) => {
                std::thread::sleep(TICK);
                None
            }
        }
    }
}

fn converse(mut stream: Timed, get: &(dyn Fn(&str) -> Answer + Sync)) -> io::Result<()> {
    let mut head = Vec::new();
    let answer = loop {
        let mut more = [0; 4096];
        let n = stream.read(&mut more)?;
        head.extend(&more[..n]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                break match (request.method, request.path) {
                    (Some("GET"), Some(path)) => get(path),
                    _ => Answer::text("405 Method Not Allowed", "only GET\n"),
                };
            }
            Ok(httparse::Status::Partial) if n == 0 => return Ok(()),
            Ok(httparse::Status::Partial) if head.len() < HEAD_MAX => {}
            _ => break Answer::text("400 Bad Request", "not a request, or a long one\n"),
        }
    };
    let Answer { status, content_type, body } = answer;
    stream.until = Instant::now() + ANSWER;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A stream that is over at a moment.
struct Timed {
    stream: Stream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        match &mut self.stream {
            Stream::Unix(s) => s.set_read_timeout(left).and_then(|()| s.read(buffer)),
            Stream::Tcp(s) => s.set_read_timeout(left).and_then(|()| s.read(buffer)),
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        match &mut self.stream {
            Stream::Unix(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
            Stream::Tcp(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
