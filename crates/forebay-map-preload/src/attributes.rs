// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times and extended attributes of open files.  A call with a descriptor uses the file's name
//! in /proc, because the kernel does nothing with such a descriptor.

use std::ffi::{c_char, c_int, c_void};

use libc::{timespec, timeval, utimbuf};

use crate::calls::link_of;
use crate::mapped::Mapped;
use crate::real::{raw, text, told};
use crate::say::About;
use crate::state;

/// Sets times with notice to the library: otherwise a recovery would take the new times for a
/// change by others.
///
/// # Safety
/// The contract of utimensat(2) applies; the path may be null.
unsafe fn set_times(dir: c_int, path: *const c_char, to: *const timespec, flags: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    let name = unsafe { text(path) };
    let empty = flags & libc::AT_EMPTY_PATH != 0;
    let by_descriptor = name.is_none_or(|name| name.is_empty() && empty);
    let as_given = [dir as usize, path.addr(), to.addr(), flags as usize, 0, 0];
    let changed = match name {
        _ if by_descriptor => state::desc(dir).map(|desc| {
            let link = link_of(dir);
            let at = [libc::AT_FDCWD as usize, link.as_ptr().addr(), to.addr(), 0, 0, 0];
            // SAFETY: the path ends with a zero byte; the rest the caller guarantees.
            unsafe { set_times_of(&desc.file, at) }
        }),
        Some(name) => {
            let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
            // SAFETY: the caller guarantees it.
            state::call_at(dir, name, follow, |file| unsafe { set_times_of(file, as_given) })
        }
        None => None,
    };
    match changed {
        // SAFETY: the caller guarantees it.
        None => told(unsafe { raw(libc::SYS_utimensat, as_given) }) as c_int,
        Some(Ok(done)) => told(done) as c_int,
        Some(Err(errno)) => crate::real::fail(errno),
    }
}

/// # Safety
/// The contract of utimensat(2) applies.
unsafe fn set_times_of(file: &Mapped, at: [usize; 6]) -> Result<isize, c_int> {
    // A later write-back would change the times again.
    file.call(About::Io, |map| {
        map.sync(0, u64::MAX)?;
        map.write_back()?;
        // SAFETY: the caller guarantees it.
        map.change(|| unsafe { raw(libc::SYS_utimensat, at) })
    })
}

/// # Safety
/// The contract of futimens(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn futimens(fd: c_int, to: *const timespec) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_times(fd, std::ptr::null(), to, 0) }
}

/// # Safety
/// The contract of utimensat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn utimensat(
    dir: c_int,
    path: *const c_char,
    to: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_times(dir, path, to, flags) }
}

/// # Safety
/// The contract of futimes(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn futimes(fd: c_int, to: *const timeval) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_in_microseconds(fd, std::ptr::null(), to, 0) }
}

/// # Safety
/// The contract of futimesat(2) applies.
unsafe fn set_in_microseconds(
    dir: c_int,
    path: *const c_char,
    to: *const timeval,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees that it is null or points to two times.
    let given = unsafe { to.cast::<[timeval; 2]>().as_ref() };
    let of = |t: timeval| timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_usec.saturating_mul(1000) };
    let times = given.map(|&two| two.map(of));
    let times = times.as_ref().map_or(std::ptr::null(), |two| two.as_ptr());
    // SAFETY: the caller guarantees it.
    unsafe { set_times(dir, path, times, flags) }
}

/// # Safety
/// The contract of utimes(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn utimes(path: *const c_char, to: *const timeval) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_in_microseconds(libc::AT_FDCWD, path, to, 0) }
}

/// # Safety
/// The contract of lutimes(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn lutimes(path: *const c_char, to: *const timeval) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_in_microseconds(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
/// The contract of futimesat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn futimesat(
    dir: c_int,
    path: *const c_char,
    to: *const timeval,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { set_in_microseconds(dir, path, to, 0) }
}

/// # Safety
/// The contract of utime(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn utime(path: *const c_char, to: *const utimbuf) -> c_int {
    let of = |tv_sec| timespec { tv_sec, tv_nsec: 0 };
    // SAFETY: the caller guarantees that it is null or points to one struct.
    let times = unsafe { to.as_ref() }.map(|to| [of(to.actime), of(to.modtime)]);
    let times = times.as_ref().map_or(std::ptr::null(), |two| two.as_ptr());
    // SAFETY: the caller guarantees it.
    unsafe { set_times(libc::AT_FDCWD, path, times, 0) }
}

/// The next sync makes the attribute durable.
fn tell_changed(fd: c_int) {
    let Some(desc) = state::desc(fd) else { return };
    // A file that was closed meanwhile has no sync any more.
    let _ = desc.file.call(About::Io, |map| {
        map.attributes_changed();
        Ok(())
    });
}

macro_rules! attributes {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $plain:ident, $by_name:ident;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> $ret {
            let mut a = [0; 6];
            let given = [$($arg as usize),*];
            a[1..=given.len()].copy_from_slice(&given);
            let link = link_of(fd);
            let number = match state::is_ours(fd) && !state::is_child() {
                true => {
                    a[0] = link.as_ptr().addr();
                    libc::$by_name
                }
                false => {
                    a[0] = fd as usize;
                    libc::$plain
                }
            };
            // SAFETY: the caller guarantees it; the name ends with a zero byte.
            let done = unsafe { raw(number, a) };
            if done == 0 && matches!(number, libc::SYS_setxattr | libc::SYS_removexattr) {
                tell_changed(fd);
            }
            told(done) as $ret
        }
    )+};
}
attributes! {
    fgetxattr(name: *const c_char, to: *mut c_void, n: usize) -> isize = SYS_fgetxattr, SYS_getxattr;
    fsetxattr(name: *const c_char, from: *const c_void, n: usize, how: c_int) -> c_int
        = SYS_fsetxattr, SYS_setxattr;
    flistxattr(to: *mut c_char, n: usize) -> isize = SYS_flistxattr, SYS_listxattr;
    fremovexattr(name: *const c_char) -> c_int = SYS_fremovexattr, SYS_removexattr;
}
