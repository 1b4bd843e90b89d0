// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out which inodes that a handle has opened lie in the tree.
//!
//! A directory is followed upwards to the root.  Any other inode is looked for where the log
//! has it: at its names, where it was seen when it was bound, and in the staging directory.  An
//! inode that is at none of these, and is to be changed, to have a name, or to have its rights back,
//! is searched for in the whole tree, once for all of them: if a file's known names are gone, it may
//! have another.  The results are remembered ([`Walked`]), because a replay moves nothing into the
//! tree or out of it.

use std::collections::{HashMap, HashSet, VecDeque};

use rustix::io::Errno;

use super::history::{History, Place};
use super::plan::Plan;
use super::planted::{planted, Bug};
use super::{failed, Result};
use crate::record::{Fid, Kind, ROOT};
use crate::tree::{Handle, Tree};

/// The deepest tree that is believed.
const DEEPEST: usize = 1 << 16;

type Found<T> = (Fid, <T as Tree>::Node, Handle);

/// Inodes that were looked for in the whole tree.
#[derive(Debug, Default)]
pub struct Walked {
    walks: u32,
    asked: HashSet<Handle>,
    there: HashSet<Handle>,
}

struct Search<'p, 'a, T: Tree> {
    tree: &'p T,
    history: &'p History<'a>,
    /// Whether a directory lies in the tree.
    directories: HashMap<Handle, bool>,
}

pub fn within<T: Tree>(
    tree: &T,
    plan: &Plan<'_, T::Node>,
    found: &[Found<T>],
    walked: &mut Walked,
) -> Result<HashSet<Fid>> {
    let history = &plan.history;
    let root = failed(tree.handle(&tree.root()), "look at", || ".".into())?;
    let directories = HashMap::from([(root, true)]);
    let mut search = Search { tree, history, directories };
    let mut within = HashSet::from([ROOT]);
    let mut nodes: HashMap<Fid, &T::Node> = HashMap::new();
    let root = tree.root();
    nodes.insert(ROOT, &root);
    for (fid, node, handle) in found {
        if history.files[fid].kind == Kind::Directory && search.is_below_root(*fid, node, handle)? {
            within.insert(*fid);
            nodes.insert(*fid, node);
        }
    }
    let mut staged = HashSet::new();
    for (fid, node) in &plan.staging.entries {
        staged.insert(failed(tree.handle(node), "look at", || history.path(*fid))?);
    }
    let mut places: HashMap<Fid, Vec<Place<'_>>> = HashMap::new();
    for (place, name) in &history.names {
        for fid in &name.ever {
            places.entry(*fid).or_default().push(*place);
        }
    }
    let mut left = HashMap::new();
    for (fid, _, handle) in found {
        let file = &history.files[fid];
        if file.kind == Kind::Directory {
            continue;
        }
        let mut there = staged.contains(handle);
        for (dir, name) in places.get(fid).into_iter().flatten() {
            there = there || nodes.get(dir).is_some_and(|dir| search.has(dir, name, handle));
        }
        if there || search.is_at(file.hint, handle) {
            within.insert(*fid);
        } else if file.is_changed()
            || !file.names.is_empty()
            || plan.staging.rights.contains_key(fid)
        {
            left.insert(handle.clone(), *fid);
        }
    }
    if planted(Bug::WalkedAgain) {
        *walked = Walked::default();
    }
    let mut asked: HashSet<Handle> = left.keys().cloned().collect();
    asked.retain(|handle| !walked.asked.contains(handle));
    if !asked.is_empty() {
        // A second walk looks for all that a third one might.
        if walked.walks > 0 {
            asked.extend(found.iter().map(|(.., handle)| handle.clone()));
        }
        walked.walks += 1;
        walked.asked.extend(asked.iter().cloned());
        search.walk(asked, &mut walked.there)?;
    }
    within.extend(left.iter().filter(|(h, _)| walked.there.contains(*h)).map(|(_, fid)| *fid));
    Ok(within)
}

impl<T: Tree> Search<'_, '_, T> {
    fn is_below_root(&mut self, fid: Fid, node: &T::Node, handle: &Handle) -> Result<bool> {
        let (mut node, mut handle, mut way) = (node.clone(), handle.clone(), Vec::new());
        let below = loop {
            if let Some(known) = self.directories.get(&handle) {
                break *known;
            }
            if way.len() > DEEPEST || way.last() == Some(&handle) {
                break false;
            }
            way.push(handle);
            let above = match self.tree.above(&node) {
                // Through a directory of another's nothing of this user's is reached.
                Err(Errno::ACCESS) => None,
                above => failed(above, "look above", || self.history.path(fid))?,
            };
            let Some(above) = above else { break false };
            handle = failed(self.tree.handle(&above), "look at", || self.history.path(fid))?;
            node = above;
        };
        self.directories.extend(way.into_iter().map(|handle| (handle, below)));
        Ok(below)
    }

    fn has(&self, dir: &T::Node, name: &[u8], handle: &Handle) -> bool {
        let node = self.tree.lookup(dir, name).ok().flatten();
        node.is_some_and(|node| self.tree.handle(&node).as_ref() == Ok(handle))
    }

    fn is_at(&self, path: &[u8], handle: &Handle) -> bool {
        let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        let Some(last) = names.next_back() else { return false };
        let dir = names
            .try_fold(self.tree.root(), |dir, name| self.tree.lookup(&dir, name).ok().flatten());
        dir.is_some_and(|dir| self.has(&dir, last, handle))
    }

    fn walk(&self, mut left: HashSet<Handle>, there: &mut HashSet<Handle>) -> Result<()> {
        let mut directories = VecDeque::from([self.tree.root()]);
        while let Some(dir) = directories.pop_front().filter(|_| !left.is_empty()) {
            let names = match self.tree.names(&dir) {
                Err(Errno::ACCESS) => continue,
                names => failed(names, "list", || ".".into())?,
            };
            for name in names {
                let node = match self.tree.lookup(&dir, &name) {
                    Err(Errno::XDEV | Errno::ACCESS) | Ok(None) => continue,
                    node => failed(node, "look up", || ".".into())?,
                };
                let Some(node) = node else { continue };
                let handle = failed(self.tree.handle(&node), "look at", || ".".into())?;
                there.extend(left.take(&handle));
                if failed(self.tree.attr(&node), "look at", || ".".into())?.kind == Kind::Directory
                {
                    directories.push_back(node);
                }
            }
        }
        Ok(())
    }
}
