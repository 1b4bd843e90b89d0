// SPDX-License-Identifier: MIT OR Apache-2.0
//! The media of a pool.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::words::words;

/// The kind of media that a pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediaKind {
    /// A file on tmpfs (`/dev/shm`), or anonymous memory: DRAM speed;
    /// survives a process, not a power cut.
    Shm,
    /// A regular file, through the page cache.
    File,
    /// A file on a DAX file system, mapped synchronously.
    DaxFile,
    /// A pmem block device (`/dev/pmemN`): user space gets its page cache.
    FsdaxBlock,
    /// A devdax character device (`/dev/daxN.M`).
    #[serde(rename = "devdax")]
    DevDax,
    /// A disk, a partition, or a file on one, written in groups ([`MediumChoice::Ssd`]).
    Disk,
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediaKind::Shm => "shared memory",
            MediaKind::File => "plain file",
            MediaKind::DaxFile => "DAX file",
            MediaKind::FsdaxBlock => "fsdax block device",
            MediaKind::DevDax => "devdax device",
            MediaKind::Disk => "disk",
        })
    }
}

/// How stores to the media are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Persist {
    /// The method that the media's kind needs.
    #[default]
    Auto,
    /// Non-temporal stores, then a fence.
    Nt,
    /// Cached stores, a write-back of each cache line, then a fence.
    Clwb,
    /// Cached stores and a fence: the caches themselves survive a power cut.
    Eadr,
    /// Cached stores, then `msync` of the range.
    Msync,
    /// Writes to a disk that many threads share: not to be chosen, but by
    /// [`MediumChoice::Ssd`] when the pool is made.
    Groups,
}

words! {
    Persist {
        "auto" => Auto, "nt" => Nt, "clwb" => Clwb, "eadr" => Eadr, "msync" => Msync,
        "groups" => Groups,
    }
    unknown: "persist method \"{}\" is not known", way_out: "use auto, nt, clwb, eadr or msync"
}

/// The medium that a new pool is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumChoice {
    /// A disk without DAX: [`MediumChoice::Ssd`]; all else, plain files too:
    /// [`MediumChoice::Memory`].
    #[default]
    Auto,
    /// Mapped memory.  Each commit to a plain file is an `msync`.
    Memory,
    /// A disk, or a file on one.  The pool has an image in memory, and what threads append goes
    /// to the disk in groups.  It holds volumes and logs.
    Ssd,
}

words! {
    MediumChoice { "auto" => Auto, "memory" => Memory, "ssd" => Ssd }
    unknown: "medium \"{}\" is not known", way_out: "use auto, memory or ssd"
}

/// The detected properties of a pool's media.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaInfo {
    /// As opened; `(memory)` for anonymous memory.
    #[serde(flatten, with = "super::path::path")]
    pub path: PathBuf,
    /// The identity of the file or device, whatever its name: no copy has the same.
    #[serde(default)]
    pub id: String,
    pub kind: MediaKind,
    /// The method in use, never [`Persist::Auto`].
    pub persist: Persist,
    /// Bytes mapped.
    pub size_bytes: u64,
    /// True when an acknowledged write survives a power cut.
    pub durable: bool,
    /// Copy kernel in use.
    pub kernel: String,
    /// One sentence about what this media is good for.
    pub note: String,
}

/// Bytes with a unit, for messages.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (0..UNITS.len()).rev().find(|u| bytes >= 1u64 << (10 * u)).unwrap_or(0);
    if unit == 0 {
        return format!("{bytes} B");
    }
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let digits = usize::from(value.fract() > 0.049 && value < 100.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persist_names_round_trip() {
        for p in [Persist::Auto, Persist::Nt, Persist::Clwb, Persist::Eadr, Persist::Msync] {
            assert_eq!(p.to_string().parse::<Persist>().unwrap(), p);
        }
        let e = "fsync".parse::<Persist>().unwrap_err();
        assert!(e.to_string().contains("use auto, nt"), "{e}");
        assert_eq!(crate::Error::from(e).exit_code(), 2);
    }

    #[test]
    fn bytes_for_humans() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(2 << 20), "2 MiB");
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        assert_eq!(human_bytes(u64::MAX), "16 EiB");
    }
}
