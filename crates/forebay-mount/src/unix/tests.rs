// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the tree behaves as its file system does, on a directory of this machine.  Tests that
//! need root are skipped for other users.

use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;

struct Bed {
    dir: PathBuf,
    tree: UnixTree,
    root: Node,
}

impl Bed {
    fn new(name: &str) -> Bed {
        rustix::process::umask(Mode::empty());
        let dir = format!("forebay-unix-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let tree = UnixTree::open(&dir).unwrap();
        let root = tree.root();
        Bed { dir, tree, root }
    }

    fn create(&self, name: &str, kind: Kind, mode: u32) -> Node {
        self.tree.create(&self.root, name.as_bytes(), &new(kind, mode)).unwrap()
    }

    fn find(&self, name: &str) -> Option<Node> {
        self.tree.lookup(&self.root, name.as_bytes()).unwrap()
    }

    fn rename(&self, from: &str, to: &str, how: RenameHow) -> Result<()> {
        self.tree.rename((&self.root, from.as_bytes()), (&self.root, to.as_bytes()), how)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn am_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn new(kind: Kind, mode: u32) -> New<'static> {
    let target: &[u8] = if kind == Kind::Symlink { b"nowhere" } else { b"" };
    New { target, ..New::plain(kind, mode) }
}

/// An ACL as an extended attribute: owner rwx, user 5 rwx, group and mask r-x, others none.
fn acl() -> Vec<u8> {
    let entry = |tag: u16, allowed: u16, id: u32| {
        [&tag.to_le_bytes()[..], &allowed.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(1, 7, none),
        entry(2, 7, 5),
        entry(4, 5, none),
        entry(0x10, 5, none),
        entry(0x20, 0, none),
    ];
    [&2u32.to_le_bytes()[..], &entries.concat()].concat()
}

#[test]
fn a_new_inode_is_as_requested() {
    let bed = Bed::new("made");
    let (uid, gid) =
        if am_root() { (11, 12) } else { (new(Kind::File, 0).uid, new(Kind::File, 0).gid) };
    // A directory that gives away its group, and an ACL.
    let dir = bed.create("dir", Kind::Directory, 0o2755);
    if am_root() {
        bed.tree.set_attr(&dir, &SetAttr { gid: Some(99), ..Default::default() }).unwrap();
        bed.tree.set_attr(&dir, &SetAttr { mode: Some(0o2755), ..Default::default() }).unwrap();
    }
    for with_acl in [false, true] {
        if with_acl && bed.tree.set_xattr(&dir, DEFAULT_ACL, Some(&acl())).is_err() {
            continue;
        }
        for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket] {
            for mode in [0, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o6711, 0o1777] {
                let asked = New { uid, gid, ..new(kind, mode) };
                let node = bed.tree.create(&dir, b"x", &asked).unwrap();
                let found = bed.tree.attr(&node).unwrap();
                let mode = if kind == Kind::Symlink { 0o777 } else { mode };
                assert_eq!(
                    (found.kind, found.mode, found.uid, found.gid),
                    (kind, mode, uid, gid),
                    "asked for {mode:o}, found {:o}, ACL {with_acl}",
                    found.mode
                );
                for acl in [ACCESS_ACL, DEFAULT_ACL] {
                    let none =
                        kind == Kind::Symlink || bed.tree.xattr(&node, acl).unwrap().is_none();
                    assert!(none);
                }
                let again = bed.tree.lookup(&dir, b"x").unwrap().unwrap();
                assert_eq!(bed.tree.handle(&again).unwrap(), bed.tree.handle(&node).unwrap());
                assert_eq!(bed.tree.create(&dir, b"x", &asked).err(), Some(Errno::EXIST));
                bed.tree.unlink(&dir, b"x", kind == Kind::Directory).unwrap();
                assert!(bed.tree.lookup(&dir, b"x").unwrap().is_none());
            }
        }
    }
}

#[test]
fn an_acl_is_inherited_as_the_kernel_does() {
    let bed = Bed::new("acl");
    let dir = bed.create("dir", Kind::Directory, 0o755);
    if bed.tree.set_xattr(&dir, DEFAULT_ACL, Some(&acl())).is_err() {
        forebay_test::skipped!("this file system has no access control lists");
        return;
    }
    let modes = (0..0o1000).map(|mode| (Kind::File, mode)).chain([
        (Kind::File, 0o4610),
        (Kind::File, 0o6777),
        (Kind::Directory, 0o777),
        (Kind::Directory, 0o1750),
    ]);
    for (kind, mode) in modes {
        let asked = New { inherit_acl: true, ..new(kind, mode) };
        let node = bed.tree.create(&dir, b"ours", &asked).unwrap();
        let plain = bed.dir.join("dir/plain");
        match kind {
            Kind::File => {
                drop(fs::open(&plain, OFlags::CREATE | OFlags::RDWR, permissions(mode)).unwrap())
            }
            _ => fs::mkdir(&plain, permissions(mode)).unwrap(),
        }
        let other = bed.tree.lookup(&dir, b"plain").unwrap().unwrap();
        assert_eq!(bed.tree.attr(&node).unwrap().mode, bed.tree.attr(&other).unwrap().mode);
        // The log's prediction.
        let told = crate::acl::inherited(&acl(), mode).unwrap();
        assert_eq!(told.mode, bed.tree.attr(&other).unwrap().mode, "{mode:o}");
        assert_eq!(told.access, bed.tree.xattr(&other, ACCESS_ACL).unwrap(), "{mode:o}");
        for acl in [ACCESS_ACL, DEFAULT_ACL] {
            let of = |n| bed.tree.xattr(n, acl).unwrap();
            assert_eq!(of(&node), of(&other));
            assert_eq!(of(&node).is_some(), acl == ACCESS_ACL || kind == Kind::Directory);
        }
        for name in [&b"ours"[..], b"plain"] {
            bed.tree.unlink(&dir, name, kind == Kind::Directory).unwrap();
        }
    }
}

#[test]
fn an_inode_is_found_by_its_handle_wherever_it_is() {
    let bed = Bed::new("handle");
    let sub = bed.create("sub", Kind::Directory, 0o755);
    for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo] {
        let node = bed.create("a", kind, 0o600);
        let (handle, ino) = (bed.tree.handle(&node).unwrap(), node.ino());
        drop(node);
        bed.tree.rename((&bed.root, b"a"), (&sub, b"b"), RenameHow::Replace).unwrap();
        let other = bed.create("a", kind, 0o600);
        bed.tree.begin_to_look();
        for path in [&b"a"[..], b"sub/b", b"", b"no/where"] {
            let ways = [bed.tree.open(&handle, path), bed.tree.search(&handle, path)];
            for found in ways.map(|found| found.unwrap().unwrap()) {
                assert_eq!((found.ino(), found.kind()), (ino, kind));
            }
        }
        assert_ne!(bed.tree.handle(&other).unwrap(), handle);
        bed.tree.unlink(&sub, b"b", kind == Kind::Directory).unwrap();
        bed.tree.unlink(&bed.root, b"a", kind == Kind::Directory).unwrap();
        assert!(bed.tree.search(&handle, b"sub/b").unwrap().is_none());
    }
    // The number of an inode that is gone is given to another, its handle is not.
    let first = bed.create("a", Kind::File, 0o600);
    let (handle, ino) = (bed.tree.handle(&first).unwrap(), first.ino());
    drop(first);
    bed.tree.unlink(&bed.root, b"a", false).unwrap();
    assert!(bed.tree.open(&handle, b"a").unwrap().is_none());
    for i in 0..64 {
        let next = bed.create(&format!("n{i}"), Kind::File, 0o600);
        assert_ne!(bed.tree.handle(&next).unwrap(), handle, "{ino}");
    }
    assert!(bed.tree.open(&handle, b"a").unwrap().is_none());
    assert_eq!(bed.tree.open(&Handle(vec![1, 2]), b"a").err(), Some(Errno::INVAL));
    assert_eq!(bed.tree.identity().unwrap(), UnixTree::open(&bed.dir).unwrap().identity().unwrap());
}

/// The kernel answers ENOMEM for the handle of an inode that is gone while it makes another of the
/// same number.
#[test]
fn the_handle_of_an_inode_that_is_gone_finds_none_while_others_make_inodes() {
    let bed = Bed::new("making");
    let first = bed.create("a", Kind::File, 0o600);
    let handle = bed.tree.handle(&first).unwrap();
    drop(first);
    bed.tree.unlink(&bed.root, b"a", false).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["b", "c"] {
            let (done, path) = (&done, bed.dir.join(name));
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    std::fs::write(&path, b"").and_then(|()| std::fs::remove_file(&path)).unwrap();
                }
            });
        }
        let found = (0..20_000).map(|_| bed.tree.open(&handle, b"a").map(|node| node.is_some()));
        let others: Vec<_> = found.filter(|found| *found != Ok(false)).collect();
        done.store(true, Relaxed);
        assert_eq!(others, []);
    });
}

#[test]
fn bytes_of_a_file() {
    let bed = Bed::new("bytes");
    let t = &bed.tree;
    // Who makes it may write it, and who only reads may read.
    let node = bed.create("f", Kind::File, 0o400);
    t.write(&node, 100_000, b"end").unwrap();
    assert_eq!(t.attr(&node).unwrap().size, 100_003);
    let mut bytes = vec![7; 200_000];
    assert_eq!(t.read(&node, 1, &mut bytes).unwrap(), 100_002);
    assert!(bytes[..99_999].iter().all(|b| *b == 0) && &bytes[99_999..100_002] == b"end");
    t.write(&node, 0, &[1; 100_000]).unwrap();
    if t.allocate(&node, Allocate::Punch, 8192, 8192).is_ok() {
        assert_eq!(t.seek(&node, 0, true).unwrap(), 8192);
        assert_eq!(t.seek(&node, 8192, false).unwrap(), 16384);
        assert_eq!(t.read(&node, 8190, &mut bytes[..4]).unwrap(), 4);
        assert_eq!(bytes[..4], [1, 1, 0, 0]);
        t.allocate(&node, Allocate::KeepSize, 0, 200_000).unwrap();
        assert_eq!(t.attr(&node).unwrap().size, 100_003);
        t.allocate(&node, Allocate::Extend, 0, 200_000).unwrap();
        assert_eq!(t.attr(&node).unwrap().size, 200_000);
        t.allocate(&node, Allocate::Zero, 0, 10).unwrap();
        t.allocate(&node, Allocate::ZeroKeepSize, 199_999, 10).unwrap();
        assert_eq!(t.attr(&node).unwrap().size, 200_000);
    }
    t.truncate(&node, 5).unwrap();
    assert_eq!(t.read(&node, 0, &mut bytes).unwrap(), 5);
    t.sync(&node).unwrap();
    t.sync(&bed.root).unwrap();
    t.sync_all().unwrap();
    // Held, it lives on without a name.
    let found = bed.find("f").unwrap();
    t.unlink(&bed.root, b"f", false).unwrap();
    t.write(&found, 0, b"still").unwrap();
    assert_eq!(t.read(&node, 0, &mut bytes).unwrap(), 5);
    assert_eq!((&bytes[..5], t.attr(&node).unwrap().nlink), (&b"still"[..], 0));
    assert_eq!(t.link(&node, &bed.root, b"again").err(), Some(Errno::NOENT));
    let dir = bed.create("d", Kind::Directory, 0o700);
    assert_eq!(t.write(&dir, 0, b"x").err(), Some(Errno::ISDIR));
    assert_eq!(t.truncate(&bed.create("p", Kind::Fifo, 0o600), 0).err(), Some(Errno::INVAL));
}

#[test]
fn names_links_and_renames() {
    let bed = Bed::new("names");
    let t = &bed.tree;
    let (a, dir) = (bed.create("a", Kind::File, 0o644), bed.create("d", Kind::Directory, 0o755));
    t.link(&a, &dir, b"a2").unwrap();
    assert_eq!(t.attr(&a).unwrap().nlink, 2);
    let s = bed.create("s", Kind::Symlink, 0);
    assert_eq!(t.read_link(&s).unwrap(), b"nowhere");
    t.link(&s, &dir, b"s2").unwrap();
    assert_eq!(t.lookup(&dir, b"s2").unwrap().unwrap().ino(), s.ino());
    assert_eq!(t.link(&dir, &bed.root, b"d2").err(), Some(Errno::PERM));
    assert_eq!(t.unlink(&bed.root, b"d", false).err(), Some(Errno::ISDIR));
    assert_eq!(t.unlink(&bed.root, b"d", true).err(), Some(Errno::NOTEMPTY));
    assert_eq!(t.unlink(&bed.root, b"a", true).err(), Some(Errno::NOTDIR));
    assert_eq!(t.unlink(&bed.root, b"none", false).err(), Some(Errno::NOENT));
    assert_eq!(bed.rename("a", "s", RenameHow::NoReplace).err(), Some(Errno::EXIST));
    bed.rename("a", "d", RenameHow::Exchange).unwrap();
    assert_eq!((bed.find("a").unwrap().ino(), bed.find("d").unwrap().ino()), (dir.ino(), a.ino()));
    assert_eq!(bed.rename("d", "a", RenameHow::Replace).err(), Some(Errno::ISDIR));
    bed.rename("d", "s", RenameHow::Replace).unwrap();
    assert_eq!(bed.find("s").unwrap().ino(), a.ino());
    assert_eq!(
        t.rename((&bed.root, b"a"), (&dir, b"x"), RenameHow::Replace).err(),
        Some(Errno::INVAL)
    );
    let mut names = t.names(&dir).unwrap();
    names.sort();
    assert_eq!(names, [b"a2", b"s2"]);
    let long = [b'x'; 256];
    assert_eq!(t.lookup(&bed.root, &long).err(), Some(Errno::NAMETOOLONG));
    for odd in [&b"."[..], b"..", b"a/a2", b"a\0"] {
        assert_eq!(t.lookup(&bed.root, odd).err(), Some(Errno::INVAL));
    }
    assert_eq!(t.lookup(&a, b"x").err(), Some(Errno::NOTDIR));
    assert_eq!(t.names(&a).err(), Some(Errno::NOTDIR));
    if am_root() {
        let asked = New { device: fs::makedev(1, 3), ..new(Kind::CharDevice, 0o620) };
        let null = t.create(&bed.root, b"null", &asked).unwrap();
        let found = t.attr(&null).unwrap();
        assert_eq!((found.kind, found.device), (Kind::CharDevice, asked.device));
        // Nothing of another file system is visible.
        let slash = UnixTree::open(Path::new("/")).unwrap();
        assert_eq!(slash.lookup(&slash.root(), b"proc").err(), Some(Errno::XDEV));
    }
}

#[test]
fn attributes_and_extended_ones() {
    let bed = Bed::new("attributes");
    let t = &bed.tree;
    let f = bed.create("f", Kind::File, 0o644);
    symlink("f", bed.dir.join("s")).unwrap();
    let s = bed.find("s").unwrap();
    let time = |seconds| Some(Time { seconds, nanoseconds: 5 });
    for node in [&f, &s, &bed.root] {
        let set = SetAttr { mtime: time(1000), ..Default::default() };
        t.set_attr(node, &set).unwrap();
        t.set_attr(node, &SetAttr { atime: time(-3), ..Default::default() }).unwrap();
        let found = t.attr(node).unwrap();
        assert_eq!((Some(found.mtime), Some(found.atime)), (time(1000), time(-3)));
    }
    let mode = SetAttr { mode: Some(0o600), ..Default::default() };
    assert_eq!(t.set_attr(&s, &mode).err(), Some(Errno::OPNOTSUPP));
    if am_root() {
        let set = SetAttr { mode: Some(0o6755), uid: Some(3), gid: Some(4), ..Default::default() };
        t.set_attr(&f, &set).unwrap();
        let found = std::fs::metadata(bed.dir.join("f")).unwrap();
        assert_eq!((found.permissions().mode() & 0o7777, found.uid(), found.gid()), (0o6755, 3, 4));
        t.set_attr(&s, &SetAttr { uid: Some(8), ..Default::default() }).unwrap();
        assert_eq!((t.attr(&s).unwrap().uid, t.attr(&f).unwrap().uid), (8, 3));
        t.set_xattr(&s, b"trusted.of_link", Some(b"1")).unwrap();
        assert_eq!(t.xattr(&f, b"trusted.of_link").unwrap(), None);
        assert_eq!(t.xattr(&s, b"trusted.of_link").unwrap().unwrap(), b"1");
    }
    for node in [&f, &bed.root] {
        for value in [&b""[..], b"v", &[9; 2000]] {
            t.set_xattr(node, b"user.x", Some(value)).unwrap();
            assert_eq!(t.xattr(node, b"user.x").unwrap().unwrap(), value);
        }
        assert!(t.xattr_names(node).unwrap().contains(&b"user.x".to_vec()));
        t.set_xattr(node, b"user.x", None).unwrap();
        assert_eq!(t.xattr(node, b"user.x").unwrap(), None);
        assert_eq!(t.set_xattr(node, b"user.x", None).err(), Some(Errno::NODATA));
        assert_eq!(t.set_xattr(node, b"odd.x", Some(b"")).err(), Some(Errno::OPNOTSUPP));
    }
}

#[test]
fn the_inode_of_a_name_is_described_without_holding_it() {
    let bed = Bed::new("names");
    let t = &bed.tree;
    bed.create("f", Kind::File, 0o640);
    bed.create("d", Kind::Directory, 0o750);
    symlink("nowhere", bed.dir.join("s")).unwrap();
    for name in ["f", "d", "s"] {
        let held = t.lookup(&bed.root, name.as_bytes()).unwrap().unwrap();
        let (told, is) = (t.attr_of(&bed.root, name.as_bytes()).unwrap(), t.attr(&held).unwrap());
        assert_eq!(told, Some(is));
    }
    assert_eq!(t.attr_of(&bed.root, b"none").unwrap(), None);
    assert_eq!(t.attr_of(&bed.root, b"..").err(), Some(Errno::INVAL));
    // A mount of the same file system, so that the device number alone does not show that it is
    // another mount.
    let below = bed.dir.join("d");
    let bound = |other: &str| rustix::mount::mount_bind(bed.dir.join(other), &below);
    if am_root() && bed.create("e", Kind::Directory, 0o755).kind() == Kind::Directory {
        bound("e").unwrap();
        let told = t.attr_of(&bed.root, b"d");
        rustix::mount::unmount(&below, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(told.err(), Some(Errno::XDEV));
    }
}

/// With handles, and for a process that may not use them: the inodes held stay the same.
#[test]
fn few_descriptors_hold_many_inodes() {
    const MOST: usize = 20;
    let bed = Bed::new("few");
    for by_handle in [true, false] {
        let cache = |fd: &OwnedFd| Cache::of(fd).limit(MOST, by_handle);
        let tree = UnixTree::open_as(&bed.dir, cache).unwrap();
        let by_handle = by_handle && am_root();
        let content = |i: usize| format!("content {i}").into_bytes();
        let make = |i: usize| {
            let node = tree.create(&tree.root(), &content(i), &new(Kind::File, 0o644)).unwrap();
            tree.write(&node, 0, &content(i)).unwrap();
            node
        };
        let nodes: Vec<_> = (0..200).map(make).collect();
        // The last name of some is gone, of which none has more than a handle by then.
        for (i, node) in nodes.iter().enumerate().take(5) {
            tree.pin(node, true).unwrap();
            tree.unlink(&tree.root(), &content(i), false).unwrap();
        }
        for (i, node) in nodes.iter().enumerate() {
            let mut bytes = [0; 20];
            let n = tree.read(node, 0, &mut bytes).unwrap();
            assert_eq!(&bytes[..n], content(i), "{i}");
            assert_eq!(tree.attr(node).unwrap().nlink, u32::from(i >= 5), "{i}");
            tree.sync(node).unwrap();
        }
        // Without handles each inode keeps another descriptor, since it could not be opened
        // again.
        let most = if by_handle { MOST } else { nodes.len() + MOST };
        assert!(tree.cache.open() <= most + 8, "{} are open", tree.cache.open());
        // Only the pinned ones and the root stay open.
        tree.pin(&nodes[0], false).unwrap();
        (0..3).for_each(|_| tree.cache.close_half());
        let stale = tree.attr(&nodes[0]).err() == Some(Errno::STALE);
        assert_eq!(stale, by_handle, "without its descriptor it is gone");
        assert!(tree.attr(&nodes[1]).is_ok() && tree.attr(&nodes[150]).is_ok());
        // An operation of several steps keeps one.
        let operation = tree.keep_open(&nodes[150]).unwrap();
        (0..3).for_each(|_| tree.cache.close_half());
        assert!(nodes[150].open_now().is_some());
        drop(operation);
        (0..3).for_each(|_| tree.cache.close_half());
        assert_eq!(nodes[150].open_now().is_none(), by_handle);
        for i in 5..nodes.len() {
            tree.unlink(&tree.root(), &content(i), false).unwrap();
        }
        drop(nodes);
        assert!(tree.cache.open() <= 3, "{} are open", tree.cache.open());
    }
}

/// The kernel tells an inode's own sync of the errors that it remembers.
#[test]
fn a_file_closed_after_a_write_is_synced_with_all() {
    let bed = Bed::new("sight");
    let cache = |fd: &OwnedFd| Cache::of(fd).limit(2, true);
    let tree = UnixTree::open_as(&bed.dir, cache).unwrap();
    let node = tree.create(&tree.root(), b"f", &new(Kind::File, 0o644)).unwrap();
    assert!(!node.has_lost_sight());
    tree.write(&node, 0, b"x").unwrap();
    assert!(!node.has_lost_sight(), "it was held all the time");
    assert!(tree.is_intact(&node).unwrap());
    tree.write(&node, 0, b"y").unwrap();
    (0..3).for_each(|_| tree.cache.close_half());
    tree.attr(&node).unwrap();
    assert_eq!(tree.is_intact(&node).unwrap(), !am_root());
    tree.sync(&node).unwrap();

    let tree = UnixTree::open(&bed.dir).unwrap();
    let node = tree.lookup(&tree.root(), b"f").unwrap().unwrap();
    assert!(tree.is_intact(&node).unwrap());
    tree.was_dropped(&node);
    assert!(!tree.is_intact(&node).unwrap());
    tree.sync(&node).unwrap();
    assert!(tree.is_intact(&node).unwrap());
}

/// A log that was written by another kernel names the file system by the other of its ids.
#[test]
fn each_id_of_the_file_system_is_its_own() {
    let bed = Bed::new("ids");
    let now = bed.tree.identity().unwrap().file_system;
    let of_statfs = bed.tree.id_of_statfs().unwrap();
    assert!(bed.tree.is_in(&now).unwrap() && bed.tree.is_in(&of_statfs).unwrap());
    // A UUID that ext4 derives this id from.
    let mut uuid = [0x5a; 16];
    for at in 0..8 {
        uuid[at + 8] = uuid[at] ^ of_statfs[at];
    }
    assert_eq!(folded(&uuid), of_statfs);
    assert!(bed.tree.is_in(&uuid).unwrap());
    for at in 0..16 {
        let mut other = uuid;
        other[at] ^= 1;
        assert!(!bed.tree.is_in(&other).unwrap(), "byte {at}");
        let mut other = of_statfs;
        other[at] ^= 1;
        assert!(!bed.tree.is_in(&other).unwrap(), "byte {at}");
    }
}

/// One walk answers for all inodes, those that are lost among them, and a move is noticed.
#[test]
fn many_inodes_are_found_without_handles_by_one_walk() {
    let bed = Bed::new("walk");
    let tree = UnixTree::open_without_handles(&bed.dir).unwrap();
    let make = |dir: &Node, name: &str, kind| {
        tree.create(dir, name.as_bytes(), &new(kind, 0o755)).unwrap()
    };
    let handle = |node: &Node| tree.handle(node).unwrap();
    let mut handles = Vec::new();
    for d in 0..10 {
        let dir = make(&tree.root(), &format!("d{d}"), Kind::Directory);
        let inner = make(&dir, "inner", Kind::Directory);
        handles.extend((0..20).map(|f| handle(&make(&inner, &format!("f{f}"), Kind::File))));
    }
    let lost = |i: usize| {
        let node = make(&tree.root(), &format!("lost{i}"), Kind::File);
        let handle = handle(&node);
        tree.unlink(&tree.root(), format!("lost{i}").as_bytes(), false).unwrap();
        (handle, node)
    };
    let lost: Vec<_> = (0..20).map(lost).collect();
    let walks = || tree.places.walks.load(Relaxed);
    tree.begin_to_look();
    for of in &handles {
        let found = tree.open(of, b"another/place").unwrap().unwrap();
        assert_eq!(handle(&found), *of);
    }
    for (handle, _) in &lost {
        assert!(tree.open(handle, b"lost").unwrap().is_none());
    }
    assert_eq!(walks(), 1);
    std::fs::rename(bed.dir.join("d3/inner/f7"), bed.dir.join("d4/moved")).unwrap();
    let moved = &handles[3 * 20 + 7];
    assert_eq!(handle(&tree.open(moved, b"").unwrap().unwrap()), *moved);
    assert_eq!(walks(), 2);
    let hinted = tree.open(moved, b"d4/moved").unwrap().unwrap();
    assert_eq!((handle(&hinted), walks()), (moved.clone(), 2));
    tree.begin_to_look();
    assert_eq!(handle(&tree.open(&handles[0], b"").unwrap().unwrap()), handles[0]);
    assert_eq!(walks(), 3);
    assert!(tree.open(&handle(&tree.root()), b"").unwrap().is_some(), "the root");
}
