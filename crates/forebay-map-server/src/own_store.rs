// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's own store for files that processes share.  The server is a client of the map
//! like other processes, but its requests are function calls.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay::{FileFate, MapClaim};
use forebay_map::backing::Backing;
use forebay_map::store::{FileRecord, FrameInfo, Place, Stamp, Store, Synced};
use forebay_map::wire::{Answer, Request};
use forebay_map::{Error, PageSet, Result, PAGE};
use rustix::process::{getpid, pidfd_open, PidfdFlags};

use crate::frame_registry::{Client, FrameRegistry, OWN};

#[derive(Debug)]
pub(crate) struct OwnStore {
    share: Arc<FrameRegistry>,
    of: Client,
}

fn unexpected(answer: &Answer) -> Error {
    Error::Pool(format!("the share gave an unexpected answer: {answer:?}"))
}

impl OwnStore {
    pub fn new(share: Arc<FrameRegistry>) -> io::Result<OwnStore> {
        let process = Arc::new(pidfd_open(getpid(), PidfdFlags::empty())?);
        Ok(OwnStore { share, of: Client { number: OWN, pid: std::process::id(), process } })
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        self.share.carry_out(&self.of, request)
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn yes(&self, request: &Request) -> Result<bool> {
        match self.ask(request)? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }
}

impl Store for OwnStore {
    fn memory(&self) -> BorrowedFd<'_> {
        self.share.store.memory()
    }

    fn claim(&self) -> &MapClaim {
        self.share.store.claim()
    }

    /// The server looks.
    fn lost(&self) -> Option<FileFate> {
        self.share.store.lost()
    }

    fn capacity(&self) -> usize {
        self.share.store.capacity()
    }

    fn is_brought_home(&self, identity: &[u8]) -> Result<bool> {
        self.yes(&Request::IsBroughtHome { identity: identity.to_vec() })
    }

    fn wanted(&self) -> usize {
        match self.ask(&Request::Wanted) {
            Ok(Answer::Number(n)) => n as usize,
            _ => 0,
        }
    }

    fn pin(&self, segments: usize) -> Result<bool> {
        self.yes(&Request::Pin { segments: segments as u32 })
    }

    fn unpin(&self, segments: usize) {
        let _ = self.ask(&Request::Unpin { segments: segments as u32 });
    }

    fn add_file(&self, f: &FileRecord) -> Result<u32> {
        match self.ask(&Request::AddFile { file: f.clone() })? {
            Answer::Number(file) => Ok(file),
            Answer::Wait => Err(Error::Locked { path: (&f.path).into(), by: None }),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the server's own files.  Those of others do not matter here: `add_file` checks
    /// all.
    fn files(&self) -> Result<Vec<(u32, FileRecord)>> {
        let (mut files, mut from) = (Vec::new(), 0);
        while let Answer::File(Some((file, record))) =
            self.ask(&Request::FileFrom { file: from })?
        {
            files.push((file, record));
            from = file + 1;
        }
        Ok(files)
    }

    fn set_size(&self, file: u32, size: u64) -> Result<()> {
        self.done(&Request::SetSize { file, size })
    }

    fn set_ahead(&self, file: u32, ahead: u64) -> Result<bool> {
        self.yes(&Request::SetAhead { file, ahead })
    }

    fn promise(&self, file: u32, size: u64) -> Result<()> {
        self.done(&Request::Promise { file, size })?;
        self.share.store.forget_places();
        Ok(())
    }

    fn cut(&self, file: u32, size: u64) -> Result<()> {
        self.done(&Request::Cut { file, size })
    }

    fn cut_end(&self, file: u32) -> Result<()> {
        self.done(&Request::CutEnd { file })
    }

    fn set_stamp(&self, file: u32, stamp: Stamp) -> Result<()> {
        self.done(&Request::SetStamp { file, stamp })
    }

    fn remove_file(&self, file: u32) -> Result<()> {
        self.done(&Request::RemoveFile { file })
    }

    fn take(&self, file: u32, segment: u64) -> Result<Option<u32>> {
        match self.ask(&Request::Take { file, segment })? {
            Answer::Taken(taken) => Ok(taken.map(|(frame, _)| frame)),
            other => Err(unexpected(&other)),
        }
    }

    fn show(&self, frame: u32) -> Result<()> {
        match self.ask(&Request::Show { frame })? {
            Answer::Place(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn release(&self, frame: u32, discard: bool) -> Result<()> {
        self.done(&Request::Release { frame, discard })
    }

    fn frames(&self) -> Result<Vec<FrameInfo>> {
        let own = |f: &FrameInfo| self.ask(&Request::Place { frame: f.frame }).is_ok();
        Ok(self.share.store.frames()?.into_iter().filter(own).collect())
    }

    fn place_of(&self, frame: u32) -> Result<Option<Place>> {
        self.share.store.place_of(frame)
    }

    fn offset(&self, frame: u32) -> Result<u64> {
        self.share.store.offset(frame)
    }

    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()> {
        self.share.store.fill(frame, at, from)
    }

    fn fill_from(
        &self,
        frame: u32,
        from: &dyn Backing,
        at: u64,
        len: usize,
    ) -> Result<io::Result<()>> {
        self.share.store.fill_from(frame, from, at, len)
    }

    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.share.store.copy(frame, at, to)
    }

    fn write_back_caches(&self, frame: u32) -> Result<()> {
        self.share.store.write_back_caches(frame)
    }

    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced> {
        self.share.store.sync(frame, pages)
    }

    fn dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        self.share.store.dirty(frame)
    }

    fn left_dirty(&self, frame: u32) -> Result<(PageSet, PageSet)> {
        self.share.store.left_dirty(frame)
    }

    fn read_page(&self, frame: u32, page: usize, to: &mut [u8; PAGE]) -> Result<bool> {
        self.share.store.read_page(frame, page, to)
    }

    fn write_begin(&self, frame: u32, pages: &PageSet) -> Result<PageSet> {
        self.share.store.write_begin(frame, pages)
    }

    fn write_end(&self, frame: u32, pages: &PageSet) -> Result<()> {
        self.share.store.write_end(frame, pages)
    }
}
