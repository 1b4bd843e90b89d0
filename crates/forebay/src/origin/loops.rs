// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is the disk of a loop device: whoever mounted that writes to the file, and
//! knows of no lock on it.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::ioctl::{backing_file, Inode};
use crate::procfs;

/// The loop device whose disk it is.
pub(crate) fn device_of(file: &Stat) -> Option<String> {
    device_in(Path::new("/sys/block"), file, &opened)
}

/// `opened` says which inode a loop device has open.  The path in sysfs decides only where this
/// process may not ask the device: it is of the mount namespace that set the device up, and the
/// file may have been renamed, deleted, or hidden by a mount since.
fn device_in(sys: &Path, file: &Stat, opened: &dyn Fn(&str) -> Option<Inode>) -> Option<String> {
    let at_path = |device: &Path| {
        let found = rustix::fs::stat(backing_of(device)?).ok()?;
        Some((found.st_dev, found.st_ino))
    };
    fs::read_dir(sys).ok()?.flatten().find_map(|device| {
        let name = device.file_name().to_string_lossy().into_owned();
        let in_use = device.path().join("loop/backing_file").exists();
        let inode = in_use.then(|| opened(&name).or_else(|| at_path(&device.path()))).flatten()?;
        (inode == (file.st_dev, file.st_ino)).then_some(name)
    })
}

/// The file that a loop device of this host has open.
fn opened(device: &str) -> Option<Inode> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(Path::new("/dev").join(device), flags, Mode::empty()).ok()?;
    let st = rustix::fs::fstat(&fd).ok()?;
    let is_block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
    backing_file(fd.as_fd()).filter(|_| is_block)
}

/// The file or device that is the disk of a loop device, by the directory of that in sysfs.
pub(crate) fn backing_of(sys: &Path) -> Option<PathBuf> {
    procfs::name(sys.join("loop/backing_file")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_device_is_found_by_the_file_whatever_its_name() {
        let dir = std::env::temp_dir().join(format!("fby-loops-{}", std::process::id()));
        let (image, link, other) = (dir.join("image"), dir.join("link"), dir.join("other"));
        for device in ["loop0/loop", "loop1/loop", "loop2", "vda"] {
            fs::create_dir_all(dir.join("sys").join(device)).unwrap();
        }
        fs::write(&image, "x").unwrap();
        fs::write(&other, "x").unwrap();
        fs::hard_link(&image, &link).unwrap();
        let backing = |device: &str, text: String| {
            fs::write(dir.join("sys").join(device).join("loop/backing_file"), text).unwrap();
        };
        let find = |file| {
            let file = rustix::fs::stat(file).unwrap();
            device_in(&dir.join("sys"), &file, &|_| None)
        };
        backing("loop0", format!("{} (deleted)\n", image.display()));
        backing("loop1", format!("{}\n", link.display()));
        assert_eq!(find(&image).as_deref(), Some("loop1"));
        // A name is any bytes.
        let bytes = [dir.as_os_str().as_bytes(), b"/\xff\n"].concat();
        fs::hard_link(&image, Path::new(OsStr::from_bytes(&bytes))).unwrap();
        let told = [&bytes[..], b"\n"].concat();
        fs::write(dir.join("sys/loop1/loop/backing_file"), told).unwrap();
        assert_eq!(find(&image).as_deref(), Some("loop1"));
        assert_eq!(find(&other), None);
        let of_image = rustix::fs::stat(&image).unwrap();
        assert_eq!(device_in(&dir.join("none"), &of_image, &|_| None), None);
        // What the device has open decides, wherever the path leads.
        let inode = |path: &Path| {
            let st = rustix::fs::stat(path).unwrap();
            (st.st_dev, st.st_ino)
        };
        backing("loop0", format!("{} (deleted)\n", image.display()));
        backing("loop1", format!("{}\n", other.display()));
        let is_open = |device: &str| match device {
            "loop0" => Some(inode(&image)),
            "loop1" => Some((0, 0)),
            _ => None,
        };
        let find = |file| device_in(&dir.join("sys"), &rustix::fs::stat(file).unwrap(), &is_open);
        assert_eq!((find(&image).as_deref(), find(&other)), (Some("loop0"), None));
        fs::remove_dir_all(&dir).unwrap();
    }
}
