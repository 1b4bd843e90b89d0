// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that processes hand over: duplicates of those by which they have their files open.
//! A lease and a flock belong to the open file description.  So those of a process that dies last
//! until the server has written its file back, and the kernel holds up who opens the file until
//! then.  The server writes by the same descriptor: an open of its own would break the lease.
//!
//! A descriptor may be of anything, and its storage may hang.  So it is judged by calls that ask
//! no storage, and a thread of its own closes it.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::OnceLock;
use std::time::Duration;

use forebay_map::backing::RegularFile;
use forebay_map::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getrlimit, Resource};

/// How long a close is waited for.
const CLOSES: Duration = Duration::from_millis(100);
/// The most closes that hang, each in a thread.  From then on one thread does all.
const HANG: usize = 16;

/// The number of descriptors that are kept.
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// The number of closes under way.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// A descriptor that came from a process.  Its drop closes it.
#[derive(Debug)]
pub(crate) struct Handed(Option<OwnedFd>);

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close(fd);
        }
    }
}

/// The file of a process, kept until it is closed or written back.
#[derive(Debug)]
pub(crate) struct Kept(Handed);

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The most descriptors that are kept: half of those that the server may have open.
fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX))
}

impl Handed {
    /// Keeps it.  `has`: as many are kept for this process, which gets half of all at most.  `Err`:
    /// it is not one to write a file by, or too many are kept.  The caller drops it without a lock.
    pub fn keep(self, has: usize) -> std::result::Result<Kept, Handed> {
        let most = most();
        let more = |kept: usize| (kept < most && has < most / 2).then_some(kept + 1);
        let is_right = self.0.as_ref().is_some_and(|fd| is_for_writing(fd) && is_regular(fd));
        if is_right && KEPT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            return Ok(Kept(self));
        }
        Err(self)
    }
}

impl Kept {
    /// The file, locked, if it is the one at the path.  None: the path has to be opened.  The lease
    /// does not hold that up: it is of another file, or was released.
    pub fn open(&self, path: &Path) -> Result<Option<RegularFile>> {
        let Some(fd) = &self.0 .0 else { return Ok(None) };
        let cannot = |doing| move |error| Error::System { path: path.to_owned(), doing, error };
        if !is_at(fd, path).map_err(cannot("look at it"))? {
            return Ok(None);
        }
        if !is_for_writing(fd) {
            self.release();
            return Ok(None);
        }
        let again = fd.try_clone().map_err(cannot("duplicate its descriptor"))?;
        RegularFile::handed(again, path).map(Some)
    }

    /// The path of the file now; `None`: it has no name, or that is no text.
    pub fn path(&self) -> Option<String> {
        let fd = self.0 .0.as_ref()?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let path = path.into_os_string().into_string().ok()?;
        is_at(fd, Path::new(&path)).is_ok_and(|is| is).then_some(path)
    }

    /// Whether the file has no name any more.
    pub fn is_deleted(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let links = |fd: &OwnedFd| rustix::fs::statx(fd, c"", flags, StatxFlags::NLINK);
        self.0 .0.as_ref().is_some_and(|fd| links(fd).is_ok_and(|st| st.stx_nlink == 0))
    }

    /// Releases the lease.  A child of the process may still have the open file description.
    pub fn release(&self) {
        let _ = self.0 .0.as_ref().map(forebay_map::backing::release_lease);
    }
}

/// Whether pages can be written by it, each to its place.
fn is_for_writing(fd: &OwnedFd) -> bool {
    let not = OFlags::PATH | OFlags::APPEND | OFlags::DIRECT;
    let is = |flags: OFlags| flags & OFlags::RWMODE == OFlags::RDWR && !flags.intersects(not);
    rustix::fs::fcntl_getfl(fd).is_ok_and(is)
}

/// Type and number of a file, without a question to its storage.
fn stat(fd: impl AsFd) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::INO)
}

fn is_regular(fd: &OwnedFd) -> bool {
    stat(fd).is_ok_and(|st| FileType::from_raw_mode(st.stx_mode.into()) == FileType::RegularFile)
}

/// Whether it is the file at the path.  `Err`: the server lacks descriptors or memory.
fn is_at(fd: &OwnedFd, path: &Path) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(there) => there,
        Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(e.into()),
        Err(_) => return Ok(false),
    };
    let of = |st: Statx| (st.stx_dev_major, st.stx_dev_minor, st.stx_ino);
    Ok(matches!((stat(fd), stat(&there)), (Ok(a), Ok(b)) if of(a) == of(b)))
}

/// Closes in a thread that takes one after the other: nobody waits for it.
fn close_later(fd: OwnedFd) {
    static QUEUE: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (queue, come) = channel::<OwnedFd>();
        let thread = std::thread::Builder::new().name("fby-map-closes".into());
        thread.spawn(move || come.into_iter().for_each(drop)).ok().map(|_| queue)
    });
    if let Some(queue) = queue {
        drop(queue.send(fd));
    }
}

fn close(fd: OwnedFd) {
    if CLOSING.fetch_add(1, Ordering::SeqCst) >= HANG {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
        return close_later(fd);
    }
    let (done, waits) = channel();
    let closes = move || {
        drop(fd);
        CLOSING.fetch_sub(1, Ordering::SeqCst);
        let _ = done.send(());
    };
    // A thread that does not start drops what it was to close.
    match std::thread::Builder::new().name("fby-map-close".into()).spawn(closes) {
        Ok(_) => drop(waits.recv_timeout(CLOSES)),
        Err(_) => drop(CLOSING.fetch_sub(1, Ordering::SeqCst)),
    }
}

/// Reads from a connection.  A descriptor that comes with the bytes replaces the last one.
pub(crate) fn receive(
    stream: &UnixStream,
    to: &mut [u8],
    handed: &mut Option<Handed>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut came = RecvAncillaryBuffer::new(&mut space);
    let mut to = [IoSliceMut::new(to)];
    let got = rustix::net::recvmsg(stream, &mut to, &mut came, RecvFlags::CMSG_CLOEXEC);
    for message in came.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            for file in files {
                *handed = Some(Handed(Some(file)));
            }
        }
    }
    match got {
        Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
        got => Ok(got?.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed() -> Handed {
        let path = std::env::temp_dir().join(format!("forebay-handed-{}", std::process::id()));
        let mut o = std::fs::OpenOptions::new();
        let file = o.read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file");
        let _ = std::fs::remove_file(path);
        Handed(Some(file.into()))
    }

    /// The others need descriptors, too, and so does the server.
    #[test]
    fn a_process_hands_over_a_quarter_of_the_descriptors_at_most() {
        let kept = handed().keep(0).expect("the first one");
        assert!(handed().keep(most() / 2).is_err(), "one too many");
        let fd = kept.0 .0.as_ref().expect("a descriptor");
        assert!(is_for_writing(fd) && is_regular(fd));
        let is_at = |path: &str| is_at(fd, Path::new(path)).expect("descriptors");
        assert!(!is_at("/dev/null") && !is_at("/none"));
        let before = KEPT.load(Ordering::SeqCst);
        drop(kept);
        assert_eq!(KEPT.load(Ordering::SeqCst), before - 1);
    }
}
