// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write-through: acknowledged data is on the flushed origin, whatever was cached before and
//! whoever writes concurrently.  Cleaner: the pool empties, and stays empty.  Method: an origin
//! with a volatile cache; the tests examine only its durable part.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use crate::disk::{Disk, SIZE};
use forebay::*;

fn attach_mode(pool: &Pool, disk: &Disk, mode: Mode) -> Volume {
    if pool.volumes().is_empty() {
        add(pool, "v", disk);
    }
    let options = AttachOptions { mode, ..Default::default() };
    pool.attach_origin("v", Box::new(disk.clone()), &options).unwrap()
}

fn set(volume: &Volume, mode: Mode) {
    volume.set(&VolumeChange { mode: Some(mode), ..Default::default() });
    assert_eq!(volume.info().unwrap().mode, mode);
}

fn durable(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
    disk.state().durable[offset as usize..offset as usize + len].to_vec()
}

fn until_empty(volume: &Volume) {
    until("the pool is empty", || volume.info().unwrap().pages == 0);
}

#[test]
fn written_through_is_on_the_origin_alone() {
    let dir = Dir::new("through");
    written_through(&dir.pool(40));
}

#[test]
fn written_through_a_static_volume_is_on_the_origin_alone() {
    let dir = Dir::new("through");
    written_through(&dir.static_pool(1 << 20));
}

fn written_through(path: &std::path::Path) {
    let pool = Pool::open(path, &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_mode(&pool, &disk, Mode::WriteBack);
    // Nothing of it is on the origin.
    volume.write_at(&[1; 64 << 10], 0).unwrap();
    assert_eq!(durable(&disk, 0, 64 << 10), [0; 64 << 10]);
    set(&volume, Mode::WriteThrough);
    // A sector of a cached block, a range half of which is cached, and one that is not.
    for (offset, len) in [(512, 512), (60 << 10, 8 << 10), (1 << 20, 512), (2 << 20, 300 << 10)] {
        let data = vec![len as u8 | 2; len];
        volume.write_at(&data, offset).unwrap();
        assert_eq!(durable(&disk, offset, len), data, "{len} bytes at {offset}");
        assert_eq!(read(&volume, offset, len), data);
    }
    // A small zeroing is an entry of the pool, a large one goes past it.
    for (offset, len) in [(2 << 20, 4096), (1 << 20, 512), ((2 << 20) + 8192, 200 << 10)] {
        volume.write_zeroes(offset, len).unwrap();
        assert_eq!(durable(&disk, offset, len as usize), vec![0; len as usize], "at {offset}");
    }
    until_empty(&volume);
    assert_eq!(durable(&disk, 0, 512), [1; 512], "what was cached before is left behind");
    assert_sound(&pool);
    disk.assert_unmet();
}

/// Each thread has a sector of its own in the same blocks, so that what one has
/// published is superseded by another's before destage comes to it.
#[test]
fn written_through_beside_others_of_the_same_blocks() {
    let dir = Dir::new("beside");
    beside_others(&dir.pool(40));
}

#[test]
fn written_through_a_static_volume_beside_others_of_the_same_blocks() {
    let dir = Dir::new("beside");
    beside_others(&dir.static_pool(64 << 10));
}

fn beside_others(path: &std::path::Path) {
    const THREADS: u64 = 4;
    let pool = Pool::open(path, &unthrottled()).unwrap();
    let disk = Disk::new();
    disk.hook(|op, _| {
        std::thread::sleep(Duration::from_micros(if op == "flush" { 500 } else { 50 }));
        Ok(())
    });
    let volume = attach_mode(&pool, &disk, Mode::WriteBack);
    for round in 1..=12 {
        set(&volume, Mode::WriteBack);
        for block in 0..8 {
            volume.write_at(&[0xee; 4096], block * 4096).unwrap();
        }
        set(&volume, Mode::WriteThrough);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (volume, disk) = (&volume, &disk);
                scope.spawn(move || {
                    let mut rng = Rng::new(round * THREADS + thread);
                    for n in 1..=20 {
                        let offset = rng.below(8) * 4096 + thread * 512;
                        let zero = n % 4 == 0; // an entry of the pool
                        let data = match zero {
                            true => [0; 512],
                            false => sector(thread, offset, round * 100 + n),
                        };
                        match zero {
                            true => volume.write_zeroes(offset, 512).unwrap(),
                            false => volume.write_at(&data, offset).unwrap(),
                        }
                        assert!(durable(disk, offset, 512) == data, "round {round}, write {n}");
                    }
                });
            }
        });
    }
    let info = volume.info().unwrap();
    assert!(info.rounds > 12 && info.bypasses > 100, "both ways are taken: {info:?}");
    assert_sound(&pool);
}

#[test]
fn an_origin_that_fails_is_told_to_whoever_writes_through() {
    let dir = Dir::new("through-fails");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_mode(&pool, &disk, Mode::WriteBack);
    volume.write_at(&[1; 8192], 0).unwrap();
    let fails = Arc::new(Mutex::new(Some(0)));
    disk.hook({
        let fails = fails.clone();
        move |_, at| match &mut *fails.lock().unwrap() {
            Some(failed) => {
                *failed += u64::from(at < 1 << 20); // of destage
                Err(std::io::Error::from_raw_os_error(5))
            }
            None => Ok(()),
        }
    });
    set(&volume, Mode::WriteThrough);
    for offset in [0, 1 << 20] {
        let e = volume.write_at(&[2; 4096], offset).unwrap_err();
        assert!(matches!(e, Error::OriginIo { .. }) && e.exit_code() == 7, "{e}");
    }
    let e = volume.write_zeroes(4096, 4096).unwrap_err();
    assert_eq!(e.exit_code(), 7, "{e}");
    // A failure that the engine learns of during the next write is that write's as well.
    let failed = fails.lock().unwrap().take().unwrap();
    until("destage has told its failures", || volume.info().unwrap().origin_errors == failed);
    volume.write_at(&[3; 4096], 0).unwrap();
    assert_eq!(durable(&disk, 0, 4096), [3; 4096]);
    disk.assert_unmet();
}

/// The rest of a block stays lost, and does not delay the overwritten part.
#[test]
fn a_lost_block_is_written_through() {
    let dir = Dir::new("through-lost");
    let path = dir.pool(16);
    let disk = Disk::new();
    let pool = open(&path);
    let volume = attach_mode(&pool, &disk, Mode::WriteBack);
    volume.write_at(&[1; 8192], 0).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
    crate::damage::damage(&path, 1, 700);
    let pool = open(&path);
    let volume = attach_mode(&pool, &disk, Mode::WriteThrough);
    assert!(matches!(volume.read_at(&mut [0; 4096], 4096), Err(Error::Lost { .. })));
    volume.write_at(&[2; 1024], 4096).unwrap();
    assert_eq!(durable(&disk, 4096, 1024), [2; 1024]);
    assert_eq!(volume.info().unwrap().lost_blocks, 1);
    volume.write_at(&[3; 4096], 4096).unwrap();
    assert_eq!(durable(&disk, 4096, 4096), [3; 4096]);
    until_empty(&volume);
    assert_eq!(durable(&disk, 0, 4096), [1; 4096]);
}

#[test]
fn a_cleaner_empties_the_pool_beside_writers() {
    let dir = Dir::new("cleaner");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_mode(&pool, &disk, Mode::WriteBack);
    volume.write_at(&[1; 512 << 10], 0).unwrap();
    let written = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = written.fetch_add(1, Ordering::Relaxed) + 1;
                // Blocks that are not cached, and now and then one that was.
                let offset = (1 << 20) + n % 100 * 4096;
                volume.write_at(&[n as u8; 4096], offset).unwrap();
                if n.is_multiple_of(50) {
                    volume.write_at(&[n as u8; 512], n % 64 * 4096).unwrap();
                }
            }
        });
        let writes = |more: u64| {
            let all = written.load(Ordering::Relaxed) + more;
            until("it writes", || written.load(Ordering::Relaxed) >= all);
        };
        writes(10);
        set(&volume, Mode::Cleaner);
        writes(60);
        until_empty(&volume);
    });
    let before = volume.info().unwrap().bypasses;
    volume.write_at(&[9; 4096], 3 << 20).unwrap();
    let info = volume.info().unwrap();
    assert_eq!((info.bypasses - before, info.flush_owed), (1, true));
    volume.flush().unwrap();
    assert_eq!(durable(&disk, 3 << 20, 4096), [9; 4096]);
    until_empty(&volume);
    let now = read(&volume, 0, SIZE);
    assert!(disk.state().now == now, "the origin alone is not all of it");
    assert_sound(&pool);
    disk.assert_unmet();
}
