// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that bypass the cache: which writes do, that nothing older shows after them, and that
//! a flush then reaches the origin.

use crate::common::*;
use forebay::*;

fn attach_with(
    pool: &Pool,
    origin: &MemOrigin,
    limit: u64,
    when_full: WhenFull,
) -> (Volume, Faults) {
    let (faulty, faults) = FaultyOrigin::new(Box::new(origin.clone()));
    if pool.volumes().is_empty() {
        add(pool, "v", origin);
    }
    let options = AttachOptions { bypass_limit_bytes: limit, when_full, ..Default::default() };
    (pool.attach_origin("v", Box::new(faulty), &options).unwrap(), faults)
}

#[test]
fn large_writes_go_past_the_cache_and_a_flush_follows_them() {
    let dir = Dir::new("bypass");
    large_writes(&dir.pool(40));
}

#[test]
fn large_writes_go_past_a_static_volume_and_a_flush_follows_them() {
    let dir = Dir::new("bypass");
    large_writes(&dir.static_pool(1 << 20));
}

fn large_writes(path: &std::path::Path) {
    let pool = Pool::open(path, &unthrottled()).unwrap();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let (volume, faults) = attach_with(&pool, &origin, 128 << 10, WhenFull::Wait);
    // Owed on behalf of an earlier user of the origin.
    assert!(volume.info().unwrap().flush_owed);
    volume.flush().unwrap();
    volume.flush().unwrap();
    assert_eq!(faults.calls(FaultOp::Flush), 1);

    volume.write_at(&[1; 64 << 10], 0).unwrap();
    volume.write_at(&[2; 256 << 10], 512 << 10).unwrap();
    let info = volume.info().unwrap();
    assert_eq!((info.pages, info.bypasses, info.bypassed_bytes), (16, 1, 256 << 10));
    assert_eq!(origin.content()[512 << 10..768 << 10], [2; 256 << 10]);
    assert_eq!(read(&volume, 512 << 10, 256 << 10), [2; 256 << 10]);
    volume.flush().unwrap();
    volume.flush().unwrap();
    assert_eq!(faults.calls(FaultOp::Flush), 2, "one for the bypassed write");

    // Over what is cached: only the rest goes past it.
    volume.write_at(&[3; 256 << 10], 0).unwrap();
    let info = volume.info().unwrap();
    assert_eq!((info.pages, info.bypasses, info.bypassed_bytes), (16, 2, 448 << 10));
    assert_eq!(read(&volume, 0, 256 << 10), [3; 256 << 10]);
    assert_eq!(origin.content()[..64 << 10], [0; 64 << 10]);
    // Enough is cached to break the write into pieces not worth a request.
    volume.write_at(&[4; 4096], 512 << 10).unwrap();
    volume.write_at(&[4; 4096], 560 << 10).unwrap();
    volume.write_at(&[5; 128 << 10], 512 << 10).unwrap();
    assert_eq!(volume.info().unwrap().bypassed_bytes, (448 + 76) << 10);
    assert_eq!(read(&volume, 512 << 10, 128 << 10), [5; 128 << 10]);

    assert_sound(&pool);
    drain(&volume);
    assert!(!volume.info().unwrap().flush_owed, "drained, the origin alone is durable");
    assert_eq!(origin.content()[..256 << 10], [3; 256 << 10]);
    assert_eq!(origin.content()[512 << 10..640 << 10], [5; 128 << 10]);
}

#[test]
fn the_limit_changes_while_attached() {
    let dir = Dir::new("limit");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let (volume, _) = attach_with(&pool, &origin, 0, WhenFull::Wait);
    volume.write_at(&[1; 128 << 10], 0).unwrap();
    assert_eq!(volume.info().unwrap().bypasses, 0);
    volume.set(&VolumeChange { bypass_limit_bytes: Some(4096), ..Default::default() });
    assert_eq!(volume.info().unwrap().bypass_limit_bytes, Some(4096));
    volume.write_at(&[2; 128 << 10], 512 << 10).unwrap();
    assert_eq!(volume.info().unwrap().bypasses, 1);
    volume.set(&VolumeChange { bypass_limit_bytes: Some(0), ..Default::default() });
    volume.write_at(&[3; 128 << 10], 768 << 10).unwrap();
    assert_eq!(volume.info().unwrap().bypasses, 1);
}

#[test]
fn a_durable_write_is_flushed_only_if_it_went_past() {
    let dir = Dir::new("fua");
    durable_writes(&dir.pool(40));
}

#[test]
fn a_durable_write_of_a_static_volume_is_flushed_only_if_it_went_past() {
    let dir = Dir::new("fua");
    durable_writes(&dir.static_pool(1 << 20));
}

fn durable_writes(path: &std::path::Path) {
    let pool = Pool::open(path, &unthrottled()).unwrap();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let (volume, faults) = attach_with(&pool, &origin, 65536, WhenFull::Wait);
    volume.write_at_durably(&[1; 4096], 0).unwrap();
    assert_eq!(faults.calls(FaultOp::Flush), 0);
    volume.write_at_durably(&[2; 65536], 65536).unwrap();
    assert_eq!(faults.calls(FaultOp::Flush), 1);
    assert!(!volume.info().unwrap().flush_owed);

    faults.fail(FaultOp::Flush, 1, 1);
    assert!(volume.write_at_durably(&[3; 65536], 131072).is_err());
    assert!(volume.info().unwrap().flush_owed, "it was not flushed");
    // A flush of all may have covered what was lost with it, so it is told, once.
    assert!(volume.flush().is_err());
    volume.flush().unwrap();
    assert!(!volume.info().unwrap().flush_owed);

    faults.fail(FaultOp::Write, 1, 1);
    let e = volume.write_at(&[4; 65536], 131072).unwrap_err();
    assert!(matches!(e, Error::OriginIo { doing: "write past the cache", .. }), "{e}");
    assert_eq!(read(&volume, 131072, 65536), [3; 65536]);
}

/// Destage can release nothing, and the pool is full: writes continue.
#[test]
fn a_full_pool_is_passed_by() {
    let dir = Dir::new("passed-by");
    passed_by(&dir.pool(6));
}

#[test]
fn slots_that_are_taken_are_passed_by() {
    let dir = Dir::new("passed-by");
    passed_by(&dir.static_pool(64 << 10));
}

fn passed_by(path: &std::path::Path) {
    let pool = Pool::open(path, &unthrottled()).unwrap();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let (volume, faults) = attach_with(&pool, &origin, 0, WhenFull::Bypass);
    faults.fail(FaultOp::Flush, 1, u64::MAX);
    // A write that is past the cache while destage's flush fails is told so.
    let mut told = 0;
    for block in 0..256u64 {
        while let Err(e) = volume.write_at(&[block as u8; 4096], block * 4096) {
            told += 1;
            assert!(told < 10, "{e}");
        }
    }
    let info = volume.info().unwrap();
    assert!(info.bypasses > 100 && info.pages > 8, "{info:?}");
    for block in 0..256u64 {
        assert_eq!(read(&volume, block * 4096, 4096), [block as u8; 4096]);
    }
    assert!(volume.flush().is_err());
    faults.repair();
    // Destage was told of a flush that failed, so a caller has to be, once.
    let _ = volume.flush();
    volume.flush().unwrap();
    drain(&volume);
    for (block, bytes) in origin.content().chunks(4096).enumerate() {
        assert_eq!(bytes, [block as u8; 4096]);
    }
    assert_sound(&pool);
}

/// Concurrent writers past the cache and through it, whose areas share blocks, while destage
/// runs: each always sees its own newest writes.
#[test]
fn writers_past_and_through_the_cache_do_not_overtake_each_other() {
    const AREA: u64 = 1212; // sectors: ends within blocks
    let dir = Dir::new("overtake");
    let pool = Pool::open(&dir.pool(8), &unthrottled()).unwrap();
    let threads = 4;
    let origin = MemOrigin::new((threads * AREA * 512).next_multiple_of(4096) as usize).unwrap();
    let (volume, _) = attach_with(&pool, &origin, 65536, WhenFull::Bypass);
    std::thread::scope(|s| {
        for t in 0..threads {
            let volume = &volume;
            s.spawn(move || {
                let mut last = [0u64; AREA as usize];
                let mut x = t * 7919 + 1;
                for count in 1..600u64 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let first = (x >> 33) % AREA;
                    let n =
                        1 + (x >> 45) % (AREA - first).min(if count % 2 == 0 { 12 } else { 400 });
                    let area = t * AREA;
                    let data: Vec<u8> =
                        (first..first + n).flat_map(|i| sector(t + 1, area + i, count)).collect();
                    volume.write_at(&data, (area + first) * 512).unwrap();
                    last[first as usize..(first + n) as usize].fill(count);
                    if count % 3 == 0 {
                        let all = read(volume, area * 512, AREA as usize * 512);
                        for (i, bytes) in all.chunks(512).enumerate() {
                            let got = sector_count(bytes, t + 1, area + i as u64);
                            assert_eq!(got, last[i], "writer {t} sector {i} write {count}");
                        }
                    }
                    if count % 97 == 0 {
                        volume.flush().unwrap();
                    }
                }
            });
        }
        s.spawn(|| {
            for _ in 0..30 {
                drain(&volume);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
    });
    let info = volume.info().unwrap();
    assert!(info.bypasses > 100 && info.writes > 100, "{info:?}");
    let all = read(&volume, 0, (threads * AREA * 512) as usize);
    drain(&volume);
    assert_eq!(origin.content()[..all.len()], all);
    assert_sound(&pool);
}
