// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools that are written in groups: how one is told from a mapped one, made and opened.

mod create;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use forebay_engine::lasting::{self, Lasting};
use forebay_engine::{sys, Soft, Store};
use rustix::fs::{FileType, Mode, OFlags};

use crate::engine::{self, Code, Probe, ProbeState};
use crate::error::{open_error, Error, Result};
use crate::grouped::{GroupedMedium, GroupedOptions};
use crate::media::{
    check_link, detect_id, found_at, found_text, has_dax, kernels, Inspection, Media, MediaOptions,
};
use crate::origin::read_full;
use crate::report::{MediaInfo, MediaKind, Persist};
pub(crate) use create::{check_room, create};

/// The kind of content at a path, by a look that reads and takes no lock.
pub(crate) enum Found {
    /// To be mapped, or nothing that can be looked at.
    Mapped,
    /// A pool that is written in groups.
    Grouped(Box<Probe>),
    /// A block device without DAX, which cannot be mapped as memory, without such a pool.
    /// `found`: what is there.
    Disk { found: Option<String>, probe: Box<Probe> },
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Found::Mapped => "Mapped",
            Found::Grouped(_) => "Grouped",
            Found::Disk { .. } => "Disk",
        })
    }
}

/// A file or device that is only read.
struct Reader {
    fd: Lasting<OwnedFd>,
    size: u64,
}

/// A child of the process does not have it, as of a pool that is open.
fn open_to_read(path: &Path) -> rustix::io::Result<Lasting<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    lasting::open(|| rustix::fs::open(path, flags, Mode::empty()))
}

impl Reader {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let bytes = to.len();
        read_full(self.fd.as_fd(), to, at, bytes)
    }
}

impl Store for Reader {
    fn size(&self) -> u64 {
        self.size
    }

    fn write(&self, _: u64, _: &[u8]) {
        unreachable!("a probe stores nothing");
    }

    fn fence(&self, _: u64, _: usize) {}

    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool {
        let mut to = vec![0; bytes];
        let read = self.read_at(&mut to, at).is_ok();
        if read {
            take(&to);
        }
        read
    }
}

/// Whatever keeps it from looking is told by whoever opens it.
pub(crate) fn look(path: &Path) -> Found {
    try_look(path).unwrap_or(Found::Mapped)
}

fn try_look(path: &Path) -> Option<Found> {
    check_link(path).ok()?;
    let st = rustix::fs::stat(path).ok()?;
    let disk = match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => {
            !has_dax((rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev)))
        }
        _ => return None,
    };
    let fd = open_to_read(path).ok()?;
    let size = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).ok()?;
    let reader = Soft::new(Reader { fd, size });
    let mut probe = engine::probe_of(&reader);
    let features = probe.superblock.as_ref().map_or(0, |sb| sb.features_incompat);
    if features & sys::FBY_FEATURE_GROUPED != 0 {
        // This is no device to the engine.
        probe.error = probe.error.filter(|e| !e.is(sys::FBY_E_GROUPED));
        return Some(Found::Grouped(Box::new(probe)));
    }
    if !disk {
        return Some(Found::Mapped);
    }
    let mut read = |at: usize, to: &mut [u8]| reader.read_at(to, at as u64);
    let found = match found_at(size, &mut read) {
        Ok(found) => found,
        Err(e) => Some(format!("blocks that cannot be read ({e})")),
    };
    Some(Found::Disk { found, probe: Box::new(probe) })
}

/// A disk without a pool that is written in groups.
pub(crate) fn not_a_pool(path: &Path, found: Option<String>, probe: &Probe) -> Error {
    match probe.state {
        ProbeState::Damaged => {
            open_error(path, probe.error.unwrap_or(Code(sys::FBY_E_BAD_SUPERBLOCK)))
        }
        ProbeState::Pool => Error::Unsupported {
            path: path.into(),
            cause: "it holds a pool that was made in memory, and is a block device without DAX".into(),
            way_out: "nothing was written; copy it to where it was made, a file or persistent memory, and open that".into(),
        },
        ProbeState::Blank => Error::NotAPool {
            path: path.into(),
            found: found.unwrap_or_else(|| "it is blank".into()),
        },
    }
}

/// Refuses what concerns mapped memory alone.
fn check_options(path: &Path, o: &MediaOptions) -> Result<()> {
    let named = match o {
        MediaOptions { persist, .. } if ![Persist::Auto, Persist::Groups].contains(persist) => {
            format!("persist method {persist}")
        }
        MediaOptions { kernel: Some(kernel), .. } => format!("copy kernel \"{kernel}\""),
        MediaOptions { allow_weaker: true, .. } => "a weaker persist method".into(),
        _ => return Ok(()),
    };
    Err(Error::usage(
        format!(
            "{}: {named} is for pools in memory, and this one is written in groups",
            path.display()
        ),
        "leave that out",
    ))
}

/// Opens a pool that is written in groups, or a disk for one, and loads the image.
pub(crate) fn open(path: &Path, o: &MediaOptions) -> Result<(Media, GroupedMedium)> {
    check_options(path, o)?;
    let (read_only, on_demand) = (o.read_only, o.on_demand);
    let options = GroupedOptions { read_only, on_demand, ..Default::default() };
    let disk = GroupedMedium::open(path, &options)?;
    Ok((media_of(path, &disk, o.read_only), disk))
}

/// The image, as media of a pool.
pub(crate) fn media_of(path: &Path, grouped: &GroupedMedium, read_only: bool) -> Media {
    let in_memory = grouped.facts().is_some_and(|facts| facts.memory_system().is_some());
    let mut note = match in_memory {
        true => "a file in memory, written in groups: gone with the machine".to_string(),
        false => "a disk, written in groups".to_string(),
    };
    for said in grouped.notes() {
        note = format!("{note}; {said}");
    }
    let info = MediaInfo {
        path: path.to_path_buf(),
        id: detect_id(grouped.disk().path()).unwrap_or_default(),
        kind: MediaKind::Disk,
        persist: Persist::Groups,
        size_bytes: grouped.size_bytes(),
        durable: !in_memory,
        kernel: kernels().first().copied().unwrap_or("generic").into(),
        note,
    };
    Media::of_image(info, grouped.media().clone(), read_only, grouped.file())
}

/// Describes a path whose content is not mapped.
pub(crate) fn inspection(path: &Path, probe: &Probe, found: Option<String>) -> Result<Inspection> {
    let system = |e: rustix::io::Errno| Error::system(path, "looking at it", e.into());
    let size = open_to_read(path).and_then(|fd| rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)));
    let (state, text) = found_text(probe, || found);
    Ok(Inspection {
        path: path.to_path_buf(),
        state,
        size_bytes: size.map_err(system)?,
        text,
        id: detect_id(path).unwrap_or_default(),
        superblock: probe.superblock.clone(),
    })
}
