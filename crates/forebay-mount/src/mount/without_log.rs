// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount whose log has failed.

use std::sync::PoisonError;

use serde::{Deserialize, Serialize};

use super::{name, Mount, MountError};
use crate::mark;

/// How far the tree of a mount is whose log takes nothing more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// The log is in use, or nobody has asked yet.
    #[default]
    NotBegun,
    /// The tree is being synced.
    UnderWay,
    /// The tree durably has everything that programs were told, and bears no mark.
    Complete,
    /// The reason why the tree may lack some of that.
    Failed(String),
}

impl Mount {
    /// The log takes nothing more, and no replay will find it: the tree is completed at once.
    pub fn lose_log(&self, cause: &str) {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if self.options.read_only || end.finished {
            return;
        }
        // Before anybody sees the failure: the tree is not complete yet.
        self.set_completion(Completion::UnderWay);
        self.live.lose_log(cause);
        self.complete_tree();
        forebay::diagnostics::warn(format_args!("forebay: {}", self.without_log()));
    }

    pub(super) fn is_without_log(&self) -> bool {
        let failed = self.live.failure().is_some_and(|failure| failure.of_log);
        failed && !self.options.read_only
    }

    /// The log of a mount that has failed, and whether the tree is complete without it.
    pub fn log_left(&self) -> Option<(String, bool)> {
        let log = || (self.options.log.clone(), self.completion() == Completion::Complete);
        self.is_without_log().then(log)
    }

    pub(super) fn completion(&self) -> Completion {
        self.completion.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_completion(&self, to: Completion) {
        *self.completion.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// For a drain.  It waits for one who completes the tree already.
    pub(super) fn sync_without_log(&self) -> Result<(), MountError> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if !end.finished {
            self.complete_tree();
        }
        match self.completion() {
            Completion::Complete => Ok(()),
            _ => Err(self.without_log()),
        }
    }

    /// Completes the tree by itself, unless it is complete.  The caller has the lock of the end.
    pub(super) fn complete_tree(&self) {
        if self.completion() == Completion::Complete {
            return;
        }
        self.set_completion(Completion::UnderWay);
        let completed = match self.live.bring_home() {
            Ok(()) => mark::complete(self.live.tree()).map_err(|e| e.to_string()),
            Err(_) => Err("its file system has failed, too".into()),
        };
        self.set_completion(match completed {
            Ok(()) => Completion::Complete,
            Err(why) => Completion::Failed(why),
        });
    }

    /// How the mount has ended then.
    pub(super) fn without_log(&self) -> MountError {
        let (tree, cause) = (name(&self.tree), self.cause());
        let why = match self.completion() {
            Completion::Complete => {
                let mountpoint = name(&self.mountpoint);
                return MountError::WithoutLog { mountpoint, tree, cause };
            }
            Completion::Failed(why) => why,
            Completion::NotBegun | Completion::UnderWay => "it was not synced yet".into(),
        };
        self.failed_by(format!("{cause}; {tree} cannot be completed without the log: {why}"))
    }
}
