// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a failed flush is told to whoever flushes all that it may have lost, and then to nobody
//! again; and to tell it hides nothing that was acknowledged later.
//!
//! Method: loom runs each scenario in all executions with at most so many preemptions.  Then one
//! step is left out, swapped or weakened at a time, and some scenario must fail.

mod harness;

use forebay_loom_models::gate::{Answer, Gate, Mutation};
use loom::sync::Arc;
use loom::thread::{spawn, JoinHandle};

use harness::Scenario;

const PREEMPTIONS: usize = 2;

fn failing(gate: &Arc<Gate>) -> JoinHandle<()> {
    let gate = Arc::clone(gate);
    spawn(move || gate.fails())
}

/// A client flushes beside the flush that fails, and again after it.
fn told_once(mutation: Mutation) {
    let gate = Arc::new(Gate::new(mutation));
    let failing = failing(&gate);
    let ticket = gate.ticket();
    let first = gate.begin(&ticket);
    failing.join().unwrap();
    let first = if first == Answer::Waits { gate.begin(&ticket) } else { first };
    assert_eq!(first, Answer::Fails, "it is told");
    assert_eq!(gate.begin(&gate.ticket()), Answer::Flushes, "it is told once");
}

/// A write past the cache ends beside that, after the client has begun or before.
fn later_is_told(mutation: Mutation) {
    let gate = Arc::new(Gate::new(mutation));
    let failing = failing(&gate);
    let writer = {
        let gate = Arc::clone(&gate);
        spawn(move || gate.past())
    };
    let ticket = gate.ticket();
    let first = gate.begin(&ticket);
    let acknowledged = writer.join().unwrap();
    failing.join().unwrap();
    if first == Answer::Waits {
        assert_eq!(gate.begin(&ticket), Answer::Fails, "it is told");
    }
    let second = gate.begin(&gate.ticket());
    if acknowledged && !ticket.covers_past() {
        assert_eq!(second, Answer::Fails, "what was acknowledged later is told");
    }
}

const SCENARIOS: &[Scenario<Mutation>] =
    &[("told once", told_once), ("later is told", later_is_told)];

#[test]
fn each_failure_is_told_once() {
    harness::holds(Mutation::None, SCENARIOS, PREEMPTIONS);
}

#[test]
fn every_mutation_is_caught() {
    use Mutation::*;
    let mutations = [
        ToldWhileUnknown,
        UnknownAfterLost,
        EndedBeforeLost,
        LostNotAcquired,
        TellsForLater,
        LaterUnseen,
    ];
    harness::catches(&mutations, SCENARIOS, PREEMPTIONS);
}
