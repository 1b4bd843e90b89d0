// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replay from a log of a pool onto a tree of a file system.

use std::path::Path;

use forebay::{Effect, LogOptions, LogState, Pool};

use crate::mount::clear_dead_mount;
use crate::replay::{self, ReplayError, ReplayOptions, Report};
use crate::unix::UnixTree;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {cause}")]
    Tree { path: String, cause: std::io::Error },
    #[error(transparent)]
    Pool(#[from] forebay::Error),
    #[error("{path}: {cause}")]
    Replay { path: String, cause: ReplayError },
}

/// Brings home what the log holds for the tree, and empties it; `dry_run` only tells what
/// that would do.  `None`: it holds nothing.  `progress` gets what is done of how much.
pub fn recover(
    pool: &Pool,
    tree: &Path,
    log: &str,
    options: &ReplayOptions,
    dry_run: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Report>, RecoverError> {
    let path = tree.display().to_string();
    let at = |cause| RecoverError::Tree { path: path.clone(), cause };
    let failed = |cause| RecoverError::Replay { path: path.clone(), cause };
    if !dry_run {
        clear_dead_mount(tree).map_err(at)?;
    }
    let tree = UnixTree::open(tree).map_err(|e| at(e.into()))?;
    if pool.log_info(log).is_err() {
        return Ok(None);
    }
    let log = pool.log(log, &LogOptions::default())?;
    if log.info()?.state == LogState::None {
        if !dry_run {
            // A replay may have ended between the log's end and this.
            replay::tidy(&tree).map_err(failed)?;
        }
        return Ok(None);
    }
    let mut claimed = log.claim()?;
    let mut entries = Vec::new();
    let handed_out = claimed.replay(|entry, _| {
        entries.push(entry.data.to_vec());
        Effect::Applied
    });
    match handed_out {
        // What is left is given up by order alone.
        Err(forebay::Error::LogIncomplete { .. }) if options.accept => {}
        Err(e) => return Err(e.into()),
        Ok(_) => {}
    }
    if dry_run {
        return replay::plan(&tree, &entries).map(Some).map_err(failed);
    }
    let report = replay::replay(&tree, &entries, options, progress).map_err(failed)?;
    // What depends on a missing entry is given up: that was accepted.
    claimed.give_up()?;
    replay::tidy(&tree).map_err(failed)?;
    Ok(Some(report))
}
