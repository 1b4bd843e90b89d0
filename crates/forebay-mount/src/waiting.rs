// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the trees that wait for what the logs of a pool hold, for a command that overwrites the pool.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay::{LogInfo, LogOptions, LogState, Pool, Uuid};
use rustix::io::Errno;

use crate::dead::is_dead;
use crate::mark::{self, Found, Mark};
use crate::record::{Entry, Record};
use crate::recover::Held;
use crate::unix::UnixTree;

/// A log that holds entries.
#[derive(Debug)]
pub struct Waiting {
    pub log: String,
    pub entries: u64,
    /// The tree that the entries are of, as they name it.  None: they name none that can be read.
    pub tree: Option<PathBuf>,
    pub by: WaitsBy,
}

/// How a tree waits for a log.
#[derive(Debug)]
pub enum WaitsBy {
    /// The tree is not there, or has no mark of this log.
    Nothing,
    Mark(Box<Mark>),
    /// The tree is there, and what it has is not to be seen.
    Unseen(io::Error),
    /// A dead mount covers it.
    DeadMount,
}

/// The logs of a pool that hold entries.  The pool may be open for reading only.
pub fn waiting(pool: &Pool) -> Vec<Waiting> {
    let logs = pool.logs().into_iter();
    logs.filter(|log| log.state != LogState::None && log.entries > 0)
        .map(|log| {
            let tree = tree_of(pool, &log);
            let by = tree.as_ref().map_or(WaitsBy::Nothing, |t| waits(t, pool.uuid(), &log));
            Waiting { log: log.name, entries: log.entries, tree, by }
        })
        .collect()
}

/// The entries of each group name the tree.
fn tree_of(pool: &Pool, info: &LogInfo) -> Option<PathBuf> {
    let log = pool.log(&info.name, &LogOptions::default()).ok()?;
    let held = Held::of(pool, &log, info).ok()?;
    held.entries.iter().rev().find_map(|body| {
        let named = Entry::parse(body).ok()?.records().find_map(|record| match record {
            Ok(Record::Tree { path, .. }) => Some(PathBuf::from(OsStr::from_bytes(path))),
            _ => None,
        });
        named
    })
}

fn waits(tree: &Path, pool: Uuid, log: &LogInfo) -> WaitsBy {
    match is_dead(tree) {
        Ok(true) => return WaitsBy::DeadMount,
        Ok(false) => {}
        Err(e) => return WaitsBy::Unseen(e),
    }
    let opened = match UnixTree::open(tree) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR) => return WaitsBy::Nothing,
        Err(e) => return WaitsBy::Unseen(e.into()),
    };
    opened.wait_for_nobody();
    match mark::find(&opened) {
        Ok(Found::Marked(mark) | Found::Unproved(mark))
            if Some(mark.period) == log.guid || (mark.pool == pool && mark.log == log.name) =>
        {
            WaitsBy::Mark(Box::new(mark))
        }
        Ok(_) => WaitsBy::Nothing,
        Err(e) => WaitsBy::Unseen(io::Error::other(e)),
    }
}
