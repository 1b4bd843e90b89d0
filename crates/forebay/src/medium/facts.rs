// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts that the system tells of a disk or file, without writing to it.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_engine::lasting;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file_system::{FileSystemFacts, FsClass};
use super::users::{self, is_swap, names};
use crate::error::{Error, Result};
use crate::ioctl::{file_extents, FileExtent};
use crate::media::{backing_of, check_link};
use crate::procfs::{self, device_number, DeviceNumber};

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

/// Facts that the system tells of a medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediumFacts {
    #[serde(flatten, with = "crate::report::path::path")]
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
    /// The name of the whole disk.
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
    /// The facts of these, and of the disk below a loop device's file.
    pub made_of: Vec<DeviceFacts>,
    /// The file system of a loop device's file.
    pub backing: Option<FileSystemFacts>,
    /// The namespace of a disk that has several.
    pub namespace: Option<String>,
    /// The begin of a partition, in sectors of 512 bytes.
    pub partition_start: Option<u64>,
}

/// How deep disks below disks are followed.
const DEPTH: usize = 8;

/// How the blocks of a file are laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Bytes without blocks; `None`: the file system does not say.
    pub hole_bytes: Option<u64>,
    /// Bytes with blocks that were never written.
    pub unwritten_bytes: Option<u64>,
    /// Bytes whose blocks another file has too.
    pub shared_bytes: Option<u64>,
    /// Bytes in blocks that do not begin where a block of the unit begins on the disk.
    #[serde(default)]
    pub misaligned_bytes: Option<u64>,
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
            Err(Errno::NOENT) if rustix::fs::lstat(path).is_ok() => {
                return Err(Error::Symlink {
                    path: path.into(),
                    what: "that leads nowhere".into(),
                    target: fs::read_link(path).ok(),
                })
            }
            Err(Errno::NOENT) => (directory_of(path), Place::NewFile),
            Err(e) => return Err(system("looking at it")(e)),
        };
        check_link(&looked_at)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = lasting::open(|| rustix::fs::open(&looked_at, flags, Mode::empty()))
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
                facts.device = DeviceFacts::of(number, 0);
                facts.used_by = users::of_device(path, number);
            }
            Place::File | Place::NewFile => {
                facts.file_system = FileSystemFacts::of(&fd, &looked_at);
                facts.device = facts.file_system.as_ref().and_then(|s| below_file_system(s, 0));
            }
        }
        let physical = facts.device.as_ref().and_then(|d| d.physical_block_bytes).unwrap_or(0);
        facts.unit_bytes = UNIT_LEAST.max(physical);
        if place == Place::File {
            facts.size_bytes = st.st_size as u64;
            facts.look_at_file(&fd);
            facts.used_by = users::of_file(&fd, &st);
        }
        Ok(facts)
    }

    /// How the blocks of the file are laid out now.
    pub(crate) fn look_at_file(&mut self, fd: &OwnedFd) {
        let on = (self.start_bytes(), u64::from(self.unit_bytes));
        self.file = Some(FileFacts::of(fd, &self.path, self.size_bytes, on));
    }

    /// Its file system, if that is in memory.
    pub(crate) fn memory_system(&self) -> Option<&FileSystemFacts> {
        self.file_system.as_ref().filter(|system| system.class == FsClass::Memory)
    }

    /// The start, in bytes, of the partition that it is, or lies on.
    pub(super) fn start_bytes(&self) -> u64 {
        self.device.as_ref().and_then(|d| d.partition_start).unwrap_or(0).saturating_mul(512)
    }

    /// Looks again who uses it, now that this process has claimed it: one that had it before may
    /// have ended.
    pub(crate) fn claimed(&mut self, fd: &OwnedFd) -> Result<()> {
        // Another process that tries to claim it has it open for a moment, or a range locked.
        const TRIES: u32 = 50;
        let st = rustix::fs::fstat(fd)
            .map_err(|e| Error::system(&self.path, "looking at it", e.into()))?;
        for turn in 0..TRIES {
            self.used_by = match self.place {
                Place::BlockDevice => {
                    users::of_claimed_device(&self.path, device_number(st.st_rdev))
                }
                Place::File | Place::NewFile => users::of_claimed_file(fd, &st),
            };
            if self.used_by.is_empty() {
                break;
            }
            if turn + 1 < TRIES {
                std::thread::sleep(Duration::from_millis(4));
            }
        }
        Ok(())
    }

    /// The directory where a file would be made, or where the file is that a link leads to.
    pub fn directory(&self) -> PathBuf {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        match path.is_dir() {
            true => path,
            false => directory_of(&path),
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn below_file_system(system: &FileSystemFacts, depth: usize) -> Option<DeviceFacts> {
    DeviceFacts::of(system.device, depth).or_else(|| {
        // btrfs and others have a number of their own, and name the device.
        let source = Path::new(&system.source);
        let st = rustix::fs::stat(source).ok().filter(|_| source.is_absolute())?;
        let block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
        DeviceFacts::of(device_number(st.st_rdev), depth).filter(|_| block)
    })
}

/// The file of a loop device, or the device that is in its place.
fn below_loop(disk: &Path, depth: usize) -> Option<(Option<FileSystemFacts>, Option<DeviceFacts>)> {
    let path = backing_of(disk)?;
    let file = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let st = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice {
        return Some((None, DeviceFacts::of(device_number(st.st_rdev), depth)));
    }
    let system = FileSystemFacts::of(&file, &path);
    let below = system.as_ref().and_then(|system| below_file_system(system, depth));
    Some((system, below))
}

impl DeviceFacts {
    pub(super) fn of((major, minor): DeviceNumber, depth: usize) -> Option<DeviceFacts> {
        let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(DeviceFacts::of_sysfs(&sys, depth))
    }

    /// All disks below it, at any depth.
    pub(super) fn all_below(&self) -> Vec<&DeviceFacts> {
        self.made_of.iter().flat_map(DeviceFacts::with_below).collect()
    }

    /// The disk itself, and all disks below it.
    pub(crate) fn with_below(&self) -> Vec<&DeviceFacts> {
        std::iter::once(self).chain(self.all_below()).collect()
    }

    /// A number of this disk or partition, by model, serial number and place; 0: it has no serial
    /// number, and is not told from others.
    pub(crate) fn identity(&self) -> u64 {
        let Some(serial) = &self.serial else { return 0 };
        let text = format!(
            "{}\0{serial}\0{}\0{}",
            self.model.as_deref().unwrap_or_default(),
            self.namespace.as_deref().unwrap_or_default(),
            self.partition_start.map(|n| n.to_string()).unwrap_or_default(),
        );
        // FNV-1a, of 64 bits.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
    }

    /// The content of sysfs in the directory of a disk or partition.
    pub(super) fn of_sysfs(sys: &Path, depth: usize) -> DeviceFacts {
        let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (disk, partition) = match (sys.join("partition").exists(), sys.parent()) {
            (true, Some(disk)) => (disk, Some(name(sys))),
            _ => (sys, None),
        };
        let partition_start = partition.as_ref().and_then(|_| text(sys, "start"));
        let number = |file: &str| text(disk, file).and_then(|t| t.parse::<u32>().ok());
        let first = |files: &[&str]| files.iter().find_map(|file| text(disk, file));
        let below = names(&disk.join("slaves"));
        let mut made_of: Vec<_> = below
            .iter()
            .filter(|_| depth < DEPTH)
            .filter_map(|slave| fs::canonicalize(disk.join("slaves").join(slave)).ok())
            .map(|sys| DeviceFacts::of_sysfs(&sys, depth + 1))
            .collect();
        let below_loop = (depth < DEPTH).then(|| below_loop(disk, depth + 1)).flatten();
        let (backing, of_file) = below_loop.unwrap_or_default();
        made_of.extend(of_file);
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
            made_of,
            backing,
            namespace: text(disk, "nsid"),
            partition_start: partition_start.and_then(|n| n.parse().ok()),
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
        _ if digits_after("nvme") => match controllers(disk).iter().all(|by| by == "pcie") {
            true => "nvme",
            false => "network",
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

/// By what the controllers of an NVMe disk are reached.  With multipath it belongs to a subsystem,
/// which lists its controllers.
fn controllers(disk: &Path) -> Vec<String> {
    let device = disk.join("device");
    let one = text(&device, "transport");
    let all = fs::read_dir(&device).into_iter().flatten().flatten();
    let of_subsystem = all
        .filter(|e| e.file_name().to_string_lossy().starts_with("nvme"))
        .filter_map(|e| text(&e.path(), "transport"));
    one.into_iter().chain(of_subsystem).collect()
}

fn text(dir: &Path, file: &str) -> Option<String> {
    clean(&procfs::text(dir.join(file)).ok()?)
}

fn clean(text: &str) -> Option<String> {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(printable).collect();
    let words: Vec<_> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

impl FileFacts {
    /// `on`: where its file system begins on the disk, and the unit.
    fn of(fd: &OwnedFd, path: &Path, size: u64, on: (u64, u64)) -> FileFacts {
        let layout = layout(|at| file_extents(fd.as_fd(), at).ok(), size, on);
        FileFacts {
            hole_bytes: layout.map(|l| l[0]),
            unwritten_bytes: layout.map(|l| l[1]),
            shared_bytes: layout.map(|l| l[2]),
            misaligned_bytes: layout.map(|l| l[3]),
            swap: is_swap(path),
        }
    }
}

/// Calls `piece` for each part of a file, up to its size and in order: a hole, or what is of an
/// extent.  `None`: the file system does not say.
fn pieces(
    extents: impl Fn(u64) -> Option<Vec<FileExtent>>,
    size: u64,
    mut piece: impl FnMut(Range<u64>, Option<&FileExtent>),
) -> Option<()> {
    let mut at = 0;
    while at < size {
        let found = extents(at)?;
        if found.is_empty() {
            piece(at..size, None);
            break;
        }
        for e in found {
            let start = e.start.clamp(at, size);
            let end = e.start.saturating_add(e.len).clamp(start, size);
            if at < start {
                piece(at..start, None);
            }
            piece(start..end, Some(&e));
            at = end;
            if e.len == 0 {
                return None; // or this would not end
            }
        }
    }
    Some(())
}

/// Bytes of holes, unwritten, shared, and misaligned, of a file up to its size.
fn layout(
    extents: impl Fn(u64) -> Option<Vec<FileExtent>>,
    size: u64,
    (begin, unit): (u64, u64),
) -> Option<[u64; 4]> {
    let (mut holes, mut unwritten, mut shared, mut misaligned) = (0, 0, 0, 0);
    pieces(extents, size, |range, extent| {
        let bytes = range.end - range.start;
        let Some(e) = extent else { return holes += bytes };
        unwritten += if e.unwritten { bytes } else { 0 };
        shared += if e.shared { bytes } else { 0 };
        let place = begin.wrapping_add(e.physical).wrapping_sub(e.start);
        misaligned += if place.is_multiple_of(unit) { 0 } else { bytes };
    })?;
    Some([holes, unwritten, shared, misaligned])
}

/// Ranges of a file, up to its size, that have no blocks, or blocks that were never written; none
/// if the file system does not say.
pub(crate) fn unfilled(fd: BorrowedFd<'_>, size: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    let known = pieces(
        |at| file_extents(fd, at).ok(),
        size,
        |range, extent| {
            if extent.is_some_and(|e| !e.unwritten) {
                return;
            }
            match all.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => all.push(range),
            }
        },
    );
    known.map_or_else(Vec::new, |()| all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extents of a file on a partition: which of them share a block of the disk with others.
    #[test]
    fn blocks_that_lie_across_those_of_the_disk_are_counted() {
        let extent = |start, len, physical| FileExtent {
            start,
            len,
            physical,
            unwritten: false,
            shared: false,
        };
        let (file, far) = (vec![extent(0, 8192, 1 << 20)], vec![extent(0, 8192, (1 << 20) + 1024)]);
        let two = vec![extent(0, 4096, 8192), extent(4096, 12288, 65536 + 2048)];
        for (extents, begin, unit, expected) in [
            (&file, 1 << 20, 4096, 0),
            (&file, 63 * 512, 4096, 8192),
            (&file, 8 * 512, 4096, 0),
            (&file, 8 * 512, 16384, 8192),
            (&far, 1 << 20, 4096, 8192),
            (&far, 6 * 512, 4096, 0),
            (&two, 0, 4096, 12288),
        ] {
            let size = extents.iter().map(|e| e.len).sum();
            let given = |at| Some(extents.iter().filter(|e| e.start >= at).copied().collect());
            let found = layout(given, size, (begin, unit));
            assert_eq!(found, Some([0, 0, 0, expected]), "{extents:?} from {begin}, {unit}");
        }
    }

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
        // With multipath: a subsystem, and its controllers.
        for (system, transports, expected) in [
            ("subsys0", &["pcie"][..], "nvme"),
            ("subsys1", &["pcie", "pcie"], "nvme"),
            ("subsys2", &["tcp", "tcp"], "network"),
            ("subsys3", &["pcie", "rdma"], "network"),
            ("subsys4", &[], "nvme"),
        ] {
            let disk = dir.join(system).join("nvme3n1");
            fs::create_dir_all(disk.join("device")).unwrap();
            for (i, transport) in transports.iter().enumerate() {
                let controller = disk.join("device").join(format!("nvme{i}"));
                fs::create_dir_all(&controller).unwrap();
                fs::write(controller.join("transport"), transport).unwrap();
            }
            assert_eq!(transport(&disk, "nvme3n1"), expected, "{system}");
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
            ("nvme1n1p2/start", "2048\n"),
            ("nsid", "1\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        fs::write(disk.join("device/vpd_pg80"), b"\0\x80\0\x08 S-123  ").unwrap();
        let found = DeviceFacts::of_sysfs(&part, 0);
        let made_of =
            ["sdx", "sdy"].map(|n| DeviceFacts::of_sysfs(&disk.join("slaves").join(n), 1));
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
            made_of: made_of.into(),
            backing: None,
            namespace: Some("1".into()),
            partition_start: Some(2048),
        };
        assert_eq!(found, expected);
        assert_eq!(found.all_below().len(), 2);
        // Another disk, partition or namespace is another one; without a serial number it is none.
        let changes: [fn(&mut DeviceFacts); 5] = [
            |d| d.serial = Some("S-124".into()),
            |d| d.model = None,
            |d| d.partition_start = Some(4096),
            |d| d.partition_start = None,
            |d| d.namespace = Some("2".into()),
        ];
        let mut seen = std::collections::HashSet::from([found.identity()]);
        for change in changes {
            let mut other = found.clone();
            change(&mut other);
            assert!(seen.insert(other.identity()), "{other:?}");
        }
        assert_eq!(DeviceFacts { serial: None, ..found }.identity(), 0);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(DeviceFacts::of_sysfs(&dir.join("gone"), 0).write_cache, None);
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
        let bytes = || layout(|at| file_extents(fd.as_fd(), at).ok(), 1 << 20, (0, 512));
        let found = bytes();
        let all = rustix::fs::FallocateFlags::empty();
        let allocated = rustix::fs::fallocate(&file, all, 0, 1 << 20);
        let after = bytes();
        fs::remove_file(&path).unwrap();
        let Some(found) = found else {
            return forebay_test::skipped!("the temporary directory's file system has no FIEMAP");
        };
        assert_eq!(found, [(1 << 20) - 65536, 0, 0, 0]);
        if allocated.is_ok() {
            assert_eq!(after, Some([0, (1 << 20) - 65536, 0, 0]));
        }
    }

    /// A link that lies on one disk, to a file on another.
    #[test]
    fn a_link_is_judged_and_measured_where_its_file_is() {
        let name = format!("fby-link-{}", std::process::id());
        let (here, there) = (std::env::temp_dir().join(&name), forebay_test::memory().join(&name));
        fs::create_dir(&here).unwrap();
        fs::create_dir(&there).unwrap();
        fs::write(there.join("file"), [1; 4096]).unwrap();
        let link = here.join("link");
        std::os::unix::fs::symlink(there.join("file"), &link).unwrap();
        let facts = MediumFacts::of(&link).unwrap();
        let directory = facts.directory();
        std::os::unix::fs::symlink(there.join("none"), here.join("nowhere")).unwrap();
        let nowhere = MediumFacts::of(&here.join("nowhere"));
        fs::remove_dir_all(&here).unwrap();
        fs::remove_dir_all(&there).unwrap();
        assert_eq!(directory.file_name(), there.file_name());
        assert_eq!(directory.parent(), fs::canonicalize(forebay_test::memory()).ok().as_deref());
        assert!(nowhere.unwrap_err().to_string().contains("leads nowhere"));
    }

    #[test]
    fn a_place_that_nothing_lies_on_is_refused() {
        let e = MediumFacts::of(Path::new("/dev/null")).unwrap_err();
        assert!(e.to_string().contains("a character device"), "{e}");
        let e = MediumFacts::of(Path::new("/no-such/place/file")).unwrap_err();
        assert_eq!(e.exit_code(), 3, "{e}");
    }
}
