// SPDX-License-Identifier: MIT OR Apache-2.0
//! The space that volumes that are not attached keep from writers, in a pool that has no chunk for
//! these.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::status::VolumeInfo;

/// A volume that is not attached, and its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub volume: String,
    pub chunks: u32,
}

/// Volumes that are not attached hold at least half of what is used, and no chunk is free for
/// writers that have one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldByDetached {
    /// Those that hold most come first.
    pub holders: Vec<Holder>,
    /// All chunks of the pool.
    pub of: u32,
}

/// The chunks of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    pub all: u32,
    pub free: u32,
    /// The free chunks that writers must leave.
    pub reserved: u32,
}

/// Names of holders that a text has.
const NAMED: usize = 8;

impl HeldByDetached {
    pub(crate) fn of(chunks: Chunks, volumes: &[VolumeInfo]) -> Option<Self> {
        let detached = volumes.iter().filter(|v| !v.attached && v.chunks > 0);
        let mut holders: Vec<_> =
            detached.map(|v| Holder { volume: v.label(), chunks: v.chunks }).collect();
        holders.sort_by_key(|h| std::cmp::Reverse(h.chunks));
        let held = Self { holders, of: chunks.all };
        let used = chunks.all.saturating_sub(chunks.free);
        let much = held.chunks() > 0 && 2 * held.chunks() >= used;
        (chunks.free <= chunks.reserved && much).then_some(held)
    }

    pub fn chunks(&self) -> u32 {
        self.holders.iter().map(|h| h.chunks).sum()
    }
}

/// Without the pool's name; ends with the way out.
impl fmt::Display for HeldByDetached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, all) = (self.chunks(), self.of);
        write!(f, "volumes that are not attached hold {held} of the pool's {all} chunks: ")?;
        for (i, h) in self.holders.iter().take(NAMED).enumerate() {
            write!(f, "{}{} ({})", if i > 0 { ", " } else { "" }, h.volume, h.chunks)?;
        }
        if let more @ 1.. = self.holders.len().saturating_sub(NAMED) {
            write!(f, " and {more} more")?;
        }
        f.write_str(
            "; attach and drain them, or give up what they hold (forebay volume remove --discard)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, attached: bool, chunks: u32) -> VolumeInfo {
        VolumeInfo { name: name.into(), attached, chunks, ..Default::default() }
    }

    /// Each bound, at it and beside it.
    #[test]
    fn who_holds_a_full_pool() {
        let volumes = [volume("a", false, 1), volume("b", false, 3), volume("c", true, 2)];
        let of = |all, free, reserved, volumes: &[VolumeInfo]| {
            HeldByDetached::of(Chunks { all, free, reserved }, volumes)
        };
        let text = of(7, 1, 1, &volumes).unwrap().to_string();
        assert!(text.contains("hold 4 of the pool's 7 chunks: b (3), a (1); attach"), "{text}");
        assert_eq!(of(8, 2, 1, &volumes), None, "writers have a chunk");
        assert!(of(8, 2, 2, &volumes).is_some(), "both are reserved");
        assert!(of(9, 1, 1, &volumes).is_some(), "half");
        assert_eq!(of(10, 1, 1, &volumes), None, "less than half");
        assert_eq!(of(3, 1, 1, &volumes[2..]), None, "all are attached");
        assert_eq!(of(4, 4, 4, &[volume("a", false, 0)]), None, "nothing is held");
        let many: Vec<_> = (0..10).map(|i| volume(&format!("v{i}"), false, 1)).collect();
        let text = of(11, 1, 1, &many).unwrap().to_string();
        assert!(text.contains("v7 (1) and 2 more;"), "{text}");
    }
}
