// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: what is right in the tree is left as it is.  On a directory of this machine.

use super::*;
use crate::record::{header, Kind, Record, Records, SetAttr, Time};
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
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (kind, mode, target) = (Kind::File, 0o644, &b""[..]);
    let new =
        New { kind, mode, uid, gid, device: 0, target, inherit_acl: false, no_acl_above: false };
    let node = tree.create(&tree.root(), b"f", &new).unwrap();
    let set = SetAttr { mtime: Some(time(2000)), ..SetAttr::default() };
    tree.set_attr(&node, &set).unwrap();

    let is = tree.identity().unwrap();
    let handle = tree.handle(&node).unwrap();
    let records = [
        Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path },
        Record::Bind { fid: 2, kind, handle: &handle.0, path: b"" },
        Record::Data { fid: 2, offset: 0, size: 3, mtime: time(1000), bytes: b"old" },
        Record::Synced { fid: 2 },
    ];
    let report = plan(&tree, &entries(&records)).unwrap();
    assert_eq!(report.actions, []);

    // What was asked for explicitly was not the sync's to make durable.
    let attr = Record::Attr { fid: 2, set };
    let [a, b, c, d] = records;
    let report = plan(&tree, &entries(&[a, b, c, attr, d])).unwrap();
    assert_eq!(report.actions.len(), 1);
    std::fs::remove_dir_all(&dir).unwrap();
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
