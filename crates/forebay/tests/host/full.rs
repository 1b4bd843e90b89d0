// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cache that is full: writers wait and go on, or are told.

use std::time::Duration;

use crate::common::*;
use forebay::*;

/// The least pool, and a volume eight times its size, written by more threads
/// than there are chunks.
#[test]
fn a_tiny_pool_makes_progress() {
    let dir = Dir::new("full");
    let pool = Pool::open(&dir.pool(4), &unthrottled()).unwrap();
    let blocks = 8 * 4 * 8u64;
    let origin = MemOrigin::new(blocks as usize * 4096).unwrap();
    let volume = attach(&pool, "v", &origin);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let volume = &volume;
            s.spawn(move || {
                for count in 1..3 {
                    for b in (t..blocks).step_by(4) {
                        let data: Vec<u8> =
                            (0..8).flat_map(|i| sector(t, b * 8 + i, count)).collect();
                        volume.write_at(&data, b * 4096).unwrap();
                    }
                }
            });
        }
    });
    assert!(pool.status().counters.waits_space > 0, "it was never full");
    let all = read(&volume, 0, blocks as usize * 4096);
    for (place, bytes) in all.chunks(512).enumerate() {
        let place = place as u64;
        assert_eq!(sector_count(bytes, place / 8 % 4, place), 2);
    }
    drain(&volume);
    assert!(origin.content() == all);
    assert_eq!(volume.info().unwrap().pages, 0);
}

fn fill(volume: &Volume) -> Error {
    let blocks = volume.size_bytes() / 4096;
    (0..blocks).find_map(|b| volume.write_at(&[7; 4096], b * 4096).err()).expect("it never fills")
}

/// Full and nothing moves: an error in time, naming the origin's, and nothing
/// that was acknowledged is lost.
#[test]
fn a_timeout_ends_the_wait_and_repair_the_trouble() {
    let dir = Dir::new("timeout");
    let pool = Pool::open(&dir.pool(6), &unthrottled()).unwrap();
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    faults.break_writes();
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let options =
        AttachOptions { full_timeout: Some(Duration::from_millis(300)), ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin), &options).unwrap();
    let e = fill(&volume);
    assert!(matches!(&e, Error::Full { last_error: Some(_), .. }), "{e}");
    assert_eq!(e.exit_code(), 8);
    assert!(e.to_string().contains("origin:"), "{e}");
    assert!(volume.info().unwrap().last_error.is_some());

    faults.repair();
    volume.write_at(&[8; 4096], 0).unwrap_or_else(|_| {
        drain(&volume);
        volume.write_at(&[8; 4096], 0).unwrap();
    });
    drain(&volume);
    assert_eq!(memory.content()[..4096], [8; 4096]);
    assert_eq!(memory.content()[4096..8192], [7; 4096]);
    assert_eq!(volume.info().unwrap().last_error, None);
}

/// A write that finds no space in its middle: it is told, and each of its sectors is the old
/// or the new one; or its rest is written when there is space again.
#[test]
fn a_write_finds_no_space_in_its_middle() {
    const BLOCKS: u64 = 256;
    let dir = Dir::new("middle");
    let pool = Pool::open(&dir.pool(6), &unthrottled()).unwrap();
    let memory = MemOrigin::new(BLOCKS as usize * 4096).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let options =
        AttachOptions { full_timeout: Some(Duration::from_millis(300)), ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin), &options).unwrap();
    let version = |count| (0..BLOCKS * 8).flat_map(|i| sector(1, i, count)).collect::<Vec<u8>>();
    let counts = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks(512).enumerate().map(|(i, s)| sector_count(s, 1, i as u64)).collect()
    };
    volume.write_at(&version(1), 0).unwrap();
    drain(&volume);

    faults.break_writes();
    let e = volume.write_at(&version(2), 0).unwrap_err();
    assert!(matches!(&e, Error::Full { .. }), "{e}");
    let after = counts(&read(&volume, 0, BLOCKS as usize * 4096));
    let new = after.iter().take_while(|count| **count == 2).count();
    assert!(new > 0 && new < after.len(), "{new} sectors are new");
    assert!(after[new..].iter().all(|count| *count == 1), "{after:?}");
    faults.repair();
    drain(&volume);
    assert_eq!(counts(&memory.content()), after);
    volume.detach().unwrap();

    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    faults.break_writes();
    std::thread::scope(|s| {
        let waits = pool.status().counters.waits_space;
        let writer = s.spawn(|| volume.write_at(&version(3), 0));
        while pool.status().counters.waits_space == waits {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!writer.is_finished());
        faults.repair();
        writer.join().unwrap().unwrap();
    });
    assert!(read(&volume, 0, BLOCKS as usize * 4096) == version(3));
    drain(&volume);
    assert!(memory.content() == version(3));
    assert_sound(&pool);
}

#[test]
fn waits_can_be_ended_for_a_shutdown() {
    let dir = Dir::new("abort");
    let path = dir.pool(6);
    let pool = Pool::open(&path, &unthrottled()).unwrap();
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    faults.break_writes();
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| fill(&volume));
        while pool.status().counters.waits_space == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        pool.abort_waits();
        assert!(matches!(writer.join().unwrap(), Error::Full { .. }));
    });
    volume.detach().unwrap();
    pool.close().unwrap();
    let pool = open(&path);
    assert!(pool.recovery().clean && pool.recovery().blocks > 0);
    let volume = reattach(&pool, "v", &memory);
    assert_eq!(read(&volume, 0, 4096), [7; 4096]);
}

/// Between the high watermark and full, writers are held back instead of let
/// run into the wall: with an origin slower than they are, every one gets on.
#[test]
fn writers_are_held_back_before_it_is_full() {
    let dir = Dir::new("throttle");
    let pool = open(&dir.pool(200));
    let memory = MemOrigin::new(4 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    faults.delay(FaultOp::Write, Duration::from_millis(2));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let options = AttachOptions { buffer_bytes: 4096, ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin), &options).unwrap();
    let start = std::time::Instant::now();
    let mut rng = Rng::new(1);
    let held = || volume.info().unwrap().throttled_seconds > 0.0;
    while !held() {
        assert!(start.elapsed() < Duration::from_secs(30), "never held back");
        for _ in 0..50 {
            volume.write_at(&[1; 4096], rng.below(1024) * 4096).unwrap();
        }
    }
    assert_eq!(pool.status().counters.waits_space, 0, "it ran into the wall");
    // It is counted in nanoseconds, of which one is a thousand million times as much.
    assert!(volume.info().unwrap().throttled_seconds < 1e6);
}

/// Volumes that are not attached have filled the pool.  A volume and a log that write beside them
/// get a chunk each or wait, and the errors, status and its JSON name who holds the pool.
#[test]
fn who_holds_the_pool_is_named() {
    let dir = Dir::new("held");
    let path = dir.pool(8);
    let pool = Pool::open(&path, &unthrottled()).unwrap();
    let memory = MemOrigin::new(1 << 20).unwrap();
    let options =
        AttachOptions { full_timeout: Some(Duration::from_millis(50)), ..Default::default() };
    let status = |pool: &Pool| pool.status().held_by_detached;
    let broken = || {
        let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
        faults.break_writes();
        Box::new(origin)
    };
    pool.volume_add_origin("gone", &memory, 0).unwrap();
    let gone = pool.attach_origin("gone", broken(), &options).unwrap();
    let e = fill(&gone);
    assert!(matches!(&e, Error::Full { held: None, .. }), "it holds the pool itself: {e}");
    assert_eq!(status(&pool), None, "all is attached");
    gone.detach().unwrap();
    let held = status(&pool).expect("status says who holds the pool");
    assert_eq!((held.holders[0].volume.as_str(), held.chunks(), held.of), ("gone", 7, 8));

    let other = MemOrigin::new(2 << 20).unwrap();
    pool.volume_add_origin("other", &other, 0).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(other.clone()));
    faults.break_writes();
    let volume = pool.attach_origin("other", Box::new(origin), &options).unwrap();
    let e = fill(&volume);
    let text = e.to_string();
    assert!(text.contains("hold 7 of the pool's 8 chunks: gone (7); attach"), "{text}");

    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions { full_timeout: Some(Duration::ZERO) }).unwrap();
    log.create(0).unwrap();
    let e = log.append(1, Generation::Same, &[&[1; 100]]).unwrap_err();
    assert!(matches!(&e, Error::LogFull { held: Some(_), .. }), "{e}");
    assert!(e.to_string().contains("gone (7)"), "{e}");

    // The way out that they name.
    pool.volume_remove("gone", true).unwrap();
    assert_eq!(status(&pool), None);
    log.append(1, Generation::Same, &[&[1; 100]]).unwrap();
    volume.write_at(&[7; 4096], 0).unwrap();
}
