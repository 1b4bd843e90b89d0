// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example's key-value store, killed again and again: each commit that it
//! acknowledged is there afterwards, and nothing that was never made.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;

#[allow(dead_code)] // its main
#[path = "../../examples/kv.rs"]
mod store;

const DIR: &str = "FOREBAY_TEST_KV_DIR";
const SEED: &str = "FOREBAY_TEST_KV_SEED";
const KILLS: u64 = 40;

/// The process that is killed.  Runs only as a child of the test below.
#[test]
#[ignore = "a helper of the test that kills it"]
fn child() {
    let (Some(dir), Ok(seed)) = (std::env::var_os(DIR), std::env::var(SEED)) else {
        return;
    };
    store::run(Path::new(&dir), seed.parse().unwrap()).unwrap();
}

/// Runs the store until it has acknowledged so many commits, or for so long if there are
/// to be none; returns all that it acknowledged.
fn killed_after(dir: &Path, seed: u64, commits: u64, delay: Duration) -> Vec<(u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kv::child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pair = |line: String| {
        let (key, value) = line.split_once(' ')?;
        Some((key.parse().ok()?, value.parse().ok()?))
    };
    let mut acknowledged = Vec::new();
    if commits == 0 {
        std::thread::sleep(delay);
    }
    while (acknowledged.len() as u64) < commits {
        acknowledged.extend(pair(lines.next().expect("it goes on until it is killed").unwrap()));
    }
    child.kill().unwrap();
    // Lines that it had written before the kill.
    acknowledged.extend(lines.map_while(Result::ok).filter_map(pair));
    child.wait().unwrap();
    acknowledged
}

#[test]
fn acknowledged_commits_survive_sigkill() {
    let dir = Dir::new("kv");
    let dir = dir.path("store");
    std::fs::create_dir(&dir).unwrap();
    let mut rng = Rng::new(u64::from(std::process::id()));
    let mut expected = store::Map::new();
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        // Some while it opens.
        let commits = if kill % 4 == 3 { 0 } else { rng.below(400) };
        let delay = Duration::from_micros(rng.below(30_000));
        for (key, value) in killed_after(&dir, rng.below(1 << 40), commits, delay) {
            expected.insert(key, value);
            acknowledged += 1;
        }
        // The commit that it was at may be there too; it is the newest.
        let newest = expected.values().max().copied().unwrap_or(0);
        let found = store::recovered(&dir).unwrap();
        for (key, value) in &found {
            if expected.get(key) != Some(value) {
                assert_eq!(*value, newest + 1, "key {key} after kill {kill}: {expected:?}");
            }
        }
        for key in expected.keys() {
            assert!(found.contains_key(key), "key {key} after kill {kill}");
        }
        expected = found;
    }
    assert!(acknowledged > KILLS, "{acknowledged}");
}
