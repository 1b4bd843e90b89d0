// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory: the media, and what the engine and its volumes need.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::ptr::{self, NonNull};

use rustix::fs::{fallocate, openat, FallocateFlags, Mode, OFlags, CWD};
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use crate::BenchError;

/// What stands in for persistent memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MediaChoice {
    /// Anonymous memory, huge pages advised: mapped as fsdax maps persistent
    /// memory.
    #[default]
    Anonymous,
    /// An unnamed file in this directory, which should be a tmpfs such as
    /// `/dev/shm`; 4 KiB pages unless the system says otherwise.
    File(PathBuf),
}

impl MediaChoice {
    /// For reports.
    pub fn name(&self) -> String {
        match self {
            Self::Anonymous => "anonymous memory, huge pages advised".to_owned(),
            Self::File(dir) => format!("file in {}", dir.display()),
        }
    }
}

/// What is left of [`Memory`] between two processes.
#[derive(Debug)]
pub(crate) enum Unmapped {
    File(OwnedFd, u64),
    Still(Memory),
}

impl Unmapped {
    /// The same bytes again, as a process that starts maps them.
    pub fn map(self) -> Result<Memory, BenchError> {
        match self {
            Self::File(file, len) => Memory::of_file(file, len),
            Self::Still(memory) => Ok(memory),
        }
    }
}

/// Zeroed memory, page aligned, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<c_void>,
    len: usize,
    file: Option<OwnedFd>,
}

// SAFETY: plain memory; who may access which part is the user's to order.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

fn system(what: String) -> impl FnOnce(rustix::io::Errno) -> BenchError {
    move |errno| BenchError::System { what, source: errno.into() }
}

impl Memory {
    pub fn new(choice: &MediaChoice, len: u64) -> Result<Self, BenchError> {
        match choice {
            MediaChoice::Anonymous => Self::anonymous(len),
            MediaChoice::File(dir) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR).map_err(system(
                    format!("creating a file in {} (name another directory)", dir.display()),
                ))?;
                fallocate(&file, FallocateFlags::empty(), 0, len).map_err(system(format!(
                    "reserving {len} bytes in {} (choose a smaller pool)",
                    dir.display()
                )))?;
                Self::of_file(file, len)
            }
        }
    }

    pub fn anonymous(len: u64) -> Result<Self, BenchError> {
        let len = length(len)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the system likes.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE) }
            .map_err(system(format!("mapping {len} bytes (choose a smaller pool)")))?;
        let memory = Self { base: nonnull(base)?, len, file: None };
        // SAFETY: the mapping is ours.  Advice only: without huge pages it is slower.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        Ok(memory)
    }

    fn of_file(file: OwnedFd, len: u64) -> Result<Self, BenchError> {
        let len = length(len)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the system likes, of a file that has len
        // bytes reserved and that nobody else can open.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0) }
            .map_err(system(format!("mapping {len} bytes of a file (choose a smaller pool)")))?;
        Ok(Self { base: nonnull(base)?, len, file: Some(file) })
    }

    /// Faults all pages in, so that no measurement does.
    pub fn populate(&self) {
        self.populate_in_turns(1);
    }

    /// The same, a huge page of each of `parts` equal parts in turn: so they lie
    /// among each other in the machine, and none in a slower place than others.
    pub fn populate_in_turns(&self, parts: usize) {
        const STEP: usize = 2 << 20;
        let part = self.len / parts;
        for offset in (0..part).step_by(STEP) {
            for first in (0..parts).map(|i| i * part + offset) {
                self.populate_range(first, STEP.min(part - offset));
            }
        }
    }

    fn populate_range(&self, first: usize, len: usize) {
        let base = self.at(first);
        // SAFETY: within the mapping; populating changes no byte.
        if unsafe { madvise(base.cast(), len, Advice::LinuxPopulateWrite) }.is_ok() {
            return;
        }
        for at in (first..first + len).step_by(4096) {
            // SAFETY: within the mapping, which is still all zeroes.
            unsafe { self.at(at).write_volatile(0) };
        }
    }

    /// Unmaps a file, as the end of a process does; anonymous memory would be
    /// lost and stays.
    pub fn unmap(mut self) -> Unmapped {
        match self.file.take() {
            Some(file) => Unmapped::File(file, self.len as u64),
            None => Unmapped::Still(self),
        }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset) }
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and its users borrowed it or hold it.
        let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
    }
}

fn length(len: u64) -> Result<usize, BenchError> {
    let len = usize::try_from(len).ok().filter(|&len| len > 0);
    len.ok_or_else(|| BenchError::Options("a size of 0 bytes, or more than can be mapped".into()))
}

fn nonnull(base: *mut c_void) -> Result<NonNull<c_void>, BenchError> {
    NonNull::new(base).ok_or_else(|| BenchError::System {
        what: "mapping memory at address 0".to_owned(),
        source: io::ErrorKind::Unsupported.into(),
    })
}
