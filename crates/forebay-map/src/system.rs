// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe wrappers of the Linux calls that the tracker needs: reserved address space, memory of a
//! file mapped over a part of it, userfaultfd, and the scan of page tables.
//!
//! This is sound because nothing here makes a Rust reference to the memory.  An address within
//! a [`Reservation`] leaves this module only as a raw pointer.  The memory there may change at
//! any time, by design, and a user of the pointer has to know that.  Each system call touches
//! one segment of a reservation, and no index can leave the reservation.
//!
//! The kernel's numbers are written out, because the headers on build systems lack some of
//! them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_engine::forks;
use forebay_engine::lasting::{self, Lasting};
use forebay_engine::SharedBytes;
use rustix::ioctl::{opcode, Ioctl, IoctlOutput, Opcode};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags};

use crate::arena::{self, Place};
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};

/// A part of a memory file, mapped for as long as this lives.  Children do not inherit it.
#[derive(Debug)]
pub struct Window {
    bytes: SharedBytes,
    /// The [`forks::generation`] of the process that mapped it.
    generation: u64,
}

// SAFETY: the memory is accessed only by atomic operations.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `len` bytes from `offset`, shared and writable.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Window> {
        Window::with(fd, offset, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps memory that others write, read-only.
    pub fn to_read(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Window> {
        Window::with(fd, offset, len, ProtFlags::READ)
    }

    fn with(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: ProtFlags) -> io::Result<Window> {
        let _hold = forks::hold();
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let p =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) }?;
        let start = NonNull::new(p.cast()).expect("mmap never returns null");
        // SAFETY: the memory is mapped for as long as the window lives, and no reference is
        // made to it.
        let bytes = unsafe { SharedBytes::new(start, len) };
        let window = Window { bytes, generation: forks::generation() };
        // SAFETY: the call affects the new mapping only and changes no byte.
        unsafe { rustix::mm::madvise(p, len, Advice::LinuxDontFork) }?;
        Ok(window)
    }

    /// Reads the bytes at `at`.  Panics if they are not within the window.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        self.bytes.copy_out(at, to);
    }

    /// The number at `at`, which other processes may change.  Panics if it is not within the
    /// window or `at` is not a multiple of eight.
    pub fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "{at}");
        // SAFETY: the number is within the mapping and aligned, since a mapping starts at a
        // page.  It is accessed only by atomic operations and mapped for as long as this lives.
        unsafe { AtomicU64::from_ptr(self.bytes.at(at, 8).cast()) }
    }

    /// Writes bytes at `at`.  Panics if they are not within the window.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        self.bytes.copy_in(at, from);
    }

    /// The start address.
    pub fn address(&self) -> *mut u8 {
        self.bytes.start()
    }

    /// Calls msync(2) on a range that begins at a page.
    pub fn sync(&self, at: usize, len: usize) -> io::Result<()> {
        let p = self.bytes.at(at, len);
        // SAFETY: the range is within the mapping, and the call changes no byte.
        unsafe { rustix::mm::msync(p.cast(), len, rustix::mm::MsyncFlags::SYNC) }?;
        Ok(())
    }
}

/// Locks or unlocks the whole file with a record lock of its open file description, which a
/// close of another descriptor does not release.  `WouldBlock`: another process has a lock.
pub fn lock_records(file: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: all zeroes is a valid value.  It means the whole file, by this description.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = if on { libc::F_WRLCK } else { libc::F_UNLCK } as i16;
    // SAFETY: the descriptor is open, and the lock outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const all) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
            // The file system does not support such locks.
            e if e.raw_os_error() == Some(libc::EINVAL) && on => Ok(()),
            e => Err(e),
        },
    }
}

/// Whether the process has a write lease of a file, and no one waits for it.
pub fn has_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the call only queries.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
}

/// Releases the lease that the open file description has, whichever process took it.
pub fn release_lease(file: BorrowedFd<'_>) {
    // SAFETY: the call takes numbers.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Takes a write lease of a file (fcntl(2), F_SETLEASE): others who open it must wait.
#[cfg(test)]
pub fn lease(file: BorrowedFd<'_>) -> io::Result<()> {
    const F_SETSIG: i32 = 10;
    // SAFETY: both calls take numbers.  SIGURG has no effect without a handler.
    let done = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG)
            | libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child never had the mapping, and may have something else at the address.
        if self.generation != forks::generation() {
            return;
        }
        // SAFETY: the mapping belongs to this object, and no pointer into it is in use any
        // more: the contract of `address` says so.
        let _ = unsafe { rustix::mm::munmap(self.address().cast(), self.bytes.len()) };
    }
}

/// Address space for a number of segments.  At first it has no memory.
///
/// Children of this process do not inherit it: the parent would not notice their stores.
#[derive(Debug)]
pub struct Reservation {
    bytes: SharedBytes,
    segments: usize,
    /// The [`forks::generation`] of the process that reserved it.
    generation: u64,
}

// SAFETY: it is a range of addresses, and its memory is accessed only by atomic operations.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

/// Reserves address space.  `at`: an address where nothing is mapped; None: the kernel chooses.
fn reserve(len: usize, at: Option<usize>) -> rustix::io::Result<*mut c_void> {
    let there = if at.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
    let at = ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: a new mapping at addresses without one touches no memory in use.
    unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | there;
        if planted::is(Planted::EmptyLocked) {
            return rustix::mm::mmap_anonymous(at, len, prot, flags);
        }
        // A program may have locked all its memory (mlockall), which populates new mappings.
        // With pages of zeroes there, a touch would cause no event.
        let p = rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags)?;
        rustix::mm::munlock(p, len)?;
        rustix::mm::mprotect(p, len, rustix::mm::MprotectFlags::from_bits_retain(prot.bits()))?;
        rustix::mm::madvise(p, len, Advice::LinuxDontFork)?;
        Ok(p)
    }
}

/// Reserves address space at a multiple of a segment, where the kernel chooses.
fn reserve_aligned(len: usize) -> io::Result<*mut c_void> {
    let more = len.checked_add(SEGMENT).ok_or(io::ErrorKind::OutOfMemory)?;
    let p = reserve(more, None)?;
    let before = p.addr().next_multiple_of(SEGMENT) - p.addr();
    // SAFETY: the two ranges are parts of the new mapping before and after the segments.
    unsafe {
        if before > 0 {
            rustix::mm::munmap(p, before)?;
        }
        rustix::mm::munmap(p.byte_add(before + len), more - before - len)?;
    }
    Ok(p.wrapping_byte_add(before))
}

/// Reserves address space within the range that this process has set for it.
fn reserve_placed(len: usize) -> io::Result<*mut c_void> {
    // A place that something else occupies is skipped and not tried again.
    for _ in 0..64 {
        match arena::take(len) {
            Place::Anywhere => return reserve_aligned(len),
            Place::Nowhere => break,
            Place::At(at) => match reserve(len, Some(at)) {
                Ok(p) => return Ok(p),
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => {
                    arena::give_back(at);
                    return Err(e.into());
                }
            },
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

impl Reservation {
    /// Reserves at least one segment.
    pub fn new(segments: usize) -> io::Result<Reservation> {
        assert!(segments > 0);
        let len = segments.checked_mul(SEGMENT).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = NonNull::new(reserve_placed(len)?.cast()).expect("not null");
        // SAFETY: the range is reserved for as long as this lives, and no reference is made to
        // it.
        let bytes = unsafe { SharedBytes::new(start, len) };
        Ok(Reservation { bytes, segments, generation: forks::generation() })
    }

    /// The number of segments.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// The start address.  Memory there may change at any time, also by other processes.
    pub fn address(&self) -> *mut u8 {
        self.bytes.start()
    }

    /// The bytes as a program sees them that reads into its own mapping.  Tests that use this
    /// run alone and end before the reservation does.
    #[cfg(test)]
    pub fn own_bytes(&self) -> &'static mut [u8] {
        // SAFETY: the memory is mapped, and nothing else accesses it, as stated above.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes.len()) }
    }

    /// The segment that contains an address.
    pub fn segment_of(&self, address: u64) -> Option<usize> {
        let at = (address as usize).checked_sub(self.address().addr())? / SEGMENT;
        (at < self.segments).then_some(at)
    }

    /// Loads as a program would.  A fault may make it wait.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        self.bytes.copy_out(at, to);
    }

    /// Stores as a program would.
    pub fn store(&self, at: usize, from: &[u8]) {
        self.bytes.copy_in(at, from);
    }

    fn range(&self, segment: usize, pages: Range<usize>) -> Range<u64> {
        assert!(segment < self.segments && pages.start <= pages.end && pages.end <= SEGMENT_PAGES);
        let start = self.address().addr() + segment * SEGMENT;
        (start + pages.start * PAGE) as u64..(start + pages.end * PAGE) as u64
    }

    fn at(&self, segment: usize) -> *mut c_void {
        assert!(segment < self.segments);
        self.bytes.at(segment * SEGMENT, SEGMENT).cast()
    }

    /// Maps memory over a segment and replaces what is there.  False: it was mapped, but
    /// children will inherit it.
    ///
    /// A fork(3) waits for both calls.  A child that is made without the C library between the
    /// two inherits the segment, and its stores there are not noticed here.
    pub fn map(&self, segment: usize, fd: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
        let at = self.at(segment);
        lasting::check(fd)?;
        let _hold = forks::hold();
        // SAFETY: the segment belongs to this object.  No reference points into it, and
        // pointers into it stay valid.
        unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(at, SEGMENT, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset)?;
            // See `reserve`: pages that mlockall populates count as stored to.
            rustix::mm::munlock(at, SEGMENT)?;
            let advised = rustix::mm::madvise(at, SEGMENT, Advice::LinuxDontFork);
            Ok(advised.is_ok() && !planted::is(Planted::AdviceFails))
        }
    }

    /// Removes a segment's memory: a thread that touches it waits until its event is handled.
    /// At no moment is anything else mapped there.  Another thread must read events meanwhile:
    /// the kernel waits until the event of the move has been read.
    pub fn take_away(&self, segment: usize, events: &Uffd) -> io::Result<()> {
        let at = self.at(segment);
        let empty = reserve(SEGMENT, None)?;
        let range = empty.addr() as u64..(empty.addr() + SEGMENT) as u64;
        let moved = events.register_range(range, Mode::Missing).and_then(|()| {
            // SAFETY: both are whole mappings of this object.  No reference points into them,
            // and pointers into them stay valid.
            let moved = unsafe {
                let flags = MremapFlags::MAYMOVE;
                rustix::mm::mremap_fixed(empty, SEGMENT, SEGMENT, flags, at)
            };
            Ok(moved.map(drop)?)
        });
        if moved.is_err() {
            // SAFETY: the new mapping is known to no one else.
            let _ = unsafe { rustix::mm::munmap(empty, SEGMENT) };
        }
        moved
    }

    /// Makes every later store in a segment a SIGSEGV, and every later load unless `loads` is set.
    /// The record of earlier stores stays.
    pub fn withdraw(&self, segment: usize, loads: bool) -> io::Result<()> {
        use rustix::mm::MprotectFlags;
        let prot = if loads { MprotectFlags::READ } else { MprotectFlags::empty() };
        // SAFETY: the segment belongs to this object.  The call changes no byte, and no
        // reference points into the segment.
        unsafe { rustix::mm::mprotect(self.at(segment), SEGMENT, prot) }?;
        Ok(())
    }

    /// Faults in the pages of a segment, as loads would.
    pub fn populate(&self, segment: usize) -> io::Result<()> {
        // SAFETY: the call changes no byte.
        unsafe { rustix::mm::madvise(self.at(segment), SEGMENT, Advice::LinuxPopulateRead) }?;
        Ok(())
    }

    /// Moves the one segment of another reservation over a segment of this one in one step,
    /// with its page tables and its registration.  It is registered with a userfaultfd whose
    /// events another thread must read meanwhile.
    pub fn move_here(&self, segment: usize, other: Reservation) -> io::Result<()> {
        assert_eq!(other.segments, 1);
        let to = self.at(segment);
        // SAFETY: both are whole mappings of the two reservations without references into them.
        // The other reservation ends here, and pointers into this one stay valid.
        let moved = unsafe {
            let flags = MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(other.at(0), SEGMENT, SEGMENT, flags, to)
        };
        moved?;
        // The other reservation has no mapping any more, and its addresses may be in use again.
        arena::give_back(other.address().addr());
        std::mem::forget(other);
        Ok(())
    }

    /// Advises the kernel that a segment's pages are not needed now, as a program may.
    pub fn advise_unneeded(&self, segment: usize) -> io::Result<()> {
        // SAFETY: for memory of a file this removes page table entries and changes no byte.
        unsafe { rustix::mm::madvise(self.at(segment), SEGMENT, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Reads from a file into a segment, so that the kernel stores there.
    pub fn store_by_kernel(&self, at: usize, from: &File, len: usize) -> io::Result<usize> {
        let to = self.bytes.at(at, len);
        // SAFETY: the memory belongs to this object, no reference points to it, and any bytes
        // are valid there.
        let to =
            unsafe { std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<u8>>(), len) };
        let (read, _) = rustix::io::read(from, to)?;
        Ok(read.len())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // See `Window::drop`.
        if self.generation != forks::generation() {
            return;
        }
        // SAFETY: the range belongs to this object.  The contract of `address` limits the use
        // of pointers into it.
        let _ = unsafe { rustix::mm::munmap(self.address().cast(), self.bytes.len()) };
        arena::give_back(self.address().addr());
    }
}

/// Runs one ioctl whose argument is a struct of plain numbers.  The output is its return value.
struct Call<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: each use below gives an opcode together with the struct that the kernel expects.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Call<'_, OPCODE, T> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(ret: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(usize::try_from(ret).unwrap_or(0))
    }
}

fn call<const OPCODE: Opcode, T>(fd: &OwnedFd, argument: &mut T) -> rustix::io::Result<usize> {
    // SAFETY: the function is private to this module, which uses each opcode with its struct.
    // Pointers in the structs are to memory that lives until the call returns.
    unsafe { rustix::ioctl::ioctl(fd, Call::<OPCODE, T>(argument)) }
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ProtectArg {
    range: RangeArg,
    mode: u64,
}

#[repr(C)]
struct PoisonArg {
    range: RangeArg,
    mode: u64,
    updated: i64,
}

const UFFD: u8 = 0xaa;
const UFFDIO_API: Opcode = opcode::read_write::<ApiArg>(UFFD, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<RegisterArg>(UFFD, 0x00);
const UFFDIO_WAKE: Opcode = opcode::read::<RangeArg>(UFFD, 0x02);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<ProtectArg>(UFFD, 0x06);
const UFFDIO_POISON: Opcode = opcode::read_write::<PoisonArg>(UFFD, 0x08);

/// Feature bits of userfaultfd, as the kernel numbers them.
pub mod feature {
    /// Stores to write-protected pages are events.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A registration moves with mremap.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// A madvise that removes pages of a range is an event.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// Pages of shared memory can be write-protected.
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    /// Write protection also works where no page is present yet.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// An access can be made to fail.
    pub const POISON: u64 = 1 << 14;
    /// The kernel records a store itself and lets the thread continue.
    pub const WP_ASYNC: u64 = 1 << 15;
}

/// The accesses for which a range is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Touching an absent page.
    Missing,
    /// Storing to a page that is write-protected.
    WriteProtect,
}

/// The reason for which a thread waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread touched an address without memory.
    Missing(u64),
    /// The thread stored to a write-protected address.
    Store(u64),
    /// A thread removes pages of these addresses and waits until the event has been read.
    Remove(Range<u64>),
    /// Any other event.  No thread waits after it has been read.
    Other,
}

/// The kinds of userfaultfd that this process has had, by whether accesses by the kernel are events.
static HAD: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Whether this process may still have what it has had: a program may have given up the right.
pub fn userfaultfd_as_before() -> io::Result<()> {
    let mut had = [false, true]
        .into_iter()
        .filter(|&kernel| HAD[usize::from(kernel)].load(Ordering::Relaxed));
    had.try_for_each(|kernel| lasting::open(|| open_uffd(kernel)).map(drop))
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Uffd {
    fd: Lasting<OwnedFd>,
}

impl Uffd {
    /// Opens a userfaultfd with exactly these features.  `kernel`: accesses by the kernel, as
    /// in read(2), are events too; this needs a privilege.
    pub fn new(features: u64, kernel: bool) -> io::Result<Uffd> {
        let fd = lasting::open(|| open_uffd(kernel))?;
        HAD[usize::from(kernel)].store(true, Ordering::Relaxed);
        let mut api = ApiArg { api: UFFD.into(), features, ioctls: 0 };
        call::<UFFDIO_API, _>(&fd, &mut api)?;
        if api.features & features != features {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Uffd { fd })
    }

    fn register_range(&self, range: Range<u64>, mode: Mode) -> io::Result<()> {
        let mode = match mode {
            Mode::Missing => 1,
            Mode::WriteProtect => 2,
        };
        let range = RangeArg { start: range.start, len: range.end - range.start };
        call::<UFFDIO_REGISTER, _>(&self.fd, &mut RegisterArg { range, mode, ioctls: 0 })?;
        Ok(())
    }

    /// Registers segments for one kind of access.
    pub fn register(&self, r: &Reservation, segments: Range<usize>, mode: Mode) -> io::Result<()> {
        assert!(!segments.is_empty());
        let first = r.range(segments.start, 0..SEGMENT_PAGES).start;
        let end = r.range(segments.end - 1, 0..SEGMENT_PAGES).end;
        self.register_range(first..end, mode)
    }

    /// Write-protects a segment.  Records of earlier stores are lost.
    pub fn protect(&self, r: &Reservation, segment: usize) -> io::Result<()> {
        let range = r.range(segment, 0..SEGMENT_PAGES);
        let mut range = RangeArg { start: range.start, len: range.end - range.start };
        let half = planted::is(Planted::ProtectFails);
        if half {
            range.len /= 2;
        }
        call::<UFFDIO_WRITEPROTECT, _>(&self.fd, &mut ProtectArg { range, mode: 1 })?;
        match half {
            true => Err(io::Error::other("as planted")),
            false => Ok(()),
        }
    }

    /// Wakes threads that wait for the segment, so that they try again.
    pub fn wake(&self, r: &Reservation, segment: usize) {
        let range = r.range(segment, 0..SEGMENT_PAGES);
        let mut range = RangeArg { start: range.start, len: range.end - range.start };
        let woken = call::<UFFDIO_WAKE, _>(&self.fd, &mut range);
        debug_assert!(woken.is_ok(), "{woken:?}");
    }

    /// Makes accesses to a segment without memory fail with SIGBUS, like accesses to a file
    /// that cannot be read.
    pub fn poison(&self, r: &Reservation, segment: usize) -> io::Result<()> {
        let range = r.range(segment, 0..SEGMENT_PAGES);
        let range = RangeArg { start: range.start, len: range.end - range.start };
        call::<UFFDIO_POISON, _>(&self.fd, &mut PoisonArg { range, mode: 0, updated: 0 })?;
        Ok(())
    }

    /// The next event.  None: there is none now.
    pub fn read(&self) -> io::Result<Option<Event>> {
        // struct uffd_msg: the kind of event; from byte 8 on, the flags and the address of a
        // fault or the ends of a range.
        let mut message = [0u8; 32];
        lasting::check(self.fd.as_fd())?;
        match rustix::io::read(self.fd.as_fd(), &mut message) {
            Ok(32) => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("eight"));
        const PAGEFAULT: u8 = 0x12;
        const REMOVE: u8 = 0x15;
        const FLAG_WP: u64 = 1 << 1;
        Ok(Some(match message[0] {
            PAGEFAULT if word(8) & FLAG_WP != 0 => Event::Store(word(16)),
            PAGEFAULT => Event::Missing(word(16)),
            REMOVE => Event::Remove(word(8)..word(16)),
            _ => Event::Other,
        }))
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open_uffd(kernel: bool) -> io::Result<OwnedFd> {
    let mut flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    if !kernel {
        // UFFD_USER_MODE_ONLY, for which rustix has no name.
        flags |= UserfaultfdFlags::from_bits_retain(1);
    }
    // SAFETY: a new descriptor has no effect by itself.  `Uffd` registers only ranges of a
    // reservation.
    match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(fd) => Ok(fd),
        // A user who may open the device needs no root privilege.
        Err(e) => open_by_device(flags).map_err(|_| e.into()),
    }
}

fn open_by_device(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    struct New(u32);
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags as a number and returns a descriptor.
    unsafe impl Ioctl for New {
        type Output = OwnedFd;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> Opcode {
            opcode::none(UFFD, 0x00)
        }
        fn as_ptr(&mut self) -> *mut c_void {
            ptr::without_provenance_mut(self.0 as usize)
        }
        unsafe fn output_from_ptr(ret: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
            // SAFETY: the call succeeded, so this is a new descriptor that no one else owns.
            Ok(unsafe { OwnedFd::from_raw_fd(ret) })
        }
    }
    let device = File::open("/dev/userfaultfd")?;
    // SAFETY: as stated at the implementation.
    Ok(unsafe { rustix::ioctl::ioctl(&device, New(flags.bits()))? })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanArg>(b'f', 16);
const WRITTEN: u64 = 1 << 1;
const PRESENT: u64 = 1 << 3;
const PROTECT_MATCHING: u64 = 1 << 0;
const CHECK_ASYNC: u64 = 1 << 1;

/// The purpose of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Finds the pages that were stored to.
    Look,
    /// Finds them and write-protects them, each page in one step.
    Take,
    /// For a segment that was just mapped and registered: write-protects all of it and finds
    /// the pages that were touched before, each page in one step.
    Arm,
}

/// The page tables of this process.
#[derive(Debug)]
pub struct Pagemap {
    fd: Lasting<OwnedFd>,
}

impl Pagemap {
    /// Opens the page tables of the calling process.
    pub fn new() -> io::Result<Pagemap> {
        let fd = lasting::open(|| File::open("/proc/self/pagemap").map(OwnedFd::from))?;
        Ok(Pagemap { fd })
    }

    /// The pages of a segment that were stored to.  After an error some pages may have been
    /// write-protected without being reported, so all pages count as stored to.
    ///
    /// `Look` and `Take` ask for one category only.  Kernels that use another code path for
    /// several categories omit pages that were stored to and unmapped since
    /// (docs/design/map-tracking.md).
    pub fn scan(
        &self,
        r: &Reservation,
        segment: usize,
        pages: Range<usize>,
        how: Scan,
    ) -> io::Result<PageSet> {
        let range = r.range(segment, pages);
        let first = r.range(segment, 0..0).start;
        let wanted = if how == Scan::Arm { WRITTEN | PRESENT } else { WRITTEN };
        // The buffer is smaller than the worst case: the kernel allocates as much for each
        // call.
        let mut regions = [EMPTY_REGION; 32];
        let mut set = PageSet::EMPTY;
        let mut start = range.start;
        while start < range.end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: if how == Scan::Look { 0 } else { PROTECT_MATCHING } | CHECK_ASYNC,
                start,
                end: range.end,
                walk_end: 0,
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: regions.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: if how == Scan::Arm { 0 } else { WRITTEN },
                category_anyof_mask: 0,
                return_mask: wanted,
            };
            let found = call::<PAGEMAP_SCAN, _>(&self.fd, &mut arg)?;
            if arg.walk_end <= start || arg.walk_end > range.end {
                return Err(io::Error::other("the scan did not go on"));
            }
            for region in &regions[..found] {
                if region.categories & wanted == wanted {
                    let page = |address: u64| (address - first) as usize / PAGE;
                    set.insert(page(region.start)..page(region.end));
                }
            }
            start = arg.walk_end;
        }
        Ok(set)
    }
}

const EMPTY_REGION: Region = Region { start: 0, end: 0, categories: 0 };
