// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which errors of the tree end the mount.
//!
//! The end of a mount takes every program's work with it.  So no condition that a single user can
//! bring about may end one: a name that somebody next to the mount has changed, or a limit that was
//! reached.  Such an error is the answer of its operation, and its entry is made void.  A lack of
//! room that leaves two files with each other's names for 10 s ends a mount all the same, since no
//! answer would be true.

use rustix::io::Errno;

use super::{Journal, Live};
use crate::tree::Tree;

/// The request to the tree that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A sync, or a question for errors of the write-back.  No error of it says what was kept.
    Sync,
    /// The number of a group.  The group itself is synced, so a missing number costs nothing before
    /// a crash.
    Number,
    /// The second change of an operation whose first one was made.
    Name,
}

/// The file system has no room, or this process no more descriptors or memory.
fn is_shortage(errno: Errno) -> bool {
    use Errno as E;
    matches!(errno, E::NOSPC | E::DQUOT | E::MFILE | E::NFILE | E::NOMEM)
}

/// The same call may succeed a moment later.
pub(super) fn may_pass(errno: Errno) -> bool {
    is_shortage(errno) || matches!(errno, Errno::INTR | Errno::AGAIN)
}

/// The file system itself is damaged, has given up, or has lost its disk.
fn is_damage(errno: Errno) -> bool {
    use Errno as E;
    // ext4, xfs and btrfs give UCLEAN and BADMSG for metadata that does not make sense.
    matches!(errno, E::IO | E::UCLEAN | E::BADMSG | E::ROFS | E::NODEV | E::NXIO | E::NOLINK)
}

pub(super) fn ends_mount(step: Step, errno: Errno) -> bool {
    match step {
        Step::Sync => true,
        Step::Number => !is_shortage(errno),
        Step::Name => is_damage(errno),
    }
}

impl<T: Tree, J: Journal> Live<T, J> {
    /// Returns the answer for an operation whose step got this error.  The mount ends if
    /// [`ends_mount`] says so.
    pub(super) fn judge(&self, step: Step, what: &str, errno: Errno) -> Errno {
        match ends_mount(step, errno) {
            true => self.fail(what, errno),
            false => errno,
        }
    }
}

#[cfg(test)]
type Happening = Box<dyn FnMut() -> crate::tree::Result<()>>;

#[cfg(test)]
thread_local! {
    static BETWEEN: std::cell::RefCell<Option<Happening>> = const { std::cell::RefCell::new(None) };
}

/// Sets what happens between the steps of the later operations of this thread.
#[cfg(test)]
pub(super) fn happens_between(what: Happening) {
    BETWEEN.set(Some(what));
}

/// A test lets something happen between two steps of an operation, or lets the next one fail.
#[cfg(test)]
pub(super) fn between() -> crate::tree::Result<()> {
    BETWEEN.with_borrow_mut(|what| what.as_mut().map_or(Ok(()), |what| what()))
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn between() -> crate::tree::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_can_end_a_mount() {
        use Errno as E;
        // A user can cause these by names, rights and leases of his own.
        let of_users = [
            E::NOENT,
            E::EXIST,
            E::ISDIR,
            E::NOTDIR,
            E::NOTEMPTY,
            E::PERM,
            E::ACCESS,
            E::STALE,
            E::XDEV,
            E::MLINK,
            E::LOOP,
            E::NAMETOOLONG,
            E::FBIG,
            E::BUSY,
            E::TXTBSY,
            E::AGAIN,
            E::INTR,
            E::INVAL,
            E::OPNOTSUPP,
        ];
        let shortages = [E::NOSPC, E::DQUOT, E::MFILE, E::NFILE, E::NOMEM];
        let damages = [E::IO, E::UCLEAN, E::BADMSG, E::ROFS, E::NODEV, E::NXIO, E::NOLINK];
        let table = [
            // The errors, and whether each step's end the mount.
            (&of_users[..], [true, true, false]),
            (&shortages, [true, false, false]),
            (&damages, [true, true, true]),
        ];
        for (errors, ends) in table {
            for errno in errors {
                let steps = [Step::Sync, Step::Number, Step::Name];
                assert_eq!(steps.map(|step| ends_mount(step, *errno)), ends, "{errno:?}");
            }
        }
    }
}
