// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is the disk of a loop device: whoever mounted that writes to the file, and
//! knows of no lock on it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

use crate::procfs;

/// The loop device whose disk it is.
pub(crate) fn device_of(file: &Stat) -> Option<String> {
    device_in(Path::new("/sys/block"), file)
}

fn device_in(sys: &Path, file: &Stat) -> Option<String> {
    fs::read_dir(sys).ok()?.flatten().find_map(|device| {
        let found = rustix::fs::stat(backing_of(&device.path())?).ok()?;
        let same = (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino);
        same.then(|| device.file_name().to_string_lossy().into_owned())
    })
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
        let find = |file| device_in(&dir.join("sys"), &rustix::fs::stat(file).unwrap());
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
        assert_eq!(device_in(&dir.join("none"), &rustix::fs::stat(&image).unwrap()), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
