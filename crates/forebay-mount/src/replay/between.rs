// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: while a replay goes on, nobody reads the old content who could not read it before the crash,
//! nor the new content who may not read it in the end; a replay that is cut and begun again ends as one
//! that was not, in rights, times and names; and one that finds no room to take a right writes nothing.
//! Method: rights before and in the end, each by each, of a file with content and of directories with
//! names; what every user may read after each change of the replay; each crash that the replay's own
//! events may leave, with any part of its list, replayed again.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::model::sim::{Disk, Event, Inode, Op, SimTree, State, ROOT_INO};
use super::planted::{plant, Bug};
use super::{replay, ReplayOptions, STAGING};
use crate::record::{header, Fid, Kind, Record, Records, SetAttr, Time};
use crate::tree::{New, Tree};

/// User, group and mode.
type Rights = (u32, u32, u32);

const RIGHTS: [Rights; 9] = [
    (1, 1, 0o600),
    (1, 1, 0o640),
    (1, 1, 0o604),
    (1, 1, 0o644),
    (1, 2, 0o640),
    (1, 2, 0o604),
    (2, 1, 0o640),
    (2, 2, 0o600),
    (2, 2, 0o664),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// With that many other files, the list is longer than a sector.
    File {
        others: u64,
    },
    Directory,
    /// The log has made it, and the tree lacks it.
    NewDirectory,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    what: What,
    before: Rights,
    after: Rights,
}

/// The owner may give himself any right.
fn may_read((uid, gid, mode): Rights, user: (u32, u32)) -> bool {
    match user {
        (u, _) if u == uid => true,
        (_, g) if g == gid => mode & 0o40 != 0,
        _ => mode & 0o4 != 0,
    }
}

fn rights(inode: &Inode) -> Rights {
    (inode.uid, inode.gid, inode.mode)
}

fn x_of(state: &State) -> Option<&Inode> {
    state.inodes[&ROOT_INO].names.get(&b"x"[..]).map(|ino| &state.inodes[ino])
}

impl Case {
    fn made<'n>(&self, kind: Kind) -> New<'n> {
        let (uid, gid, mode) = self.before;
        New { uid, gid, ..New::plain(kind, mode) }
    }

    fn kind(&self) -> Kind {
        match self.what {
            What::File { .. } => Kind::File,
            What::Directory | What::NewDirectory => Kind::Directory,
        }
    }

    /// The tree at the crash, and the log.
    fn scene(&self) -> (State, Vec<Vec<u8>>) {
        let tree = SimTree::new(State::empty());
        let is = tree.identity().unwrap();
        let which = Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path };
        let mut records = vec![(5, Records::of(&which))];
        let mut add = |at: u64, record: Record<'_>| records.push((at, Records::of(&record)));
        let bind = |fid: Fid, node: u64, add: &mut dyn FnMut(u64, Record<'_>)| {
            let handle = tree.handle(&node).unwrap();
            let kind = tree.attr(&node).unwrap().kind;
            add(5, Record::Bind { fid, kind, handle: &handle.0, path: b"" });
        };
        let time = |seconds| Time { seconds, nanoseconds: 0 };
        match self.what {
            What::File { others } => {
                for fid in (100..100 + others).chain([2]) {
                    let name = if fid == 2 { "x".into() } else { format!("other{fid}") };
                    let node = tree.create(&ROOT_INO, name.as_bytes(), &self.made(Kind::File));
                    let node = node.unwrap();
                    tree.write(&node, 0, b"old").unwrap();
                    let later = SetAttr { mtime: Some(time(50)), ..SetAttr::default() };
                    tree.set_attr(&node, &later).unwrap();
                    bind(fid, node, &mut add);
                    let (offset, size, mtime) = (0, 3, time(10));
                    add(10, Record::Data { fid, offset, size, mtime, bytes: b"new" });
                }
            }
            What::Directory => {
                let node = tree.create(&ROOT_INO, b"x", &self.made(Kind::Directory)).unwrap();
                let old = tree.create(&node, b"old", &New::plain(Kind::File, 0o600)).unwrap();
                bind(2, node, &mut add);
                bind(3, old, &mut add);
                add(10, Record::Unlink { dir: 2, name: b"old", fid: 3 });
            }
            What::NewDirectory => {}
        }
        let create = |dir, fid, name, kind| {
            let (uid, gid, mode) = self.before;
            Record::Create { dir, name, fid, kind, mode, uid, gid, device: 0, target: b"" }
        };
        if self.what == What::NewDirectory {
            add(10, create(1, 2, b"x", Kind::Directory));
        }
        if self.kind() == Kind::Directory {
            add(10, create(2, 4, b"new", Kind::File));
        }
        let (uid, gid, mode) = self.after;
        let mode = Some(mode).filter(|mode| *mode != self.before.2);
        let set = SetAttr { mode, uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        add(20, Record::Attr { fid: 2, set });
        add(100, Record::Alive);
        let entry = |((at, body), number): (&(u64, Records), u64)| {
            [&header(number, at * 1_000_000_000, 1)[..], body.bytes()].concat()
        };
        let log = records.iter().zip(1..).map(entry).collect();
        (tree.now(), log)
    }

    /// Checks what each user may read of `x` in this state.
    fn judge(&self, state: &State) -> Result<(), String> {
        let Some(x) = x_of(state) else { return Ok(()) };
        let has = |name: &[u8]| x.names.contains_key(name);
        let (old, new) = match self.what {
            What::File { .. } => (x.data == b"old", x.data != b"old"),
            What::Directory | What::NewDirectory => (has(b"old"), has(b"new")),
        };
        for user in (1..=3).flat_map(|uid| (1..=3).map(move |gid| (uid, gid))) {
            let reads = |content: bool, of: Rights| {
                content && may_read(rights(x), user) && !may_read(of, user)
            };
            for (content, of, what) in [(old, self.before, "old"), (new, self.after, "new")] {
                if reads(content, of) {
                    return Err(format!("{user:?} reads the {what} one of {:?}", rights(x)));
                }
            }
        }
        Ok(())
    }

    /// `x` and the root in the end.
    fn at_end(&self, state: &State) -> Result<(), String> {
        let x = x_of(state).ok_or("it is gone")?;
        let mtime = if self.kind() == Kind::File { 50 } else { 10 };
        let names: Vec<_> = x.names.keys().map(|name| &name[..]).collect();
        let content = match self.kind() {
            Kind::File => x.data == b"new",
            _ => names == [&b"new"[..]],
        };
        if (rights(x), x.mtime, content) != (self.after, mtime, true) {
            return Err(format!("it is {:?} of {}: {:?} {names:?}", rights(x), x.mtime, x.data));
        }
        let more = |name: &&Vec<u8>| **name != b"x"[..] && !name.starts_with(b"other");
        let all = state.inodes[&ROOT_INO].names.keys();
        match all.filter(more).find(|name| name[..] != *STAGING) {
            Some(name) => Err(format!("{} is there", super::printable(name))),
            None => Ok(()),
        }
    }

    /// Replays, and judges each state on the way and the last one.
    fn replayed(&self, state: &State, log: &[Vec<u8>]) -> Result<Vec<Event>, String> {
        let tree = SimTree::new(state.clone());
        let report = replay(&tree, log, &ReplayOptions::default(), &mut |_, _| {});
        let report = report.map_err(|e| e.to_string())?;
        let (trace, mut now) = (tree.trace(), state.clone());
        for (event, number) in trace.iter().zip(1..) {
            let Event::Op(op) = event else { continue };
            now.apply(op);
            self.judge(&now).map_err(|e| format!("after event {number}, {op:?}: {e}"))?;
        }
        self.at_end(&now).map_err(|e| format!("in the end: {e}: {report:?}"))?;
        Ok(trace)
    }

    fn explore(&self) -> Result<u64, String> {
        let (state, log) = self.scene();
        let trace = self.replayed(&state, &log)?;
        let (mut disk, mut seen, mut replays) = (Disk::new(state), Vec::new(), 1);
        for (cut, event) in trace.iter().enumerate() {
            disk.feed(event);
            for point in 0..disk.points() {
                for pattern in [0u64, u64::MAX, 0b01_0101, 0b10_1010] {
                    let mut sector = 0;
                    let crashed = disk.crash(point, &mut || {
                        sector += 1;
                        pattern >> (sector & 63) & 1 == 1
                    });
                    if seen.contains(&crashed) {
                        continue;
                    }
                    replays += 1;
                    let context = |e| format!("cut after {cut}, names {point}, {pattern:b}: {e}");
                    self.judge(&crashed).map_err(context)?;
                    self.replayed(&crashed, &log).map_err(context)?;
                    seen.push(crashed);
                }
            }
        }
        Ok(replays)
    }
}

fn cases() -> Vec<Case> {
    let whats = [What::File { others: 0 }, What::Directory, What::NewDirectory];
    let each = |what| {
        let pair = move |before| RIGHTS.into_iter().map(move |after| Case { what, before, after });
        RIGHTS.into_iter().flat_map(pair)
    };
    let mut cases: Vec<Case> = whats.into_iter().flat_map(each).collect();
    let (before, after) = ((1, 1, 0o640), (2, 1, 0o640));
    cases.push(Case { what: What::File { others: 30 }, before, after });
    cases
}

fn explored(of: impl Fn(&Case) -> bool) -> Result<u64, String> {
    let mut replays = 0;
    for case in cases().iter().filter(|case| of(case)) {
        replays += case.explore().map_err(|e| format!("{case:x?}: {e}"))?;
    }
    Ok(replays)
}

#[test]
fn nobody_reads_between_what_he_may_read_neither_before_nor_after() {
    let replays = explored(|_| true);
    println!("{} cases, {replays:?} replays", cases().len());
    assert!(replays.is_ok(), "{replays:?}");
}

#[test]
fn planted_bugs_are_caught() {
    type Of = fn(&What) -> bool;
    let of = |what: Of| move |case: &Case| what(&case.what);
    let rows: [(Bug, Of); 5] = [
        (Bug::ContentNotSynced, |what| matches!(what, What::File { .. })),
        (Bug::OwnerAtOnce, |what| matches!(what, What::File { .. })),
        (Bug::RightsNotNoted, |what| matches!(what, What::File { .. })),
        (Bug::KeptTooLate, |what| matches!(what, What::File { .. })),
        (Bug::PrivateForgotten, |what| *what == What::NewDirectory),
    ];
    for (bug, what) in rows {
        plant(Some(bug));
        let found = explored(of(what));
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_err(), "{bug:?} is not caught");
    }
}

/// As everywhere, the log keeps everything.
#[test]
fn a_right_that_finds_no_room_to_be_taken_stops_the_replay() {
    let case = Case { what: What::File { others: 0 }, before: (1, 1, 0o644), after: (1, 1, 0o600) };
    let (state, mut log) = case.scene();
    for under_way in [true, false] {
        if !under_way {
            // A later change shows that it was over.
            let set = SetAttr { atime: Some(Time::default()), ..SetAttr::default() };
            let later = Records::of(&Record::Attr { fid: 2, set });
            log.push([&header(99, 100_000_000_000, 1)[..], later.bytes()].concat());
        }
        let tree = SimTree::new(state.clone());
        let x = state.inodes[&ROOT_INO].names[&b"x"[..]];
        tree.full.store(x, Ordering::Relaxed);
        let stopped = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
        let error = stopped.expect_err("there is no room").to_string();
        assert!(
            error.contains("No space left") && error.contains("the log keeps everything"),
            "{error}"
        );
        assert_eq!(tree.now().inodes[&x].data, b"old", "{error}");
        tree.full.store(0, Ordering::Relaxed);
        replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(case.at_end(&tree.now()), Ok(()));
    }
}

/// The server of an NFS tree changes the ACL with the mode, and the mode with the ACL.
#[test]
fn an_acl_of_nfs_takes_rights_and_is_set_after_the_mode() {
    use crate::tree::DEFAULT_ACL;
    for name in [&b"system.nfs4_acl"[..], b"system.nfs4_dacl", DEFAULT_ACL] {
        let rights = (1, 1, 0o644);
        let case = Case { what: What::File { others: 0 }, before: rights, after: rights };
        let (state, mut log) = case.scene();
        let x = state.inodes[&ROOT_INO].names[&b"x"[..]];
        let acl = Records::of(&Record::Xattr { fid: 2, name, value: Some(b"private") });
        let mode = SetAttr { mode: Some(0o645), ..SetAttr::default() };
        let mode = Records::of(&Record::Attr { fid: 2, set: mode });
        for (body, number) in [&mode, &acl].into_iter().zip(98..) {
            log.push([&header(number, 100_000_000_000, 1)[..], body.bytes()].concat());
        }
        let tree = SimTree::new(state);
        replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
        let (mut written, mut modes, mut order) = (false, BTreeSet::new(), Vec::new());
        for event in tree.trace() {
            match event {
                Event::Op(Op::Write { ino, .. }) if ino == x => written = true,
                Event::Op(Op::SetAttr { ino, set }) if ino == x => {
                    let mode = set.mode.filter(|_| !written);
                    modes.extend(mode);
                    order.extend(set.mode.map(|_| "mode"));
                }
                Event::Op(Op::Xattr { ino, .. }) if ino == x => order.push("ACL"),
                _ => {}
            }
        }
        let is_default = name == DEFAULT_ACL;
        let narrowed = if is_default { None } else { Some(0o600) };
        assert_eq!(
            modes,
            narrowed.into_iter().collect::<BTreeSet<u32>>(),
            "{}",
            super::printable(name)
        );
        // The mode once more is what the ACL would have to bear.
        let last = if is_default { "mode" } else { "ACL" };
        assert_eq!(order.last(), Some(&last), "{}: {order:?}", super::printable(name));
        assert_eq!(tree.now().inodes[&x].xattrs[name], b"private");
    }
}
