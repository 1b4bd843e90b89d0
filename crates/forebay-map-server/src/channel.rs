// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection on which a process takes orders about the files that it shares.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use forebay_map::sharing::{Heard, Order, Peer, Reply};
use forebay_map::wire::{self, Ordered, MESSAGE_MAX};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::frame_registry::Client;
use crate::locked::lock;
use crate::planted::{self, Planted};

/// How long a living process may stay silent while it carries out an order.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 20_000 });

/// The shorter limit for a process that has let such an order time out before, or that others
/// do not depend on.
const MOMENT: Duration = Duration::from_secs(2);

/// The longest time between the close of a dying process's descriptors and its death.
const DIES: Duration = Duration::from_secs(2);

/// The channel of one process.
#[derive(Debug)]
pub(crate) struct Channel {
    of: Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: UnixStream,
    /// The number of the last order.
    number: u64,
    /// Set since the last order was not answered.  The first reply to come belongs to it.
    unanswered: Option<Instant>,
    /// Visits that were sent `Stop`, and no `Go` since.  Only these are sent `Go`, so a stopped
    /// process has one unread `Go` for each at most, however often others change sizes.
    stopped: BTreeSet<u32>,
    come: Vec<u8>,
    /// The reason why no more orders are sent.
    broken: Option<String>,
}

impl Channel {
    pub fn new(of: Client, stream: UnixStream) -> io::Result<Arc<Channel>> {
        stream.set_nonblocking(true)?;
        let state = State {
            stream,
            number: 0,
            unanswered: None,
            stopped: BTreeSet::new(),
            come: Vec::new(),
            broken: None,
        };
        Ok(Arc::new(Channel { of, state: Mutex::new(state) }))
    }

    /// Waits until data can be read or written, the process is dead, or the time is over.
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
                // A reply that the process sent before it died counts.
                Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends an order.  An order that was sent in part ends the connection, because the process
    /// could not tell where the next one begins.
    fn send(&self, state: &mut State, order: &Order, until: Instant) -> io::Result<()> {
        let number = state.number + 1;
        let bytes = wire::bytes_of(&Ordered { number, what: order.clone() })?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let sent = match rustix::net::send(&state.stream, rest, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    rest = &rest[n..];
                    Ok(())
                }
                Err(Errno::INTR) => Ok(()),
                Err(Errno::AGAIN) => self.wait(state, until, PollFlags::OUT),
                Err(e) => Err(e.into()),
            };
            if let Err(e) = sent {
                // Calls of the process wait for its `Go`, and the end of the connection ends that.
                let waits_for_it = matches!(order, Order::Go { .. });
                let in_part = rest.len() < bytes.len();
                if in_part || waits_for_it || e.kind() != io::ErrorKind::TimedOut {
                    state.broken = Some(e.to_string());
                }
                return Err(e);
            }
        }
        state.number = number;
        match order {
            Order::Stop { visit } => drop(state.stopped.insert(*visit)),
            Order::Go { visit } => drop(state.stopped.remove(visit)),
            Order::Sync { .. } | Order::GiveUp { .. } => {}
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
        // The process has no unread `Stop`, or the `Go` after it is unread too.
        if matches!(order, Order::Go { visit } if !state.stopped.contains(visit)) {
            return Ok(Reply::Done);
        }
        // `Go` must be sent in any case: the process reads it once it continues.
        if let (Some(since), false) = (state.unanswered, matches!(order, Order::Go { .. })) {
            // A process that does not answer must not delay each of the other requests in turn
            // by the full limit.
            let until = match waits {
                true => (since + patience).max(begun + patience.min(MOMENT)),
                false => begun + Duration::from_millis(1),
            };
            self.hear(state, until, if waits { patience } else { Duration::ZERO })?;
        }
        self.send(state, order, until)?;
        if state.unanswered.is_some() {
            return Ok(Reply::Done);
        }
        state.unanswered = Some(begun);
        self.hear(state, until, if waits { patience } else { Duration::ZERO })
    }

    /// Waits for the reply to the last order.  Each report that the process is working extends
    /// the time by `more`.
    fn hear(&self, state: &mut State, mut until: Instant, more: Duration) -> io::Result<Reply> {
        loop {
            let said = self.receive(state, until)?;
            match said.what {
                _ if said.number != state.number => {}
                Reply::Working => {
                    let now = Instant::now();
                    state.unanswered = Some(now);
                    until = until.max(now + more);
                }
                reply => {
                    state.unanswered = None;
                    return Ok(reply);
                }
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
            Err(e) if e.kind() == io::ErrorKind::TimedOut && state.broken.is_none() => {
                let time = if waits { PATIENCE } else { MOMENT };
                Heard::Silent(format!("for {} s; it may be stopped", time.as_secs()))
            }
            Err(e) => {
                let why = format!("its connection has ended: {e}");
                // The process gets no more orders.  The shutdown also ends its wait for `Go`.
                let _ = state.stream.shutdown(std::net::Shutdown::Both);
                state.broken = Some(why.clone());
                Heard::Silent(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::process::{getpid, pidfd_open, PidfdFlags};

    /// The outcome of an order to a process that reports `works` times that it is working,
    /// after a pause each time.
    fn heard(works: u32, each: Duration) -> Heard {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let process = Arc::new(pidfd_open(getpid(), PidfdFlags::empty()).expect("this process"));
        let of = Client { number: 1, pid: std::process::id(), process };
        let channel = Channel::new(of, ours).expect("a channel");
        std::thread::scope(|s| {
            s.spawn(move || {
                let order: Ordered<Order> = wire::receive(&mut &theirs).expect("an order");
                let said = |what| Ordered { number: order.number, what };
                for _ in 0..works {
                    std::thread::sleep(each);
                    let _ = wire::send(&mut &theirs, &said(Reply::Working));
                }
                std::thread::sleep(each);
                let _ = wire::send(&mut &theirs, &said(Reply::Done));
            });
            channel.ask(&Order::Stop { visit: 1 }, true)
        })
    }

    /// Others change sizes while a process is stopped.  Each change ends with a `Go`.
    #[test]
    fn a_process_that_was_stopped_for_long_takes_orders_again() {
        const CHANGES: u32 = 3000;
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let process = Arc::new(pidfd_open(getpid(), PidfdFlags::empty()).expect("this process"));
        let of = Client { number: 1, pid: std::process::id(), process };
        let channel = Channel::new(of, ours).expect("a channel");
        let stop = |visit| channel.ask(&Order::Stop { visit }, true);
        assert!(matches!(stop(1), Heard::Silent(_)), "it is stopped");
        for visit in 0..CHANGES {
            let begun = Instant::now();
            channel.ask(&Order::Go { visit: 1 + visit % 3 }, true);
            assert!(begun.elapsed() < PATIENCE, "a change of a size waits for a stopped process");
        }
        std::thread::scope(|s| {
            let goes_on = s.spawn(move || {
                let (mut stopped, mut read) = (BTreeSet::new(), 0);
                while let Ok(order) = wire::receive::<Ordered<Order>>(&mut &theirs) {
                    read += 1;
                    match order.what {
                        Order::Stop { visit } => drop(stopped.insert(visit)),
                        Order::Go { visit } => drop(stopped.remove(&visit)),
                        _ => {}
                    }
                    let done = Ordered { number: order.number, what: Reply::Done };
                    let _ = wire::send(&mut &theirs, &done);
                }
                (stopped, read)
            });
            assert_eq!(stop(2), Heard::Said(Reply::Done), "it goes on");
            assert_eq!(channel.ask(&Order::Go { visit: 2 }, true), Heard::Said(Reply::Done));
            let _ = lock(&channel.state).stream.shutdown(std::net::Shutdown::Both);
            let (stopped, read) = goes_on.join().expect("it reads");
            assert!(stopped.is_empty(), "these calls wait for ever: {stopped:?}");
            assert!(read <= 4, "{read} orders, where two changes needed four");
        });
    }

    #[test]
    fn a_busy_process_is_waited_for_and_a_silent_one_is_not() {
        let each = PATIENCE / 4;
        assert_eq!(heard(7, each), Heard::Said(Reply::Done), "it worked for twice the time");
        assert!(matches!(heard(0, 3 * PATIENCE / 2), Heard::Silent(_)), "it said nothing");
    }
}
