// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark of a file that is mapped onto a pool.  It has the format and the places of an
//! origin's mark, so the same commands show it.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::content::{now, short};
use super::host::host;
use super::keep::{state_dir, Kept};
#[cfg(test)]
use super::planted::{planted, Bug};
use super::{bug, give_up, Found, Keep, Mark, MarkedBy, MarkedOn, Owner, Refusal};
use crate::origin;
use crate::report::Uuid;

/// The owner of pages that files lack: a map of a pool.
#[derive(Clone, Debug, Default)]
pub struct MapClaim {
    pub pool: Uuid,
    /// The map's name.
    pub map: String,
    /// UUID of its record: a map added later by this name has another.
    pub uuid: Uuid,
    /// Generation of the pool's superblock since it was opened.
    pub generation: u64,
    /// Bytes of the map's share.
    pub share_bytes: u64,
    /// Path of the pool.
    pub at: String,
}

/// Why a map may not have a file, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRefusal {
    pub cause: String,
    pub way_out: String,
}

impl fmt::Display for MarkRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.way_out)
    }
}

impl MapClaim {
    /// The mark that a file bears from before the first page that it lacks until it has all of
    /// them.
    pub fn mark(&self, file: &str) -> Mark {
        Mark {
            pool: self.pool,
            volume: short(&self.map),
            volume_uuid: (!bug!(LifeNotNamed)).then_some(self.uuid),
            map: true,
            exact: false,
            generation: self.generation,
            least: 0,
            since: now(),
            at_most_bytes: self.share_bytes,
            host: host(),
            at: short(&self.at),
            origin: short(file),
        }
    }

    fn owner<'a>(&self, name: &'a str, host: &'a str, accept: bool) -> Owner<'a> {
        Owner { pool: self.pool, name, map: true, host, accept }
    }

    /// Is the mark of this map, and not of a removed one with its name?  The first marks did
    /// not state that.
    fn is_of(&self, mark: &Mark) -> bool {
        mark.volume_uuid.is_none_or(|uuid| uuid == self.uuid) || bug!(OtherLifeTaken)
    }

    /// It is a mark that this map has set, of this pool and not of a later copy of it.
    pub fn has_set(&self, mark: &Mark) -> bool {
        self.owner(&short(&self.map), "", true).is_named(mark)
            && self.is_of(mark)
            && mark.generation <= self.generation
    }

    /// May this map have the file?  `holds`: it has pages that the file lacks.  `accept`:
    /// though the mark is missing, unreadable or another host's.
    pub fn judge(
        &self,
        found: &Found,
        place: &str,
        holds: bool,
        accept: bool,
    ) -> Result<(), MarkRefusal> {
        self.judged(found, place, holds, accept)
            .map_err(|Refusal { cause, way_out }| MarkRefusal { cause, way_out })
    }

    fn judged(&self, found: &Found, place: &str, holds: bool, accept: bool) -> Result<(), Refusal> {
        let refuse = |cause: String, way_out: String| Err(Refusal { cause, way_out });
        let elsewhere = "salvage the pages (forebay map salvage), and drop them (forebay map drop)";
        match self.owner(&short(&self.map), &host(), accept).judge(found, place)? {
            Some(m) if !self.is_of(m) => refuse(
                format!("{m}, and the map of that name is another one now"),
                format!("use the pool as it was when that map was in it; if that is gone: {}", give_up(place)),
            ),
            Some(m) if m.generation > self.generation && !bug!(OlderCopyTaken) => refuse(
                format!("{m}, and the pool is an older copy of that one"),
                format!("use the pool as it was last; if that is gone: {}", give_up(place)),
            ),
            None if *found == Found::Nothing && holds && !accept && !bug!(MissingTaken) => refuse(
                "it had a mark while the pool has pages that it lacks, and that is gone".into(),
                format!("it was given up, and may have been written since: if not, say so (--accept); else {elsewhere}"),
            ),
            _ => Ok(()),
        }
    }
}

/// The place of a file's mark: an attribute of the file, or, if its file system has none, a
/// file of this host.
#[derive(Debug)]
pub struct FileMark(Kept);

impl FileMark {
    /// For a regular file that is open for writing.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<FileMark> {
        let by = MarkedBy { name: file_identity(file)?, on: MarkedOn::Shared(file) };
        Ok(FileMark(Kept::look(&by, &state_dir())?))
    }

    /// The file's id.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// The directory for the file that the mark is, which has to be changed to remove the mark.
    /// None: the file bears it.
    pub fn directory(&self) -> Option<&Path> {
        self.0.directory()
    }

    pub fn find(&self) -> io::Result<Found> {
        self.0.find()
    }

    /// In place of one that is there, whole or not at all; durable after sync.
    pub fn put(&self, mark: &Mark) -> io::Result<()> {
        self.0.put(mark)
    }

    /// Durable after sync.
    pub fn take_away(&self) -> io::Result<()> {
        self.0.take_away()
    }

    /// Syncs the file too, where it bears the mark.  A failure of that is told once, and has no kind
    /// by which one tries again.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Returns the identity of a regular file.  No copy has the same, nor has a file that is given
/// its number later.
pub fn file_identity(file: BorrowedFd<'_>) -> io::Result<String> {
    origin::identity_of_file(file)
}
