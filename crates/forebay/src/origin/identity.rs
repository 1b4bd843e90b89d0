// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes an origin the same one tomorrow: ids that survive a reboot and a
//! new device name.
//!
//! | origin | id |
//! |---|---|
//! | file | inode number and time of birth; a copy is another origin |
//! | device-mapper, md | their UUID |
//! | disk with a wwid or serial | that |
//! | loop device | the id of its backing file, and where in it the device begins |
//! | partition | the id of its disk, its number |
//! | other block device | `name:` and its name, which tells no two disks apart |
//!
//! A name is the order in which the system found the disks, so it is refused as
//! an id (`--origin-by-name` is the consent to it).  The record of a volume that
//! begins with `name:` says that the consent was given.  Up to version 0.1 a
//! name was recorded without asking, as `blk:` and the name: such a record has
//! no consent.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

use super::ioctl::{backing_file, Inode};

/// Id of a regular file.
pub(crate) fn of_file(fd: impl std::os::fd::AsFd) -> std::io::Result<String> {
    let want = StatxFlags::INO | StatxFlags::BTIME;
    let st = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, want)?;
    let born = match StatxFlags::from_bits_retain(st.stx_mask).contains(StatxFlags::BTIME) {
        true => format!("-{:x}.{:x}", st.stx_btime.tv_sec, st.stx_btime.tv_nsec),
        false => String::new(),
    };
    Ok(format!("file:{}{born}", st.stx_ino))
}

/// Id of a block device, by its number; `fd` is the device.
pub(super) fn of_block(fd: BorrowedFd<'_>, major: u32, minor: u32) -> String {
    let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let sys = fs::canonicalize(&sys).unwrap_or(sys);
    of_sysfs(&sys, &|| backing_file(fd)).unwrap_or_else(|| {
        let name = sys.file_name().map(|n| n.to_string_lossy().into_owned());
        format!("{NAME}{}", name.unwrap_or_else(|| format!("{major}:{minor}")))
    })
}

const NAME: &str = "name:";

pub(super) use forebay_engine::policy::{is_name, is_unasked_name};

/// `backing` says what a loop device has open: at the path that sysfs names another
/// file may be by now, or in our name space.  An inode that is open is nobody else's.
fn of_sysfs(sys: &Path, backing: &dyn Fn() -> Option<Inode>) -> Option<String> {
    if let Some(number) = text(sys, "partition") {
        return Some(format!("{}-part{number}", of_sysfs(sys.parent()?, backing)?));
    }
    if let Some(path) = text(sys, "loop/backing_file") {
        let file = fs::File::open(&path).ok()?;
        let found = rustix::fs::fstat(&file).ok()?;
        if backing() != Some((found.st_dev, found.st_ino)) {
            return None;
        }
        let file = of_file(&file).ok()?;
        return Some(match text(sys, "loop/offset").filter(|offset| offset != "0") {
            Some(offset) => format!("loop:{file}+{offset}"),
            None => format!("loop:{file}"),
        });
    }
    let names = [
        ("dm/uuid", "dm"),
        ("md/uuid", "md"),
        ("wwid", "wwid"),
        ("device/wwid", "wwid"),
        ("serial", "serial"),
        ("device/serial", "serial"),
    ];
    names.iter().find_map(|(file, kind)| Some(format!("{kind}:{}", text(sys, file)?)))
}

/// Content of a sysfs file, in characters that an identity may have, short.
fn text(sys: &Path, file: &str) -> Option<String> {
    const MAX: usize = 64;
    let raw = fs::read_to_string(sys.join(file)).ok()?;
    let raw = raw.trim();
    if file == "loop/backing_file" {
        return (!raw.is_empty()).then(|| raw.to_string());
    }
    let words: Vec<&str> = raw.split_whitespace().collect();
    let clean: String = words
        .join("_")
        .chars()
        .map(|c| if c.is_ascii_graphic() && c != '|' { c } else { '_' })
        .collect();
    match clean.len() {
        0 => None,
        n if n > MAX => {
            // The end differs between disks of a kind, the start does not.
            let crc = forebay_engine::sys::crc32c(0, clean.as_bytes());
            Some(format!("{crc:08x}_{}", &clean[n - (MAX - 9)..]))
        }
        _ => Some(clean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_a_made_up_sysfs() {
        let dir = std::env::temp_dir().join(format!("fby-sysfs-{}", std::process::id()));
        let disk = dir.join("sda");
        let part = disk.join("sda2");
        fs::create_dir_all(&part).unwrap();
        // As QEMU's virtio disks without a serial number have it.
        fs::write(disk.join("serial"), "").unwrap();
        assert_eq!(of_sysfs(&disk, &|| None), None);
        fs::write(part.join("partition"), "2\n").unwrap();
        assert_eq!(of_sysfs(&part, &|| None), None, "a partition of a disk that has but a name");
        fs::write(disk.join("serial"), "AB  12|3\n").unwrap();
        assert_eq!(of_sysfs(&disk, &|| None).unwrap(), "serial:AB_12_3");
        fs::write(disk.join("wwid"), format!("t10.{}\n", "x".repeat(100))).unwrap();
        let id = of_sysfs(&disk, &|| None).unwrap();
        assert!(id.starts_with("wwid:") && id.len() == 5 + 64, "{id}");
        fs::write(part.join("partition"), "2\n").unwrap();
        assert_eq!(of_sysfs(&part, &|| None).unwrap(), format!("{id}-part2"));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Two of them may show different parts of one file.
    #[test]
    fn a_loop_device_is_known_by_its_file_and_where_it_begins() {
        let dir = std::env::temp_dir().join(format!("fby-loop-{}", std::process::id()));
        fs::create_dir_all(dir.join("loop")).unwrap();
        let image = dir.join("image");
        fs::write(&image, "x").unwrap();
        let st = rustix::fs::stat(&image).unwrap();
        let open = || Some((st.st_dev, st.st_ino));
        let of_image = of_file(fs::File::open(&image).unwrap()).unwrap();
        fs::write(dir.join("loop/backing_file"), format!("{}\n", image.display())).unwrap();
        assert_eq!(of_sysfs(&dir, &open).unwrap(), format!("loop:{of_image}"));
        fs::write(dir.join("loop/offset"), "0\n").unwrap();
        assert_eq!(of_sysfs(&dir, &open).unwrap(), format!("loop:{of_image}"));
        fs::write(dir.join("loop/offset"), "1048576\n").unwrap();
        assert_eq!(of_sysfs(&dir, &open).unwrap(), format!("loop:{of_image}+1048576"));
        // Another file has come to the path since, or the device does not say.
        assert_eq!(of_sysfs(&dir, &|| Some((st.st_dev, st.st_ino + 1))), None);
        assert_eq!(of_sysfs(&dir, &|| None), None);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_are_told_apart_from_ids() {
        // No such device: what is left is its number.
        let null = fs::File::open("/dev/null").unwrap();
        let id = of_block(std::os::fd::AsFd::as_fd(&null), 4095, 1_048_575);
        assert_eq!(id, "name:4095:1048575");
        assert!(is_name(&id) && is_name("name:vda"));
        for id in ["wwid:naa.5", "serial:vda", "loop:file:1-2", "file:1", "blk:vda"] {
            assert!(!is_name(id), "{id}");
        }
        assert!(is_unasked_name("blk:vda", "name:vda"));
        assert!(!is_unasked_name("blk:vda", "name:vdb"));
        assert!(!is_unasked_name("name:vda", "name:vda"));
        assert!(!is_unasked_name("serial:vda", "name:vda"));
    }

    #[test]
    fn a_file_keeps_its_id_and_a_copy_has_another() {
        let dir = std::env::temp_dir().join(format!("fby-id-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, "x").unwrap();
        let id = of_file(fs::File::open(&a).unwrap()).unwrap();
        fs::copy(&a, dir.join("copy")).unwrap();
        fs::rename(&a, &b).unwrap();
        assert_eq!(of_file(fs::File::open(&b).unwrap()).unwrap(), id);
        assert_ne!(of_file(fs::File::open(dir.join("copy")).unwrap()).unwrap(), id);
        fs::remove_dir_all(&dir).unwrap();
    }
}
