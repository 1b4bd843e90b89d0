// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a round of
//! destage passes no number that it has not seen published, then or later; and of
//! two versions of a block the newer has the higher number.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step is left out, swapped or weakened at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::floor::{Mutation, Pool, Round};
use loom::sync::Arc;

use harness::Scenario;

const PREEMPTIONS: usize = 2;

fn judge(round: &Round, written: &[u64]) {
    for seq in written {
        assert!(
            *seq > round.cut || round.seen.contains(seq),
            "the cut {} passes number {seq}, which was not seen",
            round.cut
        );
    }
}

/// Writers, each with so many writes, concurrent with a round of destage; then one more write.
fn beside(mutation: Mutation, before: usize, writers: &[usize]) {
    let pool = Arc::new(Pool::new(mutation));
    let mut written: Vec<u64> = (0..before).filter_map(|_| pool.write(0, false)).collect();
    let threads: Vec<_> = writers
        .iter()
        .enumerate()
        .map(|(cpu, &n)| {
            let pool = Arc::clone(&pool);
            loom::thread::spawn(move || {
                (0..n).filter_map(|_| pool.write(cpu, false)).collect::<Vec<_>>()
            })
        })
        .collect();
    let round = pool.collect();
    for thread in threads {
        written.extend(thread.join().unwrap());
    }
    written.extend(pool.write(0, false));
    judge(&round, &written);
}

/// Two writers of one block, each after a write elsewhere.
fn one_block(mutation: Mutation) {
    let pool = Arc::new(Pool::new(mutation));
    pool.write(0, false);
    let other = {
        let pool = Arc::clone(&pool);
        loom::thread::spawn(move || pool.write(1, true))
    };
    pool.write(0, true);
    other.join().unwrap();
    pool.write(0, true);
}

const SCENARIOS: &[Scenario<Mutation>] = &[
    ("the first write", |m| beside(m, 0, &[1])),
    ("after a write, two more in its slot", |m| beside(m, 1, &[2])),
    ("one block", one_block),
];

/// Three threads: so many executions that one preemption has to do.
const THREE: &[Scenario<Mutation>] = &[("after a write, two writers", |m| beside(m, 1, &[1, 1]))];

#[test]
fn no_cut_passes_what_is_not_published() {
    harness::holds(Mutation::None, SCENARIOS, PREEMPTIONS);
    harness::holds(Mutation::None, THREE, 1);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        FloorAfterCounter,
        CounterNotReleased,
        CounterNotAcquired,
        FloorsBeforeCounter,
        FloorBeforePublish,
        FloorBeforeFill,
        FloorNotReleased,
        FloorNotAcquired,
        SlotNotReleased,
        SlotNotAcquired,
        IdleNotRetired,
        RetiredAfterRelease,
        BusyIgnored,
        UnsealedIgnored,
        NotFresh,
        SeqMaxNotSet,
    ];
    harness::catches(&mutations, SCENARIOS, PREEMPTIONS);
}
