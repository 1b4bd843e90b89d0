// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: data that cannot be written to its file is reported by name and kept, and does not hold up
//! the rest.  It can be copied elsewhere and discarded by order.  Method: a simulated share in
//! which a crash has left pages, with files that are gone, replaced, shorter or locked.
//!
//! These tests find each planted bug of recovery.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{discard, left, open_of, recover, recover_some, salvage, Left, Options, Report};
use forebay::{FileMark, FoundMark, MapClaim, Mark, Uuid};

use crate::backing::{Backing, RegularFile};
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{plant, Planted};
use crate::simulated::Machine;
use crate::store::{FileRecord, Stamp, Store};
use crate::system;
use crate::tests::alone;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = Path::new("/dev/shm").join(format!("fby-left-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory in /dev/shm");
        Place(dir)
    }

    /// Makes a file of zeroes.
    fn file(&self, name: &str, pages: usize) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, vec![0; pages * PAGE]).expect("a file");
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Result<Box<dyn Backing>> {
    Ok(Box::new(RegularFile::open(path)?))
}

/// Leaves pages of the first segment in the share as a crash does.  Each page is full of
/// `byte`.
fn crashed(machine: &Arc<Machine>, path: &Path, pages: &[usize], byte: u8) -> u32 {
    let file = RegularFile::open(path).expect("it is there");
    let record = FileRecord {
        size: file.size().expect("its size"),
        identity: file.identity().to_owned(),
        path: path.display().to_string(),
        stamp: Stamp::Settled(file.changed().expect("its time")),
        ..FileRecord::default()
    };
    let id = machine.add_file(&record).expect("a record");
    if pages.is_empty() {
        return id;
    }
    file.mark(machine.claim()).expect("marked");
    let frame = machine.take(id, 0).expect("a frame").expect("one is free");
    let mut set = PageSet::EMPTY;
    pages.iter().for_each(|&page| set.insert(page..page + 1));
    machine.fill(frame, 0, &vec![byte; SEGMENT]).expect("filled");
    machine.show(frame).expect("shown");
    machine.sync(frame, &set).expect("synced");
    id
}

fn pages_with(path: &Path, byte: u8) -> Vec<usize> {
    let content = std::fs::read(path).expect("the file");
    let pages = content.chunks(PAGE).enumerate();
    pages.filter(|(_, p)| p.iter().all(|&b| b == byte)).map(|(i, _)| i).collect()
}

fn home(machine: &Arc<Machine>) -> Report {
    recover(&**machine, open).expect("a recovery")
}

fn only_left(machine: &Arc<Machine>) -> Left {
    let mut all = left(&**machine).expect("a list");
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Follows the way out of a refusal: salvages the pages and then discards them.
fn way_out(machine: &Arc<Machine>, place: &Place, pages: usize) {
    let l = only_left(machine);
    let saved = salvage(&**machine, &l, &place.0.join("saved")).expect("salvaged");
    assert_eq!(saved.pages, pages, "{saved:?}");
    let list = std::fs::read_to_string(&saved.list).expect("a list");
    assert!(list.contains("dirty 4096 4096") || pages == 0, "{list}");
    assert_eq!(pages_with(&saved.data, 7).len(), pages);
    assert!(salvage(&**machine, &l, &place.0.join("saved")).is_err(), "nothing is overwritten");
    discard(&**machine, &open, &l).expect("given up");
    assert!(machine.is_empty());
}

#[test]
fn a_damaged_record_keeps_its_own_pages_and_no_others() {
    let _alone = alone();
    let place = Place::new("record");
    let machine = Machine::new(4, &[0], []);
    let (a, b) = (place.file("a", 3), place.file("b", 3));
    let id = crashed(&machine, &a, &[1], 7);
    crashed(&machine, &b, &[0, 2], 9);
    machine.spoil_record(id);
    let report = home(&machine);
    assert_eq!((report.files, report.pages, report.refused.len()), (1, 2, 1), "{report:?}");
    assert_eq!(pages_with(&b, 9), [0, 2]);
    let refused = &report.refused[0];
    assert_eq!(refused.name, Path::new("#1"));
    assert!(refused.why.contains("record") && refused.pages == 1, "{refused:?}");
    assert!(pages_with(&a, 7).is_empty());
    way_out(&machine, &place, 1);
}

#[test]
fn a_lost_page_is_reported_and_the_rest_is_written_back() {
    let _alone = alone();
    let place = Place::new("page");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 6);
    crashed(&machine, &a, &[0, 1, 2, 3, 5], 7);
    machine.spoil_page(0, 2);
    machine.spoil_page(0, 5);
    for _ in 0..2 {
        let report = home(&machine);
        assert_eq!(report.refused.len(), 1, "{report:?}");
        let said = &report.refused[0].why;
        assert!(said.contains("2 pages, the first at byte 8192"), "{said}");
        assert_eq!(pages_with(&a, 7), [0, 1, 3]);
        assert_eq!(only_left(&machine).dirty, 2, "what is home is not kept");
    }
    let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved")).expect("saved");
    assert_eq!((saved.pages, saved.lost), (0, 2));
    assert!(std::fs::read_to_string(saved.list).expect("a list").contains("lost 8192 4096"));
    discard(&*machine, &open, &only_left(&machine)).expect("given up");
    assert!(machine.is_empty());
}

#[test]
fn a_truncation_in_a_lost_page_is_reported_and_the_rest_is_written_back() {
    let _alone = alone();
    let place = Place::new("cut");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 6);
    let id = crashed(&machine, &a, &[0, 1, 3, 5], 7);
    machine.spoil_page(0, 3);
    Store::cut(&*machine, id, 3 * PAGE as u64 + 100).expect("it counts from then on");
    for _ in 0..2 {
        let report = home(&machine);
        assert_eq!(report.refused.len(), 1, "{report:?}");
        let said = &report.refused[0].why;
        assert!(
            said.contains("truncation cannot be ended") && said.contains("byte 12288"),
            "{said}"
        );
        assert_eq!(pages_with(&a, 7), [0, 1]);
        assert_eq!(std::fs::metadata(&a).expect("the file").len(), 3 * PAGE as u64 + 100);
        let left = only_left(&machine);
        assert!(left.dirty == 2 && left.record.is_some_and(|r| r.cut));
    }
    let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved")).expect("saved");
    assert_eq!((saved.pages, saved.lost), (0, 1), "what was cut off is not copied");
    discard(&*machine, &open, &only_left(&machine)).expect("given up");
    assert!(machine.is_empty());
    // If that page is clean, recovery does not read it.
    let b = place.file("b", 6);
    let id = crashed(&machine, &b, &[0, 1, 5], 9);
    machine.spoil_page(0, 3);
    Store::cut(&*machine, id, 3 * PAGE as u64 + 100).expect("it counts from then on");
    assert!(home(&machine).refused.is_empty() && machine.is_empty());
    assert_eq!(pages_with(&b, 9), [0, 1]);
}

#[test]
fn names_and_numbers_of_any_kind_are_salvaged() {
    let _alone = alone();
    let place = Place::new("names");
    let machine = Machine::new(4, &[0], []);
    for name in ["\u{6f22}".repeat(85), "x".repeat(255), "a b\u{1}".into()] {
        let path = place.file(&name, 3);
        crashed(&machine, &path, &[1], 7);
        let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved"));
        assert_eq!(saved.expect(&name).pages, 1);
        discard(&*machine, &open, &only_left(&machine)).expect("given up");
    }
    // The record cannot be read, and the segments are numbers that no file can have.  No page
    // may overwrite another.
    let id = crashed(&machine, &place.file("a", 3), &[1], 7);
    let mut pages = PageSet::EMPTY;
    pages.insert(2..3);
    for (byte, segment) in [(8, 1 << 43), (9, u64::MAX / SEGMENT as u64 + 2)] {
        let frame = machine.take(id, segment).expect("a frame").expect("one is free");
        machine.fill(frame, 0, &vec![byte; SEGMENT]).expect("filled");
        machine.show(frame).expect("shown");
        machine.left_dirty_now(frame, &pages);
    }
    machine.spoil_record(id);
    let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved")).expect("saved");
    assert_eq!(saved.pages, 3, "{saved:?}");
    assert_eq!(pages_with(&saved.data, 7), [1]);
    assert_eq!((pages_with(&saved.data, 8).len(), pages_with(&saved.data, 9).len()), (1, 1));
    let list = std::fs::read_to_string(saved.list).expect("a list");
    assert_eq!(list.lines().filter(|l| l.starts_with("moved ")).count(), 2, "{list}");
}

/// A damaged record may give an end before pages of the file.
fn pages_behind_the_end_are_salvaged() -> std::result::Result<(), String> {
    let place = Place::new("behind");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[0, 1], 7);
    machine.left_dirty_now(0, &PageSet::of(4..6));
    let report = home(&machine);
    assert_eq!(pages_with(&a, 7), [0, 1], "the others are home");
    assert!(report.refused[0].why.contains("2 pages are after its end"), "{report:?}");
    let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved")).expect("saved");
    assert_eq!(saved.pages, 2);
    let list = std::fs::read_to_string(&saved.list).expect("a list");
    assert_eq!(list, "dirty 16384 8192\n");
    match pages_with(&saved.data, 7)[..] {
        [4, 5] => {}
        ref found => return Err(format!("pages behind the end: {found:?}")),
    }
    // The file ends inside its last page: the copy ends there too.
    discard(&*machine, &open, &only_left(&machine)).expect("given up");
    let b = place.file("b", 3);
    let shorter = std::fs::OpenOptions::new().write(true).open(&b).expect("the file");
    shorter.set_len(9000).expect("shorter");
    crashed(&machine, &b, &[2], 7);
    let saved = salvage(&*machine, &only_left(&machine), &place.0.join("saved")).expect("saved");
    assert_eq!(std::fs::metadata(&saved.data).expect("there").len(), 9000);
    Ok(())
}

#[test]
fn salvaged_pages_do_not_overlap() {
    let _alone = alone();
    let place = Place::new("same");
    let machine = Machine::new(3, &[0], []);
    let id = crashed(&machine, &place.file("a", 3), &[1], 7);
    // Another frame claims the same segment.
    let frame = machine.take(id, 1).expect("a frame").expect("one is free");
    machine.fill(frame, 0, &vec![8; SEGMENT]).expect("filled");
    machine.show(frame).expect("shown");
    machine.left_dirty_now(frame, &PageSet::of(1..2));
    let mut left = only_left(&machine);
    left.frames[1].1 = 0;
    let saved = salvage(&*machine, &left, &place.0.join("saved")).expect("saved");
    assert_eq!((saved.pages, &pages_with(&saved.data, 7)[..]), (2, &[1][..]));
    assert_eq!(pages_with(&saved.data, 8).len(), 1);
    // The size is larger than this file system allows.
    if let Some(record) = &mut left.record {
        record.size = u64::MAX;
    }
    let saved = salvage(&*machine, &left, &place.0.join("large")).expect("saved");
    assert_eq!(saved.pages, 2);
}

fn a_gone_file_keeps_its_pages() -> std::result::Result<(), String> {
    let place = Place::new("gone");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[1], 7);
    std::fs::remove_file(&a).expect("it was there");
    let report = home(&machine);
    match &report.refused[..] {
        [r] if r.why.contains("does not exist") => way_out(&machine, &place, 1),
        other => return Err(format!("a gone file: {other:?}")),
    }
    // A record without data is freed.
    let b = place.file("b", 3);
    crashed(&machine, &b, &[], 0);
    std::fs::remove_file(&b).expect("it was there");
    let report = home(&machine);
    assert!(report.refused.is_empty() && machine.is_empty(), "{report:?}");
    Ok(())
}

/// A program may rename a directory in which it has a file open.  Recovery looks there, but
/// only along the components of the path.
fn a_file_is_found_whose_directory_was_renamed() -> std::result::Result<(), String> {
    let place = Place::new("renamed");
    let machine = Machine::new(3, &[0], []);
    let deep = place.0.join("x/y/z");
    std::fs::create_dir_all(&deep).expect("directories");
    let names = ["x/y/z/file", "x/w/z/file", "v/w/z/file", "v/w/z/other"];
    for (i, (was, is)) in names.iter().zip(&names[1..]).enumerate() {
        let was = place.file(was, 3);
        // Other files with the same name.
        std::fs::create_dir_all(place.0.join("a/z")).expect("a directory");
        place.file("a/z/file", 3);
        crashed(&machine, &was, &[i], 7);
        // The component that differs.
        let part = |path: &str| {
            let n = names[i].split('/').zip(is.split('/')).position(|(a, b)| a != b)?;
            Some(path.split('/').take(n + 1).collect::<Vec<_>>().join("/"))
        };
        let (from, to) = (part(names[i]).expect("one"), part(is).expect("one"));
        std::fs::rename(place.0.join(from), place.0.join(to)).expect("renamed");
        let report = home(&machine);
        let now = place.0.join(is);
        if !report.refused.is_empty() || pages_with(&now, 7) != [i] {
            return Err(format!("{is}: {report:?}"));
        }
        assert!(machine.is_empty());
    }
    let moved = place.file("v/w/z/moved", 3);
    crashed(&machine, &moved, &[1], 7);
    std::fs::create_dir_all(place.0.join("elsewhere/b")).expect("directories");
    std::fs::rename(&moved, place.0.join("elsewhere/b/c")).expect("renamed");
    let report = home(&machine);
    assert!(report.refused.len() == 1 && report.refused[0].why.contains("does not exist"));
    Ok(())
}

fn another_file_of_the_name_is_left_alone() -> std::result::Result<(), String> {
    let place = Place::new("another");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[1], 7);
    let other = place.file("other", 3);
    std::fs::rename(&other, &a).expect("renamed");
    // No option makes recovery take another file.
    let accept = Options { accept: true, ..Options::default() };
    let report = recover_some(&*machine, &open, &accept, &mut |_| {}).expect("a recovery");
    if report.refused.len() != 1 || !report.refused[0].why.contains("another") {
        return Err(format!("another file: {report:?}"));
    }
    assert!(pages_with(&a, 7).is_empty());
    way_out(&machine, &place, 1);
    Ok(())
}

fn a_shorter_file_is_refused() -> std::result::Result<(), String> {
    let place = Place::new("shorter");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[1], 7);
    let shorter = std::fs::OpenOptions::new().write(true).open(&a).expect("the file");
    shorter.set_len(5).expect("shorter");
    let report = home(&machine);
    if report.refused.len() != 1 || !report.refused[0].why.contains("5 bytes, and had 12288") {
        return Err(format!("a shorter file: {report:?}"));
    }
    way_out(&machine, &place, 1);
    Ok(())
}

fn store_to(path: &Path) {
    use std::os::unix::fs::FileExt;
    // The clock of the file system advances in steps.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let other = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
    other.write_all_at(b"others", 0).expect("written");
}

fn a_file_that_others_changed_is_refused() -> std::result::Result<(), String> {
    let place = Place::new("changed");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[1, 2], 7);
    store_to(&a);
    let report = home(&machine);
    if report.refused.len() != 1 || !report.refused[0].why.contains("changed by others") {
        return Err(format!("a changed file: {report:?}"));
    }
    assert!(pages_with(&a, 7).is_empty());
    // With either option of the user.
    let accept = Options { accept: true, ..Options::default() };
    let report = recover_some(&*machine, &open, &accept, &mut |_| {}).expect("by order");
    assert!(report.refused.is_empty() && machine.is_empty(), "{report:?}");
    assert_eq!(pages_with(&a, 7), [1, 2]);

    // A write-back of our own was under way, which is not a change by others.  A change much
    // later is.
    let b = place.file("b", 3);
    let id = crashed(&machine, &b, &[1], 7);
    let now = RegularFile::open(&b).and_then(|f| f.changed().map_err(|_| unreachable!()));
    let now = now.expect("its time");
    machine.set_stamp(id, Stamp::Changing((now.0 - 60, 0))).expect("stamped");
    assert_eq!(home(&machine).refused.len(), 1);
    machine.set_stamp(id, Stamp::Changing((now.0 - 2, 0))).expect("stamped");
    assert!(home(&machine).refused.is_empty() && machine.is_empty());
    Ok(())
}

/// Without the mark the pages may be old.  A mark of another pool keeps this pool away.
fn a_file_without_the_mark_is_refused() -> std::result::Result<(), String> {
    let place = Place::new("unmarked");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[1], 7);
    let bear = |by: Option<&MapClaim>| {
        let file = RegularFile::open(&a).expect("the file");
        by.map_or_else(|| file.unmark(), |by| file.mark(by)).expect("its mark");
    };
    let claim = machine.claim().clone();
    let others = [
        (None, "and that is gone"),
        (Some(MapClaim { pool: Uuid([9; 16]), ..claim.clone() }), "that map m of pool 0909"),
        (Some(MapClaim { map: "other".into(), ..claim.clone() }), "that map other of pool"),
        (Some(MapClaim { generation: 4, ..claim.clone() }), "an older copy"),
        (Some(MapClaim { uuid: Uuid([1; 16]), ..claim.clone() }), "is another one now"),
    ];
    for (other, why) in others {
        bear(other.as_ref());
        let marked = |file: &Path| RegularFile::open(file).map(|f| f.marked().expect("a look"));
        // A mark that another map set must stay, since it speaks of that map's pages.
        let before = marked(&a).expect("the file");
        let ours = matches!(&before, FoundMark::Marked(m) if claim.has_set(m));
        let file = RegularFile::open(&a).expect("the file");
        super::unmark(&*machine, &file).expect("a look");
        drop(file);
        if !ours && marked(&a).expect("the file") != before {
            return Err(format!("{why}: a mark of another was taken away"));
        }
        bear(other.as_ref());
        let report = home(&machine);
        if report.refused.len() != 1 || !report.refused[0].why.contains(why) {
            return Err(format!("{why}: {report:?}"));
        }
    }
    // Marks of a volume with that name, and of a map in the old form without a UUID.
    let put = |change: &dyn Fn(&mut Mark)| {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(&a);
        let file = opened.expect("the file");
        let to = FileMark::of(file.as_fd()).expect("its place");
        let mut mark = claim.mark(&to.name());
        change(&mut mark);
        to.put(&mark).expect("its mark");
    };
    put(&|mark| mark.map = false);
    let report = home(&machine);
    if !report.refused.iter().any(|r| r.why.contains("that volume m of pool")) {
        return Err(format!("a volume's mark: {report:?}"));
    }
    put(&|mark| mark.volume_uuid = None);
    let trial = Options { dry_run: true, ..Options::default() };
    let report = recover_some(&*machine, &open, &trial, &mut |_| {}).expect("a trial");
    assert_eq!((report.pages, report.refused.len()), (1, 0), "a mark without a UUID");
    bear(Some(&MapClaim { generation: 2, ..claim.clone() }));
    assert!(home(&machine).refused.is_empty() && machine.is_empty());
    let file = RegularFile::open(&a).expect("the file");
    assert_eq!(file.marked().expect("a look"), FoundMark::Nothing);
    Ok(())
}

/// The record of a mapped file stays, even if no page is dirty.
fn a_record_is_freed_by_who_has_the_file() -> std::result::Result<(), String> {
    let place = Place::new("locked");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[], 0);
    let other = RegularFile::open(&a).expect("somebody has it");
    let report = home(&machine);
    if report.refused.len() != 1 || machine.is_empty() {
        return Err(format!("a locked file: {report:?}"));
    }
    let all = left(&*machine).expect("a list");
    assert!(discard(&*machine, &open, &all[0]).is_err(), "nor is it given up");
    drop(other);
    let report = home(&machine);
    assert!(report.refused.is_empty() && machine.is_empty(), "{report:?}");
    Ok(())
}

/// Another process has a lease of one file in the directory.  An open would wait and break the
/// lease.
#[test]
fn files_next_to_a_renamed_one_are_left_alone() {
    let _alone = alone();
    let place = Place::new("leased");
    let machine = Machine::new(1, &[0], []);
    let file = place.file("was", 3);
    crashed(&machine, &file, &[1], 7);
    std::fs::rename(&file, place.0.join("is")).expect("renamed");
    let others = ["aa", "bb", "cc"].map(|name| {
        let other = std::fs::OpenOptions::new().read(true).write(true).open(place.file(name, 1));
        let other = other.expect("a file");
        system::lease(other.as_fd()).expect("a lease");
        other
    });
    let begun = std::time::Instant::now();
    let report = home(&machine);
    assert!(report.refused.is_empty() && machine.is_empty(), "{report:?}");
    assert_eq!(pages_with(&place.0.join("is"), 7), [1]);
    assert!(others.iter().all(|other| system::has_lease(other.as_fd())), "a lease is broken");
    assert!(begun.elapsed().as_secs() < 20, "it has waited {:?}", begun.elapsed());
}

/// Another process has the file locked for a moment.  The file at its old path says nothing of it,
/// locked or not.
#[test]
fn a_renamed_file_that_is_locked_is_not_taken_for_gone() {
    let _alone = alone();
    for other_is_locked in [false, true] {
        let place = Place::new("renamed-locked");
        let machine = Machine::new(1, &[0], []);
        let was = place.file("was", 3);
        crashed(&machine, &was, &[1], 7);
        let is = place.0.join("is");
        std::fs::rename(&was, &is).expect("renamed");
        place.file("was", 3);
        let record = only_left(&machine).record.expect("a record");
        let other = other_is_locked.then(|| RegularFile::open(&was).expect("it is there"));
        let lock = RegularFile::open(&is).expect("it is there");
        let found = open_of(&open, &record);
        assert!(matches!(&found, Err(Error::Locked { path, .. }) if *path == is), "{found:?}");
        let why = &home(&machine).refused[0].why;
        assert!(why.contains("locked"), "{why}");
        drop(lock);
        assert!(home(&machine).refused.is_empty() && machine.is_empty());
        assert_eq!((pages_with(&is, 7), pages_with(&was, 7)), (vec![1], vec![]));
        drop(other);
    }
}

type Test = fn() -> std::result::Result<(), String>;

#[test]
fn data_that_cannot_be_written_back_is_kept() {
    let _alone = alone();
    let tests: [(Test, Planted); 8] = [
        (a_file_is_found_whose_directory_was_renamed, Planted::RenamedGone),
        (a_file_that_others_changed_is_refused, Planted::ChangedTaken),
        (a_file_without_the_mark_is_refused, Planted::UnmarkedTaken),
        (a_gone_file_keeps_its_pages, Planted::GoneDropped),
        (another_file_of_the_name_is_left_alone, Planted::AnotherTaken),
        (a_shorter_file_is_refused, Planted::ShorterTaken),
        (a_record_is_freed_by_who_has_the_file, Planted::RecordFreedEarly),
        (pages_behind_the_end_are_salvaged, Planted::SalvageCutOff),
    ];
    for (test, mistake) in tests {
        test().expect("it is kept");
        plant(Some(mistake));
        let found = test();
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {found}");
    }
}

/// Pages that are in the file count, also if the record cannot be removed.
#[test]
fn a_recovery_whose_last_step_fails_says_what_it_has_done() {
    let _alone = alone();
    let place = Place::new("last");
    let machine = Machine::new(2, &[0], []);
    let a = place.file("a", 3);
    crashed(&machine, &a, &[0, 2], 7);
    machine.fail_remove();
    let report = home(&machine);
    assert_eq!(pages_with(&a, 7), [0, 2]);
    assert_eq!((report.pages, report.files), (2, 0), "{report:?}");
    assert_eq!(report.refused.iter().map(|r| r.pages).collect::<Vec<_>>(), [0], "{report:?}");
    let report = home(&machine);
    assert!(report.refused.is_empty() && machine.is_empty(), "{report:?}");
}

#[test]
fn a_dry_run_changes_nothing_and_some_files_are_recovered_alone() {
    let _alone = alone();
    let place = Place::new("some");
    let machine = Machine::new(4, &[0], []);
    let (a, b) = (place.file("a", 3), place.file("b", 3));
    crashed(&machine, &a, &[1], 7);
    crashed(&machine, &b, &[0, 2], 9);
    let trial = Options { dry_run: true, ..Options::default() };
    let report = recover_some(&*machine, &open, &trial, &mut |_| {}).expect("a trial");
    assert_eq!((report.files, report.pages), (2, 3));
    assert!(pages_with(&a, 7).is_empty() && pages_with(&b, 9).is_empty());
    let only = [b.clone()];
    let some = Options { only: &only, ..Options::default() };
    let mut told = Vec::new();
    let report = recover_some(&*machine, &open, &some, &mut |p| told.push((p.done, p.of)));
    assert_eq!(report.expect("of one").pages, 2);
    assert_eq!(told, [(0, 2), (2, 2)]);
    assert!(pages_with(&a, 7).is_empty() && pages_with(&b, 9) == [0, 2]);
    assert_eq!(only_left(&machine).name(), a.display().to_string());
    assert!(only_left(&machine).is_named(Path::new("#1")));
}

/// The file has its promised size, so changes by others lose nothing.
#[test]
fn a_complete_file_is_released_even_if_others_changed_it() {
    let _alone = alone();
    let place = Place::new("whole");
    let machine = Machine::new(1, &[0], []);
    let path = place.file("a", 2);
    let id = crashed(&machine, &path, &[], 0);
    assert!(machine.set_ahead(id, 2 * PAGE as u64).expect("told"));
    RegularFile::open(&path).expect("it is there").mark(machine.claim()).expect("marked");
    std::thread::sleep(std::time::Duration::from_millis(20));
    store_to(&path);
    let home = home(&machine);
    assert!(home.refused.is_empty() && machine.is_empty(), "{home:?}");
    let after = RegularFile::open(&path).expect("it is there");
    assert!(matches!(after.marked(), Ok(FoundMark::Nothing)), "its mark is gone");
}
