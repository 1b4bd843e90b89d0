// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block devices and the layout of files by ioctl, and the project of files, which has a quota.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Getter, Opcode, Setter, Updater};

/// `_IO(0x12, 119)`, of linux/fs.h
const BLKDISCARD: Opcode = 0x1277;
/// From linux/loop.h.
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// Device and inode number of a file.
pub(crate) type Inode = (u64, u64);

/// The range lies in the device, which the caller has seen to.
pub(crate) fn discard(device: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    type Request = Setter<BLKDISCARD, [u64; 2]>;
    // SAFETY: BLKDISCARD reads two u64 and changes no memory.
    unsafe { ioctl(device, Request::new([offset, len])) }
}

/// The file that a loop device has open.  Other devices do not know the call, and give nothing.
pub(crate) fn backing_file(device: BorrowedFd<'_>) -> Option<Inode> {
    /// The first two of the 29 words of `struct loop_info64` are the device and the
    /// inode number.
    type Request = Getter<LOOP_GET_STATUS64, [u64; 29]>;
    // SAFETY: a loop device, which sysfs said it is, writes that structure.
    let info = unsafe { ioctl(device, Request::new()) }.ok()?;
    Some((info[0], info[1]))
}

/// `struct fsxattr` of linux/fs.h: flags, two numbers of extents, the project, one more, and room.
type FileAttributes = [u32; 7];
const FS_IOC_FSGETXATTR: Opcode = opcode::read::<FileAttributes>(b'X', 31);
const FS_IOC_FSSETXATTR: Opcode = opcode::write::<FileAttributes>(b'X', 32);
const FLAGS: usize = 0;
const PROJECT: usize = 3;
/// New files in the directory get its project.
const PROJECT_IS_INHERITED: u32 = 0x200;

fn attributes(file: BorrowedFd<'_>) -> Result<FileAttributes, Errno> {
    // SAFETY: the call writes that structure, whatever the file.
    unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, FileAttributes>::new()) }
}

/// Gives a file, or a directory, the project that it would have if it had been made in `above`.
pub fn join_project(file: BorrowedFd<'_>, above: BorrowedFd<'_>) -> Result<(), Errno> {
    let (mut of_file, of_above) = (attributes(file)?, attributes(above)?);
    of_file[PROJECT] = of_above[PROJECT];
    let is_directory = || {
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
        Ok::<_, Errno>(kind == rustix::fs::FileType::Directory)
    };
    if is_directory()? {
        of_file[FLAGS] |= of_above[FLAGS] & PROJECT_IS_INHERITED;
    }
    // SAFETY: the call reads that structure and changes no memory.
    unsafe { ioctl(file, Setter::<FS_IOC_FSSETXATTR, FileAttributes>::new(of_file)) }
}

/// A piece of a file, as its file system maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileExtent {
    pub start: u64,
    pub len: u64,
    /// The address on the file system's device, in bytes.
    pub physical: u64,
    /// It has blocks, and reads as zeroes until it is written.
    pub unwritten: bool,
    /// Another file has the same blocks.
    pub shared: bool,
}

/// The pieces of a file that have blocks, in order, from `start` on.  At most so many as one
/// call gives: an empty list is the end.
pub(crate) fn file_extents(file: BorrowedFd<'_>, start: u64) -> Result<Vec<FileExtent>, Errno> {
    const MOST: usize = 64;
    /// Words of `struct fiemap` and of `struct fiemap_extent`, of linux/fiemap.h.
    const HEAD: usize = 4;
    const EACH: usize = 7;
    const FIEMAP: Opcode = opcode::read_write::<[u64; HEAD]>(b'f', 11);
    const SYNC: u64 = 1;
    const UNWRITTEN: u64 = 0x800;
    const SHARED: u64 = 0x2000;
    type Request<'a> = Updater<'a, FIEMAP, [u64; HEAD + MOST * EACH]>;
    let mut map = [0; HEAD + MOST * EACH];
    // Flags and the number found share a word, as do the room for extents and a reserved word.
    (map[0], map[1], map[2], map[3]) = (start, u64::MAX - start, SYNC, MOST as u64);
    // SAFETY: FIEMAP writes a head and at most as many extents as the head has room for.
    unsafe { ioctl(file, Request::new(&mut map)) }?;
    let found = ((map[2] >> 32) as usize).min(MOST);
    let extent = |e: &[u64]| FileExtent {
        start: e[0],
        physical: e[1],
        len: e[2],
        unwritten: e[5] & UNWRITTEN != 0,
        shared: e[5] & SHARED != 0,
    };
    Ok(map[HEAD..].chunks_exact(EACH).take(found).map(extent).collect())
}
