// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds inodes by their handles where no handle opens anything: for a process that may not open by
//! handle, and on file systems that encode handles and do not decode them.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::{component, Node, UnixTree};
use crate::record::Kind;
use crate::tree::{Handle, Result, Tree};

/// The places of all inodes, as one walk has found them.  A replay asks for each inode of its log,
/// so a walk for each would take (inodes of the log) × (inodes of the tree).
#[derive(Debug, Default)]
pub(super) struct Places {
    walked: Mutex<Option<Walked>>,
    #[cfg(test)]
    pub(super) walks: std::sync::atomic::AtomicUsize,
}

#[derive(Debug)]
struct Walked {
    /// The directory, by its place in `directories`, and the name in it.
    by_handle: HashMap<Handle, (usize, Vec<u8>)>,
    /// The same of each directory; the root, which is the first, has no name.
    directories: Vec<(usize, Vec<u8>)>,
    /// A directory of this user could not be read.  An inode that was not found may be in it; the
    /// user has moved nothing into another user's directory.
    any_closed: bool,
}

impl Walked {
    fn path(&self, handle: &Handle) -> Option<Vec<&[u8]>> {
        let (at, name) = self.by_handle.get(handle)?;
        let mut names = self.path_of(*at);
        names.push(name);
        Some(names)
    }

    /// The names of a directory from the root on.
    fn path_of(&self, mut at: usize) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> = Vec::new();
        while at != 0 {
            let (above, name) = &self.directories[at];
            names.push(name);
            at = *above;
        }
        names.reverse();
        names
    }
}

impl UnixTree {
    /// Looks at the hinted path, and then where a walk has found the inode.
    pub(super) fn search(&self, handle: &Handle, path: &[u8]) -> Result<Option<Node>> {
        let hint = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        if let Some(node) = self.at(hint, handle)? {
            return Ok(Some(node));
        }
        let mut walked = self.places.walked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let earlier = walked.take();
            let is_new = earlier.is_none();
            let known = walked.insert(earlier.map_or_else(|| self.walk(), Ok)?);
            let Some(names) = known.path(handle) else {
                return if known.any_closed { Err(Errno::ACCESS) } else { Ok(None) };
            };
            let found = self.at(names.into_iter(), handle)?;
            if found.is_some() || is_new {
                return Ok(found);
            }
            // It was moved since the walk.
            *walked = None;
        }
    }

    /// The inode at a path, if it is this one.
    fn at<'p>(
        &self,
        names: impl Iterator<Item = &'p [u8]>,
        handle: &Handle,
    ) -> Result<Option<Node>> {
        let Some(node) = self.follow(names) else { return Ok(None) };
        Ok((self.handle(&node)? == *handle).then_some(node))
    }

    fn follow<'p>(&self, mut names: impl Iterator<Item = &'p [u8]>) -> Option<Node> {
        names.try_fold(self.root(), |dir, name| {
            component(name).ok()?;
            self.child(&dir, OsStr::from_bytes(name)).ok()
        })
    }

    /// What was moved or made since is found again.
    pub(super) fn forget_places(&self) {
        *self.places.walked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn walk(&self) -> Result<Walked> {
        let user = rustix::process::geteuid().as_raw();
        let closed = |dir: &Node| Ok::<_, Errno>(self.attr(dir)?.uid == user);
        #[cfg(test)]
        self.places.walks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut walked = Walked {
            by_handle: HashMap::new(),
            directories: vec![(0, Vec::new())],
            any_closed: false,
        };
        let mut next = vec![0];
        while let Some(at) = next.pop() {
            // Held by its path alone: a directory may have more of them than may be open.
            let Some(dir) = self.follow(walked.path_of(at).into_iter()) else { continue };
            let names = match self.names(&dir) {
                Err(Errno::ACCESS) => {
                    walked.any_closed |= closed(&dir)?;
                    continue;
                }
                names => names?,
            };
            for name in names {
                let node = match self.child(&dir, OsStr::from_bytes(&name)) {
                    Err(Errno::XDEV | Errno::NOENT) => continue,
                    Err(Errno::ACCESS) => {
                        walked.any_closed |= closed(&dir)?;
                        break;
                    }
                    node => node?,
                };
                if node.kind() == Kind::Directory {
                    walked.directories.push((at, name.clone()));
                    next.push(walked.directories.len() - 1);
                }
                if let Entry::Vacant(place) = walked.by_handle.entry(self.handle(&node)?) {
                    place.insert((at, name));
                }
            }
        }
        Ok(walked)
    }
}
