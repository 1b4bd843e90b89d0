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
    beyond, damage, drains, dst, flips, gate, groups, held, hooks, isolation, keeping, kept_cases,
    logs, marks, refused_cases, requests, slow_origin, static_cases,
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

/// Searchers that run in rounds, more thoroughly each time.
#[derive(Clone, Copy, Debug)]
enum Searcher {
    Explore,
    Logs,
    Groups,
    Volumes,
    LogsDamaged,
    Seeds,
    Flips,
    Damage,
}

// Each with the bugs that it has found, by the beginnings of their names: it is asked first for
// these.  One that is not here, or that another finds now, only takes seconds longer.

#[rustfmt::skip]
const DIRECTED: [(Directed, &[&str]); 16] = [
    (("a drain beside a flush", drains::told_once), &[]),
    (("a drain to another origin", drains::another_origin), &[]),
    (("the gate", gate::all), &[]),
    (("clients' requests", requests::quick), &[]),
    (("requests of a volume wait for tickets", groups::requests_wait), &["REQUEST_TICKET", "REQUEST_WAKE"]),
    (("isolation", isolation::quick), &["OWED_"]),
    (("nothing is kept in a drain", kept_cases::drain), &["KEPT_IN_DRAIN"]),
    (("pages that are kept", keeping::all),
        &["READ_UNVERIFIED", "COPIES_", "HANG_", "DRAIN_KEEPS", "KEPT_UNSEALED", "KEPT_AGE"]),
    (("what is in the way of pages that are kept", kept_cases::in_the_way),
        &["DAMAGE_DROPPED", "DESTAGE_UNVERIFIED", "MOVE_"]),
    (("a drain before a slow origin", slow_origin::drains_end), &["SLOW_TAKEN"]),
    (("what an origin refuses", refused_cases::all),
        &["MERGE_UNVERIFIED", "REFUSED_TRIED", "REFUSED_HIDES", "REFUSED_COPIED", "REFUSED_CUT"]),
    (("lost blocks are carried", held::all), &["PACKED_FOR", "CARRIED_"]),
    (("a line lost before torn ones", beyond::lost_before_torn), &["HOLE_"]),
    (("a log fallen silent", logs::silent), &["GC_BY", "SILENT_"]),
    (("marks of origins", marks::counted), &["WATERMARK_NO_FENCE", "MARK_"]),
    (("cases of static volumes", static_cases::all),
        &["STATIC_REFUSED", "STATIC_SETTLED", "STATIC_READ", "STATIC_EMPTY", "STATIC_BAD", "STATIC_ERA",
          "STATIC_ANEW", "STATIC_STARVED", "STATIC_CLEAN"]),
];

#[rustfmt::skip]
const SEARCHERS: [(Searcher, &[&str]); 8] = [
    (Searcher::Explore, &["WRITE_NO", "HEADER_BEFORE", "OPEN_NO", "TORN_TAIL", "DROPPED_NOT", "NEW_VOLUME", "SEQ_NOT",
        "CLEAN_ANY", "SEAL_COPY", "STATIC_"]),
    (Searcher::Logs, &["APPEND_", "COUNTERS_", "GENERATION_", "TORN_ENTRY", "SEAL_OF", "CHECKPOINT_", "EARLIER_",
        "OPEN_LINE", "GUID_", "STALE_HEADER", "STORED_", "END_", "ENTRY_EPOCH", "CREATE_", "DESTROY_"]),
    (Searcher::Groups, &["GROUP_", "WITNESS_", "ARRAY_"]),
    (Searcher::Volumes, &["PAGES_"]),
    (Searcher::LogsDamaged, &["HEADER_ENDS", "MISSING_", "SYNC_"]),
    (Searcher::Seeds, &["CUT_PAST", "FREE_BEFORE", "CRC_SKIPS"]),
    (Searcher::Flips, &[]),
    (Searcher::Damage, &["SEAL_ONE", "SEAL_EPOCH", "HEADERS_", "LOSS_"]),
];

/// Bugs of maps belong to tests/maps.  Those of streams, and of pages that are damaged when they are
/// settled, of groups half of which are appended again, and of a pool that has failed, belong to
/// tests/groups, which has scenes for them.
#[rustfmt::skip]
pub const FOUND_ELSEWHERE: [&str; 8] = ["MAP_", "STREAM_", "PAGES_TAIL_", "PAGES_LISTED_", "PAGES_COPY_", "PAGES_GAP_",
    "PAGES_FLUSH_AGAIN", "PAGES_RECORD_"];

/// The searcher that caught it, and how.
type Caught = Option<(String, String)>;

fn ask(&(by, look): &Directed) -> Caught {
    hooks::set_context(|| by.to_owned());
    look().err().map(|e| (by.to_owned(), e))
}

/// For one script.
fn time_of(round: u32) -> Duration {
    Duration::from_millis(200 << (2 * round).min(8))
}

impl Searcher {
    /// `time`: for each script, if there is a limit.
    fn search(self, round: u32, time: Option<Duration>, until: Instant) -> Caught {
        match self {
            Self::Explore => search_images(round, time),
            Self::Logs => search_logs(round, time),
            Self::Groups => {
                let found = groups::search(8 << round.min(8), time);
                found.err().map(|e| ("groups".into(), e))
            }
            Self::Volumes => {
                let found = groups::search_volumes(8 << round.min(8), time);
                found.err().map(|e| ("volumes in groups".into(), e))
            }
            Self::LogsDamaged => {
                hooks::set_context(|| "logs, damaged".to_owned());
                logs::damage::all(61 >> round.min(5)).err().map(|e| ("logs, damaged".into(), e))
            }
            Self::Seeds => {
                let n = 200u64 << round.min(8);
                (n - 199..=2 * n - 200).take_while(|_| Instant::now() < until).find_map(|seed| {
                    dst::run(seed, false).err().map(|e| (format!("--seed {seed}"), e))
                })
            }
            // Odd: not the same bit of each line.
            Self::Flips => {
                flips::jobs(400 << round.min(8)).into_iter().find_map(|(state, region, random)| {
                    let found = flips::flip_region(
                        state,
                        region,
                        61 >> round.min(5),
                        random,
                        u64::from(round),
                    );
                    found.err().map(|e| (format!("flips {state:?} {region:?}").to_lowercase(), e))
                })
            }
            Self::Damage => {
                let jobs = damage::jobs(63 >> round.min(5), round.into(), 4 << round.min(6), false);
                jobs.into_iter().find_map(|job| {
                    let by = || format!("damage {:?} {:?}", job.state, job.kind).to_lowercase();
                    damage::run(&job).err().map(|e| (by(), e))
                })
            }
        }
    }
}

fn search_images(round: u32, time: Option<Duration>) -> Caught {
    let images = 64u64 << (3 * round).min(14);
    let every = 16 >> round.min(2);
    let bounds = Bounds { images, nested: images.min(64), nested_every: every, go_on_every: every };
    let mut scripts = small();
    scripts.extend(static_workloads::small());
    scripts.extend((0..4).map(|n| static_workloads::random(u64::from(4 * round + n), 12)));
    scripts.extend((0..4).map(|n| random(u64::from(4 * round + n), 12)));
    scripts.into_iter().find_map(|script| {
        let by = format!("explore '{}'", script.name);
        hooks::set_context(|| by.clone());
        explore(&script, bounds, time).err().map(|e| (by, e))
    })
}

fn search_logs(round: u32, time: Option<Duration>) -> Caught {
    let every = 16 >> round.min(2);
    let images = (64u64 << (3 * round).min(14)).min(512);
    let bounds = logs::Bounds { images, nested: 4, nested_every: every, go_on_every: every };
    let mut scripts = logs::small();
    scripts.extend(logs::beside::small());
    for n in (0..8).map(|n| u64::from(8 * round + n)) {
        scripts.extend([logs::random(n), logs::beside::random(n)]);
    }
    scripts.into_iter().find_map(|script| {
        let by = format!("logs '{}'", script.name);
        hooks::set_context(|| by.clone());
        logs::explore(&script, bounds, time).err().map(|e| (by, e))
    })
}

/// Hunts one bug in this process: whoever is likely to find it, the directed cases, and then
/// all that search, in rounds of growing thoroughness.
pub fn hunt(id: u32, limit: Duration) -> Caught {
    forebay_engine::planted::plant(id);
    hooks::watchdog(Duration::from_secs(10));
    let until = Instant::now() + limit;
    let bugs = forebay_engine::sys::planted_bugs();
    let bug = bugs.iter().find(|(n, ..)| *n == id).map_or("", |(_, name, _)| name);
    let found = |names: &[&str]| names.iter().any(|n| bug.starts_with(n));
    let caught = match DIRECTED.iter().find(|(_, bugs)| found(bugs)) {
        Some((case, _)) => ask(case),
        None => SEARCHERS
            .iter()
            .find(|(_, bugs)| found(bugs))
            .and_then(|(searcher, _)| searcher.search(0, None, until)),
    };
    let caught = caught.or_else(|| DIRECTED.iter().find_map(|(case, _)| ask(case)));
    if caught.is_some() {
        return caught;
    }
    for round in 0u32.. {
        for (searcher, _) in SEARCHERS {
            let caught = searcher.search(round, Some(time_of(round)), until);
            if caught.is_some() || Instant::now() >= until {
                return caught;
            }
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
