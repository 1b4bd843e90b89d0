// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, no entry of a log is
//! stored before all of earlier generations are durable, each counts all of them, none is
//! stored in a period that has ended, and none is of a txg that the record has no room for.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step is left out, swapped or weakened at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::generation::{Log, Mutation};
use loom::sync::Arc;

use harness::Scenario;

const PREEMPTIONS: usize = 2;

fn beside(mutation: Mutation, other: fn(&Log), this: fn(&Log)) -> Arc<Log> {
    let log = Arc::new(Log::new(mutation));
    let thread = {
        let log = Arc::clone(&log);
        loom::thread::spawn(move || other(&log))
    };
    this(&log);
    thread.join().unwrap();
    log
}

fn join(log: &Log, slot: usize) {
    log.append(slot, false);
}

fn begin(log: &Log, slot: usize) {
    log.append(slot, true);
}

/// An append to the present generation, concurrent with one that begins the next, and one after
/// both.
fn joins_and_begins(mutation: Mutation) {
    let log = beside(mutation, |l| join(l, 1), |l| begin(l, 0));
    log.append(0, true);
    log.judge();
}

fn two_begin(mutation: Mutation) {
    let log = beside(mutation, |l| begin(l, 1), |l| begin(l, 0));
    log.append(0, true);
    log.judge();
}

/// Two of one generation, then another that begins the next.
fn several(mutation: Mutation) {
    let other = |l: &Log| {
        l.append(1, false);
        l.append(1, true);
    };
    let log = beside(mutation, other, |l| join(l, 0));
    log.append(0, true);
    log.judge();
}

/// The log ends, and begins anew, while entries are appended.
fn ends(mutation: Mutation) {
    let other = |l: &Log| {
        if l.destroy() {
            l.create();
        }
    };
    beside(mutation, other, |l| join(l, 0)).judge();
    beside(mutation, other, |l| begin(l, 0)).judge();
}

fn synced(mutation: Mutation) {
    beside(mutation, Log::sync, |l| join(l, 0)).judge();
}

const SCENARIOS: &[Scenario<Mutation>] = &[
    ("joins, and begins", joins_and_begins),
    ("two begin", two_begin),
    ("several", several),
    ("ends", ends),
    ("synced", synced),
];

#[test]
fn generations_are_whole() {
    harness::holds(Mutation::None, SCENARIOS, PREEMPTIONS);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        GateBeforeFlight,
        EnterNoBarrier,
        GateIgnored,
        SlotsBeforeGate,
        BeginNoBarrier,
        NotWaited,
        GateClearedEarly,
        LetGoEarly,
        LetGoRelaxed,
        LookRelaxed,
        NotLocked,
        EndNotWaited,
        EndNotLocked,
        SyncedBeforeRecord,
        OrderBeforeFlight,
    ];
    harness::catches(&mutations, SCENARIOS, PREEMPTIONS);
}
