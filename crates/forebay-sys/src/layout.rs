// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares every struct (size, each member's offset), constant and error with
//! C's own idea of it (layout.c).  Both sides must name exactly the same.

use std::collections::BTreeMap;
use std::ffi::{c_char, CStr};
use std::mem::{offset_of, size_of};

use crate::*;

#[repr(C)]
struct Layout {
    name: *const c_char,
    value: u64,
}

extern "C" {
    static fby_layouts: Layout;
    static fby_layout_errors: Layout;
}

fn from_c(mut entry: *const Layout) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    // SAFETY: an array of C's that ends with a NULL name; names are constants.
    unsafe {
        while !(*entry).name.is_null() {
            let name = CStr::from_ptr((*entry).name).to_str().unwrap().to_owned();
            assert!(map.insert(name.clone(), (*entry).value).is_none(), "{name} is there twice");
            entry = entry.add(1);
        }
    }
    map
}

macro_rules! structs {
    ($map:ident; $($name:ident { $($member:ident),* $(,)? })*) => {$(
        $map.insert(stringify!($name).to_owned(), size_of::<$name>() as u64);
        $($map.insert(
            concat!(stringify!($name), ".", stringify!($member)).to_owned(),
            offset_of!($name, $member) as u64,
        );)*
    )*};
}

macro_rules! values {
    ($map:ident; $($name:ident),* $(,)?) => {
        $($map.insert(stringify!($name).to_owned(), $name as u64);)*
    };
}

fn assert_same(ours: &BTreeMap<String, u64>, theirs: &BTreeMap<String, u64>) {
    for (name, value) in theirs {
        assert_eq!(ours.get(name), Some(value), "{name}: Rust (left) and C (right) differ");
    }
    for name in ours.keys() {
        assert!(theirs.contains_key(name), "{name} is in Rust and not in layout.c");
    }
}

#[test]
fn structs_and_constants_are_as_in_c() {
    let mut map = BTreeMap::new();
    structs! { map;
        fby_superblock { magic, version, flags, features_compat, features_ro, features_incompat, uuid, generation, media_size, data_offset, chunk_size, nchunks, nvolumes, group_pages, clean_entries, clean_digest, clean_seq, static_bytes, map_bytes, unit, salt, reserved, crc }
        fby_volume_record { counter, index, kind, watermark, origin_sectors, uuid, name, identity, block_size, flags, marks, crc }
        fby_open_line { magic, kind, owner, chunk, reserved0, epoch, seq_min, reserved, crc }
        fby_seal_line { magic, fill, closed, reserved0, chunk, owner, kind, counter, epoch, seq_max, last_block, reserved, crc }
        fby_page_line { seq, block, epoch, prev_block, prev_seq, batch_first, batch_count, kind, valid, lost, flags, reserved, chunk, page, volume, data_crc, crc }
        fby_format { uuid, chunk_size, nvolumes, static_bytes, map_bytes, unit, salt }
        fby_probe { state, error, primary_valid, copy_valid, sb }
        fby_options { nslots, read_only, no_checksums, statics, maps, verify, high_watermark, low_watermark, max_age_ns, idle_ns }
        fby_report_block { block, chunk, page, volume }
        fby_recovery_report { clean, chunks, entries, blocks, dropped, damaged, holes, lines_repaired, chunk_headers_lost, groups_lost, unknown_at, unknown_kind, ndropped_named, nholes_named, ngroups_named, dropped_named, holes_named, groups_named }
        fby_pool_info { sb, memory_bytes, nslots, chunks_free, chunks_open, chunks_used, chunks_reserved, pages, pages_linked, seq, writes, written_sectors, merges, commits, media_bytes, reads, read_hit_sectors, read_miss_sectors, discards, zeroes, flushes, chunks_opened, waits_block, waits_slot, waits_space, damaged_pages }
        fby_volume_spec { name, identity, uuid, origin_sectors, block_size, flush_us, static_bytes }
        fby_volume_info { spec, watermark, home, marks, used, damaged, attached, pages, lost_blocks, holes, holes_unknown, chunks, destage, draining, last_error, origin_errors, origin_writes, origin_sectors_written, origin_flushes, pages_destaged, pages_relocated, writes, written_sectors, rounds, throttle_ns, intake_limit, drain_rate, origin_depth, bypassing, bypasses, bypassed_sectors, flush_owed, lost_stuck, slots, counted, passes, conflicts, eras_percent }
        fby_attach { origin_sectors, identity, holes, mem, mem_bytes, round_pages, nrequests, buffer_bytes }
        fby_vec { base, len }
        fby_wpage { block, bucket, old, data_crc, mask, valid, lost, flags }
        fby_write { volume, kind, npages, nsectors, wake, ticket, slot, chunk, first_page, seq, page }
        fby_bypass { volume, place, nsectors, seen, kind }
        fby_flush { upto, seen, told, volume, state, all, aside, client }
        fby_io { id, volume, op, pad, sector, nsectors, buf }
        fby_chunk_info { number, kind, volume, state, epoch, seq_min, seq_max, fill, live }
        fby_lost_at { page, listed, passed_over, found, most, ended }
        fby_static_way_info { live, lost, superseded, newest, data_ok, valid, lost_sectors, kind, number, data_crc, block, era }
        fby_static_slot_info { slot, torn, way }
        fby_entry_info { valid, current, linked, data_ok, line }
        fby_log_counters { txg, n }
        fby_log_node { txg, gen, id, before, place }
        fby_log_position { synced, gen, id, live, last, seal_gen, seal }
        fby_log_header { guid, state, reserved, at }
        fby_log_name { gen, id, ticket }
        fby_log_cursor { line, last }
        fby_log_entry_info { found, gap, data_ok, node, entry }
        fby_frame_port { flush, fence }
        fby_pages { bit }
        fby_frame { words, memory, port, host, npages, limit, seed }
        fby_map_spec { name, uuid, bytes, frame_bytes, nfiles }
        fby_map_info { spec, damaged, attached, nframes, free, used, damaged_frames, files, damaged_files }
        fby_map_attach { mem, mem_bytes, port, host }
        fby_map_report { frames, dirty, unknown, cut, damaged_frames, damaged_files, stray, repaired }
        fby_map_file { size, made, ahead, identity_bytes, used, damaged, cut, grows, frames, identity, path }
        fby_frame_info { state, file, stray, segment, epoch, at, descriptor_at }
        fby_log_info { name, used, damaged, consumer, claimed, incomplete, header, chunks, most, found, missing, appends, bytes, unsynced, unsynced_txgs }
        fby_log_record { counter, index, kind, guid, state, home, reserved0, name, at, reserved1, flags, reserved2, crc }
        fby_log_entry { magic, chunk, line, length, epoch, txg, gen, id, before, guid, previous, log, reserved, body_crc, crc }
        fby_append { log, slot, chunk, entry }
        fby_log_result { end, replayed, obsolete, earlier, twins, damaged, left, witness, first_damaged }
        fby_media_ops { write, write_crc, fence, read_crc }
        fby_media { base, size, ops, host, device }
        fby_device { unit, durable, persist, lost, failed }
        fby_medium_io { kind, flags, at, n, id, reserved }
        fby_medium_load { in_flight, waiting, last }
        fby_medium_info { grouped, failed, unit, groups, records, writes, written_bytes, flushes, write_errors, flush_errors, again }
        fby_policy { bypass_sectors, mode, full_bypasses, metadata_only, durable }
        fby_origin_found { id, sectors, logical_block, accept_changed, by_name, cannot_see_ids, same_path }
        fby_mark_found { marked, names, exact, least, uuid }
        fby_complete { damaged, origin_changed, attached, failing, counted, lost_entries, lost_blocks, pages_left }
        fby_run { start, end }
        fby_asked { op, nruns, sector, nsectors }
        fby_request { pool, policy, sector, nsectors, runs, max_runs, volume, op, flags, steps, data, ndata, skip, wake, why, step, foreground, io, lost, done, told, past_sectors, awaits, state, asked, covered, watching, gave_up, any_lost, alone, missing, base, nruns, run, least, looks, through, settled, failures, appended, past, ticket }
    }
    values! { map;
        FBY_DURABLE_THROUGH,
        FBY_DURABLE_FUA,
        FBY_DURABLE_FLUSH,
        FBY_MEDIUM_WRITE,
        FBY_MEDIUM_FLUSH,
        FBY_MEDIUM_FUA,
        FBY_TICKET_DURABLE,
        FBY_TICKET_PENDING,
        FBY_TICKET_FAILED,
        FBY_LOG_TXGS,
        FBY_LOG_OK,
        FBY_LOG_OBSOLETE,
        FBY_LOG_SKIPS,
        FBY_LOG_BACKWARDS,
        FBY_LOG_FULL,
        FBY_LOG_REPLAYED,
        FBY_LOG_DAMAGED,
        FBY_LOG_STOP,
        FBY_LOG_APPLIED,
        FBY_LOG_CONSUMER,
        FBY_LOG_NONE,
        FBY_LOG_LOGGING,
        FBY_LOG_REPLAYING,
        FBY_LOG_COMPLETE,
        FBY_LOG_MISSING,
        FBY_LOG_STOPPED,
        FBY_SECTOR,
        FBY_PAGE,
        FBY_PAGE_SECTORS,
        FBY_LINE,
        FBY_MAGIC,
        FBY_VERSION,
        FBY_SB_OFFSET,
        FBY_SB_COPY_OFFSET,
        FBY_VT_OFFSET,
        FBY_CHUNK_PAGES_MIN,
        FBY_CHUNK_PAGES_MAX,
        FBY_CHUNK_LINES,
        FBY_LINE_OPEN,
        FBY_LINE_SEAL,
        FBY_LINE_SEAL_COPY,
        FBY_VOLUMES_MAX,
        FBY_NAME_MAX,
        FBY_STATIC_UNIT,
        FBY_IDENTITY_MAX,
        FBY_BATCH_PAGES,
        FBY_BLOCK_BITS,
        FBY_CHUNKS_MAX,
        FBY_MAP_UNIT,
        FBY_FRAME_MIN,
        FBY_FRAME_MAX,
        FBY_FRAME_WORDS,
        FBY_MAP_WORDS_AT,
        FBY_MAP_IDENTITY_MAX,
        FBY_MAP_PATH_MAX,
        FBY_FRAME_FREE,
        FBY_FRAME_TAKEN,
        FBY_FRAME_USED,
        FBY_FRAME_FOUND,
        FBY_FRAME_DAMAGED,
        FBY_FEATURE_STATIC,
        FBY_FEATURE_MAP,
        FBY_FEATURE_MAP_GROWS,
        FBY_FEATURE_GROUPED,
        FBY_FEATURE_SALTED,
        FBY_SB_CLEAN,
        FBY_OWNER_FREE,
        FBY_OWNER_VOLUME,
        FBY_OWNER_LOG,
        FBY_OWNER_STATIC,
        FBY_OWNER_MAP,
        FBY_OWNER_KINDS,
        FBY_VF_HOLES,
        FBY_VF_HOLES_UNKNOWN,
        FBY_OPEN_MAGIC,
        FBY_SEAL_MAGIC,
        FBY_CHUNK_FREE,
        FBY_CHUNK_CACHE,
        FBY_CHUNK_LOG,
        FBY_CHUNK_KINDS,
        FBY_KIND_DATA,
        FBY_KIND_ZERO,
        FBY_KIND_DISCARD,
        FBY_KIND_BYPASS,
        FBY_KIND_VOID,
        FBY_PF_NOCRC,
        FBY_DONE,
        FBY_WAIT_BLOCK,
        FBY_WAIT_SLOT,
        FBY_WAIT_SPACE,
        FBY_ORIGIN,
        FBY_AGAIN,
        FBY_CACHED,
        FBY_WAIT_FLUSH,
        FBY_WAIT_TICKET,
        FBY_WAKE_BLOCK,
        FBY_WAKE_SLOT,
        FBY_WAKE_SPACE,
        FBY_WAKE_DESTAGE,
        FBY_WAKE_FLUSH,
        FBY_WAKE_TICKET,
        FBY_PROBE_BLANK,
        FBY_PROBE_POOL,
        FBY_PROBE_DAMAGED,
        FBY_VERIFY_ALWAYS,
        FBY_VERIFY_FIRST,
        FBY_VERIFY_NEVER,
        FBY_HOLES_FAIL,
        FBY_HOLES_ISOLATE,
        FBY_HOLES_ACCEPT,
        FBY_HOLES_RESCUE,
        FBY_MARK_BEGIN,
        FBY_MARK_SET,
        FBY_MARK_CLEARED,
        FBY_MARK_AGAIN,
        FBY_MARK_GONE,
        FBY_REPORT_MAX,
        FBY_DESTAGE_IDLE,
        FBY_DESTAGE_WRITING,
        FBY_DESTAGE_FLUSHING,
        FBY_DESTAGE_COMMITTING,
        FBY_DESTAGE_BACKOFF,
        FBY_IO_WRITE,
        FBY_IO_ZERO,
        FBY_IO_DISCARD,
        FBY_IO_FLUSH,
        FBY_NOT_SENT,
        FBY_PERSIST_NT,
        FBY_PERSIST_CLWB,
        FBY_PERSIST_EADR,
        FBY_PERSIST_MSYNC,
        FBY_DEFAULT_CHUNK_SIZE,
        FBY_DEFAULT_CHUNK_SIZE_MIN,
        FBY_DEFAULT_HIGH_WATERMARK,
        FBY_DEFAULT_WATERMARK_GAP,
        FBY_DEFAULT_QUEUE_DEPTH,
        FBY_DEFAULT_QUEUE_DEPTH_MAX,
        FBY_DEFAULT_BUFFER_BYTES,
        FBY_DEFAULT_ROUND_PAGES,
        FBY_DEFAULT_ROUND_PAGES_MIN,
        FBY_DEFAULT_SLOTS_MAX,
        FBY_DEFAULT_BYPASS_LEAST,
        FBY_DEFAULT_JOIN_GAP,
        FBY_DEFAULT_RANGE_THROTTLED,
        FBY_DEFAULT_THROTTLE_SHORTEST_NS,
        FBY_DEFAULT_DRAIN_LOOK_NS,
        FBY_DEFAULT_NEARLY_CLEAN_PAGES,
        FBY_DEFAULT_CLEANER_PATIENCE,
        FBY_DEFAULT_WAIT_SPINS,
        FBY_DEFAULT_SPACE_RETRY_NS,
        FBY_DEFAULT_FLUSH_RETRY_NS,
        FBY_DEFAULT_SLOW_DURABLE_NS,
        FBY_MODE_WRITE_BACK,
        FBY_MODE_WRITE_THROUGH,
        FBY_MODE_CLEANER,
        FBY_OP_READ,
        FBY_OP_WRITE,
        FBY_OP_DISCARD,
        FBY_OP_ZERO,
        FBY_OP_FLUSH,
        FBY_REQ_DURABLE,
        FBY_REQ_METADATA,
        FBY_REQ_NOWAIT,
        FBY_REQ_BEHIND,
        FBY_REQ_ASIDE,
        FBY_REQ_CLIENT,
        FBY_REQ_TICKETS,
        FBY_REQ_LATER,
        FBY_NEXT_DONE,
        FBY_NEXT_WAIT,
        FBY_NEXT_ORIGIN,
        FBY_NEXT_DATA,
        FBY_NEXT_THROTTLE,
        FBY_NEXT_DRAIN,
        FBY_NEXT_LOST,
        FBY_NEXT_STEP,
        FBY_SENT,
        FBY_ORIGIN_IS_SAME,
        FBY_ORIGIN_IS_RENEWED,
        FBY_ORIGIN_IS_BLOCK,
        FBY_ORIGIN_IS_OTHER,
        FBY_ORIGIN_IS_NAME,
        FBY_ORIGIN_IS_SMALLER,
        FBY_ORIGIN_IS_LARGER,
        FBY_IS_RECORD_DAMAGED,
        FBY_IS_ORIGIN_CHANGED,
        FBY_IS_LOST_ENTRIES,
        FBY_IS_LOST_BLOCKS,
        FBY_IS_NOT_ATTACHED,
        FBY_IS_ORIGIN_FAILS,
        FBY_IS_CACHED,
        FBY_IS_UNKNOWN,
        FBY_IS_WHOLE,
        FBY_MARK_IS_RIGHT,
        FBY_MARK_IS_NEWER,
        FBY_MARK_IS_OLDER,
        FBY_MARK_IS_OTHER,
        FBY_MARK_IS_MISSING,
    }
    assert_same(&map, &from_c(&raw const fby_layouts));
}

/// As in C, and the fewest pages that hold all lines.
#[test]
fn header_arrays_are_as_large_as_a_chunk_needs() {
    extern "C" {
        fn fby_layout_first_page(chunk_pages: u32) -> u32;
        fn fby_layout_line_of_page(chunk_pages: u32, page: u32) -> u32;
    }
    let mut pages = FBY_CHUNK_PAGES_MIN;
    let mut first = Vec::new();
    while pages <= FBY_CHUNK_PAGES_MAX {
        let h = fby_first_page(pages);
        // SAFETY: both compute, and nothing else.
        let c =
            unsafe { (fby_layout_first_page(pages), fby_layout_line_of_page(pages, pages - 1)) };
        let last = fby_line_of_page(pages, pages - 1);
        assert_eq!((h, last), c, "{pages} pages");
        let holds = |h: u32| FBY_CHUNK_LINES + (pages - h) <= h * FBY_PAGE / FBY_LINE;
        assert!(holds(h) && !holds(h - 1), "{pages} pages: {h}");
        assert_eq!(fby_line_of_page(pages, h), FBY_CHUNK_LINES);
        assert!(last < h * FBY_PAGE / FBY_LINE);
        first.push(h);
        pages *= 2;
    }
    assert_eq!(first, [1, 1, 2, 3, 5, 8], "of 16, 32, ... 512");
}

#[test]
fn errors_are_as_in_c() {
    let ours: BTreeMap<_, _> =
        FBY_ERROR_NAMES.iter().map(|&(name, value)| (name.to_owned(), value as u64)).collect();
    assert_same(&ours, &from_c(&raw const fby_layout_errors));
}

#[test]
fn c_text_and_back() {
    assert_eq!(text(&c_text::<8>("seven77").unwrap()), "seven77");
    assert_eq!(c_text::<8>("eight888"), None);
    assert_eq!(c_text::<8>("a\0b"), None);
    assert_eq!(text(b"no end"), "no end");
}
