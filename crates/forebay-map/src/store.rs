// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool's share for maps, as this library sees it: frames, and the records of the files
//! to which they belong.  `core/api/map.h` has the protocol; the names are its names.

use std::io;
use std::os::fd::BorrowedFd;

use forebay::MapClaim;
use serde::{Deserialize, Serialize};

use crate::backing::Backing;
use crate::error::Result;
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::wire::Place;

/// When a file was changed last: seconds and nanoseconds, as its file system tells.
pub type Time = (i64, u32);

/// What the pool knows of the changes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stamp {
    /// Nothing was changed since that, but by others.
    Settled(Time),
    /// We change it, within [`CHANGES_FOR`] from then on.
    Changing(Time),
}

/// For so many seconds after a stamp we change a file without another one.
pub const CHANGES_FOR: i64 = 10;

impl Default for Stamp {
    fn default() -> Stamp {
        Stamp::Settled((0, 0))
    }
}

impl Stamp {
    /// Whether a file that was changed then was changed by us.
    pub fn explains(&self, changed: Time) -> bool {
        match *self {
            Stamp::Settled(time) => changed == time,
            Stamp::Changing((seconds, nanoseconds)) => {
                changed <= (seconds.saturating_add(CHANGES_FOR), nanoseconds)
            }
        }
    }
}

/// Of a file whose size is a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grows {
    /// It is at least so long, durable in the file system.
    pub made: u64,
    /// No longer than that it was made by us.
    pub ahead: u64,
}

/// Which file it is.  The share keeps it and does not look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// No more than what is durable in the file system, unless it grows.
    pub size: u64,
    /// Its size is a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grows: Option<Grows>,
    /// By which a file is known again, whatever its name.
    pub identity: Vec<u8>,
    /// Where it was, for a person, and to find it.
    pub path: String,
    /// A truncation to `size` has begun.
    pub cut: bool,
    /// The record cannot be read: of the rest nothing is known.
    pub damaged: bool,
    /// By which a change by others is noticed.
    pub stamp: Stamp,
}

impl FileRecord {
    /// How long the file is at least.
    pub fn made(&self) -> u64 {
        self.grows.map_or(self.size, |g| g.made)
    }
}

/// A frame that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameInfo {
    /// Its number.
    pub frame: u32,
    /// Whose it is; none: that is not known.
    pub file: Option<u32>,
    /// Which segment of the file.
    pub segment: u64,
    /// Where `file` is none: the record that it names, which cannot be read.
    pub of: Option<u32>,
}

/// What a sync came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// The pages are durable.
    Durable,
    /// One is behind the end that is durable in the file system; nothing was done.
    BehindEnd,
}

/// Frames of 2 MiB, and files.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The file that is the memory.
    fn memory(&self) -> BorrowedFd<'_>;

    /// What marks the files that lack something.
    fn claim(&self) -> &MapClaim;

    /// How many frames there are.
    fn capacity(&self) -> usize;

    /// Others bring home what a process that died has left of the file: it can be had soon.
    fn is_brought_home(&self, _identity: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// So many frames others need, and this process has more than its share.
    fn wanted(&self) -> usize {
        0
    }

    /// So many segments more are not given back from now on.  False: others have so many.
    fn pin(&self, _segments: usize) -> Result<bool> {
        Ok(true)
    }
    /// The opposite.
    fn unpin(&self, _segments: usize) {}

    /// A new file; durable.
    fn add_file(&self, file: &FileRecord) -> Result<u32>;
    /// Files that there are.
    fn files(&self) -> Result<Vec<(u32, FileRecord)>>;
    /// It has that size, durable in the file system: nothing is promised; durable.
    fn set_size(&self, file: u32, size: u64) -> Result<()>;
    /// It may be made so long by zeroes before that is promised; durable.  False: sizes cannot
    /// be promised.
    fn set_ahead(&self, _file: u32, _ahead: u64) -> Result<bool> {
        Ok(false)
    }
    /// Its size, no further than that: the file may not have it yet, and has the blocks of
    /// what is synced; durable.
    fn promise(&self, file: u32, size: u64) -> Result<()>;
    /// It is to be truncated; that counts from now on.
    fn cut(&self, file: u32, size: u64) -> Result<()>;
    /// It was truncated, and that is durable in the file system: what is dirty behind the
    /// end is forgotten, and the rest of its last page zero.
    fn cut_end(&self, file: u32) -> Result<()>;
    /// Durable, before what it announces.
    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()>;
    /// No frame is its any more.
    fn remove_file(&self, file: u32) -> Result<()>;

    /// A free frame, to be filled; none is.
    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>>;
    /// It is filled; durable.
    fn show(&self, frame: u32) -> Result<()>;
    /// It is free; durable.  Refused where its file lacks a page, but for `discard`.
    fn release(&self, frame: u32, discard: bool) -> Result<()>;
    /// Frames that are in use.
    fn frames(&self) -> Result<Vec<FrameInfo>>;
    /// For another process, that a frame is lent to.  None: it is known otherwise.
    fn place_of(&self, _frame: u32) -> Result<Option<Place>> {
        Ok(None)
    }
    /// Where its memory is in the file.
    fn offset(&self, frame: u32) -> Result<u64>;

    /// Stores to its memory.
    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()>;
    /// Reads so many bytes of a file to the beginning of its memory; the rest of it is zero.
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
    /// Loads from its memory.
    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()>;
    /// All that was stored to it is durable, and nothing more is promised of it.
    fn write_back_caches(&self, frame: u32) -> Result<()>;

    /// What was stored to the pages is durable, and will be in the file.
    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced>;
    /// Pages that the file lacks, and those of which that is not known.
    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)>;
    /// The same of a frame that a crash has left, without a load of memory that may be bad:
    /// what cannot be read is not known.
    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)>;
    /// Copies a page of such a frame; false: the media does not give it back.
    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool>;
    /// Of the pages those that are to be written to the file, and are read only now.
    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet>;
    /// They are durable in the file.  Those that were synced meanwhile stay dirty.
    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()>;
}
