// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map of a pool that another process serves.  The server owns the records of files and
//! frames and makes each change of them on request.  It shares the pool's memory with this
//! process, which loads, stores, syncs and writes back there itself.
//!
//! The server passes the descriptor of the pool's file that it has locked.  A flock(2) lock
//! lasts until the last descriptor and the last mapping are gone.  So no other process can open
//! the pool, or free these frames, as long as this process can acknowledge a sync, even if the
//! server has ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use forebay::{FileFate, MapClaim, SharedFile};
use forebay_engine::lasting::Lasting;
use forebay_engine::maps::Frame;
use forebay_engine::{Media, Memory};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::frames::{Frames, Known};
use crate::link::{self, Link};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::store::{FileRecord, FrameInfo, Place, Stamp, Store, Synced};
use crate::wire::{self, Answer, Request, Share};

/// The frames that a server lends to this process.
#[derive(Debug)]
pub struct ServedStore {
    pub(crate) link: Link,
    /// The number by which the server links other connections to this process.
    pub(crate) number: u64,
    memory: Lasting<OwnedFd>,
    pub(crate) media: Arc<Media>,
    claim: MapClaim,
    known: Frames,
    persist: forebay::Persist,
    /// The loss of the pool's file, once it is known.
    lost: OnceLock<FileFate>,
    /// Looks for that loss when the server has ended.
    file: SharedFile,
}

impl ServedStore {
    /// Connects to the server whose socket is in that directory.  None: no server has the pool.
    pub fn connect(pool: &Path, map: Option<&str>, sockets: &Path) -> Result<Option<ServedStore>> {
        let found = forebay::inspect(pool)?;
        let Some(superblock) = found.superblock else { return Ok(None) };
        let path = wire::socket_path(sockets, superblock.uuid);
        let Some(stream) = link::connect(&path).map_err(Error::system(&path, "connect"))? else {
            return Ok(None);
        };
        let served = ServedStore::over(stream, map, Some(&found.id))?;
        Ok(Some(served))
    }

    /// Uses an existing connection.  `map` is the name of the map; None: the only map.  `media`
    /// is the file or device that the pool must be.
    pub fn over(
        stream: impl Into<Lasting<UnixStream>>,
        map: Option<&str>,
        media: Option<&str>,
    ) -> Result<ServedStore> {
        let stream = stream.into();
        let said = |e: io::Error| Error::Pool(format!("its server does not answer: {e}"));
        let hello = Request::Hello { version: wire::VERSION, map: map.map(str::to_owned) };
        link::check_server(&stream)?;
        let greeted = link::set_up(&stream, link::PATIENCE).and_then(|()| {
            link::send(&stream, &hello)?;
            link::receive(&stream)
        });
        let (share, memory) = match greeted.map_err(said)? {
            (Answer::Hello(share), Some(memory)) => (share, memory),
            (Answer::Failed { why, .. }, _) => return Err(Error::Pool(why)),
            (answer, _) => return Err(unexpected(&answer)),
        };
        if media.is_some_and(|media| media != share.media) {
            let (at, pid) = (&share.at, share.pid);
            return Err(Error::Pool(format!(
                "it is not the pool that is served: process {pid} serves {at}, which has the same \
                 UUID, as a copy has; name that one"
            )));
        }
        let media = mapped(&share, &memory)?;
        let claim = MapClaim {
            pool: share.pool,
            map: share.map,
            uuid: share.map_uuid,
            generation: share.generation,
            share_bytes: share.share_bytes,
            at: share.at,
        };
        let known = Frames::new(share.frames);
        let (link, number) = (Link::new(stream, share.pid), share.number);
        let persist = share.persist.into();
        let (bytes, lost) = (share.media_bytes, OnceLock::new());
        let file = SharedFile::new(memory.as_fd(), bytes, claim.pool, claim.generation);
        Ok(ServedStore { link, memory, media, claim, known, number, persist, lost, file })
    }

    /// The process that serves the pool, or served it.
    pub fn server(&self) -> u32 {
        self.link.server()
    }

    /// The method by which stores become durable.
    pub fn persist(&self) -> forebay::Persist {
        self.persist
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        self.link.ask(request).map_err(|e| self.with_loss(e))
    }

    /// Nothing writes back what was synced to a file that is lost, once the server has ended.
    fn with_loss(&self, e: Error) -> Error {
        let Some(fate) = self.lost.get().filter(|_| self.link.is_gone()) else { return e };
        let pid = self.server();
        let what = match fate {
            FileFate::Removed => "was deleted",
            FileFate::CutShort => "was cut short",
            FileFate::Overwritten | FileFate::SetBack => "was overwritten",
            FileFate::Moved => "was moved",
        };
        let why = format!(
            "its server, process {pid}, has ended, and its file {what}: what was synced, and is \
             not in the mapped file, is gone when this process ends"
        );
        match e {
            Error::Pool(_) => Error::Pool(why),
            Error::Unknown(_) => Error::Unknown(why),
            e => e,
        }
    }

    /// Nobody else looks once the server has ended.
    fn look_alone(&self) {
        if self.lost.get().is_some() || !self.link.is_gone() {
            return;
        }
        if let Some(fate) = self.file.fate(self.memory.as_fd()) {
            let _ = self.lost.set(fate);
        }
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn at(&self, place: Place) -> Result<Known> {
        match Frame::at(&self.media, &place.into()) {
            Some(frame) => Ok(Known { frame, at: place.memory }),
            None => Err(Error::Pool("its server named a place outside the pool".into())),
        }
    }

    fn place(&self, frame: u32) -> Result<Known> {
        match self.ask(&Request::Place { frame })? {
            Answer::Place(place) => self.at(place),
            other => Err(unexpected(&other)),
        }
    }

    fn known<R>(&self, frame: u32, f: impl FnOnce(&Known) -> R) -> Result<R> {
        self.known.with(frame, || self.place(frame), f)
    }
}

pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::Pool(format!("its server gave an unexpected answer: {answer:?}"))
}

fn mapped(share: &Share, memory: &OwnedFd) -> Result<Arc<Media>> {
    let not = |why: String| Error::Pool(format!("its memory is not available: {why}"));
    let len = usize::try_from(share.media_bytes).map_err(|e| not(e.to_string()))?;
    let mapped = Memory::of_file(memory.as_fd(), len, true, share.synchronous);
    let mapped = mapped.map_err(|e| not(e.to_string()))?;
    let media = Media::new(Arc::new(mapped), share.media_bytes, share.persist.into(), None);
    media.map(Arc::new).ok_or_else(|| not("this CPU cannot make its stores durable".into()))
}

impl Drop for ServedStore {
    /// No other mapping exists by now, because whoever maps holds this store.
    fn drop(&mut self) {
        let _ = self.ask(&Request::Bye);
    }
}

impl Store for ServedStore {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn claim(&self) -> &MapClaim {
        &self.claim
    }

    fn capacity(&self) -> usize {
        self.known.len()
    }

    fn lost(&self) -> Option<FileFate> {
        self.look_alone();
        self.lost.get().copied()
    }

    fn look_for_loss(&self) {
        if self.lost.get().is_some() {
            return;
        }
        if let Ok(Answer::Lost(Some(fate))) = self.ask(&Request::Lost) {
            let _ = self.lost.set(fate);
        }
    }

    fn is_brought_home(&self, identity: &[u8]) -> Result<bool> {
        match self.ask(&Request::IsBroughtHome { identity: identity.to_vec() })? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    fn wanted(&self) -> usize {
        match self.ask(&Request::Wanted) {
            Ok(Answer::Number(n)) => n as usize,
            _ => 0,
        }
    }

    fn pin(&self, segments: usize) -> Result<bool> {
        match self.ask(&Request::Pin { segments: segments as u32 })? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    fn unpin(&self, segments: usize) {
        // If the server does not answer, it has dropped the pins already.
        let _ = self.ask(&Request::Unpin { segments: segments as u32 });
    }

    fn add_file(&self, f: &FileRecord) -> Result<u32> {
        let path = (&f.path).into();
        match self.ask(&Request::AddFile { file: f.clone() })? {
            Answer::Number(file) => Ok(file),
            Answer::Wait => Err(Error::Locked { path, by: None }),
            Answer::Failed { why, .. } => Err(Error::Refused { path, why }),
            other => Err(unexpected(&other)),
        }
    }

    fn files(&self) -> Result<Vec<(u32, FileRecord)>> {
        let (mut files, mut from) = (Vec::new(), 0);
        loop {
            match self.ask(&Request::FileFrom { file: from })? {
                Answer::File(None) => return Ok(files),
                Answer::File(Some((file, record))) if file >= from => {
                    files.push((file, record));
                    from = match file.checked_add(1) {
                        Some(next) => next,
                        None => return Ok(files),
                    };
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn set_size(&self, file: u32, size: u64) -> Result<()> {
        self.done(&Request::SetSize { file, size })?;
        self.known.forget_all();
        Ok(())
    }

    fn set_ahead(&self, file: u32, ahead: u64) -> Result<bool> {
        match self.ask(&Request::SetAhead { file, ahead })? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    fn promise(&self, file: u32, size: u64) -> Result<()> {
        // The known frames have a smaller size, which is safe: a sync past it asks again.
        self.done(&Request::Promise { file, size })
    }

    fn cut(&self, file: u32, size: u64) -> Result<()> {
        let done = self.done(&Request::Cut { file, size });
        // Frames are forgotten even if the outcome is unknown.
        self.known.forget_all();
        done
    }

    fn cut_end(&self, file: u32) -> Result<()> {
        self.done(&Request::CutEnd { file })?;
        self.known.forget_all();
        Ok(())
    }

    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()> {
        self.done(&Request::SetStamp { file, stamp })
    }

    fn remove_file(&self, file: u32) -> Result<()> {
        self.done(&Request::RemoveFile { file })
    }

    fn keep(&self, file: u32, by: BorrowedFd<'_>) -> Result<bool> {
        match self.link.ask_with(&Request::Keep { file }, by)? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        match self.ask(&Request::Take { file, segment })? {
            Answer::Taken(None) => Ok(None),
            Answer::Taken(Some((frame, place))) => {
                self.known.learn(frame, self.at(place)?).map(|()| Some(frame))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn show(&self, frame: u32) -> Result<()> {
        match self.ask(&Request::Show { frame })? {
            Answer::Place(place) => self.known.learn(frame, self.at(place)?),
            other => Err(unexpected(&other)),
        }
    }

    fn release(&self, frame: u32, discard: bool) -> Result<()> {
        let done = self.done(&Request::Release { frame, discard });
        if matches!(done, Ok(()) | Err(Error::Unknown(_))) {
            self.known.forget(frame);
        }
        done
    }

    fn frames(&self) -> Result<Vec<FrameInfo>> {
        let (mut frames, mut from) = (Vec::new(), 0);
        loop {
            let some = match self.ask(&Request::FramesFrom { frame: from })? {
                Answer::Frames(some) => some,
                other => return Err(unexpected(&other)),
            };
            match some.last() {
                Some(last) if last.frame >= from && last.frame < u32::MAX => from = last.frame + 1,
                Some(_) => return Err(unexpected(&Answer::Frames(some))),
                None => return Ok(frames),
            }
            frames.extend(some);
        }
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
        self.known.sync(frame, || self.place(frame), pages)
    }

    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        let (dirty, unknown) = self.known(frame, |k| k.frame.dirty())?;
        Ok((PageSet::of_bits(dirty), PageSet::of_bits(unknown)))
    }

    /// The server has already recovered what a crash left.  These frames belong to this
    /// process.
    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        self.dirty(frame)
    }

    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool> {
        if page >= SEGMENT / PAGE {
            return Err(Error::Pool("no such page".into()));
        }
        self.copy(frame, page * PAGE, to).map(|()| true)
    }

    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet> {
        let pages = self.known(frame, |k| k.frame.write_begin(&pages.bits()))?;
        Ok(PageSet::of_bits(pages))
    }

    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()> {
        self.known(frame, |k| k.frame.write_end(&pages.bits())).map(|_| ())
    }
}
