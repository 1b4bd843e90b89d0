// SPDX-License-Identifier: MIT OR Apache-2.0
//! More is written than the origin takes: what is taken in keeps step with it,
//! smoothly, whatever disk it is, and the pool is full only when the disk has stopped.
//! In virtual time, so none of this depends on the machine.

use forebay_sim::pace::{run, Disk, Load, Pattern, Report};

const SATA: Disk = Disk { service_us: 50, latency_us: 80, flush_us: 500, stop_us: 0 };
const SLOW: Disk = Disk { service_us: 500, latency_us: 500, flush_us: 1000, stop_us: 0 };
const DISK: Disk = Disk { service_us: 2500, latency_us: 2000, flush_us: 8000, stop_us: 0 };

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
        assert!(r.disk_busy > 0.95, "{r:#?}");
        assert!(r.writes_per_origin_write > 1.3, "{r:#?}");
    }
}

/// What a round leaves of a chunk is mostly dead, and the oldest there is.
#[test]
fn what_destage_takes_next_is_not_moved() {
    let r = run(&load(128, 2048, 0), &SLOW).unwrap();
    assert!(r.copies_per_write < 0.01, "{r:#?}");
    let busy = run(&Load { times: 1, ..load(16, 256, 0) }, &SLOW).unwrap();
    assert!(busy.copies_per_write > 0.01, "nothing is ever moved: {busy:#?}");
}

/// The yardstick beside the figures: it does not depend on the engine.
#[test]
fn the_longest_run_first_is_more_than_by_age() {
    let of = |pattern| run(&Load { times: 2, pattern, ..load(16, 256, 0) }, &SLOW).unwrap();
    let (chance, streams) = (of(Pattern::default()), of(Pattern { sequential: 50, zipf: 0.9 }));
    assert!(chance.ideal_at_90 > chance.ideal_at_80, "{chance:#?}");
    assert!(chance.ideal_at_80 > 6.0, "{chance:#?}");
    assert!(streams.pages_per_origin_write > chance.pages_per_origin_write, "{streams:#?}");
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
