// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared parts of the models' tests: all executions of a scenario, and the proof that each
//! mutation makes some scenario fail.

use std::fmt::Debug;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Preemptions of an execution at most, unless MODEL_PREEMPTIONS says otherwise.
fn preemptions(usual: usize) -> usize {
    std::env::var("MODEL_PREEMPTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// One test at a time: the hook that a panic calls is the process's.
static SERIAL: Mutex<()> = Mutex::new(());

/// A scenario: its name, and one execution of it with a mutation.
pub type Scenario<M> = (&'static str, fn(M));

/// Runs the scenario in all executions with at most so many preemptions; returns
/// how many there were.
pub fn run<M: Copy + Send + Sync + 'static>(mutation: M, scenario: fn(M), usual: usize) -> u64 {
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let count = executions.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions(usual));
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario(mutation);
    });
    executions.load(Ordering::Relaxed)
}

/// Every scenario holds in every execution.
pub fn holds<M: Copy + Send + Sync + 'static>(none: M, scenarios: &[Scenario<M>], usual: usize) {
    let _serial = SERIAL.lock().unwrap_or_else(|e| e.into_inner());
    for (name, scenario) in scenarios {
        println!("{name}: {} executions", run(none, *scenario, usual));
    }
}

/// Each step of the protocol is needed: without it some scenario fails.
pub fn catches<M: Copy + Debug + Send + Sync + panic::UnwindSafe + 'static>(
    mutations: &[M],
    scenarios: &[Scenario<M>],
    usual: usize,
) {
    static LAST_PANIC: Mutex<String> = Mutex::new(String::new());
    let _serial = SERIAL.lock().unwrap_or_else(|e| e.into_inner());
    loom::model(|| {}); // its generators set a hook once, which is to stay below ours
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("").replace('\n', " ");
        *LAST_PANIC.lock().unwrap() = text;
    }));
    let mut missed = Vec::new();
    let mut lines = Vec::new();
    for &mutation in mutations {
        let caught = scenarios.iter().find(|(_, scenario)| {
            let scenario = *scenario;
            panic::catch_unwind(move || run(mutation, scenario, usual)).is_err()
        });
        match caught {
            Some((name, _)) => {
                lines.push(format!("{mutation:?}: caught, {name}: {}", LAST_PANIC.lock().unwrap()));
            }
            None => missed.push(mutation),
        }
    }
    panic::set_hook(quiet);
    println!("{}", lines.join("\n"));
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
