// SPDX-License-Identifier: MIT OR Apache-2.0
//! A new pool, in place of one that no origin waits for.

use std::path::Path;

use crate::error::{Error, Result};
use crate::mark::{marks_on_host, Found, OriginMarks};
use crate::media::{self, CreateOptions, PoolSummary};
use crate::pool::{Pool, PoolOptions};
use crate::report::SuperblockDump;

/// Makes a pool.
pub fn create(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    media::create(path, o, |superblock| waits_for(path, superblock))
}

/// Refuses to format a pool that an origin waits for, as far as that is known: it checks the
/// origins that the pool names, and those with marks on this host.
fn waits_for(pool: &Path, superblock: &SuperblockDump) -> Result<()> {
    let options = PoolOptions { read_only: true, ..Default::default() };
    let volumes = Pool::open(pool, &options).map(|pool| pool.volumes()).unwrap_or_default();
    let mut waiting = Vec::new();
    for mark in marks_on_host()?.into_iter().filter(|m| m.pool == superblock.uuid) {
        let volume = volumes.iter().find(|v| v.identity == mark.origin);
        let place = volume.and_then(|v| v.origin_path.clone());
        waiting.push((place.unwrap_or_else(|| mark.origin.clone()), mark));
    }
    for place in volumes.into_iter().filter_map(|v| v.origin_path) {
        // A missing origin bears no visible mark.
        let found = OriginMarks::at(Path::new(&place), None).and_then(|marks| marks.find());
        match found {
            Ok(Found::Marked(mark)) if mark.pool == superblock.uuid => waiting.push((place, *mark)),
            _ => {}
        }
    }
    match waiting.into_iter().next() {
        None => Ok(()),
        Some((place, mark)) => {
            Err(Error::Awaited { pool: pool.into(), place, mark: mark.to_string() })
        }
    }
}
