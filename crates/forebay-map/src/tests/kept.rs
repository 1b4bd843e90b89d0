// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: what a dead process had stored and not synced is kept, and recovery refuses nothing for
//! that reason, also if the machine dies in between.  A file that was given up, or has another's
//! mark, stays as it is.  Method: a process stores to a file of a simulated machine.  Its stores are
//! kept once, the power is cut or not, and the file is recovered on a full disk.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use forebay::{FoundMark, MapClaim, Uuid};

use super::alone;
use super::several::cache;
use crate::planted::{plant, Planted};
use crate::recover::{keep_stores, recover, Report};
use crate::simulated::{open, Machine, Random};
use crate::store::Store;
use crate::{Cache, Features, MapFile, PAGE, SEGMENT};

const ONE: u64 = SEGMENT as u64;

/// A file with one segment, and room for three.  The cache must live as long as the file.
fn begin() -> (Arc<Machine>, Cache, MapFile) {
    let machine = Machine::new(4, &[ONE], []);
    let cache = cache(&machine, &Features::detect(machine.memory(), 0));
    let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
    (machine, cache, file)
}

fn keep(machine: &Arc<Machine>) -> crate::Result<usize> {
    let id = machine.files().expect("files")[0].0;
    keep_stores(&**machine, id, &*machine.file(0))
}

/// The machine after a recovery.  `killed`: it has not stopped before.
fn after(machine: &Arc<Machine>, seed: u64, killed: bool) -> (Arc<Machine>, Report) {
    let after = machine.cut(|| ()).machine(&mut Random(seed), killed, &[]);
    let report = recover(&*after, open(&after)).expect("a recovery");
    (after, report)
}

/// The blocks of a page that is kept must be durable: recovery may find a full disk.  They were
/// missing, or the dead process had asked for them and not waited until they were durable.
fn holes(asked: bool, elsewhere: bool) -> Result<(), String> {
    for seed in 0..8 {
        for killed in [true, false] {
            let (machine, _cache, file) = begin();
            machine.marks_elsewhere.store(elsewhere, Ordering::SeqCst);
            file.set_size(3 * ONE).expect("longer, by holes");
            if asked {
                file.allocate(ONE, 2 * ONE).expect("blocks");
            }
            for at in [ONE, 2 * ONE] {
                file.store(at, &[2]);
            }
            keep(&machine).expect("kept");
            assert_eq!(machine.syncs_and_blocks(0).1, 3 * SEGMENT / PAGE);
            let (after, report) = after(&machine, seed, killed);
            let content = after.content(0);
            let found = [SEGMENT, 2 * SEGMENT].map(|at| content.get(at).copied());
            if !report.refused.is_empty() || found != [Some(2); 2] {
                return Err(format!("seed {seed}, killed: {killed}: {found:?}, {report:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn blocks_of_what_is_kept_are_durable() {
    let _alone = alone();
    for (asked, elsewhere) in [(false, false), (false, true), (true, false)] {
        holes(asked, elsewhere).expect("they are durable");
        plant(Some(Planted::BlocksNotSynced));
        let found = holes(asked, elsewhere);
        plant(None);
        println!("{}", found.expect_err("BlocksNotSynced was not found"));
    }
}

/// A mark that is there is not set again, which costs a sync of its directory.
#[test]
fn a_file_is_marked_once() {
    let _alone = alone();
    let (machine, _cache, file) = begin();
    for (page, marks) in [(0, 1), (1, 1)] {
        file.store(page * PAGE as u64, &[2]);
        keep(&machine).expect("kept");
        assert_eq!(machine.times_marked(0), marks, "page {page}");
    }
    assert_eq!(machine.lacks_and_tells(), (true, true));
    let (after, report) = after(&machine, 1, false);
    assert!(report.refused.is_empty(), "{report:?}");
    assert_eq!((after.content(0)[0], after.content(0)[PAGE]), (2, 2));
}

/// The user has given up what the pool has of the file, or the file was replaced by an older
/// state.
fn given_up() -> Result<(), String> {
    let (machine, _cache, file) = begin();
    file.store(0, &[1]);
    file.sync(0, 1).expect("a sync");
    machine.file(0).unmark().expect("given up");
    file.store(PAGE as u64, &[2]);
    keep(&machine).expect("nothing is kept");
    let (after, report) = after(&machine, 1, true);
    let refused = |r: &crate::recover::Refused| r.why.contains("it had a mark");
    let is_refused = report.refused.len() == 1 && report.refused.iter().all(refused);
    match (is_refused, after.content(0)[0], after.content(0)[PAGE]) {
        (true, 0, 0) => Ok(()),
        found => Err(format!("{found:?}: {report:?}")),
    }
}

/// Another pool has marked the file.
fn of_another() -> Result<(), String> {
    let (machine, _cache, file) = begin();
    let other = MapClaim { pool: Uuid([9; 16]), ..machine.claim().clone() };
    machine.file(0).mark(&other).expect("marked");
    file.store(0, &[2]);
    keep(&machine).expect("nothing is kept");
    match machine.file(0).marked().expect("its mark") {
        FoundMark::Marked(mark) if other.has_set(&mark) && !machine.claim().has_set(&mark) => {
            Ok(())
        }
        found => Err(format!("{found:?}")),
    }
}

#[test]
fn a_mark_that_is_not_ours_stays_and_one_that_is_gone_is_not_set_again() {
    let _alone = alone();
    for case in [given_up, of_another] {
        case().expect("recovery judges it");
        plant(Some(Planted::MarkedOver));
        let found = case();
        plant(None);
        println!("{}", found.expect_err("MarkedOver was not found"));
    }
}

/// A file that could not be marked, before the process grew it and died.
fn without_mark(no_rights: bool) -> Result<(), String> {
    let (machine, _cache, file) = begin();
    let refused = if no_rights { &machine.no_rights } else { &machine.no_marks };
    refused.store(true, Ordering::SeqCst);
    for grows in [false, true] {
        file.store(0, &[1 + u8::from(grows)]);
        if grows {
            file.write(ONE, &[7; 100]).expect("it grows");
        }
        let kept = keep(&machine);
        let content = machine.durable(0);
        let size = ONE as usize + if grows { 100 } else { 0 };
        let stored = content.first() == Some(&(1 + u8::from(grows)));
        if !matches!(kept, Ok(0))
            || !stored
            || content.len() != size
            || !content[SEGMENT..].iter().all(|&b| b == 7)
        {
            return Err(format!("grows: {grows}: {kept:?}, {} bytes", content.len()));
        }
        assert_eq!(machine.lacks_and_tells(), (false, false));
    }
    let (_, report) = after(&machine, 1, true);
    assert!(report.refused.is_empty(), "{report:?}");
    Ok(())
}

#[test]
fn what_is_kept_of_a_file_that_cannot_be_marked_is_in_the_file() {
    let _alone = alone();
    for no_rights in [false, true] {
        without_mark(no_rights).expect("it is kept");
        plant(Some(Planted::MarkNeeded));
        let found = without_mark(no_rights);
        plant(None);
        println!("{}", found.expect_err("MarkNeeded was not found"));
    }
}

/// The file bears the mark already.  `stored`: the last page has bytes that are not zero.
fn grown(stored: bool) -> Result<(), String> {
    let (machine, _cache, file) = begin();
    file.store(0, &[1]);
    file.sync(0, 1).expect("a sync");
    let (end, size) = (2 * ONE - 5000, 2 * ONE - 4900);
    match stored {
        true => file.write(end, &[7; 100]).expect("it grows"),
        false => file.set_size(size).expect("it grows"),
    }
    keep(&machine).expect("kept");
    for seed in 0..8 {
        let (after, report) = after(&machine, seed, seed == 0);
        let content = after.content(0);
        let last = [if stored { 7 } else { 0 }; 100];
        let is_there = content.len() as u64 == size && content.ends_with(&last);
        if !report.refused.is_empty() || !is_there || content[0] != 1 {
            return Err(format!("seed {seed}: {} bytes: {report:?}", content.len()));
        }
    }
    Ok(())
}

#[test]
fn the_size_that_a_dead_process_set_is_kept() {
    let _alone = alone();
    grown(true).expect("the size and the last page");
    grown(false).expect("the size");
    plant(Some(Planted::GrowthForgotten));
    let found = grown(false);
    plant(None);
    println!("{}", found.expect_err("GrowthForgotten was not found"));
}

/// A store that cannot be kept is reported.
#[test]
fn a_page_after_the_end_is_an_error() {
    let _alone = alone();
    let (machine, _cache, file) = begin();
    file.store(0, &[1]);
    machine.behind_end.store(true, Ordering::SeqCst);
    let said = keep(&machine).expect_err("it is not kept").to_string();
    assert!(said.contains("after the end"), "{said}");
    machine.behind_end.store(false, Ordering::SeqCst);
    keep(&machine).expect("kept");
}

/// Stores for which the disk has no blocks are not kept, and what was synced comes home.
#[test]
fn a_full_disk_refuses_nothing() {
    let _alone = alone();
    let (machine, _cache, file) = begin();
    file.set_size(2 * ONE).expect("longer, by a hole");
    file.store(0, &[1]);
    file.sync(0, 1).expect("a sync");
    file.store(PAGE as u64, &[2]);
    file.store(ONE, &[3]);
    machine.fill_disk();
    assert_eq!(keep(&machine).expect("kept"), 1, "pages without blocks");
    let (after, report) = after(&machine, 1, false);
    let content = after.content(0);
    assert!(report.refused.is_empty(), "{report:?}");
    assert_eq!((content[0], content[PAGE], content.get(SEGMENT)), (1, 2, Some(&0)));
}

/// A mark needs room.  A file that lacks nothing gets the stores without one, and a cut in the
/// middle leaves each page old or new.
#[test]
fn a_clean_file_needs_no_room_for_a_mark() {
    let _alone = alone();
    for seed in 0..8 {
        for call in 0..6 {
            let (machine, _cache, file) = begin();
            for at in [0, 7 * PAGE as u64, ONE - 1] {
                file.store(at, &[2]);
            }
            machine.fill_disk();
            machine.no_marks.store(true, Ordering::SeqCst);
            machine.cut_after(call);
            assert_eq!(keep(&machine).expect("kept"), 0);
            let content = machine.content(0);
            assert_eq!((content[0], content[7 * PAGE], content.last()), (2, 2, Some(&2)));
            assert_eq!(
                (machine.durable(0) == content, machine.lacks_and_tells()),
                (true, (false, false))
            );
            for left in machine.left() {
                let after = left.machine(&mut Random(seed), false, &[]);
                let report = recover(&*after, open(&after)).expect("a recovery");
                assert!(report.refused.is_empty(), "seed {seed}, call {call}: {report:?}");
                let content = after.content(0);
                assert!(content.iter().all(|b| [0, 2].contains(b)));
            }
        }
    }
}
