// SPDX-License-Identifier: MIT OR Apache-2.0
//! open and its relatives, and stdio, which reads and writes without the library.
//!
//! The program gets an O_PATH descriptor for a file of ours, with which the kernel does
//! nothing.  What the program may do is asked of the kernel by faccessat2(2): a real open would
//! break our own lease of the file (`lease.rs`).  A file that has to be made is opened for a
//! moment.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use libc::{mode_t, FILE};

use crate::child;
use crate::config::Config;
use crate::guarded;
use crate::mapped::errno_of;
use crate::places;
use crate::real::{self, fail};
use crate::say::{once, About};
use crate::signals::{self, hold};
use crate::state::{self, Refusal};
use crate::which;
use crate::who::{judged, may};

/// How the program identifies a file.
#[derive(Clone, Copy)]
pub enum Named<'a> {
    /// openat(2), with the extra arguments of openat2(2).
    Path { dir: c_int, path: &'a CStr, resolve: u64 },
    /// open_by_handle_at(2).
    Handle { mount: c_int, handle: *mut c_void },
}

impl Named<'_> {
    /// Returns a descriptor or a negative errno.
    ///
    /// # Safety
    /// The contract of the system call applies.
    unsafe fn open(&self, flags: c_int, mode: mode_t) -> isize {
        let at = |dir: c_int, second: usize| [dir as usize, second, flags as usize, 0, 0, 0];
        // SAFETY: the caller's promise; the path ends with a zero byte.
        unsafe {
            match *self {
                Named::Path { dir, path, resolve: 0 } => {
                    let mut a = at(dir, path.as_ptr().addr());
                    a[3] = mode as usize;
                    real::raw(libc::SYS_openat, a)
                }
                Named::Path { dir, path, resolve } => {
                    let makes = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
                    let how = [flags as u32 as u64, if makes { mode.into() } else { 0 }, resolve];
                    let a = [dir as usize, path.as_ptr().addr(), how.as_ptr().addr(), 24, 0, 0];
                    real::raw(libc::SYS_openat2, a)
                }
                Named::Handle { mount, handle } => {
                    real::raw(libc::SYS_open_by_handle_at, at(mount, handle.addr()))
                }
            }
        }
    }

    fn name(&self) -> Option<&CStr> {
        match self {
            Named::Path { path, .. } => Some(path),
            Named::Handle { .. } => None,
        }
    }
}

fn owned(fd: isize) -> Result<OwnedFd, c_int> {
    match c_int::try_from(fd) {
        // SAFETY: it was opened just now, and no one else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(-fd as c_int),
    }
}

/// Replaces a descriptor of the file by one with which the kernel does nothing.
fn make_deaf(fd: c_int, flags: c_int) -> Result<(), c_int> {
    let link = format!("/proc/thread-self/fd/{fd}\0");
    let keep = flags & libc::O_CLOEXEC;
    let deaf = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    // SAFETY: the path ends with a zero byte; the descriptors are ours.
    unsafe {
        let a = [libc::AT_FDCWD as usize, link.as_ptr().addr(), deaf, 0, 0, 0];
        let p = owned(real::raw(libc::SYS_openat, a))?;
        let a = [p.as_raw_fd() as usize, fd as usize, keep as usize, 0, 0, 0];
        match real::raw(libc::SYS_dup3, a) {
            e @ ..=-1 => Err(-e as c_int),
            _ => Ok(()),
        }
    }
}

/// Whether an existing file with this name is to be mapped.
fn is_chosen(config: &Config, named: &Named<'_>, real: &CStr) -> bool {
    let name = named.name().unwrap_or(real);
    config.may_be(name) && config.is(name, real)
}

fn refuse(what: &CStr, why: &str) -> c_int {
    once(About::Open, format_args!("open of {} is refused: {why}", what.to_string_lossy()));
    libc::EBUSY
}

/// Makes a descriptor with which the kernel does nothing one of the mapped file.  None: the
/// file is to be opened plainly.
fn adopt(
    fd: c_int,
    id: (u64, u64),
    size: u64,
    real: &CStr,
    flags: c_int,
) -> Option<Result<(), c_int>> {
    if fd <= 2 {
        let why = "as descriptor 0, 1 or 2 it would be read and written by stdio, past the memory \
                   that it is mapped onto; open /dev/null there, or leave it out of --files";
        return Some(Err(refuse(real, why)));
    }
    let config = child::config()?;
    if signals::in_handler() && !state::is_open(id) {
        let why = "a handler of a signal opens it, which would need threads and memory that the \
                   code may have which it has interrupted; open it before";
        return Some(Err(refuse(real, why)));
    }
    if config.shared && !state::is_open(id) && which::writes_plainly(id) {
        let why = "it is open by a descriptor that goes past the pool's memory (stdio, mkstemp, \
                   inherited); close that before, or leave it out of --files";
        return Some(Err(refuse(real, why)));
    }
    match state::open(fd, id, size, real, flags) {
        Ok(()) => {}
        // A file that this process cannot write is complete where it is.  One that it cannot read
        // is written there.
        Err(Refusal::Error(forebay_map::Error::System { error, .. }))
            if matches!(
                (flags & libc::O_ACCMODE, error.raw_os_error()),
                (libc::O_RDONLY, Some(libc::EACCES | libc::EROFS | libc::EPERM))
                    | (libc::O_WRONLY, Some(libc::EACCES))
            ) =>
        {
            return None;
        }
        Err(Refusal::Error(e)) => {
            let shown = real.to_string_lossy();
            once(About::Open, format_args!("open of {shown} is refused: {e}"));
            return Some(Err(errno_of(&e)));
        }
        Err(Refusal::Errno(errno)) => return Some(Err(errno)),
        Err(Refusal::Replaced) => return Some(Err(REPLACED)),
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

/// Makes a file that does not exist yet and has it open plainly for a moment.  None: the file
/// exists by now, or is to be opened plainly.
///
/// Another process may make the file meanwhile and have a lease of it, which an open would break.
/// So the file is made with an open that fails if it exists (O_EXCL). That also fails if the name
/// is a dangling link.  Then the open is one that does not wait (O_NONBLOCK). The kernel refuses
/// such an open while there is a lease, and the holder of the lease can tell it from others.
///
/// # Safety
/// The contract of the system call applies.
unsafe fn create(config: &Config, named: &Named<'_>, flags: c_int, mode: mode_t) -> Made {
    let how = flags & !libc::O_TRUNC;
    // SAFETY: the caller guarantees it.
    let mut made = owned(unsafe { named.open(how | libc::O_EXCL, mode) });
    if matches!(made, Err(libc::EEXIST)) && flags & libc::O_EXCL == 0 && is_link(named) {
        // SAFETY: the caller guarantees it.
        made = owned(unsafe { named.open(how | libc::O_NONBLOCK, mode) });
        if let (Ok(fd), 0) = (&made, flags & libc::O_NONBLOCK) {
            let set = [fd.as_raw_fd() as usize, libc::F_SETFL as usize, how as usize, 0, 0, 0];
            // SAFETY: it takes numbers.
            unsafe { real::raw(libc::SYS_fcntl, set) };
        }
    }
    let fd = match made {
        Ok(fd) => fd,
        Err(libc::EEXIST | libc::EWOULDBLOCK) if flags & libc::O_EXCL == 0 => {
            return Made::Meanwhile
        }
        Err(errno) => return Made::Here(Err(errno)),
    };
    let of = which::regular(fd.as_raw_fd()).zip(which::path_of(fd.as_raw_fd()));
    let is_ours = |real: &CStr| is_chosen(config, named, real) && which::is_stored(fd.as_raw_fd());
    let Some(((id, size), real)) = of.filter(|(_, real)| is_ours(real)) else {
        // Another process has made it meanwhile.
        let cuts = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
        // SAFETY: the descriptor was opened here.
        if cuts && unsafe { real::ftruncate64(fd.as_raw_fd(), 0) } != 0 {
            return Made::Here(Err(real::errno()));
        }
        return Made::Here(Ok(fd.into_raw_fd()));
    };
    // The library could not open it by its name.  This descriptor has rights that its mode denies.
    if judged(fd.as_raw_fd(), c"", libc::R_OK | libc::W_OK, libc::AT_EMPTY_PATH).is_err() {
        return Made::Here(Ok(fd.into_raw_fd()));
    }
    if let Err(errno) = make_deaf(fd.as_raw_fd(), flags) {
        return Made::Here(Err(errno));
    }
    match adopt(fd.as_raw_fd(), id, size, &real, flags) {
        Some(Ok(())) => Made::Here(Ok(fd.into_raw_fd())),
        Some(Err(errno)) => Made::Here(Err(errno)),
        None => {
            drop(fd);
            // SAFETY: the caller guarantees it.
            let plain = unsafe { named.open(flags & !(libc::O_CREAT | libc::O_EXCL), 0) };
            Made::Here(owned(plain).map(IntoRawFd::into_raw_fd))
        }
    }
}

/// The result of opening a file that did not exist.
enum Made {
    /// The descriptor, or the reason why it could not be opened.
    Here(Result<c_int, c_int>),
    /// Another process has made it.
    Meanwhile,
}

fn is_link(named: &Named<'_>) -> bool {
    let Named::Path { dir, path, .. } = named else { return false };
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    // SAFETY: both are valid for the call.
    let done = unsafe {
        let at = [*dir as usize, path.as_ptr().addr(), (&raw mut st).addr(), flags, 0, 0];
        real::raw(libc::SYS_newfstatat, at)
    };
    done == 0 && st.st_mode & libc::S_IFMT == libc::S_IFLNK
}

/// Other processes may make, remove and replace a file all the time.
const TRIES: usize = 100;

/// In place of an errno: another process has replaced the file meanwhile.  ESTALE is what a file
/// system of the network says of a file that it does not know any more.
const REPLACED: c_int = -1;

/// Opens a file for the program.  None: the file is to be opened without the library.
///
/// # Safety
/// The contract of the system call applies.
unsafe fn attach(
    config: &Config,
    named: &Named<'_>,
    flags: c_int,
    mode: mode_t,
) -> Option<Result<c_int, c_int>> {
    let mut tries = 0;
    loop {
        // SAFETY: the caller guarantees it.
        match unsafe { attach_once(config, named, flags, mode) } {
            // Another file has its name by now.  A file that this call has made is not made again.
            Some(Err(REPLACED)) if flags & libc::O_EXCL == 0 && tries < TRIES => tries += 1,
            Some(Err(REPLACED)) => {
                let why = "other processes replace it all the time; leave it out of --files";
                return Some(Err(refuse(named.name().unwrap_or(c"a file"), why)));
            }
            done => return done,
        }
    }
}

/// Like `attach`.  May return [`REPLACED`].
///
/// # Safety
/// The contract of the system call applies.
unsafe fn attach_once(
    config: &Config,
    named: &Named<'_>,
    flags: c_int,
    mode: mode_t,
) -> Option<Result<c_int, c_int>> {
    let _busy = hold();
    let looks = libc::O_PATH | flags & (libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let mut tries = 0;
    let fd = loop {
        // SAFETY: the caller guarantees it.
        match owned(unsafe { named.open(looks, 0) }) {
            Ok(fd) => break fd,
            Err(libc::ENOENT) if flags & libc::O_CREAT != 0 => {
                if named.name().is_none_or(|name| !config.may_be(name)) {
                    return None;
                }
                // SAFETY: the caller guarantees it.
                match unsafe { create(config, named, flags, mode) } {
                    Made::Here(opened) => return Some(opened),
                    Made::Meanwhile if tries < TRIES => tries += 1,
                    Made::Meanwhile => return Some(Err(libc::EBUSY)),
                }
            }
            Err(_) => return None,
        }
    };
    let (id, size) = which::regular(fd.as_raw_fd())?;
    let real = which::path_of(fd.as_raw_fd());
    let is_known = state::is_open(id);
    let real = match real {
        _ if is_known => real.unwrap_or_default(),
        Some(real) if is_chosen(config, named, &real) && which::is_stored(fd.as_raw_fd()) => real,
        None if named.name().is_none_or(|name| config.may_be(name)) => {
            let why = "where it is cannot be told, since there is no /proc: mount it there, or \
                       leave it out of --files";
            return Some(Err(refuse(named.name().unwrap_or(c"a file"), why)));
        }
        _ => return None,
    };
    if !is_known && !state::has_its_root() {
        let why = "the program has another root directory than at its start (chroot), and after a \
                   crash the file would be sought at that name below the first one; open it before, \
                   or leave it out of --files";
        return Some(Err(refuse(&real, why)));
    }
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Some(Err(libc::EEXIST));
    }
    match may(fd.as_raw_fd(), flags) {
        Ok(()) => {}
        Err(errno) if is_known => return Some(Err(errno)),
        Err(_) => return None,
    }
    match adopt(fd.as_raw_fd(), id, size, &real, flags) {
        Some(Ok(())) => Some(Ok(fd.into_raw_fd())),
        Some(Err(errno)) => Some(Err(errno)),
        None => None,
    }
}

/// # Safety
/// The contract of the system call applies; `plain` opens the file without the library.
pub unsafe fn open_named(
    named: &Named<'_>,
    flags: c_int,
    mode: mode_t,
    plain: impl Fn() -> c_int,
) -> c_int {
    let may_be = |config: &Config| named.name().is_none_or(|name| config.may_be(name));
    let Some(config) = child::config() else {
        let name = named.name().unwrap_or(c"a file");
        let refused = child::refused_config().is_some_and(|c| named.name().is_some() && may_be(c));
        if refused && !guarded::is_inside() {
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
    let never = libc::O_PATH | libc::O_DIRECTORY | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    if flags & never != 0 || guarded::is_inside() || !(places::any_files() || may_be(config)) {
        return plain();
    }
    signals::cancellation_point();
    // SAFETY: the caller guarantees it.
    match unsafe { attach(config, named, flags, mode) } {
        Some(Ok(fd)) => fd,
        Some(Err(errno)) => fail(errno),
        None => plain(),
    }
}

/// # Safety
/// The contract of openat(2) applies.
pub unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        let plain = || real::openat64(dir, path, flags, mode);
        match real::text(path) {
            Some(path) => open_named(&Named::Path { dir, path, resolve: 0 }, flags, mode, plain),
            None => plain(),
        }
    }
}

/// # Safety
/// The contract of openat2(2) applies.
pub unsafe fn open_how(dir: c_int, path: *const c_char, how: *const u64, len: usize) -> c_int {
    let a = [dir as usize, path.addr(), how.addr(), len, 0, 0];
    // SAFETY: the caller guarantees it.
    unsafe {
        let plain = || real::told(real::raw(libc::SYS_openat2, a)) as c_int;
        // Any other length is wrong or of a later kernel.
        let (Some(path), 24) = (real::text(path), len) else { return plain() };
        let [flags, mode, resolve] = [how.read(), how.add(1).read(), how.add(2).read()];
        match c_int::try_from(flags) {
            Ok(flags) => {
                open_named(&Named::Path { dir, path, resolve }, flags, mode as mode_t, plain)
            }
            Err(_) => plain(),
        }
    }
}

/// # Safety
/// The contract of open_by_handle_at(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn open_by_handle_at(
    mount: c_int,
    handle: *mut c_void,
    flags: c_int,
) -> c_int {
    let a = [mount as usize, handle.addr(), flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    unsafe {
        let plain = || real::told(real::raw(libc::SYS_open_by_handle_at, a)) as c_int;
        open_named(&Named::Handle { mount, handle }, flags, 0, plain)
    }
}

macro_rules! opens {
    ($($name:ident $at:ident;)+) => {$(
        /// # Safety
        /// The contract of open(2); `mode` is ignored if the flags need none applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller guarantees it.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
        /// # Safety
        /// The contract of openat(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $at(d: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller guarantees it.
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
        /// The contract of open(2).  Programs with _FORTIFY_SOURCE call this function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller guarantees it.
            unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
        }
        /// # Safety
        /// The contract of openat(2), likewise applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $at(d: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller guarantees it.
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
        /// The contract of creat(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            // SAFETY: the caller guarantees it.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
    )+};
}
creats!(creat creat64);

/// # Safety
/// Null, or it ends with a zero byte.
unsafe fn stdio_refused(path: *const c_char) -> bool {
    // SAFETY: the caller guarantees it.
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
        /// The contract of fopen(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $open(path: *const c_char, how: *const c_char) -> *mut FILE {
            // SAFETY: the caller guarantees it.
            unsafe {
                if stdio_refused(path) {
                    fail::<c_int>(libc::EBUSY);
                    return std::ptr::null_mut();
                }
                real::fopen64(path, how).unwrap_or(std::ptr::null_mut())
            }
        }
        /// # Safety
        /// The contract of freopen(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $reopen(path: *const c_char, how: *const c_char, file: *mut FILE) -> *mut FILE {
            // SAFETY: the caller guarantees it.
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
/// The contract of fdopen(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, how: *const c_char) -> *mut FILE {
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
    // SAFETY: the caller guarantees it.
    unsafe { real::fdopen(fd, how).unwrap_or(std::ptr::null_mut()) }
}
