// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plants each of the engine's deliberate mistakes (core/medium/planted.h) in turn and
//! lets the explorer, the simulation, the flips and the damages look for it.  One that none
//! of them finds is a bug in them.
//!
//! Each hunt is a process of its own, since a mistake may show as a failed
//! assertion or as an endless loop in the engine, and the switch is one for the
//! process.

use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::explore::{explore, Bounds};
use crate::script::{random, small};
use crate::static_workloads;
use crate::{
    beyond, damage, drains, dst, flips, gate, held, hooks, isolation, keeping, kept_cases, logs,
    marks, refused_cases, requests, slow_origin, static_cases,
};

/// A case of its own: its name, and what is to hold.
type Directed = (&'static str, fn() -> Result<(), String>);

#[derive(Clone, Debug, Serialize)]
pub struct Hunt {
    pub bug: String,
    pub what: String,
    /// The workload or seed that showed it, and how; none if it got away.
    pub caught_by: Option<String>,
    pub evidence: String,
    pub seconds: f64,
}

/// Hunts one bug in this process, in rounds of growing thoroughness: the
/// explorer's small workloads, the simulation, the flips, the damages, the explorer's
/// random workloads.  Returns what caught it.
pub fn hunt(id: u32, limit: Duration) -> Option<(String, String)> {
    forebay_engine::planted::plant(id);
    hooks::watchdog(Duration::from_secs(10));
    let start = Instant::now();
    let mut seeds = 1..;
    let first: [Directed; 15] = [
        ("a drain beside a flush", drains::told_once),
        ("a drain to another origin", drains::another_origin),
        ("the gate", gate::all),
        ("clients' requests", requests::quick),
        ("isolation", isolation::quick),
        ("nothing is kept in a drain", kept_cases::drain),
        ("pages that are kept", keeping::all),
        ("what is in the way of pages that are kept", kept_cases::in_the_way),
        ("a drain before a slow origin", slow_origin::drains_end),
        ("what an origin refuses", refused_cases::all),
        ("lost blocks are carried", held::all),
        ("a line lost before torn ones", beyond::lost_before_torn),
        ("a log fallen silent", logs::silent),
        ("marks of origins", marks::counted),
        ("cases of static volumes", static_cases::all),
    ];
    for (by, look) in first {
        hooks::set_context(|| by.to_owned());
        if let Err(e) = look() {
            return Some((by.to_owned(), e));
        }
    }
    for round in 0u32.. {
        let images = 64u64 << (3 * round).min(14);
        let every = 16 >> round.min(2);
        let bounds =
            Bounds { images, nested: images.min(64), nested_every: every, go_on_every: every };
        let mut scripts = small();
        scripts.extend(static_workloads::small());
        scripts.extend((0..4).map(|n| static_workloads::random(u64::from(4 * round + n), 12)));
        scripts.extend((0..4).map(|n| random(u64::from(4 * round + n), 12)));
        for script in scripts {
            let by = format!("explore '{}'", script.name);
            hooks::set_context(|| by.clone());
            if let Err(e) =
                explore(&script, bounds, Some(Duration::from_millis(200 << (2 * round).min(8))))
            {
                return Some((by, e));
            }
        }
        let images = images.min(512);
        let bounds = logs::Bounds { images, nested: 4, nested_every: every, go_on_every: every };
        let mut scripts = logs::small();
        scripts.extend(logs::beside::small());
        for n in (0..8).map(|n| u64::from(8 * round + n)) {
            scripts.extend([logs::random(n), logs::beside::random(n)]);
        }
        for script in scripts {
            let by = format!("logs '{}'", script.name);
            hooks::set_context(|| by.clone());
            if let Err(e) = logs::explore(
                &script,
                bounds,
                Some(Duration::from_millis(200 << (2 * round).min(8))),
            ) {
                return Some((by, e));
            }
        }
        if let Err(e) = logs::damage::all(61 >> round.min(5)) {
            return Some(("logs, damaged".into(), e));
        }
        for seed in seeds.by_ref().take(200 << round.min(8)) {
            if start.elapsed() > limit {
                return None;
            }
            if let Err(e) = dst::run(seed, false) {
                return Some((format!("--seed {seed}"), e));
            }
        }
        for (state, region, random) in flips::jobs(400 << round.min(8)) {
            let by = format!("flips {state:?} {region:?}").to_lowercase();
            // Odd: not the same bit of each line.
            let every = 61 >> round.min(5);
            if let Err(e) = flips::flip_region(state, region, every, random, u64::from(round)) {
                return Some((by, e));
            }
        }
        let one_in = 63 >> round.min(5);
        for job in damage::jobs(one_in, round.into(), 4 << round.min(6), false) {
            if let Err(e) = damage::run(&job) {
                return Some((format!("damage {:?} {:?}", job.state, job.kind).to_lowercase(), e));
            }
        }
        if start.elapsed() > limit {
            break;
        }
    }
    None
}

/// Hunts in a process of its own; `program` is this one.
pub fn hunt_apart(program: &std::path::Path, id: u32, limit: Duration) -> (Option<String>, String) {
    let out = Command::new(program)
        .args(["planted", "--hunt", &id.to_string(), "--limit", &limit.as_secs().to_string()])
        .env("RUST_BACKTRACE", "0")
        .output();
    let out = match out {
        Ok(out) => out,
        Err(e) => return (None, format!("cannot start {}: {e}", program.display())),
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let noise = String::from_utf8_lossy(&out.stderr).into_owned();
    match out.status.code() {
        Some(0) => (None, "not caught".into()),
        Some(1) => {
            let (by, evidence) = text.split_once('\n').unwrap_or((&text, ""));
            (Some(by.to_owned()), evidence.trim().to_owned())
        }
        Some(hooks::EXIT_ASSERTION) => (Some(context_of(&noise)), noise.trim().to_owned()),
        Some(hooks::EXIT_HANG) => (Some(context_of(&noise)), "endless loop".into()),
        _ => (None, format!("the hunt ended with {}: {}", out.status, noise.trim())),
    }
}

/// hooks.rs puts the context after the last "; ".
fn context_of(noise: &str) -> String {
    let context = noise.trim().rsplit("; ").next().unwrap_or("");
    context.replace("replay with: forebay-sim ", "")
}
