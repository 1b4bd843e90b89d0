// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes past the cache, straight to the origin: by size, or when the pool
//! is full.  Off unless asked for, since such a write is durable only after a
//! flush.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::Error;

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

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WhenFull::Wait => "wait",
            WhenFull::Bypass => "bypass",
        })
    }
}

impl FromStr for WhenFull {
    type Err = Error;

    fn from_str(s: &str) -> Result<WhenFull, Error> {
        match s {
            "wait" => Ok(WhenFull::Wait),
            "bypass" => Ok(WhenFull::Bypass),
            _ => Err(Error::usage(
                format!("\"{s}\" is nothing to do when full"),
                "use wait or bypass",
            )),
        }
    }
}

/// What to change of an attached volume; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeChange {
    /// Writes of so many bytes and more go past the cache; 0: none.
    pub bypass_limit_bytes: Option<u64>,
    pub when_full: Option<WhenFull>,
}

/// Those of a volume in effect; any thread.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    limit: AtomicU64,
    when_full: AtomicBool,
}

impl Policy {
    pub(crate) fn change(&self, c: &VolumeChange) {
        if let Some(bytes) = c.bypass_limit_bytes {
            self.limit.store(bytes, Ordering::Relaxed);
        }
        if let Some(what) = c.when_full {
            self.when_full.store(what == WhenFull::Bypass, Ordering::Relaxed);
        }
    }

    /// 0: none.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn large(&self, bytes: usize) -> bool {
        let limit = self.limit_bytes();
        limit != 0 && bytes as u64 >= limit
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
        assert!(!p.large(usize::MAX) && p.when_full() == WhenFull::Wait);
        p.change(&VolumeChange { bypass_limit_bytes: Some(4096), ..Default::default() });
        assert!(p.large(4096) && !p.large(4095) && p.when_full() == WhenFull::Wait);
        p.change(&VolumeChange { when_full: Some(WhenFull::Bypass), ..Default::default() });
        assert!(p.large(4096) && p.when_full() == WhenFull::Bypass);
        assert_eq!("bypass".parse::<WhenFull>().unwrap().to_string(), "bypass");
        assert!("no".parse::<WhenFull>().is_err());
    }
}
