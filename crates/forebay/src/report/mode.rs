// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of a volume: its use of the pool, its behaviour when the pool is full, and when its
//! writes are durable.

use serde::{Deserialize, Serialize};

use super::words::words;

/// How a volume uses the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write is acknowledged when the pool has it; the origin gets it later.
    #[default]
    WriteBack,
    /// A write is acknowledged when the origin has it, flushed.
    WriteThrough,
    /// Cached data goes to the origin, and nothing new enters the pool except data that
    /// overwrites its content: the pool empties.  Other writes are durable after a flush.
    Cleaner,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::WriteBack, Mode::WriteThrough, Mode::Cleaner];
}

words! {
    Mode { "write-back" => WriteBack, "write-through" => WriteThrough, "cleaner" => Cleaner }
    unknown: "\"{}\" is not a mode of a volume",
    way_out: "use write-back, write-through or cleaner"
}

/// How a write behaves when the pool is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It waits until destage has made room.
    #[default]
    Wait,
    /// It goes past the cache, as far as its blocks are not cached.
    Bypass,
}

words! {
    WhenFull { "wait" => Wait, "bypass" => Bypass }
    unknown: "\"{}\" is nothing to do when full", way_out: "use wait or bypass"
}

/// When a write is durable that its client does not ask to be, in a pool that is written in groups
/// to a disk.  What was flushed always is, and in a pool in memory each write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteDurable {
    /// When it is acknowledged, unless a durable write takes the disk 200 us or more.
    #[default]
    Auto,
    /// When it is acknowledged.
    Always,
    /// After the next flush: as on a disk with a volatile cache.
    Flush,
}

words! {
    WriteDurable { "auto" => Auto, "always" => Always, "flush" => Flush }
    unknown: "\"{}\" does not say when a write is durable", way_out: "use auto, always or flush"
}
