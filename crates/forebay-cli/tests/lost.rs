// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a server whose pool's file is removed, replaced, cut short, overwritten or moved says so,
//! acknowledges nothing that only a lost file would have, and writes what it holds to the origins.
//! Method: each of these to a pool with a volume, on each medium, and to one with maps; mounts have
//! tests/mount/lost.sh.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::maps::{crashed, make_map};
use common::nbd::Served;
use common::Bench;
use serde_json::Value;

const EIO: u32 = 5;

struct Way {
    name: &'static str,
    /// In the JSON.
    what: &'static str,
    lose: fn(&Path),
    /// In the table of status and in the log.
    told: &'static str,
}

const LOSSES: [Way; 4] = [
    Way {
        name: "removed",
        what: "removed",
        lose: |pool| fs::remove_file(pool).unwrap(),
        told: "its file was deleted: all that it holds is gone when its server ends",
    },
    Way {
        name: "replaced",
        what: "removed",
        lose: |pool| {
            let new = pool.with_extension("new");
            fs::write(&new, b"another").unwrap();
            fs::rename(new, pool).unwrap();
        },
        told: "its file was deleted, and another file has its path now",
    },
    Way {
        name: "cut short",
        what: "cut-short",
        lose: |pool| {
            let file = fs::File::options().write(true).open(pool).unwrap();
            file.set_len(file.metadata().unwrap().len() - (1 << 20)).unwrap();
        },
        told: "its file was cut short to",
    },
    Way {
        name: "overwritten",
        what: "overwritten",
        lose: |pool| overwrite(pool, &[0; 4096]),
        told: "its file was overwritten: ",
    },
];

/// Puts this over the superblocks, and nothing over what the pool holds.
fn overwrite(pool: &Path, by: &[u8]) {
    let file = fs::File::options().read(true).write(true).open(pool).unwrap();
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).unwrap();
    let places = (0..).map(|n| n * 4096).take_while(|at| *at < 1 << 20);
    let is_one = |at: &u64| {
        let mut found = [0; 8];
        file.read_exact_at(&mut found, *at).unwrap();
        found == magic
    };
    let superblocks: Vec<u64> = places.filter(is_one).collect();
    assert_eq!(superblocks.len(), 2);
    superblocks.iter().for_each(|at| file.write_all_at(by, *at).unwrap());
}

const MOVED: Way = Way {
    name: "moved",
    what: "moved",
    lose: |pool| fs::rename(pool, pool.with_extension("elsewhere")).unwrap(),
    told: "its file was moved",
};

/// A server whose log is in the file, and the descriptor of its pool.
fn served(bench: &Bench) -> (Served, String) {
    let mut command = Served::command(bench, "pool");
    command.stderr(fs::File::create(bench.path("log")).unwrap());
    let served = Served::ready(bench, command).unwrap();
    let pool = fs::canonicalize(bench.path("pool")).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", served.process.id())).unwrap();
    let of_pool = descriptors
        .flatten()
        .map(|entry| entry.path())
        .find(|fd| fs::read_link(fd).is_ok_and(|to| to == pool));
    (served, of_pool.unwrap().display().to_string())
}

fn log_of(bench: &Bench) -> String {
    fs::read_to_string(bench.path("log")).unwrap()
}

/// Loses the file, and waits until status and the log say so.
fn lose(bench: &Bench, fd: &str, way: &Way) {
    (way.lose)(&bench.path("pool"));
    let start = Instant::now();
    let trouble = loop {
        let status = bench.run_ok(&["status", fd, "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        let trouble = &status["file_trouble"];
        if trouble["what"] == way.what {
            break trouble.clone();
        }
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(30), "{}: status says {trouble}", way.name);
        std::thread::sleep(Duration::from_millis(50));
    };
    let way_out = trouble["way_out"].as_str().unwrap();
    assert!(way_out.contains("make a new pool") || way.what == "moved", "{}: {way_out}", way.name);
    let table = bench.run_ok(&["status", fd]).stdout;
    let state = if way.what == "moved" { "MOVED" } else { "LOST" };
    let line = table.lines().find(|line| line.starts_with(state));
    assert!(line.is_some_and(|line| line.contains(way.told)), "{}: {table}", way.name);
    let file = bench.path("figures").display().to_string();
    bench.run_ok(&["exporter", fd, "--textfile", &file]);
    let figures = fs::read_to_string(file).unwrap();
    for (name, value) in [("lost", way.what != "moved"), ("moved", way.what == "moved")] {
        let figure =
            figures.lines().find(|l| l.starts_with(&format!("forebay_pool_file_{name}{{")));
        let value = if value { " 1" } else { " 0" };
        assert!(figure.is_some_and(|f| f.ends_with(value)), "{}: {figure:?}", way.name);
    }
    while !log_of(bench).contains(way.told) {
        assert!(start.elapsed() < Duration::from_secs(30), "{}: {}", way.name, log_of(bench));
        std::thread::sleep(Duration::from_millis(20));
    }
    // By the path that it had.
    let by_path = bench.run(&["status", "pool"]);
    match way.name {
        "removed" | "moved" => {
            assert!(by_path.code == Some(0) && by_path.stdout.contains(state), "{by_path:?}");
            // Another path of the directory.
            let linked = bench.path("linked");
            if !linked.exists() {
                std::os::unix::fs::symlink(".", linked).unwrap();
            }
            let by_link = bench.run(&["status", "linked/pool"]);
            assert!(by_link.code == Some(0) && by_link.stdout.contains(state), "{by_link:?}");
        }
        "replaced" => {
            assert_eq!(by_path.code, Some(3), "{by_path:?}");
            assert!(
                by_path.stderr.contains("serves another pool that had this path"),
                "{by_path:?}"
            );
        }
        _ => assert!(by_path.stdout.contains(state), "{by_path:?}"),
    }
}

fn with_volume(medium: &str) -> Bench {
    let bench = if medium == "ssd" { Bench::on_disk() } else { Bench::new() };
    bench.run_ok(&["create", "pool", "--size", "16M", "--medium", medium]);
    bench.write("v", &[0; 4 << 20]);
    bench.run_ok(&["volume", "add", "pool", "v", "v"]);
    bench
}

#[test]
fn volumes_of_a_lost_pool_take_no_more_and_their_origins_get_everything() {
    for (medium, way) in ["memory", "ssd"].iter().flat_map(|m| LOSSES.iter().map(move |w| (m, w))) {
        let what = format!("{medium}, {}", way.name);
        let bench = with_volume(medium);
        let (mut served, fd) = served(&bench);
        let mut client = served.connect("v");
        assert_eq!((client.write(0, &[7; 4096]), client.flush()), (0, 0), "{what}");
        lose(&bench, &fd, way);
        assert_eq!((client.write(4096, &[8; 4096]), client.flush()), (EIO, EIO), "{what}");
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]), "{what}");
        let start = Instant::now();
        while fs::read(bench.path("v")).unwrap()[..4096] != [7; 4096] {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}: {}", log_of(&bench));
            std::thread::sleep(Duration::from_millis(50));
        }
        let ended = served.stop();
        assert_eq!(ended, Some(20), "{what}: {}", log_of(&bench));
        // Nothing waits for the lost pool.
        bench.run_ok(&["origin", "status", "v"]);
    }
}

/// The origin fails: what it lacks is lost with the pool, and nobody says that it is safe there.
#[test]
fn what_no_origin_takes_of_a_lost_pool_is_told() {
    let [removed, _, cut_short, overwritten] = &LOSSES;
    let ways = [
        (removed, 11, "from a backup"),
        (cut_short, 5, "truncate -s"),
        (overwritten, 11, "from a backup"),
    ];
    for (way, code, way_out) in ways {
        let bench = with_volume("memory");
        let (mut served, fd) = served(&bench);
        assert_eq!(served.connect("v").write(0, &[7; 4096]), 0);
        fs::remove_file(bench.path("v")).unwrap();
        lose(&bench, &fd, way);
        assert_eq!(served.stop(), Some(code), "{}: {}", way.name, log_of(&bench));
        let said = log_of(&bench);
        assert!(said.lines().last().unwrap().contains(way_out), "{}: {said}", way.name);
        assert!(!said.contains("stays safe in the pool"), "{}: {said}", way.name);
    }
}

fn copied(pool: &Path) {
    let copy = fs::read(pool.with_file_name("copy")).unwrap();
    let file = fs::File::options().write(true).open(pool).unwrap();
    file.write_all_at(&copy, 0).unwrap();
}

/// As `cp` does it, which takes its time.
fn cut_and_copied(pool: &Path) {
    let file = fs::File::options().write(true).open(pool).unwrap();
    file.set_len(file.metadata().unwrap().len() - (1 << 20)).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    copied(pool);
}

/// Another pool of the size is copied over it, or an older state of it: no origin gets what lies there
/// now, and the copy is left as it is.
#[test]
fn a_copy_over_a_pool_that_is_served_is_told_and_left_alone() {
    for (older, cut) in [(false, false), (true, false), (true, true)] {
        let bench = with_volume("memory");
        let copy = bench.path("copy");
        if older {
            // A state in which the pool had something of the volume, and one later.
            let (mut before, _) = served(&bench);
            assert_eq!(before.connect("v").write(0, &[6; 4096]), 0);
            before.stop();
            fs::copy(bench.path("pool"), &copy).unwrap();
        } else {
            bench.run_ok(&["create", "copy", "--size", "16M"]);
        }
        let (mut served, fd) = served(&bench);
        let mut client = served.connect("v");
        assert_eq!((client.write(0, &[7; 4096]), client.flush()), (0, 0));
        let name = match (older, cut) {
            (false, _) => "copied over",
            (true, false) => "set back",
            (true, true) => "cut short, then set back",
        };
        let way = Way {
            name,
            what: if older { "set-back" } else { "overwritten" },
            lose: match cut {
                true => |pool| cut_and_copied(pool),
                false => |pool| copied(pool),
            },
            told: if older {
                "an older state of this pool lies there"
            } else {
                "overwritten: pool "
            },
        };
        lose(&bench, &fd, &way);
        assert_eq!((client.write(4096, &[8; 4096]), client.flush()), (EIO, EIO), "{name}");
        if older {
            // It may be older than what was acknowledged.
            assert_eq!(client.read(0, 4096), Err(EIO), "{name}");
            let drained = bench.run(&["drain", &fd]);
            assert!(drained.code != Some(0) && !drained.stdout.contains("alone"), "{drained:?}");
        }
        drop(client);
        assert_eq!(served.stop(), Some(11), "{name}: {}", log_of(&bench));
        assert!(log_of(&bench).lines().last().unwrap().contains("backup"), "{}", log_of(&bench));
        let superblock = |name: &str| fs::read(bench.path(name)).unwrap()[..8192].to_vec();
        assert!(superblock("pool") == superblock("copy"), "{name}: the copy was written over");
        if !older {
            assert_eq!(fs::read(bench.path("v")).unwrap()[..4096], [0; 4096]);
        }
    }
}

#[test]
fn a_pool_that_is_moved_goes_on() {
    for medium in ["memory", "ssd"] {
        let bench = with_volume(medium);
        let (mut served, fd) = served(&bench);
        let mut client = served.connect("v");
        lose(&bench, &fd, &MOVED);
        assert_eq!((client.write(0, &[7; 4096]), client.flush()), (0, 0), "{medium}");
        assert_eq!(served.stop(), Some(0), "{medium}: {}", log_of(&bench));
        bench.run_ok(&["drain", "pool.elsewhere"]);
        assert_eq!(fs::read(bench.path("v")).unwrap()[..4096], [7; 4096], "{medium}");
    }
}

#[test]
fn a_pool_with_maps_that_is_lost_is_told() {
    // The record of the dirty pages is gone, too.
    let all = Way {
        name: "all overwritten",
        what: "overwritten",
        lose: |pool| {
            fs::write(pool, vec![0xa5; fs::metadata(pool).unwrap().len() as usize]).unwrap()
        },
        told: "its file was overwritten: ",
    };
    for way in LOSSES.iter().chain([&MOVED, &all]) {
        let bench = Bench::new();
        make_map(&bench);
        // One that cannot be recovered.
        fs::remove_file(crashed(&bench, "gone")).unwrap();
        let (mut served, fd) = served(&bench);
        lose(&bench, &fd, way);
        let table = bench.run_ok(&["status", &fd]).stdout;
        let salvage = format!("forebay map salvage {} --to DIR", bench.path("pool").display());
        assert_eq!(table.contains(&salvage), way.what == "overwritten", "{}: {table}", way.name);
        if way.name == "overwritten" {
            // Only the superblocks are.
            bench.run_ok(&["map", "salvage", "pool", "--to", "saved"]);
            let saved = fs::read_dir(bench.path("saved/db")).unwrap().flatten();
            let data = saved.map(|entry| entry.path()).find(|path| path.ends_with("0-gone"));
            assert!(fs::read(data.unwrap()).unwrap()[4096..8192] == [7; 4096]);
        }
        let code = match way.what {
            "removed" | "overwritten" => 11,
            "cut-short" => 5,
            _ => 0,
        };
        assert_eq!(served.stop(), Some(code), "{}: {}", way.name, log_of(&bench));
    }
}
