// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a start that fails leaves the tree, the log and the mountpoint as they were.  Method: each
//! thread of a mount in turn cannot be started.  A process of its own mounts: one has the rights of
//! one server, and other tests are of those.

use std::fs;
use std::process::Command;

use forebay::{create, CreateOptions, PoolOptions};

use super::*;

#[test]
fn a_start_without_one_of_its_threads_leaves_nothing() {
    const ALONE: &str = "FOREBAY_TEST_MOUNT_ALONE";
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return forebay_test::skipped!("needs root and /dev/fuse");
    }
    if std::env::var_os(ALONE).is_none() {
        let test = "mount::tests::a_start_without_one_of_its_threads_leaves_nothing";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ran = alone.args(["--exact", test]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let dir = std::env::temp_dir().join(format!("forebay-mount-threads-{}", std::process::id()));
    let (tree, at, path) = (dir.join("tree"), dir.join("at"), dir.join("pool"));
    [&tree, &at].into_iter().for_each(|path| fs::create_dir_all(path).unwrap());
    let size = CreateOptions {
        size_bytes: Some(16 << 20),
        chunk_size_bytes: 256 << 10,
        ..Default::default()
    };
    create(&path, &size).unwrap();
    let pool = Pool::open(&path, &PoolOptions::default()).unwrap();
    let options = MountOptions::default();
    let mut names = Vec::new();
    for failing in 0.. {
        names.clear();
        let mut start = |name, run| {
            names.push(name);
            match names.len() > failing {
                true => Err(Errno::AGAIN.into()),
                false => start_thread(name, run),
            }
        };
        let started = Mount::start_with(&pool, &tree, &at, &options, &mut || false, &mut start);
        let Err(e) = started else {
            started.unwrap().unmount(false).unwrap();
            break;
        };
        let which = names.last().unwrap();
        assert!(matches!(e, MountError::Mount { .. }), "{which}: {e}");
        assert!(!crate::is_mounted_at(&at), "{which}");
        assert_eq!(fs::read_dir(&tree).unwrap().count(), 0, "{which}: the mark is left");
        let log = pool.log_info(&options.log).unwrap();
        assert_eq!(log.state, LogState::None, "{which}");
        fs::read_dir(&at).unwrap();
    }
    assert_eq!(names.len(), 5, "{names:?}");
    pool.close().unwrap();
    fs::remove_dir_all(dir).unwrap();
}

/// A log in memory, and one on a disk with capacitors, take names; any other does if that is wanted.
#[test]
fn a_slow_log_takes_names_only_if_that_is_wanted() {
    let us = |n| Some(Duration::from_micros(n));
    let usual = MountOptions::default();
    let wanted = MountOptions { slow_log: true, ..usual.clone() };
    let at_sync = MountOptions { names_at_sync: true, ..usual.clone() };
    let read_only = MountOptions { read_only: true, ..usual.clone() };
    for (takes, options, refused) in [
        (None, &usual, None),
        (us(15), &usual, None),
        (us(200), &usual, None),
        (us(201), &usual, us(201)),
        (us(3000), &usual, us(3000)),
        (us(3000), &wanted, None),
        (us(3000), &at_sync, None),
        (us(3000), &read_only, None),
    ] {
        assert_eq!(too_slow(takes, options), refused, "{takes:?} {options:?}");
    }
}
