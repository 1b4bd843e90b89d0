// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/log/log_order.h`: how a log's entries depend on each other.

use std::ffi::c_void;

use crate::zeroed_default;

pub const FBY_LOG_TXGS: usize = 3;

/// `enum fby_log_refusal`
pub const FBY_LOG_OK: u32 = 0;
pub const FBY_LOG_OBSOLETE: u32 = 1;
pub const FBY_LOG_SKIPS: u32 = 2;
pub const FBY_LOG_BACKWARDS: u32 = 3;
pub const FBY_LOG_FULL: u32 = 4;

/// `enum fby_log_verdict`
pub const FBY_LOG_REPLAYED: u32 = 0;
pub const FBY_LOG_DAMAGED: u32 = 1;
pub const FBY_LOG_STOP: u32 = 2;

/// `enum fby_log_end`
pub const FBY_LOG_COMPLETE: u32 = 0;
pub const FBY_LOG_MISSING: u32 = 1;
pub const FBY_LOG_STOPPED: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_counters {
    pub txg: u64,
    pub n: [u64; FBY_LOG_TXGS],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_node {
    pub txg: u64,
    pub gen: u64,
    pub id: u64,
    pub before: fby_log_counters,
    pub place: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_position {
    pub synced: u64,
    pub gen: u64,
    pub id: u64,
    pub live: fby_log_counters,
    pub last: fby_log_counters,
    pub seal_gen: u64,
    pub seal: fby_log_counters,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_result {
    pub end: u32,
    pub replayed: u64,
    pub obsolete: u64,
    pub earlier: u64,
    pub twins: u64,
    pub damaged: u64,
    pub left: u64,
    pub witness: fby_log_node,
    pub first_damaged: fby_log_node,
}

zeroed_default!(fby_log_counters, fby_log_node, fby_log_position, fby_log_result);

pub type fby_log_replay_fn =
    unsafe extern "C" fn(*mut c_void, *const fby_log_node, *const fby_log_position) -> u32;

extern "C" {
    pub fn fby_log_append_order(
        at: *mut fby_log_position,
        txg: u64,
        new_generation: bool,
        node: *mut fby_log_node,
    ) -> u32;
    pub fn fby_log_sync_order(at: *mut fby_log_position, txg: u64) -> u32;
    pub fn fby_log_claim_order(
        at: *mut fby_log_position,
        synced: u64,
        node: *mut fby_log_node,
        n: u64,
    );
    pub fn fby_log_replay_order(
        at: *mut fby_log_position,
        node: *mut fby_log_node,
        n: u64,
        replay: fby_log_replay_fn,
        arg: *mut c_void,
        result: *mut fby_log_result,
    );
}
