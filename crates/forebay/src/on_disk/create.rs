// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a pool that is written in groups, on a disk or in a file.
//!
//! A new file gets its name last, as one that is mapped does.  All of it is written once before
//! that: the first durable write to a block that the file system has only reserved writes
//! metadata as well.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use forebay_engine::{sys, Memory};
use rustix::fs::OFlags;

use super::{check_options as check_media_options, media_of};
use crate::defaults;
use crate::engine;
use crate::error::{Error, Result};
use crate::grouped::{GroupedMedium, GroupedOptions};
use crate::media::{
    check_size, claim, fill_all, found_on, size_of_new, summary, too_small, Access, CreateOptions,
    NewFile, PoolSummary,
};
use crate::medium::{MediumFacts, Place};
use crate::memory::memory_available;
use crate::report::{human_bytes, Uuid};

pub(crate) fn create(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    check_options(path, o)?;
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => create_file(path, o),
        Err(e) => Err(Error::system(path, "looking at it", e.into())),
        Ok(_) => format_existing(path, o),
    }
}

/// Refuses, before anything is measured or written, a size that is not possible.
pub(crate) fn check_room(path: &Path, o: &CreateOptions) -> Result<()> {
    check_options(path, o)?;
    let facts = MediumFacts::of(path)?;
    let size_bytes = match facts.place {
        Place::NewFile => o.size_bytes,
        _ => {
            check_given_size(&facts, o)?;
            Some(facts.size_bytes).filter(|bytes| *bytes != 0).or(o.size_bytes)
        }
    };
    let Some(size_bytes) = size_bytes else { return Ok(()) };
    check_size(path, size_bytes, o)?;
    check_memory(path, size_bytes)
}

fn check_options(path: &Path, o: &CreateOptions) -> Result<()> {
    for (bytes, what) in [(o.static_bytes, "static volumes"), (o.map_bytes, "maps")] {
        if bytes != 0 {
            return Err(Error::not_in_groups(path, what));
        }
    }
    check_media_options(path, &o.media)
}

/// Says by name what keeps the place from being one for a pool.
fn check_facts(facts: &MediumFacts) -> Result<()> {
    if facts.memory_system().is_some() {
        return Err(Error::Unsupported {
            path: facts.path.clone(),
            cause: "its file system is in memory (memory)".into(),
            way_out:
                "make a pool in memory there (--medium memory), or name a disk, or a file on one"
                    .into(),
        });
    }
    match facts.refusals().into_iter().next() {
        None => Ok(()),
        Some(refusal) => Err(refusal.error(&facts.path)),
    }
}

fn check_memory(path: &Path, bytes: u64) -> Result<()> {
    match bytes > memory_available() {
        true => Err(Error::usage(
            format!(
                "{}: a pool of {} needs as much memory, and {} are free",
                path.display(),
                human_bytes(bytes),
                human_bytes(memory_available())
            ),
            "use a smaller file or partition: a log seldom needs more than 1 GiB",
        )),
        false => Ok(()),
    }
}

fn create_file(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    let size_bytes = size_of_new(path, o)?;
    check_memory(path, size_bytes)?;
    check_facts(&MediumFacts::of(path)?)?;
    let file = NewFile::make(path)?;
    fill(path, &file.fd, size_bytes)?;
    // Whoever sees its name finds it locked until the pool is whole.
    let medium = GroupedMedium::open(&by_number(&file), &new()).map_err(|e| named(path, e))?;
    let summary = format(path, &medium, o, false)?;
    file.publish(path)?;
    Ok(summary)
}

fn new() -> GroupedOptions {
    GroupedOptions { new: true, ..Default::default() }
}

/// The file has no name yet.
fn by_number(file: &NewFile) -> PathBuf {
    format!("/proc/self/fd/{}", file.fd.as_raw_fd()).into()
}

/// The error names the file as it is to be called.
fn named(to: &Path, e: Error) -> Error {
    match e {
        Error::Unsupported { cause, way_out, .. } => {
            Error::Unsupported { path: to.into(), cause, way_out }
        }
        Error::Io { doing, source, way_out, .. } => {
            Error::Io { path: to.into(), doing, source, way_out }
        }
        e => e,
    }
}

fn fill(path: &Path, fd: &std::os::fd::OwnedFd, size_bytes: u64) -> Result<()> {
    let file = fd.try_clone().map_err(|e| Error::system(path, "keeping it open", e))?;
    fill_all(path, &mut File::from(file), size_bytes)?;
    rustix::fs::fsync(fd).map_err(|e| Error::system(path, "syncing it", e.into()))
}

fn format_existing(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    let facts = MediumFacts::of(path)?;
    check_memory(path, facts.size_bytes)?;
    check_given_size(&facts, o)?;
    let empty = facts.place == Place::File && facts.size_bytes == 0;
    let made = fill_and_format(path, o, &facts, empty);
    if made.is_err() && empty {
        empty_again(path);
    }
    made
}

/// A file that was filled for a pool, and refused then, is as it was found.
fn empty_again(path: &Path) {
    let zeroes = |mut file: &File| -> std::io::Result<bool> {
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(true),
                n if piece[..n].iter().any(|b| *b != 0) => return Ok(false),
                _ => {}
            }
        }
    };
    let Ok((fd, ..)) = claim(path, Access::Write, OFlags::empty()) else { return };
    let Ok(file) = fd.try_clone().map(File::from) else { return };
    // Another process may have made something of it.
    if zeroes(&file).unwrap_or(false) {
        let _ = file.set_len(0);
    }
}

fn fill_and_format(
    path: &Path,
    o: &CreateOptions,
    facts: &MediumFacts,
    empty: bool,
) -> Result<PoolSummary> {
    if empty {
        check_facts(facts)?;
        let size_bytes = o.size_bytes.unwrap_or(0);
        check_size(path, size_bytes, o)?;
        check_memory(path, size_bytes)?;
        let (fd, ..) = claim(path, Access::Write, OFlags::empty())?;
        let filled = fill(path, &fd, size_bytes);
        if filled.is_err() {
            // As it was found.
            let _ = rustix::fs::ftruncate(&*fd, 0);
        }
        filled?;
    } else {
        check_size(path, facts.size_bytes, o)?;
        if facts.used_by.is_empty() {
            check_facts(facts)?;
        }
    }
    let medium = GroupedMedium::open(path, &new())?;
    if !o.force {
        let media = media_of(path, &medium, false);
        if let Some(found) = found_on(&media, &engine::probe(&media)) {
            return Err(Error::NotBlank { path: path.into(), found });
        }
        // Whatever the places that are looked at do not show.
        if let Some(at) = medium.first_byte_set() {
            let found = format!("data of unknown kind (at byte {at})");
            return Err(Error::NotBlank { path: path.into(), found });
        }
    }
    format(path, &medium, o, o.force)
}

/// A device or file that is not empty keeps its size.
fn check_given_size(facts: &MediumFacts, o: &CreateOptions) -> Result<()> {
    let (path, have) = (facts.path.display(), facts.size_bytes);
    match (facts.place, o.size_bytes) {
        (Place::File, None) if have == 0 => Err(Error::usage(
            format!("{path} is empty and no size was given"),
            "give the size of the pool (--size)",
        )),
        (Place::File, Some(_)) if have == 0 => Ok(()),
        (Place::BlockDevice, Some(size)) if size != have => Err(Error::usage(
            format!("{path} has {have} bytes, and a pool of {size} was asked for"),
            "leave the size out to use all of it, or make a partition of that size",
        )),
        (_, Some(size)) if size != have => Err(Error::usage(
            format!("{path} exists and has {have} bytes, not {size}"),
            "leave the size out to use it as it is, or choose another path",
        )),
        _ => Ok(()),
    }
}

/// `wipe`: nothing of what was there may be taken for valid later.
fn format(
    path: &Path,
    medium: &GroupedMedium,
    o: &CreateOptions,
    wipe: bool,
) -> Result<PoolSummary> {
    let uuid = Uuid::random()?;
    if wipe {
        medium.wipe_pool()?;
    }
    // As many as there is room for, if the number is the one that was not given.
    let volumes = match o.max_volumes {
        defaults::VOLUMES => 0,
        n => n,
    };
    medium.format(uuid, o.chunk_size_bytes, volumes).map_err(|e| match e {
        // The engine does not say which of them.
        Error::Damaged { .. } => Error::usage(
            format!(
                "{}: {} in chunks of {} with records of {volumes} logs in blocks of {} are not possible",
                path.display(),
                human_bytes(medium.size_bytes()),
                human_bytes(o.chunk_size_bytes.into()),
                human_bytes(medium.unit().into()),
            ),
            "use larger chunks (--chunk-size), or fewer logs (--volumes)",
        ),
        Error::Internal { code: sys::FBY_E_MEDIA_SMALL, .. } => {
            too_small(path, medium.size_bytes(), o)
        }
        e => e,
    })?;
    read_back(path, medium)?;
    summary(path, &media_of(path, medium, false), uuid, medium.unit())
}

/// Is its start on the device itself, past the page cache?
fn read_back(path: &Path, medium: &GroupedMedium) -> Result<()> {
    let unit = medium.unit() as usize;
    let lost = |cause: String| Error::Damaged {
        path: path.into(),
        cause,
        way_out: "the disk does not hold what is written to it; see the system log".into(),
    };
    let mut there =
        Memory::zeroed(unit).map_err(|e| Error::system(path, "allocating memory", e))?;
    medium
        .read(there.bytes_mut(), 0)
        .map_err(|e| lost(format!("formatted, but its first block cannot be read ({e})")))?;
    let mut image = vec![0; unit];
    medium.media().read(0, &mut image);
    match there.bytes_mut() == &image[..] {
        true => Ok(()),
        false => Err(lost("formatted, but its first block does not read back".into())),
    }
}
