// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and values of the kernel in /proc and /sys.
//!
//! Its tables contain names that other users choose: mountpoints, sources, swap files, disks of
//! loop devices, commands.  A name is any bytes, so one that is not UTF-8 must not make a table
//! unreadable: a table that is taken for empty says that nobody uses a disk.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{major, makedev, minor};

/// The text of a file of /proc or /sys.  Bytes that are not UTF-8 become U+FFFD, so what is
/// compared with a name of another user must come from [`mounts`], [`name`] or [`swaps`].
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The value that is the whole content of a file, such as a number.
pub(crate) fn value<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path).ok()?.trim().parse().ok()
}

/// The path that is the whole content of a file, before the newline that the kernel adds.
pub fn name(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let mut bytes = fs::read(path)?;
    bytes.pop_if(|last| *last == b'\n');
    Ok(OsString::from_vec(bytes).into())
}

/// A mount, as a line of mountinfo describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number, which is reused, and that of the mount below it.
    pub id: u64,
    pub parent: u64,
    /// Of the file system.  The major number is 0 where that has no single device.  stat(2) gives
    /// the same, except on btrfs and overlayfs.
    pub device: u64,
    /// The part of its file system that the mount shows.
    pub root: PathBuf,
    /// The mountpoint.
    pub at: PathBuf,
    /// The options of the mount, with commas between them.
    pub options: String,
    /// The type as the kernel calls it: `ext4`, `fuse.forebay`.
    pub kind: String,
    /// The device, server or directory that is mounted.
    pub source: PathBuf,
    /// The options of the file system, which all its mounts share.
    pub of_system: String,
}

impl Mount {
    /// Parses `36 35 98:0 /root /mount options shared:1 - ext4 /dev/sda1 options`.
    fn of(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut next = || fields.next();
        let (id, parent) = (number(next()?)?, number(next()?)?);
        let device = String::from_utf8_lossy(next()?);
        let (major, minor) = device_number_of(&device)?;
        let device = makedev(major, minor);
        let (root, at, options) = (unescaped(next()?), unescaped(next()?), lossy(next()?));
        while next()? != b"-" {}
        let (kind, source) = (lossy(next()?), unescaped(next()?));
        let of_system = next().map(lossy).unwrap_or_default();
        Some(Mount { id, parent, device, root, at, options, kind, source, of_system })
    }
}

/// The number of a device: major, minor.
pub(crate) type DeviceNumber = (u32, u32);

pub(crate) fn device_number(raw: u64) -> DeviceNumber {
    (major(raw), minor(raw))
}

/// Parses `8:1`.
pub(crate) fn device_number_of(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The number of a device by its directory in sysfs.
pub(crate) fn device_number_in(sys: &Path) -> Option<DeviceNumber> {
    device_number_of(text(sys.join("dev")).ok()?.trim())
}

/// The mounts of this process's namespace, each after those it lies over.  No file system is
/// asked, so a server that does not answer holds nobody up.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(mounts_in(&fs::read("/proc/self/mountinfo")?))
}

/// The mounts of the namespace of another process.
pub fn mounts_of(pid: u32) -> io::Result<Vec<Mount>> {
    Ok(mounts_in(&fs::read(format!("/proc/{pid}/mountinfo"))?))
}

/// The mounts of a table.  What is no line of mountinfo is left out.
pub fn mounts_in(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(Mount::of).collect()
}

/// The number of the mount by which a descriptor was opened, as in [`Mount::id`].  statx(2) tells
/// it from Linux 5.8 on only.
pub fn mount_id(fd: impl AsFd) -> io::Result<u64> {
    let info = text(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// The path of an open file, as the kernel knows it.
pub(crate) fn path_now(fd: impl AsFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok()
}

/// The devices and files that are swap.
pub fn swaps() -> io::Result<Vec<PathBuf>> {
    match fs::read("/proc/swaps") {
        // A kernel without swap.
        Err(e) if e.kind() == io::ErrorKind::NotFound && Path::new("/proc/self").exists() => {
            Ok(Vec::new())
        }
        table => Ok(swaps_in(&table?)),
    }
}

fn swaps_in(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let name = |line: &[u8]| {
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
        Some(unescaped(&line[..end]))
    };
    lines.filter_map(name).collect()
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn lossy(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// The kernel writes a space, a tab, a newline, a backslash and `#` of a name in octal.
fn unescaped(name: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), name);
    while let [first, tail @ ..] = rest {
        let octal = |d: &[u8]| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok();
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn path(bytes: &[u8]) -> &Path {
        Path::new(OsStr::from_bytes(bytes))
    }

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line =
            b"97 29 0:44 /a\\040b /mnt/x\\134 rw,relatime shared:1 master:7 - fuse.forebay /t\\011 rw,a";
        let mount = Mount::of(line).expect("a mount");
        assert_eq!((mount.id, mount.parent, mount.device), (97, 29, makedev(0, 44)));
        assert_eq!((&mount.root, &mount.at), (&"/a b".into(), &"/mnt/x\\".into()));
        assert_eq!((&mount.kind[..], &mount.source), ("fuse.forebay", &"/t\t".into()));
        assert_eq!((&mount.options[..], &mount.of_system[..]), ("rw,relatime", "rw,a"));
        for cut in 0..line.len() {
            let _ = Mount::of(&line[..cut]);
        }
        for broken in [
            "",
            "36",
            "36 35 8:2 / /a rw",
            "x 35 8:2 / /a rw - ext4 /dev/sda2 rw",
            "36 35 82 / /a rw - a b c",
        ] {
            assert_eq!(Mount::of(broken.as_bytes()), None, "{broken}");
        }
        let own = fs::read("/proc/self/mountinfo").expect("the table");
        let lines = own.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        assert_eq!(mounts().expect("the table").len(), lines.count());
        let root = mount_id(fs::File::open("/").expect("the root")).expect("its mount");
        let over_all = |mount: &Mount| mount.id == root && mount.at == Path::new("/");
        assert!(mounts().expect("the table").iter().any(over_all));
    }

    /// Another user's name, whatever it is, hides nothing and is compared as it is.
    #[test]
    fn names_are_bytes() {
        let names: [&[u8]; 6] =
            [b"/\xff\xfe", b"/a\xc2\xa0b", b"/a\xe2\x80\x83b", b"/a\rb", b"/\xed\xa0\x80", b"/a"];
        let mut mounts: Vec<u8> = Vec::new();
        let mut swaps = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".to_vec();
        for name in names {
            mounts.extend([b"1 0 8:1 ", name, b" ", name, b" rw - ext4 ", name, b" rw\n"].concat());
            swaps.extend([name, b"                               file\t\t8\t\t0\t\t-2\n"].concat());
        }
        let (mounts, swaps) = (mounts_in(&mounts), swaps_in(&swaps));
        assert_eq!((mounts.len(), swaps.len()), (names.len(), names.len()));
        for ((name, mount), swap) in names.iter().zip(mounts).zip(swaps) {
            let [root, at, source] = [&mount.root, &mount.at, &mount.source];
            assert!(
                [root, at, source, &swap].iter().all(|p| p == &path(name)),
                "{mount:?} {swap:?}"
            );
        }
        let file = std::env::temp_dir().join(format!("fby-procfs-{}", std::process::id()));
        fs::write(&file, b"/\xff \n\n").expect("a file");
        assert_eq!(name(&file).expect("a name"), path(b"/\xff \n"));
        assert_eq!(text(&file).expect("a text"), "/\u{fffd} \n\n");
        fs::remove_file(&file).expect("it is there");
    }
}
