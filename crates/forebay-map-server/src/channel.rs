// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection at which a process takes orders about files that it shares.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use forebay_map::sharing::{Heard, Order, Peer, Reply};
use forebay_map::wire::{self, Ordered, MESSAGE_MAX};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::planted::{self, Planted};
use crate::service::lock;
use crate::share::Client;

/// So long a process that lives has to carry an order out.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same where others go on without it, or it has let such an order go by already.
const MOMENT: Duration = Duration::from_secs(2);

/// Its descriptors are closed so much before it is dead, at most.
const DIES: Duration = Duration::from_secs(2);

/// Of one process.
#[derive(Debug)]
pub(crate) struct Channel {
    of: Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: UnixStream,
    /// Of the last order.
    number: u64,
    /// The last one was not answered, from then on: what comes first is the answer to that.
    unanswered: Option<Instant>,
    come: Vec<u8>,
    /// Why nothing is ordered any more.
    broken: Option<String>,
}

impl Channel {
    pub fn new(of: Client, stream: UnixStream) -> io::Result<Arc<Channel>> {
        stream.set_nonblocking(true)?;
        let state = State { stream, number: 0, unanswered: None, come: Vec::new(), broken: None };
        Ok(Arc::new(Channel { of, state: Mutex::new(state) }))
    }

    /// Until something can be read, or the process is dead, or that takes too long.
    fn wait(&self, state: &State, until: Instant, flags: PollFlags) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds =
                [PollFd::new(&state.stream, flags), PollFd::new(&*self.of.process, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                // What it has said before it died counts.
                Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn send(&self, state: &State, bytes: &[u8], until: Instant) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::net::send(&state.stream, rest, SendFlags::NOSIGNAL) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(state, until, PollFlags::OUT)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn receive(&self, state: &mut State, until: Instant) -> io::Result<Ordered<Reply>> {
        loop {
            if let Some((said, len)) = wire::message_in(&state.come)? {
                state.come.drain(..len);
                return Ok(said);
            }
            if state.come.len() > 4 + MESSAGE_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.wait(state, until, PollFlags::IN)?;
            let mut some = [0; 4096];
            match state.stream.read(&mut some) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => state.come.extend_from_slice(&some[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn order(&self, state: &mut State, order: &Order, waits: bool) -> io::Result<Reply> {
        let begun = Instant::now();
        let patience = match (planted::is(Planted::AnsweredForTheStopped), waits) {
            (true, _) => Duration::from_millis(20),
            (false, true) => PATIENCE,
            (false, false) => MOMENT,
        };
        let until = begun + patience;
        // `Go` has to be there when it goes on, whatever it answers.
        if let (Some(since), false) = (state.unanswered, matches!(order, Order::Go { .. })) {
            // Who does not answer is not waited for as long by each of the others in turn.
            let until = match waits {
                true => (since + patience).max(begun + patience.min(MOMENT)),
                false => begun + Duration::from_millis(1),
            };
            while self.receive(state, until)?.number != state.number {}
            state.unanswered = None;
        }
        state.number += 1;
        let bytes = wire::bytes_of(&Ordered { number: state.number, what: order.clone() })?;
        if let Err(e) = self.send(state, &bytes, until) {
            // A part of it may be there.
            state.broken = Some(e.to_string());
            return Err(e);
        }
        if state.unanswered.is_some() {
            return Ok(Reply::Done);
        }
        state.unanswered = Some(begun);
        loop {
            let said = self.receive(state, until)?;
            if said.number == state.number {
                state.unanswered = None;
                return Ok(said.what);
            }
        }
    }
}

impl Peer for Channel {
    fn pid(&self) -> u32 {
        self.of.pid
    }

    fn ask(&self, order: &Order, waits: bool) -> Heard {
        let mut state = match (self.state.try_lock(), waits) {
            (Ok(state), _) => state,
            (Err(TryLockError::WouldBlock), true) => lock(&self.state),
            (Err(TryLockError::WouldBlock), false) => return Heard::Busy,
            (Err(TryLockError::Poisoned(e)), _) => e.into_inner(),
        };
        if self.of.is_dead() {
            return Heard::Dead;
        }
        if let Some(why) = &state.broken {
            return Heard::Silent(why.clone());
        }
        match self.order(&mut state, order, waits) {
            Ok(said) => Heard::Said(said),
            Err(e) if e.kind() != io::ErrorKind::TimedOut && self.of.dies_within(DIES) => {
                Heard::Dead
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                let time = if waits { PATIENCE } else { MOMENT };
                Heard::Silent(format!("for {} s; it may be stopped", time.as_secs()))
            }
            Err(e) => {
                let why = format!("its connection has ended: {e}");
                // It is told nothing more: not to wait for `Go` either.
                let _ = state.stream.shutdown(std::net::Shutdown::Both);
                state.broken = Some(why.clone());
                Heard::Silent(why)
            }
        }
    }
}
