// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories that the environment names, in which processes find what others have made.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Variables that name a directory of all processes.
const DIRECTORIES: [&str; 2] = ["FOREBAY_RUNTIME_DIR", "FOREBAY_STATE_DIR"];

/// Refuses a relative one.  Processes with other current directories would not find each other's
/// sockets, nor the marks of origins.
pub fn check_directories() -> Result<()> {
    let is_relative = |name: &str| set(name).is_some_and(|dir| dir.is_relative());
    match DIRECTORIES.into_iter().find(|name| is_relative(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Usage {
            what: format!("{name}: a relative path is another directory for each process"),
            way_out: "give the whole path, from the root".into(),
        }),
    }
}

/// A directory of Forebay.
pub(crate) fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The directory that a variable of the system names.  By their specification, a relative one of
/// `XDG_*` counts as none.
pub(crate) fn whole(name: &str) -> Option<PathBuf> {
    set(name).filter(|dir| dir.is_absolute())
}
