// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: EPERM costs a step only if the inode that the step changes is sealed; a right that the
//! replay lacks stops it, and the log keeps everything.  Method: a simulated tree that refuses
//! changes of a directory or of a file, with and without a seal.

use std::ops::Range;

use rustix::io::Errno;

use super::model::log_of;
use super::model::sim::{Disk, SimTree, State, ROOT_INO};
use super::model::workloads::{live_on, new, Beside};
use super::planted::{plant, Bug};
use super::{replay, ReplayError, ReplayOptions, Report};
use crate::record::Kind;
use crate::tree::Tree;

/// What an operation of the log changes, and the name of the row.
struct Row {
    name: &'static str,
    act: fn(&Beside),
    /// What is sealed.
    of: &'static str,
}

const ROWS: [Row; 6] = [
    Row { name: "rename", act: |bed| bed.rename("d/x", "d/z"), of: "d" },
    Row { name: "rename elsewhere", act: |bed| bed.rename("d/x", "e/x"), of: "d" },
    Row { name: "rename into", act: |bed| bed.rename("e/y", "d/y"), of: "d" },
    Row { name: "remove", act: |bed| bed.unlink("d/x"), of: "d" },
    Row { name: "link", act: |bed| bed.link("e/y", "d/y"), of: "d" },
    Row { name: "write", act: |bed| bed.write("d/x", 9), of: "d/x" },
];

fn of(ino: u64) -> Range<u64> {
    ino..ino + 1
}

/// The tree as it was before the operation, the log, and what the row seals.
fn before(row: &Row) -> (State, Vec<Vec<u8>>, u64) {
    let empty = SimTree::new(State::empty());
    for name in [b"d", b"e"] {
        empty.create(&ROOT_INO, name, &new(Kind::Directory, b"")).unwrap();
    }
    let bed = live_on(empty.now());
    bed.write("d/x", 7);
    bed.write("e/y", 8);
    bed.sync();
    let sealed = bed.ino(row.of);
    let begun = bed.tree.events();
    (row.act)(&bed);
    // A later change shows that the operation was not under way.
    bed.write("d/later", 3);
    let trace = bed.tree.trace();
    let mut disk = Disk::new(bed.base.clone());
    trace[..begun].iter().for_each(|event| disk.feed(event));
    (disk.crash(disk.points() - 1, &mut || true), log_of(&trace), sealed)
}

fn replayed(row: &Row, immutable: bool) -> (Result<Report, ReplayError>, State) {
    let (state, log, sealed) = before(row);
    let tree = SimTree::new(state).refusing(of(sealed), immutable);
    (replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}), tree.now())
}

fn a_right_that_is_lacking(row: &Row) -> Result<(), String> {
    match replayed(row, false).0 {
        Err(
            ReplayError::Tree { cause: Errno::PERM, .. }
            | ReplayError::UnderWay { cause: Errno::PERM, .. },
        ) => Ok(()),
        other => Err(format!("{}: {other:?}", row.name)),
    }
}

#[test]
fn a_right_that_is_lacking_keeps_the_log() {
    for row in &ROWS {
        assert_eq!(a_right_that_is_lacking(row), Ok(()));
        plant(Some(Bug::AnyRefusalIsASeal));
        let found = a_right_that_is_lacking(row);
        plant(None);
        assert!(found.is_err(), "{}: not caught", row.name);
    }
}

/// What the reports say to be in a place is there, or a line withdraws it.
pub fn promises_kept(state: &State) -> Result<(), String> {
    let root = &state.inodes[&ROOT_INO];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(found) = root.names.get(&b".forebay-found"[..]) else { return Ok(()) };
    let names = &state.inodes[found].names;
    for (_, report) in names.iter().filter(|(name, _)| name.ends_with(b"-report")) {
        let report = text(&state.inodes[report].data);
        let promises = report.lines().filter_map(|line| line.rsplit_once(": now .forebay-found/"));
        for (path, name) in promises {
            let withdrawal = format!("{path}: nothing went to .forebay-found/{name}");
            let withdrawn = report.lines().any(|line| line == withdrawal);
            if names.contains_key(name.as_bytes()) == withdrawn {
                return Err(format!("{path}: {name}, withdrawn: {withdrawn}\n{report}"));
            }
        }
    }
    Ok(())
}

/// `stranger`: something that no entry explains is at this name in `d`, too.
fn a_sealed_row(row: &Row, stranger: Option<&str>) -> Result<(), String> {
    let (state, log, sealed) = before(row);
    let tree = SimTree::new(state);
    if let Some(name) = stranger {
        let d = tree.lookup(&ROOT_INO, b"d").unwrap().unwrap();
        tree.create(&d, name.as_bytes(), &new(Kind::Fifo, b"")).unwrap();
    }
    let before = tree.now();
    let replayed = |state: State| {
        let tree = SimTree::new(state).refusing(of(sealed), true);
        let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
        let report = report.map_err(|e| format!("{}: {e}", row.name))?;
        promises_kept(&tree.now()).map_err(|e| format!("{}, {stranger:?}: {e}", row.name))?;
        Ok::<_, String>((report, tree))
    };
    let (report, tree) = replayed(before.clone())?;
    let refused = |path: &str, action: &str| {
        let line = format!("{path}: cannot {action}: ");
        report.disputes.iter().any(|dispute| dispute.starts_with(&line))
    };
    if report.disputes.is_empty() {
        return Err(format!("{}: {report:?}", row.name));
    }
    if report.actions.iter().any(|a| refused(&a.path, a.action)) {
        return Err(format!("{}: said to be done: {report:?}", row.name));
    }
    // Cut anywhere and begun again it says the same.
    let mut disk = Disk::new(before);
    for event in &tree.trace() {
        disk.feed(event);
        replayed(disk.crash(disk.points() - 1, &mut || true))?;
    }
    Ok(())
}

#[test]
fn a_seal_costs_what_it_touches() {
    for row in &ROWS {
        for stranger in [None, Some("later"), Some("y"), Some("z")] {
            assert_eq!(a_sealed_row(row, stranger), Ok(()));
        }
    }
    plant(Some(Bug::PromisesUnkept));
    // Neither the stranger at the new name nor the file at the old one can be moved.
    let found = a_sealed_row(&ROWS[0], Some("z"));
    plant(None);
    assert!(found.is_err(), "not caught");
}
