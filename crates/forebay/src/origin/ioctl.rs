// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block devices by ioctl, and the project of files, which has a quota.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Getter, Opcode, Setter};

/// `_IO(0x12, 119)`, of linux/fs.h
const BLKDISCARD: Opcode = 0x1277;
/// From linux/loop.h.
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// Device and inode number of a file.
pub(super) type Inode = (u64, u64);

/// The range lies in the device, which the caller has seen to.
pub(super) fn discard(device: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    type Request = Setter<BLKDISCARD, [u64; 2]>;
    // SAFETY: BLKDISCARD reads two u64 and changes no memory.
    unsafe { ioctl(device, Request::new([offset, len])) }
}

/// The file that a loop device has open.  Other devices do not know the call, and give nothing.
pub(super) fn backing_file(device: BorrowedFd<'_>) -> Option<Inode> {
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
/// What is made in the directory gets its project.
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
