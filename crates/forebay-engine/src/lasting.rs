// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that are open for as long as a pool or a file is.
//!
//! A child of the process does not have them ([`forks`]).
//!
//! In a process whose other code knows nothing of them, and may close descriptors that it has
//! not opened (`forebay map-run`), somebody has to know which they are: a [`Keeper`].

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::forks;

/// Who knows of them.
#[derive(Clone, Copy, Debug)]
pub struct Keeper {
    /// Called when such a descriptor was opened; returns the one to use in its place.
    pub keep: fn(OwnedFd) -> OwnedFd,
    /// A duplicate of such a descriptor, at a number that none of them had.
    pub duplicate: fn(RawFd) -> io::Result<OwnedFd>,
    /// Closes it.
    pub close: fn(OwnedFd),
    /// Fails if the number is not what was kept by it, but something else or nothing.
    pub check: fn(RawFd) -> io::Result<()>,
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// From now on; false: there is one already.
pub fn keep_by(keeper: Keeper) -> bool {
    KEEPER.set(keeper).is_ok()
}

/// Somebody may close them who knows nothing of them.
pub fn are_kept() -> bool {
    KEEPER.get().is_some()
}

/// Before something is done with one that must not be done to another file.  Always successful
/// where nobody keeps them.
pub fn check(fd: BorrowedFd<'_>) -> io::Result<()> {
    match KEEPER.get() {
        Some(keeper) => (keeper.check)(fd.as_raw_fd()),
        None => Ok(()),
    }
}

/// Such a descriptor, wrapped in the type by which its owner uses it.
#[derive(Debug)]
pub struct Lasting<T: Into<OwnedFd>>(Option<T>);

/// Opens one.  No child has it, whenever that is forked; so `open` must not wait.
pub fn open<T, E>(open: impl FnOnce() -> Result<T, E>) -> Result<Lasting<T>, E>
where
    T: Into<OwnedFd> + From<OwnedFd>,
{
    let _hold = forks::hold();
    open().map(Lasting::from)
}

/// A lasting duplicate of a descriptor, which may be lasting itself.
pub fn duplicate<T>(fd: BorrowedFd<'_>) -> io::Result<Lasting<T>>
where
    T: Into<OwnedFd> + From<OwnedFd>,
{
    open(|| match KEEPER.get() {
        Some(keeper) => (keeper.duplicate)(fd.as_raw_fd()).map(T::from),
        None => fd.try_clone_to_owned().map(T::from),
    })
}

impl<T: Into<OwnedFd> + From<OwnedFd>> From<T> for Lasting<T> {
    /// Takes a descriptor that was opened before: a child forked meanwhile has it.
    fn from(opened: T) -> Lasting<T> {
        let _hold = forks::hold();
        let opened: OwnedFd = opened.into();
        let opened = match KEEPER.get() {
            Some(keeper) => (keeper.keep)(opened),
            None => opened,
        };
        forks::enter(opened.as_raw_fd());
        Lasting(Some(opened.into()))
    }
}

impl<T: Into<OwnedFd>> Deref for Lasting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Lasting<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl<T: Into<OwnedFd>> Drop for Lasting<T> {
    fn drop(&mut self) {
        if let Some(opened) = self.0.take() {
            let _hold = forks::hold();
            let opened: OwnedFd = opened.into();
            forks::leave(opened.as_raw_fd());
            match KEEPER.get() {
                Some(keeper) => (keeper.close)(opened),
                None => drop(opened),
            }
        }
    }
}
