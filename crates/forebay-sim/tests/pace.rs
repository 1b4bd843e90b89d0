// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writers exceed the origin's speed: the intake adapts to it, smoothly, whatever the disk is,
//! and the pool is full only when the disk has stopped.  In virtual time, so none of this
//! depends on the machine.

use forebay_sim::pace::{run, Disk, Load, Pattern, Report};

const SATA: Disk = Disk { service_us: 50, latency_us: 80, flush_us: 500, ..Disk::NONE };
const SLOW: Disk = Disk { service_us: 500, latency_us: 500, flush_us: 1000, ..Disk::NONE };
const DISK: Disk = Disk { service_us: 2500, latency_us: 2000, flush_us: 8000, ..Disk::NONE };

fn load(pool_mib: u64, chunk_kib: u32, reads: u64) -> Load {
    Load {
        pool_mib,
        chunk_kib,
        times: 6,
        reads,
        round_pages: 4096,
        settle_s: 2,
        seconds: 15,
        seed: 1,
        pattern: Pattern::default(),
        max_age_s: 0,
        copy_ns: 1000,
    }
}

fn smooth(r: &Report) -> bool {
    r.coefficient_of_variation <= 0.15 && r.windows_with_nothing == 0 && r.waits_space == 0
}

#[test]
fn intake_keeps_step_with_the_disk() {
    for (load, disk) in [
        (load(64, 512, 0), SLOW),
        (load(64, 512, 10), SLOW),
        (load(64, 256, 0), SLOW),
        (load(16, 256, 0), SLOW),
        (load(16, 256, 0), DISK),
        (load(16, 128, 0), SATA),
        (load(128, 1024, 10), SATA),
    ] {
        let r = run(&load, &disk).unwrap();
        assert!(smooth(&r), "{r:#?}");
        // The disk is never left waiting, and takes less than is written.
        assert!(r.disk_busy + r.disk_flushing > 0.95, "{r:#?}");
        assert!(r.writes_per_origin_write > 1.3, "{r:#?}");
    }
}

/// Writes for each request, as asked in sizes that users have: adjacent blocks go together,
/// isolated ones are kept. And not at any price.
#[test]
fn the_longest_runs_go_first() {
    for (times, least) in [(2, 8.8), (3, 3.8), (6, 1.75)] {
        let load = Load { times, round_pages: 16384, seconds: 60, ..load(512, 2048, 0) };
        let r = run(&load, &SLOW).unwrap();
        assert!(r.writes_per_origin_write >= least && r.copies_per_write < 7.2, "{r:#?}");
        assert!(r.windows_with_nothing == 0 && r.waits_space == 0, "{r:#?}");
    }
}

/// A fuller pool has longer runs and more copies: it is where these take little of the disk's
/// time, which the flushes of shorter rounds do not take instead; and not where pages may grow
/// too old.
#[test]
fn the_pool_is_as_full_as_copies_are_cheap() {
    let common = Load { times: 2, round_pages: 16384, settle_s: 20, ..load(512, 2048, 0) };
    let copying = |r: &Report| {
        let each_us = r.copies_per_write * r.load.copy_ns as f64 / 1000.0;
        each_us * r.writes_per_origin_write / r.disk.service_us as f64
    };
    let full = run(&common, &SLOW).unwrap();
    assert!(full.writes_per_origin_write > 9.0 && copying(&full) < 0.2, "{full:#?}");
    for (load, disk) in [
        (Load { copy_ns: 4000, ..common }, SLOW),
        (common, Disk { flush_us: 20_000, ..SLOW }),
        (Load { max_age_s: 1000, ..common }, SLOW),
    ] {
        let r = run(&load, &disk).unwrap();
        assert!(r.writes_per_origin_write < 8.2 && r.waits_space == 0, "{r:#?}");
        assert!(copying(&r) < 0.3, "{r:#?}");
    }
}

/// A request that takes no longer than a few copies is not worth saving.
#[test]
fn nothing_is_kept_before_a_fast_origin() {
    let fast = Disk { service_us: 2, latency_us: 20, flush_us: 20, ..Disk::NONE };
    let r = run(&Load { seconds: 2, ..load(128, 2048, 0) }, &fast).unwrap();
    assert!(r.copies_per_write < 0.01 && r.writes_per_s > 99_000.0, "{r:#?}");
}

/// If a flush takes as long as hundreds of requests, there are fewer flushes: a round lists as
/// much as there is room for.
#[test]
fn a_flush_that_is_dear_makes_longer_rounds() {
    let load = Load { times: 3, round_pages: 16384, seconds: 10, ..load(512, 2048, 0) };
    let dear = Disk { flush_us: 20_000, ..SATA };
    let (cheap, dear) = (run(&load, &SATA).unwrap(), run(&load, &dear).unwrap());
    let pages = |r: &Report| r.writes_per_s / r.rounds_per_s;
    assert!(pages(&dear) > 1.3 * pages(&cheap), "{cheap:#?} {dear:#?}");
    assert!(dear.writes_per_s > 40_000.0 && smooth(&dear), "{dear:#?}");
}

/// A flush of a quarter of a second leaves room for few rounds, and each has to be long.  By
/// the rate of freeing of earlier rounds, which includes flushes, rounds would become ever
/// shorter.
#[test]
fn a_flush_that_takes_long_leaves_a_third_of_the_disk() {
    for (times, least) in [(2, 5_000.0), (3, 3_400.0)] {
        let load = Load { times, round_pages: 16384, seconds: 30, ..load(512, 2048, 0) };
        let r = run(&load, &Disk { flush_us: 250_000, ..SLOW }).unwrap();
        assert!(r.writes_per_s > least && r.waits_space == 0, "{r:#?}");
        assert!(r.disk_busy > 0.33 && r.disk_busy + r.disk_flushing < 1.05, "{r:#?}");
    }
}

/// Nothing is much older than max_age, if the origin could take all of it in that time: a page
/// is not kept for a turn in which no more can be kept.
#[test]
fn what_is_kept_is_not_too_old() {
    let load = Load { times: 2, settle_s: 30, seconds: 60, max_age_s: 30, ..load(128, 2048, 0) };
    let load = Load { round_pages: 16384, ..load };
    let r = run(&load, &Disk { latency_us: 500, ..DISK }).unwrap();
    assert!(r.oldest_s < 36.0 && r.writes_per_s > 1000.0, "{r:#?}");
}

/// Isolated pages are kept, and not for ever: a write costs a copy or so.
#[test]
fn what_is_copied_is_bounded() {
    let r = run(&load(128, 2048, 0), &SLOW).unwrap();
    assert!(r.copies_per_write < 1.5, "{r:#?}");
    let busy = run(&Load { times: 1, ..load(16, 256, 0) }, &SLOW).unwrap();
    assert!(busy.copies_per_write > 0.01, "nothing is ever moved: {busy:#?}");
}

/// The reference for the figures: it does not depend on the engine.
#[test]
fn the_longest_run_first_is_more_than_by_age() {
    let of = |pattern| run(&Load { times: 2, pattern, ..load(16, 256, 0) }, &SLOW).unwrap();
    let (chance, streams) = (of(Pattern::default()), of(Pattern { sequential: 50, zipf: 0.9 }));
    assert!(chance.ideal_at_90 > chance.ideal_at_80, "{chance:#?}");
    assert!(chance.ideal_at_80 > 6.0, "{chance:#?}");
    assert!(streams.pages_per_origin_write > chance.pages_per_origin_write, "{streams:#?}");
}

/// A disk that refused all it was to write for three seconds takes it again: writers have half
/// of their rate when the pause is over, and not after as long a round as was listed meanwhile.
#[test]
fn a_disk_that_is_well_again_is_used_at_once() {
    let load =
        Load { times: 2, settle_s: 10, seconds: 40, round_pages: 16384, ..load(128, 512, 0) };
    let slow = Disk { service_us: 3000, latency_us: 100, flush_us: 200, ..Disk::NONE };
    let r = run(&load, &Disk { fail_us: 3_000_000, ..slow }).unwrap();
    assert!(r.well_after_s.is_some_and(|s| s <= 5.0), "{r:#?}");
    assert!(r.slowest_window_per_s < 100.0, "it never failed: {r:#?}");
}

/// Pages that a disk refuses for good stay in the pool, and the others do not wait for them,
/// except in pools of few and large chunks (docs/design/destage.md).
#[test]
fn bad_blocks_stop_nobody() {
    for (pool, chunk, times, bad_of, least) in
        [(64, 512, 2, 200, 1200.0), (32, 1024, 3, 20, 700.0), (16, 256, 6, 10, 400.0)]
    {
        let load =
            Load { times, settle_s: 5, seconds: 20, round_pages: 16384, ..load(pool, chunk, 0) };
        let disk = Disk { service_us: 2000, latency_us: 100, flush_us: 5000, ..Disk::NONE };
        let r = run(&load, &Disk { bad_of, ..disk }).unwrap();
        assert!(r.writes_per_s > least && r.windows_with_nothing == 0, "{r:#?}");
    }
}

#[test]
fn a_disk_that_stops_shows() {
    let r = run(&load(16, 256, 0), &Disk { stop_us: 3_000_000, ..SLOW }).unwrap();
    assert!(!smooth(&r), "{r:#?}");
}

#[test]
fn a_pool_that_cannot_be_made_is_named() {
    let e = run(&load(16, 3, 0), &SLOW).unwrap_err();
    assert!(e.contains("chunks of 3 KiB"), "{e}");
}
