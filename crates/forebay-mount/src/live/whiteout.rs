// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rename that leaves a whiteout: overlayfs covers a name of its lower layer with a character
//! device 0:0, in the moment in which it moves what had the name in the upper one.

use std::sync::Arc;

use rustix::io::Errno;

use super::failing::{between, ends_mount, Step};
use super::{Inode, Journal, Live, When};
use crate::mark;
use crate::record::{Kind, Record, Records, NONE};
use crate::tree::{RenameHow, Result, Tree};

impl<T: Tree, J: Journal> Live<T, J> {
    /// One entry says both.  `owner`: user and group of the whiteout.
    pub fn rename_leaving_whiteout(
        &self,
        (from_dir, from): (&Arc<Inode<T::Node>>, &[u8]),
        (to_dir, to): (&Arc<Inode<T::Node>>, &[u8]),
        may_replace: bool,
        owner: (u32, u32),
    ) -> Result<()> {
        self.nameable(from_dir, from)?;
        self.nameable(to_dir, to)?;
        let inode = self.existing(from_dir, from)?.ok_or(Errno::NOENT)?;
        let replaced = self.existing(to_dir, to)?;
        let done = match &replaced {
            Some(_) if !may_replace => Err(Errno::EXIST),
            // Two names of one inode: nothing is done.
            Some(other) if other.ino == inode.ino => Ok(()),
            Some(other) => self.losing_name(other, || {
                match (inode.kind == Kind::Directory, other.kind == Kind::Directory) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
                if inode.kind == Kind::File {
                    drop(self.log_content(&inode)?);
                }
                self.leave_whiteout((from_dir, from), (to_dir, to), owner, &inode, Some(other))
            }),
            None => self.leave_whiteout((from_dir, from), (to_dir, to), owner, &inode, None),
        };
        self.done_with(inode);
        replaced.into_iter().for_each(|r| self.done_with(r));
        done
    }

    fn leave_whiteout(
        &self,
        (from_dir, from): (&Arc<Inode<T::Node>>, &[u8]),
        (to_dir, to): (&Arc<Inode<T::Node>>, &[u8]),
        (uid, gid): (u32, u32),
        inode: &Arc<Inode<T::Node>>,
        replaced: Option<&Arc<Inode<T::Node>>>,
    ) -> Result<()> {
        let fid = self.new_fid();
        let mut body = Records::of(&Record::Rename {
            from_dir: from_dir.fid,
            from,
            to_dir: to_dir.fid,
            to,
            fid: inode.fid,
            replaced: replaced.map_or(NONE, |r| r.fid),
            exchange: false,
        });
        body.push(&Record::Create {
            dir: from_dir.fid,
            name: from,
            fid,
            kind: Kind::CharDevice,
            mode: 0,
            uid,
            gid,
            device: 0,
            target: b"",
        });
        let mut involved = vec![from_dir, to_dir, inode];
        involved.extend(replaced);
        self.operation_of(When::Durable, &involved, true, &body, |hold| {
            let places = ((&from_dir.node, from), (&to_dir.node, to));
            let rename = || self.tree.rename(places.0, places.1, RenameHow::Whiteout);
            match replaced {
                Some(over) if over.kind == Kind::Directory => {
                    mark::emptied(&self.tree, &over.node, rename)?;
                }
                _ => rename()?,
            }
            // It is done: the log has to know what it names from now on.  Somebody next to the mount
            // may have removed the whiteout, and this process may have no descriptor left.  Then a
            // later entry knows the whiteout as another inode, which a replay disputes.
            let what = "the tree's file system does not show a whiteout that it made";
            let look = || self.tree.lookup_with_attr(&from_dir.node, from);
            match between().and_then(|()| look()) {
                Ok(Some((node, attr))) if attr.kind == Kind::CharDevice && attr.device == 0 => {
                    hold.keep(self.meet(node, &attr, Some(fid), 0));
                }
                Err(e) if ends_mount(Step::Name, e) => return Err(self.judge(Step::Name, what, e)),
                Ok(_) | Err(_) => {}
            }
            Ok(())
        })
    }
}
