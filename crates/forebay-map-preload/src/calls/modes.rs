// SPDX-License-Identifier: MIT OR Apache-2.0
//! chmod(2) and its forms.  The kernel lets only who may write to a file now remove its mark, whatever
//! descriptor it has.  So a file whose mode takes a right to write away is completed before, and bears no
//! mark.  What is stored later is written to the file itself.

use std::ffi::{c_char, c_int, c_long, CStr, CString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use forebay_map::MapFile;
use libc::mode_t;

use super::link_of;
use crate::child;
use crate::mapped::Mapped;
use crate::real::{self, fail, raw, told};
use crate::say::{once, About};
use crate::state;

const TO_WRITE: mode_t = 0o222;
pub const FCHMODAT2: c_long = 452;

fn mode_at(dir: RawFd, path: &CStr) -> Option<mode_t> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH as usize;
    let a = [dir as usize, path.as_ptr().addr(), (&raw mut st).addr(), flags, 0, 0];
    // SAFETY: st is there for the call.
    let done = unsafe { raw(libc::SYS_newfstatat, a) };
    (done == 0).then_some(st.st_mode)
}

/// The mark of a shared file is the server's, and other processes sync by it.  So nobody completes the
/// file before: its user may not take the right to write away.
fn refuse_shared(file: &Mapped, mode: mode_t) -> Result<(), c_int> {
    let path = CString::new(file.path.as_os_str().as_bytes()).ok();
    let before = path.and_then(|path| mode_at(libc::AT_FDCWD, &path)).unwrap_or(0);
    // SAFETY: it takes nothing.  Root may mark any file, and the server has the same user.
    if before & !mode & TO_WRITE == 0 || unsafe { libc::geteuid() } == 0 {
        return Ok(());
    }
    once(
        About::Mode,
        format_args!(
            "{}: chmod that takes a right to write away is refused while processes share the file: \
             nobody could remove its mark then; change it when they have closed it",
            file.path.display()
        ),
    );
    Err(libc::EPERM)
}

/// Changes the mode of an open file by a call, whose result it returns.
pub fn set(file: &Mapped, mode: mode_t, change: impl Fn() -> isize) -> Result<isize, c_int> {
    if file.locks.are_shared() {
        refuse_shared(file, mode)?;
        return Ok(change());
    }
    let before = {
        let held = file.map();
        let file = held.as_ref().and_then(MapFile::file).map(|file| file.as_raw_fd());
        file.and_then(|file| mode_at(file, c"")).unwrap_or(0)
    };
    match before & !mode & TO_WRITE {
        0 => Ok(change()),
        _ => file.call(About::Io, |map| map.complete_then(&change)),
    }
}

fn answer(done: Result<isize, c_int>) -> c_int {
    done.map_or_else(fail, |done| told(done) as c_int)
}

/// # Safety
/// The contract of fchmod(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    if !state::is_ours(fd) {
        // SAFETY: the caller guarantees it.
        return unsafe { real::fchmod(fd, mode) };
    }
    let link = link_of(fd);
    let a = [libc::AT_FDCWD as usize, link.as_ptr().addr(), mode as usize, 0, 0, 0];
    // SAFETY: the name ends with a zero byte.
    let change = || unsafe { raw(libc::SYS_fchmodat, a) };
    match (!child::is_child()).then(|| state::desc(fd)).flatten() {
        Some(desc) => answer(set(&desc.file, mode, change)),
        None => told(change()) as c_int,
    }
}

/// # Safety
/// The contract of chmod(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { fchmodat(libc::AT_FDCWD, path, mode, 0) }
}

/// # Safety
/// The contract of lchmod(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { fchmodat(libc::AT_FDCWD, path, mode, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
/// The contract of fchmodat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fchmodat(
    dir: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let plain = || match unsafe { real::fchmodat(dir, path, mode, flags) } {
        Some(0) => 0,
        Some(_) => -real::errno() as isize,
        None => -libc::ENOSYS as isize,
    };
    // SAFETY: the caller guarantees it.
    unsafe { by_path(dir, path, mode, flags, plain) }
}

/// fchmodat2(2) by its number.
///
/// # Safety
/// These are the arguments of the call.
pub unsafe fn fchmodat2(a: [usize; 6]) -> c_int {
    let (dir, mode, flags) = (a[0] as c_int, a[2] as mode_t, a[3] as c_int);
    let path = std::ptr::with_exposed_provenance(a[1]);
    // SAFETY: the caller guarantees it.
    unsafe {
        let is_empty = || real::text(path).is_some_and(CStr::is_empty);
        match flags & libc::AT_EMPTY_PATH != 0 && state::is_ours(dir) && is_empty() {
            true => fchmod(dir, mode),
            false => by_path(dir, path, mode, flags, || raw(FCHMODAT2, a)),
        }
    }
}

/// # Safety
/// The contract of fchmodat(2) applies.
unsafe fn by_path(
    dir: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
    plain: impl Fn() -> isize,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: the caller guarantees it.
    let name = unsafe { real::text(path) };
    let of_file = |file: &Arc<Mapped>| set(file, mode, &plain);
    let done = match name {
        // It is the descriptor's file, whichever way that was opened.
        Some(name) if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 => {
            let link = CString::new(link_of(dir).trim_end_matches('\0')).ok();
            link.and_then(|link| state::call_at(libc::AT_FDCWD, &link, true, of_file))
        }
        Some(name) => state::call_at(dir, name, follow, of_file),
        None => None,
    };
    match done {
        Some(done) => answer(done),
        None => told(plain()) as c_int,
    }
}
