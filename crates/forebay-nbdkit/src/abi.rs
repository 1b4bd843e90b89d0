// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of nbdkit's plugin structure (API version 2) and its constants.
//!
//! nbdkit promises that `struct nbdkit_plugin` only grows at its end and that
//! `_struct_size` tells it how much of it a plugin knows; this is the layout of
//! nbdkit 1.32, and tests/abi.rs compares it with the installed header.  The
//! crate `nbdkit` 0.3 stops at the fields of 2020 and lacks `list_exports`,
//! `default_export`, `cleanup` and `block_size`, without which a pool of several
//! volumes can neither be listed nor closed in order.

use std::ffi::{c_char, c_int, c_void};

pub const API_VERSION: c_int = 2;
pub const THREAD_MODEL_PARALLEL: c_int = 3;
pub const FLAG_FUA: u32 = 1 << 1;
pub const FLAG_FAST_ZERO: u32 = 1 << 3;
pub const FUA_NATIVE: c_int = 2;

type Unused = Option<extern "C" fn()>;
type HandleInt = Option<extern "C" fn(*mut c_void) -> c_int>;
type Range = Option<extern "C" fn(*mut c_void, u32, u64, u32) -> c_int>;
type Extents = Option<extern "C" fn(*mut c_void, u32, u64, u32, *mut c_void) -> c_int>;
type BlockSize = Option<extern "C" fn(*mut c_void, *mut u32, *mut u32, *mut u32) -> c_int>;

#[repr(C)]
pub struct Plugin {
    pub struct_size: u64,
    pub api_version: c_int,
    pub thread_model_max: c_int,
    pub name: *const c_char,
    pub longname: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub load: Unused,
    pub unload: Unused,
    pub config: Option<extern "C" fn(*const c_char, *const c_char) -> c_int>,
    pub config_complete: Option<extern "C" fn() -> c_int>,
    pub config_help: *const c_char,
    pub open: Option<extern "C" fn(c_int) -> *mut c_void>,
    pub close: Option<extern "C" fn(*mut c_void)>,
    pub get_size: Option<extern "C" fn(*mut c_void) -> i64>,
    pub can_write: HandleInt,
    pub can_flush: HandleInt,
    pub is_rotational: HandleInt,
    pub can_trim: HandleInt,
    pub v1: [Unused; 5],
    pub errno_is_preserved: c_int,
    pub dump_plugin: Unused,
    pub can_zero: HandleInt,
    pub can_fua: HandleInt,
    pub pread: Option<extern "C" fn(*mut c_void, *mut c_void, u32, u64, u32) -> c_int>,
    pub pwrite: Option<extern "C" fn(*mut c_void, *const c_void, u32, u64, u32) -> c_int>,
    pub flush: Option<extern "C" fn(*mut c_void, u32) -> c_int>,
    pub trim: Range,
    pub zero: Range,
    pub magic_config_key: *const c_char,
    pub can_multi_conn: HandleInt,
    pub can_extents: HandleInt,
    pub extents: Extents,
    pub can_cache: HandleInt,
    pub cache: Range,
    pub thread_model: Option<extern "C" fn() -> c_int>,
    pub can_fast_zero: HandleInt,
    pub preconnect: Option<extern "C" fn(c_int) -> c_int>,
    pub get_ready: Option<extern "C" fn() -> c_int>,
    pub after_fork: Option<extern "C" fn() -> c_int>,
    pub list_exports: Option<extern "C" fn(c_int, c_int, *mut c_void) -> c_int>,
    pub default_export: Option<extern "C" fn(c_int, c_int) -> *const c_char>,
    pub export_description: Option<extern "C" fn(*mut c_void) -> *const c_char>,
    pub cleanup: Unused,
    pub block_size: BlockSize,
}
