// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a pool for a command, or telling why it cannot be.

use std::path::Path;

use forebay::{Error, MediaOptions, Pool, PoolOptions};

/// Opens a pool.  A file or device that is too small is no pool: its size does not interest a user
/// who opens it.
pub fn pool(path: &Path, options: &PoolOptions) -> forebay::Result<Pool> {
    Pool::open(path, options).map_err(|error| match error {
        Error::TooSmall { path, bytes, .. } => {
            Error::NotAPool { path, found: format!("it has only {bytes} bytes") }
        }
        error => error,
    })
}

/// Opens a pool and changes nothing.
pub fn read_only(path: &Path) -> forebay::Result<Pool> {
    let options = PoolOptions { read_only: true, ..Default::default() };
    pool(path, &options)
}

/// Like `read_only`, for a status.  It reads only the needed parts of a pool on a disk.
pub fn to_show(path: &Path) -> forebay::Result<Pool> {
    let media = MediaOptions { on_demand: true, ..Default::default() };
    pool(path, &PoolOptions { read_only: true, media, ..Default::default() })
}

/// Refuses a pool that is written in groups if it cannot hold such a thing.  Other faults are
/// reported by the open of the pool.
pub fn must_hold(path: &Path, what: &str) -> forebay::Result<()> {
    match in_groups(path) {
        true => Err(Error::not_in_groups(path, what)),
        false => Ok(()),
    }
}

pub fn in_groups(path: &Path) -> bool {
    let found = forebay::inspect(path).ok().and_then(|found| found.superblock);
    found.is_some_and(|superblock| superblock.in_groups())
}

/// The superblock, also of a pool that another process has open.
pub fn superblock(path: &Path) -> forebay::Result<forebay::SuperblockDump> {
    let found = forebay::inspect(path)?;
    if let Some(superblock) = found.superblock {
        return Ok(superblock);
    }
    // An open gives the clearest error.
    Err(read_only(path).err().unwrap_or(Error::NotAPool { path: path.into(), found: found.text }))
}
