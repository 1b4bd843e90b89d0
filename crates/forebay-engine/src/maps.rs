// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's maps: `core/api/map.h`, which has the contract of each call.
//!
//! A [`Frame`] is used by any number of threads, and without a lock; all other calls take
//! the lock of the volume calls.  A frame that was dropped meanwhile, or has another owner,
//! answers that its words are damaged, since they are of another epoch: its memory stays
//! mapped for as long as the media does, which a [`Frame`] keeps.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_sys as sys;
pub use forebay_sys::{
    fby_frame_info as FrameInfo, fby_map_file as MapFile, fby_map_info as MapInfo,
    fby_map_report as MapReport,
};

use crate::code::{done, Code, Result};
use crate::engine::Engine;
use crate::media::{Media, Persist};
use crate::memory::Memory;
use crate::open::{allocate, OpenError};
use crate::shared::SharedBytes;
use crate::shown::Kind;

/// One bit a page of a frame.
pub type Pages = [u64; 8];

static PORT: sys::fby_frame_port = sys::fby_frame_port {
    flush: Some(sys::fby_posix_frame_flush),
    fence: Some(sys::fby_posix_frame_fence),
};

fn host_of(persist: Persist) -> *mut c_void {
    std::ptr::without_provenance_mut(persist.number() as usize)
}

/// A map that is attached.
#[derive(Debug)]
pub struct Map {
    engine: Arc<Engine>,
    index: u16,
    /// The engine's, until it is detached.
    _memory: Memory,
}

/// A frame in use, or taken and to be filled.
#[derive(Clone, Debug)]
pub struct Frame {
    raw: sys::fby_frame,
    bytes: usize,
    _media: Arc<Media>,
}

// SAFETY: it points into memory of the media, which it keeps; the engine's calls on it may
// come from any thread, and the others are atomic.
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

/// The place of a frame on the media, and the seed of its words: enough for another process
/// that has the media mapped ([`Frame::at`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub memory: u64,
    /// None: it is taken, and to be filled.
    pub words: Option<u64>,
    pub pages: u32,
    /// Pages that the file has.
    pub limit: u32,
    pub seed: u32,
}

impl Engine {
    /// A new map with a share of so many bytes.
    pub fn map_add(&self, name: &str, uuid: [u8; 16], bytes: u64) -> Result<u16> {
        let name = sys::c_text(name).ok_or(Code(sys::FBY_E_NAME))?;
        let spec = sys::fby_map_spec { name, uuid, bytes, ..Default::default() };
        let mut index = 0;
        let _change = self.change();
        // SAFETY: the pool is open; the lock keeps such calls apart.
        done(unsafe { sys::fby_map_add(self.pool, &spec, &mut index) })?;
        Ok(index)
    }

    pub fn map_remove(&self, map: u16, discard: bool) -> Result<()> {
        let _change = self.change();
        // SAFETY: the pool is open; the lock keeps such calls apart.
        done(unsafe { sys::fby_map_remove(self.pool, map, discard) })
    }

    pub fn map_find(&self, name: &str) -> Result<u16> {
        self.shown.find(Kind::Map, name)
    }

    /// With the counts of this moment, for which calls of maps are waited for.
    pub fn map_info(&self, map: u16) -> Result<MapInfo> {
        self.map_info_of(&self.admin(), map)
    }

    /// All maps, as the last add, remove, attach or detach left them: nothing is waited for.
    pub fn maps(&self) -> Vec<MapInfo> {
        self.shown.get().maps.clone()
    }
}

impl Map {
    /// Attaches the map; the report describes the state that a crash has left.
    pub fn attach(
        engine: &Arc<Engine>,
        index: u16,
    ) -> std::result::Result<(Map, MapReport), OpenError> {
        engine.map_info(index)?;
        let admin = engine.change();
        // SAFETY: the pool is open, and the map was just found.
        let bytes = unsafe { sys::fby_map_bytes(engine.pool, index) };
        let memory = allocate(bytes, false)?;
        let attach = sys::fby_map_attach {
            mem: memory.as_ptr().cast(),
            mem_bytes: bytes,
            port: &PORT,
            host: host_of(engine.media().persist()),
        };
        let mut report = MapReport::default();
        // SAFETY: the pool is open; memory is zeroed, aligned and as large as asked for, and
        // kept until detach; admin keeps such calls apart; the port is for ever there, and
        // takes the number as what it is.
        done(unsafe { sys::fby_map_attach(engine.pool, index, &attach, &mut report) })?;
        drop(admin);
        Ok((Map { engine: Arc::clone(engine), index, _memory: memory }, report))
    }

    /// The media of the pool.
    pub fn media(&self) -> &Arc<Media> {
        self.engine.media()
    }

    pub fn info(&self) -> Result<MapInfo> {
        self.engine.map_info(self.index)
    }

    /// `path` and `identity` are kept as they are.
    pub fn file_add(&self, size: u64, identity: &[u8], path: &str) -> Result<u32> {
        let mut f = Box::new(MapFile { size, ..Default::default() });
        let room = f.identity.get_mut(..identity.len()).ok_or(Code(sys::FBY_E_NAME))?;
        room.copy_from_slice(identity);
        f.identity_bytes = identity.len() as u16;
        f.path = sys::c_text(path).ok_or(Code(sys::FBY_E_NAME))?;
        let mut file = 0;
        let _admin = self.engine.admin();
        // SAFETY: the pool is open and the map attached; admin keeps such calls apart.
        done(unsafe { sys::fby_map_file_add(self.engine.pool, self.index, &*f, &mut file) })?;
        Ok(file)
    }

    /// None: there is none of that number, or it is not used.  Of a damaged one no more is
    /// told than that, and how many frames it has.
    pub fn file_info(&self, file: u32) -> Result<Option<Box<MapFile>>> {
        let mut f = Box::new(MapFile::default());
        let _admin = self.engine.admin();
        // SAFETY: as above; f is ours.
        let got =
            done(unsafe { sys::fby_map_file_info(self.engine.pool, self.index, file, &mut *f) });
        match got {
            Ok(()) => Ok((f.used || f.damaged).then_some(f)),
            Err(e) if e.is(sys::FBY_E_NO_MAP) => Ok(None),
            Err(e) if e.is(sys::FBY_E_MAP_DAMAGED) && f.damaged => Ok(Some(f)),
            Err(e) => Err(e),
        }
    }

    /// In place of what it was known by.
    pub fn file_identity(&self, file: u32, identity: &[u8]) -> Result<()> {
        let bytes = u16::try_from(identity.len()).map_err(|_| Code(sys::FBY_E_NAME))?;
        let _admin = self.engine.admin();
        // SAFETY: the pool is open and the map attached; admin keeps such calls apart; so
        // many bytes are read.
        done(unsafe {
            let from = identity.as_ptr().cast();
            sys::fby_map_file_identity(self.engine.pool, self.index, file, from, bytes)
        })
    }

    pub fn file_size(&self, file: u32, size: u64) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: the pool is open and the map attached; admin keeps such calls apart.
        done(unsafe { sys::fby_map_file_size(self.engine.pool, self.index, file, size) })
    }

    /// False: the pool is of a version that has no promises.
    pub fn file_grows(&self, file: u32, ahead: u64) -> Result<bool> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        let rc = unsafe { sys::fby_map_file_grows(self.engine.pool, self.index, file, ahead) };
        match rc {
            sys::FBY_ORIGIN => Ok(false),
            rc => done(rc).map(|()| true),
        }
    }

    pub fn file_promise(&self, file: u32, size: u64) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_file_promise(self.engine.pool, self.index, file, size) })
    }

    pub fn file_cut(&self, file: u32, size: u64) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_file_cut(self.engine.pool, self.index, file, size) })
    }

    pub fn file_cut_end(&self, file: u32) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_file_cut_end(self.engine.pool, self.index, file) })
    }

    pub fn file_remove(&self, file: u32) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_file_remove(self.engine.pool, self.index, file) })
    }

    /// None: no frame is free.
    pub fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        let mut frame = 0;
        let _admin = self.engine.admin();
        // SAFETY: as above.
        let taken = done(unsafe {
            sys::fby_map_take(self.engine.pool, self.index, file, segment, &mut frame)
        });
        match taken {
            Ok(()) => Ok(Some(frame)),
            Err(e) if e.is(sys::FBY_E_MAP_FULL) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub fn show(&self, frame: u32) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_show(self.engine.pool, self.index, frame) })
    }

    pub fn drop_frame(&self, frame: u32, discard: bool) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above.
        done(unsafe { sys::fby_map_drop(self.engine.pool, self.index, frame, discard) })
    }

    pub fn frame_info(&self, frame: u32) -> Result<FrameInfo> {
        let mut info = FrameInfo::default();
        let _admin = self.engine.admin();
        // SAFETY: as above; info is ours.
        done(unsafe { sys::fby_map_frame_info(self.engine.pool, self.index, frame, &mut info) })?;
        Ok(info)
    }

    /// Ask for it again when its file has another size.
    pub fn frame(&self, frame: u32) -> Result<Frame> {
        let mut raw = sys::fby_frame::default();
        let _admin = self.engine.admin();
        // SAFETY: as above; raw is ours.
        done(unsafe { sys::fby_map_frame(self.engine.pool, self.index, frame, &mut raw) })?;
        let bytes = raw.npages as usize * 4096;
        Ok(Frame { raw, bytes, _media: Arc::clone(self.engine.media()) })
    }

    /// The dirty pages and the unknown ones, as the media has them.  On bad memory this returns
    /// an error, while [`Frame::dirty`] faults.
    pub fn frame_dirty(&self, frame: u32) -> Result<(Pages, Pages)> {
        let (mut dirty, mut unknown): (sys::fby_pages, sys::fby_pages) = Default::default();
        let _admin = self.engine.admin();
        // SAFETY: as above; both are ours.
        done(unsafe {
            let (pool, index) = (self.engine.pool, self.index);
            sys::fby_map_frame_dirty(pool, index, frame, &mut dirty, &mut unknown)
        })?;
        Ok((dirty.bit, unknown.bit))
    }

    /// Copies a page; an error of the media is `FBY_E_LOST`.
    pub fn page_read(&self, frame: u32, page: u32, to: &mut [u8; 4096]) -> Result<()> {
        let _admin = self.engine.admin();
        // SAFETY: as above; there is room for a page.
        done(unsafe {
            let to = to.as_mut_ptr().cast();
            sys::fby_map_page_read(self.engine.pool, self.index, frame, page, to)
        })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _change = self.engine.change();
        // SAFETY: the pool is open and the map attached; the lock keeps such calls apart.
        // Frames that are left are only used by calls that need no pool.
        let _ = unsafe { sys::fby_map_detach(self.engine.pool, self.index) };
    }
}

impl Frame {
    /// A frame of another process, which has the pool.  None: it is not within the media, or
    /// impossible.
    pub fn at(media: &Arc<Media>, place: &Place) -> Option<Frame> {
        let bytes = u64::from(place.pages) * 4096;
        let sound = |at: u64, len: u64, to: u64| {
            at.is_multiple_of(to) && at.checked_add(len).is_some_and(|end| end <= media.size())
        };
        let pages = (64..=512).contains(&place.pages) && place.pages.is_multiple_of(64);
        let words = place.words.is_none_or(|at| sound(at, u64::from(place.pages) / 2, 8));
        let within = pages && words && sound(place.memory, bytes, 4096);
        if !within || place.limit > place.pages || !media.is_writable() {
            return None;
        }
        let base = media.base();
        let raw = sys::fby_frame {
            words: match place.words {
                Some(at) => base.wrapping_add(at as usize).cast(),
                None => std::ptr::null_mut(),
            },
            memory: base.wrapping_add(place.memory as usize),
            port: &PORT,
            host: host_of(media.persist()),
            npages: place.pages,
            limit: place.limit,
            seed: place.seed,
        };
        Some(Frame { raw, bytes: bytes as usize, _media: Arc::clone(media) })
    }

    /// For another process.
    pub fn place(&self) -> Place {
        let from = |p: *const u8| (p.addr() - self._media.base().addr()) as u64;
        Place {
            memory: from(self.raw.memory),
            words: (!self.raw.words.is_null()).then(|| from(self.raw.words.cast())),
            pages: self.raw.npages,
            limit: self.raw.limit,
            seed: self.raw.seed,
        }
    }

    fn pages(pages: &Pages) -> sys::fby_pages {
        sys::fby_pages { bit: *pages }
    }

    /// False: a page is past the end of the file, and nothing was done.
    pub fn sync(&self, pages: &Pages) -> Result<bool> {
        self.check(pages);
        // SAFETY: words and memory are the media's, which is kept; the pages are of the
        // frame.
        match unsafe { sys::fby_frame_sync(&self.raw, &Frame::pages(pages)) } {
            sys::FBY_DONE => Ok(true),
            sys::FBY_ORIGIN => Ok(false),
            e => Err(Code(-e)),
        }
    }

    /// The dirty pages, and the unknown ones.
    pub fn dirty(&self) -> (Pages, Pages) {
        self.check(&[0; 8]);
        let (mut dirty, mut unknown) = Default::default();
        // SAFETY: as above; both are ours.
        unsafe { sys::fby_frame_dirty(&self.raw, &mut dirty, &mut unknown) };
        (dirty.bit, unknown.bit)
    }

    /// The pages of these that must be written; copy them only after this call.
    pub fn write_begin(&self, pages: &Pages) -> Pages {
        self.check(pages);
        let mut pages = Frame::pages(pages);
        // SAFETY: as in sync().
        unsafe { sys::fby_frame_write_begin(&self.raw, &mut pages) };
        pages.bit
    }

    /// The pages of these that stay dirty.
    pub fn write_end(&self, pages: &Pages) -> Pages {
        self.check(pages);
        let mut pages = Frame::pages(pages);
        // SAFETY: as in sync().
        unsafe { sys::fby_frame_write_end(&self.raw, &mut pages) };
        pages.bit
    }

    /// All of its memory is durable, and no bit is set for that.
    pub fn write_back_caches(&self) {
        // SAFETY: the memory is the media's, which is kept; the port is PORT, whose calls
        // take the host that came with it.
        unsafe {
            sys::fby_posix_frame_flush(self.raw.host, self.raw.memory.cast(), self.bytes);
            sys::fby_posix_frame_fence(self.raw.host);
        }
    }

    fn check(&self, pages: &Pages) {
        let words = self.raw.npages as usize / 64;
        let rest = pages.iter().skip(words);
        assert!(self.raw.npages.is_multiple_of(64) && rest.copied().all(|w| w == 0));
        assert!(!self.raw.words.is_null(), "the frame is taken, and not shown");
    }

    fn memory(&self) -> SharedBytes {
        let start = NonNull::new(self.raw.memory).expect("a frame that was got has memory");
        // SAFETY: the media's, which is kept; programs store there, so no reference is made.
        unsafe { SharedBytes::new(start, self.bytes) }
    }

    /// Loads from its memory, to which others may store.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        self.memory().copy_out(at, to);
    }

    /// Stores to it.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        self.memory().copy_in(at, from);
    }

    /// Reads so many bytes of a file to the beginning of it; less only at the file's end.
    pub fn read_from(&self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        let memory = self.memory();
        let mut done = 0;
        while done < len {
            let to = memory.at(done, len - done).cast::<MaybeUninit<u8>>();
            // SAFETY: mapped, any bytes may be there, and nothing makes a reference to it: the
            // slice is for the kernel.
            let to = unsafe { std::slice::from_raw_parts_mut(to, len - done) };
            match rustix::io::pread(file, to, offset + done as u64) {
                Ok(([], _)) => break,
                Ok((read, _)) => done += read.len(),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }
}
