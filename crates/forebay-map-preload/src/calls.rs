// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls on descriptors (close, duplicate, position, lock), on sizes, and on the process as a
//! whole.

use std::ffi::{c_char, c_int, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::off_t;

use crate::child;
use crate::closing;
use crate::ending;
use crate::guarded::lock;
use crate::kept;
use crate::locks;
use crate::mapped::Mapped;
use crate::places;
use crate::planted::{self, Planted};
use crate::real::{self, fail};
use crate::say::{once, About};
use crate::state::{self, Desc};
use crate::staying;
use crate::transfer::{self, Durable};
use crate::which::identity_at;
use crate::who;

pub mod controls;
pub mod modes;

/// # Safety
/// The contract of close(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    let plain = || unsafe { real::close(fd) };
    if !state::is_ours(fd) {
        return match kept::is(fd) {
            true => fail(libc::EBADF),
            false => plain(),
        };
    }
    if child::is_elsewhere() {
        state::forget_in_child(fd);
        return plain();
    }
    let taken = state::take(fd);
    let closed = plain();
    taken.map_or_else(fail, |()| closed)
}

/// # Safety
/// The contract of close_range(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 && staying::refuses_unshare() {
        return fail(libc::EBUSY);
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0
        && (places::any_files() || kept::any())
        && !child::is_elsewhere()
    {
        for fd in state::within(first, last) {
            let _ = state::take(fd);
        }
        // SAFETY: the caller guarantees it.
        let close = |(from, to)| unsafe { real::close_range(from, to, flags) };
        return match first > last {
            true => fail(libc::EINVAL),
            false => kept::others(first, last).map(close).min().unwrap_or(0),
        };
    }
    // SAFETY: the caller guarantees it.
    unsafe { real::close_range(first, last, flags) }
}

/// # Safety
/// The contract of closefrom(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: the caller guarantees it.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}

/// Handles a descriptor of the kernel that was made from another one.
fn duplicated(desc: Option<state::Held>, new: c_int) -> c_int {
    let Some(desc) = desc.filter(|_| new >= 0 && !planted::is(Planted::DupForgotten)) else {
        return new;
    };
    let undo = |errno| {
        // dup2(2) has closed what the number was before.
        let _ = state::take(new);
        // SAFETY: it was made just now.
        unsafe { real::close(new) };
        fail(errno)
    };
    if new <= 2 {
        refuse_stdio(&desc, new);
        return undo(libc::EBUSY);
    }
    match child::is_elsewhere() {
        true => new,
        false => state::put(new, desc.desc()).map_or_else(undo, |()| new),
    }
}

fn refuse_stdio(desc: &Desc, as_fd: c_int) {
    once(
        About::Stdio,
        format_args!(
            "{}: to have it as descriptor {as_fd} is refused: stdio would read and write past the \
             memory that it is mapped onto, and lose that; leave it out of --files",
            desc.file.path.display()
        ),
    );
}

/// # Safety
/// The contract of dup(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let desc = state::desc(fd);
    // SAFETY: the caller guarantees it.
    duplicated(desc, unsafe { real::dup(fd) })
}

/// # Safety
/// The contract of dup3(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let desc = state::desc(fd);
    if fd != to && kept::is(to) {
        once(
            About::Ours,
            format_args!(
                "a duplicate as descriptor {to} is refused: it is one of the library's, which has \
                 those from three quarters of ulimit -n on; raise it"
            ),
        );
        return fail(libc::EBUSY);
    }
    if let Some(desc) = desc.as_ref().filter(|_| fd != to && (0..3).contains(&to)) {
        // The number keeps its present file.
        refuse_stdio(desc, to);
        return fail(libc::EBUSY);
    }
    let replaces = fd != to && state::is_ours(to) && !child::is_elsewhere();
    // SAFETY: the caller guarantees it.
    let new = unsafe { real::dup3(fd, to, flags) };
    if new >= 0 && fd != to {
        state::forget_in_child(to);
        if replaces && desc.is_none() {
            // No one can get its error, as for the close(2) within dup2(2).
            let _ = state::take(to);
        }
    }
    duplicated(desc, new)
}

/// # Safety
/// The contract of dup2(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        match fd == to {
            true if real::fcntl64(fd, libc::F_GETFD, 0) < 0 => -1,
            true => fd,
            false => dup3(fd, to, 0),
        }
    }
}

/// # Safety
/// The contract of fcntl(2) applies, for a descriptor of ours.
unsafe fn control(desc: &Desc, fd: c_int, what: c_int, arg: usize) -> c_int {
    const CHANGED: c_int = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_ASYNC;
    match what {
        libc::F_GETFL => desc.flags.load(Ordering::Relaxed),
        libc::F_SETFL => {
            let change = |flags: c_int| Some(flags & !CHANGED | arg as c_int & CHANGED);
            let _ = desc.flags.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
            0
        }
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => {
            let lock: *mut libc::flock = std::ptr::with_exposed_provenance_mut(arg);
            // SAFETY: the caller guarantees it.
            let Some(lock) = (unsafe { lock.as_mut() }) else { return fail(libc::EFAULT) };
            // flock has this rule, too: no other process has the file, and nobody keeps two
            // descriptions apart.  An unlock conflicts with nothing.
            let is_alone = state::descriptions(&desc.file) == 1
                || what != libc::F_OFD_GETLK && lock.l_type == libc::F_UNLCK as i16;
            if is_alone && !desc.file.locks.are_shared() {
                return locks::record(desc, what, lock);
            }
            refuse_lock(desc);
            fail(libc::EINVAL)
        }
        libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => {
            let lock: *mut libc::flock = std::ptr::with_exposed_provenance_mut(arg);
            // SAFETY: the caller guarantees it.
            match unsafe { lock.as_mut() } {
                Some(lock) => locks::record(desc, what, lock),
                None => fail(libc::EFAULT),
            }
        }
        // The program could not set any of these: the kernel answers EBADF.
        libc::F_GETOWN | kept::F_GETSIG => 0,
        libc::F_GETLEASE => libc::F_UNLCK,
        libc::F_NOTIFY => fail(libc::ENOTDIR),
        // SAFETY: the caller guarantees it; the kernel does only harmless things with such a
        // descriptor.
        _ => unsafe { real::fcntl64(fd, what, arg) },
    }
}

fn refuse_lock(desc: &Desc) {
    once(
        About::Lock,
        format_args!(
            "{}: locks of open file descriptions (flock, F_OFD_SETLK) are not kept between \
             descriptions of one process, or between processes that share it; leave it out of --files",
            desc.file.path.display()
        ),
    );
}

macro_rules! fcntls {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of fcntl(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, what: c_int, arg: usize) -> c_int {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc(fd) else {
                    let sets = matches!(what, libc::F_SETFD | libc::F_SETFL);
                    return match sets && kept::is(fd) {
                        true => fail(libc::EBADF),
                        false => real::fcntl64(fd, what, arg),
                    };
                };
                match what {
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                        duplicated(Some(desc), real::fcntl64(fd, what, arg))
                    }
                    _ => control(&desc, fd, what, arg),
                }
            }
        }
    )+};
}
fcntls!(fcntl fcntl64);

macro_rules! lockfs {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of lockf(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, how: c_int, n: off_t) -> c_int {
            match state::desc(fd) {
                Some(desc) => locks::section(&desc, how, n),
                // SAFETY: the caller guarantees it.
                None => unsafe { real::lockf64(fd, how, n) }.unwrap_or(-1),
            }
        }
    )+};
}
lockfs!(lockf lockf64);

/// # Safety
/// The contract of flock(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn flock(fd: c_int, how: c_int) -> c_int {
    let Some(desc) = state::desc(fd) else {
        // SAFETY: the caller guarantees it.
        return unsafe { real::flock(fd, how) };
    };
    // The library holds a lock against other processes, or for those that share the file.
    if state::descriptions(&desc.file) == 1 && !desc.file.locks.are_shared() {
        return 0;
    }
    refuse_lock(&desc);
    fail(libc::EINVAL)
}

/// The file's name in /proc: the kernel does nothing with such a descriptor.
pub fn link_of(fd: c_int) -> String {
    format!("/proc/thread-self/fd/{fd}\0")
}

/// # Safety
/// The contract of fchown(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fchown(fd: c_int, user: u32, group: u32) -> c_int {
    match state::is_ours(fd) {
        // SAFETY: the name ends with a zero byte.
        true => unsafe { libc::chown(link_of(fd).as_ptr().cast(), user, group) },
        // SAFETY: the caller guarantees it.
        false => unsafe { real::fchown(fd, user, group) },
    }
}

fn seek(desc: &Desc, by: off_t, from: c_int) -> Result<off_t, c_int> {
    let mut at = lock(&desc.at);
    let size = desc.file.call(About::Io, |map| Ok(map.size()))? as off_t;
    let base = match from {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => *at as off_t,
        libc::SEEK_END => size,
        // The whole file counts as data.
        libc::SEEK_DATA | libc::SEEK_HOLE if by < 0 || by >= size => return Err(libc::ENXIO),
        libc::SEEK_DATA => 0,
        libc::SEEK_HOLE => size - by,
        _ => return Err(libc::EINVAL),
    };
    let to = base.checked_add(by).ok_or(libc::EOVERFLOW)?;
    *at = u64::try_from(to).map_err(|_| libc::EINVAL)?;
    Ok(to)
}

fn set_size(desc: &Desc, fd: c_int, size: off_t) -> Result<(), c_int> {
    let mode = desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE;
    let size = u64::try_from(size).map_err(|_| libc::EINVAL)?;
    if mode == libc::O_RDONLY {
        return Err(libc::EINVAL);
    }
    if planted::is(Planted::TruncateBypasses) {
        // SAFETY: the name ends with a zero byte.
        unsafe { real::truncate64(link_of(fd).as_ptr().cast(), size as off_t) };
        return Ok(());
    }
    resize(&desc.file, size)?;
    synced(desc, 0, u64::MAX)
}

fn resize(file: &Mapped, size: u64) -> Result<(), c_int> {
    file.make_room(size.max(1))?;
    file.call(About::Io, |map| map.set_size(size))
}

/// Zeroes a range, as far as the file reaches.
fn zero(desc: &Desc, at: u64, len: u64) -> Result<(), c_int> {
    let size = desc.file.call(About::Io, |map| Ok(map.size()))?;
    let end = at.saturating_add(len).min(size);
    let zeroes = vec![0; 1 << 20];
    let mut now = at;
    while now < end {
        let n = (end - now).min(zeroes.len() as u64);
        desc.file.call(About::Io, |map| map.write(now, &zeroes[..n as usize]))?;
        now += n;
    }
    Ok(())
}

/// Syncs after a change that is not a write, if the descriptor was opened for synchronous writes.
/// ext4 and xfs do that for fallocate.
fn synced(desc: &Desc, at: u64, len: u64) -> Result<(), c_int> {
    transfer::settle(desc, at, len, Durable::Nothing)
}

fn allocate(desc: &Desc, mode: c_int, at: off_t, len: off_t) -> Result<(), c_int> {
    const KEEP: c_int = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: c_int = libc::FALLOC_FL_ZERO_RANGE;
    if desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(libc::EBADF);
    }
    let end = at.checked_add(len).filter(|_| at >= 0 && len > 0).ok_or(libc::EINVAL)? as u64;
    if planted::is(Planted::FallocateNothing) {
        return Ok(());
    }
    let size = desc.file.call(About::Allocate, |map| Ok(map.size()))?;
    let (at, len) = (at as u64, len as u64);
    match mode {
        0 => {
            desc.file.make_room(end)?;
            desc.file.call(About::Allocate, |map| map.allocate(at, len))
        }
        KEEP if end <= size => desc.file.call(About::Allocate, |map| map.allocate(at, len)),
        ZERO => {
            desc.file.make_room(end)?;
            desc.file.call(About::Allocate, |map| map.allocate(at, len))?;
            zero(desc, at, len)
        }
        PUNCH => zero(desc, at, len),
        _ if mode == ZERO | KEEP && end <= size => zero(desc, at, len),
        // Blocks after the end, and parts that move, are not supported.
        _ => {
            once(
                About::Allocate,
                format_args!(
                "{}: fallocate with mode {mode:#x} is refused: it cannot be done to a file that \
                 is mapped onto the pool",
                desc.file.path.display()
            ),
            );
            Err(libc::EOPNOTSUPP)
        }
    }?;
    synced(desc, at, len)
}

macro_rules! sizes {
    ($($lseek:ident $ftruncate:ident $truncate:ident $fallocate:ident $posix:ident $advise:ident;)+) => {$(
        /// # Safety
        /// The contract of lseek(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $lseek(fd: c_int, by: off_t, from: c_int) -> off_t {
            match state::desc(fd) {
                // SAFETY: the caller guarantees it.
                None => unsafe { real::lseek64(fd, by, from) },
                Some(desc) => seek(&desc, by, from).unwrap_or_else(fail),
            }
        }
        /// # Safety
        /// The contract of ftruncate(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $ftruncate(fd: c_int, size: off_t) -> c_int {
            match state::desc(fd) {
                // SAFETY: the caller guarantees it.
                None => unsafe { real::ftruncate64(fd, size) },
                Some(desc) => set_size(&desc, fd, size).map_or_else(fail, |()| 0),
            }
        }
        /// # Safety
        /// The contract of truncate(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $truncate(path: *const c_char, size: off_t) -> c_int {
            // SAFETY: the caller guarantees it.
            let name = unsafe { real::text(path) };
            // SAFETY: the caller guarantees it.
            let plain = || unsafe { real::truncate64(path, size) };
            let (Some(name), Ok(new)) = (name, u64::try_from(size)) else { return plain() };
            loop {
                let call = |file: &Arc<Mapped>| {
                    who::may_write(name)?;
                    resize(file, new)
                };
                if let Some(done) = state::call_at(libc::AT_FDCWD, name, true, call) {
                    return done.map_or_else(fail, |()| 0);
                }
                // Another thread may open it meanwhile.
                if let Some(done) = state::truncate_closed(name, plain) {
                    return done;
                }
            }
        }
        /// # Safety
        /// The contract of fallocate(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $fallocate(fd: c_int, mode: c_int, at: off_t, n: off_t) -> c_int {
            match state::desc(fd) {
                // SAFETY: the caller guarantees it.
                None => unsafe { real::fallocate64(fd, mode, at, n) },
                Some(desc) => allocate(&desc, mode, at, n).map_or_else(fail, |()| 0),
            }
        }
        /// # Safety
        /// The contract of posix_fallocate(3) applies: the function returns the error.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $posix(fd: c_int, at: off_t, n: off_t) -> c_int {
            match state::desc(fd) {
                // SAFETY: the caller guarantees it.
                None => unsafe { real::posix_fallocate64(fd, at, n) }.unwrap_or(libc::ENOSYS),
                Some(desc) => allocate(&desc, 0, at, n).err().unwrap_or(0),
            }
        }
        /// # Safety
        /// The contract of posix_fadvise(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $advise(fd: c_int, at: off_t, n: off_t, advice: c_int) -> c_int {
            if state::is_ours(fd) {
                let is_known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
                return if is_known && n >= 0 { 0 } else { libc::EINVAL };
            }
            let a = [fd as usize, at as usize, n as usize, advice as usize, 0, 0];
            // SAFETY: it changes no memory.
            -(unsafe { real::raw(libc::SYS_fadvise64, a) } as c_int)
        }
    )+};
}
sizes! {
    lseek ftruncate truncate fallocate posix_fallocate posix_fadvise;
    lseek64 ftruncate64 truncate64 fallocate64 posix_fallocate64 posix_fadvise64;
}

// The names of open files.  After a crash the pool's pages of a file are sought under the name by which
// it was opened.  So a call that leaves an open file under another name only is refused.  A file that
// has no other name may be removed.

/// Whether a name is the one by which the pool knows the file.  The directory may have another name
/// by now.
fn is_known_by(file: &Mapped, dir: c_int, name: &CStr) -> bool {
    let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    if name.file_name() != file.path.file_name() {
        return false;
    }
    let of = |dir: c_int, path: &Path| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        let above = CString::new(above.as_os_str().as_bytes()).ok()?;
        identity_at(dir, &above, 0)
    };
    of(libc::AT_FDCWD, &file.path).is_none_or(|known| of(dir, name) == Some(known))
}

/// A file that has other names, too.
fn has_more_names(dir: c_int, name: &CStr) -> bool {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    let a = [dir as usize, name.as_ptr().addr(), (&raw mut st).addr(), flags, 0, 0];
    // SAFETY: both are there for the call.
    unsafe { real::raw(libc::SYS_newfstatat, a) == 0 && st.st_nlink > 1 }
}

/// An open file that keeps other names when this one is removed.
fn loses_its_name(dir: c_int, name: &CStr) -> Option<Arc<Mapped>> {
    let file = state::opened_at(dir, name, false)?;
    (has_more_names(dir, name) && is_known_by(&file, dir, name)).then_some(file)
}

fn refuse_name(file: &Mapped, what: &str) -> c_int {
    once(
        About::Rename,
        format_args!(
            "{}: to {what} a file that is open is refused: after a crash its pages would be sought \
             under the old name; close it before, or leave it out of --files",
            file.path.display()
        ),
    );
    fail(libc::EBUSY)
}

/// # Safety
/// The contract of renameat2(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn renameat2(
    from: c_int,
    a: *const c_char,
    to: c_int,
    b: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let (first, second) = unsafe { (real::text(a), real::text(b)) };
    if let Some(file) = first.and_then(|name| state::opened_at(from, name, false)) {
        return refuse_name(&file, "rename");
    }
    let second = second.filter(|_| !planted::is(Planted::SecondNameFree));
    // Each gets the name of the other, or the second one loses its name, or the kernel refuses.
    let other = second.and_then(|name| match flags {
        libc::RENAME_NOREPLACE => None,
        _ if flags & libc::RENAME_EXCHANGE != 0 => state::opened_at(to, name, false),
        _ => loses_its_name(to, name),
    });
    if let Some(file) = other {
        return refuse_name(&file, "rename");
    }
    // SAFETY: the caller guarantees it.
    unsafe { real::renameat2(from, a, to, b, flags) }
}

/// # Safety
/// The contract of renameat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn renameat(
    d: c_int,
    a: *const c_char,
    e: c_int,
    b: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { renameat2(d, a, e, b, 0) }
}

/// # Safety
/// The contract of rename(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn rename(a: *const c_char, b: *const c_char) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { renameat2(libc::AT_FDCWD, a, libc::AT_FDCWD, b, 0) }
}

/// # Safety
/// The contract of unlinkat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    let name = unsafe { real::text(path) };
    let name = name.filter(|_| flags == 0 && !planted::is(Planted::SecondNameFree));
    if let Some(file) = name.and_then(|name| loses_its_name(dir, name)) {
        return refuse_name(&file, "remove the name of");
    }
    let a = [dir as usize, path.addr(), flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    real::told(unsafe { real::raw(libc::SYS_unlinkat, a) }) as c_int
}

/// # Safety
/// The contract of unlink(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

/// # Safety
/// The contract of remove(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn remove(path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { unlinkat(libc::AT_FDCWD, path, 0) } {
        0 => 0,
        // SAFETY: the caller guarantees it.
        _ if real::errno() == libc::EISDIR => unsafe {
            unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR)
        },
        failed => failed,
    }
}

fn leave(code: c_int) -> ! {
    // No handler finds the files closed.  Nothing of the program runs any more in this thread.
    ending::block_handled();
    closing::end();
    loop {
        // SAFETY: it ends the process.
        unsafe { real::raw(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// # Safety
/// The contract of _exit(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn _exit(code: c_int) -> ! {
    leave(code)
}

/// # Safety
/// The contract of _Exit(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn _Exit(code: c_int) -> ! {
    leave(code)
}
