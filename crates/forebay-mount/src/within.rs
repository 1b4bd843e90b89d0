// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount refuses files that it needs in its own tree or below its mountpoint.
//!
//! A pool in the tree that it serves is found by nobody while the tree is mounted over itself, and
//! programs can remove it.  An origin there would wait for the pool, and the pool for it.  What lies
//! below the mountpoint is hidden, and the sockets of servers, /dev/fuse, /proc and /sys are needed
//! while the tree is mounted.
//!
//! | | in the tree's file system, by any mount or link | by path, below the mountpoint |
//! |---|---|---|
//! | the pool, an origin of its volumes, the file below a loop device of these | refused | refused |
//! | the sockets, the state directory, /dev/fuse, /proc, /sys | allowed | refused |

use std::fs;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use forebay::{limit_way_out, procfs, runtime_dir, state_dir, Pool};

use crate::answer::answer;
use crate::replay::planted::{planted, Bug};
use crate::unix::lies_in;

/// The reason why a mount would keep its own server from working, and the way out.
pub(crate) struct Refusal {
    pub what: String,
    pub way_out: String,
}

/// Something that the server of a mount needs.
struct Need {
    what: String,
    path: PathBuf,
    way_out: &'static str,
    /// It may not lie in the tree either.
    apart: bool,
}

fn needs(pool: &Pool) -> Vec<Need> {
    const FOREBAY: &str = "mount a directory that does not hold it, or name another directory";
    let system = |path: &str| Need {
        what: "which every mount needs".into(),
        path: path.into(),
        way_out: "mount somewhere else: forebay mount POOL TREE MOUNTPOINT",
        apart: false,
    };
    let mut all: Vec<_> = ["/dev/fuse", "/proc", "/sys/fs/fuse"].map(system).into();
    if planted(Bug::SystemHidden) {
        all.clear();
    }
    all.push(Need {
        what: "the pool".into(),
        path: pool.path().into(),
        way_out: "move the pool out of it; if its log holds what the tree lacks, forebay replay \
                  POOL TREE comes first",
        apart: !planted(Bug::PoolWithin),
    });
    let volumes = pool.volumes();
    let holds_marks = !volumes.is_empty() || !pool.maps().is_empty();
    all.extend(volumes.into_iter().filter_map(|volume| {
        Some(Need {
            path: volume.origin_path.filter(|path| path.starts_with('/'))?.into(),
            what: format!("the origin of its volume {}", volume.name),
            way_out: "use another pool for the volume, or mount another directory",
            apart: !planted(Bug::OriginWithin),
        })
    }));
    let sockets = "where the servers of pools are found (FOREBAY_RUNTIME_DIR)";
    all.push(Need { what: sockets.into(), path: runtime_dir(), way_out: FOREBAY, apart: false });
    if holds_marks && !planted(Bug::MarksHidden) {
        let marks = "where marks of origins are (FOREBAY_STATE_DIR)";
        all.push(Need { what: marks.into(), path: state_dir(), way_out: FOREBAY, apart: false });
    }
    all
}

/// Refuses a mount of the tree that would hide or hold what its server needs.  Nothing is changed.
/// No dead mount may be in the way.
pub(crate) fn check(pool: &Pool, tree: &Path, mountpoint: &Path) -> Result<(), Refusal> {
    for need in needs(pool) {
        let (path, apart) = (need.path.clone(), need.apart);
        let (in_tree, below) = (tree.to_path_buf(), mountpoint.to_path_buf());
        // The disk of an origin may hang.
        let found = answer(move || Ok(find(&path, &in_tree, &below, apart)));
        if let Some((at, wrong)) = found.map_err(|e| unseen(&need, &e))? {
            let (at, what, way_out) = (at.display(), need.what, need.way_out.into());
            let what = match wrong {
                Wrong::InTree => format!("{at}, {what}, lies in the tree {}", tree.display()),
                Wrong::Hidden => {
                    format!("a mount at {} would hide {at}, {what}", mountpoint.display())
                }
            };
            return Err(Refusal { what, way_out });
        }
    }
    Ok(())
}

/// What cannot be seen may lie in the tree.
fn unseen(need: &Need, cause: &std::io::Error) -> Refusal {
    let what = format!("{}, {}, cannot be looked at: {cause}", need.path.display(), need.what);
    let way_out = limit_way_out(cause).unwrap_or("see that its disk or server answers");
    Refusal { what, way_out: way_out.into() }
}

enum Wrong {
    InTree,
    Hidden,
}

fn find(path: &Path, tree: &Path, mountpoint: &Path, apart: bool) -> Option<(PathBuf, Wrong)> {
    files_of(path).into_iter().find_map(|at| match () {
        () if apart && lies_in(&at, tree) => Some((at, Wrong::InTree)),
        () if at.starts_with(mountpoint) => Some((at, Wrong::Hidden)),
        () => None,
    })
}

/// The path without symlinks, as far as it is there; and what a loop device has below it.
fn files_of(path: &Path) -> Vec<PathBuf> {
    if planted(Bug::PathAsWritten) {
        return vec![path.into()];
    }
    let Some(path) = present(path) else { return Vec::new() };
    let below = fs::metadata(&path).ok().filter(|found| found.file_type().is_block_device());
    let below = below.and_then(|found| {
        let (major, minor) =
            (rustix::fs::major(found.st_rdev()), rustix::fs::minor(found.st_rdev()));
        let told = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
        present(&procfs::name(told).ok()?)
    });
    std::iter::once(path).chain(below).collect()
}

/// A file that will be made in a directory counts as one that is there.
fn present(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|at| {
        let found = at.canonicalize().ok()?;
        let rest = path.strip_prefix(at).ok()?;
        // An empty rest would add a slash.
        Some(if rest.as_os_str().is_empty() { found } else { found.join(rest) })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use forebay::{create, CreateOptions, NewVolume, PoolOptions};

    use super::*;
    use crate::replay::planted::{plant, OF_NEEDS};

    /// Each mount, and the reason why it is refused; "": it is not.
    fn judge(pool: &Pool, other: &Pool, dir: &Path) -> Result<(), String> {
        let tree = &dir.join("tree");
        let state = &present(&state_dir()).expect("it has a root");
        for (pool, at, says) in [
            (pool, tree.as_path(), "the pool, lies in the tree"),
            (pool, &dir.join("at"), "the pool, lies in the tree"),
            (other, tree, "the origin of its volume v, lies in the tree"),
            (other, &dir.join("at"), "the origin of its volume v, lies in the tree"),
            (pool, Path::new("/dev"), "would hide /dev/fuse"),
            (pool, Path::new("/proc"), "would hide /proc"),
            (pool, Path::new("/sys"), "would hide /sys/fs/fuse"),
        ] {
            let told = check(pool, tree, at).map_err(|refusal| refusal.what);
            if !told.as_ref().is_err_and(|what| what.contains(says)) {
                return Err(format!(
                    "a mount at {} is not refused: {says}: {told:?}",
                    at.display()
                ));
            }
        }
        let empty = &dir.join("empty");
        let hidden = check(other, empty, &dir.join("apart")).map_err(|refusal| refusal.what);
        if !hidden.is_err_and(|what| what.contains("would hide")) {
            return Err("a mount over the pool is not refused".into());
        }
        let hidden = check(other, empty, state).map_err(|refusal| refusal.what);
        if !hidden.is_err_and(|what| what.contains("where marks of origins are")) {
            return Err("a mount over the marks is not refused".into());
        }
        check(other, empty, empty).map_err(|refusal| refusal.what)
    }

    #[test]
    fn what_cannot_be_looked_at_is_named() {
        let path = "/far/origin".into();
        let need =
            Need { path, what: "the origin of its volume v".into(), way_out: "", apart: true };
        let refusal = unseen(&need, &std::io::ErrorKind::TimedOut.into());
        let says = "/far/origin, the origin of its volume v, cannot be looked at: timed out";
        assert_eq!(refusal.what, says);
    }

    #[test]
    fn what_a_mount_needs_lies_neither_in_its_tree_nor_below_it() {
        let dir = forebay_test::memory().join(format!("fby-needs-{}", std::process::id()));
        for name in ["tree/sub", "at", "apart", "empty"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let dir = dir.canonicalize().unwrap();
        let pool = |path: PathBuf| {
            let size_bytes = Some(32 << 20);
            create(&path, &CreateOptions { size_bytes, ..Default::default() }).unwrap();
            Pool::open(&path, &PoolOptions::default()).unwrap()
        };
        let (within, other) = (pool(dir.join("tree/sub/pool")), pool(dir.join("apart/pool")));
        let origin = dir.join("tree/origin");
        fs::write(&origin, vec![0; 1 << 20]).unwrap();
        let new = NewVolume { name: "v".into(), origin, ..Default::default() };
        other.volume_add(&new).unwrap();
        judge(&within, &other, &dir).unwrap();
        for bug in OF_NEEDS {
            plant(Some(bug));
            let found = judge(&within, &other, &dir);
            plant(None);
            println!("{bug:?}: {}", found.expect_err("it was not found"));
        }
        drop((within, other));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn whichever_path_leads_there() {
        let dir = std::env::temp_dir().join(format!("fby-within-{}", std::process::id()));
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        let dir = dir.canonicalize().unwrap();
        let tree = dir.join("tree");
        fs::write(tree.join("sub/pool"), "").unwrap();
        fs::write(dir.join("pool"), "").unwrap();
        symlink(tree.join("sub"), dir.join("link")).unwrap();
        symlink(dir.join("pool"), tree.join("out")).unwrap();
        let (at, mut mistaken) = (dir.join("at"), 0);
        for (path, mountpoint, expected) in [
            ("tree/sub/pool", &at, Some("tree/sub/pool")),
            ("tree/sub/../sub/pool", &at, Some("tree/sub/pool")),
            ("link/pool", &tree, Some("tree/sub/pool")),
            ("link/new/deep", &tree, Some("tree/sub/new/deep")),
            ("pool", &tree, None),
            ("tree/out", &tree, None),
            ("tree-other/pool", &tree, None),
            ("pool", &dir, Some("pool")),
        ] {
            let found = || find(&dir.join(path), &tree, mountpoint, true).map(|found| found.0);
            let expected = expected.map(|path| dir.join(path));
            assert_eq!(found(), expected, "{path}");
            plant(Some(Bug::PathAsWritten));
            mistaken += u32::from(found() != expected);
            plant(None);
        }
        assert!(mistaken > 0, "a path that is taken as it is written was not found");
        // A mount over a file only hides it.
        assert!(find(&tree.join("sub/pool"), &tree, &at, false).is_none());
        assert!(find(&tree.join("sub/pool"), &tree, &tree, false).is_some());
        fs::remove_dir_all(dir).unwrap();
    }
}
