// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file: its calls, its room, and the program's mappings of it.

use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use forebay_map::lasting::{check, Lasting};
use forebay_map::{Error, MapFile, PAGE};
use libc::flock;

use crate::child::CONFIG;
use crate::ending;
use crate::extent;
use crate::guarded::{inside, lock, quietly, read, try_read, write, Locked};
use crate::kept;
use crate::lease;
use crate::planted::{self, Planted};
use crate::real::{self, fail};
use crate::say::{once, About};
use crate::signals::let_through;
use crate::turns::{lock_open, map_again, Turn};
use crate::views::Views;
use crate::which::is_at;

/// How long to retry the open of a file that was closed to get more room.
const REOPENS: Duration = Duration::from_secs(3);

/// An open file, with any number of descriptors and mappings.
#[derive(Debug)]
pub struct Mapped {
    pub id: (u64, u64),
    pub path: PathBuf,
    pub map: RwLock<Option<MapFile>>,
    /// The addresses of the map.  Changed only with `map` held for writing.
    pub place: Place,
    /// The program's mappings.
    pub views: Mutex<Views>,
    /// The number of descriptions, and one more while there are mappings.  At zero the file is
    /// closed and gets no new ones.  The first one is added and the last one removed in the
    /// file's turn.
    pub users: AtomicUsize,
    /// Copies to and from its memory that are under way: it stays at its addresses.
    pub copies: AtomicUsize,
    pub locks: Locks,
    /// Segments that stay in their place.
    pub pins: Mutex<Vec<u64>>,
    /// A close has failed: stores that were not synced are lost.
    pub close_failed: AtomicBool,
    pub tended: lease::Tended,
}

/// The locks of one file.  None: the file is exclusive.
#[derive(Debug)]
pub struct Locks(Option<Lasting<File>>);

impl Locks {
    pub const fn of_own_file() -> Locks {
        Locks(None)
    }

    /// The locks of the shared file behind a descriptor.
    pub fn of_shared_file(fd: c_int) -> std::io::Result<Locks> {
        let link = format!("/proc/thread-self/fd/{fd}");
        let file = File::options().read(true).write(true).open(link)?;
        let file = Lasting::from(file);
        // A child would keep the locks after the death of the process.
        kept::ends_with_process(file.as_raw_fd());
        Ok(Locks(Some(file)))
    }

    pub fn are_shared(&self) -> bool {
        self.0.is_some()
    }

    /// A descriptor of the file is closed, which releases all locks of the process.
    pub fn closed(&self) {
        // SAFETY: all zeroes is a value of it: the whole file.
        let mut all: flock = unsafe { std::mem::zeroed() };
        all.l_type = libc::F_UNLCK as i16;
        let _ = self.control(libc::F_OFD_SETLK, &mut all);
    }

    /// Makes a call of fcntl(2) by the library's descriptor.  It does nothing for an exclusive file.
    pub fn control(&self, what: c_int, l: &mut flock) -> c_int {
        let Some(file) = &self.0 else { return 0 };
        if check(file.as_fd()).is_err() {
            return fail(libc::EBADF);
        }
        l.l_pid = 0;
        // The call may wait for another process.
        // SAFETY: the descriptor is the library's, and `l` is valid for the call.
        let_through(|| unsafe {
            real::fcntl64(file.as_raw_fd(), what, std::ptr::from_mut(l).expose_provenance())
        })
    }
}

/// The errno that a program gets for an error.
pub fn errno_of(e: &Error) -> c_int {
    match e.cause() {
        Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Full(_) => libc::ENOSPC,
        Error::Busy(_) | Error::Locked { .. } => libc::EBUSY,
        Error::Refused { .. } | Error::Another { .. } => libc::EPERM,
        Error::Pool(_) | Error::Unknown(_) => libc::EIO,
    }
}

/// A range of addresses.
#[derive(Debug)]
pub struct Place([AtomicUsize; 2]);

impl Place {
    pub fn of(map: &MapFile) -> Place {
        let place = Place([const { AtomicUsize::new(0) }; 2]);
        place.set(map);
        place
    }

    fn set(&self, map: &MapFile) {
        let from = map.address().addr();
        self.0[0].store(from, Ordering::SeqCst);
        self.0[1].store(from + map.room() as usize, Ordering::SeqCst);
    }
}

impl Mapped {
    /// Whether a range overlaps the file's addresses.
    pub fn is_within(&self, from: usize, end: usize) -> bool {
        let [start, last] = &self.place.0;
        start.load(Ordering::SeqCst) < end && from < last.load(Ordering::SeqCst)
    }

    /// The part of a range after the file's addresses, if there is one: its begin and its length.
    pub fn rest(&self, from: usize, len: usize) -> Option<(usize, usize)> {
        let last = self.place.0[1].load(Ordering::SeqCst);
        let end = from.saturating_add(len);
        (end > last && !planted::is(Planted::RestIgnored)).then(|| (last, end - last))
    }

    /// Nobody uses it any more: it is closed, or is closed next.
    pub fn is_closed(&self) -> bool {
        self.users.load(Ordering::SeqCst) == 0
    }

    /// The library's map of the file.  None: it is closed.
    pub fn map(&self) -> Locked<RwLockReadGuard<'_, Option<MapFile>>> {
        read(&self.map)
    }

    /// Like `map`, without waiting for a close or an opening for more room.  None: one is under
    /// way.
    pub fn map_now(&self) -> Option<Locked<RwLockReadGuard<'_, Option<MapFile>>>> {
        try_read(&self.map)
    }

    /// Makes a call of the library.  Returns its result as an errno for the program.
    pub fn call<R>(
        &self,
        about: About,
        f: impl FnOnce(&MapFile) -> forebay_map::Result<R>,
    ) -> Result<R, c_int> {
        let held = self.map();
        let Some(map) = held.as_ref() else {
            drop(held);
            // The program may have closed the file, or its end may have.
            ending::stay_if_begun();
            return Err(libc::EBADF);
        };
        let done = inside(|| f(map));
        drop(held);
        // The end of the program may have closed the file during the call: then no result is
        // reported.
        ending::stay_if_begun();
        done.map_err(|e| {
            once(about, format_args!("{e}"));
            match (about, errno_of(&e)) {
                // The errors that a sync may report.
                (About::Sync, libc::ENOSPC) => libc::ENOSPC,
                (About::Sync, _) => libc::EIO,
                (_, errno) => errno,
            }
        })
    }

    /// Ensures that there is room for this many bytes.  For that it opens the file again, if it
    /// has no mappings.
    pub fn make_room(&self, bytes: u64) -> Result<(), c_int> {
        if self.map().as_ref().is_some_and(|map| map.room() >= bytes) {
            return Ok(());
        }
        let _turn = Turn::unless_ends(self.id);
        let session = lock_open().pool.as_ref().map(|opened| Arc::clone(&opened.session));
        let Some(session) = session else { return Err(libc::EBADF) };
        let mut map = write(&self.map);
        let Some(old) = map.as_ref() else { return Err(libc::EBADF) };
        if old.room() >= bytes {
            return Ok(());
        }
        let is_used = || self.copies.load(Ordering::SeqCst) > 0;
        if !lock(&self.views).is_empty() || is_used() {
            once(
                About::Room,
                format_args!(
                "{}: {bytes} bytes are needed, and it was mapped with room for {}: a file that is \
                 mapped cannot get more; start the program with a larger --room",
                self.path.display(), old.room()
            ),
            );
            return Err(libc::EFBIG);
        }
        if !self.is_by_its_name() && !planted::is(Planted::ReopenedByName) {
            once(
                About::Room,
                format_args!(
                    "{}: {bytes} bytes are needed, and it was mapped with room for {}: a file that \
                     was removed or replaced cannot get more; start the program with a larger --room",
                    self.path.display(), old.room()
                ),
            );
            return Err(libc::EFBIG);
        }
        let before = old.room();
        let most = inside(forebay_map::most_room);
        if bytes > most {
            once(
                About::Room,
                format_args!(
                    "{}: {bytes} bytes are needed, and {} at most can be mapped (vm.max_map_count): \
                     raise that",
                    self.path.display(), most
                ),
            );
            return Err(libc::EFBIG);
        }
        let still = match old.features().faults {
            true => inside(forebay_map::userfaultfd_as_before),
            false => Ok(()),
        };
        if let Err(e) = still {
            let why = match e.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => "no descriptor is free for it",
                _ => "the program has given up the right to that",
            };
            once(
                About::Room,
                format_args!(
                    "{}: {bytes} bytes are needed, and it was mapped with room for {before}: more needs \
                     userfaultfd, and {why} ({e}); start it with a larger --room",
                    self.path.display()
                ),
            );
            return Err(e.raw_os_error().unwrap_or(libc::EPERM));
        }
        let config = CONFIG.get().ok_or(libc::EIO)?;
        let refused = |e: Error| {
            once(About::Room, format_args!("{e}; the file was to get room for {bytes} bytes"));
            errno_of(&e)
        };
        quietly(|| {
            // A close that fails would take the file from the program: so what can fail is done
            // before, with the map still there.
            map.as_ref().map_or(Ok(()), MapFile::complete).map_err(refused)?;
            // It uses the open file description that it had.  While another process reads the file, or has
            // a private mapping of it, the kernel would grant no lease to a new description.
            let ending = map.as_ref().map(lease::ends);
            // After an error the file is closed all the same.
            let closed = map.take().map_or(Ok(()), MapFile::close_to_reopen).map_err(refused);
            if closed.is_err() {
                self.close_failed.store(true, Ordering::SeqCst);
            }
            let again = |room| map_again(&session, config, &self.path, room, ending.as_ref());
            let larger = closed.and_then(|()| again(bytes).map_err(refused));
            let (now, done) = match larger {
                Ok(larger) => (Some(larger), Ok(())),
                // The file is as before: the call fails, but not the file.
                Err(errno) => (self.again(|| again(before), closed.is_ok()), Err(errno)),
            };
            if now.is_some() {
                ending.into_iter().for_each(lease::Ending::stays);
            }
            if let Some(map) = &now {
                self.place.set(map);
            }
            *map = now;
            done
        })?;
        if map.as_ref().is_some_and(|map| map.room() < bytes) {
            once(
                About::Room,
                format_args!(
                    "{}: {bytes} bytes are needed, and other processes share it with less room: \
                     start the first of them with a larger --room",
                    self.path.display()
                ),
            );
            return Err(libc::EFBIG);
        }
        let (from, room) = map.as_ref().map_or((0, 0), |m| (m.address().addr(), m.room() as usize));
        drop(map);
        extent::add(from, room);
        Ok(())
    }

    /// Pins the segment of a byte in its memory until the file is closed.
    pub fn pin(&self, at: u64) {
        let mut pins = lock(&self.pins);
        let segment = at / forebay_map::SEGMENT as u64;
        if !pins.contains(&segment) && self.call(About::Lock, |map| map.lock(at, 1)).is_ok() {
            pins.push(segment);
        }
    }

    fn is_by_its_name(&self) -> bool {
        inside(|| is_at(&self.path, self.id))
    }

    /// Opens the file as it was before the close.  An obstacle may be temporary: a child that
    /// still has the descriptor, or the limit of a server.
    fn again(
        &self,
        open: impl Fn() -> forebay_map::Result<MapFile>,
        is_closed: bool,
    ) -> Option<MapFile> {
        let begun = Instant::now();
        while self.is_by_its_name() || planted::is(Planted::ReopenedByName) {
            match open() {
                Ok(map) => return Some(map),
                Err(_) if begun.elapsed() < REOPENS => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => {
                    let where_it_is = match is_closed {
                        true => "all of it is in the file",
                        false => "what was synced is kept in the pool (forebay map recover)",
                    };
                    once(
                        About::Close,
                        format_args!(
                            "{e}; it could not get more room, and cannot be opened again: \
                             {where_it_is}, and each call with it fails"
                        ),
                    );
                    break;
                }
            }
        }
        None
    }

    /// The offset of an address in the file.
    pub fn offset(&self, address: usize) -> Option<u64> {
        let map = self.map();
        let map = map.as_ref()?;
        let at = address.checked_sub(map.address().addr())? as u64;
        (at < map.room()).then_some(at)
    }

    /// Whether the program has mapped each page of a range, as far as the file's addresses reach.
    pub fn is_viewed(&self, from: usize, len: usize) -> bool {
        let last = self.place.0[1].load(Ordering::SeqCst);
        let first = from - from % PAGE;
        let end = from.saturating_add(len).min(last).next_multiple_of(PAGE);
        first >= end || lock(&self.views).have(&(first..end))
    }

    /// Adds a mapping of the program and returns its address.  Does not wait for a close of
    /// another file.
    pub fn view(&self, offset: u64, len: usize) -> Result<usize, c_int> {
        let end = offset.checked_add(len as u64).ok_or(libc::EOVERFLOW)?;
        loop {
            self.make_room(end)?;
            let map = self.map();
            let Some(map) = map.as_ref() else { return Err(libc::EBADF) };
            if map.room() >= end {
                let from = map.address().addr() + offset as usize;
                self.add_view(&mut lock(&self.views), from..from + len)?;
                return Ok(from);
            }
        }
    }

    /// Adds a mapping.  The caller holds `map`, so that the file stays where it is until it has
    /// the view.
    fn add_view(&self, views: &mut Views, range: Range<usize>) -> Result<(), c_int> {
        if views.is_empty() {
            let one_more = |users: usize| (users > 0).then(|| users + 1);
            let added = self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
            // The last descriptor of the file was closed meanwhile.
            added.map_err(|_| libc::EBADF)?;
        }
        views.add(range);
        Ok(())
    }

    /// Extends a part of a mapping.  It stays in place, because pages that are adjacent in the
    /// file are adjacent in memory.  An old length of zero adds a mapping.
    pub fn resize_view(self: &Arc<Self>, from: usize, old: usize, new: usize) -> Result<(), c_int> {
        let map = self.map();
        let Some(map) = map.as_ref() else { return Err(libc::EIO) };
        if (from - map.address().addr()) as u64 + new as u64 > map.room() {
            once(
                About::Room,
                format_args!(
                    "{}: mremap to {new} bytes, and it was mapped with room for {}: start the \
                     program with a larger --room",
                    self.path.display(),
                    map.room()
                ),
            );
            return Err(libc::ENOMEM);
        }
        let mut views = lock(&self.views);
        if !views.have(&(from..from + old.max(PAGE))) {
            return Err(libc::EFAULT);
        }
        self.add_view(&mut views, from + old..from + new)
    }

    /// Removes one of the program's mappings of a range.  Returns whether it was the last one: the
    /// file has one user less then.
    pub fn remove_views(&self, from: usize, len: usize) -> bool {
        let mut views = lock(&self.views);
        let had = !views.is_empty();
        views.remove(from..from.saturating_add(len));
        had && views.is_empty()
    }
}
