// SPDX-License-Identifier: MIT OR Apache-2.0
//! On a plain file, past the page cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::{Durable, GroupedMedium, GroupedOptions};
use super::bed::{blank, found_on, options, room, Bed};
use super::model::Model;
use crate::error::{Error, Result};
use crate::medium::MediumFacts;

pub(super) struct Temporary(pub PathBuf);

impl Temporary {
    /// Makes a file on the file system for temporary files, and writes all of it once.
    fn new(name: &str) -> Temporary {
        Temporary::of(name, blank())
    }

    pub fn of(name: &str, content: Vec<u8>) -> Temporary {
        let path = std::env::temp_dir().join(format!("fby-{name}-{}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn open(path: &Path, durable: Option<Durable>) -> Result<GroupedMedium> {
    GroupedMedium::open(path, &GroupedOptions { durable, ..Default::default() })
}

/// A refusal of the machine's own temporary directory (btrfs, overlay, a network) skips the test.
pub(super) fn on_a_disk(opened: Result<GroupedMedium>) -> Option<GroupedMedium> {
    match opened {
        Err(e @ Error::Unsupported { .. }) => {
            forebay_test::skipped!("the temporary directory is no place for a grouped pool: {e}");
            None
        }
        opened => Some(opened.unwrap()),
    }
}

#[test]
fn entries_of_many_threads_are_in_the_file() {
    for durable in [None, Some(Durable::Flush)] {
        let file = Temporary::new("grouped");
        let Some(medium) = on_a_disk(open(&file.0, durable)) else { return };
        let bed = Bed::new(medium, 2).unwrap();
        std::thread::scope(|s| {
            for thread in 0..16u64 {
                let bed = &bed;
                s.spawn(move || {
                    for n in 0..10 {
                        bed.append_durable(thread as usize % 2, thread << 32 | n, 500).unwrap();
                    }
                });
            }
        });
        assert_eq!(bed.lost(), 0);
        // As a process that dies: nothing is closed.
        drop(bed);
        let found = found_on(&open(&file.0, durable).unwrap(), 2);
        assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 160);
    }
}

#[test]
fn a_file_has_one_user() {
    let file = Temporary::new("claimed");
    let Some(first) = on_a_disk(open(&file.0, None)) else { return };
    for read_only in [false, true] {
        let o = GroupedOptions { read_only, ..Default::default() };
        let e = GroupedMedium::open(&file.0, &o).unwrap_err();
        assert_eq!(e.exit_code(), 4, "{e}");
    }
    drop(first);
    open(&file.0, None).unwrap();
}

/// Bytes of the file without blocks of its own that were written.
fn unfit(path: &Path) -> u64 {
    let file = MediumFacts::of(path).unwrap().file.unwrap();
    file.hole_bytes.unwrap() + file.unwritten_bytes.unwrap() + file.shared_bytes.unwrap()
}

/// A sparse copy of a pool's file, and one that shares its blocks: each is opened, as is the
/// original, and has blocks of its own then, with what they held.
#[test]
fn a_copy_gets_blocks_of_its_own() {
    let file = Temporary::new("copied");
    let Some(medium) = on_a_disk(open(&file.0, None)) else { return };
    let bed = Bed::new(medium, 1).unwrap();
    (0..20).for_each(|n| bed.append_durable(0, n, 500).unwrap());
    bed.sender.close().unwrap();
    drop(bed);
    let mended = |notes: &str| notes.contains("were filled") || notes.contains("are its own now");
    let check = |path: &Path, how: &str| {
        let medium = open(path, None).unwrap_or_else(|e| panic!("{how}: {e}"));
        let (notes, left) = (medium.notes().join("; "), unfit(path));
        assert!(left == 0 && mended(&notes), "{how}: {left} bytes, {notes}");
        assert_eq!(found_on(&medium, 1)[0].len(), 20, "{how}");
        // It is mended once.
        drop(medium);
        assert!(!mended(&open(path, None).unwrap().notes().join("; ")), "{how}");
    };
    let sparse = "--sparse=always --reflink=never";
    for (how, original) in
        [(sparse, false), ("--reflink=always", false), ("--reflink=always", true)]
    {
        let copy = Temporary(file.0.with_extension("copy"));
        let words = how.split(' ');
        let copied = Command::new("cp").args(words).args([&file.0, &copy.0]).output().unwrap();
        if !copied.status.success() {
            assert!(how.contains("reflink=always"), "{copied:?}");
            continue;
        }
        std::fs::File::open(&copy.0).unwrap().sync_all().unwrap();
        let opened = if original { &file.0 } else { &copy.0 };
        assert!(unfit(opened) > 0, "{how}");
        check(opened, how);
    }
}

fn read_only() -> GroupedOptions {
    GroupedOptions { read_only: true, ..Default::default() }
}

/// Commands that only look, as status and the exporter, do not keep a consumer from opening.
#[test]
fn a_reader_is_waited_for() {
    let file = Temporary::new("waited");
    let Some(first) = on_a_disk(open(&file.0, None)) else { return };
    drop(first);
    waited_for(&file.0);
    match forebay_test::Loop::attach(&file.0, &[]) {
        Ok(device) => waited_for(device.path()),
        Err(e) => forebay_test::skipped!("no loop device: {e}"),
    }
}

fn waited_for(path: &Path) {
    const KEPT: Duration = Duration::from_millis(400);
    for write in [true, false] {
        let reader = GroupedMedium::open(path, &read_only()).unwrap();
        let began = Instant::now();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(KEPT);
            drop(reader);
        });
        let opened =
            GroupedMedium::open(path, &GroupedOptions { read_only: !write, ..read_only() });
        let took = began.elapsed();
        ends.join().unwrap();
        opened.unwrap_or_else(|e| panic!("{}, write {write}: {e}", path.display()));
        assert!(!write || took >= KEPT, "{took:?}");
    }
    // A writer is not.
    let writer = open(path, None).unwrap();
    let began = Instant::now();
    let e = open(path, None).unwrap_err();
    assert_eq!(e.exit_code(), 4, "{e}");
    assert!(began.elapsed() < Duration::from_secs(5), "{e}");
    drop(writer);
}

#[test]
fn what_cannot_keep_the_promise_is_refused_by_name() {
    let file = Temporary::new("refused");
    let Some(medium) = on_a_disk(open(&file.0, None)) else { return };
    drop(medium);
    let e = open(&file.0, Some(Durable::Through)).unwrap_err();
    assert!(matches!(e, Error::Usage { .. }) && e.to_string().contains("it is a file"), "{e}");
    std::fs::File::options().write(true).open(&file.0).unwrap().set_len(64 << 20).unwrap();
    let new = GroupedOptions { new: true, ..Default::default() };
    let e = GroupedMedium::open(&file.0, &new).unwrap_err();
    assert!(e.to_string().contains("(holes)"), "{e}");
    assert_eq!(e.exit_code(), 10, "{e}");
    let missing = file.0.with_extension("missing");
    assert!(open(&missing, None).is_err());
    // Only to be read, it is opened, and nothing is written.
    let o = GroupedOptions { read_only: true, ..Default::default() };
    let medium = GroupedMedium::open(&file.0, &o).unwrap();
    let read = forebay_engine::sys::fby_options { read_only: true, ..options() };
    let e = medium.open_pool(&read, 1).unwrap_err();
    assert!(matches!(e, Error::NotAPool { .. }), "{e}");
}

/// Figures of this machine's disk and of a slow one, for people: `cargo test -p forebay --lib --
/// --ignored --nocapture grouped_figures`.
#[test]
#[ignore = "measures"]
fn grouped_figures() {
    let file = Temporary::of("figures", room(512));
    let Some(medium) = on_a_disk(open(&file.0, None)) else { return };
    figures("file", &Bed::new(medium, 1).unwrap(), 2400);
    let model = Arc::new(Model::new(room(512), Durable::Flush, 20, 1500));
    figures("1.5 ms", &Bed::on(&model, Durable::Flush, 1), 800);
}

fn figures(what: &str, bed: &Bed, n: u64) {
    for threads in [1, 4, 16] {
        let (before, held) = (bed.engine.medium_info(), bed.sender.counts().held);
        let began = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| {
                    (0..n / threads).for_each(|n| bed.append_durable(0, n, 4096 - 128).unwrap())
                });
            }
        });
        let took = began.elapsed().as_secs_f64();
        let (after, n) = (bed.engine.medium_info(), n as f64);
        println!(
            "{what}, {threads} threads: {:.0}/s; an append: {:.3} writes, {:.3} flushes, {:.0} bytes; {} groups, {} held",
            n / took,
            (after.writes - before.writes) as f64 / n,
            (after.flushes - before.flushes) as f64 / n,
            (after.written_bytes - before.written_bytes) as f64 / n,
            after.groups - before.groups,
            bed.sender.counts().held - held,
        );
    }
}
