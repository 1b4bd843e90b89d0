// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies the file of a descriptor or a path, without opening it.

use std::ffi::{c_int, CStr, CString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_map::lasting::{self, Lasting};

use crate::guarded::{inside, lock};
use crate::kept;
use crate::masks::{self, Opened};
use crate::real;

/// The device and inode of a descriptor's file, if it is a regular file, and its size.
pub fn regular(fd: c_int) -> Option<((u64, u64), u64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let empty = c"".as_ptr();
    // SAFETY: st is there for the call.
    let done = unsafe {
        let at =
            [fd as usize, empty.addr(), (&raw mut st).addr(), libc::AT_EMPTY_PATH as usize, 0, 0];
        real::raw(libc::SYS_newfstatat, at)
    };
    let is = done == 0 && st.st_mode & libc::S_IFMT == libc::S_IFREG;
    is.then_some(((st.st_dev, st.st_ino), st.st_size as u64))
}

/// File systems whose kernel makes the content of regular files when they are read.  A crash can
/// lose nothing there, and there is nothing to map.
const MADE_BY_THE_KERNEL: [u32; 21] = [
    0x9fa0,      // proc
    0x9fa1,      // openpromfs
    0x9fa2,      // usbdevfs
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x1cd1,      // devpts
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x6573_5543, // fusectl
    0x4249_4e4d, // binfmt_misc
    0x0765_5821, // resctrl
    0x6e73_6673, // nsfs
    0x1980_0202, // mqueue
];

/// Whether a descriptor's file is of a file system that keeps what is written.
pub fn is_stored(fd: c_int) -> bool {
    type_of(fd).is_none_or(|kind| !MADE_BY_THE_KERNEL.contains(&kind))
}

/// The type of a descriptor's file system.
pub fn type_of(fd: c_int) -> Option<u32> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: st is there for the call.
    let done =
        unsafe { real::raw(libc::SYS_fstatfs, [fd as usize, (&raw mut st).addr(), 0, 0, 0, 0]) };
    (done == 0).then_some(st.f_type as u32)
}

/// The device and inode of a descriptor's file, if that is a regular one.  The kernel gives what it
/// knows: it asks no server of a network file system or of FUSE, which may not answer.
pub fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    let flags = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC) as usize;
    let wanted = (libc::STATX_TYPE | libc::STATX_INO) as usize;
    let a = [fd as usize, c"".as_ptr().addr(), flags, wanted, (&raw mut st).addr(), 0];
    // SAFETY: st is there for the call.
    match -unsafe { real::raw(libc::SYS_statx, a) } as c_int {
        0 => {
            let is = u32::from(st.stx_mode) & libc::S_IFMT == libc::S_IFREG;
            is.then(|| (libc::makedev(st.stx_dev_major, st.stx_dev_minor), st.stx_ino))
        }
        // A container's filter may not know the call.
        libc::ENOSYS | libc::EPERM => regular(fd).map(|(id, _)| id),
        _ => None,
    }
}

/// The time of the last write to a file, and the file's size.  Another write changes them, unless
/// it comes within the same tick of the clock on a kernel before 6.13.
pub fn written(fd: c_int) -> Option<(i64, i64, i64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let a = [fd as usize, c"".as_ptr().addr(), (&raw mut st).addr(), libc::AT_EMPTY_PATH as usize];
    // SAFETY: st is there for the call.
    let done = unsafe { real::raw(libc::SYS_newfstatat, [a[0], a[1], a[2], a[3], 0, 0]) };
    (done == 0).then_some((st.st_mtime, st.st_mtime_nsec, st.st_size))
}

/// The identity of the file at a path, found without opening it.
pub fn identity_at(dir: c_int, path: &CStr, flags: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a value of it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: both are there for the call.
    let done = unsafe {
        let at = [dir as usize, path.as_ptr().addr(), (&raw mut st).addr(), flags as usize, 0, 0];
        real::raw(libc::SYS_newfstatat, at)
    };
    (done == 0).then_some((st.st_dev, st.st_ino))
}

/// Whether a descriptor is one of the file by which the kernel reads or writes it, and is not the
/// library's.  Does not wait for the file's storage.
fn is_plain(fd: c_int, id: (u64, u64), is: impl Fn(c_int) -> bool) -> bool {
    // SAFETY: the call only queries.
    let flags =
        unsafe { real::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) }
            as c_int;
    let plain = flags >= 0 && flags & libc::O_PATH == 0 && is(flags & libc::O_ACCMODE);
    plain && !kept::is(fd) && identity(fd) == Some(id)
}

/// The first plain descriptor of the file in this process.
fn plain(id: (u64, u64), is: impl Fn(c_int) -> bool) -> Option<c_int> {
    let mut found = None;
    inside(|| {
        for_each_descriptor(|fd| {
            if found.is_none() && is_plain(fd, id, &is) {
                found = Some(fd);
            }
        });
    });
    found
}

const OPEN: &str = "/proc/thread-self/fd\0";

/// The directory of this process's descriptors, while the pool is open.  A thread of the library
/// looks there again and again.  An open would take the lowest free number each time, which the
/// program may expect for its own next open.
static DESCRIPTORS: Mutex<Option<Proc>> = Mutex::new(None);

/// What is kept open of /proc.
#[derive(Debug)]
pub struct Proc {
    descriptors: Lasting<OwnedFd>,
    maps: Option<Lasting<OwnedFd>>,
    locks: Option<Lasting<OwnedFd>>,
}

/// Holds the directory's descriptor unchanged during a fork.
pub fn unchanged() -> MutexGuard<'static, Option<Proc>> {
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the directory open, as that of a thread that does not end.
pub fn keep_descriptors(of_thread: usize) {
    // The main thread may end, and with it /proc/self/fd.  The watching thread does not.
    let open = |path: &str| {
        let path = format!("{path}\0");
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let a = [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags, 0, 0, 0];
        // SAFETY: the path ends with a zero byte.
        let fd = unsafe { real::raw(libc::SYS_openat, a) };
        // SAFETY: it was opened just now, and no one else owns it.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as c_int) }).ok_or(())
    };
    let keep = |path: &str| lasting::open(|| open(path)).ok();
    let opened = keep(&format!("/proc/self/task/{of_thread}/fd")).map(|descriptors| Proc {
        descriptors,
        maps: keep(&format!("/proc/self/task/{of_thread}/maps")),
        locks: keep("/proc/locks"),
    });
    let _before = std::mem::replace(&mut *lock(&DESCRIPTORS), opened);
}

/// Closes the directory.
pub fn forget_descriptors() {
    let _before = lock(&DESCRIPTORS).take();
}

/// Calls `f` without a lock: `f` may take long, and a fork waits for `DESCRIPTORS`.
fn for_each_descriptor(mut f: impl FnMut(c_int)) {
    let mut bytes = [0; 4096];
    let mut place = 0;
    while let Some(n) = entries(place, &mut bytes) {
        match masks::each_number(&bytes[..n], |fd| f(fd as c_int)) {
            Some(next) => place = next,
            None => return,
        }
    }
    // The directory is not open.
    if let Some(all) = Opened::of(OPEN.as_bytes()) {
        all.for_each_number(|fd| f(fd as c_int));
    }
}

/// Reads the next entries of the directory from a place in it.  Returns the number of bytes.
fn entries(place: u64, to: &mut [u8]) -> Option<usize> {
    // All threads share the position in the directory, so the lock covers both calls.
    let kept = lock(&DESCRIPTORS);
    let kept = kept.as_ref().map(|kept| &kept.descriptors);
    let dir = kept.filter(|kept| lasting::check(kept.as_fd()).is_ok())?.as_raw_fd() as usize;
    // SAFETY: it takes numbers.
    unsafe { real::raw(libc::SYS_lseek, [dir, place as usize, libc::SEEK_SET as usize, 0, 0, 0]) };
    Some(masks::entries(dir, to))
}

/// Whether the process can write to a file without the library.
pub fn writes_plainly(id: (u64, u64)) -> bool {
    plain(id, |mode| mode != libc::O_RDONLY).is_some()
}

/// A descriptor by which the process has a file open without the library.
pub fn open_plainly(id: (u64, u64)) -> Option<c_int> {
    plain(id, |_| true)
}

/// Whether the process has an io_uring, by a descriptor or by a mapping.
pub fn has_ring() -> bool {
    let mut has = false;
    for_each_descriptor(|fd| has |= !kept::is(fd) && is_ring(fd));
    // A ring's descriptor may be registered and closed.
    let maps = || maps().or_else(|| std::fs::read("/proc/thread-self/maps").ok());
    let is_ring = |line: &[u8]| line.ends_with(RING);
    has || maps().is_none_or(|text| text.split(|&c| c == b'\n').any(is_ring))
}

const RING: &[u8] = b"anon_inode:[io_uring]";

fn is_ring(fd: c_int) -> bool {
    let name = format!("/proc/thread-self/fd/{fd}\0");
    let mut text = [0u8; 32];
    let a = [name.as_ptr().addr(), text.as_mut_ptr().addr(), text.len(), 0, 0, 0];
    // SAFETY: the name ends with a zero byte, and the text has so many bytes.
    let n = unsafe {
        real::raw(libc::SYS_readlinkat, [libc::AT_FDCWD as usize, a[0], a[1], a[2], 0, 0])
    };
    n > 0 && text[..n as usize] == *RING
}

/// Whether such a descriptor is still one.
pub fn is_open_plainly(fd: c_int, id: (u64, u64)) -> bool {
    is_plain(fd, id, |_| true)
}

/// The text of /proc/locks.
pub fn locks() -> Option<Vec<u8>> {
    text_of(|kept| kept.locks.as_ref())
}

/// Reads a file of /proc that is kept open.
fn text_of(of: impl Fn(&Proc) -> Option<&Lasting<OwnedFd>>) -> Option<Vec<u8>> {
    // All threads share the position.
    let kept = lock(&DESCRIPTORS);
    let file = of(kept.as_ref()?).filter(|file| lasting::check(file.as_fd()).is_ok())?;
    let fd = file.as_raw_fd() as usize;
    let mut text = Vec::new();
    let mut piece = vec![0u8; 64 << 10];
    // SAFETY: it takes numbers.
    unsafe { real::raw(libc::SYS_lseek, [fd, 0, libc::SEEK_SET as usize, 0, 0, 0]) };
    loop {
        let a = [fd, piece.as_mut_ptr().addr(), piece.len(), 0, 0, 0];
        // SAFETY: the buffer is valid for the call.
        match unsafe { real::raw(libc::SYS_read, a) } {
            0 => return Some(text),
            n @ 1.. => text.extend_from_slice(&piece[..n as usize]),
            _ => return None,
        }
    }
}

/// The text of the process's maps.
pub fn maps() -> Option<Vec<u8>> {
    inside(|| text_of(|kept| kept.maps.as_ref()))
}

/// Whether the process has a shared mapping of the file that is not the library's.  The library
/// maps the pool alone.
pub fn is_mapped_plainly(id: (u64, u64), path: &Path) -> bool {
    maps().is_some_and(|text| has_mapping(&text, id, path, b's'))
}

/// Whether another process has one, as far as this one may look.
pub fn is_mapped_by_others(id: (u64, u64), path: &Path) -> bool {
    let me = real::process().to_string();
    inside(|| {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_other = |name: &[u8]| name[0].is_ascii_digit() && name != me.as_bytes();
        let others = all.filter(|entry| is_other(entry.file_name().as_bytes()));
        let texts = others.filter_map(|entry| std::fs::read(entry.path().join("maps")).ok());
        texts.into_iter().any(|text| has_mapping(&text, id, path, b's'))
    })
}

/// On overlayfs the lease is of another inode than the one that mappings hold, so the kernel
/// gives it although the file is mapped.
pub fn is_on_overlay(fd: c_int) -> bool {
    const OVERLAY: u32 = 0x794c_7630;
    type_of(fd) == Some(OVERLAY)
}

/// Whether there is a mapping of the file of one kind: shared (s) or private (p).
pub fn has_mapping(text: &[u8], id: (u64, u64), path: &Path, kind: u8) -> bool {
    let (inode, path) = (id.1.to_string(), path.as_os_str().as_bytes());
    text.split(|&c| c == b'\n').any(|line| {
        let words: Vec<&[u8]> = line.split(|&c| c == b' ').filter(|w| !w.is_empty()).collect();
        let [_, mode, _, device, number, _, ..] = words[..] else { return false };
        let is_one = mode.last() == Some(&kind) && number == inode.as_bytes();
        // btrfs, and overlayfs of some kernels, have other numbers of devices there.
        is_one && (device_of(device) == Some(id.0) || line.ends_with(path))
    })
}

fn device_of(text: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let of = |half| u32::from_str_radix(half, 16).ok();
    Some(libc::makedev(of(major)?, of(minor)?))
}

pub fn is_at(path: &Path, id: (u64, u64)) -> bool {
    let path = CString::new(path.as_os_str().as_bytes());
    let there = path.ok().and_then(|p| identity_at(libc::AT_FDCWD, &p, libc::AT_SYMLINK_NOFOLLOW));
    there == Some(id)
}

/// The path of a descriptor's file.
pub fn path_of(fd: c_int) -> Option<CString> {
    let link = std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok()?;
    CString::new(link.as_os_str().as_bytes()).ok()
}
