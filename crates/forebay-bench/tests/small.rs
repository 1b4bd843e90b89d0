// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmarks run and say what they promise, on media small enough for a
//! test.  How fast anything is, is none of these tests' business.

use std::path::PathBuf;
use std::time::Duration;

use forebay_bench::{
    engine, logs, maps, reads, recovery, slots, statics, BenchError, EngineOptions, LogOptions,
    MapBenchOptions, MediaChoice, RecoveryOptions, SlotsOptions, SlotsTarget, ThreadsOptions,
};

const SMALL: u64 = 64 << 20;

/// A directory in memory, where files may be as large as the tests want them.
fn in_memory() -> Option<PathBuf> {
    let memory = forebay_test::memory();
    if memory != std::env::temp_dir() {
        return Some(memory);
    }
    forebay_test::skipped!("/dev/shm has no room: media in files is not measured");
    None
}

fn media() -> impl Iterator<Item = MediaChoice> {
    [MediaChoice::Anonymous].into_iter().chain(in_memory().map(MediaChoice::File))
}

#[test]
fn engine_reports_each_number_of_threads() {
    let options = EngineOptions { pool_bytes: SMALL, rounds: 2, batch: 500, ..Default::default() };
    let report = engine(&options).unwrap();
    assert_eq!(report.threads.iter().map(|t| t.n).collect::<Vec<_>>(), [1, 2]);
    for t in &report.threads {
        for figures in [t.raw, t.floor, t.engine] {
            assert!(figures.ops_per_s > 0.0 && figures.p50_ns > 0);
            assert!(figures.p50_ns <= figures.p99_ns && figures.p99_ns <= figures.p999_ns);
        }
        assert_eq!(t.engine_over_floor, t.engine.ops_per_s / t.floor.ops_per_s);
    }
    assert!(report.dram_bytes_per_page > 16.0, "an entry alone has 16 bytes");
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["threads"][1]["floor"]["p999_ns"].is_u64());
    assert!(json["media"].as_str().unwrap().starts_with("anonymous memory"));
}

#[test]
fn maps_are_measured_beside_the_kernels() {
    let options = MapBenchOptions {
        mapping_mib: vec![4, 8],
        dirty_pages: vec![1, 20],
        rounds: 3,
        ..Default::default()
    };
    let report = maps(&options).unwrap();
    let rows: Vec<_> = report.sync.iter().map(|s| (s.what, s.mapping_mib, s.dirty_pages)).collect();
    let all = [("page", 4, 1), ("whole", 4, 1), ("page", 8, 1), ("whole", 8, 1), ("whole", 8, 20)];
    assert_eq!(rows, all);
    assert!(report.sync.iter().all(|s| s.p50_us > 0.0 && s.kernel_p50_us > 0.0 && s.ratio > 0.0));
    let (one, many) = (&report.sync[3], &report.sync[4]);
    let added = many.added_us_a_page.unwrap() * (many.dirty_pages - 1) as f64;
    assert!((added + one.p50_us - many.p50_us).abs() < 1e-6 && one.added_us_a_page.is_none());
    assert!(report.store_us > 0.0 && report.segment_us > 0.0);
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["sync"][0]["kernel_p50_us"].is_f64() && json["store_us"].is_f64());
    let none = MapBenchOptions { mapping_mib: Vec::new(), ..Default::default() };
    assert!(maps(&none).unwrap_err().to_string().contains("no mapping"));
}

#[test]
fn reads_are_hits() {
    let options = ThreadsOptions { pool_bytes: SMALL, rounds: 1, batch: 500, ..Default::default() };
    let report = reads(&options).unwrap();
    assert_eq!(report.threads.len(), 2);
    assert!(report.threads.iter().all(|t| t.ops_per_s_per_thread > 0.0));
}

#[test]
fn static_volumes_are_measured_beside_the_index() {
    for media in media() {
        let options = ThreadsOptions {
            media,
            pool_bytes: SMALL,
            rounds: 2,
            batch: 300,
            ..Default::default()
        };
        let report = statics(&options).unwrap();
        assert_eq!(report.threads.iter().map(|t| t.n).collect::<Vec<_>>(), [1, 2]);
        assert!(report.threads.iter().all(|t| t.over_floor > 0.0));
        assert!(report.lookup_ns.by_place > 0.0 && report.lookup_ns.index > 0.0);
        assert!(report.open_ms > 0.0 && report.dram_bytes_per_page > 0.0);
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["lookup_ns"]["static"].is_f64() && json["threads"][0]["over_floor"].is_f64());
    }
    let options = ThreadsOptions { pool_bytes: 1 << 20, ..Default::default() };
    assert!(statics(&options).unwrap_err().to_string().contains("at least 48M"));
}

#[test]
fn recovery_finds_all_that_was_written() {
    for media in media() {
        let options = RecoveryOptions { media, pool_bytes: SMALL, rounds: 2, threads: 2 };
        let report = recovery(&options).unwrap();
        // All chunks but the reserve, header arrays and what other CPUs' slots hold open.
        assert!(report.entries >= SMALL / 4096 * 3 / 4);
        assert_eq!(report.entries, report.blocks);
        assert_eq!((report.dropped, report.damaged, report.holes), (0, 0, 0));
    }
}

/// Throughput stays below what the media is slowed to, whatever the slots.
#[test]
fn slots_are_measured_on_slow_media() {
    let volume = SlotsTarget::Volume;
    let in_file = in_memory().map(|dir| (volume, Some(dir)));
    for (target, dir) in [(volume, None), (SlotsTarget::Log, None)].into_iter().chain(in_file) {
        let options = SlotsOptions {
            target,
            media_bytes_per_s: 20_000_000,
            threads: vec![1, 3],
            slots: vec![1, 2],
            rounds: 2,
            turn: Duration::from_millis(30),
            pool_bytes: SMALL,
            dir,
            ..Default::default()
        };
        let report = slots(&options).unwrap();
        assert!(report.auto_slots >= 1 && report.target == target);
        let cells: Vec<_> = report.cells.iter().map(|c| (c.threads, c.slots)).collect();
        assert_eq!(cells, [(1, 1), (1, 2), (3, 1), (3, 2)]);
        for c in &report.cells {
            assert!(c.writes_per_s_low <= c.writes_per_s && c.writes_per_s <= c.writes_per_s_high);
            assert!(c.writes_per_s > 0.0 && c.cpu_ns_per_write > 0.0);
            assert!(c.writes_per_s_high <= report.media_writes_per_s * 1.01, "{c:?}");
        }
    }
    let none = SlotsOptions { slots: vec![], ..Default::default() };
    assert!(matches!(slots(&none), Err(BenchError::Options(_))));
}

/// A tenth of the writes would fill this pool.
#[test]
fn a_log_does_not_fill_the_pool_that_it_is_measured_in() {
    let options = SlotsOptions {
        target: SlotsTarget::Log,
        media_bytes_per_s: 0,
        threads: vec![2],
        slots: vec![2],
        rounds: 1,
        turn: Duration::from_millis(400),
        pool_bytes: 32 << 20,
        ..Default::default()
    };
    assert!(slots(&options).unwrap().cells[0].writes_per_s > 0.0);
}

#[test]
fn logs_are_measured_at_each_size_and_number_of_threads() {
    let options = LogOptions {
        pool_bytes: SMALL,
        bytes: vec![128, 4096],
        rounds: 2,
        replay_bytes: SMALL / 4,
        ..Default::default()
    };
    let report = logs(&options).unwrap();
    let cells: Vec<_> = report.appends.iter().map(|a| (a.threads, a.logs, a.bytes)).collect();
    assert_eq!(
        cells,
        [(1, 1, 128), (1, 1, 4096), (2, 1, 128), (2, 1, 4096), (2, 2, 128), (2, 2, 4096)]
    );
    for a in &report.appends {
        assert!(a.ops_per_s > 0.0 && a.over_floor == a.ops_per_s / a.floor.ops_per_s);
    }
    assert!(report.claim_bytes_per_s > Some(0.0) && report.replay_bytes_per_s > Some(0.0));
    let none = LogOptions { threads: vec![0], ..Default::default() };
    assert!(matches!(logs(&none), Err(BenchError::Options(_))));
}

#[test]
fn senseless_options_are_refused() {
    let none = EngineOptions { threads: vec![], ..Default::default() };
    assert!(matches!(engine(&none), Err(BenchError::Options(_))));
    let zero = ThreadsOptions { threads: vec![0], pool_bytes: SMALL, ..Default::default() };
    assert!(matches!(reads(&zero), Err(BenchError::Options(_))));
    let nowhere = RecoveryOptions {
        media: MediaChoice::File(PathBuf::from("/nowhere")),
        ..Default::default()
    };
    let error = recovery(&nowhere).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}
