// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of names.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::failing::{between, may_pass, Step};
use super::{Inode, Journal, Live, When};
use crate::mark;
use crate::record::{self, Kind, Record, Records, NONE, ROOT};
use crate::replay::is_staging;
use crate::replay::planted::{planted, Bug};
use crate::tree::{Attr, New, RenameHow, Result, Tree};

/// How long two files keep each other's names for lack of room, memory or descriptors.
const SHORTAGE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });

/// How the replacement of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Replaced,
    /// The names are as before.
    Back,
    Neither(Errno),
}

fn tried_again(longest: Duration, end: impl Fn() -> Ended) -> Ended {
    let begun = Instant::now();
    loop {
        match end() {
            Ended::Neither(e) if may_pass(e) && begun.elapsed() < longest => {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended => return ended,
        }
    }
}

impl<T: Tree, J: Journal> Live<T, J> {
    /// Checks that a record can hold the name, and that the name is neither a mark nor the
    /// replay's own: a replay refuses a log with such a name.
    pub(super) fn nameable(&self, dir: &Inode<T::Node>, name: &[u8]) -> Result<()> {
        match name {
            _ if dir.fid == ROOT && is_staging(name) => Err(Errno::PERM),
            _ if mark::is_own(name) => Err(Errno::PERM),
            _ if name.len() > record::NAME_MAX => Err(Errno::NAMETOOLONG),
            _ => Ok(()),
        }
    }

    /// Makes a new inode, which the kernel then knows, exactly as `new` says.
    pub fn create(
        &self,
        dir: &Arc<Inode<T::Node>>,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<(Arc<Inode<T::Node>>, Attr)> {
        self.create_with(dir, name, new, &[])
    }

    /// Creates an inode; `acls`: the ACLs that the tree gives it from the directory's default
    /// ACL.
    pub fn create_with(
        &self,
        dir: &Arc<Inode<T::Node>>,
        name: &[u8],
        new: &New<'_>,
        acls: &[(&[u8], &[u8])],
    ) -> Result<(Arc<Inode<T::Node>>, Attr)> {
        self.nameable(dir, name)?;
        if self.tree.lookup(&dir.node, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let fid = self.new_fid();
        let record = Record::Create {
            dir: dir.fid,
            name,
            fid,
            kind: new.kind,
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            target: new.target,
        };
        let mut body = Records::of(&record);
        for (name, value) in acls {
            body.push(&Record::Xattr { fid, name, value: Some(value) });
        }
        // The tree may take a second step for these bits, and for the owner of what has them.
        let when = match new.mode & 0o6000 != 0 {
            true => When::Durable,
            false => When::Appended,
        };
        self.operation_of(when, &[dir], true, &body, |hold| {
            let node = self.tree.create(&dir.node, name, new)?;
            let attr = self.tree.attr(&node)?;
            let inode = self.meet(node, &attr, Some(fid), 1);
            if inode.fid == fid {
                inode.made.store(hold.txg, Ordering::Relaxed);
            }
            hold.keep(inode.clone());
            Ok((inode, attr))
        })
    }

    /// Adds another name to an inode, which the kernel then knows once more.
    pub fn link(
        &self,
        inode: &Arc<Inode<T::Node>>,
        dir: &Arc<Inode<T::Node>>,
        name: &[u8],
    ) -> Result<Attr> {
        self.nameable(dir, name)?;
        if self.tree.lookup(&dir.node, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let record = Record::Link { fid: inode.fid, dir: dir.fid, name };
        self.operation(&[dir, inode], true, &record, |_| {
            self.tree.link(&inode.node, &dir.node, name)
        })?;
        let attr = self.tree.attr(&inode.node)?;
        self.meet(inode.node.clone(), &attr, None, 1);
        Ok(attr)
    }

    pub fn unlink(&self, dir: &Arc<Inode<T::Node>>, name: &[u8], directory: bool) -> Result<()> {
        self.nameable(dir, name)?;
        let inode = self.existing(dir, name)?.ok_or(Errno::NOENT)?;
        let done = match (directory, inode.kind == Kind::Directory) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            _ => {
                let record = Record::Unlink { dir: dir.fid, name, fid: inode.fid };
                self.losing_name(&inode, || {
                    self.operation(&[dir, &inode], true, &record, |_| {
                        let unlink = || self.tree.unlink(&dir.node, name, directory);
                        match directory {
                            true => mark::emptied(&self.tree, &inode.node, unlink),
                            false => unlink(),
                        }
                    })
                })
            }
        };
        self.done_with(inode);
        done
    }

    pub fn rename(
        &self,
        (from_dir, from): (&Arc<Inode<T::Node>>, &[u8]),
        (to_dir, to): (&Arc<Inode<T::Node>>, &[u8]),
        how: RenameHow,
    ) -> Result<()> {
        self.nameable(from_dir, from)?;
        self.nameable(to_dir, to)?;
        let inode = self.existing(from_dir, from)?.ok_or(Errno::NOENT)?;
        let replaced = self.existing(to_dir, to)?;
        let done = self.rename_known((from_dir, from), (to_dir, to), how, &inode, &replaced);
        self.done_with(inode);
        replaced.into_iter().for_each(|r| self.done_with(r));
        done
    }

    fn rename_known(
        &self,
        (from_dir, from): (&Arc<Inode<T::Node>>, &[u8]),
        (to_dir, to): (&Arc<Inode<T::Node>>, &[u8]),
        how: RenameHow,
        inode: &Arc<Inode<T::Node>>,
        replaced: &Option<Arc<Inode<T::Node>>>,
    ) -> Result<()> {
        match (how, replaced) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            // Both names belong to one inode, so nothing is done.
            (_, Some(other)) if other.ino == inode.ino => return Ok(()),
            (RenameHow::Replace, Some(other)) => {
                match (inode.kind == Kind::Directory, other.kind == Kind::Directory) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
                // No one may find the old file gone and the new one empty.  The entry of the
                // rename comes after the content's, so it is not durable without that.
                if inode.kind == Kind::File {
                    drop(self.log_content(inode)?);
                }
            }
            _ => {}
        }
        let record = Record::Rename {
            from_dir: from_dir.fid,
            from,
            to_dir: to_dir.fid,
            to,
            fid: inode.fid,
            replaced: replaced.as_ref().map_or(NONE, |r| r.fid),
            exchange: how == RenameHow::Exchange,
        };
        let mut involved = vec![from_dir, to_dir, inode];
        involved.extend(replaced);
        let over = replaced.as_ref().filter(|_| how == RenameHow::Replace);
        // Two steps of the tree replace a file.  What a file replaces is gone with the rename, so
        // its content has to be durable before that.
        let files = |over: &Arc<Inode<T::Node>>| {
            let content = inode.kind == Kind::File && !planted(Bug::LinkReplacedTooEarly);
            over.kind == Kind::File || content
        };
        let when = match over.is_some_and(files) {
            true if !planted(Bug::ReplacedTooEarly) => When::Durable,
            _ => When::Appended,
        };
        let rename = || {
            self.operation_of(when, &involved, true, &Records::of(&record), |_| {
                let (from, to) = ((&from_dir.node, from), (&to_dir.node, to));
                let rename = || self.tree.rename(from, to, how);
                match over.map(|over| (over.kind, &over.node)) {
                    Some((Kind::File, _)) => self.replace(from, to, inode),
                    Some((Kind::Directory, over)) => mark::emptied(&self.tree, over, rename),
                    _ => rename(),
                }
            })
        };
        match replaced {
            Some(replaced) => self.losing_name(replaced, rename),
            None => rename(),
        }
    }

    /// Replaces another file's name.  On a plain rename over a file, ext4 and btrfs would begin
    /// to write back its bytes and block the caller for that; the log has the bytes.  So the
    /// two files trade places, and then the other one loses its new name.
    ///
    /// Somebody next to the mount may change the names in between.
    fn replace(
        &self,
        from: (&T::Node, &[u8]),
        to: (&T::Node, &[u8]),
        inode: &Inode<T::Node>,
    ) -> Result<()> {
        let _held = (self.tree.keep_open(from.0)?, self.tree.keep_open(to.0)?);
        let exchange = || self.tree.rename(from, to, RenameHow::Exchange);
        let unlink = || self.tree.unlink(from.0, from.1, false);
        let remove = || between().and_then(|()| unlink());
        let back = || between().and_then(|()| exchange());
        if exchange().is_ok() {
            // One of the two has to be done: in between each file has the other's name.
            let end = || match remove() {
                Ok(()) => Ended::Replaced,
                // The old name is gone, as it should be.
                Err(Errno::NOENT) => Ended::Neither(Errno::NOENT),
                Err(_) => back().map_or_else(Ended::Neither, |()| Ended::Back),
            };
            let is_there =
                || Ok(self.tree.attr_of(to.0, to.1)?.is_some_and(|a| a.ino == inode.ino));
            let what = "two files cannot change places again";
            match tried_again(SHORTAGE, end) {
                Ended::Replaced => return Ok(()),
                Ended::Back => {}
                Ended::Neither(Errno::NOENT) if is_there()? => return Ok(()),
                Ended::Neither(e) if may_pass(e) => return Err(self.fail(what, e)),
                Ended::Neither(e) => return Err(self.judge(Step::Name, what, e)),
            }
        }
        // Not every file system supports that.
        self.tree.rename(from, to, RenameHow::Replace)
    }
}
