// SPDX-License-Identifier: MIT OR Apache-2.0
//! Volumes are added and removed while others are written, drained and examined.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use forebay::*;

const BLOCKS: u64 = 48;

/// Writes, reads back, and checks it all at the end.
fn write_some(volume: &Volume, seed: u64, writes: u64) {
    let mut counts = [0; BLOCKS as usize * 8];
    let mut rng = Rng::new(seed);
    for _ in 0..writes {
        let (at, n) = (rng.below(BLOCKS * 8), 1 + rng.below(20));
        let n = n.min(BLOCKS * 8 - at);
        if rng.below(6) == 0 {
            volume.write_zeroes(at * 512, n * 512).unwrap();
            (at..at + n).for_each(|p| counts[p as usize] = 0);
            continue;
        }
        let data: Vec<u8> = (at..at + n)
            .flat_map(|p| {
                // Never one that was there before.
                counts[p as usize] = 1 + rng.below(u64::MAX >> 12);
                sector(seed, p, counts[p as usize])
            })
            .collect();
        volume.write_at(&data, at * 512).unwrap();
    }
    let all = read(volume, 0, BLOCKS as usize * 4096);
    for (p, bytes) in all.chunks(512).enumerate() {
        assert_eq!(sector_count(bytes, seed, p as u64), counts[p], "volume {seed} sector {p}");
    }
}

#[test]
fn volumes_come_and_go_beside_others() {
    let dir = Dir::new("churn");
    let path = dir.pool(40);
    let max_age = Some(std::time::Duration::from_millis(2));
    let pool = Pool::open(&path, &PoolOptions { max_age, ..unthrottled() }).unwrap();
    let origin = || MemOrigin::new(BLOCKS as usize * 4096).unwrap();
    let steady: Vec<_> = (0..2).map(|i| attach(&pool, &format!("steady{i}"), &origin())).collect();
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers: Vec<_> = (1..)
            .zip(&steady)
            .map(|(seed, volume)| s.spawn(move || write_some(volume, seed, 6000)))
            .collect();
        // One in memory; one a file, which io_uring writes.
        let files = s.spawn(|| {
            let mut rounds = 0;
            while !end.load(Ordering::Relaxed) {
                let disk = dir.file("disk", BLOCKS * 4096);
                let new = NewVolume {
                    name: "file".into(),
                    origin: disk.clone(),
                    block_size: 0,
                    ..Default::default()
                };
                pool.volume_add(&new).unwrap();
                let volume = pool.attach("file", &AttachOptions::default()).unwrap();
                write_some(&volume, 20 + rounds % 5, 100);
                // In the middle of destage.
                volume.detach().unwrap();
                let volume = pool.attach("file", &AttachOptions::default()).unwrap();
                let all = read(&volume, 0, BLOCKS as usize * 4096);
                drain(&volume);
                volume.detach().unwrap();
                assert!(std::fs::read(&disk).unwrap() == all);
                pool.volume_remove("file", false).unwrap();
                std::fs::remove_file(&disk).unwrap();
                rounds += 1;
            }
            rounds
        });
        let comers: Vec<_> = (0..1u64)
            .map(|i| {
                let (pool, end, origin) = (&pool, &end, &origin);
                s.spawn(move || {
                    let mut rounds = 0;
                    while !end.load(Ordering::Relaxed) {
                        let (name, origin) = (format!("comer{i}"), origin());
                        let volume = attach(pool, &name, &origin);
                        write_some(&volume, 10 + rounds % 7, 60);
                        volume.detach().unwrap();
                        let volume = reattach(pool, &name, &origin);
                        if rounds % 2 == 0 {
                            let all = read(&volume, 0, BLOCKS as usize * 4096);
                            drain(&volume);
                            assert!(origin.content() == all);
                        }
                        volume.detach().unwrap();
                        pool.volume_remove(&name, true).unwrap();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let onlooker = s.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let status = pool.status();
                assert!(status.pages_cached <= status.pages);
                let report = pool.check(false).unwrap();
                assert!(report.invariant.is_none(), "{report}");
                // Volumes that go away while they are drained end the drain.
                let _ = pool.drain(None, &mut |_, _| ControlFlow::Continue(()));
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        end.store(true, Ordering::Relaxed);
        for comer in comers {
            assert!(comer.join().unwrap() > 0, "nobody came");
        }
        assert!(files.join().unwrap() > 0, "no file came");
        onlooker.join().unwrap();
    });
    drop(steady);
    assert_sound(&pool);
    assert_eq!(pool.volumes().len(), 2);
    pool.close().unwrap();
    assert!(open(&path).recovery().clean);
}
