// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closes files at the end of their last use and at the end of the program, and syncs them
//! together.
//!
//! A file whose close is under way is in no table any more, but its stores may not be in the
//! file yet.  So it stays in `Places::closing` until the close is over.  Code that promises
//! that all files are complete or durable looks there too.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use forebay_map::{Error, MapFile};

use crate::child::{config, is_child, is_elsewhere};
use crate::ending;
use crate::guarded::{inside, is_inside, read, write};
use crate::kept;
use crate::lease;
use crate::mapped::Mapped;
use crate::masks;
use crate::places::{any_files, may_be_within, FILES, PLACES};
use crate::planted::{self, Planted};
use crate::real;
use crate::say::{once, About};
use crate::signals::{self, hold};
use crate::turns::{close_pool, lock_open, try_lock_open, Open, Turn, POOL};
use crate::watcher;

/// The exit status of a program that the library can no longer follow.
const STOPPED: usize = 6;

/// Removes one user of a file.  The last user closes the file, and the last file closes the pool.
/// Waits for no open or close of another file.
pub fn release(file: &Arc<Mapped>) -> Result<(), c_int> {
    let not_last = |users: usize| (users > 1).then(|| users - 1);
    if file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, not_last).is_ok() {
        return Ok(());
    }
    let _turn = Turn::of(file.id);
    {
        let mut open = lock_open();
        let less = |users: usize| users.checked_sub(1);
        // A file without a user was closed before.
        if file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) != Ok(1) {
            return Ok(());
        }
        let Some(opened) = open.pool.as_mut() else { return Ok(()) };
        opened.files.remove(&file.id);
    }
    close_file(file)
}

/// A file that has one more user, and that stays where it is, until this is dropped.
#[derive(Debug)]
pub struct Staying(Arc<Mapped>);

impl Staying {
    /// None: it is closed next, or is elsewhere by now.
    pub fn of(file: &Arc<Mapped>, from: usize, len: usize) -> Option<Staying> {
        // With this lock held it gets no more room.
        let _map = file.map();
        let is = file.is_within(from, from.saturating_add(len.max(1)));
        let one_more = |users: usize| (users > 0).then(|| users + 1);
        if !is || file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
            return None;
        }
        file.copies.fetch_add(1, Ordering::SeqCst);
        Some(Staying(Arc::clone(file)))
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.0.copies.fetch_sub(1, Ordering::SeqCst);
        // A child that a handler has made has a copy of this.
        if !is_child() {
            // The program may have closed it meanwhile: an error of that was told.
            let _ = release(&self.0);
        }
    }
}

/// Closes a file.  The caller has its turn, or holds `OPEN` while no thread has one.
fn close_file(file: &Arc<Mapped>) -> Result<(), c_int> {
    inside(|| {
        let mut places = write(&PLACES);
        places.open.retain(|f| !Arc::ptr_eq(f, file));
        places.closing.push(Arc::clone(file));
    });
    let closed = close_map(file);
    // A thread that makes a system call with addresses of the file while the program ends is
    // kept from the kernel.
    if !ending::has_begun() {
        inside(|| write(&PLACES).closing.retain(|f| !Arc::ptr_eq(f, file)));
    }
    FILES.fetch_sub(1, Ordering::SeqCst);
    closed
}

fn close_map(file: &Arc<Mapped>) -> Result<(), c_int> {
    let mut held = write(&file.map);
    let Some(map) = held.take() else { return Ok(()) };
    let _ending = inside(|| lease::ends(&map));
    inside(|| {
        if planted::is(Planted::CloseForgets) {
            let _ = map.drop_cache(0, u64::MAX);
        }
        map.close()
    })
    .map_err(|e| close_failed(file, &e))
}

fn close_failed(file: &Mapped, e: &Error) -> c_int {
    if !file.close_failed.swap(true, Ordering::SeqCst) {
        once(
            About::Close,
            format_args!("{e}; what was synced is kept in the pool: forebay map recover"),
        );
    }
    libc::EIO
}

/// Makes all stores to all files durable.
pub fn sync_all() -> Result<(), c_int> {
    let mut all = Ok(());
    for file in open_or_closing() {
        // The other files must not wait for this one.
        all = all.and(sync(&file));
    }
    all
}

fn open_or_closing() -> Vec<Arc<Mapped>> {
    let places = read(&PLACES);
    places.open.iter().chain(&places.closing).cloned().collect()
}

/// Waits for a close that is under way in a range without an open file.  Until the close is
/// over the kernel would take the range for an ordinary mapping and report a sync of it as
/// done.
pub fn wait_within(from: usize, len: usize) {
    let end = from.saturating_add(len.max(1));
    if !may_be_within(from, end - 1) {
        return;
    }
    let closing = read(&PLACES).closing.iter().find(|f| f.is_within(from, end)).cloned();
    let Some(file) = closing else { return };
    ending::stay_if_begun();
    while file.map().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    ending::stay_if_begun();
}

/// Syncs a file.  The file's lock waits for a close that is under way.
fn sync(file: &Mapped) -> Result<(), c_int> {
    match file.call(About::Sync, |map| map.sync(0, u64::MAX)) {
        // The file is closed, and complete unless the close failed.
        Err(libc::EBADF) if !file.close_failed.load(Ordering::SeqCst) => Ok(()),
        Err(libc::EBADF) => Err(libc::EIO),
        synced => synced,
    }
}

/// Ends a program that cannot go on, after everything is in the files.  The message comes after
/// that: who reads it may be slow.
pub fn stop(why: std::fmt::Arguments<'_>) -> ! {
    end();
    crate::say::say(why);
    loop {
        // SAFETY: it ends the process.
        unsafe { real::raw(libc::SYS_exit_group, [STOPPED, 0, 0, 0, 0, 0]) };
    }
}

/// Writes everything to the files when the program ends.
pub fn end() {
    if config().is_none() || is_inside() || is_elsewhere() {
        return;
    }
    if planted::is(Planted::EndForgets) {
        return;
    }
    let _busy = hold();
    // Another thread may be closing the last file.
    let Some(_first) = ending::first() else { return };
    if !any_files() && !POOL.load(Ordering::SeqCst) {
        return;
    }
    let mut open = open_at_end();
    if !planted::is(Planted::StoresAtEnd) {
        ending::begin();
        masks::unblock_in_others(kept::SIGN, watcher::number() as usize);
    }
    sync_open();
    if planted::is(Planted::EndSyncs) {
        inside(|| read(&PLACES).open.clone()).iter().for_each(|file| {
            let _ = inside(|| read(&file.map).as_ref().map_or(Ok(0), MapFile::write_back));
        });
        return;
    }
    if open.is_none() {
        // Another thread is opening or closing a file and may take any time.  A thread that
        // opens is not waited for.  A thread that closes has closed its file after this, and
        // closes the pool next.
        let closes = inside(|| !read(&PLACES).closing.is_empty());
        end_files();
        open = if closes { open_at_end() } else { None };
        if open.is_none() {
            return;
        }
    }
    match open {
        Some(mut open) if !signals::in_handler() => {
            for (_, file) in open.pool.iter_mut().flat_map(|o| o.files.drain()).collect::<Vec<_>>()
            {
                let _ = close_file(&file);
            }
            close_pool(&mut open.pool);
        }
        // The signal handler may have interrupted any code of the C library, so the pool stays
        // open.
        _ => end_files(),
    }
}

/// Makes all stores durable before the first file is closed: a close may take long, and the
/// program may be killed meanwhile.  A failure here is repeated by the close, which reports it.
fn sync_open() {
    for file in inside(|| read(&PLACES).open.clone()) {
        let sync = || read(&file.map).as_ref().map_or(Ok(()), |map| map.sync(0, u64::MAX));
        let _ = inside(sync);
    }
}

/// Closes the files, as far as other threads allow it.  Only threads of the program still run.
/// A thread that closes a file is waited for, without limit, through the file's lock.
fn end_files() {
    for file in inside(open_or_closing) {
        let ended = || read(&file.map).as_ref().map_or(Ok(()), MapFile::end);
        let _ = inside(ended).map_err(|e| close_failed(&file, &e));
    }
}

/// Takes `OPEN`, unless another thread opens or closes a file for long.
fn open_at_end() -> Option<MutexGuard<'static, Open>> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    loop {
        let open = match try_lock_open() {
            Ok(open) => Some(open),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(open) = open.filter(|open| open.is_quiet()) {
            return Some(open);
        }
        if begun.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
