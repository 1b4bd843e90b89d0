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

#[test]
fn a_seal_costs_what_it_touches() {
    for row in &ROWS {
        let (report, _) = replayed(row, true);
        let report = report.unwrap_or_else(|e| panic!("{}: {e}", row.name));
        assert!(!report.disputes.is_empty(), "{}: {report:?}", row.name);
    }
}
