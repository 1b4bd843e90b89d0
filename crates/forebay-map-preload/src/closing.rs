// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files are closed by their last user and by the end of the program, and synced together.
//!
//! A file whose close is under way is in no table any more, but its stores may not be in the file
//! yet.  So it stays in `Places::closing` until the close is over, and whoever promises that all
//! files are complete or durable looks there, too.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use forebay_map::{Error, MapFile};

use crate::ending;
use crate::kept;
use crate::lease;
use crate::mapped::Mapped;
use crate::masks;
use crate::planted::{self, Planted};
use crate::real;
use crate::say::{once, About};
use crate::signals::{self, hold};
use crate::state::{
    any_files, config, inside, is_elsewhere, is_inside, lock, may_be_within, read, write, Opened,
    FILES, OPEN, PLACES,
};

/// Exit status of a program that cannot be followed any more.
const STOPPED: usize = 6;

/// The pool is open.
pub static POOL: AtomicBool = AtomicBool::new(false);

/// One user of a file less; the last one closes it, and the last file the pool.  Only the last one
/// waits for a close of another file.
pub fn release(file: &Arc<Mapped>) -> Result<(), c_int> {
    let not_last = |users: usize| (users > 1).then(|| users - 1);
    if file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, not_last).is_ok() {
        return Ok(());
    }
    let mut open = lock(&OPEN);
    let less = |users: usize| users.checked_sub(1);
    // A file without a user was closed before.
    if file.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) != Ok(1) {
        return Ok(());
    }
    let Some(opened) = open.as_mut() else { return Ok(()) };
    opened.files.remove(&file.id);
    let closed = close_file(file);
    if opened.files.is_empty() {
        close_pool(&mut open);
    }
    closed
}

/// With `OPEN` held.
fn close_file(file: &Arc<Mapped>) -> Result<(), c_int> {
    inside(|| {
        let mut places = write(&PLACES);
        places.open.retain(|f| !Arc::ptr_eq(f, file));
        places.closing.push(Arc::clone(file));
    });
    let closed = close_map(file);
    // A thread that calls with its addresses while the program ends is kept from the kernel.
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

pub fn close_pool(open: &mut Option<Opened>) {
    let Some(opened) = open.take() else { return };
    if let Err(e) = inside(|| opened.session.close()) {
        once(About::Pool, format_args!("{e}"));
    }
    POOL.store(false, Ordering::SeqCst);
}

/// All stores to all files are durable when it returns.
pub fn sync_all() -> Result<(), c_int> {
    let mut all = Ok(());
    for file in open_or_closing() {
        // The others are not to wait for this one.
        all = all.and(sync(&file));
    }
    all
}

fn open_or_closing() -> Vec<Arc<Mapped>> {
    let places = read(&PLACES);
    places.open.iter().chain(&places.closing).cloned().collect()
}

/// Waits for a close that is under way in a range in which no file is open.  Until the close is over
/// the kernel would take the range for an ordinary mapping, and say that a sync of it is done.
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

/// A close that is under way is waited for by the file's lock.
fn sync(file: &Mapped) -> Result<(), c_int> {
    match file.call(About::Sync, |map| map.sync(0, u64::MAX)) {
        // It is closed, and complete unless that has failed.
        Err(libc::EBADF) if !file.close_failed.load(Ordering::SeqCst) => Ok(()),
        Err(libc::EBADF) => Err(libc::EIO),
        synced => synced,
    }
}

/// The program cannot go on: all goes to the files, and it ends.
pub fn stop(why: std::fmt::Arguments<'_>) -> ! {
    crate::say::say(why);
    end();
    loop {
        // SAFETY: it ends the process.
        unsafe { real::raw(libc::SYS_exit_group, [STOPPED, 0, 0, 0, 0, 0]) };
    }
}

/// The program ends: all goes to the files.
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
        masks::unblock_in_others(kept::SIGN, lease::watcher());
    }
    sync_open();
    if open.is_none() {
        // Another thread opens or closes a file, who knows for how long.  One that opens is not
        // waited for.  One that closes its file has closed it after this, and closes the pool next.
        let closes = inside(|| !read(&PLACES).closing.is_empty());
        end_files();
        open = if closes { open_at_end() } else { None };
        if open.is_none() {
            return;
        }
    }
    match open {
        Some(mut open) if !signals::in_handler() => {
            for (_, file) in open.iter_mut().flat_map(|o| o.files.drain()).collect::<Vec<_>>() {
                let _ = close_file(&file);
            }
            close_pool(&mut open);
        }
        // A handler has interrupted who knows what of the C library, so the pool stays open.
        _ => end_files(),
    }
}

/// All that is stored is durable before the first file is closed: a close may take long, and the
/// program may be killed meanwhile.  What fails here fails again at the close, which reports it.
fn sync_open() {
    for file in inside(|| read(&PLACES).open.clone()) {
        let sync = || read(&file.map).as_ref().map_or(Ok(()), |map| map.sync(0, u64::MAX));
        let _ = inside(sync);
    }
}

/// Closes the files as far as others may still have them.  Only the threads of the program go on;
/// one that closes a file is waited for, without limit, by the file's lock.
fn end_files() {
    for file in inside(open_or_closing) {
        let ended = || read(&file.map).as_ref().map_or(Ok(()), MapFile::end);
        let _ = inside(ended).map_err(|e| close_failed(&file, &e));
    }
}

/// Unless another thread opens or closes a file for long.
fn open_at_end() -> Option<MutexGuard<'static, Option<Opened>>> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    loop {
        match OPEN.try_lock() {
            Ok(open) => return Some(open),
            Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
            Err(TryLockError::WouldBlock) if begun.elapsed() > PATIENCE => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
