// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a volume is attached.

use std::path::PathBuf;
use std::time::Duration;

use crate::defaults;
use crate::error::{Error, Result};
use crate::report::{words, Mode, WhenFull, WriteDurable};

/// How an attach treats entries that recovery found lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// Refuse.
    #[default]
    Fail,
    /// Blocks that can be named answer EIO; refuse if some cannot.
    Isolate,
    /// Blocks that cannot be named may show older data.
    Accept,
}

words! {
    Holes { "fail" => Fail, "isolate" => Isolate, "accept" => Accept }
    unknown: "holes policy \"{}\" is not known", way_out: "use fail, isolate or accept"
}

/// How a request behaves while an origin on the network is away, or does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAway {
    /// It fails after a while.
    #[default]
    Error,
    /// It waits as long as it takes.
    Wait,
}

words! {
    WhenAway { "error" => Error, "wait" => Wait }
    unknown: "\"{}\" is not known for when an origin is away", way_out: "use wait or error"
}

/// That behaviour, with its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    pub when: WhenAway,
    /// After which it fails, if it does.
    pub limit: Duration,
}

impl Default for Away {
    fn default() -> Away {
        Away { when: WhenAway::Error, limit: defaults::AWAY_LIMIT }
    }
}

impl Away {
    pub(crate) fn limit(&self) -> Option<Duration> {
        (self.when == WhenAway::Error).then_some(self.limit)
    }
}

/// How to attach a volume.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// The present place of the origin, a path or a URI (see
    /// [`open_origin`](crate::open_origin)); `None`: the recorded place.
    pub origin: Option<PathBuf>,
    /// For an origin on the network.
    pub away: Away,
    pub holes: Holes,
    /// For the rescue of what the volume holds, from a pool whose disk has failed or whose file is
    /// lost; any other refuses it.  What recovery found lost refuses nothing then, and stays lost.
    pub rescue: bool,
    /// Attach though the origin's id is not the recorded one, or it has grown,
    /// and record what it is now.  Onto an origin that holds other data, what
    /// is cached would destroy that.
    pub accept_changed_origin: bool,
    /// Record an origin by its name where the system has no better id of it.
    /// Disks that change places are then taken for each other.
    pub origin_by_name: bool,
    /// Directory for the marks of origins that cannot bear their own; `None`:
    /// [`state_dir`](crate::state_dir).
    pub state: Option<PathBuf>,
    /// Attach though the mark of the origin is missing, cannot be read, or was set on
    /// another host.
    pub accept_mark: bool,
    /// How long a write may wait for space; `None`: as long as it takes.
    pub full_timeout: Option<Duration>,
    /// Origin writes of destage in flight, 1 to [`defaults::QUEUE_DEPTH_MAX`]; 0:
    /// [`defaults::QUEUE_DEPTH`].
    pub queue_depth: u32,
    /// Largest origin write, a multiple of 4096; 0: [`defaults::BUFFER_BYTES`].
    pub buffer_bytes: u32,
    /// Most pages written before the origin is flushed, at least
    /// [`defaults::ROUND_PAGES_MIN`]; 0: [`defaults::ROUND_PAGES`].
    pub round_pages: u32,
    /// Writes of so many bytes and more go past the cache, straight to the
    /// origin, as far as their blocks are not cached; 0: none.  They are as
    /// durable as the origin makes them, so after the next [`Volume::flush`].
    pub bypass_limit_bytes: u64,
    /// How a write behaves when the pool is full; bypassed ones as above.
    pub when_full: WhenFull,
    pub mode: Mode,
    /// In a pool that is written in groups to a disk.
    pub durable: WriteDurable,
}

pub(crate) struct Sizes {
    pub round_pages: u32,
    pub buffers: u32,
    pub buffer_bytes: u32,
}

pub(crate) fn sizes(o: &AttachOptions) -> Result<Sizes> {
    let or = |value, default| if value == 0 { default } else { value };
    let sizes = Sizes {
        round_pages: or(o.round_pages, defaults::ROUND_PAGES),
        buffers: or(o.queue_depth, defaults::QUEUE_DEPTH),
        buffer_bytes: or(o.buffer_bytes, defaults::BUFFER_BYTES),
    };
    if sizes.buffers > defaults::QUEUE_DEPTH_MAX
        || !sizes.buffer_bytes.is_multiple_of(4096)
        || sizes.round_pages < defaults::ROUND_PAGES_MIN
    {
        return Err(Error::usage(
            format!(
                "{} requests of {} bytes in rounds of {} pages are not possible",
                sizes.buffers, sizes.buffer_bytes, sizes.round_pages
            ),
            format!(
                "use 1 to {} requests, a multiple of 4096 bytes, at least {} pages",
                defaults::QUEUE_DEPTH_MAX,
                defaults::ROUND_PAGES_MIN
            ),
        ));
    }
    Ok(sizes)
}
