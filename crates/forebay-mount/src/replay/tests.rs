// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever is right in the tree stays as it is.  The tests use a directory of this
//! machine.

use super::*;
use crate::record::{header, Allocate, Kind, Record, Records, SetAttr, Time, NONE};
use crate::tree::New;
use crate::unix::UnixTree;

fn time(seconds: i64) -> Time {
    Time { seconds, nanoseconds: 0 }
}

fn directory(name: &str) -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("forebay-replay-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    dir
}

/// An entry for each record.
fn entries(records: &[Record<'_>]) -> Vec<Vec<u8>> {
    entries_of(u64::MAX >> 2, records)
}

fn entries_of(time_ns: u64, records: &[Record<'_>]) -> Vec<Vec<u8>> {
    let entry = |(record, number)| {
        let body = Records::of(record);
        [&header(number, time_ns, 1)[..], body.bytes()].concat()
    };
    records.iter().zip(1..).map(entry).collect()
}

/// A replay that stops shows nobody what was written when he had lost the right to read it.
#[test]
fn rights_are_taken_before_anything_is_written() {
    let dir = directory("rights");
    std::fs::create_dir(dir.join("d")).unwrap();
    let names = ["fails", "mode", "acl", "group"];
    names.iter().for_each(|name| std::fs::write(dir.join(name), b"now").unwrap());
    let tree = UnixTree::open(&dir).unwrap();
    let is = tree.identity().unwrap();
    let node = |name: &str| tree.lookup(&tree.root(), name.as_bytes()).unwrap().unwrap();
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    for name in names.iter().chain(&["d"]) {
        tree.set_attr(&node(name), &set(0o755)).unwrap();
    }
    let handles: Vec<_> =
        names.iter().chain(&["d"]).map(|name| tree.handle(&node(name)).unwrap()).collect();
    let kind = |fid| if fid == 6 { Kind::Directory } else { Kind::File };
    let data = |fid| Record::Data { fid, offset: 0, size: 6, mtime: time(1000), bytes: b"secret" };
    // The user of root may have another group.
    let root = tree.attr(&tree.root()).unwrap().uid == 0;
    let gid = Some(4242).filter(|_| root);
    let mut records =
        vec![Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path }];
    records.extend(handles.iter().zip(2..).map(|(handle, fid)| Record::Bind {
        fid,
        kind: kind(fid),
        handle: &handle.0,
        path: b"",
    }));
    records.extend([
        // No file system knows it.
        Record::Xattr { fid: 2, name: b"nonsense", value: Some(b"") },
        Record::Attr { fid: 3, set: set(0o750) },
        data(3),
        Record::Attr { fid: 4, set: set(0o777) },
        Record::Xattr { fid: 4, name: crate::tree::ACCESS_ACL, value: Some(b"an ACL") },
        data(4),
        Record::Attr { fid: 5, set: SetAttr { gid, ..set(0o775) } },
        data(5),
        Record::Attr { fid: 6, set: set(0o700) },
    ]);
    let stopped = replay(&tree, &entries(&records), &ReplayOptions::default(), &mut |_, _| {});
    assert!(matches!(stopped, Err(ReplayError::UnderWay { .. })), "{stopped:?}");
    let attr = |name| tree.attr(&node(name)).unwrap();
    assert_eq!(std::fs::read(dir.join("mode")).unwrap(), b"secret", "it was written");
    assert_eq!(format!("{:o}", attr("mode").mode), "750", "others may not read it");
    assert_eq!(format!("{:o}", attr("acl").mode), "700", "the ACL comes later");
    let group = if root { "700" } else { "755" };
    assert_eq!(format!("{:o}", attr("group").mode), group, "nobody gains a right before the end");
    assert_eq!(attr("group").gid, attr("mode").gid, "its old content is not for the new group");
    assert_eq!(format!("{:o}", attr("d").mode), "700");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A file in a new directory has its name before the directory has its attributes.
#[test]
fn a_new_directory_is_never_open_to_more_than_at_the_end() {
    let dir = directory("made");
    std::fs::create_dir(dir.join("fails")).unwrap();
    let tree = UnixTree::open(&dir).unwrap();
    let is = tree.identity().unwrap();
    let fails = tree.lookup(&tree.root(), b"fails").unwrap().unwrap();
    let handle = tree.handle(&fails).unwrap();
    let create = |fid, name, mode| Record::Create {
        dir: 1,
        name,
        fid,
        kind: Kind::Directory,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        device: 0,
        target: b"",
    };
    let log = entries(&[
        Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path },
        Record::Bind { fid: 2, kind: Kind::Directory, handle: &handle.0, path: b"" },
        // No file system knows it.
        Record::Xattr { fid: 2, name: b"nonsense", value: Some(b"") },
        create(3, b"private", 0o755),
        Record::Attr { fid: 3, set: SetAttr { mode: Some(0o700), ..SetAttr::default() } },
        create(4, b"public", 0o755),
    ]);
    let stopped = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
    assert!(matches!(stopped, Err(ReplayError::UnderWay { .. })), "{stopped:?}");
    for (name, mode) in [("private", "700"), ("public", "755")] {
        let node = tree.lookup(&tree.root(), name.as_bytes()).unwrap().expect(name);
        assert_eq!(format!("{:o}", tree.attr(&node).unwrap().mode), mode, "{name}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A process that may not open by handle looks there before it searches the whole tree.
#[test]
fn an_inode_without_a_path_is_looked_for_where_the_log_has_it() {
    let create = |dir, fid, name| Record::Create {
        dir,
        name,
        fid,
        kind: if fid < 4 { Kind::Directory } else { Kind::File },
        mode: 0o755,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"",
    };
    let bind = |fid, kind, path| Record::Bind { fid, kind, handle: b"handle", path };
    let log = entries(&[
        Record::Tree { file_system: [0; 16], root: b"root", path: b"/tree" },
        bind(2, Kind::Directory, b"seen/here"),
        create(2, 3, b"d"),
        create(3, 4, b"new"),
        bind(4, Kind::File, b""),
        Record::Rename {
            from_dir: 3,
            from: b"new",
            to_dir: 2,
            to: b"file",
            fid: 4,
            replaced: NONE,
            exchange: false,
        },
        bind(5, Kind::File, b""),
    ]);
    let history = History::of(&log, &HashSet::new()).unwrap();
    assert_eq!(history.hint(4), b"seen/here/file");
    assert_eq!(history.hint(3), b"seen/here/d");
    assert_eq!(history.hint(5), b"");
}

/// To the mount it was empty.
#[test]
fn a_directory_with_a_mark_that_is_over_is_removed() {
    let dir = directory("over");
    std::fs::create_dir(dir.join("d")).unwrap();
    std::os::unix::fs::symlink("{}", dir.join("d/.forebay-done")).unwrap();
    let tree = UnixTree::open(&dir).unwrap();
    let node = tree.lookup(&tree.root(), b"d").unwrap().unwrap();
    let (is, handle) = (tree.identity().unwrap(), tree.handle(&node).unwrap());
    let log = entries(&[
        Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path },
        Record::Bind { fid: 2, kind: Kind::Directory, handle: &handle.0, path: b"d" },
        Record::Unlink { dir: 1, name: b"d", fid: 2 },
    ]);
    replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    assert!(!dir.join("d").exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The tree's own sync made it durable, with its time.
#[test]
fn a_time_before_the_trees_own_sync_is_not_set_again() {
    let dir = directory("time");
    let tree = UnixTree::open(&dir).unwrap();
    let new = New::plain(Kind::File, 0o644);
    let node = tree.create(&tree.root(), b"f", &new).unwrap();
    let set = SetAttr { mtime: Some(time(2000)), ..SetAttr::default() };
    tree.set_attr(&node, &set).unwrap();

    let is = tree.identity().unwrap();
    let handle = tree.handle(&node).unwrap();
    let records = [
        Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path },
        Record::Bind { fid: 2, kind: Kind::File, handle: &handle.0, path: b"" },
        Record::Data { fid: 2, offset: 0, size: 3, mtime: time(1000), bytes: b"old" },
        Record::Synced { fid: 2 },
    ];
    let report = plan(&tree, &entries(&records)).unwrap();
    assert_eq!(report.actions, []);

    // The sync did not have to make an attribute durable that was set explicitly.
    let attr = Record::Attr { fid: 2, set };
    let [a, b, c, d] = records;
    let report = plan(&tree, &entries(&[a, b, c, attr, d])).unwrap();
    assert_eq!(report.actions.len(), 1);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Such a write is in the tree where only the server was killed.
#[test]
fn a_write_that_no_entry_has_keeps_its_time() {
    struct Row {
        name: &'static str,
        /// In milliseconds before the last entry: of the logged content, of the setting of a time
        /// by a program, if there is one, and of the content of the tree.
        logged: i64,
        set: Option<i64>,
        tree: i64,
        /// The time is the tree's, or that of the log.
        stays: bool,
    }
    let row = |name, logged, set, tree, stays| Row { name, logged, set, tree, stays };
    let rows = [
        row("written after the sync", 900, None, 400, true),
        row("written while the log was silent", 900, None, -1500, true),
        row("the tree lacks the sync", 900, None, 1400, false),
        row("nothing was written since", 900, None, 900, false),
        row("written after a time was set", 1400, Some(900), 400, true),
        row("written before a time was set", 1400, Some(900), 1000, false),
    ];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let before = |ms: i64| {
        let at = now.as_millis() as i64 - ms;
        Time { seconds: at / 1000, nanoseconds: (at % 1000) as u32 * 1_000_000 }
    };
    let at = |ms| before(ms).seconds as u64 * 1_000_000_000 + u64::from(before(ms).nanoseconds);
    for (row, is_cut) in rows.iter().flat_map(|row| [(row, false), (row, true)]) {
        let (dir, tree, bound) = scene("unlogged");
        let file = std::fs::File::options().write(true).open(dir.join("a/f")).unwrap();
        file.set_len(6).unwrap();
        let of = |time: Time| {
            std::time::UNIX_EPOCH + std::time::Duration::new(time.seconds as u64, time.nanoseconds)
        };
        file.set_modified(of(before(row.tree))).unwrap();
        let set = SetAttr { mtime: Some(time(1000)), ..SetAttr::default() };
        let logged = before(row.logged);
        let mut timed = vec![
            // No file system knows it, so that the replay stops before it ends.
            (at(2000), Record::Xattr { fid: 2, name: b"nonsense", value: Some(b"") }),
            (
                at(row.logged),
                Record::Data { fid: 4, offset: 0, size: 6, mtime: logged, bytes: b"log" },
            ),
        ];
        if !is_cut {
            timed.remove(0);
        }
        timed.extend(row.set.map(|ms| (at(ms), Record::Attr { fid: 4, set })));
        timed.push((at(0), Record::Alive));
        let bodies = bound.iter().map(|body| (at(2000), body.clone()));
        let records = timed.iter().map(|(at, r)| (*at, Records::of(r).bytes().to_vec()));
        let entry = |((at, body), number): ((u64, Vec<u8>), u64)| {
            [&header(number, at, 1)[..], &body].concat()
        };
        let log: Vec<_> = bodies.chain(records).zip(1..).map(entry).collect();
        if is_cut {
            let stopped = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
            assert!(matches!(stopped, Err(ReplayError::UnderWay { .. })), "{stopped:?}");
        }
        let accept = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
        replay(&tree, &log, &accept, &mut |_, _| {}).unwrap();
        let is = std::fs::metadata(dir.join("a/f")).unwrap().modified().unwrap();
        let log = if row.set.is_some() { time(1000) } else { logged };
        let wanted = if row.stays { before(row.tree) } else { log };
        assert_eq!(is, of(wanted), "{}, cut: {is_cut}", row.name);
        assert_eq!(std::fs::read(dir.join("a/f")).unwrap(), b"log\0\0\0", "{}", row.name);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// On the tree it changes the time of modification, also where it keeps the size.
#[test]
fn an_allocation_has_the_time_of_its_entry() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = now.as_nanos() as u64;
    let set = SetAttr { mtime: Some(time(1000)), ..SetAttr::default() };
    for mode in [Allocate::KeepSize, Allocate::Extend, Allocate::Punch] {
        for is_known in [false, true] {
            let (dir, tree, bound) = scene("allocated");
            let at = |ms: u64| now - ms * 1_000_000;
            let mut records =
                vec![(at(400), Record::Allocate { fid: 4, mode, offset: 0, length: 3 })];
            if is_known {
                records.insert(0, (at(900), Record::Attr { fid: 4, set }));
            }
            records.push((at(0), Record::Alive));
            let bodies = bound.iter().map(|body| (at(2000), body.clone()));
            let records = records.iter().map(|(at, r)| (*at, Records::of(r).bytes().to_vec()));
            let entry = |((at, body), number): ((u64, Vec<u8>), u64)| {
                [&header(number, at, 1)[..], &body].concat()
            };
            let log: Vec<_> = bodies.chain(records).zip(1..).map(entry).collect();
            let file = std::fs::File::options().write(true).open(dir.join("a/f")).unwrap();
            let of = |ns| std::time::UNIX_EPOCH + std::time::Duration::from_nanos(ns);
            file.set_modified(of(at(2000))).unwrap();
            let accept = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
            replay(&tree, &log, &accept, &mut |_, _| {}).unwrap();
            let is = std::fs::metadata(dir.join("a/f")).unwrap().modified().unwrap();
            assert_eq!(is, of(at(400)), "{mode:?}, its time is known: {is_known}");
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}

/// A write from before the clock was set back has a later time than what came after it.
#[test]
fn a_time_from_before_the_clock_was_set_back_proves_no_later_write() {
    let logged = time(1000);
    let hour = 3600;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = now.as_secs() as i64;
    let at = |seconds: i64| seconds as u64 * 1_000_000_000;
    let set = SetAttr { mtime: Some(logged), ..SetAttr::default() };
    let by_program = Record::Attr { fid: 4, set };
    let mtime = time(now - hour - 1);
    let data = Record::Data { fid: 4, offset: 0, size: 3, mtime, bytes: b"log" };
    let cut = Record::Truncate { fid: 4, size: 3 };
    let latest = Record::Latest { time_ns: at(now) };
    // The last records, how the log knows the earlier time, the tree's time, and the time in the end.
    let rows: [(&Record<'_>, Option<&Record<'_>>, i64, i64); 7] = [
        (&by_program, Some(&latest), now - 10, 1000),
        (&by_program, None, now - 10, 1000),
        (&data, Some(&latest), now - 10, now - hour - 1),
        (&data, None, now - 10, now - hour - 1),
        (&cut, None, now - 10, now - hour),
        // It is later than all that the clock had told.
        (&by_program, None, now + 2, now + 2),
        (&data, Some(&latest), now + 2, now + 2),
    ];
    for planted in [false, true] {
        let mut lost = Vec::new();
        for (row, (record, told, tree_time, wanted)) in rows.iter().enumerate() {
            let (dir, tree, bound) = scene("set-back");
            let file = std::fs::File::options().write(true).open(dir.join("a/f")).unwrap();
            let of = |seconds: i64| {
                std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds as u64)
            };
            file.set_modified(of(*tree_time)).unwrap();
            // An earlier entry tells the time, or one after the clock was set back.
            let first = if told.is_some() { now - hour } else { now };
            let mut bodies: Vec<_> = bound.iter().map(|body| (at(first), body.clone())).collect();
            let records = told.iter().copied().chain([*record]);
            bodies.extend(records.map(|r| (at(now - hour), Records::of(r).bytes().to_vec())));
            let entry = |((at, body), number): ((u64, Vec<u8>), u64)| {
                [&header(number, at, 1)[..], &body].concat()
            };
            let log: Vec<_> = bodies.into_iter().zip(1..).map(entry).collect();
            planted::plant(Some(planted::Bug::ClockGoesOn).filter(|_| planted));
            let done = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
            planted::plant(None);
            let is = std::fs::metadata(dir.join("a/f")).unwrap().modified().unwrap();
            if is != of(*wanted) {
                lost.push((row, is, done.unwrap()));
            }
            std::fs::remove_dir_all(&dir).unwrap();
        }
        assert_eq!(lost.len(), if planted { 5 } else { 0 }, "{lost:?}");
    }
}

/// ext4 finishes at its next mount what a crash cut off of a truncation, and the file has
/// the time of that, however long the machine was off.
#[test]
fn a_truncation_that_the_file_system_finishes_is_nobodys_change() {
    let dir = directory("truncated");
    std::fs::write(dir.join("f"), b"now").unwrap();
    let tree = UnixTree::open(&dir).unwrap();
    let node = tree.lookup(&tree.root(), b"f").unwrap().unwrap();
    let (is, handle) = (tree.identity().unwrap(), tree.handle(&node).unwrap());
    let changed = |content: Record<'_>| {
        let log = entries_of(
            1_000_000_000,
            &[
                Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path },
                Record::Bind { fid: 2, kind: Kind::File, handle: &handle.0, path: b"f" },
                content,
            ],
        );
        plan(&tree, &log).unwrap().changed.len()
    };
    assert_eq!(changed(Record::Truncate { fid: 2, size: 3 }), 0);
    assert_eq!(changed(Record::Truncate { fid: 2, size: 2 }), 1);
    let data = Record::Data { fid: 2, offset: 0, size: 3, mtime: time(1), bytes: b"now" };
    assert_eq!(changed(data), 1);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A directory with the directories a and b, and the file a/f; fids 2 to 4.
fn scene(name: &str) -> (std::path::PathBuf, UnixTree, [Vec<u8>; 4]) {
    let dir = directory(name);
    ["a", "b"].iter().for_each(|name| std::fs::create_dir(dir.join(name)).unwrap());
    std::fs::write(dir.join("a/f"), b"now").unwrap();
    let tree = UnixTree::open(&dir).unwrap();
    let is = tree.identity().unwrap();
    let bind = |fid, kind, names: &[&[u8]]| {
        let walk = |at, name: &&[u8]| tree.lookup(&at, name).unwrap().unwrap();
        let handle = tree.handle(&names.iter().fold(tree.root(), walk)).unwrap().0;
        Records::of(&Record::Bind { fid, kind, handle: &handle, path: b"" })
    };
    let which = Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path };
    let bound = [
        Records::of(&which),
        bind(2, Kind::Directory, &[b"a"]),
        bind(3, Kind::Directory, &[b"b"]),
        bind(4, Kind::File, &[b"a", b"f"]),
    ];
    (dir, tree, bound.map(|r| r.bytes().to_vec()))
}

/// Entries of that time: the bindings, and then one entry for each record.
fn log_of(seconds: u64, bound: &[Vec<u8>; 4], records: &[Record<'_>]) -> Vec<Vec<u8>> {
    let records = records.iter().map(|r| Records::of(r).bytes().to_vec());
    let entry = |(body, number): (Vec<u8>, u64)| {
        [&header(number, seconds * 1_000_000_000, 1)[..], &body].concat()
    };
    bound.iter().cloned().chain(records).zip(1..).map(entry).collect()
}

const LATER: u64 = 4_000_000_000;

#[test]
fn all_attributes_are_as_they_were_set_last() {
    use std::os::unix::fs::MetadataExt;
    let (dir, tree, bound) = scene("attributes");
    let node = tree.lookup(&tree.lookup(&tree.root(), b"a").unwrap().unwrap(), b"f");
    let node = node.unwrap().unwrap();
    let has_xattrs = tree.set_xattr(&node, b"user.gone", Some(b"x")).is_ok();
    let attr = tree.attr(&node).unwrap();
    let set = SetAttr {
        mode: Some(0o4750),
        uid: Some(attr.uid),
        gid: Some(attr.gid),
        atime: Some(time(1000)),
        mtime: Some(time(2000)),
    };
    let mut records = vec![Record::Attr { fid: 4, set }];
    if has_xattrs {
        records.push(Record::Xattr { fid: 4, name: b"user.gone", value: None });
        records.push(Record::Xattr { fid: 4, name: b"user.there", value: Some(b"y") });
    }
    let log = log_of(LATER, &bound, &records);
    replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    let is = std::fs::metadata(dir.join("a/f")).unwrap();
    assert_eq!((is.mode() & 0o7777, is.atime(), is.mtime()), (0o4750, 1000, 2000));
    if has_xattrs {
        assert_eq!(tree.xattr(&node, b"user.gone").unwrap(), None);
        assert_eq!(tree.xattr(&node, b"user.there").unwrap(), Some(b"y".to_vec()));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_rename_changes_the_times_of_both_directories() {
    use std::os::unix::fs::MetadataExt;
    let (dir, tree, bound) = scene("rename");
    let rename = Record::Rename {
        from_dir: 2,
        from: b"f",
        to_dir: 3,
        to: b"g",
        fid: 4,
        replaced: 0,
        exchange: false,
    };
    let log = log_of(LATER, &bound, &[rename]);
    replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(std::fs::read(dir.join("b/g")).unwrap(), b"now");
    let times = ["a", "b"].map(|name| std::fs::metadata(dir.join(name)).unwrap().mtime());
    assert_eq!(times, [LATER as i64; 2]);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A file whose content has the time that it had may have been changed all the same.
#[test]
fn changes_after_the_crash_show_in_the_inode() {
    let (dir, tree, bound) = scene("changed");
    let file = std::fs::File::options().write(true).open(dir.join("a/f")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let report = plan(&tree, &log_of(1000, &bound, &[Record::Attr { fid: 4, set }])).unwrap();
    assert_eq!((report.changed.len(), report.attributes.len()), (0, 1), "{report:?}");
    let data = Record::Data { fid: 4, offset: 0, size: 3, mtime: time(1), bytes: b"log" };
    let report = plan(&tree, &log_of(1000, &bound, &[data])).unwrap();
    assert_eq!(report.changed.len(), 0, "{report:?}");
    // Its size is none that the log explains.
    file.set_len(2).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let within = Record::Data { fid: 4, offset: 0, size: 3, mtime: time(1), bytes: b"l" };
    let report = plan(&tree, &log_of(1000, &bound, &[within])).unwrap();
    assert_eq!(report.changed.len(), 1, "{report:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A log of so many files that are made in one directory, written and synced.
fn log_of_files(tree: &UnixTree, files: u64) -> Vec<Vec<u8>> {
    let is = tree.identity().unwrap();
    let names: Vec<Vec<u8>> = (0..files).map(|i| format!("f{i}").into_bytes()).collect();
    let which = Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path };
    let handles: Vec<Vec<u8>> = (0..files).map(|i| (i + (1 << 40)).to_le_bytes().into()).collect();
    let mut records = vec![which];
    for i in 0..files {
        let (fid, name) = (i + 2, &names[i as usize][..]);
        let (kind, mtime) = (Kind::File, time(1000));
        let (mode, uid, gid, device) = (0o644, 0, 0, 0);
        records.push(Record::Create {
            dir: 1,
            name,
            fid,
            kind,
            mode,
            uid,
            gid,
            device,
            target: b"",
        });
        records.push(Record::Bind { fid, kind, handle: &handles[i as usize], path: b"" });
        records
            .push(Record::Attr { fid, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } });
        records.push(Record::Data { fid, offset: 0, size: 3, mtime, bytes: b"now" });
    }
    entries(&records)
}

/// Counted, and not measured: a time says little on a busy machine.
#[test]
fn the_work_of_a_replay_grows_as_its_files() {
    let dir = directory("many");
    let tree = UnixTree::open(&dir).unwrap();
    let steps = [1_000u64, 20_000].map(|files| {
        let log = log_of_files(&tree, files);
        let start = std::time::Instant::now();
        let steps = super::flight::InFlight::of(&log).unwrap().steps();
        println!("{files} files: {steps} steps, {:?}", start.elapsed());
        steps
    });
    assert!(steps[1] <= 20 * steps[0] + 100, "{steps:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A log in which a file with so many names is moved as often from one that no entry gave it.
fn log_of_links(links: u64) -> Vec<Vec<u8>> {
    let names = |what: &str| -> Vec<Vec<u8>> {
        (0..links).map(|i| format!("{what}{i}").into_bytes()).collect()
    };
    let (known, seen, new) = (names("known"), names("seen"), names("new"));
    let (dir, fid, kind, mode) = (1, 2, Kind::File, 0o644);
    let (uid, gid, device, target) = (0, 0, 0, &b""[..]);
    let name = b"made";
    let mut records = vec![Record::Create { dir, name, fid, kind, mode, uid, gid, device, target }];
    records.extend(known.iter().map(|name| Record::Link { fid, dir, name }));
    records.extend(seen.iter().zip(&new).map(|(from, to)| Record::Rename {
        from_dir: dir,
        from,
        to_dir: dir,
        to,
        fid,
        replaced: NONE,
        exchange: false,
    }));
    entries(&records)
}

/// Any user who has a directory open from before the mount can make such a log.
#[test]
fn the_work_for_a_file_grows_as_its_names() {
    let steps = [100u64, 2_000].map(|links| {
        let log = log_of_links(links);
        let start = std::time::Instant::now();
        let history = History::of(&log, &HashSet::new()).unwrap();
        println!("{links} names: {} steps, {:?}", history.steps, start.elapsed());
        // Each name became doubtful, and the last one is certain.
        let last = format!("new{}", links - 1);
        let certain = history.names.iter().filter(|(_, name)| !name.doubtful);
        let certain = certain.filter(|(_, name)| name.now.is_some());
        let certain: Vec<_> = certain.map(|((_, name), _)| *name).collect();
        assert_eq!(certain, [last.as_bytes()]);
        assert_eq!(history.disputes.len() as u64, links);
        assert_eq!(history.files[&2].names, [(1, last.as_bytes())]);
        history.steps
    });
    assert!(steps[1] <= 20 * steps[0] + 100, "{steps:?}");
}

/// Who holds a lease of a file gives it up when he is told: its content and its times are those
/// of the log, and nothing is in dispute.
#[test]
fn a_lease_is_waited_for() {
    use super::model::sim::{Disk, SimTree, State};
    use super::model::{log_of, workloads};
    let bed = workloads::live_on(State::empty().with_outside());
    bed.write("x", 5);
    bed.sync();
    bed.write("x", 7);
    let (x, log) = (bed.ino("x"), log_of(&bed.tree.trace()));
    let replayed = || {
        let mut disk = Disk::new(bed.base.clone());
        bed.tree.trace().iter().for_each(|event| disk.feed(event));
        let tree = SimTree::new(disk.crash(0, &mut || false)).leased(x, 3);
        let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
        (report.in_dispute(), tree.now().inodes[&x].data == [7; 600])
    };
    assert_eq!(replayed(), (vec![], true));
    planted::plant(Some(planted::Bug::LeaseNotAwaited));
    let (told, written) = replayed();
    planted::plant(None);
    assert!(!told.is_empty() && !written, "{told:?}");
}

/// The report says where the names are from.
#[test]
fn a_report_says_how_far_the_tree_was() {
    use crate::mark::Mark;
    let us = New::plain(Kind::Symlink, 0).uid;
    let root = us == 0;
    // The time and the owner of the mark, and whether the tree's mode stays.
    for (seconds, uid, ahead, doubtful) in [
        (5, us, false, false),
        (6, us, true, false),
        (0, us, false, false),
        (1_790_000_000, us, false, true),
        (-7, us, false, true),
        (6, 4242, false, true),
    ] {
        if uid != us && !root {
            continue;
        }
        let (dir, tree, bound) = scene("ahead");
        let node = tree.lookup(&tree.lookup(&tree.root(), b"a").unwrap().unwrap(), b"f");
        let node = node.unwrap().unwrap();
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        tree.set_attr(&node, &mode(0o644)).unwrap();
        let (pool, period) = (forebay::Uuid([1; 16]), forebay::Uuid([2; 16]));
        let (log, at, since) = ("mount".into(), "pool".into(), 0);
        let mark = Mark { pool, log, period, since, at, groups: true, ahead: true };
        let target = serde_json::to_vec(&mark).unwrap();
        let new = New { uid, target: &target, ..New::plain(Kind::Symlink, 0o777) };
        let mark = tree.create(&tree.root(), b".forebay-mount", &new).unwrap();
        let mtime = SetAttr { mtime: Some(time(seconds)), ..SetAttr::default() };
        tree.set_attr(&mark, &mtime).unwrap();
        let log = log_of(LATER, &bound, &[Record::Attr { fid: 4, set: mode(0o600) }]);
        let planned = plan(&tree, &log).unwrap();
        let report = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
        let case = format!("{seconds} {uid}: {report:?}");
        assert_eq!((planned.ahead, &planned.mark), (report.ahead, &report.mark), "{case}");
        let said = Some(Ahead { reached: 6, last: 5 }).filter(|_| ahead);
        assert_eq!((report.ahead, report.mark.is_some()), (said, doubtful), "{case}");
        assert_eq!(report.in_dispute().len(), usize::from(doubtful), "{case}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["ahead"]["last"].as_u64(), said.map(|a| a.last), "{case}");
        assert_eq!(json["mark"].is_string(), doubtful, "{case}");
        let is = tree.attr(&node).unwrap().mode;
        assert_eq!(is, if ahead { 0o644 } else { 0o600 }, "{case}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn names_that_differ_are_told_apart() {
    let names: [&[u8]; 6] =
        [b"a\xff", b"a\xfe", b"a\\xff", "a\u{fffd}".as_bytes(), b"a\n", b"a\\n"];
    let texts: HashSet<_> = names.into_iter().map(printable).collect();
    assert_eq!(texts.len(), names.len(), "{texts:?}");
    assert!(texts.contains("a\\xff"), "{texts:?}");
    assert_eq!(shown(Path::new("/a b'")), "/a b'");
}
