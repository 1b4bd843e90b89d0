// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all guests of a file see, without asking: memory that the server writes to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::pages::PAGE;
use crate::system::Window;

/// Of one file.  What a guest reads there is the server's word, and no more.
#[derive(Debug)]
pub(crate) struct Board {
    window: Window,
    /// To be given to guests.  A guest needs none.
    file: Option<OwnedFd>,
}

/// Where each number lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Is {
    /// Bytes of the file.  It changes while all guests are stopped.
    Size = 0,
    /// So many of them are durable, as a promise of the pool or in the file system.
    Settled = 8,
    /// How many guests it has.  One that has died counts until what it has stored is durable.
    Guests = 16,
    /// A truncation has not ended.
    Cut = 24,
    /// How many there were.
    Cuts = 32,
}

impl Board {
    pub fn new() -> io::Result<Board> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("forebay-shared-file", flags)?;
        rustix::fs::ftruncate(&file, PAGE as u64)?;
        let window = Window::new(file.as_fd(), 0, PAGE)?;
        // Nobody takes it away under others, or writes there from now on.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Board { window, file: Some(file) })
    }

    /// One that a server has given.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Board> {
        if rustix::fs::fstat(file)?.st_size < PAGE as i64 {
            return Err(io::Error::other("its board is too short"));
        }
        Ok(Board { window: Window::to_read(file, 0, PAGE)?, file: None })
    }

    /// For a guest.
    pub fn file(&self) -> io::Result<OwnedFd> {
        match &self.file {
            Some(file) => file.try_clone(),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn get(&self, what: Is) -> u64 {
        self.window.number(what as usize).load(Ordering::SeqCst)
    }

    /// By who has made it.
    pub fn set(&self, what: Is, to: u64) {
        self.window.number(what as usize).store(to, Ordering::SeqCst);
    }
}
