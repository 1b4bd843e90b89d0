// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory in the tree's root by way of which things are moved.
//!
//! ```text
//! .forebay-replay/gone   the log it is of, and the fids whose inodes the tree lacks
//! .forebay-replay/N      the inode of fid N, on its way
//! ```

use std::collections::HashSet;

use super::planted::{planted, Bug};
use super::{failed, printable, ReplayError, Result, STAGING};
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
        if let Some(gone) = list.as_deref().and_then(|l| parse(l, &key(entries))) {
            staging.resumed = true;
            if !planted(Bug::GoneForgotten) {
                staging.gone = gone;
            }
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
        entries: &[Vec<u8>],
    ) -> Result<N> {
        if let (Some(node), true) = (&self.node, self.resumed) {
            return Ok(node.clone());
        }
        let make = |done| failed(done, "make", shown);
        let root = tree.root();
        let node = match self.node.take() {
            Some(node) => node,
            None => make(tree.create(&root, STAGING, &new(Kind::Directory, 0o700)))?,
        };
        let list = match failed(tree.lookup(&node, LIST), "look", shown)? {
            Some(list) => list,
            None => make(tree.create(&node, LIST, &new(Kind::File, 0o600)))?,
        };
        let mut text = key(entries);
        gone.for_each(|fid| text += &format!("{fid}\n"));
        text += ".\n";
        failed(tree.truncate(&list, 0), "write", shown)?;
        failed(tree.write(&list, 0, text.as_bytes()), "write", shown)?;
        failed(tree.sync_all(), "sync", shown)?;
        self.node = Some(node.clone());
        Ok(node)
    }
}

fn new(kind: Kind, mode: u32) -> New<'static> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    New { kind, mode, uid, gid, device: 0, target: b"", inherit_acl: false }
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

/// `None`: it is of another log, or it is not all there.
fn parse(list: &[u8], key: &str) -> Option<HashSet<Fid>> {
    let text = std::str::from_utf8(list).ok()?.strip_prefix(key)?.strip_suffix(".\n")?;
    text.lines().map(|line| fid_of(line.as_bytes())).collect()
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
    failed(tree.unlink(&root, STAGING, true), "remove", shown)
}
