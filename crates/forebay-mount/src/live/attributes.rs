// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes and extended attributes.

use std::sync::Arc;

use super::{asked_often, Inode, Journal, Live, When};
use crate::record::{Record, Records, SetAttr};
use crate::tree::{Attr, Result, Tree, ACCESS_ACL};

impl<T: Tree, J: Journal> Live<T, J> {
    pub fn attr(&self, inode: &Inode<T::Node>) -> Result<Attr> {
        self.tree.attr(&inode.node)
    }

    pub fn set_attr(&self, inode: &Arc<Inode<T::Node>>, set: &SetAttr) -> Result<()> {
        // Content is logged with the file's time.  It must not be that from before this change, in
        // an entry behind it.
        let _content = set.mtime.map(|_| inode.content());
        let record = Record::Attr { fid: inode.fid, set: *set };
        self.change(When::Appended, inode, &record, || self.tree.set_attr(&inode.node, set))
    }

    pub fn xattr(&self, inode: &Inode<T::Node>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(which) = asked_often(name) else { return self.tree.xattr(&inode.node, name) };
        // A reader does not wait for writers of the file, nor for their disk.
        let Ok(mut content) = inode.content.try_lock() else {
            return self.tree.xattr(&inode.node, name);
        };
        if content.lacks[which] {
            return Ok(None);
        }
        let value = self.tree.xattr(&inode.node, name)?;
        content.lacks[which] = value.is_none();
        Ok(value)
    }

    pub fn set_xattr(
        &self,
        inode: &Arc<Inode<T::Node>>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let _content = asked_often(name).map(|which| {
            let mut content = inode.content();
            content.lacks[which] = false;
            content
        });
        let record = Record::Xattr { fid: inode.fid, name, value };
        let set = || self.tree.set_xattr(&inode.node, name, value);
        self.change(When::Appended, inode, &record, set)
    }

    /// Sets an ACL for a caller who may not keep the set-group-ID bit: one entry clears the bit
    /// and sets the ACL.
    pub fn set_acl_without_set_group_id(
        &self,
        inode: &Arc<Inode<T::Node>>,
        mode: u32,
        acl: &[u8],
    ) -> Result<()> {
        let set = SetAttr { mode: Some(mode & !0o2000), ..SetAttr::default() };
        let mut body = Records::of(&Record::Attr { fid: inode.fid, set });
        body.push(&Record::Xattr { fid: inode.fid, name: ACCESS_ACL, value: Some(acl) });
        self.change_of(When::Appended, inode, &body, || {
            self.tree.set_attr(&inode.node, &set)?;
            let done = self.tree.set_xattr(&inode.node, ACCESS_ACL, Some(acl));
            if done.is_err() {
                // The entry is revoked.
                let before = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.tree.set_attr(&inode.node, &before)?;
            }
            done
        })
    }
}
