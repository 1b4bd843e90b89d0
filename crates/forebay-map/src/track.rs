// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out which pages of a file were stored to.  For an exclusive file it asks this process's
//! tracker, for a shared file the processes that share it.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::pages::PageSet;
use crate::tracker::{NotEvicted, Source, Tracker};

/// The contract of each call is that of [`Tracker`].
pub(crate) trait Track: Send + Sync + Debug {
    /// The size in bytes.
    fn size(&self) -> usize;
    fn check(&self) -> io::Result<()>;
    fn take(
        &self,
        pages: Range<usize>,
        make_durable: impl FnMut(usize, &PageSet) -> Result<()>,
    ) -> Result<()>;
    fn try_take(
        &self,
        segment: usize,
        make_durable: impl FnMut(usize, &PageSet) -> Result<()>,
    ) -> Result<bool>;
    fn evict(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(&PageSet) -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>>;
    fn discard(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>>;
    /// Calls `f` with whether the segment's content is in the memory.
    fn with_present<R>(&self, segment: usize, f: impl FnOnce(bool) -> R) -> R;
    fn tick(&self, quiet: u32, keep: usize, most: usize) -> io::Result<usize>;
    /// Ends stores by this process.
    fn withdraw(&self) -> io::Result<()> {
        Ok(())
    }
    /// Whether pages become dirty only by calls of the file, so that its mark can be removed
    /// once the file lacks nothing.
    fn is_asked(&self) -> bool;
}

impl<S: Source + Debug + 'static> Track for Tracker<S> {
    fn size(&self) -> usize {
        Tracker::size(self)
    }

    fn check(&self) -> io::Result<()> {
        Tracker::check(self)
    }

    fn take(
        &self,
        pages: Range<usize>,
        mut make_durable: impl FnMut(usize, &PageSet) -> Result<()>,
    ) -> Result<()> {
        Tracker::take(self, pages, |segment, _, pages| make_durable(segment, pages))
    }

    fn try_take(
        &self,
        segment: usize,
        mut make_durable: impl FnMut(usize, &PageSet) -> Result<()>,
    ) -> Result<bool> {
        Tracker::try_take(self, segment, |segment, _, pages| make_durable(segment, pages))
    }

    fn evict(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce(&PageSet) -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>> {
        Tracker::evict(self, segment, may, |_, late| f(late))
    }

    fn discard(
        &self,
        segment: usize,
        may: impl FnOnce() -> bool,
        f: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), NotEvicted<Error>> {
        Tracker::discard(self, segment, may, |_| f())
    }

    fn with_present<R>(&self, segment: usize, f: impl FnOnce(bool) -> R) -> R {
        Tracker::with_present(self, segment, |there| f(there.is_some()))
    }

    fn tick(&self, quiet: u32, keep: usize, most: usize) -> io::Result<usize> {
        Tracker::tick(self, quiet, keep, most)
    }

    fn withdraw(&self) -> io::Result<()> {
        Tracker::withdraw(self)
    }

    fn is_asked(&self) -> bool {
        true
    }
}
