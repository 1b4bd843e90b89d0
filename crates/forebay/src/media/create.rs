// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a pool, and looking at what is at a path.
//!
//! A new file is made without a name (O_TMPFILE), formatted, synced, and only
//! then linked: cut at any instruction there is nothing at the path, or a
//! whole pool.  An existing file or device is formatted in place, if it is
//! blank or with force; the superblocks come last, so cut short it is not a
//! pool.  Media that holds anything is never formatted without force.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_engine::sys;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, CWD};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::detect::{Access, Opened, Shape};
use super::{signature, Media, MediaOptions};
use crate::defaults;
use crate::engine::{self, Code, Probe, ProbeState};
use crate::error::{Error, Result};
use crate::report::{human_bytes, MediaInfo, MediumChoice, SuperblockDump, Uuid};

/// How to make a pool.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Bytes; needed for a new file, and for an existing empty one.
    pub size_bytes: Option<u64>,
    /// Bytes, a power of two from [`defaults::CHUNK_SIZE_BYTES_MIN`] to
    /// [`defaults::CHUNK_SIZE_BYTES`], which 0 means.
    pub chunk_size_bytes: u32,
    /// 1 to [`defaults::VOLUMES`], which 0 means.
    pub max_volumes: u32,
    /// Room for static volumes, of the pool's size: a multiple of
    /// [`defaults::STATIC_UNIT_BYTES`]; 0: it takes none.
    pub static_bytes: u64,
    /// Additional room for maps: a multiple of 2 MiB; 0: the pool takes none.
    pub map_bytes: u64,
    /// Mapped memory, or a disk that is written in groups.
    pub medium: MediumChoice,
    /// Format even if the media holds something.
    pub force: bool,
    pub media: MediaOptions,
}

/// A pool that was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolSummary {
    #[serde(flatten, with = "crate::report::path::path")]
    pub path: PathBuf,
    pub uuid: Uuid,
    pub chunk_size_bytes: u32,
    pub chunks: u32,
    /// Bytes of data that the pool can hold, but for static volumes.
    pub capacity_bytes: u64,
    /// Room for static volumes.
    #[serde(default)]
    pub static_bytes: u64,
    /// Room for maps.
    #[serde(default)]
    pub map_bytes: u64,
    pub max_volumes: u32,
    pub media: MediaInfo,
}

/// The content found at a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    #[serde(flatten, with = "crate::report::path::path")]
    pub path: PathBuf,
    pub state: InspectionState,
    pub size_bytes: u64,
    /// One sentence, naming what was found.
    pub text: String,
    /// As [`MediaInfo::id`](super::MediaInfo::id).
    pub id: String,
    /// The pool's, when one was found.
    pub superblock: Option<SuperblockDump>,
}

/// State of what is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InspectionState {
    /// Nothing that is known, and no byte set where one would be.
    Blank,
    /// A pool that can be opened.
    Pool,
    /// A pool that cannot be opened by this version or in this size.
    PoolUnusable,
    /// Traces of a pool, but no valid superblock.
    Damaged,
    /// Something else.
    Other,
}

fn why(probe: &Probe) -> &'static str {
    probe.error.map_or("", Code::message)
}

/// Examines the path.  Takes no lock and writes nothing, so it can run concurrently with a
/// process that has the pool open.
pub(crate) fn inspect(path: &Path) -> Result<Inspection> {
    let o = MediaOptions { read_only: true, ..Default::default() };
    let media = match Media::open_as(path, &o, Access::Peek, None) {
        Ok(m) => m,
        Err(Error::TooSmall { bytes, .. }) => return Ok(inspection_of_little(path, bytes)),
        Err(e) => return Err(e),
    };
    let probe = engine::probe(&media);
    let (state, text) = found_text(&probe, || media.found());
    Ok(Inspection {
        path: path.to_path_buf(),
        state,
        size_bytes: media.info().size_bytes,
        text,
        id: media.info().id.clone(),
        superblock: probe.superblock,
    })
}

pub(crate) fn found_text(
    probe: &Probe,
    found: impl FnOnce() -> Option<String>,
) -> (InspectionState, String) {
    match probe.state {
        ProbeState::Pool if probe.error.is_none() => (
            InspectionState::Pool,
            match (probe.primary_valid, probe.copy_valid) {
                (true, true) => "a Forebay pool".to_string(),
                (false, _) => "a Forebay pool whose first superblock is damaged; the copy is good, and the next opening for writing repairs it".into(),
                (_, false) => "a Forebay pool whose superblock copy is damaged; the first is good, and the next opening for writing repairs it".into(),
            },
        ),
        ProbeState::Pool => (
            InspectionState::PoolUnusable,
            format!("a Forebay pool, but {}", why(probe)),
        ),
        ProbeState::Damaged => (
            InspectionState::Damaged,
            format!("a damaged Forebay pool: {}", why(probe)),
        ),
        ProbeState::Blank => match found() {
            Some(found) => (InspectionState::Other, found),
            None => (InspectionState::Blank, "nothing (it is blank)".into()),
        },
    }
}

fn inspection_of_little(path: &Path, bytes: u64) -> Inspection {
    let (state, text) = match bytes {
        0 => (InspectionState::Blank, "an empty file".to_string()),
        n => (InspectionState::Other, format!("only {n} bytes")),
    };
    Inspection {
        path: path.to_path_buf(),
        state,
        size_bytes: bytes,
        text,
        id: String::new(),
        superblock: None,
    }
}

/// Makes a pool that is mapped, by options that were checked.
pub(crate) fn create(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => create_file(path, o),
        Err(e) => Err(Error::system(path, "looking at it", e.into())),
        Ok(_) => format_existing(path, o),
    }
}

/// Options with the defaults filled in.
pub(crate) fn check_options(o: &CreateOptions) -> Result<CreateOptions> {
    let mut o = o.clone();
    if o.chunk_size_bytes == 0 {
        o.chunk_size_bytes = defaults::CHUNK_SIZE_BYTES;
    }
    let possible = defaults::CHUNK_SIZE_BYTES_MIN..=defaults::CHUNK_SIZE_BYTES;
    if !o.chunk_size_bytes.is_power_of_two() || !possible.contains(&o.chunk_size_bytes) {
        let [least, most] = [possible.start(), possible.end()].map(|n| human_bytes((*n).into()));
        return Err(Error::usage(
            format!("chunk size {} bytes is not possible", o.chunk_size_bytes),
            format!("use a power of two from {least} to {most}"),
        ));
    }
    if o.max_volumes == 0 {
        o.max_volumes = defaults::VOLUMES;
    }
    if o.max_volumes > defaults::VOLUMES {
        return Err(Error::usage(
            format!("{} volumes are more than a pool can hold", o.max_volumes),
            format!("use 1 to {}", defaults::VOLUMES),
        ));
    }
    if !o.static_bytes.is_multiple_of(defaults::STATIC_UNIT_BYTES) {
        return Err(Error::usage(
            format!("room of {} bytes for static volumes is not possible", o.static_bytes),
            format!("use a multiple of {}", human_bytes(defaults::STATIC_UNIT_BYTES)),
        ));
    }
    if !o.map_bytes.is_multiple_of(sys::FBY_MAP_UNIT) {
        return Err(Error::usage(
            format!("room of {} bytes for maps is not possible", o.map_bytes),
            format!("use a multiple of {}", human_bytes(sys::FBY_MAP_UNIT)),
        ));
    }
    if o.media.read_only {
        return Err(Error::usage("a pool cannot be created read-only", "leave the option out"));
    }
    Ok(o)
}

/// The size of a pool in a file that does not exist yet.
pub(crate) fn size_of_new(path: &Path, o: &CreateOptions) -> Result<u64> {
    let size_bytes = o.size_bytes.ok_or_else(|| {
        Error::usage(
            format!("{} does not exist and no size was given", path.display()),
            "give the size of the new pool (--size)",
        )
    })?;
    check_size(path, size_bytes, o)?;
    Ok(size_bytes)
}

fn create_file(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    let size_bytes = size_of_new(path, o)?;
    let file = NewFile::make(path)?;
    // Nobody can see the file yet, but once linked it is ours until we close.
    rustix::fs::flock(&file.fd, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| Error::system(path, "locking it", e.into()))?;
    allocate(path, &file.fd, size_bytes)?;
    let fd = file.fd.try_clone().map_err(|e| Error::system(path, "keeping it open", e))?;
    let opened = regular(path, fd)?;
    let media = Media::map_new(path, opened, &o.media)?;
    let summary = format(path, &media, o)?;
    file.publish(path)?;
    Ok(summary)
}

fn regular(path: &Path, fd: OwnedFd) -> Result<Opened> {
    let st = rustix::fs::fstat(&fd).map_err(|e| Error::system(path, "looking at it", e.into()))?;
    let fs = rustix::fs::fstatfs(&fd)
        .map_err(|e| Error::system(path, "looking at its file system", e.into()))?;
    Ok(Opened {
        below: Vec::new(),
        shape: Shape::File { memory: super::detect::is_memory(&fs) },
        size_bytes: st.st_size as u64,
        device: (rustix::fs::major(st.st_dev), rustix::fs::minor(st.st_dev)),
        id: super::detect::id_of_stat(&st),
        fd: fd.into(),
    })
}

/// A file that gets its name last.
pub(crate) struct NewFile {
    pub(crate) fd: OwnedFd,
    /// Its name until then, on file systems without O_TMPFILE.
    temporary: Option<PathBuf>,
}

impl NewFile {
    pub(crate) fn make(path: &Path) -> Result<NewFile> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let directory = directory_of(path);
        match rustix::fs::open(&directory, flags | OFlags::TMPFILE, mode) {
            Ok(fd) => return Ok(NewFile { fd, temporary: None }),
            // ISDIR: a kernel that does not know the flag.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(e) => {
                return Err(match e {
                    Errno::NOENT => Error::NotFound {
                        path: directory,
                        way_out: "make the directory first".into(),
                    },
                    e => Error::system(&directory, "making a file in it", e.into()),
                })
            }
        }
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into());
        let temporary = directory.join(format!(".{name}.{}", Uuid::random()?.short()));
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&temporary, flags, mode)
            .map_err(|e| Error::system(&directory, "making a file in it", e.into()))?;
        Ok(NewFile { fd, temporary: Some(temporary) })
    }

    /// Makes the file and then its name durable, if nothing has that name by now.
    pub(crate) fn publish(self, path: &Path) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|e| Error::system(path, "syncing it", e.into()))?;
        self.link(path)?;
        sync_directory(path)
    }

    fn link(mut self, path: &Path) -> Result<()> {
        let done = match &self.temporary {
            None => {
                // Through /proc, since AT_EMPTY_PATH needs a capability.
                let me = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                rustix::fs::linkat(CWD, me, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(temporary) => rename_new(temporary, path),
        };
        match done {
            Ok(()) => {
                self.temporary = None;
                Ok(())
            }
            Err(Errno::EXIST) => Err(Error::NotBlank {
                path: path.into(),
                found: "a file that appeared while the pool was being made".into(),
            }),
            Err(e) => Err(Error::system(path, "giving the new file its name", e.into())),
        }
    }
}

/// Renames without replacing; a hard link does where the file system has no
/// such rename.
fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            rustix::fs::unlink(from)
        }
        done => done,
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlink(temporary);
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = directory_of(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced =
        rustix::fs::open(&directory, flags, Mode::empty()).and_then(|fd| rustix::fs::fsync(&fd));
    match synced {
        // Some file systems have nothing to sync there.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(e) => Err(Error::system(&directory, "syncing the directory", e.into())),
    }
}

/// Gives a file all of its blocks, so that a full disk is an error here and
/// never a SIGBUS later.
fn allocate(path: &Path, fd: &OwnedFd, size_bytes: u64) -> Result<()> {
    let full = |e: Errno| disk_full(path, size_bytes, e);
    if i64::try_from(size_bytes).is_err() {
        return Err(full(Errno::FBIG));
    }
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size_bytes) {
        Ok(()) => return Ok(()),
        Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(full(e)),
        Err(Errno::OPNOTSUPP) => {}
        Err(e) => return Err(Error::system(path, "allocating its blocks", e.into())),
    }
    let clone =
        fd.as_fd().try_clone_to_owned().map_err(|e| Error::system(path, "keeping it open", e))?;
    fill_all(path, &mut File::from(clone), size_bytes)
}

fn disk_full(path: &Path, bytes_wanted: u64, e: Errno) -> Error {
    Error::DiskFull { path: path.into(), bytes_wanted, source: e.into() }
}

/// With zeroes.
pub(crate) fn fill_all(path: &Path, file: &mut File, size_bytes: u64) -> Result<()> {
    fill(file, size_bytes).map_err(|e| match Errno::from_io_error(&e) {
        Some(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => disk_full(path, size_bytes, e),
        _ => Error::system(path, "filling it", e),
    })
}

/// With zeroes, where the file system cannot allocate.
fn fill(file: &mut impl Write, size_bytes: u64) -> io::Result<()> {
    let zeroes = vec![0u8; 1 << 20];
    let mut left = size_bytes;
    while left > 0 {
        let n = left.min(zeroes.len() as u64) as usize;
        file.write_all(&zeroes[..n])?;
        left -= n as u64;
    }
    Ok(())
}

fn format_existing(path: &Path, o: &CreateOptions) -> Result<PoolSummary> {
    grow_empty_file(path, o)?;
    let media = match Media::open_as(path, &o.media, Access::Write, o.size_bytes) {
        Err(Error::TooSmall { bytes, .. }) => {
            check_size(path, bytes, o)?;
            return Err(too_small(path, bytes, o));
        }
        m => m?,
    };
    check_size(path, media.info().size_bytes, o)?;
    let probe = engine::probe(&media);
    if !o.force {
        if let Some(found) = found_on(&media, &probe) {
            return Err(Error::NotBlank { path: path.into(), found });
        }
    } else {
        // Nothing of what was there may be taken for valid later, by us or
        // by a tool that looks for file systems.  The superblocks go first: from
        // then on there is no pool, old or new, until the format is done.
        let len = media.info().size_bytes as usize;
        let edge = signature::EDGE_BYTES.min(len);
        let read = |at, line: &mut [u8]| media.mapped().read(at, line);
        for at in signature::superblocks(len as u64, signature::PAGE as u64, read) {
            media.wipe(at as usize, signature::PAGE);
        }
        media.wipe(0, edge);
        media.wipe(len - edge, edge);
    }
    format(path, &media, o)
}

/// An empty file takes the size asked for; a file of another size keeps it.
fn grow_empty_file(path: &Path, o: &CreateOptions) -> Result<()> {
    let st = rustix::fs::stat(path).map_err(|e| Error::system(path, "looking at it", e.into()))?;
    let file_type = rustix::fs::FileType::from_raw_mode(st.st_mode);
    if file_type != rustix::fs::FileType::RegularFile {
        return Ok(());
    }
    let len = st.st_size as u64;
    match o.size_bytes {
        None if len == 0 => Err(Error::usage(
            format!("{} is empty and no size was given", path.display()),
            "give the size of the pool (--size)",
        )),
        None => Ok(()),
        Some(size_bytes) if len == 0 => {
            check_size(path, size_bytes, o)?;
            let opened = super::detect::open(path, Access::Write)?;
            let done = allocate(path, &opened.fd, size_bytes);
            if done.is_err() {
                // As it was found.
                let _ = rustix::fs::ftruncate(&opened.fd, 0);
            }
            done
        }
        Some(size_bytes) if size_bytes != len => Err(Error::usage(
            format!("{} exists and has {len} bytes, not {size_bytes}", path.display()),
            "leave the size out to use it as it is, or choose another path",
        )),
        Some(_) => Ok(()),
    }
}

pub(crate) fn found_on(media: &Media, probe: &Probe) -> Option<String> {
    match probe.state {
        ProbeState::Pool => {
            let uuid = probe.superblock.as_ref().map(|s| s.uuid);
            let uuid = uuid.map(|u| format!(" {u}")).unwrap_or_default();
            Some(format!("a Forebay pool{uuid}, perhaps with data that is nowhere else"))
        }
        ProbeState::Damaged => {
            Some("a damaged Forebay pool, perhaps with data that is nowhere else".into())
        }
        ProbeState::Blank => media.found(),
    }
}

fn least_bytes(o: &CreateOptions) -> u64 {
    // Shares of maps begin at a multiple of their unit.
    let maps = match o.map_bytes {
        0 => 0,
        bytes => bytes.saturating_add(sys::FBY_MAP_UNIT),
    };
    let shares = o.static_bytes.saturating_add(maps);
    engine::least_media_bytes(o.chunk_size_bytes).saturating_add(shares)
}

pub(crate) fn check_size(path: &Path, bytes: u64, o: &CreateOptions) -> Result<()> {
    match bytes < least_bytes(o) {
        true => Err(too_small(path, bytes, o)),
        false => Ok(()),
    }
}

pub(crate) fn too_small(path: &Path, bytes: u64, o: &CreateOptions) -> Error {
    let shares = o.static_bytes.saturating_add(o.map_bytes);
    if shares != 0 && bytes >= engine::least_media_bytes(o.chunk_size_bytes) {
        return Error::usage(
            format!(
                "{}: its {} do not hold {} for static volumes and maps and the smallest pool next to it",
                path.display(),
                human_bytes(bytes),
                human_bytes(shares)
            ),
            format!(
                "it needs {}: make it larger, or leave less for them",
                human_bytes(least_bytes(o))
            ),
        );
    }
    Error::TooSmall {
        path: path.into(),
        bytes,
        chunk_size_bytes: o.chunk_size_bytes,
        least_bytes: least_bytes(o),
    }
}

fn format(path: &Path, media: &Media, o: &CreateOptions) -> Result<PoolSummary> {
    let uuid = Uuid::random()?;
    engine::format(media, uuid, o)?;
    summary(path, media, uuid, 0)
}

/// The summary of the pool that was just made.
/// `unit`: that of a pool that is written in groups, else 0.
pub(crate) fn summary(path: &Path, media: &Media, uuid: Uuid, unit: u32) -> Result<PoolSummary> {
    let probe = engine::probe(media);
    let sb =
        probe.superblock.filter(|s| probe.error.is_none() && s.uuid == uuid).ok_or_else(|| {
            Error::Damaged {
                path: path.into(),
                cause: format!(
                    "{} formatted, but the superblock does not read back",
                    human_bytes(media.info().size_bytes)
                ),
                way_out: "the media does not hold what is stored to it; see the system log".into(),
            }
        })?;
    let pages = sb.chunk_size_bytes / sys::FBY_PAGE;
    let data_pages = u64::from(pages - engine::first_data_page(sb.chunk_size_bytes, unit));
    Ok(PoolSummary {
        path: path.to_path_buf(),
        uuid,
        chunk_size_bytes: sb.chunk_size_bytes,
        chunks: sb.chunks,
        capacity_bytes: u64::from(sb.chunks) * data_pages * 4096,
        static_bytes: sb.static_bytes,
        map_bytes: sb.map_bytes,
        max_volumes: sb.max_volumes,
        media: media.info().clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole pieces, parts of one, and a file system that is full in the middle.
    #[test]
    fn files_are_filled_to_their_size() {
        for size in [0, 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 4096] {
            let mut written = Vec::new();
            fill(&mut written, size).unwrap();
            assert!(written.len() as u64 == size && written.iter().all(|b| *b == 0), "{size}");
        }
        let mut room = [1u8; 1 << 20];
        assert!(fill(&mut &mut room[..], (1 << 20) + 1).is_err());
    }
}
