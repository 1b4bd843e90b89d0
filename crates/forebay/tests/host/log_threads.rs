// SPDX-License-Identifier: MIT OR Apache-2.0
//! One log, many threads: none is kept waiting by the others for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;

use crate::common::*;
use forebay::*;

/// An append that asks for a generation has one begun, by whoever comes first, and does not
/// ask again each time that others have overtaken it: those who append all the time may fill
/// the pool before it has its turn.
///
/// They append small entries, so that a full pool is far more of them than come while a busy
/// machine gives the one who asks no time at all.
#[test]
fn who_begins_a_generation_is_not_overtaken_for_ever() {
    const OTHERS: usize = 3;
    const ASKED: u64 = 8;
    let dir = Dir::new("log-overtaken");
    let pool = open(&dir.pool(4000));
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    let first = log.append(1, Generation::New, &[b"first"]).unwrap();
    let (stop, start) = (AtomicBool::new(false), Barrier::new(OTHERS + 1));
    let last = std::thread::scope(|s| {
        for _ in 0..OTHERS {
            let (log, stop, start) = (log.clone(), &stop, &start);
            s.spawn(move || {
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    match log.try_append(1, Generation::Same, &[&[7; 64]]) {
                        Err(Error::LogFull { .. }) => break,
                        appended => drop(appended.unwrap()),
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        start.wait();
        let mut last = first;
        for _ in 0..ASKED {
            let name = match log.try_append(1, Generation::New, &[b"next"]) {
                Err(Error::LogFull { .. }) => return Err(last),
                name => name.unwrap(),
            };
            assert!(name.generation > last.generation, "{name} after {last}");
            last = name;
        }
        Ok(last)
    });
    let appends = log.info().unwrap().appends;
    let last = last.unwrap_or_else(|last| {
        panic!("{appends} appends of others came first, {last} was the last")
    });
    let begun = last.generation - first.generation;
    assert!(begun <= ASKED, "{begun} generations begun, {ASKED} asked for");
}
