// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount as the kernel knows it, from the moment it is shown on.
//!
//! A path, a device number and a mount's number say nothing for long: a lazy unmount takes the path
//! away, and the kernel gives both numbers to the next file system once the superblock is gone.  So
//! a mount is known by its unique number (Linux 6.8), or by number, device, type and source together.
//! Its connection is known by files of fusectl that were opened while it was there: once the
//! superblock is gone the kernel lets them do nothing, whoever has the number then.  Where fusectl
//! is not mounted, root opens it without a place in any namespace, and others look for it until it
//! is mounted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    major, makedev, minor, open, openat, statx, AtFlags, Mode, OFlags, StatxFlags, CWD,
};
use rustix::io::Errno;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::namespaces::{self, Listed};

/// What is at the mountpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Ours,
    /// Ours is mounted, and something else is over it.
    Covered,
    /// Somebody has unmounted ours.
    Other,
}

/// A mount's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    device: u64,
    /// That of /proc/self/mountinfo, which is given again (Linux 5.8).
    id: Option<u64>,
    /// That is given once (Linux 6.8).
    unique: Option<u64>,
}

/// The numbers of the mount at a path, by what the kernel knows: the server of a mount there is not
/// asked, which may wait for its disk.
fn numbers(path: &Path) -> rustix::io::Result<Numbers> {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let look = |mask| statx(CWD, path, AtFlags::STATX_DONT_SYNC, mask);
    let has = |mask: u32, flag: StatxFlags| mask & flag.bits() != 0;
    let found = look(StatxFlags::empty())?;
    // FUSE shows no more than the device to a user whom the mount does not admit.
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

    /// How many requests wait; `None`: the superblock is gone.  The file is opened anew, since it
    /// says something only at its begin, and has no seek.
    fn waiting(&self) -> io::Result<Option<u64>> {
        let text = fs::read_to_string(format!("/proc/self/fd/{}", self.waiting.as_raw_fd()))?;
        Ok(text.trim().parse().ok())
    }
}

/// Its directory, whatever is there.
fn fusectl_mounted() -> rustix::io::Result<OwnedFd> {
    open("/sys/fs/fuse/connections", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The same file system, mounted nowhere.
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
    /// The mount that was just made at a path, before it has any users.
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
        let here = namespaces::is_here(&self.listed);
        match found {
            Ok(found) if found == self.numbers && here != Some(false) => Place::Ours,
            // One that cannot be looked at is where it is listed.
            Err(_) if here == Some(true) => Place::Ours,
            _ if here == Some(true) => Place::Covered,
            _ => Place::Other,
        }
    }

    /// A process of each mount namespace that has it, in words.
    pub fn seen_by(&self) -> Vec<String> {
        namespaces::that_see(&self.listed)
    }

    /// No namespace has it, and no program has a file of it open.  Without fusectl only the
    /// namespaces are seen.
    pub fn is_gone(&self, mountpoint: &Path) -> bool {
        match self.control.get().map(Control::waiting) {
            Some(Ok(waiting)) => waiting.is_none(),
            _ => self.place(mountpoint) == Place::Other && self.seen_by().is_empty(),
        }
    }

    /// The kernel refuses all that waits for the session's answers, and what comes.
    pub fn abort(&self) {
        if let Some(control) = self.control.get() {
            let _ = (&control.abort).write(b"1");
        }
    }

    /// No request waits, as far as can be seen.
    pub fn is_idle(&self) -> bool {
        let waiting = self.control.get().map(Control::waiting);
        !matches!(waiting, Some(Ok(Some(1..))))
    }

    /// The kernel reads ahead of a program by 128 KiB in FUSE, whatever a server asks for; each
    /// request of it costs a turn.
    pub fn read_ahead(&self) {
        const KIB: &str = "512";
        let (major, minor) = (major(self.numbers.device), minor(self.numbers.device));
        // Slower without it, and only for root.
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), KIB);
    }
}

/// How long the threads of a session may take to see that it was ended.
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
            Place::Ours | Place::Covered => ABORT_WAIT,
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

    /// The directory of a mount that a lazy unmount took along is gone, and so is the mount.
    #[test]
    fn a_mount_whose_path_is_gone_is_unmounted() {
        let numbers = numbers("/proc".as_ref()).expect("of /proc");
        let listed = Listed::find(numbers.device, numbers.id);
        let here = Known { numbers, listed, control: OnceLock::new() };
        assert_eq!(here.place("/proc".as_ref()), Place::Ours);
        assert_eq!(here.place("/".as_ref()), Place::Covered);
        assert_eq!(here.place("/proc/there-is-none".as_ref()), Place::Ours, "it is listed");
        // The kernel has given its numbers to another one.
        let gone = Known { listed: Listed::named(numbers.device, "fuse.forebay", "/x"), ..here };
        for path in ["/proc", "/", "/proc/there-is-none"] {
            assert_eq!(gone.place(path.as_ref()), Place::Other, "{path}");
        }
        assert!(gone.is_gone("/proc".as_ref()));
    }
}
