// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/api/forebay.h`: the contract between the engine and its hosts.

use std::ffi::{c_char, c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};

use crate::format::{
    fby_page_line, fby_superblock, FBY_BATCH_PAGES, FBY_IDENTITY_MAX, FBY_NAME_MAX,
};
use crate::port::fby_media;
use crate::zeroed_default;

/// An open pool; lives in the memory given to `fby_pool_open`.
#[repr(C)]
#[derive(Debug)]
pub struct fby_pool {
    _opaque: [u8; 0],
    _not_send_sync_unpin: PhantomData<(*mut u8, PhantomPinned)>,
}

/// `enum fby_decision`: the successful results of calls.
pub const FBY_DONE: c_int = 0;
pub const FBY_WAIT_BLOCK: c_int = 1;
pub const FBY_WAIT_SLOT: c_int = 2;
pub const FBY_WAIT_SPACE: c_int = 3;
pub const FBY_ORIGIN: c_int = 4;
pub const FBY_AGAIN: c_int = 5;
pub const FBY_CACHED: c_int = 6;
pub const FBY_WAIT_FLUSH: c_int = 7;
pub const FBY_WAIT_TICKET: c_int = 8;

/// `enum fby_wake`: bits of a wake mask.
pub const FBY_WAKE_BLOCK: u32 = 1 << FBY_WAIT_BLOCK;
pub const FBY_WAKE_SLOT: u32 = 1 << FBY_WAIT_SLOT;
pub const FBY_WAKE_SPACE: u32 = 1 << FBY_WAIT_SPACE;
pub const FBY_WAKE_DESTAGE: u32 = 1 << 7;
pub const FBY_WAKE_FLUSH: u32 = 1 << 8;
pub const FBY_WAKE_TICKET: u32 = 1 << 9;

/// `enum fby_probe_state`
pub const FBY_PROBE_BLANK: u32 = 0;
pub const FBY_PROBE_POOL: u32 = 1;
pub const FBY_PROBE_DAMAGED: u32 = 2;

/// `enum fby_verify`
pub const FBY_VERIFY_ALWAYS: u32 = 0;
pub const FBY_VERIFY_FIRST: u32 = 1;
pub const FBY_VERIFY_NEVER: u32 = 2;

/// `enum fby_holes`
pub const FBY_HOLES_FAIL: u32 = 0;
pub const FBY_HOLES_ISOLATE: u32 = 1;
pub const FBY_HOLES_ACCEPT: u32 = 2;
pub const FBY_HOLES_RESCUE: u32 = 3;

pub const FBY_REPORT_MAX: usize = 32;

/// `enum fby_mark_step`
pub const FBY_MARK_BEGIN: u32 = 0;
pub const FBY_MARK_SET: u32 = 1;
pub const FBY_MARK_CLEARED: u32 = 2;
pub const FBY_MARK_AGAIN: u32 = 3;
pub const FBY_MARK_GONE: u32 = 4;

/// `enum fby_destage_state`
pub const FBY_DESTAGE_IDLE: u32 = 0;
pub const FBY_DESTAGE_WRITING: u32 = 1;
pub const FBY_DESTAGE_FLUSHING: u32 = 2;
pub const FBY_DESTAGE_COMMITTING: u32 = 3;
pub const FBY_DESTAGE_BACKOFF: u32 = 4;

/// `enum fby_io_op`
pub const FBY_IO_WRITE: u8 = 1;
pub const FBY_IO_ZERO: u8 = 2;
pub const FBY_IO_DISCARD: u8 = 3;
pub const FBY_IO_FLUSH: u8 = 4;

/// For `fby_destage_complete`: the origin never had the request.
pub const FBY_NOT_SENT: c_int = 125;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_format {
    pub uuid: [u8; 16],
    pub chunk_size: u32,
    pub nvolumes: u32,
    pub static_bytes: u64,
    pub map_bytes: u64,
    pub unit: u32,
    pub salt: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_probe {
    pub state: u32,
    pub error: c_int,
    pub primary_valid: bool,
    pub copy_valid: bool,
    pub sb: fby_superblock,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_options {
    pub nslots: u32,
    pub read_only: bool,
    pub no_checksums: bool,
    pub statics: bool,
    pub maps: bool,
    pub verify: u32,
    pub high_watermark: u32,
    pub low_watermark: u32,
    pub max_age_ns: u64,
    pub idle_ns: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_report_block {
    pub block: u64,
    pub chunk: u32,
    pub page: u16,
    pub volume: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_recovery_report {
    pub clean: bool,
    pub chunks: u64,
    pub entries: u64,
    pub blocks: u64,
    pub dropped: u64,
    pub damaged: u64,
    pub holes: u64,
    pub lines_repaired: u64,
    pub chunk_headers_lost: u64,
    pub groups_lost: u64,
    pub unknown_at: u32,
    pub unknown_kind: u32,
    pub ndropped_named: u32,
    pub nholes_named: u32,
    pub ngroups_named: u32,
    pub dropped_named: [fby_report_block; FBY_REPORT_MAX],
    pub holes_named: [fby_report_block; FBY_REPORT_MAX],
    pub groups_named: [fby_report_block; FBY_REPORT_MAX],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_pool_info {
    pub sb: fby_superblock,
    pub memory_bytes: u64,
    pub nslots: u32,
    pub chunks_free: u32,
    pub chunks_open: u32,
    pub chunks_used: u32,
    pub chunks_reserved: u32,
    pub pages: u64,
    pub pages_linked: u64,
    pub seq: u64,
    pub writes: u64,
    pub written_sectors: u64,
    pub merges: u64,
    pub commits: u64,
    pub media_bytes: u64,
    pub reads: u64,
    pub read_hit_sectors: u64,
    pub read_miss_sectors: u64,
    pub discards: u64,
    pub zeroes: u64,
    pub flushes: u64,
    pub chunks_opened: u64,
    pub waits_block: u64,
    pub waits_slot: u64,
    pub waits_space: u64,
    pub damaged_pages: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_volume_spec {
    pub name: [u8; FBY_NAME_MAX + 1],
    pub identity: [u8; FBY_IDENTITY_MAX + 1],
    pub uuid: [u8; 16],
    pub origin_sectors: u64,
    pub block_size: u32,
    pub flush_us: u32,
    pub static_bytes: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_volume_info {
    pub spec: fby_volume_spec,
    pub watermark: u64,
    pub home: u64,
    pub marks: u32,
    pub used: bool,
    pub damaged: bool,
    pub attached: bool,
    pub pages: u64,
    pub lost_blocks: u64,
    pub holes: u64,
    pub holes_unknown: u64,
    pub chunks: u32,
    pub destage: u32,
    pub draining: bool,
    pub last_error: c_int,
    pub origin_errors: u64,
    pub origin_writes: u64,
    pub origin_sectors_written: u64,
    pub origin_flushes: u64,
    pub pages_destaged: u64,
    pub pages_relocated: u64,
    pub writes: u64,
    pub written_sectors: u64,
    pub rounds: u64,
    pub throttle_ns: u64,
    pub intake_limit: u32,
    pub drain_rate: u32,
    pub origin_depth: u32,
    pub bypassing: u32,
    pub bypasses: u64,
    pub bypassed_sectors: u64,
    pub flush_owed: bool,
    pub lost_stuck: bool,
    pub slots: u32,
    pub counted: bool,
    pub passes: u64,
    pub conflicts: u64,
    pub eras_percent: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_attach {
    pub origin_sectors: u64,
    pub identity: *const c_char,
    pub holes: u32,
    pub mem: *mut c_void,
    pub mem_bytes: u64,
    pub round_pages: u32,
    pub nrequests: u32,
    pub buffer_bytes: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_vec {
    pub base: *const c_void,
    pub len: u32,
}

/// Private to the engine; here for its size.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_wpage {
    pub block: u64,
    pub bucket: u32,
    pub old: u32,
    pub data_crc: u32,
    pub mask: u8,
    pub valid: u8,
    pub lost: u8,
    pub flags: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_write {
    pub volume: u16,
    pub kind: u8,
    pub npages: u8,
    pub nsectors: u32,
    pub wake: u32,
    pub ticket: u64,
    pub slot: u32,
    pub chunk: u32,
    pub first_page: u32,
    pub seq: u64,
    pub page: [fby_wpage; FBY_BATCH_PAGES],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_bypass {
    pub volume: u16,
    pub place: u16,
    pub nsectors: u32,
    pub seen: u32,
    pub kind: u8,
}

/// Zeroed: for all that was written.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_flush {
    pub upto: u64,
    pub seen: u32,
    pub told: u32,
    pub volume: u16,
    pub state: u8,
    pub all: bool,
    pub aside: bool,
    pub client: bool,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_io {
    pub id: u32,
    pub volume: u16,
    pub op: u8,
    pub pad: u8,
    pub sector: u64,
    pub nsectors: u64,
    pub buf: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_chunk_info {
    pub number: u32,
    pub kind: u16,
    pub volume: u16,
    pub state: u8,
    pub epoch: u64,
    pub seq_min: u64,
    pub seq_max: u64,
    pub fill: u32,
    pub live: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_lost_at {
    pub page: u32,
    pub listed: u32,
    pub passed_over: u32,
    pub found: u32,
    pub most: u32,
    pub ended: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_static_way_info {
    pub live: bool,
    pub lost: bool,
    pub superseded: bool,
    pub newest: bool,
    pub data_ok: bool,
    pub valid: u8,
    pub lost_sectors: u8,
    pub kind: u32,
    pub number: u32,
    pub data_crc: u32,
    pub block: u64,
    pub era: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_static_slot_info {
    pub slot: u32,
    pub torn: bool,
    pub way: [fby_static_way_info; 2],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_entry_info {
    pub valid: bool,
    pub current: bool,
    pub linked: bool,
    pub data_ok: bool,
    pub line: fby_page_line,
}

zeroed_default!(
    fby_format,
    fby_probe,
    fby_options,
    fby_report_block,
    fby_recovery_report,
    fby_pool_info,
    fby_volume_spec,
    fby_volume_info,
    fby_attach,
    fby_vec,
    fby_wpage,
    fby_write,
    fby_bypass,
    fby_flush,
    fby_io,
    fby_chunk_info,
    fby_lost_at,
    fby_static_slot_info,
    fby_entry_info,
);

extern "C" {
    pub fn fby_format(m: *mut fby_media, f: *const fby_format) -> c_int;
    pub fn fby_probe(m: *mut fby_media, out: *mut fby_probe);

    pub fn fby_pool_bytes(sb: *const fby_superblock, nslots: u32) -> u64;
    pub fn fby_pool_open(
        out: *mut *mut fby_pool,
        mem: *mut c_void,
        bytes: u64,
        m: *mut fby_media,
        o: *const fby_options,
    ) -> c_int;
    pub fn fby_recover_chunks(p: *mut fby_pool, first: u32, n: u32) -> c_int;
    pub fn fby_recover_finish(p: *mut fby_pool, report: *mut fby_recovery_report) -> c_int;
    pub fn fby_pool_close(p: *mut fby_pool) -> c_int;
    pub fn fby_pool_options(p: *mut fby_pool, out: *mut fby_options);
    pub fn fby_pool_set_options(p: *mut fby_pool, o: *const fby_options) -> c_int;
    pub fn fby_pool_info(p: *mut fby_pool, out: *mut fby_pool_info);
    pub fn fby_damaged_list(p: *mut fby_pool, out: *mut fby_report_block, max: u32) -> u32;
    pub fn fby_lost_list(
        p: *mut fby_pool,
        volume: u16,
        at: *mut fby_lost_at,
        out: *mut fby_report_block,
        max: u32,
    ) -> u32;
    pub fn fby_refused_pages(p: *mut fby_pool, volume: u16, first: *mut u64) -> u32;
    pub fn fby_check(p: *mut fby_pool, quiet: bool, text: *mut c_char, text_bytes: u32) -> c_int;

    pub fn fby_volume_add(p: *mut fby_pool, s: *const fby_volume_spec, index: *mut u16) -> c_int;
    pub fn fby_volume_remove(p: *mut fby_pool, index: u16, discard: bool) -> c_int;
    pub fn fby_volume_find(p: *mut fby_pool, name: *const c_char, index: *mut u16) -> c_int;
    pub fn fby_volume_info(p: *mut fby_pool, index: u16, out: *mut fby_volume_info) -> c_int;
    pub fn fby_volume_ready(p: *mut fby_pool, index: u16, holes: u32) -> c_int;
    pub fn fby_volume_rebind(
        p: *mut fby_pool,
        index: u16,
        identity: *const c_char,
        origin_sectors: u64,
    ) -> c_int;
    pub fn fby_mark_number(marks: u32) -> u32;
    pub fn fby_volume_mark(p: *mut fby_pool, index: u16, step: u32, marks: *mut u32) -> c_int;
    pub fn fby_volume_bytes(
        p: *mut fby_pool,
        round_pages: u32,
        nrequests: u32,
        buffer_bytes: u32,
    ) -> u64;
    pub fn fby_volume_attach(p: *mut fby_pool, index: u16, a: *const fby_attach) -> c_int;
    pub fn fby_volume_detach(p: *mut fby_pool, index: u16) -> c_int;

    pub fn fby_write_begin(
        p: *mut fby_pool,
        w: *mut fby_write,
        volume: u16,
        sector: u64,
        nsectors: u32,
    ) -> c_int;
    pub fn fby_write_copy(
        p: *mut fby_pool,
        w: *mut fby_write,
        vec: *const fby_vec,
        nvec: u32,
        skip: u64,
    );
    pub fn fby_write_commit(p: *mut fby_pool, w: *mut fby_write);
    pub fn fby_write_publish(p: *mut fby_pool, w: *mut fby_write);
    pub fn fby_write(
        p: *mut fby_pool,
        volume: u16,
        sector: u64,
        nsectors: u32,
        buf: *const c_void,
        done: *mut u32,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_read_block(
        p: *mut fby_pool,
        volume: u16,
        block: u64,
        first: u32,
        n: u32,
        dst: *mut c_void,
        origin: *mut u8,
        lost: *mut u8,
    ) -> c_int;
    pub fn fby_range(
        p: *mut fby_pool,
        volume: u16,
        kind: u32,
        sector: u64,
        nsectors: u64,
        done: *mut u64,
        past: *mut fby_bypass,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_write_delay(p: *mut fby_pool, volume: u16, nsectors: u32, now_ns: u64) -> u64;
    pub fn fby_write_throttled(p: *const fby_pool, volume: u16) -> bool;
    pub fn fby_origin_foreground(p: *mut fby_pool, volume: u16, begin: bool);
    pub fn fby_bypass_begin(
        p: *mut fby_pool,
        b: *mut fby_bypass,
        volume: u16,
        sector: u64,
        nsectors: u32,
        least: u32,
    ) -> c_int;
    pub fn fby_bypass_end(p: *mut fby_pool, b: *mut fby_bypass, error: c_int, wake: *mut u32);
    pub fn fby_flush_begin(p: *mut fby_pool, volume: u16, t: *mut fby_flush) -> c_int;
    pub fn fby_flush_end(
        p: *mut fby_pool,
        t: *mut fby_flush,
        error: c_int,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_flush_told(p: *mut fby_pool, volume: u16) -> u32;
    pub fn fby_flush_later(p: *mut fby_pool, t: *mut fby_flush) -> c_int;
    pub fn fby_flush_cover(p: *mut fby_pool, t: *mut fby_flush, b: *const fby_bypass);
    pub fn fby_wait_prepare(p: *mut fby_pool, d: u32);

    pub fn fby_destage_step(
        p: *mut fby_pool,
        now_ns: u64,
        io: *mut fby_io,
        next_ns: *mut u64,
        wake: *mut u32,
    ) -> c_int;
    pub fn fby_destage_complete(p: *mut fby_pool, id: u32, error: c_int);
    pub fn fby_volume_drain(p: *mut fby_pool, index: u16, on: bool) -> c_int;
    pub fn fby_volume_drain_upto(p: *mut fby_pool, index: u16, upto: *mut u64) -> c_int;
    pub fn fby_volume_clean(p: *mut fby_pool, index: u16) -> bool;

    pub fn fby_chunk_info(p: *mut fby_pool, chunk: u32, out: *mut fby_chunk_info) -> c_int;
    pub fn fby_static_slot_info(
        p: *mut fby_pool,
        volume: u16,
        block: u64,
        check_data: bool,
        out: *mut fby_static_slot_info,
    ) -> c_int;
    pub fn fby_entry_info(
        p: *mut fby_pool,
        chunk: u32,
        page: u32,
        check_data: bool,
        out: *mut fby_entry_info,
    ) -> c_int;
}
