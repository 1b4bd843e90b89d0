// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the log of a mount has that its tree may lack: claimed, and replayed onto the tree.

use forebay::{Claimed, Effect, Error, LogOptions, LogState, Pool, ReplayReport};

use crate::replay::{self, ReplayError, ReplayOptions, Report};
use crate::tree::Tree;

/// The entries of a log that was claimed.  Each open of a pool has one claim: keep this
/// when a replay is refused, for another try.
#[derive(Debug)]
pub struct Recovery {
    /// Until the log is destroyed.
    claimed: Option<Claimed>,
    entries: Vec<Vec<u8>>,
    /// Where an entry was missing: what depends on it is not in `entries`.
    incomplete: Option<ReplayReport>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error(transparent)]
    Pool(#[from] Error),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(
        "the log has lost entries ({0}); nothing was changed: accept what there is (--accept), \
         or give the pool's media back"
    )]
    Incomplete(ReplayReport),
}

impl Recovery {
    /// Claims the log; `None`: it holds nothing, or there is none of that name.
    pub fn claim(pool: &Pool, log: &str) -> Result<Option<Recovery>, RecoveryError> {
        if !pool.logs().iter().any(|l| l.name == log && l.state != LogState::None) {
            return Ok(None);
        }
        let mut claimed = pool.log(log, &LogOptions::default())?.claim()?;
        let mut entries = Vec::new();
        let read = claimed.replay(|entry, _| {
            entries.push(entry.data.to_vec());
            // Until the log is destroyed they are to come again.
            Effect::Applied
        });
        let incomplete = match read {
            Ok(_) => None,
            Err(Error::LogIncomplete { report, .. }) => Some(*report),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(Recovery { claimed: Some(claimed), entries, incomplete }))
    }

    /// The bodies of the entries, in order.
    pub fn entries(&self) -> &[Vec<u8>] {
        &self.entries
    }

    /// That entries are missing, and how many are left out with them.
    pub fn incomplete(&self) -> Option<&ReplayReport> {
        self.incomplete.as_ref()
    }

    /// What [`Recovery::run`] would do; nothing is changed.
    pub fn plan<T: Tree>(&self, tree: &T) -> Result<Report, RecoveryError> {
        Ok(replay::plan(tree, &self.entries)?)
    }

    /// Makes the tree what the log says, durably, and the log empty.  `progress` gets what
    /// is done of how much.  May be called again after an error; after success it is of no
    /// further use.
    pub fn run<T: Tree>(
        &mut self,
        tree: &T,
        options: &ReplayOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Report, RecoveryError> {
        match &self.incomplete {
            Some(report) if !options.accept => {
                return Err(RecoveryError::Incomplete(report.clone()));
            }
            _ => {}
        }
        let report = replay::replay(tree, &self.entries, options, progress)?;
        if let Some(claimed) = self.claimed.take() {
            match self.incomplete {
                // Accepted: what depends on what is missing is given up.
                Some(_) => claimed.give_up()?,
                None => claimed.destroy()?,
            };
        }
        replay::tidy(tree)?;
        Ok(report)
    }
}
