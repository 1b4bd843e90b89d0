// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for the engine, for bounce buffers and for media: zeroed, or a mapping of
//! a file; page aligned, and given back when dropped.

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::forks;

const PAGE: usize = 4096;
/// Smaller is taken from the heap: to map it, and to fault it in, takes longer.
const MAPPED: usize = 1 << 20;

/// At least one byte, at least 4 KiB aligned.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    kind: Kind,
    /// [`forks::generation`] of the process that has made it.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heap,
    Anonymous,
    /// Anonymous memory that children of the process do not have.
    Unforked,
    File {
        writable: bool,
    },
}

// SAFETY: plain memory that any thread may use and free; its users get only a raw pointer, and
// must keep concurrent access sound.
unsafe impl Send for Memory {}
// SAFETY: as above; through &self only the address and length are to be had.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed.
    pub fn zeroed(len: usize) -> io::Result<Memory> {
        if len >= MAPPED {
            return Memory::anonymous(len, false);
        }
        let len = len.max(1);
        let layout = heap_layout(len);
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let start = start.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, len, kind: Kind::Heap, generation: forks::generation() })
    }

    /// Zeroed and mapped; `huge`: on huge pages where the system can.
    pub fn anonymous(len: usize, huge: bool) -> io::Result<Memory> {
        let len = len.max(1);
        // SAFETY: a new private mapping at an address of the kernel's choice
        // touches no memory that anybody has.
        let p = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE)
        }?;
        let memory = Memory::mapped(p, len, Kind::Anonymous);
        if huge {
            memory.advise(0..len, Advice::LinuxHugepage);
        }
        Ok(memory)
    }

    /// Zeroed and mapped, on huge pages where the system can.  A child of the process does not
    /// have it: a touch there is SIGSEGV.
    pub fn unforked(len: usize) -> io::Result<Memory> {
        let _hold = forks::hold();
        let mut memory = Memory::anonymous(len, true)?;
        // SAFETY: the call concerns the new mapping and does not change its bytes.
        unsafe {
            let at = memory.start.as_ptr().cast();
            rustix::mm::madvise(at, memory.len, Advice::LinuxDontFork)
        }?;
        memory.kind = Kind::Unforked;
        Ok(memory)
    }

    /// The first `len` bytes of a file or device, shared; `synchronous`: as DAX does,
    /// or not at all.  A child of the process does not have them: a touch there is SIGSEGV.
    pub fn of_file(
        fd: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        synchronous: bool,
    ) -> io::Result<Memory> {
        let prot = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let flags = match synchronous {
            true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            false => MapFlags::SHARED,
        };
        let _hold = forks::hold();
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // no memory that anybody has.  The file may be changed by others; so
        // nothing makes a Rust reference to its bytes (bytes_mut refuses), and
        // the engine takes what it reads there for hostile.
        let p = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, fd, 0) }?;
        let memory = Memory::mapped(p, len, Kind::File { writable });
        // SAFETY: the call concerns the new mapping and does not change its bytes.
        unsafe { rustix::mm::madvise(p, len, Advice::LinuxDontFork) }?;
        Ok(memory)
    }

    fn mapped(p: *mut c_void, len: usize, kind: Kind) -> Memory {
        let start = NonNull::new(p.cast()).expect("mmap never returns null");
        Memory { start, len, kind, generation: forks::generation() }
    }

    /// Asks for huge pages.
    pub fn prefer_huge_pages(&self) {
        self.advise(0..self.len, Advice::LinuxHugepage);
    }

    /// Faults the pages of a page-aligned range in, so that no store does later: no
    /// byte is changed.
    pub fn populate(&self, range: Range<usize>) {
        let writable = self.writable();
        let advice = match writable {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        if self.advise(range.clone(), advice) || !writable {
            return;
        }
        for at in range.step_by(PAGE) {
            // SAFETY: within the memory, by an access that any other may meet.
            unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(at)) }
                .fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Asks the kernel to populate the range: no byte is accessed.  `false`: the kernel cannot.
    pub fn try_populate(&self, range: Range<usize>) -> bool {
        self.writable() && self.kind != Kind::Heap && self.advise(range, Advice::LinuxPopulateWrite)
    }

    /// Keeps mapped memory from being paged out.
    pub fn lock(&self) -> io::Result<()> {
        assert!(self.kind != Kind::Heap);
        // SAFETY: the range is this mapping; the call does not change its content.
        Ok(unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len) }?)
    }

    /// Advice that the system does not know costs speed only.
    fn advise(&self, range: Range<usize>, advice: Advice) -> bool {
        assert!(range.start.is_multiple_of(PAGE) && range.start <= range.end);
        assert!(range.end <= self.len && self.kind != Kind::Heap);
        // SAFETY: the range is of this mapping; none of the advices used here
        // (huge pages, populate) changes its content.
        unsafe {
            let at = self.start.as_ptr().add(range.start).cast();
            rustix::mm::madvise(at, range.end - range.start, advice).is_ok()
        }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn writable(&self) -> bool {
        self.kind != Kind::File { writable: false }
    }

    /// The bytes of memory that nobody else has; not of a file.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!matches!(self.kind, Kind::File { .. }), "others may change a file");
        // SAFETY: readable and writable for len bytes for as long as self lives,
        // and borrowed exclusively with it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

fn heap_layout(len: usize) -> Layout {
    Layout::from_size_align(len, PAGE).expect("less than what is mapped")
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated or mapped by us with this length, and given back once;
        // users of the raw pointer keep the memory by owning it.
        unsafe {
            match self.kind {
                Kind::Heap => dealloc(self.start.as_ptr(), heap_layout(self.len)),
                // Something else may be there in a child, which never had it.
                Kind::File { .. } | Kind::Unforked if self.generation != forks::generation() => {}
                _ => drop(rustix::mm::munmap(self.start.as_ptr().cast(), self.len)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        for len in [1, 4096, 100_000, 3 << 20] {
            let mut m = Memory::zeroed(len).unwrap();
            assert_eq!((m.as_ptr() as usize % PAGE, m.len(), m.writable()), (0, len, true));
            assert!(m.bytes_mut().iter().all(|b| *b == 0));
            m.bytes_mut()[len - 1] = 7;
            assert_eq!(m.bytes_mut()[len - 1], 7);
        }
        let mut huge = Memory::anonymous(3 << 20, true).unwrap();
        huge.populate(0..3 << 20);
        assert!(huge.bytes_mut().iter().all(|b| *b == 0));
        assert!(!Memory::zeroed(PAGE).unwrap().try_populate(0..PAGE));
        huge.bytes_mut()[5] = 5;
        // Linux before 5.14 does not know it.
        let _ = huge.try_populate(0..3 << 20);
        assert!(huge.bytes_mut().iter().map(|b| u64::from(*b)).sum::<u64>() == 5);
    }
}
