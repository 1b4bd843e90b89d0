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

use crate::answer::answer;
use crate::attach::Flags;
use crate::mark::MarkError;
use crate::mount::{Mount, MountError, MountOptions, MountStatus};
use crate::recover::{Claims, RecoverError, Recovery};
use crate::replay::{Accept, ReplayError, ReplayOptions};

/// The kind of service that mounts are, for clients of the control socket.
pub const KIND: &str = "mount";

/// A longer wait for space in the log than for the sync of a group.
const SPACE_TROUBLE_S: f64 = 5.0;

/// What to mount, and how: the options of a start through the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRequest {
    pub tree: PathBuf,
    /// Absolute paths, both; if they are equal, the mount is over the tree itself.
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
/// died.
pub fn whole(path: &Path) -> io::Result<PathBuf> {
    let asked = path.to_path_buf();
    match answer(move || asked.canonicalize()) {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let path = std::path::absolute(path)?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(e),
            }
        }
        found => found,
    }
}

fn told(e: MountError) -> Error {
    let of_system = |cause: &io::Error| match forebay::io_exit_code(cause) {
        _ if cause.kind() == io::ErrorKind::ResourceBusy => 4,
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
        MountError::Busy { .. } | MountError::Held { .. } | MountError::Waits { .. } => 4,
    };
    match e {
        MountError::Pool(e) => Error::Pool(e),
        e @ MountError::Mark { .. } => {
            let way_out = match &e {
                MountError::Mark { cause: MarkError::Tree { cause: Errno::ROFS, .. }, .. } => {
                    "make it writable, or give --read-only"
                }
                MountError::Mark { cause: MarkError::Tree { .. }, .. } => {
                    "see forebay mount --help"
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
        e => Error::service(code, e.to_string(), "see forebay mount --help"),
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
                _ => 7,
            };
            let way_out = match cause {
                ReplayError::Tree { cause: Errno::NOSPC | Errno::DQUOT, .. } => {
                    "make room on its file system first: a replay writes"
                }
                _ => way_out,
            };
            Error::service(code, e.to_string(), way_out)
        }
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
        let name = request.mountpoint.display().to_string();
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
            "For so long a program has waited for space in the pool; 0: none does.",
            s.waits_for_space_s,
        ),
        figure(
            "failed",
            "1 if the tree cannot be synced any more.",
            f64::from(u8::from(s.failure.is_some())),
        ),
    ]
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
        let failed = s.failure.iter().map(|why| match s.failure_of_log {
            true => format!(
                "{why}; {} has everything that programs were told: unmount it, which completes it \
                 without the log",
                s.tree
            ),
            false => format!(
                "{why}; entries stay in log {}: mend what has failed, then mount {} again",
                s.log, s.tree
            ),
        });
        let session = s
            .session_failure
            .iter()
            .map(|why| format!("its session ended: {why}; mount {} again", s.tree));
        let waits = (s.failure.is_none() && s.waits_for_space_s >= SPACE_TROUBLE_S).then(|| {
            let seconds = s.waits_for_space_s;
            format!("a program has waited {seconds:.0} s for space in the pool, which volumes or other logs have filled, or for a sync of {}", s.tree)
        });
        let mut summary = format!("{} by log {}, {} syncs", s.tree, s.log, s.syncs);
        if !self.in_dispute.is_empty() {
            let n = self.in_dispute.len();
            summary += &format!("; the replay left {n} things in dispute: see .forebay-found");
        }
        let mut details = json!(s);
        details["in_dispute"] = json!(self.in_dispute);
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

    fn ended(&self) -> bool {
        self.mount.ended()
    }
}
