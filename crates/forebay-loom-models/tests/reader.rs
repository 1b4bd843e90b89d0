// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a reader
//! of block 1 gets one of its values that was current during the read, whole;
//! never another block's bytes, never the origin while the pool has it newer,
//! and a second read nothing older than the first.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step of the protocol is left out at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::reader::{Mutation, Pool, Read, NO_PAGE};
use loom::sync::Arc;

use harness::Scenario;

const BLOCK: u64 = 1;
const OTHER: u64 = 2;
const OLD: u64 = 100;
const NEW: u64 = 200;
const FOREIGN: u64 = 999;
const ATTEMPTS: u32 = 2;

const PREEMPTIONS: usize = 2;

/// Its name, what is there before, and what a writer does while the reader reads.
type Beside = (&'static str, fn(&Pool), fn(&Pool));

const BESIDE: [Beside; 5] = [
    (
        "replaced, and its old page taken by another block",
        |p| p.write(BLOCK, 1, OLD, NO_PAGE),
        |p| {
            p.write(BLOCK, 2, NEW, 1);
            p.open_chunk(1);
            p.write(OTHER, 1, FOREIGN, NO_PAGE);
        },
    ),
    (
        "destaged, and its page taken by another block",
        |p| p.write(BLOCK, 1, OLD, NO_PAGE),
        |p| {
            p.destage(1, OLD);
            p.open_chunk(1);
            p.write(OTHER, 1, FOREIGN, NO_PAGE);
        },
    ),
    (
        "replaced behind another block of its bucket",
        |p| {
            p.write(BLOCK, 1, OLD, NO_PAGE);
            p.write(OTHER, 3, FOREIGN, NO_PAGE);
        },
        |p| {
            p.write(BLOCK, 2, NEW, 1);
            p.open_chunk(1);
            p.write(OTHER, 1, FOREIGN, 3);
        },
    ),
    (
        "the page before it in its chain recycled into the front",
        |p| {
            p.write(BLOCK, 1, OLD, NO_PAGE);
            p.write(OTHER, 3, FOREIGN, NO_PAGE);
        },
        |p| {
            p.write(OTHER, 2, FOREIGN, 3);
            p.open_chunk(3);
            p.write(BLOCK, 3, NEW, 1);
        },
    ),
    (
        "destaged, then written again into the page it had",
        |p| p.write(BLOCK, 1, OLD, NO_PAGE),
        |p| {
            p.destage(1, OLD);
            p.open_chunk(1);
            p.write(BLOCK, 1, NEW, NO_PAGE);
        },
    ),
];

/// Reads that came out one after another are all allowed.
fn judge(scenario: &str, reads: &[Read]) {
    let mut newest = OLD;
    for read in reads {
        let value = match *read {
            Read::GaveUp => continue,
            Read::Cached(a, b) => {
                assert_eq!(a, b, "{scenario}: a torn copy");
                a
            }
            Read::Origin(value) => value,
        };
        assert!(value == OLD || value == NEW, "{scenario}: read {value}");
        assert!(value >= newest, "{scenario}: read {value} after {newest}");
        newest = value;
    }
}

fn run<const N: usize>(mutation: Mutation) {
    let (name, before, during) = BESIDE[N];
    let pool = Arc::new(Pool::new(mutation));
    before(&pool);
    let writer = {
        let pool = Arc::clone(&pool);
        loom::thread::spawn(move || during(&pool))
    };
    let reads = [pool.read(BLOCK, ATTEMPTS), pool.read(BLOCK, ATTEMPTS)];
    judge(name, &reads);
    writer.join().unwrap();
    // With all at rest the newest value is what there is.
    let last = pool.read(BLOCK, 1);
    assert_ne!(last, Read::GaveUp, "{name}: no answer at rest");
    judge(name, &[reads[0], reads[1], last]);
}

const SCENARIOS: [Scenario<Mutation>; 5] = [
    (BESIDE[0].0, run::<0>),
    (BESIDE[1].0, run::<1>),
    (BESIDE[2].0, run::<2>),
    (BESIDE[3].0, run::<3>),
    (BESIDE[4].0, run::<4>),
];

#[test]
fn every_execution_reads_a_current_value() {
    harness::holds(Mutation::None, &SCENARIOS, PREEMPTIONS);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        EpochNotChecked,
        NoReadFence,
        NoWriteFence,
        OpensRelaxed,
        EpochRelaxed,
        EpochNotMoved,
        OpensNotChecked,
        UnlinkThenLink,
        LinkBeforeData,
        DeleteBeforeOrigin,
    ];
    harness::catches(&mutations, &SCENARIOS, PREEMPTIONS);
}
