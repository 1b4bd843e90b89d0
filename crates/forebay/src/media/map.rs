// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped media: the engine's `struct fby_media` and what keeps it alive.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::lasting::{self, Lasting};
use forebay_engine::{Media as Mapped, Memory, Pace};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::detect::{self, Access, Opened, Shape};
use super::names::BelowLocks;
use super::unshared::unshare;
use super::whereabouts::FirstName;
use super::{kernels, signature, MediaOptions};
use crate::engine;
use crate::error::{Error, Result};
use crate::ioctl::file_extents;
use crate::report::{human_bytes, MediaInfo, MediaKind, Persist};

/// Media, opened, locked and mapped.
pub struct Media {
    pub(super) info: MediaInfo,
    /// The engine's view.
    mapped: Arc<Mapped>,
    read_only: bool,
    /// Memory modules that it is interleaved over, if known.
    modules: Option<u32>,
    /// Holds the lock, or the exclusive claim.
    pub(super) fd: Option<Lasting<OwnedFd>>,
    /// The locks of what is below a device.
    _below: BelowLocks,
    /// Its path from the root, at the open.
    pub(super) at: PathBuf,
    /// Its name at the open.
    pub(super) first: FirstName,
}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Media").field("info", &self.info).finish()
    }
}

/// `slots = auto`.  A slot is the right to store to the media:
///
/// - Memory serves as many as there are CPUs.  Four at least, so that one whose
///   holder lost its CPU is not missed.
/// - One module of persistent memory has its highest throughput with three
///   writers, and each further one costs CPU time only: 3.3 us of it a write with
///   three slots, 6.5 us with eight (ZIL-PMEM, section 7.3.4).  Interleaved ones
///   serve the more.
/// - A writer to a file sleeps in msync, off the CPU, and the file system commits
///   for those that wait together: many.
///
/// A slot keeps a chunk open for each volume that it writes, so a small pool has
/// few.  Measuring at each start instead would take time, write to media that is
/// not ours to write to yet, and give another answer on a busy machine.
fn best_slots(kind: MediaKind, modules: Option<u32>, cpus: u32, chunks: u32) -> u32 {
    const MODULE: u32 = 3;
    const SLEEPING: u32 = 16;
    let memory = cpus.max(4);
    let best = match (kind, modules) {
        (MediaKind::File | MediaKind::FsdaxBlock, _) => SLEEPING,
        // To append to an image is to store to memory.
        (MediaKind::Shm | MediaKind::Disk, _) | (_, Some(0)) => memory,
        (_, modules) => memory.min(modules.unwrap_or(1).saturating_mul(MODULE)),
    };
    best.min((chunks / 16).max(4)).clamp(1, 64)
}

impl Media {
    /// Opens, locks and maps what is at the path.  Writes nothing, but fills
    /// the holes of a sparse file that is opened for writing.
    pub fn open(path: &Path, o: &MediaOptions) -> Result<Media> {
        let access = match o.read_only {
            true => Access::Read,
            false => Access::Write,
        };
        Media::open_as(path, o, access, None)
    }

    /// The image of a disk, with the descriptor of that.
    pub(crate) fn of_image(
        info: MediaInfo,
        image: Arc<Mapped>,
        read_only: bool,
        fd: Option<Lasting<OwnedFd>>,
    ) -> Media {
        let at = from_root(&info.path);
        let first = FirstName::of(fd.as_ref());
        Media { info, mapped: image, read_only, modules: None, fd, _below: Vec::new(), at, first }
    }

    /// Maps it, whatever it holds.  `len`: map only so much of a device.
    pub(crate) fn open_as(
        path: &Path,
        o: &MediaOptions,
        access: Access,
        len: Option<u64>,
    ) -> Result<Media> {
        let opened = detect::open(path, access)?;
        match (opened.shape, access) {
            (Shape::File { .. }, Access::Write) => {
                fill_holes(path, &opened)?;
                unshare(path, &opened.fd, opened.size_bytes)?;
            }
            (Shape::File { memory: true }, _) => holes_can_be_read(path, &opened)?,
            _ => {}
        }
        Media::map(path, opened, o, access == Access::Write, len)
    }

    /// Maps a new file that is not linked yet; it has its blocks.
    pub(super) fn map_new(path: &Path, opened: Opened, o: &MediaOptions) -> Result<Media> {
        Media::map(path, opened, o, true, None)
    }

    fn map(
        path: &Path,
        opened: Opened,
        o: &MediaOptions,
        writable: bool,
        len: Option<u64>,
    ) -> Result<Media> {
        let size_bytes = usable_bytes(path, &opened, len)?;
        let (map, synchronous) = map_shape(path, &opened, size_bytes as usize, writable)?;
        let kind = opened.shape.kind(synchronous);
        let eadr = matches!(kind, MediaKind::DaxFile | MediaKind::DevDax)
            && detect::caches_are_durable(opened.shape, opened.device);
        let persist = choose_persist(path, kind, eadr, o)?;
        if kind == MediaKind::Shm {
            map.prefer_huge_pages();
        }
        if o.populate {
            map.populate(0..map.len());
        }
        let needed = needed_persist(kind, eadr);
        let info = MediaInfo {
            path: path.to_path_buf(),
            id: opened.id.clone(),
            kind,
            persist,
            size_bytes,
            durable: kind != MediaKind::Shm && is_enough(persist, needed),
            kernel: String::new(),
            note: note(kind, persist, needed),
        };
        let modules = detect::modules(opened.shape, opened.device);
        let below = opened.below;
        Ok(Media {
            modules,
            _below: below,
            ..Media::assemble(info, map, o, !writable, Some(opened.fd))?
        })
    }

    /// Anonymous memory as media: for tests and benches.
    pub fn anonymous(bytes: u64, o: &MediaOptions) -> Result<Media> {
        let path = PathBuf::from("(memory)");
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let map = Memory::anonymous(len, true)
            .map_err(|e| Error::system(&path, "allocating memory", e))?;
        if o.populate {
            map.populate(0..map.len());
        }
        let persist = match o.persist {
            Persist::Auto => Persist::Nt,
            // There is no file to write back to.
            Persist::Msync => {
                return Err(Error::usage(
                    "persist method msync needs a file",
                    "use nt, clwb or eadr for a pool in memory",
                ))
            }
            p => p,
        };
        let info = MediaInfo {
            path,
            id: String::new(),
            kind: MediaKind::Shm,
            persist,
            size_bytes: bytes,
            durable: false,
            kernel: String::new(),
            note: "anonymous memory: DRAM speed; gone with the process".into(),
        };
        Media::assemble(info, map, o, false, None)
    }

    fn assemble(
        mut info: MediaInfo,
        map: Memory,
        o: &MediaOptions,
        read_only: bool,
        fd: Option<Lasting<OwnedFd>>,
    ) -> Result<Media> {
        let known = kernels();
        let kernel = match &o.kernel {
            None => None,
            Some(name) => Some(known.iter().find(|k| *k == name).copied().ok_or_else(|| {
                Error::usage(
                    format!("copy kernel \"{name}\" is not one this CPU can run"),
                    format!("use one of {}", known.join(", ")),
                )
            })?),
        };
        let persist = persist_of(info.persist);
        let mapped = persist.and_then(|p| Mapped::new(Arc::new(map), info.size_bytes, p, kernel));
        let mapped = mapped.ok_or_else(|| Error::Unsupported {
            path: info.path.clone(),
            cause: format!("this CPU cannot do persist method {}", info.persist),
            way_out: "leave the persist method and the copy kernel at auto".into(),
        })?;
        info.kernel = kernel.or(known.first().copied()).unwrap_or("generic").into();
        let mapped = match fd {
            Some(_) => {
                let name = CString::new(info.path.as_os_str().as_bytes()).unwrap_or_default();
                mapped.watched(name)
            }
            None => mapped,
        };
        let at = from_root(&info.path);
        let first = FirstName::of(fd.as_ref());
        Ok(Media {
            info,
            mapped: Arc::new(mapped),
            read_only,
            modules: None,
            fd,
            _below: Vec::new(),
            at,
            first,
        })
    }

    /// The properties of the media.
    pub fn info(&self) -> &MediaInfo {
        &self.info
    }

    /// The engine's view of the media.
    pub fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    /// Gives the media a pace from now on; it must not be in use yet.
    pub fn paced(self, pace: Arc<dyn Pace>) -> Media {
        let mapped = Arc::into_inner(self.mapped).expect("nobody else has it");
        Media { mapped: Arc::new(mapped.paced(pace)), ..self }
    }

    /// Describes content that is not a pool; `None`: blank.
    pub(crate) fn found(&self) -> Option<String> {
        let len = self.mapped.size() as usize;
        signature::find(len, &mut |at, page| match self.mapped.read(at as u64, page) {
            true => Ok(()),
            false => Err(format!("memory that cannot be read (at byte {at})")),
        })
        .unwrap_or_else(Some)
    }

    pub(crate) fn read_only(&self) -> bool {
        self.read_only
    }

    /// Its file, another time.
    pub(crate) fn file(&self) -> io::Result<Lasting<std::fs::File>> {
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        lasting::duplicate(fd.as_fd())
    }

    /// Writers that it serves best at once, in a pool of so many chunks.
    pub(crate) fn best_slots(&self, chunks: u32) -> u32 {
        let cpus = std::thread::available_parallelism().map_or(4, usize::from);
        best_slots(self.info.kind, self.modules, cpus as u32, chunks)
    }

    /// Zeroes a page-aligned range durably.  For create, on media without a
    /// pool that anybody wants to keep.
    pub(super) fn wipe(&self, start: usize, len: usize) {
        assert!(!self.read_only);
        self.mapped.zero(start as u64, len);
    }
}

/// The process may change its directory later.
fn from_root(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// `None`: auto, which is none.
fn persist_of(persist: Persist) -> Option<forebay_engine::Persist> {
    match persist {
        Persist::Auto | Persist::Groups => None,
        Persist::Nt => Some(forebay_engine::Persist::Nt),
        Persist::Clwb => Some(forebay_engine::Persist::Clwb),
        Persist::Eadr => Some(forebay_engine::Persist::Eadr),
        Persist::Msync => Some(forebay_engine::Persist::Msync),
    }
}

/// Size to map: the whole, cut to what the device can map.
fn usable_bytes(path: &Path, opened: &Opened, len: Option<u64>) -> Result<u64> {
    let unit = match opened.shape {
        Shape::DevDax { align_bytes } => align_bytes.max(4096),
        _ => 4096,
    };
    let have = opened.size_bytes;
    let want = len.unwrap_or(have);
    if want > have {
        return Err(Error::usage(
            format!("{}: {want} bytes asked for, but it has {have}", path.display()),
            "leave the size out to use all of it",
        ));
    }
    let usable = want - want % unit;
    if usable == 0 || usize::try_from(usable).is_err() {
        return Err(Error::TooSmall {
            path: path.into(),
            bytes: want,
            chunk_size_bytes: 64 << 10,
            least_bytes: engine::least_media_bytes(64 << 10),
        });
    }
    Ok(usable)
}

/// Maps it, trying the synchronous way first where there may be one.
fn map_shape(path: &Path, opened: &Opened, len: usize, writable: bool) -> Result<(Memory, bool)> {
    let fd = opened.fd.as_fd();
    if let Shape::File { memory: false } = opened.shape {
        match Memory::of_file(fd, len, writable, true) {
            Ok(map) => return Ok((map, true)),
            // EOPNOTSUPP: no DAX.  EINVAL: a kernel that does not know it.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::OPNOTSUPP | Errno::INVAL)) => {
            }
            Err(e) => return Err(map_error(path, e)),
        }
    }
    let map = Memory::of_file(fd, len, writable, false);
    Ok((map.map_err(|e| map_error(path, e))?, false))
}

fn map_error(path: &Path, e: io::Error) -> Error {
    match Errno::from_io_error(&e) {
        Some(Errno::NODEV | Errno::OPNOTSUPP) => Error::Unsupported {
            path: path.into(),
            cause: "cannot be mapped into memory".into(),
            way_out: "use a file system that can map files shared".into(),
        },
        _ => Error::system(path, "mapping it", e),
    }
}

/// The method that the kind needs, so that a power cut loses nothing acknowledged.
fn needed_persist(kind: MediaKind, eadr: bool) -> Persist {
    match kind {
        MediaKind::Shm | MediaKind::DaxFile | MediaKind::DevDax => match eadr {
            true => Persist::Eadr,
            false => Persist::Nt,
        },
        MediaKind::File | MediaKind::FsdaxBlock => Persist::Msync,
        MediaKind::Disk => Persist::Groups,
    }
}

/// True if `asked` is at least as strong as `needed`.
fn is_enough(asked: Persist, needed: Persist) -> bool {
    let strength = |p| match p {
        Persist::Auto => unreachable!("resolved before"),
        Persist::Groups => 3,
        Persist::Eadr => 0,
        // Both end with every line on its way and a fence: equally strong.
        Persist::Nt | Persist::Clwb => 1,
        Persist::Msync => 2,
    };
    strength(asked) >= strength(needed)
}

fn choose_persist(path: &Path, kind: MediaKind, eadr: bool, o: &MediaOptions) -> Result<Persist> {
    let needed = needed_persist(kind, eadr);
    if o.persist == Persist::Auto {
        return Ok(needed);
    }
    if o.persist == Persist::Groups {
        return Err(Error::usage(
            format!("{}: this pool is mapped, and nothing goes there in groups", path.display()),
            "leave the persist method at auto; forebay create --medium ssd makes a pool that is written in groups",
        ));
    }
    if o.persist == Persist::Msync && kind == MediaKind::DevDax {
        return Err(Error::Unsupported {
            path: path.into(),
            cause: "a devdax device has no msync".into(),
            way_out: "leave the persist method at auto; stores reach it directly".into(),
        });
    }
    // On tmpfs no method makes anything durable, so none is weaker.
    if kind != MediaKind::Shm && !is_enough(o.persist, needed) && !o.allow_weaker {
        return Err(Error::WeakerPersist { path: path.into(), kind, asked: o.persist, needed });
    }
    Ok(o.persist)
}

fn note(kind: MediaKind, persist: Persist, needed: Persist) -> String {
    if kind != MediaKind::Shm && !is_enough(persist, needed) {
        return format!(
            "persist method {persist} was forced where {needed} is needed: acknowledged writes can be lost at a power cut"
        );
    }
    match kind {
        MediaKind::Shm => "shared memory: DRAM speed; survives a process, not a power cut",
        MediaKind::File => "plain file through the page cache: each commit is an msync, at disk speed; a stand-in for persistent memory",
        MediaKind::DaxFile => "file on a DAX file system, mapped synchronously: stores reach the persistent memory directly",
        MediaKind::FsdaxBlock => "user space cannot map a raw pmem block device synchronously, so each commit is an msync; faster: a devdax device, a file on a file system mounted with -o dax, or the kernel module",
        MediaKind::DevDax => "devdax device: stores reach the persistent memory directly",
        MediaKind::Disk => "a disk, written in groups",
    }
    .to_string()
}

/// To read a hole of a file in memory takes memory.
fn holes_can_be_read(path: &Path, opened: &Opened) -> Result<()> {
    let look = |e: Errno| Error::system(path, "looking at it", e.into());
    let st = rustix::fs::fstat(&opened.fd).map_err(look)?;
    let holes = opened.size_bytes.saturating_sub((st.st_blocks as u64).saturating_mul(512));
    let fs = rustix::fs::fstatvfs(&opened.fd).map_err(look)?;
    // A file system without a limit reports no blocks at all.
    match fs.f_blocks != 0 && holes > fs.f_bavail.saturating_mul(fs.f_frsize) {
        true => Err(Error::DiskFull {
            path: path.into(),
            bytes_wanted: holes,
            source: Errno::NOSPC.into(),
        }),
        false => Ok(()),
    }
}

/// A file with holes would deliver SIGBUS instead of an error when the disk
/// is full at a later store, so it gets all of its blocks now.
fn fill_holes(path: &Path, opened: &Opened) -> Result<()> {
    let size = opened.size_bytes;
    let st = rustix::fs::fstat(&opened.fd)
        .map_err(|e| Error::system(path, "looking at it", e.into()))?;
    // Blocks after the end of the file, and those of its own map, count too.
    let allocated = (st.st_blocks as u64).saturating_mul(512);
    if size == 0 || allocated >= size && is_all_data(opened) {
        return Ok(());
    }
    match rustix::fs::fallocate(&opened.fd, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(e @ (Errno::NOSPC | Errno::DQUOT)) => match bytes_without_blocks(opened) {
            // XFS wants free space for all of the range, also where there are blocks.
            Some(0) if allocated >= size => Ok(()),
            missing => Err(Error::DiskFull {
                path: path.into(),
                bytes_wanted: missing.unwrap_or(size.saturating_sub(allocated)),
                source: e.into(),
            }),
        },
        Err(Errno::OPNOTSUPP) => Err(Error::Unsuitable {
            path: path.into(),
            what: format!(
                "a sparse file ({} of {} allocated) on a file system that cannot fill it in place",
                human_bytes(allocated),
                human_bytes(size)
            ),
            way_out: "copy it with `cp --sparse=never` and use the copy".into(),
        }),
        Err(e) => Err(Error::system(path, "filling its holes", e.into())),
    }
}

/// Blocks without data count as holes, and a file system that does not tell holes has none.
fn is_all_data(opened: &Opened) -> bool {
    let hole = rustix::fs::seek(&opened.fd, SeekFrom::Hole(0));
    hole.is_ok_and(|hole| hole >= opened.size_bytes)
}

/// `None`: the file system does not say it.
fn bytes_without_blocks(opened: &Opened) -> Option<u64> {
    let (mut at, mut missing) = (0, 0);
    while at < opened.size_bytes {
        let found = file_extents(opened.fd.as_fd(), at).ok()?;
        if found.is_empty() {
            break;
        }
        for extent in found {
            missing += extent.start.min(opened.size_bytes).saturating_sub(at);
            at = at.max(extent.start.saturating_add(extent.len));
        }
    }
    Some(missing + opened.size_bytes.saturating_sub(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(persist: Persist, allow_weaker: bool) -> MediaOptions {
        MediaOptions { persist, allow_weaker, ..Default::default() }
    }

    /// Every kind with every method: which are refused, and which one auto chooses.
    #[test]
    fn weaker_methods_are_refused_unless_allowed() {
        use MediaKind::*;
        use Persist::*;
        let path = Path::new("/dev/x");
        // kind, eADR, auto takes, refused as weaker
        let table: [(MediaKind, bool, Persist, &[Persist]); 6] = [
            (Shm, false, Nt, &[]),
            (File, false, Msync, &[Nt, Clwb, Eadr]),
            (FsdaxBlock, false, Msync, &[Nt, Clwb, Eadr]),
            (DaxFile, false, Nt, &[Eadr]),
            (DaxFile, true, Eadr, &[]),
            (DevDax, false, Nt, &[Eadr]),
        ];
        for (kind, eadr, auto, refused) in table {
            let chosen = choose_persist(path, kind, eadr, &options(Auto, false)).unwrap();
            assert_eq!(chosen, auto, "{kind:?}");
            for p in [Nt, Clwb, Eadr, Msync] {
                let r = choose_persist(path, kind, eadr, &options(p, false));
                if kind == DevDax && p == Msync {
                    assert!(matches!(r, Err(Error::Unsupported { .. })));
                } else if refused.contains(&p) {
                    let e = r.unwrap_err();
                    assert!(e.to_string().contains("--allow-weaker"), "{e}");
                    assert!(choose_persist(path, kind, eadr, &options(p, true)).is_ok());
                    assert!(note(kind, p, needed_persist(kind, eadr)).contains("can be lost"));
                } else {
                    assert_eq!(r.unwrap(), p, "{kind:?} {p:?}");
                }
            }
        }
    }
    #[test]
    fn slots_by_media_and_machine() {
        use MediaKind::{DaxFile, DevDax, File, FsdaxBlock, Shm};
        let cases = [
            (Shm, None, 2, 1000, 4),
            (Shm, None, 32, 1000, 32),
            (Shm, None, 200, 100_000, 64),
            (DevDax, Some(1), 16, 1000, 3),
            (DaxFile, Some(4), 24, 1000, 12),
            (DaxFile, Some(6), 2, 1000, 4),
            (DevDax, Some(0), 8, 1000, 8), // memory that stands in
            (DaxFile, None, 8, 1000, 3),
            (File, None, 2, 1000, 16),
            (FsdaxBlock, Some(1), 2, 1000, 16),
            (Shm, None, 32, 16, 4), // a small pool
            (File, None, 2, 128, 8),
        ];
        for (kind, modules, cpus, chunks, slots) in cases {
            let best = best_slots(kind, modules, cpus, chunks);
            assert_eq!(best, slots, "{kind}, {modules:?} modules, {cpus} CPUs, {chunks} chunks");
        }
    }

    /// Blocks after its end make a file look as if it had all of its own.
    #[test]
    fn a_hole_is_filled_whatever_blocks_are_elsewhere() {
        const SIZE: u64 = 8 << 20;
        let path = std::env::temp_dir().join(format!("forebay-hole-{}", std::process::id()));
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(SIZE).unwrap();
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, SIZE, SIZE) {
            Ok(()) => {
                assert!(blocks() >= SIZE);
                drop(Media::open(&path, &options(Persist::Auto, false)).unwrap());
                assert!(blocks() >= 2 * SIZE, "{} bytes", blocks());
            }
            Err(e) => forebay_test::skipped!("the temporary directory keeps no blocks: {e}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}
