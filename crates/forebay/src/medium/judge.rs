// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the kind of a medium, by which numbers, and what that means for a pool.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::facts::{DeviceFacts, MediumFacts, Place};
use super::file_system::FsClass;
use super::measure::{Measured, Way};
use super::target::FuaWay;

/// A durable write that takes so long is slow: it shows in each fsync.
pub const SLOW_NS: u64 = 200_000;
/// A disk that turns needs a good part of a turn.
const TURN_NS: u64 = 2_000_000;
/// The time that a mount adds to a durable write: two requests of FUSE.
const MOUNT_NS: u64 = 25_000;

/// The kind of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumClass {
    PersistentMemory,
    Memory,
    /// Durable writes cost as little as others.
    FastSsd,
    /// A flush writes the drive's cache to flash.
    SlowSsd,
    HardDisk,
    VirtualDisk,
    NetworkDisk,
    /// It is gone when the machine is.
    CloudLocal,
    Unmeasured,
}

impl fmt::Display for MediumClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediumClass::PersistentMemory => "persistent memory",
            MediumClass::Memory => "memory: everything is lost when the power fails",
            MediumClass::FastSsd => {
                "SSD with protection against power loss, or one that does not do what a flush asks"
            }
            MediumClass::SlowSsd => "SSD without protection against power loss",
            MediumClass::HardDisk => "hard disk",
            MediumClass::VirtualDisk => "virtual disk: its host decides what a flush does",
            MediumClass::NetworkDisk => "disk on the network",
            MediumClass::CloudLocal => "local disk of a cloud machine: it is lost with the machine",
            MediumClass::Unmeasured => "disk that was not measured",
        })
    }
}

/// The verdict on a medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judgement {
    pub class: MediumClass,
    /// The numbers and names that say so.
    pub because: Vec<String>,
    /// Which durable way is faster, at 4 KiB.
    pub faster: Option<String>,
    /// How a pool works on it.
    pub pool: Vec<String>,
    /// Properties that may differ from what the device says.
    pub doubts: Vec<String>,
}

pub fn judge(facts: &MediumFacts, measured: Option<&Measured>) -> Judgement {
    let (class, because) = class(facts, measured);
    Judgement {
        class,
        because,
        faster: measured.and_then(faster),
        pool: pool(facts, measured, class),
        doubts: doubts(facts, measured, class),
    }
}

fn us(ns: u64) -> String {
    match ns {
        0..=9_999 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..=9_999_999 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

/// Names by which clouds know their disks.
const CLOUD_LOCAL: [&str; 5] = [
    "Amazon EC2 NVMe Instance Storage",
    "Microsoft NVMe Direct Disk",
    "Microsoft NVMe Direct Disk v2",
    "nvme_card",
    "EphemeralDisk",
];
const CLOUD_NETWORK: [&str; 4] =
    ["Amazon Elastic Block Store", "nvme_card-pd", "PersistentDisk", "MSFT NVMe Accelerator v1.0"];
/// Words in the models of disks that a hypervisor makes up.
const EMULATED: [&str; 5] = ["qemu", "vbox", "vmware", "virtual disk", "virtual nvme"];

fn class(facts: &MediumFacts, measured: Option<&Measured>) -> (MediumClass, Vec<String>) {
    if let Some(system) = facts.memory_system() {
        return (MediumClass::Memory, vec![format!("its file system is {}", system.kind)]);
    }
    let unknown = DeviceFacts::default();
    let device = facts.device.as_ref().unwrap_or(&unknown);
    let name = &device.name;
    if device.transport == "pmem" {
        return (MediumClass::PersistentMemory, vec![format!("{name} is a pmem device")]);
    }
    // The weakest of the disks below counts.
    let all = device.with_below().into_iter();
    if let Some((class, because)) = all.filter_map(named).min_by_key(|(class, _)| strength(*class))
    {
        return (class, vec![because]);
    }
    let network = facts.file_system.as_ref().filter(|s| s.class == FsClass::Network);
    if let Some(system) = network {
        return (MediumClass::NetworkDisk, vec![format!("its file system is {}", system.kind)]);
    }
    by_times(device, measured)
}

/// The kind of a disk, by its name, its transport, or the file system of a loop device's file.
fn named(device: &DeviceFacts) -> Option<(MediumClass, String)> {
    let name = &device.name;
    if let Some(model) = &device.model {
        let because = format!("the model of {name} is {model}");
        if CLOUD_LOCAL.contains(&model.as_str()) {
            return Some((MediumClass::CloudLocal, because));
        }
        if CLOUD_NETWORK.contains(&model.as_str()) {
            return Some((MediumClass::NetworkDisk, because));
        }
        let lower = model.to_lowercase();
        if EMULATED.iter().any(|word| lower.contains(word)) {
            return Some((MediumClass::VirtualDisk, because));
        }
    }
    match device.backing.as_ref().map(|system| (system.class, &system.kind)) {
        Some((FsClass::Memory, kind)) => {
            return Some((MediumClass::Memory, format!("the file of {name} lies on {kind}")))
        }
        Some((FsClass::Network, kind)) => {
            return Some((MediumClass::NetworkDisk, format!("the file of {name} lies on {kind}")))
        }
        _ => {}
    }
    match device.transport.as_str() {
        "memory" => Some((MediumClass::Memory, format!("{name} lies in memory"))),
        "network" => {
            Some((MediumClass::NetworkDisk, format!("{name} is reached through a network")))
        }
        "virtio" => Some((MediumClass::VirtualDisk, format!("{name} is a virtual disk"))),
        _ => None,
    }
}

/// The durability that less destroys comes first.
fn strength(class: MediumClass) -> u32 {
    match class {
        MediumClass::Memory => 0,
        MediumClass::CloudLocal => 1,
        MediumClass::VirtualDisk => 2,
        _ => 3,
    }
}

fn by_times(device: &DeviceFacts, measured: Option<&Measured>) -> (MediumClass, Vec<String>) {
    let turns = device.rotational == Some(true);
    let Some(durable) = measured.and_then(Measured::durable_ns) else {
        return match turns {
            true => (MediumClass::HardDisk, vec![format!("{} says that it turns", device.name)]),
            false => (MediumClass::Unmeasured, vec!["nothing was written to it".into()]),
        };
    };
    let plain = measured.and_then(|m| m.p50_ns(Way::Write, 4096)).unwrap_or(0);
    let mut because =
        vec![format!("a durable write of 4 KiB takes {}, another {}", us(durable), us(plain))];
    let class = match (turns, durable) {
        (true, TURN_NS..) => {
            because.push("it says that it turns".into());
            MediumClass::HardDisk
        }
        (_, SLOW_NS..) => {
            because.push(format!("{} or more is slow", us(SLOW_NS)));
            MediumClass::SlowSsd
        }
        _ => {
            because.push(format!("less than {} is fast", us(SLOW_NS)));
            MediumClass::FastSsd
        }
    };
    (class, because)
}

fn faster(measured: &Measured) -> Option<String> {
    let (fua, flush) = (measured.p50_ns(Way::Fua, 4096)?, measured.p50_ns(Way::Flush, 4096)?);
    let text = format!("{} against {}", us(fua.min(flush)), us(fua.max(flush)));
    // Less than a tenth is noise.
    Some(match (fua, flush) {
        _ if fua.abs_diff(flush) * 10 <= fua.min(flush) => format!("neither: {text}"),
        _ if fua < flush => format!("FUA: {text}"),
        _ => format!("write and flush: {text}"),
    })
}

fn pool(facts: &MediumFacts, measured: Option<&Measured>, class: MediumClass) -> Vec<String> {
    let mut said = Vec::new();
    match (class, facts.place) {
        (MediumClass::PersistentMemory, _) => {
            said.push("forebay create finds out by itself how it is to be used".into());
            return said;
        }
        (MediumClass::Memory, _) => {
            said.push("a pool here is a stand-in: it survives the death of a process".into());
            return said;
        }
        (_, Place::BlockDevice) => said.push(
            "forebay create takes no disk: make an ext4 or xfs file system on it, and a pool in a file there".into(),
        ),
        _ => said.push("a pool in a file here makes each commit durable by msync".into()),
    }
    let Some(durable) = measured.and_then(|m| m.p50_ns(Way::Flush, 4096)) else { return said };
    said.push(format!(
        "an fsync of 4 KiB through forebay mount takes about {}: {} of the disk and {} of FUSE",
        us(durable + MOUNT_NS),
        us(durable),
        us(MOUNT_NS)
    ));
    said.push("that is a gain only where the tree's own fsync takes longer: compare with forebay media-info TREE".into());
    if durable >= SLOW_NS {
        said.push("each name that is made, renamed or removed through the mount waits for the disk too: unpacking an archive is slow".into());
    }
    said
}

fn doubts(facts: &MediumFacts, measured: Option<&Measured>, class: MediumClass) -> Vec<String> {
    let Some(device) = facts.device.as_ref() else { return Vec::new() };
    if matches!(class, MediumClass::Memory | MediumClass::PersistentMemory) {
        return Vec::new();
    }
    let mut said: Vec<String> = Vec::new();
    let name = &device.name;
    let write_back = device.write_cache.as_deref() == Some("write back");
    for one in device.with_below() {
        doubts_of_device(one, &mut said);
    }
    let times = measured.and_then(|m| Some((m.durable_ns()?, m.p50_ns(Way::Write, 4096)?)));
    if times.is_some_and(|(durable, plain)| write_back && durable <= plain + plain / 2 + 20_000) {
        said.push("a flush costs next to nothing: the drive has capacitors, or it does not do what a flush asks".into());
    }
    if class == MediumClass::FastSsd && device.rotational == Some(true) {
        said.push(format!("{name} says that it turns, and is faster than that: a controller with a cache, whose battery has to be good"));
    }
    if let Some(system) = facts.file_system.as_ref().filter(|s| s.class == FsClass::Unknown) {
        said.push(format!("nothing is known of what an fsync does on {}", system.kind));
    }
    match measured.map(|m| m.fua_is) {
        Some(FuaWay::FuaAndFlush) => said.push(
            "io_uring is not to be had, so FUA was not timed alone: a flush followed it".into(),
        ),
        Some(FuaWay::WriteAndFlush) if write_back && device.fua == Some(true) => {
            said.push("without O_DIRECT a write with FUA is a write and a flush".into());
        }
        _ => {}
    }
    if class == MediumClass::CloudLocal {
        said.push("it comes back empty when the machine is stopped, moved or replaced: keep nothing there that exists nowhere else".into());
    }
    if class == MediumClass::NetworkDisk {
        said.push("each durable write crosses the network, and waits while that is away".into());
    }
    if device.fua == Some(false) && write_back {
        said.push(
            "it has no FUA: a durable write is a write and a flush of its whole cache".into(),
        );
    }
    if !said.is_empty() {
        said.push("forebay media-test finds out by pulling the plug".into());
    }
    said
}

fn doubts_of_device(device: &DeviceFacts, said: &mut Vec<String>) {
    let name = &device.name;
    if device.write_cache.as_deref() != Some("write back") {
        said.push(format!("{name} says that it has no volatile cache (write through), so the kernel sends it no flush; if that is not true, acknowledged writes are lost in a power cut"));
    }
    match device.transport.as_str() {
        "usb" => said.push(format!("{name}: many bridges from USB drop flushes")),
        "virtio" => {
            said.push(format!("{name}: the host may ignore flushes, and its disk is what counts"));
        }
        "loop" if device.made_of.is_empty() => {
            said.push(format!("{name}: the disk below its file counts, and is not known"));
        }
        "loop" => said
            .push(format!("{name}: its file on {} has to keep its word", device.made_of[0].name)),
        "stacked" => said.push(format!(
            "{name} is made of {}: each of them has to keep its word",
            device.below.join(", ")
        )),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_system::FileSystemFacts;
    use super::super::measure::Timing;
    use super::*;

    fn disk(change: impl FnOnce(&mut DeviceFacts)) -> MediumFacts {
        let mut device = DeviceFacts {
            name: "sdx".into(),
            transport: "sata".into(),
            write_cache: Some("write back".into()),
            fua: Some(true),
            ..Default::default()
        };
        change(&mut device);
        MediumFacts {
            path: "/dev/sdx".into(),
            place: Place::BlockDevice,
            size_bytes: 1 << 40,
            unit_bytes: 4096,
            device: Some(device),
            file_system: None,
            file: None,
            used_by: Vec::new(),
        }
    }

    fn times(write: u64, fua: u64, flush: u64) -> Measured {
        let timing = |(way, us)| Timing {
            way,
            bytes: 4096,
            samples: 9,
            p50_ns: us * 1000,
            p99_ns: us * 1000,
        };
        let timings =
            [(Way::Write, write), (Way::Fua, fua), (Way::Flush, flush)].map(timing).into();
        Measured { timings, fua_is: FuaWay::Fua, direct: true, cut_short: false }
    }

    fn system(kind: &str, class: FsClass) -> FileSystemFacts {
        FileSystemFacts {
            kind: kind.into(),
            class,
            mounted_on: "/srv".into(),
            source: "none".into(),
            options: "rw".into(),
            device: (0, 1),
        }
    }

    /// A disk that is made of two others, one of which is made of a third.
    fn above(transports: &[&str]) -> MediumFacts {
        let below = |by: &&str| DeviceFacts {
            name: format!("below-{by}"),
            transport: (*by).into(),
            write_cache: Some("write back".into()),
            ..Default::default()
        };
        let mut made_of: Vec<_> = transports.iter().map(below).collect();
        let deep = made_of.pop().unwrap();
        made_of.push(DeviceFacts { made_of: vec![deep], ..below(&"stacked") });
        disk(|d| {
            d.transport = "stacked".into();
            d.made_of = made_of;
        })
    }

    /// Each class by a disk of its kind.
    #[test]
    fn disks_are_judged_by_their_numbers() {
        let model = |text: &'static str| disk(move |d| d.model = Some(text.into()));
        let reached = |by: &'static str| disk(move |d| d.transport = by.into());
        let turning = || disk(|d| d.rotational = Some(true));
        let table = [
            (MediumClass::FastSsd, disk(|_| ()), Some(times(12, 14, 15))),
            (MediumClass::FastSsd, disk(|_| ()), Some(times(12, 199, 300))),
            (MediumClass::SlowSsd, disk(|_| ()), Some(times(12, 200, 300))),
            (MediumClass::SlowSsd, disk(|_| ()), Some(times(20, 1600, 1700))),
            (MediumClass::HardDisk, turning(), Some(times(100, 8300, 9000))),
            (MediumClass::HardDisk, turning(), None),
            (MediumClass::FastSsd, turning(), Some(times(30, 60, 60))),
            (MediumClass::Unmeasured, disk(|_| ()), None),
            (MediumClass::VirtualDisk, reached("virtio"), Some(times(30, 70, 80))),
            (MediumClass::NetworkDisk, reached("network"), Some(times(30, 70, 80))),
            (MediumClass::PersistentMemory, reached("pmem"), None),
            (MediumClass::Memory, reached("memory"), None),
            (MediumClass::CloudLocal, model("Amazon EC2 NVMe Instance Storage"), None),
            (MediumClass::NetworkDisk, model("Amazon Elastic Block Store"), None),
            (MediumClass::VirtualDisk, model("QEMU NVMe Ctrl"), Some(times(12, 14, 15))),
            (MediumClass::VirtualDisk, model("VMware Virtual NVMe Disk"), None),
            (MediumClass::VirtualDisk, model("Virtual disk"), Some(times(12, 14, 15))),
            (MediumClass::VirtualDisk, model("VBOX HARDDISK"), Some(times(12, 14, 15))),
            (MediumClass::VirtualDisk, model("ORCL-VBOX-NVME-VER12"), None),
            (MediumClass::Memory, above(&["sata", "memory"]), Some(times(12, 14, 15))),
            (MediumClass::NetworkDisk, above(&["network", "nvme"]), Some(times(12, 14, 15))),
            (MediumClass::VirtualDisk, above(&["network", "virtio"]), None),
            (MediumClass::FastSsd, above(&["sata", "nvme"]), Some(times(12, 14, 15))),
            (
                MediumClass::Memory,
                disk(|d| d.backing = Some(system("tmpfs", FsClass::Memory))),
                Some(times(12, 14, 15)),
            ),
            (
                MediumClass::NetworkDisk,
                disk(|d| {
                    d.made_of = vec![DeviceFacts {
                        backing: Some(system("nfs4", FsClass::Network)),
                        ..Default::default()
                    }]
                }),
                Some(times(12, 14, 15)),
            ),
        ];
        for (class, facts, measured) in table {
            let judged = judge(&facts, measured.as_ref());
            assert_eq!(judged.class, class, "{facts:?} {measured:?}");
            assert!(!judged.because.is_empty() && !judged.pool.is_empty(), "{judged:?}");
        }
    }

    #[test]
    fn the_faster_way_is_named_unless_the_difference_is_noise() {
        for (fua, flush, said) in [
            (70, 90, "FUA: 70 us against 90 us"),
            (90, 70, "write and flush: 70 us"),
            (70, 75, "neither:"),
        ] {
            let judged = judge(&disk(|_| ()), Some(&times(30, fua, flush)));
            assert!(judged.faster.as_deref().unwrap().starts_with(said), "{judged:?}");
        }
        assert_eq!(judge(&disk(|_| ()), None).faster, None);
    }

    /// Claims of a drive that may be false, each by its sign.
    #[test]
    fn doubts_are_told_by_their_signs() {
        let slow = || times(20, 1600, 1700);
        let table = [
            ("write through", disk(|d| d.write_cache = Some("write through".into())), slow()),
            ("next to nothing", disk(|_| ()), times(30, 31, 32)),
            ("bridges", disk(|d| d.transport = "usb".into()), slow()),
            ("host may ignore", disk(|d| d.transport = "virtio".into()), slow()),
            ("below-usb: many bridges", above(&["sata", "usb"]), slow()),
            ("below-virtio: the host", above(&["virtio", "sata"]), slow()),
            ("no FUA", disk(|d| d.fua = Some(false)), slow()),
            (
                "made of sda, sdb",
                disk(|d| {
                    d.transport = "stacked".into();
                    d.below = vec!["sda".into(), "sdb".into()];
                }),
                slow(),
            ),
            ("battery", disk(|d| d.rotational = Some(true)), times(30, 190, 190)),
            ("comes back empty", disk(|d| d.model = Some("nvme_card".into())), slow()),
        ];
        for (sign, facts, measured) in table {
            let doubts = judge(&facts, Some(&measured)).doubts;
            assert!(doubts.iter().any(|d| d.contains(sign)), "{sign}: {doubts:?}");
            assert!(doubts.last().unwrap().contains("media-test"), "{doubts:?}");
        }
        assert_eq!(judge(&disk(|_| ()), Some(&slow())).doubts, Vec::<String>::new());
    }
}
