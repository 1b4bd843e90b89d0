// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that the kernel allows by the rights of the thread that asks, although the file is open: its
//! mark, its times, its lease, a userfaultfd.
//!
//! A program may give up rights after it has opened a file, and goes on with the descriptor.  Code
//! that knows of that (`forebay map-run`) has threads with the rights of the process, and lends
//! them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// The user and the group that opened a file, as two numbers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener(pub u64);

/// Lends rights.
#[derive(Clone, Copy, Debug)]
pub struct Lender {
    /// Called before the first file is opened.
    pub begin: fn() -> io::Result<()>,
    /// The user and the group of this thread, as the kernel judges what it does with files.
    pub of_thread: fn() -> Opener,
    /// The users that this thread may become.
    pub users: fn() -> [Opener; 3],
    /// Whether a thread of the program may have changed its rights.
    pub may_differ: fn() -> bool,
    /// Runs this in a thread that has the rights of the process, as this user and group if they are
    /// given.  It may not run at all.
    pub lend: fn(Option<Opener>, &mut (dyn FnMut() + Send)),
}

static LENDER: OnceLock<Lender> = OnceLock::new();

/// Sets the lender.  False: there is one already.
pub fn lend_by(lender: Lender) -> bool {
    LENDER.set(lender).is_ok()
}

/// Has the lender ready, with the present rights.
pub fn begin() -> io::Result<()> {
    LENDER.get().map_or(Ok(()), |lender| (lender.begin)())
}

/// Who would open a file now.
pub(crate) fn opener() -> Option<Opener> {
    LENDER.get().map(|lender| (lender.of_thread)())
}

fn is_refused<R>(done: &io::Result<R>) -> bool {
    matches!(done, Err(e) if e.kind() == io::ErrorKind::PermissionDenied)
}

/// Does something with the rights of this thread.  If it lacks them, it is done with those of the
/// process, but only if this was done before (`had`).
pub(crate) fn with_those_had<R: Send>(
    had: &AtomicBool,
    op: impl Fn() -> io::Result<R> + Sync,
) -> io::Result<R> {
    let done = op();
    if done.is_ok() {
        had.store(true, Ordering::Relaxed);
    }
    match is_refused(&done) && had.load(Ordering::Relaxed) {
        true => with(None, op),
        false => done,
    }
}

/// Does something for a file that is open, with the rights that it was opened with.  `op` may run
/// several times, and has then failed before for lack of rights.
pub fn with<R: Send>(
    opener: Option<Opener>,
    op: impl Fn() -> io::Result<R> + Sync,
) -> io::Result<R> {
    let Some(lender) = LENDER.get() else { return op() };
    let differs = (lender.may_differ)();
    if !differs {
        let done = op();
        if !is_refused(&done) {
            return done;
        }
    }
    let lend = |to: Option<Opener>| {
        let mut done = None;
        (lender.lend)(to, &mut || done = Some(op()));
        done
    };
    let Some(first) = lend(opener) else { return op() };
    if !differs || !is_refused(&first) {
        return first;
    }
    // The thread that asks may have more rights than the process.
    let done = op();
    if !is_refused(&done) {
        return done;
    }
    let others = (lender.users)().into_iter().filter(|user| Some(*user) != opener);
    let mut others = others.filter_map(|user| lend(Some(user)));
    others.find(|done| !is_refused(done)).unwrap_or(done)
}
