// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of files (flock), and the processes that hold them.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::detect::Access;
use crate::error::{Error, Result};
use crate::process::{is_ending, process_in_words};
use crate::procfs;

pub(super) fn lock(path: &Path, fd: &OwnedFd, access: Access) -> Result<()> {
    let operation = match access {
        Access::Peek => return Ok(()),
        Access::Read => FlockOperation::NonBlockingLockShared,
        Access::Write => FlockOperation::NonBlockingLockExclusive,
    };
    if access == Access::Read {
        let_writers_pass(fd);
    }
    let locked = match (lock_soon(fd, operation), access) {
        (Err(Errno::WOULDBLOCK), Access::Write) => lock_after_readers(fd),
        (locked, _) => locked,
    };
    match locked {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let holder = file_holder(fd);
            let mapped = if holder.is_none() { mapped_by(fd) } else { Vec::new() };
            if mapped.is_empty() {
                return Err(in_use(path, fd, access == Access::Read, "stop that process, or ask it with `forebay status` as its user, with its FOREBAY_RUNTIME_DIR"));
            }
            let way_out = format!("its server has ended, and processes {mapped:?} have files mapped onto it: what they have synced is safe, and is written back once they have ended");
            Err(Error::Busy { path: path.into(), holder, way_out })
        }
        Err(e) => Err(Error::system(path, "locking it", e.into())),
    }
}

/// The error for a caller who gets no lock, for reading alone or for writing.  `way_out` is for a
/// file that another process has locked.
///
/// A user who may only read a file can lock it for reading, and so keep a writer out.  No lock prevents
/// that: each lock of the kernel that excludes a second writer excludes readers, and only such a
/// lock also excludes earlier versions of Forebay, and programs that know flock(2).  So the
/// message says that it is one of readers, whose, and how to end it.
pub(crate) fn in_use(path: &Path, fd: &OwnedFd, read_only: bool, way_out: &str) -> Error {
    // One that has ended may be named all the same.
    let lives = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    let all: Vec<u32> = lock_holders(fd).into_iter().filter(lives).collect();
    let way_out = match !read_only && is_locked_by_readers(fd) {
        true => by_readers(&all, way_out),
        false => way_out.into(),
    };
    Error::Busy { path: path.into(), holder: all.first().copied(), way_out }
}

fn is_locked_by_readers(fd: &OwnedFd) -> bool {
    let shared = rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared).is_ok();
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
    shared
}

fn by_readers(holders: &[u32], way_out: &str) -> String {
    let who: Vec<String> = holders.iter().map(|&pid| process_in_words(pid)).collect();
    let who = match who.is_empty() {
        true => "a process that does not show here (of another PID namespace or host)".into(),
        false => who.join(", "),
    };
    format!(
        "it is locked for reading alone, as whoever may read it can do (flock -s), by {who}: end \
         that; to keep a user from doing so, take the right to read the file (chmod, setfacl). \
         If it is a forebay that serves it read-only: {way_out}"
    )
}

/// Locks, and tries again for a moment: a child that was just forked has the parent's locks until it
/// executes its program.  While a process that holds the lock ends, it waits for that, too.
pub(crate) fn lock_soon<F: AsFd>(fd: F, operation: FlockOperation) -> Result<(), Errno> {
    const TRIES: u32 = 100;
    let (start, mut tries) = (Instant::now(), 0);
    loop {
        match rustix::fs::flock(&fd, operation) {
            Err(Errno::WOULDBLOCK) => {
                tries += 1;
                if tries >= TRIES && !a_holder_ends(&fd, start) {
                    return Err(Errno::WOULDBLOCK);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            done => return done,
        }
    }
}

/// Locks a file or directory for this process alone (flock), as long as the open file description
/// lives.  A process that ends is waited for up to 10 s, one that lives 0.2 s: then the error is
/// EWOULDBLOCK.
pub fn lock_alone<F: AsFd>(fd: F) -> std::io::Result<()> {
    Ok(lock_soon(fd, FlockOperation::NonBlockingLockExclusive)?)
}

/// Whether a process that holds the lock ends, and may still be waited for since `start`.
pub(super) fn a_holder_ends<F: AsFd>(fd: F, start: Instant) -> bool {
    const PATIENCE: Duration = Duration::from_secs(10);
    start.elapsed() < PATIENCE && lock_holders(fd).into_iter().any(is_ending)
}

/// Readers such as status and the exporter close the pool soon.  While a writer waits for them,
/// it also holds a record lock, and new readers wait for that: so no more of them come.
fn lock_after_readers(fd: &OwnedFd) -> Result<(), Errno> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let start = Instant::now();
    let mut first = false;
    let locked = loop {
        // The second of two writers is refused as before.  Some file systems do not support
        // this lock.
        first = first || record_lock(fd, FlockOperation::NonBlockingLockExclusive);
        // A writer holds the lock, and may keep it for ever.
        if let Err(e) = rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared) {
            break Err(e);
        }
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => {
                let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
                std::thread::sleep(Duration::from_millis(5));
            }
            done => break done,
        }
    };
    if first {
        record_lock(fd, FlockOperation::Unlock);
    }
    locked
}

fn record_lock(fd: &OwnedFd, operation: FlockOperation) -> bool {
    rustix::fs::fcntl_lock(fd, operation).is_ok()
}

/// Waits as long as a writer waits for those that look already.
fn let_writers_pass(fd: &OwnedFd) {
    const PATIENCE: Duration = Duration::from_secs(12);
    let start = Instant::now();
    loop {
        match rustix::fs::fcntl_lock(fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                record_lock(fd, FlockOperation::Unlock);
                return;
            }
            Err(Errno::WOULDBLOCK | Errno::ACCESS) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => return,
        }
    }
}

/// The process that has locked a file (flock), if it lives; only a hint.
pub fn file_holder<F: AsFd>(fd: F) -> Option<u32> {
    // One that has ended may be named all the same.
    lock_holder(fd).filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

/// The process that holds the flock, from /proc/locks; only a hint.
///
/// The kernel walks its locks anew for each read(2), by their number in the
/// list: a lock that goes away between two reads hides another one. So each
/// read asks for more than the kernel gives at once, a page of whole lines, and
/// a holder that does not show is looked for again.
pub(super) fn lock_holder<F: AsFd>(fd: F) -> Option<u32> {
    holder(fd, "FLOCK")
}

/// All processes that hold the flock and show; only a hint, for a file that is known to be locked.
/// A file of another mount namespace may have another device number in stat(2) than in
/// /proc/locks: the inode's number alone decides then.
pub fn lock_holders<F: AsFd>(fd: F) -> Vec<u32> {
    let Some(key) = key_of(fd.as_fd()) else { return Vec::new() };
    let inode = key.rsplit(':').next().unwrap_or_default();
    let found = (0..TRIES).find_map(|_| {
        let all = all_locks().ok()?;
        let found = [holders_in(&all, "FLOCK", &key), holders_of_inode(&all, inode)];
        found.into_iter().find(|found| !found.is_empty())
    });
    found.unwrap_or_default()
}

/// The process that has a lease (F_SETLEASE) of the file, from the same place.
pub fn lease_holder<F: AsFd>(fd: F) -> Option<u32> {
    holder(fd, "LEASE")
}

/// So often a holder that does not show is looked for.
const TRIES: usize = 4;

fn holder<F: AsFd>(fd: F, kind: &str) -> Option<u32> {
    let key = key_of(fd.as_fd())?;
    (0..TRIES).find_map(|_| holders_in(&all_locks().ok()?, kind, &key).first().copied())
}

/// How /proc/locks names a file: by the device of its file system, and its inode.  On btrfs and
/// overlayfs stat(2) tells another device; the table of mounts has the file system's.
fn key_of(fd: BorrowedFd<'_>) -> Option<String> {
    let (device, inode) = system_key(fd)?;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Some(format!("{major:02x}:{minor:02x}:{inode}"))
}

/// The device of the file system, and the inode.
fn system_key(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let st = rustix::fs::fstat(fd).ok()?;
    let of_mount = || {
        let id = procfs::mount_id(fd).ok()?;
        Some(procfs::mounts().ok()?.into_iter().find(|mount| mount.id == id)?.device)
    };
    // A memfd, and a file of another mount namespace, are in no mount of the table.
    Some((of_mount().unwrap_or(st.st_dev), st.st_ino))
}

/// Processes that have it mapped; only a hint.  They keep the lock of the process that has
/// opened it, though that has ended.
fn mapped_by(fd: &OwnedFd) -> Vec<u32> {
    let (Some((device, inode)), Ok(processes)) = (system_key(fd.as_fd()), fs::read_dir("/proc"))
    else {
        return Vec::new();
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let key = format!(" {major:02x}:{minor:02x} {inode} ");
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let maps = |pid: &u32| {
        let maps = procfs::text(format!("/proc/{pid}/maps"));
        *pid != std::process::id() && maps.is_ok_and(|maps| maps.contains(&key))
    };
    processes.flatten().filter_map(pid).filter(maps).collect()
}

fn all_locks() -> std::io::Result<String> {
    let mut file = fs::File::open("/proc/locks")?;
    let mut all = Vec::new();
    let mut piece = [0; 1 << 14];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&all).into_owned()),
            n => all.extend_from_slice(&piece[..n]),
        }
    }
}

fn holders_in(locks: &str, kind: &str, key: &str) -> Vec<u32> {
    holders_where(locks, |its_kind, its_key| its_kind == kind && its_key == key)
}

fn holders_of_inode(locks: &str, inode: &str) -> Vec<u32> {
    let is_its = |key: &str| key.rsplit(':').next() == Some(inode);
    holders_where(locks, |kind, key| kind == "FLOCK" && is_its(key))
}

/// Parses lines such as `1: FLOCK ADVISORY WRITE 4711 fd:01:131073 0 EOF`.  A process that waits
/// for a lock has an arrow before the lock's kind, and holds nothing.
fn holders_where(locks: &str, of: impl Fn(&str, &str) -> bool) -> Vec<u32> {
    let holder = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        let pid = words.nth(2)?;
        of(kind, words.next()?).then_some(())?;
        pid.parse().ok()
    };
    locks.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn the_holders_of_a_lock_are_named() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4711 fd:01:131073 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:131073 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 12 fd:01:131073 0 EOF\n\
                     3: FLOCK\n\
                     4: LEASE  ACTIVE    READ  13 fd:01:131073 0 EOF\n\
                     5: FLOCK  ADVISORY  READ 14 fd:01:131074 0 EOF\n\
                     6: FLOCK  ADVISORY  READ 15 fd:01:131074 0 EOF\n";
        assert_eq!(holders_in(locks, "FLOCK", "fd:01:131073"), [4711]);
        assert_eq!(holders_in(locks, "LEASE", "fd:01:131073"), [13]);
        assert_eq!(holders_in(locks, "FLOCK", "fd:01:131074"), [14, 15]);
        assert!(holders_in(locks, "FLOCK", "00:2a:131074").is_empty());
        assert_eq!(holders_of_inode(locks, "131074"), [14, 15]);
        assert!(holders_of_inode(locks, "31074").is_empty());
    }

    #[test]
    fn a_holder_is_named_while_other_locks_come_and_go() {
        let file = |name| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
        let held = file("held");
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        let stop = AtomicBool::new(false);
        let missed = std::thread::scope(|s| {
            s.spawn(|| {
                let other = file("other");
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
                    rustix::fs::flock(&other, FlockOperation::Unlock).unwrap();
                }
            });
            let me = Some(std::process::id());
            let missed = (0..20_000).filter(|_| lock_holder(&held) != me).count();
            stop.store(true, Ordering::Relaxed);
            missed
        });
        assert_eq!(missed, 0);
    }
}
