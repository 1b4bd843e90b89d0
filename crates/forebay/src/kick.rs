// SPDX-License-Identifier: MIT OR Apache-2.0
//! A wake-up that can be polled for: a thread that sleeps in `poll` is woken by it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use forebay_engine::lasting::{self, Lasting};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

/// An eventfd: the destage thread of a pool sleeps on one, and each link to an NBD server.
#[derive(Debug)]
pub(crate) struct Kick(Lasting<OwnedFd>);

impl Kick {
    pub(crate) fn new() -> io::Result<Kick> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Kick(lasting::open(|| rustix::event::eventfd(0, flags))?))
    }

    pub(crate) fn kick(&self) {
        // Fails only where the counter is full, and then it is kicked.
        let kick = lasting::check(self.fd());
        let _ = kick.map(|()| rustix::io::write(self.fd(), &1u64.to_ne_bytes()));
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wait(&self, limit: Duration) {
        self.poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(limit));
    }

    /// Until one of these is ready, this among them, which is ready for the next kick then.
    pub(crate) fn poll(&self, fds: &mut [PollFd<'_>], limit: Option<Duration>) {
        let timeout = limit.map(|limit| rustix::event::Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        // INTR or whatever: the caller looks for work either way.
        let _ = rustix::event::poll(fds, timeout.as_ref());
        match lasting::check(self.fd()) {
            Ok(()) => drop(rustix::io::read(self.fd(), &mut [0u8; 8])),
            // Poll does not wait for what is no descriptor.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
