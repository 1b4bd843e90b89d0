// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts as a kind of service of a pool's server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay::Pool;
use forebay_server::{
    Error, Figure, Progress, Result, Service, ServiceStatus, Starter, Stop, Work,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::answer::{answer, asked};
use crate::dead::clear_dead_mount;
use crate::mark::MarkError;
use crate::mount::{Completion, Mount, MountError, MountStatus};
use crate::options::{Flags, MountOptions};
use crate::recover::{Claims, RecoverError, Recovery};
use crate::replay::{is_accepted, Accept, ReplayError, ReplayOptions};
use crate::within;

/// The kind of service that mounts are, for clients of the control socket.
pub const KIND: &str = "mount";

/// A longer wait for space in the log than for the sync of a group.
const SPACE_TROUBLE_S: f64 = 5.0;

/// The options of a start through the control socket: the tree, the mount point, the modes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRequest {
    #[serde(with = "forebay::path_in_request")]
    pub tree: PathBuf,
    /// Absolute paths, both; if they are equal, the mount is over the tree itself.
    #[serde(with = "forebay::path_in_request")]
    pub mountpoint: PathBuf,
    pub log: String,
    pub read_only: bool,
    pub allow_other: bool,
    pub write_back: bool,
    pub log_writes: bool,
    #[serde(default)]
    pub slow_log: bool,
    #[serde(default)]
    pub names_at_sync: bool,
    #[serde(default)]
    pub flags: Flags,
    pub sync_interval_s: f64,
    pub sync_bytes: u64,
    /// Options of the replay before the mount: see [`ReplayOptions`].
    pub accept: Accept,
    #[serde(default, with = "forebay::path_in_request_if_any")]
    pub salvage: Option<PathBuf>,
}

impl MountRequest {
    fn options(&self) -> Result<MountOptions> {
        let interval = Duration::try_from_secs_f64(self.sync_interval_s);
        let wrong = |_| Error::service(2, "the interval of syncs is no time", "give seconds");
        Ok(MountOptions {
            log: self.log.clone(),
            read_only: self.read_only,
            allow_other: self.allow_other,
            write_back: self.write_back,
            log_writes: self.log_writes,
            flags: self.flags,
            sync_interval: interval.map_err(wrong)?,
            sync_bytes: self.sync_bytes,
            slow_log: self.slow_log,
            names_at_sync: self.names_at_sync,
        })
    }
}

/// An absolute path without `.`, `..` and symlinks, also if the server of a mount over it has
/// died, or does not answer.
pub fn whole(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let at = match path.parent().zip(path.file_name()) {
        Some((parent, name)) => match canonical(parent) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(e),
            found => found.ok().map(|parent| parent.join(name)),
        },
        None => None,
    };
    // The server of a mount at the path is not asked.
    if let Some(at) = at.as_ref().filter(|at| crate::is_mounted_at(at)) {
        return Ok(at.clone());
    }
    match canonical(&path) {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => at.ok_or(e),
        found => found,
    }
}

fn canonical(path: &Path) -> io::Result<PathBuf> {
    match asked(path) {
        Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(e),
        _ => {
            let path = path.to_path_buf();
            answer(move || path.canonicalize())
        }
    }
}

fn told(e: MountError) -> Error {
    let of_system = |cause: &io::Error| match forebay::io_exit_code(cause) {
        _ if cause.kind() == io::ErrorKind::ResourceBusy => 4,
        _ if cause.kind() == io::ErrorKind::PermissionDenied => 9,
        _ if cause.kind() == io::ErrorKind::NotADirectory => 2,
        _ if cause.kind() == io::ErrorKind::FileTooLarge => 8,
        // An I/O error of the library need not come from a device here.
        7 => 1,
        code => code,
    };
    let code = match &e {
        MountError::Pool(_) => 0,
        MountError::Tree { cause, .. } | MountError::Mount { cause, .. } => of_system(cause),
        MountError::Mark { cause, .. } => of_mark(cause),
        MountError::Replay { .. } => 14,
        MountError::SlowLog { .. } => 10,
        MountError::Failed { .. }
        | MountError::WithoutLog { .. }
        | MountError::Lost { .. }
        | MountError::Session { .. } => 7,
        MountError::Interrupted { .. } => 13,
        MountError::Busy { .. }
        | MountError::Held { .. }
        | MountError::Bound { .. }
        | MountError::Waits { .. } => 4,
    };
    match e {
        MountError::Pool(e) => Error::Pool(e),
        e @ MountError::Mark { .. } => {
            let way_out = match &e {
                MountError::Mark { cause: MarkError::Tree { cause: Errno::ROFS, .. }, .. } => {
                    "make it writable, or give --read-only"
                }
                MountError::Mark { cause: MarkError::Tree { cause: Errno::PERM, .. }, .. } => {
                    "if lsattr -d shows that the directory is sealed: chattr -a -i, then try again"
                }
                MountError::Mark { cause: MarkError::Tree { cause, .. }, .. } => {
                    way_out(&(*cause).into())
                }
                _ => "see forebay unmark --help",
            };
            Error::service(code, e.to_string(), way_out)
        }
        e @ MountError::SlowLog { .. } => Error::service(
            code,
            e.to_string(),
            "give --names-at-sync (in fstab: names_at_sync), so that names are durable with the \
             next sync; or --slow-log (slow_log) if programs sync files and change few names; or \
             use a pool in memory or on a disk with capacitors (forebay media-info measures it)",
        ),
        MountError::Tree { ref cause, .. } | MountError::Mount { ref cause, .. } => {
            Error::service(code, e.to_string(), way_out(cause))
        }
        e => Error::service(code, e.to_string(), "see forebay mount --help"),
    }
}

/// The way out where a tree or a mountpoint cannot be used.
fn way_out(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "check the path, or make the directory first",
        io::ErrorKind::NotADirectory => "name a directory",
        _ => forebay::limit_way_out(cause).unwrap_or("see forebay mount --help"),
    }
}

/// The exit code.
fn of_mark(cause: &MarkError) -> u8 {
    match cause {
        MarkError::Gone { .. }
        | MarkError::Unmarked
        | MarkError::OlderTree { .. }
        | MarkError::OlderPool { .. }
        | MarkError::NoGroup
        | MarkError::GroupMode => 11,
        MarkError::FoldsCase => 1,
        MarkError::Tree { cause, .. } => match forebay::io_exit_code(&(*cause).into()) {
            7 => 1,
            code => code,
        },
        _ => 12,
    }
}

pub fn not_replayed(e: RecoverError) -> Error {
    let way_out = "see what a replay would do: forebay replay --dry-run";
    match e {
        RecoverError::Pool(e) => Error::Pool(e),
        e @ RecoverError::LostEntries { .. } => {
            let way_out = "see what is left: forebay log replay --dry-run";
            Error::service(11, e.to_string(), way_out)
        }
        e @ RecoverError::InUse { .. } => {
            Error::service(4, e.to_string(), "give this one another: --log NAME")
        }
        RecoverError::Tree { path, cause } => told(MountError::Tree { path, cause }),
        e @ RecoverError::Interrupted { .. } => {
            Error::service(13, e.to_string(), "nothing was replayed")
        }
        RecoverError::Mark { path: tree, cause } => told(MountError::Mark { tree, cause }),
        RecoverError::Replay { ref cause, .. } => {
            let code = match cause {
                ReplayError::Refused(_) => 11,
                ReplayError::OtherTree { .. } => 6,
                ReplayError::Entry { .. } => 5,
                ReplayError::Tree { cause, .. } => match forebay::io_exit_code(&(*cause).into()) {
                    code @ (8 | 9) => code,
                    _ => 7,
                },
                _ => 7,
            };
            let way_out = match cause {
                ReplayError::Tree { cause: Errno::NOSPC | Errno::DQUOT, .. } => {
                    "make room on its file system first: a replay writes"
                }
                ReplayError::Tree { cause: cause @ Errno::FBIG, .. } => {
                    forebay::limit_way_out(&(*cause).into()).unwrap_or(way_out)
                }
                _ => way_out,
            };
            Error::service(code, e.to_string(), way_out)
        }
    }
}

/// The report of a replay in a few words.  Things that were accepted by order are not in dispute.
fn left_by_replay(told: &[String]) -> String {
    let accepted = told.iter().filter(|line| is_accepted(line)).count();
    match (told.len() - accepted, accepted) {
        (0, 0) => String::new(),
        (0, _) => "; the replay went on by what was accepted: see .forebay-found".into(),
        (n, _) => format!(
            "; the replay left {n} thing{} in dispute: see .forebay-found",
            if n == 1 { "" } else { "s" }
        ),
    }
}

/// Mounts trees, also for clients of the control socket.
#[derive(Debug, Default)]
pub struct Mounts {
    claims: Claims,
    /// For each tree the reports of replays before mounts that then failed.
    told: Mutex<HashMap<PathBuf, Vec<String>>>,
}

impl Mounts {
    fn told(&self) -> MutexGuard<'_, HashMap<PathBuf, Vec<String>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replays the tree's log, and mounts.
    pub fn mount(
        &self,
        pool: &Pool,
        request: &MountRequest,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<MountService>> {
        let what = format!("mounting {}", request.tree.display());
        let waiting = Work { what: what.clone(), ..Work::default() };
        let progress = RefCell::new(progress);
        let mut interrupted = || (progress.borrow_mut())(&waiting).is_break();
        let was_interrupted =
            || Error::service(13, format!("interrupted: {what}"), "nothing was mounted");
        if interrupted() {
            return Err(was_interrupted());
        }
        let options = request.options()?;
        let (tree, mountpoint) = (&request.tree, &request.mountpoint);
        for path in [mountpoint, tree] {
            clear_dead_mount(path).map_err(|cause| {
                told(MountError::Tree { path: path.display().to_string(), cause })
            })?;
        }
        within::check(pool, tree, mountpoint)
            .map_err(|refusal| Error::service(2, refusal.what, refusal.way_out))?;
        let replaying = format!("replaying onto {}", request.tree.display());
        let recovery = Recovery {
            pool,
            claims: &self.claims,
            tree: &request.tree,
            log: &request.log,
            options: ReplayOptions {
                accept: request.accept,
                salvage: request.salvage.clone(),
                ..ReplayOptions::default()
            },
            dry_run: false,
        };
        let replayed = recovery.run_unless(&mut interrupted, &mut |done_bytes, total_bytes| {
            // An interrupted replay would only have to be repeated.
            let work = Work { what: replaying.clone(), done_bytes, total_bytes, trouble: None };
            let _ = (progress.borrow_mut())(&work);
        });
        let replayed = match replayed {
            Err(RecoverError::Interrupted { .. }) => return Err(was_interrupted()),
            replayed => replayed,
        };
        let now = replayed.map_err(not_replayed)?.map_or_else(Vec::new, |r| r.in_dispute());
        self.told().entry(request.tree.clone()).or_default().extend(now);
        let mount =
            Mount::start(pool, &request.tree, &request.mountpoint, &options, &mut interrupted);
        let mount = mount.map_err(told)?;
        let in_dispute = self.told().remove(&request.tree).unwrap_or_default();
        let name = forebay::path_in_text(&request.mountpoint);
        Ok(Arc::new(MountService { mount, name, in_dispute }))
    }
}

impl Starter for Mounts {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn start(
        &self,
        pool: &Pool,
        options: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Service>> {
        let request: MountRequest = serde_json::from_value(options).map_err(|e| {
            let way_out = "use the same version of Forebay on both sides";
            Error::service(2, format!("the request to mount is not understood: {e}"), way_out)
        })?;
        Ok(self.mount(pool, &request, progress)?)
    }
}

/// A mount of a server.
#[derive(Debug)]
pub struct MountService {
    mount: Mount,
    name: String,
    /// The log's data that the replay before the mount could not restore.
    in_dispute: Vec<String>,
}

impl MountService {
    pub fn mount(&self) -> &Mount {
        &self.mount
    }
}

fn figures(s: &MountStatus) -> Vec<Figure> {
    let figure =
        |name: &str, help: &str, value: f64| Figure { name: name.into(), help: help.into(), value };
    let seconds = |us: Option<f64>| us.unwrap_or_default() / 1e6;
    vec![
        figure(
            "syncs_total",
            "fsync, fdatasync and what else asks for durability.",
            s.syncs as f64,
        ),
        figure(
            "real_syncs_total",
            "Of these, those that were the tree's own.",
            s.real_syncs as f64,
        ),
        figure(
            "sync_p50_seconds",
            "Half of the syncs took the server no longer.",
            seconds(s.sync_p50_us),
        ),
        figure("sync_p99_seconds", "99 of 100 syncs took it no longer.", seconds(s.sync_p99_us)),
        figure("log_entries_total", "Entries appended.", s.log_entries as f64),
        figure("log_bytes_total", "Bytes of entries appended.", s.log_bytes as f64),
        figure(
            "groups_synced_total",
            "Transaction groups synced in the tree.",
            s.groups_synced as f64,
        ),
        figure("groups_unsynced", "Transaction groups in the log alone.", s.groups_unsynced as f64),
        figure(
            "unsynced_bytes",
            "Bytes of entries that the tree may lack.",
            s.unsynced_bytes as f64,
        ),
        figure("unsynced_age_seconds", "Age of the oldest of them.", s.unsynced_age_s),
        figure(
            "waits_for_space_seconds",
            "How long a program has waited for space in the pool; 0: none waits.",
            s.waits_for_space_s,
        ),
        figure(
            "failed",
            "1 if the tree cannot be synced any more.",
            f64::from(u8::from(s.failure.is_some())),
        ),
    ]
}

/// The state of a mount that syncs nothing any more, and the way out.
fn failed(why: &str, s: &MountStatus) -> String {
    let (tree, log) = (&s.tree, &s.log);
    let state = match (s.failure_of_log && !s.read_only, &s.completion) {
        (false, _) => {
            format!("entries stay in log {log}: repair what has failed, then mount {tree} again")
        }
        (true, Completion::NotBegun) => format!(
            "{tree} has everything that programs were told, but not durably: unmount it, or run \
             forebay drain, which syncs it without the log"
        ),
        (true, Completion::UnderWay) => {
            format!("{tree} is being synced without the log: wait until this says that it is complete")
        }
        (true, Completion::Complete) => format!(
            "{tree} is complete, with everything that programs were told: unmount it, then use it as \
             it is, or mount it by another pool"
        ),
        (true, Completion::Failed(cause)) => format!(
            "{tree} cannot be completed without the log: {cause}; what was acknowledged since its last \
             sync may be lost with the server: repair its disk, then unmount it, which tries again"
        ),
    };
    format!("{why}; {state}")
}

impl Service for MountService {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> ServiceStatus {
        let s = self.mount.status();
        let failed = s.failure.iter().map(|why| failed(why, &s));
        let session = s
            .session_failure
            .iter()
            .map(|why| format!("its session ended: {why}; mount {} again", s.tree));
        let waits = (s.failure.is_none() && s.waits_for_space_s >= SPACE_TROUBLE_S).then(|| {
            let seconds = s.waits_for_space_s;
            format!("a program has waited {seconds:.0} s for space in the pool, which volumes or other logs have filled, or for a sync of {}", s.tree)
        });
        let mut summary = format!("{} by log {}, {} syncs", s.tree, s.log, s.syncs);
        summary += &left_by_replay(&self.in_dispute);
        let mut details = json!(s);
        details["in_dispute"] = json!(self.in_dispute);
        let (tree, at) = (self.mount.tree(), self.mount.mountpoint());
        for (name, path) in [("tree_bytes", tree), ("mountpoint_bytes", at)] {
            if let Some(bytes) = forebay::path_bytes(path) {
                details[name] = json!(bytes);
            }
        }
        ServiceStatus {
            kind: KIND.into(),
            name: self.name.clone(),
            summary,
            trouble: failed.chain(session).chain(waits).collect(),
            figures: figures(&s),
            details,
        }
    }

    fn drain(&self, progress: &mut Progress<'_>) -> Result<()> {
        let what = format!("{}: syncing its tree", self.name);
        let total_bytes = self.mount.status().unsynced_bytes;
        let _ = progress(&Work { what, total_bytes, ..Work::default() });
        self.mount.sync().map_err(told)
    }

    fn pool_lost(&self, cause: &str) {
        self.mount.lose_log(cause);
    }

    fn without_log(&self) -> Option<(String, bool)> {
        self.mount.log_left()
    }

    fn has_failed(&self) -> bool {
        self.mount.status().failure.is_some()
    }

    fn stop(&self, how: &Stop) -> Result<()> {
        match how.must {
            true => self.mount.abandon(false),
            false => self.mount.unmount(how.keep),
        }
        .map_err(told)
    }

    fn has_volumes(&self) -> bool {
        false
    }

    fn ended(&self) -> bool {
        self.mount.ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit code and the way out for each cause that has its own.
    #[test]
    fn a_refused_tree_or_replay_has_the_code_and_the_way_out_of_its_cause() {
        let tree = |cause: Errno| {
            let path = "/t".into();
            not_replayed(RecoverError::Tree { path, cause: cause.into() })
        };
        let replay = |cause: Errno| {
            let cause = ReplayError::Tree { path: "a".into(), what: "write", cause, seal: false };
            not_replayed(RecoverError::Replay { path: "/t".into(), cause })
        };
        let mark = |cause: Errno| {
            let cause = MarkError::Tree { what: "look for", cause };
            not_replayed(RecoverError::Mark { path: "/t".into(), cause })
        };
        for (e, code, way_out) in [
            (tree(Errno::NOENT), 3, "make the directory first"),
            (tree(Errno::NOTDIR), 2, "name a directory"),
            (tree(Errno::ACCESS), 9, "--help"),
            (tree(Errno::MFILE), 1, "ulimit -n"),
            (tree(Errno::FBIG), 8, "ulimit -f"),
            (mark(Errno::MFILE), 1, "ulimit -n"),
            (mark(Errno::ROFS), 9, "--read-only"),
            (mark(Errno::IO), 1, "--help"),
            (replay(Errno::NOSPC), 8, "make room on its file system"),
            (replay(Errno::DQUOT), 8, "make room on its file system"),
            (replay(Errno::FBIG), 8, "ulimit -f"),
            (replay(Errno::ROFS), 9, "--dry-run"),
            (replay(Errno::IO), 7, "--dry-run"),
        ] {
            assert_eq!(e.exit_code(), code, "{e}");
            assert!(e.to_string().contains(way_out), "{e}");
        }
    }

    #[test]
    fn what_was_accepted_is_not_in_dispute() {
        let accepted = crate::replay::accepted("moved", "/t");
        let other = "put aside: x".to_owned();
        assert_eq!(left_by_replay(&[]), "");
        assert!(!left_by_replay(std::slice::from_ref(&accepted)).contains("in dispute"));
        assert!(left_by_replay(&[accepted, other]).contains("left 1 thing in dispute"));
    }
}
