// SPDX-License-Identifier: MIT OR Apache-2.0
//! The superblocks in the file of an open pool: are they still the pool's?
//!
//! They are read by the file: the mapping of one that is cut short faults, and a pool that is
//! written in groups has none.  An open takes the valid superblock with the highest generation, and
//! so does this look: one copy that is torn or damaged is no loss.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::{Soft, Store};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::whereabouts::Look;
use super::Media;
use crate::engine::{self, Probe, ProbeState};
use crate::report::{FileFate, MediaKind, Uuid};

/// What the engine has written to both superblocks when it opened the pool.  It writes the next
/// ones when it closes the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub uuid: Uuid,
    pub generation: u64,
}

/// The file, for the engine's probe.
struct Superblocks<'f> {
    fd: BorrowedFd<'f>,
    size_bytes: u64,
    /// A read may wait for a disk.
    waits: bool,
    /// Something could not be read, so nothing is known.
    unknown: AtomicBool,
}

impl Superblocks<'_> {
    fn read_at(&self, to: &mut [u8], at: u64) -> Result<usize, Errno> {
        match self.waits {
            true => rustix::io::retry_on_intr(|| rustix::io::pread(self.fd, &mut *to, at)),
            false => {
                let to = &mut [IoSliceMut::new(to)];
                rustix::io::preadv2(self.fd, to, at, ReadWriteFlags::NOWAIT)
            }
        }
    }
}

impl Store for Superblocks<'_> {
    fn size(&self) -> u64 {
        self.size_bytes
    }

    fn write(&self, _: u64, _: &[u8]) {
        unreachable!("a probe stores nothing");
    }

    fn fence(&self, _: u64, _: usize) {}

    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool {
        let mut to = vec![0; bytes];
        let read = self.read_at(&mut to, at) == Ok(bytes);
        match read {
            true => take(&to),
            false => self.unknown.store(true, Ordering::Relaxed),
        }
        read
    }
}

impl Media {
    /// What has become of the pool in its file, if an open would not find it there, and by what.
    /// A file that cannot be read says nothing.
    pub(super) fn overwritten(&self, own: Written, look: Look) -> Option<(FileFate, String)> {
        let (fd, size_bytes) = (self.fd.as_ref()?.as_fd(), self.info.size_bytes);
        match self.info.kind {
            // The pool's own descriptor passes the page cache, and each look would ask the disk.
            MediaKind::Disk if look == Look::WithPath => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let cached = rustix::fs::open(path, flags, Mode::empty()).ok()?;
                let _ = rustix::fs::fadvise(&cached, 0, None, Advice::Random);
                let seen = || found(cached.as_fd(), size_bytes, own, true);
                seen()?;
                // The cache may have missed a write that passed it.
                let _ = rustix::fs::fadvise(&cached, 0, None, Advice::DontNeed);
                seen()
            }
            MediaKind::Disk => None,
            // The disk of its file may hang, but not memory.
            MediaKind::File => found(fd, size_bytes, own, look == Look::WithPath),
            _ => found(fd, size_bytes, own, true),
        }
    }
}

/// None: the file cannot be read.
pub(super) fn probed(fd: BorrowedFd<'_>, size_bytes: u64, waits: bool) -> Option<Probe> {
    let file = Soft::new(Superblocks { fd, size_bytes, waits, unknown: AtomicBool::new(false) });
    let probe = engine::probe_of(&file);
    (!file.unknown.load(Ordering::Relaxed)).then_some(probe)
}

fn found(
    fd: BorrowedFd<'_>,
    size_bytes: u64,
    own: Written,
    waits: bool,
) -> Option<(FileFate, String)> {
    let probe = probed(fd, size_bytes, waits)?;
    match (&probe.superblock, probe.state) {
        (Some(sb), _) if (sb.uuid, sb.generation) == (own.uuid, own.generation) => None,
        (Some(sb), _) if sb.uuid == own.uuid => {
            let which = match sb.generation < own.generation {
                true => "an older state of this pool",
                false => "a state of this pool that another server has written",
            };
            Some((FileFate::SetBack, which.into()))
        }
        (Some(sb), _) => Some((FileFate::Overwritten, format!("pool {}", sb.uuid))),
        (None, ProbeState::Blank) => Some((FileFate::Overwritten, "no pool".into())),
        (None, _) => Some((FileFate::Overwritten, "a pool without a superblock".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: usize = 512;

    /// Each state of the two copies, and whether it is a loss.
    #[test]
    fn one_valid_copy_is_enough_and_foreign_ones_are_seen() {
        let dir = std::env::temp_dir().join(format!("forebay-overwritten-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let make = |name: &str| {
            let path = dir.join(name);
            let options = crate::CreateOptions { size_bytes: Some(16 << 20), ..Default::default() };
            crate::create(&path, &options).unwrap();
            std::fs::File::options().read(true).write(true).open(path).unwrap()
        };
        let (file, other) = (make("pool"), make("other"));
        let size_bytes = file.metadata().unwrap().len();
        let superblock = |of: &std::fs::File| {
            let mut bytes = [0; BYTES];
            of.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let (ours, foreign, torn) = (superblock(&file), superblock(&other), {
            let mut torn = superblock(&file);
            torn[64] ^= 1;
            torn
        });
        let probe = Soft::new(Superblocks {
            fd: file.as_fd(),
            size_bytes,
            waits: true,
            unknown: AtomicBool::new(false),
        });
        let sb = engine::probe_of(&probe).superblock.unwrap();
        let own = Written { uuid: sb.uuid, generation: sb.generation };
        let look = |first: &[u8], copy: &[u8], own: Written| {
            file.write_all_at(first, 0).unwrap();
            file.write_all_at(copy, 4096).unwrap();
            found(file.as_fd(), size_bytes, own, true).map(|(fate, _)| fate)
        };
        let lost = Some(FileFate::Overwritten);
        let cases: [(&[u8], &[u8], Option<FileFate>); 8] = [
            (&ours, &ours, None),
            (&torn, &ours, None),
            (&ours, &torn, None),
            (&ours, &[0; BYTES], None),
            (&torn, &torn, lost),
            (&[0; BYTES], &[0; BYTES], lost),
            (&foreign, &foreign, lost),
            (&torn, &foreign, lost),
        ];
        for (n, (first, copy, fate)) in cases.into_iter().enumerate() {
            assert_eq!(look(first, copy, own), fate, "case {n}");
        }
        let later = Written { generation: own.generation + 1, ..own };
        assert_eq!(look(&ours, &ours, later), Some(FileFate::SetBack));
        // What cannot be read is no loss.
        let closed = std::fs::File::options().write(true).open(dir.join("other")).unwrap();
        assert_eq!(found(closed.as_fd(), size_bytes, own, true), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
