// SPDX-License-Identifier: MIT OR Apache-2.0
//! Default values and bounds of options.  All are from `host/policy.h`, so that library,
//! command, manual and kernel module agree.

use std::time::Duration;

use forebay_engine::sys;

/// Bytes of a chunk.
pub const CHUNK_SIZE_BYTES: u32 = sys::FBY_DEFAULT_CHUNK_SIZE;
/// The least, and the default is the most.
pub const CHUNK_SIZE_BYTES_MIN: u32 = sys::FBY_DEFAULT_CHUNK_SIZE_MIN;
/// Volumes that a pool is made for, which is also the most.
pub const VOLUMES: u32 = sys::FBY_VOLUMES_MAX;
/// Per cent of chunks in use where destage starts.
pub const HIGH_WATERMARK_PERCENT: u32 = sys::FBY_DEFAULT_HIGH_WATERMARK;
/// So much less than the high watermark is the low one.
pub const WATERMARK_GAP_PERCENT: u32 = sys::FBY_DEFAULT_WATERMARK_GAP;
/// Most commit slots.
pub const SLOTS_MAX: u32 = sys::FBY_DEFAULT_SLOTS_MAX;
/// Origin writes of destage in flight.
pub const QUEUE_DEPTH: u32 = sys::FBY_DEFAULT_QUEUE_DEPTH;
pub const QUEUE_DEPTH_MAX: u32 = sys::FBY_DEFAULT_QUEUE_DEPTH_MAX;
/// Largest origin write of destage.
pub const BUFFER_BYTES: u32 = sys::FBY_DEFAULT_BUFFER_BYTES;
/// Most pages written before the origin is flushed.
pub const ROUND_PAGES: u32 = sys::FBY_DEFAULT_ROUND_PAGES;
pub const ROUND_PAGES_MIN: u32 = sys::FBY_DEFAULT_ROUND_PAGES_MIN;
/// How long a request waits for an origin on the network that is away.
pub const AWAY_LIMIT: Duration = Duration::from_secs(30);
/// Room for static volumes, and each one's share, are multiples of this.
pub const STATIC_UNIT_BYTES: u64 = sys::FBY_STATIC_UNIT;
/// The longest period of a static volume.
pub const FLUSH_EVERY_MOST: Duration = Duration::from_secs(3600);
