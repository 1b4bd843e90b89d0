// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/api/log.h`, `core/format/log_format.h`, `core/log/log_order.h`: logs.

use std::ffi::{c_char, c_int, c_void};

use crate::{fby_pool, fby_vec, zeroed_default, FBY_NAME_MAX};

pub const FBY_LOG_TXGS: usize = 3;

/// `enum fby_log_flags`
pub const FBY_LOG_CONSUMER: u32 = 1;

/// `enum fby_log_state`
pub const FBY_LOG_NONE: u32 = 0;
pub const FBY_LOG_LOGGING: u32 = 1;
pub const FBY_LOG_REPLAYING: u32 = 2;

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
pub const FBY_LOG_APPLIED: u32 = 3;

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

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_header {
    pub guid: [u8; 16],
    pub state: u32,
    pub reserved: u32,
    pub at: fby_log_position,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_name {
    pub gen: u64,
    pub id: u64,
    pub ticket: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_log_info {
    pub name: [u8; FBY_NAME_MAX + 1],
    pub used: bool,
    pub damaged: bool,
    pub consumer: bool,
    pub claimed: bool,
    pub incomplete: bool,
    pub header: fby_log_header,
    pub chunks: u32,
    pub most: u32,
    pub found: u64,
    pub missing: u64,
    pub appends: u64,
    pub bytes: u64,
    pub unsynced: u64,
    pub unsynced_txgs: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_cursor {
    pub line: u32,
    pub last: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_entry_info {
    pub found: bool,
    pub gap: bool,
    pub data_ok: bool,
    pub node: fby_log_node,
    pub entry: fby_log_entry,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_record {
    pub counter: u64,
    pub index: u32,
    pub kind: u32,
    pub guid: [u8; 16],
    pub state: u32,
    pub home: u32,
    pub reserved0: u64,
    pub name: [u8; FBY_NAME_MAX + 1],
    pub at: fby_log_position,
    pub reserved1: u32,
    pub flags: u32,
    pub reserved2: u32,
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_log_entry {
    pub magic: u32,
    pub chunk: u32,
    pub line: u32,
    pub length: u32,
    pub epoch: u64,
    pub txg: u64,
    pub gen: u64,
    pub id: u64,
    pub before: fby_log_counters,
    pub guid: [u8; 16],
    pub previous: u32,
    pub log: u16,
    pub reserved: [u8; 18],
    pub body_crc: u32,
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_append {
    pub log: u16,
    pub slot: u32,
    pub chunk: u32,
    pub entry: fby_log_entry,
}

zeroed_default!(
    fby_append,
    fby_log_counters,
    fby_log_node,
    fby_log_position,
    fby_log_result,
    fby_log_header,
    fby_log_name,
    fby_log_info,
    fby_log_record,
    fby_log_entry,
    fby_log_cursor,
    fby_log_entry_info,
);

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

    pub fn fby_log_add(p: *mut fby_pool, name: *const c_char, flags: u32, log: *mut u16) -> c_int;
    pub fn fby_log_remove(p: *mut fby_pool, log: u16, discard: bool) -> c_int;
    pub fn fby_log_find(p: *mut fby_pool, name: *const c_char, log: *mut u16) -> c_int;
    pub fn fby_log_create(
        p: *mut fby_pool,
        log: u16,
        guid: *const u8,
        synced: u64,
        header: *mut fby_log_header,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_log_append(
        p: *mut fby_pool,
        log: u16,
        txg: u64,
        new_generation: bool,
        vec: *const fby_vec,
        nvec: u32,
        name: *mut fby_log_name,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_log_append_begin(
        p: *mut fby_pool,
        a: *mut fby_append,
        log: u16,
        txg: u64,
        new_generation: bool,
        vec: *const fby_vec,
        nvec: u32,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_log_append_commit(
        p: *mut fby_pool,
        a: *mut fby_append,
        name: *mut fby_log_name,
        wake: *mut u32,
    );
    pub fn fby_log_sync(
        p: *mut fby_pool,
        log: u16,
        txg: u64,
        header: *mut fby_log_header,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_log_claim(
        p: *mut fby_pool,
        log: u16,
        synced: u64,
        header: *mut fby_log_header,
        node: *mut fby_log_node,
        n: *mut u64,
        result: *mut fby_log_result,
    ) -> c_int;
    pub fn fby_log_replay(
        p: *mut fby_pool,
        log: u16,
        node: *mut fby_log_node,
        n: u64,
        replay: fby_log_replay_fn,
        arg: *mut c_void,
        result: *mut fby_log_result,
    ) -> c_int;
    pub fn fby_log_read(
        p: *mut fby_pool,
        log: u16,
        node: *const fby_log_node,
        dst: *mut c_void,
        room: u32,
        length: *mut u32,
    ) -> c_int;
    pub fn fby_log_destroy(
        p: *mut fby_pool,
        log: u16,
        header: *mut fby_log_header,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_log_release(p: *mut fby_pool, log: u16, wake: *mut u32) -> c_int;
    pub fn fby_log_info(p: *mut fby_pool, log: u16, out: *mut fby_log_info) -> c_int;
    pub fn fby_log_entry_info(
        p: *mut fby_pool,
        chunk: u32,
        at: *mut fby_log_cursor,
        check_data: bool,
        out: *mut fby_log_entry_info,
    ) -> c_int;
}
