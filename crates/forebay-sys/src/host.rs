// SPDX-License-Identifier: MIT OR Apache-2.0
//! `host/policy.h`, `host/drained.h` and `host/client_request.h`: decisions that all hosts of
//! the engine share.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicU8};

use crate::errors::static_text;
use crate::{
    fby_bypass, fby_flush, fby_pool, fby_vec, fby_volume_info, fby_volume_spec, fby_write,
    zeroed_default,
};

macro_rules! values {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(pub const $name: $type = $value;)*
    };
}

values! { u32:
    FBY_DEFAULT_CHUNK_SIZE = 2 << 20,
    FBY_DEFAULT_CHUNK_SIZE_MIN = 64 << 10,
    FBY_DEFAULT_HIGH_WATERMARK = 60,
    FBY_DEFAULT_WATERMARK_GAP = 10,
    FBY_DEFAULT_QUEUE_DEPTH = 64,
    FBY_DEFAULT_QUEUE_DEPTH_MAX = 64,
    FBY_DEFAULT_BUFFER_BYTES = 256 << 10,
    FBY_DEFAULT_ROUND_PAGES = 16384,
    FBY_DEFAULT_ROUND_PAGES_MIN = 16,
    FBY_DEFAULT_SLOTS_MAX = 64,
    FBY_DEFAULT_BYPASS_LEAST = 128,
    FBY_DEFAULT_JOIN_GAP = 128,
    FBY_DEFAULT_RANGE_THROTTLED = 128,
    FBY_DEFAULT_THROTTLE_SHORTEST_NS = 100_000,
    FBY_DEFAULT_DRAIN_LOOK_NS = 1_000_000,
    FBY_DEFAULT_NEARLY_CLEAN_PAGES = 16384,
    FBY_DEFAULT_CLEANER_PATIENCE = 100,
    FBY_DEFAULT_WAIT_SPINS = 64,
    FBY_DEFAULT_SPACE_RETRY_NS = 20_000_000,
    FBY_DEFAULT_FLUSH_RETRY_NS = 500_000_000,
    FBY_DEFAULT_SLOW_DURABLE_NS = 200_000,
}

values! { u8:
    FBY_MODE_WRITE_BACK = 0,
    FBY_MODE_WRITE_THROUGH = 1,
    FBY_MODE_CLEANER = 2,
    FBY_OP_READ = 0,
    FBY_OP_WRITE = 1,
    FBY_OP_DISCARD = 2,
    FBY_OP_ZERO = 3,
    FBY_OP_FLUSH = 4,
    FBY_REQ_DURABLE = 1,
    FBY_REQ_METADATA = 2,
    FBY_REQ_NOWAIT = 4,
    FBY_REQ_BEHIND = 8,
    FBY_REQ_ASIDE = 16,
    FBY_REQ_CLIENT = 32,
    FBY_REQ_TICKETS = 64,
    FBY_REQ_LATER = 128,
}

values! { c_int:
    FBY_NEXT_DONE = 0,
    FBY_NEXT_WAIT = 16,
    FBY_NEXT_ORIGIN = 17,
    FBY_NEXT_DATA = 18,
    FBY_NEXT_THROTTLE = 19,
    FBY_NEXT_DRAIN = 20,
    FBY_NEXT_LOST = 21,
    FBY_NEXT_STEP = 22,
    FBY_SENT = -1,
    FBY_ORIGIN_IS_SAME = 0,
    FBY_ORIGIN_IS_RENEWED = 1,
    FBY_ORIGIN_IS_BLOCK = 2,
    FBY_ORIGIN_IS_OTHER = 3,
    FBY_ORIGIN_IS_NAME = 4,
    FBY_ORIGIN_IS_SMALLER = 5,
    FBY_ORIGIN_IS_LARGER = 6,
    FBY_IS_RECORD_DAMAGED = 0,
    FBY_IS_ORIGIN_CHANGED = 1,
    FBY_IS_LOST_ENTRIES = 2,
    FBY_IS_LOST_BLOCKS = 3,
    FBY_IS_NOT_ATTACHED = 4,
    FBY_IS_ORIGIN_FAILS = 5,
    FBY_IS_CACHED = 6,
    FBY_IS_UNKNOWN = 7,
    FBY_IS_WHOLE = 8,
    FBY_MARK_IS_RIGHT = 0,
    FBY_MARK_IS_NEWER = 1,
    FBY_MARK_IS_OLDER = 2,
    FBY_MARK_IS_OTHER = 3,
    FBY_MARK_IS_MISSING = 4,
}

/// Each field may change while the engine looks at it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct fby_policy {
    pub bypass_sectors: AtomicU32,
    pub mode: AtomicU8,
    pub full_bypasses: AtomicU8,
    pub metadata_only: AtomicU8,
    pub durable: AtomicU8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_origin_found {
    pub id: *const c_char,
    pub sectors: u64,
    pub logical_block: u32,
    pub accept_changed: bool,
    pub by_name: bool,
    pub cannot_see_ids: bool,
    pub same_path: bool,
}

/// Sectors to be read from the origin, counted from the request's first.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct fby_run {
    pub start: u32,
    pub end: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct fby_asked {
    pub op: u8,
    pub nruns: u32,
    pub sector: u64,
    pub nsectors: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_request {
    pub pool: *mut fby_pool,
    pub policy: *const fby_policy,
    pub sector: u64,
    pub nsectors: u64,
    pub runs: *mut fby_run,
    pub max_runs: u32,
    pub volume: u16,
    pub op: u8,
    pub flags: u8,
    pub steps: *mut fby_write,
    pub data: *const fby_vec,
    pub ndata: u32,
    pub skip: u32,
    pub wake: u32,
    pub why: u8,
    pub step: u8,
    pub foreground: bool,
    pub io: fby_asked,
    pub lost: u64,
    pub done: u64,
    pub told: u32,
    pub past_sectors: u64,
    pub awaits: u64,
    pub state: u8,
    pub asked: u8,
    pub covered: bool,
    pub watching: bool,
    pub gave_up: bool,
    pub any_lost: bool,
    pub alone: bool,
    pub missing: u8,
    pub base: u32,
    pub nruns: u32,
    pub run: u32,
    pub least: u32,
    pub looks: u32,
    pub through: u64,
    pub settled: u64,
    pub failures: u64,
    pub appended: u64,
    pub past: fby_bypass,
    pub ticket: fby_flush,
}

/// The mark that an origin bears.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_mark_found {
    pub marked: bool,
    pub names: bool,
    pub exact: bool,
    pub least: u32,
    pub uuid: [u8; 16],
}

/// All facts that decide whether an origin is complete.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct fby_complete {
    pub damaged: bool,
    pub origin_changed: bool,
    pub attached: bool,
    pub failing: bool,
    pub counted: bool,
    pub lost_entries: u64,
    pub lost_blocks: u64,
    pub pages_left: u64,
}

zeroed_default!(fby_origin_found, fby_mark_found, fby_request);

extern "C" {
    pub fn fby_policy_limit(bytes: u64) -> u32;
    pub fn fby_policy_delay(p: *mut fby_pool, volume: u16, nsectors: u64, now_ns: u64) -> u64;
    pub fn fby_origin_judge(
        recorded: *const fby_volume_spec,
        found: *const fby_origin_found,
    ) -> c_int;
    fn fby_origin_cause(verdict: c_int) -> *const c_char;
    pub fn fby_volume_holds(v: *const fby_volume_info) -> bool;
    pub fn fby_mark_judge(v: *const fby_volume_info, found: *const fby_mark_found) -> c_int;
    pub fn fby_complete_judge(c: *const fby_complete) -> c_int;
    fn fby_mark_cause(verdict: c_int) -> *const c_char;
    pub fn fby_origin_is_name(id: *const c_char) -> bool;
    pub fn fby_origin_is_unasked_name(recorded: *const c_char, id: *const c_char) -> bool;
    pub fn fby_origin_usable(block_size: u32, sectors: u64) -> u64;
    pub fn fby_error_exit(error: c_int) -> u32;
    pub fn fby_errno_exit(error: c_int) -> u32;

    pub fn fby_request_begin(r: *mut fby_request) -> c_int;
    pub fn fby_request_resume(r: *mut fby_request, result: c_int) -> c_int;
    pub fn fby_request_delay(r: *const fby_request, now_ns: u64) -> u64;
    pub fn fby_request_end(r: *mut fby_request, wake: *mut u32);
}

/// The text for a verdict of [`fby_origin_judge`] about the origin.
pub fn origin_cause(verdict: c_int) -> &'static str {
    assert!((FBY_ORIGIN_IS_SAME..=FBY_ORIGIN_IS_LARGER).contains(&verdict));
    // SAFETY: a string constant for each verdict.
    static_text(unsafe { fby_origin_cause(verdict) })
}

/// The text for a verdict of [`fby_mark_judge`] about pool and mark.
pub fn mark_cause(verdict: c_int) -> &'static str {
    assert!((FBY_MARK_IS_RIGHT..=FBY_MARK_IS_MISSING).contains(&verdict));
    // SAFETY: a string constant for each verdict.
    static_text(unsafe { fby_mark_cause(verdict) })
}
