// SPDX-License-Identifier: MIT OR Apache-2.0
//! mmap and the calls on mappings.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::off_t;

use crate::closing;
use crate::kept;
use crate::mapped::Mapped;
use crate::planted::{self, Planted};
use crate::private;
use crate::real::{errno, fail, raw, told};
use crate::rings;
use crate::say::{once, About};
use crate::state::{self, Desc};

const PAGE: usize = forebay_map::PAGE;
const GUARD_INSTALL: c_int = 102;
const GUARD_REMOVE: c_int = 103;

fn pages(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE).filter(|&len| len > 0)
}

/// Makes a private mapping of the present content.
///
/// # Safety
/// The contract of mmap(2) applies.
unsafe fn map_privately(desc: &Desc, fd: c_int, a: [usize; 6]) -> Result<usize, c_int> {
    // The mapping of a file is the pool's memory until the file is closed, and the next mmap of
    // the file returns these addresses again.
    let fixed = a[3] as c_int & libc::MAP_FIXED != 0;
    if fixed && over(a[0], a[1]) && !planted::is(Planted::PrivateOver) {
        return Err(libc::EINVAL);
    }
    if !planted::is(Planted::PrivateStale) {
        desc.file.call(About::Sync, |map| map.sync(0, u64::MAX).and_then(|()| map.write_back()))?;
    }
    let link = format!("/proc/thread-self/fd/{fd}\0");
    // Uses the library's own descriptor: another open would break the lease of the file.
    if let Some(file) = desc.file.map().as_ref().and_then(forebay_map::MapFile::file) {
        kept::check(file.as_raw_fd()).map_err(|_| libc::EIO)?;
        // SAFETY: the caller guarantees it.
        let p = unsafe {
            raw(libc::SYS_mmap, [a[0], a[1], a[2], a[3], file.as_raw_fd() as usize, a[5]])
        };
        return match p {
            -4095..=-1 => Err(-p as c_int),
            _ => {
                let range = p as usize..p as usize + pages(a[1]).unwrap_or(PAGE);
                private::made(desc.file.id, &desc.file.path, file, range);
                Ok(p as usize)
            }
        };
    }
    // SAFETY: the path ends with a zero byte; the rest the caller guarantees.
    unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let at = [libc::AT_FDCWD as usize, link.as_ptr().addr(), flags, 0, 0, 0];
        let file = raw(libc::SYS_openat, at);
        if file < 0 {
            return Err(-file as c_int);
        }
        let p = raw(libc::SYS_mmap, [a[0], a[1], a[2], a[3], file as usize, a[5]]);
        raw(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
        match p {
            -4095..=-1 => Err(-p as c_int),
            _ => Ok(p as usize),
        }
    }
}

fn refused(desc: &Desc, what: &str, way_out: &str) -> c_int {
    once(About::Memory, format_args!("{}: {what}; {way_out}", desc.file.path.display()));
    libc::ENOTSUP
}

/// # Safety
/// The contract of mmap(2) applies.
unsafe fn map(desc: &Desc, fd: c_int, a: [usize; 6]) -> Result<usize, c_int> {
    let [_, len, prot, flags, _, offset] = a;
    let (prot, flags) = (prot as c_int, flags as c_int);
    let Some(len) = pages(len).filter(|_| offset.is_multiple_of(PAGE)) else {
        return Err(libc::EINVAL);
    };
    let mode = desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE;
    if mode == libc::O_WRONLY {
        return Err(libc::EACCES);
    }
    match flags & libc::MAP_TYPE {
        // SAFETY: the caller guarantees it.
        libc::MAP_PRIVATE => return unsafe { map_privately(desc, fd, a) },
        libc::MAP_SHARED => {}
        libc::MAP_SHARED_VALIDATE if flags & libc::MAP_SYNC == 0 => {}
        libc::MAP_SHARED_VALIDATE => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    }
    if prot & libc::PROT_WRITE != 0 && mode != libc::O_RDWR {
        return Err(libc::EACCES);
    }
    if prot & libc::PROT_EXEC != 0 {
        return Err(refused(desc, "it cannot be mapped to be executed", "leave it out of --files"));
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        let what = "it cannot be mapped at an address that the program chooses (MAP_FIXED)";
        return Err(refused(desc, what, "leave it out of --files"));
    }
    rings::none_from_now_on(&desc.file)?;
    // mmap reports a lack of address space as ENOMEM.
    desc.file.view(offset as u64, len).map_err(|errno| match errno {
        libc::EFBIG => libc::ENOMEM,
        errno => errno,
    })
}

macro_rules! maps {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of mmap(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            p: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, at: off_t,
        ) -> *mut c_void {
            let a = [p.addr(), len, prot as usize, flags as usize, fd as usize, at as usize];
            let anonymous = flags & libc::MAP_ANONYMOUS != 0;
            // SAFETY: the caller guarantees it.  A mapping over one of ours is checked first.
            unsafe {
                match state::desc(fd).filter(|_| !anonymous) {
                    Some(desc) => match map(&desc, fd, a) {
                        Ok(at) => std::ptr::with_exposed_provenance_mut(at),
                        Err(errno) => std::ptr::without_provenance_mut(fail::<isize>(errno) as usize),
                    },
                    None if flags & libc::MAP_FIXED != 0 && over(p.addr(), len) => {
                        std::ptr::without_provenance_mut(fail::<isize>(libc::EINVAL) as usize)
                    }
                    None => {
                        let done = told(raw(libc::SYS_mmap, a)) as usize;
                        if flags & libc::MAP_FIXED != 0 {
                            private::removed(p.addr(), len);
                        }
                        std::ptr::with_exposed_provenance_mut(done)
                    }
                }
            }
        }
    )+};
}
maps!(mmap mmap64);

/// The file that is mapped at an address.  None: the kernel handles the call.
fn at(address: usize, len: usize) -> Option<(Arc<Mapped>, u64)> {
    let found = state::at(address);
    if found.is_none() {
        closing::wait_within(address, len);
    }
    found
}

/// Whether a call would act on a file's mapping without the library's knowledge.
fn over(from: usize, len: usize) -> bool {
    let Some(file) = state::over(from, len) else {
        closing::wait_within(from, len);
        return false;
    };
    once(
        About::Memory,
        format_args!(
            "{}: to unmap, to map over or to change more than what mmap gave is refused; leave it \
             out of --files",
            file.path.display()
        ),
    );
    true
}

/// # Safety
/// The contract of munmap(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn munmap(p: *mut c_void, len: usize) -> c_int {
    if let Some((file, _)) = at(p.addr(), len) {
        let Some(len) = pages(len).filter(|_| p.addr().is_multiple_of(PAGE)) else {
            return fail(libc::EINVAL);
        };
        // The part after the mapping goes first: if that is refused, nothing was done.
        if let Some((rest, len)) = file.rest(p.addr(), len) {
            // SAFETY: the caller guarantees it.
            match unsafe { munmap(std::ptr::with_exposed_provenance_mut(rest), len) } {
                0 => {}
                failed => return failed,
            }
        }
        return match file.remove_views(p.addr(), len) {
            true => closing::release(&file).map_or_else(fail, |()| 0),
            false => 0,
        };
    }
    if over(p.addr(), len) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller guarantees it.
    let done = told(unsafe { raw(libc::SYS_munmap, [p.addr(), len, 0, 0, 0, 0]) }) as c_int;
    private::removed(p.addr(), len);
    done
}

/// # Safety
/// The contract of mremap(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn mremap(
    p: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    if let Some((file, _)) = at(p.addr(), old) {
        let fixed = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
        let done = match (pages(old), pages(new)) {
            (Some(old), Some(new)) if !fixed && new < old => {
                // SAFETY: the caller guarantees it.
                match unsafe { munmap(p.wrapping_byte_add(new), old - new) } {
                    0 => Ok(()),
                    _ => Err(errno()),
                }
            }
            (Some(old), Some(new)) if !fixed => file.resize_view(p.addr(), old, new),
            // Another mapping of the same pages (mremap(2)).
            (None, Some(new)) if old == 0 && !fixed && flags & libc::MREMAP_MAYMOVE != 0 => {
                file.resize_view(p.addr(), 0, new)
            }
            _ => Err(libc::EINVAL),
        };
        return match done {
            Ok(()) => p,
            Err(errno) => std::ptr::without_provenance_mut(fail::<isize>(errno) as usize),
        };
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if over(p.addr(), old) || (fixed && over(to.addr(), new)) {
        return std::ptr::without_provenance_mut(fail::<isize>(libc::EINVAL) as usize);
    }
    let a = [p.addr(), old, new, flags as usize, to.addr(), 0];
    // SAFETY: the caller guarantees it.
    let result = unsafe { raw(libc::SYS_mremap, a) };
    std::ptr::with_exposed_provenance_mut(told(result) as usize)
}

/// # Safety
/// The contract of shmat(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn shmat(id: c_int, p: *const c_void, flags: c_int) -> *mut c_void {
    // Only the kernel knows the length.
    let room = usize::MAX - p.addr();
    if flags & libc::SHM_REMAP != 0 && over(p.addr(), room) {
        return std::ptr::without_provenance_mut(fail::<isize>(libc::EINVAL) as usize);
    }
    let a = [id as usize, p.addr(), flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    std::ptr::with_exposed_provenance_mut(told(unsafe { raw(libc::SYS_shmat, a) }) as usize)
}

/// # Safety
/// The contract of msync(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn msync(p: *mut c_void, len: usize, flags: c_int) -> c_int {
    let Some((file, at)) = at(p.addr(), len) else {
        // The range may begin before a file's mapping and reach into it.
        if flags & libc::MS_SYNC != 0
            && state::over(p.addr(), len).is_some()
            && !planted::is(Planted::MsyncAcross)
        {
            if let Err(errno) = closing::sync_all() {
                return fail(errno);
            }
        }
        // SAFETY: the caller guarantees it.
        return told(unsafe { raw(libc::SYS_msync, [p.addr(), len, flags as usize, 0, 0, 0]) })
            as c_int;
    };
    let known = libc::MS_SYNC | libc::MS_ASYNC | libc::MS_INVALIDATE;
    let both = libc::MS_SYNC | libc::MS_ASYNC;
    if flags & !known != 0 || flags & both == both || !p.addr().is_multiple_of(PAGE) {
        return fail(libc::EINVAL);
    }
    let is_viewed = file.is_viewed(p.addr(), len);
    if flags & libc::MS_SYNC == 0 || len == 0 || planted::is(Planted::MsyncWithoutSync) {
        return if is_viewed { 0 } else { fail(libc::ENOMEM) };
    }
    let synced =
        file.call(About::Sync, |map| map.sync(at, (len as u64).min(map.room().saturating_sub(at))));
    match (synced, file.rest(p.addr(), len)) {
        // SAFETY: the caller guarantees it.
        (Ok(()), Some((rest, len))) => unsafe {
            match msync(std::ptr::with_exposed_provenance_mut(rest), len, flags) {
                0 if !is_viewed => fail(libc::ENOMEM),
                done => done,
            }
        },
        // What is mapped is durable, as the kernel does it.
        (Ok(()), None) if !is_viewed => fail(libc::ENOMEM),
        (Ok(()), None) => 0,
        (Err(_), _) if planted::is(Planted::GoneAcknowledged) => 0,
        (Err(errno), _) => fail(errno),
    }
}

/// None of the advice changes the content of a shared mapping, except for the two kinds that
/// are refused.
///
/// # Safety
/// The contract of madvise(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn madvise(p: *mut c_void, len: usize, advice: c_int) -> c_int {
    let Some((file, _)) = at(p.addr(), len) else {
        if over(p.addr(), len) {
            return fail(libc::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        return told(unsafe { raw(libc::SYS_madvise, [p.addr(), len, advice as usize, 0, 0, 0]) })
            as c_int;
    };
    // For no memory the kernel looks at the advice and the address alone.
    // SAFETY: it changes nothing.
    let known = unsafe { raw(libc::SYS_madvise, [p.addr(), 0, advice as usize, 0, 0, 0]) };
    let is_viewed = file.is_viewed(p.addr(), len);
    match advice {
        _ if known != 0 => told(known) as c_int,
        // The kernel refuses these for a shared mapping of a file, or did before Linux 6.15.
        libc::MADV_FREE | libc::MADV_WIPEONFORK | GUARD_INSTALL | GUARD_REMOVE if len > 0 => {
            fail(libc::EINVAL)
        }
        libc::MADV_REMOVE | libc::MADV_DOFORK => {
            once(
                About::Memory,
                format_args!(
                "{}: madvise({advice}) is refused: it would give parts of the mapping away, or to \
                 children",
                file.path.display()
            ),
            );
            fail(libc::EINVAL)
        }
        _ => match file.rest(p.addr(), len) {
            // SAFETY: the caller guarantees it.
            Some((rest, len)) => unsafe {
                match madvise(std::ptr::with_exposed_provenance_mut(rest), len, advice) {
                    0 if !is_viewed => fail(libc::ENOMEM),
                    done => done,
                }
            },
            None if !is_viewed => fail(libc::ENOMEM),
            None => 0,
        },
    }
}

/// # Safety
/// The contract of posix_madvise(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn posix_madvise(p: *mut c_void, len: usize, advice: c_int) -> c_int {
    // POSIX's DONTNEED discards nothing.  The other kinds are hints, for what follows a mapping, too.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    if at(p.addr(), len).is_some() {
        // SAFETY: the caller guarantees it.
        return match unsafe { madvise(p, len, advice) } {
            0 => 0,
            _ => errno(),
        };
    }
    // SAFETY: the caller guarantees it.  The other kinds of advice have the kernel's numbers.
    match unsafe { raw(libc::SYS_madvise, [p.addr(), len, advice as usize, 0, 0, 0]) } {
        0 => 0,
        e => -e as c_int,
    }
}

/// # Safety
/// The contract of mprotect(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn mprotect(p: *mut c_void, len: usize, prot: c_int) -> c_int {
    let Some((file, _)) = at(p.addr(), len) else {
        if over(p.addr(), len) {
            return fail(libc::EACCES);
        }
        // SAFETY: the caller guarantees it.
        return told(unsafe { raw(libc::SYS_mprotect, [p.addr(), len, prot as usize, 0, 0, 0]) })
            as c_int;
    };
    if prot == libc::PROT_READ | libc::PROT_WRITE {
        return match file.rest(p.addr(), len) {
            // SAFETY: the caller guarantees it.
            Some((rest, len)) => unsafe {
                mprotect(std::ptr::with_exposed_provenance_mut(rest), len, prot)
            },
            None => 0,
        };
    }
    once(
        About::Memory,
        format_args!(
            "{}: mprotect({prot}) of its mapping is refused: it is always one for loads and stores",
            file.path.display()
        ),
    );
    fail(libc::EACCES)
}

fn locked(p: *const c_void, len: usize) -> Option<c_int> {
    let (file, at) = at(p.addr(), len)?;
    if !file.is_viewed(p.addr(), len) {
        return Some(fail(libc::ENOMEM));
    }
    if let Some((rest, len)) = file.rest(p.addr(), len) {
        // SAFETY: it changes no memory.
        match unsafe { mlock(std::ptr::with_exposed_provenance(rest), len) } {
            0 => {}
            failed => return Some(failed),
        }
    }
    Some(match file.call(About::Lock, |map| map.lock(at, len as u64)) {
        Ok(()) => 0,
        // Reported like a limit of the system.
        Err(libc::EPERM) => fail(libc::ENOMEM),
        Err(errno) => fail(errno),
    })
}

/// # Safety
/// The contract of mlock(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn mlock(p: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller guarantees it.
    let plain = || told(unsafe { raw(libc::SYS_mlock, [p.addr(), len, 0, 0, 0, 0]) }) as c_int;
    locked(p, len).unwrap_or_else(plain)
}

/// # Safety
/// The contract of mlock2(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn mlock2(p: *const c_void, len: usize, flags: c_int) -> c_int {
    let arguments = [p.addr(), len, flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    let plain = || told(unsafe { raw(libc::SYS_mlock2, arguments) }) as c_int;
    locked(p, len).unwrap_or_else(plain)
}

/// # Safety
/// The contract of munlock(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn munlock(p: *const c_void, len: usize) -> c_int {
    if let Some((file, at)) = at(p.addr(), len) {
        if let Some((rest, len)) = file.rest(p.addr(), len) {
            // SAFETY: it changes no memory.
            match unsafe { munlock(std::ptr::with_exposed_provenance(rest), len) } {
                0 => {}
                failed => return failed,
            }
        }
        let done = file.call(About::Lock, |map| {
            map.unlock(at, len as u64);
            Ok(())
        });
        return match done {
            Ok(()) if !file.is_viewed(p.addr(), len) => fail(libc::ENOMEM),
            done => done.map_or_else(fail, |()| 0),
        };
    }
    // SAFETY: the caller guarantees it.
    told(unsafe { raw(libc::SYS_munlock, [p.addr(), len, 0, 0, 0, 0]) }) as c_int
}
