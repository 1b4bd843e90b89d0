// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes by other programs after the crash.
//!
//! 1. Content counts as changed if its modification time is later than the log's last entry, or
//!    if the log does not explain the size.  It stays, and the log's content goes to the
//!    directory of found files.
//! 2. The inode's change time says nothing about the content: a rename, a link and a change of
//!    the owner move it, and any user who may write to the directory can rename.  The log's
//!    content is written.
//! 3. Logged attributes are set in either case, so no one can undo an acknowledged change of a
//!    mode.  They may replace a later change by another program, so the report names it.
//! 4. Where a file was written after the log's time of modification and before its last entry, the
//!    write was not synced, and its time stays: the content may be newer than the log's.  If the clock
//!    was set back, only a time that is later than all that it had told before shows such a write: a
//!    time that a program has set is never lost to an older write.
//! 5. A file that another user may have written to never gains rights of its owner by that
//!    ([`rights_kept`]).

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Change, File};
use super::plan::Plan;
use super::planted::{planted, Bug};
use super::{failed, printable, Result};
use crate::record::{Allocate, Kind, Time};
use crate::tree::{Attr, Tree, ACCESS_ACL, CAPABILITY};

/// A change that is later than the last entry by more than this is not the mount's.
const SLACK_NS: i128 = 5_000_000_000;

/// A program with them runs with rights of its owner.
pub const SET_ID: u32 = 0o6000;

fn ns(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

/// Once a replay has begun, times prove nothing any more: then its list decides.
pub fn find<T: Tree>(tree: &T, plan: &mut Plan<'_, T::Node>) -> Result<()> {
    let last = i128::from(plan.history.last_time_ns) + SLACK_NS;
    let (mut changed, mut touched) = (BTreeSet::new(), BTreeSet::new());
    let (mut times, mut lines) = (BTreeMap::new(), Vec::new());
    for (fid, node) in &plan.nodes {
        let file = &plan.history.files[fid];
        if !file.is_changed() {
            continue;
        }
        let path = || plan.history.path(*fid);
        let attr = failed(tree.attr(node), "look at", path)?;
        let (was_touched, was_changed) = match plan.staging.resumed {
            true => {
                let was_changed = plan.staging.changed.contains(fid);
                (was_changed || plan.staging.touched.contains(fid), was_changed)
            }
            false => {
                let later = ns(attr.ctime) > last;
                (later, later && has_other_content(file, &attr, last))
            }
        };
        let time = match plan.staging.resumed {
            // Since then the replay may have written.
            true => plan.staging.kept.get(fid).filter(|_| !plan.ahead).map(|kept| kept.mtime),
            false => unlogged_time(file, &attr, last),
        };
        if let (Some(time), false) = (time, was_changed) {
            times.insert(*fid, time);
        }
        if was_touched {
            touched.insert(*fid);
            let was = plan.staging.rights.get(fid).map_or(attr, |rights| rights.before(attr));
            lines.extend(replaced(tree, node, file, &was, &path()));
            // An interrupted replay may have set them.
            if !was_changed && !plan.staging.resumed {
                lines.extend(replaced_times(file, &attr, time, &path()));
            }
        }
        let loses = !file.content.is_empty() || file.attr.mtime.or(file.attr.atime).is_some();
        if was_changed && loses && file.kind == Kind::File {
            changed.insert(*fid);
        }
    }
    plan.changed = changed.iter().map(|fid| plan.history.path(*fid)).collect();
    plan.changed.sort();
    lines.sort();
    (plan.attributes, plan.changed_fids, plan.touched) = (lines, changed, touched);
    plan.times = times;
    Ok(())
}

/// Whether a file whose inode was changed after the crash has other content.
fn has_other_content(file: &File<'_>, attr: &Attr, last: i128) -> bool {
    if planted(Bug::InodeTimeIsContent) {
        return !file.was_cut_to(attr.size);
    }
    let later = ns(attr.mtime) > last && file.attr.mtime != Some(attr.mtime);
    // If a crash interrupts a truncation, ext4 completes it at the next mount and sets the
    // file's time then.
    (later && !file.was_cut_to(attr.size)) || !explains_size(file, attr.size)
}

/// The time of a write that came after the log's time of modification, by the clock of the mount,
/// and that no entry has.
fn unlogged_time(file: &File<'_>, is: &Attr, last: i128) -> Option<Time> {
    let logged = file.attr.mtime.is_some() && file.kind == Kind::File;
    let within = ns(file.timed) + 1..=last;
    Some(is.mtime).filter(|time| logged && within.contains(&ns(*time)))
}

/// The disk may have any size between the smallest and the largest that the file had since the
/// tree's last sync.
fn explains_size(file: &File<'_>, size: u64) -> bool {
    let new = file.made.is_some() && !file.synced;
    let (mut least, mut most) = (0, if new { 0 } else { u64::MAX });
    let mut known = new;
    for change in &file.content {
        let (from, to) = match *change {
            Change::Allocate { mode: Allocate::Extend | Allocate::Zero, offset, length } => {
                (u64::MAX, offset.saturating_add(length))
            }
            Change::Allocate { .. } => continue,
            // The file had this size before, unless the write extended it.
            Change::Write { offset, bytes, size } => {
                let within = offset.saturating_add(bytes.len() as u64) < size;
                if !known {
                    (least, most) = (if within { size } else { 0 }, size);
                }
                (size, size)
            }
            Change::Truncate { size } => (size, size),
        };
        known = true;
        (least, most) = (least.min(from), most.max(to));
    }
    (least..=most).contains(&size)
}

/// The attributes that the log replaces, in words.
fn replaced<T: Tree>(
    tree: &T,
    node: &T::Node,
    file: &File<'_>,
    is: &Attr,
    path: &str,
) -> Vec<String> {
    let mut lines = Vec::new();
    let mut replace = |what: &str, is: String, logged: String| {
        if is != logged {
            let why = "it may have been changed after the crash";
            lines.push(format!("{path}: {what} {is} is replaced by the log's {logged}: {why}"));
        }
    };
    let mut number = |what, is: u32, logged: Option<u32>| {
        replace(what, is.to_string(), logged.unwrap_or(is).to_string());
    };
    number("user", is.uid, file.attr.uid);
    number("group", is.gid, file.attr.gid);
    // The mode and the ACL change each other: the later one determines both.
    let acl_last = file.has_acl() && file.acl_last;
    let mode = file.attr.mode.filter(|_| file.kind != Kind::Symlink && !acl_last);
    if let Some(mode) = mode {
        let mode = rights_kept(file, is, mode);
        replace("mode", format!("{:o}", is.mode), format!("{mode:o}"));
    }
    for (name, logged) in &file.xattrs {
        let same = *name == ACCESS_ACL && mode == Some(is.mode);
        if same || (*name == CAPABILITY && logged.is_some()) {
            continue;
        }
        let now = tree.xattr(node, name).ok().flatten();
        let shown = |value: Option<&[u8]>| value.map_or("(none)".into(), printable);
        replace(&printable(name), shown(now.as_deref()), shown(*logged));
    }
    lines.extend(rights_lost(file, is, path));
    lines
}

/// The times that the log replaces, in words.
fn replaced_times(file: &File<'_>, is: &Attr, kept: Option<Time>, path: &str) -> Vec<String> {
    let shown = |time: Time| format!("{}.{:09}", time.seconds, time.nanoseconds);
    let times = [
        ("time of modification", is.mtime, kept.or(file.attr.mtime)),
        ("time of access", is.atime, file.attr.atime),
    ];
    let replaced = times.into_iter().filter_map(|(what, is, logged)| {
        let (is, logged) = (shown(is), shown(logged.filter(|logged| *logged != is)?));
        let why = "it may have been changed after the crash";
        Some(format!("{path}: {what} {is} is replaced by the log's {logged}: {why}"))
    });
    replaced.collect()
}

/// The logged rights of an owner that are withheld from the file, in words.
pub fn rights_lost(file: &File<'_>, is: &Attr, path: &str) -> Vec<String> {
    let why = "is not set: its content may be another's";
    let without = file.attr.mode.map_or(0, |mode| mode & !rights_kept(file, is, mode));
    let mode = (without != 0).then(|| format!("{path}: {without:o} of the log's mode {why}"));
    let capability = file.xattrs.get(CAPABILITY).is_some_and(Option::is_some);
    let capability = capability.then(|| format!("{path}: security.capability of the log {why}"));
    mode.into_iter().chain(capability).collect()
}

/// The logged mode as it is set on a file that another user may have written to: the file may
/// run with its owner's rights only if it did before.  `is`: as it was before any replay.
pub fn rights_kept(file: &File<'_>, is: &Attr, mode: u32) -> u32 {
    if file.kind != Kind::File {
        return mode;
    }
    let same = file.attr.uid.is_none_or(|uid| uid == is.uid)
        && file.attr.gid.is_none_or(|gid| gid == is.gid);
    mode & !(SET_ID & !(if same { is.mode } else { 0 }))
}
