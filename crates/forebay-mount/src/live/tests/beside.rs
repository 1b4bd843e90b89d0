// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever a user does next to a mount, between two steps of an operation, costs that
//! operation alone.  Method: each change of the names at each such moment, and each error of the
//! next step.  The mount serves after it, and its log can be replayed.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use super::*;
use crate::live::failing::happens_between;

type Change = fn(&Path);

/// Changes before the old file is removed, and before the two change places again.
struct Row {
    what: &'static str,
    first: (Change, Option<Errno>),
    second: (Change, Option<Errno>),
    answer: Result<()>,
    /// What has the names `t` and `target` then.
    names: (Option<&'static str>, Option<&'static str>),
    ends: bool,
}

const NOTHING: Change = |_| {};
const REMOVE_T: Change = |dir| fs::remove_file(dir.join("t")).unwrap();
const NO_DESCRIPTOR: &str = "no descriptor is left for long";
const AS_MOVED: (Option<&str>, Option<&str>) = (None, Some("new"));

fn plain(what: &'static str, first: Change, then: Option<Errno>, answer: Result<()>) -> Row {
    let (second, names) = ((NOTHING, None), AS_MOVED);
    Row { what, first: (first, then), second, answer, names, ends: false }
}

fn rows() -> Vec<Row> {
    const DIRECTORY_AT_T: Change = |dir| {
        fs::remove_file(dir.join("t")).unwrap();
        fs::create_dir(dir.join("t")).unwrap();
    };
    const REMOVE_BOTH: Change = |dir| {
        fs::remove_file(dir.join("t")).unwrap();
        fs::remove_file(dir.join("target")).unwrap();
    };
    vec![
        plain("nothing happens", NOTHING, None, Ok(())),
        plain("the old file is removed", REMOVE_T, None, Ok(())),
        plain(
            "the old file is moved away",
            |dir| fs::rename(dir.join("t"), dir.join("elsewhere")).unwrap(),
            None,
            Ok(()),
        ),
        Row {
            names: (None, None),
            ..plain("both are removed", REMOVE_BOTH, None, Err(Errno::NOENT))
        },
        plain("the removal is refused once", NOTHING, Some(Errno::MFILE), Ok(())),
        Row {
            second: (NOTHING, Some(Errno::MFILE)),
            ..plain("no descriptor is left for a moment", NOTHING, Some(Errno::MFILE), Ok(()))
        },
        // Neither answer would be true.
        Row {
            second: (NOTHING, Some(Errno::MFILE)),
            names: (Some("old"), Some("new")),
            ends: true,
            ..plain(NO_DESCRIPTOR, NOTHING, Some(Errno::MFILE), Err(Errno::IO))
        },
        Row {
            second: (REMOVE_T, None),
            ..plain("the old file is removed later", NOTHING, Some(Errno::MFILE), Ok(()))
        },
        Row {
            second: (REMOVE_BOTH, None),
            names: (None, None),
            ..plain("both are removed later", NOTHING, Some(Errno::MFILE), Err(Errno::NOENT))
        },
        Row {
            second: (|dir| fs::remove_dir(dir.join("t")).unwrap(), None),
            ..plain("a directory comes and goes", DIRECTORY_AT_T, None, Ok(()))
        },
        Row {
            second: (NOTHING, Some(Errno::IO)),
            names: (Some("old"), Some("new")),
            ends: true,
            ..plain("the disk fails", NOTHING, Some(Errno::IO), Err(Errno::IO))
        },
    ]
}

/// Runs the changes, one a step.
fn happen(dir: &Path, steps: Vec<(Change, Option<Errno>)>) {
    let (dir, next) = (dir.to_owned(), Cell::new(0));
    happens_between(Box::new(move || {
        let Some((change, then)) = steps.get(next.replace(next.get() + 1)) else { return Ok(()) };
        change(&dir);
        then.map_or(Ok(()), Err)
    }));
}

#[test]
fn a_name_that_is_changed_next_to_the_mount_ends_no_mount() {
    for row in rows() {
        let bed = Bed::calm("beside");
        let text = |name: &str| fs::read_to_string(bed.dir.join(name)).ok();
        let made = |name: &str, text: &str| {
            let file = bed.create(name).unwrap();
            bed.live.write(&file, 0, text.as_bytes()).unwrap();
        };
        made("target", "old");
        bed.live.sync_here().unwrap();
        made("t", "new");
        let mut steps = vec![row.first, row.second];
        if row.what == NO_DESCRIPTOR {
            steps.resize(1000, row.second);
        }
        happen(&bed.dir, steps);
        let root = bed.live.root();
        let done = bed.live.rename((root, b"t"), (root, b"target"), RenameHow::Replace);
        assert_eq!(done, row.answer, "{}", row.what);
        let names = (text("t"), text("target"));
        assert_eq!((names.0.as_deref(), names.1.as_deref()), row.names, "{}", row.what);
        assert_eq!(bed.live.failure().is_some(), row.ends, "{}", row.what);
        assert_eq!(bed.create("later").is_ok(), !row.ends, "{}", row.what);
        bed.replayed();
        if done.is_ok() {
            assert_eq!(text("target").as_deref(), Some("new"), "{}: after a replay", row.what);
        }
    }
}

#[test]
fn a_whiteout_that_is_removed_next_to_the_mount_ends_no_mount() {
    let another: Change = |dir| {
        fs::remove_file(dir.join("f")).unwrap();
        fs::write(dir.join("f"), "another's").unwrap();
    };
    let table: [(&str, Change, Option<Errno>, bool); 5] = [
        ("nothing happens", NOTHING, None, false),
        ("it is removed", |dir| fs::remove_file(dir.join("f")).unwrap(), None, false),
        ("another file has its name", another, None, false),
        ("no descriptor is left", NOTHING, Some(Errno::MFILE), false),
        ("the disk fails", NOTHING, Some(Errno::IO), true),
    ];
    for (what, change, then, ends) in table {
        let bed = Bed::calm("whiteout");
        let file = bed.create("f").unwrap();
        bed.live.write(&file, 0, b"precious").unwrap();
        bed.live.fsync(&file).unwrap();
        let root = bed.live.root();
        happen(&bed.dir, vec![(change, then)]);
        let done = bed.live.rename_leaving_whiteout((root, b"f"), (root, b"g"), true, (0, 0));
        assert_eq!(done, if ends { Err(Errno::IO) } else { Ok(()) }, "{what}");
        assert_eq!(bed.live.failure().is_some(), ends, "{what}");
        assert_eq!(bed.create("later").is_ok(), !ends, "{what}");
        if ends {
            continue;
        }
        // A whiteout that the log does not know by the number that it gave has another one.
        let _ = bed.live.unlink(root, b"f", false);
        bed.replayed();
        let text = fs::read_to_string(bed.dir.join("g")).ok();
        assert_eq!(text.as_deref(), Some("precious"), "{what}");
    }
}
