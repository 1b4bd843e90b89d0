// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tracker asks of Linux, with a safe face: address space that is reserved, memory
//! of a file mapped over a part of it, userfaultfd, and the scan of page tables.
//!
//! It is sound because nothing here makes a Rust reference to the memory.  An address
//! within a [`Reservation`] is only given away as a raw pointer, and what is behind it may
//! change at any time, by design; whoever goes through the pointer has to know that.  Each
//! system call touches one segment of a reservation, which no index can leave.
//!
//! The kernel's numbers are written out: the headers of the systems this is built on are
//! older than some of them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use forebay_engine::forks;
use forebay_engine::lasting::{self, Lasting};
use forebay_engine::SharedBytes;
use rustix::ioctl::{opcode, Ioctl, IoctlOutput, Opcode};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags};

use crate::arena::{self, Place};
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::planted::{self, Planted};

/// A part of a file of memory, mapped for as long as this lives.  Children do not have it.
#[derive(Debug)]
pub struct Window {
    bytes: SharedBytes,
    /// [`forks::generation`] of the process that has mapped it.
    generation: u64,
}

// SAFETY: through it memory is only reached by atomic accesses.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// `len` bytes from `offset` on, shared and writable.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Window> {
        Window::with(fd, offset, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same, of what others write.  Nothing may be written to it.
    pub fn to_read(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Window> {
        Window::with(fd, offset, len, ProtFlags::READ)
    }

    fn with(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: ProtFlags) -> io::Result<Window> {
        let _hold = forks::hold();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that
        // anybody has.
        let p =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) }?;
        let start = NonNull::new(p.cast()).expect("mmap never returns null");
        // SAFETY: mapped for as long as the window lives, and no reference is made to it.
        let bytes = unsafe { SharedBytes::new(start, len) };
        let window = Window { bytes, generation: forks::generation() };
        // SAFETY: of the new mapping, whose bytes it does not change.
        unsafe { rustix::mm::madvise(p, len, Advice::LinuxDontFork) }?;
        Ok(window)
    }

    /// Reads what lies `at` there.  Panics if that is not within.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        self.bytes.copy_out(at, to);
    }

    /// A number that lies there, which others may change.  Panics if it is not within, or its
    /// place is no multiple of eight.
    pub fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "{at}");
        // SAFETY: within the mapping, whose start is that of a page, so aligned; it is only
        // reached by atomic accesses, and mapped for as long as this lives.
        unsafe { AtomicU64::from_ptr(self.bytes.at(at, 8).cast()) }
    }

    /// Writes it there.  Panics if that is not within.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        self.bytes.copy_in(at, from);
    }

    /// Where it lies.
    pub fn address(&self) -> *mut u8 {
        self.bytes.start()
    }

    /// msync(2) of a range that begins at a page.
    pub fn sync(&self, at: usize, len: usize) -> io::Result<()> {
        let p = self.bytes.at(at, len);
        // SAFETY: of the mapping, whose bytes it does not change.
        unsafe { rustix::mm::msync(p.cast(), len, rustix::mm::MsyncFlags::SYNC) }?;
        Ok(())
    }
}

/// Locks all records of a file for its open file description, or frees them: what no close of
/// another descriptor takes away.  `WouldBlock`: somebody has one.
pub fn lock_records(file: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: all zeroes is a value of it: the whole file, by this description.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = if on { libc::F_WRLCK } else { libc::F_UNLCK } as i16;
    // SAFETY: the descriptor is open, and the lock is there for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const all) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
            // A file system without such locks.
            e if e.raw_os_error() == Some(libc::EINVAL) && on => Ok(()),
            e => Err(e),
        },
    }
}

/// A lease of a file for writing (fcntl(2), F_SETLEASE): who opens it has to wait.
#[cfg(test)]
pub fn lease(file: BorrowedFd<'_>) -> io::Result<()> {
    const F_SETSIG: i32 = 10;
    // SAFETY: these take numbers.  SIGURG does nothing where it is not handled.
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

/// Whether it has it still, and nobody waits.
#[cfg(test)]
pub fn has_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: it only asks.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child never had it, and may have something else there.
        if self.generation != forks::generation() {
            return;
        }
        // SAFETY: the mapping is this one's own, and nobody has a pointer into it any more:
        // `address` says for how long one may be used.
        let _ = unsafe { rustix::mm::munmap(self.address().cast(), self.bytes.len()) };
    }
}

/// Address space of so many segments.  At first nothing is behind it.
///
/// It is not there in a child of this process: what a child stored would not be seen here.
#[derive(Debug)]
pub struct Reservation {
    bytes: SharedBytes,
    segments: usize,
    /// [`forks::generation`] of the process that has reserved it.
    generation: u64,
}

// SAFETY: it is a range of addresses; memory behind it is only reached by atomic accesses.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

/// `at`: there, where nothing may be yet; none: where the kernel likes.
fn reserve(len: usize, at: Option<usize>) -> rustix::io::Result<*mut c_void> {
    let there = if at.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
    let at = ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: a new mapping at addresses where there was none touches no memory that anybody
    // has.
    unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | there;
        if planted::is(Planted::EmptyLocked) {
            return rustix::mm::mmap_anonymous(at, len, prot, flags);
        }
        // A program may have ordered that all that is mapped is locked, and so populated
        // (mlockall): with pages of zeroes there, nobody would wait for an event.
        let p = rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags)?;
        rustix::mm::munlock(p, len)?;
        rustix::mm::mprotect(p, len, rustix::mm::MprotectFlags::from_bits_retain(prot.bits()))?;
        rustix::mm::madvise(p, len, Advice::LinuxDontFork)?;
        Ok(p)
    }
}

/// The same, at a multiple of a segment, of the kernel's choice.
fn reserve_aligned(len: usize) -> io::Result<*mut c_void> {
    let more = len.checked_add(SEGMENT).ok_or(io::ErrorKind::OutOfMemory)?;
    let p = reserve(more, None)?;
    let before = p.addr().next_multiple_of(SEGMENT) - p.addr();
    // SAFETY: what is given back is the new mapping's, before and after the segments.
    unsafe {
        if before > 0 {
            rustix::mm::munmap(p, before)?;
        }
        rustix::mm::munmap(p.byte_add(before + len), more - before - len)?;
    }
    Ok(p.wrapping_byte_add(before))
}

/// The same, within the addresses that this process has for it.
fn reserve_placed(len: usize) -> io::Result<*mut c_void> {
    // What somebody else has mapped there is left out, and not tried again.
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
    /// At least one segment.
    pub fn new(segments: usize) -> io::Result<Reservation> {
        assert!(segments > 0);
        let len = segments.checked_mul(SEGMENT).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = NonNull::new(reserve_placed(len)?.cast()).expect("not null");
        // SAFETY: reserved for as long as this lives, and no reference is made to it.
        let bytes = unsafe { SharedBytes::new(start, len) };
        Ok(Reservation { bytes, segments, generation: forks::generation() })
    }

    /// How many.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Where it begins.  What is there may change at any time, also by other processes.
    pub fn address(&self) -> *mut u8 {
        self.bytes.start()
    }

    /// As a program has it that reads into its own mapping: tests of that are alone, and end
    /// before the reservation does.
    #[cfg(test)]
    pub fn own_bytes(&self) -> &'static mut [u8] {
        // SAFETY: mapped, and nobody else reaches it, as said above.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes.len()) }
    }

    /// Which segment an address is in.
    pub fn segment_of(&self, address: u64) -> Option<usize> {
        let at = (address as usize).checked_sub(self.address().addr())? / SEGMENT;
        (at < self.segments).then_some(at)
    }

    /// Loads from there, as a program would.  Waits for as long as a fault there takes.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        self.bytes.copy_out(at, to);
    }

    /// Stores there, as a program would.
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

    /// Maps the memory over a segment, in the place of what is there.  False: that was done,
    /// and children will have it, too.
    ///
    /// A fork(3) waits for both calls.  A child that is made past the C library between the two
    /// has the segment, and what it stores there is not seen here.
    pub fn map(&self, segment: usize, fd: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
        let at = self.at(segment);
        lasting::check(fd)?;
        let _hold = forks::hold();
        // SAFETY: the segment is this one's own; nothing has a reference to what is there,
        // and pointers to it stay good.
        unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(at, SEGMENT, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset)?;
            // As above; what is populated here counts as stored to.
            rustix::mm::munlock(at, SEGMENT)?;
            let advised = rustix::mm::madvise(at, SEGMENT, Advice::LinuxDontFork);
            Ok(advised.is_ok() && !planted::is(Planted::AdviceFails))
        }
    }

    /// Takes a segment's memory away: whoever touches it waits for an event to be handled.
    /// There is no moment at which something else is there.  Another thread has to read
    /// events meanwhile: the kernel waits until it has been told of the move.
    pub fn take_away(&self, segment: usize, events: &Uffd) -> io::Result<()> {
        let at = self.at(segment);
        let empty = reserve(SEGMENT, None)?;
        let range = empty.addr() as u64..(empty.addr() + SEGMENT) as u64;
        let moved = events.register_range(range, Mode::Missing).and_then(|()| {
            // SAFETY: both are whole mappings of this one's own; nothing has a reference to
            // what is there, and pointers to it stay good.
            let moved = unsafe {
                let flags = MremapFlags::MAYMOVE;
                rustix::mm::mremap_fixed(empty, SEGMENT, SEGMENT, flags, at)
            };
            Ok(moved.map(drop)?)
        });
        if moved.is_err() {
            // SAFETY: the new mapping; nobody else knows it.
            let _ = unsafe { rustix::mm::munmap(empty, SEGMENT) };
        }
        moved
    }

    /// From now on a load or a store in a segment is SIGSEGV.
    pub fn withdraw(&self, segment: usize) -> io::Result<()> {
        // SAFETY: the segment is this one's own; it changes no byte, and nothing has a reference to
        // what is there.
        unsafe {
            rustix::mm::mprotect(self.at(segment), SEGMENT, rustix::mm::MprotectFlags::empty())
        }?;
        Ok(())
    }

    /// Faults in the pages of a segment, as loads would.
    pub fn populate(&self, segment: usize) -> io::Result<()> {
        // SAFETY: it changes no byte.
        unsafe { rustix::mm::madvise(self.at(segment), SEGMENT, Advice::LinuxPopulateRead) }?;
        Ok(())
    }

    /// Moves the one segment of another reservation over a segment of this, in one step, with
    /// its page tables and as it is registered: with a userfaultfd of which another thread has
    /// to read events meanwhile.
    pub fn move_here(&self, segment: usize, other: Reservation) -> io::Result<()> {
        assert_eq!(other.segments, 1);
        let to = self.at(segment);
        // SAFETY: both are whole mappings of these two, which nothing has a reference to; the
        // other one ends here, and pointers into this one stay good.
        let moved = unsafe {
            let flags = MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(other.at(0), SEGMENT, SEGMENT, flags, to)
        };
        moved?;
        // Nothing of it is there any more, and somebody else may have its addresses.
        arena::give_back(other.address().addr());
        std::mem::forget(other);
        Ok(())
    }

    /// Tells the kernel that a segment's pages are not needed now, as a program may.
    pub fn advise_unneeded(&self, segment: usize) -> io::Result<()> {
        // SAFETY: of memory of a file this takes page table entries away, and no byte.
        unsafe { rustix::mm::madvise(self.at(segment), SEGMENT, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Reads from a file into a segment: the kernel stores there.
    pub fn store_by_kernel(&self, at: usize, from: &File, len: usize) -> io::Result<usize> {
        let to = self.bytes.at(at, len);
        // SAFETY: memory of this one's own, to which there is no reference; any bytes may
        // be stored there.
        let to =
            unsafe { std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<u8>>(), len) };
        let (read, _) = rustix::io::read(from, to)?;
        Ok(read.len())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // As of a window.
        if self.generation != forks::generation() {
            return;
        }
        // SAFETY: the range is this one's own; `address` says for how long pointers to it
        // may be used.
        let _ = unsafe { rustix::mm::munmap(self.address().cast(), self.bytes.len()) };
        arena::give_back(self.address().addr());
    }
}

/// Runs one ioctl whose argument is a struct of plain numbers; the output is what it
/// returned.
struct Call<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: each use below gives the opcode the struct that the kernel takes for it.
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
    // SAFETY: private to this module, which uses each opcode with its struct; pointers in
    // those are to memory that lives until the call returns.
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

/// Features of userfaultfd, as the kernel numbers them.
pub mod feature {
    /// Stores to write-protected pages are events.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A registration moves with mremap.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// A range of which madvise takes pages away is an event.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// Pages of shared memory can be write-protected.
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    /// Also where no page is yet.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// An access can be made to fail.
    pub const POISON: u64 = 1 << 14;
    /// The kernel notes a store itself, and lets the thread go on.
    pub const WP_ASYNC: u64 = 1 << 15;
}

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Touching a page that is not there.
    Missing,
    /// Storing to a page that is write-protected.
    WriteProtect,
}

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It touched an address with nothing behind it.
    Missing(u64),
    /// It stored to an address that is write-protected.
    Store(u64),
    /// Somebody takes pages of these addresses away, and waits until this was read.
    Remove(Range<u64>),
    /// Anything else: nobody waits any more once it was read.
    Other,
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Uffd {
    fd: Lasting<OwnedFd>,
}

impl Uffd {
    /// With just these features.  `kernel`: stores and loads by the kernel, as in read(2),
    /// are to be events, too; that is not for everybody.
    pub fn new(features: u64, kernel: bool) -> io::Result<Uffd> {
        let fd = lasting::open(|| open_uffd(kernel))?;
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

    /// Registers segments.
    pub fn register(&self, r: &Reservation, segments: Range<usize>, mode: Mode) -> io::Result<()> {
        assert!(!segments.is_empty());
        let first = r.range(segments.start, 0..SEGMENT_PAGES).start;
        let end = r.range(segments.end - 1, 0..SEGMENT_PAGES).end;
        self.register_range(first..end, mode)
    }

    /// Write-protects a segment; a store that was before is forgotten.
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

    /// Lets threads that wait there try again.
    pub fn wake(&self, r: &Reservation, segment: usize) {
        let range = r.range(segment, 0..SEGMENT_PAGES);
        let mut range = RangeArg { start: range.start, len: range.end - range.start };
        let woken = call::<UFFDIO_WAKE, _>(&self.fd, &mut range);
        debug_assert!(woken.is_ok(), "{woken:?}");
    }

    /// Makes accesses to a segment with nothing behind it fail by SIGBUS, as those to a
    /// file do that cannot be read.
    pub fn poison(&self, r: &Reservation, segment: usize) -> io::Result<()> {
        let range = r.range(segment, 0..SEGMENT_PAGES);
        let range = RangeArg { start: range.start, len: range.end - range.start };
        call::<UFFDIO_POISON, _>(&self.fd, &mut PoisonArg { range, mode: 0, updated: 0 })?;
        Ok(())
    }

    /// The next event; none: there is none now.
    pub fn read(&self) -> io::Result<Option<Event>> {
        // struct uffd_msg: the kind, and from byte 8 on flags and address of a fault, or the
        // ends of a range.
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
        // UFFD_USER_MODE_ONLY, which rustix has no name for.
        flags |= UserfaultfdFlags::from_bits_retain(1);
    }
    // SAFETY: a new descriptor does nothing by itself; ranges are registered by `Uffd`,
    // which only takes those of a reservation.
    match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(fd) => Ok(fd),
        // Who may open the device may have one without being root.
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
            // SAFETY: the call was successful, so it is a new descriptor that nobody has.
            Ok(unsafe { OwnedFd::from_raw_fd(ret) })
        }
    }
    let device = File::open("/dev/userfaultfd")?;
    // SAFETY: as said above.
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

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Which pages were stored to.
    Look,
    /// The same, and write-protects those, each page in one step.
    Take,
    /// After the segment was mapped and registered: write-protects all of it, and finds the
    /// pages that were touched before that, each page in one step.
    Arm,
}

/// The page tables of this process.
#[derive(Debug)]
pub struct Pagemap {
    fd: Lasting<OwnedFd>,
}

impl Pagemap {
    /// Of the process that calls.
    pub fn new() -> io::Result<Pagemap> {
        let fd = lasting::open(|| File::open("/proc/self/pagemap").map(OwnedFd::from))?;
        Ok(Pagemap { fd })
    }

    /// Pages of a segment that were stored to.  After an error some may have been
    /// write-protected and not told: all have to count as stored to.
    ///
    /// `Look` and `Take` ask for one category only.  Kernels that answer by another way when
    /// asked for more do not tell pages there that were stored to and unmapped since
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
        // Not all that there could be: the kernel takes as much memory for each call.
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
