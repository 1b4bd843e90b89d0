// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other names of the bytes of a pool: a file and its loop devices, and devices of the device
//! mapper that are linear windows on one disk.
//!
//! A claim of a device (O_EXCL) and a lock of a file (flock) are of that name alone.  Two users of
//! one pool destroy it.  So who opens a pool by one name
//!
//! - locks the file of the loop device that it is, as who opens that file does,
//! - and refuses if another loop device or linear window shows the same bytes: the kernel module may
//!   have that, and its claim is of that device alone.  The device mapper's own claim of a disk is
//!   shared by all of its devices.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_engine::lasting::{self, Lasting};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::detect::Access;
use super::locks::lock;
use super::loops::{self, backing_of};
use crate::bounded::ask_each;
use crate::error::{Error, Result};
use crate::ioctl::{loop_status, mapped_parts, Inode, MappedPart};
use crate::procfs::{self, device_number, device_number_in, device_number_of, DeviceNumber};

/// Bytes of a file or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bytes {
    of: Thing,
    range: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    File(Inode),
    Device(DeviceNumber),
}

/// What a part of a device is a window on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Below {
    /// Where the part begins in the device.
    at: u64,
    len: u64,
    of: Thing,
    start: u64,
    /// Where the file of a loop device is, if it is one.
    file: Option<PathBuf>,
}

/// Locks of what is below a pool.  They end when they are dropped.
pub(crate) type BelowLocks = Vec<Lasting<OwnedFd>>;

/// Makes sure that nobody has the bytes of a pool by another name, which the caller has opened and
/// locked.
pub(crate) fn claim_other_names(
    path: &Path,
    fd: BorrowedFd<'_>,
    st: &Stat,
    access: Access,
) -> Result<BelowLocks> {
    let mut locks = Vec::new();
    if access == Access::Peek {
        return Ok(locks);
    }
    let Some(of) = thing(st) else { return Ok(locks) };
    let mut own = vec![Bytes { of, range: 0..u64::MAX }];
    let mut paths: Vec<_> = procfs::path_now(fd).into_iter().collect();
    // The ioctl of a partition answers for its disk, which may have no node here.
    let answers = if is_partition(of) { 2 } else { 1 };
    let mut next = 0;
    while let Some(Bytes { of, range }) = own.get(next).cloned() {
        let asked = (next < answers).then_some(fd);
        for below in below(of, asked, true).map_err(|why| unseen(path, &why))? {
            let Some(range) = within(&range, &below) else { continue };
            // Two windows on one device lead to one file, and one lock of it.
            let is_new = || own.iter().all(|bytes| bytes.of != below.of);
            if let Some(file) = below.file.as_ref().filter(|_| is_new()) {
                locks.push(lock_below(path, file, &below, &range, access)?);
                paths.push(file.clone());
            }
            own.push(Bytes { of: below.of, range });
        }
        next += 1;
    }
    match other_name(&own, &paths) {
        None => Ok(locks),
        Some(way_out) => Err(Error::Busy { path: path.into(), holder: None, way_out }),
    }
}

/// Makes sure that nobody has the bytes of a pool's device by another name now, for the kernel
/// module, which claims that device itself.
pub fn check_other_names(path: &Path) -> Result<()> {
    let system = |e: Errno| Error::system(path, "opening it", e.into());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(system)?;
    let st = rustix::fs::fstat(&fd).map_err(system)?;
    claim_other_names(path, fd.as_fd(), &st, Access::Write).map(drop)
}

fn unseen(path: &Path, why: &str) -> Error {
    Error::Unsuitable {
        path: path.into(),
        what: format!("a device whose file or parts cannot be looked at ({why})"),
        way_out: "whoever has these open as a pool does not show, and two users of one pool \
                  destroy it: detach a loop device (losetup -d), and attach its file by a path \
                  that is here and may be read"
            .into(),
    }
}

/// Locks the file below a loop device as one who opens that does.  Pools in two parts of a file
/// do not exclude each other.
fn lock_below(
    path: &Path,
    file: &Path,
    below: &Below,
    range: &Range<u64>,
    access: Access,
) -> Result<Lasting<OwnedFd>> {
    let system = |e: Errno| unseen(path, &format!("{}: {}", file.display(), e));
    // Of a file on the network who writes locks alone; a device is not opened for writing, since
    // its close would be an event of udev.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |more| lasting::open(|| rustix::fs::open(file, flags | more, Mode::empty()));
    let is_file = matches!(below.of, Thing::File(_));
    let fd = match is_file && access == Access::Write {
        true => open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)),
        false => open(OFlags::RDONLY),
    };
    let fd = fd.map_err(system)?;
    let st = rustix::fs::fstat(&fd).map_err(system)?;
    if thing(&st) != Some(below.of) {
        return Err(unseen(path, &format!("{} is another file by now", file.display())));
    }
    let size = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(system)?;
    let all = range.start == 0 && range.end >= size;
    lock(file, &fd, if all { access } else { Access::Read })?;
    Ok(fd)
}

fn thing(st: &Stat) -> Option<Thing> {
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => Some(Thing::File((st.st_dev, st.st_ino))),
        FileType::BlockDevice => Some(Thing::Device(device_number(st.st_rdev))),
        _ => None,
    }
}

fn sysfs_of((major, minor): DeviceNumber) -> PathBuf {
    let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    fs::canonicalize(&sys).unwrap_or(sys)
}

fn is_partition(of: Thing) -> bool {
    matches!(of, Thing::Device(number) if sysfs_of(number).join("partition").exists())
}

/// What a device is a window on: a partition, a loop device, and what is linear of a device of the
/// device mapper.  `fd` answers for it.  A loop device that is `own` must be asked.
fn below(
    of: Thing,
    fd: Option<BorrowedFd<'_>>,
    own: bool,
) -> std::result::Result<Vec<Below>, String> {
    let Thing::Device(number) = of else { return Ok(Vec::new()) };
    let sys = sysfs_of(number);
    if sys.join("dm").exists() {
        return windows(number).map_err(|e| format!("the device mapper does not tell them: {e}"));
    }
    if sys.join("partition").exists() {
        let disk = sys.parent().and_then(device_number_in);
        let bytes = |file| procfs::value(sys.join(file)).map(|n: u64| n.saturating_mul(512));
        let (Some(disk), Some(start), Some(len)) = (disk, bytes("start"), bytes("size")) else {
            return Err("sysfs does not show its disk".into());
        };
        return Ok(vec![Below { at: 0, len, of: Thing::Device(disk), start, file: None }]);
    }
    if !sys.join("loop/backing_file").exists() {
        return Ok(Vec::new());
    }
    let file = backing_of(&sys).ok_or("sysfs does not show its path")?;
    let status = match fd {
        Some(fd) => loop_status(fd).map(Some),
        None if own => loops::asked(&sys).map(Some),
        None => loops::shown(&sys),
    };
    let status = status.map_err(|e| format!("the device does not say which it is: {e}"))?;
    let Some(status) = status else { return Ok(Vec::new()) };
    let of = match status.device {
        0 => Thing::File(status.inode),
        device => Thing::Device(device_number(device)),
    };
    let len = if status.limit == 0 { u64::MAX } else { status.limit };
    Ok(vec![Below { at: 0, len, of, start: status.offset, file: Some(file) }])
}

/// The linear parts of a device of the device mapper; none if it is gone, or if this process has no
/// right or no node to ask.
fn windows(number: DeviceNumber) -> std::result::Result<Vec<Below>, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/mapper/control", flags, Mode::empty());
    let device = rustix::fs::makedev(number.0, number.1);
    match control.and_then(|control| mapped_parts(control.as_fd(), device)) {
        Ok(parts) => Ok(parts.iter().filter_map(window).collect()),
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NODEV) => Ok(Vec::new()),
        Err(Errno::NXIO | Errno::NOTTY) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn window(part: &MappedPart) -> Option<Below> {
    let bytes = |sectors: u64| sectors.saturating_mul(512);
    let (disk, start) = part.words.split_once(' ').filter(|_| part.kind == "linear")?;
    let of = Thing::Device(device_number_of(disk)?);
    let start = bytes(start.trim().parse().ok()?);
    Some(Below { at: bytes(part.start), len: bytes(part.sectors), of, start, file: None })
}

/// What of a range of a device lies in this part, in what that is a window on.
fn within(range: &Range<u64>, below: &Below) -> Option<Range<u64>> {
    let end = below.at.saturating_add(below.len).min(range.end);
    let begin = below.at.max(range.start);
    let at = |n: u64| below.start.saturating_add(n - below.at);
    (begin < end).then(|| at(begin)..at(end))
}

/// A device that shows some of the bytes, and is none of the names that they are opened by; in
/// words, with the way out.  `paths` are of these names.
fn other_name(own: &[Bytes], paths: &[PathBuf]) -> Option<String> {
    // A device that was just detached may have the file for a moment more.
    const TRIES: u32 = 20;
    let mut silent = Vec::new();
    for _ in 1..TRIES {
        other_name_in(own, paths, &mut silent)?;
        std::thread::sleep(Duration::from_millis(2));
    }
    other_name_in(own, paths, &mut silent)
}

/// A device and its directory in sysfs, and what it says that it is a window on, if it answers.
type Shown = ((Thing, PathBuf), Option<std::result::Result<Vec<Below>, String>>);

/// Those that are `silent` are not asked again.
fn other_name_in(own: &[Bytes], paths: &[PathBuf], silent: &mut Vec<Thing>) -> Option<String> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten().filter_map(|entry| {
        let sys = entry.path();
        let shows = sys.join("dm").exists() || sys.join("loop/backing_file").exists();
        Some((Thing::Device(device_number_in(&sys)?), sys)).filter(|_| shows)
    });
    let (passed, asked): (Vec<_>, Vec<_>) = devices.partition(|(of, _)| silent.contains(of));
    let mut shown = ask_each(asked, |(of, _)| below(*of, None, false));
    silent.extend(shown.iter().filter(|(_, told)| told.is_none()).map(|((of, _), _)| *of));
    shown.extend(passed.into_iter().map(|device| (device, None)));
    let others = shown.iter().filter(|((of, _), _)| own.iter().all(|bytes| bytes.of != *of));
    others.into_iter().find_map(|((of, sys), told)| {
        let mapped = sys.join("dm").exists();
        let name = sys.file_name().unwrap_or_default().to_string_lossy();
        let device = match procfs::text(sys.join("dm/name")) {
            Ok(name) if mapped => format!("/dev/mapper/{}", crate::printable(name.trim())),
            _ => format!("/dev/{name}"),
        };
        let end = if mapped { "dmsetup remove" } else { "losetup -d" };
        let why = match told {
            Some(Ok(_)) => {
                return Some(match is_on(own, *of, &shown)? {
                    true => format!("it is the disk of {device}: name that, or detach it ({end})"),
                    false => format!(
                        "{device} has the same bytes: detach one of the two ({end}); two users \
                         of one pool destroy it"
                    ),
                })
            }
            Some(Err(why)) => why,
            None => "it does not answer",
        };
        // Of a loop device the path says which file it had.
        (mapped || paths.contains(&backing_of(sys)?)).then(|| {
            format!(
                "{device} may have the same bytes ({why}): detach one of the two ({end}); two \
                 users of one pool destroy it"
            )
        })
    })
}

/// Whether a device shows some of the bytes, and then whether those of the first name itself.
fn is_on(own: &[Bytes], of: Thing, shown: &[Shown]) -> Option<bool> {
    let mut layers = vec![Bytes { of, range: 0..u64::MAX }];
    let mut next = 0;
    while let Some(Bytes { of, range }) = layers.get(next).cloned() {
        let told = match shown.iter().find(|((device, _), _)| *device == of) {
            Some((_, told)) => told.as_ref().and_then(|told| told.as_ref().ok()).cloned(),
            // A partition, or a disk.
            None => below(of, None, false).ok(),
        };
        for below in told.unwrap_or_default() {
            let Some(range) = within(&range, &below) else { continue };
            let at = Bytes { of: below.of, range };
            if let Some(layer) = own.iter().position(|bytes| overlap(bytes, &at)) {
                return Some(next == 0 && layer == 0);
            }
            layers.push(at);
        }
        next += 1;
    }
    None
}

fn overlap(a: &Bytes, b: &Bytes) -> bool {
    a.of == b.of && a.range.start < b.range.end && b.range.start < a.range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of two devices over one disk, as the device mapper tells them.
    #[test]
    fn linear_windows_on_one_disk_overlap_or_not() {
        let part = |kind: &str, start, sectors, words: &str| {
            window(&MappedPart { start, sectors, kind: kind.into(), words: words.into() })
        };
        for (kind, words) in [("linear", ""), ("linear", "8:0"), ("crypt", "8:0 0"), ("error", "")]
        {
            assert_eq!(part(kind, 0, 8, words), None, "{kind} {words}");
        }
        let all = Bytes { of: Thing::Device((253, 0)), range: 0..u64::MAX };
        let on = |part: &Option<Below>| {
            let part = part.as_ref().unwrap();
            within(&all.range, part).map(|range| Bytes { of: part.of, range })
        };
        let first = part("linear", 0, 2048, "8:0 2048");
        assert_eq!(on(&first).unwrap().range, 1 << 20..2 << 20);
        for (other, same) in [
            (part("linear", 0, 2048, "8:0 2048"), true),
            (part("linear", 4096, 2048, "8:0 4095"), true),
            (part("linear", 4096, 2048, "8:0 4096"), false),
            (part("linear", 0, 2048, "8:0 0"), false),
            (part("linear", 0, 2048, "8:16 2048"), false),
        ] {
            assert_eq!(overlap(&on(&first).unwrap(), &on(&other).unwrap()), same, "{other:?}");
        }
        // Of a range that begins in the second part of a device, and ends there.
        let second = part("linear", 2048, 2048, "8:0 9000").unwrap();
        let (first, last) = (2049 * 512, 2050 * 512);
        assert_eq!(within(&(first..last), &second), Some(9001 * 512..9002 * 512));
        assert_eq!(within(&(0..2048 * 512), &second), None);
    }
}
