// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated share and simulated files.  The simulation knows for each store, page and size
//! whether it is durable.  A power cut before any call leaves the rest in any state that the
//! hardware may leave.
//!
//! The share follows `core/api/map.h`.  For each 64-byte line that was not made durable, a cut
//! keeps the old or the new content.  It does the same for each page of a file.
//!
//! Calls can be made to fail.  A failed write may have written a part.  A failed sync has made
//! some pages durable.  No later sync makes the others durable unless they are written again,
//! because the kernel reports a failure once and then forgets it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::{FileFate, Mark};

use crate::backing::{Backing, Time};
use crate::error::{Error, Result};
use crate::locked::lock;
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
pub(crate) use crate::random::Random;
use crate::store::FileRecord;
use crate::system::Window;

use files::{Disked, PATHS};

mod files;
mod share;

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
    /// How often each frame was taken.  Knowledge about an older use of a frame is stale.
    uses: BTreeMap<u32, u32>,
    /// The durable content of the memory.
    durable: Vec<u8>,
    /// Pages that the media does not return.
    bad: BTreeSet<(u32, usize)>,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Pages that the next sync makes durable.
    unsynced: BTreeSet<u64>,
    syncs: u64,
    has_blocks: BTreeSet<u64>,
    durable_blocks: BTreeSet<u64>,
    full: bool,
    mark: Option<Mark>,
    durable_mark: Option<Mark>,
    /// How often the mark was set.
    marks: u64,
    changed: Time,
    durable_changed: Time,
    /// How often the change time was read.
    asked: u64,
}

impl Disk {
    fn change(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        self.changed = (now.as_secs() as i64, now.subsec_nanos());
    }
}

/// A machine: a share, files, the times of power cuts, and the calls that fail.
#[derive(Debug)]
pub(crate) struct Machine {
    fd: File,
    memory: Window,
    share: Mutex<Share>,
    disks: Vec<Mutex<Disk>>,
    cuts: Mutex<Cuts>,
    faults: Mutex<Faults>,
    /// Another process waits for the lease of each file.
    pub waits: AtomicBool,
    /// The kernel has revoked the lease of each file.
    pub revoked: AtomicBool,
    /// The share can promise sizes.
    pub promises: AtomicBool,
    /// The mark of a file is another file, as on a file system without attributes.
    pub marks_elsewhere: AtomicBool,
    /// The disk has no room for a mark.
    pub no_marks: AtomicBool,
    /// Nobody may set or remove a mark any more.
    pub no_rights: AtomicBool,
    /// The share knows no size of a file that a page is within.
    pub behind_end: AtomicBool,
    /// A sync of a file has begun and does not end.
    pub stall: AtomicBool,
    pub stalled: AtomicBool,
    /// A write to this page of a file has begun and does not end.
    pub slow_write: AtomicU64,
    /// What has happened to the pool's file.
    lost: Mutex<Option<FileFate>>,
    /// No frame is available.
    pub no_frames: AtomicBool,
    /// Resizes of a file are slow, and one is under way.
    pub slow_resize: AtomicBool,
    pub resizes: AtomicBool,
    /// Held exclusively while the machine stands still.
    world: RwLock<()>,
}

impl Default for Faults {
    fn default() -> Faults {
        let (sync, resize, remove, unanswered) = (false, false, false, false);
        let (random, one_in, happened, mark_sync, page) = (Random(0), 0, 0, None, u64::MAX);
        Faults { random, one_in, happened, sync, mark_sync, resize, remove, unanswered, page }
    }
}

#[derive(Debug)]
struct Faults {
    random: Random,
    /// One call in this many fails; 0: none.
    one_in: u64,
    happened: usize,
    /// The next such call fails, once.
    sync: bool,
    /// The next sync of a mark fails with this number, once.
    mark_sync: Option<i32>,
    resize: bool,
    remove: bool,
    /// A release of a frame succeeds, but its answer is lost, once.
    unanswered: bool,
    /// This page of a file is never written.
    page: u64,
}

#[derive(Debug, Default)]
struct Cuts {
    calls: u64,
    at: BTreeSet<u64>,
    /// The state that each cut left, since the last query.
    left: Vec<Left>,
}

/// The state that a power cut left, and the seed for the remaining choices.
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
        let fd = crate::tests::frames_file(memory.len() as u64);
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
            waits: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            promises: AtomicBool::new(true),
            marks_elsewhere: AtomicBool::new(false),
            no_marks: AtomicBool::new(false),
            no_rights: AtomicBool::new(false),
            behind_end: AtomicBool::new(false),
            stall: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            slow_write: AtomicU64::new(u64::MAX),
            lost: Mutex::default(),
            no_frames: AtomicBool::new(false),
            slow_resize: AtomicBool::new(false),
            resizes: AtomicBool::new(false),
            world: RwLock::new(()),
        })
    }

    pub fn file(self: &Arc<Machine>, file: usize) -> Box<dyn Backing> {
        Box::new(Disked(Arc::clone(self), file))
    }

    /// The media no longer returns a page.
    pub fn spoil_page(&self, frame: u32, page: usize) {
        lock(&self.share).bad.insert((frame, page));
    }

    /// Makes pages dirty, inside or outside the file.
    pub fn left_dirty_now(&self, frame: u32, pages: &PageSet) {
        let f = &mut lock(&self.share).frames[frame as usize];
        pages.iter().for_each(|page| set(&mut f.dirty, page, true));
    }

    /// A record can no longer be read.
    pub fn spoil_record(&self, file: u32) {
        lock(&self.share).files.get_mut(&file).expect("is there").damaged = true;
    }

    /// Whether the share has data that the file lacks, and whether the file bears the mark.
    pub fn lacks_and_tells(&self) -> (bool, bool) {
        let dirty = |f: &Frame| f.used && f.dirty.iter().any(|&w| w != 0);
        let lacks = lock(&self.share).frames.iter().any(dirty);
        (lacks, self.disks.iter().any(|d| lock(d).mark.is_some()))
    }

    /// The disk has no free blocks any more.
    pub fn fill_disk(&self) {
        self.disks.iter().for_each(|d| lock(d).full = true);
    }

    /// The number of syncs of a file, and the number of its pages that have blocks.
    pub fn syncs_and_blocks(&self, file: usize) -> (u64, usize) {
        let disk = lock(&self.disks[file]);
        (disk.syncs, disk.has_blocks.len())
    }

    /// How often a file was marked.
    pub fn times_marked(&self, file: usize) -> u64 {
        lock(&self.disks[file]).marks
    }

    /// How often the change time of a file was read.
    pub fn times_asked(&self, file: usize) -> u64 {
        lock(&self.disks[file]).asked
    }

    /// Another program appends to a file and leaves its change time as it was.
    pub fn append(&self, file: usize, bytes: &[u8]) {
        let disk = &mut *lock(&self.disks[file]);
        disk.now.extend_from_slice(bytes);
        disk.durable.clone_from(&disk.now);
    }

    /// The share is lost, and the machine knows it.
    pub fn lose(&self, fate: FileFate) {
        *lock(&self.lost) = Some(fate);
    }

    /// The content of a file after a power cut, without the share.
    pub fn durable(&self, file: usize) -> Vec<u8> {
        lock(&self.disks[file]).durable.clone()
    }

    /// The content of a file as other programs see it.
    pub fn content(&self, file: usize) -> Vec<u8> {
        lock(&self.disks[file]).now.clone()
    }

    /// Makes one call in so many fail; 0: none.  Returns the previous setting.
    pub fn let_fail(&self, one_in: u64) -> u64 {
        std::mem::replace(&mut lock(&self.faults).one_in, one_in)
    }

    /// The next sync of a file fails.
    pub fn fail_sync(&self) {
        lock(&self.faults).sync = true;
    }

    /// The next sync of a file's mark fails with this number.
    pub fn fail_mark_sync(&self, errno: i32) {
        lock(&self.faults).mark_sync = Some(errno);
    }

    /// The next release of a frame succeeds, but its answer is lost.
    pub fn lose_answer(&self) {
        lock(&self.faults).unanswered = true;
    }

    fn answer(&self) -> Result<()> {
        match std::mem::take(&mut lock(&self.faults).unanswered) {
            true => Err(Error::Unknown("no answer, as ordered".into())),
            false => Ok(()),
        }
    }

    pub fn fail_resize(&self) {
        lock(&self.faults).resize = true;
    }

    /// The next removal of a record fails.
    pub fn fail_remove(&self) {
        lock(&self.faults).remove = true;
    }

    /// Writes of this page of a file fail.
    pub fn bad_page(&self, page: u64) {
        lock(&self.faults).page = page;
    }

    pub fn failed(&self) -> usize {
        lock(&self.faults).happened
    }

    pub fn seed(&self, seed: u64) {
        lock(&self.faults).random = Random(seed);
    }

    /// Some if the call is to fail here, with random numbers to choose how.
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

    /// Cuts the power before the call that follows so many others.
    pub fn cut_after(&self, calls: u64) {
        let mut cuts = lock(&self.cuts);
        let at = cuts.calls + calls + 1;
        cuts.at.insert(at);
    }

    /// Returns the states that cuts have left since the last call.
    pub fn left(&self) -> Vec<Left> {
        std::mem::take(&mut lock(&self.cuts).left)
    }

    /// Runs where a file gets another size.
    fn resize_slowly(&self) {
        if self.slow_resize.load(Ordering::SeqCst) {
            self.resizes.store(true, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(300));
            self.resizes.store(false, Ordering::SeqCst);
        }
    }

    /// Runs before each call: the power may be cut here.
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

    /// Returns what a power cut would leave now.  `before` runs while everything stands still,
    /// except for stores to memory.
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

/// The share, with a guard that keeps the machine from standing still.
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
    /// The machine after the cut, with random choices of what the hardware kept.  A kill keeps
    /// all memory and files.
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
            // Recovery must not need new blocks.
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

    /// Makes some of the unsynced pages durable.
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

/// Opens a file after a cut.
pub(crate) fn open(machine: &Arc<Machine>) -> impl Fn(&Path) -> Result<Box<dyn Backing>> + '_ {
    |path: &Path| match PATHS.iter().position(|p| path == Path::new(p)) {
        Some(file) => Ok(machine.file(file)),
        None => Err(Error::Refused { path: path.to_owned(), why: "is not there".into() }),
    }
}
