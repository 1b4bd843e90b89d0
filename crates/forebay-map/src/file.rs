// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mapped file: the calls and their contracts, for an exclusive file and for a shared one.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::features::Features;
use crate::tracker::Counts;

/// The implementation of a [`MapFile`], where the contract of each call stands: an exclusive
/// file of this process, or a shared one.
pub(crate) trait Mapped: Send + Sync + std::fmt::Debug {
    fn path(&self) -> &Path;
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn mark_directory(&self) -> Option<&Path> {
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
    fn sync_attributes(&self) -> Result<()> {
        Ok(())
    }
    fn attributes_changed(&self) {}
    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize>;
    fn write(&self, at: u64, from: &[u8]) -> Result<()>;
    fn append(&self, parts: &[&[u8]]) -> Result<(u64, u64)>;
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
    fn leave(&self) {}
    fn go_on(&self) {}
    fn leased(&self, _seen: Option<Instant>) {}
    fn lease_seen(&self) -> Option<Instant> {
        None
    }
    fn outlast(&self) -> Result<bool> {
        Ok(false)
    }
    fn write_back(&self) -> Result<usize>;
    fn is_dirty(&self) -> Result<bool>;
    /// The first call closes; later calls do nothing.
    fn close(&self) -> Result<()>;
    fn complete(&self, then: &mut dyn FnMut()) -> Result<()> {
        then();
        Ok(())
    }
    fn close_to_reopen(&self) -> Result<()> {
        self.close()
    }
    #[cfg(test)]
    fn own_bytes(&self) -> &'static mut [u8];
    #[cfg(test)]
    fn is_here(&self, segment: usize) -> bool;
}

/// A file whose pages, as far as they are used, are in the pool's memory and mapped from there.
/// Clones refer to the same file.
///
/// Loads and stores go to [`address`](MapFile::address).  [`sync`](MapFile::sync) makes stores
/// durable in the pool; they reach the file later.  [`read`](MapFile::read) and
/// [`write`](MapFile::write) act on the same content.  Programs that do not map the file
/// through the pool see only what was written back.
#[derive(Clone, Debug)]
pub struct MapFile(Arc<Handle>);

/// The clones share this.  The write-back thread may hold the rest for a moment too.
#[derive(Debug)]
struct Handle(Arc<dyn Mapped>);

impl Drop for Handle {
    /// Closes the file as `MapFile::close` does, and ignores errors.
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

    /// The file itself, if this process has it exclusively.  Writes to it bypass the pool.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.it().file()
    }

    /// The directory that has to be changed to remove the file's mark.  None: the file bears it.
    pub fn mark_directory(&self) -> Option<&Path> {
        self.it().mark_directory()
    }

    /// The address of the mapping, which spans [room](MapFile::room) bytes.  It is valid until
    /// the last clone is dropped or closed.  Memory after the end of the file may be loaded
    /// from and stored to.  It is not synced, and it is zero when the file grows.
    pub fn address(&self) -> *mut u8 {
        self.it().address()
    }

    /// The number of mapped bytes.
    pub fn room(&self) -> u64 {
        self.it().room()
    }

    /// The size of the file.  Bytes that a write added can be read as soon as the size includes
    /// them.
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

    /// The kernel features in use.
    pub fn features(&self) -> &Features {
        self.it().features()
    }

    /// The number of segments in each state.
    pub fn counts(&self) -> Counts {
        self.it().counts()
    }

    /// Loads through the mapping, as a program does at [`address`](MapFile::address).
    pub fn load(&self, at: u64, to: &mut [u8]) {
        self.it().load(at, to);
    }

    /// Stores through the mapping.
    pub fn store(&self, at: u64, from: &[u8]) {
        self.it().store(at, from);
    }

    /// Makes durable what was stored or written to a range before the call, and the file's
    /// size.  For a shared file this includes the stores of other processes.
    pub fn sync(&self, at: u64, len: u64) -> Result<()> {
        self.it().sync(at, len)
    }

    /// Syncs all, as [`sync`](MapFile::sync) does, and what others have changed of the file: its
    /// attributes and its names, as fsync(2) does.
    pub fn sync_file(&self) -> Result<()> {
        self.sync(0, u64::MAX)?;
        self.sync_attributes()
    }

    /// Makes changes of the file's mode, owner, names, times and attributes durable.  A sync of what
    /// was written comes before.
    pub fn sync_attributes(&self) -> Result<()> {
        self.it().sync_attributes()
    }

    /// Tells that the caller has changed an extended attribute.  Other changes are seen, and this
    /// one mostly.
    pub fn attributes_changed(&self) {
        self.it().attributes_changed();
    }

    /// Reads as read(2) does.  The result includes stores and writes that are not synced yet.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        self.it().read(at, to)
    }

    /// Writes as write(2) does.  The file grows if necessary, unless the call fails.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        self.it().write(at, from)
    }

    /// Appends, as write(2) with O_APPEND does.  Returns the offset and the number of bytes
    /// written, which is less than all only after an error.  No other append, in this process
    /// or another one, gets the same place.  No reader in this process sees the new size before
    /// the bytes.
    pub fn append(&self, parts: &[&[u8]]) -> Result<(u64, u64)> {
        self.it().append(parts)
    }

    /// Truncates or extends.  Bytes that were cut off do not return.  A smaller size is durable
    /// at once, a larger one after a sync.
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.it().set_size(size)
    }

    /// Asks the file system to allocate blocks for a range, as fallocate(2) does.  The file
    /// grows if necessary.  Does nothing on a file system without such a call.
    pub fn allocate(&self, at: u64, len: u64) -> Result<()> {
        self.it().allocate(at, len)
    }

    /// Brings a range in and keeps it in the pool until it has been unlocked as often as it was
    /// locked.  Refused above the limit of the options and above half of the pool's frames.
    pub fn lock(&self, at: u64, len: u64) -> Result<()> {
        self.it().lock(at, len)
    }

    /// Undoes a [`lock`](MapFile::lock).
    pub fn unlock(&self, at: u64, len: u64) {
        self.it().unlock(at, len);
    }

    /// Releases segments that lie wholly in the range and are not locked.  Synced data is
    /// written to the file before.  Stores that were not synced are lost if nothing else of
    /// their page was synced.  Shared files lose nothing, because the stores may be another
    /// process's.
    pub fn drop_cache(&self, at: u64, len: u64) -> Result<()> {
        self.it().drop_cache(at, len)
    }

    /// Lets the caller change the file, for example its times, so that a recovery takes the
    /// change for one of ours.  Refused for a shared file.
    pub fn change<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let (mut f, mut done) = (Some(f), None);
        self.it().change(&mut || done = f.take().map(|f| f()))?;
        Ok(done.expect("it was called"))
    }

    /// Runs `f`, during which other programs may open the file.  Before, everything is synced
    /// and written back.  Meanwhile this process does not use the file.  `f` returns whether
    /// the others left the file unchanged; if not, the file is [left](MapFile::leave) to them.
    /// On an error `f` was not called.  Refused for a shared file.
    pub fn expose(&self, mut f: impl FnMut() -> bool) -> Result<()> {
        self.it().expose(&mut f)
    }

    /// Whether only this process has changed the file since the open.  False if that is
    /// unknown.
    pub fn is_own(&self) -> bool {
        self.it().is_own()
    }

    /// Stops all writes to the file, because others have it open or have changed it.  Synced data
    /// stays in the pool, and `close` fails.  A recovery writes that data to the file only if it
    /// is told to (`accept`), even where the others have not changed the file yet.
    pub fn leave(&self) {
        self.it().leave();
    }

    /// Undoes `leave`, if it turns out that no one else has the file or has changed it.
    pub fn go_on(&self) {
        self.it().go_on();
    }

    /// Sets when this process's lease of the file (fcntl(2), F_SETLEASE) was last seen with no one
    /// waiting for it.  From then on the kernel keeps others from the file for a time.  A recovery
    /// takes no later change for this process's.  None: there is no lease.
    pub fn leased(&self, seen: Option<Instant>) {
        self.it().leased(seen);
    }

    /// When the lease was last seen with no one waiting for it.  If a file is opened again by the
    /// open file description that has the lease, its patience goes on from there.
    pub fn lease_seen(&self) -> Option<Instant> {
        self.it().lease_seen()
    }

    /// Has the locks and the lease of this process outlast its death, until the pool's server has
    /// written the file back: who opens the file meanwhile waits.  False: no server does that, or
    /// it keeps no more descriptors.
    pub fn outlast(&self) -> Result<bool> {
        self.it().outlast()
    }

    /// Writes synced pages to the file and makes them durable there.  Returns their number.
    pub fn write_back(&self) -> Result<usize> {
        self.it().write_back()
    }

    /// Whether the file lacks synced data.
    pub fn is_dirty(&self) -> Result<bool> {
        self.it().is_dirty()
    }

    /// Like [`close`](MapFile::close), for a process that ends while other threads may still
    /// use the file: addresses and threads stay until the process has ended.
    pub fn end(&self) -> Result<()> {
        self.it().close()
    }

    /// Syncs, writes back and returns all frames to the pool.  For a file that other processes
    /// still share, it only syncs.  After an error, synced data stays in the pool for a
    /// recovery.  Refused while there is another clone.
    pub fn close(self) -> Result<()> {
        self.last()?.0.close()
    }

    /// Does what a close does and what can fail, and keeps the file open: it gets everything, and
    /// bears no mark until the next sync.  Does nothing for a shared file.
    pub fn complete(&self) -> Result<()> {
        self.complete_then(|| ())
    }

    /// Like [`complete`](MapFile::complete), and then runs `f`, during which no sync begins.  `f` may
    /// take away the right to mark the file.  On an error it was not called.
    pub fn complete_then<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let (mut f, mut done) = (Some(f), None);
        self.it().complete(&mut || done = f.take().map(|f| f()))?;
        Ok(done.expect("it was called"))
    }

    /// Closes a file that is opened again at once by its open file description
    /// ([`Session::map_again`](crate::Session::map_again)): the description keeps its locks.
    pub fn close_to_reopen(self) -> Result<()> {
        self.last()?.0.close_to_reopen()
    }

    fn last(self) -> Result<Handle> {
        Arc::try_unwrap(self.0).map_err(|other| Error::Refused {
            path: other.0.path().to_owned(),
            why: "it is in use".into(),
        })
    }
}
