// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads, writes and syncs of descriptors.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use forebay_map::lasting::duplicate;
use libc::{iovec, off_t};

use crate::child;
use crate::closing;
use crate::direct;
use crate::extent;
use crate::given::{touch, touch_to_write, Given};
use crate::guarded::{self, lock};
use crate::limit;
use crate::places;
use crate::planted::{self, Planted};
use crate::real::{self, fail};
use crate::say::{once, About};
use crate::state::{self, Desc};

fn told(result: Result<usize, c_int>) -> isize {
    result.map_or_else(fail, |n| n as isize)
}

/// Checks the buffers of the program.
///
/// # Safety
/// `v` has `n` entries, or is null.
unsafe fn buffers<'a>(v: *const iovec, n: c_int) -> Result<&'a [iovec], c_int> {
    let n = usize::try_from(n).map_err(|_| libc::EINVAL)?;
    if n > 1024 {
        return Err(libc::EINVAL);
    }
    if n == 0 {
        return Ok(&[]);
    }
    if v.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller guarantees it.
    let all = unsafe { std::slice::from_raw_parts(v, n) };
    let total = all.iter().try_fold(0usize, |sum, b| sum.checked_add(b.iov_len));
    match total.and_then(|total| isize::try_from(total).ok()) {
        None => Err(libc::EINVAL),
        Some(_) if all.iter().any(|b| b.iov_len > 0 && b.iov_base.is_null()) => Err(libc::EFAULT),
        Some(_) => Ok(all),
    }
}

fn may(desc: &Desc, not: c_int) -> Result<(), c_int> {
    match desc.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == not {
        true => Err(libc::EBADF),
        false => Ok(()),
    }
}

/// # Safety
/// The buffers may be written.
unsafe fn read_at(desc: &Desc, all: &[iovec], at: u64) -> Result<usize, c_int> {
    may(desc, libc::O_WRONLY)?;
    let mut done = 0;
    for b in all.iter().filter(|b| b.iov_len > 0) {
        // SAFETY: the caller guarantees it.
        let to = unsafe { std::slice::from_raw_parts_mut(b.iov_base.cast::<u8>(), b.iov_len) };
        let n = read_into(desc, at + done as u64, to);
        match n {
            Ok(n) => done += n,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        if n != Ok(b.iov_len) {
            break;
        }
    }
    Ok(done)
}

/// Memory of a mapping is touched in pieces of this size, and outside of the calls of the file
/// that is read or written.  A thread that touches it while the program ends stops there, and
/// the end waits for the calls of each file.
const PIECE: usize = 1 << 20;

fn is_mapped(bytes: &[u8]) -> bool {
    extent::may_have(bytes.as_ptr().addr(), bytes.len())
}

fn read_into(desc: &Desc, at: u64, to: &mut [u8]) -> Result<usize, c_int> {
    if !is_mapped(to) {
        return desc.file.call(About::Io, |map| map.read(at, to));
    }
    let mut piece = vec![0; to.len().min(PIECE)];
    let mut done = 0;
    for to in to.chunks_mut(PIECE) {
        let piece = &mut piece[..to.len()];
        match desc.file.call(About::Io, |map| map.read(at + done as u64, piece)) {
            Ok(n) => {
                to[..n].copy_from_slice(&piece[..n]);
                done += n;
                if n < to.len() {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// An append is one piece, so a buffer of a mapping is copied as a whole.
fn copied(to: &Path, part: &[u8]) -> Result<Vec<u8>, c_int> {
    let mut copy = Vec::new();
    if copy.try_reserve_exact(part.len()).is_err() {
        once(
            About::Io,
            format_args!(
                "{}: no memory for an append of {} bytes from a mapping, which is copied before: append \
                 in smaller pieces",
                to.display(),
                part.len()
            ),
        );
        return Err(libc::ENOMEM);
    }
    copy.extend_from_slice(part);
    Ok(copy)
}

fn write_from(desc: &Desc, at: u64, from: &[u8]) -> Result<usize, c_int> {
    if !is_mapped(from) {
        return desc.file.call(About::Io, |map| map.write(at, from)).map(|()| from.len());
    }
    let mut done = 0;
    for from in from.chunks(PIECE) {
        let piece = from.to_vec();
        match desc.file.call(About::Io, |map| map.write(at + done as u64, &piece)) {
            Ok(()) => done += piece.len(),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// The place of a write: an offset, or the end.
enum Whither {
    At(u64),
    End,
}

/// The part of the file that a call makes durable before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durable {
    Nothing,
    /// As fdatasync does.
    Data,
    /// Mode, owner, attributes and names too, as fsync does.
    All,
}

impl Durable {
    /// By the flags of a descriptor.  O_SYNC has the bit of O_DSYNC, and one more.
    fn of(desc: &Desc) -> Durable {
        match desc.flags.load(Ordering::Relaxed) {
            _ if planted::is(Planted::DsyncIgnored) => Durable::Nothing,
            flags if flags & libc::O_SYNC == libc::O_SYNC => Durable::All,
            flags if flags & libc::O_DSYNC != 0 => Durable::Data,
            _ => Durable::Nothing,
        }
    }

    fn of_write(flags: c_int) -> Durable {
        match flags {
            f if f & libc::RWF_SYNC != 0 => Durable::All,
            f if f & libc::RWF_DSYNC != 0 => Durable::Data,
            _ => Durable::Nothing,
        }
    }
}

/// Makes durable what a call has changed, as its descriptor's flags and its own say.
pub fn settle(desc: &Desc, at: u64, n: u64, own: Durable) -> Result<(), c_int> {
    let durable = match Durable::of(desc).max(own) {
        Durable::All if planted::is(Planted::AttributesForgotten) => Durable::Data,
        durable => durable,
    };
    if durable == Durable::Nothing {
        return Ok(());
    }
    desc.file.call(About::Sync, |map| {
        map.sync(at, n)?;
        match durable {
            Durable::All => map.sync_attributes(),
            _ => Ok(()),
        }
    })
}

/// # Safety
/// The buffers may be read.
unsafe fn write_at(
    desc: &Desc,
    all: &[iovec],
    to: Whither,
    durable: Durable,
) -> Result<(u64, usize), c_int> {
    may(desc, libc::O_RDONLY)?;
    let flags = desc.flags.load(Ordering::Relaxed);
    let total: usize = all.iter().map(|b| b.iov_len).sum();
    let appends = matches!(to, Whither::End) || flags & libc::O_APPEND != 0;
    let size = || desc.file.call(About::Io, |map| Ok(map.size()));
    let synced = |at: u64, done: usize| {
        settle(desc, at, done as u64, durable)?;
        Ok((at, done))
    };
    let clipped = match to {
        _ if !limit::is_set() => None,
        Whither::At(at) if !appends => limit::clip(all, at, total as u64)?,
        _ => limit::clip(all, size()?, total as u64)?,
    };
    let all = clipped.as_deref().unwrap_or(all);
    let total: usize = all.iter().map(|b| b.iov_len).sum();
    let end_of = |at: u64| {
        let end = at.checked_add(total as u64).filter(|&end| end <= i64::MAX as u64);
        end.ok_or(libc::EFBIG)
    };
    let at = match to {
        Whither::At(at) if !appends => {
            desc.file.make_room(end_of(at)?)?;
            at
        }
        _ if total == 0 => size()?,
        // No other append gets this call's place.
        _ => loop {
            desc.file.make_room(end_of(size()?)?)?;
            let parts = all.iter().filter(|b| b.iov_len > 0);
            // SAFETY: the caller guarantees it.
            let parts = parts
                .map(|b| unsafe { std::slice::from_raw_parts(b.iov_base.cast::<u8>(), b.iov_len) });
            let parts: Vec<Cow<'_, [u8]>> = parts
                .map(|part| match is_mapped(part) {
                    true => copied(&desc.file.path, part).map(Cow::Owned),
                    false => Ok(Cow::Borrowed(part)),
                })
                .collect::<Result<_, _>>()?;
            let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
            let appended = desc.file.call(About::Io, |map| {
                let fits = map.size().saturating_add(total as u64) <= map.room();
                fits.then(|| map.append(&parts)).transpose()
            })?;
            if let Some((at, done)) = appended {
                return synced(at, done as usize);
            }
        },
    };
    if total == 0 {
        return Ok((at, 0));
    }
    let mut done = 0;
    for b in all.iter().filter(|b| b.iov_len > 0) {
        // SAFETY: the caller guarantees it.
        let from = unsafe { std::slice::from_raw_parts(b.iov_base.cast::<u8>(), b.iov_len) };
        let n = write_from(desc, at + done as u64, from);
        match n {
            Ok(n) => done += n,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        if n != Ok(b.iov_len) {
            break;
        }
    }
    synced(at, done)
}

fn one(p: *mut c_void, n: usize) -> Result<[iovec; 1], c_int> {
    match (p.is_null() && n > 0, isize::try_from(n)) {
        (false, Ok(_)) => Ok([iovec { iov_base: p, iov_len: n }]),
        (true, _) => Err(libc::EFAULT),
        _ => Err(libc::EINVAL),
    }
}

fn from_start(at: off_t) -> Result<u64, c_int> {
    u64::try_from(at).map_err(|_| libc::EINVAL)
}

/// The number of bytes that a read at a place can get.
fn left(desc: &Desc, at: u64) -> u64 {
    desc.file.call(About::Io, |map| Ok(map.size())).map_or(0, |size| size.saturating_sub(at))
}

/// # Safety
/// The contract of pread(2) applies.
unsafe fn read_from(desc: &Desc, all: &[iovec], at: u64) -> Result<usize, c_int> {
    // SAFETY: the caller guarantees it.
    unsafe {
        touch_to_write(all, left(desc, at));
        read_at(desc, all, at)
    }
}

/// # Safety
/// The contract of pwrite(2) applies.
unsafe fn write_to(
    desc: &Desc,
    all: &[iovec],
    to: Whither,
    durable: Durable,
) -> Result<(u64, usize), c_int> {
    // SAFETY: the caller guarantees it.
    unsafe {
        touch(all, u64::MAX);
        write_at(desc, all, to, durable)
    }
}

/// # Safety
/// The contract of read(2) applies.
unsafe fn read_on(desc: &Desc, all: Result<&[iovec], c_int>) -> isize {
    if let Ok(all) = all {
        let at = *lock(&desc.at);
        // SAFETY: the caller guarantees it.
        unsafe { touch_to_write(all, left(desc, at)) };
    }
    let mut at = lock(&desc.at);
    // SAFETY: the caller guarantees it.
    let n = all.and_then(|all| unsafe { read_at(desc, all, *at) });
    *at += n.unwrap_or(0) as u64;
    told(n)
}

/// # Safety
/// The contract of write(2) applies.
unsafe fn write_on(desc: &Desc, all: Result<&[iovec], c_int>) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe { write_on_as(desc, all, false, Durable::Nothing) }
}

/// # Safety
/// The contract of write(2) applies.
unsafe fn write_on_as(
    desc: &Desc,
    all: Result<&[iovec], c_int>,
    appends: bool,
    durable: Durable,
) -> isize {
    if let Ok(all) = all {
        // SAFETY: the caller guarantees it.
        unsafe { touch(all, u64::MAX) };
    }
    let mut at = lock(&desc.at);
    let to = match appends {
        true => Whither::End,
        false => Whither::At(*at),
    };
    // SAFETY: the caller guarantees it.
    let done = all.and_then(|all| unsafe { write_at(desc, all, to, durable) });
    // An append of nothing does not move the position to the end.
    if let Ok((from, n @ 1..)) = done {
        *at = from + n as u64;
    }
    told(done.map(|(_, n)| n))
}

/// # Safety
/// The contract of read(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, n: usize) -> isize {
    match state::desc_or_end(fd) {
        // SAFETY: the caller guarantees it.
        None => unsafe {
            direct::read(fd, Given::one(to, n), |v| real::readv(fd, v, 1))
                .unwrap_or_else(|| real::read(fd, to, n))
        },
        // SAFETY: as above.
        Some(desc) => unsafe {
            read_on(&desc, one(to, n).as_ref().map(|v| &v[..]).map_err(|e| *e))
        },
    }
}

/// # Safety
/// The contract of write(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, n: usize) -> isize {
    match state::desc_or_end(fd) {
        // SAFETY: the caller guarantees it.
        None => unsafe {
            direct::write(fd, Given::one(from, n), |v| real::writev(fd, v, 1))
                .unwrap_or_else(|| real::write(fd, from, n))
        },
        // SAFETY: as above.
        Some(desc) => unsafe {
            write_on(&desc, one(from.cast_mut(), n).as_ref().map(|v| &v[..]).map_err(|e| *e))
        },
    }
}

/// # Safety
/// The contract of readv(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn readv(fd: c_int, v: *const iovec, n: c_int) -> isize {
    match state::desc_or_end(fd) {
        // SAFETY: the caller guarantees it.
        None => unsafe {
            direct::read(fd, Given::Many(v, n as usize), |v| real::readv(fd, v, n))
                .unwrap_or_else(|| real::readv(fd, v, n))
        },
        // SAFETY: as above.
        Some(desc) => unsafe { read_on(&desc, buffers(v, n)) },
    }
}

/// # Safety
/// The contract of writev(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn writev(fd: c_int, v: *const iovec, n: c_int) -> isize {
    match state::desc_or_end(fd) {
        // SAFETY: the caller guarantees it.
        None => unsafe {
            direct::write(fd, Given::Many(v, n as usize), |v| real::writev(fd, v, n))
                .unwrap_or_else(|| real::writev(fd, v, n))
        },
        // SAFETY: as above.
        Some(desc) => unsafe { write_on(&desc, buffers(v, n)) },
    }
}

/// # Safety
/// The contract of pwrite(2) applies; it writes to the file by another descriptor.
unsafe fn bypass(desc: &Desc, from: *const c_void, n: usize, at: off_t) -> isize {
    let path = format!("{}\0", desc.file.path.display());
    // SAFETY: the path ends with a zero byte; the caller's promise.
    unsafe {
        let fd = real::openat64(libc::AT_FDCWD, path.as_ptr().cast(), libc::O_WRONLY, 0);
        let done = real::pwrite64(fd, from, n, at);
        real::close(fd);
        done
    }
}

macro_rules! positioned {
    ($($pread:ident $pwrite:ident $preadv:ident $pwritev:ident $preadv2:ident $pwritev2:ident;)+) => {$(
        /// # Safety
        /// The contract of pread(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $pread(fd: c_int, to: *mut c_void, n: usize, at: off_t) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::read(fd, Given::one(to, n), |v| real::preadv64(fd, v, 1, at))
                        .unwrap_or_else(|| real::pread64(fd, to, n, at));
                };
                told(one(to, n).and_then(|v| read_from(&desc, &v, from_start(at)?)))
            }
        }
        /// # Safety
        /// The contract of pwrite(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $pwrite(fd: c_int, from: *const c_void, n: usize, at: off_t) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::write(fd, Given::one(from, n), |v| real::pwritev64(fd, v, 1, at))
                        .unwrap_or_else(|| real::pwrite64(fd, from, n, at));
                };
                if planted::is(Planted::WriteBypasses) {
                    return bypass(&desc, from, n, at);
                }
                let done = one(from.cast_mut(), n).and_then(|v| {
                    write_to(&desc, &v, Whither::At(from_start(at)?), Durable::Nothing)
                });
                told(done.map(|(_, n)| n))
            }
        }
        /// # Safety
        /// The contract of preadv(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $preadv(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::read(fd, Given::Many(v, n as usize), |v| real::preadv64(fd, v, n, at))
                        .unwrap_or_else(|| real::preadv64(fd, v, n, at));
                };
                told(buffers(v, n).and_then(|all| read_from(&desc, all, from_start(at)?)))
            }
        }
        /// # Safety
        /// The contract of pwritev(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $pwritev(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::write(fd, Given::Many(v, n as usize), |v| real::pwritev64(fd, v, n, at))
                        .unwrap_or_else(|| real::pwritev64(fd, v, n, at));
                };
                let done = buffers(v, n).and_then(|all| {
                    write_to(&desc, all, Whither::At(from_start(at)?), Durable::Nothing)
                });
                told(done.map(|(_, n)| n))
            }
        }
        /// # Safety
        /// The contract of preadv2(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $preadv2(fd: c_int, v: *const iovec, n: c_int, at: off_t, f: c_int) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::read(fd, Given::Many(v, n as usize), |v| real::preadv64v2(fd, v, n, at, f))
                        .unwrap_or_else(|| real::preadv64v2(fd, v, n, at, f));
                };
                match (f & !libc::RWF_HIPRI, at) {
                    (0, -1) => read_on(&desc, buffers(v, n)),
                    (0, _) => told(buffers(v, n).and_then(|all| read_from(&desc, all, from_start(at)?))),
                    _ => fail(libc::EOPNOTSUPP),
                }
            }
        }
        /// # Safety
        /// The contract of pwritev2(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $pwritev2(fd: c_int, v: *const iovec, n: c_int, at: off_t, f: c_int) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                let Some(desc) = state::desc_or_end(fd) else {
                    return direct::write(fd, Given::Many(v, n as usize), |v| real::pwritev64v2(fd, v, n, at, f))
                        .unwrap_or_else(|| real::pwritev64v2(fd, v, n, at, f));
                };
                let durable = Durable::of_write(f);
                let known = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI | libc::RWF_APPEND;
                if f & !known != 0 {
                    return fail(libc::EOPNOTSUPP);
                }
                if at == -1 {
                    let all = buffers(v, n);
                    return write_on_as(&desc, all, f & libc::RWF_APPEND != 0, durable);
                }
                if at < 0 {
                    return fail(libc::EINVAL);
                }
                let to = match f & libc::RWF_APPEND {
                    0 => Whither::At(at as u64),
                    _ => Whither::End,
                };
                told(buffers(v, n).and_then(|all| write_to(&desc, all, to, durable)).map(|(_, n)| n))
            }
        }
    )+};
}
positioned! {
    pread pwrite preadv pwritev preadv2 pwritev2;
    pread64 pwrite64 preadv64 pwritev64 preadv64v2 pwritev64v2;
}

extern "C" {
    fn __chk_fail() -> !;
}

/// Programs with _FORTIFY_SOURCE call these.
///
/// # Safety
/// The contract of read(2) applies, with a buffer of `room` bytes.
#[no_mangle]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    n: usize,
    room: usize,
) -> isize {
    // SAFETY: the caller guarantees it.
    unsafe {
        match n > room {
            true => __chk_fail(),
            false => read(fd, to, n),
        }
    }
}

macro_rules! checked_preads {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of pread(2) applies, with a buffer of `room` bytes.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, to: *mut c_void, n: usize, at: off_t, room: usize) -> isize {
            // SAFETY: the caller guarantees it.
            unsafe {
                match n > room {
                    true => __chk_fail(),
                    false => pread64(fd, to, n, at),
                }
            }
        }
    )+};
}
checked_preads!(__pread_chk __pread64_chk);

fn sync_file(fd: c_int, attributes: bool) -> Option<c_int> {
    if planted::is(Planted::ChildAcknowledged) && child::is_child() && state::is_ours(fd) {
        return Some(0);
    }
    let desc = state::desc_or_end(fd)?;
    if planted::is(Planted::FsyncIgnores) {
        return Some(0);
    }
    let synced = desc.file.call(About::Sync, |map| match attributes {
        true if !planted::is(Planted::AttributesForgotten) => map.sync_file(),
        _ => map.sync(0, u64::MAX),
    });
    Some(synced.map_or_else(fail, |()| 0))
}

/// # Safety
/// The contract of fsync(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    sync_file(fd, true).unwrap_or_else(|| unsafe { real::fsync(fd) })
}

/// # Safety
/// The contract of fdatasync(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    sync_file(fd, false).unwrap_or_else(|| unsafe { real::fdatasync(fd) })
}

/// Makes everything durable, which is more than the call asks for.
///
/// # Safety
/// The contract of sync_file_range(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sync_file_range(
    fd: c_int,
    at: off_t,
    n: off_t,
    flags: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    sync_file(fd, false).unwrap_or_else(|| unsafe { real::sync_file_range(fd, at, n, flags) })
}

/// # Safety
/// The contract of syncfs(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    if places::any_files() && !child::is_child() && !guarded::is_inside() {
        if let Err(errno) = closing::sync_all() {
            return fail(errno);
        }
        if let Some(desc) = state::desc(fd) {
            if planted::is(Planted::SyncfsForgotten) {
                return 0;
            }
            return sync_file_system(&desc);
        }
    }
    // SAFETY: the caller guarantees it.
    unsafe { real::syncfs(fd) }
}

/// Syncs the file system of a file, which has more than this file.  That may take long, and others
/// may close the file meanwhile, or give it more room: a descriptor of its own is synced.
fn sync_file_system(desc: &Desc) -> c_int {
    // SAFETY: the library has the descriptor.
    let sync = |file: BorrowedFd<'_>| unsafe {
        real::raw(libc::SYS_syncfs, [file.as_raw_fd() as usize, 0, 0, 0, 0, 0])
    };
    let file = desc.file.call(About::Sync, |map| {
        Ok(map.file().map(|file| match duplicate::<OwnedFd>(file) {
            Ok(own) => Ok(own),
            // The process can open no more files.
            Err(_) => Err(sync(file)),
        }))
    });
    match file {
        Ok(Some(Ok(own))) => real::told(sync(own.as_fd())) as c_int,
        Ok(Some(Err(done))) => real::told(done) as c_int,
        Ok(None) => {
            // The server alone has a descriptor of a file that is shared.
            // SAFETY: it takes nothing.
            unsafe { real::sync() };
            0
        }
        Err(errno) => fail(errno),
    }
}

/// # Safety
/// The contract of sync(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sync() {
    if places::any_files() && !child::is_child() && !guarded::is_inside() {
        let _ = closing::sync_all();
    }
    // SAFETY: it takes nothing.
    unsafe { real::sync() };
}

fn refuse_copy(a: c_int, b: c_int) -> bool {
    let Some(desc) = state::desc(a).or_else(|| state::desc(b)) else { return false };
    once(
        About::Copy,
        format_args!(
            "{}: sendfile, splice and copy_file_range are refused: the kernel would copy past the \
         memory that it is mapped onto; read and write",
            desc.file.path.display()
        ),
    );
    true
}

macro_rules! sendfiles {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of sendfile(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(to: c_int, from: c_int, at: *mut off_t, n: usize) -> isize {
            match refuse_copy(to, from) {
                true => fail(libc::EINVAL),
                // SAFETY: the caller guarantees it.
                false => unsafe { real::sendfile64(to, from, at, n) },
            }
        }
    )+};
}
sendfiles!(sendfile sendfile64);

macro_rules! copies {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of the C library's function applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            from: c_int,
            a: *mut off_t,
            to: c_int,
            b: *mut off_t,
            n: usize,
            flags: u32,
        ) -> isize {
            match refuse_copy(from, to) {
                true => fail(libc::EINVAL),
                // SAFETY: the caller guarantees it.
                false => unsafe { real::$name(from, a, to, b, n, flags) },
            }
        }
    )+};
}
copies!(copy_file_range splice);
