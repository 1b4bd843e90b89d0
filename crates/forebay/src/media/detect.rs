// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens a path as media and finds out what it is, without mapping it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_engine::lasting::{self, Lasting};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::locks::{a_holder_ends, lock, lock_holder};
use super::names::{claim_other_names, BelowLocks};
use crate::error::{Error, Result};
use crate::procfs;
use crate::report::MediaKind;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// How a path is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Exclusively, for writing.
    Write,
    /// For reading, together with other readers but no writer.
    Read,
    /// For a look, together with anybody.  The data may be changing.
    Peek,
}

/// An opened path, before it is mapped.
pub(super) struct Opened {
    pub fd: Lasting<OwnedFd>,
    /// Held as long as that.
    pub below: BelowLocks,
    pub shape: Shape,
    pub size_bytes: u64,
    /// major:minor of the device it is, or lies on.
    pub device: (u32, u32),
    pub id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Regular file; on memory or not.
    File {
        memory: bool,
    },
    FsdaxBlock,
    DevDax {
        align_bytes: u64,
    },
}

impl Shape {
    /// The kind, given whether a synchronous DAX mapping was to be had.
    pub(super) fn kind(self, synchronous: bool) -> MediaKind {
        match self {
            Shape::File { memory: true } => MediaKind::Shm,
            Shape::File { .. } if synchronous => MediaKind::DaxFile,
            Shape::File { .. } => MediaKind::File,
            Shape::FsdaxBlock => MediaKind::FsdaxBlock,
            Shape::DevDax { .. } => MediaKind::DevDax,
        }
    }
}

pub(super) fn open(path: &Path, access: Access) -> Result<Opened> {
    let (fd, st, below) = claim(path, access, OFlags::empty())?;
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => open_file(path, fd),
        FileType::BlockDevice => open_block(path, fd, &st, below),
        _ => open_dax(path, fd, &st),
    }
}

/// Opens a file or device with more flags, and locks it, by each of its names.
pub(crate) fn claim(
    path: &Path,
    access: Access,
    more: OFlags,
) -> Result<(Lasting<OwnedFd>, rustix::fs::Stat, BelowLocks)> {
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK | more;
    flags |= match access {
        Access::Write => OFlags::RDWR,
        Access::Read | Access::Peek => OFlags::RDONLY,
    };
    // The type first: opening a FIFO or a device of another kind may have
    // effects of its own.
    check_link(path)?;
    let before = rustix::fs::stat(path).map_err(|e| open_error(path, e))?;
    let file_type = FileType::from_raw_mode(before.st_mode);
    check_type(path, file_type)?;
    if file_type == FileType::BlockDevice && access != Access::Peek {
        flags |= OFlags::EXCL;
    }
    let fd = open_after_readers(path, flags);
    let fd = fd.map_err(|e| match e {
        Errno::INVAL if more.contains(OFlags::DIRECT) => Error::Unsupported {
            path: path.into(),
            cause: "its file system cannot write past the page cache (O_DIRECT)".into(),
            way_out: "use a file on ext4 or xfs of a local disk, or a partition".into(),
        },
        e => open_error(path, e),
    })?;
    let st = rustix::fs::fstat(&fd).map_err(|e| open_error(path, e))?;
    if FileType::from_raw_mode(st.st_mode) != file_type {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: "being replaced while it is opened".into(),
            way_out: "try again".into(),
        });
    }
    lock(path, &fd, access)?;
    let below = claim_other_names(path, fd.as_fd(), &st, access)?;
    Ok((fd, st, below))
}

/// A reader of a block device claims it, too (O_EXCL), and closes it soon: so it is waited for, as
/// for its lock, and so is one that ends.  A claim without such a lock is another program's, which
/// may keep it for ever.
fn open_after_readers(path: &Path, flags: OFlags) -> Result<Lasting<OwnedFd>, Errno> {
    const PATIENCE: Duration = Duration::from_secs(10);
    /// Between its claim and its lock a reader shows no lock.
    const RACES: u32 = 10;
    let (start, mut races) = (Instant::now(), 0);
    loop {
        match lasting::open(|| rustix::fs::open(path, flags, Mode::empty())) {
            Err(Errno::BUSY) if flags.contains(OFlags::EXCL) && start.elapsed() < PATIENCE => {
                if !is_soon_free(path, start) {
                    races += 1;
                    if races > RACES {
                        return Err(Errno::BUSY);
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Who has claimed the device has the lock of a reader, or ends.
fn is_soon_free(path: &Path, start: Instant) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = lasting::open(|| rustix::fs::open(path, flags, Mode::empty()));
    let Ok(fd) = opened else { return false };
    let is_read = || {
        lock_holder(&*fd).is_some()
            && rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared).is_ok()
    };
    a_holder_ends(&*fd, start) || is_read()
}

pub(super) fn id_of_stat(st: &rustix::fs::Stat) -> String {
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => format!("file:{:x}:{}", st.st_dev, st.st_ino),
        kind => format!("{kind:?}:{:x}", st.st_rdev).to_lowercase(),
    }
}

/// [`super::MediaInfo::id`] of what is at a path.
pub(crate) fn id_of(path: &Path) -> Option<String> {
    rustix::fs::stat(path).ok().map(|st| id_of_stat(&st))
}

/// A link is followed, as those of /dev/disk/by-id and /dev/mapper have to be, if it is
/// root's or ours: anybody else's, in a directory that is open to all, could make us
/// take another file than the one that was meant.
pub(crate) fn check_link(path: &Path) -> Result<()> {
    let st = rustix::fs::lstat(path).map_err(|e| open_error(path, e))?;
    let trusted = [0, rustix::process::geteuid().as_raw()].contains(&st.st_uid);
    match FileType::from_raw_mode(st.st_mode) {
        FileType::Symlink if !trusted => Err(Error::Symlink {
            path: path.into(),
            what: format!("of user {}", st.st_uid),
            target: fs::read_link(path).ok(),
        }),
        _ => Ok(()),
    }
}

fn check_type(path: &Path, file_type: FileType) -> Result<()> {
    let what = match file_type {
        FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "of an unknown type",
    };
    Err(Error::Unsuitable {
        path: path.into(),
        what: what.into(),
        way_out: "a pool lies on a regular file, a block device or a devdax device".into(),
    })
}

fn open_error(path: &Path, e: Errno) -> Error {
    match e {
        Errno::LOOP => Error::Symlink {
            path: path.into(),
            what: "that leads nowhere".into(),
            target: fs::read_link(path).ok(),
        },
        // O_EXCL on a block device: mounted, a member of something, or ours.
        Errno::BUSY => Error::Busy {
            path: path.into(),
            holder: None,
            way_out: "unmount it or stop what uses it (see lsblk and fuser)".into(),
        },
        Errno::TXTBSY => Error::Busy {
            path: path.into(),
            holder: None,
            way_out: "it is being executed or used as swap".into(),
        },
        _ => Error::system(path, "opening it", e.into()),
    }
}

fn open_file(path: &Path, fd: Lasting<OwnedFd>) -> Result<Opened> {
    let st = rustix::fs::fstat(&fd).map_err(|e| Error::system(path, "looking at it", e.into()))?;
    let fs = rustix::fs::fstatfs(&fd)
        .map_err(|e| Error::system(path, "looking at its file system", e.into()))?;
    Ok(Opened {
        fd,
        below: Vec::new(),
        shape: Shape::File { memory: is_memory(&fs) },
        size_bytes: st.st_size as u64,
        device: (rustix::fs::major(st.st_dev), rustix::fs::minor(st.st_dev)),
        id: id_of_stat(&st),
    })
}

/// True for a file system that lives in memory.
pub(super) fn is_memory(fs: &rustix::fs::StatFs) -> bool {
    let magic = fs.f_type as u64 & 0xffff_ffff;
    [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&magic)
}

fn open_block(
    path: &Path,
    fd: Lasting<OwnedFd>,
    st: &rustix::fs::Stat,
    below: BelowLocks,
) -> Result<Opened> {
    let device = (rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev));
    if !has_dax(device) {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: "a block device without DAX, no faster than a disk".into(),
            way_out: "make a pool for an SSD (--medium ssd); use persistent memory: a devdax device, or a file on a file system mounted with -o dax; or use a plain file as a stand-in".into(),
        });
    }
    let size_bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
        .map_err(|e| Error::system(path, "asking for its size", e.into()))?;
    Ok(Opened { fd, below, shape: Shape::FsdaxBlock, size_bytes, device, id: id_of_stat(st) })
}

/// Is it a block device that lies in memory?
pub(crate) fn has_dax(device: (u32, u32)) -> bool {
    let sys = sysfs("block", device);
    // A partition has no queue directory of its own.
    let places = [sys.join("queue/dax"), sys.join("../queue/dax")];
    places.iter().any(|p| procfs::text(p).is_ok_and(|s| s.trim() == "1"))
}

fn open_dax(path: &Path, fd: Lasting<OwnedFd>, st: &rustix::fs::Stat) -> Result<Opened> {
    let device = (rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev));
    let sys = sysfs("char", device);
    let is_dax = fs::read_link(sys.join("subsystem")).is_ok_and(|l| l.ends_with("dax"));
    if !is_dax {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: "a character device that is not devdax".into(),
            way_out: "a pool lies on a regular file, a pmem block device or a devdax device".into(),
        });
    }
    let number = |name: &str| -> Option<u64> {
        let text = procfs::text(sys.join(name)).ok()?;
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let size_bytes = number("size").ok_or_else(|| Error::Unsuitable {
        path: path.into(),
        what: "a devdax device whose size sysfs does not show".into(),
        way_out: "see that /sys is mounted".into(),
    })?;
    // Newer kernels show it next to size, older ones in the region.
    let align_bytes = number("align")
        .or_else(|| number("device/align"))
        .or_else(|| number("../../dax_region/align"))
        .unwrap_or(2 << 20);
    Ok(Opened {
        fd,
        below: Vec::new(),
        shape: Shape::DevDax { align_bytes },
        size_bytes,
        device,
        id: id_of_stat(st),
    })
}

fn sysfs(class: &str, (major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/dev/{class}/{major}:{minor}"))
}

/// True when the CPU caches survive a power cut for this device (eADR): the
/// persistence domain of its NVDIMM region, or of every region when the
/// device's own cannot be told.
pub(super) fn caches_are_durable(shape: Shape, device: (u32, u32)) -> bool {
    let domain = |region: &Path| {
        procfs::text(region.join("persistence_domain")).map(|s| s.trim() == "cpu_cache")
    };
    if let Some(answer) = region(shape, device).and_then(|r| domain(&r).ok()) {
        return answer;
    }
    let Ok(entries) = fs::read_dir("/sys/bus/nd/devices") else {
        return false;
    };
    let mut regions = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("region"))
        .peekable();
    regions.peek().is_some() && regions.all(|e| domain(&e.path()).unwrap_or(false))
}

/// Memory modules that the device's NVDIMM region is interleaved over; 0 where
/// other memory stands in for them, `None` where that cannot be told.
pub(super) fn modules(shape: Shape, device: (u32, u32)) -> Option<u32> {
    procfs::value(region(shape, device)?.join("mappings"))
}

/// The NVDIMM region in sysfs that a device is, or lies, in.
fn region(shape: Shape, device: (u32, u32)) -> Option<PathBuf> {
    let class = match shape {
        Shape::DevDax { .. } => "char",
        _ => "block",
    };
    let real = fs::canonicalize(sysfs(class, device)).ok()?;
    let own = real.ancestors().find(|p| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or("");
        name.strip_prefix("region").is_some_and(|n| n.parse::<u32>().is_ok())
    });
    own.map(Path::to_path_buf)
}
