// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts whose server has died.  They hide what lies below them until somebody removes them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::answer::asked;
use crate::replay::planted::{planted, Bug};
use crate::unix::tree_mounted_at;
use crate::unmounting::take_away;

/// Why a mount does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It is a FUSE mount whose server died.
    Dead,
    /// No answer came for 10 s.
    Silent,
}

/// Asks what is mounted at the path, if anything is.
pub fn unanswered(path: &Path) -> Option<Unanswered> {
    match is_dead(path) {
        Ok(true) => Some(Unanswered::Dead),
        Ok(false) => None,
        Err(_) => Some(Unanswered::Silent),
    }
}

/// Whether the path is, or is below, a FUSE mount whose server died.  An error says that no answer
/// came: any further look at the path would wait without a limit.
pub fn is_dead(path: &Path) -> io::Result<bool> {
    match asked(path) {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(e),
        _ => Ok(false),
    }
}

/// Removes a dead mount, which hides the directory below it.
pub fn clear_dead_mount(path: &Path) -> io::Result<()> {
    for _ in 0..16 {
        if !is_dead(path)? {
            break;
        }
        take_away(path, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Removes the dead mounts of a tree, or at the mountpoint, that hide these or the pool: before any
/// of them is looked at.  Dead mounts of other trees stay: programs must not use those before their
/// replay.
pub fn clear_dead_mounts(pool: &Path, tree: &Path, mountpoint: &Path) -> io::Result<()> {
    let all = [tree, mountpoint, pool];
    // Each round removes one.
    let rounds = if planted(Bug::OneDeadMount) { 1 } else { 16 };
    for _ in 0..rounds {
        let mut dead = is_dead(tree)? && !planted(Bug::DeadOverTree);
        dead = dead || is_dead(pool)? && !planted(Bug::DeadOverPool);
        if mountpoint != tree {
            dead = dead || is_dead(mountpoint)?;
        }
        if !dead {
            break;
        }
        let [tree, mountpoint, pool] = all.map(resolved);
        let is_ours = |at: &PathBuf| {
            [&tree.path, &mountpoint.path].contains(&at)
                || tree_mounted_at(at).is_some_and(|of| of == tree.path)
                || planted(Bug::DeadOfOthers)
        };
        let dead = [&tree, &mountpoint, &pool].into_iter().filter_map(|of| of.dead.as_ref());
        let Some(at) = dead.into_iter().find(|at| is_ours(at)) else { break };
        clear_dead_mount(at)?;
    }
    Ok(())
}

/// A path without symlinks, as far as a dead mount on the way lets that be seen.
struct Resolved {
    path: PathBuf,
    /// The mountpoint of that.
    dead: Option<PathBuf>,
}

fn resolved(path: &Path) -> Resolved {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    // Each round follows a symlink, as many as the kernel follows.
    for _ in 0..40 {
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        let first = ancestors.into_iter().find_map(|at| Some((at, unanswered(at)?)));
        let at = match first {
            Some((at, Unanswered::Dead)) => at,
            // Any look below it would hang.
            Some((_, Unanswered::Silent)) => return Resolved { path, dead: None },
            None => break,
        };
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { break };
        let (Ok(parent), Ok(rest)) = (parent.canonicalize(), path.strip_prefix(at)) else { break };
        // An empty rest would add a slash.
        let join = |at: PathBuf| if rest.as_os_str().is_empty() { at } else { at.join(rest) };
        let at = parent.join(name);
        match at.read_link() {
            Ok(target) => path = join(parent.join(target)),
            Err(_) => return Resolved { path: join(at.clone()), dead: Some(at) },
        }
    }
    Resolved { path: path.canonicalize().unwrap_or(path), dead: None }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::fd::AsRawFd as _;

    use rustix::mount::{mount, MountFlags};

    use super::*;
    use crate::replay::planted::{plant, OF_DEAD};

    /// Mounts a tree whose server ends before it has served anything.
    fn dead_mount(tree: &Path, at: &Path) -> io::Result<()> {
        let device = fs::File::options().read(true).write(true).open("/dev/fuse")?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = CString::new(options).expect("no zero");
        Ok(mount(tree, at, "fuse.forebay", MountFlags::NODEV | MountFlags::NOSUID, &*options)?)
    }

    /// The places, relative to the directory: dead mounts with their trees; the pool, the tree and
    /// the mountpoint that are asked for; the dead mounts that stay.
    struct Case {
        dead: &'static [(&'static str, &'static str)],
        asked: [&'static str; 3],
        stays: &'static [&'static str],
    }

    const CASES: [Case; 6] = [
        Case { dead: &[("tree", "tree")], asked: ["pool", "tree", "tree"], stays: &[] },
        Case { dead: &[("tree", "at")], asked: ["pool", "tree", "at"], stays: &[] },
        Case { dead: &[("tree", "tree")], asked: ["tree/pool", "tree", "at"], stays: &[] },
        // The pool alone lies below one.
        Case { dead: &[("tree", "at")], asked: ["at/pool", "tree", "tree"], stays: &[] },
        Case { dead: &[("other", "at")], asked: ["at/pool", "tree", "tree"], stays: &["at"] },
        // By a symlink, and several.
        Case {
            dead: &[("tree", "at"), ("tree", "tree"), ("tree", "tree"), ("other", "other")],
            asked: ["link/pool", "tree", "tree"],
            stays: &["other"],
        },
    ];

    fn judge(dir: &Path, case: &Case) -> Result<(), String> {
        let [pool, tree, mountpoint] = case.asked.map(|name| dir.join(name));
        for (tree, at) in case.dead {
            dead_mount(&dir.join(tree), &dir.join(at)).expect("mount");
        }
        let cleared = clear_dead_mounts(&pool, &tree, &mountpoint).map_err(|e| e.to_string());
        let places = ["tree", "at", "other"];
        let left: Vec<_> =
            places.into_iter().filter(|at| is_dead(&dir.join(at)).expect("an answer")).collect();
        for place in places {
            clear_dead_mount(&dir.join(place)).expect("umount");
        }
        cleared?;
        let asked = case.asked;
        match left == case.stays {
            true => Ok(()),
            false => Err(format!("{:?}, {asked:?}: dead are {left:?}", case.dead)),
        }
    }

    #[test]
    fn dead_mounts_of_a_tree_are_removed_and_no_others() {
        let dir = std::env::temp_dir().join(format!("fby-dead-{}", std::process::id()));
        for name in ["tree", "at", "other"] {
            fs::create_dir_all(dir.join(name)).expect("a directory");
        }
        let dir = dir.canonicalize().expect("it is there");
        std::os::unix::fs::symlink(dir.join("at"), dir.join("link")).expect("a symlink");
        let tried = dead_mount(&dir.join("tree"), &dir.join("tree"));
        if let Err(e) = tried {
            fs::remove_dir_all(&dir).expect("what the test made");
            forebay_test::skipped!("no FUSE mount by mount(2): {e}");
            return;
        }
        clear_dead_mount(&dir.join("tree")).expect("umount");
        for case in &CASES {
            judge(&dir, case).expect("without a mistake");
        }
        for bug in OF_DEAD {
            plant(Some(bug));
            let found = CASES.iter().find_map(|case| judge(&dir, case).err());
            plant(None);
            println!("{bug:?}: {}", found.expect("it was not found"));
        }
        fs::remove_dir_all(&dir).expect("what the test made");
    }
}
