// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block devices and the layout of files by ioctl, and the project of files, which has a quota.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Getter, Ioctl, IoctlOutput, Opcode, Setter, Updater};

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

/// What a loop device shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopStatus {
    pub inode: Inode,
    /// The number of the device, if it shows one; 0: it shows a file.
    pub device: u64,
    pub offset: u64,
    /// 0: to the end.
    pub limit: u64,
}

/// The file that a loop device has open.
pub(crate) fn backing_file(device: BorrowedFd<'_>) -> Option<Inode> {
    loop_status(device).ok().map(|status| status.inode)
}

/// Other devices do not know the call.  That of a partition is answered for its disk.
pub(crate) fn loop_status(device: BorrowedFd<'_>) -> Result<LoopStatus, Errno> {
    /// The first of the 29 words of `struct loop_info64`: device and inode number of the file, its
    /// number if it is a device, offset, and limit of the size.
    type Request = Getter<LOOP_GET_STATUS64, [u64; 29]>;
    // SAFETY: a loop device, which sysfs said it is, writes that structure.
    let info = unsafe { ioctl(device, Request::new()) }?;
    let [dev, inode, device, offset, limit, ..] = info;
    Ok(LoopStatus { inode: (dev, inode), device, offset, limit })
}

/// A part of a device of the device mapper; sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedPart {
    pub start: u64,
    pub sectors: u64,
    pub kind: String,
    pub words: String,
}

/// Words of `struct dm_ioctl` of linux/dm-ioctl.h, and of the room after it for the parts: at first,
/// and at most.
const MAPPER_HEAD: usize = 39;
const MAPPER_ROOM: usize = 2 << 10;
const MAPPER_MOST: usize = 2 << 20;

/// DM_TABLE_STATUS, into room of any size.
struct TableStatus<'a>(&'a mut [u64]);

// SAFETY: the call writes no more than the size that it is told, which is that of the slice.
unsafe impl Ioctl for TableStatus<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        /// The size in the number is that of the head alone, whatever room follows.
        const DM_TABLE_STATUS: Opcode = opcode::read_write::<[u64; MAPPER_HEAD]>(0xfd, 12);
        let bytes = size_of_val(self.0) as u64;
        assert!(self.0[1] >> 32 <= bytes, "more than there is room for");
        DM_TABLE_STATUS
    }
    fn as_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

/// The parts of the device with that number, from /dev/mapper/control.
pub(crate) fn mapped_parts(control: BorrowedFd<'_>, device: u64) -> Result<Vec<MappedPart>, Errno> {
    // SAFETY: as above.
    mapped_parts_by(device, |all| unsafe { ioctl(control, TableStatus(all)) })
}

fn mapped_parts_by(
    device: u64,
    mut ask: impl FnMut(&mut [u64]) -> Result<(), Errno>,
) -> Result<Vec<MappedPart>, Errno> {
    const TABLE: u64 = 1 << 4;
    const TOO_LONG: u64 = 1 << 8;
    let mut room = MAPPER_ROOM;
    while room <= MAPPER_MOST {
        let mut all = vec![0; MAPPER_HEAD + room];
        // Version 4.0, no patch level, and the size share two words; then where data begins, flags.
        (all[0], all[1]) = (4, (size_of_val(&all[..]) as u64) << 32);
        all[2] = 8 * MAPPER_HEAD as u64;
        all[3] = TABLE << 32;
        all[5] = device;
        ask(&mut all)?;
        if all[3] >> 32 & TOO_LONG == 0 {
            let count = (all[2] >> 32) as usize;
            let data: Vec<u8> =
                all[MAPPER_HEAD..].iter().flat_map(|word| word.to_ne_bytes()).collect();
            return parts_in(&data, count).ok_or(Errno::BADMSG);
        }
        room *= 2;
    }
    Err(Errno::MSGSIZE)
}

/// `struct dm_target_spec`: start and sectors, status, where the next one begins, kind, words.
fn parts_in(data: &[u8], count: usize) -> Option<Vec<MappedPart>> {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    let mut at = 0;
    let part = |_| {
        let spec = data.get(at..)?;
        let number = |at: usize| Some(u64::from_ne_bytes(spec.get(at..at + 8)?.try_into().ok()?));
        let next = u32::from_ne_bytes(spec.get(20..24)?.try_into().ok()?);
        at = next as usize;
        Some(MappedPart {
            start: number(0)?,
            sectors: number(8)?,
            kind: text(spec.get(24..40)?)?,
            words: text(spec.get(40..)?)?,
        })
    };
    (0..count).map(part).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up device mapper, which says that the room is too small as the real one does.
    #[test]
    fn a_table_of_any_length_is_told_whole_or_not_at_all() {
        let told = |count: usize| {
            let spec = |n: usize| {
                let mut spec = [0; 8];
                (spec[0], spec[1], spec[2]) = (8 * n as u64, 8, (64 * (n as u64 + 1)) << 32);
                spec[3] = u64::from_ne_bytes(*b"linear\0\0");
                spec[5] = u64::from_ne_bytes(*b"8:0 2048");
                spec
            };
            mapped_parts_by(5, |all| {
                let room = (all[1] >> 32) as usize / 8;
                assert_eq!((room, all[5]), (all.len(), 5));
                let data: Vec<u64> = (0..count).flat_map(spec).collect();
                match all.get_mut(MAPPER_HEAD..MAPPER_HEAD + data.len()) {
                    Some(at) => at.copy_from_slice(&data),
                    None => all[3] |= 1 << (32 + 8),
                }
                all[2] |= (count as u64) << 32;
                Ok(())
            })
        };
        for count in [0, 1, 256, 257, 300, 100_000] {
            let parts = told(count).unwrap();
            assert_eq!(parts.len(), count);
            let words = |n: usize| MappedPart {
                start: 8 * n as u64,
                sectors: 8,
                kind: "linear".into(),
                words: "8:0 2048".into(),
            };
            assert!(parts.iter().enumerate().all(|(n, part)| *part == words(n)), "{count}");
        }
        assert_eq!(told(MAPPER_MOST / 8 + 1), Err(Errno::MSGSIZE));
        assert_eq!(mapped_parts_by(5, |_| Err(Errno::NXIO)), Err(Errno::NXIO));
    }
}
