// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a reader
//! of block 1 gets one of its values that was current during the read, whole;
//! never another block's bytes, never the origin while the pool has it newer,
//! and a second read nothing older than the first.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step of the protocol is left out at a time, and some
//! scenario must fail.

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use forebay_reader_model::{Mutation, Pool, Read, NO_PAGE};
use loom::sync::Arc;

const BLOCK: u64 = 1;
const OTHER: u64 = 2;
const OLD: u64 = 100;
const NEW: u64 = 200;
const FOREIGN: u64 = 999;
const ATTEMPTS: u32 = 2;

type Scenario = (&'static str, fn(&Pool), fn(&Pool));

/// What is there before, and what a writer does while the reader reads.
const SCENARIOS: &[Scenario] = &[
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

/// 2 takes seconds, 3 minutes.
fn preemptions() -> usize {
    std::env::var("READER_PREEMPTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

fn run(mutation: Mutation, &(name, before, during): &Scenario, executions: &'static AtomicU64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions());
    model.check(move || {
        executions.fetch_add(1, Ordering::Relaxed);
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
    });
}

#[test]
fn every_execution_reads_a_current_value() {
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    for scenario in SCENARIOS {
        EXECUTIONS.store(0, Ordering::Relaxed);
        run(Mutation::None, scenario, &EXECUTIONS);
        println!("{}: {} executions", scenario.0, EXECUTIONS.load(Ordering::Relaxed));
    }
}

/// Each step of the protocol is needed: without it some scenario fails.
#[test]
fn every_mutation_is_caught() {
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    static LAST_PANIC: Mutex<String> = Mutex::new(String::new());
    let mutations = [
        Mutation::EpochNotChecked,
        Mutation::NoReadFence,
        Mutation::NoWriteFence,
        Mutation::OpensRelaxed,
        Mutation::EpochRelaxed,
        Mutation::EpochNotMoved,
        Mutation::OpensNotChecked,
        Mutation::UnlinkThenLink,
        Mutation::LinkBeforeData,
        Mutation::DeleteBeforeOrigin,
    ];
    let mut missed = Vec::new();
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("").replace('\n', " ");
        *LAST_PANIC.lock().unwrap() = text;
    }));
    let mut lines = Vec::new();
    for mutation in mutations {
        EXECUTIONS.store(0, Ordering::Relaxed);
        let caught = SCENARIOS
            .iter()
            .any(|scenario| panic::catch_unwind(|| run(mutation, scenario, &EXECUTIONS)).is_err());
        if !caught {
            missed.push(mutation);
        }
        lines.push(format!(
            "{mutation:?}: {} after {} executions: {}",
            if caught { "caught" } else { "MISSED" },
            EXECUTIONS.load(Ordering::Relaxed),
            LAST_PANIC.lock().unwrap(),
        ));
    }
    panic::set_hook(quiet);
    println!("{}", lines.join("\n"));
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
