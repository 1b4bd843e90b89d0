// SPDX-License-Identifier: MIT OR Apache-2.0
//! A removal, a move or a truncation of the file of an open pool by somebody else.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Its kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFate {
    /// It has no name any more: it is gone when the process ends that has the pool open.
    Removed,
    /// It has lost a part, and cannot be opened again as it is.
    CutShort,
    /// Something else lies in it: another pool, or none.
    Overwritten,
    /// An older state of the pool lies in it, as a copy has it.
    SetBack,
    /// It has another name than the one by which it was opened.
    Moved,
}

impl FileFate {
    /// A crash loses what the pool acknowledges from then on.
    pub fn is_loss(self) -> bool {
        self != FileFate::Moved
    }

    /// The file has another content than the pool, so nothing more goes there, and nothing that is
    /// read there is the pool's for certain.
    pub fn is_foreign(self) -> bool {
        matches!(self, FileFate::Overwritten | FileFate::SetBack)
    }
}

/// The fault of a pool's file, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTrouble {
    pub what: FileFate,
    /// From the root, by which it was opened.
    #[serde(flatten, with = "super::path::path")]
    pub path: PathBuf,
    pub cause: String,
    pub way_out: String,
}

impl fmt::Display for FileTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.way_out)
    }
}
