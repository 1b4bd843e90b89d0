// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries of block devices by ioctl.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, Getter, Opcode, Setter};

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
