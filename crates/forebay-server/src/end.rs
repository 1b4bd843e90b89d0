// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words and exit codes of a server's end when its pool has failed or its file is lost.

use forebay::{FileFate, FileTrouble};

/// How a server ends whose pool cannot be opened again as it is.
pub(crate) struct End {
    /// A part of a sentence.
    pub cause: String,
    /// The exit code if something is left, where that of the volume does not count.
    pub code: Option<u8>,
    pub way_out: String,
    /// ... if the origins have everything.
    pub rescued: &'static str,
}

impl End {
    /// `None`: the pool's disk has failed.
    pub fn of(lost: Option<&FileTrouble>, size_bytes: u64) -> End {
        match lost {
            None => End {
                cause: "its disk has failed".into(),
                code: None,
                way_out: "if the disk comes back, the pool on it has what was acknowledged as durable: do not make a new pool there before".into(),
                rescued: "replace the disk, and make a new pool there",
            },
            Some(lost) => End {
                cause: lost.cause.split(':').next().unwrap_or_default().into(),
                code: Some(if lost.what == FileFate::CutShort { 5 } else { 11 }),
                way_out: match lost.what {
                    FileFate::CutShort => format!("restore the size of its file (truncate -s {size_bytes}), then forebay check"),
                    _ => "restore these origins from a backup".into(),
                },
                rescued: "make a new pool",
            },
        }
    }
}
