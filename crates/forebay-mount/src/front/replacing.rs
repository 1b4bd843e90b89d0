// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renames.  A file that replaces another one removes its content.
//!
//! With `--write-back` the kernel may hold bytes of the new file, which are lost if the server
//! dies.  So the kernel writes back its pages of the new file before the rename is logged, and
//! the log has its bytes before it has the rename.  If the tree does not take the bytes, the
//! rename fails and the old file stays.
//!
//! The kernel writes back by requests of its own.  A helper waits for them, and never a thread
//! that reads requests.  The kernel holds both directories locked meanwhile, so the names stay
//! as they are.  It holds the new file locked too (Linux 6.6), so only a mapping can write to
//! it.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, RenameFlags, ReplyEmpty};
use rustix::io::Errno;

use super::helpers::Class;
use super::served::{Name, Served};
use super::terms::{empty, errno};
use super::{holes, TreeLive};
use crate::live::Inode;
use crate::notified::Kernel;
use crate::record::Kind;
use crate::rights::{Acting, Caller};
use crate::tree::{RenameHow, Result, Tree};
use crate::unix::Node;

/// A name in a directory.
type Place = (Arc<Inode<Node>>, Vec<u8>);

/// A requested rename.
pub(super) struct Rename {
    live: Arc<TreeLive>,
    from: Place,
    to: Place,
    how: RenameHow,
    /// The user and group of the whiteout that it leaves.
    whiteout: Option<(u32, u32)>,
    caller: Caller,
    /// It has the caller's rights.
    as_caller: bool,
}

/// A file of which the kernel may hold pages, and its number for the kernel.
struct Held {
    file: Arc<Inode<Node>>,
    number: INodeNo,
}

impl Held {
    /// Waits until the kernel has written its pages back.
    fn write_back(&self, kernel: &Kernel) -> Result<()> {
        let refused = self.file.refused_write_backs();
        holes::write_back(kernel, self.number, 0, None)?;
        match self.file.refused_write_backs() == refused {
            true => Ok(()),
            false => Err(Errno::IO),
        }
    }
}

impl Rename {
    fn run(&self) -> Result<()> {
        let _acting = Acting::of(self.caller, self.as_caller);
        let (from, to) = ((&self.from.0, &self.from.1[..]), (&self.to.0, &self.to.1[..]));
        match self.whiteout {
            None => self.live.rename(from, to, self.how),
            Some(owner) => {
                let may_replace = self.how == RenameHow::Replace;
                self.live.rename_leaving_whiteout(from, to, may_replace, owner)
            }
        }
    }

    /// The file that is to replace another one.
    fn replacing(&self) -> Result<Option<Arc<Inode<Node>>>> {
        let tree = self.live.tree();
        if self.how != RenameHow::Replace || tree.attr_of(&self.to.0.node, &self.to.1)?.is_none() {
            return Ok(None);
        }
        let attr = tree.attr_of(&self.from.0.node, &self.from.1)?;
        let Some(attr) = attr.filter(|attr| attr.kind == Kind::File) else { return Ok(None) };
        // The kernel holds no pages of a file that it does not know.
        Ok(self.live.inode(attr.ino).ok())
    }
}

impl Served {
    pub fn rename(
        &self,
        caller: Caller,
        from: Name<'_>,
        to: Name<'_>,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        match self.asked_to_rename(caller, from, to, flags) {
            Ok(rename) => self.do_rename(rename, reply),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn asked_to_rename(
        &self,
        caller: Caller,
        from: Name<'_>,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<Rename> {
        let mut plain = flags;
        plain.remove(RenameFlags::RENAME_WHITEOUT);
        let leaves_whiteout = plain != flags;
        let how = match plain {
            f if f.is_empty() => RenameHow::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameHow::NoReplace,
            RenameFlags::RENAME_EXCHANGE if !leaves_whiteout => RenameHow::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let place = |(dir, name): Name<'_>| Ok((self.inode(dir)?, name.as_bytes().to_vec()));
        let (from, to) = (place(from)?, place(to)?);
        let whiteout = match leaves_whiteout {
            true => Some(self.owner_of_new(caller, &from.0)?),
            false => None,
        };
        let as_caller = self.changes_as_caller()?;
        Ok(Rename { live: self.live.clone(), from, to, how, whiteout, caller, as_caller })
    }

    fn do_rename(&self, rename: Rename, reply: ReplyEmpty) {
        let file = match self.write_back {
            true => rename.replacing(),
            false => Ok(None),
        };
        let file = match file {
            Ok(Some(file)) => file,
            Ok(None) => return empty(reply, rename.run()),
            Err(e) => return empty(reply, Err(e)),
        };
        let held = Held { number: INodeNo(self.swap(file.ino)), file };
        let kernel = self.kernel.clone();
        self.helpers.run(Class::Renames, move || {
            let done = held.write_back(&kernel).and_then(|()| {
                drop(held);
                rename.run()
            });
            empty(reply, done);
        });
    }
}
