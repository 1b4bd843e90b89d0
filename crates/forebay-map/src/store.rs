// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool's share for maps, as this library sees it: frames, and records of the files that they
//! belong to.  The protocol and its names come from `core/api/map.h`.

use std::io;
use std::os::fd::BorrowedFd;

use forebay::{FileFate, MapClaim};
use forebay_engine::maps;
use serde::{Deserialize, Serialize};

use crate::backing::{Backing, Time};
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};

/// The pool's knowledge of changes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stamp {
    /// This process has not changed the file since this time.  Any later change is by others.
    Settled(Time),
    /// This process changes the file, for [`CHANGES_FOR`] seconds from this time.
    Changing(Time),
}

/// For how many seconds after a stamp this process may change a file without a new stamp.
pub const CHANGES_FOR: i64 = 10;

impl Default for Stamp {
    fn default() -> Stamp {
        Stamp::Settled((0, 0))
    }
}

impl Stamp {
    /// The file was left to others, who had opened it.  No change is explained.
    pub const LEFT: Stamp = Stamp::Settled((i64::MIN, 0));

    /// Whether a change at that time was made by this process.
    pub fn explains(&self, changed: Time) -> bool {
        match *self {
            Stamp::Settled(time) => changed == time,
            Stamp::Changing((seconds, nanoseconds)) => {
                changed <= (seconds.saturating_add(CHANGES_FOR), nanoseconds)
            }
        }
    }
}

/// The limits of a file whose size is a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grows {
    /// The size that is durable in the file system.
    pub made: u64,
    /// The largest size that this process has given the file.
    pub ahead: u64,
}

/// The record of a file.  The share keeps it without interpreting it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// The size that is durable in the file system, or promised if `grows` is set.
    pub size: u64,
    /// Set while the size is a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grows: Option<Grows>,
    /// Identifies the file, whatever its name is.
    pub identity: Vec<u8>,
    /// The path that the file had: to find it and to show it to users.
    pub path: String,
    /// A truncation to `size` has begun.
    pub cut: bool,
    /// The record cannot be read, and the other fields are unknown.
    pub damaged: bool,
    /// Reveals changes by others.
    pub stamp: Stamp,
}

impl FileRecord {
    /// The least size that the file has in the file system.
    pub fn made(&self) -> u64 {
        self.grows.map_or(self.size, |g| g.made)
    }
}

/// A frame that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameInfo {
    /// The frame's number.
    pub frame: u32,
    /// The file that it belongs to.  None: unknown.
    pub file: Option<u32>,
    /// The segment of the file.
    pub segment: u64,
    /// If `file` is None: the unreadable record that the frame refers to.
    pub of: Option<u32>,
}

/// The place of a frame, as [`maps::Place`] says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub memory: u64,
    pub words: Option<u64>,
    pub pages: u32,
    pub limit: u32,
    pub seed: u32,
}

impl From<maps::Place> for Place {
    fn from(p: maps::Place) -> Place {
        let maps::Place { memory, words, pages, limit, seed } = p;
        Place { memory, words, pages, limit, seed }
    }
}

impl From<Place> for maps::Place {
    fn from(p: Place) -> maps::Place {
        let Place { memory, words, pages, limit, seed } = p;
        maps::Place { memory, words, pages, limit, seed }
    }
}

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// The pages are durable.
    Durable,
    /// A page is after the end that is durable in the file system.  Nothing was done.
    BehindEnd,
}

/// Frames of 2 MiB, and records of files.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The file that backs the memory.
    fn memory(&self) -> BorrowedFd<'_>;

    /// The mark for files that lack pages.
    fn claim(&self) -> &MapClaim;

    /// The number of frames.
    fn capacity(&self) -> usize;

    /// The loss of the pool's file, as far as it is known here.  What is synced in the pool is gone
    /// after a crash then.
    fn lost(&self) -> Option<FileFate> {
        None
    }

    /// Looks for that loss, or asks the server, which looks every second.
    fn look_for_loss(&self) {}

    /// Whether another process is recovering what a dead process left of the file, so that the
    /// file will be available soon.
    fn is_brought_home(&self, _identity: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// The number of frames that other processes need, while this process has more than its
    /// share.
    fn wanted(&self) -> usize {
        0
    }

    /// Reserves segments that will not be released.  False: other processes have too many
    /// pinned.
    fn pin(&self, _segments: usize) -> Result<bool> {
        Ok(true)
    }
    /// Undoes a `pin`.
    fn unpin(&self, _segments: usize) {}

    /// Adds a file, durably.
    fn add_file(&self, file: &FileRecord) -> Result<u32>;
    /// Lists the files.
    fn files(&self) -> Result<Vec<(u32, FileRecord)>>;
    /// Records, durably, that the file has this size in the file system and nothing is
    /// promised.
    fn set_size(&self, file: u32, size: u64) -> Result<()>;
    /// Records, durably, that the file may be extended with zeroes to this size before a
    /// promise.  False: the store cannot promise sizes.
    fn set_ahead(&self, _file: u32, _ahead: u64) -> Result<bool> {
        Ok(false)
    }
    /// Promises a size within `ahead`, durably.  The file may not have the size yet, but has
    /// the blocks of all synced pages.
    fn promise(&self, file: u32, size: u64) -> Result<()>;
    /// Records a truncation that will follow.  It is in force from now on.
    fn cut(&self, file: u32, size: u64) -> Result<()>;
    /// Records that the truncation is durable in the file system.  Drops dirty pages after the
    /// end and zeroes the rest of the last page.
    fn cut_end(&self, file: u32) -> Result<()>;
    /// Sets the stamp, durably, before the change that it announces.
    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()>;
    /// Removes a file that has no frames any more.
    fn remove_file(&self, file: u32) -> Result<()>;
    /// Hands a duplicate of the file's descriptor to another process, which writes the file back
    /// if this one dies: until then the locks and the lease of the descriptor last.  False: no other
    /// process does so, or it keeps no more descriptors.
    fn keep(&self, _file: u32, _by: BorrowedFd<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Takes a free frame, to be filled.  None: no frame is free.
    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>>;
    /// Records, durably, that the frame is filled.
    fn show(&self, frame: u32) -> Result<()>;
    /// Frees the frame, durably.  Refused if the file lacks one of its pages, unless `discard`.
    fn release(&self, frame: u32, discard: bool) -> Result<()>;
    /// The frames in use.
    fn frames(&self) -> Result<Vec<FrameInfo>>;
    /// The frame's place, for a process that borrows it.  None: that process knows it
    /// otherwise.
    fn place_of(&self, _frame: u32) -> Result<Option<Place>> {
        Ok(None)
    }
    /// The offset of the frame's memory in the file.
    fn offset(&self, frame: u32) -> Result<u64>;

    /// Stores to the frame's memory.
    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()>;
    /// Reads `len` bytes of a file to the beginning of the frame's memory and zeroes the rest.
    fn fill_from(
        &self,
        frame: u32,
        from: &dyn Backing,
        at: u64,
        len: usize,
    ) -> Result<io::Result<()>> {
        let mut bytes = vec![0; SEGMENT];
        match from.read_at(at, &mut bytes[..len]) {
            Ok(_) => self.fill(frame, 0, &bytes).map(Ok),
            Err(e) => Ok(Err(e)),
        }
    }
    /// Loads from the frame's memory.
    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()>;
    /// Makes durable all that was stored to the frame, without any promise for its file.
    fn write_back_caches(&self, frame: u32) -> Result<()>;

    /// Makes stores to the pages durable and promises to write them to the file.
    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced>;
    /// Pages that the file lacks, and pages of which that is unknown.
    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)>;
    /// Like `dirty`, for a frame that a crash left.  It loads nothing from memory that may be bad:
    /// a page that cannot be read counts as unknown.
    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)>;
    /// Copies a page of a frame that a crash left.  False: the media does not return it.
    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool>;
    /// Begins a write-back.  Returns the pages to write; the caller reads them only afterwards.
    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet>;
    /// Ends a write-back: the pages are durable in the file.  Pages synced meanwhile stay
    /// dirty.
    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()>;
}

/// Refuses to write back from a pool whose file has another content.
pub(crate) fn not_foreign(store: &dyn Store) -> Result<()> {
    match store.lost().is_some_and(FileFate::is_foreign) {
        false => Ok(()),
        true => Err(Error::Pool(
            "its file was overwritten: what lies there is not what was stored, and nothing is \
             written back; restore the mapped files from a backup"
                .into(),
        )),
    }
}
