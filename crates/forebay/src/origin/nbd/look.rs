// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks a server for an export, and does not use it: a server that ends after its last client
//! (`qemu-nbd` without `-t`) has had none then.

use std::time::{Duration, Instant};

use forebay_nbd::{Connection, Direction, Export, Failure};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::link::look_up;
use super::CONNECT;

/// A server that was asked ends the connection by then.
const LEAVE: Duration = Duration::from_secs(1);

/// `None`: the server tells nothing of an export that is not used.
pub(super) fn export(uri: &str, host: Option<&str>) -> Result<Option<Export>, Failure> {
    let deadline = Instant::now() + CONNECT;
    if let Some(host) = host {
        look_up(host, CONNECT).map_err(|why| failure(&why))?;
    }
    let mut connection = Connection::begin_to_ask(uri)?;
    let mut asked = false;
    loop {
        // The old protocol has no questions.
        if connection.is_up() {
            return connection.export().map(Some);
        }
        if connection.is_down() {
            return Err(failure("the server closed the connection"));
        }
        match (connection.may_ask(), asked) {
            (true, true) => {
                let export = connection.export().ok();
                leave(&mut connection);
                return Ok(export);
            }
            (true, false) => {
                connection.ask_for_export()?;
                asked = true;
            }
            (false, _) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(failure(&format!("no answer in {CONNECT:?}")));
                }
                wait(&mut connection, left)?;
            }
        }
    }
}

fn failure(text: &str) -> Failure {
    Failure::Nbd { text: text.into(), errno: 0 }
}

fn leave(connection: &mut Connection) {
    let deadline = Instant::now() + LEAVE;
    let mut left = connection.leave().map(|()| LEAVE);
    while let (Ok(time), false) = (&left, connection.is_down()) {
        let waited = wait(connection, *time);
        let rest = deadline.saturating_duration_since(Instant::now());
        left = waited.and(if rest.is_zero() { Err(failure("it stays")) } else { Ok(rest) });
    }
}

fn wait(connection: &mut Connection, limit: Duration) -> Result<(), Failure> {
    let wants = connection.direction();
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, wants.read);
    flags.set(PollFlags::OUT, wants.write);
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let Some(fd) = connection.fd() else { return Err(failure("it has no connection")) };
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(Failure::Nbd { text: e.to_string(), errno: e.raw_os_error() }),
    }
    let found = fds[0].revents();
    let ended = found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    connection.notify(Direction {
        read: found.contains(PollFlags::IN) || ended,
        write: found.contains(PollFlags::OUT) || ended,
    })
}
