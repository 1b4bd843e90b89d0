// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file or block device as origin: O_DIRECT where it can be had, claimed for
//! us alone.
//!
//! A request that is not aligned to what O_DIRECT wants (512-byte writes on a
//! device or file system of 4 KiB blocks) goes through the page cache by a
//! second descriptor of the same file; the kernel keeps the two coherent, and a
//! flush covers both.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::claim::{access, lock, open_claimed};
use super::identity::OfBlock;
use super::whole::{read_full, write_full};
use super::{check_range, holes, identity, join_identity, split_identity, Extent, Known, Origin};
use crate::engine::Memory;
use crate::error::{Error, Result};
use crate::ioctl;
use crate::mark::{MarkedBy, MarkedOn};
use crate::media::loop_device_of;
use crate::report::OriginInfo;

/// Bytes of a bounce buffer.
const BOUNCE: usize = 1 << 20;
/// Bounce buffers kept for the next request.
const BOUNCES_KEPT: usize = 8;
/// Bytes zeroed by one system call, so that an error names a place.
const ZERO_STEP: u64 = 1 << 30;

/// The alignment that O_DIRECT needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alignment {
    offset: usize,
    memory: usize,
}

/// A file or block device.
#[derive(Debug)]
pub struct FileOrigin {
    path: PathBuf,
    identity: String,
    /// For a device: its own id, and another device with the same id.
    own_id: String,
    twin: Option<String>,
    size_bytes: u64,
    logical_block: u32,
    block_device: bool,
    /// The alignment for fd; `None`: fd goes through the page cache.
    direct: Option<Alignment>,
    /// Holds the claim.
    fd: OwnedFd,
    /// Opened without O_DIRECT, for requests that need it.
    buffered: Option<OwnedFd>,
    bounces: Mutex<Vec<Memory>>,
}

impl FileOrigin {
    /// Opens it and claims it: a block device with O_EXCL, a file with an
    /// advisory lock (flock), which keeps other hosts of volumes away.
    pub fn open(path: &Path, read_only: bool) -> Result<FileOrigin> {
        FileOrigin::open_between(path, read_only, || {})
    }

    /// `between` runs after the type was looked at and before it is opened.
    /// The type alone is from that look, since opening a FIFO or a device of
    /// another kind may have effects of its own; all else is of the descriptor
    /// that is read and written.
    fn open_between(path: &Path, read_only: bool, between: impl FnOnce()) -> Result<FileOrigin> {
        let system = |doing| move |e: Errno| Error::system(path, doing, e.into());
        let looked_at = rustix::fs::stat(path).map_err(system("looking at it"))?;
        let file_type = FileType::from_raw_mode(looked_at.st_mode);
        let block_device = match file_type {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            kind => return Err(unsuitable(path, kind)),
        };
        between();
        let (fd, is_direct) =
            open_claimed(path, block_device, read_only).map_err(|e| open_error(path, e))?;
        let st = rustix::fs::fstat(&fd).map_err(system("looking at it"))?;
        if FileType::from_raw_mode(st.st_mode) != file_type {
            return Err(Error::Unsuitable {
                path: path.into(),
                what: "being replaced while it is opened".into(),
                way_out: "try again".into(),
            });
        }
        if !block_device {
            let way_out = "detach it there first; two users of one origin destroy its data";
            lock(path, &fd, read_only, way_out)?;
            if !read_only {
                not_a_loop_device(path, &fd, &st)?;
            }
        }
        let size_bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
            .map_err(system("asking for its size"))?;
        let logical_block = match block_device {
            true => rustix::fs::ioctl_blksszget(&fd).map_err(system("asking for its block"))?,
            false => 512,
        };
        if ![512, 4096].contains(&logical_block) {
            return Err(Error::Unsupported {
                path: path.into(),
                cause: format!("its logical block has {logical_block} bytes"),
                way_out: "use a device with 512 or 4096".into(),
            });
        }
        let known = match block_device {
            true => of_device(fd.as_fd(), &st),
            false => {
                let id = identity::of_file(&fd);
                let id = id.map_err(|e| Error::system(path, "looking at it", e))?;
                OfBlock { own: id.clone(), id, twin: None }
            }
        };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let direct = is_direct.then(|| alignment(&fd, logical_block));
        let buffered = match direct {
            Some(a) if a.offset > logical_block as usize => {
                let flags = access(read_only) | OFlags::CLOEXEC;
                let me = format!("/proc/self/fd/{}", fd.as_raw_fd());
                Some(rustix::fs::open(me, flags, Mode::empty()).map_err(system("opening it"))?)
            }
            _ => None,
        };
        Ok(FileOrigin {
            identity: join_identity(&known.id, absolute.to_str().unwrap_or("")),
            own_id: known.own,
            twin: known.twin,
            path: absolute,
            size_bytes,
            logical_block,
            block_device,
            direct,
            fd,
            buffered,
            bounces: Mutex::new(Vec::new()),
        })
    }

    /// Its id is but a name, which another device may have after a restart.
    pub fn is_known_by_name(&self) -> bool {
        identity::is_name(split_identity(&self.identity).0)
    }

    /// As given, made absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present id of a device, if it has changed.
    fn is_another(&self, own: &rustix::fs::Stat) -> Option<String> {
        // Another disk may have taken the number: the open one stays the same.
        let now = self.block_device.then(|| of_device(self.fd.as_fd(), own).own)?;
        (now != self.own_id).then_some(now)
    }

    fn is_same(&self, own: &rustix::fs::Stat, found: &rustix::fs::Stat) -> bool {
        match self.block_device {
            true => own.st_rdev == found.st_rdev && own.st_mode == found.st_mode,
            false => (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino),
        }
    }

    /// Can O_DIRECT take the range as it is?
    fn fits(&self, offset: u64, len: u64) -> bool {
        self.direct.is_some_and(|a| (offset | len).is_multiple_of(a.offset as u64))
    }

    fn fits_memory(&self, memory: *const u8) -> bool {
        self.direct.is_none_or(|a| (memory as usize).is_multiple_of(a.memory))
    }

    /// Calls f with a page-aligned buffer.
    fn with_bounce<T>(&self, f: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
        let kept = self.bounces.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut bounce = match kept {
            Some(b) => b,
            None => Memory::zeroed(BOUNCE)?,
        };
        let result = f(bounce.bytes_mut());
        let mut kept = self.bounces.lock().unwrap_or_else(|e| e.into_inner());
        if kept.len() < BOUNCES_KEPT {
            kept.push(bounce);
        }
        result
    }

    /// Reads [offset, +out) through a bounce buffer that begins and ends where
    /// O_DIRECT wants it, beyond the end of the file if need be.
    fn read_bounced(&self, out: &mut [u8], offset: u64, unit: u64) -> io::Result<()> {
        let start = offset - offset % unit;
        let skip = (offset - start) as usize;
        let want = (skip + out.len()).next_multiple_of(unit as usize);
        self.with_bounce(|bounce| {
            read_full(self.fd.as_fd(), &mut bounce[..want], start, skip + out.len())?;
            out.copy_from_slice(&bounce[skip..skip + out.len()]);
            Ok(())
        })
    }

    /// Zeroes by writing.
    fn write_zero_bytes(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut zero = Memory::zeroed(BOUNCE)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let n = (end - at).min(BOUNCE as u64);
            self.write_at(&zero.bytes_mut()[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }
}

impl FileOrigin {
    fn punch(&self, at: u64, n: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.fd, flags, at, n))
    }

    fn zero_range(&self, at: u64, n: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.fd, flags, at, n))
    }

    /// Each step by the system, or by writing zeroes where that cannot.
    fn zero_steps(
        &self,
        offset: u64,
        len: u64,
        zero: impl Fn(u64, u64) -> Result<(), Errno>,
    ) -> io::Result<()> {
        check_range(self.size_bytes, offset, len)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let n = (end - at).min(ZERO_STEP);
            match zero(at, n) {
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => {
                    self.write_zero_bytes(at, n)?;
                }
                done => done?,
            }
            at += n;
        }
        Ok(())
    }
}

impl Origin for FileOrigin {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn marked_by(&self) -> Option<MarkedBy<'_>> {
        let name = split_identity(&self.identity).0.into();
        let on = match self.block_device {
            true => MarkedOn::Host,
            false => MarkedOn::File(self.fd.as_fd()),
        };
        Some(MarkedBy { name, on })
    }

    fn twin(&self) -> Option<String> {
        self.twin.as_ref().map(|twin| format!("{twin} is {} as well", self.own_id))
    }

    fn changed(&self) -> Option<String> {
        let size = match rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::End(0)) {
            Ok(size) => size,
            Err(e) => return Some(format!("cannot be asked for its size any more ({e})")),
        };
        if size != self.size_bytes {
            let was = self.size_bytes;
            return Some(format!("has {size} bytes, and had {was} when it was attached"));
        }
        let own = rustix::fs::fstat(&self.fd).ok()?;
        if !self.block_device && own.st_nlink == 0 {
            return Some(format!(
                "was deleted, and is gone when the server ends: copy it from /proc/{}/fd/{} before",
                std::process::id(),
                self.fd.as_raw_fd()
            ));
        }
        if let Some(now) = self.is_another(&own) {
            return Some(format!(
                "is another origin now ({now}): what was opened here was removed or deleted, and is lost when it is released"
            ));
        }
        let what = match rustix::fs::stat(&self.path) {
            Ok(found) if self.is_same(&own, &found) => return None,
            Ok(_) => "something else",
            Err(Errno::NOENT | Errno::NOTDIR) => "nothing",
            // Nothing is known of it, as of a path that is another name space's.
            Err(_) => return None,
        };
        Some(format!(
            "was moved: {what} is at {} now; say where it is when it is attached again (--origin NAME=PATH)",
            self.path.display()
        ))
    }

    fn is_shorter(&self) -> Option<bool> {
        match rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::End(0)).ok()? {
            // A disk whose paths or controller have failed has no size for a while.
            0 if self.block_device => None,
            now => Some(now < self.size_bytes),
        }
    }

    /// Its file has no name any more.
    fn is_gone(&self) -> bool {
        !self.block_device && rustix::fs::fstat(&self.fd).is_ok_and(|own| own.st_nlink == 0)
    }

    fn info(&self) -> OriginInfo {
        OriginInfo {
            name: self.path.display().to_string(),
            method: if self.direct.is_some() { "O_DIRECT" } else { "page cache" }.into(),
            note: match (&self.direct, &self.buffered) {
                (None, _) => {
                    "its file system has no O_DIRECT: data is also cached by the system".into()
                }
                (Some(a), Some(_)) => format!(
                    "requests that are not multiples of {} bytes go through the page cache",
                    a.offset
                ),
                _ => String::new(),
            },
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes, offset, buf.len() as u64)?;
        let len = buf.len();
        if self.direct.is_none()
            || (self.fits(offset, len as u64) && self.fits_memory(buf.as_ptr()))
        {
            return read_full(self.fd.as_fd(), buf, offset, len);
        }
        let unit = self.direct.map_or(1, |a| a.offset.max(512)) as u64;
        let mut at = offset;
        // One unit less than the buffer, for what is read before the start.
        for part in buf.chunks_mut(BOUNCE - unit as usize) {
            self.read_bounced(part, at, unit)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes, offset, data.len() as u64)?;
        if self.direct.is_none() {
            return write_full(self.fd.as_fd(), data, offset);
        }
        if !self.fits(offset, data.len() as u64) {
            let fd = self.buffered.as_ref().unwrap_or(&self.fd);
            return write_full(fd.as_fd(), data, offset);
        }
        if self.fits_memory(data.as_ptr()) {
            return write_full(self.fd.as_fd(), data, offset);
        }
        let mut at = offset;
        for part in data.chunks(BOUNCE) {
            self.with_bounce(|bounce| {
                bounce[..part.len()].copy_from_slice(part);
                write_full(self.fd.as_fd(), &bounce[..part.len()], at)
            })?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Durable is what the next process finds.
    fn flush(&self) -> io::Result<()> {
        retry(|| rustix::fs::fdatasync(&self.fd))?;
        match self.is_gone() {
            true => Err(Errno::STALE.into()),
            false => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size_bytes, offset, len)?;
        let done = match self.block_device {
            true => retry(|| ioctl::discard(self.fd.as_fd(), offset, len)),
            false => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                retry(|| rustix::fs::fallocate(&self.fd, flags, offset, len))
            }
        };
        match done {
            // It is a hint.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.zero_steps(offset, len, |at, n| match self.punch(at, n) {
            // A device may zero without giving blocks back.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => self.zero_range(at, n),
            done => done,
        })
    }

    fn allocate_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.zero_steps(offset, len, |at, n| match self.zero_range(at, n) {
            // tmpfs has holes, but no zero range.
            Err(Errno::OPNOTSUPP | Errno::INVAL) if !self.block_device => {
                self.punch(at, n)?;
                retry(|| rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, at, n))
            }
            done => done,
        })
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        match self.block_device {
            true => vec![Extent::data(len)],
            false => holes::extents(&self.fd, self.size_bytes, offset, len),
        }
    }

    fn write_zeroes_is_fast(&self) -> bool {
        !self.block_device
    }

    fn uring_fd(&self, offset: u64, len: u64) -> Option<BorrowedFd<'_>> {
        match self.direct {
            Some(_) if !self.fits(offset, len) => None,
            _ => Some(self.fd.as_fd()),
        }
    }
}

/// Opens what is at a path for a look that claims nothing, and tells what it is.  A file is only
/// named (O_PATH): each open(2) breaks the lease that a program of `forebay map-run` has of its
/// file, and that program then has to write everything back, or ends.
fn named(path: &Path) -> Result<(OwnedFd, rustix::fs::Stat), Errno> {
    let only_named = OFlags::PATH | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, only_named, Mode::empty())?;
    // An open asks the server of a network file system anew, and a name does not.
    let ask = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let _ = rustix::fs::statx(&fd, "", ask, StatxFlags::BASIC_STATS);
    let st = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(st.st_mode) != FileType::BlockDevice {
        return Ok((fd, st));
    }
    let flags = access(true) | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let st = rustix::fs::fstat(&fd)?;
    Ok((fd, st))
}

/// How the file or device at a path differs from the volume's record, as far as a look without
/// a claim can tell.
pub(super) fn changed(path: &Path, id: &str, size_bytes: u64) -> Result<Option<String>> {
    let name = path.display();
    let system = |e: io::Error| Error::system(path, "looking at it", e);
    let (fd, st) = match named(path) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Some(format!("is not at {name}"))),
        seen => seen.map_err(|e| system(e.into()))?,
    };
    let (now, size) = match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => (identity::of_file(&fd).map_err(system)?, st.st_size as u64),
        FileType::BlockDevice => {
            let OfBlock { own, id: known, twin } = of_device(fd.as_fd(), &st);
            if let Some(twin) = twin.filter(|_| own == id) {
                let twins = format!("cannot be identified: {name} and {twin} are both {own}");
                return Ok(Some(twins));
            }
            let end = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0));
            (known, end.map_err(|e| system(e.into()))?)
        }
        _ => return Ok(Some(format!("is neither a file nor a block device: {name}"))),
    };
    if now != id && !identity::is_unasked_name(id, &now) {
        let other = format!("is another: {name} is {now}, the volume was made for {id}");
        return Ok(Some(other));
    }
    Ok(super::size_changed(size, size_bytes))
}

/// Its id, and the file if it is one: a look that claims nothing.
pub(super) fn known_by(path: &Path) -> Result<Known> {
    let system = |e: io::Error| Error::system(path, "looking at it", e);
    let (fd, st) = named(path).map_err(|e| system(e.into()))?;
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => Ok(Known::File(identity::of_file(&fd).map_err(system)?, fd)),
        FileType::BlockDevice => {
            let OfBlock { own, id, twin } = of_device(fd.as_fd(), &st);
            match twin {
                None => Ok(Known::Named(id)),
                Some(twin) => Err(Error::Unsupported {
                    path: path.into(),
                    cause: format!("{twin} is {own}, too, so it is unknown whose mark that is"),
                    way_out: "remove the other disk, or give one of them another serial number"
                        .into(),
                }),
            }
        }
        kind => Err(unsuitable(path, kind)),
    }
}

fn of_device(fd: BorrowedFd<'_>, st: &rustix::fs::Stat) -> OfBlock {
    identity::of_block(fd, rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev))
}

fn unsuitable(path: &Path, kind: FileType) -> Error {
    Error::Unsuitable {
        path: path.into(),
        what: match kind {
            FileType::Directory => "a directory",
            FileType::CharacterDevice => "a character device",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            _ => "of an unknown type",
        }
        .into(),
        way_out: "an origin is a block device or a regular file".into(),
    }
}

fn open_error(path: &Path, e: Errno) -> Error {
    if e == Errno::AGAIN {
        let named = named(path).ok();
        return Error::Busy {
            path: path.into(),
            holder: named.and_then(|(fd, _)| crate::media::lease_holder(fd)),
            way_out:
                "a process has a lease of it (fcntl F_SETLEASE), as a program of forebay map-run \
                      or a file server has: end that program, or try again when it has given the \
                      lease up"
                    .into(),
        };
    }
    let way_out = match e {
        Errno::BUSY => "it is mounted, or part of another device (see lsblk); an origin is used through its volume only",
        Errno::TXTBSY => "it is being executed or used as swap",
        e => return Error::system(path, "opening it", e.into()),
    };
    Error::Busy { path: path.into(), holder: None, way_out: way_out.into() }
}

/// A device that was just unmounted may have the file for a moment more.
fn not_a_loop_device(path: &Path, fd: &OwnedFd, st: &rustix::fs::Stat) -> Result<()> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        match loop_device_of(fd, st) {
            None => return Ok(()),
            Some(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    loop_device_of(fd, st).map_or(Ok(()), |device| {
        Err(Error::Busy {
            path: path.into(),
            holder: None,
            way_out: format!("it is the disk of /dev/{device}: unmount that and take it away (losetup -d); two users of one origin destroy its data"),
        })
    })
}

/// From the system where it tells (Linux 6.1), else the safe guess.
fn alignment(fd: &OwnedFd, logical_block: u32) -> Alignment {
    let st = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(st) = st {
        let told = StatxFlags::from_bits_retain(st.stx_mask).contains(StatxFlags::DIOALIGN);
        let (offset, memory) = (st.stx_dio_offset_align as usize, st.stx_dio_mem_align as usize);
        if told && offset.is_power_of_two() && memory.is_power_of_two() && offset <= 65536 {
            let offset = offset.max(logical_block as usize);
            return Alignment { offset, memory: memory.min(4096) };
        }
    }
    Alignment { offset: 4096, memory: 4096 }
}

fn retry<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Temp(PathBuf);

    impl Temp {
        fn new(dir: &Path, name: &str, len: u64) -> Temp {
            let path = dir.join(format!("fby-origin-{}-{name}", std::process::id()));
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(len).unwrap();
            Temp(path)
        }
    }

    impl Drop for Temp {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Reads, writes and zeroes of all alignments against a plain vector.
    fn exercise(o: &FileOrigin, len: usize) {
        let mut model = vec![0u8; len];
        let mut n = 1u64;
        for i in 0..200 {
            n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (n >> 33) as usize % (len / 512) * 512;
            let count = ((n >> 20) as usize % 40 + 1) * 512;
            let count = count.min(len - at);
            match i % 4 {
                0 | 1 => {
                    // Memory off alignment, too.
                    let data: Vec<u8> = (0..count + 3).map(|k| (k as u64 + n) as u8).collect();
                    o.write_at(&data[3..], at as u64).unwrap();
                    model[at..at + count].copy_from_slice(&data[3..]);
                }
                2 => {
                    o.write_zeroes(at as u64, count as u64).unwrap();
                    model[at..at + count].fill(0);
                }
                _ => {
                    o.flush().unwrap();
                    let mut got = vec![1u8; count + 1];
                    o.read_at(&mut got[1..], at as u64).unwrap();
                    assert_eq!(got[1..], model[at..at + count]);
                }
            }
        }
        let mut all = vec![0u8; len];
        o.read_at(&mut all, 0).unwrap();
        assert!(all == model);
        assert!(o.read_at(&mut all[..1024], len as u64 - 512).is_err());
        assert!(o.write_at(&model[..1024], len as u64 - 512).is_err());
    }

    #[test]
    fn file_on_tmpfs_and_on_disk() {
        for dir in [Path::new("/dev/shm"), &std::env::temp_dir(), Path::new(".")] {
            // Not a multiple of 4096, and more than a bounce buffer.
            let len = (3 << 20) + 512;
            let t = Temp::new(dir, "rw", len);
            let o = FileOrigin::open(&t.0, false).unwrap();
            assert_eq!(o.size_bytes(), len);
            exercise(&o, len as usize);
        }
    }

    /// As on a device that takes whole 4 KiB only.
    #[test]
    fn requests_that_direct_io_cannot_take() {
        let t = Temp::new(Path::new("/dev/shm"), "align", (2 << 20) + 512);
        let mut o = FileOrigin::open(&t.0, false).unwrap();
        o.direct = Some(Alignment { offset: 4096, memory: 4096 });
        o.buffered = Some(o.fd.try_clone().unwrap());
        assert!(o.uring_fd(512, 4096).is_none());
        assert!(o.uring_fd(4096, 8192).is_some());
        exercise(&o, (2 << 20) + 512);
    }

    #[test]
    fn discards_free_the_blocks_of_a_file() {
        use std::os::unix::fs::MetadataExt;
        let t = Temp::new(Path::new("/dev/shm"), "discard", 1 << 20);
        let o = FileOrigin::open(&t.0, false).unwrap();
        o.write_at(&vec![7u8; 1 << 20], 0).unwrap();
        let blocks = std::fs::metadata(&t.0).unwrap().blocks();
        o.discard(0, 512 << 10).unwrap();
        assert!(std::fs::metadata(&t.0).unwrap().blocks() < blocks);
        let mut got = vec![1u8; 4096];
        o.read_at(&mut got, 0).unwrap();
        assert!(got.iter().all(|b| *b == 0));
        o.read_at(&mut got, 512 << 10).unwrap();
        assert!(got.iter().all(|b| *b == 7));
    }

    #[test]
    fn one_user_at_a_time_and_the_message_names_it() {
        let t = Temp::new(Path::new("/dev/shm"), "claim", 1 << 20);
        let first = FileOrigin::open(&t.0, false).unwrap();
        let e = FileOrigin::open(&t.0, false).unwrap_err();
        assert!(
            matches!(&e, Error::Busy { holder: Some(p), .. } if *p == std::process::id()),
            "{e}"
        );
        assert_eq!(e.exit_code(), 4);
        assert!(FileOrigin::open(&t.0, true).is_err());
        drop(first);
        let _a = FileOrigin::open(&t.0, true).unwrap();
        let _b = FileOrigin::open(&t.0, true).unwrap();
        assert!(FileOrigin::open(&t.0, false).is_err());
    }

    /// The path leads elsewhere between the look and the opening: the id and
    /// the size are those of what is written, or it is refused.
    #[test]
    fn what_is_opened_is_what_is_named() {
        let other = Temp::new(Path::new("/dev/shm"), "other", 2 << 20);
        let t = Temp::new(Path::new("/dev/shm"), "replaced", 1 << 20);
        let expected = FileOrigin::open(&other.0, true).unwrap().identity;
        let replace = || std::fs::rename(&other.0, &t.0).unwrap();
        let o = FileOrigin::open_between(&t.0, false, replace).unwrap();
        assert_eq!(split_identity(&o.identity).0, split_identity(&expected).0);
        assert_eq!(o.size_bytes, 2 << 20);
        drop(o);
        let replace = || {
            std::fs::remove_file(&t.0).unwrap();
            std::os::unix::fs::symlink("/dev/null", &t.0).unwrap();
        };
        let e = FileOrigin::open_between(&t.0, false, replace).unwrap_err();
        assert!(e.to_string().contains("being replaced"), "{e}");
    }

    #[test]
    fn what_cannot_be_an_origin_is_refused_by_name() {
        let none = FileOrigin::open(Path::new("/dev/shm/fby-not-there"), false).unwrap_err();
        assert_eq!(none.exit_code(), 3);
        let e = FileOrigin::open(Path::new("/dev/shm"), false).unwrap_err();
        assert!(e.to_string().contains("a directory"), "{e}");
        let e = FileOrigin::open(Path::new("/dev/null"), false).unwrap_err();
        assert!(e.to_string().contains("a character device"), "{e}");
    }
}
