// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a static volume is
//! clean only if the origin has what was written before it was asked, and no page is left
//! without its bit.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step is left out, swapped or weakened at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::static_clean::{Mutation, StaticVolume};
use loom::sync::Arc;

use harness::Scenario;

const PREEMPTIONS: usize = 3;

fn beside(mutation: Mutation, rounds: fn(&StaticVolume), this: fn(&StaticVolume) -> u64) {
    let volume = Arc::new(StaticVolume::new(mutation));
    let thread = {
        let volume = Arc::clone(&volume);
        loom::thread::spawn(move || rounds(&volume))
    };
    let last = this(&volume);
    thread.join().unwrap();
    volume.judge_at_rest(last);
}

fn write_and_ask(volume: &StaticVolume) -> u64 {
    let last = u64::from(volume.write(1));
    volume.judge(last);
    last
}

fn asked_beside_a_round(mutation: Mutation) {
    beside(mutation, |p| p.round(false), write_and_ask);
}

fn asked_beside_a_round_that_fails(mutation: Mutation) {
    beside(mutation, |p| p.round(true), write_and_ask);
}

fn written_again(mutation: Mutation) {
    let this = |p: &StaticVolume| {
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
