// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: EPERM loses a step only if the inode that the step changes is sealed.  A right that
//! the replay lacks stops the replay, and the log keeps everything.  Method: a simulated tree
//! that refuses changes of a directory or of a file, with and without a seal.

use std::ops::Range;

use rustix::io::Errno;

use super::model::log_of;
use super::model::sim::{Disk, SimTree, State, ROOT_INO};
use super::model::workloads::{live_on, new, Beside};
use super::planted::{plant, Bug};
use super::{replay, Accept, ReplayError, ReplayOptions, Report};
use crate::record::Kind;
use crate::tree::{New, Tree};

/// An operation of the log, with the name of the row.
struct Row {
    name: &'static str,
    act: fn(&Beside),
    /// The sealed inode.
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

/// The tree before the operation, the log, and the inode that the row seals.
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
        // A seal that does not show has a way out.
        Err(e @ ReplayError::Tree { cause: Errno::PERM, .. })
            if e.to_string().contains("--accept=sealed") =>
        {
            Ok(())
        }
        Err(ReplayError::UnderWay { cause: Errno::PERM, .. }) => Ok(()),
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

/// Whether every place that the reports promise is used, or a line withdraws the promise.
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

/// `shows`: the tree shows the seal; else the operator says that there is one.  `stranger`:
/// something that no entry explains is at this name in `d`, too.
fn a_sealed_row(row: &Row, shows: bool, stranger: Option<&str>) -> Result<(), String> {
    let accept = Accept { sealed: !shows, ..Accept::default() };
    let options = ReplayOptions { accept, ..ReplayOptions::default() };
    let (state, log, sealed) = before(row);
    let tree = SimTree::new(state);
    if let Some(name) = stranger {
        let d = tree.lookup(&ROOT_INO, b"d").unwrap().unwrap();
        tree.create(&d, name.as_bytes(), &new(Kind::Fifo, b"")).unwrap();
    }
    let before = tree.now();
    let replayed = |state: State| {
        let tree = SimTree::new(state).refusing(of(sealed), shows);
        let report = replay(&tree, &log, &options, &mut |_, _| {});
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
    // If it is interrupted anywhere and begun again, it says the same.
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
            for shows in [true, false] {
                assert_eq!(a_sealed_row(row, shows, stranger), Ok(()), "it shows: {shows}");
            }
        }
    }
    plant(Some(Bug::PromisesUnkept));
    // Neither the stranger at the new name nor the file at the old one can be moved.
    let found = a_sealed_row(&ROWS[0], true, Some("z"));
    plant(None);
    assert!(found.is_err(), "not caught");
}

/// Another program has sealed a directory that the replay needs in the root, where that shows or
/// where it does not.  The replay uses the next name, and inodes in dispute go there.
#[test]
fn sealed_directories_of_forebay_stop_no_replay() {
    #[rustfmt::skip]
    let table = [
        (".forebay-found", None, true), (".forebay-found", None, false),
        (".forebay-found", Some("1-report"), true), (".forebay-found", Some("1-report"), false),
        (".forebay-replay", None, true), (".forebay-replay", None, false),
        (".forebay-replay", Some("gone"), true), (".forebay-replay", Some("gone"), false),
    ];
    for (own, inner, shows) in table {
        let (state, log, _) = before(&ROWS[0]);
        let tree = SimTree::new(state);
        let dir = New::plain(Kind::Directory, 0o700);
        let sealed = tree.create(&ROOT_INO, own.as_bytes(), &dir).unwrap();
        if let Some(inner) = inner {
            let file = New::plain(Kind::File, 0o600);
            tree.create(&sealed, inner.as_bytes(), &file).unwrap();
        }
        let d = tree.lookup(&ROOT_INO, b"d").unwrap().unwrap();
        // In the way of a name that the log has.
        tree.create(&d, b"z", &new(Kind::Fifo, b"")).unwrap();
        let tree = SimTree::new(tree.now()).refusing(of(sealed), shows);
        let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
        let report = report.unwrap_or_else(|e| panic!("{own}, {inner:?}, {shows}: {e}"));
        super::tidy(&tree).unwrap_or_else(|e| panic!("{own}: {e}"));
        assert_eq!(report.found.len(), 1, "{own}: {report:?}");
        let root = &tree.now().inodes[&ROOT_INO].names;
        assert_eq!(tree.now().inodes[&sealed].names.len(), inner.iter().count(), "{own}");
        let found = if own == ".forebay-found" { ".forebay-found.1" } else { ".forebay-found" };
        let names = &tree.now().inodes[&root[found.as_bytes()]].names;
        assert!(names.len() == 2, "{own}: {names:?}");
        assert!(
            tree.lookup(&d, b"z").unwrap().is_some()
                && !root.contains_key(&b".forebay-replay.1"[..])
        );
    }
}

/// The option is offered where it is a way out, and where it was not given.  The root refuses what a
/// replay makes there for itself; a directory refuses what the log says of it.
#[test]
fn accept_sealed_is_offered_where_it_helps() {
    for row in &ROWS {
        for (root, given) in [(false, false), (true, false), (true, true)] {
            let (state, log, sealed) = before(row);
            let refused = if root { ROOT_INO } else { sealed };
            let tree = SimTree::new(state).refusing(of(refused), false);
            let accept = Accept { sealed: given, ..Accept::default() };
            let options = ReplayOptions { accept, ..ReplayOptions::default() };
            let e = replay(&tree, &log, &options, &mut |_, _| {}).expect_err(row.name);
            let offered = e.to_string().contains("--accept=sealed");
            assert_eq!(offered, !root, "{}, root: {root}, given: {given}: {e}", row.name);
        }
    }
}

/// A directory of another project, for which its owner has a quota, takes nothing that is not of the
/// project.  What the log made there joins it; a file that is not of it costs its own step.
fn a_directory_of_another_project(row: &Row) -> Result<(), String> {
    let (state, log, d) = before(row);
    let tree = SimTree::new(state).of_another_project(d);
    let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
    let report = report.map_err(|e| format!("{}: {e}", row.name))?;
    promises_kept(&tree.now())?;
    let told = report.in_dispute();
    if told.is_empty() || told.iter().any(|line| !line.contains("d/y")) {
        return Err(format!("{}: {told:?}", row.name));
    }
    // Its content is there, wherever it lies.
    let state = tree.now();
    let y = |i: &super::model::sim::Inode| i.kind == Kind::File && i.data.contains(&8);
    let there = |name| tree.lookup(&d, name).unwrap().is_some();
    match state.inodes.values().any(y) && there(b"x") && there(b"later") && !there(b"y") {
        true => Ok(()),
        false => Err(format!("{}: {state:?}", row.name)),
    }
}

#[test]
fn a_directory_of_another_project_costs_what_is_not_of_it() {
    for row in ROWS.iter().filter(|row| ["rename into", "link"].contains(&row.name)) {
        assert_eq!(a_directory_of_another_project(row), Ok(()));
        plant(Some(Bug::ProjectForgotten));
        let found = a_directory_of_another_project(row);
        plant(None);
        assert!(found.is_err(), "{}: not caught", row.name);
    }
}
