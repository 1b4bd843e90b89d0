// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/medium/device.h` and `core/api/groups.h`: pools on a block device.

use std::ffi::c_int;

use crate::api::fby_pool;
use crate::port::fby_media;
use crate::zeroed_default;

/// `enum fby_durable`
pub const FBY_DURABLE_THROUGH: u32 = 0;
pub const FBY_DURABLE_FUA: u32 = 1;
pub const FBY_DURABLE_FLUSH: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_device {
    pub unit: u32,
    pub durable: u32,
    pub persist: unsafe extern "C" fn(*mut fby_media, u64, u64, bool) -> c_int,
    pub lost: u32,
    pub failed: u32,
}

/// `enum fby_medium_kind`
pub const FBY_MEDIUM_WRITE: u32 = 1;
pub const FBY_MEDIUM_FLUSH: u32 = 2;

/// `enum fby_medium_flags`
pub const FBY_MEDIUM_FUA: u32 = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct fby_medium_io {
    pub kind: u32,
    pub flags: u32,
    pub at: u64,
    pub n: u64,
    pub id: u32,
    pub reserved: u32,
}

/// `enum fby_ticket_state`
pub const FBY_TICKET_DURABLE: u32 = 0;
pub const FBY_TICKET_PENDING: u32 = 1;
pub const FBY_TICKET_FAILED: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_medium_load {
    pub in_flight: bool,
    pub waiting: u32,
    pub last: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_medium_info {
    pub grouped: bool,
    pub failed: bool,
    pub unit: u32,
    pub groups: u64,
    pub records: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    pub again: u64,
}

zeroed_default!(fby_medium_io, fby_medium_load, fby_medium_info);

extern "C" {
    pub fn fby_medium_next(p: *mut fby_pool, io: *mut fby_medium_io, wake: *mut u32) -> c_int;
    pub fn fby_medium_end(p: *mut fby_pool, io: *const fby_medium_io, error: c_int, wake: *mut u32);
    pub fn fby_volume_ticket(p: *mut fby_pool, volume: u16) -> u64;
    pub fn fby_ticket_state(p: *const fby_pool, ticket: u64) -> u32;
    pub fn fby_medium_load(p: *mut fby_pool, ticket: u64, out: *mut fby_medium_load);
    pub fn fby_medium_info(p: *mut fby_pool, out: *mut fby_medium_info);
}
