// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount whose log has failed.

use super::{name, Mount, MountError};
use crate::mark;

/// The tree is complete, or why it is not.
pub(super) type Completed = Result<(), String>;

impl Mount {
    /// Completes the tree by itself.
    pub(super) fn complete_tree(&self) -> Completed {
        match self.live.bring_home() {
            Ok(()) => mark::complete(self.live.tree()).map_err(|e| e.to_string()),
            Err(_) => Err("its file system has failed, too".into()),
        }
    }

    /// How the mount has ended then.
    pub(super) fn without_log(&self, completed: &Completed) -> MountError {
        let (tree, cause) = (name(&self.tree), self.cause());
        match completed {
            Ok(()) => MountError::WithoutLog { mountpoint: name(&self.mountpoint), tree, cause },
            Err(why) => self
                .failed_by(format!("{cause}; {tree} cannot be completed without the log: {why}")),
        }
    }
}
