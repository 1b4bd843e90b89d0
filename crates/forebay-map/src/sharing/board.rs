// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory in which the server publishes facts about a file, so that guests need not ask.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::pages::PAGE;
use crate::system::Window;

/// The board of one file.  Guests can read it and cannot change it.
#[derive(Debug)]
pub(crate) struct Board {
    window: Window,
    /// The descriptor to pass to guests.  None in a guest.
    file: Option<OwnedFd>,
}

/// The offset of each number on the board.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Is {
    /// The size of the file.  It becomes smaller only while all guests are stopped.
    Size = 0,
    /// The size that is durable, as a promise of the pool or in the file system.
    Settled = 8,
    /// The number of guests.  A dead guest counts until its stores are durable.
    Guests = 16,
    /// Whether a truncation has not ended.
    Cut = 24,
    /// The number of truncations.
    Cuts = 32,
}

impl Board {
    pub fn new() -> io::Result<Board> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("forebay-shared-file", flags)?;
        rustix::fs::ftruncate(&file, PAGE as u64)?;
        let window = Window::new(file.as_fd(), 0, PAGE)?;
        // The seals prevent others from shrinking the file or writing to it from now on.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Board { window, file: Some(file) })
    }

    /// Opens a board that a server passed.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Board> {
        if rustix::fs::fstat(file)?.st_size < PAGE as i64 {
            return Err(io::Error::other("its board is too short"));
        }
        Ok(Board { window: Window::to_read(file, 0, PAGE)?, file: None })
    }

    /// A descriptor for a guest.
    pub fn file(&self) -> io::Result<OwnedFd> {
        match &self.file {
            Some(file) => file.try_clone(),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn get(&self, what: Is) -> u64 {
        self.window.number(what as usize).load(Ordering::SeqCst)
    }

    /// Sets a number.  Only the process that made the board can do this.
    pub fn set(&self, what: Is, to: u64) {
        self.window.number(what as usize).store(to, Ordering::SeqCst);
    }
}
