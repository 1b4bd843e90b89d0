// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effects of a request that depend on its caller.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, Request, WriteFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::served::Served;
use crate::acl::inherited;
use crate::live::{Inode, CAPABILITY};
use crate::record::{Kind, SetAttr};
use crate::rights::{self, Acting, Caller, Status};
use crate::tree::{Attr, New, Result, ACCESS_ACL, DEFAULT_ACL};
use crate::unix::Node;

const S_ISGID: u32 = 0o2000;

impl Served {
    /// Prepares a change of the tree for a caller, which acts as the caller while the answer is
    /// held.  Root may have remounted it for writing, and the kernel does not ask the server
    /// about that.
    pub(super) fn changing(&self, caller: Caller) -> Result<Acting> {
        Ok(Acting::of(caller, self.changes_as_caller()?))
    }

    /// Changes are made with the caller's rights; otherwise with the thread's own.
    pub(super) fn changes_as_caller(&self) -> Result<bool> {
        match self.read_only {
            true => Err(Errno::ROFS),
            false => Ok(self.does_act()),
        }
    }

    /// A write-back by the kernel has no caller: it counts as the owner's, whose quota it uses.
    pub(super) fn writing(
        &self,
        mut caller: Caller,
        ino: INodeNo,
        flags: WriteFlags,
    ) -> Result<Acting> {
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            let (uid, gid) = self.live.tree().owner(&self.inode(ino)?.node)?;
            caller = Caller { uid, gid, pid: 0 };
        }
        self.changing(caller)
    }

    /// Removes the set-user-ID and set-group-ID bits and the capabilities of a file whose
    /// content the caller changes.
    pub(super) fn drop_privileges(&self, caller: Caller, inode: &Arc<Inode<Node>>) -> Result<()> {
        let attr = self.live.attr(inode)?;
        let without = without_set_ids(caller, &attr);
        if without != attr.mode {
            let set = SetAttr { mode: Some(without), ..SetAttr::default() };
            self.live.set_attr(inode, &set)?;
            // Otherwise the kernel would use its cached mode and run the file with its owner's
            // rights.
            self.kernel.forget_attributes(INodeNo(self.swap(inode.ino)));
        }
        if self.live.xattr(inode, CAPABILITY)?.is_some() {
            self.live.set_xattr(inode, CAPABILITY, None)?;
        }
        Ok(())
    }

    /// Truncates a file.  With `--write-back` the tree's file may be shorter than the
    /// program's, so a truncation of the program's file may extend it or leave it as it is.  A
    /// file system then keeps blocks that are allocated after the new end.  It frees them when
    /// it is asked to set the size that the file already has.
    pub(super) fn cut(&self, inode: &Arc<Inode<Node>>, size: u64) -> Result<()> {
        let before = match self.write_back {
            true => Some(self.live.attr(inode)?),
            false => None,
        };
        self.live.truncate(inode, size)?;
        match before.is_some_and(|before| before.size < size && before.blocks > 0) {
            true => self.live.truncate(inode, size),
            false => Ok(()),
        }
    }

    /// For requests where the kernel does not say whether privileges are to be dropped
    /// ([`WriteFlags`]).
    pub(super) fn content_changes(&self, caller: Caller, inode: &Arc<Inode<Node>>) -> Result<()> {
        match caller.uid {
            0 => Ok(()),
            _ => self.drop_privileges(caller, inode),
        }
    }

    /// The mode of a file that loses its set-group-ID bit when this caller sets its ACL, as it
    /// would when the caller changed its mode.
    pub(super) fn loses_set_group_id(
        &self,
        caller: Caller,
        inode: &Inode<Node>,
        name: &[u8],
    ) -> Result<Option<u32>> {
        if name != ACCESS_ACL {
            return Ok(None);
        }
        let attr = self.live.attr(inode)?;
        let stays = attr.mode & S_ISGID == 0
            || in_group(caller, attr.gid)
            || rights::may(&caller, CapabilitySet::FSETID);
        Ok((!stays).then_some(attr.mode))
    }

    /// Refuses an attribute that only the tree's file system knows, such as an ACL of NFSv4, to who
    /// neither owns the file nor may act as its owner.  The kernel checks nobody's rights to names
    /// of `system.` but the two POSIX ACLs', and the tree's file system sees the server.
    pub(super) fn may_change_xattr(
        &self,
        caller: Caller,
        inode: &Inode<Node>,
        name: &[u8],
    ) -> Result<()> {
        if !name.starts_with(b"system.") || [ACCESS_ACL, DEFAULT_ACL].contains(&name) {
            return Ok(());
        }
        let owner = self.live.attr(inode)?.uid;
        match owner == caller.uid || rights::may(&caller, CapabilitySet::FOWNER) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// The user and group of what this caller makes in a directory.
    pub(super) fn owner_of_new(&self, caller: Caller, dir: &Inode<Node>) -> Result<(u32, u32)> {
        let above = self.live.attr(dir)?;
        let of_dir = above.mode & S_ISGID != 0;
        Ok((caller.uid, if of_dir { above.gid } else { caller.gid }))
    }

    /// Makes a new inode.  The kernel applies no umask, since a default ACL may replace it.
    pub(super) fn make(
        &self,
        caller: Caller,
        (parent, name): (INodeNo, &OsStr),
        (kind, mode, umask): (Kind, u32, u32),
        (device, target): (u64, &[u8]),
    ) -> Result<(Arc<Inode<Node>>, Attr)> {
        let _acting = self.changing(caller)?;
        let dir = self.inode(parent)?;
        let above = self.live.attr(&dir)?;
        let default = self.live.xattr(&dir, DEFAULT_ACL)?;
        let no_acl_above = default.is_none();
        let default = default.filter(|_| kind != Kind::Symlink);
        let mut mode = mode & 0o7777;
        let acl = default.as_ref().map(|acl| inherited(acl, mode)).transpose()?;
        match &acl {
            Some(acl) => mode = acl.mode,
            None => mode &= !umask,
        }
        let mut gid = caller.gid;
        if above.mode & S_ISGID != 0 {
            gid = above.gid;
            if kind == Kind::Directory {
                mode |= S_ISGID;
            }
        }
        let uid = caller.uid;
        let inherit_acl = acl.is_some();
        let new = New { kind, mode, uid, gid, device, target, inherit_acl, no_acl_above };
        let access = acl.iter().filter_map(|acl| Some((ACCESS_ACL, acl.access.as_deref()?)));
        let default = default.iter().filter(|_| kind == Kind::Directory);
        let acls: Vec<_> = access.chain(default.map(|acl| (DEFAULT_ACL, &acl[..]))).collect();
        self.live.create_with(&dir, name.as_bytes(), &new, &acls)
    }
}

/// Returns the mode without set-ID bits.  A set-group-ID bit without the right to execute has
/// another meaning: it stays if the caller is in the group.
pub(super) fn without_set_ids(caller: Caller, attr: &Attr) -> u32 {
    let stays = attr.mode & 0o2010 == S_ISGID && (caller.uid == 0 || in_group(caller, attr.gid));
    attr.mode & if stays { !0o4000 } else { !0o6000 }
}

/// Whether a new owner clears the set-ID bits.
pub(super) fn has_mode_of_file(kind: Kind) -> bool {
    !matches!(kind, Kind::Directory | Kind::Symlink)
}

pub(super) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn in_group(caller: Caller, gid: u32) -> bool {
    caller.gid == gid || Status::of(caller.pid).is_some_and(|status| status.is_in(gid))
}
