// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool with a map, and what a crash leaves in it: the library makes the state.

use std::path::PathBuf;

use forebay::{Pool, PoolOptions};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::store::{FileRecord, Stamp, Store};
use forebay_map::{PageSet, PoolStore, PAGE, SEGMENT};

use super::Bench;

pub const SIZE: usize = 3 * PAGE;

/// Makes the pool `pool` with the map `db`.
pub fn make_map(bench: &Bench) {
    let sizes = ["--size", "24M", "--chunk-size", "64K", "--maps", "12M"];
    let made = bench.run_ok(&[&["create", "pool"], &sizes[..]].concat());
    assert!(made.stdout.contains("12 MiB for maps"), "{made:?}");
    bench.run_ok(&["map", "add", "pool", "db"]);
}

/// A crash leaves the second page of a file in the pool.
pub fn crashed(bench: &Bench, name: &str) -> PathBuf {
    let path = bench.path(name);
    std::fs::write(&path, vec![0; SIZE]).unwrap();
    let pool = Pool::open(&bench.path("pool"), &PoolOptions::default()).unwrap();
    let store = PoolStore::of(pool.map("db").unwrap()).unwrap();
    let file = RegularFile::open(&path).unwrap();
    let record = FileRecord {
        size: SIZE as u64,
        identity: file.identity().to_owned(),
        path: path.display().to_string(),
        stamp: Stamp::Settled(file.changed().unwrap()),
        ..FileRecord::default()
    };
    let id = store.add_file(&record).unwrap();
    file.mark(store.claim()).unwrap();
    let frame = store.take(id, 0).unwrap().unwrap();
    store.fill(frame, 0, &vec![7; SEGMENT]).unwrap();
    store.show(frame).unwrap();
    store.sync(frame, &PageSet::of(1..2)).unwrap();
    drop(store);
    pool.close().unwrap();
    path
}
