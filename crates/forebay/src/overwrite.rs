// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a pool is overwritten by order: does anything that can be seen wait for what it holds?
//! Each function that overwrites takes an [`Overwrite`], and only the look makes one.

use std::path::{Path, PathBuf};

use crate::create::{inspect, make};
use crate::error::{Error, Result};
use crate::mark::{marks_on_host, Found, Mark, OriginMarks};
use crate::media::{self, CreateOptions, PoolSummary};
use crate::planted::{planted, Planted};
use crate::pool::{Pool, PoolOptions};
use crate::report::{Uuid, VolumeInfo};

/// The content at a path may be overwritten: nothing that can be seen waits for it.
#[derive(Clone, Debug)]
pub struct Overwrite {
    path: PathBuf,
}

/// Makes a pool.  One that is there is formatted with force, unless an origin waits for it.
pub fn create(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    let o = media::check_options(o)?;
    match o.force {
        true => Overwrite::look(path, &mut |_| Ok(()))?.create(&o),
        false => make(path, &o),
    }
}

impl Overwrite {
    /// Refuses if an origin waits for the pool, as far as that is known: it checks the origins that
    /// the pool names, and those with marks on this host.  What is no pool passes.
    ///
    /// Then `others` looks for what this crate knows nothing of, such as trees that are mounted and
    /// files that are mapped, if the pool can be opened.
    pub fn look(path: &Path, others: &mut dyn FnMut(&Pool) -> Result<()>) -> Result<Overwrite> {
        let superblock = unless_no_pool(inspect(path))?.and_then(|found| found.superblock);
        if let Some(superblock) = superblock {
            let options = PoolOptions { read_only: true, ..Default::default() };
            let pool = unless_no_pool(Pool::open(path, &options))?;
            let volumes = pool.as_ref().map(Pool::volumes).unwrap_or_default();
            let awaited = refuse_awaited(path, superblock.uuid, &volumes);
            let looked = awaited.and_then(|()| match &pool {
                Some(pool) if !planted(Planted::OthersNotAsked) => others(pool),
                _ => Ok(()),
            });
            let closed = pool.map_or(Ok(()), Pool::close);
            looked.and(closed)?;
        }
        Ok(Overwrite { path: path.into() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a pool in place of what is there.
    pub fn create(&self, o: &CreateOptions) -> Result<PoolSummary> {
        let o = CreateOptions { force: true, ..media::check_options(o)? };
        make(&self.path, &o)
    }
}

/// `None`: nothing that could be waited for can be read there, or the order is refused by whoever
/// writes there.  Every other error leaves open whether somebody waits.
fn unless_no_pool<T>(looked: Result<T>) -> Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(
            Error::NotFound { .. }
            | Error::Symlink { .. }
            | Error::Unsuitable { .. }
            | Error::TooSmall { .. }
            | Error::NotAPool { .. }
            | Error::Damaged { .. }
            | Error::Unsupported { .. },
        ) => Ok(None),
        Err(_) if planted(Planted::UnseenIsNotAwaited) => Ok(None),
        Err(e) => Err(e),
    }
}

fn refuse_awaited(pool: &Path, uuid: Uuid, volumes: &[VolumeInfo]) -> Result<()> {
    if planted(Planted::OriginNotAwaited) {
        return Ok(());
    }
    if let Some(mark) = marks_on_host()?.into_iter().find(|m| m.pool == uuid) {
        let volume = volumes.iter().find(|v| v.identity == mark.origin);
        let place = volume.and_then(|v| v.origin_path.clone());
        return Err(awaited(pool, place.unwrap_or_else(|| mark.origin.clone()), &mark));
    }
    volumes.iter().try_for_each(|v| match v.origin_path.as_deref() {
        Some(place) => refuse_awaited_by(pool, uuid, place, v.may_hold_data()),
        // The path did not fit into the record, or is no UTF-8.
        None if v.may_hold_data() && !planted(Planted::UnseenIsNotAwaited) => {
            let cause = "the pool has no path of it, as of one that is long or no UTF-8";
            let way_out = format!("or volume remove --discard {}", v.label());
            Err(unseen_waiting(pool, &v.identity, cause, &way_out))
        }
        None => Ok(()),
    })
}

/// Refuses if this origin, or this file that is mapped onto the pool, waits for the pool.
/// `lacks_data`: the pool has what it lacks, so that it must be seen.
pub fn refuse_awaited_by(pool: &Path, uuid: Uuid, place: &str, lacks_data: bool) -> Result<()> {
    match OriginMarks::at(Path::new(place), None).and_then(|marks| marks.find()) {
        Ok(Found::Marked(mark)) if mark.pool == uuid && !planted(Planted::PlaceNotAwaited) => {
            Err(awaited(pool, place.into(), &mark))
        }
        // A missing origin bears no visible mark.
        Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
        Err(_) if !lacks_data || planted(Planted::UnseenIsNotAwaited) => Ok(()),
        Err(e) => Err(unseen_waiting(pool, place, &e.to_string(), "or make it readable")),
    }
}

/// Nobody can see whether this origin or file waits for what the pool has.
pub fn unseen_waiting(pool: &Path, place: &str, cause: &str, other_way_out: &str) -> Error {
    let pool_shown = pool.display();
    let why = format!(
        "{cause}; the pool has data that it lacks: write that back first (forebay drain \
         {pool_shown}) {other_way_out}; to give it up: remove the pool (rm; a device: blkdiscard -z)"
    );
    let place = format!("it cannot be seen whether {place}");
    Error::Awaited { pool: pool.into(), place, why }
}

fn awaited(pool: &Path, place: String, mark: &Mark) -> Error {
    let why = format!(
        "{mark}; write that back first ({} {}); to give it up: forebay origin accept-loss {place}",
        mark.way_home(),
        pool.display()
    );
    Error::Awaited { pool: pool.into(), place, why }
}
