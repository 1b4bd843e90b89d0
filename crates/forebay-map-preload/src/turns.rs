// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool and its open files, and whose turn it is to open a file or to close it.
//!
//! A thread that opens a file, closes it or gives it more room has its [`Turn`]. Other threads wait
//! for that file alone, however slow its storage is.  `OPEN` is held for look-ups, and while the
//! pool itself is opened or closed, as at the end of the program.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockResult};

use forebay_map::{Error, MapFile, Options, Session, Unreadable, SEGMENT};

use crate::config::Config;
use crate::ending;
use crate::guarded::{inside, lock, Locked};
use crate::lease;
use crate::mapped::Mapped;
use crate::planted::{self, Planted};
use crate::private;
use crate::say::{once, About};
use crate::signals::{hold, Busy};
use crate::watcher;
use crate::which;
use crate::window;

/// How often to open a file again that was changed between its open and its lease.
const TRIES: usize = 100;

/// Whether the pool is open.
pub static POOL: AtomicBool = AtomicBool::new(false);

static OPEN: Mutex<Open> = Mutex::new(Open { pool: None, turns: vec![], last: 0 });
/// Notified when a turn has ended.
static ENDED: Condvar = Condvar::new();
/// The thread that takes `OPEN` next holds this.  Otherwise a thread that opens and closes a file
/// in a loop would take `OPEN` again before a waiting thread has woken up.
static NEXT: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Open {
    pub pool: Option<Opened>,
    /// The turns of files, each with its number, in the order in which threads have asked for them.
    /// The first turn of a file is under way, and the later ones wait.
    turns: Vec<(u64, (u64, u64))>,
    /// The number of the last turn.
    last: u64,
}

impl Open {
    /// Whether no thread opens or closes a file.
    pub fn is_quiet(&self) -> bool {
        self.turns.is_empty()
    }

    fn waits(&self, turn: u64, id: (u64, u64)) -> bool {
        self.turns.iter().take_while(|(other, _)| *other != turn).any(|(_, of)| *of == id)
    }
}

#[derive(Debug)]
pub struct Opened {
    /// A thread that has a turn may have it too, until the turn ends.
    pub session: Arc<Session>,
    pub files: HashMap<(u64, u64), Arc<Mapped>>,
}

/// A thread's turn with a file, until this is dropped.  The last turn closes a pool without files.
#[derive(Debug)]
pub struct Turn {
    number: u64,
    _busy: Busy,
}

impl Turn {
    /// Waits for the threads that have asked for the same file before.  The caller has no turn and
    /// does not hold `OPEN`.
    pub fn of(id: (u64, u64)) -> Turn {
        let _busy = hold();
        let mut open = lock_open();
        open.last += 1;
        let number = open.last;
        // An allocator may call the library too.
        inside(|| open.turns.push((number, id)));
        while open.waits(number, id) {
            open = open.wait(&ENDED);
        }
        Turn { number, _busy }
    }

    /// Like `of`, for a thread that must not go on when the program ends.
    pub fn unless_ends(id: (u64, u64)) -> Turn {
        ending::stay_if_begun();
        let turn = Turn::of(id);
        if ending::has_begun() {
            // The end of the program waits for turns.
            drop(turn);
            ending::stay_if_begun();
            return Turn::of(id);
        }
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut open = lock_open();
        open.turns.retain(|(number, _)| *number != self.number);
        if open.is_quiet() && open.pool.as_ref().is_some_and(|opened| opened.files.is_empty()) {
            close_pool(&mut open.pool);
        }
        drop(open);
        ENDED.notify_all();
    }
}

impl<'a, T> Locked<MutexGuard<'a, T>> {
    /// Releases the lock until the condition is notified.
    fn wait(self, until: &Condvar) -> Locked<MutexGuard<'a, T>> {
        let Locked { guard, busy } = self;
        Locked { guard: until.wait(guard).unwrap_or_else(PoisonError::into_inner), busy }
    }
}

/// Takes the open files, after the threads that have waited for longer.
pub fn lock_open() -> Locked<MutexGuard<'static, Open>> {
    let _next = lock(&NEXT);
    lock(&OPEN)
}

/// Takes the open files if no other thread has them.
pub fn try_lock_open() -> TryLockResult<MutexGuard<'static, Open>> {
    OPEN.try_lock()
}

/// Called in a child: whether the parent had no pool open.  Then the child has no turn of its
/// parent.
pub fn have_none() -> bool {
    match (NEXT.try_lock(), OPEN.try_lock()) {
        (Ok(_), Ok(mut open)) if open.pool.is_none() => {
            // The threads that wait do not exist.
            open.turns.clear();
            true
        }
        _ => false,
    }
}

/// `id`: None if an open file description of the file must not be used again.
fn map(
    session: &Session,
    config: &Config,
    path: &Path,
    id: Option<(u64, u64)>,
    room: u64,
) -> forebay_map::Result<MapFile> {
    if config.shared {
        return session.map_shared(path, room);
    }
    // A thread may truncate it by its path, for instance.
    for _ in 0..=TRIES {
        let map = match id.and_then(private::description) {
            Some(file) => session.map_again(path, room, file)?,
            None => session.map(path, room)?,
        };
        if let Some(map) = leased(map)? {
            return Ok(map);
        }
    }
    Err(Error::Busy(format!("{}: it is changed all the time", path.display())))
}

/// Maps a file again that was closed just now and whose lease was not released.
pub fn map_again(
    session: &Session,
    config: &Config,
    path: &Path,
    room: u64,
    ending: Option<&lease::Ending>,
) -> forebay_map::Result<MapFile> {
    match ending.and_then(|ending| Some((ending, ending.file()?))) {
        Some((ending, file)) if !planted::is(Planted::ReopenedByName) => {
            let map = session.map_again(path, room, file)?;
            lease::inherit(&map, ending);
            Ok(map)
        }
        _ => map(session, config, path, None, room),
    }
}

/// None: it was changed between its open and the lease.
fn leased(map: MapFile) -> forebay_map::Result<Option<MapFile>> {
    let taken = lease::take(&map);
    if let Ok(true) = taken {
        return Ok(Some(map));
    }
    let _ending = lease::ends(&map);
    let _ = map.close();
    taken.map(|_| None)
}

/// Called by a thread of the library.  The program gets SIGBUS and does not know the cause.
fn unreadable(path: &Path, at: u64, why: &io::Error) {
    if ending::has_begun() {
        return;
    }
    let path = path.display();
    once(
        About::Touch,
        format_args!(
            "{path}: byte {at} and what follows cannot be brought in, a touch is SIGBUS: {why}"
        ),
    );
}

/// Maps a file, on the pool that is opened for that if it is the first one.  The caller has the file's
/// turn.  `watch` is the work of the watching thread.
pub fn first(
    config: &Config,
    watch: fn(),
    path: &Path,
    id: (u64, u64),
    size: u64,
    room: u64,
) -> forebay_map::Result<MapFile> {
    let session = session(config, watch)?;
    match map(&session, config, path, Some(id), room) {
        // If segments are not brought in by a touch, room takes memory, and no more can be
        // mapped.  A file that is not mapped yet gets more room when it grows.
        Err(Error::Refused { .. }) if room > size.max(SEGMENT as u64) => {
            map(&session, config, path, Some(id), size.max(SEGMENT as u64))
        }
        done => done,
    }
}

/// The open pool.  It is opened with `OPEN` held: without it no thread can go on.
fn session(config: &Config, watch: fn()) -> forebay_map::Result<Arc<Session>> {
    let mut open = lock_open();
    if let Some(opened) = &open.pool {
        return Ok(Arc::clone(&opened.session));
    }
    window::take().map_err(Error::Pool)?;
    watcher::start(watch).map_err(|e| Error::Pool(format!("no thread: {e}")))?;
    let options =
        Options { unreadable: Some(Unreadable(Arc::new(unreadable))), ..Options::default() };
    let session = Arc::new(Session::open(&config.wanted, options)?);
    open.pool = Some(Opened { session: Arc::clone(&session), files: HashMap::new() });
    which::keep_descriptors(watcher::number() as usize);
    POOL.store(true, Ordering::SeqCst);
    Ok(session)
}

/// The caller holds `OPEN`, and no thread has a turn.
pub fn close_pool(open: &mut Option<Opened>) {
    let Some(opened) = open.take() else { return };
    // A thread that has a turn holds the session, too.  The pool is closed when no thread has one.
    let session = Arc::into_inner(opened.session);
    if let Err(e) = inside(|| session.map_or(Ok(()), Session::close)) {
        once(About::Pool, format_args!("{e}"));
    }
    // Private mappings may outlive the pool, and are looked for.
    if !private::any() {
        inside(which::forget_descriptors);
        if !ending::has_begun() {
            inside(watcher::end);
        }
    }
    POOL.store(false, Ordering::SeqCst);
}
