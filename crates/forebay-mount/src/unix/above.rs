// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directories above a tree in its file system, also where the mount by which it is
//! reached shows a part of the file system only (`mount --bind`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay::procfs::{self, Mount};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{open_tree, OpenTreeFlags};

use super::{Node, UnixTree};
use crate::mark::{self, Found, MarkError};
use crate::tree::Result;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// If this is a mount of a tree of this file system over itself: its place in the file system.
fn tree_mounted_over_itself(mount: &Mount, places: &[Mount], device: u64) -> Option<PathBuf> {
    let below = places.iter().find(|p| p.id == mount.parent && p.device == device)?;
    let over_itself = mount.kind == "fuse.forebay" && mount.source == mount.at;
    over_itself.then(|| below.root.join(mount.at.strip_prefix(&below.at).unwrap_or(&mount.at)))
}

/// Opens the mount without other mounts in it, if this process may do that.
fn open(mount: &Mount) -> Result<OwnedFd> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(fs::CWD, &mount.at, clone).or_else(|_| fs::open(&mount.at, DIRECTORY, Mode::empty()))
}

fn places() -> Vec<Mount> {
    procfs::mounts().unwrap_or_default()
}

/// A mount of this tree is seen in this process's namespace.  Where there is none, and the tree
/// is in use all the same, its mount is about to end, or is seen elsewhere.
pub fn is_mounted(tree: &Path) -> bool {
    places().iter().any(|place| place.kind == "fuse.forebay" && place.source == tree)
}

/// A tree is mounted there, as this process's namespace shows it.
pub fn is_mounted_at(mountpoint: &Path) -> bool {
    tree_mounted_at(mountpoint).is_some()
}

/// The numbers of the mounts in this process's namespace whose requests a FUSE server answers: those
/// that lie at an absolute path or above it.  If there are none, all: a symlink may lead to any.
pub fn mounts_of_fuse(path: &Path) -> Vec<u64> {
    let is_fuse =
        |kind: &str| kind.starts_with("fuse.") || ["fuse", "fuseblk", "virtiofs"].contains(&kind);
    let all: Vec<_> = places().into_iter().filter(|place| is_fuse(&place.kind)).collect();
    let above = all.iter().filter(|place| path.starts_with(&place.at)).map(|place| place.id);
    match above.collect::<Vec<_>>() {
        above if above.is_empty() => all.iter().map(|place| place.id).collect(),
        above => above,
    }
}

/// The tree that is mounted there, as this process's namespace shows it.
pub fn tree_mounted_at(mountpoint: &Path) -> Option<PathBuf> {
    let is_there = |p: &Mount| p.kind == "fuse.forebay" && p.at == mountpoint;
    // The last one lies over the others.
    places().into_iter().rfind(is_there).map(|place| place.source)
}

/// The device and the path in its file system of what a path leads to.  `None`: it is unknown.
fn in_file_system(path: &Path, places: &[Mount]) -> Option<(u64, PathBuf)> {
    let fd = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let id = procfs::mount_id(&fd).ok()?;
    let place = places.iter().find(|place| place.id == id)?;
    let below = path.strip_prefix(&place.at).ok()?;
    Some((place.device, place.root.join(below)))
}

/// Whether a file is in a directory of its file system, whichever mounts lead to both.  Both paths
/// are whole, and without symlinks.
pub fn lies_in(file: &Path, directory: &Path) -> bool {
    let places = places();
    let of = |path| in_file_system(path, &places);
    let (Some((device, file)), Some((other, directory))) = (of(file), of(directory)) else {
        return file.starts_with(directory);
    };
    device == other && file.starts_with(directory)
}

impl UnixTree {
    /// Like [`mark::find`], for a tree that is not inside a marked one, as far as is known.
    pub fn find_mark(&self) -> std::result::Result<Found, MarkError> {
        let found = mark::find(self)?;
        match self.above(|dir| mark::is_marked(self, dir)) {
            Ok(Some(directory)) => {
                Err(MarkError::Above { directory: directory.display().to_string() })
            }
            Ok(None) => Ok(found),
            Err(cause) => Err(MarkError::Tree { what: "look for", cause }),
        }
    }

    /// A directory above the root for which this holds, or which is a tree that is mounted
    /// over itself; as far up as the file system, the mounts of this namespace and the
    /// process's rights reach.
    fn above(&self, is: impl Fn(&Node) -> Result<bool>) -> Result<Option<PathBuf>> {
        let holds = |node: &Node| match is(node) {
            Err(Errno::ACCESS) => Ok(false),
            holds => holds,
        };
        let mut at = self.root.clone();
        let mut path = self.path.as_path();
        while let Ok(fd) = fs::openat(at.fd()?, "..", DIRECTORY, Mode::empty()) {
            let Some(node) = self.of_this(fd)?.filter(|node| node.ino() != at.ino()) else { break };
            (at, path) = (node, path.parent().unwrap_or(path));
            if holds(&at)? {
                return Ok(Some(path.into()));
            }
        }
        self.above_the_mount(&holds)
    }

    fn of_this(&self, fd: OwnedFd) -> Result<Option<Node>> {
        let stat = fs::fstat(&fd)?;
        let same = stat.st_dev == self.device;
        Ok(same.then(|| Node::new(&self.cache, fd, &stat, false)))
    }

    /// Looks for such a directory among those that the mount of the tree does not show.
    fn above_the_mount(&self, holds: &impl Fn(&Node) -> Result<bool>) -> Result<Option<PathBuf>> {
        let places = places();
        let root = self.root.fd()?;
        let id = procfs::mount_id(&root).map_err(|_| Errno::OPNOTSUPP)?;
        let Some(own) = places.iter().find(|p| p.id == id) else { return Ok(None) };
        for place in &places {
            let mounted = tree_mounted_over_itself(place, &places, own.device);
            if mounted.is_some_and(|tree| own.root.starts_with(&tree)) {
                return Ok(Some(place.at.clone()));
            }
            let shows_more = place.device == own.device && place.root != own.root;
            let Some(inner) = own.root.strip_prefix(&place.root).ok().filter(|_| shows_more) else {
                continue;
            };
            if let Some(found) = self.on_the_way(place, inner, holds)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// From the root of a mount to one that shows less, without that.
    fn on_the_way(
        &self,
        place: &Mount,
        inner: &Path,
        holds: &impl Fn(&Node) -> Result<bool>,
    ) -> Result<Option<PathBuf>> {
        let (mut next, mut path) = (open(place), place.at.clone());
        for name in inner {
            // Something is mounted over it, or it cannot be searched.
            let Ok(fd) = next else { break };
            let Some(node) = self.of_this(fd)? else { break };
            if holds(&node)? {
                return Ok(Some(path));
            }
            next = fs::openat(node.fd()?, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            path.push(name);
        }
        Ok(None)
    }
}
