// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times and extended attributes of open files.  A call with a descriptor uses the file's name
//! in /proc, because the kernel does nothing with such a descriptor.

use std::ffi::{c_char, c_int, c_long, c_void, CStr};
use std::sync::Arc;

use libc::{timespec, timeval, utimbuf};

use crate::calls::{link_of, modes};
use crate::child;
use crate::guarded;
use crate::hidden;
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

/// Attributes by which a file system keeps who may do what with a file.
const OF_SYSTEM: &[u8] = b"system.";

/// Changes an attribute of an open file by a call, whose result it returns.  The next sync makes it
/// durable.
fn change(file: &Mapped, name: Option<&CStr>, call: impl Fn() -> isize) -> Result<isize, c_int> {
    // Like a mode it may take the right to write away.
    let done = match name.is_some_and(|name| name.to_bytes().starts_with(OF_SYSTEM)) {
        true => modes::set(file, 0, call)?,
        false => call(),
    };
    if done == 0 {
        // A file that was closed meanwhile has no sync any more.
        let _ = file.call(About::Io, |map| {
            map.attributes_changed();
            Ok(())
        });
    }
    Ok(done)
}

/// # Safety
/// The contract of the C library's function applies to these arguments.
unsafe fn by_descriptor(fd: c_int, numbers: [c_long; 2], given: &[usize]) -> isize {
    let mut a = [0; 6];
    a[1..=given.len()].copy_from_slice(given);
    if !state::is_ours(fd) || child::is_child() {
        a[0] = fd as usize;
        // SAFETY: the caller guarantees it.
        return told(unsafe { hidden::call(numbers[0], a) });
    }
    let link = link_of(fd);
    a[0] = link.as_ptr().addr();
    // SAFETY: the caller guarantees it; the name ends with a zero byte.
    let call = || unsafe { hidden::call(numbers[1], a) };
    let changes = matches!(numbers[1], libc::SYS_setxattr | libc::SYS_removexattr);
    match changes.then(|| state::desc(fd)).flatten() {
        // SAFETY: the caller guarantees it.
        Some(desc) => answer(change(&desc.file, unsafe { text(name_at(given[0])) }, call)),
        None => told(call()),
    }
}

/// # Safety
/// The contract of the C library's function applies to these arguments.
unsafe fn by_path(number: c_long, path: *const c_char, given: &[usize]) -> isize {
    let mut a = [path.addr(), 0, 0, 0, 0, 0];
    a[1..=given.len()].copy_from_slice(given);
    // SAFETY: the caller guarantees it.
    let call = || unsafe { hidden::call(number, a) };
    let follow = matches!(number, libc::SYS_setxattr | libc::SYS_removexattr);
    // SAFETY: the caller guarantees it.
    let (path, name) = unsafe { (text(path), text(name_at(given[0]))) };
    let of_file = |file: &Arc<Mapped>| change(file, name, call);
    let of_open = |path| state::call_at(libc::AT_FDCWD, path, follow, of_file);
    path.and_then(of_open).map_or_else(|| told(call()), answer)
}

/// Reads attributes of any file by its path.
///
/// # Safety
/// The contract of the C library's function applies to these arguments.
unsafe fn look(number: c_long, path: *const c_char, given: &[usize]) -> isize {
    let mut a = [path.addr(), 0, 0, 0, 0, 0];
    a[1..=given.len()].copy_from_slice(given);
    // SAFETY: the caller guarantees it.
    told(unsafe { hidden::call(number, a) })
}

fn name_at(address: usize) -> *const c_char {
    std::ptr::with_exposed_provenance(address)
}

fn answer(done: Result<isize, c_int>) -> isize {
    done.map_or_else(crate::real::fail, told)
}

macro_rules! attributes {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $plain:ident, $by_name:ident;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> $ret {
            let given = [$($arg as usize),*];
            // SAFETY: the caller guarantees it.
            unsafe { by_descriptor(fd, [libc::$plain, libc::$by_name], &given) as $ret }
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

macro_rules! attributes_by_path {
    ($($call:ident $name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $number:ident;)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, $($arg: $type),*) -> $ret {
            let given = [$($arg as usize),*];
            // SAFETY: the caller guarantees it.
            unsafe { $call(libc::$number, path, &given) as $ret }
        }
    )+};
}
attributes_by_path! {
    by_path setxattr(name: *const c_char, from: *const c_void, n: usize, how: c_int) -> c_int
        = SYS_setxattr;
    by_path lsetxattr(name: *const c_char, from: *const c_void, n: usize, how: c_int) -> c_int
        = SYS_lsetxattr;
    by_path removexattr(name: *const c_char) -> c_int = SYS_removexattr;
    by_path lremovexattr(name: *const c_char) -> c_int = SYS_lremovexattr;
    look getxattr(name: *const c_char, to: *mut c_void, n: usize) -> isize = SYS_getxattr;
    look lgetxattr(name: *const c_char, to: *mut c_void, n: usize) -> isize = SYS_lgetxattr;
    look listxattr(to: *mut c_char, n: usize) -> isize = SYS_listxattr;
    look llistxattr(to: *mut c_char, n: usize) -> isize = SYS_llistxattr;
}

/// Makes a call about attributes by its number.  None: it is none, or the kernel may make it.
///
/// # Safety
/// These are the arguments of the call.
pub unsafe fn by_number(number: c_long, a: [usize; 6]) -> Option<isize> {
    let fd = a[0] as c_int;
    if !hidden::is_about_attributes(number) || guarded::is_inside() {
        return None;
    }
    let ours = state::is_ours(fd);
    // SAFETY: the caller guarantees it.
    let of_descriptor = |named, n| unsafe { by_descriptor(fd, [number, named], &a[1..=n]) };
    // SAFETY: the caller guarantees it.
    let of_path = |n| unsafe { by_path(number, name_at(a[0]), &a[1..=n]) };
    match number {
        libc::SYS_fgetxattr if ours => Some(of_descriptor(libc::SYS_getxattr, 3)),
        libc::SYS_fsetxattr if ours => Some(of_descriptor(libc::SYS_setxattr, 4)),
        libc::SYS_flistxattr if ours => Some(of_descriptor(libc::SYS_listxattr, 2)),
        libc::SYS_fremovexattr if ours => Some(of_descriptor(libc::SYS_removexattr, 1)),
        libc::SYS_setxattr | libc::SYS_lsetxattr => Some(of_path(4)),
        libc::SYS_removexattr | libc::SYS_lremovexattr => Some(of_path(1)),
        // SAFETY: the caller guarantees it.
        _ => Some(told(unsafe { hidden::call(number, a) })),
    }
}
