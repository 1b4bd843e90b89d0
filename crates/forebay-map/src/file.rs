// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is mapped, whoever else has it: the calls, and what they promise.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::features::Features;
use crate::tracker::Counts;

/// What is behind a [`MapFile`], which has the contract of each call: a file that this process
/// has for itself, or one that it shares.
pub(crate) trait Mapped: Send + Sync + std::fmt::Debug {
    fn path(&self) -> &Path;
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn address(&self) -> *mut u8;
    fn room(&self) -> u64;
    fn size(&self) -> u64;
    fn features(&self) -> &Features;
    fn counts(&self) -> Counts;
    fn load(&self, at: u64, to: &mut [u8]);
    fn store(&self, at: u64, from: &[u8]);
    fn sync(&self, at: u64, len: u64) -> Result<()>;
    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize>;
    fn write(&self, at: u64, from: &[u8]) -> Result<()>;
    fn append(&self, parts: &[&[u8]]) -> Result<(u64, u64)>;
    fn reserve(&self, len: u64) -> Result<u64>;
    fn set_size(&self, size: u64) -> Result<()>;
    fn allocate(&self, at: u64, len: u64) -> Result<()>;
    fn lock(&self, at: u64, len: u64) -> Result<()>;
    fn unlock(&self, at: u64, len: u64);
    fn drop_cache(&self, at: u64, len: u64) -> Result<()>;
    fn change(&self, f: &mut dyn FnMut()) -> Result<()>;
    fn expose(&self, f: &mut dyn FnMut() -> bool) -> Result<()> {
        f();
        Ok(())
    }
    fn is_own(&self) -> bool {
        true
    }
    fn give_up(&self) {}
    fn go_on(&self) {}
    fn write_back(&self) -> Result<usize>;
    fn is_dirty(&self) -> Result<bool>;
    /// The first call does it; later ones do nothing.
    fn close(&self) -> Result<()>;
    #[cfg(test)]
    fn own_bytes(&self) -> &'static mut [u8];
    #[cfg(test)]
    fn is_here(&self, segment: usize) -> bool;
}

/// A file whose pages are in the pool's memory as far as they are used, and mapped from
/// there.  Clones are of the same file.
///
/// Loads and stores go to [`address`](MapFile::address); [`sync`](MapFile::sync) makes
/// durable what was stored, in the pool, and it reaches the file later.  What is read and
/// written by [`read`](MapFile::read) and [`write`](MapFile::write) is the same content.
/// Programs that do not map it here see in the file what was written back.
#[derive(Clone, Debug)]
pub struct MapFile(Arc<Handle>);

/// What the clones have together: the thread that writes back has the rest for moments, too.
#[derive(Debug)]
struct Handle(Arc<dyn Mapped>);

impl Drop for Handle {
    /// As `MapFile::close` does, as far as it can be done.
    fn drop(&mut self) {
        let _ = self.0.close();
    }
}

impl MapFile {
    pub(crate) fn of(mapped: Arc<dyn Mapped>) -> MapFile {
        MapFile(Arc::new(Handle(mapped)))
    }

    fn it(&self) -> &dyn Mapped {
        &*self.0 .0
    }

    /// The file itself, open in this process, if the process has it for itself.  What is written
    /// to it goes past the pool.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.it().file()
    }

    /// Where it is mapped, as far as it has [room](MapFile::room); the addresses are good
    /// until the last clone is dropped or closed.  What is behind the end of the file may be
    /// loaded and stored to, is not synced, and is zero when the file grows.
    pub fn address(&self) -> *mut u8 {
        self.it().address()
    }

    /// Bytes that are mapped.
    pub fn room(&self) -> u64 {
        self.it().room()
    }

    /// Bytes of the file.  What was written there can be read when it is seen in the size.
    pub fn size(&self) -> u64 {
        self.it().size()
    }

    #[cfg(test)]
    pub(crate) fn own_bytes(&self) -> &'static mut [u8] {
        self.it().own_bytes()
    }

    #[cfg(test)]
    pub(crate) fn is_here(&self, segment: usize) -> bool {
        self.it().is_here(segment)
    }

    /// What of the kernel's abilities is used.
    pub fn features(&self) -> &Features {
        self.it().features()
    }

    /// States of its segments.
    pub fn counts(&self) -> Counts {
        self.it().counts()
    }

    /// Loads by the mapping, as a program does at its [`address`](MapFile::address).
    pub fn load(&self, at: u64, to: &mut [u8]) {
        self.it().load(at, to);
    }

    /// Stores by the mapping.
    pub fn store(&self, at: u64, from: &[u8]) {
        self.it().store(at, from);
    }

    /// What was stored to a range before is durable when it returns, also what was written;
    /// and the file's size.  Of a file that is shared: by whomever it was stored.
    pub fn sync(&self, at: u64, len: u64) -> Result<()> {
        self.it().sync(at, len)
    }

    /// Reads as read(2) does: what was stored and written, synced or not.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        self.it().read(at, to)
    }

    /// Writes as write(2) does; the file grows, if it has to, and not if that fails.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        self.it().write(at, from)
    }

    /// Writes at the end, as write(2) with O_APPEND does: where that was, and how much of it was
    /// written, which is less than all only where an error came after some.  Nobody else is given
    /// the same place, in this process or another one.  In this process nobody reads the size
    /// before the bytes.
    pub fn append(&self, parts: &[&[u8]]) -> Result<(u64, u64)> {
        self.it().append(parts)
    }

    /// The file gets longer by so many zeroes; where they begin.  Nobody else is given the same,
    /// in this process or another one: for who appends.
    pub fn reserve(&self, len: u64) -> Result<u64> {
        self.it().reserve(len)
    }

    /// Truncates or extends; what was cut off does not come back.  The size is durable after
    /// a sync, a smaller one at once.
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.it().set_size(size)
    }

    /// Asks the file system for blocks for a range, as fallocate(2) does; the file grows, if it
    /// has to.  A file system that has no such call does nothing.
    pub fn allocate(&self, at: u64, len: u64) -> Result<()> {
        self.it().allocate(at, len)
    }

    /// Brings a range in and keeps it there until it is unlocked as often.  Refused beyond
    /// the limit of the options, and beyond half of the pool's frames.
    pub fn lock(&self, at: u64, len: u64) -> Result<()> {
        self.it().lock(at, len)
    }

    /// The opposite.
    pub fn unlock(&self, at: u64, len: u64) {
        self.it().unlock(at, len);
    }

    /// Gives back segments that are wholly in the range and not locked.  What was synced
    /// reaches the file before; what was not is forgotten, where its page has nothing that
    /// was synced.  Of a file that is shared nothing is forgotten, as it may be another's.
    pub fn drop_cache(&self, at: u64, len: u64) -> Result<()> {
        self.it().drop_cache(at, len)
    }

    /// The file is changed by the caller, its times for instance: a recovery takes that for a
    /// change of ours.  Refused where it is shared.
    pub fn change<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let (mut f, mut done) = (Some(f), None);
        self.it().change(&mut || done = f.take().map(|f| f()))?;
        Ok(done.expect("it was called"))
    }

    /// Runs `f`, during which others may open the file.  Before, all is synced and in the file;
    /// meanwhile this process does nothing with the file.  `f` says whether others have left the
    /// file alone; if they have not, the file is [given up](MapFile::give_up).  After an error `f`
    /// was not called.  Not for a file that is shared.
    pub fn expose(&self, mut f: impl FnMut() -> bool) -> Result<()> {
        self.it().expose(&mut f)
    }

    /// Whether only this process has changed the file since it was opened.  Where that cannot be
    /// told, it is not so.
    pub fn is_own(&self) -> bool {
        self.it().is_own()
    }

    /// Nothing is written to the file any more, since others have changed it.  What was or is
    /// synced stays in the pool, for a recovery, and `close` fails.
    pub fn give_up(&self) {
        self.it().give_up();
    }

    /// The opposite, where it turns out that nobody else has changed it.
    pub fn go_on(&self) {
        self.it().go_on();
    }

    /// What was synced is in the file when it returns, durable there.
    pub fn write_back(&self) -> Result<usize> {
        self.it().write_back()
    }

    /// Whether the file lacks something that was synced.
    pub fn is_dirty(&self) -> Result<bool> {
        self.it().is_dirty()
    }

    /// As [`close`](MapFile::close), where the process ends and others may still have it: its
    /// addresses and threads stay until then.
    pub fn end(&self) -> Result<()> {
        self.it().close()
    }

    /// Syncs and writes back all, and gives all back to the pool; of a file that others have
    /// still, it syncs, and the rest is theirs.  After an error what was synced is kept in the
    /// pool, for a recovery.  Refused while there is another clone.
    pub fn close(self) -> Result<()> {
        let handle = Arc::try_unwrap(self.0).map_err(|other| Error::Refused {
            path: other.0.path().to_owned(),
            why: "it is in use".into(),
        })?;
        handle.0.close()
    }
}
