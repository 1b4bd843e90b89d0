// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of a volume: its use of the pool, its behaviour when the pool is full, and when its
//! writes are durable.

use std::fmt;
use std::time::Duration;

use forebay_engine::sys;
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

/// If the pool's disk needs longer for a durable write, `auto` is `flush`.
const SLOW: Duration = Duration::from_nanos(sys::FBY_DEFAULT_SLOW_DURABLE_NS as u64);

/// Why a volume has `always` or `flush`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurableBecause {
    /// It was asked for.
    Asked,
    /// `auto`: a durable write took the disk so long at best.
    Took(Duration),
    /// `auto`: no durable write of the disk was timed yet.
    Untimed,
}

impl WriteDurable {
    /// What it comes to, and why.  `durable_write`: how long one takes the pool's disk at best.
    pub(crate) fn decide(self, durable_write: Option<Duration>) -> (WriteDurable, DurableBecause) {
        match (self, durable_write) {
            (WriteDurable::Auto, None) => (WriteDurable::Flush, DurableBecause::Untimed),
            (WriteDurable::Auto, Some(took)) => match took >= SLOW {
                true => (WriteDurable::Flush, DurableBecause::Took(took)),
                false => (WriteDurable::Always, DurableBecause::Took(took)),
            },
            (asked, _) => (asked, DurableBecause::Asked),
        }
    }
}

impl fmt::Display for DurableBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slow = SLOW.as_micros();
        match self {
            DurableBecause::Asked => f.write_str("it was asked for"),
            DurableBecause::Took(took) => {
                let than = match *took >= SLOW {
                    true => format!("{slow} us or more"),
                    false => format!("less than {slow} us"),
                };
                // Whole microseconds, so that the two numbers agree.
                let took = took.as_micros();
                write!(f, "auto: a durable write took the disk {took} us at best, {than}")
            }
            DurableBecause::Untimed => f.write_str("auto: no durable write of the disk was timed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_words() {
        let us = |us: u64| Some(Duration::from_micros(us));
        let almost = Some(SLOW - Duration::from_nanos(1));
        let (auto, always, flush) = (WriteDurable::Auto, WriteDurable::Always, WriteDurable::Flush);
        let table = [
            (
                auto,
                us(85),
                always,
                "auto: a durable write took the disk 85 us at best, less than 200 us",
            ),
            (
                auto,
                almost,
                always,
                "auto: a durable write took the disk 199 us at best, less than 200 us",
            ),
            (
                auto,
                us(200),
                flush,
                "auto: a durable write took the disk 200 us at best, 200 us or more",
            ),
            (
                auto,
                us(3000),
                flush,
                "auto: a durable write took the disk 3000 us at best, 200 us or more",
            ),
            (auto, None, flush, "auto: no durable write of the disk was timed"),
            (always, us(3000), always, "it was asked for"),
            (always, None, always, "it was asked for"),
            (flush, us(85), flush, "it was asked for"),
            (flush, None, flush, "it was asked for"),
        ];
        for (asked, took, is, words) in table {
            let (decided, because) = asked.decide(took);
            assert_eq!((decided, because.to_string().as_str()), (is, words), "{asked} {took:?}");
        }
    }
}
