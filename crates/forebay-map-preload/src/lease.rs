// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects opens of a file that bypass the library while the library has the file.  Such opens are:
//! a system call by an instruction, cgo, a library that is bound to the C library alone
//! (RTLD_DEEPBIND), a file handle, io_uring, and another program.
//!
//! The library has a lease of each such file (fcntl(2), F_SETLEASE).  The kernel grants one
//! only if no one else has the file open or mapped, so an earlier descriptor or mapping is
//! found.  The kernel then blocks each later open or truncation until the lease is released,
//! and notifies a thread of ours by a signal:
//!
//! | who opens | what happens |
//! |---|---|
//! | another program, to read | everything is synced and written to the file, then the open continues |
//! | this process, to read | the same, and then the program ends with one message |
//! | anyone, to write or to truncate | the program ends in the same way before the open continues |
//!
//! The server of the pool gets a duplicate of the descriptor.  So the lease outlasts a program
//! that is killed, until the server has written the file back.
//!
//! A shared file is open in several processes, so it has no lease.  What is done about a lease that
//! somebody waits for is in `tending.rs`.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_map::lasting::{self, Lasting};
use forebay_map::{Error, MapFile};

use crate::guarded::{inside, lock};
use crate::kept;
use crate::planted::{self, Planted};
use crate::private;
use crate::real::raw;
use crate::watcher;
use crate::which;

const F_SETSIG: usize = 10;
const F_SETOWN_EX: usize = 15;
const F_OWNER_TID: c_int = 0;
pub const F_SETLEASE: usize = 1024;
pub const F_GETLEASE: usize = 1025;

/// How long to wait for a process that has the file open for a moment.  An example is a child that
/// is about to run another program.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Files whose lease was released.
pub static LEASE_GIVEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

pub fn control(fd: RawFd, what: usize, argument: usize) -> Result<isize, c_int> {
    // SAFETY: these take numbers, or the address of a struct that is valid for the call.
    match unsafe { raw(libc::SYS_fcntl, [fd as usize, what, argument, 0, 0, 0]) } {
        e @ -4095..=-1 => Err(-e as c_int),
        done => Ok(done),
    }
}

/// Sets the thread that is notified, and the signal.
pub fn tell(fd: RawFd) -> Result<(), c_int> {
    let owner = [F_OWNER_TID, watcher::number()];
    control(fd, F_SETOWN_EX, owner.as_ptr().addr())?;
    control(fd, F_SETSIG, kept::SIGN).map(drop)
}

/// Takes or releases the lease of a file, which needs the right to have one.
pub fn set_to(fd: RawFd, kind: c_int) -> Result<(), c_int> {
    control(fd, F_SETLEASE, kind as usize).map(drop)
}

pub fn set(fd: RawFd) -> Result<(), c_int> {
    tell(fd)?;
    set_to(fd, libc::F_WRLCK)
}

/// Like `set`.  On overlayfs the kernel would give a lease although the file is mapped.
/// `others`: also by other processes.
pub fn set_alone(fd: RawFd, others: bool) -> Result<(), c_int> {
    set(fd)?;
    if planted::is(Planted::OverlayUnseen) || !which::is_on_overlay(fd) {
        return Ok(());
    }
    let (Some(id), Some(path)) = (which::identity(fd), which::path_of(fd)) else { return Ok(()) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    let by_others = || others && which::is_mapped_by_others(id, path);
    if !(which::is_mapped_plainly(id, path) || by_others()) {
        return Ok(());
    }
    unset(fd, fd);
    Err(libc::EAGAIN)
}

/// Releases a lease.  The kernel removes the mark of our descriptor together with it.
pub fn unset(fd: RawFd, known_as: RawFd) {
    let mut all = vec![known_as];
    all.extend(private::numbers(fd));
    kept::changing(&all, || {
        let _ = set_to(fd, libc::F_UNLCK);
        let _ = tell(fd);
    });
}

/// A lease of a file that was just opened, whose size is known.  False: the file was changed since.
pub fn take(map: &MapFile) -> Result<bool, Error> {
    let Some(file) = map.file() else { return Ok(true) };
    let refused = |why: String| Error::Refused { path: path_of(file), why };
    let fd = file.as_raw_fd();
    let begun = Instant::now();
    loop {
        match set_alone(fd, true) {
            Ok(()) => break,
            Err(libc::EAGAIN) if planted::is(Planted::PlainBeside) => return Ok(true),
            Err(libc::EAGAIN) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(libc::EAGAIN) => {
                return Err(Error::Busy(format!(
                    "{}: it is open or mapped by what goes past the pool's memory (stdio, mkstemp, \
                     an inherited or older descriptor or mapping, another program): close that \
                     before, or leave it out of --files",
                    path_of(file).display()
                )))
            }
            Err(errno) => {
                let why = io::Error::from_raw_os_error(errno);
                return Err(refused(format!(
                    "the kernel gives no lease of it ({why}), so what opens it past the library \
                     would not be seen: run as its owner, on a local file system, with \
                     fs.leases-enable=1"
                )));
            }
        }
    }
    // Another process may have come and gone between the open and the lease.
    match which::regular(fd) {
        Some((id, size)) if size == map.size() => {
            lock(&LEASE_GIVEN).retain(|given| *given != id);
            map.leased(Some(Instant::now()));
            outlast(map);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Notes the lease of a file that was opened again by an open file description that may have
/// one.  Another process may wait for the lease since before that: its patience goes on.
pub fn inherit(map: &MapFile, from: &Ending) {
    let id = map.file().and_then(|file| which::identity(file.as_raw_fd()));
    let given = id.is_some_and(|id| lock(&LEASE_GIVEN).contains(&id));
    map.leased(from.seen.filter(|_| !given));
    outlast(map);
}

/// Has the lease and the locks outlast a kill.  Where the server keeps no more descriptors, or has
/// ended, they end with the program.
fn outlast(map: &MapFile) {
    let _ = map.outlast();
}

fn path_of(file: BorrowedFd<'_>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let path = which::path_of(file.as_raw_fd()).unwrap_or_default();
    std::ffi::OsString::from_vec(path.into_bytes()).into()
}

/// A duplicate of a file's descriptor.
#[derive(Debug)]
struct Kept {
    fd: Lasting<OwnedFd>,
    /// The file's descriptor.
    first: RawFd,
    id: Option<(u64, u64)>,
}

impl Kept {
    /// Its number, unless the program has closed it.  When the kernel revokes the lease, it removes the
    /// mark of the descriptor, too.
    fn number(&self) -> Option<RawFd> {
        let fd = self.fd.as_raw_fd();
        let is_same = || self.id.is_some() && which::identity(fd) == self.id;
        (kept::check(fd).is_ok() || is_same()).then_some(fd)
    }
}

/// Releases the lease of a file when it is dropped, after the file is closed.  Until then the
/// lease is held.  Without this it would last as long as anything has the file open: a child, a
/// private mapping, a thread that writes back.
#[derive(Debug)]
pub struct Ending {
    fd: Option<Kept>,
    /// When the lease was last seen with no one waiting for it.
    seen: Option<Instant>,
}

impl Ending {
    /// The file's open file description, which has the lease, for opening the file again.
    pub fn file(&self) -> Option<OwnedFd> {
        kept::duplicate(self.fd.as_ref()?.number()?).ok()
    }

    /// Keeps the lease, because the file was opened again by that description.
    pub fn stays(mut self) {
        self.fd = None;
    }
}

/// Frees the locks that the library has of a file.
fn free(fd: RawFd) {
    // SAFETY: all zeroes is a value of it: the whole file.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = libc::F_UNLCK as i16;
    let _ = control(fd, libc::F_OFD_SETLK as usize, (&raw const all).addr());
    // SAFETY: it takes numbers.
    unsafe { raw(libc::SYS_flock, [fd as usize, libc::LOCK_UN as usize, 0, 0, 0, 0]) };
}

pub fn ends(map: &MapFile) -> Ending {
    let kept = |file: BorrowedFd<'_>| {
        let first = file.as_raw_fd();
        kept::check(first).ok()?;
        let fd = lasting::duplicate(file).ok()?;
        let id = which::identity(first);
        Some(Kept { fd, first, id })
    };
    let fd = map.file().and_then(kept);
    Ending { fd, seen: map.lease_seen() }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(kept) = self.fd.take() else { return };
        inside(|| {
            if let Some(fd) = kept.number() {
                // A thread may still use the descriptor for a moment and close it then.
                unset(fd, kept.first);
                // Its locks were kept in case the file would be opened again.
                free(fd);
            }
            drop(kept);
        });
    }
}

/// The state of the work on the lease of a file.
#[derive(Debug, Default)]
pub struct Tended {
    /// A thread of its own writes the file back.
    pub is_busy: AtomicBool,
    /// The lease was released for a reader, and has to be taken again.
    pub is_given: AtomicBool,
    /// When the file was last written to, at the moment of that release.
    pub given_at: Mutex<Option<(i64, i64, i64)>>,
    /// When the mappings of the process were first looked at since then, and when to do so again.
    pub looks: Mutex<Option<(Instant, Instant)>>,
}

impl Tended {
    /// Whether to look at all mappings now.  That takes the longer the more there are, so it is done
    /// less and less often.
    pub fn is_time_to_look(&self) -> bool {
        let now = Instant::now();
        let mut looks = lock(&self.looks);
        let (first, next) = looks.unwrap_or((now, now));
        let is_time = next <= now;
        if is_time {
            let pause = (now - first).clamp(Duration::from_millis(1), Duration::from_secs(1));
            *looks = Some((first, now + pause));
        }
        is_time
    }
}
