// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls by which the kernel uses the program's memory past its page table: direct I/O (O_DIRECT),
//! and I/O of file systems that are direct without being asked.
//!
//! The kernel holds on to the memory until the call is over.  A segment may be written back,
//! evicted or closed meanwhile, and then the memory is another file's.  So the kernel gets memory of
//! its own for a buffer that lies in a mapping, and the bytes are copied.  The kernel keeps that memory
//! until the call is over, even if it is unmapped before.

use std::ffi::{c_int, c_long, c_void};

use libc::iovec;

use crate::child;
use crate::closing;
use crate::closing::Staying;
use crate::given::{is_mapped, touch, touch_to_write, Given};
use crate::guarded;
use crate::planted::{self, Planted};
use crate::real::{errno, fail, raw, told};
use crate::say::{once, About};
use crate::signals::{self, hold};
use crate::state;
use crate::turns::Turn;
use crate::which;

const PAGE: usize = forebay_map::PAGE;

/// File systems that pass the program's memory to a server or to a device for any read or write.
const DIRECT: [u32; 4] = [
    0x6573_5546, // FUSE
    0x0102_1997, // 9p
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
];
const SOCKETS: u32 = 0x534f_434b;
const PIPES: u32 = 0x5049_5045;

/// Whether the kernel reads or writes a descriptor's file from and to the program's memory itself.
fn is_direct(fd: c_int, reads: bool) -> bool {
    // SAFETY: it takes numbers.
    let flags = unsafe { raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    if flags < 0 || flags as c_int & libc::O_PATH != 0 {
        return false;
    }
    match which::type_of(fd) {
        Some(PIPES) => false,
        Some(SOCKETS) => reads && is_of_cipher(fd),
        Some(kind) if flags as c_int & libc::O_DIRECT == 0 && !DIRECT.contains(&kind) => false,
        // A pipe has that flag for another purpose, and may have a name on such a file system.
        _ => !is_pipe(fd),
    }
}

/// Whether a socket is one of the kernel's ciphers, which write to the memory of who receives.
fn is_of_cipher(fd: c_int) -> bool {
    let (mut kind, mut len) = (0, size_of::<c_int>());
    let what = [libc::SOL_SOCKET as usize, libc::SO_DOMAIN as usize];
    let a = [fd as usize, what[0], what[1], (&raw mut kind).addr(), (&raw mut len).addr(), 0];
    // SAFETY: both are there for the call.
    unsafe { raw(libc::SYS_getsockopt, a) == 0 && kind == libc::AF_ALG }
}

fn is_pipe(fd: c_int) -> bool {
    // SAFETY: all zeroes is a value of it, and it is there for the call.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        let a = [fd as usize, c"".as_ptr().addr(), (&raw mut st).addr()];
        let a = [a[0], a[1], a[2], libc::AT_EMPTY_PATH as usize, 0, 0];
        raw(libc::SYS_newfstatat, a) != 0 || st.st_mode & libc::S_IFMT == libc::S_IFIFO
    }
}

/// Whether a buffer lies in the mapping of a file now.  Waits for a close there.
pub fn is_in_file(b: &iovec) -> bool {
    let (from, len) = (b.iov_base.addr(), b.iov_len);
    let is = is_mapped(b) && state::over(from, len).is_some();
    if !is && is_mapped(b) {
        closing::wait_within(from, len);
    }
    is
}

/// The file in whose mapping a buffer lies, which stays there.  None: the kernel finds no memory
/// there, or other memory.
pub fn file_of(b: &iovec) -> Option<Staying> {
    let (from, len) = (b.iov_base.addr(), b.iov_len);
    while is_mapped(b) {
        let Some(file) = state::over(from, len) else {
            closing::wait_within(from, len);
            return None;
        };
        let found = Staying::of(&file, from, len);
        if found.is_some() {
            return found;
        }
        // A thread closes it, or opens it elsewhere.  It may have a lower priority than this one.
        drop(Turn::unless_ends(file.id));
    }
    None
}

/// Buffers of which those in a mapping are replaced by memory that is nobody else's.
#[derive(Debug)]
pub struct Beside {
    given: Vec<iovec>,
    pub all: Vec<iovec>,
    /// The memory in place of them: address and length.
    made: Vec<(usize, usize)>,
    /// The files that are copied to at the end of the call.
    files: Vec<Staying>,
}

impl Beside {
    fn of(given: Vec<iovec>) -> Box<Beside> {
        let all = given.clone();
        Box::new(Beside { given, all, made: Vec::new(), files: Vec::new() })
    }

    /// With memory for what the call reads.  The error is that there is none.
    fn empty(given: Vec<iovec>) -> Result<Box<Beside>, c_int> {
        let mut beside = Beside::of(given);
        beside.replace(false)?;
        Ok(beside)
    }

    /// With the same bytes.  The error is that there is no memory.
    ///
    /// # Safety
    /// The buffers may be read.
    pub unsafe fn filled(given: Vec<iovec>) -> Result<Box<Beside>, c_int> {
        let touches = |beside: &Beside| {
            for b in beside.given.iter().filter(|b| is_in_file(b)) {
                // SAFETY: the caller guarantees it.
                unsafe { touch(std::slice::from_ref(b), u64::MAX) };
            }
        };
        let (beside, ()) = signals::let_through_with(Beside::of(given), touches);
        let mut beside = beside.ok_or(libc::EFAULT)?;
        beside.replace(true)?;
        Ok(beside)
    }

    /// The caller has handlers held off.  `filled`: the buffers were touched.
    fn replace(&mut self, filled: bool) -> Result<(), c_int> {
        for (at, b) in self.given.iter().enumerate() {
            let Some(file) = file_of(b) else { continue };
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
            self.made.push((made as usize, len));
            let to = std::ptr::with_exposed_provenance_mut::<c_void>(made as usize + within);
            self.all[at].iov_base = to;
            match filled {
                // The kernel gets the copy, and the file may be closed.
                // SAFETY: the caller has touched it; the memory was made just now.
                true => unsafe { copy(b, to, b.iov_len) },
                false => self.files.push(file),
            }
        }
        Ok(())
    }

    /// Copies the first bytes that a call has read to the buffers, which were touched.
    ///
    /// # Safety
    /// The buffers may be written.
    unsafe fn copy_back(&self, read: usize) {
        let mut left = read;
        for (to, from) in self.given.iter().zip(&self.all) {
            let n = to.iov_len.min(left);
            left -= n;
            if n > 0 && to.iov_base != from.iov_base {
                // SAFETY: the caller guarantees it.
                unsafe { copy(from, to.iov_base, n) };
            }
        }
    }
}

/// # Safety
/// The buffer may be read, and `to` be written.
unsafe fn copy(from: &iovec, to: *mut c_void, n: usize) {
    let from = from.iov_base.cast_const().cast::<u8>();
    // SAFETY: the caller guarantees it.
    unsafe { std::ptr::copy_nonoverlapping(from, to.cast(), n) };
}

impl Drop for Beside {
    fn drop(&mut self) {
        for (at, len) in &self.made {
            // SAFETY: it was made here.  What the kernel still uses it keeps.
            unsafe { raw(libc::SYS_munmap, [*at, *len, 0, 0, 0, 0]) };
        }
    }
}

/// Whether the library has to copy the buffers of a call.
#[inline]
fn is_wanted(fd: c_int, given: &Given, reads: bool) -> bool {
    given.has_mapped() && has_to_copy(fd, reads)
}

#[cold]
fn has_to_copy(fd: c_int, reads: bool) -> bool {
    !guarded::is_inside()
        && !child::is_child()
        && !planted::is(Planted::DirectUnseen)
        && is_direct(fd, reads)
}

/// Makes a call that reads.  None: the kernel may use the buffers themselves.
///
/// # Safety
/// The contract of readv(2) applies; `call` is that with other buffers.
#[inline]
pub unsafe fn read(
    fd: c_int,
    given: Given,
    call: impl FnOnce(*const iovec) -> isize,
) -> Option<isize> {
    match is_wanted(fd, &given, true) {
        // SAFETY: the caller guarantees it.
        true => unsafe { read_beside(given, call) },
        false => None,
    }
}

#[cold]
unsafe fn read_beside(given: Given, call: impl FnOnce(*const iovec) -> isize) -> Option<isize> {
    let _busy = hold();
    let beside = match Beside::empty(given.all()?) {
        Ok(beside) => beside,
        Err(errno) => return Some(fail(errno)),
    };
    let (beside, (read, errno)) = signals::let_through_with(beside, |beside| {
        let read = call(beside.all.as_ptr());
        let errno = errno();
        if let Ok(n @ 1..) = u64::try_from(read) {
            // SAFETY: the caller guarantees it.
            unsafe { touch_to_write(&beside.given, n) };
        }
        (read, errno)
    });
    // A child that a handler has made does not have the memory.
    if let Some(beside) = beside.filter(|_| !child::is_child()) {
        // SAFETY: as above.
        unsafe { beside.copy_back(usize::try_from(read).unwrap_or(0)) };
    }
    Some(if read < 0 { fail(errno) } else { read })
}

/// Makes a call that writes.  None: the kernel may use the buffers themselves.
///
/// # Safety
/// The contract of writev(2) applies; `call` is that with other buffers.
#[inline]
pub unsafe fn write(
    fd: c_int,
    given: Given,
    call: impl FnOnce(*const iovec) -> isize,
) -> Option<isize> {
    match is_wanted(fd, &given, false) {
        // SAFETY: the caller guarantees it.
        true => unsafe { write_beside(given, call) },
        false => None,
    }
}

/// # Safety
/// The contract of [`write`] applies.
#[cold]
pub unsafe fn write_beside(
    given: Given,
    call: impl FnOnce(*const iovec) -> isize,
) -> Option<isize> {
    let _busy = hold();
    // SAFETY: the caller guarantees it.
    Some(match unsafe { Beside::filled(given.all()?) } {
        Ok(beside) => {
            let (_beside, (written, errno)) = signals::let_through_with(beside, |beside| {
                let written = call(beside.all.as_ptr());
                (written, errno())
            });
            if written < 0 {
                fail(errno)
            } else {
                written
            }
        }
        Err(errno) => fail(errno),
    })
}

/// Makes a call by its number.  None: the kernel may make it as it is.
///
/// # Safety
/// These are the arguments of the call.
pub unsafe fn by_number(number: c_long, a: [usize; 6]) -> Option<isize> {
    let one = Given::one(std::ptr::with_exposed_provenance(a[1]), a[2]);
    let many = Given::Many(std::ptr::with_exposed_provenance(a[1]), a[2]);
    let (given, n, with) = match number {
        libc::SYS_read => (one, 1, libc::SYS_readv),
        libc::SYS_write => (one, 1, libc::SYS_writev),
        libc::SYS_pread64 => (one, 1, libc::SYS_preadv),
        libc::SYS_pwrite64 => (one, 1, libc::SYS_pwritev),
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
            true => read(fd, given, call),
            false => write(fd, given, call),
        }
    }
}
