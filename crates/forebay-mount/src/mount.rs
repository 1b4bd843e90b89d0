// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount from its start, which replays, to its end, which brings everything home.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay::{LogOptions, LogState, Pages, Pool};
use fuser::{Notifier, Session, SessionUnmounter};
use rustix::io::Errno;
use rustix::mount::{unmount, UnmountFlags};
use rustix::process::{geteuid, getrlimit, setrlimit, Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::answer::{answer, answered};
use crate::attach::{attach, register, unregister, waiting, Flags};
use crate::cut_off::{self, WRITE_BACK_WAIT};
use crate::front::{threads, AtEnd, Front, Helpers, TreeLive};
use crate::holders;
use crate::known::{self, Known, Place, ABORT_WAIT};
use crate::latency::Latency;
use crate::live::{Live, LiveOptions};
use crate::log::PoolJournal;
use crate::mark::{self, Mark, MarkError};
use crate::needs;
use crate::rights;
use crate::tree::Tree;
use crate::unix::UnixTree;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The log of the pool that holds what the tree does not have yet; made if it is not
    /// there.
    pub log: String,
    pub read_only: bool,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// The kernel keeps what is written and not synced for a while: writes are faster, a
    /// sync takes a request more, and what is not synced is lost if the server dies.
    pub write_back: bool,
    /// What is written is durable when the write returns, and a sync asks for nothing.
    pub log_writes: bool,
    /// Besides those that the tree's own mount has.
    pub flags: Flags,
    /// How long a change may be in the log alone.
    pub sync_interval: Duration,
    /// How many bytes may be.
    pub sync_bytes: u64,
}

impl Default for MountOptions {
    fn default() -> Self {
        let live = LiveOptions::default();
        MountOptions {
            log: "mount".into(),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            write_back: false,
            log_writes: false,
            flags: Flags::default(),
            sync_interval: live.interval,
            sync_bytes: live.bytes,
        }
    }
}

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
    #[error("{tree}: {cause}")]
    Mark { tree: String, cause: MarkError },
    #[error("{mountpoint}: {cause}; entries stay in log {log}, and the next mount replays them")]
    Failed { mountpoint: String, log: String, cause: String },
    #[error(
        "{mountpoint} is unmounted here, but not in another mount namespace{}: end what holds \
         it, or unmount it there (nsenter -m -t PID umount {mountpoint}); it is served on until \
         then, and then brings home what is in the log",
        if .by.is_empty() { String::new() } else { format!(", of {}", .by.join(", ")) }
    )]
    Held { mountpoint: String, by: Vec<String> },
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

/// A mount as it is, ready for JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    pub tree: String,
    pub mountpoint: String,
    pub log: String,
    pub read_only: bool,
    /// fsync, fdatasync and what the kernel makes of msync and O_SYNC.
    pub syncs: u64,
    /// Of these, those that were large and went the tree's own way.
    pub real_syncs: u64,
    /// What the server took for them; what FUSE adds is not in it.
    pub sync_p50_us: Option<f64>,
    pub sync_p99_us: Option<f64>,
    pub log_entries: u64,
    pub log_bytes: u64,
    /// Transaction groups synced in the tree.
    pub groups_synced: u64,
    pub groups_unsynced: u64,
    pub unsynced_bytes: u64,
    /// Of the oldest change that is in the log alone.
    pub unsynced_age_s: f64,
    /// For how long a program has waited for space in the pool; 0: none does.
    pub waits_for_space_s: f64,
    /// Why nothing is synced any more.
    pub failure: Option<String>,
    /// Why the session ended, if nobody unmounted it.
    #[serde(default)]
    pub session_failure: Option<String>,
}

/// A tree that is mounted.
#[derive(Debug)]
pub struct Mount {
    live: Arc<TreeLive>,
    latency: Arc<Latency>,
    options: MountOptions,
    tree: PathBuf,
    mountpoint: PathBuf,
    /// `None`: it could not be looked at when it was shown.
    known: Option<Arc<Known>>,
    kernel: Arc<OnceLock<Notifier>>,
    unmounter: Mutex<SessionUnmounter>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The session is over: somebody unmounted it, or it failed.
    ended: Arc<(Mutex<bool>, Condvar)>,
    /// Why it ended, if nobody unmounted it.
    session_failure: Arc<OnceLock<String>>,
    /// This server ends it, whoever uses it.
    cuts_off: Arc<AtomicBool>,
    /// It was mounted for its users: who mounts it is told why it failed before.
    begun: Arc<AtomicBool>,
    finishing: Arc<AtomicBool>,
    /// umount(8) has a line of it that is ours.
    registered: AtomicBool,
    end: Mutex<End>,
}

/// A session of which no request is answered yet.
struct Shown {
    session: Session<Front>,
    acts: Arc<OnceLock<bool>>,
    at_end: AtEnd,
    helpers: Helpers,
}

/// How far its end is.  A server that sees that the mount is gone ends it, and so does who
/// took it away.
#[derive(Debug, Default)]
struct End {
    /// It is unmounted in this namespace.
    unmounted: bool,
    finished: bool,
}

/// How long one who mounts or replays waits for a mount that is about to end.
pub const ENDING_WAIT: Duration = Duration::from_secs(10);

/// How long other mount namespaces may take to follow an unmount.
const HELD_WAIT: Duration = Duration::from_secs(5);

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A FUSE mount whose server died.  Its attributes the kernel may still remember, but not how
/// much space it has.
pub fn is_dead(path: &Path) -> bool {
    let at = path.to_path_buf();
    let asked = answer(move || Ok(rustix::fs::statfs(at)?));
    asked.is_err_and(|e| e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
}

/// It is in the way of what is below it.
pub fn clear_dead_mount(path: &Path) -> io::Result<()> {
    for _ in 0..16 {
        if !is_dead(path) {
            break;
        }
        take_away(path, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// One who is not root mounts by fusermount3, which may unmount what is his, too.
fn take_away(path: &Path, how: UnmountFlags) -> io::Result<()> {
    match unmount(path, how) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    let flags = if how.contains(UnmountFlags::DETACH) { "-uz" } else { "-u" };
    let ran = Command::new("fusermount3").args([flags, "--"]).arg(path).output();
    let ran = ran.map_err(|e| io::Error::new(e.kind(), format!("fusermount3: {e}")))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_string())),
    }
}

/// A descriptor an inode: as many as may be.  And files of any size: the kernel has checked the
/// caller's limit, and a write beyond the server's own would end it.
pub(crate) fn raise_limits() {
    for what in [Resource::Nofile, Resource::Fsize] {
        let mut limit = getrlimit(what);
        limit.current = limit.maximum;
        let _ = setrlimit(what, limit);
    }
    if geteuid().is_root() {
        let _ = setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None });
    }
}

/// For one who mounts or replays: by one at a time, and on a file system that can be
/// synced.
pub(crate) fn open_tree(path: &Path) -> io::Result<UnixTree> {
    let tree = UnixTree::open(path)?;
    if tree.is_fuse()? {
        let what = "it is on a FUSE file system, which the kernel does not sync as a whole: \
                    mount the tree that lies below";
        return Err(io::Error::other(what));
    }
    lock(&tree).map_err(|e| match e {
        Errno::WOULDBLOCK => {
            let mut what = String::from("it is mounted already, or a replay onto it goes on");
            let by = holders::of_lock(tree.root().ino());
            if !by.is_empty() {
                what += &format!("; its lock is held by {}", by.join(", "));
            }
            io::Error::new(io::ErrorKind::ResourceBusy, what)
        }
        e => e.into(),
    })?;
    Ok(tree)
}

/// A mount that somebody unmounted holds its tree until that has everything.
fn lock(tree: &UnixTree) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match tree.lock() {
            Err(Errno::WOULDBLOCK)
                if begun.elapsed() < ENDING_WAIT && !crate::unix::is_mounted(tree.path()) =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            locked => return locked,
        }
    }
}

/// Nobody serves the mount any more: who waits for an answer is told, and the mount is taken away
/// if it is to be seen.  Says why the session failed.
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
        Place::Other => "",
    };
    let aborted = ran.is_ok() || known::was_aborted(&ran);
    let cause = ran.err().filter(|_| !aborted).map(|e| e.to_string());
    cause.unwrap_or_else(|| ABORTED.into()) + left
}

fn session_error(mountpoint: &Path, cause: &str) -> MountError {
    MountError::Session { mountpoint: name(mountpoint), cause: cause.into() }
}

/// All that the log holds is in the tree, and synced there.
fn end_period(live: &TreeLive) -> Result<(), MountError> {
    mark::end(live.tree(), || live.journal().log().destroy().map(drop))
        .map_err(|e| MountError::of_mark(live.tree().path(), e))
}

impl Mount {
    /// Mounts a tree whose log holds nothing (see [`crate::recover`]), over itself if the
    /// mountpoint is the tree.  While it waits for the first answer it asks whether it is
    /// interrupted.
    pub fn start(
        pool: &Pool,
        tree: &Path,
        mountpoint: &Path,
        options: &MountOptions,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Mount, MountError> {
        let tree_error = |cause| MountError::Tree { path: name(tree), cause };
        let mount_error = |cause| MountError::Mount { path: name(mountpoint), cause };
        let mark_error = |cause| MountError::of_mark(tree, cause);
        clear_dead_mount(tree).map_err(tree_error)?;
        clear_dead_mount(mountpoint).map_err(mount_error)?;
        raise_limits();
        needs::probe(threads(waiting())).map_err(mount_error)?;

        let below = open_tree(tree).map_err(tree_error)?;
        let found = mark::find_beside(&below).map_err(mark_error)?;
        if let Err(forebay::Error::NoLog { .. }) = pool.log_info(&options.log) {
            pool.log_add(&options.log, forebay::LogHome::Embedded)?;
        }
        let log = pool.log(&options.log, &LogOptions::default())?;
        let info = log.info()?;
        mark::judge(&found, pool.uuid(), &options.log, info.guid).map_err(mark_error)?;
        if info.state != LogState::None {
            return Err(MountError::Replay { log: options.log.clone(), tree: name(tree) });
        }
        // Of a replay that ended just before it would have done that.
        crate::replay::tidy(&below).map_err(|e| tree_error(io::Error::other(e)))?;
        let live_options = LiveOptions {
            interval: options.sync_interval,
            bytes: options.sync_bytes,
            ..LiveOptions::default()
        };
        let journal = PoolJournal::new(log.clone())?;
        let live = Live::new(below, journal, info.synced_txg, live_options)
            .map_err(|e| tree_error(e.into()))?;
        let live = Arc::new(live);
        let create = || Ok(log.create(info.synced_txg)?.guid());
        // What was there before is durable when it returns: the log begins with nothing
        // behind it.
        let begun = match options.read_only {
            true => create()
                .map_err(MountError::Pool)
                .and_then(|_| live.tree().sync_all().map_err(|e| tree_error(e.into()))),
            false => {
                let mark = || Ok(Mark::new(pool, &options.log, create()?));
                let begun = mark::begin(live.tree(), info.synced_txg, mark);
                begun.map(|group| live.bear(group)).map_err(mark_error)
            }
        };
        let shown = begun.and_then(|()| Mount::show(live.clone(), mountpoint, options));
        let (mount, shown) = match shown {
            Ok(shown) => shown,
            Err(e) => {
                // It holds nothing.
                let _ = end_period(&live);
                return Err(e);
            }
        };
        let begun = mount.spawn(shown, pool.pages()).and_then(|()| mount.answers(interrupted));
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

    /// Nobody has written anything.
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
        let (tell, told) = mpsc::channel();
        let at = self.mountpoint.clone();
        thread::Builder::new().spawn(move || tell.send(std::fs::metadata(at).map(drop)))?;
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

    /// Unmounts it, if nobody uses it.
    fn take_away(&self) -> io::Result<()> {
        let at = self.mountpoint.clone();
        let registered = self.registered.swap(false, Ordering::Relaxed);
        if registered {
            let _ = answer(move || {
                unregister(&at);
                Ok(())
            });
        }
        take_away(&self.mountpoint, UnmountFlags::empty()).inspect_err(|_| {
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
        // The kernel would mount it over a file, and show nothing.
        if !std::fs::metadata(mountpoint).map_err(mount_error)?.is_dir() {
            return Err(mount_error(Errno::NOTDIR.into()));
        }
        let mut session = attach(front, live.tree(), mountpoint, options).map_err(mount_error)?;
        let _ = kernel.set(session.notifier());
        // Nobody answers yet, and this asks nobody.
        let known = Known::shown(mountpoint).ok().map(Arc::new);
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
        };
        Ok((mount, Shown { session, acts, at_end, helpers }))
    }

    fn spawn(&self, shown: Shown, mut pages: Pages) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, helpers) = (self.live.clone(), shown.helpers.clone());
        // Who waits for the session waits for the helpers.
        thread::Builder::new().name("mount-helpers".into()).spawn(move || {
            rights::prepare(live.tree());
            drop(live);
            helpers.lead();
        })?;
        let (live, ended) = (self.live.clone(), self.ended.clone());
        let (known, mountpoint) = (self.known.clone(), self.mountpoint.clone());
        let (failure, cuts_off) = (self.session_failure.clone(), self.cuts_off.clone());
        let begun = self.begun.clone();
        threads.push(thread::Builder::new().name("mount-fuse".into()).spawn(move || {
            // The threads that answer requests are this one's.
            let _ = shown.acts.set(rights::prepare(live.tree()));
            drop(live);
            let aborted = Arc::new(OnceLock::new());
            let (of, at) = (known.clone(), mountpoint.clone());
            let own = cuts_off.clone();
            let look = move || known::is_aborted(of.as_deref(), &own, &at);
            let seen = aborted.clone();
            // When the threads have ended: the session then unmounts what fusermount3 has mounted.
            let _ = shown.at_end.set(Box::new(move || {
                let _ = seen.set(look());
            }));
            let ran = shown.session.run();
            let reported = known::was_aborted(&ran) && !cuts_off.load(Ordering::Relaxed);
            if reported || aborted.get().copied().unwrap_or(ran.is_err()) {
                let cause = clear_failed(ran, known.as_deref(), &mountpoint);
                if begun.load(Ordering::Relaxed) {
                    let told = session_error(&mountpoint, &cause);
                    forebay::diagnostics::warn(format_args!("forebay: {told}"));
                }
                let _ = failure.set(cause);
            }
            // What was asked for is done.
            shown.helpers.wait();
            *ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            ended.1.notify_all();
        })?);
        let live = self.live.clone();
        threads.push(
            thread::Builder::new().name("mount-sync".into()).spawn(move || live.background())?,
        );
        let (live, ended) = (self.live.clone(), self.ended.clone());
        let (known, mountpoint) = (self.known.clone(), self.mountpoint.clone());
        threads.push(thread::Builder::new().name("mount-beat".into()).spawn(move || {
            let second = Duration::from_secs(1);
            let over = || ended.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A mount that is abandoned may be in use for longer than it is served.
            while !*over() && live.beat() {
                drop(ended.1.wait_timeout_while(over(), second, |over| !*over));
                if let Some(known) = &known {
                    known.find_control(&mountpoint);
                }
            }
        })?);
        let finishing = self.finishing.clone();
        threads.push(thread::Builder::new().name("mount-pages".into()).spawn(move || {
            while !finishing.load(Ordering::Relaxed) && pages.map_next() {
                // A fifth of a CPU.
                thread::sleep(Duration::from_micros(200));
            }
        })?);
        Ok(())
    }

    pub fn tree(&self) -> &Path {
        &self.tree
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Somebody unmounted it.
    pub fn ended(&self) -> bool {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings home what is in the log, with the mount in use.
    pub fn sync(&self) -> Result<(), MountError> {
        self.live.sync().map_err(|_| self.failed())
    }

    fn failed(&self) -> MountError {
        let cause = self.live.failure().map_or("it failed".into(), ToString::to_string);
        let (mountpoint, log) = (name(&self.mountpoint), self.options.log.clone());
        MountError::Failed { mountpoint, log, cause }
    }

    /// Unmounts it, if nobody uses it (or it is unmounted already), and brings home what is
    /// in the log; with `keep` that stays there for the next mount.
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
                Place::Other => {}
            }
            end.unmounted = true;
            if !self.wait_for_end(HELD_WAIT) {
                return Err(self.held());
            }
        }
        self.finish(keep, &mut end)
    }

    /// The same for one who ends with it: programs that use it get errors from then on.
    pub fn abandon(&self, keep: bool) -> Result<(), MountError> {
        self.abandon_within(keep, WRITE_BACK_WAIT)
    }

    /// The same; the tree's disk may take so long for what the kernel holds.
    pub fn abandon_within(&self, keep: bool, limit: Duration) -> Result<(), MountError> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match self.ended() {
            true => Ok(()),
            false => self.cut_off(limit),
        };
        self.finish(keep, &mut end).and(kept)
    }

    /// What programs have written is here; what they ask for from now on the kernel refuses.
    fn cut_off(&self, limit: Duration) -> Result<(), MountError> {
        let mut kept = Ok(());
        if !self.options.read_only {
            let ours = self.place() == Place::Ours;
            let at = ours.then_some(self.mountpoint.as_path());
            kept = cut_off::write_back(&self.live, &self.kernel, at, limit);
            if let (true, Some(known)) = (kept.is_ok(), &self.known) {
                cut_off::wait_for_queue(known);
            }
        }
        self.force_end();
        kept.map_err(|cause| {
            let lost = MountError::Lost { mountpoint: name(&self.mountpoint), cause };
            // Before what may wait for the same disk.
            forebay::diagnostics::warn(format_args!("forebay: {lost}"));
            lost
        })
    }

    /// The kernel refuses what programs ask for from now on.
    fn force_end(&self) {
        self.cuts_off.store(true, Ordering::Relaxed);
        if self.place() == Place::Ours && !self.ended() {
            let mut unmounter = self.unmounter.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
            let _ = unmounter.unmount();
        }
        // While a program has a file open the session goes on, where it is not forced to end.
        if let (false, Some(known)) = (self.wait_for_end(ABORT_WAIT), &self.known) {
            known.abort();
            self.wait_for_end(ABORT_WAIT);
        }
    }

    /// Why it goes on after an unmount.
    fn held(&self) -> MountError {
        let mountpoint = name(&self.mountpoint);
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

    /// Unmounting goes by path, and must not take away what another has mounted there.
    fn place(&self) -> Place {
        self.known.as_ref().map_or(Place::Ours, |known| known.place(&self.mountpoint))
    }

    /// `true`: somebody unmounted it everywhere.
    fn wait_for_end(&self, limit: Duration) -> bool {
        let over = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.1.wait_timeout_while(over, limit, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Who comes first says what becomes of the log.
    fn finish(&self, keep: bool, end: &mut End) -> Result<(), MountError> {
        if std::mem::replace(&mut end.finished, true) {
            return match self.live.failure() {
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
        let ended = match (self.live.failure(), keep) {
            (Some(_), _) => Err(self.failed()),
            (None, true) => Ok(()),
            (None, false) => end_period(&self.live),
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
            session_failure: self.session_failure.get().cloned(),
        }
    }
}
