// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/api/map.h`: files mapped onto memory of the pool.

use std::ffi::{c_char, c_int, c_void};

use crate::{fby_pool, zeroed_default, FBY_NAME_MAX};

pub const FBY_MAP_UNIT: u64 = 2 << 20;
pub const FBY_FRAME_MIN: u32 = 64 << 10;
pub const FBY_FRAME_MAX: u32 = 2 << 20;
pub const FBY_FRAME_WORDS: usize = 32;
pub const FBY_MAP_WORDS_AT: u64 = 256;
pub const FBY_MAP_IDENTITY_MAX: usize = 256;
pub const FBY_MAP_PATH_MAX: usize = 3771;

/// `enum fby_frame_state`
pub const FBY_FRAME_FREE: u32 = 0;
pub const FBY_FRAME_TAKEN: u32 = 1;
pub const FBY_FRAME_USED: u32 = 2;
pub const FBY_FRAME_FOUND: u32 = 3;
pub const FBY_FRAME_DAMAGED: u32 = 4;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_frame_port {
    pub flush: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize)>,
    pub fence: Option<unsafe extern "C" fn(*mut c_void)>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_pages {
    pub bit: [u64; 8],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_frame {
    pub words: *mut u64,
    pub memory: *mut u8,
    pub port: *const fby_frame_port,
    pub host: *mut c_void,
    pub npages: u32,
    pub limit: u32,
    pub seed: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_map_spec {
    pub name: [u8; FBY_NAME_MAX + 1],
    pub uuid: [u8; 16],
    pub bytes: u64,
    pub frame_bytes: u32,
    pub nfiles: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_map_info {
    pub spec: fby_map_spec,
    pub damaged: bool,
    pub attached: bool,
    pub nframes: u32,
    pub free: u32,
    pub used: u32,
    pub damaged_frames: u32,
    pub files: u32,
    pub damaged_files: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_map_attach {
    pub mem: *mut c_void,
    pub mem_bytes: u64,
    pub port: *const fby_frame_port,
    pub host: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_map_report {
    pub frames: u32,
    pub dirty: u64,
    pub unknown: u64,
    pub cut: u32,
    pub damaged_frames: u32,
    pub damaged_files: u32,
    pub stray: u32,
    pub repaired: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_map_file {
    pub size: u64,
    pub made: u64,
    pub ahead: u64,
    pub identity_bytes: u16,
    pub used: bool,
    pub damaged: bool,
    pub cut: bool,
    pub grows: bool,
    pub frames: u32,
    pub identity: [u8; FBY_MAP_IDENTITY_MAX],
    pub path: [u8; FBY_MAP_PATH_MAX + 1],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_frame_info {
    pub state: u32,
    pub file: u32,
    pub stray: bool,
    pub segment: u64,
    pub epoch: u64,
    pub at: u64,
    pub descriptor_at: u64,
}

zeroed_default!(
    fby_frame_port,
    fby_pages,
    fby_frame,
    fby_map_spec,
    fby_map_info,
    fby_map_attach,
    fby_map_report,
    fby_map_file,
    fby_frame_info,
);

extern "C" {
    pub fn fby_frame_sync(f: *const fby_frame, pages: *const fby_pages) -> c_int;
    pub fn fby_frame_dirty(
        f: *const fby_frame,
        dirty: *mut fby_pages,
        unknown: *mut fby_pages,
    ) -> u32;
    pub fn fby_frame_write_begin(f: *const fby_frame, pages: *mut fby_pages) -> u32;
    pub fn fby_frame_write_end(f: *const fby_frame, pages: *mut fby_pages) -> u32;

    pub fn fby_posix_frame_flush(persist: *mut c_void, p: *const c_void, n: usize);
    pub fn fby_posix_frame_fence(persist: *mut c_void);

    pub fn fby_map_add(p: *mut fby_pool, s: *const fby_map_spec, map: *mut u16) -> c_int;
    pub fn fby_map_remove(p: *mut fby_pool, map: u16, discard: bool) -> c_int;
    pub fn fby_map_find(p: *mut fby_pool, name: *const c_char, map: *mut u16) -> c_int;
    pub fn fby_map_info(p: *mut fby_pool, map: u16, out: *mut fby_map_info) -> c_int;
    pub fn fby_map_bytes(p: *mut fby_pool, map: u16) -> u64;
    pub fn fby_map_attach(
        p: *mut fby_pool,
        map: u16,
        a: *const fby_map_attach,
        report: *mut fby_map_report,
    ) -> c_int;
    pub fn fby_map_detach(p: *mut fby_pool, map: u16) -> c_int;

    pub fn fby_map_file_add(
        p: *mut fby_pool,
        map: u16,
        f: *const fby_map_file,
        file: *mut u32,
    ) -> c_int;
    pub fn fby_map_file_info(
        p: *mut fby_pool,
        map: u16,
        file: u32,
        out: *mut fby_map_file,
    ) -> c_int;
    pub fn fby_map_file_size(p: *mut fby_pool, map: u16, file: u32, size: u64) -> c_int;
    pub fn fby_map_file_grows(p: *mut fby_pool, map: u16, file: u32, ahead: u64) -> c_int;
    pub fn fby_map_file_promise(p: *mut fby_pool, map: u16, file: u32, size: u64) -> c_int;
    pub fn fby_map_file_path(p: *mut fby_pool, map: u16, file: u32, path: *const c_char) -> c_int;
    pub fn fby_map_file_identity(
        p: *mut fby_pool,
        map: u16,
        file: u32,
        identity: *const c_void,
        bytes: u16,
    ) -> c_int;
    pub fn fby_map_file_cut(p: *mut fby_pool, map: u16, file: u32, size: u64) -> c_int;
    pub fn fby_map_file_cut_end(p: *mut fby_pool, map: u16, file: u32) -> c_int;
    pub fn fby_map_file_remove(p: *mut fby_pool, map: u16, file: u32) -> c_int;

    pub fn fby_map_take(
        p: *mut fby_pool,
        map: u16,
        file: u32,
        segment: u64,
        frame: *mut u32,
    ) -> c_int;
    pub fn fby_map_show(p: *mut fby_pool, map: u16, frame: u32) -> c_int;
    pub fn fby_map_frame(p: *mut fby_pool, map: u16, frame: u32, out: *mut fby_frame) -> c_int;
    pub fn fby_map_drop(p: *mut fby_pool, map: u16, frame: u32, discard: bool) -> c_int;
    pub fn fby_map_frame_info(
        p: *mut fby_pool,
        map: u16,
        frame: u32,
        out: *mut fby_frame_info,
    ) -> c_int;
    pub fn fby_map_frame_dirty(
        p: *mut fby_pool,
        map: u16,
        frame: u32,
        dirty: *mut fby_pages,
        unknown: *mut fby_pages,
    ) -> c_int;
    pub fn fby_map_page_read(
        p: *mut fby_pool,
        map: u16,
        frame: u32,
        page: u32,
        dst: *mut c_void,
    ) -> c_int;
}
