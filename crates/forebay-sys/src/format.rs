// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/format/format.h`: the on-media format.

use crate::zeroed_default;

pub const FBY_SECTOR: u32 = 512;
pub const FBY_PAGE: u32 = 4096;
pub const FBY_PAGE_SECTORS: u32 = 8;
pub const FBY_LINE: u32 = 64;

pub const FBY_MAGIC: u64 = 0x3159_4142_4552_4f46;
pub const FBY_VERSION: u32 = 2;

pub const FBY_SB_OFFSET: u64 = 0;
pub const FBY_SB_COPY_OFFSET: u64 = 4096;
pub const FBY_VT_OFFSET: u64 = 8192;

pub const FBY_CHUNK_PAGES_MIN: u32 = 16;
pub const FBY_CHUNK_PAGES_MAX: u32 = 512;
pub const FBY_CHUNK_LINES: u32 = 8;
pub const FBY_LINE_OPEN: u32 = 0;
pub const FBY_LINE_SEAL: u32 = 2;
pub const FBY_LINE_SEAL_COPY: u32 = 4;

pub const FBY_VOLUMES_MAX: u32 = 64;
pub const FBY_NAME_MAX: usize = 63;
pub const FBY_STATIC_UNIT: u64 = 65536;
pub const FBY_IDENTITY_MAX: usize = 127;
pub const FBY_BATCH_PAGES: usize = 16;
pub const FBY_BLOCK_BITS: u32 = 48;
pub const FBY_CHUNKS_MAX: u32 = 1 << 22;

/// The first data page of a chunk of so many pages.
pub const fn fby_first_page(chunk_pages: u32) -> u32 {
    let lines = FBY_PAGE / FBY_LINE;
    (chunk_pages + FBY_CHUNK_LINES).div_ceil(lines + 1)
}

/// The line of the header array that describes the page.
pub const fn fby_line_of_page(chunk_pages: u32, page: u32) -> u32 {
    page - fby_first_page(chunk_pages) + FBY_CHUNK_LINES
}

/// Bit of `features_incompat`: there is room for static volumes after the chunks.
pub const FBY_FEATURE_STATIC: u64 = 8;
/// Likewise for maps, after the static volumes.
pub const FBY_FEATURE_MAP: u64 = 4;
/// Likewise: a size may be promised before the file has it.
pub const FBY_FEATURE_MAP_GROWS: u64 = 16;
/// The pool is grouped, on a block device.
pub const FBY_FEATURE_GROUPED: u64 = 32;
/// The checksums of lines begin with the pool's salt, too.
pub const FBY_FEATURE_SALTED: u64 = 64;

/// `enum fby_sb_flags`
pub const FBY_SB_CLEAN: u32 = 1 << 0;

/// `enum fby_owner_kind`
pub const FBY_OWNER_FREE: u32 = 0;
pub const FBY_OWNER_VOLUME: u32 = 1;
pub const FBY_OWNER_LOG: u32 = 2;
pub const FBY_OWNER_STATIC: u32 = 3;
pub const FBY_OWNER_MAP: u32 = 4;
pub const FBY_OWNER_KINDS: u32 = 5;

/// `enum fby_volume_flags`
pub const FBY_VF_HOLES: u32 = 1 << 0;
pub const FBY_VF_HOLES_UNKNOWN: u32 = 1 << 1;

pub const FBY_OPEN_MAGIC: u32 = 0x4e50_4f46;
pub const FBY_SEAL_MAGIC: u32 = 0x4c53_4f46;

/// `enum fby_chunk_kind`
pub const FBY_CHUNK_FREE: u32 = 0;
pub const FBY_CHUNK_CACHE: u32 = 1;
pub const FBY_CHUNK_LOG: u32 = 2;
pub const FBY_CHUNK_KINDS: u32 = 3;

/// `enum fby_kind`
pub const FBY_KIND_DATA: u32 = 1;
pub const FBY_KIND_ZERO: u32 = 2;
pub const FBY_KIND_DISCARD: u32 = 3;
pub const FBY_KIND_BYPASS: u32 = 4;
pub const FBY_KIND_VOID: u32 = 5;

/// `enum fby_page_flags`
pub const FBY_PF_NOCRC: u8 = 1 << 0;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_superblock {
    pub magic: u64,
    pub version: u32,
    pub flags: u32,
    pub features_compat: u64,
    pub features_ro: u64,
    pub features_incompat: u64,
    pub uuid: [u8; 16],
    pub generation: u64,
    pub media_size: u64,
    pub data_offset: u64,
    pub chunk_size: u32,
    pub nchunks: u32,
    pub nvolumes: u32,
    pub group_pages: u32,
    pub clean_entries: u64,
    pub clean_digest: u64,
    pub clean_seq: u64,
    pub static_bytes: u64,
    pub map_bytes: u64,
    pub unit: u32,
    pub salt: u32,
    pub reserved: [u8; 364],
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_volume_record {
    pub counter: u64,
    pub index: u32,
    pub kind: u32,
    pub watermark: u64,
    pub origin_sectors: u64,
    pub uuid: [u8; 16],
    pub name: [u8; FBY_NAME_MAX + 1],
    pub identity: [u8; FBY_IDENTITY_MAX + 1],
    pub block_size: u32,
    pub flags: u32,
    pub marks: u32,
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_open_line {
    pub magic: u32,
    pub kind: u16,
    pub owner: u16,
    pub chunk: u32,
    pub reserved0: u32,
    pub epoch: u64,
    pub seq_min: u64,
    pub reserved: [u8; 28],
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_seal_line {
    pub magic: u32,
    pub fill: u16,
    pub closed: u8,
    pub reserved0: u8,
    pub chunk: u32,
    pub owner: u16,
    pub kind: u16,
    pub counter: u64,
    pub epoch: u64,
    pub seq_max: u64,
    pub last_block: u64,
    pub reserved: [u8; 12],
    pub crc: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fby_page_line {
    pub seq: u64,
    pub block: u64,
    pub epoch: u64,
    pub prev_block: u64,
    pub prev_seq: u64,
    pub batch_first: u16,
    pub batch_count: u8,
    pub kind: u8,
    pub valid: u8,
    pub lost: u8,
    pub flags: u8,
    pub reserved: u8,
    pub chunk: u32,
    pub page: u16,
    pub volume: u16,
    pub data_crc: u32,
    pub crc: u32,
}

zeroed_default!(fby_superblock, fby_volume_record, fby_open_line, fby_seal_line, fby_page_line);
