// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replay from a log of a pool onto a tree of a file system.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay::{Effect, Log, LogEntry, LogInfo, LogOptions, LogState, Pool, ReplayReport, Uuid};

use crate::dead::{clear_dead_mount, is_dead};
use crate::mark::{self, Found, MarkError, Verdict};
use crate::mount::{open_tree, raise_limits, NoTree};
use crate::replay::{self, Accept, ReplayError, ReplayOptions, Report};
use crate::tree::Tree;
use crate::unix::UnixTree;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {cause}")]
    Tree { path: String, cause: io::Error },
    #[error(transparent)]
    Pool(#[from] forebay::Error),
    #[error("{path}: {cause}")]
    Replay { path: String, cause: ReplayError },
    #[error(
        "log {log}: replay {report}; try again when the pool's media can be read, or accept that \
         what depends on the lost entries is left out (--accept=lost-entries)"
    )]
    LostEntries { log: String, report: Box<ReplayReport> },
    #[error("log {log} is in use: by a mount of this server")]
    InUse { log: String },
    #[error("{path}: {cause}")]
    Mark { path: String, cause: MarkError },
    #[error("interrupted: {path} is in use by another mount or replay that has not ended yet")]
    Interrupted { path: String },
}

impl RecoverError {
    pub(crate) fn of_tree(path: &Path, cause: NoTree) -> RecoverError {
        let path = path.display().to_string();
        match cause {
            NoTree::Interrupted => RecoverError::Interrupted { path },
            NoTree::Failed(cause) => RecoverError::Tree { path, cause },
        }
    }
}

/// The content of logs that were claimed and not replayed to the end.  A log is claimed once
/// while its pool is open, and a replay that was refused may be tried again.
#[derive(Debug, Default)]
pub struct Claims(Mutex<HashMap<String, Held>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Held {
    period: Option<Uuid>,
    pub(crate) entries: Vec<Vec<u8>>,
    /// Set if entries are missing.
    incomplete: Option<Box<ReplayReport>>,
}

impl Held {
    /// `info` is that of the log.
    pub(crate) fn of(pool: &Pool, log: &Log, info: &LogInfo) -> forebay::Result<Held> {
        let mut entries = Vec::new();
        let mut keep = |entry: &LogEntry<'_>| entries.push(entry.data.to_vec());
        let handed_out = match info.state == LogState::Logging && info.claimed {
            // A mount of this server left the entries there.
            true => pool.log_left(log.name(), &mut keep),
            false => log.claim()?.replay(|entry, _| {
                keep(entry);
                Effect::Applied
            }),
        };
        let incomplete = match handed_out {
            Err(forebay::Error::LogIncomplete { report, .. }) => Some(report),
            Err(e) => return Err(e),
            Ok(_) => None,
        };
        Ok(Held { period: info.guid, entries, incomplete })
    }
}

/// A replay of one log onto one tree.
#[derive(Debug)]
pub struct Recovery<'a> {
    pub pool: &'a Pool,
    pub claims: &'a Claims,
    pub tree: &'a Path,
    pub log: &'a str,
    pub options: ReplayOptions,
    /// Only reports what it would do.
    pub dry_run: bool,
}

impl Recovery<'_> {
    /// Replays what the log holds for the tree, and empties the log.  `None`: the log holds
    /// nothing.  `progress` gets the number of steps done and of all steps.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Option<Report>, RecoverError> {
        self.run_unless(&mut || false, progress)
    }

    /// Like `run`.  While it waits for the tree it asks whether it is interrupted.
    pub fn run_unless(
        &self,
        interrupted: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Report>, RecoverError> {
        let tree =
            self.open(interrupted).map_err(|cause| RecoverError::of_tree(self.tree, cause))?;
        let info = match self.pool.log_info(self.log) {
            Err(forebay::Error::NoLog { .. }) => None,
            info => Some(info?).filter(|info| info.state != LogState::None),
        };
        // A lease of a file in the tree may last for as long as its holder likes.
        tree.wait_for_nobody();
        let period = info.as_ref().and_then(|info| info.guid);
        let found = tree.find_mark().map_err(self.of_mark())?;
        let verdict = mark::judge(&found, self.pool.uuid(), self.log, period);
        let verdict = verdict.map_err(self.of_mark())?;
        let mut accepted = Vec::new();
        if let (Some(info), Verdict::Replay) = (&info, verdict) {
            let all = mark::objections(&tree, &found, info.synced_txg).map_err(self.of_mark())?;
            accepted.extend(self.accept(all)?);
        }
        let log = match info {
            Some(_) => Some(self.log()?),
            None => None,
        };
        let (Some(log), Some(info), false) = (&log, &info, verdict == Verdict::Complete) else {
            if !self.dry_run {
                let destroy = || log.map_or(Ok(()), |log| log.destroy().map(drop));
                clear(&tree, destroy).map_err(|e| self.of_end(e))?;
            }
            return Ok(None);
        };
        let held = self.claims.lock().remove(self.log).filter(|held| held.period == info.guid);
        let held = match held {
            Some(held) => held,
            None => Held::of(self.pool, log, info)?,
        };
        let report = self.bring_home(&tree, &held, verdict, accepted, progress);
        if self.dry_run || report.is_err() {
            self.claims.lock().insert(self.log.into(), held);
            return report.map(Some);
        }
        // Entries that depend on a missing one are given up, as was accepted.
        if let Err(e) = end(&tree, || log.destroy().map(drop)) {
            // The next try needs them, unless the log is gone: then it holds another period.
            self.claims.lock().insert(self.log.into(), held);
            return Err(self.of_end(e));
        }
        report.map(Some)
    }

    /// Opens the log, which no one else may have open.
    fn log(&self) -> Result<Log, RecoverError> {
        // The handle of a mount that has ended lives until the one who stopped it has learned
        // of that.
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            if !self.pool.log_in_use(self.log)? {
                return Ok(self.pool.log(self.log, &LogOptions::default())?);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(RecoverError::InUse { log: self.log.into() })
    }

    fn open(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<UnixTree, NoTree> {
        // The limits allow a rewrite of what was written with them.
        raise_limits();
        if self.dry_run {
            if is_dead(self.tree)? {
                let what = "a mount whose server died is in the way, and nothing is changed here: \
                            umount -l it, or let forebay mount or replay take it away";
                return Err(io::Error::other(what).into());
            }
            return Ok(UnixTree::open(self.tree)?);
        }
        clear_dead_mount(self.tree)?;
        open_tree(self.tree, interrupted)
    }

    /// Replays the log, so that the tree has everything.
    fn bring_home(
        &self,
        tree: &UnixTree,
        held: &Held,
        verdict: Verdict,
        mut accepted: Vec<String>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Report, RecoverError> {
        if let Some(report) = &held.incomplete {
            let lost = RecoverError::LostEntries { log: self.log.into(), report: report.clone() };
            // Entries that depend on a lost one are given up only by order.
            if !self.options.accept.lost_entries {
                return Err(lost);
            }
            accepted.push(replay::accepted("lost-entries", lost));
        }
        if verdict == Verdict::Unmarked && !held.entries.is_empty() {
            // If it is another tree, that error says more.
            replay::plan(tree, &held.entries).map_err(self.of_replay())?;
            accepted.extend(self.accept(vec![MarkError::Unmarked])?);
        }
        if self.dry_run {
            let planned = replay::plan(tree, &held.entries).map_err(self.of_replay())?;
            return Ok(Report { accepted, ..planned });
        }
        let options = ReplayOptions { accepted, ..self.options.clone() };
        replay::replay(tree, &held.entries, &options, progress).map_err(self.of_replay())
    }

    fn accept(&self, objections: Vec<MarkError>) -> Result<Vec<String>, RecoverError> {
        accepted_of(objections, &self.options.accept).map_err(self.of_mark())
    }

    fn path(&self) -> String {
        self.tree.display().to_string()
    }

    fn of_mark(&self) -> impl FnOnce(MarkError) -> RecoverError {
        let path = self.path();
        |cause| match cause {
            MarkError::Pool(e) => e.into(),
            cause => RecoverError::Mark { path, cause },
        }
    }

    fn of_replay(&self) -> impl FnOnce(ReplayError) -> RecoverError {
        let path = self.path();
        |cause| RecoverError::Replay { path, cause }
    }

    fn of_end(&self, e: EndError) -> RecoverError {
        match e {
            EndError::Mark(e) => self.of_mark()(e),
            EndError::Replay(e) => self.of_replay()(e),
        }
    }
}

/// Returns the objections that the operator has accepted by their kinds.  The first of the
/// others refuses the replay.  An older pool has no kind: a replay of it would undo later
/// changes.
pub(crate) fn accepted_of(
    objections: Vec<MarkError>,
    accept: &Accept,
) -> Result<Vec<String>, MarkError> {
    let told = |objection: MarkError| match objection.kind().filter(|kind| accept.has(kind)) {
        Some(kind) => Ok(replay::accepted(kind, objection)),
        None => Err(objection),
    };
    objections.into_iter().map(told).collect()
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum EndError {
    #[error(transparent)]
    Mark(#[from] MarkError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Ends a period whose changes are all in the tree and synced there: `destroy` empties the log.
pub(crate) fn end<T: Tree>(
    tree: &T,
    destroy: impl FnOnce() -> forebay::Result<()>,
) -> Result<(), EndError> {
    mark::end(tree, destroy)?;
    Ok(replay::tidy(tree)?)
}

/// Completes the end of a mount or a replay that was interrupted between its last steps.
pub(crate) fn clear<T: Tree>(
    tree: &T,
    destroy: impl FnOnce() -> forebay::Result<()>,
) -> Result<(), EndError> {
    destroy().map_err(MarkError::Pool)?;
    replay::tidy(tree)?;
    Ok(mark::clear(tree)?)
}

/// Reports the mark of a tree.  With `accept_loss` the mark is removed, and the data in its log
/// is given up.
pub fn unmark(path: &Path, accept_loss: bool) -> Result<Found, RecoverError> {
    let shown = || path.display().to_string();
    let of_tree = |cause| RecoverError::of_tree(path, cause);
    let of_mark = |cause| RecoverError::Mark { path: shown(), cause };
    clear_dead_mount(path).map_err(|e| of_tree(e.into()))?;
    let tree = open_tree(path, &mut || false).map_err(of_tree)?;
    let found = mark::find(&tree).map_err(of_mark)?;
    if accept_loss {
        mark::give_up(&tree).map_err(of_mark)?;
    }
    Ok(found)
}
