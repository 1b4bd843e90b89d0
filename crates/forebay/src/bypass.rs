// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes past the cache, straight to the origin: by size, or when the pool
//! is full.  Off unless asked for, since such a write is durable only after a
//! flush.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use crate::words::words;

/// What a volume uses the pool for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write is acknowledged when the pool has it; the origin gets it later.
    #[default]
    WriteBack,
    /// A write is acknowledged when the origin has it, flushed.
    WriteThrough,
    /// What is cached goes to the origin, and nothing new comes to it but what
    /// overwrites it: the pool empties.  Other writes are durable after a flush.
    Cleaner,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::WriteBack, Mode::WriteThrough, Mode::Cleaner];
}

words! {
    Mode { "write-back" => WriteBack, "write-through" => WriteThrough, "cleaner" => Cleaner }
    unknown: "\"{}\" is not a mode of a volume",
    way_out: "use write-back, write-through or cleaner"
}

/// What a write does when the pool is full.
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

/// What to change of an attached volume; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeChange {
    /// Writes of so many bytes and more go past the cache; 0: none.
    pub bypass_limit_bytes: Option<u64>,
    pub when_full: Option<WhenFull>,
    pub mode: Option<Mode>,
}

/// Less than this between cached blocks is not worth a request to the origin.
const LARGE_LEAST: u32 = 128;

/// Those of a volume in effect; any thread.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    limit: AtomicU64,
    when_full: AtomicBool,
    mode: AtomicU8,
}

impl Policy {
    pub(crate) fn change(&self, c: &VolumeChange) {
        if let Some(bytes) = c.bypass_limit_bytes {
            self.limit.store(bytes, Ordering::Relaxed);
        }
        if let Some(what) = c.when_full {
            self.when_full.store(what == WhenFull::Bypass, Ordering::Relaxed);
        }
        if let Some(mode) = c.mode {
            self.mode.store(mode as u8, Ordering::Relaxed);
        }
    }

    /// 0: none.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Does a write of so many bytes go past the cache, as far as it may?  Then from
    /// how many sectors between cached blocks on.
    pub(crate) fn past(&self, bytes: usize) -> Option<u32> {
        let limit = self.limit_bytes();
        match self.mode() {
            Mode::WriteThrough | Mode::Cleaner => Some(1),
            Mode::WriteBack => (limit != 0 && bytes as u64 >= limit).then_some(LARGE_LEAST),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Ordering::Relaxed))]
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        match self.when_full.load(Ordering::Relaxed) {
            true => WhenFull::Bypass,
            false => WhenFull::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        let p = Policy::default();
        assert!(p.past(usize::MAX).is_none() && p.when_full() == WhenFull::Wait);
        p.change(&VolumeChange { bypass_limit_bytes: Some(4096), ..Default::default() });
        assert!(
            p.past(4096) == Some(LARGE_LEAST)
                && p.past(4095).is_none()
                && p.when_full() == WhenFull::Wait
        );
        p.change(&VolumeChange { when_full: Some(WhenFull::Bypass), ..Default::default() });
        assert!(p.past(4096).is_some() && p.when_full() == WhenFull::Bypass);
        p.change(&VolumeChange { mode: Some(Mode::WriteThrough), ..Default::default() });
        assert!(p.past(512) == Some(1) && p.when_full() == WhenFull::Bypass);
        for mode in Mode::ALL {
            p.change(&VolumeChange { mode: Some(mode), ..Default::default() });
            assert_eq!(p.mode(), mode);
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        assert!("write".parse::<Mode>().is_err());
        assert_eq!("bypass".parse::<WhenFull>().unwrap().to_string(), "bypass");
        assert!("no".parse::<WhenFull>().is_err());
    }
}
