// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool's share and files, of which each store, each page and each size is durable or
//! not: a power cut before any call leaves of the rest whatever the hardware may leave.
//!
//! The share follows `core/api/map.h`.  A cut keeps of each line of 64 bytes that was not
//! made durable the old or the new one, and of each page of a file likewise.
//!
//! Calls fail, where that is asked for.  A write may have written a part.  A sync that fails
//! has made some pages durable, and no later sync of the file will do the others, unless
//! they are written again: the kernel has told its one caller, and forgets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::{FoundMark, MapClaim, Mark, Uuid};
use rustix::fs::MemfdFlags;

use crate::backing::Backing;
use crate::content::lock;
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::store::{FileRecord, FrameInfo, Stamp, Store, Synced, Time};
use crate::system::Window;

/// Small numbers from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Frame {
    taken: bool,
    used: bool,
    file: u32,
    segment: u64,
    dirty: Vec<u64>,
    writing: Vec<u64>,
}

impl Frame {
    fn new(file: u32, segment: u64) -> Frame {
        let none = || vec![0; SEGMENT_PAGES / 64];
        Frame { taken: true, used: false, file, segment, dirty: none(), writing: none() }
    }
}

fn set(bits: &mut [u64], page: usize, on: bool) {
    match on {
        true => bits[page / 64] |= 1 << (page % 64),
        false => bits[page / 64] &= !(1 << (page % 64)),
    }
}

fn get(bits: &[u64], page: usize) -> bool {
    bits[page / 64] >> (page % 64) & 1 == 1
}

#[derive(Clone, Debug, Default)]
struct Share {
    frames: Vec<Frame>,
    files: BTreeMap<u32, FileRecord>,
    next_file: u32,
    /// What is durable of the memory.
    durable: Vec<u8>,
    /// Pages that the media does not give back.
    bad: BTreeSet<(u32, usize)>,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Pages that the next sync makes durable.
    unsynced: BTreeSet<u64>,
    has_blocks: BTreeSet<u64>,
    durable_blocks: BTreeSet<u64>,
    full: bool,
    mark: Option<Mark>,
    durable_mark: Option<Mark>,
    changed: Time,
    durable_changed: Time,
}

impl Disk {
    fn change(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        self.changed = (now.as_secs() as i64, now.subsec_nanos());
    }
}

/// A machine: a share, files, when its power is cut, and which calls fail.
#[derive(Debug)]
pub(crate) struct Machine {
    fd: File,
    memory: Window,
    share: Mutex<Share>,
    disks: Vec<Mutex<Disk>>,
    cuts: Mutex<Cuts>,
    faults: Mutex<Faults>,
    /// Alone: the machine stands still.
    world: RwLock<()>,
}

impl Default for Faults {
    fn default() -> Faults {
        let (sync, resize, page) = (false, false, u64::MAX);
        Faults { random: Random(0), one_in: 0, happened: 0, sync, resize, page }
    }
}

#[derive(Debug)]
struct Faults {
    random: Random,
    /// Each so many-th call fails; none does at 0.
    one_in: u64,
    happened: usize,
    /// These, once.
    sync: bool,
    resize: bool,
    /// This page of a file is never written.
    page: u64,
}

#[derive(Debug, Default)]
struct Cuts {
    calls: u64,
    at: BTreeSet<u64>,
    /// What was left by each, since they were asked for.
    left: Vec<Left>,
}

/// What a power cut has left, and the seed by which the rest is chosen.
#[derive(Debug)]
pub(crate) struct Left {
    pub call: u64,
    share: Share,
    disks: Vec<Disk>,
    memory: Vec<u8>,
}

impl Machine {
    pub fn new(frames: usize, sizes: &[u64], cuts: impl IntoIterator<Item = u64>) -> Arc<Machine> {
        let share = Share {
            frames: vec![Frame::default(); frames],
            durable: vec![0xaa; frames * SEGMENT],
            ..Share::default()
        };
        let disk = |&size: &u64| {
            let blocks: BTreeSet<u64> = (0..size.div_ceil(PAGE as u64)).collect();
            Disk {
                durable: vec![0; size as usize],
                now: vec![0; size as usize],
                has_blocks: blocks.clone(),
                durable_blocks: blocks,
                ..Disk::default()
            }
        };
        let disks = sizes.iter().map(disk).collect();
        Machine::of(share, disks, vec![0xaa; frames * SEGMENT], cuts)
    }

    fn of(
        share: Share,
        disks: Vec<Disk>,
        memory: Vec<u8>,
        cuts: impl IntoIterator<Item = u64>,
    ) -> Arc<Machine> {
        let fd = rustix::fs::memfd_create("simulated", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, memory.len() as u64).expect("ftruncate");
        let fd = File::from(fd);
        let window = Window::new(fd.as_fd(), 0, memory.len()).expect("mmap");
        window.copy_in(0, &memory);
        let cuts = Cuts { at: cuts.into_iter().collect(), ..Cuts::default() };
        Arc::new(Machine {
            fd,
            memory: window,
            share: Mutex::new(share),
            disks: disks.into_iter().map(Mutex::new).collect(),
            cuts: Mutex::new(cuts),
            faults: Mutex::new(Faults::default()),
            world: RwLock::new(()),
        })
    }

    pub fn file(self: &Arc<Machine>, file: usize) -> Box<dyn Backing> {
        Box::new(Disked(Arc::clone(self), file))
    }

    /// A page is not to be had from the media any more.
    pub fn spoil_page(&self, frame: u32, page: usize) {
        lock(&self.share).bad.insert((frame, page));
    }

    /// A record cannot be read any more.
    pub fn spoil_record(&self, file: u32) {
        lock(&self.share).files.get_mut(&file).expect("is there").damaged = true;
    }

    /// Whether the share has what the file lacks, and whether the file says so.
    pub fn lacks_and_tells(&self) -> (bool, bool) {
        let dirty = |f: &Frame| f.used && f.dirty.iter().any(|&w| w != 0);
        let lacks = lock(&self.share).frames.iter().any(dirty);
        (lacks, self.disks.iter().any(|d| lock(d).mark.is_some()))
    }

    /// No blocks can be had any more.
    pub fn fill_disk(&self) {
        self.disks.iter().for_each(|d| lock(d).full = true);
    }

    /// What a file has, and its size, to other programs.
    pub fn content(&self, file: usize) -> Vec<u8> {
        lock(&self.disks[file]).now.clone()
    }

    /// From now on one in so many calls fails; 0: none.  What it was.
    pub fn let_fail(&self, one_in: u64) -> u64 {
        std::mem::replace(&mut lock(&self.faults).one_in, one_in)
    }

    /// The next sync of a file fails.
    pub fn fail_sync(&self) {
        lock(&self.faults).sync = true;
    }

    pub fn fail_resize(&self) {
        lock(&self.faults).resize = true;
    }

    /// Writes of such a page of a file fail.
    pub fn bad_page(&self, page: u64) {
        lock(&self.faults).page = page;
    }

    pub fn failed(&self) -> usize {
        lock(&self.faults).happened
    }

    pub fn seed(&self, seed: u64) {
        lock(&self.faults).random = Random(seed);
    }

    /// A call may fail here; a number by which to choose how.
    fn fault(&self) -> Option<Random> {
        let mut faults = lock(&self.faults);
        if faults.one_in == 0 {
            return None;
        }
        let one_in = faults.one_in;
        if faults.random.below(one_in) > 0 {
            return None;
        }
        faults.happened += 1;
        Some(faults.random.clone())
    }

    fn fails(&self) -> Result<()> {
        match self.fault() {
            Some(_) => Err(Error::Pool("fails as ordered".into())),
            None => Ok(()),
        }
    }

    fn fails_io(&self) -> io::Result<()> {
        match self.fault() {
            Some(_) => Err(io::Error::other("fails as ordered")),
            None => Ok(()),
        }
    }

    fn world(&self) -> RwLockReadGuard<'_, ()> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_empty(&self) -> bool {
        let share = lock(&self.share);
        share.files.is_empty() && share.frames.iter().all(|f| !f.used && !f.taken)
    }

    /// What cuts have left since this was called last.
    pub fn left(&self) -> Vec<Left> {
        std::mem::take(&mut lock(&self.cuts).left)
    }

    /// Before each call: the power may be cut here.
    fn call(&self) {
        let mut cuts = lock(&self.cuts);
        cuts.calls += 1;
        let call = cuts.calls;
        if cuts.at.remove(&call) {
            cuts.left.push(self.left_now(call));
        }
    }

    fn left_now(&self, call: u64) -> Left {
        let share = lock(&self.share).clone();
        let disks = self.disks.iter().map(|d| lock(d).clone()).collect();
        let mut memory = vec![0; share.durable.len()];
        self.memory.copy_out(0, &mut memory);
        Left { call, share, disks, memory }
    }

    /// What a cut leaves now.  `before` is called when all stands still, but for stores to
    /// memory.
    pub fn cut(&self, before: impl FnOnce()) -> Left {
        let _alone = self.world.write().unwrap_or_else(PoisonError::into_inner);
        before();
        self.left_now(0)
    }

    /// The share for a call, which may fail.
    fn share(&self) -> Result<Held<'_>> {
        self.fails()?;
        let world = self.world();
        self.call();
        Ok(Held(lock(&self.share), world))
    }

    fn make_durable(&self, share: &mut Share, frame: u32, pages: &PageSet) {
        for page in pages.iter() {
            let at = frame as usize * SEGMENT + page * PAGE;
            self.memory.copy_out(at, &mut share.durable[at..at + PAGE]);
        }
    }
}

/// The share, in a world that does not stand still meanwhile.
struct Held<'a>(MutexGuard<'a, Share>, #[allow(dead_code)] RwLockReadGuard<'a, ()>);

impl std::ops::Deref for Held<'_> {
    type Target = Share;
    fn deref(&self) -> &Share {
        &self.0
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Share {
        &mut self.0
    }
}

impl Left {
    /// The machine after it, by one of the choices that the hardware has: a kill keeps all
    /// of the memory and of the file.
    pub fn machine(&self, random: &mut Random, killed: bool, cuts: &[u64]) -> Arc<Machine> {
        let (mut share, mut disks) = (self.share.clone(), self.disks.clone());
        let mut memory = self.memory.clone();
        if !killed {
            for (new, old) in memory.chunks_mut(64).zip(share.durable.chunks(64)) {
                if new != old && random.below(2) == 0 {
                    new.copy_from_slice(old);
                }
            }
            disks.iter_mut().for_each(|d| d.cut(random));
        }
        for disk in &mut disks {
            disk.durable.clone_from(&disk.now);
            disk.unsynced.clear();
            disk.durable_mark.clone_from(&disk.mark);
            disk.durable_changed = disk.changed;
            // Recovery needs no block that the file has not.
            disk.full = true;
        }
        share.durable.clone_from(&memory);
        for frame in &mut share.frames {
            let clean = frame.dirty.iter().all(|&w| w == 0);
            if !frame.used || clean {
                *frame = Frame::default();
            }
            frame.writing.fill(0);
        }
        Machine::of(share, disks, memory, cuts.iter().copied())
    }
}

impl Disk {
    fn cut(&mut self, random: &mut Random) {
        let size = match random.below(2) {
            0 => self.durable.len(),
            _ => self.now.len(),
        };
        self.now.resize(size, 0);
        for (i, page) in self.now.chunks_mut(PAGE).enumerate() {
            if random.below(2) == 0 {
                let old = self.durable.get(i * PAGE..).unwrap_or(&[]);
                let n = old.len().min(page.len());
                page[..n].copy_from_slice(&old[..n]);
                page[n..].fill(0);
            }
        }
        self.has_blocks.clone_from(&self.durable_blocks);
        if random.below(2) == 0 {
            self.mark.clone_from(&self.durable_mark);
        }
        if random.below(2) == 0 {
            self.changed = self.durable_changed;
        }
    }

    /// So many of the pages that wait for it become durable.
    fn make_durable(&mut self, mut which: impl FnMut(u64) -> bool) {
        self.durable.resize(self.now.len(), 0);
        for page in std::mem::take(&mut self.unsynced) {
            let at = page as usize * PAGE;
            let end = (at + PAGE).min(self.now.len());
            if at < end && which(page) {
                self.durable[at..end].copy_from_slice(&self.now[at..end]);
            }
        }
    }
}

impl Store for Machine {
    fn memory(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn claim(&self) -> &MapClaim {
        static CLAIM: OnceLock<MapClaim> = OnceLock::new();
        CLAIM.get_or_init(|| MapClaim {
            pool: Uuid([7; 16]),
            map: "m".into(),
            generation: 3,
            share_bytes: 1 << 20,
            at: "/simulated/pool".into(),
        })
    }

    fn capacity(&self) -> usize {
        lock(&self.share).frames.len()
    }

    fn add_file(&self, file: &FileRecord) -> Result<u32> {
        let mut share = self.share()?;
        share.next_file += 1;
        let id = share.next_file;
        share.files.insert(id, file.clone());
        Ok(id)
    }

    fn files(&self) -> Result<Vec<(u32, FileRecord)>> {
        Ok(lock(&self.share).files.iter().map(|(i, f)| (*i, f.clone())).collect())
    }

    fn set_size(&self, file: u32, size: u64) -> Result<()> {
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        if size < record.size || record.cut {
            return Err(Error::Pool(format!("{size} bytes, and {record:?}")));
        }
        record.size = size;
        Ok(())
    }

    fn cut(&self, file: u32, size: u64) -> Result<()> {
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        assert!(size <= record.size && !record.cut);
        record.size = size;
        record.cut = true;
        Ok(())
    }

    fn cut_end(&self, file: u32) -> Result<()> {
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        assert!(record.cut);
        record.cut = false;
        let size = record.size;
        for i in 0..share.frames.len() {
            let frame = &mut share.frames[i];
            if !frame.used || frame.file != file {
                continue;
            }
            let end =
                size.saturating_sub(frame.segment * SEGMENT as u64).min(SEGMENT as u64) as usize;
            for page in end.div_ceil(PAGE)..SEGMENT_PAGES {
                set(&mut frame.dirty, page, false);
            }
            let rest = i * SEGMENT + end..i * SEGMENT + end.next_multiple_of(PAGE);
            self.memory.copy_in(rest.start, &vec![0; rest.len()]);
            share.durable[rest].fill(0);
        }
        Ok(())
    }

    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()> {
        self.share()?.files.get_mut(&file).expect("is there").stamp = stamp;
        Ok(())
    }

    fn remove_file(&self, file: u32) -> Result<()> {
        let mut share = self.share()?;
        assert!(!share.frames.iter().any(|f| (f.used || f.taken) && f.file == file), "has frames");
        share.files.remove(&file).expect("is there");
        Ok(())
    }

    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        let mut share = self.share()?;
        assert!(!share.frames.iter().any(|f| f.used && (f.file, f.segment) == (file, segment)));
        let free = share.frames.iter().position(|f| !f.used && !f.taken);
        if let Some(i) = free {
            share.frames[i] = Frame::new(file, segment);
        }
        Ok(free.map(|i| i as u32))
    }

    fn show(&self, frame: u32) -> Result<()> {
        let mut share = self.share()?;
        let frame = &mut share.frames[frame as usize];
        assert!(frame.taken);
        (frame.taken, frame.used) = (false, true);
        Ok(())
    }

    fn release(&self, frame: u32, discard: bool) -> Result<()> {
        let mut share = self.share()?;
        let i = frame as usize;
        assert!(share.frames[i].used || share.frames[i].taken);
        if !discard && share.frames[i].dirty.iter().any(|&w| w != 0) {
            return Err(Error::Pool("the file lacks a page of it".into()));
        }
        share.frames[i] = Frame::default();
        // What the next owner does not store is somebody else's.
        self.memory.copy_in(i * SEGMENT, &vec![0xaa; SEGMENT]);
        Ok(())
    }

    fn frames(&self) -> Result<Vec<FrameInfo>> {
        let share = lock(&self.share);
        let used = share.frames.iter().enumerate().filter(|(_, f)| f.used);
        let info = |(i, f): (usize, &Frame)| FrameInfo {
            frame: i as u32,
            file: share.files.get(&f.file).is_some_and(|r| !r.damaged).then_some(f.file),
            segment: f.segment,
            of: Some(f.file),
        };
        Ok(used.map(info).collect())
    }

    fn offset(&self, frame: u32) -> Result<u64> {
        Ok(u64::from(frame) * SEGMENT as u64)
    }

    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()> {
        self.fails()?;
        let _world = self.world();
        self.memory.copy_in(frame as usize * SEGMENT + at, from);
        Ok(())
    }

    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.fails()?;
        self.memory.copy_out(frame as usize * SEGMENT + at, to);
        Ok(())
    }

    fn write_back_caches(&self, frame: u32) -> Result<()> {
        let mut share = self.share()?;
        self.make_durable(&mut share, frame, &PageSet::ALL);
        Ok(())
    }

    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced> {
        let mut share = self.share()?;
        let f = &share.frames[frame as usize];
        assert!(f.used);
        let size = share.files[&f.file].size;
        let limit = size.saturating_sub(f.segment * SEGMENT as u64).div_ceil(PAGE as u64);
        if pages.iter().any(|p| p as u64 >= limit) {
            return Ok(Synced::BehindEnd);
        }
        self.make_durable(&mut share, frame, pages);
        let f = &mut share.frames[frame as usize];
        for page in pages.iter() {
            set(&mut f.dirty, page, true);
            set(&mut f.writing, page, false);
        }
        Ok(Synced::Durable)
    }

    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        let share = lock(&self.share);
        let mut pages = PageSet::EMPTY;
        for page in 0..SEGMENT_PAGES {
            if get(&share.frames[frame as usize].dirty, page) {
                pages.insert(page..page + 1);
            }
        }
        Ok((pages, PageSet::EMPTY))
    }

    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        self.dirty(frame)
    }

    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool> {
        if lock(&self.share).bad.contains(&(frame, page)) {
            return Ok(false);
        }
        self.copy(frame, page * PAGE, to).map(|()| true)
    }

    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet> {
        let dirty = self.dirty(frame)?.0.within(pages);
        let mut share = self.share()?;
        for page in dirty.iter() {
            set(&mut share.frames[frame as usize].writing, page, true);
        }
        Ok(dirty)
    }

    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()> {
        let mut share = self.share()?;
        let f = &mut share.frames[frame as usize];
        for page in pages.iter() {
            if get(&f.writing, page) {
                set(&mut f.dirty, page, false);
                set(&mut f.writing, page, false);
            }
        }
        Ok(())
    }
}

const PATHS: [&str; 2] = ["/simulated/a", "/simulated/b"];

#[derive(Debug)]
struct Disked(Arc<Machine>, usize);

impl Disked {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.0.disks[self.1])
    }
}

impl Backing for Disked {
    fn path(&self) -> &Path {
        Path::new(PATHS[self.1])
    }

    fn identity(&self) -> &[u8] {
        PATHS[self.1].as_bytes()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk().now.len() as u64)
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.0.fails_io()?;
        let disk = self.disk();
        let from = disk.now.get(at as usize..).unwrap_or(&[]);
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let mut fault = self.0.fault();
        let bad = lock(&self.0.faults).page;
        if (at / PAGE as u64..(at + from.len() as u64).div_ceil(PAGE as u64)).contains(&bad) {
            return Err(io::Error::other("fails as ordered"));
        }
        // Sectors are whole.
        let part = |r: &mut Random| r.below(from.len() as u64) as usize & !511;
        let part = fault.as_mut().map_or(from.len(), part);
        let from = &from[..part];
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let blocks = at / PAGE as u64..(at + from.len() as u64).div_ceil(PAGE as u64);
        if disk.full && blocks.clone().any(|b| !disk.has_blocks.contains(&b)) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.has_blocks.extend(blocks.clone());
        disk.unsynced.extend(blocks);
        let end = at as usize + from.len();
        if disk.now.len() < end {
            disk.now.resize(end, 0);
        }
        disk.now[at as usize..end].copy_from_slice(from);
        disk.change();
        match fault {
            Some(_) => Err(io::Error::other("fails as ordered")),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let ordered = std::mem::take(&mut lock(&self.0.faults).sync);
        let fault = self.0.fault().or(ordered.then_some(Random(1)));
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        if let Some(mut random) = fault {
            let size = disk.durable.len();
            disk.make_durable(|_| random.below(2) == 0);
            if disk.now.len() > size {
                disk.durable.truncate(size);
            }
            return Err(io::Error::other("fails as ordered"));
        }
        disk.make_durable(|_| true);
        disk.durable_blocks = disk.has_blocks.clone();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()?;
        let mut disk = self.disk();
        disk.durable_changed = disk.changed;
        disk.durable_mark = disk.mark.clone();
        Ok(())
    }

    fn changed(&self) -> io::Result<Time> {
        Ok(self.disk().changed)
    }

    fn marked(&self) -> io::Result<FoundMark> {
        let mark = self.disk().mark.clone();
        Ok(mark.map_or(FoundMark::Nothing, |mark| FoundMark::Marked(Box::new(mark))))
    }

    fn mark(&self, by: &MapClaim) -> io::Result<()> {
        self.0.call();
        self.disk().mark = Some(by.mark("the one file"));
        self.sync_all()
    }

    fn unmark(&self) -> io::Result<()> {
        self.0.call();
        self.disk().mark = None;
        self.sync_all()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.fails_io()?;
        if std::mem::take(&mut lock(&self.0.faults).resize) {
            return Err(io::Error::other("fails as ordered"));
        }
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let old = disk.now.len() as u64;
        disk.now.resize(size as usize, 0);
        // The rest of a page that is cut is zero, and so is what comes behind it.
        disk.unsynced.extend(old.min(size) / PAGE as u64..size.div_ceil(PAGE as u64));
        disk.has_blocks.retain(|&b| b < size.div_ceil(PAGE as u64));
        disk.change();
        Ok(())
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.0.fails_io()?;
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let blocks = at / PAGE as u64..(at + len).div_ceil(PAGE as u64);
        if disk.full && blocks.clone().any(|b| !disk.has_blocks.contains(&b)) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.has_blocks.extend(blocks);
        disk.change();
        Ok(())
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        let disk = self.disk();
        Ok((at / PAGE as u64..(at + len).div_ceil(PAGE as u64))
            .any(|b| !disk.has_blocks.contains(&b)))
    }
}

/// To open the file after a cut.
pub(crate) fn open(machine: &Arc<Machine>) -> impl Fn(&Path) -> Result<Box<dyn Backing>> + '_ {
    |path: &Path| match PATHS.iter().position(|p| path == Path::new(p)) {
        Some(file) => Ok(machine.file(file)),
        None => Err(Error::Refused { path: path.to_owned(), why: "is not there".into() }),
    }
}
