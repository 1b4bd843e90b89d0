// SPDX-License-Identifier: MIT OR Apache-2.0
//! File handles, the UUID of a file system, the content of the page cache: system calls without
//! a safe interface.

use std::ffi::{c_char, c_int, c_long, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, Getter, Opcode};

/// MAX_HANDLE_SZ of linux/exportfs.h; a handle as it is here has its type in front.
const BYTES_MAX: usize = 128;
const TYPE: usize = size_of::<i32>();
/// AT_HANDLE_FID, of Linux 6.5: a handle that tells inodes apart and opens none.
const HANDLE_FID: c_int = 0x200;
/// `_IOR(0x15, 0, struct fsuuid2)`, of linux/fs.h, Linux 6.9.
const FS_IOC_GETFSUUID: Opcode = 2 << 30 | 17 << 16 | 0x15 << 8;

/// cachestat(2), since Linux 6.5.  Its number is the same on all machines but alpha.
const SYS_CACHESTAT: c_long = 451;

/// `struct cachestat_range` of linux/mman.h.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of linux/mman.h.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    others: [u64; 4],
}

/// `struct file_handle` of fcntl.h with the longest handle there is.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES_MAX],
}

extern "C" {
    fn name_to_handle_at(
        dir: c_int,
        path: *const c_char,
        handle: *mut FileHandle,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut FileHandle, flags: c_int) -> c_int;
    fn sync_file_range(file: c_int, offset: i64, bytes: i64, flags: c_uint) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The handle of the descriptor's file; O_PATH descriptors are accepted.  Even if the file
/// system cannot open files by handle, the handle distinguishes inodes.
pub fn file_handle(of: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let ask = |flags: c_int| {
        let mut found = FileHandle { bytes: BYTES_MAX as u32, kind: 0, handle: [0; BYTES_MAX] };
        let mut mount = 0;
        // SAFETY: an empty string that ends; a handle with room for as many bytes as it
        // says; an int.  The call writes to the last two.
        let ret = unsafe {
            name_to_handle_at(of.as_raw_fd(), c"".as_ptr(), &mut found, &mut mount, flags)
        };
        if ret != 0 {
            return Err(last_error());
        }
        let bytes = found.handle.get(..found.bytes as usize).ok_or(Errno::OVERFLOW)?;
        Ok([&found.kind.to_le_bytes()[..], bytes].concat())
    };
    let empty_path = AtFlags::EMPTY_PATH.bits() as c_int;
    match ask(empty_path) {
        Err(Errno::OPNOTSUPP) => ask(empty_path | HANDLE_FID).map_err(|_| Errno::OPNOTSUPP),
        answer => answer,
    }
}

/// The write-back error of the file since the descriptor was opened, or since this call or an
/// fsync reported one.  It writes nothing and waits for nothing: it asks for a byte far beyond
/// the end.
pub fn write_back_error(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const FAR: i64 = 0x7fff_ffff_ffff_f000;
    const WAIT_BEFORE: c_uint = 1;
    // SAFETY: the call takes numbers alone.
    match unsafe { sync_file_range(file.as_raw_fd(), FAR, 1, WAIT_BEFORE) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// How many pages of a range of a file are in the page cache, be they read yet or not.  Waits for
/// nothing.  `length` is not 0.
pub fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<u64, Errno> {
    let range = CachestatRange { offset, length };
    let mut found = Cachestat::default();
    // SAFETY: the call reads the range and writes the numbers, which are as long as it takes them
    // for; flags are 0.
    let ret = unsafe {
        syscall(
            SYS_CACHESTAT,
            c_long::from(file.as_raw_fd()),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut found),
            0 as c_long,
        )
    };
    match ret {
        0 => Ok(found.cached),
        _ => Err(last_error()),
    }
}

/// Opens the inode of a handle of [`file_handle`].  `ESTALE`: there is none; `EPERM`: this
/// process may not.  `mount` is open on the file system, and not by O_PATH.
pub fn open_handle(mount: BorrowedFd<'_>, handle: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (kind, bytes) = handle.split_first_chunk::<TYPE>().ok_or(Errno::INVAL)?;
    let mut given = FileHandle {
        bytes: bytes.len() as u32,
        kind: i32::from_le_bytes(*kind),
        handle: [0; BYTES_MAX],
    };
    given.handle.get_mut(..bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(bytes);
    let flags = (flags | OFlags::CLOEXEC).bits() as c_int;
    until_made(|| {
        // SAFETY: the handle has as many bytes as it says, and the call only reads it.
        let fd = unsafe { open_by_handle_at(mount.as_raw_fd(), &mut given, flags) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the call made it for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })
}

/// Calls of [`until_made`] before it believes that memory is short: about a second.
const MAKING: u32 = 100;

/// Opens by a handle again for as long as the kernel makes another inode of the handle's number.
/// Linux's iget_locked answers for such an inode as for one that memory is too short for, and
/// ext4 passes that on: `ENOMEM`.
fn until_made(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 1..MAKING {
        match open() {
            Err(Errno::NOMEM) => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    open()
}

/// The UUID of the descriptor's file system; an error if the kernel or the file system reports
/// none.
pub fn file_system_uuid(of: BorrowedFd<'_>) -> Result<[u8; 16], Errno> {
    type Request = Getter<FS_IOC_GETFSUUID, [u8; 17]>;
    // SAFETY: `struct fsuuid2` is a byte and sixteen, as the call's number says.
    let [length, uuid @ ..] = unsafe { ioctl(of, Request::new()) }?;
    match length {
        16 => Ok(uuid),
        _ => Err(Errno::OPNOTSUPP),
    }
}
