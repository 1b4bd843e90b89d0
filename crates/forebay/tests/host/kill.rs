// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGKILL in the middle of writing, several times on the same pool: each
//! acknowledged write is there afterwards, against a log kept outside.  And in
//! the middle of making pools: there is a whole one or none.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use forebay::*;

const BLOCKS: u64 = 64;
const THREADS: u64 = 3;
const DIR: &str = "FOREBAY_TEST_KILL_DIR";

fn open_volume(dir: &Path) -> (Pool, Volume) {
    let pool = open(&dir.join("pool"));
    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
    (pool, volume)
}

/// The process that is killed.  Runs only as a child of the test below.
#[test]
#[ignore = "a helper of the test that kills it"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let (_pool, volume) = open_volume(dir);
    let log = std::fs::OpenOptions::new().append(true).open(dir.join("log")).unwrap();
    let started = std::fs::read(dir.join("log")).unwrap();
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (volume, mut log) = (volume.clone(), &log);
            let mut counts = acknowledged(&started);
            s.spawn(move || {
                let mut rng = Rng::new(t + 1 + started_seed());
                loop {
                    // Blocks of its own, so that the order is known.
                    let b = rng.below(BLOCKS / THREADS) * THREADS + t;
                    // If the child is killed now, the pool may have this write without its record.
                    counts[b as usize] += 1;
                    let count = counts[b as usize];
                    let data: Vec<u8> = (0..8).flat_map(|i| sector(b, b * 8 + i, count)).collect();
                    volume.write_at(&data, b * 4096).unwrap();
                    let mut record = [0; 16];
                    record[..8].copy_from_slice(&b.to_le_bytes());
                    record[8..].copy_from_slice(&count.to_le_bytes());
                    log.write_all(&record).unwrap();
                }
            });
        }
    });
}

fn started_seed() -> u64 {
    u64::from(std::process::id())
}

/// Highest acknowledged count of each block.
fn acknowledged(log: &[u8]) -> Vec<u64> {
    let mut counts = vec![0; BLOCKS as usize];
    for record in log.chunks_exact(16) {
        let b = u64::from_le_bytes(record[..8].try_into().unwrap()) as usize;
        let count = u64::from_le_bytes(record[8..].try_into().unwrap());
        counts[b] = count.max(counts[b]);
    }
    counts
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    let dir = Dir::new("kill");
    // Small, so that destage runs all the time.
    survive(&dir, &small(12));
}

#[test]
fn acknowledged_writes_of_a_static_volume_survive_sigkill() {
    let dir = Dir::new("kill");
    survive(&dir, &with_room(64 << 10));
}

fn survive(dir: &Dir, made: &CreateOptions) {
    let disk = dir.file("disk", BLOCKS * 4096);
    let pool = open(&dir.made(made));
    pool.volume_add(&NewVolume {
        name: "v".into(),
        origin: disk.clone(),
        static_share: (made.static_bytes > 0)
            .then_some(StaticShare { share_bytes: made.static_bytes, flush_every: None }),
        ..Default::default()
    })
    .unwrap();
    pool.close().unwrap();
    let log = dir.path("log");
    std::fs::write(&log, []).unwrap();
    let mut rng = Rng::new(u64::from(std::process::id()));
    let mut last = 0;
    for round in 0..5 {
        let mut child = spawn("kill::child", log.parent().unwrap());
        let length = || std::fs::metadata(&log).unwrap().len();
        while length() == last {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(10 + rng.below(60)));
        child.kill().unwrap();
        child.wait().unwrap();
        last = length();

        let counts = acknowledged(&std::fs::read(&log).unwrap());
        let (pool, volume) = open_volume(log.parent().unwrap());
        let report = pool.recovery();
        assert!(!report.clean && report.holes == 0 && report.damaged == 0, "{report}");
        let check = |all: &[u8], what| {
            for (b, page) in all.chunks(4096).enumerate() {
                let found: Vec<u64> = (0..8)
                    .map(|i| sector_count(&page[i * 512..][..512], b as u64, (b * 8 + i) as u64))
                    .collect();
                assert!(found.iter().all(|c| *c == found[0]), "{what}: torn block {b}: {found:?}");
                // One write may have been done and not told.
                let told = counts[b];
                assert!(
                    found[0] == told || found[0] == told + 1,
                    "round {round}, {what}: block {b} has {}, acknowledged was {told}",
                    found[0]
                );
            }
        };
        let all = read(&volume, 0, (BLOCKS * 4096) as usize);
        check(&all, "volume");
        if round == 4 {
            drain(&volume);
            check(&std::fs::read(&disk).unwrap(), "origin");
        }
        volume.detach().unwrap();
        assert_sound(&pool);
        pool.close().unwrap();
        // The next child begins with the state that was found.
        let mut records = Vec::new();
        for (b, page) in all.chunks(4096).enumerate() {
            let count = sector_count(&page[..512], b as u64, b as u64 * 8);
            records.extend((b as u64).to_le_bytes());
            records.extend(count.to_le_bytes());
        }
        let mut log = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        log.write_all(&records).unwrap();
        last += records.len() as u64;
    }
    println!("{} acknowledged writes verified", last / 16);
}

fn spawn(test: &str, dir: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored"])
        .env(DIR, dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Makes pools, one after the other, until it is killed: new files, and one
/// that is formatted again and again.
#[test]
#[ignore = "a helper of the test that kills it"]
fn maker() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    for n in 0.. {
        let _ = create(&dir.join(format!("new-{n}")), &small(40));
        let again = CreateOptions { force: true, ..small(40) };
        let _ = create(&dir.join("again"), &again);
    }
}

#[test]
fn a_killed_create_leaves_a_whole_pool_or_none() {
    let dir = Dir::new("make");
    let again = dir.path("again");
    let directory = again.parent().unwrap();
    let mut rng = Rng::new(u64::from(std::process::id()));
    let (mut whole, mut unfinished) = (0, 0);
    for _ in 0..15 {
        let mut child = spawn("kill::maker", directory);
        while !again.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(rng.below(15_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path == again {
                continue;
            }
            // Nothing with another name is left, and what has one is a pool.
            assert!(path.file_name().unwrap().to_str().unwrap().starts_with("new-"), "{path:?}");
            assert!(open(&path).volumes().is_empty());
            std::fs::remove_file(&path).unwrap();
        }
        // In place: a pool, or seen not to be one.
        match inspect(&again).unwrap().state {
            InspectionState::Pool => {
                assert_sound(&open(&again));
                whole += 1;
            }
            state => {
                let e = Pool::open(&again, &PoolOptions::default()).unwrap_err();
                assert!([3, 5].contains(&e.exit_code()), "{state:?}: {e}");
                unfinished += 1;
            }
        }
    }
    println!("formatted in place: {whole} whole, {unfinished} unfinished");
}

/// Much memory, which a process that is killed gives back before its locks.
const HELD_BYTES: usize = 1500 << 20;

/// Has a pool, and much memory.
#[test]
#[ignore = "a helper of the test that kills it"]
fn holder() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let memory = std::hint::black_box(vec![1u8; HELD_BYTES]);
    let _pool = open(&dir.join("pool"));
    std::fs::write(dir.join("ready"), []).unwrap();
    std::thread::sleep(Duration::from_secs(60));
    drop(memory);
}

/// A server that was killed is started again at once.
#[test]
fn a_pool_is_opened_once_its_holder_has_been_killed() {
    let dir = Dir::new("ending");
    dir.pool(8);
    if available_bytes() < 2 * HELD_BYTES as u64 {
        forebay_test::skipped!("a holder that ends is not tried: it takes 1500 MiB of memory");
        return;
    }
    for round in 0..3 {
        let ready = dir.path("ready");
        let mut child = spawn("kill::holder", ready.parent().unwrap());
        while !ready.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the holder has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(&ready).unwrap();
        child.kill().unwrap();
        let opened = Pool::open(&dir.path("pool"), &PoolOptions::default());
        child.wait().unwrap();
        opened.unwrap_or_else(|e| panic!("round {round}: {e}")).close().unwrap();
    }
}

fn available_bytes() -> u64 {
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    kib.and_then(|kib| kib.trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}
