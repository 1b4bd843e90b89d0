// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes rights from users before anything is written.
//!
//! The content of a file or a directory was written when its users had lost these rights.  Attributes
//! are set after the content, and a replay may stop before that, for want of space.  So nobody may
//! read then what he could never read through the mount, and nobody's content runs with rights that
//! the file had before.
//!
//! | what the log has | before anything is written |
//! |---|---|
//! | a mode | bits of group, others, set-user-ID and set-group-ID that it lacks are gone |
//! | an owner, a group | set |
//! | an access ACL that the tree lacks, or its removal | group and others have no bit: the group's bound the ACL that is there |
//! | a default ACL | nothing: it is for inodes that are made later |
//! | a capability that the tree lacks, or its removal | the tree's is gone |
//! | another security.* attribute that the tree lacks, or its removal | group and others have no bit |
//! | any other extended attribute | nothing |
//!
//! Nobody gains a right here.  The mode comes back with the attributes.  It is noted before, for it
//! may be that of the log no more: the change that took rights may turn out to be one that was
//! refused.

use super::super::history::File;
use super::super::later;
use super::super::plan::Step;
use super::super::planted::{planted, Bug};
use super::super::staging::note_modes;
use super::Run;
use crate::record::{Fid, Kind, SetAttr};
use crate::replay;
use crate::tree::{Result, Tree, ACCESS_ACL};

/// The rights of users who are not the owner.
pub(super) const OTHERS: u32 = 0o077;
/// Those that a mode of the log takes.
const TAKEN: u32 = later::SET_ID | OTHERS;

/// The rights that users of one inode lose.
struct Loss {
    fid: Fid,
    mode: Option<u32>,
    before: u32,
    owner: SetAttr,
    capability: bool,
}

impl Loss {
    /// `of_others`: the content may be another's, and then the tree's capability stays.
    fn of<T: Tree>(
        tree: &T,
        (fid, node): (Fid, &T::Node),
        file: &File<'_>,
        of_others: bool,
    ) -> Result<Loss> {
        let is = tree.attr(node)?;
        let (mut hidden, mut capability) = (false, false);
        for (name, logged) in file.xattrs.iter().filter(|(name, _)| takes_rights(name)) {
            let there = tree.xattr(node, name)?;
            if there.as_deref() == *logged {
                continue;
            }
            match *name == later::CAPABILITY {
                true => capability = there.is_some() && !(of_others && logged.is_some()),
                false => hidden = true,
            }
        }
        let last = file.with_acl(file.attr.mode.unwrap_or(is.mode));
        let most = if hidden { last & !OTHERS } else { last };
        let narrowed = is.mode & (most | !TAKEN);
        let mode = Some(narrowed).filter(|mode| *mode != is.mode && file.kind != Kind::Symlink);
        let new = |is: u32, logged: Option<u32>| logged.filter(|logged| *logged != is);
        let (uid, gid) = (new(is.uid, file.attr.uid), new(is.gid, file.attr.gid));
        let owner = SetAttr { uid, gid, ..SetAttr::default() };
        Ok(Loss { fid, mode, before: is.mode, owner, capability })
    }

    fn take<T: Tree>(&self, tree: &T, node: &T::Node) -> Result<()> {
        if let mode @ Some(_) = self.mode {
            tree.set_attr(node, &SetAttr { mode, ..SetAttr::default() })?;
        }
        if self.owner != SetAttr::default() {
            tree.set_attr(node, &self.owner)?;
        }
        match self.capability {
            true => tree.set_xattr(node, later::CAPABILITY, None),
            false => Ok(()),
        }
    }
}

/// Whether an extended attribute of this name bounds who may do what with the inode.
fn takes_rights(name: &[u8]) -> bool {
    name == ACCESS_ACL || name.starts_with(b"security.")
}

impl<T: Tree> Run<'_, '_, T> {
    /// A failure is that of the step that sets the same.
    pub(super) fn narrow(&mut self) -> replay::Result<()> {
        if planted(Bug::AttributesForgotten) {
            return Ok(());
        }
        let plan = self.plan;
        let attributes = plan.steps.iter().filter_map(|step| match *step {
            Step::Attributes(fid) => Some((fid, plan.nodes.get(&fid)?)),
            _ => None,
        });
        let of_others = |fid| plan.touched.contains(&fid) || plan.changed_fids.contains(&fid);
        let loss = |of: (Fid, &T::Node)| {
            Loss::of(self.tree, of, &plan.history.files[&of.0], of_others(of.0)).ok()
        };
        let all: Vec<Loss> = attributes.filter_map(loss).collect();
        let new = |loss: &Loss| loss.mode.map(|_| (loss.fid, loss.before));
        let mut new: Vec<(Fid, u32)> = all.iter().filter_map(new).collect();
        new.retain(|(fid, _)| !self.unlocked.contains_key(fid));
        if !new.is_empty() {
            note_modes(self.tree, self.entries, &new)?;
            self.unlocked.extend(new);
        }
        for loss in all {
            let _ = loss.take(self.tree, &plan.nodes[&loss.fid]);
        }
        Ok(())
    }
}
