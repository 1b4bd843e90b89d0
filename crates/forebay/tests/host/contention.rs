// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many threads on few blocks and few slots.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use forebay::*;

const BLOCKS: u64 = 12;

/// Eight threads, each with its own sector of every block: each partial write
/// merges with what the others wrote, while destage takes pages away below
/// them and a reader looks on.
fn partial_writes_merge(slots: u32, chunks: u64, rounds: u64) {
    let dir = Dir::new("contention");
    let path = dir.pool(chunks);
    // Destage all the time.
    let max_age = Some(Duration::from_millis(1));
    let options = PoolOptions { slots, max_age, ..unthrottled() };
    let pool = Pool::open(&path, &options).unwrap();
    let origin = MemOrigin::new(BLOCKS as usize * 4096).unwrap();
    let volume = attach(&pool, "v", &origin);
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..8)
            .map(|t| {
                let volume = volume.clone();
                s.spawn(move || {
                    let mut rng = Rng::new(t + 1);
                    let mut counts = [0; BLOCKS as usize];
                    for _ in 0..rounds {
                        let b = rng.below(BLOCKS);
                        counts[b as usize] += 1;
                        let place = b * 8 + t;
                        let data = sector(t, place, counts[b as usize]);
                        volume.write_at(&data, place * 512).unwrap();
                        // Read your own write.
                        let got = read(&volume, place * 512, 512);
                        assert_eq!(sector_count(&got, t, place), counts[b as usize]);
                    }
                    counts
                })
            })
            .collect();
        let reader = s.spawn(|| {
            let mut seen = [0; BLOCKS as usize * 8];
            while !end.load(Ordering::Relaxed) {
                let all = read(&volume, 0, BLOCKS as usize * 4096);
                for (place, bytes) in all.chunks(512).enumerate() {
                    let count = sector_count(bytes, place as u64 % 8, place as u64);
                    assert!(count >= seen[place], "sector {place} went back in time");
                    seen[place] = count;
                }
            }
        });
        let counts: Vec<_> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        end.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        drain(&volume);
        for all in [read(&volume, 0, BLOCKS as usize * 4096), origin.content()] {
            for (place, bytes) in all.chunks(512).enumerate() {
                let (b, t) = (place / 8, place % 8);
                assert_eq!(sector_count(bytes, t as u64, place as u64), counts[t][b]);
            }
        }
    });
    let status = pool.status();
    assert_eq!(status.counters.writes, 8 * rounds);
    assert!(status.counters.merges > 0, "nothing was merged");
    assert!(status.volumes[0].pages_destaged > 0, "nothing was destaged");
    volume.detach().unwrap();
    assert_sound(&pool);
}

#[test]
fn partial_writes_merge_under_contention() {
    partial_writes_merge(4, 16, 1500);
}

#[test]
fn one_slot_for_eight_threads() {
    partial_writes_merge(1, 8, 800);
}

/// Requests of many pages take their locks in batches: no deadlock, and each
/// sector is from one of the writers.
#[test]
fn large_writes_over_each_other() {
    let dir = Dir::new("large");
    let pool = open(&dir.pool(40));
    let origin = MemOrigin::new(64 * 4096).unwrap();
    let volume = attach(&pool, "v", &origin);
    std::thread::scope(|s| {
        for t in 1..5u64 {
            let volume = &volume;
            s.spawn(move || {
                let mut rng = Rng::new(t);
                for count in 1..120 {
                    let (at, n) = (rng.below(400), 1 + rng.below(112));
                    let data: Vec<u8> = (at..at + n).flat_map(|p| sector(t, p, count)).collect();
                    volume.write_at(&data, at * 512).unwrap();
                }
            });
        }
    });
    let check = |all: &[u8]| {
        for (place, bytes) in all.chunks(512).enumerate() {
            let writer = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(writer < 5);
            sector_count(bytes, writer, place as u64);
        }
    };
    let cached = read(&volume, 0, 64 * 4096);
    check(&cached);
    drain(&volume);
    assert!(origin.content() == cached);
    volume.detach().unwrap();
    assert_sound(&pool);
}
