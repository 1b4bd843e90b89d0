// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map of a pool, through the engine.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use forebay::{FileFate, MapClaim, PoolMap};
use forebay_engine::lasting::Lasting;
use forebay_engine::maps::{Map, MapFile, MapReport, Place};
use forebay_engine::{sys, Code, Engine, Media};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::frames::{Frames, Known};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::store::{FileRecord, FrameInfo, Grows, Stamp, Store, Synced};

#[cfg(test)]
mod tests;

/// The frames of a pool's map.
#[derive(Debug)]
pub struct PoolStore {
    map: Map,
    memory: Lasting<File>,
    report: MapReport,
    nfiles: u32,
    known: Frames,
    claim: MapClaim,
    /// Dropped last: it keeps the pool open until the map is detached.
    pool: Option<PoolMap>,
}

fn pool(e: Code) -> Error {
    Error::Pool(e.to_string())
}

/// Encodes the record's `identity`: the stamp's kind (0 settled, 1 changing), its seconds and
/// nanoseconds, and the file's identity.
fn known_by(identity: &[u8], stamp: Stamp) -> Vec<u8> {
    let (kind, (seconds, nanoseconds)) = match stamp {
        Stamp::Settled(time) => (0u32, time),
        Stamp::Changing(time) => (1, time),
    };
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(nanoseconds.to_le_bytes());
    bytes.extend(seconds.to_le_bytes());
    bytes.extend(identity);
    bytes
}

fn known_by_of(f: &MapFile) -> (Vec<u8>, Stamp) {
    let bytes = f.identity.get(..f.identity_bytes.into()).unwrap_or(&[]);
    let Some((head, identity)) = bytes.split_first_chunk::<16>() else {
        return Default::default();
    };
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let seconds = u64::from(number(8)) | u64::from(number(12)) << 32;
    let time = (seconds as i64, number(4));
    let stamp = match number(0) {
        1 => Stamp::Changing(time),
        _ => Stamp::Settled(time),
    };
    (identity.to_vec(), stamp)
}

impl PoolStore {
    /// Attaches a map of an open pool.
    pub fn of(map: PoolMap) -> Result<PoolStore> {
        let memory = map.memory().map_err(Error::system(map.path(), "its memory"))?;
        let at = map.path().display().to_string();
        let mut store = PoolStore::attach(map.engine(), map.name(), memory)?;
        store.claim.at = std::path::absolute(&at).map_or(at, |p| p.display().to_string());
        store.pool = Some(map);
        Ok(store)
    }

    /// Attaches a map of an engine by its name.  `memory` is the pool's file, open for reading
    /// and writing.
    pub fn attach(
        engine: &Arc<Engine>,
        name: &str,
        memory: impl Into<Lasting<File>>,
    ) -> Result<PoolStore> {
        let memory = memory.into();
        let index = engine.map_find(name).map_err(pool)?;
        let info = engine.map_info(index).map_err(pool)?;
        if info.spec.frame_bytes as usize != SEGMENT {
            let bytes = info.spec.frame_bytes;
            return Err(Error::Pool(format!("its frames have {bytes} bytes, and not 2 MiB")));
        }
        let attached = Map::attach(engine, index);
        let (map, report) = attached.map_err(|e| Error::Pool(e.to_string()))?;
        let known = Frames::new(info.nframes);
        let sb = engine.info().sb;
        let at = std::fs::read_link(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        let claim = MapClaim {
            pool: forebay::Uuid(sb.uuid),
            map: name.to_owned(),
            uuid: forebay::Uuid(info.spec.uuid),
            generation: sb.generation,
            share_bytes: info.spec.bytes,
            at: at.unwrap_or_default().display().to_string(),
        };
        Ok(PoolStore { map, memory, report, nfiles: info.spec.nfiles, known, claim, pool: None })
    }

    /// The report of the attach on what a crash has left.
    pub fn report(&self) -> &MapReport {
        &self.report
    }

    /// The media that holds the frames.
    pub fn media(&self) -> &Arc<Media> {
        self.map.media()
    }

    /// The place of a frame, for another process that gets the frame.
    pub fn place(&self, frame: u32) -> Result<Place> {
        self.map.frame(frame).map(|f| f.place()).map_err(pool)
    }

    /// Forgets where frames end.  A file was promised a larger size, and the process that makes
    /// its pages dirty is another one.
    pub fn forget_places(&self) {
        self.known.forget_all();
    }

    fn ask(&self, frame: u32) -> Result<Known> {
        let at = self.map.frame_info(frame).map_err(pool)?.at;
        Ok(Known { frame: self.map.frame(frame).map_err(pool)?, at })
    }

    fn known<R>(&self, frame: u32, f: impl FnOnce(&Known) -> R) -> Result<R> {
        self.known.with(frame, || self.ask(frame), f)
    }
}

impl Store for PoolStore {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn claim(&self) -> &MapClaim {
        &self.claim
    }

    fn lost(&self) -> Option<FileFate> {
        self.pool.as_ref().and_then(PoolMap::lost)
    }

    fn look_for_loss(&self) {
        if let Some(pool) = &self.pool {
            pool.look_for_loss();
        }
    }

    fn capacity(&self) -> usize {
        self.known.len()
    }

    fn add_file(&self, f: &FileRecord) -> Result<u32> {
        self.map.file_add(f.size, &known_by(&f.identity, f.stamp), &f.path).map_err(pool)
    }

    fn files(&self) -> Result<Vec<(u32, FileRecord)>> {
        let mut files = Vec::new();
        for id in 0..self.nfiles {
            let Some(f) = self.map.file_info(id).map_err(pool)? else { continue };
            let path = f.path.split(|&b| b == 0).next().unwrap_or(&[]);
            let (identity, stamp) = known_by_of(&f);
            files.push((
                id,
                FileRecord {
                    size: f.size,
                    grows: f.grows.then_some(Grows { made: f.made, ahead: f.ahead }),
                    identity,
                    path: String::from_utf8_lossy(path).into_owned(),
                    cut: f.cut,
                    damaged: f.damaged,
                    stamp,
                },
            ));
        }
        Ok(files)
    }

    fn set_size(&self, file: u32, size: u64) -> Result<()> {
        self.map.file_size(file, size).map_err(pool)?;
        self.known.forget_all();
        Ok(())
    }

    fn set_ahead(&self, file: u32, ahead: u64) -> Result<bool> {
        self.map.file_grows(file, ahead).map_err(pool)
    }

    fn promise(&self, file: u32, size: u64) -> Result<()> {
        // The known frames have a smaller size, which is safe: a sync past it asks again.
        self.map.file_promise(file, size).map_err(pool)
    }

    fn cut(&self, file: u32, size: u64) -> Result<()> {
        self.map.file_cut(file, size).map_err(pool)?;
        self.known.forget_all();
        Ok(())
    }

    fn cut_end(&self, file: u32) -> Result<()> {
        self.map.file_cut_end(file).map_err(|e| match e.is(sys::FBY_E_LOST) {
            true => Error::Pool("the media does not return the page in which the file ends".into()),
            false => pool(e),
        })?;
        self.known.forget_all();
        Ok(())
    }

    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()> {
        let Some(f) = self.map.file_info(file).map_err(pool)? else {
            return Err(Error::Pool("no such file".into()));
        };
        let bytes = known_by(&known_by_of(&f).0, stamp);
        self.map.file_identity(file, &bytes).map_err(pool)
    }

    fn remove_file(&self, file: u32) -> Result<()> {
        self.map.file_remove(file).map_err(pool)
    }

    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        self.map.take(file, segment).map_err(pool)
    }

    fn show(&self, frame: u32) -> Result<()> {
        self.map.show(frame).map_err(pool)?;
        // The knowledge about the frame was valid only while it was filled.
        self.known.forget(frame);
        Ok(())
    }

    fn release(&self, frame: u32, discard: bool) -> Result<()> {
        self.map.drop_frame(frame, discard).map_err(pool)?;
        self.known.forget(frame);
        Ok(())
    }

    fn frames(&self) -> Result<Vec<FrameInfo>> {
        let mut frames = Vec::new();
        for frame in 0..self.known.len() as u32 {
            let info = self.map.frame_info(frame).map_err(pool)?;
            let known = match info.state {
                sys::FBY_FRAME_USED | sys::FBY_FRAME_FOUND => !info.stray,
                sys::FBY_FRAME_DAMAGED => false,
                _ => continue,
            };
            let file = known.then_some(info.file);
            // A frame of an earlier use of the record belongs to no file.  If the record is
            // damaged, the frame may belong to it.
            let of = (info.stray && info.file < self.nfiles).then_some(info.file);
            frames.push(FrameInfo { frame, file, segment: info.segment, of });
        }
        Ok(frames)
    }

    fn place_of(&self, frame: u32) -> Result<Option<crate::store::Place>> {
        self.place(frame).map(|place| Some(place.into()))
    }

    fn offset(&self, frame: u32) -> Result<u64> {
        self.known(frame, |k| k.at)
    }

    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()> {
        self.known(frame, |k| k.frame.copy_in(at, from))
    }

    fn fill_from(
        &self,
        frame: u32,
        from: &dyn Backing,
        at: u64,
        len: usize,
    ) -> Result<io::Result<()>> {
        self.known(frame, |k| k.fill_from(from, at, len))
    }

    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.known(frame, |k| k.frame.copy_out(at, to))
    }

    fn write_back_caches(&self, frame: u32) -> Result<()> {
        self.known(frame, |k| k.frame.write_back_caches())
    }

    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced> {
        self.known.sync(frame, || self.ask(frame), pages)
    }

    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        let (dirty, unknown) = self.known(frame, |k| k.frame.dirty())?;
        Ok((PageSet::of_bits(dirty), PageSet::of_bits(unknown)))
    }

    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        let pages = match self.map.frame_dirty(frame) {
            Ok(pages) => pages,
            // A damaged descriptor says nothing.
            Err(e) if e.is(sys::FBY_E_NO_MAP) => return Ok((PageSet::EMPTY, PageSet::ALL)),
            Err(e) => return Err(pool(e)),
        };
        Ok((PageSet::of_bits(pages.0), PageSet::of_bits(pages.1)))
    }

    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool> {
        match self.map.page_read(frame, page as u32, to) {
            Ok(()) => Ok(true),
            Err(e) if e.is(sys::FBY_E_LOST) => Ok(false),
            Err(e) => Err(pool(e)),
        }
    }

    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet> {
        let pages = self.known(frame, |k| k.frame.write_begin(&pages.bits()))?;
        Ok(PageSet::of_bits(pages))
    }

    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()> {
        // The next write_begin returns the pages that stay dirty.
        self.known(frame, |k| k.frame.write_end(&pages.bits())).map(|_| ())
    }
}
