// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: wherever a crash interrupts a mount or its replay, the log with the data that the tree
//! lacks is accepted, and no other log is.  Method: a simulated tree and the logs of two pools.
//! A crash follows each event of tree and logs, with a prefix of the names and a subset of the
//! data.  Each log is judged, and the replay is interrupted in turn.

use super::*;
use crate::replay::model::sim::{Disk, Event, SimTree, State, ROOT_INO};
use crate::replay::planted::{plant, Bug, OF_FORGERS, OF_MARKS};
use crate::replay::Accept;
use crate::unix::UnixTree;

const BEGIN: &[u8] = b"begin";
const ENTRY: &[u8] = b"entry";
const END: &[u8] = b"end";

fn pool(n: u64) -> Uuid {
    Uuid([n as u8; 16])
}

/// The log of a pool after these events: its period and the number of valid entries.
fn log_of(events: &[Event], of: u64) -> (Option<Uuid>, usize) {
    let (mut period, mut entries) = (None, 0);
    for event in events {
        let Event::Append(n, what) = event else { continue };
        match &what[..] {
            _ if *n != of => {}
            END => (period, entries) = (None, 0),
            ENTRY => entries += 1,
            begin => {
                let number = begin.strip_prefix(BEGIN).unwrap()[0];
                period = Some(Uuid([0x80 | number; 16]));
            }
        }
    }
    (period, entries)
}

/// The events of the logs before a crash are in the log after it.
fn logs_only(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|e| matches!(e, Event::Append(..))).cloned().collect()
}

/// The content of an entry; later entries have other content.
fn content(number: u8) -> Vec<u8> {
    vec![number; 600]
}

fn mark_of(of: u64, period: Uuid) -> Mark {
    let (pool, log, at) = (pool(of), "mount".into(), String::new());
    Mark { pool, log, period, since: 0, at, groups: true, ahead: false }
}

fn begin_period(tree: &SimTree, of: u64, number: u8) {
    let begun = begin(tree, 0, || {
        tree.event(Event::Append(of, [BEGIN, &[number]].concat()));
        let period = Uuid([0x80 | number; 16]);
        Ok(mark_of(of, period))
    });
    begun.unwrap();
}

fn end_period(tree: &SimTree, of: u64) {
    end(tree, || {
        tree.event(Event::Append(of, END.to_vec()));
        Ok(())
    })
    .unwrap();
}

/// A mount with one acknowledged change.
fn mount(tree: &SimTree, of: u64, number: u8) {
    begin_period(tree, of, number);
    tree.event(Event::Append(of, ENTRY.to_vec()));
    tree.write(&FILE, 0, &content(number)).unwrap();
}

const FILE: u64 = 2;

fn base() -> State {
    let tree = SimTree::new(State::empty());
    let new = New::plain(Kind::File, 0o644);
    assert_eq!(tree.create(&ROOT_INO, b"file", &new).unwrap(), FILE);
    tree.write(&FILE, 0, &content(0)).unwrap();
    tree.now()
}

fn judged(state: &State, of: u64, events: &[Event]) -> Result<Verdict> {
    let found = find(&SimTree::new(state.clone())).unwrap();
    judge(&found, pool(of), "mount", log_of(events, of).0)
}

/// `number` is the last acknowledged one of the log of pool 1.
fn check(state: &State, events: &[Event], number: u8) -> std::result::Result<(), String> {
    let (_, entries) = log_of(events, 1);
    let lacks = entries > 0 && state.inodes[&FILE].data != content(number);
    match judged(state, 1, events) {
        Err(e) => return Err(format!("the tree's own log is refused: {e}")),
        Ok(Verdict::Complete) if lacks => return Err("said to be complete, and is not".into()),
        Ok(Verdict::Unmarked) if entries > 0 => return Err("entries and no mark".into()),
        Ok(_) => {}
    }
    match judged(state, 2, events) {
        Ok(_) if lacks => Err("another log is let at a tree that lacks what was promised".into()),
        _ => Ok(()),
    }
}

/// Recovers as [`crate::recover`] does.
fn recover(tree: &SimTree, events: &[Event], number: u8) {
    let (_, entries) = log_of(events, 1);
    match judge(&find(tree).unwrap(), pool(1), "mount", log_of(events, 1).0).unwrap() {
        Verdict::Complete if log_of(events, 1).0.is_some() => {
            tree.event(Event::Append(1, END.to_vec()))
        }
        Verdict::Complete | Verdict::Unmarked if entries == 0 => {}
        _ => {
            tree.write(&FILE, 0, &content(number)).unwrap();
            tree.sync_all().unwrap();
            return end_period(tree, 1);
        }
    }
    clear(tree).unwrap();
}

/// Every state that a crash after each of these events leaves.
fn crashes(base: &State, trace: &[Event], mut each: impl FnMut(usize, State)) {
    let mut disk = Disk::new(base.clone());
    for at in 0..=trace.len() {
        if at > 0 {
            disk.feed(&trace[at - 1]);
        }
        for point in 0..disk.points() {
            for keep in [false, true] {
                each(at, disk.crash(point, &mut || keep));
            }
        }
    }
}

/// Mounted, used, ended, and mounted again; interrupted anywhere, replayed, interrupted again.
fn explore() -> (usize, Option<String>) {
    let base = base();
    let tree = SimTree::new(base.clone());
    mount(&tree, 1, 1);
    tree.sync_all().unwrap();
    end_period(&tree, 1);
    mount(&tree, 1, 2);
    tree.sync_all().unwrap();
    end_period(&tree, 1);
    let trace = tree.trace();
    let last = |events: &[Event]| 1 + u8::from(log_of(events, 1).0 == Some(Uuid([0x82; 16])));
    let (mut violation, mut checked) = (None, 0);
    let mut see = |what: std::result::Result<(), String>, at: &dyn Fn() -> String| {
        checked += 1;
        if let Err(e) = what {
            violation.get_or_insert_with(|| format!("{}: {e}", at()));
        }
    };
    crashes(&base, &trace, |at, state| {
        let (events, number) = (logs_only(&trace[..at]), last(&trace[..at]));
        let good = check(&state, &events, number);
        let bad = good.is_err();
        see(good, &|| format!("crash behind event {at}"));
        if bad {
            return;
        }
        let again = SimTree::new(state.clone());
        recover(&again, &events, number);
        let replay = again.trace();
        crashes(&state, &replay, |cut, state| {
            let events = [&events[..], &logs_only(&replay[..cut])].concat();
            let of = || format!("crash behind event {at}, its replay cut behind {cut}");
            see(check(&state, &events, number), &of);
        });
        let none = is_marked(&again, &ROOT_INO).unwrap() || find(&again).unwrap() != Found::Nothing;
        see(if none { Err("a mark is left".into()) } else { Ok(()) }, &|| "at the end".into());
    });
    (checked, violation)
}

#[test]
fn no_other_log_is_let_at_a_tree_that_lacks_something() {
    let (checked, violation) = explore();
    println!("{checked} states judged");
    assert_eq!(violation, None);
    assert!(checked > 200, "{checked}");
}

#[test]
fn planted_mistakes_are_caught() {
    for bug in OF_MARKS {
        plant(Some(bug));
        let (_, violation) = explore();
        plant(None);
        println!("{bug:?}: {violation:?}");
        assert!(violation.is_some(), "{bug:?} is not caught");
    }
}

/// Data that was given up is not replayed onto later changes of another log.
#[test]
fn what_was_given_up_does_not_come_back() {
    let tree = SimTree::new(base());
    mount(&tree, 1, 1);
    give_up(&tree).unwrap();
    let events = tree.trace();
    assert_eq!(judged(&tree.now(), 2, &events).unwrap(), Verdict::Unmarked);
    assert_eq!(judged(&tree.now(), 1, &events).unwrap(), Verdict::Unmarked);
    assert_eq!(log_of(&events, 1).1, 1, "which has entries, so its replay is refused");
    mount(&tree, 2, 2);
    assert!(matches!(judged(&tree.now(), 1, &tree.trace()), Err(MarkError::Foreign { .. })));
    // An older copy of the pool.
    let now = tree.now();
    assert!(matches!(judged(&now, 2, &events), Err(MarkError::Gone { .. })));
}

#[test]
fn what_is_no_mark_is_refused() {
    let tree = SimTree::new(State::empty());
    let new = |kind, target| New { target, ..New::plain(kind, 0o777) };
    for (kind, target) in [(Kind::Symlink, &b"{}"[..]), (Kind::Symlink, b"\xff"), (Kind::File, b"")]
    {
        tree.create(&ROOT_INO, MARK, &new(kind, target)).unwrap();
        let found = find(&tree).unwrap();
        assert_eq!(found, Found::Unknown);
        assert!(judge(&found, pool(1), "mount", None).is_err());
        tree.unlink(&ROOT_INO, MARK, false).unwrap();
    }
}

/// It says nothing about another log, nor about a later period of its own log.
#[test]
fn a_mark_that_is_over_is_of_its_period_alone() {
    let (period, other) = (Uuid([1; 16]), Uuid([2; 16]));
    let found = Found::Done(mark_of(1, period));
    let judged = |period| judge(&found, pool(1), "mount", period).unwrap();
    assert_eq!(judged(Some(period)), Verdict::Complete);
    assert_eq!(judged(Some(other)), Verdict::Unmarked);
    assert_eq!(judged(None), Verdict::Unmarked);
}

/// The gravest objection.
fn judge_group<T: Tree>(tree: &T, found: &Found, synced: u64) -> Result<()> {
    objections(tree, found, synced)?.into_iter().next().map_or(Ok(()), Err)
}

/// Each state of the number and of its file, with each pair of kinds that an operator may
/// accept: the replay goes on only if every objection is accepted, and never for an older pool.
#[test]
fn one_consent_covers_no_other_objection() {
    let all = Accept::all().to_string();
    let kinds: Vec<&str> = all.split(',').collect();
    let numbers =
        [(Some("older-tree"), 9), (None, 7), (Some("older pool"), 3), (Some("no-group"), 7)];
    let mut refused = 0;
    for (number, log) in numbers {
        for (renamed, open) in [(false, false), (false, true), (true, false), (true, true)] {
            let tree = SimTree::new(base());
            begin(&tree, 7, || Ok(mark_of(1, Uuid([0x81; 16])))).unwrap();
            let group = tree.lookup(&ROOT_INO, GROUP).unwrap().unwrap();
            if open {
                let wide = SetAttr { mode: Some(0o664), ..SetAttr::default() };
                tree.set_attr(&group, &wide).unwrap();
            }
            if renamed {
                tree.rename((&ROOT_INO, MARK), (&ROOT_INO, DONE), RenameHow::Replace).unwrap();
            }
            if number == Some("no-group") {
                tree.unlink(&ROOT_INO, GROUP, false).unwrap();
            }
            let mut needed: Vec<&str> = number.into_iter().collect();
            if renamed && open && number != Some("no-group") {
                needed.push("no-group");
            }
            let found = find(&tree).unwrap();
            for one in &kinds {
                for other in &kinds {
                    let accept: Accept = format!("{one},{other}").parse().unwrap();
                    let row = format!("{number:?}, renamed: {renamed}, open: {open}, {accept}");
                    let said = objections(&tree, &found, log).unwrap();
                    assert_eq!(said.len(), needed.len(), "{row}: {said:?}");
                    let goes_on = needed.iter().all(|kind| accept.has(kind));
                    let judged = crate::recover::accepted_of(said, &accept);
                    assert_eq!(judged.is_ok(), goes_on, "{row}: {judged:?}");
                    refused += usize::from(!goes_on);
                }
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

/// A case-insensitive tree has the mark under another name too.
#[test]
fn a_tree_that_folds_case_is_refused() {
    let tree = SimTree::new(base()).folding();
    let begun = begin(&tree, 0, || Ok(mark_of(1, Uuid([0x81; 16]))));
    assert!(matches!(begun, Err(MarkError::FoldsCase)), "{begun:?}");
    end(&tree, || Ok(())).unwrap();
    assert_eq!(tree.names(&ROOT_INO).unwrap(), [b"file"]);
}

#[test]
fn the_number_of_the_tree_says_whether_it_is_older() {
    let tree = SimTree::new(base());
    let period = Uuid([0x81; 16]);
    let group = begin(&tree, 7, || Ok(mark_of(1, period))).unwrap();
    let found = find(&tree).unwrap();
    let says = |log| match judge_group(&tree, &found, log) {
        Ok(()) => "the same",
        Err(MarkError::OlderTree { .. }) => "an older tree",
        Err(MarkError::OlderPool { .. }) => "an older pool",
        Err(e) => panic!("{e}"),
    };
    assert_eq!([5, 6, 7, 8].map(says), ["an older pool", "the same", "the same", "an older tree"]);
    group.set(&tree, 8).unwrap();
    assert_eq!([6, 7, 8, 9].map(says), ["an older pool", "the same", "the same", "an older tree"]);
    // A mark of a version without group numbers.
    let old = Found::Marked(Mark { groups: false, ..mark_of(1, period) });
    judge_group(&tree, &old, 100).unwrap();
    // A chmod -R gave others the right to write to it.
    let file = tree.lookup(&ROOT_INO, GROUP).unwrap().unwrap();
    let wide = SetAttr { mode: Some(0o664), ..SetAttr::default() };
    tree.set_attr(&file, &wide).unwrap();
    assert_eq!([6, 7, 8, 9].map(says), ["an older pool", "the same", "the same", "an older tree"]);
    // Another period's, damaged, or gone.
    let other = Found::Marked(mark_of(1, Uuid([0x82; 16])));
    assert!(matches!(judge_group(&tree, &other, 8), Err(MarkError::NoGroup)));
    let node = tree.lookup(&ROOT_INO, GROUP).unwrap().unwrap();
    tree.write(&node, 3, b"?").unwrap();
    assert!(matches!(judge_group(&tree, &found, 8), Err(MarkError::NoGroup)));
    tree.unlink(&ROOT_INO, GROUP, false).unwrap();
    assert!(matches!(judge_group(&tree, &found, 8), Err(MarkError::NoGroup)));
}

/// Puts an inode of another user at one of the names.
fn plant_there<T: Tree>(tree: &T, name: &[u8], what: &Planted) -> Vec<T::Node> {
    let new = |kind, target| New { target, ..New::plain(kind, 0o755) };
    let of = |node: &T::Node| {
        let set = SetAttr { uid: what.uid, gid: what.uid, ..SetAttr::default() };
        tree.set_attr(node, &set).unwrap();
    };
    let root = tree.root();
    let make = |dir: &T::Node, name: &[u8], kind, target| {
        let node = tree.create(dir, name, &new(kind, target)).unwrap();
        if kind == Kind::File {
            tree.write(&node, 0, b"of a program").unwrap();
        }
        of(&node);
        node
    };
    let own = b"{\"pool\":1}";
    match what.how {
        How::Empty => vec![make(&root, name, Kind::Directory, b"")],
        How::Full => {
            let dir = make(&root, name, Kind::Directory, b"");
            vec![make(&dir, b"inner", Kind::File, b""), make(&dir, b"7", Kind::File, b""), dir]
        }
        How::Symlink => vec![make(&root, name, Kind::Symlink, b"/etc")],
        How::Json => vec![make(&root, name, Kind::Symlink, own)],
        How::Fifo => vec![make(&root, name, Kind::Fifo, b"")],
        How::File => vec![make(&root, name, Kind::File, b"")],
        How::HardLink => {
            let file = make(&root, b"program", Kind::File, b"");
            tree.link(&file, &root, name).unwrap();
            vec![file]
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum How {
    Empty,
    Full,
    Symlink,
    Json,
    Fifo,
    File,
    HardLink,
}

#[derive(Clone, Copy, Debug)]
struct Planted {
    how: How,
    /// The owner, unless it is the user who mounts.
    uid: Option<u32>,
}

/// Inodes of all kinds, of this user and, if the user may give files away, of another.
fn everything() -> Vec<Planted> {
    use How::*;
    let root = New::plain(Kind::File, 0).uid == 0;
    let uids = if root { &[None, Some(9)][..] } else { &[None] };
    let hows = [Empty, Full, Symlink, Json, Fifo, File, HardLink];
    hows.iter().flat_map(|&how| uids.iter().map(move |&uid| Planted { how, uid })).collect()
}

/// It is in the tree, and whose it was.
fn is_there<T: Tree>(tree: &T, node: &T::Node, uid: u32) -> bool {
    let wanted = tree.handle(node).unwrap();
    let mut left = vec![tree.root()];
    while let Some(dir) = left.pop() {
        for name in tree.names(&dir).unwrap() {
            let found = tree.lookup(&dir, &name).unwrap().unwrap();
            let attr = tree.attr(&found).unwrap();
            if tree.handle(&found).unwrap() == wanted {
                return attr.uid == uid;
            }
            if attr.kind == Kind::Directory {
                left.push(found);
            }
        }
    }
    false
}

/// At each of Forebay's own names there is each kind of thing, before a mount or from its middle
/// on; then it begins, ends, and a replay tidies.  What refuses that is named, and after
/// [`give_up`] it does not any more; nothing is removed but what Forebay may have made there.
fn own_names<T: Tree>(fresh: impl Fn() -> T) -> usize {
    let us = New::plain(Kind::File, 0).uid;
    let mut rows = 0;
    for name in [MARK, DONE, GROUP, b".forebay-replay", b".forebay-replay.1", b".forebay-found"] {
        for what in everything() {
            for late in [false, true] {
                let row = format!("{}, {what:?}, late: {late}", String::from_utf8_lossy(name));
                let tree = fresh();
                let start = || begin(&tree, 7, || Ok(mark_of(1, Uuid([0x81; 16]))));
                let mut theirs = Vec::new();
                if late {
                    let group = start().unwrap_or_else(|e| panic!("{row}: {e}"));
                    if tree.lookup(&tree.root(), name).unwrap().is_some() {
                        tree.unlink(&tree.root(), name, false).unwrap();
                    }
                    theirs = plant_there(&tree, name, &what);
                    group.set(&tree, 8).unwrap_or_else(|e| panic!("{row}: {e}"));
                } else {
                    theirs.extend(plant_there(&tree, name, &what));
                    let found = find(&tree).unwrap();
                    if let Err(e) = judge(&found, pool(1), "mount", None) {
                        let words = e.to_string();
                        assert!(words.contains("unmark TREE --accept-loss"), "{row}: {words}");
                        give_up(&tree).unwrap_or_else(|e| panic!("{row}: {e}"));
                        assert_eq!(find(&tree).unwrap(), Found::Nothing, "{row}");
                    }
                    start().map(drop).unwrap_or_else(|e| panic!("{row}: {e}"));
                }
                // To all appearances made by Forebay.
                let removable = match what.how {
                    How::Symlink | How::Json => name == MARK || name == DONE,
                    How::File => name == GROUP && what.uid.is_none(),
                    _ => false,
                };
                let ended = end(&tree, || Ok(()));
                ended.unwrap_or_else(|e| panic!("{row}: {e}"));
                crate::replay::tidy(&tree).unwrap_or_else(|e| panic!("{row}: {e}"));
                let uid = what.uid.unwrap_or(us);
                for node in theirs.iter().filter(|_| !removable) {
                    let empty = matches!(what.how, How::Empty) && what.uid.is_none();
                    assert!(empty || is_there(&tree, node, uid), "{row}: it is gone");
                }
                rows += 1;
            }
        }
    }
    rows
}

#[test]
fn what_somebody_puts_at_forebays_own_names_stops_nothing_and_is_not_lost() {
    let rows = own_names(|| SimTree::new(base()));
    let dir = std::env::temp_dir().join(format!("forebay-own-names-{}", std::process::id()));
    let on_disk = own_names(|| {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        UnixTree::open(&dir).unwrap()
    });
    std::fs::remove_dir_all(&dir).unwrap();
    println!("{rows} rows, {on_disk} on this machine's file system");
    assert!(rows >= 84 && on_disk == rows);
}

/// Somebody who may write to the root renames the mark, and replaces what says that it is done.
fn a_mark_that_somebody_renamed() -> std::result::Result<(), String> {
    for forged in [None, Some(true), Some(false)] {
        let tree = SimTree::new(base());
        mount(&tree, 1, 1);
        tree.rename((&ROOT_INO, MARK), (&ROOT_INO, DONE), RenameHow::Replace).unwrap();
        if let Some(theirs) = forged {
            let group = tree.lookup(&ROOT_INO, GROUP).unwrap().unwrap();
            let mut text = [0; 64];
            let read = tree.read(&group, 0, &mut text).unwrap();
            tree.unlink(&ROOT_INO, GROUP, false).unwrap();
            let uid = if theirs { 9 } else { 0 };
            let new = New { uid, ..New::plain(Kind::File, if theirs { 0o644 } else { 0o666 }) };
            let node = tree.create(&ROOT_INO, GROUP, &new).unwrap();
            let line = text[..read].iter().position(|b| *b == b'\n').unwrap() + 1;
            tree.write(&node, 0, &[&text[..line], ALL].concat()).unwrap();
        }
        match judged(&tree.now(), 1, &tree.trace()) {
            Ok(Verdict::Replay) => {}
            other => return Err(format!("{forged:?}: {other:?}")),
        }
        // The number that says who may undo later groups of the period is not believed either.
        let found = find(&tree).unwrap();
        match (forged, judge_group(&tree, &found, 0)) {
            (None, Ok(()))
            | (Some(true), Err(MarkError::NoGroup))
            | (Some(false), Err(MarkError::GroupMode)) => {}
            (_, other) => return Err(format!("{forged:?}: {other:?}")),
        }
        recover(&tree, &tree.trace(), 1);
        if find(&tree).unwrap() != Found::Nothing {
            return Err(format!("{forged:?}: a mark is left"));
        }
    }
    Ok(())
}

/// A number that somebody may have forged refuses the replay as an older pool's, and the message has
/// the way out; one that nobody else can write has none.
#[test]
fn a_forged_number_has_a_way_out() {
    let us = New::plain(Kind::File, 0).uid;
    for renamed in [false, true] {
        for (mode, uid, forgeable) in
            [(0o644, us, false), (0o666, us, true), (0o664, us, true), (0o644, 5, true)]
        {
            let row = format!("renamed: {renamed}, {mode:o} of {uid}");
            let tree = SimTree::new(base());
            // A directory of another user, who may replace everything in it.
            let owned = SetAttr { uid: Some(5), ..SetAttr::default() };
            tree.set_attr(&ROOT_INO, &owned).unwrap();
            mount(&tree, 1, 1);
            if renamed {
                tree.rename((&ROOT_INO, MARK), (&ROOT_INO, DONE), RenameHow::Replace).unwrap();
            }
            let found = find(&tree).unwrap();
            let period = match &found {
                Found::Marked(mark) | Found::Unproved(mark) => mark.period,
                found => panic!("{row}: {found:?}"),
            };
            tree.unlink(&ROOT_INO, GROUP, false).unwrap();
            let new = New { uid, ..New::plain(Kind::File, mode) };
            let node = tree.create(&ROOT_INO, GROUP, &new).unwrap();
            tree.write(&node, 0, format!("{period} {:020}\n", 999).as_bytes()).unwrap();
            let refused = judge_group(&tree, &found, 0).unwrap_err();
            assert!(matches!(refused, MarkError::OlderPool { .. }), "{row}: {refused}");
            let all = Accept::all();
            let said = objections(&tree, &found, 0).unwrap();
            crate::recover::accepted_of(said, &all).expect_err(&row);
            let words = refused.to_string();
            assert_eq!(words.contains("remove that file"), forgeable, "{row}: {words}");
            if forgeable {
                // As the message says.
                tree.unlink(&ROOT_INO, GROUP, false).unwrap();
                let only: Accept = "no-group".parse().unwrap();
                let said = objections(&tree, &found, 0).unwrap();
                crate::recover::accepted_of(said, &only).unwrap_or_else(|e| panic!("{row}: {e}"));
            }
        }
    }
}

/// In a directory like /tmp anybody can make one, there and above a tree.
fn a_mark_of_anybody() -> std::result::Result<(), String> {
    let target = serde_json::to_vec(&mark_of(2, Uuid([0x82; 16]))).unwrap();
    for name in [MARK, DONE] {
        for (mode, uid, counts) in
            [(0o1777, 9, false), (0o1777, 0, true), (0o1777, 5, true), (0o777, 9, name == MARK)]
        {
            let tree = SimTree::new(base());
            let sticky = SetAttr { mode: Some(mode), uid: Some(5), ..SetAttr::default() };
            tree.set_attr(&ROOT_INO, &sticky).unwrap();
            let new = New { uid, target: &target, ..New::plain(Kind::Symlink, 0o777) };
            tree.create(&ROOT_INO, name, &new).unwrap();
            let found = find(&tree).unwrap() != Found::Nothing;
            let marked = is_marked(&tree, &ROOT_INO).unwrap();
            if found != counts || marked != (counts && name == MARK) {
                return Err(format!("{mode:o} {uid}: {found} {marked}"));
            }
            if !counts {
                mount(&tree, 1, 1);
                end_period(&tree, 1);
            }
        }
    }
    Ok(())
}

#[test]
fn forged_marks_are_not_believed() {
    assert_eq!(a_mark_that_somebody_renamed(), Ok(()));
    assert_eq!(a_mark_of_anybody(), Ok(()));
    for bug in OF_FORGERS {
        plant(Some(bug));
        let found = match bug {
            Bug::MarkOfAnybody => a_mark_of_anybody(),
            _ => a_mark_that_somebody_renamed(),
        };
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_err(), "{bug:?} is not caught");
    }
}

/// A mark whose time says how far the tree is says so, and was made by who may make one.  No date is
/// a number, not even that of a machine without a clock.  What is not believed is told from what
/// says nothing.
#[test]
fn the_time_of_a_mark_is_believed_where_it_is_a_number_of_ours() {
    let us = New::plain(Kind::Symlink, 0).uid;
    for name in [MARK, DONE] {
        let another = Reached::Doubtful("another user made it");
        let date = Reached::Doubtful("its time is not one that a mount gives it");
        for (ahead, uid, seconds, says) in [
            (true, us, 7, Reached::Entry(7)),
            (false, us, 7, Reached::Nothing),
            (false, us, 1_790_000_000, Reached::Nothing),
            (false, 99, 7, Reached::Nothing),
            (true, us, 0, Reached::Nothing),
            (true, 99, 0, Reached::Nothing),
            (true, us, MOST_REACHED as i64 - 1, Reached::Entry(MOST_REACHED - 1)),
            (true, us, MOST_REACHED as i64, date),
            (true, us, 1_790_000_000, date),
            (true, 99, 7, another),
            (true, 99, 1_790_000_000, another),
        ] {
            let tree = SimTree::new(State::empty());
            assert_eq!(reached(&tree), Ok(Reached::Nothing));
            let (pool, period) = (Uuid([1; 16]), Uuid([2; 16]));
            let (log, at, since) = ("mount".into(), "pool".into(), 0);
            let text = Mark { pool, log, period, since, at, groups: true, ahead };
            let text = serde_json::to_vec(&text).unwrap();
            let new = New { uid, target: &text, ..New::plain(Kind::Symlink, 0o777) };
            let mark = tree.create(&ROOT_INO, name, &new).unwrap();
            let mtime = Some(Time { seconds, nanoseconds: 0 });
            tree.set_attr(&mark, &SetAttr { mtime, ..SetAttr::default() }).unwrap();
            assert_eq!(reached(&tree), Ok(says), "{ahead} {uid} {seconds}");
        }
    }
}

/// Neither a user who holds all descriptors of the process, nor one who removes the name, keeps a
/// number from the tree.
#[test]
fn the_number_is_held_open() {
    let dir = std::env::temp_dir().join(format!("forebay-number-{}", std::process::id()));
    for bug in [None, Some(Bug::GroupNotHeld)] {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let tree = UnixTree::open(&dir).unwrap();
        plant(bug);
        let group = begin(&tree, 0, || Ok(mark_of(1, Uuid([0x81; 16])))).unwrap();
        plant(None);
        for _ in 0..2 {
            assert_eq!(tree.room(|| Err::<(), _>(Errno::MFILE)), Err(Errno::MFILE));
        }
        std::fs::remove_file(dir.join(".forebay-group")).unwrap();
        let expected = match bug.is_some() && tree.opens_by_handle() {
            true => Err(Errno::STALE),
            false => Ok(()),
        };
        assert_eq!(group.set(&tree, 1), expected, "{bug:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// By design a tree keeps these names after its log is lost.
#[test]
fn a_tree_that_is_read_only_keeps_what_is_left() {
    let tree = SimTree::new(base());
    begin_period(&tree, 1, 1);
    complete(&tree).unwrap();
    tree.create(&ROOT_INO, b".forebay-replay", &New::plain(Kind::Directory, 0o700)).unwrap();
    let names = tree.names(&ROOT_INO).unwrap();
    assert!(names.iter().any(|name| name == DONE) && names.iter().any(|name| name == GROUP));
    let sealed = tree.clone().read_only();
    clear(&sealed).unwrap();
    crate::replay::tidy(&sealed).unwrap();
    assert_eq!(sealed.names(&ROOT_INO), Ok(names));
    let refused = give_up(&sealed).unwrap_err();
    assert!(matches!(refused, MarkError::Tree { cause: Errno::ROFS, .. }), "{refused}");
    clear(&tree).unwrap();
    crate::replay::tidy(&tree).unwrap();
    assert_eq!(tree.names(&ROOT_INO), Ok(vec![b"file".to_vec()]));
}

/// A directory that a mount has left in the middle of its begin or end is empty to programs.
#[test]
fn what_is_left_of_a_mount_does_not_keep_a_directory() {
    let (us, another) = (New::plain(Kind::File, 0).uid, 4242);
    type Names = &'static [(&'static [u8], Kind, bool)];
    // The names, their kinds and whether they are another user's; whether the directory goes.
    let table: [(Names, bool); 9] = [
        (&[(GROUP, Kind::File, false)], true),
        (&[(DONE, Kind::Symlink, false)], true),
        (&[(DONE, Kind::Symlink, false), (GROUP, Kind::File, false)], true),
        (&[(GROUP, Kind::File, true)], false),
        (&[(GROUP, Kind::Symlink, false)], false),
        (&[(GROUP, Kind::Directory, false)], false),
        (&[(GROUP, Kind::File, false), (MARK, Kind::Symlink, false)], false),
        (&[(GROUP, Kind::File, false), (b"file", Kind::File, false)], false),
        (&[], false),
    ];
    for (names, goes) in table {
        let tree = SimTree::new(State::empty());
        let new = New { uid: us, ..New::plain(Kind::Directory, 0o755) };
        let dir = tree.create(&ROOT_INO, b"d", &new).unwrap();
        for (name, kind, anothers) in names {
            let uid = if *anothers { another } else { us };
            tree.create(&dir, name, &New { uid, ..New::plain(*kind, 0o644) }).unwrap();
        }
        let removed = emptied(&tree, &dir, || match tree.names(&dir)?.is_empty() && goes {
            true => tree.unlink(&ROOT_INO, b"d", true),
            false => Err(Errno::NOTEMPTY),
        });
        let expected = if goes { Ok(()) } else { Err(Errno::NOTEMPTY) };
        assert_eq!(removed, expected, "{names:?}");
        let left = tree.names(&dir).unwrap_or_default().len();
        assert_eq!(left, if goes { 0 } else { names.len() }, "{names:?}");
    }
}
