// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ids of origins that survive a reboot and a new device name.
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
//! A wwid or a serial number that another present disk has as well is no id: then the disk has
//! only its name.
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

use crate::ioctl::{backing_file, Inode};
use crate::media::backing_of;

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

/// How the ids begin that Forebay gives to the origins that it opens itself.  One that a program
/// gives to the library says what it is in another way.
const OWN: [&str; 10] =
    ["file:", "loop:", "dm:", "md:", "wwid:", "serial:", NAME, "blk:", "nbd:", "rbd:"];

pub(crate) fn is_own(id: &str) -> bool {
    OWN.iter().any(|kind| id.starts_with(kind))
}

/// The ids of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfBlock {
    /// The device's own id.
    pub own: String,
    /// `own`, or the name if another present disk says the same.
    pub id: String,
    /// That disk.
    pub twin: Option<String>,
}

/// The ids of a block device, by its number; `fd` is the device.
pub(super) fn of_block(fd: BorrowedFd<'_>, major: u32, minor: u32) -> OfBlock {
    let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let sys = fs::canonicalize(&sys).unwrap_or(sys);
    let name = sys.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = || format!("{NAME}{}", name.unwrap_or_else(|| format!("{major}:{minor}")));
    let Some(own) = of_sysfs(&sys, &|| backing_file(fd)) else {
        let name = name();
        return OfBlock { own: name.clone(), id: name, twin: None };
    };
    match twin_in(Path::new("/sys/block"), &sys) {
        None => OfBlock { id: own.clone(), own, twin: None },
        twin => OfBlock { own, id: name(), twin },
    }
}

/// Another present disk that says the same number of itself: a copy of a virtual disk has the
/// number of the first, and some adapters give all their disks one.  Nobody can say then which of the two a
/// volume was made for.
fn twin_in(blocks: &Path, sys: &Path) -> Option<String> {
    let disk = if sys.join("partition").exists() { sys.parent()? } else { sys };
    let number = by_hardware(disk)?;
    let device = |disk: &Path| fs::canonicalize(disk.join("device")).ok();
    let own_device = device(disk);
    fs::read_dir(blocks).ok()?.flatten().find_map(|entry| {
        let other = fs::canonicalize(entry.path()).ok()?;
        // A path of a disk that has several is hidden; an eMMC shows its parts as disks.
        let is_same = other == disk || (own_device.is_some() && device(&other) == own_device);
        let is_hidden = text(&other, "hidden").is_some_and(|hidden| hidden != "0");
        if is_same || is_hidden || by_hardware(&other)? != number {
            return None;
        }
        Some(format!("/dev/{}", entry.file_name().to_string_lossy()))
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
    if let Some(path) = backing_of(sys).filter(|path| !path.as_os_str().is_empty()) {
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
    let names = [("dm/uuid", "dm"), ("md/uuid", "md")];
    let by_name =
        names.iter().find_map(|(file, kind)| Some(format!("{kind}:{}", text(sys, file)?)));
    by_name.or_else(|| by_hardware(sys))
}

/// The id that a disk states itself.
fn by_hardware(sys: &Path) -> Option<String> {
    let names = [
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
    // An id that is not UTF-8 has never counted, and what a mark has must be found again.
    let raw = String::from_utf8(fs::read(sys.join(file)).ok()?).ok()?;
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

    /// Each pair of disks that are there at once.
    #[test]
    fn two_disks_with_one_number_are_told() {
        let dir = std::env::temp_dir().join(format!("fby-twins-{}", std::process::id()));
        let (blocks, devices) = (dir.join("block"), dir.join("devices"));
        fs::create_dir_all(&blocks).unwrap();
        let disk = |name: &str, device: &str, files: &[(&str, &str)]| {
            let sys = devices.join(device).join("block").join(name);
            fs::create_dir_all(&sys).unwrap();
            std::os::unix::fs::symlink(devices.join(device), sys.join("device")).unwrap();
            for (file, text) in files {
                fs::write(sys.join(file), text).unwrap();
            }
            std::os::unix::fs::symlink(&sys, blocks.join(name)).unwrap();
            fs::canonicalize(sys).unwrap()
        };
        let vda = disk("vda", "1", &[("serial", "A\n")]);
        let part = vda.join("vda1");
        fs::create_dir(&part).unwrap();
        fs::write(part.join("partition"), "1\n").unwrap();
        let other = disk("vdb", "2", &[("serial", "B\n")]);
        let nameless = disk("vdc", "3", &[("serial", "\n")]);
        disk("vdd", "4", &[("serial", "\n")]);
        // Parts of one device, and a path of one that shows itself as another.
        let emmc = disk("mmcblk0", "5", &[("serial", "0x7")]);
        disk("mmcblk0boot0", "5", &[("serial", "0x7")]);
        let nvme = disk("nvme0n1", "6", &[("wwid", "nvme.1")]);
        disk("nvme0c0n1", "7", &[("wwid", "nvme.1"), ("hidden", "1\n")]);
        for alone in [&vda, &part, &other, &nameless, &emmc, &nvme] {
            assert_eq!(twin_in(&blocks, alone), None, "{}", alone.display());
        }
        let copy = disk("vde", "8", &[("serial", "A\n"), ("hidden", "0\n")]);
        for (one, twin) in [(&vda, "/dev/vde"), (&part, "/dev/vde"), (&copy, "/dev/vda")] {
            assert_eq!(twin_in(&blocks, one).as_deref(), Some(twin));
        }
        assert_eq!(twin_in(&blocks, &other), None);
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
        // No such device exists: only its number is left.
        let null = fs::File::open("/dev/null").unwrap();
        let OfBlock { own, id, twin } = of_block(std::os::fd::AsFd::as_fd(&null), 4095, 1_048_575);
        assert_eq!(
            (own.as_str(), id.as_str(), twin),
            ("name:4095:1048575", "name:4095:1048575", None)
        );
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
