// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: changes that bypass the mount, before or after a crash, affect only what they touch.
//! Method: the live part works on a simulated tree that another program changes too, through
//! directories that it opened before.  Then come a crash, other programs that make files
//! outside the tree, and the replay.  Afterwards every file that no other program touched must
//! be there with all its names and bytes, files outside the tree must be unchanged, and the
//! log's version of the others' files must be somewhere.  Cases made for each check come first.

use std::collections::{BTreeMap, BTreeSet};

use super::model::sim::{Disk, Event, Inode, Op, SimTree, State, OUTSIDE_INO, ROOT_INO};
use super::model::workloads::{live_on, live_on_tree, new, Beside};
use super::model::{log_of, Rng};
use super::planted::{plant, Bug, OF_OTHERS};
use super::{replay, tidy, ReplayOptions, Report, STAGING};
use crate::record::{header, Entry, Kind, Record, Records, SetAttr, Time};
use crate::tree::{New, RenameHow, Tree};

/// The paths in the tree, each with its bytes.
fn files(state: &State) -> BTreeMap<String, Vec<u8>> {
    let (mut all, mut left) = (BTreeMap::new(), vec![(String::new(), ROOT_INO)]);
    while let Some((path, ino)) = left.pop() {
        for (name, child) in &state.inodes[&ino].names {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            all.insert(path.clone(), state.inodes[child].data.clone());
            left.push((path, *child));
        }
    }
    all
}

fn has_bytes_of(state: &State, byte: u8) -> bool {
    let whole = |data: &Vec<u8>| data.len() == 600 && data.iter().all(|b| *b == byte);
    files(state).values().any(whole)
}

/// As the command does it.
fn replayed(state: &State, log: &[Vec<u8>]) -> (Report, State) {
    let tree = SimTree::new(state.clone());
    let report = replay(&tree, log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    (report, tree.now())
}

/// The tree as if nothing since its last sync had reached the disk, or all had.
fn crashed(bed: &Beside, all: bool) -> State {
    let mut disk = Disk::new(bed.base.clone());
    bed.tree.trace().iter().for_each(|event| disk.feed(event));
    let point = if all { disk.points() - 1 } else { 0 };
    disk.crash(point, &mut || all)
}

fn log(bed: &Beside) -> Vec<Vec<u8>> {
    log_of(&bed.tree.trace())
}

fn root_with(names: &[&str]) -> State {
    let tree = SimTree::new(State::empty().with_outside());
    for name in names {
        tree.create(&ROOT_INO, name.as_bytes(), &new(Kind::Directory, b"")).unwrap();
    }
    tree.now()
}

/// A file of another directory has the number that a lost one had, as on btrfs.
fn a_file_outside_with_its_handle() -> Result<(), String> {
    let bed = live_on(root_with(&[]));
    bed.write("mine", 7);
    let state = crashed(&bed, false);
    let tree = SimTree::new(state);
    let secret = tree.create(&OUTSIDE_INO, b"secret", &new(Kind::File, b"")).unwrap();
    tree.write(&secret, 0, b"private").unwrap();
    let own = SetAttr { mode: Some(0o600), uid: Some(0), ..SetAttr::default() };
    tree.set_attr(&secret, &own).unwrap();
    let before = tree.now();
    let lost = bed.ino("mine");
    if lost != secret {
        return Err(format!("the number {lost} is not given out again, but {secret}"));
    }
    let (_, end) = replayed(&before, &log(&bed));
    if end.inodes[&secret] != before.inodes[&secret] {
        return Err("a file outside the tree was changed".into());
    }
    match files(&end).get("/mine") {
        Some(data) if *data == [7; 600] => Ok(()),
        other => Err(format!("/mine is {other:?}")),
    }
}

/// A new file in the tree, at another name, has the handle of the file: their birth times differ.
fn a_file_of_the_tree_with_its_handle() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("mine", 7);
    let tree = SimTree::new(crashed(&bed, false));
    let d = tree.lookup(&ROOT_INO, b"d").unwrap().unwrap();
    let other = tree.create(&d, b"other", &new(Kind::File, b"")).unwrap();
    tree.write(&other, 0, b"another").unwrap();
    let (_, end) = replayed(&tree.now(), &log(&bed));
    let files = files(&end);
    match (files.get("/d/other"), files.get("/mine")) {
        (Some(other), Some(mine)) if other == b"another" && *mine == [7; 600] => Ok(()),
        other => Err(format!("{:?}", other.0.map(|data| data.len()))),
    }
}

/// At the name of a file whose handle the log does not know is another's.
fn anothers_file_at_the_name() -> Result<(), String> {
    let bed = live_on(root_with(&[]));
    bed.create("name");
    let tree = SimTree::new(crashed(&bed, false));
    let other = tree.create(&ROOT_INO, b"name", &new(Kind::File, b"")).unwrap();
    tree.write(&other, 0, b"private").unwrap();
    let own = SetAttr { mode: Some(0o600), uid: Some(0), gid: Some(0), ..SetAttr::default() };
    tree.set_attr(&other, &own).unwrap();
    let before = tree.now();
    let (report, end) = replayed(&before, &log(&bed));
    let (is, was) = (&end.inodes[&other], &before.inodes[&other]);
    if (is.mode, is.uid, &is.data) != (was.mode, was.uid, &was.data) {
        return Err("another's file was given away".into());
    }
    match report.conflicts == ["name"] && files(&end).contains_key("/name") {
        true => Ok(()),
        false => Err(format!("{report:?}")),
    }
}

/// Names that the log does not know come into operations of the mount.
fn a_name_that_no_entry_gave() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("root", 9);
    bed.write("d/x", 7);
    bed.tree_rename("d/x", "d/y");
    bed.write("d/x", 8);
    bed.rename("d/y", "d/z");
    for all in [false, true] {
        let (_, end) = replayed(&crashed(&bed, all), &log(&bed));
        let files = files(&end);
        for (path, byte) in [("/root", 9u8), ("/d/z", 7), ("/d/x", 8)] {
            if files.get(path) != Some(&vec![byte; 600]) {
                return Err(format!("{all}: {path} is {:?}", files.get(path).map(|f| f.first())));
            }
        }
    }
    Ok(())
}

/// Two names that are one in a case-insensitive directory.
fn two_names_that_are_one() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("root", 9);
    bed.write("d/Foo", 7);
    // The mount looks foo up, and finds it.
    bed.tree_rename("d/Foo", "d/foo");
    bed.unlink("d/foo");
    for all in [false, true] {
        let (_, end) = replayed(&crashed(&bed, all), &log(&bed));
        let files = files(&end);
        if files.get("/root") != Some(&vec![9; 600]) {
            return Err(format!("{all}: /root is {:?}", files.get("/root")));
        }
        if let Some(back) = files.keys().find(|path| path.starts_with("/d/")) {
            return Err(format!("{all}: {back} is back"));
        }
    }
    Ok(())
}

/// The file lost its only name outside the mount, so the log has the only copy; or it still has
/// the name in the tree.
fn a_file_without_a_certain_name() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("d/x", 7);
    bed.tree_rename("d/x", "d/elsewhere");
    bed.write("d/x", 8);
    let mut disk = Disk::new(bed.base.clone());
    bed.tree.trace().iter().for_each(|event| disk.feed(event));
    for point in 0..disk.points() {
        let (_, end) = replayed(&disk.crash(point, &mut || true), &log(&bed));
        for byte in [7u8, 8] {
            let is = |i: &&Inode| i.data == [byte; 600] && i.uid == 1;
            if !end.inodes.values().any(|i| is(&i)) {
                return Err(format!("at {point}: {byte} is in none of {:?}", files(&end).keys()));
            }
        }
    }
    Ok(())
}

/// Checks a file from which entries have taken other names, before or after another
/// program took that one, by an unlink or by a rename over it.
fn a_file_without_a_certain_name_that_had_others() -> Result<(), String> {
    for (before, over) in [(true, false), (true, true), (false, false), (false, true)] {
        let bed = live_on(root_with(&["d"]));
        bed.write("d/x", 7);
        bed.link("d/x", "d/link");
        let lose = || match over {
            true => {
                bed.write("d/over", 9);
                bed.rename("d/over", "d/link");
            }
            false => bed.unlink("d/link"),
        };
        if before {
            lose();
        }
        bed.tree_rename("d/x", "d/elsewhere");
        bed.write("d/x", 8);
        if !before {
            lose();
        }
        let mut disk = Disk::new(bed.base.clone());
        bed.tree.trace().iter().for_each(|event| disk.feed(event));
        for point in 0..disk.points() {
            let (_, end) = replayed(&disk.crash(point, &mut || true), &log(&bed));
            if let Some(byte) = [7, 8].iter().find(|byte| !has_bytes_of(&end, **byte)) {
                let all = files(&end);
                return Err(format!("{before}, {over}, at {point}: no {byte} in {:?}", all.keys()));
            }
        }
    }
    Ok(())
}

/// The file that took the only other name is seen to have it, and then that name is removed.
fn a_file_that_was_moved_and_then_removed() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("d/x", 7);
    bed.tree_rename("d/x", "d/elsewhere");
    bed.write("d/x", 8);
    bed.unlink("d/elsewhere");
    for all in [false, true] {
        let (_, end) = replayed(&crashed(&bed, all), &log(&bed));
        if has_bytes_of(&end, 7) || !has_bytes_of(&end, 8) {
            return Err(format!("{all}: {:?}", files(&end).keys()));
        }
    }
    Ok(())
}

/// At the name of a file whose handle the log does not know is another's, which is empty, and
/// which he may have open; so for everything that has no content.
fn anothers_empty_file_at_the_name() -> Result<(), String> {
    for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket] {
        for (uid, gid) in [(9, 2), (1, 9), (0, 0)] {
            let target: &[u8] = if kind == Kind::Symlink { b"target" } else { b"" };
            let bed = live_on(root_with(&[]));
            bed.make("name", &new(kind, target));
            let tree = SimTree::new(crashed(&bed, false));
            let theirs = New { uid, gid, ..New { target, ..New::plain(kind, 0o600) } };
            let other = tree.create(&ROOT_INO, b"name", &theirs).unwrap();
            let before = tree.now();
            let (report, end) = replayed(&before, &log(&bed));
            if end.inodes[&other] != before.inodes[&other] {
                return Err(format!("another's {kind:?} was given away"));
            }
            let name = end.inodes[&ROOT_INO].names.get(&b"name"[..]);
            match name.is_some_and(|ino| *ino != other && end.inodes[ino].uid == 1) {
                true if report.conflicts == ["name"] => {}
                _ => return Err(format!("{kind:?}: {report:?}")),
            }
        }
    }
    Ok(())
}

/// Moved out of the tree and written since.
fn a_file_that_has_left_the_tree() -> Result<(), String> {
    let bed = live_on(root_with(&[]));
    bed.write("mine", 7);
    bed.sync();
    bed.write("mine", 8);
    let tree = SimTree::new(crashed(&bed, true));
    let mine = tree.lookup(&ROOT_INO, b"mine").unwrap().unwrap();
    tree.rename((&ROOT_INO, b"mine"), (&OUTSIDE_INO, b"mine"), RenameHow::NoReplace).unwrap();
    tree.write(&mine, 0, b"private").unwrap();
    let before = tree.now();
    let (report, end) = replayed(&before, &log(&bed));
    match end.inodes[&mine] == before.inodes[&mine] && has_bytes_of(&end, 8) {
        true => Ok(()),
        false => Err(format!("{report:?}")),
    }
}

/// Who may write to the root has made directories of the names that a replay uses, and has put
/// there what a replay would.
fn a_staging_directory_of_anothers() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("d/x", 7);
    bed.write("d/y", 8);
    bed.sync();
    bed.rename("d/x", "d/z");
    bed.rename("d/y", "d/x");
    let log = log(&bed);
    let tree = SimTree::new(crashed(&bed, false));
    let of_another = |kind, mode| New { uid: 9, gid: 9, ..New::plain(kind, mode) };
    let mut theirs = Vec::new();
    for (name, uid, mode) in [("", 9, 0o777), (".1", 9, 0o700), (".2", 0, 0o770), (".4", 9, 0o700)]
    {
        let name = [STAGING, name.as_bytes()].concat();
        let new = New { uid, ..of_another(Kind::Directory, mode) };
        theirs.push(tree.create(&ROOT_INO, &name, &new).unwrap());
        if uid == 0 || name.ends_with(b".4") {
            continue;
        }
        let list = tree.create(theirs.last().unwrap(), b"gone", &of_another(Kind::File, 0o600));
        tree.write(&list.unwrap(), 0, b"forebay replay 1 2 3 4 5\n").unwrap();
    }
    let before = tree.now();
    let begun = tree.events();
    let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
    let report = report.map_err(|e| format!("no replay: {e}"))?;
    tidy(&tree).map_err(|e| format!("not tidied: {e}"))?;
    for event in &tree.trace()[begun..] {
        let Event::Op(op) = event else { continue };
        let of = match op {
            Op::Create { dir, .. } | Op::Link { dir, .. } | Op::Unlink { dir, .. } => vec![*dir],
            Op::Rename { from, to, .. } => vec![from.0, to.0],
            Op::Write { ino, .. } | Op::Truncate { ino, .. } => vec![*ino],
            _ => vec![],
        };
        if of.iter().any(|ino| theirs.contains(ino)) {
            return Err(format!("the replay uses another's directory: {op:?}"));
        }
    }
    let end = tree.now();
    if theirs.iter().any(|ino| end.inodes[ino] != before.inodes[ino]) {
        return Err("another's directory was changed".into());
    }
    let files = files(&end);
    for (path, byte) in [("/d/z", 7), ("/d/x", 8)] {
        if files.get(path) != Some(&vec![byte; 600]) {
            return Err(format!("{path} is {:?}", files.get(path).map(|f| f.first())));
        }
    }
    let told = report.disputes.iter().filter(|line| line.starts_with(".forebay-replay")).count();
    match (told, end.inodes[&ROOT_INO].names.len()) {
        (4, 5 | 6) => Ok(()),
        other => Err(format!("{other:?}: {report:?}")),
    }
}

/// The file that was written with these bytes.
fn fid_of(log: &[Vec<u8>], byte: u8) -> u64 {
    let records = log.iter().flat_map(|body| Entry::parse(body).unwrap().records());
    let written = records.filter_map(|record| match record.unwrap() {
        Record::Data { fid, bytes, .. } if bytes.first() == Some(&byte) => Some(fid),
        _ => None,
    });
    written.last().unwrap()
}

/// The owner has changed his own file after the crash, runs it, or has it open.  The files of
/// others are restored, and the log's version of his file is kept among the found files.
fn one_file_that_its_owner_keeps(busy: bool) -> Result<(), String> {
    let bed = live_on(root_with(&[]));
    bed.write("his", 5);
    bed.write("other", 6);
    bed.sync();
    bed.write("his", 7);
    bed.write("other", 8);
    let tree = SimTree::new(crashed(&bed, false));
    let his = bed.ino("his");
    let tree = match busy {
        true => tree.busy(his),
        false => tree.changed_at(5_000_000_000).changed_alone(his),
    };
    let before = tree.now();
    let mut log = log(&bed);
    let mtime = Some(Time { seconds: 9, nanoseconds: 0 });
    let set = SetAttr { mtime, ..SetAttr::default() };
    let number = Entry::parse(log.last().unwrap()).unwrap().number + 1;
    let body = Records::of(&Record::Attr { fid: fid_of(&log, 7), set });
    log.push([&header(number, 1, 1)[..], body.bytes()].concat());
    let report = replayed_on(&tree, &log)?;
    let end = tree.now();
    let other = files(&end).get("/other") == Some(&vec![8; 600]);
    let told = report.in_dispute().iter().any(|line| line.contains("his"));
    match (&end.inodes[&his].data, end.inodes[&his].mtime)
        == (&before.inodes[&his].data, before.inodes[&his].mtime)
        && has_bytes_of(&end, 7)
        && other
        && told
    {
        true => Ok(()),
        false => Err(format!("{report:?}")),
    }
}

fn a_file_that_its_owner_runs() -> Result<(), String> {
    one_file_that_its_owner_keeps(true)
}

fn a_file_that_its_owner_has_changed() -> Result<(), String> {
    one_file_that_its_owner_keeps(false)
}

/// Who may write to a directory renames another's file in it and back, after the crash: the log's
/// content and attributes are there, and the attributes that they replace are told.
fn a_file_that_somebody_renamed_and_back() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.write("d/x", 5);
    bed.sync();
    bed.write("d/x", 7);
    let x = bed.ino("d/x");
    let mut log = log(&bed);
    let mode = |fid, mode| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        Records::of(&Record::Attr { fid, set }).bytes().to_vec()
    };
    let fid = fid_of(&log, 7);
    let number = Entry::parse(log.last().unwrap()).unwrap().number + 1;
    // The one of the root is what it has.
    let root = mode(1, bed.base.inodes[&ROOT_INO].mode);
    for (body, number) in [mode(fid, 0o4600), root].iter().zip(number..) {
        log.push([&header(number, 1, 1)[..], body].concat());
    }
    let tree = || SimTree::new(crashed(&bed, false)).touched_at(5_000_000_000);
    let done = tree();
    let report = replayed_on(&done, &log)?;
    let end = done.now();
    let is = &end.inodes[&x];
    if is.data != [7; 600] || is.mode != 0o600 {
        return Err(format!("{:?} {:o}: {report:?}", is.data.first(), is.mode));
    }
    let told = |report: &Report| {
        let lines = report.in_dispute();
        let has = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        (has("d/x: mode"), has("4000 of the log's mode"), lines.len())
    };
    if told(&report) != (1, 1, 2) {
        return Err(format!("{report:?}"));
    }
    // A replay that goes on where another was cut tells the same.
    let mut disk = Disk::new(tree().now());
    for event in &done.trace() {
        disk.feed(event);
        let tree = SimTree::new(disk.crash(disk.points() - 1, &mut || true));
        let again = tree.touched_at(5_000_000_000);
        let report = replayed_on(&again, &log)?;
        let is = &again.now().inodes[&x];
        let told = told(&report);
        if is.data != [7; 600] || is.mode != 0o600 || told.0 != 1 || told.1 != 1 {
            return Err(format!("cut at {event:?}: {told:?} {report:?}"));
        }
    }
    Ok(())
}

/// A first try of the replay, which found no space, changes the times of the root.
fn a_root_that_the_replay_itself_has_changed() -> Result<(), String> {
    let bed = live_on(root_with(&[]));
    bed.write("x", 7);
    let tree = SimTree::new(crashed(&bed, false));
    let tree = tree.changed_at(5_000_000_000).changed_alone(ROOT_INO);
    let mut log = log(&bed);
    let mode = bed.base.inodes[&ROOT_INO].mode;
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    let number = Entry::parse(log.last().unwrap()).unwrap().number + 1;
    let body = Records::of(&Record::Attr { fid: 1, set });
    log.push([&header(number, 1, 1)[..], body.bytes()].concat());
    let report = replayed_on(&tree, &log)?;
    match report.in_dispute().is_empty() && files(&tree.now()).get("/x") == Some(&vec![7; 600]) {
        true => Ok(()),
        false => Err(format!("{report:?}")),
    }
}

/// The lines of all reports.
fn reports(state: &State) -> String {
    let is_report = |path: &str| path.starts_with("/.forebay-found/") && path.ends_with("-report");
    let all = files(state).into_iter().filter(|(path, _)| is_report(path));
    all.map(|(_, text)| String::from_utf8(text).unwrap()).collect()
}

/// A replay that is cut off has told what it has put aside until then, and what goes on where
/// it was cut tells it, too.
fn a_replay_that_is_cut_off() -> Result<(), String> {
    let bed = live_on(root_with(&["d"]));
    bed.create("name");
    bed.write("d/x", 7);
    bed.tree_rename("d/x", "d/elsewhere");
    bed.write("d/x", 8);
    let log = log(&bed);
    let tree = SimTree::new(crashed(&bed, false));
    let other = tree.create(&ROOT_INO, b"name", &new(Kind::Fifo, b"")).unwrap();
    let before = tree.now();
    replayed_on(&tree, &log)?;
    let trace = tree.trace();
    let mut disk = Disk::new(before.clone());
    let begun = trace.iter().position(|e| matches!(e, Event::SyncAll)).unwrap();
    let mut aside = 0;
    for (at, event) in trace.iter().enumerate().skip(before_events(&trace)) {
        disk.feed(event);
        for all in [false, true] {
            let point = if all { disk.points() - 1 } else { 0 };
            let state = disk.crash(point, &mut || all);
            let moved = state.inodes[&ROOT_INO].names.get(&b"name"[..]) != Some(&other);
            let told = reports(&state).contains("name: now .forebay-found/");
            if moved && !told {
                return Err(format!("after event {at}: it is moved, and nothing is told"));
            }
            aside += usize::from(moved);
            let again = SimTree::new(state);
            let report = replayed_on(&again, &log)?;
            let told = report.in_dispute().iter().any(|line| line.contains("name: now"));
            let reports = reports(&again.now());
            if at >= begun && !(told && reports.contains("name: now .forebay-found/")) {
                return Err(format!("cut after event {at}: {report:?}: {reports}"));
            }
        }
    }
    match aside {
        0 => Err("it is never moved".into()),
        _ => Ok(()),
    }
}

fn before_events(trace: &[Event]) -> usize {
    let staging = |e: &Event| matches!(e, Event::Op(Op::Create { name, .. }) if name == STAGING);
    trace.iter().position(staging).unwrap()
}

fn replayed_on(tree: &SimTree, log: &[Vec<u8>]) -> Result<Report, String> {
    let done = replay(tree, log, &ReplayOptions::default(), &mut |_, _| {});
    done.map_err(|e| format!("no replay: {e}"))
}

type Case = fn() -> Result<(), String>;

/// For each mistake the case that shows it.
fn shown_by(bug: Bug) -> Case {
    match bug {
        Bug::AnywhereTaken => a_file_that_has_left_the_tree,
        Bug::BirthIgnored => a_file_of_the_tree_with_its_handle,
        Bug::AnybodysTaken => anothers_file_at_the_name,
        Bug::ToldAtTheEnd => a_replay_that_is_cut_off,
        Bug::BusyStopsAll => a_file_that_its_owner_runs,
        Bug::InodeTimeIsContent => a_file_that_somebody_renamed_and_back,
        Bug::TimesOfOtherContent => a_file_that_its_owner_runs,
        Bug::ChangedStopsAll => a_file_that_its_owner_has_changed,
        Bug::DisplacedForgotten => a_file_without_a_certain_name_that_had_others,
        Bug::EmptyOfAnybody => anothers_empty_file_at_the_name,
        Bug::StagingOfAnybody => a_staging_directory_of_anothers,
        Bug::ContradictionIgnored | Bug::OrphanForgotten => a_file_without_a_certain_name,
        _ => two_names_that_are_one,
    }
}

#[test]
fn cases() {
    let all: [Case; 16] = [
        a_file_that_somebody_renamed_and_back,
        a_root_that_the_replay_itself_has_changed,
        a_replay_that_is_cut_off,
        a_file_that_its_owner_runs,
        a_file_that_its_owner_has_changed,
        a_file_without_a_certain_name_that_had_others,
        a_file_that_was_moved_and_then_removed,
        anothers_empty_file_at_the_name,
        a_staging_directory_of_anothers,
        a_file_that_has_left_the_tree,
        a_file_outside_with_its_handle,
        a_file_of_the_tree_with_its_handle,
        anothers_file_at_the_name,
        a_name_that_no_entry_gave,
        two_names_that_are_one,
        a_file_without_a_certain_name,
    ];
    for case in all {
        assert_eq!(case(), Ok(()));
    }
}

#[test]
fn planted_bugs_are_caught() {
    let mut missed = Vec::new();
    for bug in OF_OTHERS {
        plant(Some(bug));
        let found = shown_by(bug)();
        plant(None);
        println!("{bug:?}: {found:?}");
        if found.is_ok() {
            missed.push(bug);
        }
    }
    assert_eq!(missed, []);
}

const DIRECTORIES: [&str; 3] = ["a", "b", "c"];

/// A name that both use.
fn shared(rng: &mut Rng) -> String {
    format!("{}/s{}", DIRECTORIES[rng.index(3)], rng.index(4))
}

/// Runs one round.  Returns how much of the log was in dispute, or what went wrong.
fn round(seed: u64) -> Result<usize, String> {
    let rng = &mut Rng(seed);
    let bed = live_on(root_with(&DIRECTORIES));
    let mut ours: BTreeMap<String, u8> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    for step in 0..25u8 {
        let name = format!("{}/m{}", DIRECTORIES[rng.index(3)], rng.index(5));
        match rng.index(12) {
            // Files that no other program touches.
            0..=2 => {
                bed.write(&name, step + 1);
                gone.remove(&name);
                ours.insert(name, step + 1);
            }
            3 if ours.contains_key(&name) => {
                bed.unlink(&name);
                ours.remove(&name);
                gone.insert(name);
            }
            4 => {
                if let Some((from, byte)) = ours.iter().next().map(|(n, b)| (n.clone(), *b)) {
                    if from != name {
                        bed.rename(&from, &name);
                        ours.remove(&from);
                        gone.remove(&name);
                        gone.insert(from);
                        ours.insert(name, byte);
                    }
                }
            }
            5 if rng.index(3) == 0 => bed.sync(),
            // Files that both touch, through the mount and outside it.
            6 => bed.write(&shared(rng), 200),
            7 => bed.unlink(&shared(rng)),
            8 => bed.rename(&shared(rng), &shared(rng)),
            9 => bed.tree_rename(&shared(rng), &shared(rng)),
            10 => bed.tree_unlink(&shared(rng)),
            _ => bed.tree_create(&shared(rng)),
        }
    }
    let entries = log(&bed);
    let mut disk = Disk::new(bed.base.clone());
    bed.tree.trace().iter().for_each(|event| disk.feed(event));
    let point = rng.index(disk.points());
    let mut chance = Rng(rng.next());
    let tree = SimTree::new(disk.crash(point, &mut || chance.next() & 1 == 1));
    // Others, who get the numbers that are free again.
    for i in 0..rng.index(6) {
        let name = format!("other{i}");
        let other = tree.create(&OUTSIDE_INO, name.as_bytes(), &new(Kind::File, b"")).unwrap();
        tree.write(&other, 0, b"private").unwrap();
    }
    let before = tree.now();
    let done = replay(&tree, &entries, &ReplayOptions::default(), &mut |_, _| {});
    let report = done.map_err(|e| format!("no replay: {e}"))?;
    let end = tree.now();
    super::sealed::promises_kept(&end)?;
    for (name, ino) in &before.inodes[&OUTSIDE_INO].names {
        if end.inodes[ino] != before.inodes[ino] {
            return Err(format!("{} outside was changed", String::from_utf8_lossy(name)));
        }
    }
    let files = files(&end);
    for (name, byte) in &ours {
        let is = files.get(&format!("/{name}"));
        if is != Some(&vec![*byte; 600]) {
            return Err(format!("{name} is {:?}, and not {byte}", is.map(|f| f.first())));
        }
    }
    match gone.iter().find(|name| files.contains_key(&format!("/{name}"))) {
        Some(back) => Err(format!("{back} is back")),
        None => Ok(report.disputes.len() + report.conflicts.len() + report.missing.len()),
    }
}

/// `MOUNT_MODEL=whole`: twenty times as many.
#[test]
fn untouched_files_are_restored_and_no_others_overwritten() {
    let rounds = if super::model::whole() { 40_000 } else { 2_000 };
    let (mut disputes, mut disputed) = (0, 0);
    for seed in 0..rounds {
        match round(seed) {
            Ok(n) => {
                disputes += n;
                disputed += usize::from(n > 0);
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    println!("{rounds} rounds, {disputed} of them with {disputes} disputes");
    assert!(disputed > rounds as usize / 10, "they say nothing: {disputed}");
}

/// After the clock was set back, earlier writes have later times than the entries of their
/// sync.
#[test]
fn a_clock_that_was_set_back_looks_like_no_change() {
    const LATER: i64 = 5_000_000_000;
    let bed = live_on_tree(SimTree::new(root_with(&[])).changed_at(LATER));
    bed.write("x", 7);
    let state = crashed(&bed, true);
    let replay_at = |seconds| {
        let tree = SimTree::new(state.clone()).changed_at(seconds);
        replay(&tree, &log(&bed), &ReplayOptions::default(), &mut |_, _| {})
    };
    assert_eq!(replay_at(LATER).unwrap().changed, [""; 0]);
    assert_eq!(replay_at(LATER + 10).unwrap().changed, ["x"]);
}

/// It stays as it is, and what the log has is found.
#[test]
fn a_file_that_was_changed_after_the_crash_is_not_overwritten() {
    let bed = live_on(root_with(&[]));
    bed.write("x", 7);
    let state = crashed(&bed, true);
    let tree = SimTree::new(state).changed_at(5_000_000_000);
    let x = tree.lookup(&ROOT_INO, b"x").unwrap().unwrap();
    tree.write(&x, 0, b"edited").unwrap();
    let before = tree.now();
    let accept = ReplayOptions::default();
    let tree = SimTree::new(before.clone()).changed_at(5_000_000_000);
    replay(&tree, &log(&bed), &accept, &mut |_, _| {}).unwrap();
    // Cut after each of its steps and begun again it does not forget that.
    let trace = tree.trace();
    let mut disk = Disk::new(before.clone());
    for event in &trace {
        disk.feed(event);
        let tree = SimTree::new(disk.crash(disk.points() - 1, &mut || true));
        let tree = tree.changed_at(5_000_000_000);
        replay(&tree, &log(&bed), &accept, &mut |_, _| {}).unwrap();
        let end = tree.now();
        assert_eq!(end.inodes[&x], before.inodes[&x]);
        assert!(has_bytes_of(&end, 7));
    }
}

#[test]
fn a_directory_that_folds_case_is_not_entered() {
    let bed = live_on(root_with(&["d"]));
    assert!(bed.looks_up("d").is_ok());
    let bed = bed.folding();
    assert_eq!(bed.looks_up("d").map(drop), Err(rustix::io::Errno::OPNOTSUPP));
}

/// The log puts b into a, and somebody has put a into b.
#[test]
fn a_directory_that_would_lie_within_itself_costs_its_own_name() {
    let bed = live_on(root_with(&["a", "b"]));
    bed.write("a/x", 1);
    bed.write("b/y", 2);
    bed.sync();
    bed.rename("b", "a/b");
    bed.write("root", 3);
    let tree = SimTree::new(crashed(&bed, false));
    let (a, b) = (bed.ino("a"), bed.ino("a/b"));
    tree.rename((&ROOT_INO, b"a"), (&b, b"a"), RenameHow::NoReplace).unwrap();
    assert!(tree.is_within(a, b));
    let (report, end) = replayed(&tree.now(), &log(&bed));
    for byte in 1..=3 {
        assert!(has_bytes_of(&end, byte), "{byte}: {report:?} {:?}", files(&end).keys());
    }
    assert!(!report.disputes.is_empty(), "{report:?}");
}

/// Operations that were under way and that the tree refuses are found one by one, and each
/// time there is a file that is at none of its names.
#[test]
fn the_whole_tree_is_walked_once() {
    let dirs = ["a", "b", "c", "d", "e", "far"];
    let bed = live_on(root_with(&dirs));
    bed.write("a/x", 6);
    bed.sync();
    bed.write("a/x", 7);
    bed.tree_rename("a/x", "far/x");
    for dir in &dirs[..5] {
        bed.tries(&format!("{dir}/long"));
    }
    let mut log = log(&bed);
    log.retain(|body| {
        let mut records = Entry::parse(body).unwrap().records();
        !records.any(|record| matches!(record.unwrap(), Record::Void { .. }))
    });
    let far = bed.ino("far");
    let walks = || {
        let tree = SimTree::new(crashed(&bed, true));
        let report = replayed_on(&tree, &log).unwrap();
        assert_eq!(report.left_out.len(), 5, "{report:?}");
        assert!(has_bytes_of(&tree.now(), 7));
        tree.listed(far)
    };
    assert_eq!(walks(), 1);
    plant(Some(Bug::WalkedAgain));
    let again = walks();
    plant(None);
    assert!(again > 5, "{again}");
}
