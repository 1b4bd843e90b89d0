// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory: the media, and what the engine and its volumes need.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::{Media, Memory as Mapped, Persist};
use rustix::fs::{fallocate, openat, FallocateFlags, Mode, OFlags, CWD};

use crate::BenchError;

/// The media in place of persistent memory.
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

/// The remains of [`Memory`] between two processes.
#[derive(Debug)]
pub(crate) enum Unmapped {
    File(OwnedFd, u64),
    Still(Memory),
}

impl Unmapped {
    /// Maps the same bytes again, as a process that starts does.
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
    mapped: Arc<Mapped>,
    file: Option<OwnedFd>,
}

fn system(what: String) -> impl FnOnce(rustix::io::Errno) -> BenchError {
    move |errno| BenchError::System { what, source: errno.into() }
}

impl Memory {
    pub fn new(choice: &MediaChoice, len: u64) -> Result<Self, BenchError> {
        match choice {
            MediaChoice::Anonymous => {
                let mapped = length(len).and_then(|len| Mapped::anonymous(len, true));
                let what = format!("mapping {len} bytes (choose a smaller pool)");
                let mapped = mapped.map_err(|source| BenchError::System { what, source })?;
                Ok(Self { mapped: Arc::new(mapped), file: None })
            }
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

    fn of_file(file: OwnedFd, len: u64) -> Result<Self, BenchError> {
        let mapped = length(len).and_then(|len| Mapped::of_file(file.as_fd(), len, true, false));
        let what = format!("mapping {len} bytes of a file (choose a smaller pool)");
        let mapped = mapped.map_err(|source| BenchError::System { what, source })?;
        Ok(Self { mapped: Arc::new(mapped), file: Some(file) })
    }

    /// The first `bytes` of it as media, written past the caches.
    pub fn media(&self, bytes: u64) -> Result<Media, BenchError> {
        Media::new(self.mapped.clone(), bytes, Persist::Nt, None).ok_or_else(|| {
            BenchError::Options("this CPU has no way to write past its caches".to_owned())
        })
    }

    /// Faults all pages in, so that no measurement does.
    pub fn populate(&self) {
        self.populate_in_turns(1);
    }

    /// The same, one huge page of each of `parts` equal parts in turn.  So the parts are
    /// interleaved in the machine, and none is in a slower place than others.
    pub fn populate_in_turns(&self, parts: usize) {
        const STEP: usize = 2 << 20;
        let part = self.len() / parts;
        for offset in (0..part).step_by(STEP) {
            for first in (0..parts).map(|i| i * part + offset) {
                self.mapped.populate(first..first + STEP.min(part - offset));
            }
        }
    }

    /// Unmaps a file, as the end of a process does; anonymous memory would be
    /// lost and stays.
    pub fn unmap(mut self) -> Unmapped {
        match self.file.take() {
            Some(file) => Unmapped::File(file, self.len() as u64),
            None => Unmapped::Still(self),
        }
    }

    pub fn len(&self) -> usize {
        self.mapped.len()
    }
}

fn length(len: u64) -> io::Result<usize> {
    match usize::try_from(len) {
        Ok(len) if len > 0 => Ok(len),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
