// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wraps a file, and forgets no failed sync of it.  The kernel reports a failure to one caller, and
//! no longer knows which pages the disk lacks.  A success after it says nothing of what was written
//! before, whoever asked.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use forebay::{FoundMark, MapClaim};

use crate::backing::{Backing, Time};
use crate::error::cannot_mark;
use crate::locked::lock;
use crate::planted::{self, Planted};

#[derive(Debug)]
pub(crate) struct Counted {
    file: Box<dyn Backing>,
    /// One sync at a time: between its end and the count another one could pass.
    one: Mutex<()>,
    failures: AtomicU64,
}

impl Counted {
    pub fn new(file: Box<dyn Backing>) -> Counted {
        Counted { file, one: Mutex::new(()), failures: AtomicU64::new(0) }
    }

    /// The number of failed syncs so far.  Read it before writing to the file.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    fn count(&self, done: io::Result<()>) -> io::Result<()> {
        if done.is_err() {
            self.failures.fetch_add(1, Ordering::SeqCst);
        }
        done
    }

    /// Syncs the file.  Fails if a sync has failed since the count was `since`.
    pub fn sync_since(&self, since: u64) -> io::Result<()> {
        let _one = lock(&self.one);
        self.count(self.file.sync())?;
        match self.failures() == since || planted::is(Planted::FailureForgotten) {
            true => Ok(()),
            false => Err(io::Error::other("another call has seen it fail")),
        }
    }
}

impl Backing for Counted {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn identity(&self) -> &[u8] {
        self.file.identity()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.file()
    }

    fn is_waited_for(&self) -> bool {
        self.file.is_waited_for()
    }

    fn hand_over(&self) {
        self.file.hand_over();
    }

    fn check_ours(&self) -> io::Result<()> {
        self.file.check_ours()
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(at, to)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_at(at, from)
    }

    fn sync(&self) -> io::Result<()> {
        let _one = lock(&self.one);
        self.count(self.file.sync())
    }

    fn sync_all(&self) -> io::Result<()> {
        let _one = lock(&self.one);
        self.count(self.file.sync_all())
    }

    fn settle_attributes(&self, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        self.file.settle_attributes(sync)
    }

    fn attributes_changed(&self) {
        self.file.attributes_changed();
    }

    fn changed(&self) -> io::Result<Time> {
        self.file.changed()
    }

    fn marked(&self) -> io::Result<FoundMark> {
        self.file.marked()
    }

    fn mark_directory(&self) -> Option<&Path> {
        self.file.mark_directory()
    }

    /// Where there was no space or no right for it, nothing was done.  Another error counts as a
    /// failed sync: the file system may have failed before.
    fn set_mark(&self, by: &MapClaim) -> io::Result<()> {
        match self.file.set_mark(by) {
            Err(e) if cannot_mark(&e) => Err(e),
            done => self.count(done),
        }
    }

    fn take_mark(&self) -> io::Result<()> {
        match self.file.take_mark() {
            Err(e) if cannot_mark(&e) => Err(e),
            done => self.count(done),
        }
    }

    fn sync_mark(&self) -> io::Result<()> {
        let _one = lock(&self.one);
        match self.file.sync_mark() {
            Err(e) if cannot_mark(&e) && planted::is(Planted::MarkSyncJudged) => Err(e),
            done => self.count(done),
        }
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_size(size)
    }

    fn cut_behind(&self, size: u64) -> io::Result<()> {
        self.file.cut_behind(size)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.file.allocate(at, len)
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        self.file.has_hole(at, len)
    }

    fn free(&self) {
        self.file.free();
    }
}
