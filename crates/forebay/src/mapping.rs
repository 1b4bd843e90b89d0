// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory mappings: the media's, and page-aligned zeroed memory for the
//! engine and for bounce buffers.  A mapping is unmapped when dropped.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of at least one byte, at least 4 KiB aligned.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that any thread may use and unmap; what
// keeps concurrent access to its bytes sound is the business of its users,
// which get a raw pointer only.
unsafe impl Send for Mapping {}
// SAFETY: as above; through &self only the address and length are to be had.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory.  `huge`: on huge pages where the system can.
    /// `populate`: every page is there when it returns.
    pub(crate) fn anonymous(len: usize, huge: bool, populate: bool) -> io::Result<Mapping> {
        let len = len.max(1);
        // SAFETY: a new private mapping at an address of the kernel's choice
        // touches no memory that anybody has.
        let p = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let map = Mapping::own(p, len);
        if huge {
            map.advise(Advice::LinuxHugepage);
        }
        if populate {
            map.advise(Advice::LinuxPopulateWrite);
        }
        Ok(map)
    }

    /// The first `len` bytes of a file or device, shared.  `flags` adds to
    /// or replaces MAP_SHARED.
    pub(crate) fn of_file(
        fd: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        flags: MapFlags,
    ) -> io::Result<Mapping> {
        let prot = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // no memory that anybody has.  The file may be changed by others; so
        // nothing makes a Rust reference to its bytes while they may (see
        // Media), and the engine takes what it reads there for hostile.
        let p = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, fd, 0) }?;
        Ok(Mapping::own(p, len))
    }

    fn own(p: *mut c_void, len: usize) -> Mapping {
        let start = NonNull::new(p.cast()).expect("mmap never returns null");
        Mapping { start, len }
    }

    /// Best effort: advice that the system does not know costs speed only.
    pub(crate) fn advise(&self, advice: Advice) {
        // SAFETY: the range is this mapping; none of the advices used here
        // (huge pages, populate) changes its content.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, advice) };
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of memory that nobody else has; for anonymous mappings.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, readable and writable for len bytes for as long as
        // self lives, and borrowed exclusively with it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length and unmapped once; users of
        // the raw pointer keep the mapping alive by owning it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_zeroed_aligned_and_writable() {
        for (huge, populate) in [(false, false), (true, true)] {
            let mut m = Mapping::anonymous(3 << 20, huge, populate).unwrap();
            assert_eq!(m.as_ptr() as usize % 4096, 0);
            assert!(m.bytes_mut().iter().all(|b| *b == 0));
            m.bytes_mut()[(3 << 20) - 1] = 7;
            assert_eq!(m.bytes_mut()[(3 << 20) - 1], 7);
        }
    }
}
