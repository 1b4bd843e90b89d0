// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directories above a tree in its file system, also where the mount by which it is
//! reached shows a part of the file system only (`mount --bind`).

use std::ffi::OsString;
use std::fs as files;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{open_tree, OpenTreeFlags};

use super::{Node, UnixTree};
use crate::tree::Result;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A mount of this process's namespace.
#[derive(Debug)]
struct Place {
    id: u64,
    parent: u64,
    device: String,
    /// The part of its file system that the mount shows, and the mountpoint.
    root: PathBuf,
    at: PathBuf,
    kind: String,
    source: PathBuf,
}

/// The kernel writes a space, a tab, a newline and a backslash in octal.
fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let octal = |d: &[u8]| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok();
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

impl Place {
    /// Parses a line of mountinfo.
    fn of(line: &str) -> Option<Place> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let (id, parent) = (mount.next()?.parse().ok()?, mount.next()?.parse().ok()?);
        let device = mount.next()?.into();
        let (root, at) = (unescaped(mount.next()?), unescaped(mount.next()?));
        let mut file_system = file_system.split(' ');
        let (kind, source) = (file_system.next()?.into(), unescaped(file_system.next()?));
        Some(Place { id, parent, device, root, at, kind, source })
    }

    /// If this is a mount of a tree of this file system over itself: its place in the file
    /// system.
    fn tree_mounted_over_itself(&self, places: &[Place], device: &str) -> Option<PathBuf> {
        let below = places.iter().find(|p| p.id == self.parent && p.device == device)?;
        let over_itself = self.kind == "fuse.forebay" && self.source == self.at;
        over_itself.then(|| below.root.join(self.at.strip_prefix(&below.at).unwrap_or(&self.at)))
    }

    /// Opens the mount without other mounts in it, if this process may do that.
    fn open(&self) -> Result<OwnedFd> {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(fs::CWD, &self.at, clone)
            .or_else(|_| fs::open(&self.at, DIRECTORY, Mode::empty()))
    }
}

/// The mounts of this process's namespace.  No file system is asked, so a server that does not
/// answer is no obstacle.
fn places() -> Vec<Place> {
    let mounts = files::read("/proc/self/mountinfo").unwrap_or_default();
    // Another's mount may have a name that is not UTF-8.
    let lines = mounts.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
    lines.filter_map(|line| Place::of(&line)).collect()
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

/// A file system whose requests a FUSE server answers is mounted somewhere in this process's
/// namespace.
pub fn any_mount_of_fuse() -> bool {
    let is_fuse =
        |kind: &str| kind.starts_with("fuse.") || ["fuse", "fuseblk", "virtiofs"].contains(&kind);
    places().iter().any(|place| is_fuse(&place.kind))
}

/// The tree that is mounted there, as this process's namespace shows it.
pub fn tree_mounted_at(mountpoint: &Path) -> Option<PathBuf> {
    let is_there = |p: &Place| p.kind == "fuse.forebay" && p.at == mountpoint;
    // The last one lies over the others.
    places().into_iter().rfind(is_there).map(|place| place.source)
}

/// The device and the path in its file system of what a path leads to.  `None`: it is unknown.
fn in_file_system(path: &Path, places: &[Place]) -> Option<(String, PathBuf)> {
    let fd = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let id = fs::statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let place = places.iter().find(|place| place.id == id)?;
    let below = path.strip_prefix(&place.at).ok()?;
    Some((place.device.clone(), place.root.join(below)))
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
    /// A directory above the root for which this holds, or which is a tree that is mounted
    /// over itself; as far up as the file system, the mounts of this namespace and the
    /// process's rights reach.
    pub fn above(&self, is: impl Fn(&Node) -> Result<bool>) -> Result<Option<PathBuf>> {
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
        let id = fs::statx(&root, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        let Some(own) = places.iter().find(|p| p.id == id) else { return Ok(None) };
        for place in &places {
            let mounted = place.tree_mounted_over_itself(&places, &own.device);
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
        place: &Place,
        inner: &Path,
        holds: &impl Fn(&Node) -> Result<bool>,
    ) -> Result<Option<PathBuf>> {
        let (mut next, mut path) = (place.open(), place.at.clone());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        let line = "97 29 0:44 /a\\040b /mnt/x\\134 rw,relatime shared:1 master:7 - fuse.forebay /t\\011 rw";
        let place = Place::of(line).unwrap();
        assert_eq!((place.id, place.parent, &place.device[..]), (97, 29, "0:44"));
        assert_eq!((place.root, place.at), ("/a b".into(), "/mnt/x\\".into()));
        assert_eq!((&place.kind[..], place.source), ("fuse.forebay", "/t\t".into()));
        for cut in 0..line.len() - 4 {
            let _ = Place::of(&line[..cut]);
        }
        let all = files::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(all.lines().all(|line| Place::of(line).is_some()), "{all}");
    }
}
