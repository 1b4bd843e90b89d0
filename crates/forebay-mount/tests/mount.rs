// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree mounted and used, as root, where FUSE is at hand.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay::{create, CreateOptions, LogState, Pool, PoolOptions};
use forebay_mount::recover::{Claims, Recovery};
use forebay_mount::replay::{Accept, ReplayOptions};
use forebay_mount::{Mount, MountError, MountOptions};

/// A child that was forked holds the files and locks of all tests until its program runs: who
/// starts children is alone.
static CHILDREN: RwLock<()> = RwLock::new(());

#[allow(dead_code)]
enum Beside {
    Others(RwLockReadGuard<'static, ()>),
    Nobody(RwLockWriteGuard<'static, ()>),
}

struct Bed {
    dir: PathBuf,
    pool: Option<Pool>,
    _beside: Beside,
}

impl Bed {
    /// `None`, and said so: FUSE cannot be used here.
    fn new(name: &str) -> Option<Bed> {
        Bed::beside(name, Beside::Others(CHILDREN.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// For a test that starts children.
    fn alone(name: &str) -> Option<Bed> {
        Bed::beside(name, Beside::Nobody(CHILDREN.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn beside(name: &str, beside: Beside) -> Option<Bed> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            forebay_test::skipped!("{name} needs root and /dev/fuse");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("forebay-mount-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("tree")).unwrap();
        fs::create_dir_all(dir.join("at")).unwrap();
        let size = CreateOptions {
            size_bytes: Some(16 << 20),
            chunk_size_bytes: 256 << 10,
            ..Default::default()
        };
        create(&dir.join("pool"), &size).unwrap();
        let pool = Pool::open(&dir.join("pool"), &PoolOptions::default()).unwrap();
        Some(Bed { dir, pool: Some(pool), _beside: beside })
    }

    fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    fn at(&self) -> PathBuf {
        self.dir.join("at")
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    /// As after a restart of the server.
    fn reopen(&mut self) {
        self.pool.take().unwrap().close().unwrap();
        self.pool = Some(Pool::open(&self.dir.join("pool"), &PoolOptions::default()).unwrap());
    }

    fn start(&self, at: &Path, options: &MountOptions) -> Mount {
        self.try_start(&self.tree(), at, options).unwrap()
    }

    fn try_start(
        &self,
        tree: &Path,
        at: &Path,
        options: &MountOptions,
    ) -> Result<Mount, MountError> {
        Mount::start(self.pool(), tree, at, options, &mut || false)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The tree's own sync does not come while a test runs.
fn nothing_synced() -> MountOptions {
    let long = std::time::Duration::from_secs(600);
    MountOptions { sync_interval: long, ..Default::default() }
}

fn used(at: &Path) {
    fs::create_dir(at.join("d")).unwrap();
    let mut file = File::create_new(at.join("d/a")).unwrap();
    file.write_all(b"first").unwrap();
    file.sync_all().unwrap();
    fs::rename(at.join("d/a"), at.join("b")).unwrap();
    fs::hard_link(at.join("b"), at.join("d/c")).unwrap();
    symlink("c", at.join("d/s")).unwrap();
    assert_eq!(fs::read(at.join("d/s")).unwrap(), b"first");
    file.write_all_at(b"second", 100_000).unwrap();
    file.sync_data().unwrap();
    file.set_len(100_003).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 2);
    let mut end = String::new();
    file = File::open(at.join("d/c")).unwrap();
    file.seek(SeekFrom::Start(100_000)).unwrap();
    file.read_to_string(&mut end).unwrap();
    assert_eq!(end, "sec");
    fs::write(at.join("gone"), vec![7; 3 << 20]).unwrap();
    File::open(at.join("gone")).unwrap().sync_all().unwrap();
    fs::remove_file(at.join("gone")).unwrap();
    assert_eq!(fs::remove_dir(at.join("d")).unwrap_err().raw_os_error(), Some(39));
    let mut names: Vec<_> =
        fs::read_dir(at.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["c", "s"]);
}

fn as_it_should_be(tree: &Path) {
    assert_eq!(fs::read_link(tree.join("d/s")).unwrap(), Path::new("c"));
    let meta = fs::metadata(tree.join("b")).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o7777, meta.nlink()), (100_003, 0o640, 2));
    let content = fs::read(tree.join("d/c")).unwrap();
    assert_eq!((&content[..5], &content[100_000..]), (&b"first"[..], &b"sec"[..]));
    assert!(!tree.join("gone").exists());
}

#[test]
fn what_is_done_in_the_mount_is_in_the_tree() {
    let Some(bed) = Bed::new("used") else { return };
    for write_back in [false, true] {
        let options = MountOptions { write_back, ..Default::default() };
        let mount = bed.start(&bed.at(), &options);
        used(&bed.at());
        let status = mount.status();
        assert!(status.syncs >= 3 && status.real_syncs >= 1, "{status:?}");
        assert_eq!(status.failure, None);
        mount.sync().unwrap();
        assert_eq!(mount.status().groups_unsynced, 0);
        mount.unmount(false).unwrap();
        assert_eq!(bed.pool().log_info("mount").unwrap().state, LogState::None);
        as_it_should_be(&bed.tree());
        fs::remove_dir_all(bed.tree()).unwrap();
        fs::create_dir(bed.tree()).unwrap();
    }
}

#[test]
fn over_itself_it_is_in_the_way_until_it_ends() {
    let Some(bed) = Bed::new("over") else { return };
    fs::write(bed.tree().join("before"), "there").unwrap();
    let mount = bed.start(&bed.tree(), &MountOptions::default());
    assert_eq!(fs::read(bed.tree().join("before")).unwrap(), b"there");
    used(&bed.tree());
    let open = File::open(bed.tree().join("b")).unwrap();
    let busy = mount.unmount(false).unwrap_err();
    assert!(matches!(busy, MountError::Busy { .. }), "{busy}");
    drop(open);
    mount.unmount(false).unwrap();
    as_it_should_be(&bed.tree());
}

#[test]
fn what_is_kept_in_the_log_is_asked_for_before_the_next_mount() {
    let Some(mut bed) = Bed::new("kept") else { return };
    let options = nothing_synced();
    let mount = bed.start(&bed.at(), &options);
    used(&bed.at());
    assert_eq!(mount.status().groups_synced, 0);
    mount.unmount(true).unwrap();
    drop(mount);
    let info = bed.pool().log_info("mount").unwrap();
    assert!(info.state == LogState::Logging && info.entries > 0, "{info}");
    let refused = bed.try_start(&bed.tree(), &bed.at(), &options).unwrap_err();
    assert!(refused.to_string().contains("replay"), "{refused}");
    bed.reopen();
    replayed(&bed);
    let mount = bed.start(&bed.at(), &options);
    as_it_should_be(&bed.at());
    mount.unmount(false).unwrap();
}

/// The pool opened anew, and its log replayed onto the tree: how many actions that took.
fn replayed(bed: &Bed) -> usize {
    let recovery = Recovery {
        pool: bed.pool(),
        claims: &Claims::default(),
        tree: &bed.tree(),
        log: "mount",
        options: ReplayOptions::default(),
        dry_run: false,
    };
    let done = recovery.run(&mut |_, _| ());
    let report = done.unwrap().expect("entries");
    assert!(report.is_certain(), "{report:?}");
    assert_eq!(bed.pool().log_info("mount").unwrap().state, LogState::None);
    report.actions.len()
}

/// The server stays: its pool is not opened anew.
#[test]
fn what_is_kept_is_replayed_by_the_same_server() {
    let Some(bed) = Bed::new("same") else { return };
    let mount = bed.start(&bed.at(), &nothing_synced());
    used(&bed.at());
    mount.unmount(true).unwrap();
    drop(mount);
    for name in ["d", "b"] {
        let _ = fs::remove_dir_all(bed.tree().join(name));
        let _ = fs::remove_file(bed.tree().join(name));
    }
    assert!(replayed(&bed) > 0);
    as_it_should_be(&bed.tree());
}

/// A log's entries that were claimed are those of its period, and of no later one.
#[test]
fn what_was_claimed_is_not_replayed_in_the_next_period() {
    let Some(bed) = Bed::new("period") else { return };
    let recovery = |claims, dry_run| {
        let options = ReplayOptions::default();
        Recovery { pool: bed.pool(), claims, tree: &bed.tree(), log: "mount", options, dry_run }
            .run(&mut |_, _| ())
            .unwrap()
            .expect("entries")
    };
    let (first, second) = (Claims::default(), Claims::default());
    for (name, claims) in [("one", &second), ("two", &first)] {
        let mount = bed.start(&bed.at(), &nothing_synced());
        fs::write(bed.at().join(name), name).unwrap();
        File::open(bed.at().join(name)).unwrap().sync_all().unwrap();
        mount.unmount(true).unwrap();
        drop(mount);
        fs::remove_file(bed.tree().join(name)).unwrap();
        let report = recovery(&first, true);
        assert!(report.actions.iter().any(|a| a.path == name), "{name}: {report:?}");
        recovery(claims, false);
        assert_eq!(fs::read(bed.tree().join(name)).unwrap(), name.as_bytes());
    }
}

/// Bytes of the pool's file are changed: what the log lacks is not passed over in silence.
#[test]
fn a_log_that_is_damaged_is_replayed_by_order_alone() {
    let Some(mut bed) = Bed::new("damaged") else { return };
    let mount = bed.start(&bed.at(), &nothing_synced());
    for name in ["a", "b", "c", "d"] {
        fs::write(bed.at().join(name), format!("the content of {name}")).unwrap();
        File::open(bed.at().join(name)).unwrap().sync_all().unwrap();
    }
    mount.unmount(true).unwrap();
    drop(mount);
    bed.pool.take().unwrap().close().unwrap();
    let path = bed.dir.join("pool");
    let mut bytes = fs::read(&path).unwrap();
    let wanted = b"the content of b";
    let at = bytes.windows(wanted.len()).position(|w| w == wanted).unwrap();
    bytes[at] ^= 1;
    File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
    bed.pool = Some(Pool::open(&path, &PoolOptions::default()).unwrap());
    let recovery = |accept| {
        let options = ReplayOptions { accept, ..ReplayOptions::default() };
        let (claims, tree) = (&Claims::default(), &bed.tree());
        Recovery { pool: bed.pool(), claims, tree, log: "mount", options, dry_run: false }
            .run(&mut |_, _| ())
    };
    let refused = recovery(Accept::default()).unwrap_err();
    assert!(refused.to_string().contains("log mount"), "{refused}");
    assert_ne!(bed.pool().log_info("mount").unwrap().state, LogState::None);
}

/// The server stops what has ended by itself, and a client stops it too.
#[test]
fn what_is_kept_stays_so() {
    let Some(bed) = Bed::new("stays") else { return };
    let mount = bed.start(&bed.at(), &nothing_synced());
    used(&bed.at());
    mount.unmount(true).unwrap();
    mount.abandon(false).unwrap();
    let info = bed.pool().log_info("mount").unwrap();
    assert!(info.state == LogState::Logging && info.entries > 0, "{info}");
}

/// Another tree would get what is this one's, and the log would be destroyed.
#[test]
fn a_log_that_is_in_use_is_not_replayed() {
    let Some(bed) = Bed::new("in-use") else { return };
    let mount = bed.start(&bed.at(), &nothing_synced());
    used(&bed.at());
    let other = bed.dir.join("other");
    fs::create_dir(&other).unwrap();
    let recovery = Recovery {
        pool: bed.pool(),
        claims: &Claims::default(),
        tree: &other,
        log: "mount",
        options: ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() },
        dry_run: false,
    };
    let refused = recovery.run(&mut |_, _| ()).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    let info = bed.pool().log_info("mount").unwrap();
    assert!(info.state == LogState::Logging && info.entries > 0, "{info}");
    mount.unmount(false).unwrap();
}

/// All entries are of one group; the tree is put back to where it was before the mount,
/// as a power cut may leave it.
#[test]
fn a_tree_that_lost_everything_is_made_again_from_the_log() {
    let Some(mut bed) = Bed::new("lost") else { return };
    let options = nothing_synced();
    let mount = bed.start(&bed.at(), &options);
    used(&bed.at());
    mount.unmount(true).unwrap();
    drop(mount);
    bed.reopen();
    for name in ["d", "b"] {
        let _ = fs::remove_dir_all(bed.tree().join(name));
        let _ = fs::remove_file(bed.tree().join(name));
    }
    assert!(replayed(&bed) > 0);
    as_it_should_be(&bed.tree());
    assert_eq!(fs::read_dir(bed.tree()).unwrap().count(), 2);
}

/// Nobody asks for a sync; what goes round write(2) is in it too.
#[test]
fn with_log_writes_a_write_is_durable_when_it_returns() {
    let Some(mut bed) = Bed::new("log-writes") else { return };
    for write_back in [false, true] {
        let options = MountOptions { log_writes: true, write_back, ..nothing_synced() };
        let mount = bed.start(&bed.at(), &options);
        // The kernel may write back by several requests at a time, and no more than 1 MiB of a file
        // is logged at a time.
        let bytes = if write_back { 3 << 18 } else { 3 << 19 };
        let large: Vec<u8> = (0..bytes).map(|i| (i / 512) as u8).collect();
        let file = File::create_new(bed.at().join("written")).unwrap();
        file.write_all_at(b"never synced", 0).unwrap();
        file.write_all_at(&large, 4096).unwrap();
        let copy = File::create_new(bed.at().join("copied")).unwrap();
        if write_back {
            file.sync_all().unwrap();
        }
        rustix::fs::copy_file_range(&file, None, &copy, None, 4096).unwrap();
        assert_eq!(mount.status().real_syncs, 0);
        drop((file, copy));
        mount.unmount(true).unwrap();
        drop(mount);
        bed.reopen();
        for name in ["written", "copied"] {
            fs::remove_file(bed.tree().join(name)).unwrap();
        }
        assert!(replayed(&bed) > 0);
        let (written, copied) = (bed.tree().join("written"), bed.tree().join("copied"));
        let head = [&b"never synced"[..], &[0; 4096 - 12]].concat();
        assert_eq!(fs::read(&copied).unwrap(), head);
        assert!(fs::read(&written).unwrap() == [head, large].concat());
        fs::remove_file(written).unwrap();
        fs::remove_file(copied).unwrap();
    }
}

/// Returns the result of `run`, or fails the test if it hangs.  The time allows for a busy
/// machine.
fn bounded<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    let limit = std::time::Duration::from_secs(20);
    result.recv_timeout(limit).unwrap_or_else(|_| panic!("{what}: it hangs"))
}

#[test]
fn a_mount_in_use_can_be_abandoned() {
    let Some(bed) = Bed::new("abandoned") else { return };
    let mount = bed.start(&bed.at(), &MountOptions::default());
    let mut file = File::create_new(bed.at().join("open")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    bounded("to abandon a mount that is in use", move || mount.abandon(false)).unwrap();
    assert_eq!(fs::read(bed.tree().join("open")).unwrap(), b"synced");
    // The log is gone: nothing may be told to be durable any more.
    let late = file.write_all(b"late").and_then(|()| file.sync_all());
    assert!(late.is_err());
}

/// umount(8) knows of a mount until it ends, whatever ends it.  A line that a killed server left is
/// taken over, and that of another mount at the same place stays.
#[test]
fn umount_knows_of_no_mount_that_has_ended() {
    const NAMES: [&str; 4] = ["unmounted", "abandoned", "in use", "left by a killed server"];
    let Some(bed) = Bed::alone("known") else { return };
    let lines = || {
        // A path of another mount may be no UTF-8.
        let utab = fs::read("/run/mount/utab").unwrap_or_default();
        let utab = String::from_utf8_lossy(&utab);
        let target = format!(" TARGET={} ", bed.at().display());
        utab.lines().filter(|line| line.contains(&target)).map(str::to_string).collect::<Vec<_>>()
    };
    let run = |program: &str, args: &[&str], places: &[&Path]| {
        let mut command = std::process::Command::new(program);
        assert!(command.args(args).args(places).status().unwrap().success());
    };
    let fake = ["-i", "-f", "--no-canonicalize", "-t", "fuse.forebay", "-o", "uhelper=forebay"];
    for how in NAMES {
        if how == NAMES[3] {
            run("mount", &fake, &[&bed.tree(), &bed.at()]);
        }
        let mount = bed.start(&bed.at(), &MountOptions::default());
        if lines().is_empty() {
            mount.unmount(false).unwrap();
            return forebay_test::skipped!("/run/mount/utab cannot be written here");
        }
        assert_eq!(lines().len(), 1, "{how}: {:?}", lines());
        let open = (how == NAMES[2]).then(|| File::create_new(bed.at().join("open")).unwrap());
        match how {
            "abandoned" | "in use" => mount.abandon(false).unwrap(),
            _ => mount.unmount(false).unwrap(),
        }
        assert_eq!(lines(), [""; 0], "{how}");
        drop(open);
    }
    run("mount", &fake, &[&bed.dir.join("another"), &bed.at()]);
    bed.start(&bed.at(), &MountOptions::default()).unmount(false).unwrap();
    let left = lines();
    run("umount", &["-i", "--fake", "--no-canonicalize"], &[&bed.at()]);
    assert!(left.len() == 1 && left[0].contains("/another "), "{left:?}");
}

#[test]
fn what_cannot_be_mounted_leaves_no_log_behind() {
    let Some(bed) = Bed::new("nowhere") else { return };
    fs::write(bed.dir.join("file"), b"precious").unwrap();
    for name in ["nowhere", "file"] {
        let at = bed.dir.join(name);
        let started = bed.try_start(&bed.tree(), &at, &MountOptions::default());
        assert!(matches!(started, Err(MountError::Mount { .. })), "{name}: {started:?}");
        assert_eq!(bed.pool().log_info("mount").unwrap().state, LogState::None, "{name}");
    }
    bed.start(&bed.at(), &MountOptions::default()).unmount(false).unwrap();
}

/// A replay that was cut off knows by its list which inodes the tree had lost.
#[test]
fn a_mount_that_is_refused_leaves_the_replays_list() {
    let Some(bed) = Bed::new("list") else { return };
    let options = nothing_synced();
    let mount = bed.start(&bed.at(), &options);
    used(&bed.at());
    mount.unmount(true).unwrap();
    drop(mount);
    let list = bed.tree().join(".forebay-replay/gone");
    fs::create_dir(list.parent().unwrap()).unwrap();
    fs::write(&list, "of the replay").unwrap();
    bed.try_start(&bed.tree(), &bed.at(), &options).unwrap_err();
    assert_eq!(fs::read(&list).unwrap(), b"of the replay");
}

/// Runs a program as a user other than root.
fn as_nobody(program: &str, args: &[&str]) -> std::process::Output {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new(program);
    command.args(args).uid(65534).gid(65534).output().unwrap()
}

#[test]
fn who_changes_a_program_of_root_does_not_run_it_as_root() {
    let Some(bed) = Bed::alone("set-id") else { return };
    let mount = bed.start(&bed.at(), &MountOptions::default());
    let program = bed.at().join("id");
    let shown = program.to_str().unwrap();
    let privileged = || fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).unwrap();
    let user = || String::from_utf8(as_nobody(shown, &["-u"]).stdout).unwrap();
    fs::copy("/usr/bin/id", &program).unwrap();
    let size = fs::metadata(&program).unwrap().len();
    let of = format!("of={shown}");
    let seek = format!("seek={size}");
    privileged();
    assert_eq!(user(), "0\n");
    let dd = ["if=/dev/zero", &of, &seek, "bs=1", "count=1", "conv=notrunc"];
    assert!(as_nobody("dd", &dd).status.success());
    assert_eq!(user(), "65534\n", "after a write");
    privileged();
    assert_eq!(user(), "0\n");
    assert!(as_nobody("fallocate", &["-o", "0", "-l", "1", shown]).status.success());
    assert_eq!(user(), "65534\n", "after fallocate");
    mount.unmount(false).unwrap();
}

/// Two logs would each know half of what was done.
#[test]
fn a_tree_is_mounted_once_at_a_time() {
    let Some(bed) = Bed::new("twice") else { return };
    let mount = bed.start(&bed.at(), &MountOptions::default());
    let elsewhere = bed.dir.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let other = MountOptions { log: "other".into(), ..Default::default() };
    let second = bed.try_start(&bed.tree(), &elsewhere, &other);
    let told = second.map(|second| second.unmount(false).unwrap()).unwrap_err();
    assert!(told.to_string().contains("mounted already"), "{told}");
    mount.unmount(false).unwrap();
    let again = bed.start(&elsewhere, &other);
    again.unmount(false).unwrap();
}

/// The kernel does not forward syncfs to FUSE servers: what is said to be synced is not.
#[test]
fn a_tree_on_a_mount_is_refused() {
    let Some(bed) = Bed::new("fuse") else { return };
    let mount = bed.start(&bed.at(), &MountOptions::default());
    let (inner, there) = (bed.at().join("inner"), bed.dir.join("there"));
    fs::create_dir(&inner).unwrap();
    fs::create_dir(&there).unwrap();
    let other = MountOptions { log: "other".into(), ..Default::default() };
    let second = bed.try_start(&inner, &there, &other);
    let told = second.map(|second| second.unmount(false).unwrap()).unwrap_err();
    assert!(told.to_string().contains("FUSE"), "{told}");
    mount.unmount(false).unwrap();
}

/// Another log may hold what it lacks.
#[test]
fn a_directory_that_is_marked_is_not_entered() {
    let Some(bed) = Bed::new("marked") else { return };
    let mount = bed.start(&bed.at(), &MountOptions::default());
    fs::create_dir(bed.at().join("d")).unwrap();
    symlink("{}", bed.tree().join("d/.forebay-mount")).unwrap();
    assert!(fs::metadata(bed.at().join("d")).is_ok(), "the kernel knows it still");
    mount.unmount(false).unwrap();
    let mount = bed.start(&bed.at(), &MountOptions::default());
    const EBUSY: Option<i32> = Some(16);
    assert_eq!(fs::metadata(bed.at().join("d")).unwrap_err().raw_os_error(), EBUSY);
    let inner = bed.tree().join("d/e");
    fs::create_dir(&inner).unwrap();
    mount.unmount(false).unwrap();
    let refused = bed.try_start(&inner, &bed.at(), &MountOptions::default());
    let told = refused.map(|mount| mount.unmount(false).unwrap()).unwrap_err();
    assert!(told.to_string().contains("is marked"), "{told}");
}

/// Who is asked to end before the first answer leaves nothing: no mount, no mark, and a log that the
/// next mount begins with.
#[test]
fn an_interrupted_start_leaves_nothing() {
    let Some(bed) = Bed::new("interrupted") else { return };
    let mut asked = 0;
    let mut interrupted = || {
        asked += 1;
        true
    };
    let options = nothing_synced();
    let started =
        Mount::start(bed.pool(), &bed.tree(), &bed.at(), &options, &mut interrupted).map(drop);
    let e = started.expect_err("it is interrupted");
    assert!(matches!(e, MountError::Interrupted { .. }), "{e}");
    assert_eq!(asked, 1);
    assert!(!forebay_mount::is_mounted_at(&bed.at()));
    let left: Vec<_> = fs::read_dir(bed.tree()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    let mount = bed.start(&bed.at(), &nothing_synced());
    assert!(forebay_mount::is_mounted_at(&bed.at()), "a mount is seen where there is one");
    fs::write(bed.at().join("file"), b"there").unwrap();
    mount.unmount(false).unwrap();
    assert_eq!(fs::read(bed.tree().join("file")).unwrap(), b"there");
}

/// Programs go on with a mount that somebody has unmounted lazily: who unmounts it is told why it has
/// not ended, and it ends by itself when they do.
#[test]
fn a_mount_that_is_unmounted_and_in_use_is_waited_for() {
    let Some(bed) = Bed::alone("waits") else { return };
    let mount = bed.start(&bed.at(), &nothing_synced());
    let mut file = File::create_new(bed.at().join("file")).unwrap();
    let lazily = std::process::Command::new("umount").arg("-l").arg(bed.at()).status().unwrap();
    assert!(lazily.success());
    let waits = mount.unmount(false).expect_err("a program has a file of it open");
    assert!(matches!(waits, MountError::Waits { .. }), "{waits}");
    let words = waits.to_string();
    assert!(words.contains("has not ended it: programs have files of it open"), "{words}");
    // They may still write.
    file.write_all(b"since").unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.unmount(false).unwrap();
    assert_eq!(fs::read(bed.tree().join("file")).unwrap(), b"since");
}
