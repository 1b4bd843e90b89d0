// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a replay can find each inode that a group names, and no operation asks the kernel for
//! a path that the replay does not need.

use super::*;

/// The paths of the files' Binds.
fn paths(bed: &Bed) -> Vec<String> {
    let entries = bed.live.journal().entries.lock().unwrap();
    let mut paths = Vec::new();
    for (_, body) in entries.iter() {
        for record in Entry::parse(body).unwrap().records() {
            if let Record::Bind { kind: Kind::File, path, .. } = record.unwrap() {
                paths.push(String::from_utf8(path.to_vec()).unwrap());
            }
        }
    }
    paths
}

/// A replay looks for a file that the group itself made at the name of its Create.
#[test]
fn a_path_is_logged_where_the_group_has_no_create() {
    let bed = Bed::calm("paths");
    let background = bed.background();
    std::fs::write(bed.dir.join("there"), b"").unwrap();
    let root = bed.live.root();
    let (there, _) = bed.live.lookup(root, b"there").unwrap();
    let file = bed.create("new").unwrap();
    for inode in [&file, &there] {
        bed.live.write(inode, 0, b"first").unwrap();
        bed.live.fsync(inode).unwrap();
    }
    assert_eq!(paths(&bed), ["", "there"]);
    bed.live.sync().unwrap();
    bed.live.write(&file, 0, b"later").unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(paths(&bed), ["new"]);
    bed.live.end();
    background.join().unwrap();
}

/// Such a process needs the path to open the inode at all.
#[test]
fn a_path_is_logged_where_no_handle_can_be_opened() {
    let dir = std::env::temp_dir().join(format!("forebay-live-no-handles-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let tree = UnixTree::open_without_handles(&dir).unwrap();
    let options = LiveOptions { interval: NEVER, ..LiveOptions::default() };
    let live = Arc::new(Live::new(tree, MemoryLog::default(), 0, options).unwrap());
    let bed = Bed { dir, live };
    let file = bed.create("new").unwrap();
    bed.live.write(&file, 0, b"first").unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(paths(&bed), ["new"]);
}
