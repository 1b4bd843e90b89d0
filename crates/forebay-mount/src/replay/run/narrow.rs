// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes rights from users before anything is written.
//!
//! Attributes are set after the content, and a replay may stop before that, for want of space.  Until
//! then a file or a directory may have its old content or its new one.  So nobody may use it meanwhile
//! who could not use the old one before the crash **and** may use the new one in the end, and nobody's
//! content runs with rights that the file had before.
//!
//! | what the log has | before anything is written |
//! |---|---|
//! | a mode | bits of group, others, set-user-ID and set-group-ID that it lacks are gone |
//! | another owner | the inode is the replay's, and nobody else has a bit; neither owner has it |
//! | another group | group and others have no bit: a user of either group may be one of the others |
//! | an ACL that the tree lacks, or its removal | group and others have no bit: the group's bound the ACL that is there |
//! | a default ACL | nothing: it is for inodes that are made later |
//! | a capability that the tree lacks, or its removal | the tree's is gone |
//! | another security.* attribute that the tree lacks, or its removal | group and others have no bit |
//! | any other extended attribute | nothing |
//!
//! Nobody gains a right here.  All of it comes back with the attributes.  What there was is noted before,
//! durably, for it may be that of the log no more: the change that took rights may turn out to be one
//! that was refused, or another user's content stays with the rights that it had.
//!
//! If a right cannot be taken, for want of space or of a right of the replay, nothing is written, and the
//! replay ends as if it could not set the attributes.

use rustix::io::Errno;

use super::super::history::{File, OTHERS};
use super::super::later;
use super::super::plan::Step;
use super::super::planted::{planted, Bug};
use super::super::staging::{note_rights, Rights};
use super::super::{failed, ReplayError};
use super::{Failed, Run};
use crate::record::{Fid, Kind, SetAttr};
use crate::tree::{is_acl, New, Result, Tree, CAPABILITY};

/// The rights that a mode of the log takes.
const TAKEN: u32 = later::SET_ID | OTHERS;

/// The rights that users of one inode lose.
struct Loss {
    fid: Fid,
    mode: Option<u32>,
    /// The replay's own, where neither owner may have it.
    uid: Option<u32>,
    capability: bool,
    before: Rights,
}

impl Loss {
    /// `of_others`: the content may be another's, and then the tree's capability stays.
    fn of<T: Tree>(
        tree: &T,
        (fid, node): (Fid, &T::Node),
        file: &File<'_>,
        of_others: bool,
    ) -> Result<Option<Loss>> {
        let is = tree.attr(node)?;
        let (mut hidden, mut capability) = (false, false);
        for (name, logged) in file.xattrs.iter().filter(|(name, _)| takes_rights(name)) {
            // An attribute that cannot be read is not the log's.
            let there = tree.xattr(node, name);
            if there.as_ref().is_ok_and(|there| there.as_deref() == *logged) {
                continue;
            }
            match *name == CAPABILITY {
                true => {
                    capability =
                        there.is_ok_and(|there| there.is_some()) && !(of_others && logged.is_some())
                }
                false => hidden = true,
            }
        }
        let differs = |is: u32, logged: Option<u32>| logged.is_some_and(|logged| logged != is);
        let changes_hands = differs(is.uid, file.attr.uid);
        hidden |= changes_hands || differs(is.gid, file.attr.gid);
        let last = file.with_acl(file.attr.mode.unwrap_or(is.mode));
        let most = if hidden { last & !OTHERS } else { last };
        let most = if changes_hands { most & !later::SET_ID } else { most };
        let narrowed = is.mode & (most | !TAKEN);
        // Everybody may read a symlink.
        let has_mode = file.kind != Kind::Symlink;
        let own = match planted(Bug::OwnerAtOnce) {
            true => file.attr.uid.unwrap_or(is.uid),
            false => New::plain(is.kind, 0).uid,
        };
        let loss = Loss {
            fid,
            mode: Some(narrowed).filter(|mode| *mode != is.mode && has_mode),
            uid: Some(own).filter(|own| changes_hands && has_mode && *own != is.uid),
            capability,
            before: Rights::of(tree, node, &is),
        };
        let any = loss.mode.is_some() || loss.uid.is_some() || capability;
        // chown(2) takes these, and what they were decides in the end.
        let set_ids = of_others && is.mode & later::SET_ID != 0;
        let any = any || set_ids && file.attr.uid.or(file.attr.gid).is_some();
        Ok(Some(loss).filter(|_| any))
    }

    fn take<T: Tree>(&self, tree: &T, node: &T::Node) -> Result<()> {
        let none = SetAttr::default();
        if self.mode.is_some() {
            tree.set_attr(node, &SetAttr { mode: self.mode, ..none })?;
        }
        if self.uid.is_some() {
            tree.set_attr(node, &SetAttr { uid: self.uid, ..none })?;
        }
        match self.capability.then(|| tree.set_xattr(node, CAPABILITY, None)) {
            // The new owner has taken it away.
            None | Some(Err(Errno::NODATA)) => Ok(()),
            Some(done) => done,
        }
    }
}

/// Whether an extended attribute of this name bounds who may do what with the inode.
fn takes_rights(name: &[u8]) -> bool {
    is_acl(name) || name.starts_with(b"security.")
}

impl<'a, T: Tree> Run<'_, 'a, T> {
    /// A failure is that of the step that sets the same.
    pub(super) fn narrow(&mut self) -> std::result::Result<(), Failed<'a>> {
        if planted(Bug::AttributesForgotten) {
            return Ok(());
        }
        let plan = self.plan;
        let mut all = Vec::new();
        for step in &plan.steps {
            let Step::Attributes(fid) = *step else { continue };
            let Some(node) = plan.nodes.get(&fid) else { continue };
            let of_others = plan.touched.contains(&fid) || plan.changed_fids.contains(&fid);
            let loss = Loss::of(self.tree, (fid, node), self.file(fid), of_others);
            let Some(mut loss) = failed(loss, "look at", self.at(fid))? else { continue };
            if self.file(fid).handle.is_none() || plan.staging.gone.contains(&fid) {
                loss.before.handle = Some(failed(self.tree.handle(node), "look at", self.at(fid))?);
            }
            all.push(loss);
        }
        let new = all.iter().filter(|loss| !self.rights.contains_key(&loss.fid));
        let new: Vec<_> = new.map(|loss| (loss.fid, loss.before.clone())).collect();
        if !new.is_empty() {
            note_rights(self.tree, self.entries, &new)?;
            self.rights.extend(new);
        }
        let any = !all.is_empty();
        for loss in all {
            let step = Step::Attributes(loss.fid);
            let Err(cause) = loss.take(self.tree, &plan.nodes[&loss.fid]) else { continue };
            // Nothing is written to what is sealed.  The step says so.
            if self.is_sealed(&step, cause)? {
                continue;
            }
            let (path, seal) = (plan.history.path(loss.fid), cause == Errno::PERM);
            let error = ReplayError::Tree { path, what: "take rights of", cause, seal };
            return Err(Failed { step: Some(step), error });
        }
        // A file system may keep content and lose an earlier change of attributes.
        if any {
            failed(self.tree.sync_all(), "sync", || ".".into())?;
        }
        Ok(())
    }
}
