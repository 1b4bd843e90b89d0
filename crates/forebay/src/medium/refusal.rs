// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reasons that make a disk or file unfit as a medium for durable writes, each with the way out.

use serde::{Deserialize, Serialize};

use super::facts::{DeviceFacts, MediumFacts, Place};
use super::file_system::{FileSystemFacts, FsClass};
use crate::report::human_bytes;

/// One reason, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A word for scripts: `zoned`, `copy-on-write`...
    pub name: String,
    pub cause: String,
    pub way_out: String,
}

impl Refusal {
    /// As the error of whoever was to use it.
    pub(crate) fn error(self, path: &std::path::Path) -> crate::Error {
        match self.name.as_str() {
            "in-use" => {
                let way_out = format!("{}: {}", self.cause, self.way_out);
                crate::Error::Busy { path: path.into(), holder: None, way_out }
            }
            name => crate::Error::Unsupported {
                path: path.into(),
                cause: format!("{} ({name})", self.cause),
                way_out: self.way_out,
            },
        }
    }
}

impl MediumFacts {
    /// All that makes it unfit; empty if nothing does.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all = self.refusals_of_place();
        let mut refuse = |name: &str, cause: String, way_out: &str| {
            all.push(Refusal { name: name.into(), cause, way_out: way_out.into() });
        };
        self.refuse_layout(&mut refuse);
        if let Some(cause) = self.misaligned() {
            refuse(
                "misaligned",
                cause,
                "use a partition that is aligned to 1 MiB, and on it a file system with blocks of 4 KiB",
            );
        }
        all
    }

    /// All but how the blocks of a file are laid out: a copy of a pool's file changes that, and
    /// its opening mends it.
    pub(crate) fn refusals_of_place(&self) -> Vec<Refusal> {
        let mut all = Vec::new();
        let mut refuse = |name: &str, cause: String, way_out: &str| {
            all.push(Refusal { name: name.into(), cause, way_out: way_out.into() });
        };
        if !self.used_by.is_empty() {
            refuse(
                "in-use",
                self.used_by.join("; "),
                "unmount it, or stop what uses it, or name another partition",
            );
        }
        if self.file.as_ref().is_some_and(|f| f.swap) {
            refuse("swap", "the file is swap".into(), "name another file, or end its use: swapoff");
        }
        if let Some(system) = &self.file_system {
            of_system(system, &mut refuse);
        }
        self.refuse_device(&mut refuse);
        self.refuse_below(&mut refuse);
        all
    }

    /// A write of a unit changes a part of another block of the disk: cut, it may damage what is
    /// durable there.
    pub(crate) fn misaligned(&self) -> Option<String> {
        let (start, unit) = (self.start_bytes(), u64::from(self.unit_bytes));
        let across = |what: String| {
            format!("{what} across the disk's blocks of {}: a write that is cut there may damage what was durable, and each write is two", human_bytes(unit))
        };
        match (self.place, self.file.as_ref().and_then(|f| f.misaligned_bytes)) {
            (Place::File, Some(bytes)) if bytes != 0 => {
                Some(across(format!("{} of the file lie", human_bytes(bytes))))
            }
            (Place::BlockDevice, _) if !start.is_multiple_of(unit) => {
                Some(across(format!("the partition begins at byte {start}, and lies")))
            }
            _ => None,
        }
    }

    fn refuse_device(&self, refuse: &mut impl FnMut(&str, String, &str)) {
        let on_a_disk = match &self.file_system {
            None => self.place == Place::BlockDevice,
            Some(system) => {
                matches!(system.class, FsClass::InPlace | FsClass::NoFlush | FsClass::Unknown)
            }
        };
        let Some(device) = self.device.as_ref().filter(|_| on_a_disk) else {
            if on_a_disk {
                refuse(
                    "write-cache-unknown",
                    "the system does not say which disk it is, or whether that has a volatile write cache".into(),
                    "see that /sys is mounted, or name the disk itself",
                );
            }
            return;
        };
        let zoned = device.zoned.as_deref().filter(|zoned| *zoned != "none");
        if let Some(zoned) = zoned {
            refuse(
                "zoned",
                format!(
                    "{} is a zoned disk ({zoned}): its blocks cannot be written in any order",
                    device.name
                ),
                "use a disk that is not zoned (lsblk -z lists them)",
            );
        }
        of_device(device, refuse);
    }

    /// A refusal of a disk below is one of the device above it.  A zoned disk is no reason:
    /// the device that makes an ordinary disk of it says so itself.
    fn refuse_below(&self, refuse: &mut impl FnMut(&str, String, &str)) {
        let Some(device) = &self.device else { return };
        for below in device.all_below() {
            let name = &below.name;
            of_device(below, &mut |word, cause, way_out| {
                refuse(word, format!("below {}: {cause}", device.name), way_out);
            });
            let Some(system) = &below.backing else { continue };
            of_backing(&format!("the file of {name}"), system, refuse);
        }
        if let Some(system) = &device.backing {
            of_backing(&format!("the file of {}", device.name), system, refuse);
        }
    }

    fn refuse_layout(&self, refuse: &mut impl FnMut(&str, String, &str)) {
        const FILL: &str = "make a new file that is written once: dd if=/dev/zero of=NEWFILE bs=1M count=MEBIBYTES oflag=excl conv=fsync";
        let Some(file) = &self.file else { return };
        let mut when = |name: &str, bytes: Option<u64>, what: &str, way_out: &str| {
            if let Some(bytes) = bytes.filter(|b| *b != 0) {
                refuse(name, format!("{} of the file {what}", human_bytes(bytes)), way_out);
            }
        };
        when("holes", file.hole_bytes, "have no blocks yet: the first durable write of each writes metadata as well, and can fail for lack of space", FILL);
        when("unwritten", file.unwritten_bytes, "have blocks that were never written: the first durable write of each writes metadata as well, and takes twice as long", FILL);
        when("shared-blocks", file.shared_bytes, "share their blocks with a copy (reflink): a write goes elsewhere, and metadata with it", FILL);
    }
}

fn of_device(device: &DeviceFacts, refuse: &mut impl FnMut(&str, String, &str)) {
    if device.transport == "loop" && device.backing.is_none() && device.made_of.is_empty() {
        refuse(
            "backing-unknown",
            format!(
                "the file below {} was deleted, or cannot be seen from here: it may be in memory",
                device.name
            ),
            "see losetup -l; name the file itself, or set the device up here",
        );
    }
    let known = ["write back", "write through"];
    if !device.write_cache.as_deref().is_some_and(|said| known.contains(&said)) {
        let said = match &device.write_cache {
            Some(said) => {
                format!("/sys/block/{}/queue/write_cache says \"{said}\"", device.name)
            }
            None => format!("/sys/block/{}/queue/write_cache is not there", device.name),
        };
        refuse(
            "write-cache-unknown",
            format!("{said}, so it is unknown whether the kernel flushes the disk's cache"),
            "use another disk, or a newer kernel",
        );
    }
    if device.transport == "zvol" {
        refuse(
            "copy-on-write",
            format!(
                "{} is a ZFS volume, which writes each block elsewhere, and metadata with it",
                device.name
            ),
            "use a partition of the disk itself; ZFS has a log of its own (SLOG)",
        );
    }
}

/// The file system of a loop device's file.
fn of_backing(what: &str, system: &FileSystemFacts, refuse: &mut impl FnMut(&str, String, &str)) {
    of_system(system, &mut |name, cause, way_out| {
        refuse(name, format!("{what}: {cause}"), way_out);
    });
}

/// How a file system treats an fsync, by its kind and by how it is mounted.
fn of_system(system: &FileSystemFacts, refuse: &mut impl FnMut(&str, String, &str)) {
    if let Some((name, cause, way_out)) = of_kind(system) {
        refuse(name, cause, way_out);
    }
    if let Some(option) = system.flushes_nothing() {
        let on = system.mounted_on.display();
        refuse(
            "no-barrier",
            format!("{on} is mounted with {option}: an fsync there does not flush the disk"),
            "mount it without that option",
        );
    }
}

fn of_kind(system: &FileSystemFacts) -> Option<(&'static str, String, &'static str)> {
    const ORDINARY: &str =
        "use a file on ext4 or xfs of a local disk, or a partition without a file system";
    let kind = &system.kind;
    let refusal = match system.class {
        FsClass::CopyOnWrite => (
            "copy-on-write",
            format!("{kind} writes a block that is written again elsewhere, and metadata with it: a durable write is several, and needs free space"),
            ORDINARY,
        ),
        FsClass::Network => (
            "network-file-system",
            format!("{kind}: another machine, or the host of this one, decides what an fsync does"),
            ORDINARY,
        ),
        FsClass::UserSpace => (
            "user-space-file-system",
            format!("{kind}: a program decides what an fsync does"),
            ORDINARY,
        ),
        FsClass::NoFlush => (
            "no-flush",
            format!("{kind}: its fsync writes to the disk, and does not flush the disk's cache"),
            ORDINARY,
        ),
        FsClass::Overlay => (
            "overlay",
            format!("{kind}: the file system below is unknown; it may copy on write or flush nothing"),
            "in a container use a volume, a directory of the host's own file system; else ext4 or xfs",
        ),
        FsClass::InPlace | FsClass::Memory | FsClass::Unknown => return None,
    };
    Some(refusal)
}

#[cfg(test)]
mod tests {
    use super::super::facts::FileFacts;
    use super::*;

    fn disk() -> MediumFacts {
        MediumFacts {
            path: "/dev/sdx".into(),
            place: Place::BlockDevice,
            size_bytes: 1 << 30,
            unit_bytes: 4096,
            device: Some(DeviceFacts {
                name: "sdx".into(),
                transport: "sata".into(),
                write_cache: Some("write back".into()),
                zoned: Some("none".into()),
                ..Default::default()
            }),
            file_system: None,
            file: None,
            used_by: Vec::new(),
        }
    }

    fn file_on(kind: &str, options: &str) -> MediumFacts {
        let system = FileSystemFacts {
            kind: kind.into(),
            class: FsClass::of(kind),
            mounted_on: "/srv".into(),
            source: "/dev/sdx1".into(),
            options: options.into(),
            device: (8, 1),
        };
        let file = FileFacts {
            hole_bytes: Some(0),
            unwritten_bytes: Some(0),
            shared_bytes: Some(0),
            misaligned_bytes: Some(0),
            swap: false,
        };
        MediumFacts { place: Place::File, file: Some(file), file_system: Some(system), ..disk() }
    }

    fn with_device(mut facts: MediumFacts, change: impl FnOnce(&mut DeviceFacts)) -> MediumFacts {
        change(facts.device.as_mut().unwrap());
        facts
    }

    fn with_file(mut facts: MediumFacts, change: impl FnOnce(&mut FileFacts)) -> MediumFacts {
        change(facts.file.as_mut().unwrap());
        facts
    }

    fn below(change: impl FnOnce(&mut DeviceFacts)) -> DeviceFacts {
        with_device(disk(), change).device.unwrap()
    }

    /// Each reason alone: its name is told, and no other.
    #[test]
    fn each_reason_is_told_by_its_name_with_a_way_out() {
        let ext4 = || file_on("ext4", "rw");
        let table = [
            (None, disk()),
            (None, with_device(disk(), |d| d.write_cache = Some("write through".into()))),
            (None, ext4()),
            (None, file_on("xfs", "rw")),
            (None, file_on("tmpfs", "rw")),
            (None, with_file(ext4(), |f| *f = FileFacts::default())),
            (Some("zoned"), with_device(disk(), |d| d.zoned = Some("host-managed".into()))),
            (Some("zoned"), with_device(disk(), |d| d.zoned = Some("host-aware".into()))),
            (Some("zoned"), with_device(ext4(), |d| d.zoned = Some("host-managed".into()))),
            (Some("write-cache-unknown"), with_device(disk(), |d| d.write_cache = None)),
            (
                Some("write-cache-unknown"),
                with_device(disk(), |d| d.write_cache = Some("on".into())),
            ),
            (Some("write-cache-unknown"), with_device(ext4(), |d| d.write_cache = None)),
            (Some("write-cache-unknown"), MediumFacts { device: None, ..disk() }),
            (Some("write-cache-unknown"), MediumFacts { device: None, ..ext4() }),
            (Some("copy-on-write"), with_device(disk(), |d| d.transport = "zvol".into())),
            (Some("copy-on-write"), file_on("btrfs", "rw")),
            (Some("copy-on-write"), file_on("zfs", "rw")),
            (Some("copy-on-write"), file_on("bcachefs", "rw")),
            (Some("network-file-system"), file_on("nfs4", "rw")),
            (Some("network-file-system"), MediumFacts { device: None, ..file_on("9p", "rw") }),
            (Some("user-space-file-system"), file_on("fuse.sshfs", "rw")),
            (Some("overlay"), file_on("overlay", "rw,upperdir=/x")),
            (Some("no-flush"), file_on("jfs", "rw")),
            (None, with_device(disk(), |d| d.made_of = vec![below(|_| ())])),
            (
                Some("write-cache-unknown"),
                with_device(disk(), |d| {
                    d.made_of = vec![below(|_| ()), below(|d| d.write_cache = None)]
                }),
            ),
            (
                Some("copy-on-write"),
                with_device(ext4(), |d| {
                    d.made_of = vec![below(|d| {
                        d.made_of = vec![below(|d| d.transport = "zvol".into())];
                    })]
                }),
            ),
            // A target that makes an ordinary disk of a zoned one is not refused for that.
            (
                None,
                with_device(disk(), |d| {
                    d.made_of = vec![below(|d| d.zoned = Some("host-managed".into()))]
                }),
            ),
            (
                Some("copy-on-write"),
                with_device(disk(), |d| d.backing = file_on("btrfs", "rw").file_system),
            ),
            (
                Some("no-flush"),
                with_device(disk(), |d| d.backing = file_on("jfs", "rw").file_system),
            ),
            (
                Some("network-file-system"),
                with_device(disk(), |d| {
                    d.made_of = vec![below(|d| {
                        d.backing = file_on("nfs4", "rw").file_system;
                    })]
                }),
            ),
            (
                Some("no-barrier"),
                with_device(disk(), |d| {
                    d.backing = file_on("ext4", "rw,nobarrier").file_system;
                }),
            ),
            (Some("backing-unknown"), with_device(disk(), |d| d.transport = "loop".into())),
            (
                None,
                with_device(disk(), |d| {
                    d.transport = "loop".into();
                    d.backing = file_on("ext4", "rw").file_system;
                }),
            ),
            (
                None,
                with_device(disk(), |d| {
                    d.transport = "loop".into();
                    d.made_of = vec![below(|_| ())];
                }),
            ),
            (Some("no-barrier"), file_on("ext4", "rw,nobarrier")),
            (Some("no-barrier"), file_on("ext4", "rw,barrier=0")),
            (Some("holes"), with_file(ext4(), |f| f.hole_bytes = Some(4096))),
            (Some("unwritten"), with_file(ext4(), |f| f.unwritten_bytes = Some(4096))),
            (Some("shared-blocks"), with_file(ext4(), |f| f.shared_bytes = Some(4096))),
            (Some("misaligned"), with_file(ext4(), |f| f.misaligned_bytes = Some(4096))),
            (Some("misaligned"), with_device(disk(), |d| d.partition_start = Some(63))),
            (None, with_device(disk(), |d| d.partition_start = Some(2048))),
            // Each extent of a file is looked at.
            (None, with_device(ext4(), |d| d.partition_start = Some(63))),
            (
                Some("misaligned"),
                MediumFacts {
                    unit_bytes: 16384,
                    ..with_device(disk(), |d| d.partition_start = Some(8))
                },
            ),
            (Some("swap"), with_file(ext4(), |f| f.swap = true)),
            (Some("in-use"), MediumFacts { used_by: vec!["it is mounted on /".into()], ..disk() }),
        ];
        for (name, facts) in table {
            let told = facts.refusals();
            let names: Vec<_> = told.iter().map(|r| r.name.as_str()).collect();
            assert_eq!(names, Vec::from_iter(name), "{facts:?}");
            for refusal in told {
                assert!(!refusal.cause.is_empty() && refusal.way_out.len() > 10, "{refusal:?}");
            }
        }
    }
}
