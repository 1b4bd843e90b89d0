// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a tree should be, from the log of its mount, and making it so.
//!
//! Nothing is done over in turn.  The entries say what was last: who is to have which
//! name, what a file's content is to be ([`history`]).  The tree is somewhere between its
//! last sync and the crash; it is looked up what is where, by identity ([`plan`]), and
//! what differs is done ([`run`]).  All of it comes from the log and the tree alone, so it
//! may be cut anywhere and begun again.
//!
//! An inode never loses its last name on the way: what is where it should not be, and is
//! wanted elsewhere, goes by way of a directory in the root, [`STAGING`].  Before anything
//! else is changed a list is made durable there of the inodes that the tree does not have:
//! a file system that lost the inode may give its identity to one that the replay makes.

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
mod fuzz;
#[cfg(test)]
mod many;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod sealed;

use std::collections::HashSet;
use std::path::PathBuf;

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

pub(crate) use accept::accepted;
pub use accept::Accept;
pub(crate) use found::put_aside;
pub use staging::{is_staging, tidy};

/// In the root of the tree, from the beginning of a replay until [`tidy`]; see [`is_staging`].
pub const STAGING: &[u8] = b".forebay-replay";

/// What [`replay`] may do beyond what is certain.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// It lets nothing be overwritten that is not overwritten without it.
    pub accept: Accept,
    /// What was accepted before, in words, for the report.
    pub accepted: Vec<String>,
    /// A directory outside the tree for the data that the log has of missing files, instead
    /// of [`ReplayOptions::found`].
    pub salvage: Option<PathBuf>,
    /// A directory in the tree's root for what is in dispute, made when it is needed;
    /// `.forebay-found` if empty.
    pub found: String,
}

/// Something that is done, in words.
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

/// What a replay would do, or did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub entries: u64,
    /// That the log's entries describe.
    pub operations: u64,
    /// What is done to the tree; after a replay, without what the tree has refused.
    pub actions: Vec<Action>,
    /// Files whose content is written, and how many bytes.
    pub files: u64,
    pub bytes: u64,
    /// An earlier replay was cut off.
    pub resumed: bool,
    /// What the log has something of and the tree does not have any more: what the log has
    /// goes where things are found.
    pub missing: Vec<String>,
    /// What is at a name that the log knows and is not explained by it: it goes where things
    /// are found.
    pub conflicts: Vec<String>,
    /// What in the log or in the tree contradicts the log: something has changed names
    /// beside the mount.
    pub disputes: Vec<String>,
    /// What went where things are found, and as what.
    pub found: Vec<String>,
    /// Files whose content something changed after the last entry.  It stays as it is; what the
    /// log has of it goes where things are found.
    pub changed: Vec<String>,
    /// Attributes that the log replaces, and that may have been changed after the last entry.
    pub attributes: Vec<String>,
    /// Where the tree was, if it is elsewhere now.
    pub moved_from: Option<String>,
    /// Files that were written to the salvage directory.
    pub salvaged: Vec<String>,
    /// Operations that the tree refuses and that were under way at the crash.
    pub left_out: Vec<String>,
    /// What was found and accepted, by its kind.
    pub accepted: Vec<String>,
    /// What an earlier replay of the log, which was cut off or failed, has told.
    pub earlier: Vec<String>,
}

impl Report {
    /// Nothing of it needs [`ReplayOptions::accept`].
    pub fn is_certain(&self) -> bool {
        // Whoever owns a file can change it: that refuses nothing to others.
        let changed = !self.changed.is_empty() && planted::planted(planted::Bug::ChangedStopsAll);
        self.moved_from.is_none() && !changed
    }

    /// What is not as the log says, in words; nothing: the tree is what the log says.
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

    /// The same, as far as it is known before anything is changed.
    fn of_names(&self) -> Vec<String> {
        [
            all("the tree lacked ", &self.missing),
            all("something else was at ", &self.conflicts),
            all("changed after the crash, and its content is left as it is: ", &self.changed),
            all("", &self.attributes),
            all("changed beside the mount: ", &self.disputes),
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
        if *.cause == Errno::PERM { SEALED } else { "" }
    )]
    Tree { path: String, what: &'static str, cause: Errno },
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

/// What [`replay`] would do, and whether it may ([`Report::is_certain`]); nothing is
/// changed.  `entries` are the bodies of all entries of the log, in its order.
pub fn plan<T: Tree>(tree: &T, entries: &[Vec<u8>]) -> Result<Report> {
    planned(tree, entries, &HashSet::new(), &mut Walked::default()).map(|plan| plan.report())
}

/// Makes the tree what the log says, and durable.  Then the log may be destroyed, and
/// after that the tree is to be given to [`tidy`].  `progress` gets what is done of how
/// much.
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
    // Each time one more operation is left out, so it ends.
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
        let ReplayError::Tree { path, what, cause } = error else { return Err(error) };
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
            _ => return Err(ReplayError::Tree { path, what, cause }),
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
    // An rmdir that the tree refused, with the crash before the log was told, shows by
    // the directory not being empty.  There are as many as threads were at work.
    const MOST: usize = 100;
    let mut refused = refused.clone();
    refused.extend(Staging::find(tree, entries)?.left_out);
    let mut round = 0;
    loop {
        let history = History::of(entries, &refused)?;
        let plan = Plan::of(tree, history, entries, walked)?;
        round += 1;
        // What is not empty after so many rounds cannot be removed, and then stays.
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
    done.map_err(|cause| ReplayError::Tree { path: path(), what, cause })
}

/// As a message may show it.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
