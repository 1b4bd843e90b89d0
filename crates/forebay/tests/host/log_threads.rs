// SPDX-License-Identifier: MIT OR Apache-2.0
//! One log, many threads: none is kept waiting by the others for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;

use crate::common::*;
use forebay::*;

/// However the scope is left, its threads end.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An append that asks for a generation has one begun, by whoever comes first, and does not
/// ask again each time that others have overtaken it: those who append all the time may fill
/// the pool before it has its turn.
#[test]
fn who_begins_a_generation_is_not_overtaken_for_ever() {
    const OTHERS: usize = 3;
    let dir = Dir::new("log-overtaken");
    let pool = open(&dir.pool(800));
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    let first = log.append(1, Generation::New, &[b"first"]).unwrap();
    let (stop, start) = (AtomicBool::new(false), Barrier::new(OTHERS + 1));
    let (asked, last) = std::thread::scope(|s| {
        for _ in 0..OTHERS {
            let (log, stop, start) = (log.clone(), &stop, &start);
            s.spawn(move || {
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    match log.try_append(1, Generation::Same, &[&[7; 16 << 10]]) {
                        Err(Error::LogFull { .. }) => break,
                        appended => drop(appended.unwrap()),
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        start.wait();
        // Until the pool is full.
        let mut last = first;
        for asked in 1.. {
            let name = match log.try_append(1, Generation::New, &[b"next"]) {
                Err(Error::LogFull { .. }) => return (asked, last),
                name => name.unwrap(),
            };
            assert!(name.generation > last.generation, "{name} after {last}");
            last = name;
        }
        unreachable!()
    });
    let begun = last.generation - first.generation;
    assert!(begun > 0, "{} appends of others came first", log.info().unwrap().appends);
    assert!(begun <= asked, "{begun} generations begun, {asked} asked for");
}
