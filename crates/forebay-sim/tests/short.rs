// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short versions of what the program does at length, and the seeds that once
//! found something.  A failure names the script, seed or bit; the program
//! replays it: `forebay-sim --seed N --trace`, `forebay-sim explore --only NAME`.

use std::path::{Path, PathBuf};

use forebay_sim::explore::{explore, explore_format, Bounds, Explored};
use forebay_sim::script::{random, small};
use forebay_sim::{dst, flips, golden};

fn tests_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

#[test]
fn every_small_workload_survives_every_cut() {
    let bounds = Bounds { images: 256, nested: 32, nested_every: 32, go_on_every: 32 };
    let mut total = Explored::default();
    for script in small() {
        total.add(&explore(&script, bounds, None).unwrap());
    }
    assert!(total.distinct > 20_000, "{total:?}");
    assert!(total.dropped > 0 && total.recovery_cuts > 0 && total.gone_on > 0, "{total:?}");
}

#[test]
fn a_format_that_is_cut_leaves_the_old_pool_or_none() {
    let bounds = Bounds { images: 4096, nested: 1, nested_every: 1, go_on_every: 1 };
    let script = small().into_iter().find(|s| s.name == "discard and zero").unwrap();
    let e = explore_format(&script, bounds).unwrap();
    assert!(e.cuts >= 3 && e.distinct > 1000, "{e:?}");
}

#[test]
fn random_workloads_survive_cuts() {
    let bounds = Bounds { images: 64, nested: 16, nested_every: 16, go_on_every: 16 };
    for seed in 1..=4 {
        explore(&random(seed, 12), bounds, None).unwrap();
    }
}

/// The first number of each line of a file, `#` begins a comment.
fn numbers(file: &Path) -> Vec<u64> {
    std::fs::read_to_string(file)
        .unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
        .map(|line| line.parse().expect("a seed a line"))
        .collect()
}

#[test]
fn seeds_that_found_something_find_nothing_more() {
    for seed in numbers(&tests_dir().join("seeds.txt")) {
        dst::run(seed, false).unwrap();
        dst::run_without_statics(seed).unwrap();
    }
}

#[test]
fn the_first_seeds_find_nothing() {
    let mut total = dst::Tally::default();
    for seed in 1..=120 {
        total.add(&dst::run(seed, false).unwrap());
    }
    // A simulation that provokes nothing would find nothing.
    assert!(total.power_cuts > 50 && total.process_kills > 20, "{total:?}");
    assert!(total.bad_sectors > 50 && total.not_home > 5, "{total:?}");
    assert!(total.origin_errors > 50 && total.media_faults > 5, "{total:?}");
    assert!(total.waits_block > 50 && total.waits_slot > 50 && total.waits_space > 50, "{total:?}");
    assert!(total.sectors_judged > 50_000 && total.drains > 50, "{total:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 4, 5] {
        let json = |t: &dst::Tally| serde_json::to_string(t).unwrap();
        let first = dst::run(seed, false).unwrap();
        assert_eq!(json(&first), json(&dst::run(seed, false).unwrap()));
        assert_ne!(json(&first), json(&dst::run(seed + 100, false).unwrap()));
    }
}

#[test]
fn flipped_bits_are_harmless_or_isolated() {
    let mut isolated = 0;
    for (state, region, data) in flips::jobs(800) {
        let row = flips::flip_region(state, region, 61, data, 3).unwrap();
        assert!(row.flips > 20, "{row:?}");
        isolated += row.isolated;
    }
    assert!(isolated > 20, "the data flips hit nothing that was cached");
}

#[test]
fn operations_cost_what_the_golden_table_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("tests/golden/persist.txt");
    let kept = std::fs::read_to_string(&file).unwrap();
    let measured = golden::table(&golden::measure().unwrap());
    let differ = golden::differences(&kept, &measured);
    assert!(
        differ.is_empty(),
        "if this is meant, run `forebay-sim golden --bless` and say why in the commit: {differ:#?}"
    );
}
