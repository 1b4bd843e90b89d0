// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount from its start, which replays the log, to its end, which writes everything to the
//! tree.

mod opening;
mod threads;
mod without_log;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay::{LogOptions, LogState, Pool};
use fuser::{Session, SessionUnmounter};
use rustix::io::Errno;
use rustix::mount::{unmount, UnmountFlags};
use serde::{Deserialize, Serialize};

use crate::answer::{answer, answered, ask};
use crate::attach::{attach, register, unregister, waiting};
use crate::cut_off::{self, WRITE_BACK_WAIT};
use crate::dead::clear_dead_mount;
use crate::front::{threads, AtEnd, Front, Helpers, TreeLive};
use crate::known::{self, Known, Place, ABORT_WAIT};
use crate::latency::Latency;
use crate::live::{Live, LiveOptions};
use crate::log::PoolJournal;
use crate::mark::{self, Mark, MarkError};
use crate::needs;
use crate::notified::Kernel;
use crate::options::{MountOptions, SLOW_LOG};
use crate::tree::Tree;
use crate::unmounting::{take_away, take_away_soon};
pub(crate) use opening::{open_tree, NoTree};
use threads::{start_thread, StartThread};
pub use without_log::Completion;

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{path}: {cause}")]
    Tree { path: String, cause: io::Error },
    #[error("cannot mount at {path}: {cause}")]
    Mount { path: String, cause: io::Error },
    #[error("{0}")]
    Pool(#[from] forebay::Error),
    #[error(
        "log {log} of the pool holds what {tree} does not have yet: replay it first \
         (forebay replay)"
    )]
    Replay { log: String, tree: String },
    #[error(
        "{pool}: a durable write to its disk takes at least {} us. Each file that is created, renamed \
         or removed waits for one, and each file of an unpacked archive for three, however fast the \
         disk of {tree} is", .takes.as_micros()
    )]
    SlowLog { pool: String, tree: String, takes: Duration },
    #[error("{tree}: {cause}")]
    Mark { tree: String, cause: MarkError },
    #[error("{mountpoint}: {cause}; entries stay in log {log}, and the next mount replays them")]
    Failed { mountpoint: String, log: String, cause: String },
    #[error(
        "{mountpoint}: {cause}; {tree} is complete, with everything that was acknowledged: use it \
         as it is, or mount it by another pool. If this pool reappears, its log is dropped"
    )]
    WithoutLog { mountpoint: String, tree: String, cause: String },
    #[error(
        "{mountpoint} is unmounted here, but not in another mount namespace{}: end the \
         process that holds it, or unmount it there (nsenter -m -t PID umount {mountpoint}). Until \
         then the server serves it; then it syncs the tree",
        if .by.is_empty() { String::new() } else { format!(", of {}", .by.join(", ")) }
    )]
    Held { mountpoint: String, by: Vec<String> },
    #[error(
        "{mountpoint} is unmounted, but the mount is bound elsewhere, too: umount {}. Until then the \
         server serves it; then it syncs the tree", .at.join(" ")
    )]
    Bound { mountpoint: String, at: Vec<String> },
    #[error("{mountpoint} is unmounted, but the server has not ended it: {cause}")]
    Waits { mountpoint: String, cause: String },
    #[error(
        "{mountpoint}: bytes that programs had written when it was ended, and that no sync covers, \
         are lost: {cause}"
    )]
    Lost { mountpoint: String, cause: String },
    #[error(
        "{mountpoint}: its session ended while it was mounted or in use: {cause}; programs had \
         errors, and what was logged is in the tree"
    )]
    Session { mountpoint: String, cause: String },
    #[error(
        "interrupted: {mountpoint} had not answered yet, and nothing is mounted there; what its \
         log holds is replayed by the next mount"
    )]
    Interrupted { mountpoint: String },
    #[error("{mountpoint} is in use: {cause}; end what uses it (fuser -vm {mountpoint})")]
    Busy { mountpoint: String, cause: io::Error },
}

impl MountError {
    fn of_mark(tree: &Path, cause: MarkError) -> MountError {
        match cause {
            MarkError::Pool(e) => e.into(),
            cause => MountError::Mark { tree: name(tree), cause },
        }
    }
}

/// The state of a mount, ready for JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    pub tree: String,
    pub mountpoint: String,
    pub log: String,
    pub read_only: bool,
    /// fsync, fdatasync, and the requests that the kernel makes for msync and O_SYNC.
    pub syncs: u64,
    /// Large ones among them, which took the tree's own path.
    pub real_syncs: u64,
    /// The server's time for them, without that of FUSE.
    pub sync_p50_us: Option<f64>,
    pub sync_p99_us: Option<f64>,
    pub log_entries: u64,
    pub log_bytes: u64,
    /// Transaction groups synced in the tree.
    pub groups_synced: u64,
    pub groups_unsynced: u64,
    pub unsynced_bytes: u64,
    /// The age of the oldest change that is only in the log.
    pub unsynced_age_s: f64,
    /// How long a program has waited for space in the pool; 0: none waits.
    pub waits_for_space_s: f64,
    /// The reason why nothing is synced any more.
    pub failure: Option<String>,
    /// The log has failed, and not the tree.
    #[serde(default)]
    pub failure_of_log: bool,
    /// How far the tree is then.
    #[serde(default)]
    pub completion: Completion,
    /// The reason why the session ended without an unmount.
    #[serde(default)]
    pub session_failure: Option<String>,
}

/// A mounted tree.
#[derive(Debug)]
pub struct Mount {
    live: Arc<TreeLive>,
    latency: Arc<Latency>,
    options: MountOptions,
    tree: PathBuf,
    mountpoint: PathBuf,
    /// `None`: the mount could not be looked at when it was shown.
    known: Option<Arc<Known>>,
    kernel: Arc<Kernel>,
    unmounter: Mutex<SessionUnmounter>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ended: Arc<Ended>,
    /// The reason why the session ended without an unmount.
    session_failure: Arc<OnceLock<String>>,
    /// This server ends the mount, even if it is in use.
    cuts_off: Arc<AtomicBool>,
    /// The mount was ready for its users.  A failure before that is reported to the one who
    /// mounts.
    begun: Arc<AtomicBool>,
    finishing: Arc<AtomicBool>,
    /// umount(8) has a line about it that is ours.
    registered: AtomicBool,
    end: Mutex<End>,
    completion: Mutex<Completion>,
}

/// The end of the session, by an unmount or a failure.
#[derive(Debug, Default)]
struct Ended {
    is_set: Mutex<bool>,
    set: Condvar,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        *self.lock() = true;
        self.set.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Waits for the end; `true`: it has come.
    fn wait(&self, limit: Duration) -> bool {
        let waited = self.set.wait_timeout_while(self.lock(), limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A session that has not answered a request yet.
struct Shown {
    session: Session<Front>,
    acts: Arc<OnceLock<bool>>,
    at_end: AtEnd,
    helpers: Helpers,
}

/// The progress of the end of a mount.  The server that notices an unmount ends the mount, and
/// so does the one who unmounts.
#[derive(Debug, Default)]
struct End {
    /// The mount is gone from this namespace.
    unmounted: bool,
    finished: bool,
}

/// How long a mount or a replay waits for a mount that is about to end.
pub const ENDING_WAIT: Duration = Duration::from_secs(10);

/// How long other mount namespaces may take to follow an unmount.
const HELD_WAIT: Duration = Duration::from_secs(5);

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// Raises the limits: each inode may take a descriptor, and files may have any size.  The
/// kernel has checked the caller's limit, and a write above the server's own limit would end
/// the server.
pub(crate) fn raise_limits() {
    forebay::raise_open_files();
    forebay::raise_file_size();
}

/// Cleans up after a session without a server: waiting requests get an error, and a visible
/// mount is removed.  Returns the reason why the session failed.
fn clear_failed(ran: io::Result<()>, known: Option<&Known>, mountpoint: &Path) -> String {
    const ABORTED: &str =
        "the kernel ended its connection (umount -f, or an abort in /sys/fs/fuse/connections)";
    if let Some(known) = known {
        known.abort();
    }
    let force = UnmountFlags::FORCE | UnmountFlags::DETACH;
    let left = match known.map_or(Place::Ours, |known| known.place(mountpoint)) {
        Place::Ours => {
            drop(take_away(mountpoint, force));
            ""
        }
        Place::Covered => "; it is left below what is mounted over it: unmount both",
        Place::Bound => "; it is left where it was bound (mount --bind): unmount that",
        Place::Other => "",
    };
    let aborted = ran.is_ok() || known::was_aborted(&ran);
    let cause = ran.err().filter(|_| !aborted).map(|e| e.to_string());
    cause.unwrap_or_else(|| ABORTED.into()) + left
}

fn session_error(mountpoint: &Path, cause: &str) -> MountError {
    MountError::Session { mountpoint: name(mountpoint), cause: cause.into() }
}

/// Refuses a disk on which each change of a name would wait for long, unless that is wanted.  The
/// pool was opened by durable writes.  A log that is there has been mounted, and is again: a disk
/// may be slower at a busy boot.
fn names_are_fast(pool: &Pool, tree: &Path, options: &MountOptions) -> Result<(), MountError> {
    match too_slow(pool.durable_write(), options) {
        Some(takes) => {
            let pool = name(pool.path());
            Err(MountError::SlowLog { pool, tree: name(tree), takes })
        }
        None => Ok(()),
    }
}

/// Memory has no time.
fn too_slow(takes: Option<Duration>, options: &MountOptions) -> Option<Duration> {
    let wait = !options.slow_log && !options.names_at_sync && !options.read_only;
    takes.filter(|takes| *takes > SLOW_LOG && wait)
}

/// Ends the period.  Everything that the log holds is in the tree and synced there.
fn end_period(live: &TreeLive, read_only: bool) -> Result<(), MountError> {
    let destroy = || live.journal().log().destroy().map(drop);
    match read_only {
        // It has set no mark, and changes nothing in the tree.
        true => destroy().map_err(MountError::Pool),
        false => {
            mark::end(live.tree(), destroy).map_err(|e| MountError::of_mark(live.tree().path(), e))
        }
    }
}

impl Mount {
    /// Mounts a tree whose log holds nothing (see [`crate::recover`]), over itself if the
    /// mountpoint is the tree.  While it waits for the tree or for the first answer, it asks
    /// whether it is interrupted.
    pub fn start(
        pool: &Pool,
        tree: &Path,
        mountpoint: &Path,
        options: &MountOptions,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Mount, MountError> {
        Mount::start_with(pool, tree, mountpoint, options, interrupted, &mut start_thread)
    }

    fn start_with(
        pool: &Pool,
        tree: &Path,
        mountpoint: &Path,
        options: &MountOptions,
        interrupted: &mut dyn FnMut() -> bool,
        start_thread: &mut StartThread<'_>,
    ) -> Result<Mount, MountError> {
        let tree_error = |cause| MountError::Tree { path: name(tree), cause };
        let mount_error = |cause| MountError::Mount { path: name(mountpoint), cause };
        let mark_error = |cause| MountError::of_mark(tree, cause);
        clear_dead_mount(tree).map_err(tree_error)?;
        clear_dead_mount(mountpoint).map_err(mount_error)?;
        raise_limits();
        needs::probe(threads(waiting())).map_err(mount_error)?;

        let below = open_tree(tree, interrupted).map_err(|e| match e {
            NoTree::Interrupted => MountError::Interrupted { mountpoint: name(mountpoint) },
            NoTree::Failed(cause) => tree_error(cause),
        })?;
        let found = below.find_mark().map_err(mark_error)?;
        if let Err(forebay::Error::NoLog { .. }) = pool.log_info(&options.log) {
            names_are_fast(pool, tree, options)?;
            pool.log_add(&options.log, forebay::LogHome::Embedded)?;
        }
        let log = pool.log(&options.log, &LogOptions::default())?;
        let info = log.info()?;
        mark::judge(&found, pool.uuid(), &options.log, info.guid).map_err(mark_error)?;
        if info.state != LogState::None {
            return Err(MountError::Replay { log: options.log.clone(), tree: name(tree) });
        }
        // An earlier replay may have ended just before this step.
        crate::replay::tidy(&below).map_err(|e| tree_error(io::Error::other(e)))?;
        let live_options = LiveOptions {
            interval: options.sync_interval,
            bytes: options.sync_bytes,
            names_at_sync: options.names_at_sync && log.is_on_disk(),
            ..LiveOptions::default()
        };
        let journal = PoolJournal::new(log.clone())?;
        let live = Live::new(below, journal, info.synced_txg, live_options)
            .map_err(|e| tree_error(e.into()))?;
        let live = Arc::new(live);
        let create = || Ok(log.create(info.synced_txg)?.guid());
        // Everything that was there before is durable when it returns, so the log begins with
        // nothing to replay.
        let begun = match options.read_only {
            true => create()
                .map_err(MountError::Pool)
                .and_then(|_| live.tree().sync_all().map_err(|e| tree_error(e.into()))),
            false => {
                let ahead = live.asks_names_at_sync();
                let mark = || Ok(Mark::new(pool, &options.log, create()?, ahead));
                let begun = mark::begin(live.tree(), info.synced_txg, mark);
                begun.map(|group| live.bear(group)).map_err(mark_error)
            }
        };
        let shown = begun.and_then(|()| Mount::show(live.clone(), mountpoint, options));
        let (mount, shown) = match shown {
            Ok(shown) => shown,
            Err(e) => {
                // The log is empty.
                let _ = end_period(&live, options.read_only);
                return Err(e);
            }
        };
        let begun = mount.spawn(shown, pool.pages(), start_thread);
        let begun = begun.and_then(|()| mount.answers(interrupted));
        let failed = match begun {
            Ok(Some(())) => None,
            Ok(None) => Some(MountError::Interrupted { mountpoint: name(mountpoint) }),
            Err(e) => Some(mount_error(e)),
        };
        if let Some(e) = failed {
            mount.give_up();
            return Err(e);
        }
        mount.begun.store(true, Ordering::Relaxed);
        mount.register();
        Ok(mount)
    }

    /// No program has written anything.
    fn give_up(&self) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        self.force_end();
        // A disk that has not answered would not take the end of the period either: the next mount
        // finds a log without entries.
        let keep = !self.ended();
        let _ = self.finish(keep, &mut end);
    }

    /// The session answers; `None`: that was interrupted.
    fn answers(&self, interrupted: &mut dyn FnMut() -> bool) -> io::Result<Option<()>> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let told = ask(&self.mountpoint)?;
        let ended = || match (self.session_failure.get(), self.ended()) {
            (Some(cause), _) => Some(io::Error::other(cause.clone())),
            (None, true) => Some(io::Error::other("somebody unmounted it at once")),
            (None, false) => None,
        };
        let slow = || {
            let (mountpoint, tree) = (self.mountpoint.display(), self.tree.display());
            forebay::diagnostics::warn(format_args!(
                "forebay: {mountpoint}: the first answer takes more than {PATIENCE:?}: the disk of \
                 {tree} is slow or hangs; waiting"
            ));
        };
        answered(&told, ended, interrupted, PATIENCE, slow)
    }

    fn register(&self) {
        let (tree, at) = (self.tree.clone(), self.mountpoint.clone());
        let added = answer(move || Ok(register(&tree, &at)));
        self.registered.store(added.unwrap_or_default(), Ordering::Relaxed);
    }

    /// `true`: umount(8) knew of this mount.
    fn unregister(&self) -> bool {
        let at = self.mountpoint.clone();
        let registered = self.registered.swap(false, Ordering::Relaxed);
        if registered {
            let _ = answer(move || {
                unregister(&at);
                Ok(())
            });
        }
        registered
    }

    /// Unmounts, if the mount is not in use.
    fn take_away(&self) -> io::Result<()> {
        let registered = self.unregister();
        take_away_soon(&self.mountpoint).inspect_err(|_| {
            if registered {
                self.register();
            }
        })
    }

    fn show(
        live: Arc<TreeLive>,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<(Mount, Shown), MountError> {
        let tree = live.tree().path().to_path_buf();
        let mount_error = |cause| MountError::Mount { path: name(mountpoint), cause };
        let latency = Arc::new(Latency::default());
        let front = Front::new(live.clone(), latency.clone(), options, waiting());
        let (kernel, acts, helpers) = (front.kernel(), front.acts(), front.helpers());
        let at_end = front.at_end();
        // The kernel would mount over a file and then show nothing.
        if !std::fs::metadata(mountpoint).map_err(mount_error)?.is_dir() {
            return Err(mount_error(Errno::NOTDIR.into()));
        }
        let mut session = attach(front, live.tree(), mountpoint, options).map_err(mount_error)?;
        // No one answers requests yet, and this call makes none.
        let known = Known::shown(mountpoint).ok().map(Arc::new);
        kernel.set(session.notifier(), known.clone());
        if let Some(known) = &known {
            known.read_ahead();
        }
        let mount = Mount {
            live,
            latency,
            options: options.clone(),
            tree,
            mountpoint: mountpoint.into(),
            known,
            kernel,
            unmounter: Mutex::new(session.unmount_callable()),
            threads: Mutex::default(),
            ended: Arc::default(),
            session_failure: Arc::default(),
            cuts_off: Arc::default(),
            begun: Arc::default(),
            finishing: Arc::default(),
            registered: AtomicBool::default(),
            end: Mutex::default(),
            completion: Mutex::default(),
        };
        Ok((mount, Shown { session, acts, at_end, helpers }))
    }

    pub fn tree(&self) -> &Path {
        &self.tree
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the session has ended.
    pub fn ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Writes everything in the log to the tree while the mount is in use.
    /// Without the log, completes the tree.
    pub fn sync(&self) -> Result<(), MountError> {
        match self.live.sync() {
            Ok(()) => Ok(()),
            Err(_) if self.is_without_log() => self.sync_without_log(),
            Err(_) => Err(self.failed()),
        }
    }

    fn cause(&self) -> String {
        self.live.failure().map_or("it failed".into(), ToString::to_string)
    }

    fn failed(&self) -> MountError {
        self.failed_by(self.cause())
    }

    fn failed_by(&self, cause: String) -> MountError {
        let (mountpoint, log) = (name(&self.mountpoint), self.options.log.clone());
        MountError::Failed { mountpoint, log, cause }
    }

    /// Unmounts, unless the mount is in use (or it is unmounted already), and writes everything
    /// in the log to the tree.  With `keep` the log stays for the next mount.
    pub fn unmount(&self, keep: bool) -> Result<(), MountError> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.ended() {
            let at = |cause| MountError::Busy { mountpoint: name(&self.mountpoint), cause };
            match self.place() {
                _ if end.unmounted => {}
                Place::Ours => self.take_away().map_err(at)?,
                Place::Covered => {
                    let cause = "something else is mounted over it; unmount that first";
                    return Err(at(io::Error::other(cause)));
                }
                Place::Other | Place::Bound => {}
            }
            end.unmounted = true;
            if !self.wait_for_end(HELD_WAIT) {
                return Err(self.held());
            }
        }
        self.finish(keep, &mut end)
    }

    /// Ends the mount together with the server: programs that use it get errors from then on.
    pub fn abandon(&self, keep: bool) -> Result<(), MountError> {
        self.abandon_within(keep, WRITE_BACK_WAIT)
    }

    /// Like `abandon`; `limit` is the time that the tree's disk may take for the pages that the
    /// kernel holds.
    pub fn abandon_within(&self, keep: bool, limit: Duration) -> Result<(), MountError> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match self.ended() {
            true => Ok(()),
            false => self.cut_off(limit),
        };
        self.finish(keep, &mut end).and(kept)
    }

    /// Takes over what programs have written.  The kernel refuses their later requests.
    fn cut_off(&self, limit: Duration) -> Result<(), MountError> {
        let mut kept = Ok(());
        if !self.options.read_only {
            let ours = self.place() == Place::Ours;
            let of = cut_off::Cut {
                live: self.live.clone(),
                kernel: self.kernel.clone(),
                known: self.known.clone(),
                mountpoint: ours.then(|| self.mountpoint.clone()),
            };
            kept = cut_off::write_back(of, limit);
            if let (true, Some(known)) = (kept.is_ok(), &self.known) {
                cut_off::wait_for_queue(known);
            }
        }
        self.force_end();
        kept.map_err(|cause| {
            let lost = MountError::Lost { mountpoint: name(&self.mountpoint), cause };
            // The message comes before steps that may wait for the same disk.
            forebay::diagnostics::warn(format_args!("forebay: {lost}"));
            lost
        })
    }

    /// Removes the mount, in use or not.
    fn cut_down(&self) {
        self.cuts_off.store(true, Ordering::Relaxed);
        if self.place() == Place::Ours && !self.ended() {
            let mut unmounter = self.unmounter.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
            let _ = unmounter.unmount();
        }
    }

    /// Makes the kernel refuse later requests of programs.
    fn force_end(&self) {
        self.cut_down();
        // While a program has a file open, the session goes on unless it is forced to end.
        if let (false, Some(known)) = (self.wait_for_end(ABORT_WAIT), &self.known) {
            known.abort();
            self.wait_for_end(ABORT_WAIT);
        }
    }

    /// The reason why the mount goes on after an unmount.
    fn held(&self) -> MountError {
        let mountpoint = name(&self.mountpoint);
        let bound = self.known.as_ref().map_or_else(Vec::new, |known| known.places());
        if !bound.is_empty() {
            let at = bound.iter().map(|at| forebay::quoted(at)).collect();
            return MountError::Bound { mountpoint, at };
        }
        let by = self.known.as_ref().map_or_else(Vec::new, |known| known.seen_by());
        if !by.is_empty() {
            return MountError::Held { mountpoint, by };
        }
        let gone = self.known.as_ref().is_none_or(|known| known.is_gone(&self.mountpoint));
        let cause = match gone {
            true => format!(
                "answers to what programs asked for wait for the disk of {}, or for space in the \
                 pool (see forebay status); it ends by itself when they are given",
                self.tree.display()
            ),
            false => "programs have files of it open (after umount -l), or have it in a mount \
                      namespace that this server may not look at; it ends by itself when they end"
                .into(),
        };
        MountError::Waits { mountpoint, cause }
    }

    /// An unmount works by path and must not remove another mount there.
    fn place(&self) -> Place {
        self.known.as_ref().map_or(Place::Ours, |known| known.place(&self.mountpoint))
    }

    /// Waits for the end; `true`: the mount is gone everywhere.
    fn wait_for_end(&self, limit: Duration) -> bool {
        self.ended.wait(limit)
    }

    /// The first caller decides about the log.
    fn finish(&self, keep: bool, end: &mut End) -> Result<(), MountError> {
        if std::mem::replace(&mut end.finished, true) {
            return match self.live.failure() {
                Some(_) if self.is_without_log() => Err(self.without_log()),
                Some(_) => Err(self.failed()),
                None => Ok(()),
            };
        }
        self.finishing.store(true, Ordering::Relaxed);
        match keep {
            true => self.live.leave(),
            false => self.live.end(),
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().name() != Some("mount-fuse") || self.ended() {
                let _ = thread.join();
            }
        }
        // The mount ended by another way than an unmount here.  What is mounted there since may be
        // registered by the same line.
        if !crate::is_mounted_at(&self.mountpoint) {
            self.unregister();
        }
        let ended = match (self.live.failure(), keep) {
            (Some(_), _) if self.is_without_log() => {
                self.complete_tree();
                Err(self.without_log())
            }
            (Some(_), _) => Err(self.failed()),
            (None, true) => Ok(()),
            (None, false) => end_period(&self.live, self.options.read_only),
        };
        self.live.tree().unlock();
        ended.and_then(|()| match self.session_failure.get() {
            None => Ok(()),
            Some(cause) => Err(session_error(&self.mountpoint, cause)),
        })
    }

    pub fn status(&self) -> MountStatus {
        let (counters, pending) = (&self.live.counters, self.live.pending());
        let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
        MountStatus {
            tree: name(&self.tree),
            mountpoint: name(&self.mountpoint),
            log: self.options.log.clone(),
            read_only: self.options.read_only,
            syncs: counters.syncs.load(Ordering::Relaxed),
            real_syncs: counters.real_syncs.load(Ordering::Relaxed),
            sync_p50_us: self.latency.below(500).map(us),
            sync_p99_us: self.latency.below(990).map(us),
            log_entries: counters.entries.load(Ordering::Relaxed),
            log_bytes: counters.bytes.load(Ordering::Relaxed),
            groups_synced: counters.groups.load(Ordering::Relaxed),
            groups_unsynced: pending.groups,
            unsynced_bytes: pending.bytes,
            unsynced_age_s: pending.age.as_secs_f64(),
            waits_for_space_s: self.live.waits_for_space().as_secs_f64(),
            failure: self.live.failure().map(ToString::to_string),
            failure_of_log: self.live.failure().is_some_and(|failure| failure.of_log),
            completion: self.completion(),
            session_failure: self.session_failure.get().cloned(),
        }
    }
}

#[cfg(test)]
mod tests;
