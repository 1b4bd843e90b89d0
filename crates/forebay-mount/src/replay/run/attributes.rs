// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes and extended attributes, and what a write changes of them.

use rustix::io::Errno;

use super::super::history::File;
use super::super::later;
use super::super::planted::{planted, Bug};
use super::super::staging::{note_kept, Kept};
use super::super::{failed, ReplayError, Result};
use super::Run;
use crate::record::{Fid, Kind, SetAttr};
use crate::replay::plan::Step;
use crate::tree::{Attr, Tree, ACCESS_ACL};

impl<T: Tree> Run<'_, '_, T> {
    /// Gives modes back that were changed for the replay.
    pub(super) fn lock_again(&mut self) -> Result<()> {
        for (fid, before) in self.unlocked.clone() {
            let Some(node) = self.nodes.get(&fid).cloned() else { continue };
            let logged = |f: &File<'_>| f.attr.mode.is_some() || f.xattrs.contains_key(ACCESS_ACL);
            if self.plan.history.files.get(&fid).is_some_and(logged) {
                self.step_or_dispute(&Step::Attributes(fid))?;
                continue;
            }
            // Even the same mode is refused for what is sealed.
            if failed(self.tree.attr(&node), "look at", self.at(fid))?.mode != before {
                let set = SetAttr { mode: Some(before), ..SetAttr::default() };
                failed(self.tree.set_attr(&node, &set), "set attributes of", self.at(fid))?;
            }
        }
        Ok(())
    }

    /// Notes the attributes that the tree has of files whose content is written, and that count in
    /// the end.
    pub(super) fn keep(&mut self) -> Result<()> {
        let mut new = Vec::new();
        let written = self.plan.steps.iter().filter_map(|step| match *step {
            Step::Content(fid) if self.plan.ahead => Some(fid),
            _ => None,
        });
        for fid in written.chain(self.plan.times.keys().copied()) {
            if self.kept.contains_key(&fid) {
                continue;
            }
            let node = self.node(fid);
            let attr = failed(self.tree.attr(node), "look at", self.at(fid))?;
            let capability = self.tree.xattr(node, later::CAPABILITY).ok().flatten();
            let Attr { mode, atime, mtime, .. } = attr;
            let mode = self.unlocked.get(&fid).copied().unwrap_or(mode);
            new.push((fid, Kept { mode, atime, mtime, capability }));
        }
        if !new.is_empty() {
            note_kept(self.tree, self.entries, &new)?;
            self.kept.extend(new);
        }
        Ok(())
    }

    /// The attributes that the tree has stay, whatever a write changes of them.
    pub(super) fn content_alone(&self, fid: Fid) -> Result<()> {
        let (tree, node, kept) = (self.tree, self.node(fid), &self.kept[&fid]);
        let changed = self.content(fid);
        let restored = || {
            if tree.attr(node)?.mode != kept.mode {
                let mode = Some(kept.mode);
                tree.set_attr(node, &SetAttr { mode, ..SetAttr::default() })?;
            }
            let (atime, mtime) = (Some(kept.atime), Some(kept.mtime));
            tree.set_attr(node, &SetAttr { atime, mtime, ..SetAttr::default() })?;
            match &kept.capability {
                Some(value) => tree.set_xattr(node, later::CAPABILITY, Some(value)),
                None => Ok(()),
            }
        };
        let restored = failed(restored(), "set attributes of", self.at(fid));
        changed.and(restored)
    }

    pub(super) fn attributes(&self, fid: Fid) -> Result<()> {
        if planted(Bug::AttributesForgotten) {
            return Ok(());
        }
        let (file, node) = (self.file(fid), self.node(fid));
        let set = |set: SetAttr| match set == SetAttr::default() {
            true => Ok(()),
            false => failed(self.tree.set_attr(node, &set), "set attributes of", self.at(fid)),
        };
        let a = file.attr;
        let stays = self.unwritten.contains(&fid) || self.plan.changed_fids.contains(&fid);
        let stays = stays && !planted(Bug::TimesOfOtherContent);
        let content_of_others = stays || self.plan.touched.contains(&fid);
        let mut mode = a.mode.filter(|_| file.kind != Kind::Symlink);
        if let (true, Some(logged)) = (content_of_others, mode) {
            let is = failed(self.tree.attr(node), "look at", self.at(fid))?;
            mode = Some(later::rights_kept(file, &is, logged));
        }
        set(SetAttr { uid: a.uid, gid: a.gid, ..SetAttr::default() })?;
        let set_xattr =
            |(name, value): (&&[u8], &Option<&[u8]>)| match self.tree.set_xattr(node, name, *value)
            {
                Err(Errno::NODATA) if value.is_none() => Ok(()),
                done => failed(done, "set an extended attribute of", self.at(fid)),
            };
        // Of the attributes only the ACL and the mode change each other, and the mode may
        // forbid the others.
        let (acl, others): (Vec<_>, Vec<_>) = file
            .xattrs
            .iter()
            .filter(|(name, value)| {
                !(content_of_others && **name == later::CAPABILITY && value.is_some())
            })
            .partition(|(name, _)| **name == ACCESS_ACL);
        others.into_iter().try_for_each(set_xattr)?;
        let mode = mode.or(self.unlocked.get(&fid).copied());
        if file.acl_last {
            set(SetAttr { mode, ..SetAttr::default() })?;
        }
        acl.into_iter().try_for_each(set_xattr)?;
        if !file.acl_last {
            set(SetAttr { mode, ..SetAttr::default() })?;
        } else if file.xattrs.get(ACCESS_ACL) == Some(&None) {
            // The bits that an ACL has left stay when it is removed.
            let is = failed(self.tree.attr(node), "look at", self.at(fid))?.mode;
            let mode = Some(file.with_acl(mode.unwrap_or(is)));
            set(SetAttr { mode, ..SetAttr::default() })?;
        }
        if stays {
            return Ok(());
        }
        let mtime = self.plan.times.get(&fid).copied().or(a.mtime);
        let times = SetAttr { atime: a.atime, mtime, ..SetAttr::default() };
        match set(times) {
            // A user who may write to the directory but does not own it changes its time only
            // by a change of its names.
            Err(ReplayError::Tree { cause: Errno::PERM, .. }) if file.mtime_of_content => {
                set(SetAttr { mtime: None, ..times })
            }
            done => done,
        }
    }
}
