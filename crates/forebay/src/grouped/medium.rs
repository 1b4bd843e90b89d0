// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens what a grouped pool lies on, and loads its image.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use forebay_engine::groups::Durable;
use forebay_engine::lasting::{self, Lasting};
use forebay_engine::{sys, Image, Media, Memory, OpenError, Soft, Source, Store};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::device::{Device, FileDevice};
use super::disk::{Beneath, Chosen, Disk, ASKED};
use super::layout::{self, Mend};
use crate::engine::{probe_of, Code, Engine};
use crate::errno::again;
use crate::error::{open_error, unknown_error, Error, Result};
use crate::limit;
use crate::media::{claim, superblocks, Access, EDGE_BYTES};
use crate::medium::{DeviceFacts, MediumFacts, Place};
use crate::memory::memory_available;
use crate::report::{human_bytes, Uuid};

/// Blocks that may be unreadable at the open.  A device with more is to be copied first.
pub const UNREADABLE_MOST: usize = 16 << 10;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// How to open it.
#[derive(Clone, Debug, Default)]
pub struct GroupedOptions {
    /// When a write is durable; `None`: as the system says of the device.
    pub durable: Option<Durable>,
    /// Nothing is written.
    pub read_only: bool,
    /// A pool is to be made there.
    pub new: bool,
    /// Read what is asked for, and not all of it: of one that is only read.
    pub on_demand: bool,
}

/// A device or file, claimed, with its image.  It is for one pool, from its opening on.
pub struct GroupedMedium {
    disk: Arc<Disk>,
    media: Arc<Media>,
    unit: u32,
    /// `None`: the caller has opened the device.
    facts: Option<MediumFacts>,
    /// Why the image may be paged out.
    unlocked: Option<io::Error>,
    /// Bytes of the device after the end of the pool.
    beyond_bytes: u64,
    /// Messages of repairs, and of those that failed.
    told: Vec<String>,
    /// It is read on demand, and this is what cannot be.
    demanded: Option<Arc<Refused>>,
    /// The pool's file, if it is one, to look at what has happened to it.
    file: Option<Lasting<OwnedFd>>,
}

/// Reads of an image on demand that failed.
#[derive(Debug, Default)]
struct Refused {
    blocks: AtomicUsize,
    /// The device is gone.
    gone: OnceLock<io::Error>,
    last: Mutex<Option<io::Error>>,
}

struct Demanded {
    device: Arc<dyn Device>,
    refused: Arc<Refused>,
    unit: usize,
}

impl Source for Demanded {
    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let read = self.device.read(to, at);
        if let Err(e) = &read {
            if is_gone(e) {
                let _ = self.refused.gone.set(again(e));
            }
            // More of them are read one by one.
            if to.len() <= self.unit {
                self.refused.blocks.fetch_add(1, Ordering::Relaxed);
                *self.refused.last.lock().unwrap_or_else(|e| e.into_inner()) = Some(again(e));
            }
        }
        read
    }
}

impl Refused {
    /// So much that nothing is to be said of the pool.
    fn error(&self, path: &Path) -> Option<Error> {
        let blocks = self.blocks.load(Ordering::Relaxed);
        if let Some(e) = self.gone.get() {
            return Some(not_read(path, again(e), blocks));
        }
        let last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        let last = last.as_ref().filter(|_| blocks > UNREADABLE_MOST)?;
        Some(not_read(path, again(last), blocks))
    }
}

impl fmt::Debug for GroupedMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupedMedium").field("disk", &self.disk).field("unit", &self.unit).finish()
    }
}

impl GroupedMedium {
    /// Opens a block device or a file.  One that cannot keep the promise is refused by name,
    /// unless it is only read.
    pub fn open(path: &Path, o: &GroupedOptions) -> Result<GroupedMedium> {
        let mut facts = MediumFacts::of(path)?;
        if facts.place == Place::NewFile {
            return Err(Error::Unsuitable {
                path: path.into(),
                what: "neither a block device nor a file that exists".into(),
                way_out: "name a disk, a partition or a file that was written once".into(),
            });
        }
        let access = if o.read_only { Access::Read } else { Access::Write };
        // The claim says better who has it, and waits for readers.
        let (fd, _, below) = claim(path, access, OFlags::DIRECT)?;
        if !o.read_only {
            facts.claimed(&fd)?;
            let refusals = match o.new {
                true => facts.refusals(),
                false => facts.refusals_of_place(),
            };
            if let Some(refusal) = refusals.into_iter().next() {
                return Err(refusal.error(path));
            }
        }
        let durable = durable(path, &facts, o.durable)?;
        let size_bytes = rustix::fs::seek(&*fd, rustix::fs::SeekFrom::End(0))
            .map_err(|e| Error::system(path, "asking for its size", e.into()))?;
        if facts.place == Place::File && !o.read_only {
            limit::allows(path, size_bytes)?;
        }
        let mut mend = match facts.place == Place::File && !o.read_only && !o.new {
            true => layout::unshare(&fd, &mut facts, size_bytes)?,
            false => Mend::default(),
        };
        let file = (facts.place == Place::File).then(|| lasting::duplicate(fd.as_fd()));
        let file = file.transpose().map_err(|e| Error::system(path, "opening it", e))?;
        let device = Arc::new(FileDevice::new(fd, below, size_bytes));
        let mut medium = match o.on_demand && o.read_only {
            true => GroupedMedium::looked_at(path, device, facts.unit_bytes, durable)?,
            false => GroupedMedium::loaded(path, device, facts.unit_bytes, durable, o.new)?,
        };
        if !o.read_only {
            let image = medium.media.image().expect("grouped media have an image");
            mend.fill(&medium.disk, image, facts.unit_bytes.into())?;
            medium.settle()?;
        }
        medium.told = mend.told;
        // One that is there was made before anybody looked.
        medium.told.extend(facts.misaligned());
        (medium.facts, medium.file) = (Some(facts), file);
        Ok(medium)
    }

    /// On a device that the caller has opened, and claimed.
    pub fn on(
        path: &Path,
        device: Arc<dyn Device>,
        unit: u32,
        durable: Durable,
    ) -> Result<GroupedMedium> {
        let medium = GroupedMedium::loaded(path, device, unit, durable.into(), false)?;
        medium.settle()?;
        Ok(medium)
    }

    /// Content that was read may be in the device's cache alone, and recovery relies on it.
    fn settle(&self) -> Result<()> {
        self.disk.settle().map_err(|source| Error::Io {
            path: self.disk.path().into(),
            doing: "flushing what was read of it",
            source,
            way_out: "nothing was acknowledged, and what it holds may not survive a power cut; see the system log, copy what can be read (ddrescue), and open the copy".into(),
        })
    }

    fn loaded(
        path: &Path,
        device: Arc<dyn Device>,
        unit: u32,
        durable: Chosen,
        new: bool,
    ) -> Result<GroupedMedium> {
        // A pool that is there knows its size, and the device may have become larger.
        let pool = match new {
            true => None,
            false => pool_bytes(&device, unit),
        };
        let image = load(path, &*device, unit, pool)?;
        let unlocked = image.lock().err();
        let medium = GroupedMedium::of(path, device, unit, durable, image, pool);
        Ok(GroupedMedium { unlocked, ..medium })
    }

    /// Opens a pool that is only looked at: no more is read than somebody asks for.
    pub(super) fn looked_at(
        path: &Path,
        device: Arc<dyn Device>,
        unit: u32,
        durable: Chosen,
    ) -> Result<GroupedMedium> {
        let pool = pool_bytes(&device, unit);
        let size = image_bytes(path, &*device, unit, pool)?;
        let (refused, unit_bytes) = (Arc::new(Refused::default()), unit as usize);
        let source =
            Demanded { device: device.clone(), refused: refused.clone(), unit: unit_bytes };
        let image = Image::on_demand(size, unit_bytes, Box::new(source))
            .map_err(|e| no_memory(path, size as u64, "the image of the pool", e))?;
        let medium = GroupedMedium::of(path, device, unit, durable, image, pool);
        Ok(GroupedMedium { demanded: Some(refused), ..medium })
    }

    fn of(
        path: &Path,
        device: Arc<dyn Device>,
        unit: u32,
        durable: Chosen,
        image: Image,
        pool: Option<u64>,
    ) -> GroupedMedium {
        let beyond = device.size_bytes().saturating_sub(pool.unwrap_or(u64::MAX));
        let disk = Arc::new(Disk::chosen(path, device, durable));
        let below = Box::new(Beneath(disk.clone()));
        let media = Media::grouped(image, unit, durable.by, None, below);
        let media = media.expect("the best copy kernel with cached stores is always there");
        GroupedMedium {
            disk,
            media: Arc::new(media),
            unit,
            facts: None,
            unlocked: None,
            beyond_bytes: beyond,
            told: Vec::new(),
            demanded: None,
            file: None,
        }
    }

    /// Another descriptor of its file, if it is one.
    pub(crate) fn file(&self) -> Option<Lasting<OwnedFd>> {
        self.file.as_ref().and_then(|file| lasting::duplicate(file.as_fd()).ok())
    }

    pub(crate) fn media(&self) -> &Arc<Media> {
        &self.media
    }

    /// The facts that the system gave when the medium was opened.
    pub fn facts(&self) -> Option<&MediumFacts> {
        self.facts.as_ref()
    }

    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Bytes of a block: no two writes that are durable by themselves share one.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    pub fn size_bytes(&self) -> u64 {
        self.media.size()
    }

    /// Ranges that could not be read, and were not stored since: damage.
    pub fn unreadable(&self) -> Vec<Range<u64>> {
        let image = self.media.image().expect("grouped media have an image");
        image.unread().iter().map(|r| r.start as u64..r.end as u64).collect()
    }

    /// The messages for the user.
    pub fn notes(&self) -> Vec<String> {
        let size = human_bytes(self.size_bytes());
        let mut said = match &self.demanded {
            None => vec![format!("the pool has an image of {size} in memory")],
            Some(_) => vec!["nobody has it open: only what this shows was read".to_string()],
        };
        if self.beyond_bytes >= u64::from(self.unit) {
            said.push(format!(
                "{} of {} are not the pool's: it was made when that was smaller",
                human_bytes(self.beyond_bytes),
                self.disk.path().display()
            ));
        }
        said.extend(self.told.iter().cloned());
        if let Some(e) = &self.unlocked {
            said.push(format!("the image may be paged out, and then a write can wait for the swap device ({e}): allow the memory to be locked (ulimit -l, LimitMEMLOCK= of a unit)"));
        }
        let unreadable = self.unreadable();
        if let Some(first) = unreadable.first() {
            let bytes = unreadable.iter().map(|r| r.end - r.start).sum();
            said.push(format!(
                "{} of {} cannot be read, the first at byte {}: what they held is damaged",
                human_bytes(bytes),
                self.disk.path().display(),
                first.start
            ));
        }
        said
    }

    /// Makes an empty pool on it: whatever was on it is gone.
    pub fn format(&self, uuid: Uuid, chunk_size_bytes: u32, max_volumes: u32) -> Result<()> {
        let format = sys::fby_format {
            uuid: uuid.0,
            chunk_size: chunk_size_bytes,
            nvolumes: max_volumes,
            unit: self.unit,
            salt: crate::random::salt()?,
            ..Default::default()
        };
        let formatted = forebay_engine::format(&*self.media, &format);
        formatted.map_err(|e| self.error(e))
    }

    /// Zeroes whole blocks, of what is no pool that anybody wants to keep.
    pub(crate) fn wipe(&self, at: u64, bytes: u64) -> Result<()> {
        self.media.zero(at, bytes as usize);
        let image = self.media.image().expect("grouped media have an image");
        let wiped = self.disk.store(image, at, bytes as usize);
        wiped.map_err(|e| Error::system(self.disk.path(), "wiping it", e))
    }

    /// Nothing of what was there may be taken for valid later, by us or by a tool that looks for
    /// file systems.  The superblocks go first, each copy of them: a power cut leaves the old pool
    /// as it was, or none.
    pub(crate) fn wipe_pool(&self) -> Result<()> {
        let (size, unit) = (self.size_bytes(), u64::from(self.unit));
        for block in superblocks(size, unit, |at, line| self.media.read(at, line)) {
            self.wipe(block, unit)?;
        }
        let edge = EDGE_BYTES as u64;
        for at in [0, size.saturating_sub(edge)] {
            self.wipe(at, edge.min(size - at))?;
        }
        Ok(())
    }

    /// The first byte that is not zero.
    pub(crate) fn first_byte_set(&self) -> Option<u64> {
        let mut piece = vec![0; EDGE_BYTES];
        let size = self.size_bytes();
        (0..size).step_by(EDGE_BYTES).find_map(|at| {
            let piece = &mut piece[..EDGE_BYTES.min((size - at) as usize)];
            // Unreadable blocks may hold anything.
            match self.media.read(at, piece) {
                true => piece.iter().position(|b| *b != 0).map(|n| at + n as u64),
                false => Some(at),
            }
        })
    }

    /// From the device, past the page cache, to memory that is aligned as a page.
    pub(crate) fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.read(to, at)
    }

    /// Opens the pool on it and recovers it on that many threads.
    pub fn open_pool(
        &self,
        o: &sys::fby_options,
        threads: usize,
    ) -> Result<(Arc<Engine>, sys::fby_recovery_report)> {
        let path = self.disk.path();
        let opened = Engine::open_threaded(self.media.clone(), o, threads);
        if let Some(e) = self.demanded.as_ref().and_then(|refused| refused.error(path)) {
            return Err(e);
        }
        let (engine, report) = opened.map_err(|e| match e {
            OpenError::Engine(e) => self.error(e),
            OpenError::Unknown { code, at, kind } => unknown_error(path, code, at, kind),
            OpenError::Memory { bytes, source } => no_memory(path, bytes, "its index", source),
        })?;
        Ok((Arc::new(engine), report))
    }

    fn error(&self, e: Code) -> Error {
        match e.0 {
            sys::FBY_E_MEDIUM => self.disk.failed(false),
            _ => open_error(self.disk.path(), e),
        }
    }
}

/// The method that the system's facts call for.
fn needed(facts: &MediumFacts) -> Chosen {
    let cache = facts.device.as_ref().and_then(|d| d.write_cache.as_deref());
    let (by, because) = match (facts.place, &facts.device, cache) {
        (Place::BlockDevice, _, Some("write through")) => {
            (Durable::Through, "the disk says that its writes are durable without a flush")
        }
        (Place::BlockDevice, _, Some(_)) => {
            (Durable::Flush, "the disk says that it has a volatile write cache")
        }
        (Place::BlockDevice, _, None) => {
            (Durable::Flush, "the disk does not say whether it has a volatile write cache")
        }
        // A file's metadata may have to be durable too, and the kernel knows that.
        (_, Some(device), _) if needs_no_flush(device) => {
            (Durable::Fua, "it is a file, and each disk below it has FUA or no volatile cache")
        }
        (_, Some(_), _) => (Durable::Flush, "it is a file, and not every disk below it has FUA"),
        (_, None, _) => (Durable::Flush, "it is a file, and the disk below it is not known"),
    };
    Chosen { by, because }
}

/// That one, or the one asked for, if that is no weaker.
fn durable(path: &Path, facts: &MediumFacts, asked: Option<Durable>) -> Result<Chosen> {
    let fua = facts.device.as_ref().is_some_and(needs_no_flush);
    let needed = needed(facts);
    let refused = |what: &str, why: &str, way_out: &str| {
        Err(Error::usage(format!("{}: {what}: {why}", path.display()), way_out))
    };
    match asked {
        Some(Durable::Through) if needed.by != Durable::Through => refused(
            "writes without a flush are not durable there",
            match facts.place {
                Place::BlockDevice => "it has a volatile write cache",
                _ => "it is a file",
            },
            "leave that out; a drive with capacitors is to say \"write through\" in queue/write_cache",
        ),
        Some(Durable::Fua) if !fua => refused(
            "a durable write is a write and a flush there",
            "not every disk below it has FUA (queue/fua)",
            "leave that out: the pool sends its flushes itself",
        ),
        Some(by) => Ok(Chosen { by, because: ASKED }),
        None => Ok(needed),
    }
}

/// A durable write (RWF_DSYNC) is one request, at the disk and at all disks below it.  Where a disk
/// has no FUA, the kernel makes a write and a flush of it.  If that flush fails, the disk's cache
/// may be gone with other writes, whose own flushes succeed after that: so the engine has to know
/// of each flush.
fn needs_no_flush(device: &DeviceFacts) -> bool {
    let one =
        |d: &&DeviceFacts| d.fua == Some(true) || d.write_cache.as_deref() == Some("write through");
    device.with_below().iter().all(one)
}

/// The device as a store that is only read.
struct Look {
    device: Arc<dyn Device>,
    unit: u64,
}

impl Store for Look {
    fn size(&self) -> u64 {
        self.device.size_bytes()
    }

    fn write(&self, _: u64, _: &[u8]) {
        unreachable!("a probe stores nothing");
    }

    fn fence(&self, _: u64, _: usize) {}

    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool {
        let start = at / self.unit * self.unit;
        let end = (at + bytes as u64).next_multiple_of(self.unit);
        let read = Memory::zeroed((end - start) as usize).and_then(|mut blocks| {
            self.device.read(blocks.bytes_mut(), start)?;
            Ok(blocks)
        });
        match read {
            Ok(mut blocks) => {
                take(&blocks.bytes_mut()[(at - start) as usize..][..bytes]);
                true
            }
            Err(_) => false,
        }
    }
}

/// The size of the pool that is there, by its superblock or the copy of that.
fn pool_bytes(device: &Arc<dyn Device>, unit: u32) -> Option<u64> {
    let look = Look { device: device.clone(), unit: unit.max(1).into() };
    let superblock = probe_of(&Soft::new(look)).superblock?;
    let grouped = superblock.features_incompat & sys::FBY_FEATURE_GROUPED != 0;
    let size = superblock.media_size_bytes;
    let whole = size.is_multiple_of(unit.max(1).into()) && size <= device.size_bytes();
    (grouped && whole).then_some(size)
}

fn no_memory(path: &Path, bytes: u64, what: &str, source: io::Error) -> Error {
    let way_out = format!(
        "it needs {} for {what}, and {} are free: free memory, or use a smaller pool",
        human_bytes(bytes),
        human_bytes(memory_available())
    );
    Error::Io { path: path.into(), doing: "allocating memory", source, way_out }
}

/// The size of the image: that of the pool, or of all of the device.
fn image_bytes(path: &Path, device: &dyn Device, unit: u32, pool: Option<u64>) -> Result<usize> {
    let size_bytes = pool.unwrap_or(device.size_bytes());
    let size_bytes = size_bytes - size_bytes % u64::from(unit.max(1));
    let small = |bytes| Error::TooSmall {
        path: path.into(),
        bytes,
        chunk_size_bytes: 64 << 10,
        least_bytes: crate::engine::least_media_bytes(64 << 10),
    };
    let size = usize::try_from(size_bytes).map_err(|_| small(size_bytes))?;
    match size < 64 << 10 {
        true => Err(small(size_bytes)),
        false => Ok(size),
    }
}

/// Reads the pool, or all of the device.  A block that cannot be read is damage there.
fn load(path: &Path, device: &dyn Device, unit: u32, pool: Option<u64>) -> Result<Image> {
    let size = image_bytes(path, device, unit, pool)?;
    let (unit, size_bytes) = (unit as usize, size as u64);
    let refused = |e| no_memory(path, size_bytes, "the image of the pool", e);
    if size_bytes > memory_available() {
        return Err(refused(io::ErrorKind::OutOfMemory.into()));
    }
    let mut image = Image::new(size).map_err(refused)?;
    let mut unreadable = 0;
    for at in (0..size).step_by(PIECE) {
        let end = size.min(at + PIECE);
        if device.read(image.bytes_mut(at..end), at as u64).is_ok() {
            continue;
        }
        for block in (at..end).step_by(unit) {
            let to = block..block + unit;
            let Err(e) = device.read(image.bytes_mut(to.clone()), block as u64) else { continue };
            unreadable += 1;
            if is_gone(&e) || unreadable > UNREADABLE_MOST {
                return Err(not_read(path, e, unreadable));
            }
            image.mark_unread(to);
        }
    }
    Ok(image)
}

/// The device as a whole, and not a block of it.
fn is_gone(e: &io::Error) -> bool {
    let gone = [Errno::NODEV, Errno::NXIO, Errno::NOMEDIUM].map(|e| Some(e.raw_os_error()));
    gone.contains(&e.raw_os_error()) || e.kind() == io::ErrorKind::UnexpectedEof
}

fn not_read(path: &Path, source: io::Error, blocks: usize) -> Error {
    let way_out = match is_gone(&source) {
        true => "nothing was written; see that the device is there, and all of it".to_string(),
        false => format!("nothing was written; {blocks} blocks or more cannot be read: copy what can be (ddrescue), and open the copy"),
    };
    Error::Io { path: PathBuf::from(path), doing: "reading it", source, way_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(fua: Option<bool>, cache: Option<&str>, made_of: &[DeviceFacts]) -> DeviceFacts {
        let write_cache = cache.map(str::to_string);
        DeviceFacts { fua, write_cache, made_of: made_of.to_vec(), ..Default::default() }
    }

    /// Each kind of place and disk: what is taken and why, and whether FUA may be asked for.
    #[test]
    fn fua_is_relied_on_only_where_each_disk_below_has_it() {
        let back = Some("write back");
        let with = disk(Some(true), back, &[]);
        let without = disk(Some(false), back, &[]);
        let through = disk(Some(false), Some("write through"), &[]);
        let unknown = disk(None, None, &[]);
        let over = |below: &DeviceFacts| disk(Some(true), back, std::slice::from_ref(below));
        let (file, device) = (Place::File, Place::BlockDevice);
        let (one, two) =
            ("each disk below it has FUA or no volatile", "not every disk below it has");
        let table = [
            ("fua", file, Some(with.clone()), Durable::Fua, true, one),
            ("no fua", file, Some(without.clone()), Durable::Flush, false, two),
            ("no cache", file, Some(through.clone()), Durable::Fua, true, one),
            ("unknown cache", file, Some(unknown.clone()), Durable::Flush, false, two),
            ("unknown disk", file, None, Durable::Flush, false, "the disk below it is not known"),
            ("over fua", file, Some(over(&with)), Durable::Fua, true, one),
            ("over no cache", file, Some(over(&through)), Durable::Fua, true, one),
            ("over no fua", file, Some(over(&without)), Durable::Flush, false, two),
            ("over over no fua", file, Some(over(&over(&without))), Durable::Flush, false, two),
            ("over unknown", file, Some(over(&unknown)), Durable::Flush, false, two),
            ("device, fua", device, Some(with), Durable::Flush, true, "has a volatile write cache"),
            ("device, no fua", device, Some(without), Durable::Flush, false, "has a volatile"),
            ("device, no cache", device, Some(through), Durable::Through, true, "without a flush"),
            (
                "device, unknown",
                device,
                Some(unknown),
                Durable::Flush,
                false,
                "does not say whether",
            ),
        ];
        let path = Path::new("(a place)");
        for (what, place, device, needed, fua, because) in table {
            let facts = MediumFacts {
                path: path.into(),
                place,
                size_bytes: 1 << 30,
                unit_bytes: 4096,
                device,
                file_system: None,
                file: None,
                used_by: Vec::new(),
            };
            let chosen = durable(path, &facts, None).unwrap();
            assert_eq!(chosen.by, needed, "{what}");
            assert!(chosen.because.contains(because), "{what}: {}", chosen.because);
            let flush = Chosen { by: Durable::Flush, because: ASKED };
            assert_eq!(durable(path, &facts, Some(Durable::Flush)).unwrap(), flush);
            let asked = durable(path, &facts, Some(Durable::Fua));
            assert_eq!(asked.is_ok(), fua, "{what}: {asked:?}");
            let asked = durable(path, &facts, Some(Durable::Through));
            assert_eq!(asked.is_ok(), needed == Durable::Through, "{what}: {asked:?}");
        }
    }
}
