// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated share, according to `core/api/map.h`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::OnceLock;

use forebay::{FileFate, MapClaim, Uuid};

use super::{get, set, Frame, Machine};
use crate::error::{Error, Result};
use crate::locked::lock;
use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::store::{FileRecord, FrameInfo, Grows, Place, Stamp, Store, Synced};

impl Store for Machine {
    fn memory(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn claim(&self) -> &MapClaim {
        static CLAIM: OnceLock<MapClaim> = OnceLock::new();
        CLAIM.get_or_init(|| MapClaim {
            pool: Uuid([7; 16]),
            map: "m".into(),
            uuid: Uuid([8; 16]),
            generation: 3,
            share_bytes: 1 << 20,
            at: "/simulated/pool".into(),
        })
    }

    fn lost(&self) -> Option<FileFate> {
        *lock(&self.lost)
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
        record.grows = None;
        Ok(())
    }

    fn set_ahead(&self, file: u32, ahead: u64) -> Result<bool> {
        if !self.promises.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        assert!(ahead >= record.size && !record.cut);
        let made = record.made();
        record.grows = Some(Grows { made, ahead });
        Ok(true)
    }

    fn promise(&self, file: u32, size: u64) -> Result<()> {
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        let ahead = record.grows.expect("was told").ahead;
        assert!(size <= ahead && !record.cut);
        if size < record.size {
            return Err(Error::Pool(format!("{size} bytes, and {record:?}")));
        }
        record.size = size;
        self.answer()
    }

    fn cut(&self, file: u32, size: u64) -> Result<()> {
        let mut share = self.share()?;
        let record = share.files.get_mut(&file).expect("is there");
        assert!(size <= record.size && !record.cut);
        record.size = size;
        record.grows = record.grows.map(|g| Grows { made: g.made.min(size), ..g });
        record.cut = true;
        Ok(())
    }

    fn cut_end(&self, file: u32) -> Result<()> {
        let mut share = self.share()?;
        let record = &share.files[&file];
        assert!(record.cut);
        let size = record.size;
        let bad = |(i, f): (usize, &Frame)| {
            let end = size.saturating_sub(f.segment * SEGMENT as u64) as usize / PAGE;
            let there = f.used && f.file == file && end < SEGMENT_PAGES;
            there && get(&f.dirty, end) && share.bad.contains(&(i as u32, end))
        };
        if share.frames.iter().enumerate().any(bad) {
            return Err(Error::Pool("the page in which it ends is bad".into()));
        }
        let record = share.files.get_mut(&file).expect("is there");
        (record.cut, record.grows) = (false, None);
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
        if std::mem::take(&mut lock(&self.faults).remove) {
            return Err(Error::Pool("fails as ordered".into()));
        }
        assert!(!share.frames.iter().any(|f| (f.used || f.taken) && f.file == file), "has frames");
        share.files.remove(&file).expect("is there");
        Ok(())
    }

    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        if self.no_frames.load(Ordering::SeqCst) {
            return Err(Error::Pool("no frame, as ordered".into()));
        }
        let mut share = self.share()?;
        assert!(!share.frames.iter().any(|f| f.used && (f.file, f.segment) == (file, segment)));
        let free = share.frames.iter().position(|f| !f.used && !f.taken);
        if let Some(i) = free {
            share.frames[i] = Frame::new(file, segment);
            *share.uses.entry(i as u32).or_default() += 1;
        }
        Ok(free.map(|i| i as u32))
    }

    fn place_of(&self, frame: u32) -> Result<Option<Place>> {
        let seed = lock(&self.share).uses.get(&frame).copied().unwrap_or(0);
        let (memory, pages) = (u64::from(frame) * SEGMENT as u64, SEGMENT_PAGES as u32);
        Ok(Some(Place { memory, words: None, pages, limit: pages, seed }))
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
        // Bytes that the next owner does not store would be another file's.
        self.memory.copy_in(i * SEGMENT, &vec![0xaa; SEGMENT]);
        self.answer()
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
        let behind_end = self.behind_end.load(Ordering::SeqCst);
        if behind_end || pages.iter().any(|p| p as u64 >= limit) {
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
