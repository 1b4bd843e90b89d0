// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that need no access to the tree's disk, from the kernel's caches.
//!
//! Linux has no call that reads from the page cache alone: RWF_NOWAIT starts to read missing
//! pages, and waits if the disk takes no more requests.  So the page cache is queried first.

use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::os::fd::AsFd;

use forebay_engine::handle::cached_pages;
use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{preadv2, Errno, ReadWriteFlags};
use rustix::param::page_size;

use super::{attr_of_stat, component, Node, UnixTree, HELD};
use crate::mark;
use crate::record::Kind;
use crate::tree::Attr;

impl UnixTree {
    /// `None`: it may take a wait.
    pub fn attr_now(&self, node: &Node) -> Option<Attr> {
        let stat = fs::fstat(node.open_now()?).ok()?;
        Some(attr_of_stat(node.kind(), &stat))
    }

    /// A lookup of the name finds it, or that it is not there, without a wait.
    pub fn finds_now(&self, dir: &Node, name: &[u8]) -> bool {
        let (Some(dir), Ok(name)) = (dir.open_now(), component(name)) else { return false };
        let cached = ResolveFlags::NO_XDEV | ResolveFlags::CACHED;
        let open =
            |dir: &dyn AsFd, name| fs::openat2(dir.as_fd(), name, HELD, Mode::empty(), cached);
        match open(&dir, name) {
            Err(e) => e == Errno::NOENT,
            Ok(found) => match fs::fstat(&found) {
                // It is looked into.
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    let mark = open(&found, OsStr::new(mark::NAME));
                    mark.is_err_and(|e| e == Errno::NOENT)
                }
                stat => stat.is_ok(),
            },
        }
    }

    /// Reads what the page cache has of a file; `None`: a read may have to wait, or Linux is
    /// older than 6.5 and does not tell.
    pub fn read_now(&self, node: &Node, offset: u64, bytes: &mut [u8]) -> Option<usize> {
        if node.kind() != Kind::File {
            return None;
        }
        // A change of the time of access may wait for the file system's journal, and an open for
        // the holder of a lease.
        let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK;
        let held = node.open_now()?;
        let fd = match held.reopen(flags) {
            Err(Errno::PERM) => held.reopen(flags & !OFlags::NOATIME),
            opened => opened,
        };
        let fd = fd.ok()?;
        let size = fs::fstat(&fd).ok()?.st_size as u64;
        let end = size.min(offset.checked_add(bytes.len() as u64)?);
        let length = end.saturating_sub(offset);
        if length == 0 {
            return Some(0);
        }
        let page = page_size() as u64;
        let pages = end.div_ceil(page) - offset / page;
        if cached_pages(fd.as_fd(), offset, length) != Ok(pages) {
            return None;
        }
        // One that is being read yet is EAGAIN.
        let bytes = &mut bytes[..length as usize];
        let n = preadv2(&fd, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT).ok()?;
        (n as u64 == length).then_some(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    /// Data that is not cached is not waited for.  Cached data is the same as from the call
    /// that may wait.
    #[test]
    fn cached_answers_come_at_once() {
        let path = std::env::temp_dir().join(format!("forebay-now-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(path.join("f"), &content).expect("a file");
        std::fs::create_dir(path.join("d")).expect("a directory");
        let tree = UnixTree::open(&path).expect("a tree");
        let root = tree.root();
        let node = tree.lookup(&root, b"f").expect("looked up").expect("it is there");
        let attr = tree.attr_now(&node).expect("attributes");
        assert_eq!(attr, tree.attr(&node).expect("attributes"));
        assert_eq!(attr.size, content.len() as u64);
        assert!(tree.finds_now(&root, b"f"));
        assert_eq!(tree.lookup(&root, b"absent").map(|found| found.is_some()), Ok(false));
        assert!(tree.finds_now(&root, b"absent"));
        assert!(!tree.finds_now(&root, b"a/b"));
        let directory = tree.lookup(&root, b"d").expect("looked up").expect("it is there");
        assert!(!tree.finds_now(&root, b"d"), "whether it is marked is not known yet");
        assert_eq!(mark::is_marked(&tree, &directory), Ok(false));
        assert!(tree.finds_now(&root, b"d"));
        for (offset, length) in [(0, 10), (4095, 2), (4096, 8192), (399_000, 5000), (7, 399_993)] {
            let mut bytes = vec![0; length];
            // A new file is in the page cache.
            if let Some(n) = tree.read_now(&node, offset, &mut bytes) {
                let end = content.len().min(offset as usize + length);
                assert_eq!(bytes[..n], content[offset as usize..end]);
            } else {
                let file = std::fs::File::open(path.join("f")).expect("the file");
                assert_eq!(cached_pages(file.as_fd(), 0, 1), Err(Errno::NOSYS), "before Linux 6.5");
            }
        }
        assert_eq!(tree.read_now(&node, 400_000, &mut [0; 10]), Some(0));
        assert_eq!(tree.read_now(&directory, 0, &mut [0; 10]), None);
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
