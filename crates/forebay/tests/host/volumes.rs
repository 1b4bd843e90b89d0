// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several volumes of a pool, and several pools of a process.

use std::time::Duration;

use crate::common::*;
use forebay::*;

/// A volume that takes the place of a removed one never shows its data, nor
/// does recovery bring it back, whatever was drained in between.
#[test]
fn a_new_volume_shows_nothing_of_an_old_one() {
    let dir = Dir::new("watermark");
    let path = dir.pool(32);
    let mut pool = open(&path);
    let other = MemOrigin::new(64 * 4096).unwrap();
    attach(&pool, "other", &other).write_at(&[1; 8192], 0).unwrap();
    for round in 1..7u8 {
        let origin = MemOrigin::new(64 * 4096).unwrap();
        let volume = attach(&pool, "v", &origin);
        assert_eq!(volume.info().unwrap().index, 1);
        assert!(read(&volume, 0, 64 * 4096).iter().all(|b| *b == 0), "round {round}");
        volume.write_at(&[round; 16 * 4096], u64::from(round) * 4096).unwrap();
        if round % 2 == 0 {
            drain(&volume);
            volume.write_at(&[round; 512], 0).unwrap();
        }
        volume.detach().unwrap();
        if round % 3 == 0 {
            pool.close().unwrap();
            pool = open(&path);
            let volume = reattach(&pool, "v", &origin);
            assert_eq!(read(&volume, u64::from(round) * 4096, 16 * 4096), [round; 16 * 4096]);
        }
        let e = pool.volume_remove("v", false).unwrap_err();
        assert!(e.to_string().contains("not on its origin yet"), "{e}");
        assert_eq!(e.exit_code(), 12);
        pool.volume_remove("v", true).unwrap();
        assert_sound(&pool);
    }
    pool.close().unwrap();
    let pool = open(&path);
    assert_eq!(pool.volumes().len(), 1);
    assert_eq!(read(&reattach(&pool, "other", &other), 0, 8192), [1; 8192]);
}

/// Many volumes written in turn, so that their chunks lie among each other's,
/// drained one by one, with an opening between.
#[test]
fn watermarks_of_many_volumes() {
    let dir = Dir::new("many");
    let path = dir.pool(80);
    let mut pool = open(&path);
    let names: Vec<String> = (0..12).map(|i| format!("v{i}")).collect();
    let origins: Vec<_> = names.iter().map(|_| MemOrigin::new(32 * 4096).unwrap()).collect();
    let mut volumes: Vec<_> =
        names.iter().zip(&origins).map(|(n, o)| attach(&pool, n, o)).collect();
    for round in 0..4u64 {
        for (i, volume) in volumes.iter().enumerate() {
            for b in 0..6 {
                let data = [1 + round as u8 + 10 * i as u8; 4096];
                volume.write_at(&data, (b * 4 + round) * 4096).unwrap();
            }
        }
        drain(&volumes[round as usize]);
        volumes.into_iter().for_each(|v| v.detach().unwrap());
        assert_sound(&pool);
        pool.close().unwrap();
        pool = open(&path);
        volumes = names.iter().zip(&origins).map(|(n, o)| reattach(&pool, n, o)).collect();
        for (i, volume) in volumes.iter().enumerate() {
            for b in 0..24 {
                let expect = match b % 4 <= round {
                    true => 1 + (b % 4) as u8 + 10 * i as u8,
                    false => 0,
                };
                assert_eq!(read(volume, b * 4096, 4096), [expect; 4096], "volume {i} block {b}");
            }
        }
    }
    let mut told = std::collections::BTreeSet::new();
    pool.drain(None, &mut |name, _| {
        told.insert(name.to_string());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told.len(), 12);
    for (volume, origin) in volumes.iter().zip(&origins) {
        assert!(origin.content() == read(volume, 0, 32 * 4096));
    }
}

#[test]
fn names_and_places_are_limited_and_messages_say_so() {
    let dir = Dir::new("names");
    let path = dir.path("pool");
    create(&path, &CreateOptions { max_volumes: 2, ..small(8) }).unwrap();
    let pool = open(&path);
    let origin = || MemOrigin::new(8192).unwrap();
    for bad in ["", "a b", "a/b", "ü", &"x".repeat(64)] {
        let e = pool.volume_add_origin(bad, &origin(), 0).unwrap_err();
        assert!(e.to_string().contains("A-Z a-z 0-9"), "{bad}: {e}");
    }
    let first = origin();
    pool.volume_add_origin(&"x".repeat(63), &first, 0).unwrap();
    let e = pool.volume_add_origin(&"x".repeat(63), &origin(), 0).unwrap_err();
    assert!(e.to_string().contains("exists"), "{e}");
    let e = pool.volume_add_origin("again", &first, 0).unwrap_err();
    assert!(e.to_string().contains("already that of volume xxx"), "{e}");
    pool.volume_add_origin("b", &origin(), 4096).unwrap();
    let e = pool.volume_add_origin("c", &origin(), 0).unwrap_err();
    assert!(e.to_string().contains("was made for 2 volumes"), "{e}");
    assert_eq!(e.exit_code(), 8);
    let e = pool.volume_info("nope").unwrap_err();
    assert!(e.to_string().contains(", b"), "{e}");
    assert_eq!(e.exit_code(), 3);
    let odd = MemOrigin::new(8192 + 512).unwrap();
    let e = pool.volume_add_origin("odd", &odd, 4096).unwrap_err();
    assert!(e.to_string().contains("not a multiple"), "{e}");
}

#[test]
fn requests_off_the_block_or_the_end_are_refused() {
    let dir = Dir::new("range");
    let pool = open(&dir.pool(8));
    let origin = MemOrigin::new(8192).unwrap();
    pool.volume_add_origin("v", &origin, 4096).unwrap();
    let v = reattach(&pool, "v", &origin);
    let e = v.write_at(&[0; 512], 0).unwrap_err();
    assert!(matches!(e, Error::Alignment { block_size: 4096, .. }), "{e}");
    assert!(v.read_at(&mut [0; 4096], 512).is_err());
    let e = v.write_at(&[0; 8192], 4096).unwrap_err();
    assert!(matches!(e, Error::Range { size: 8192, .. }), "{e}");
    assert_eq!(e.errno(), 28);
    assert!(v.discard(u64::MAX - 4095, 4096).is_err());
    assert!(v.write_zeroes(0, 12288).is_err());
    v.write_at(&[], 8192).unwrap();
    v.discard(8192, 0).unwrap();
    assert_eq!(v.info().unwrap().pages, 0);
}

#[test]
fn handles_keep_the_pool_open() {
    let dir = Dir::new("handles");
    let path = dir.pool(8);
    let pool = open(&path);
    let origin = MemOrigin::new(8192).unwrap();
    let volume = attach(&pool, "v", &origin);
    let e = pool.attach_origin("v", Box::new(origin.clone()), &AttachOptions::default());
    assert_eq!(e.unwrap_err().exit_code(), 4);
    let second = pool.volume("v").unwrap();
    let e = volume.detach().unwrap_err();
    assert!(matches!(&e, Error::PoolInUse { volumes, .. } if volumes == &["v"]), "{e}");
    let e = pool.close().unwrap_err();
    assert!(matches!(&e, Error::PoolInUse { volumes, .. } if volumes == &["v"]), "{e}");
    // Still usable, and still locked.
    second.write_at(&[3; 512], 0).unwrap();
    assert_eq!(Pool::open(&path, &PoolOptions::default()).unwrap_err().exit_code(), 4);
    drop(second);
    let pool = open(&path);
    assert!(pool.recovery().clean, "dropping the last handle closes cleanly");
    assert!(pool.volume("v").is_none());
}

/// No state is shared between pools.
#[test]
fn several_pools_in_one_process() {
    let dirs: Vec<_> = (0..3).map(|_| Dir::new("several")).collect();
    std::thread::scope(|s| {
        for (i, dir) in dirs.iter().enumerate() {
            s.spawn(move || {
                let pool = open(&dir.pool(8));
                let origin = MemOrigin::new(256 * 4096).unwrap();
                let volume = attach(&pool, "same-name", &origin);
                for b in 0..256u64 {
                    volume.write_at(&[i as u8 + 1; 4096], b * 4096).unwrap();
                }
                drain(&volume);
                assert!(origin.content().iter().all(|b| *b == i as u8 + 1));
                volume.detach().unwrap();
                pool.close().unwrap();
            });
        }
    });
}

#[test]
fn idle_and_old_data_is_destaged_without_being_asked() {
    let dir = Dir::new("idle");
    let pool = open(&dir.pool(8));
    let origin = MemOrigin::new(8192).unwrap();
    let volume = attach(&pool, "v", &origin);
    let wait = |expect: [u8; 512]| {
        let start = std::time::Instant::now();
        while origin.content()[..512] != expect {
            assert!(start.elapsed() < Duration::from_secs(20), "never destaged");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    volume.write_at(&[1; 512], 0).unwrap();
    let change = OptionsChange { idle_seconds: Some(0.05), ..Default::default() };
    assert_eq!(pool.set_options(&change).unwrap().idle_seconds, Some(0.05));
    wait([1; 512]);
    let change = OptionsChange {
        idle_seconds: Some(0.0),
        max_age_seconds: Some(0.05),
        ..Default::default()
    };
    assert_eq!(pool.set_options(&change).unwrap().idle_seconds, None);
    volume.write_at(&[2; 512], 0).unwrap();
    wait([2; 512]);
    let bad = OptionsChange { high_watermark_percent: Some(120), ..Default::default() };
    assert_eq!(pool.set_options(&bad).unwrap_err().exit_code(), 2);
    assert_eq!(pool.options().high_watermark_percent, 60);
}

#[test]
fn read_only_reads_and_writes_nothing() {
    let dir = Dir::new("ro");
    let path = dir.pool(8);
    let origin = dir.file("disk", 1 << 20);
    let pool = open(&path);
    pool.volume_add(&NewVolume { name: "v".into(), origin, block_size: 0, ..Default::default() })
        .unwrap();
    pool.attach("v", &AttachOptions::default()).unwrap().write_at(&[5; 4096], 4096).unwrap();
    pool.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let options = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open(&path, &options).unwrap();
    let second = Pool::open(&path, &options).unwrap();
    let e = Pool::open(&path, &PoolOptions::default()).unwrap_err();
    assert_eq!(e.exit_code(), 4, "{e}");
    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
    assert_eq!(read(&volume, 0, 12288)[4096..8192], [5; 4096]);
    let e = volume.write_at(&[6; 4096], 0).unwrap_err();
    assert_eq!((e.exit_code(), e.errno()), (9, 30), "{e}");
    assert!(volume.discard(0, 4096).is_err() && volume.write_zeroes(0, 4096).is_err());
    assert!(volume.drain(&mut |_| std::ops::ControlFlow::Continue(())).is_err());
    assert_eq!(pool.volume_remove("v", true).unwrap_err().exit_code(), 9);
    drop((volume, pool, second));
    assert!(std::fs::read(&path).unwrap() == before);
}

/// With msync as the fence.
#[test]
fn a_pool_in_a_plain_file() {
    let dir = Dir::on_disk("plain");
    let path = dir.pool(8);
    let origin = MemOrigin::new(16 * 4096).unwrap();
    for round in 1..4u8 {
        let pool = open(&path);
        if pool.media().kind == MediaKind::File {
            assert_eq!(pool.media().persist, Persist::Msync);
            assert!(pool.media().durable);
        }
        let volume = match round {
            1 => attach(&pool, "v", &origin),
            _ => reattach(&pool, "v", &origin),
        };
        assert_eq!(read(&volume, 0, 16 * 4096), [round - 1; 16 * 4096]);
        for b in 0..16u64 {
            volume.write_at(&[round; 4096], b * 4096).unwrap();
        }
        assert_eq!(read(&volume, 0, 16 * 4096), [round; 16 * 4096]);
    }
}

/// A volume whose record is lost has a number and no name.  To attach it is refused as
/// that, by whichever name and with whichever origin, and no name that is empty finds it.
#[test]
fn a_volume_without_its_record_is_not_attached() {
    let dir = Dir::new("norecord");
    let path = dir.pool(16);
    let origin = MemOrigin::new(1 << 20).unwrap();
    open(&path).volume_add_origin("v", &origin, 0).unwrap();
    // Both copies: all that is not zero between the superblocks and the first chunk.
    let mut bytes = std::fs::read(&path).unwrap();
    let table = &mut bytes[8192..CHUNK as usize];
    for record in table.chunks_exact_mut(256).filter(|r| r.iter().any(|b| *b != 0)) {
        record[8] ^= 1;
    }
    std::fs::write(&path, bytes).unwrap();
    let pool = open(&path);
    assert!(pool.volumes()[0].damaged);
    let attach = |name: &str| {
        let origin = Box::new(origin.clone());
        pool.attach_origin(name, origin, &AttachOptions::default()).unwrap_err()
    };
    let e = attach("#0");
    assert_eq!(e.exit_code(), 5, "{e}");
    assert!(matches!(attach(""), Error::NoVolume { .. }));
}
