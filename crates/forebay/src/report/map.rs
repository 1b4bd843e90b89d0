// SPDX-License-Identifier: MIT OR Apache-2.0
//! The maps of a pool, and the result of a check of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Uuid;

/// A map of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapInfo {
    pub name: String,
    pub uuid: Uuid,
    /// Size of the pool's room for maps ([`CreateOptions::map_bytes`](crate::CreateOptions::map_bytes)).
    pub share_bytes: u64,
    /// Pieces of memory of this size each.
    pub frames: u32,
    pub frame_bytes: u32,
    /// That it can have at a time.
    pub files_most: u32,
    /// Some process of this pool maps files onto it.
    pub attached: bool,
    /// Its record, or where that says that its share is.
    pub damaged: bool,
}

/// The state of a map after a crash, and its damage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCheck {
    pub map: String,
    /// It is in use, and was not looked at.
    pub attached: bool,
    /// Pages that files lack.
    pub dirty_pages: u64,
    /// Pages of which that is not known.
    pub unknown_pages: u64,
    /// Truncations that are to be ended.
    pub truncations: u32,
    pub damaged_frames: u32,
    pub damaged_files: u32,
    /// Frames whose file is not known.
    pub stray_frames: u32,
    /// The map as a whole cannot be read.
    pub damaged: bool,
}

impl MapCheck {
    /// Nothing is damaged; pending recovery is no damage.
    pub fn is_ok(&self) -> bool {
        let bad = self.damaged_frames + self.damaged_files + self.stray_frames;
        bad == 0 && self.unknown_pages == 0 && !self.damaged
    }
}

impl fmt::Display for MapCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map {}: ", self.map)?;
        if self.damaged {
            return write!(f, "its record is damaged, or its share is not the pool's");
        }
        write!(
            f,
            "{} pages that files lack, {} of which that is not known; damaged: {} frames, {} \
             file records; frames of no known file: {}",
            self.dirty_pages,
            self.unknown_pages,
            self.damaged_frames,
            self.damaged_files,
            self.stray_frames
        )
    }
}
