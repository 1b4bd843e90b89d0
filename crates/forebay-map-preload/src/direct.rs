// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls by which the kernel uses the program's memory past its page table: direct I/O (O_DIRECT),
//! and I/O of file systems that are direct without being asked.
//!
//! The kernel holds on to the memory until the call is over.  A segment may be written back,
//! evicted or closed meanwhile, and then the memory is another file's.  So the kernel gets memory of
//! its own for a buffer that lies in a mapping, and the bytes are copied.  That memory is nobody
//! else's until the kernel has let go of it, even if it is unmapped before.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::iovec;

use crate::closing;
use crate::extent;
use crate::mapped::Mapped;
use crate::planted::{self, Planted};
use crate::real::{raw, told};
use crate::say::{once, About};
use crate::signals::{self, hold};
use crate::state;
use crate::which;

const PAGE: usize = forebay_map::PAGE;
/// The most buffers of a call.
const MOST: usize = 1024;

/// File systems that pass the program's memory to a server or to a device for any read or write.
const DIRECT: [u32; 4] = [
    0x6573_5546, // FUSE
    0x0102_1997, // 9p
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
];

/// Whether the kernel reads and writes a descriptor's file from and to the program's memory itself.
pub fn is_direct(fd: c_int) -> bool {
    // SAFETY: all zeroes is a value of it, and it is there for the call.
    unsafe {
        let flags = raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]);
        if flags < 0 || flags as c_int & libc::O_PATH != 0 {
            return false;
        }
        let mut st: libc::stat = std::mem::zeroed();
        let a = [fd as usize, c"".as_ptr().addr(), (&raw mut st).addr()];
        let a = [a[0], a[1], a[2], libc::AT_EMPTY_PATH as usize, 0, 0];
        // A pipe has that flag for another purpose.
        let copies = |mode| matches!(mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK);
        if raw(libc::SYS_newfstatat, a) != 0 || copies(st.st_mode) {
            return false;
        }
        if flags as c_int & libc::O_DIRECT != 0 {
            return true;
        }
        which::type_of(fd).is_some_and(|kind| DIRECT.contains(&kind))
    }
}

pub fn is_mapped(b: &iovec) -> bool {
    b.iov_len > 0 && extent::may_have(b.iov_base.addr(), b.iov_len)
}

/// The file in whose mapping a buffer lies, with one more user.  None: the kernel finds no memory
/// there, or other memory.
pub fn file_of(b: &iovec) -> Option<Arc<Mapped>> {
    let (from, len) = (b.iov_base.addr(), b.iov_len);
    while is_mapped(b) {
        let Some(file) = state::over(from, len) else {
            closing::wait_within(from, len);
            return None;
        };
        let one_more = |users: usize| (users > 0).then(|| users + 1);
        if file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok() {
            return Some(file);
        }
        // It is closed next.
        std::thread::yield_now();
    }
    None
}

/// Buffers of which those in a mapping are replaced by memory that is nobody else's.
#[derive(Debug)]
pub struct Beside {
    pub all: Vec<iovec>,
    /// The memory in place of them: address and length.
    made: Vec<(usize, usize)>,
    /// Their files, which are open until the call is over.
    files: Vec<Arc<Mapped>>,
}

impl Beside {
    /// `filled`: with the same bytes.  The error is that there is no memory.
    ///
    /// # Safety
    /// The buffers may be read.
    pub unsafe fn of(all: &[iovec], filled: bool) -> Result<Beside, c_int> {
        let mut beside = Beside { all: all.to_vec(), made: Vec::new(), files: Vec::new() };
        for (at, b) in all.iter().enumerate() {
            let Some(file) = file_of(b) else { continue };
            beside.files.push(file);
            // The same place in a page: direct I/O asks for that.
            let within = b.iov_base.addr() % PAGE;
            let len = within.saturating_add(b.iov_len).saturating_add(PAGE - 1) / PAGE * PAGE;
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let a = [0, len, prot as usize, flags as usize, usize::MAX, 0];
            // SAFETY: a new mapping.
            let made = unsafe { raw(libc::SYS_mmap, a) };
            if (-4095..0).contains(&made) {
                once(
                    About::Direct,
                    format_args!(
                        "no memory for direct I/O of {} bytes with memory of a mapped file, which is \
                         copied: use smaller pieces, or a buffer that is not a mapping",
                        b.iov_len
                    ),
                );
                return Err(libc::ENOMEM);
            }
            beside.made.push((made as usize, len));
            let to = std::ptr::with_exposed_provenance_mut::<c_void>(made as usize + within);
            beside.all[at].iov_base = to;
            if filled {
                // SAFETY: the caller guarantees it; the memory was made just now.
                signals::let_through(|| unsafe {
                    std::ptr::copy_nonoverlapping(
                        b.iov_base.cast_const().cast::<u8>(),
                        to.cast(),
                        b.iov_len,
                    );
                });
            }
        }
        Ok(beside)
    }

    /// Copies the first bytes that a call has read to the buffers.
    ///
    /// # Safety
    /// `all` are the buffers, and may be written.
    pub unsafe fn copy_back(&self, all: &[iovec], read: usize) {
        let mut left = read;
        for (to, from) in all.iter().zip(&self.all) {
            let n = to.iov_len.min(left);
            left -= n;
            // The file may have got more room at another address, once the program had unmapped it.
            let is_there = || state::over(to.iov_base.addr(), n).is_some();
            if n > 0 && to.iov_base != from.iov_base && is_there() {
                // SAFETY: the caller guarantees it.
                signals::let_through(|| unsafe {
                    std::ptr::copy_nonoverlapping(
                        from.iov_base.cast_const().cast::<u8>(),
                        to.iov_base.cast(),
                        n,
                    );
                });
            }
        }
    }

    /// From now on the kernel can read and write none of it.
    pub fn close(&self) {
        for (at, len) in &self.made {
            // SAFETY: it is this mapping's.
            unsafe { raw(libc::SYS_mprotect, [*at, *len, libc::PROT_NONE as usize, 0, 0, 0]) };
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for (at, len) in &self.made {
            // SAFETY: it was made here.  What the kernel still uses it keeps.
            unsafe { raw(libc::SYS_munmap, [*at, *len, 0, 0, 0, 0]) };
        }
        for file in &self.files {
            // The program may have closed it meanwhile: an error of that was told.
            let _ = closing::release(file);
        }
    }
}

/// The buffers of a call, if the library has to copy them.
///
/// # Safety
/// `v` has `n` entries, or is null.
#[inline]
unsafe fn wanted<'a>(fd: c_int, v: *const iovec, n: usize) -> Option<&'a [iovec]> {
    if v.is_null() || n > MOST {
        return None;
    }
    // SAFETY: the caller guarantees it.
    let all = unsafe { std::slice::from_raw_parts(v, n) };
    match all.iter().any(is_mapped) {
        true => is_wanted(fd).then_some(all),
        false => None,
    }
}

#[cold]
fn is_wanted(fd: c_int) -> bool {
    !state::is_inside()
        && !state::is_child()
        && !planted::is(Planted::DirectUnseen)
        && is_direct(fd)
}

/// Makes a call that reads.  None: the kernel may use the buffers themselves.
///
/// # Safety
/// The contract of readv(2) applies; `call` is that with other buffers.
#[inline]
pub unsafe fn read(
    fd: c_int,
    v: *const iovec,
    n: usize,
    call: impl FnOnce(*const iovec) -> isize,
) -> Option<isize> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let all = wanted(fd, v, n)?;
        let _busy = hold();
        Some(match Beside::of(all, false) {
            Err(errno) => told(-(errno as isize)),
            Ok(beside) => {
                let read = call(beside.all.as_ptr());
                beside.copy_back(all, usize::try_from(read).unwrap_or(0));
                read
            }
        })
    }
}

/// Makes a call that writes.  None: the kernel may use the buffers themselves.
///
/// # Safety
/// The contract of writev(2) applies; `call` is that with other buffers.
#[inline]
pub unsafe fn write(
    fd: c_int,
    v: *const iovec,
    n: usize,
    call: impl FnOnce(*const iovec) -> isize,
) -> Option<isize> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let all = wanted(fd, v, n)?;
        let _busy = hold();
        Some(match Beside::of(all, true) {
            Err(errno) => told(-(errno as isize)),
            Ok(beside) => call(beside.all.as_ptr()),
        })
    }
}

/// Makes a call by its number.  None: the kernel may make it as it is.
///
/// # Safety
/// These are the arguments of the call.
pub unsafe fn by_number(number: c_long, a: [usize; 6]) -> Option<isize> {
    let one = iovec { iov_base: std::ptr::with_exposed_provenance_mut(a[1]), iov_len: a[2] };
    let many = std::ptr::with_exposed_provenance::<iovec>(a[1]);
    let (v, n, with) = match number {
        libc::SYS_read => (&raw const one, 1, libc::SYS_readv),
        libc::SYS_write => (&raw const one, 1, libc::SYS_writev),
        libc::SYS_pread64 => (&raw const one, 1, libc::SYS_preadv),
        libc::SYS_pwrite64 => (&raw const one, 1, libc::SYS_pwritev),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => (many, a[2], number),
        _ => return None,
    };
    let fd = a[0] as c_int;
    let reads = matches!(with, libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2);
    // SAFETY: the caller guarantees it.
    unsafe {
        let call = |v: *const iovec| told(raw(with, [a[0], v.addr(), n, a[3], a[4], a[5]]));
        match reads {
            true => read(fd, v, n, call),
            false => write(fd, v, n, call),
        }
    }
}
