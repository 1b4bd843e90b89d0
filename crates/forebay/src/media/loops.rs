// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is the disk of a loop device: whoever mounted that writes to the file, and
//! knows of no lock on it.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::bounded::ask_each;
use crate::ioctl::{loop_status, LoopStatus};
use crate::procfs::{self, device_number, device_number_in};

/// The loop device whose disk is this open file.
pub(crate) fn device_of(fd: impl AsFd, file: &Stat) -> Option<String> {
    device_in(Path::new("/sys/block"), procfs::path_now(fd), file, asked)
}

fn device_in(
    sys: &Path,
    path: Option<PathBuf>,
    file: &Stat,
    asked: impl Fn(&Path) -> Result<LoopStatus, Errno> + Send + Sync + 'static,
) -> Option<String> {
    let all = fs::read_dir(sys).ok()?.flatten().map(|device| device.path());
    let used = all.filter(|device| device.join("loop/backing_file").exists()).collect();
    let shown = ask_each(used, move |device| or_by_path(device, asked(device)));
    shown.into_iter().find_map(|(device, shown)| {
        let is_its = match shown {
            Some(Ok(status)) => status.is_some_and(|it| it.inode == (file.st_dev, file.st_ino)),
            // Its file is away, and so is this one if they are the same.
            Some(Err(_)) | None => path.is_some() && backing_of(&device) == path,
        };
        is_its.then(|| device.file_name().unwrap_or_default().to_string_lossy().into_owned())
    })
}

/// What a loop device of this host says of itself, by its directory in sysfs.  It asks its file's
/// server, and so may take for ever.
pub(crate) fn asked(sys: &Path) -> Result<LoopStatus, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let node = Path::new("/dev").join(sys.file_name().ok_or(Errno::NOENT)?);
    let fd = rustix::fs::open(node, flags, Mode::empty())?;
    let st = rustix::fs::fstat(&fd)?;
    let is_block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
    let is_it = is_block && device_number_in(sys) == Some(device_number(st.st_rdev));
    is_it.then_some(()).ok_or(Errno::NOENT)?;
    loop_status(fd.as_fd())
}

/// The same of one that is perhaps none of ours; `None`: it has no node here, or no file any more.
pub(crate) fn shown(sys: &Path) -> Result<Option<LoopStatus>, Errno> {
    or_by_path(sys, asked(sys))
}

/// A user who has no right to ask the device goes by the path in sysfs.  That is of the mount
/// namespace that set the device up, and the file may have been renamed, deleted, or hidden by a
/// mount since.  So it says nothing in a container, which has no node of the device.
fn or_by_path(sys: &Path, asked: Result<LoopStatus, Errno>) -> Result<Option<LoopStatus>, Errno> {
    let by_path = || {
        let st = rustix::fs::stat(backing_of(sys)?).ok()?;
        let number = |file| procfs::value(sys.join(file)).unwrap_or(0);
        let is_block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
        Some(LoopStatus {
            inode: (st.st_dev, st.st_ino),
            device: if is_block { st.st_rdev } else { 0 },
            offset: number("loop/offset"),
            limit: number("loop/sizelimit"),
        })
    };
    match asked {
        Ok(status) => Ok(Some(status)),
        Err(Errno::ACCESS) => Ok(by_path()),
        Err(Errno::NOENT | Errno::PERM | Errno::NXIO | Errno::NODEV) => Ok(None),
        Err(e) => Err(e),
    }
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
        let find_by = |asked: fn(&Path) -> Result<LoopStatus, Errno>, file: &Path| {
            let st = rustix::fs::stat(file).unwrap();
            device_in(&dir.join("sys"), Some(file.into()), &st, asked)
        };
        let find = |file: &Path| find_by(|_| Err(Errno::ACCESS), file);
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
        assert_eq!(device_in(&dir.join("none"), None, &of_image, |_| Err(Errno::ACCESS)), None);
        // Where the device has no node, as in a container, its path is one of another place.
        for e in [Errno::NOENT, Errno::PERM] {
            assert_eq!(
                or_by_path(&dir.join("sys/loop1"), Err(e)).unwrap().map(|it| it.inode),
                None
            );
        }
        assert_eq!(find_by(|_| Err(Errno::NOENT), &link), None);
        // One whose file's server is away counts by its path alone.
        backing("loop1", format!("{}\n", link.display()));
        assert_eq!(find_by(|_| Err(Errno::NOTCONN), &link).as_deref(), Some("loop1"));
        assert_eq!(find_by(|_| Err(Errno::NOTCONN), &image), None);
        // What the device has open decides, wherever the path leads.
        backing("loop0", format!("{} (deleted)\n", image.display()));
        backing("loop1", format!("{}\n", other.display()));
        let is_open = move |device: &Path| match device.ends_with("loop0") {
            true => Ok((of_image.st_dev, of_image.st_ino)),
            false => Ok((0, 0)),
        };
        let find = |file: &Path| {
            let asked = move |device: &Path| {
                is_open(device).map(|inode| LoopStatus { inode, device: 0, offset: 0, limit: 0 })
            };
            device_in(&dir.join("sys"), None, &rustix::fs::stat(file).unwrap(), asked)
        };
        assert_eq!((find(&image).as_deref(), find(&other)), (Some("loop0"), None));
        fs::remove_dir_all(&dir).unwrap();
    }
}
