// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that bypass the cache and go straight to the origin: by size, or when the pool is
//! full.  This is off by default, since such a write is durable only after a flush.  And what else
//! may change while a volume is attached.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use forebay_engine::policy::policy_limit;
use forebay_engine::request::Policy as Raw;
use serde::{Deserialize, Serialize};

use crate::report::{DurableBecause, Mode, WhenFull, WriteDurable};

/// Changes to an attached volume; `None` keeps a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeChange {
    /// Writes of so many bytes and more go past the cache; 0: none.
    pub bypass_limit_bytes: Option<u64>,
    pub when_full: Option<WhenFull>,
    pub mode: Option<Mode>,
    /// Without effect in a pool in memory.
    pub durable: Option<WriteDurable>,
}

impl VolumeChange {
    /// This, and what came later.
    pub(crate) fn then(&mut self, later: &VolumeChange) {
        self.bypass_limit_bytes = later.bypass_limit_bytes.or(self.bypass_limit_bytes);
        self.when_full = later.when_full.or(self.when_full);
        self.mode = later.mode.or(self.mode);
        self.durable = later.durable.or(self.durable);
    }
}

/// The policy in effect for a volume; any thread.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub raw: Raw,
    /// In a pool that is written in groups a later flush makes a write durable.
    later: AtomicBool,
    /// Why that is so.  Held while it changes.
    because: Mutex<Option<DurableBecause>>,
}

impl Policy {
    /// `durable_write`: how long one takes the pool's disk at best, if that is known.
    pub(crate) fn change(&self, c: &VolumeChange, durable_write: Option<Duration>) {
        if let Some(durable) = c.durable {
            let (decided, because) = durable.decide(durable_write);
            let mut held = self.because.lock().unwrap_or_else(|e| e.into_inner());
            self.later.store(decided == WriteDurable::Flush, Ordering::Relaxed);
            *held = Some(because);
        }
        if let Some(bytes) = c.bypass_limit_bytes {
            self.raw.bypass_sectors.store(policy_limit(bytes), Ordering::Relaxed);
        }
        if let Some(what) = c.when_full {
            let bypasses = u8::from(what == WhenFull::Bypass);
            self.raw.full_bypasses.store(bypasses, Ordering::Relaxed);
        }
        if let Some(mode) = c.mode {
            self.raw.mode.store(mode as u8, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn is_later(&self) -> bool {
        self.later.load(Ordering::Relaxed)
    }

    /// When a write is durable, and why, of a volume in a pool that is written in groups.
    pub(crate) fn durable(&self) -> (WriteDurable, Option<DurableBecause>) {
        let because = self.because.lock().unwrap_or_else(|e| e.into_inner());
        match self.is_later() {
            true => (WriteDurable::Flush, *because),
            false => (WriteDurable::Always, *because),
        }
    }

    /// In whole sectors; 0: none.
    pub(crate) fn limit_bytes(&self) -> u64 {
        u64::from(self.raw.bypass_sectors.load(Ordering::Relaxed)) * 512
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.raw.mode.load(Ordering::Relaxed))]
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        match self.raw.full_bypasses.load(Ordering::Relaxed) {
            0 => WhenFull::Wait,
            _ => WhenFull::Bypass,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::sys;

    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        let p = Policy::default();
        assert!(p.limit_bytes() == 0 && p.when_full() == WhenFull::Wait);
        p.change(&VolumeChange { bypass_limit_bytes: Some(4095), ..Default::default() }, None);
        assert!(p.limit_bytes() == 4096 && p.when_full() == WhenFull::Wait);
        p.change(&VolumeChange { when_full: Some(WhenFull::Bypass), ..Default::default() }, None);
        assert!(p.limit_bytes() == 4096 && p.when_full() == WhenFull::Bypass);
        for (mode, raw) in Mode::ALL.into_iter().zip([
            sys::FBY_MODE_WRITE_BACK,
            sys::FBY_MODE_WRITE_THROUGH,
            sys::FBY_MODE_CLEANER,
        ]) {
            p.change(&VolumeChange { mode: Some(mode), ..Default::default() }, None);
            assert!(p.mode() == mode && mode as u8 == raw && p.limit_bytes() == 4096);
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        assert_eq!(p.durable(), (WriteDurable::Always, None));
        let slow = Duration::from_millis(3);
        for (durable, is, because) in [
            (WriteDurable::Auto, WriteDurable::Flush, DurableBecause::Took(slow)),
            (WriteDurable::Always, WriteDurable::Always, DurableBecause::Asked),
            (WriteDurable::Flush, WriteDurable::Flush, DurableBecause::Asked),
        ] {
            p.change(&VolumeChange { durable: Some(durable), ..Default::default() }, Some(slow));
            // What is not asked for is not decided again.
            p.change(&VolumeChange::default(), Some(Duration::ZERO));
            assert_eq!(p.durable(), (is, Some(because)), "{durable}");
        }
        assert!("write".parse::<Mode>().is_err());
        assert_eq!("bypass".parse::<WhenFull>().unwrap().to_string(), "bypass");
        assert!("no".parse::<WhenFull>().is_err());
    }
}
