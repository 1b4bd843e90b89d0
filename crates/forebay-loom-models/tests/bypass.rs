// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever the interleaving and whatever C11 lets a load return, a write past
//! the cache and one through it never both proceed with one block, nor do two past
//! it, and what is written last is what stays.
//!
//! Method: loom runs each scenario in all executions with at most so many
//! preemptions.  Then one step is left out, swapped or weakened at a time, and some
//! scenario must fail.

mod harness;

use forebay_loom_models::bypass::{Mutation, Volume};
use loom::sync::Arc;

use harness::Scenario;

const PREEMPTIONS: usize = 2;

fn beside(
    mutation: Mutation,
    before: fn(&Volume),
    other: fn(&Volume) -> bool,
    this: fn(&Volume) -> bool,
) -> (Arc<Volume>, bool, bool) {
    let v = Arc::new(Volume::new(mutation));
    before(&v);
    let thread = {
        let v = Arc::clone(&v);
        loom::thread::spawn(move || other(&v))
    };
    let this = this(&v);
    (v, thread.join().unwrap(), this)
}

fn through_and_past(mutation: Mutation) {
    beside(mutation, |_| {}, |v| v.through(1), |v| v.past(2));
}

fn two_past(mutation: Mutation) {
    beside(mutation, |_| {}, |v| v.past(1), |v| v.past(2));
}

/// A cached page goes to the origin, and a write past the cache comes after it.
fn destaged_and_past(mutation: Mutation) {
    let before = |v: &Volume| assert!(v.through(1));
    let (v, _, past) = beside(mutation, before, Volume::destage, |v| v.past(2));
    assert_eq!(v.read(), if past { 2 } else { 1 }, "an older value is back");
}

/// A write through the cache, destaged at once, concurrent with two past it.
fn through_destaged_and_past(mutation: Mutation) {
    let other = |v: &Volume| v.through(2) && v.destage();
    beside(mutation, |_| {}, other, |v| v.past(1) && v.past(1));
}

const SCENARIOS: &[Scenario<Mutation>] = &[
    ("through and past", through_and_past),
    ("two past", two_past),
    ("destaged and past", destaged_and_past),
    ("through, destaged, and past", through_destaged_and_past),
];

#[test]
fn never_both_proceed() {
    harness::holds(Mutation::None, SCENARIOS, PREEMPTIONS);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        RangeAfterBucket,
        BucketIgnored,
        BucketNotTaken,
        CachedIgnored,
        RangeGoneEarly,
        ClaimNotLocked,
        OthersIgnored,
        LookBeforeBucket,
        RangesIgnored,
        BucketNotAcquired,
        BucketNotReleased,
        ReleasedBeforeOrigin,
    ];
    harness::catches(&mutations, SCENARIOS, PREEMPTIONS);
}
