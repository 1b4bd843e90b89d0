// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount whose log has failed.

use super::{name, Mount, MountError};
use crate::live::Failure;
use crate::mark;

/// A mount whose log has failed.  `done`: the tree is complete, or why it is not.
#[derive(Clone, Debug)]
pub(super) struct WithoutLog {
    mountpoint: String,
    tree: String,
    log: String,
    cause: String,
    done: Result<(), String>,
}

impl WithoutLog {
    pub fn told(&self) -> MountError {
        let WithoutLog { mountpoint, tree, log, cause, done } = self.clone();
        match done {
            Ok(()) => MountError::WithoutLog { mountpoint, tree, cause },
            Err(why) => {
                let cause = format!("{cause}; {tree} cannot be completed without the log: {why}");
                MountError::Failed { mountpoint, log, cause }
            }
        }
    }
}

impl Mount {
    /// The log has failed: the tree is completed by itself.
    pub(super) fn end_without_log(&self, failure: &Failure) -> WithoutLog {
        let done = match self.live.bring_home() {
            Ok(()) => mark::complete(self.live.tree()).map_err(|e| e.to_string()),
            Err(_) => Err("its file system has failed, too".into()),
        };
        WithoutLog {
            mountpoint: name(&self.mountpoint),
            tree: name(&self.tree),
            log: self.options.log.clone(),
            cause: failure.to_string(),
            done,
        }
    }
}
