// SPDX-License-Identifier: MIT OR Apache-2.0
//! A new pool, and what is found where one is to be.

use std::path::Path;

use crate::error::Result;
use crate::media::{self, CreateOptions, Inspection, PoolSummary};
use crate::on_disk;
use crate::report::MediumChoice;

/// Makes a pool, by options that were checked.
pub(crate) fn make(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    match o.in_groups(path) {
        true => on_disk::create(path, o),
        false => media::create(path, o),
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
