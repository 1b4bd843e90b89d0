// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file or block device that is read and written past the page cache, claimed for us alone.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use serde::{Deserialize, Serialize};

use super::facts::{DeviceFacts, MediumFacts, Place};
use crate::engine::Memory;
use crate::error::{Error, Result};
use crate::media::{check_link, claim_other_names, found_at, Access, BelowLocks};
use crate::origin::{direct_if_possible, lock, open_claimed, read_full, written};
use crate::procfs::device_number;
use crate::ring::DurableWrites;

/// The requests that a durable write becomes at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FuaWay {
    /// A write with FUA alone.
    Fua,
    /// A write with FUA, and then a flush: a device that ignores FUA alone does not show.
    FuaAndFlush,
    /// A write and a flush.
    WriteAndFlush,
    /// A write alone: the device says that it has no volatile cache.
    Write,
    /// As the file system does it.
    FileSystem,
}

impl FuaWay {
    pub(crate) const ALL: [FuaWay; 5] = [
        FuaWay::Fua,
        FuaWay::FuaAndFlush,
        FuaWay::WriteAndFlush,
        FuaWay::Write,
        FuaWay::FileSystem,
    ];
}

impl std::fmt::Display for FuaWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FuaWay::Fua => "a write with FUA alone",
            FuaWay::FuaAndFlush => {
                "a write with FUA and then a flush, for lack of io_uring: a device that ignores FUA alone does not show"
            }
            FuaWay::WriteAndFlush => "a write and a flush: the device has no FUA, or the write no O_DIRECT",
            FuaWay::Write => "a write alone: the device says that it has no volatile cache",
            FuaWay::FileSystem => "a write with RWF_DSYNC: the file system decides between FUA and a flush",
        })
    }
}

/// How a target is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// For writing, by nobody else.
    Write,
    /// For reading, while nobody else writes.
    Read,
}

/// The result of a look for content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Used {
    Nowhere,
    /// The first byte that is not zero.
    At(u64),
    /// The caller has ended the look.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    fd: OwnedFd,
    /// The locks of what is below a device.
    _below: BelowLocks,
    size_bytes: u64,
    direct: bool,
    /// How a block device is written durably past the page cache.
    durable: Option<Mutex<DurableWrites>>,
}

impl Target {
    /// A block device or a regular file that exists.
    pub(crate) fn open(path: &Path, claim: Claim) -> Result<Target> {
        let system = |doing| move |e: Errno| Error::system(path, doing, e.into());
        check_link(path)?;
        // The type first: opening a FIFO or another device may have effects of its own.
        let before = rustix::fs::stat(path).map_err(system("looking at it"))?;
        let file_type = FileType::from_raw_mode(before.st_mode);
        let block = match file_type {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => {
                return Err(Error::Unsuitable {
                    path: path.into(),
                    what: "neither a block device nor a regular file".into(),
                    way_out: "name a disk, a partition or a file".into(),
                })
            }
        };
        let read_only = claim == Claim::Read;
        let (fd, direct) = open_claimed(path, block, read_only).map_err(|e| open_error(path, e))?;
        let st = rustix::fs::fstat(&fd).map_err(system("looking at it"))?;
        if FileType::from_raw_mode(st.st_mode) != file_type {
            return Err(Error::Unsuitable {
                path: path.into(),
                what: "being replaced while it is opened".into(),
                way_out: "try again".into(),
            });
        }
        lock(path, &fd, read_only, "stop that process first")?;
        let access = if read_only { Access::Read } else { Access::Write };
        let below = claim_other_names(path, fd.as_fd(), &st, access)?;
        let mut target = Target { _below: below, ..Target::of(path, fd, direct)? };
        if block && direct && claim == Claim::Write {
            // With O_NONBLOCK a request of io_uring may end without having been done.
            let flags = rustix::fs::fcntl_getfl(&target.fd).map_err(system("looking at it"))?;
            rustix::fs::fcntl_setfl(&target.fd, flags - OFlags::NONBLOCK)
                .map_err(system("opening it"))?;
            target.durable = DurableWrites::new().ok().map(Mutex::new);
        }
        Ok(target)
    }

    /// A new file without a name in a directory; it is gone when it is closed.
    pub(crate) fn nameless(directory: &Path) -> Result<Target> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        let mode = Mode::RUSR | Mode::WUSR;
        // Some kernels and file systems have no O_DIRECT, and some no nameless files.
        let opened = direct_if_possible(flags, |flags| rustix::fs::open(directory, flags, mode));
        let (fd, direct) = opened.map_err(|e| match e {
            Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL => Error::Unsupported {
                path: directory.into(),
                cause: "its file system has no nameless temporary files (O_TMPFILE)".into(),
                way_out: "measure without writing (--no-measure), or in a directory of another file system".into(),
            },
            e => Error::system(directory, "making a temporary file in it", e.into()),
        })?;
        Target::of(directory, fd, direct)
    }

    fn of(path: &Path, fd: OwnedFd, direct: bool) -> Result<Target> {
        let size_bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
            .map_err(|e| Error::system(path, "asking for its size", e.into()))?;
        Ok(Target { path: path.into(), fd, _below: Vec::new(), size_bytes, direct, durable: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// When it was opened.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its data does not pass through the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The requests that [`Target::write_durable`] becomes at the device.
    pub(crate) fn fua_way(&self, facts: &MediumFacts) -> FuaWay {
        if facts.place != Place::BlockDevice {
            return FuaWay::FileSystem;
        }
        let device = facts.device.as_ref();
        let has_fua = device.is_some_and(|d| d.fua == Some(true));
        match device.and_then(|d| d.write_cache.as_deref()) {
            Some("write through") => FuaWay::Write,
            _ if !has_fua || !self.direct => FuaWay::WriteAndFlush,
            _ if self.durable.is_some() => FuaWay::Fua,
            _ => FuaWay::FuaAndFlush,
        }
    }

    /// The file system that it lies on; of a device, that of its node.
    pub(crate) fn file_system(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.fd)?.st_dev)
    }

    /// A number of the disk or partition that it is; 0: it has none, or it is a file.
    pub(crate) fn identity(&self) -> u64 {
        let Ok(st) = rustix::fs::fstat(&self.fd) else { return 0 };
        if FileType::from_raw_mode(st.st_mode) != FileType::BlockDevice {
            return 0;
        }
        DeviceFacts::of(device_number(st.st_rdev), 0).map_or(0, |device| device.identity())
    }

    /// Memory for reads and writes of this target.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Memory> {
        Memory::zeroed(bytes).map_err(|e| Error::system(&self.path, "allocating memory", e))
    }

    /// Looks for a byte that is not zero, in pieces of the buffer's size.  After each piece `go_on`
    /// gets the byte that the look has come to.
    pub(crate) fn first_used(
        &self,
        range: Range<u64>,
        buffer: &mut [u8],
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Used> {
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(buffer.len() as u64);
            let bytes = &mut buffer[..n as usize];
            self.read(bytes, at).map_err(|e| Error::system(&self.path, "reading it", e))?;
            if let Some(used) = bytes.iter().position(|b| *b != 0) {
                return Ok(Used::At(at + used as u64));
            }
            at += n;
            if !go_on(at) {
                return Ok(Used::Stopped);
            }
        }
        Ok(Used::Nowhere)
    }

    /// The buffer has the alignment of a page, offset and length that of 4 KiB.
    pub(crate) fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let bytes = to.len();
        read_full(self.fd.as_fd(), to, at, bytes)
    }

    /// Durable with a flush that begins after it has returned.
    pub(crate) fn write(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.write_with(data, at, ReadWriteFlags::empty())
    }

    /// Durable when it returns, as [`Target::fua_way`] says.
    pub(crate) fn write_durable(&self, data: &[u8], at: u64) -> io::Result<()> {
        let Some(durable) = &self.durable else {
            return self.write_with(data, at, ReadWriteFlags::DSYNC);
        };
        let mut durable = durable.lock().unwrap_or_else(PoisonError::into_inner);
        written(data.len(), |done| durable.write(self.fd.as_fd(), &data[done..], at + done as u64))
    }

    fn write_with(&self, data: &[u8], at: u64, flags: ReadWriteFlags) -> io::Result<()> {
        written(data.len(), |done| {
            let rest = [IoSlice::new(&data[done..])];
            Ok(rustix::io::pwritev2(&self.fd, &rest, at + done as u64, flags)?)
        })
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    /// Names the content that is there, if any is: a file system, a partition table, a pool, or
    /// any byte that is not zero at the places where such things begin.  Of a large device it
    /// looks at both ends and at places between them.
    pub(crate) fn found(&self) -> Result<Option<String>> {
        // A page that is asked for may lie across two, in a file of any size.
        let mut pages = self.buffer(8192)?;
        let pages = pages.bytes_mut();
        found_at(self.size_bytes, &mut |at, to| {
            let at = at as u64;
            let within = at % 4096;
            let start = at - within;
            let whole = (within + to.len() as u64).next_multiple_of(4096);
            let n = whole.min(self.size_bytes - start) as usize;
            match self.read(&mut pages[..n], start) {
                Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    self.read_short(&mut pages[..n], start)
                }
                read => read,
            }?;
            to.copy_from_slice(&pages[within as usize..][..to.len()]);
            Ok(())
        })
        .map_err(|e| Error::system(&self.path, "reading it", e))
    }

    /// The end of a file whose size is no multiple of what O_DIRECT takes.
    fn read_short(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;
        let me = format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd());
        File::open(me)?.read_exact_at(to, at)
    }
}

fn open_error(path: &Path, e: Errno) -> Error {
    let way_out = match e {
        Errno::BUSY => "unmount it, or stop what uses it (lsblk and fuser name it)",
        Errno::TXTBSY => "it is used as swap (swapoff) or is being executed",
        e => return Error::system(path, "opening it", e.into()),
    };
    Error::Busy { path: path.into(), holder: None, way_out: way_out.into() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Files of any size, blank but for one byte at an end.
    #[test]
    fn content_is_found_in_files_of_any_size() {
        for directory in [forebay_test::memory(), std::env::temp_dir()] {
            let path = directory.join(format!("fby-target-{}", std::process::id()));
            for size in [0u64, 1, 511, 4095, 4097, 65536, 65537, 200_001, (1 << 20) + 513] {
                let file = File::create(&path).unwrap();
                file.set_len(size).unwrap();
                let found = || Target::open(&path, Claim::Read).unwrap().found().unwrap();
                assert_eq!(found(), None, "{size} bytes");
                for at in [0, size / 3 % 65536, size.saturating_sub(1)] {
                    if size > 0 {
                        file.write_all_at(&[1], at).unwrap();
                        assert!(found().unwrap().contains(&format!("byte {at})")), "{size}, {at}");
                        file.write_all_at(&[0], at).unwrap();
                    }
                }
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn content_of_our_own_is_named() {
        let path = forebay_test::memory().join(format!("fby-own-{}", std::process::id()));
        for (magic, name) in [(&b"FOREBAY1"[..], "a Forebay pool"), (b"FBYPULL1", "media-test")] {
            std::fs::write(&path, [magic, &[0; 65536]].concat()).unwrap();
            let found = Target::open(&path, Claim::Read).unwrap().found().unwrap().unwrap();
            assert!(found.contains(name), "{found}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_another_has_is_not_opened() {
        let path = forebay_test::memory().join(format!("fby-held-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let first = Target::open(&path, Claim::Write).unwrap();
        for claim in [Claim::Write, Claim::Read] {
            let e = Target::open(&path, claim).unwrap_err();
            assert_eq!(e.exit_code(), 4, "{e}");
        }
        drop(first);
        let _one = Target::open(&path, Claim::Read).unwrap();
        let _other = Target::open(&path, Claim::Read).unwrap();
        std::fs::remove_file(&path).unwrap();
        for place in ["/dev/null", "/dev/shm"] {
            assert_eq!(Target::open(Path::new(place), Claim::Read).unwrap_err().exit_code(), 2);
        }
    }
}
