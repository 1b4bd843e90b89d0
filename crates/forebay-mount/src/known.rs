// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies a mount to the kernel from the moment when it is shown.
//!
//! A path, a device number and a mount's number identify a mount only for a while.  A lazy
//! unmount removes the path, and the kernel reuses both numbers once the superblock is gone.
//! So a mount is identified by its unique number (Linux 6.8), or by number, device, type and
//! source together.  Its connection is identified by files of fusectl that were opened while it
//! existed: once the superblock is gone they have no effect, whoever has the number then.  If
//! fusectl is not mounted, root opens it without a place in any namespace, and other users look
//! for it until it is mounted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use forebay::procfs;
use rustix::fs::{
    major, makedev, minor, open, openat, statx, AtFlags, Mode, OFlags, StatxFlags, CWD,
};
use rustix::io::Errno;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::namespaces::{self, Listed};

/// The file system at the mountpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Ours,
    /// Ours is mounted, and something else is mounted over it.
    Covered,
    /// Ours was unmounted there, and is bound at another place (`mount --bind`).
    Bound,
    /// Ours was unmounted.
    Other,
}

/// The numbers of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    device: u64,
    /// The number in /proc/self/mountinfo, which is reused (Linux 5.8).
    id: Option<u64>,
    /// The number that is never reused (Linux 6.8).
    unique: Option<u64>,
}

/// The numbers of the mount at a path, as the kernel knows them.  The server of a mount there
/// is not asked, since it may wait for its disk.
fn numbers(path: &Path) -> rustix::io::Result<Numbers> {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let look = |mask| statx(CWD, path, AtFlags::STATX_DONT_SYNC, mask);
    let has = |mask: u32, flag: StatxFlags| mask & flag.bits() != 0;
    let found = look(StatxFlags::empty())?;
    // FUSE shows only the device to a user whom the mount does not admit.
    let unique = look(MNT_ID_UNIQUE).ok().filter(|found| has(found.stx_mask, MNT_ID_UNIQUE));
    Ok(Numbers {
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        id: has(found.stx_mask, StatxFlags::MNT_ID).then_some(found.stx_mnt_id),
        unique: unique.map(|found| found.stx_mnt_id),
    })
}

/// The connection's files in fusectl.
#[derive(Debug)]
struct Control {
    waiting: File,
    abort: File,
}

impl Control {
    fn open(device: u64) -> io::Result<Control> {
        if major(device) != 0 {
            return Err(Errno::NODEV.into());
        }
        Control::open_in(&fusectl_mounted()?, device)
            .or_else(|_| Control::open_in(&fusectl_of_root()?, device))
    }

    fn open_in(fusectl: &OwnedFd, device: u64) -> io::Result<Control> {
        let file = |name, flags| {
            let path = format!("{}/{name}", minor(device));
            Ok::<_, Errno>(openat(fusectl, path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        let abort = file("abort", OFlags::WRONLY)?;
        Ok(Control { waiting: file("waiting", OFlags::RDONLY)?, abort })
    }

    /// The number of waiting requests; `None`: the superblock is gone.  The file is opened
    /// again each time, because it can be read only from its begin and has no seek.
    fn waiting(&self) -> io::Result<Option<u64>> {
        let text = procfs::text(format!("/proc/self/fd/{}", self.waiting.as_raw_fd()))?;
        Ok(text.trim().parse().ok())
    }
}

/// The directory of fusectl, whether or not it is mounted there.
fn fusectl_mounted() -> rustix::io::Result<OwnedFd> {
    open("/sys/fs/fuse/connections", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// A new instance of fusectl, which has the same content and no mountpoint.
fn fusectl_of_root() -> rustix::io::Result<OwnedFd> {
    let system = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&system)?;
    fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

#[derive(Debug)]
pub(crate) struct Known {
    numbers: Numbers,
    listed: Listed,
    /// Unset: fusectl is not mounted, or not for this user.
    control: OnceLock<Control>,
}

impl Known {
    /// Identifies the mount that was just made at a path, before it has users.
    pub fn shown(path: &Path) -> rustix::io::Result<Known> {
        let numbers = numbers(path)?;
        let listed = Listed::find(numbers.device, numbers.id);
        let known = Known { numbers, listed, control: OnceLock::new() };
        known.find_control(path);
        Ok(known)
    }

    /// Looks for fusectl, unless it was found.
    pub fn find_control(&self, mountpoint: &Path) {
        if self.control.get().is_some() {
            return;
        }
        let Ok(control) = Control::open(self.numbers.device) else { return };
        // The number was ours while the files were opened.
        if self.place(mountpoint) == Place::Ours {
            let _ = self.control.set(control);
        }
    }

    pub fn place(&self, mountpoint: &Path) -> Place {
        let found = numbers(mountpoint);
        let places = namespaces::places(&self.listed);
        let here = places.as_ref().map(|places| !places.is_empty());
        let is_there = places.is_some_and(|places| places.iter().any(|place| place == mountpoint));
        match found {
            Ok(found) if found == self.numbers && here != Some(false) => Place::Ours,
            // A mount that cannot be looked at is where it is listed.
            Err(_) if here == Some(true) => Place::Ours,
            _ if is_there => Place::Covered,
            _ if here == Some(true) => Place::Bound,
            _ => Place::Other,
        }
    }

    /// The mountpoints in this process's namespace.
    pub fn places(&self) -> Vec<PathBuf> {
        namespaces::places(&self.listed).unwrap_or_default()
    }

    /// One process of each other mount namespace that has the mount, in words.
    pub fn seen_by(&self) -> Vec<String> {
        namespaces::that_see(&self.listed)
    }

    /// Whether no namespace has the mount and no program has one of its files open.  Without
    /// fusectl only the namespaces are known.
    pub fn is_gone(&self, mountpoint: &Path) -> bool {
        match self.control.get().map(Control::waiting) {
            Some(Ok(waiting)) => waiting.is_none(),
            _ => self.place(mountpoint) == Place::Other && self.seen_by().is_empty(),
        }
    }

    /// Makes the kernel refuse all requests that wait for the session's answers, and later
    /// ones.
    pub fn abort(&self) {
        if let Some(control) = self.control.get() {
            let _ = (&control.abort).write(b"1");
        }
    }

    /// The file by which another process can do that.
    pub fn abort_file(&self) -> Option<File> {
        self.control.get()?.abort.try_clone().ok()
    }

    /// The number of requests that wait; `None`: it is not known, or the mount is gone.
    pub fn waiting(&self) -> Option<u64> {
        self.control.get()?.waiting().ok()?
    }

    /// Whether no request waits, as far as is known.
    pub fn is_idle(&self) -> bool {
        self.waiting().is_none_or(|waiting| waiting == 0)
    }

    /// Raises the read-ahead.  For FUSE the kernel reads ahead 128 KiB, whatever a server asks
    /// for, and each of its requests costs a round trip.
    pub fn read_ahead(&self) {
        const KIB: &str = "512";
        let (major, minor) = (major(self.numbers.device), minor(self.numbers.device));
        // Without it, or for other users than root, reads are only slower.
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), KIB);
    }
}

/// How long the threads of a session may take to notice that it was ended.
pub(crate) const ABORT_WAIT: Duration = Duration::from_secs(1);

/// How long the kernel may take to end a superblock after it has ended the session.
const UNMOUNT_WAIT: Duration = Duration::from_secs(5);

/// The session was ended, and not by an unmount: the kernel ends the connection of a mount that is
/// gone, and then its superblock.  An abort by fusectl the kernel reports itself
/// ([`was_aborted`]).
pub(crate) fn is_aborted(known: Option<&Known>, cuts_off: &AtomicBool, mountpoint: &Path) -> bool {
    let begun = Instant::now();
    loop {
        if cuts_off.load(Ordering::Relaxed) {
            return false;
        }
        let Some(known) = known else { return true };
        if known.is_gone(mountpoint) {
            return false;
        }
        let limit = match known.place(mountpoint) {
            Place::Other => UNMOUNT_WAIT,
            Place::Ours | Place::Covered | Place::Bound => ABORT_WAIT,
        };
        if begun.elapsed() >= limit {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel says of an abort by fusectl that it was one (Linux 4.20), and of an `umount -f` it does
/// not.
pub(crate) fn was_aborted(ran: &io::Result<()>) -> bool {
    let aborted = Some(Errno::CONNABORTED.raw_os_error());
    ran.as_ref().is_err_and(|e| e.raw_os_error() == aborted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory of a mount that a lazy unmount removed is gone, and so is the mount.
    #[test]
    fn a_mount_whose_path_is_gone_is_unmounted() {
        let numbers = numbers("/proc".as_ref()).expect("of /proc");
        let listed = Listed::find(numbers.device, numbers.id);
        let here = Known { numbers, listed, control: OnceLock::new() };
        assert_eq!(here.place("/proc".as_ref()), Place::Ours);
        assert_eq!(here.place("/".as_ref()), Place::Bound, "it is at /proc");
        assert_eq!(here.place("/proc/there-is-none".as_ref()), Place::Ours, "it is listed");
        // The kernel has given its numbers to another mount.
        let gone = Known { listed: Listed::named(numbers.device, "fuse.forebay", "/x"), ..here };
        for path in ["/proc", "/", "/proc/there-is-none"] {
            assert_eq!(gone.place(path.as_ref()), Place::Other, "{path}");
        }
        assert!(gone.is_gone("/proc".as_ref()));
    }
}
