// SPDX-License-Identifier: MIT OR Apache-2.0
//! open and its relatives; stdio, which reads and writes past us.

use std::ffi::{c_char, c_int, CStr};
use std::sync::Mutex;

use libc::{mode_t, FILE};

use crate::planted::{self, Planted};
use crate::real::{self, fail};
use crate::say::{once, About};
use crate::state::{self, Refusal};
use crate::which;

/// A descriptor that the kernel does nothing with takes the place of one of the file.
fn make_deaf(fd: c_int, flags: c_int) -> Result<(), c_int> {
    let link = format!("/proc/self/fd/{fd}\0");
    let keep = flags & libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero byte; the descriptors are ours.
    unsafe {
        let path = link.as_ptr().addr();
        let deaf = libc::O_PATH | libc::O_CLOEXEC;
        let p =
            real::raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path, deaf as usize, 0, 0, 0]);
        if p < 0 {
            return Err(-p as c_int);
        }
        let done = real::raw(libc::SYS_dup3, [p as usize, fd as usize, keep as usize, 0, 0, 0]);
        real::raw(libc::SYS_close, [p as usize, 0, 0, 0, 0, 0]);
        if done < 0 {
            return Err(-done as c_int);
        }
    }
    Ok(())
}

/// The kernel's descriptor becomes one of ours, if the file is to be.  None: it stays as it is.
fn adopt(fd: c_int, path: &CStr, flags: c_int) -> Option<Result<(), c_int>> {
    let config = state::config()?;
    let (id, size) = which::regular(fd)?;
    let real = which::path_of(fd)?;
    let is = config.may_be(path) && config.is(path, &real);
    if !is && !state::is_open(id) {
        return None;
    }
    let shown = real.to_string_lossy();
    if !state::is_open(id) && goes_past(fd, id) && !planted::is(Planted::PlainBeside) {
        once(
            About::Open,
            format_args!(
                "open of {shown} is refused: it is open by a descriptor that goes past the pool's \
                 memory (stdio, mkstemp, inherited); close that before, or leave it out of --files"
            ),
        );
        return Some(Err(libc::EBUSY));
    }
    // First: if it fails nothing has happened yet.
    match state::open(fd, id, size, &real, flags) {
        Ok(()) => {}
        // What cannot be written here is complete where it is.
        Err(Refusal::Error(forebay_map::Error::System { error, .. }))
            if flags & libc::O_ACCMODE == libc::O_RDONLY
                && matches!(
                    error.raw_os_error(),
                    Some(libc::EACCES | libc::EROFS | libc::EPERM)
                ) =>
        {
            return None;
        }
        Err(Refusal::Error(e)) => {
            once(About::Open, format_args!("open of {shown} is refused: {e}"));
            return Some(Err(state::errno_of(&e)));
        }
        Err(Refusal::Errno(errno)) => return Some(Err(errno)),
    }
    if let Err(errno) = make_deaf(fd, flags) {
        let _ = state::take(fd);
        return Some(Err(errno));
    }
    if flags & libc::O_TRUNC != 0 {
        if let Some(desc) = state::desc(fd) {
            if let Err(errno) = desc.file.call(About::Io, |map| match map.size() {
                0 => Ok(()),
                _ => map.set_size(0),
            }) {
                let _ = state::take(fd);
                return Some(Err(errno));
            }
        }
    }
    Some(Ok(()))
}

/// A program that has its input or output from one that maps files, as a shell gives it: it is a
/// descriptor with which the kernel does nothing.
pub fn tell_inherited() {
    for fd in 0..3 {
        // SAFETY: it only asks.
        let flags = unsafe {
            real::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0])
        };
        if flags >= 0 && flags & libc::O_PATH as isize != 0 && which::regular(fd).is_some() {
            let path = which::path_of(fd).unwrap_or_default();
            once(
                About::Child,
                format_args!(
                    "descriptor {fd} is {}, which the program that started this one has mapped: it \
                     can be neither read nor written here (EBADF); have this program open it by itself",
                    path.to_string_lossy()
                ),
            );
        }
    }
}

/// Descriptors that threads have opened and that are not ours yet.
static COMING: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

struct Coming(c_int);

impl Coming {
    fn new(fd: c_int) -> Coming {
        state::inside(|| state::lock(&COMING).push(fd));
        Coming(fd)
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        state::inside(|| state::lock(&COMING).retain(|&fd| fd != self.0));
    }
}

/// Whether the process has a descriptor of the file by which it can write past us.
fn goes_past(own: c_int, id: (u64, u64)) -> bool {
    let writes = |fd: c_int| {
        // SAFETY: it only asks.
        let flags = unsafe {
            real::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0])
        };
        let mode = flags as c_int & (libc::O_ACCMODE | libc::O_PATH);
        flags >= 0 && (mode == libc::O_WRONLY || mode == libc::O_RDWR)
    };
    let is = |fd: c_int| {
        let coming = state::lock(&COMING).contains(&fd);
        let of = !coming && fd != own && !state::is_ours(fd);
        of && writes(fd) && which::regular(fd).is_some_and(|(other, _)| other == id)
    };
    let found = || {
        let all = std::fs::read_dir("/proc/self/fd").ok().into_iter().flatten().flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.into_iter().any(is)
    };
    // One that another thread is opening just now is among the coming ones in a moment.
    state::inside(|| {
        (0..20).all(|_| {
            let found = found();
            if found {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            found
        })
    })
}

/// # Safety
/// As openat(2).
pub unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    let plain = || unsafe { real::openat64(dir, path, flags, mode) };
    let Some(config) = state::config() else {
        // SAFETY: the caller's promise.
        let name = unsafe { real::text(path) };
        let refused =
            state::refused_config().zip(name).filter(|(config, name)| config.may_be(name));
        if let Some((_, name)) = refused.filter(|_| !state::is_inside()) {
            once(
                About::Open,
                format_args!(
                "{}: a child may not open such a file after its parent has opened one; open files \
                 after the fork, or run another program in the child",
                name.to_string_lossy()
            ),
            );
            return fail(libc::EBUSY);
        }
        return plain();
    };
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { real::text(path) }) else { return plain() };
    let never = libc::O_PATH | libc::O_DIRECTORY | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    if flags & never != 0 || state::is_inside() {
        return plain();
    }
    let may_be = config.may_be(name);
    if !may_be && !state::any_files() {
        return plain();
    }
    // What is truncated is not to be so behind our back.
    let known =
        may_be || (flags & libc::O_TRUNC != 0 && state::opened_at(dir, name, true).is_some());
    let kept = if known { flags & !libc::O_TRUNC } else { flags };
    // SAFETY: the caller's promise.
    let fd = unsafe { real::openat64(dir, path, kept, mode) };
    if fd < 0 {
        return fd;
    }
    let _coming = Coming::new(fd);
    let closed = |errno| {
        // SAFETY: it is the one that was opened here.
        unsafe { real::close(fd) };
        fail(errno)
    };
    match adopt(fd, name, flags) {
        Some(Ok(())) => fd,
        Some(Err(errno)) => closed(errno),
        None => {
            // SAFETY: as above.
            let cut = || unsafe { real::ftruncate64(fd, 0) };
            match kept != flags && flags & libc::O_ACCMODE != libc::O_RDONLY && cut() != 0 {
                true => closed(real::errno()),
                false => fd,
            }
        }
    }
}

macro_rules! opens {
    ($($name:ident $at:ident;)+) => {$(
        /// # Safety
        /// As open(2); `mode` is not looked at where that has none.
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
        /// # Safety
        /// As openat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $at(d: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(d, path, flags, mode) }
        }
    )+};
}
opens! {
    open openat;
    open64 openat64;
}

macro_rules! checked_opens {
    ($($name:ident $at:ident;)+) => {$(
        /// # Safety
        /// As open(2), which programs with _FORTIFY_SOURCE call so.
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
        }
        /// # Safety
        /// As openat(2), likewise.
        #[no_mangle]
        pub unsafe extern "C" fn $at(d: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(d, path, flags, 0) }
        }
    )+};
}
checked_opens! {
    __open_2 __openat_2;
    __open64_2 __openat64_2;
}

macro_rules! creats {
    ($($name:ident)+) => {$(
        /// # Safety
        /// As creat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            // SAFETY: the caller's promise.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
    )+};
}
creats!(creat creat64);

/// # Safety
/// Null, or it ends with a zero byte.
unsafe fn stdio_refused(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let name = unsafe { real::text(path) };
    let Some(file) = name.and_then(|name| state::opened_at(libc::AT_FDCWD, name, true)) else {
        return false;
    };
    once(
        About::Stdio,
        format_args!(
        "{}: fopen of a file that is open by a descriptor: stdio would read and write past the \
         memory that it is mapped onto; close it before, or leave it out of --files",
        file.path.display()
    ),
    );
    true
}

macro_rules! stdio {
    ($($open:ident $reopen:ident;)+) => {$(
        /// # Safety
        /// As fopen(3).
        #[no_mangle]
        pub unsafe extern "C" fn $open(path: *const c_char, how: *const c_char) -> *mut FILE {
            // SAFETY: the caller's promise.
            unsafe {
                if stdio_refused(path) {
                    fail::<c_int>(libc::EBUSY);
                    return std::ptr::null_mut();
                }
                real::fopen64(path, how).unwrap_or(std::ptr::null_mut())
            }
        }
        /// # Safety
        /// As freopen(3).
        #[no_mangle]
        pub unsafe extern "C" fn $reopen(path: *const c_char, how: *const c_char, file: *mut FILE) -> *mut FILE {
            // SAFETY: the caller's promise.
            unsafe {
                if stdio_refused(path) {
                    fail::<c_int>(libc::EBUSY);
                    return std::ptr::null_mut();
                }
                real::freopen64(path, how, file).unwrap_or(std::ptr::null_mut())
            }
        }
    )+};
}
stdio! {
    fopen freopen;
    fopen64 freopen64;
}

/// # Safety
/// As fdopen(3).
#[no_mangle]
pub unsafe extern "C" fn fdopen(fd: c_int, how: *const c_char) -> *mut FILE {
    if let Some(desc) = state::desc(fd) {
        once(
            About::Stdio,
            format_args!(
            "{}: fdopen: stdio would read and write past the memory that it is mapped onto; leave \
             it out of --files",
            desc.file.path.display()
        ),
        );
        fail::<c_int>(libc::EINVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { real::fdopen(fd, how).unwrap_or(std::ptr::null_mut()) }
}
