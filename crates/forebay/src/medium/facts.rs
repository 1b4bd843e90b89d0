// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the system says of a disk or file, without writing to it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file_system::{mounts_of, FileSystemFacts};
use crate::error::{Error, Result};
use crate::media::{check_link, file_holder};
use crate::origin::{file_extents, loop_device_of};

/// The least unit of a durable write: flash maps its pages by 4 KiB.
const UNIT_LEAST: u32 = 4096;

/// The thing that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    BlockDevice,
    File,
    /// A directory, or a file that does not exist yet.
    NewFile,
}

/// What the system says of a medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediumFacts {
    #[serde(serialize_with = "crate::report::path_as_text")]
    pub path: PathBuf,
    pub place: Place,
    pub size_bytes: u64,
    /// U, the unit of a durable write: no block of so many bytes is shared by two of them.
    pub unit_bytes: u32,
    /// The device, or the one below the file system.
    pub device: Option<DeviceFacts>,
    pub file_system: Option<FileSystemFacts>,
    pub file: Option<FileFacts>,
    /// Who uses it, in words; empty if nobody does.
    pub used_by: Vec<String>,
}

/// A block device, by what sysfs says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Of the whole disk.
    pub name: String,
    pub partition: Option<String>,
    /// How it is reached: `nvme`, `sata`, `usb`, `virtio`, `loop`, `network`, `stacked`...
    pub transport: String,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub firmware: Option<String>,
    pub logical_block_bytes: Option<u32>,
    pub physical_block_bytes: Option<u32>,
    /// `write back` or `write through`: whether the kernel sends flushes.
    pub write_cache: Option<String>,
    pub fua: Option<bool>,
    pub rotational: Option<bool>,
    /// `none`, `host-aware` or `host-managed`.
    pub zoned: Option<String>,
    /// The largest write that a power cut leaves whole or undone, where the device says so.
    pub atomic_write_bytes: Option<u32>,
    /// The disks below, of a device that is made of others.
    pub below: Vec<String>,
}

/// How the blocks of a file are laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Bytes without blocks; `None`: the file system does not say.
    pub hole_bytes: Option<u64>,
    /// Bytes with blocks that were never written.
    pub unwritten_bytes: Option<u64>,
    /// Bytes whose blocks another file has too.
    pub shared_bytes: Option<u64>,
    pub swap: bool,
}

impl MediumFacts {
    /// Looks at a block device, a file, a directory, or a file to be made.
    pub fn of(path: &Path) -> Result<MediumFacts> {
        let system = |doing| move |e: Errno| Error::system(path, doing, e.into());
        let (looked_at, place) = match rustix::fs::stat(path) {
            Ok(st) => match FileType::from_raw_mode(st.st_mode) {
                FileType::BlockDevice => (path.to_path_buf(), Place::BlockDevice),
                FileType::RegularFile => (path.to_path_buf(), Place::File),
                FileType::Directory => (path.to_path_buf(), Place::NewFile),
                FileType::CharacterDevice => return Err(Error::Unsuitable {
                    path: path.into(),
                    what: "a character device".into(),
                    way_out: "a devdax device is persistent memory, for which nothing is to be measured: forebay create says what it finds".into(),
                }),
                _ => return Err(Error::Unsuitable {
                    path: path.into(),
                    what: "neither a block device nor a file nor a directory".into(),
                    way_out: "name a disk, a file, or the directory of a file to be made".into(),
                }),
            },
            Err(Errno::NOENT) => (directory_of(path), Place::NewFile),
            Err(e) => return Err(system("looking at it")(e)),
        };
        check_link(&looked_at)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(&looked_at, flags, Mode::empty())
            .map_err(|e| Error::system(&looked_at, "opening it", e.into()))?;
        let st = rustix::fs::fstat(&fd).map_err(system("looking at it"))?;
        let mut facts = MediumFacts {
            path: path.into(),
            place,
            size_bytes: 0,
            unit_bytes: UNIT_LEAST,
            device: None,
            file_system: None,
            file: None,
            used_by: Vec::new(),
        };
        match place {
            Place::BlockDevice => {
                facts.size_bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
                    .map_err(system("asking for its size"))?;
                let number = device_number(st.st_rdev);
                facts.device = DeviceFacts::of(number);
                facts.used_by = users_of_device(path, number);
            }
            Place::File | Place::NewFile => {
                facts.file_system = FileSystemFacts::of(&fd, &looked_at);
                facts.device = facts.file_system.as_ref().and_then(below_file_system);
            }
        }
        if place == Place::File {
            facts.size_bytes = st.st_size as u64;
            facts.file = Some(FileFacts::of(&fd, path, facts.size_bytes));
            facts.used_by = users_of_file(&fd, &st);
        }
        let physical = facts.device.as_ref().and_then(|d| d.physical_block_bytes).unwrap_or(0);
        facts.unit_bytes = UNIT_LEAST.max(physical);
        Ok(facts)
    }

    /// The directory where a file would be made.
    pub fn directory(&self) -> PathBuf {
        match self.path.is_dir() {
            true => self.path.clone(),
            false => directory_of(&self.path),
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn device_number(number: u64) -> (u32, u32) {
    (rustix::fs::major(number), rustix::fs::minor(number))
}

fn below_file_system(system: &FileSystemFacts) -> Option<DeviceFacts> {
    DeviceFacts::of(system.device).or_else(|| {
        // btrfs and others have a number of their own, and name the device.
        let source = Path::new(&system.source);
        let st = rustix::fs::stat(source).ok().filter(|_| source.is_absolute())?;
        let block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
        DeviceFacts::of(device_number(st.st_rdev)).filter(|_| block)
    })
}

impl DeviceFacts {
    fn of((major, minor): (u32, u32)) -> Option<DeviceFacts> {
        let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(DeviceFacts::of_sysfs(&sys))
    }

    /// Of the directory of a disk or partition.
    pub(super) fn of_sysfs(sys: &Path) -> DeviceFacts {
        let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (disk, partition) = match (sys.join("partition").exists(), sys.parent()) {
            (true, Some(disk)) => (disk, Some(name(sys))),
            _ => (sys, None),
        };
        let number = |file: &str| text(disk, file).and_then(|t| t.parse::<u32>().ok());
        let first = |files: &[&str]| files.iter().find_map(|file| text(disk, file));
        let mut below: Vec<_> = fs::read_dir(disk.join("slaves"))
            .map(|all| {
                all.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
            })
            .unwrap_or_default();
        below.sort();
        DeviceFacts {
            transport: transport(disk, &name(disk)).into(),
            name: name(disk),
            partition,
            model: first(&["device/model", "device/name"]),
            serial: first(&["serial", "device/serial"]).or_else(|| vpd_serial(disk)),
            firmware: first(&["device/firmware_rev", "device/rev", "device/fwrev"]),
            logical_block_bytes: number("queue/logical_block_size"),
            physical_block_bytes: number("queue/physical_block_size"),
            write_cache: text(disk, "queue/write_cache"),
            fua: number("queue/fua").map(|n| n != 0),
            rotational: number("queue/rotational").map(|n| n != 0),
            zoned: text(disk, "queue/zoned"),
            atomic_write_bytes: number("queue/atomic_write_unit_max_bytes").filter(|n| *n != 0),
            below,
        }
    }
}

/// The serial number page of a SCSI or SATA disk: four bytes of header, then text.
fn vpd_serial(disk: &Path) -> Option<String> {
    let page = fs::read(disk.join("device/vpd_pg80")).ok()?;
    clean(&String::from_utf8_lossy(page.get(4..)?))
}

/// How a disk is reached, by its name and its place in sysfs.
fn transport(disk: &Path, name: &str) -> &'static str {
    let digits_after = |prefix: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()))
    };
    let place = disk.to_string_lossy();
    match name {
        _ if digits_after("nvme") => match text(disk, "device/transport").as_deref() {
            None | Some("pcie") => "nvme",
            Some(_) => "network",
        },
        _ if digits_after("dm-") || digits_after("md") || digits_after("bcache") => "stacked",
        _ if digits_after("loop") => "loop",
        _ if digits_after("nbd") || digits_after("rbd") || digits_after("drbd") => "network",
        _ if digits_after("zd") => "zvol",
        _ if digits_after("mmcblk") => "mmc",
        _ if digits_after("ram") || digits_after("zram") => "memory",
        _ if digits_after("pmem") => "pmem",
        n if n.starts_with("vd") || n.starts_with("xvd") => "virtio",
        _ if place.contains("/session") || place.contains("/rport-") => "network",
        _ if place.contains("/usb") => "usb",
        _ if place.contains("/virtio") || place.contains("/VMBUS") => "virtio",
        _ if place.contains("/ata") => "sata",
        n if n.starts_with("sd") => "scsi",
        _ => "other",
    }
}

fn text(dir: &Path, file: &str) -> Option<String> {
    clean(&fs::read_to_string(dir.join(file)).ok()?)
}

fn clean(text: &str) -> Option<String> {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(printable).collect();
    let words: Vec<_> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// A claim is tried, and what has it is looked for.
fn users_of_device(path: &Path, number: (u32, u32)) -> Vec<String> {
    let mut users: Vec<String> = Vec::new();
    let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", number.0, number.1));
    let names = |dir: &Path| -> Vec<String> {
        let all = fs::read_dir(dir).into_iter().flatten().flatten();
        all.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    };
    users.extend(names(&sys.join("holders")).iter().map(|n| format!("it is a part of /dev/{n}")));
    let mounted = |of: &str, number| {
        let all = mounts_of(number).into_iter();
        all.map(move |on| format!("{of} is mounted on {}", on.display())).collect::<Vec<_>>()
    };
    users.extend(mounted("it", number));
    for part in names(&sys) {
        let dev =
            text(&sys.join(&part), "dev").filter(|_| sys.join(&part).join("partition").exists());
        let parsed = dev.as_deref().and_then(|d| d.split_once(':'));
        if let Some((Ok(major), Ok(minor))) = parsed.map(|(a, b)| (a.parse(), b.parse())) {
            users.extend(mounted(&format!("its partition {part}"), (major, minor)));
        }
    }
    users.extend(is_swap(path).then(|| "it is swap".to_string()));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    let claimed = rustix::fs::open(path, flags, Mode::empty());
    if users.is_empty() && matches!(claimed, Err(Errno::BUSY)) {
        users.push("another program has claimed it".into());
    }
    users
}

fn users_of_file(fd: &OwnedFd, st: &rustix::fs::Stat) -> Vec<String> {
    let locked = file_holder(fd).map(|pid| format!("process {pid} has locked it"));
    let disk = loop_device_of(st).map(|device| format!("it is the disk of /dev/{device}"));
    locked.into_iter().chain(disk).collect()
}

/// /proc/swaps names it.
fn is_swap(path: &Path) -> bool {
    let Ok(st) = rustix::fs::stat(path) else { return false };
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    table.lines().skip(1).filter_map(|l| l.split_whitespace().next()).any(|swap| {
        let name = swap.replace("\\040", " ");
        let same = |other: rustix::fs::Stat| match FileType::from_raw_mode(st.st_mode) {
            FileType::BlockDevice => other.st_rdev == st.st_rdev && other.st_mode == st.st_mode,
            _ => (other.st_dev, other.st_ino) == (st.st_dev, st.st_ino),
        };
        rustix::fs::stat(name).is_ok_and(same)
    })
}

impl FileFacts {
    fn of(fd: &OwnedFd, path: &Path, size: u64) -> FileFacts {
        let layout = layout(fd, size);
        FileFacts {
            hole_bytes: layout.map(|l| l.0),
            unwritten_bytes: layout.map(|l| l.1),
            shared_bytes: layout.map(|l| l.2),
            swap: is_swap(path),
        }
    }
}

/// Bytes of holes, unwritten and shared, of a file up to its size.
fn layout(fd: &OwnedFd, size: u64) -> Option<(u64, u64, u64)> {
    let (mut at, mut holes, mut unwritten, mut shared) = (0, 0, 0, 0);
    while at < size {
        let found = file_extents(fd.as_fd(), at).ok()?;
        if found.is_empty() {
            return Some((holes + size - at, unwritten, shared));
        }
        for e in found {
            let start = e.start.clamp(at, size);
            let end = e.start.saturating_add(e.len).clamp(start, size);
            holes += start - at;
            unwritten += if e.unwritten { end - start } else { 0 };
            shared += if e.shared { end - start } else { 0 };
            at = end;
            if e.len == 0 {
                return None; // or this would not end
            }
        }
    }
    Some((holes, unwritten, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up sysfs: each way to be reached, and what is read of a disk and of a partition.
    #[test]
    fn a_disk_by_what_sysfs_says() {
        let dir = std::env::temp_dir().join(format!("fby-medium-{}", std::process::id()));
        for (place, name, expected) in [
            ("pci/nvme/nvme0", "nvme0n1", "nvme"),
            ("pci/ata1/host0", "sda", "sata"),
            ("pci/usb2/host1", "sdb", "usb"),
            ("pci/host2/session1", "sdc", "network"),
            ("pci/host2/rport-1", "sdd", "network"),
            ("pci/virtio3/host3", "sde", "virtio"),
            ("pci/host4", "sdf", "scsi"),
            ("virtual", "vda", "virtio"),
            ("virtual", "loop3", "loop"),
            ("virtual", "nbd0", "network"),
            ("virtual", "rbd0", "network"),
            ("virtual", "md127", "stacked"),
            ("virtual", "dm-3", "stacked"),
            ("virtual", "zd16", "zvol"),
            ("virtual", "zram0", "memory"),
            ("virtual", "ram1", "memory"),
            ("virtual", "pmem0", "pmem"),
            ("soc", "mmcblk0", "mmc"),
            ("virtual", "unheard", "other"),
        ] {
            let disk = dir.join(place).join(name);
            assert_eq!(transport(&disk, name), expected, "{name}");
        }
        let disk = dir.join("nvme1n1");
        let part = disk.join("nvme1n1p2");
        for made in ["device", "queue", "slaves/sdy", "slaves/sdx"] {
            fs::create_dir_all(disk.join(made)).unwrap();
        }
        fs::create_dir_all(&part).unwrap();
        for (file, text) in [
            ("device/model", "Example  SSD\x1b 1T   \n"),
            ("device/firmware_rev", "1.0\n"),
            ("device/transport", "tcp\n"),
            ("queue/logical_block_size", "512\n"),
            ("queue/physical_block_size", "16384\n"),
            ("queue/write_cache", "write back\n"),
            ("queue/fua", "1\n"),
            ("queue/rotational", "0\n"),
            ("queue/zoned", "none\n"),
            ("queue/atomic_write_unit_max_bytes", "0\n"),
            ("nvme1n1p2/partition", "2\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        fs::write(disk.join("device/vpd_pg80"), b"\0\x80\0\x08 S-123  ").unwrap();
        let found = DeviceFacts::of_sysfs(&part);
        let expected = DeviceFacts {
            name: "nvme1n1".into(),
            partition: Some("nvme1n1p2".into()),
            transport: "network".into(),
            model: Some("Example SSD 1T".into()),
            serial: Some("S-123".into()),
            firmware: Some("1.0".into()),
            logical_block_bytes: Some(512),
            physical_block_bytes: Some(16384),
            write_cache: Some("write back".into()),
            fua: Some(true),
            rotational: Some(false),
            zoned: Some("none".into()),
            atomic_write_bytes: None,
            below: vec!["sdx".into(), "sdy".into()],
        };
        assert_eq!(found, expected);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(DeviceFacts::of_sysfs(&dir.join("gone")).write_cache, None);
    }

    #[test]
    fn holes_and_unwritten_bytes_of_a_file_are_counted() {
        use std::os::unix::fs::FileExt;
        let path = std::env::temp_dir().join(format!("fby-layout-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 65536], 65536).unwrap();
        file.sync_all().unwrap();
        let fd = OwnedFd::from(fs::File::open(&path).unwrap());
        let found = layout(&fd, 1 << 20);
        let all = rustix::fs::FallocateFlags::empty();
        let allocated = rustix::fs::fallocate(&file, all, 0, 1 << 20);
        let after = layout(&fd, 1 << 20);
        fs::remove_file(&path).unwrap();
        let Some(found) = found else {
            return forebay_test::skipped!("the temporary directory's file system has no FIEMAP");
        };
        assert_eq!(found, ((1 << 20) - 65536, 0, 0));
        if allocated.is_ok() {
            assert_eq!(after, Some((0, (1 << 20) - 65536, 0)));
        }
    }

    #[test]
    fn a_place_that_nothing_lies_on_is_refused() {
        let e = MediumFacts::of(Path::new("/dev/null")).unwrap_err();
        assert!(e.to_string().contains("a character device"), "{e}");
        let e = MediumFacts::of(Path::new("/no-such/place/file")).unwrap_err();
        assert_eq!(e.exit_code(), 3, "{e}");
    }
}
