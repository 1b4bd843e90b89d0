// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the tree of a mount or a replay, which only one of them has at a time.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::ENDING_WAIT;
use crate::unix::UnixTree;

/// Why a tree is not open.
#[derive(Debug)]
pub(crate) enum NoTree {
    /// The caller was interrupted while it waited for another one.  A system call that a signal
    /// interrupted (EINTR) is not that, but an error of the tree.
    Interrupted,
    Failed(io::Error),
}

impl From<io::Error> for NoTree {
    fn from(cause: io::Error) -> NoTree {
        NoTree::Failed(cause)
    }
}

impl From<Errno> for NoTree {
    fn from(cause: Errno) -> NoTree {
        NoTree::Failed(cause.into())
    }
}

/// Opens the tree for a mount or a replay, by one at a time, and on a file system that can be
/// synced.  While it waits for another one, it asks whether it is interrupted.
pub(crate) fn open_tree(
    path: &Path,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<UnixTree, NoTree> {
    let tree = UnixTree::open(path)?;
    if tree.is_fuse()? {
        let what = "it is on a FUSE file system, which the kernel does not sync as a whole: \
                    mount the tree that lies below";
        return Err(io::Error::other(what).into());
    }
    match lock(tree.path(), || tree.lock(), interrupted)? {
        Locked::Ours => Ok(tree),
        Locked::Others => {
            let mut what = String::from("it is mounted already, or a replay onto it is under way");
            let by = tree.locked_by();
            if !by.is_empty() {
                what += &format!("; its lock is held by {}", by.join(", "));
            }
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what).into())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    Ours,
    Others,
}

/// Locks the tree.  A mount that was unmounted holds its tree until the tree has everything.
fn lock(
    path: &Path,
    try_lock: impl Fn() -> rustix::io::Result<()>,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Locked, NoTree> {
    let begun = Instant::now();
    loop {
        match try_lock() {
            Ok(()) => return Ok(Locked::Ours),
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(e.into()),
        }
        if begun.elapsed() >= ENDING_WAIT || crate::unix::is_mounted(path) {
            return Ok(Locked::Others);
        }
        if interrupted() {
            return Err(NoTree::Interrupted);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover::RecoverError;
    use crate::service::not_replayed;

    #[test]
    fn an_order_to_end_is_told_from_an_interrupted_call() {
        let here = std::env::temp_dir();
        let of =
            |locked: rustix::io::Result<()>, asked: bool| match lock(&here, || locked, &mut || {
                asked
            }) {
                Ok(locked) => format!("{locked:?}"),
                Err(NoTree::Interrupted) => "Interrupted".into(),
                Err(NoTree::Failed(e)) => Errno::from_io_error(&e).unwrap().to_string(),
            };
        let table = [
            (Ok(()), true, "Ours".to_string()),
            (Ok(()), false, "Ours".into()),
            (Err(Errno::WOULDBLOCK), true, "Interrupted".into()),
            (Err(Errno::INTR), true, Errno::INTR.to_string()),
            (Err(Errno::INTR), false, Errno::INTR.to_string()),
            (Err(Errno::NOLCK), true, Errno::NOLCK.to_string()),
        ];
        for (locked, asked, expected) in table {
            assert_eq!(of(locked, asked), expected, "{locked:?}, asked to end: {asked}");
        }
    }

    /// Whatever part of it was interrupted, its exit code is not that of an end in order.
    #[test]
    fn an_interrupted_call_is_an_error_of_the_tree() {
        let table = [
            (NoTree::Interrupted, 13),
            (Errno::INTR.into(), 1),
            (io::Error::from(io::ErrorKind::Interrupted).into(), 1),
        ];
        for (cause, code) in table {
            let shown = format!("{cause:?}");
            let e = not_replayed(RecoverError::of_tree(Path::new("/tree"), cause));
            assert_eq!(e.exit_code(), code, "{shown}: {e}");
        }
    }
}
