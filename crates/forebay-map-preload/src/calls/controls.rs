// SPDX-License-Identifier: MIT OR Apache-2.0
//! ioctl(2), readahead(2), and what asks whether a descriptor is a terminal.  The kernel refuses all
//! of them for a descriptor of ours (EBADF), and answers those of any regular file.

use std::ffi::{c_char, c_int, c_ulong};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use libc::off_t;

use super::fcntl;
use crate::guarded::lock;
use crate::kept;
use crate::real::{self, fail, raw, told};
use crate::say::{once, About};
use crate::state::{self, Desc};

// Numbers that the C library's headers lack on some machines.
const FIOQSIZE: c_ulong = 0x5460;
const FIGETBSZ: c_ulong = 2;
const FIBMAP: c_ulong = 1;
/// Those of the file system: the flags, the version, the project and the attributes of a file, and
/// the name and the numbers of the file system.
const READ: [c_ulong; 7] = [
    FIGETBSZ,
    FIOQSIZE,
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8008_7601, // FS_IOC_GETVERSION
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x8100_9431, // FS_IOC_GETFSLABEL
    0x8011_1500, // FS_IOC_GETFSUUID
];
/// Types of calls (bits 8 to 15) that reach a file system: of btrfs and copies by reference, of ext4 and flags, of
/// versions, of xfs and space.
const OF_FILE_SYSTEMS: [u8; 4] = [0x94, b'f', b'v', b'X'];

/// The answer of the kernel to a call by the library's descriptor.  It changes nothing.
///
/// # Safety
/// The contract of ioctl(2) applies.
unsafe fn read(desc: &Desc, request: c_ulong, arg: usize) -> c_int {
    let held = desc.file.map();
    let file = held.as_ref().and_then(|map| map.file()).map(|file| file.as_raw_fd());
    // The server alone has a descriptor of a file that is shared.
    let Some(fd) = file.filter(|&fd| kept::check(fd).is_ok()) else { return fail(libc::ENOTTY) };
    // SAFETY: the caller guarantees it.
    told(unsafe { raw(libc::SYS_ioctl, [fd as usize, request as usize, arg, 0, 0, 0]) }) as c_int
}

/// # Safety
/// The contract of ioctl(2) applies, for a descriptor of ours.
unsafe fn control(desc: &Desc, fd: c_int, request: c_ulong, arg: usize) -> c_int {
    let number = std::ptr::with_exposed_provenance_mut::<c_int>(arg);
    // SAFETY: the caller guarantees that the argument is what the request needs.
    unsafe {
        match request {
            libc::FIOCLEX => fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize),
            libc::FIONCLEX => fcntl(fd, libc::F_SETFD, 0),
            libc::FIONREAD | libc::FIONBIO | libc::FIOASYNC if number.is_null() => {
                fail(libc::EFAULT)
            }
            libc::FIONREAD => {
                let size = desc.file.map().as_ref().map(|map| map.size());
                let Some(size) = size else { return fail(libc::EBADF) };
                let left = size.wrapping_sub(*lock(&desc.at));
                number.write(left as c_int);
                0
            }
            libc::FIONBIO => {
                let on = if number.read() == 0 { 0 } else { libc::O_NONBLOCK };
                let set = |flags: c_int| Some(flags & !libc::O_NONBLOCK | on);
                let _ = desc.flags.fetch_update(Ordering::SeqCst, Ordering::SeqCst, set);
                0
            }
            // A regular file sends no signals.
            libc::FIOASYNC if number.read() == 0 => 0,
            _ if READ.contains(&request) => read(desc, request, arg),
            _ if request == FIBMAP || OF_FILE_SYSTEMS.contains(&((request >> 8) as u8)) => {
                once(
                    About::Call,
                    format_args!(
                        "{}: ioctl {request:#x} is refused: it would go past the memory that the file is \
                         mapped onto; leave it out of --files",
                        desc.file.path.display()
                    ),
                );
                fail(libc::EOPNOTSUPP)
            }
            _ => fail(libc::ENOTTY),
        }
    }
}

/// # Safety
/// The contract of ioctl(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    // The kernel uses the lower half.
    let request = c_ulong::from(request as u32);
    // SAFETY: the caller guarantees it.
    unsafe {
        match state::desc(fd) {
            Some(desc) => control(&desc, fd, request, arg),
            None => {
                told(raw(libc::SYS_ioctl, [fd as usize, request as usize, arg, 0, 0, 0])) as c_int
            }
        }
    }
}

/// # Safety
/// The contract of readahead(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn readahead(fd: c_int, at: off_t, n: usize) -> isize {
    match state::desc(fd) {
        Some(desc) => {
            match desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == libc::O_WRONLY {
                true => fail(libc::EBADF),
                false => 0,
            }
        }
        // SAFETY: it takes numbers.
        None => told(unsafe { raw(libc::SYS_readahead, [fd as usize, at as usize, n, 0, 0, 0]) }),
    }
}

/// # Safety
/// The contract of isatty(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn isatty(fd: c_int) -> c_int {
    if state::desc(fd).is_some() {
        fail::<c_int>(libc::ENOTTY);
        return 0;
    }
    // SAFETY: it takes a number.
    unsafe { real::isatty(fd) }.unwrap_or(0)
}

/// # Safety
/// The contract of tcgetattr(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn tcgetattr(fd: c_int, to: *mut libc::termios) -> c_int {
    match state::desc(fd) {
        Some(_) => fail(libc::ENOTTY),
        // SAFETY: the caller guarantees it.
        None => unsafe { real::tcgetattr(fd, to) }.unwrap_or_else(|| fail(libc::ENOSYS)),
    }
}

/// # Safety
/// The contract of ttyname_r(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn ttyname_r(fd: c_int, to: *mut c_char, n: usize) -> c_int {
    match state::desc(fd) {
        Some(_) => {
            fail::<c_int>(libc::ENOTTY);
            libc::ENOTTY
        }
        // SAFETY: the caller guarantees it.
        None => unsafe { real::ttyname_r(fd, to, n) }.unwrap_or(libc::ENOSYS),
    }
}

extern "C" {
    fn __chk_fail() -> !;
}

/// Programs with _FORTIFY_SOURCE call it.
///
/// # Safety
/// The contract of ttyname_r(3) applies, with a buffer of `room` bytes.
#[no_mangle]
pub unsafe extern "C-unwind" fn __ttyname_r_chk(
    fd: c_int,
    to: *mut c_char,
    n: usize,
    room: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match n > room {
            true => __chk_fail(),
            false => ttyname_r(fd, to, n),
        }
    }
}

/// # Safety
/// The contract of ttyname(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn ttyname(fd: c_int) -> *mut c_char {
    if state::desc(fd).is_some() {
        fail::<c_int>(libc::ENOTTY);
        return std::ptr::null_mut();
    }
    // SAFETY: it takes a number.
    unsafe { real::ttyname(fd) }.unwrap_or(std::ptr::null_mut())
}
