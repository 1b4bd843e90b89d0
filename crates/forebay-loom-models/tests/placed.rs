// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a static volume is
//! clean only if the origin has what was written before it was asked, and no page is left
//! without its bit.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step is left out, swapped or weakened at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::placed::{Mutation, Placed};
use loom::sync::Arc;

use harness::Scenario;

const PREEMPTIONS: usize = 3;

fn beside(mutation: Mutation, rounds: fn(&Placed), this: fn(&Placed) -> u64) {
    let placed = Arc::new(Placed::new(mutation));
    let thread = {
        let placed = Arc::clone(&placed);
        loom::thread::spawn(move || rounds(&placed))
    };
    let last = this(&placed);
    thread.join().unwrap();
    placed.judge_at_rest(last);
}

fn write_and_ask(placed: &Placed) -> u64 {
    let last = u64::from(placed.write(1));
    placed.judge(last);
    last
}

fn asked_beside_a_round(mutation: Mutation) {
    beside(mutation, |p| p.round(false), write_and_ask);
}

fn asked_beside_a_round_that_fails(mutation: Mutation) {
    beside(mutation, |p| p.round(true), write_and_ask);
}

fn written_again(mutation: Mutation) {
    let this = |p: &Placed| {
        let first = u64::from(p.write(1));
        let last = if p.write(2) { 2 } else { first };
        p.judge(last);
        last
    };
    beside(mutation, |p| p.round(false), this);
}

const SCENARIOS: &[Scenario<Mutation>] = &[
    ("asked beside a round", asked_beside_a_round),
    ("asked beside a round that fails", asked_beside_a_round_that_fails),
    ("written again", written_again),
];

#[test]
fn what_is_clean_is_on_the_origin() {
    harness::holds(Mutation::None, SCENARIOS, PREEMPTIONS);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        PhaseIgnored,
        PhaseRelaxed,
        CollectsIgnored,
        CollectsEarly,
        AskNoBarrier,
        CollectsBeforePhase,
        BitsBeforeCollects,
        ClearRelaxed,
        ClearNoBarrier,
        SetNoBarrier,
        IdleEarly,
        IdleBeforeBack,
        IdleRelaxed,
        ReleaseNewer,
    ];
    harness::catches(&mutations, SCENARIOS, PREEMPTIONS);
}
