// SPDX-License-Identifier: MIT OR Apache-2.0
//! A new pool, in place of one that no origin waits for.

use std::path::Path;

use crate::error::{Error, Result};
use crate::mark::{marks_on_host, Found, OriginMarks};
use crate::media::{self, CreateOptions, Inspection, PoolSummary};
use crate::on_disk;
use crate::pool::{Pool, PoolOptions};
use crate::report::{MediumChoice, SuperblockDump};

/// Makes a pool.  One that is there is formatted with force, unless an origin waits for it.
pub fn create(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    let o = media::check_options(o)?;
    if o.force {
        if let Some(superblock) = inspect(path).ok().and_then(|i| i.superblock) {
            waits_for(path, &superblock)?;
        }
    }
    match o.in_groups(path) {
        true => on_disk::create(path, &o),
        false => media::create(path, &o),
    }
}

/// Examines the path.  Takes no lock and writes nothing, so it can run concurrently with a
/// process that has the pool open.
pub fn inspect(path: &Path) -> Result<Inspection> {
    match on_disk::look(path) {
        on_disk::Found::Mapped => media::inspect(path),
        on_disk::Found::Grouped(probe) => on_disk::inspection(path, &probe, None),
        on_disk::Found::Disk { found, probe } => on_disk::inspection(path, &probe, found),
    }
}

impl CreateOptions {
    /// Refuses, before anything is written, a size that a pool at the path cannot have, if it is
    /// to be written in groups.
    pub fn check_room(&self, path: &Path) -> Result<()> {
        match self.in_groups(path) {
            true => on_disk::check_room(path, &media::check_options(self)?),
            false => Ok(()),
        }
    }

    /// Is the pool at the path to be written in groups?
    pub fn in_groups(&self, path: &Path) -> bool {
        match self.medium {
            MediumChoice::Memory => false,
            MediumChoice::Ssd => true,
            // Only media that cannot be mapped are written in groups.
            MediumChoice::Auto => match on_disk::look(path) {
                on_disk::Found::Disk { .. } => true,
                on_disk::Found::Grouped(_) => is_block_device(path),
                on_disk::Found::Mapped => false,
            },
        }
    }
}

fn is_block_device(path: &Path) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|st| rustix::fs::FileType::from_raw_mode(st.st_mode).is_block_device())
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
