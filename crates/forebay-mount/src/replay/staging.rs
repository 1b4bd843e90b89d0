// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory in the tree's root by way of which things are moved.
//!
//! ```text
//! .forebay-replay/gone   the log it is of, the fids whose inodes the tree lacks, those that
//!                        something else has changed or only touched, what files had before their
//!                        content was written, and a dot; then the numbers of entries that are left
//!                        out, what inodes had before they were made writable or lost rights, and
//!                        where the report is
//! .forebay-replay/N      the inode of fid N, on its way
//! ```
//!
//! A list without its dot was not durable: nothing had been changed, and it is made anew.  What is after
//! the dot is added line by line, each before the change that it is about.
//!
//! Anyone who may write to the root can make a directory of that name, or move a staging
//! directory there.  So a directory is used only if it belongs to this user, gives nobody else
//! rights, and holds only what a replay puts there.  A sealed one (chattr +i) is used only if it
//! is of the same replay.  A seal need not show: such a directory refuses a new list.  All other
//! directories stay as they are, and the replay uses `.forebay-replay.1` and so on.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rustix::io::Errno;

use super::planted::{planted, Bug};
use super::{failed, printable, ReplayError, Result, STAGING};
use crate::mark;
use crate::record::{Entry, Fid, Kind, Time};
use crate::tree::{Attr, Handle, New, Tree, CAPABILITY};

const LIST: &[u8] = b"gone";
/// The beginning of every list, whatever its log.
const BEGINNING: &str = "forebay replay ";

/// Attributes of a file that a write changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub mode: u32,
    pub atime: Time,
    pub mtime: Time,
    pub capability: Option<Vec<u8>>,
}

/// The rights of an inode before a replay changed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    pub mode: u32,
    /// User and group.  `None`: an older Forebay noted it, which changed no owner for the time being.
    pub owner: Option<(u32, u32)>,
    pub capability: Option<Vec<u8>>,
    /// The handle of an inode that was found by its name, or made.  Its rights are evidence of
    /// which it is.
    pub handle: Option<Handle>,
}

impl Rights {
    pub fn of<T: Tree>(tree: &T, node: &T::Node, is: &Attr) -> Rights {
        let capability = match is.kind {
            Kind::File => tree.xattr(node, CAPABILITY).ok().flatten(),
            _ => None,
        };
        Rights { mode: is.mode, owner: Some((is.uid, is.gid)), capability, handle: None }
    }

    /// The attributes as they were.
    pub fn before(&self, is: Attr) -> Attr {
        let (uid, gid) = self.owner.unwrap_or((is.uid, is.gid));
        Attr { mode: self.mode, uid, gid, ..is }
    }
}

/// The content of a list before its dot.
pub struct First<'a> {
    /// Fids whose inodes the tree lacks.
    pub gone: Vec<Fid>,
    pub changed: &'a BTreeSet<Fid>,
    pub touched: &'a BTreeSet<Fid>,
    pub kept: &'a BTreeMap<Fid, Kept>,
}

/// The state that an earlier replay of this log left.
#[derive(Debug)]
pub struct Staging<N> {
    /// The directory and its name.
    pub node: Option<N>,
    name: Vec<u8>,
    /// Inodes with such names that are not used, in words.
    pub others: Vec<String>,
    /// The list was durable, so the tree may have been changed since.
    pub resumed: bool,
    /// Fids whose inodes the tree lacked at the beginning.
    pub gone: HashSet<Fid>,
    /// Entries that it left out.
    pub left_out: Vec<u64>,
    /// Files whose content another program had changed before the beginning.
    pub changed: BTreeSet<Fid>,
    /// Files whose inodes another program had changed before.
    pub touched: BTreeSet<Fid>,
    /// The earlier rights of inodes that it made writable or took rights of.
    pub rights: BTreeMap<Fid, Rights>,
    /// Attributes of files before their content was written, where they count in the end.
    pub kept: BTreeMap<Fid, Kept>,
    /// The path of the report of found files.
    pub report: Option<String>,
    /// The size of the valid part of the list.
    list_bytes: u64,
    /// The inodes in the directory.
    pub entries: Vec<(Fid, N)>,
    /// The identities of the directory and of the list.
    pub own: Vec<Handle>,
}

/// The first name, or the one with this number.
fn numbered(number: u64) -> Vec<u8> {
    match number {
        0 => STAGING.to_vec(),
        _ => [STAGING, format!(".{number}").as_bytes()].concat(),
    }
}

/// Whether a name in the root is one of a staging directory; programs cannot use such names.
pub fn is_staging(name: &[u8]) -> bool {
    match name.strip_prefix(STAGING) {
        Some(b"") => true,
        Some(rest) => rest.strip_prefix(b".").and_then(fid_of).is_some_and(|number| number > 0),
        None => false,
    }
}

/// The key of a log: equal for each replay of the same entries.
fn key(entries: &[Vec<u8>]) -> String {
    let of = |body: Option<&Vec<u8>>| {
        body.and_then(|b| Entry::parse(b).ok()).map_or((0, 0), |e| (e.number, e.time_ns))
    };
    let ((a, b), (c, d)) = (of(entries.first()), of(entries.last()));
    format!("{BEGINNING}{a} {b} {c} {d} {}\n", entries.len())
}

fn fid_of(name: &[u8]) -> Option<Fid> {
    let name = std::str::from_utf8(name).ok()?;
    name.parse().ok().filter(|fid: &Fid| fid.to_string() == name)
}

pub fn name_of(fid: Fid) -> Vec<u8> {
    fid.to_string().into_bytes()
}

/// An inode with the name of a staging directory.
enum Candidate<N> {
    Ours {
        node: N,
        /// The list, with its identity.
        list: Option<(Vec<u8>, Handle)>,
        inner: Vec<(Fid, N)>,
    },
    /// It does not belong to a replay of this user.
    Other,
    /// It forbids a replay next to it, for this reason.
    Refused(String),
}

/// Whether it is private to this user.
fn is_private(attr: &Attr, kind: Kind) -> bool {
    let links = kind == Kind::Directory || attr.nlink == 1;
    let ours = New::plain(kind, 0).uid;
    attr.kind == kind && attr.uid == ours && attr.mode & 0o077 == 0 && links
}

/// `name` is in the tree's root; `key` is that of the log to be replayed, if there is one.
fn look<T: Tree>(tree: &T, name: &[u8], key: Option<&str>) -> Result<Option<Candidate<T::Node>>> {
    let shown = || printable(name);
    let Some(node) = failed(tree.lookup(&tree.root(), name), "look", shown)? else {
        return Ok(None);
    };
    let attr = failed(tree.attr(&node), "look", shown)?;
    if attr.kind != Kind::Directory {
        return Ok(Some(Candidate::Other));
    }
    if !is_private(&attr, Kind::Directory) && !planted(Bug::StagingOfAnybody) {
        return key.map_or(Ok(Candidate::Other), |key| others(tree, &node, &attr, key)).map(Some);
    }
    let (mut list, mut inner) = (None, Vec::new());
    for name in failed(tree.names(&node), "list", shown)? {
        let Some(found) = failed(tree.lookup(&node, &name), "look", shown)? else { continue };
        match fid_of(&name) {
            _ if name == LIST => {
                let attr = failed(tree.attr(&found), "look", shown)?;
                if !is_private(&attr, Kind::File) {
                    return Ok(Some(Candidate::Other));
                }
                let handle = failed(tree.handle(&found), "look", shown)?;
                // As many fids as a log can name.
                list = Some((read(tree, &found, attr.size.min(1 << 30))?, handle));
            }
            Some(fid) => inner.push((fid, found)),
            None => return Ok(Some(Candidate::Other)),
        }
    }
    let of_a_replay = list.as_ref().is_some_and(|(l, _)| l.starts_with(BEGINNING.as_bytes()));
    let begun = |(l, _): &(Vec<u8>, _)| key.is_some_and(|key| l.starts_with(key.as_bytes()));
    let of_this = !inner.is_empty() || list.as_ref().is_some_and(begun);
    let sealed = failed(tree.seals(&node), "look", shown)?.keeps_names();
    if (sealed && !of_this) || (!inner.is_empty() && !of_a_replay) {
        return Ok(Some(Candidate::Other));
    }
    Ok(Some(Candidate::Ours { node, list, inner }))
}

/// Only a user who could read the log can have written its key.
fn others<T: Tree>(tree: &T, node: &T::Node, attr: &Attr, key: &str) -> Result<Candidate<T::Node>> {
    let list = tree.lookup(node, LIST).and_then(|found| {
        let file = found.filter(|list| tree.attr(list).is_ok_and(|a| a.kind == Kind::File));
        file.map(|list| {
            let mut bytes = vec![0; key.len()];
            tree.read(&list, 0, &mut bytes).map(|n| n == key.len() && bytes == key.as_bytes())
        })
        .transpose()
    });
    let uid = attr.uid;
    Ok(match list {
        Ok(Some(true)) => Candidate::Refused(format!(
            "user {uid} has begun a replay of this log: go on with it as that user"
        )),
        // No other user can make a directory of root's.
        Err(Errno::ACCESS) if uid == 0 => Candidate::Refused(
            "it is root's, and may be of a replay of this log: replay as root".into(),
        ),
        _ => Candidate::Other,
    })
}

impl<N: Clone> Staging<N> {
    pub fn find<T: Tree<Node = N>>(tree: &T, entries: &[Vec<u8>]) -> Result<Staging<N>> {
        let mut staging = Staging {
            node: None,
            name: Vec::new(),
            others: Vec::new(),
            resumed: false,
            gone: HashSet::new(),
            left_out: Vec::new(),
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            rights: BTreeMap::new(),
            kept: BTreeMap::new(),
            report: None,
            list_bytes: 0,
            entries: Vec::new(),
            own: Vec::new(),
        };
        let key = key(entries);
        for name in names(tree)? {
            let shown = || printable(&name);
            let refused = |what| Err(ReplayError::Staging { path: printable(&name), what });
            let (node, list, inner) = match look(tree, &name, Some(&key))? {
                None => continue,
                Some(Candidate::Refused(what)) => return refused(what),
                Some(Candidate::Other) => {
                    staging.others.push(printable(&name));
                    continue;
                }
                Some(Candidate::Ours { node, list, inner }) => (node, list, inner),
            };
            let good = list.as_ref().and_then(|(list, _)| parse(list, &key));
            if good.is_none() && !inner.is_empty() {
                let what = "it is of the replay of another log, and not empty";
                return refused(what.into());
            }
            if good.is_none() && staging.node.is_some() {
                continue;
            }
            staging.own = vec![failed(tree.handle(&node), "look", shown)?];
            staging.own.extend(list.map(|(_, handle)| handle));
            (staging.node, staging.name) = (Some(node), name);
            let Some(list) = good else { continue };
            staging.resumed = true;
            staging.list_bytes = list.bytes;
            if !planted(Bug::GoneForgotten) {
                staging.gone = list.gone;
            }
            if !planted(Bug::LeftOutForgotten) {
                staging.left_out = list.left_out;
            }
            staging.rights = list.rights;
            staging.kept = list.kept;
            staging.changed = list.changed;
            staging.touched = list.touched;
            staging.report = list.report;
            if !planted(Bug::StagingForgotten) {
                staging.entries = inner;
            }
            break;
        }
        Ok(staging)
    }

    /// Makes the directory and its list, durably, if they do not exist.  Whatever the end needs to
    /// know of the tree is in the list at once: a replay that is cut has either all of it, or has
    /// changed nothing.
    pub fn begin<T: Tree<Node = N>>(
        &mut self,
        tree: &T,
        first: &First<'_>,
        entries: &[Vec<u8>],
    ) -> Result<N> {
        if let (Some(node), true) = (&self.node, self.resumed) {
            let new: String =
                kept_lines(first.kept.iter().filter(|(fid, _)| !self.kept.contains_key(fid)));
            if !new.is_empty() {
                add(tree, entries, &new)?;
            }
            return Ok(node.clone());
        }
        let before = match self.node.take() {
            Some(node) => self.new_list(tree, &node)?.map(|list| (node, list)),
            None => None,
        };
        let (node, list) = match before {
            Some(found) => found,
            None => {
                let node = self.make(tree)?;
                let list = self.new_list(tree, &node)?;
                let list = list.ok_or(Errno::PERM);
                let list = failed(list, "make", || printable(&self.name))?;
                (node, list)
            }
        };
        let shown = || printable(&self.name);
        let mut text = key(entries);
        first.gone.iter().for_each(|fid| text += &format!("{fid}\n"));
        first.changed.iter().for_each(|fid| text += &format!("changed {fid}\n"));
        first.touched.iter().for_each(|fid| text += &format!("touched {fid}\n"));
        let kept = kept_lines(first.kept.iter());
        let late = planted(Bug::KeptTooLate) && !kept.is_empty();
        text += if late { "" } else { &kept };
        text += ".\n";
        failed(tree.write(&list, 0, text.as_bytes()), "write", shown)?;
        failed(tree.sync_all(), "sync", shown)?;
        self.node = Some(node.clone());
        if late {
            add(tree, entries, &kept)?;
        }
        Ok(node)
    }

    /// Makes an empty list, in the place of one that is not of this replay.  `None`: the directory
    /// is sealed, where that does not show.
    fn new_list<T: Tree<Node = N>>(&self, tree: &T, node: &N) -> Result<Option<N>> {
        let shown = || printable(&self.name);
        let removed = match failed(tree.lookup(node, LIST), "look", shown)? {
            Some(_) => tree.unlink(node, LIST, false),
            None => Ok(()),
        };
        let new = New::plain(Kind::File, 0o600);
        match removed.and_then(|()| tree.create(node, LIST, &new)) {
            Err(Errno::PERM) => Ok(None),
            made => failed(made, "make", shown).map(Some),
        }
    }

    /// Makes a new directory, at the first free name.
    fn make<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<N> {
        let root = tree.root();
        for number in 0.. {
            let name = numbered(number);
            let new = New::plain(Kind::Directory, 0o700);
            let node = match mark::with_times_kept(tree, || tree.create(&root, &name, &new)) {
                Err(Errno::EXIST) => continue,
                made => failed(made, "make", || printable(&name))?,
            };
            // Another program may have put a different one there meanwhile.
            let shown = || printable(&name);
            let attr = failed(tree.attr(&node), "look", shown)?;
            let empty = failed(tree.names(&node), "list", shown)?.is_empty();
            if is_private(&attr, Kind::Directory) && empty {
                self.name = name;
                return Ok(node);
            }
        }
        unreachable!("there are more names than a directory has");
    }
}

/// The names of staging directories in the root, the first one first.
fn names<T: Tree>(tree: &T) -> Result<Vec<Vec<u8>>> {
    let mut names = failed(tree.names(&tree.root()), "list", || ".".into())?;
    names.retain(|name| is_staging(name));
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    Ok(names)
}

/// Records, durably, that the replay of these entries leaves out this one.
pub fn leave_out<T: Tree>(tree: &T, entries: &[Vec<u8>], number: u64) -> Result<()> {
    add(tree, entries, &format!("{number}\n"))
}

/// Records, durably, what inodes have before they are made writable or lose rights.
pub fn note_rights<T: Tree>(tree: &T, entries: &[Vec<u8>], new: &[(Fid, Rights)]) -> Result<()> {
    if planted(Bug::RightsNotNoted) {
        return Ok(());
    }
    let mut lines = String::new();
    for (fid, Rights { mode, owner, capability, handle }) in new {
        let (uid, gid) = owner.unwrap_or_default();
        let (capability, handle) = (capability.as_deref(), handle.as_ref().map(|h| &h.0[..]));
        lines +=
            &format!("rights {fid} {mode:o} {uid} {gid} {} {}\n", hex(capability), hex(handle));
    }
    // The list may get to the disk before an inode that is lost, and whose identity another one gets.
    if new.iter().any(|(_, rights)| rights.handle.is_some()) {
        failed(tree.sync_all(), "sync", || ".".into())?;
    }
    add(tree, entries, &lines)
}

fn kept_lines<'k>(kept: impl Iterator<Item = (&'k Fid, &'k Kept)>) -> String {
    let line = |(fid, Kept { mode, atime, mtime, capability }): (&Fid, &Kept)| {
        format!(
            "kept {fid} {mode:o} {} {} {} {} {}\n",
            atime.seconds,
            atime.nanoseconds,
            mtime.seconds,
            mtime.nanoseconds,
            hex(capability.as_deref())
        )
    };
    kept.map(line).collect()
}

/// A value in a line; `-`: there is none.
fn hex(value: Option<&[u8]>) -> String {
    value.map_or("-".into(), |value| value.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Records, durably, the path of the report.
pub fn note_report<T: Tree>(tree: &T, entries: &[Vec<u8>], path: &str) -> Result<()> {
    add(tree, entries, &format!("report {path}\n"))
}

fn add<T: Tree>(tree: &T, entries: &[Vec<u8>], line: &str) -> Result<()> {
    let staging = Staging::find(tree, entries)?;
    let name = match staging.name.is_empty() {
        true => STAGING.to_vec(),
        false => staging.name,
    };
    let shown = || printable(&name);
    let absent = ReplayError::Staging { path: shown(), what: "its list is gone".into() };
    let Some(node) = staging.node.filter(|_| staging.resumed) else { return Err(absent) };
    let Some(list) = failed(tree.lookup(&node, LIST), "look", shown)? else { return Err(absent) };
    failed(tree.truncate(&list, staging.list_bytes), "write", shown)?;
    failed(tree.write(&list, staging.list_bytes, line.as_bytes()), "write", shown)?;
    failed(tree.sync_all(), "sync", shown)
}

fn read<T: Tree>(tree: &T, node: &T::Node, size: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    let n = failed(tree.read(node, 0, &mut bytes), "read", || printable(LIST))?;
    bytes.truncate(n);
    Ok(bytes)
}

#[derive(Default)]
struct List {
    gone: HashSet<Fid>,
    left_out: Vec<u64>,
    changed: BTreeSet<Fid>,
    touched: BTreeSet<Fid>,
    rights: BTreeMap<Fid, Rights>,
    kept: BTreeMap<Fid, Kept>,
    report: Option<String>,
    bytes: u64,
}

/// `None`: the list belongs to another log or is not complete.  An incomplete line after the
/// dot was not durable yet.
fn parse(list: &[u8], key: &str) -> Option<List> {
    let good = list.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
    let rest = list[..good].strip_prefix(key.as_bytes())?;
    let lines = || rest.split_inclusive(|b| *b == b'\n');
    let dot = lines().position(|line| line == b".\n")?;
    let mut list = List::default();
    for line in lines().take(dot) {
        match number(line) {
            Some(fid) => drop(list.gone.insert(fid)),
            None => list.take(line)?,
        }
    }
    list.bytes = key.len() as u64;
    list.bytes += lines().take(dot + 1).map(|line| line.len() as u64).sum::<u64>();
    for line in lines().skip(dot + 1) {
        match number(line) {
            Some(left_out) => list.left_out.push(left_out),
            None if list.take(line).is_some() => {}
            None => break,
        }
        list.bytes += line.len() as u64;
    }
    Some(list)
}

impl List {
    /// The first of several notes about one thing says what there was.
    fn take(&mut self, line: &[u8]) -> Option<()> {
        let of = |what: &[u8]| line.strip_prefix(what);
        if let Some(fid) = of(b"changed ").and_then(number) {
            self.changed.insert(fid);
        } else if let Some(fid) = of(b"touched ").and_then(number) {
            self.touched.insert(fid);
        } else if let Some((fid, kept)) = of(b"kept ").and_then(kept_of) {
            self.kept.entry(fid).or_insert(kept);
        } else if let Some((fid, rights)) = of(b"rights ").and_then(rights_of) {
            self.rights.entry(fid).or_insert(rights);
        } else if let Some(path) = of(b"report ").and_then(|line| line.strip_suffix(b"\n")) {
            self.report = Some(String::from_utf8_lossy(path).into_owned());
        } else {
            let (fid, mode) = mode_of(line)?;
            let rights = Rights { mode, owner: None, capability: None, handle: None };
            self.rights.entry(fid).or_insert(rights);
        }
        Some(())
    }
}

fn number(line: &[u8]) -> Option<u64> {
    fid_of(line.strip_suffix(b"\n")?)
}

fn octal(mode: &str) -> Option<u32> {
    u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)
}

/// An older Forebay noted no more.
fn mode_of(line: &[u8]) -> Option<(Fid, u32)> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (fid, mode) = line.split_once(' ')?;
    Some((fid_of(fid.as_bytes())?, octal(mode)?))
}

fn rights_of(line: &[u8]) -> Option<(Fid, Rights)> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let [fid, mode, uid, gid, capability, handle] = words[..] else { return None };
    let owner = Some((uid.parse().ok()?, gid.parse().ok()?));
    let (mode, capability) = (octal(mode)?, value_of(capability)?);
    let handle = value_of(handle)?.map(Handle);
    Some((fid_of(fid.as_bytes())?, Rights { mode, owner, capability, handle }))
}

fn value_of(hex: &str) -> Option<Option<Vec<u8>>> {
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    match hex {
        "-" => Some(None),
        _ if hex.len() & 1 == 0 => {
            (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().map(Some)
        }
        _ => None,
    }
}

fn kept_of(line: &[u8]) -> Option<(Fid, Kept)> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let [fid, mode, atime, atime_ns, mtime, mtime_ns, capability] = words[..] else { return None };
    let time = |seconds: &str, nanoseconds: &str| {
        let nanoseconds = nanoseconds.parse().ok().filter(|ns| *ns < 1_000_000_000)?;
        Some(Time { seconds: seconds.parse().ok()?, nanoseconds })
    };
    let (mode, capability) = (octal(mode)?, value_of(capability)?);
    let (atime, mtime) = (time(atime, atime_ns)?, time(mtime, mtime_ns)?);
    Some((fid_of(fid.as_bytes())?, Kept { mode, atime, mtime, capability }))
}

/// Removes what a finished replay leaves.  Call it when the log is destroyed, and before a
/// mount whose log is empty.
pub fn tidy<T: Tree>(tree: &T) -> Result<()> {
    let root = tree.root();
    for name in names(tree)? {
        let shown = || printable(&name);
        let Some(Candidate::Ours { node, list, inner }) = look(tree, &name, None)? else {
            continue;
        };
        if let Some((fid, _)) = inner.first() {
            let what = format!("'{fid}' is in it");
            return Err(ReplayError::Staging { path: shown(), what });
        }
        let removed = match list {
            Some(_) => tree.unlink(&node, LIST, false),
            None => Ok(()),
        };
        let remove = || tree.unlink(&root, &name, true);
        match removed.and_then(|()| mark::with_times_kept(tree, remove)) {
            // It is sealed, where that does not show, and holds nothing of the tree.
            Err(Errno::PERM) => {}
            // The next mount that can write removes it.
            Err(Errno::ROFS) => {}
            removed => failed(removed, "remove", shown)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::model::sim::{SimTree, State};

    fn of(mode: u32, seconds: i64, capability: Option<&[u8]>) -> Kept {
        Kept {
            mode,
            atime: Time { seconds, nanoseconds: 999_999_999 },
            mtime: Time { seconds: -1, nanoseconds: 0 },
            capability: capability.map(Into::into),
        }
    }

    /// A replay that is begun again finds what the files had before the first one.
    #[test]
    fn what_files_had_is_noted_once() {
        let tree = SimTree::new(State::empty());
        let entries = [b"an entry".to_vec()];
        let begin = |kept: &BTreeMap<Fid, Kept>| {
            let (changed, touched) = (BTreeSet::from([3]), BTreeSet::from([4, 5]));
            let first = First { gone: vec![2, 6], changed: &changed, touched: &touched, kept };
            let mut staging = Staging::find(&tree, &entries).unwrap();
            staging.begin(&tree, &first, &entries).unwrap();
        };
        let first = BTreeMap::from([(7, of(0o4755, 5, Some(b"\x01\xff"))), (8, of(0, -3, None))]);
        begin(&first);
        begin(&BTreeMap::from([(7, of(0o755, 6, None)), (9, of(1, 1, Some(b"")))]));
        let rights = |mode, owner, capability: Option<&[u8]>| Rights {
            mode,
            owner,
            capability: capability.map(Into::into),
            handle: owner.map(|_| Handle(vec![1, 0, 255])),
        };
        let before = rights(0o2751, Some((1, u32::MAX - 1)), Some(b"\0\x9a"));
        note_rights(&tree, &entries, &[(9, before.clone())]).unwrap();
        note_rights(&tree, &entries, &[(9, rights(0, Some((0, 0)), None))]).unwrap();
        add(&tree, &entries, "12\n10 640\nreport a/b\n").unwrap();
        let again = Staging::find(&tree, &entries).unwrap();
        let nine = (9, of(1, 1, Some(b"")));
        assert_eq!(again.kept, first.into_iter().chain([nine]).collect());
        let ten = (10, rights(0o640, None, None));
        assert_eq!(again.rights, BTreeMap::from([(9, before), ten]));
        assert_eq!((again.gone, again.left_out), (HashSet::from([2, 6]), vec![12]));
        assert_eq!((again.changed, again.touched), (BTreeSet::from([3]), BTreeSet::from([4, 5])));
        assert_eq!(again.report.as_deref(), Some("a/b"));
    }

    /// Then the replay has changed nothing, and looks again.
    #[test]
    fn a_list_that_is_cut_before_its_dot_is_none() {
        let key = "forebay replay 1 2 3 4 5\n";
        let kept = kept_lines(BTreeMap::from([(7, of(0o4755, 5, Some(b"x")))]).iter());
        let whole = format!("{key}6\nchanged 3\ntouched 4\n{kept}.\n");
        for end in 0..whole.len() {
            assert!(parse(&whole.as_bytes()[..end], key).is_none(), "{end}");
        }
        let list = parse(whole.as_bytes(), key).unwrap();
        assert_eq!((list.kept.len(), list.bytes), (1, whole.len() as u64));
        for hole in key.len()..whole.len() - 2 {
            let mut torn = whole.clone().into_bytes();
            torn[hole] = 0;
            assert!(parse(&torn, key).is_none(), "{hole}");
        }
        // Older lists have more after the dot.
        let older = format!("{key}6\n.\nchanged 3\ntouched 4\n{kept}8 755\n9\n");
        let list = parse(older.as_bytes(), key).unwrap();
        assert_eq!((list.changed.len(), list.touched.len(), list.kept.len()), (1, 1, 1));
        assert_eq!(
            (list.rights[&8].mode, list.rights[&8].owner, list.left_out),
            (0o755, None, vec![9])
        );
    }

    #[test]
    fn a_note_that_is_not_one_ends_the_list() {
        for line in [
            "kept 7 755 0 0 0 0 0g\n",
            "kept 7 755 0 0 0 0 012\n",
            "kept 7 755 0 1000000000 0 0 -\n",
            "kept 7 10000 0 0 0 0 -\n",
            "kept 7 755 0 0 0 -\n",
            "kept 7 755 0 0 0 0 \u{e9}\u{e9}\n",
        ] {
            assert_eq!(kept_of(line.strip_prefix("kept ").unwrap().as_bytes()), None, "{line}");
        }
        for line in [
            "7 755 0 0 -\n",
            "7 755 0 4294967296 - -\n",
            "7 788 0 0 - -\n",
            "7 755 0 0 0x -\n",
            "7 755 0 0 - -\r",
        ] {
            assert_eq!(rights_of(line.as_bytes()), None, "{line}");
        }
    }
}
