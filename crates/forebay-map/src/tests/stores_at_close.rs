// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a store that a thread has completed while its file is closed is in the file.  Method: the
//! kernel stores (read(2)), since it reports a store that it cannot make, where a thread would get a
//! signal.  Stores come while the close waits for the file's disk, and all the time.

use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use super::several::{cache, in_time, word};
use super::*;

const ONE: u64 = SEGMENT as u64;

/// Stores numbers, as long as the kernel can make the stores.
pub(super) struct Stores(File);

impl Stores {
    pub fn new() -> Stores {
        Stores(memfd_create("numbers", MemfdFlags::CLOEXEC).expect("memfd").into())
    }

    /// Whether the store was made.
    pub fn store(&self, file: &MapFile, at: u64, number: u64) -> bool {
        self.0.write_all_at(&number.to_ne_bytes(), 0).expect("written");
        let to = &mut file.own_bytes()[at as usize..at as usize + 8];
        matches!(self.0.read_at(to, 0), Ok(8))
    }
}

/// While the close waits for the disk, one segment is scanned and the other one is watched.
fn during_a_write_back(features: &Features) -> Result<(), String> {
    let machine = Machine::new(2, &[2 * ONE], []);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let how = Options { keep_looking: 0, ..options(features) };
    let cache = Cache::new(store, how).expect("a cache");
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    file.store(ONE, &[1]);
    for _ in 0..3 {
        file.sync(0, u64::MAX).expect("a sync");
        cache.round().expect("a round");
    }
    assert_eq!(file.counts().watched, 1);
    file.store(0, &[1]);
    // Its blocks and its mark are durable, so the close waits for its write-back.
    file.sync(0, u64::MAX).expect("a sync");
    machine.stall.store(true, Ordering::SeqCst);
    let (stores, at) = (Stores::new(), [7 * PAGE as u64, ONE + 7 * PAGE as u64]);
    let stored = std::thread::scope(|s| {
        let close = s.spawn(|| file.end());
        while !machine.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut byte = [0];
        file.load(0, &mut byte);
        file.load(ONE, &mut byte);
        assert_eq!(byte, [1], "loads go on");
        let stored = at.map(|at| stores.store(&file, at, 5));
        machine.stall.store(false, Ordering::SeqCst);
        close.join().expect("closed").expect("closed");
        stored
    });
    let content = machine.content(0);
    assert_eq!((content[0], content[SEGMENT]), (1, 1));
    for (at, stored) in at.into_iter().zip(stored) {
        if stored && word(&content, at) != 5 {
            return Err(format!("a store at {at} is lost"));
        }
    }
    Ok(())
}

/// A thread stores all the time, and the file has the last number.
fn all_the_time(features: &Features, rounds: usize) -> Result<(), String> {
    for round in 0..rounds {
        let machine = Machine::new(2, &[2 * ONE], []);
        let cache = cache(&machine, features);
        let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
        let (stores, begun) = (Stores::new(), AtomicBool::new(false));
        let at = |n: u64| n % 2 * ONE + 9 * PAGE as u64;
        let last = std::thread::scope(|s| {
            let thread = s.spawn(|| {
                let mut n = 0;
                while stores.store(&file, at(n + 1), n + 1) {
                    n += 1;
                    begun.store(n > 4, Ordering::SeqCst);
                }
                n
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(100 * round as u64));
            file.end().expect("closed");
            thread.join().expect("ended")
        });
        let content = machine.content(0);
        for n in [last - 1, last] {
            if word(&content, at(n)) < n {
                return Err(format!("{} is there, and {n} was stored", word(&content, at(n))));
            }
        }
    }
    Ok(())
}

#[test]
fn stores_during_a_close_are_kept() {
    let _alone = alone();
    let Some(features) = has("stores_during_a_close_are_kept") else { return };
    for moves in [false, true] {
        let features = Features { moves: features.moves && moves, ..features.clone() };
        in_time("write-back", || during_a_write_back(&features)).expect("each store is kept");
        in_time("all the time", || all_the_time(&features, 20)).expect("each store is kept");
    }
    plant(Some(Planted::NotWithdrawn));
    let found = in_time("planted", || during_a_write_back(&features));
    plant(None);
    println!("{}", found.expect_err("the planted bug was not found"));
}
