// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory in the tree's root by way of which things are moved.
//!
//! ```text
//! .forebay-replay/gone   the log it is of, the fids whose inodes the tree lacks, those that
//!                        something else has changed, the numbers of entries that are left
//!                        out, and the modes of what was made writable
//! .forebay-replay/N      the inode of fid N, on its way
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::planted::{planted, Bug};
use super::{failed, printable, ReplayError, Result, STAGING};
use crate::mark;
use crate::record::{Entry, Fid, Kind};
use crate::tree::{Handle, New, Tree};

const LIST: &[u8] = b"gone";

/// What there is of an earlier replay of this log.
#[derive(Debug)]
pub struct Staging<N> {
    /// The directory.
    pub node: Option<N>,
    /// The list was durable: from then on the tree was changed.
    pub resumed: bool,
    /// Fids whose inodes the tree did not have when that began.
    pub gone: HashSet<Fid>,
    /// Entries that it left out.
    pub left_out: Vec<u64>,
    /// Files that something else had changed before it began.
    pub changed: BTreeSet<Fid>,
    /// What it made writable, and the mode that it had.
    pub modes: BTreeMap<Fid, u32>,
    /// Of the list, as far as it is good.
    list_bytes: u64,
    /// What lies in the directory.
    pub entries: Vec<(Fid, N)>,
    /// Identities of the directory and of the list.
    pub own: Vec<Handle>,
}

fn shown() -> String {
    printable(STAGING)
}

/// The same for each replay of the same entries.
fn key(entries: &[Vec<u8>]) -> String {
    let of = |body: Option<&Vec<u8>>| {
        body.and_then(|b| Entry::parse(b).ok()).map_or((0, 0), |e| (e.number, e.time_ns))
    };
    let ((a, b), (c, d)) = (of(entries.first()), of(entries.last()));
    format!("forebay replay {a} {b} {c} {d} {}\n", entries.len())
}

fn fid_of(name: &[u8]) -> Option<Fid> {
    let name = std::str::from_utf8(name).ok()?;
    name.parse().ok().filter(|fid: &Fid| fid.to_string() == name)
}

pub fn name_of(fid: Fid) -> Vec<u8> {
    fid.to_string().into_bytes()
}

impl<N: Clone> Staging<N> {
    pub fn find<T: Tree<Node = N>>(tree: &T, entries: &[Vec<u8>]) -> Result<Staging<N>> {
        let mut staging = Staging {
            node: None,
            resumed: false,
            gone: HashSet::new(),
            left_out: Vec::new(),
            changed: BTreeSet::new(),
            modes: BTreeMap::new(),
            list_bytes: 0,
            entries: Vec::new(),
            own: Vec::new(),
        };
        let ask = |done| failed(done, "look", shown);
        let Some(node) = ask(tree.lookup(&tree.root(), STAGING))? else { return Ok(staging) };
        let foreign = |what: &str| Err(ReplayError::Staging { path: shown(), what: what.into() });
        if failed(tree.attr(&node), "look", shown)?.kind != Kind::Directory {
            return foreign("it is no directory");
        }
        let handle = |node: &N| failed(tree.handle(node), "look", shown);
        staging.own.push(handle(&node)?);
        let mut list = None;
        for name in failed(tree.names(&node), "list", shown)? {
            let Some(inner) = ask(tree.lookup(&node, &name))? else { continue };
            match fid_of(&name) {
                _ if name == LIST => {
                    staging.own.push(handle(&inner)?);
                    list = Some(read(tree, &inner)?);
                }
                Some(fid) => staging.entries.push((fid, inner)),
                None => return foreign(&format!("'{}' is in it", printable(&name))),
            }
        }
        staging.node = Some(node);
        if let Some(list) = list.as_deref().and_then(|l| parse(l, &key(entries))) {
            staging.resumed = true;
            staging.list_bytes = list.bytes;
            if !planted(Bug::GoneForgotten) {
                staging.gone = list.gone;
            }
            if !planted(Bug::LeftOutForgotten) {
                staging.left_out = list.left_out;
            }
            staging.modes = list.modes;
            staging.changed = list.changed;
        } else if !staging.entries.is_empty() {
            return foreign("it is of the replay of another log, and not empty");
        }
        if planted(Bug::StagingForgotten) {
            staging.entries.clear();
        }
        Ok(staging)
    }

    /// Makes the directory and its list, durable, if they are not there.
    pub fn begin<T: Tree<Node = N>>(
        &mut self,
        tree: &T,
        gone: impl Iterator<Item = Fid>,
        changed: &BTreeSet<Fid>,
        entries: &[Vec<u8>],
    ) -> Result<N> {
        if let (Some(node), true) = (&self.node, self.resumed) {
            return Ok(node.clone());
        }
        let make = |done| failed(done, "make", shown);
        let root = tree.root();
        let node = match self.node.take() {
            Some(node) => node,
            None => {
                let new = New::plain(Kind::Directory, 0o700);
                make(mark::with_times_kept(tree, || tree.create(&root, STAGING, &new)))?
            }
        };
        let list = match failed(tree.lookup(&node, LIST), "look", shown)? {
            Some(list) => list,
            None => make(tree.create(&node, LIST, &New::plain(Kind::File, 0o600)))?,
        };
        let mut text = key(entries);
        gone.for_each(|fid| text += &format!("{fid}\n"));
        text += ".\n";
        changed.iter().for_each(|fid| text += &format!("changed {fid}\n"));
        failed(tree.truncate(&list, 0), "write", shown)?;
        failed(tree.write(&list, 0, text.as_bytes()), "write", shown)?;
        failed(tree.sync_all(), "sync", shown)?;
        self.node = Some(node.clone());
        Ok(node)
    }
}

/// Durable when it returns: from now on the replay of these entries does without this one.
pub fn leave_out<T: Tree>(tree: &T, entries: &[Vec<u8>], number: u64) -> Result<()> {
    add(tree, entries, &format!("{number}\n"))
}

/// Durable when it returns: the mode that the inode has before it is made writable.
pub fn note_mode<T: Tree>(tree: &T, entries: &[Vec<u8>], fid: Fid, mode: u32) -> Result<()> {
    add(tree, entries, &format!("{fid} {mode:o}\n"))
}

fn add<T: Tree>(tree: &T, entries: &[Vec<u8>], line: &str) -> Result<()> {
    let staging = Staging::find(tree, entries)?;
    let absent = ReplayError::Staging { path: shown(), what: "its list is gone".into() };
    let Some(node) = staging.node.filter(|_| staging.resumed) else { return Err(absent) };
    let Some(list) = failed(tree.lookup(&node, LIST), "look", shown)? else { return Err(absent) };
    failed(tree.truncate(&list, staging.list_bytes), "write", shown)?;
    failed(tree.write(&list, staging.list_bytes, line.as_bytes()), "write", shown)?;
    failed(tree.sync_all(), "sync", shown)
}

fn read<T: Tree>(tree: &T, node: &T::Node) -> Result<Vec<u8>> {
    // As many fids as a log can name.
    const MOST: u64 = 1 << 30;
    let attr = failed(tree.attr(node), "look", shown)?;
    if attr.kind != Kind::File || attr.size > MOST {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; attr.size as usize];
    let n = failed(tree.read(node, 0, &mut bytes), "read", shown)?;
    bytes.truncate(n);
    Ok(bytes)
}

struct List {
    gone: HashSet<Fid>,
    left_out: Vec<u64>,
    changed: BTreeSet<Fid>,
    modes: BTreeMap<Fid, u32>,
    bytes: u64,
}

/// `None`: it is of another log, or it is not all there.  A line behind the dot that is not
/// all there was not durable yet.
fn parse(list: &[u8], key: &str) -> Option<List> {
    let good = list.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
    let rest = list[..good].strip_prefix(key.as_bytes())?;
    let lines = || rest.split_inclusive(|b| *b == b'\n');
    let number = |line: &[u8]| fid_of(line.strip_suffix(b"\n")?);
    let dot = lines().position(|line| line == b".\n")?;
    let gone = lines().take(dot).map(number).collect::<Option<_>>()?;
    let (left_out, modes, bytes) = (Vec::new(), BTreeMap::new(), key.len() as u64);
    let changed = BTreeSet::new();
    let mut list = List { gone, left_out, changed, modes, bytes };
    list.bytes += lines().take(dot + 1).map(|line| line.len() as u64).sum::<u64>();
    for line in lines().skip(dot + 1) {
        if let Some(fid) = line.strip_prefix(b"changed ").and_then(number) {
            list.changed.insert(fid);
            list.bytes += line.len() as u64;
            continue;
        }
        match (number(line), mode_of(line)) {
            (Some(left_out), _) => list.left_out.push(left_out),
            // The first is the one that it had.
            (None, Some((fid, mode))) => drop(list.modes.entry(fid).or_insert(mode)),
            (None, None) => break,
        }
        list.bytes += line.len() as u64;
    }
    Some(list)
}

fn mode_of(line: &[u8]) -> Option<(Fid, u32)> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (fid, mode) = line.split_once(' ')?;
    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)?;
    Some((fid_of(fid.as_bytes())?, mode))
}

/// Removes what a replay that is over leaves: to be called when the log is destroyed, and
/// before a mount whose log holds nothing.
pub fn tidy<T: Tree>(tree: &T) -> Result<()> {
    let root = tree.root();
    let Some(node) = failed(tree.lookup(&root, STAGING), "look", shown)? else { return Ok(()) };
    if failed(tree.attr(&node), "look", shown)?.kind != Kind::Directory {
        return Err(ReplayError::Staging { path: shown(), what: "it is no directory".into() });
    }
    let names = failed(tree.names(&node), "list", shown)?;
    if let Some(other) = names.iter().find(|name| *name != LIST) {
        let what = format!("'{}' is in it", printable(other));
        return Err(ReplayError::Staging { path: shown(), what });
    }
    if !names.is_empty() {
        failed(tree.unlink(&node, LIST, false), "remove", shown)?;
    }
    let remove = || tree.unlink(&root, STAGING, true);
    failed(mark::with_times_kept(tree, remove), "remove", shown)
}
