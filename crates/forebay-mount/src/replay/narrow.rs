// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes rights from users before anything is written.
//!
//! The content of a file or a directory was written when its users had lost these rights.  Attributes
//! are set after the content, and a replay may stop before that, for want of space.  So nobody may
//! read then what he could never read through the mount.

use super::history::File;
use super::plan::{Plan, Step};
use super::planted::{planted, Bug};
use crate::record::{Kind, SetAttr};
use crate::tree::{Attr, Result, Tree, ACCESS_ACL};

/// The rights of users who are not the owner.
const OTHERS: u32 = 0o077;

/// Nobody gains a right by the mode here; the owner and the group are the last ones.
pub(super) fn narrow<T: Tree>(tree: &T, plan: &Plan<'_, T::Node>) {
    if planted(Bug::AttributesForgotten) {
        return;
    }
    for step in &plan.steps {
        let Step::Attributes(fid) = *step else { continue };
        let Some(node) = plan.nodes.get(&fid) else { continue };
        // A failure is that of the step, which sets the same.
        let is = tree.attr(node);
        let _ = is.and_then(|is| narrow_one(tree, node, &plan.history.files[&fid], &is));
    }
}

fn narrow_one<T: Tree>(tree: &T, node: &T::Node, file: &File<'_>, is: &Attr) -> Result<()> {
    let set = |set: SetAttr| match set == SetAttr::default() {
        true => Ok(()),
        false => tree.set_attr(node, &set),
    };
    let logged = file.attr;
    if let Some(mode) = logged.mode.filter(|_| file.kind != Kind::Symlink) {
        // The bits of the group bound what an ACL gives to others.
        let has_acl = file.xattrs.contains_key(ACCESS_ACL);
        let most = if has_acl { 0 } else { mode & OTHERS };
        let narrowed = is.mode & (most | !OTHERS);
        let mode = Some(narrowed).filter(|mode| *mode != is.mode);
        set(SetAttr { mode, ..SetAttr::default() })?;
    }
    let new = |is: u32, logged: Option<u32>| logged.filter(|logged| *logged != is);
    let (uid, gid) = (new(is.uid, logged.uid), new(is.gid, logged.gid));
    set(SetAttr { uid, gid, ..SetAttr::default() })
}
