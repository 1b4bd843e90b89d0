// SPDX-License-Identifier: MIT OR Apache-2.0
//! The inodes that the kernel knows, or that an unsynced entry names.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;

use super::{Content, Inode, Journal, Live};
use crate::mark;
use crate::record::{Fid, Kind};
use crate::tree::{Attr, Result, Tree};

#[derive(Debug)]
struct Known<N> {
    inode: Arc<Inode<N>>,
    /// The kernel's count of its lookups.
    lookups: u64,
}

/// The known inodes by number.
#[derive(Debug)]
pub(super) struct Inodes<N> {
    known: HashMap<u64, Known<N>>,
    /// Files that were dropped with bytes that no sync covers yet.  The next sync of such a
    /// file may use another object for it and must cover those bytes too.
    unsynced: HashSet<u64>,
    /// The files that were in `unsynced` before the sync of the whole tree that is under way.
    syncing: HashSet<u64>,
}

impl<N> Inodes<N> {
    /// The root is known for as long as the mount exists.
    pub fn of(root: &Arc<Inode<N>>) -> Inodes<N> {
        let known = Known { inode: root.clone(), lookups: 1 };
        Inodes {
            known: HashMap::from([(root.ino, known)]),
            unsynced: HashSet::new(),
            syncing: HashSet::new(),
        }
    }

    /// Begins a sync of the whole tree.
    pub fn sync_begins(&mut self) {
        self.syncing = std::mem::take(&mut self.unsynced);
    }

    pub fn sync_ended(&mut self) {
        self.syncing.clear();
    }

    /// Drops an inode without users.  One that an entry of an unsynced group names is kept, so
    /// that it has one fid; but not one that is gone, since its number may soon be another's.
    fn drop_unused(&mut self, ino: u64) -> Option<Arc<Inode<N>>> {
        let is_gone = |k: &Known<N>| k.inode.is_gone();
        let unused =
            |k: &Known<N>| k.lookups == 0 && (is_gone(k) || Arc::strong_count(&k.inode) == 1);
        if !self.known.get(&ino).is_some_and(unused) {
            return None;
        }
        let known = self.known.remove(&ino)?;
        if !is_gone(&known) && !known.inode.content().dirty.is_empty() {
            self.unsynced.insert(ino);
        }
        Some(known.inode)
    }
}

impl<T: Tree, J: Journal> Live<T, J> {
    pub(super) fn inodes(&self) -> MutexGuard<'_, Inodes<T::Node>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode that the kernel knows by this number.
    pub fn inode(&self, ino: u64) -> Result<Arc<Inode<T::Node>>> {
        self.inodes().known.get(&ino).map(|k| k.inode.clone()).ok_or(Errno::STALE)
    }

    /// Records that the tree did not take pages that the kernel wrote back: they are lost.
    pub fn write_back_was_refused(&self, ino: u64) {
        if let Ok(inode) = self.inode(ino) {
            inode.refused_write_backs.fetch_add(1, Ordering::Release);
        }
        self.counters.refused_write_backs.fetch_add(1, Ordering::Release);
    }

    /// Returns the one object of an inode.  Its number is not used again while a node is held.
    pub(super) fn meet(
        &self,
        node: T::Node,
        attr: &Attr,
        fid: Option<Fid>,
        lookups: u64,
    ) -> Arc<Inode<T::Node>> {
        let mut inodes = self.inodes();
        let Inodes { known, unsynced, syncing } = &mut *inodes;
        let known = known.entry(attr.ino).or_insert_with(|| {
            let mut content = Content::default();
            // A new inode does not have it.
            content.lacks[0] = fid.is_some();
            let unsynced = unsynced.remove(&attr.ino) || syncing.contains(&attr.ino);
            // A new inode only has the number of one that is gone.
            if unsynced && fid.is_none() && attr.kind == Kind::File {
                content.dirty.add_all();
                self.tree.was_dropped(&node);
            }
            let inode = Arc::new(Inode {
                ino: attr.ino,
                kind: attr.kind,
                node,
                fid: fid.unwrap_or_else(|| self.new_fid()),
                gone: OnceLock::new(),
                made: AtomicU64::new(0),
                bound: AtomicU64::new(0),
                content: Mutex::new(content),
                refused_write_backs: AtomicU64::new(0),
            });
            Known { inode, lookups: 0 }
        });
        known.lookups += lookups;
        known.inode.clone()
    }

    pub(super) fn new_fid(&self) -> Fid {
        self.next_fid.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks up a name for the kernel, which then knows the inode once more.  Does not enter a
    /// directory with a mark of its own, because another log may hold what it lacks.  Does not
    /// enter a case-insensitive directory either, because the log would take two spellings of a
    /// name for two names.
    pub fn lookup(&self, dir: &Inode<T::Node>, name: &[u8]) -> Result<(Arc<Inode<T::Node>>, Attr)> {
        if mark::is_own(name) {
            return Err(Errno::NOENT);
        }
        let attr = self.tree.attr_of(&dir.node, name)?.ok_or(Errno::NOENT)?;
        if attr.kind != Kind::Directory {
            if let Some(known) = self.inodes().known.get_mut(&attr.ino) {
                known.lookups += 1;
                return Ok((known.inode.clone(), attr));
            }
        }
        let (node, attr) = self.tree.lookup_with_attr(&dir.node, name)?.ok_or(Errno::NOENT)?;
        if attr.kind == Kind::Directory {
            match mark::is_marked(&self.tree, &node) {
                // No one can enter a directory that this process may not search.
                Ok(false) | Err(Errno::ACCESS) => {}
                Ok(true) => return Err(Errno::BUSY),
                Err(e) => return Err(e),
            }
            match self.tree.folds_case(&node) {
                Ok(false) | Err(Errno::ACCESS) => {}
                Ok(true) => return Err(Errno::OPNOTSUPP),
                Err(e) => return Err(e),
            }
        }
        Ok((self.meet(node, &attr, None, 1), attr))
    }

    /// The files that the kernel knows and of which it may hold pages.
    pub fn files_of_kernel(&self) -> Vec<u64> {
        let inodes = self.inodes();
        let known = inodes.known.values().filter(|k| k.lookups > 0);
        known.filter(|k| k.inode.kind == Kind::File).map(|k| k.inode.ino).collect()
    }

    /// Records that the kernel forgets that many lookups of an inode.
    pub fn forget(&self, ino: u64, lookups: u64) {
        let mut inodes = self.inodes();
        if let Some(k) = inodes.known.get_mut(&ino) {
            k.lookups = k.lookups.saturating_sub(lookups);
        }
        let dropped = inodes.drop_unused(ino);
        drop(inodes);
        self.unpin(dropped);
    }

    /// Unpins an inode that no one knows any more, except perhaps an unsynced group.
    fn unpin(&self, inode: Option<Arc<Inode<T::Node>>>) {
        if let Some(inode) = inode {
            let _ = self.tree.pin(&inode.node, false);
        }
    }

    /// Runs an operation that may remove the last name of an inode that is in use.
    pub(super) fn losing_name<R>(
        &self,
        inode: &Arc<Inode<T::Node>>,
        operation: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.tree.pin(&inode.node, true)?;
        let done = operation();
        match self.tree.attr(&inode.node) {
            Ok(attr) if attr.nlink > 0 => drop(self.tree.pin(&inode.node, false)),
            Ok(attr) => drop(inode.gone.set((attr.uid, attr.gid))),
            Err(_) => {}
        }
        done
    }

    /// Returns the inode of an operation, which the kernel need not know.
    pub(super) fn existing(
        &self,
        dir: &Inode<T::Node>,
        name: &[u8],
    ) -> Result<Option<Arc<Inode<T::Node>>>> {
        let Some(attr) = self.tree.attr_of(&dir.node, name)? else { return Ok(None) };
        if let Some(known) = self.inodes().known.get(&attr.ino) {
            return Ok(Some(known.inode.clone()));
        }
        let Some((node, attr)) = self.tree.lookup_with_attr(&dir.node, name)? else {
            return Ok(None);
        };
        Ok(Some(self.meet(node, &attr, None, 0)))
    }

    /// Drops an inode that [`Live::existing`] returned, if no one else knows it.
    pub(super) fn done_with(&self, inode: Arc<Inode<T::Node>>) {
        let ino = inode.ino;
        drop(inode);
        let dropped = self.inodes().drop_unused(ino);
        self.unpin(dropped);
    }
}
