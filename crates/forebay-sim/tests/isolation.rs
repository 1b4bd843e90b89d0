// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin that fails, hangs or is slow costs other volumes nothing but its own share of
//! the pool.  In virtual time, so none of this depends on the machine.

use forebay_sim::isolation::{kept, run, Bench, Neighbour, NEIGHBOURS};

const BENCH: Bench = Bench {
    pool_mib: 16,
    chunk_kib: 128,
    service_us: 200,
    flush_us: 1000,
    light_per_s: 500,
    idle: 0,
    copy_ns: 1000,
    seconds: 20,
    seed: 1,
};

fn all_kept(bench: &Bench) {
    for neighbour in NEIGHBOURS {
        let cells = run(bench, neighbour).unwrap();
        let broken: Vec<_> = cells.iter().filter_map(|c| kept(c).err()).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

#[test]
fn a_neighbour_keeps_its_throughput_and_its_tail() {
    all_kept(&BENCH);
}

#[test]
fn a_neighbour_in_a_pool_of_large_chunks_does_too() {
    all_kept(&Bench { pool_mib: 64, chunk_kib: 1024, ..BENCH });
}

/// Two chunks of 64 KiB hold 30 pages, which such a neighbour fills in less than the time
/// that its origin takes for a round: it had 0.60 of its throughput with no more than these.
#[test]
fn a_light_neighbour_in_small_chunks_keeps_its_throughput() {
    let bench = Bench {
        chunk_kib: 64,
        service_us: 100,
        flush_us: 5000,
        light_per_s: 4000,
        seconds: 4,
        ..BENCH
    };
    for c in run(&bench, Neighbour::Light).unwrap() {
        assert!(c.throughput_ratio >= 0.9, "{c:#?}");
    }
}

/// With half as many volumes as chunks each is left one, not two: nothing to write
/// while it is destaged, so the tail is not kept.
#[test]
fn a_light_neighbour_among_many_keeps_its_throughput() {
    let bench = Bench { chunk_kib: 256, idle: 29, ..BENCH };
    for c in run(&bench, Neighbour::Light).unwrap() {
        assert!(c.throughput_ratio >= 0.9, "{c:#?}");
    }
}
