// SPDX-License-Identifier: MIT OR Apache-2.0
//! A link: a thread that has a connection, makes it again when it ends, and takes
//! requests to it from the queue.

use std::net::ToSocketAddrs;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_nbd::{Connection, Direction, Export, Failure};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use super::*;
use crate::bounded::bounded;

pub(super) struct Link {
    pub shared: Arc<Shared>,
    pub number: usize,
    /// The export as it was when the origin was opened.
    pub export: Option<Export>,
}

impl Link {
    /// `first` is told how the first connection went; without one there is no second.
    pub fn run(mut self, mut first: Option<SyncSender<std::result::Result<Export, Failure>>>) {
        let mut pause = PAUSE_MIN;
        while !self.shared.state().stop {
            let why = match self.connect() {
                Ok((connection, export)) => {
                    self.export.get_or_insert(export);
                    if let Some(first) = first.take() {
                        let _ = first.send(Ok(export));
                    }
                    match self.fits(&export) {
                        Ok(()) => {
                            pause = PAUSE_MIN;
                            self.serve(connection)
                        }
                        Err(why) => why,
                    }
                }
                Err(e) => {
                    if let Some(first) = first.take() {
                        let _ = first.send(Err(e));
                        return;
                    }
                    e.to_string()
                }
            };
            let mut state = self.shared.state();
            state.link_down(self.number, &why);
            let stop = state.stop;
            drop(state);
            self.shared.changed.notify_all();
            if !stop {
                self.shared.kicks[self.number].wait(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    fn connect(&self) -> std::result::Result<(Connection, Export), Failure> {
        let failure = |text: &str| Failure::Nbd { text: text.into(), errno: 0 };
        let limit = self.shared.away.limit().map_or(CONNECT, |limit| limit.min(CONNECT));
        let deadline = Instant::now() + limit;
        if let Some(host) = &self.shared.host {
            look_up(host, limit).map_err(|why| failure(&why))?;
        }
        let mut connection = Connection::begin(&self.shared.uri)?;
        while !connection.is_up() {
            if connection.is_down() {
                return Err(failure("the server closed the connection"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.shared.state().stop {
                return Err(failure(&format!("no answer in {limit:?}")));
            }
            self.wait(&mut connection, Some(left))?;
        }
        let export = connection.export()?;
        connection.fd().iter().for_each(keep_alive);
        Ok((connection, export))
    }

    /// Is it still what it was?  What has grown is used as it was.
    fn fits(&self, now: &Export) -> std::result::Result<(), String> {
        let was = self.export.as_ref().unwrap_or(now);
        self.shared.state().size_now = Some(now.size_bytes);
        if now.size_bytes < was.size_bytes {
            return Err(format!("it has {} bytes now, of {}", now.size_bytes, was.size_bytes));
        }
        if now.read_only && !was.read_only {
            return Err("it is read-only now".into());
        }
        if was.multi_conn && !now.multi_conn {
            return Err("a flush of it is of one connection alone now".into());
        }
        let (least, most_now, most_then) = (now.block_min, most(now), most(was));
        let lacks = [
            (was.can_flush && !now.can_flush).then(|| "it takes no flushes now".to_string()),
            (was.can_zero && !now.can_zero).then(|| "it does not zero ranges now".to_string()),
            (was.can_trim && !now.can_trim).then(|| "it does not trim ranges now".to_string()),
            (least > was.block_min.max(512))
                .then(|| format!("it is served in blocks of {least} bytes now")),
            (most_now < most_then).then(|| {
                format!("it takes requests of {most_now} bytes now, at most, and took {most_then}")
            }),
        ];
        lacks.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// Until the connection ends; why.
    fn serve(&self, mut connection: Connection) -> String {
        self.shared.state().link_up(self.number);
        // Then nothing more is sent, and what was is to end first: the server might do it
        // after what comes by another connection.
        let (mut shuts_down, mut let_go) = (false, None);
        let mut sent_at = Instant::now();
        loop {
            // After whatever took the kick, and before the wait for the next.
            if self.shared.state().stop {
                let_go.get_or_insert(sent_at + LET_GO);
            }
            let mut down = match shuts_down || let_go.is_some() {
                true => connection.is_down(),
                false => self.send(&mut connection, &mut sent_at),
            };
            for done in connection.ended() {
                shuts_down |= matches!(&done.result, Err(e) if e.errno() == SHUTDOWN);
                down |= connection.is_down();
                if shuts_down {
                    self.shared.state().up &= !(1 << self.number);
                }
                self.ended(done, down || shuts_down);
                if shuts_down {
                    self.kick_others();
                }
            }
            // This look comes after the requests that have just ended: the last one in flight gets no answer.
            let left = let_go.map(|by: Instant| by.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero() || connection.in_flight() == 0) {
                return "it is released".into();
            }
            down |= connection.is_down() || (shuts_down && connection.in_flight() == 0);
            let found = match down {
                true => Err("the server closed the connection".to_string()),
                false => self.wait(&mut connection, left).map_err(|e| e.to_string()),
            };
            if let Err(why) = found {
                self.lost(connection);
                return why;
            }
        }
    }

    /// From the queue, as much as may be in flight, and when the last of it was sent.  True: the
    /// connection is no good.
    fn send(&self, connection: &mut Connection, sent_at: &mut Instant) -> bool {
        while connection.in_flight() < DEPTH && !connection.is_down() {
            let mut state = self.shared.state();
            let Some(r) = state.next_of(self.number) else { break };
            let Request { token, command, offset, len, began, .. } = r;
            let (changes, flush) = (command.changes(), matches!(command, Command::Flush));
            let (link, wanted) = (self.number, true);
            state.sent.insert(token, Sent { changes, flush, offset, len, link, began, wanted });
            drop(state);
            *sent_at = Instant::now();
            if let Err(done) = connection.submit(token, command, offset) {
                self.ended(done, connection.is_down());
            }
        }
        if connection.in_flight() == DEPTH {
            self.kick_free();
        }
        connection.is_down()
    }

    /// `gone`: the connection is, or will be, so that an error is not the server's answer.
    fn ended(&self, done: Done, gone: bool) {
        let mut state = self.shared.state();
        match gone && done.result.is_err() {
            true => state.take_back(done),
            false => state.end(done, self.number),
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// All requests in flight return to the queue, and acknowledged data may be lost.
    fn lost(&self, connection: Connection) {
        let gone = connection.close();
        let mut state = self.shared.state();
        state.lose(self.number);
        gone.into_iter().for_each(|done| state.take_back(done));
        drop(state);
        self.shared.changed.notify_all();
        self.kick_others();
    }

    /// Connected links take over the requests in the queue; the others have their pause.
    fn kick_others(&self) {
        let up = self.shared.state().up & !(1 << self.number);
        (0..LINKS).filter(|l| up >> l & 1 != 0).for_each(|l| self.shared.kicks[l].kick());
    }

    /// Passes on the requests that this link was kicked for and cannot take.
    fn kick_free(&self) {
        let state = self.shared.state();
        let left = state.queue.iter().any(|r| r.link.is_none());
        let free = state.free().next().filter(|_| left);
        drop(state);
        free.iter().for_each(|&l| self.shared.kicks[l].kick());
    }

    /// For the server, or for a request.
    fn wait(
        &self,
        connection: &mut Connection,
        limit: Option<Duration>,
    ) -> std::result::Result<(), Failure> {
        let kick = &self.shared.kicks[self.number];
        let want = connection.direction();
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, want.read);
        flags.set(PollFlags::OUT, want.write);
        let found = {
            let Some(fd) = connection.fd() else {
                return Err(Failure::Nbd { text: "it has no socket".into(), errno: 0 });
            };
            let mut fds = [
                PollFd::from_borrowed_fd(fd, flags),
                PollFd::from_borrowed_fd(kick.fd(), PollFlags::IN),
            ];
            kick.poll(&mut fds, limit);
            let got = fds[0].revents();
            let ended = got.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
            Direction {
                read: got.contains(PollFlags::IN) || ended,
                write: got.contains(PollFlags::OUT) || ended,
            }
        };
        connection.notify(found)
    }
}

/// A machine that has lost its power answers nothing: one that is back ends the connection
/// when it is asked.  Slowly, so that a network that is cut is waited for as TCP does.
fn keep_alive(socket: &BorrowedFd<'_>) {
    let (every, times) = (Duration::from_secs(30), 20);
    // A Unix socket has none of these, and needs none.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, every);
    let _ = sockopt::set_tcp_keepintvl(socket, every);
    let _ = sockopt::set_tcp_keepcnt(socket, times);
}

/// Resolves the host.  libnbd does that itself, too, and waits without a bound if nameservers
/// do not answer; right after an answer it gets one as well.
pub(super) fn look_up(host: &str, limit: Duration) -> std::result::Result<(), String> {
    let asked = (host.to_string(), 0u16);
    match bounded("fby-nbd-name", limit, move || asked.to_socket_addrs().map(|_| ())) {
        Some(answer) => answer.map_err(|e| format!("{host}: {e}")),
        None => Err(format!("{host}: no nameserver has answered in {limit:?}")),
    }
}
