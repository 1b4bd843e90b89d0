// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process leaves a shared file while a thread of it stores.

use super::*;
use crate::tests::stores_at_close::Stores;

/// Another process syncs what the thread has stored, and the power is cut.
fn stores_of_one_that_leaves(features: &Features, rounds: u64) -> std::result::Result<(), String> {
    for round in 0..rounds {
        let machine = Machine::new(2, &[2 * ONE, 0], []);
        let world = World::new(&machine, features);
        let (a, b) = (world.process(), world.process());
        let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
        let (stores, begun) = (Stores::new(), AtomicBool::new(false));
        let at = |n: u64| n % 2 * ONE + 9 * PAGE as u64;
        let last = std::thread::scope(|s| {
            let thread = s.spawn(|| {
                let mut n = 0;
                while stores.store(&first, at(n + 1), n + 1) {
                    n += 1;
                    begun.store(n > 4, Ordering::SeqCst);
                }
                n
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(100 * round));
            first.end().expect("left");
            thread.join().expect("ended")
        });
        second.sync(0, u64::MAX).expect("a sync");
        let after = machine.cut(|| ()).machine(&mut Random(round), false, &[]);
        recover(&*after, open(&after)).expect("recovered");
        let content = after.content(0);
        for n in [last - 1, last] {
            if word(&content, at(n)) < n {
                return Err(format!("{} is there, and {n} was stored", word(&content, at(n))));
            }
        }
        second.close().expect("closed");
    }
    Ok(())
}

#[test]
fn stores_of_a_process_that_leaves_are_kept() {
    let _alone = alone();
    let Some(features) = has("stores_of_a_process_that_leaves_are_kept") else { return };
    in_time("leave", || stores_of_one_that_leaves(&features, 30)).expect("each store is kept");
    plant(Some(Planted::NotWithdrawn));
    let found = in_time("planted", || stores_of_one_that_leaves(&features, 1000));
    plant(None);
    println!("{}", found.expect_err("the planted bug was not found"));
}

/// A write of another thread is durable, or the process has left before.
#[test]
fn a_write_to_a_file_that_a_process_leaves_is_kept_or_refused() {
    let _alone = alone();
    let Some(features) = has("a_write_to_a_file_that_a_process_leaves_is_kept_or_refused") else {
        return;
    };
    in_time("write", || {
        for round in 0..30 {
            let machine = Machine::new(2, &[2 * ONE, 0], []);
            let world = World::new(&machine, &features);
            let (a, b) = (world.process(), world.process());
            let [first, second] = [&a, &b].map(|p| p.map(0, 2 * ONE).expect("open"));
            let begun = AtomicBool::new(false);
            let last = std::thread::scope(|s| {
                let thread = s.spawn(|| {
                    let mut n = 0u64;
                    while first.write(64, &(n + 1).to_ne_bytes()).is_ok() {
                        n += 1;
                        begun.store(true, Ordering::SeqCst);
                    }
                    n
                });
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_micros(50 * round));
                first.end().expect("left");
                thread.join().expect("ended")
            });
            second.sync(0, u64::MAX).expect("a sync");
            let after = machine.cut(|| ()).machine(&mut Random(round), false, &[]);
            recover(&*after, open(&after)).expect("recovered");
            assert!(word(&after.content(0), 64) >= last, "{last} was written");
            second.close().expect("closed");
        }
    });
}
