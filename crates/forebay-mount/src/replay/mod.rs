// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives from the log of a mount what its tree should be, and makes it so.
//!
//! Operations are not repeated one by one.  The entries define the final state: the inode of
//! each name, and the content of each file ([`history`]).  The tree is somewhere between its
//! last sync and the crash.  The present state is found by identity ([`plan`]), and the
//! differences are applied ([`run`]).  Everything derives from the log and the tree alone, so a
//! replay may be interrupted anywhere and begun again.
//!
//! An inode never loses its last name on the way: an inode in the wrong place that is needed
//! elsewhere moves through a directory in the root, [`STAGING`].  Before any other change, that
//! directory gets a durable list of the inodes that the tree lacks: a file system that lost an
//! inode may give its identity to one that the replay makes.

mod accept;
mod flight;
mod found;
mod history;
mod later;
mod plan;
pub(crate) mod planted;
mod run;
mod staging;
mod within;

#[cfg(test)]
mod beside;
#[cfg(test)]
mod between;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod many;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod narrowed;
#[cfg(test)]
mod sealed;

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::Utf8Chunk;

use rustix::io::Errno;
use serde::Serialize;

use crate::record::{BadEntry, Entry};
use crate::tree::Tree;
use flight::{InFlight, Refusal};
use history::History;
use plan::Plan;
use run::{Done, Failed};
use staging::Staging;
use within::Walked;

pub use accept::Accept;
pub(crate) use accept::{accepted, is_accepted};
pub(crate) use found::put_aside;
pub use staging::{is_staging, tidy};

/// The staging directory in the tree's root, from the beginning of a replay until [`tidy`]; see
/// [`is_staging`].
pub const STAGING: &[u8] = b".forebay-replay";

/// The limits of what [`replay`] may do beyond what is certain.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// A consent never allows more to be overwritten.
    pub accept: Accept,
    /// Dangers that were accepted before, in words, for the report.
    pub accepted: Vec<String>,
    /// A directory outside the tree for the log's data of missing files, instead of
    /// [`ReplayOptions::found`].
    pub salvage: Option<PathBuf>,
    /// A directory in the tree's root for inodes in dispute, made when it is needed;
    /// `.forebay-found` if empty.
    pub found: String,
}

/// An action, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    pub action: &'static str,
    pub path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.action, self.path)?;
        match self.detail.as_str() {
            "" => Ok(()),
            detail => write!(f, " ({detail})"),
        }
    }
}

/// The tree has changes of names and attributes that the log lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ahead {
    /// The number that the tree's mark has.
    pub reached: u64,
    /// The log's last entry.
    pub last: u64,
}

impl std::fmt::Display for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ahead { reached, last } = self;
        write!(
            f,
            "the tree was ahead of its log: its mark says entry {reached}, and the log ends with \
             entry {last}; names and attributes stay the tree's, and logged content is written"
        )
    }
}

/// The report of a replay, or of what a replay would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub entries: u64,
    /// Operations that the log's entries describe.
    pub operations: u64,
    /// Changes of the tree; after a replay, without those that the tree refused.
    pub actions: Vec<Action>,
    /// Files whose content is written, and the number of bytes.
    pub files: u64,
    pub bytes: u64,
    /// An earlier replay was interrupted.
    pub resumed: bool,
    /// Files that the tree lacks and of which the log has data, which goes to the directory of
    /// found files.
    pub missing: Vec<String>,
    /// Inodes that have a name from the log and that the log does not explain.  They go to the
    /// directory of found files.
    pub conflicts: Vec<String>,
    /// Contradictions to the log in the log or the tree: a program has changed names outside
    /// the mount.
    pub disputes: Vec<String>,
    /// The inodes that went to the directory of found files, with their names there.
    pub found: Vec<String>,
    /// Files whose content another program changed after the last entry.  It stays, and the
    /// log's content goes to the directory of found files.
    pub changed: Vec<String>,
    /// Attributes that the log replaces and that may have been changed after the last entry.
    pub attributes: Vec<String>,
    /// Set if only content was taken from the log.
    pub ahead: Option<Ahead>,
    /// Why the mark does not say how far the tree is, and what follows.
    pub mark: Option<String>,
    /// The tree's earlier path, if it has another one now.
    pub moved_from: Option<String>,
    /// Files that were written to the salvage directory.
    pub salvaged: Vec<String>,
    /// Operations that the tree refuses and that were under way at the crash.
    pub left_out: Vec<String>,
    /// Dangers that were found and accepted, by their kinds.
    pub accepted: Vec<String>,
    /// The report of an earlier replay of the log that was interrupted or failed.
    pub earlier: Vec<String>,
}

impl Report {
    /// Whether nothing needs [`ReplayOptions::accept`].
    pub fn is_certain(&self) -> bool {
        // The owner of a file can always change it, so that must not refuse the replay to
        // others.
        let changed = !self.changed.is_empty() && planted::planted(planted::Bug::ChangedStopsAll);
        self.moved_from.is_none() && !changed
    }

    /// Differences from the log, in words; empty: the tree equals the log.
    pub fn in_dispute(&self) -> Vec<String> {
        let mut now = [
            self.accepted.clone(),
            self.of_names(),
            all("put aside: ", &self.found),
            all("left out, as it was under way at the crash: ", &self.left_out),
            all("salvaged: ", &self.salvaged),
        ]
        .concat();
        let known: HashSet<String> = now.iter().chain(&self.found).cloned().collect();
        now.extend(self.earlier.iter().filter(|line| !known.contains(*line)).cloned());
        now
    }

    /// Like `in_dispute`, as far as it is known before any change.
    fn of_names(&self) -> Vec<String> {
        [
            all("the tree lacked ", &self.missing),
            all("something else was at ", &self.conflicts),
            all("changed after the crash, and its content is left as it is: ", &self.changed),
            all("", &self.attributes),
            all("changed beside the mount: ", &self.disputes),
            self.mark.clone().into_iter().collect(),
        ]
        .concat()
    }
}

fn all(what: &str, of: &[String]) -> Vec<String> {
    of.iter().map(|path| format!("{what}{path}")).collect()
}

fn refusal(report: &Report) -> String {
    let from = report.moved_from.as_deref().unwrap_or_default();
    format!("the tree was at {from}: this may be a copy")
}

/// The ways out of a change that is not permitted.
const SEALED: &str = " with the right that it lacks. If somebody sealed the file or its directory \
    where that does not show (chattr +i on the server of an NFS tree), end that, or accept that what \
    is sealed stays as it is (--accept=sealed)";

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("entry {number} of the log cannot be understood: {cause}; nothing was changed")]
    Entry { number: u64, cause: BadEntry },
    #[error(
        "the log is of another tree: of {log}, this is {tree}; nothing was changed: name the \
         tree that the log is of"
    )]
    OtherTree { log: String, tree: String },
    #[error(
        "{}; nothing was changed: give the tree back as it was, or accept it (--accept=moved)",
        refusal(.0)
    )]
    Refused(Box<Report>),
    #[error(
        "{path}: cannot {what}: {cause}; the log keeps everything, replay again{}",
        if *.seal { SEALED } else { "" }
    )]
    Tree {
        path: String,
        what: &'static str,
        cause: Errno,
        /// [`Accept::sealed`] would leave out what cannot be done.
        seal: bool,
    },
    #[error(
        "{path}: cannot {what}: {cause}; the log keeps everything: mend that and replay again. \
         It is the last change there, and may have been under way at the crash: then it may be \
         left out (--accept=under-way)"
    )]
    UnderWay { path: String, what: &'static str, cause: Errno },
    #[error("{path} is not as a replay leaves it ({what}): move it away")]
    Staging { path: String, what: String },
    #[error("cannot salvage to {path}: {cause}; nothing was changed")]
    Salvage { path: String, cause: std::io::Error },
}

type Result<T> = std::result::Result<T, ReplayError>;

/// Returns what [`replay`] would do, and whether it may ([`Report::is_certain`]), without any
/// change.  `entries` are the bodies of all entries of the log, in its order.
pub fn plan<T: Tree>(tree: &T, entries: &[Vec<u8>]) -> Result<Report> {
    planned(tree, entries, &HashSet::new(), &mut Walked::default()).map(|plan| plan.report())
}

/// Makes the tree what the log says, durably.  Then the log may be destroyed, and after that
/// the tree is to be given to [`tidy`].  `progress` gets the number of steps done and of all
/// steps.
pub fn replay<T: Tree>(
    tree: &T,
    entries: &[Vec<u8>],
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    let (mut refused, mut walked) = (HashSet::new(), Walked::default());
    let mut plan = planned(tree, entries, &refused, &mut walked)?;
    let mut report = allowed(plan.report(), options)?;
    report.accepted.clone_from(&options.accepted);
    if let Some(from) = &report.moved_from {
        report.accepted.push(accepted("moved", format_args!("the tree was at {from}")));
    }
    let options = &ReplayOptions { accepted: report.accepted.clone(), ..options.clone() };
    let earlier = |n: &u64| format!("what entry {n} says (when the replay was cut off)");
    report.left_out = plan.staging.left_out.iter().map(earlier).collect();
    if let Some(dir) = &options.salvage {
        report.salvaged = run::salvage(&plan, dir)?;
    }
    let (in_flight, mut done) = (InFlight::of(entries)?, Done::default());
    // Each round leaves out one more operation, so the loop ends.
    loop {
        let (step, error) = match run::run(tree, plan, entries, options, progress, &mut done) {
            Ok(told) => {
                report.disputes.extend(told.disputes);
                report.found = told.found;
                report.earlier = told.earlier;
                report.actions = done.actions;
                report.files = done.written.len() as u64;
                report.bytes = done.written.values().sum();
                return Ok(report);
            }
            Err(Failed { step, error }) => (step, error),
        };
        let ReplayError::Tree { path, what, cause, seal } = error else { return Err(error) };
        let refusal = step.and_then(|step| flight::refusal(&step, cause));
        let number = step.and_then(|step| in_flight.of_step(&step));
        match (number.filter(|n| !refused.contains(n)), refusal) {
            (Some(number), Some(refusal))
                if refusal == Refusal::ForGood || options.accept.under_way =>
            {
                staging::leave_out(tree, entries, number)?;
                refused.insert(number);
                report.left_out.push(format!("{what} {path} ({cause})"));
            }
            (Some(_), Some(_)) => return Err(ReplayError::UnderWay { path, what, cause }),
            _ => return Err(ReplayError::Tree { path, what, cause, seal }),
        }
        plan = planned(tree, entries, &refused, &mut walked)?;
        allowed(plan.report(), options)?;
    }
}

fn allowed(report: Report, options: &ReplayOptions) -> Result<Report> {
    match report.is_certain() || options.accept.moved {
        true => Ok(report),
        false => Err(ReplayError::Refused(Box::new(report))),
    }
}

/// `refused` are entries whose operations are left out.
fn planned<'a, T: Tree>(
    tree: &T,
    entries: &'a [Vec<u8>],
    refused: &HashSet<u64>,
    walked: &mut Walked,
) -> Result<Plan<'a, T::Node>> {
    // If the tree refused an rmdir and the crash came before the log recorded that, the
    // directory is not empty.  There are at most as many such operations as threads.
    const MOST: usize = 100;
    let mut refused = refused.clone();
    refused.extend(Staging::find(tree, entries)?.left_out);
    let mut round = 0;
    loop {
        let history = History::of(entries, &refused)?;
        let plan = Plan::of(tree, history, entries, walked)?;
        round += 1;
        // A directory that is not empty after so many rounds cannot be removed, and then stays.
        let done = plan.not_empty.is_empty() || round == MOST;
        match done || planted::planted(planted::Bug::RefusedRmdirDone) {
            true => return Ok(plan),
            false => refused.extend(plan.not_empty),
        }
    }
}

fn parse(body: &[u8]) -> Result<Entry<'_>> {
    Entry::parse(body).map_err(|cause| ReplayError::Entry { number: 0, cause })
}

fn bad<T>(number: u64, record: std::result::Result<T, BadEntry>) -> Result<T> {
    record.map_err(|cause| ReplayError::Entry { number, cause })
}

fn failed<T>(
    done: crate::tree::Result<T>,
    what: &'static str,
    path: impl FnOnce() -> String,
) -> Result<T> {
    done.map_err(|cause| ReplayError::Tree { path: path(), what, cause, seal: false })
}

/// The text of bytes for a message and for JSON: different bytes have different texts.
fn printable(bytes: &[u8]) -> String {
    let of = |chunk: Utf8Chunk<'_>| {
        let valid = chunk.valid().chars().flat_map(char::escape_debug);
        let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
        valid.collect::<String>() + &invalid.collect::<String>()
    };
    bytes.utf8_chunks().map(of).collect()
}

/// The text of a path of the user.
fn shown(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.into(),
        None => printable(path.as_os_str().as_bytes()),
    }
}

#[cfg(test)]
mod tests;
