// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes and extended attributes, and what a write changes of them.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::super::history::File;
use super::super::later;
use super::super::plan::{Plan, Step};
use super::super::planted::{planted, Bug};
use super::super::staging::Kept;
use super::super::{failed, ReplayError, Result};
use super::Run;
use crate::record::{Fid, Kind, SetAttr};
use crate::tree::{is_acl, Attr, Tree, ACCESS_ACL, CAPABILITY};

/// The attributes that the tree has, or had before an earlier replay, of files whose content is
/// written, and that count in the end.
pub(super) fn kept<T: Tree>(tree: &T, plan: &Plan<'_, T::Node>) -> Result<BTreeMap<Fid, Kept>> {
    let mut all = plan.staging.kept.clone();
    let written = plan.steps.iter().filter_map(|step| match *step {
        Step::Content(fid) if plan.ahead => Some(fid),
        _ => None,
    });
    for fid in written.chain(plan.times.keys().copied()) {
        if all.contains_key(&fid) {
            continue;
        }
        let node = &plan.nodes[&fid];
        let is = failed(tree.attr(node), "look at", || plan.history.path(fid))?;
        let is = plan.staging.rights.get(&fid).map_or(is, |rights| rights.before(is));
        let capability = tree.xattr(node, CAPABILITY).ok().flatten();
        let Attr { mode, atime, mtime, .. } = is;
        all.insert(fid, Kept { mode, atime, mtime, capability });
    }
    Ok(all)
}

/// As chown(2) leaves the mode of a file.
fn without_set_ids(mode: u32) -> u32 {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

impl<T: Tree> Run<'_, '_, T> {
    /// The attributes that an inode had before any replay changed who may use it.
    pub(super) fn was(&self, fid: Fid) -> Result<Attr> {
        let is = failed(self.tree.attr(self.node(fid)), "look at", self.at(fid))?;
        Ok(self.rights.get(&fid).map_or(is, |rights| rights.before(is)))
    }

    /// The owner to be set: that of the log, or the one that there was.
    fn owner(&self, fid: Fid) -> Result<SetAttr> {
        let (logged, was) = (self.file(fid).attr, self.was(fid)?);
        let is = failed(self.tree.attr(self.node(fid)), "look at", self.at(fid))?;
        let uid = logged.uid.or(Some(was.uid).filter(|uid| *uid != is.uid));
        let gid = logged.gid.or(Some(was.gid).filter(|gid| *gid != is.gid));
        Ok(SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// The mode that there was, as the log's new owner has left it.
    fn mode_before(&self, fid: Fid) -> Option<u32> {
        let file = self.file(fid);
        let mode = self.rights.get(&fid)?.mode;
        let is_new = file.attr.uid.is_some() || file.attr.gid.is_some();
        Some(if is_new && file.kind == Kind::File { without_set_ids(mode) } else { mode })
    }

    /// The tree's content stays, and with it its times.
    fn content_stays(&self, fid: Fid) -> bool {
        let stays = self.unwritten.contains(&fid) || self.plan.changed_fids.contains(&fid);
        stays && !planted(Bug::TimesOfOtherContent)
    }

    fn content_of_others(&self, fid: Fid) -> bool {
        self.content_stays(fid) || self.plan.touched.contains(&fid)
    }

    /// The capability that there was, if the log's is not set and nothing has ended it: a write and a
    /// new owner do.
    fn capability_before(&self, fid: Fid) -> Option<&[u8]> {
        let file = self.file(fid);
        let ended = !file.content.is_empty() && !self.content_stays(fid)
            || file.attr.uid.is_some()
            || file.attr.gid.is_some()
            || match file.xattrs.get(CAPABILITY) {
                Some(logged) => logged.is_none() || !self.content_of_others(fid),
                None => false,
            };
        self.rights.get(&fid).and_then(|rights| rights.capability.as_deref()).filter(|_| !ended)
    }

    fn restore_capability(&self, fid: Fid) -> Result<()> {
        let (node, before) = (self.node(fid), self.capability_before(fid));
        let is_there = || self.tree.xattr(node, CAPABILITY).is_ok_and(|is| is.as_deref() == before);
        if before.is_none() || is_there() {
            return Ok(());
        }
        let done = self.tree.set_xattr(node, CAPABILITY, before);
        failed(done, "set an extended attribute of", self.at(fid))
    }

    /// Gives back what was changed for the replay.
    pub(super) fn lock_again(&mut self) -> Result<()> {
        for fid in self.rights.keys().copied().collect::<Vec<_>>() {
            if !self.nodes.contains_key(&fid) {
                continue;
            }
            let logged = |f: &File<'_>| f.attr.mode.is_some() || f.has_acl();
            if self.plan.history.files.get(&fid).is_some_and(logged) {
                self.step_or_dispute(&Step::Attributes(fid))?;
                continue;
            }
            let node = self.node(fid);
            let set =
                |set| failed(self.tree.set_attr(node, &set), "set attributes of", self.at(fid));
            let (owner, logged) = (self.owner(fid)?, self.file(fid).attr);
            let uid = owner.uid.filter(|_| logged.uid.is_none());
            let gid = owner.gid.filter(|_| logged.gid.is_none());
            // Even the same mode is refused for what is sealed.
            if uid.or(gid).is_some() {
                set(SetAttr { uid, gid, ..SetAttr::default() })?;
            }
            let mode = self.mode_before(fid);
            let is = failed(self.tree.attr(node), "look at", self.at(fid))?.mode;
            if mode != Some(is) && self.file(fid).kind != Kind::Symlink {
                set(SetAttr { mode, ..SetAttr::default() })?;
            }
            self.restore_capability(fid)?;
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
                Some(value) => tree.set_xattr(node, CAPABILITY, Some(value)),
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
        let content_of_others = self.content_of_others(fid);
        let mut mode = a.mode.filter(|_| file.kind != Kind::Symlink);
        if let (true, Some(logged)) = (content_of_others, mode) {
            mode = Some(later::rights_kept(file, &self.was(fid)?, logged));
        }
        set(self.owner(fid)?)?;
        let set_xattr =
            |(name, value): (&&[u8], &Option<&[u8]>)| match self.tree.set_xattr(node, name, *value)
            {
                Err(Errno::NODATA) if value.is_none() => Ok(()),
                done => failed(done, "set an extended attribute of", self.at(fid)),
            };
        // Only the ACL and the mode change each other among the attributes, and the mode may
        // forbid the others.
        let (acl, others): (Vec<_>, Vec<_>) = file
            .xattrs
            .iter()
            .filter(|(name, value)| !(content_of_others && **name == CAPABILITY && value.is_some()))
            .partition(|(name, _)| is_acl(name));
        others.into_iter().try_for_each(set_xattr)?;
        self.restore_capability(fid)?;
        let before = self.mode_before(fid).filter(|_| file.kind != Kind::Symlink);
        let mode = mode.or(before);
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
        if self.content_stays(fid) {
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
