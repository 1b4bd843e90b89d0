// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of a file's attributes and names that its file system may not have durably: mode,
//! owner, links, times, extended attributes.  The pool has none of them.  A sync of the file looks
//! for such changes, and syncs the file itself where there is one.
//!
//! This library changes the file's times too, with each write-back.  So each of its operations
//! looks before and after.  What has changed between two of its operations, others have changed.
//! A change of an extended attribute in the very moment of such an operation is seen only if the
//! library is told.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use forebay_engine::lasting::{self, Lasting};
use rustix::fs::OFlags;

use crate::locked::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The time of the last change of anything of the file (ctime).
    time: (i64, u32),
    /// Mode, owner, group, number of names.
    rest: [u32; 4],
}

impl Seen {
    fn of(file: BorrowedFd<'_>) -> Option<Seen> {
        let st = rustix::fs::fstat(file).ok()?;
        Some(Seen {
            time: (st.st_ctime, st.st_ctime_nsec as u32),
            rest: [st.st_mode, st.st_uid, st.st_gid, st.st_nlink as u32],
        })
    }
}

#[derive(Debug, Default)]
struct State {
    seen: Option<Seen>,
    /// Operations of the library that are under way.
    under_way: usize,
    /// The number of changes by others.
    changes: u64,
    /// How many of these the file system has durably.
    durable: u64,
}

impl State {
    /// Counts what others have changed since the last look.
    fn look(&mut self, file: BorrowedFd<'_>) {
        let now = Seen::of(file);
        let is_same = match (self.seen, now) {
            (Some(seen), Some(now)) if self.under_way > 0 => seen.rest == now.rest,
            (seen, now) => seen == now && now.is_some(),
        };
        if !is_same {
            self.changes += 1;
            self.seen = now;
        }
    }
}

/// What is known of a file's attributes.
#[derive(Debug)]
pub(crate) struct Attributes(Mutex<State>);

impl Attributes {
    /// Changes before this call are the caller's to sync.
    pub fn of(file: BorrowedFd<'_>) -> Attributes {
        Attributes(Mutex::new(State { seen: Seen::of(file), ..State::default() }))
    }

    /// Makes a change of the library.
    pub fn by_us<R>(&self, file: BorrowedFd<'_>, act: impl FnOnce() -> R) -> R {
        {
            let mut state = lock(&self.0);
            state.look(file);
            state.under_way += 1;
        }
        let done = act();
        let mut state = lock(&self.0);
        state.look(file);
        state.under_way -= 1;
        if state.under_way == 0 {
            state.seen = Seen::of(file);
        }
        done
    }

    /// Others have changed something.
    pub fn touched(&self) {
        lock(&self.0).changes += 1;
    }

    /// Calls `sync` if the file system may lack a change of others.
    pub fn settle(
        &self,
        file: BorrowedFd<'_>,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let changes = {
            let mut state = lock(&self.0);
            state.look(file);
            if state.changes == state.durable {
                return Ok(());
            }
            state.changes
        };
        sync()?;
        let mut state = lock(&self.0);
        state.durable = state.durable.max(changes);
        Ok(())
    }
}

/// What a process has seen of a file that a server has open.  The server's own changes are seen,
/// too: then the server is asked for nothing.
#[derive(Debug)]
pub(crate) struct Glimpse {
    /// The file, to look at it alone.  None: the server is asked each time.
    file: Option<Lasting<OwnedFd>>,
    /// When nothing had to be made durable.
    last: Mutex<Option<Seen>>,
    touched: AtomicBool,
}

impl Glimpse {
    pub fn of(path: &Path, identity: &[u8]) -> Glimpse {
        // Where the path is a symbolic link by now, or the user may not read it, there is none.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = lasting::open(|| rustix::fs::open(path, flags, rustix::fs::Mode::empty())).ok();
        let is_it = |file: &Lasting<OwnedFd>| {
            forebay::file_identity(file.as_fd()).is_ok_and(|found| found.into_bytes() == identity)
        };
        let file = file.filter(is_it);
        Glimpse { file, last: Mutex::default(), touched: AtomicBool::new(false) }
    }

    /// This process has changed something.
    pub fn touched(&self) {
        self.touched.store(true, Ordering::SeqCst);
    }

    /// Calls `ask` if the file has changed since the last time, with whether this process knows of a
    /// change.
    pub fn settle<E>(&self, ask: impl FnOnce(bool) -> Result<(), E>) -> Result<(), E> {
        let mut last = lock(&self.last);
        let touched = self.touched.swap(false, Ordering::SeqCst);
        let file = self.file.as_ref().map(|file| file.as_fd());
        let now = file.filter(|file| lasting::check(*file).is_ok()).and_then(Seen::of);
        if touched || now.is_none() || *last != now {
            // Another thread may have changed something meanwhile: what it has set stays.
            ask(touched).inspect_err(|_| {
                self.touched.fetch_or(touched, Ordering::SeqCst);
            })?;
            *last = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    #[test]
    fn what_others_change_is_synced_once_and_what_we_change_is_not() {
        let path = std::env::temp_dir().join(format!("forebay-attributes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file");
        let attributes = Attributes::of(file.as_fd());
        let syncs = || {
            let mut syncs = 0;
            let sync = || {
                syncs += 1;
                Ok(())
            };
            attributes.settle(file.as_fd(), sync).expect("settled");
            syncs
        };
        // The clock of a file system may be coarse.
        let tick = || std::thread::sleep(std::time::Duration::from_millis(12));
        assert_eq!(syncs(), 0, "nothing has changed");
        tick();
        attributes.by_us(file.as_fd(), || file.write_all_at(b"ours", 0)).expect("written");
        assert_eq!(syncs(), 0, "we have changed it");
        file.set_permissions(Permissions::from_mode(0o600)).expect("a mode");
        assert_eq!((syncs(), syncs()), (1, 0), "a mode");
        tick();
        file.set_modified(std::time::UNIX_EPOCH).expect("a time");
        assert_eq!((syncs(), syncs()), (1, 0), "a time");
        // While we change it.
        let mode = || file.set_permissions(Permissions::from_mode(0o640));
        attributes.by_us(file.as_fd(), mode).expect("a mode");
        assert_eq!((syncs(), syncs()), (1, 0), "a mode during an operation");
        attributes.touched();
        let failed = attributes.settle(file.as_fd(), || Err(io::Error::other("no disk")));
        assert!(failed.is_err());
        assert_eq!((syncs(), syncs()), (1, 0), "after a failure");
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn what_this_process_changes_during_a_question_that_fails_is_asked_for_again() {
        let path = std::env::temp_dir().join(format!("forebay-glimpse-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        let identity = forebay::file_identity(file.as_fd()).expect("an identity").into_bytes();
        let glimpse = Glimpse::of(&path, &identity);
        let asked = |fails: bool, changes: bool| {
            let mut asked = None;
            let _ = glimpse.settle(|touched| {
                asked = Some(touched);
                // Another thread's, which needs no lock.
                changes.then(|| glimpse.touched());
                if fails {
                    Err(())
                } else {
                    Ok(())
                }
            });
            asked
        };
        assert_eq!(asked(false, false), Some(false), "the first time");
        assert_eq!(asked(false, false), None, "nothing has changed");
        glimpse.touched();
        assert_eq!(asked(true, false), Some(true), "a change");
        assert_eq!(asked(false, false), Some(true), "again after a failure");
        std::thread::sleep(std::time::Duration::from_millis(12));
        file.set_permissions(Permissions::from_mode(0o600)).expect("a mode");
        assert_eq!(asked(true, true), Some(false), "a mode that this process does not know of");
        assert_eq!(asked(false, true), Some(true), "what it has changed meanwhile");
        assert_eq!(asked(false, false), Some(true), "what it has changed during an answer");
        assert_eq!(asked(false, false), None, "nothing has changed since");
        let _ = std::fs::remove_file(path);
    }
}
