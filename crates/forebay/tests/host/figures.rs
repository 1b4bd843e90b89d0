// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists and numbers that a pool reports: dumps, checks, names, and lists longer than the
//! engine returns at once; and the damage that each setting of `verify` lets pass.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use crate::common::*;
use forebay::*;

const PAGE: usize = 4096;

/// Offset in the pool's file of the data of each linked block.
fn places(pool: &Pool) -> Vec<(u64, u64)> {
    let sb = pool.superblock().unwrap();
    let mut found = Vec::new();
    for chunk in 0..sb.chunks {
        for e in pool.entries(chunk, false).unwrap().iter().filter(|e| e.linked) {
            let chunk = sb.data_offset_bytes + u64::from(chunk) * u64::from(sb.chunk_size_bytes);
            found.push((e.block, chunk + u64::from(e.page) * PAGE as u64));
        }
    }
    found
}

/// The engine lists 64 lost blocks at a time: all are told, whatever their number.
#[test]
fn every_lost_block_is_listed() {
    for lost in [63, 64, 65, 128, 150] {
        let dir = Dir::new("lost");
        let path = dir.pool(48);
        let pool = Pool::open(&path, &unthrottled()).unwrap();
        let origin = MemOrigin::new(160 * PAGE).unwrap();
        let volume = attach(&pool, "v", &origin);
        volume.write_at(&vec![1; 160 * PAGE], 0).unwrap();
        let places = places(&pool);
        assert_eq!(places.len(), 160);
        for (_, at) in places.iter().filter(|(block, _)| *block < lost) {
            spoil(&path, *at);
        }
        let mut page = [0; PAGE];
        for block in 0..160 {
            let got = volume.read_at(&mut page, block * PAGE as u64);
            assert_eq!(got.is_err(), block < lost, "block {block}");
        }
        let given_up = volume.accept_lost().unwrap();
        assert_eq!(given_up, (0..lost).collect::<Vec<_>>());
        volume.read_at(&mut page, 0).unwrap();
        assert_eq!(page, [0; PAGE], "what the origin has is the newest");
        assert_eq!(drain(&volume).pages_left, 0);
    }
}

/// A dump names each kind of entry, and says of data what is known: nothing, where it
/// was not looked at.
#[test]
fn a_dump_says_what_it_knows() {
    let dir = Dir::new("dump");
    let path = dir.pool(16);
    let pool = open(&path);
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 3 * PAGE], 0).unwrap();
    volume.write_zeroes(PAGE as u64, PAGE as u64).unwrap();
    volume.discard(2 * PAGE as u64, PAGE as u64).unwrap();
    let of = |check_data| {
        let chunks = pool.superblock().unwrap().chunks;
        let all = (0..chunks).flat_map(|c| pool.entries(c, check_data).unwrap());
        let mut linked: Vec<_> = all.filter(|e| e.linked).collect();
        linked.sort_by_key(|e| e.block);
        linked
    };
    let kinds: Vec<_> = of(false).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EntryKind::Data, EntryKind::Zero, EntryKind::Discard]);
    assert!(of(false).iter().all(|e| e.valid && e.current && e.data_ok.is_none()));
    assert!(of(true).iter().all(|e| e.data_ok == Some(true)));
    let history = pool.block_history("v", 2).unwrap();
    let kinds: Vec<_> = history.entries.iter().map(|e| (e.kind, e.linked)).collect();
    assert_eq!(kinds, [(EntryKind::Data, false), (EntryKind::Discard, true)]);
    assert!(history.entries.windows(2).all(|e| e[0].seq < e[1].seq));

    for (_, at) in places(&pool).iter().filter(|(block, _)| *block == 0) {
        spoil(&path, *at);
    }
    assert_eq!(of(true)[0].data_ok, Some(false));
    assert_eq!(of(false)[0].data_ok, None);
    // An entry that is none has data of which nothing can be known.
    let empty = pool.entries(0, true).unwrap();
    assert!(empty.iter().any(|e| !e.valid) && empty.iter().all(|e| e.valid || e.data_ok.is_none()));
}

/// A check says whether it looked at data, and at how much.
#[test]
fn a_check_says_whether_it_looked_at_data() {
    let dir = Dir::new("checked");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 3 * PAGE], 0).unwrap();
    let (with, without) = (pool.check(true).unwrap(), pool.check(false).unwrap());
    assert_eq!((with.data, with.pages_checked, with.ok), (true, 3, true));
    assert_eq!((without.data, without.pages_checked, without.ok), (false, 0, true));
    assert!(!with.quiet, "a volume is attached");
    volume.detach().unwrap();
    assert!(pool.check(false).unwrap().quiet);
    pool.close().unwrap();
    let pool = open(&dir.path("pool"));
    let report = pool.check(false).unwrap();
    assert_eq!((report.recovery.entries, report.recovery.clean), (3, true));
    assert_eq!(&report.recovery, pool.recovery());
}

/// Always: at each read.  First: at the first read of each page.  Never: no read is verified.
#[test]
fn verify_is_as_often_as_it_says() {
    for verify in [Verify::Always, Verify::First, Verify::Never] {
        let dir = Dir::new("verify");
        let path = dir.pool(16);
        let pool = Pool::open(&path, &PoolOptions { verify, ..Default::default() }).unwrap();
        let origin = MemOrigin::new(64 * PAGE).unwrap();
        let volume = attach(&pool, "v", &origin);
        volume.write_at(&[1; 2 * PAGE], 0).unwrap();
        let mut page = [0; PAGE];
        volume.read_at(&mut page, 0).unwrap();
        places(&pool).iter().for_each(|(_, at)| spoil(&path, *at));
        // Block 0 was read before, block 1 was not.
        for (block, fails) in [(0, verify == Verify::Always), (1, verify != Verify::Never)] {
            let got = volume.read_at(&mut page, block * PAGE as u64);
            assert_eq!(got.is_err(), fails, "{verify:?}, block {block}: {got:?}");
            assert!(fails || page[0] == 1 ^ 0x10, "{verify:?}, block {block}");
        }
    }
}

/// Names of pools are random, and say that they are: version 4, variant 1.
#[test]
fn a_random_name_is_one() {
    let (mut seen, mut digits) = (BTreeSet::new(), vec![BTreeSet::new(); 36]);
    for _ in 0..1000 {
        let name = Uuid::random().unwrap().to_string();
        assert_eq!((name.len(), &name[14..15]), (36, "4"), "{name}");
        for (i, digit) in name.chars().enumerate() {
            digits[i].insert(digit);
        }
        assert!(seen.insert(name));
    }
    for (i, digits) in digits.iter().enumerate() {
        let many = match i {
            8 | 13 | 18 | 23 => 1, // a dash
            14 => 1,
            19 => 4,
            _ => 16,
        };
        assert_eq!(digits.len(), many, "place {i}: {digits:?}");
    }
    assert_eq!(digits[19], "89ab".chars().collect());
}

/// Bytes match the counts of sectors and pages.
#[test]
fn a_volume_counts_in_bytes() {
    let dir = Dir::new("bytes");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 3 * PAGE], 0).unwrap();
    volume.write_at(&[2; 512], 0).unwrap();
    let info = volume.info().unwrap();
    assert_eq!((info.size_bytes, info.pages, info.cached_bytes), (64 << 12, 3, 3 << 12));
    assert_eq!((info.written_bytes, info.origin_written_bytes), ((3 << 12) + 512, 0));
    assert_eq!(info.origin_use, None, "before the first request");
    drain(&volume);
    let info = volume.info().unwrap();
    assert_eq!((info.pages, info.cached_bytes, info.pages_destaged), (0, 0, 3));
    assert_eq!((info.written_bytes, info.origin_written_bytes), ((3 << 12) + 512, 3 << 12));
    let origin_use = info.origin_use.expect("the origin was written");
    let ratio = |of: f64| of / info.origin_writes as f64;
    assert_eq!(origin_use.written_pages_per_request, ratio(3.0 + 1.0 / 8.0));
    assert_eq!(
        (origin_use.pages_per_request, origin_use.copies_per_written_page),
        (ratio(3.0), 0.0)
    );
}

/// A write is as many pages as it has, and not one.
#[test]
fn what_a_request_saves_is_told_in_pages() {
    let dir = Dir::new("origin-use");
    let pool = open(&dir.pool(40));
    let origin = MemOrigin::new(256 * PAGE).unwrap();
    let volume = attach(&pool, "v", &origin);
    for _ in 0..2 {
        volume.write_at(&[1; 256 * PAGE], 0).unwrap();
    }
    drain(&volume);
    let info = volume.info().unwrap();
    let told = info.origin_use.expect("the origin was written");
    assert_eq!(told.written_pages_per_request, 512.0 / info.origin_writes as f64);
}

/// Who is told that it is too small is told what is enough, and that is enough.
#[test]
fn the_least_size_is_enough() {
    let dir = Dir::new("least");
    let path = dir.path("pool");
    let with = |bytes| CreateOptions { size_bytes: Some(bytes), ..small(4) };
    let least = match create(&path, &with(PAGE as u64)) {
        Err(Error::TooSmall { bytes, least_bytes, .. }) if bytes == PAGE as u64 => least_bytes,
        other => panic!("{other:?}"),
    };
    let e = create(&path, &with(least - PAGE as u64)).unwrap_err();
    assert!(matches!(e, Error::TooSmall { .. }), "{e}");
    let summary = create(&path, &with(least)).unwrap();
    let pages: usize = open(&path).entries(0, false).unwrap().len();
    assert_eq!(summary.capacity_bytes, u64::from(summary.chunks) * (pages * PAGE) as u64);
}

/// The kernel in use is one of those that the CPU can run, which are named best first.
#[test]
fn kernels_are_named() {
    let dir = Dir::new("kernels");
    let pool = open(&dir.pool(8));
    assert_eq!(kernels()[0], pool.status().media.kernel);
    assert!(kernels().contains(&"generic"), "{:?}", kernels());
}

/// Each impossible size is refused separately.
#[test]
fn sizes_that_are_not_possible() {
    let dir = Dir::new("sizes");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    pool.volume_add_origin("v", &origin, 0).unwrap();
    let attach = |queue_depth, buffer_bytes, round_pages| {
        let o = AttachOptions { queue_depth, buffer_bytes, round_pages, ..Default::default() };
        pool.attach_origin("v", Box::new(origin.clone()), &o).map(drop)
    };
    for (depth, bytes, pages) in [(65, 0, 0), (0, 4095, 0), (0, 4097, 0), (0, 0, 15)] {
        let e = attach(depth, bytes, pages).unwrap_err();
        assert_eq!(e.exit_code(), 2, "{depth} {bytes} {pages}: {e}");
    }
    for (depth, bytes, pages) in [(64, 0, 0), (1, 4096, 16), (0, 8192, 0), (0, 0, 0)] {
        attach(depth, bytes, pages).unwrap_or_else(|e| panic!("{depth} {bytes} {pages}: {e}"));
    }
}

/// The error for a path that is no origin says what it is.
#[test]
fn what_is_no_origin_is_named() {
    let dir = Dir::new("unsuitable");
    let pool = open(&dir.pool(16));
    let (fifo, socket) = (dir.path("fifo"), dir.path("socket"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _listener = UnixListener::bind(&socket).unwrap();
    for (origin, what) in [
        (fifo, "a FIFO"),
        (socket, "a socket"),
        (dir.path("."), "a directory"),
        ("/dev/null".into(), "a character device"),
    ] {
        let new = NewVolume { name: "v".into(), origin, ..Default::default() };
        let e = pool.volume_add(&new).unwrap_err().to_string();
        assert!(e.contains(what), "{what}: {e}");
    }
}

/// An origin's error keeps its number, and an origin its name.
#[test]
fn an_origin_is_told_as_what_it_is() {
    let dir = Dir::new("told");
    let pool = open(&dir.pool(16));
    let memory = MemOrigin::new(64 * PAGE).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    assert_eq!(volume.info().unwrap().origin.unwrap().name, memory.info().name);
    assert_eq!(
        (memory.info().name.as_str(), memory.info().method.as_str()),
        ("(memory)", "memory copy")
    );
    faults.break_writes();
    volume.write_at(&[1; PAGE], 0).unwrap();
    let told = |_: &DrainProgress| match volume.info().unwrap().last_errno {
        Some(_) => std::ops::ControlFlow::Break(()),
        None => std::ops::ControlFlow::Continue(()),
    };
    volume.drain(&mut |p| told(p)).unwrap_err();
    assert_eq!(volume.info().unwrap().last_errno, Some(5));
    faults.repair();
    drain(&volume);
    assert_eq!(volume.info().unwrap().last_errno, None);
}

/// Counts the index, and each volume for as long as it is attached.
#[test]
fn memory_is_counted() {
    let dir = Dir::new("memory");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(64 * PAGE).unwrap();
    let used = || pool.status().destage_memory_bytes;
    assert!(pool.status().memory_bytes > 16 * 8 * 16, "some for each page");
    pool.volume_add_origin("v", &origin, 0).unwrap();
    assert_eq!(used(), 0);
    let (queue_depth, buffer_bytes, round_pages) = (2, 8192, 16);
    let o = AttachOptions { queue_depth, buffer_bytes, round_pages, ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin.clone()), &o).unwrap();
    assert_eq!(used(), 2 * 8192 + PAGE as u64);
    volume.detach().unwrap();
    assert_eq!(used(), 0);
}
