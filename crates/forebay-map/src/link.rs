// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection to the server of a pool.  It carries one question at a time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::forks;
use forebay_engine::lasting::{self, Lasting};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::fair::Fair;
use crate::wire::{self, Answer, Request};

/// A server that sends nothing for this time counts as dead.  A server that is busy sends
/// [`wire::LIVES`].
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, with the reason if it failed.
#[derive(Debug)]
pub(crate) struct Link {
    /// A thread that asks all the time must not keep the others out.
    state: Fair<State>,
    /// The process that serves the pool, or served it.
    server: u32,
    /// The process that owns the connection.
    of: u32,
    /// No more questions are sent.
    is_gone: AtomicBool,
}

#[derive(Debug)]
struct State {
    stream: Lasting<UnixStream>,
    /// The reason why no more questions are sent.
    gone: Option<String>,
}

impl Link {
    pub fn new(stream: Lasting<UnixStream>, server: u32) -> Link {
        let state = State { stream, gone: None };
        let (of, is_gone) = (std::process::id(), AtomicBool::new(false));
        Link { state: Fair::new(state), server, of, is_gone }
    }

    pub fn server(&self) -> u32 {
        self.server
    }

    /// Whether a question has shown that the server has ended, or does not answer.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// The path of the server's socket.
    pub fn path(&self) -> io::Result<std::path::PathBuf> {
        let address = self.state.lock().stream.peer_addr()?;
        match address.as_pathname() {
            Some(path) => Ok(path.to_owned()),
            None => Err(io::Error::other("its server has no name")),
        }
    }

    pub fn ask(&self, request: &Request) -> Result<Answer> {
        self.ask_for(request).map(|(answer, _)| answer)
    }

    /// Like `ask`, and returns the descriptor that comes with the answer.
    pub fn ask_for(&self, request: &Request) -> Result<(Answer, Option<Lasting<OwnedFd>>)> {
        self.ask_by(|stream| send(stream, request).map(|()| true))
    }

    /// Like `ask`, and hands over a duplicate of a descriptor with the request.  The answer is no
    /// where the kernel does not take the descriptor: nothing was sent then.
    pub fn ask_with(&self, request: &Request, file: BorrowedFd<'_>) -> Result<Answer> {
        self.ask_by(|stream| send_with(stream, request, file)).map(|(answer, _)| answer)
    }

    fn ask_by(
        &self,
        sends: impl FnOnce(&UnixStream) -> io::Result<bool>,
    ) -> Result<(Answer, Option<Lasting<OwnedFd>>)> {
        // A child must not use its parent's connection: the server would take its questions for
        // the parent's.
        if std::process::id() != self.of {
            let why = format!("it is a share of process {}, and this is a child of it", self.of);
            return Err(Error::Pool(why));
        }
        let mut state = self.state.lock();
        if let Some(why) = &state.gone {
            return Err(Error::Pool(why.clone()));
        }
        let answer = lasting::check(state.stream.as_fd())
            .and_then(|()| sends(&state.stream))
            .and_then(|sent| match sent {
                true => receive(&state.stream),
                false => Ok((Answer::Yes(false), None)),
            });
        match answer {
            Ok((Answer::Failed { refused: false, why }, _)) => Err(Error::Pool(why)),
            Ok(answer) => Ok(answer),
            Err(e) => {
                let cause = match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "does not answer".into(),
                    io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe => "has ended".into(),
                    _ => format!("is not understood ({e})"),
                };
                let why = format!(
                    "its server, process {}, {cause}; what was synced is kept in the pool, and \
                     the next forebay serve writes it back after this process has ended",
                    self.server
                );
                state.gone = Some(why.clone());
                self.is_gone.store(true, Ordering::SeqCst);
                let _ = lasting::check(state.stream.as_fd())
                    .and_then(|()| state.stream.shutdown(std::net::Shutdown::Both));
                Err(Error::Unknown(why))
            }
        }
    }
}

pub(crate) fn set_up(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Checks that the server runs as a user whom we may trust with a pool of ours.
pub(crate) fn check_server(stream: &UnixStream) -> Result<()> {
    let who = forebay::Peer::of(stream);
    let user = who.map_err(|e| Error::Pool(format!("its server is not known: {e}")))?.user;
    match user == 0 || user == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(Error::Pool(format!(
            "user {user} answers for it, who is neither root nor this one"
        ))),
    }
}

/// Sends a message.  A server that has ended causes an error and not SIGPIPE, which programs in
/// C do not ignore.
pub(crate) fn send<T: Serialize>(stream: &UnixStream, message: &T) -> io::Result<()> {
    send_bytes(stream, &wire::bytes_of(message)?)
}

fn send_bytes(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Sends a message together with a duplicate of a descriptor.  False: the kernel refuses that one
/// (a limit to those under way, a lack of memory, a filter), and the connection is as it was.
fn send_with<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    file: BorrowedFd<'_>,
) -> io::Result<bool> {
    let bytes = wire::bytes_of(message)?;
    let sent = match wire::send_first(stream, &bytes, file) {
        Err(e @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::AGAIN)) => {
            return Err(e.into())
        }
        Err(_) => return Ok(false),
        Ok(sent) => sent,
    };
    send_bytes(stream, &bytes[sent..]).map(|()| true)
}

/// Connects to the server.  None: there is no server.
pub(crate) fn connect(path: &Path) -> io::Result<Option<Lasting<UnixStream>>> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = lasting::open(|| {
        let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        made.map(UnixStream::from)
    })?;
    let begun = Instant::now();
    loop {
        match rustix::net::connect(&stream, &address) {
            Ok(()) => break,
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // The process would map files onto memory that another user's process controls.
    forebay::check_peer(&stream, None)?;
    stream.set_nonblocking(false)?;
    Ok(Some(stream))
}

/// Receives an answer, however long the server works on it, and the descriptor that comes with
/// it.  Children do not inherit the descriptor.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<(Answer, Option<Lasting<OwnedFd>>)> {
    loop {
        match receive_one(stream)? {
            (Answer::Working, _) => {}
            answered => return Ok(answered),
        }
    }
}

fn receive_one(mut stream: &UnixStream) -> io::Result<(Answer, Option<Lasting<OwnedFd>>)> {
    // Waits without receiving anything.
    let mut waited = Err(Errno::INTR);
    while waited == Err(Errno::INTR) {
        waited = rustix::net::recv(stream, &mut [0u8][..], RecvFlags::PEEK).map(drop);
    }
    waited?;
    let hold = forks::hold();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut came = RecvAncillaryBuffer::new(&mut space);
    let mut first = [0];
    let got = loop {
        let mut to = [io::IoSliceMut::new(&mut first)];
        match rustix::net::recvmsg(stream, &mut to, &mut came, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut file = None;
    for message in came.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            file = files.next().map(Lasting::from).or(file);
        }
    }
    drop(hold);
    let mut all = io::Read::chain(&first[..], &mut stream);
    Ok((wire::receive(&mut all)?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(2);

    /// The result of a question to a server that reports `works` times that it is busy.  Between
    /// its messages the server waits for `each`, or until the client has gone.
    fn asked(works: u32, each: Duration) -> Result<Answer> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        set_up(&ours, PATIENT).expect("patience");
        let link = Link::new(ours.into(), 1);
        std::thread::scope(|s| {
            s.spawn(move || {
                let _: Request = wire::receive(&mut &theirs).expect("a question");
                theirs.set_read_timeout(Some(each)).expect("a limit");
                let wait = || drop(io::Read::read(&mut &theirs, &mut [0]));
                for _ in 0..works {
                    wait();
                    let _ = wire::send(&mut &theirs, &Answer::Working);
                }
                wait();
                let _ = wire::send(&mut &theirs, &Answer::Number(5));
            });
            let link = link;
            link.ask(&Request::Wanted)
        })
    }

    /// The other thread asks again as soon as it has an answer, as those do that bring in
    /// segments.
    #[test]
    fn a_thread_that_asks_all_the_time_holds_up_no_other() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let link = Link::new(ours.into(), 1);
        let (others, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        let between = std::thread::scope(|s| {
            s.spawn(|| {
                let theirs = theirs;
                while let Ok(question) = wire::receive::<Request>(&mut &theirs) {
                    others.fetch_add(u32::from(question == Request::Wanted), Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    let _ = wire::send(&mut &theirs, &Answer::Number(5));
                }
            });
            s.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    link.ask(&Request::Wanted).expect("an answer");
                }
                let _ = link.state.lock().stream.shutdown(std::net::Shutdown::Both);
            });
            let mut between: Vec<u32> = (0..11)
                .map(|_| {
                    // The other thread waits for an answer by the end of this.
                    std::thread::sleep(Duration::from_millis(5));
                    let before = others.load(Ordering::SeqCst);
                    link.ask(&Request::FileFrom { file: 0 }).expect("an answer");
                    others.load(Ordering::SeqCst) - before
                })
                .collect();
            ends.store(true, Ordering::SeqCst);
            between.sort_unstable();
            between
        });
        // A busy machine may run the other thread between the count and the question.
        assert!(between[5] <= 3, "questions that came later went first: {between:?}");
    }

    #[test]
    fn a_busy_server_is_waited_for_and_a_silent_one_is_not() {
        // All in all it takes longer than the client would wait for one message.
        let each = PATIENT / 8;
        assert_eq!(asked(9, each).expect("it works"), Answer::Number(5));
        let silent = asked(0, 100 * PATIENT).expect_err("it says nothing");
        assert!(silent.to_string().contains("does not answer"), "{silent}");
    }
}
