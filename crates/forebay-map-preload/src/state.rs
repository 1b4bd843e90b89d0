// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's open files that the library maps: their descriptors, positions and mappings.
//!
//! The kernel does nothing with a descriptor of such a file (O_PATH).  A use that bypasses the
//! library, by a direct system call, io_uring, a child or another program, is an error (EBADF)
//! and never an acknowledgement.
//!
//! Locks, in this order: a file's turn ([`Turn`]); `NEXT`; `OPEN`; the file's `map`; then each of the others alone.
//! No thread has two turns.  While memory of the program is touched, none is held except `map` for
//! reading and a descriptor's position.

use std::collections::HashMap;
use std::ffi::{c_int, CStr};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};

use forebay_map::Error;

use crate::child::{config, is_child, is_elsewhere, make_parent, CHILD, CONFIG, PARENT, PROCESS};
use crate::closing::release;
use crate::config::Config;
use crate::ending;
use crate::extent;
use crate::guarded::{inside, is_inside, quietly, read, write};
use crate::kept::{self, MOST};
use crate::lease;
use crate::limit;
use crate::mapped::{Locks, Mapped, Place};
use crate::places::{any_files, may_be_within, Opening, Places, FILES, PLACES};
use crate::planted::{self, Planted};
use crate::private;
use crate::real::{self, process};
use crate::say::{once, About};
use crate::signals::{self, hold, Busy};
use crate::tending;
use crate::turns::{self, first, lock_open, Turn};
use crate::which::{self, identity_at, is_at};

/// Whether a number is a descriptor of ours.  A call on another descriptor reads only this.
static OURS: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];

static TABLE: RwLock<Option<HashMap<c_int, Arc<Desc>>>> = RwLock::new(None);
static ROOT: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// An open file description, shared by duplicates of a descriptor.
#[derive(Debug)]
pub struct Desc {
    pub file: Arc<Mapped>,
    pub flags: AtomicI32,
    pub at: Mutex<u64>,
    /// The number of its entries in the table.  Changed only with `TABLE` held for writing.
    numbers: AtomicUsize,
}

/// The description that a call uses.
#[derive(Debug)]
pub struct Held {
    desc: Arc<Desc>,
    _busy: Busy,
}

impl Held {
    pub fn desc(&self) -> Arc<Desc> {
        Arc::clone(&self.desc)
    }
}

impl Deref for Held {
    type Target = Desc;
    fn deref(&self) -> &Desc {
        &self.desc
    }
}

/// A child has the whole table and all places, and none of the threads that use them.
pub type Unchanged = (
    RwLockWriteGuard<'static, Option<HashMap<c_int, Arc<Desc>>>>,
    RwLockWriteGuard<'static, Places>,
);

/// Holds the table and the places unchanged during a fork.
pub fn unchanged() -> Unchanged {
    let table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    (table, PLACES.write().unwrap_or_else(PoisonError::into_inner))
}

/// Called in a child.  The child of a process without open files may open files of its own.  Any
/// other child has descriptors without the memory.
pub fn in_child() {
    real::remember_process();
    match turns::have_none() {
        true => {
            PROCESS.store(process(), Ordering::Relaxed);
            tending::in_child();
            private::in_child();
            write(&PLACES).truncated.clear();
            let parent = PARENT.load(Ordering::Relaxed);
            // SAFETY: the page was made at the start.
            unsafe { parent.write_volatile(1) };
        }
        false => {
            CHILD.store(true, Ordering::Relaxed);
            kept::leave_to_parent();
        }
    }
}

/// At the start of the program.
pub fn start(config: Config) -> Result<(), String> {
    PROCESS.store(process(), Ordering::Relaxed);
    real::remember_process();
    crate::say::start();
    tell_inherited();
    kept::start();
    let _ = ROOT.set(root());
    make_parent().map_err(|e| format!("a page that no child has: {e}"))?;
    let _ = CONFIG.set(config);
    Ok(())
}

/// Warns if the standard input or output comes from a program that maps files, as a shell passes
/// it.  The kernel does nothing with such a descriptor.
fn tell_inherited() {
    for fd in 0..3 {
        // SAFETY: the call only queries.
        let flags = unsafe {
            real::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0])
        };
        if flags >= 0 && flags & libc::O_PATH as isize != 0 && which::regular(fd).is_some() {
            let path = which::path_of(fd).unwrap_or_default();
            once(
                About::Child,
                format_args!(
                    "descriptor {fd} is {}, which the program that started this one has mapped: it \
                     can be neither read nor written here (EBADF); have this program open it by itself",
                    path.to_string_lossy()
                ),
            );
        }
    }
}

fn root() -> Option<(u64, u64)> {
    identity_at(libc::AT_FDCWD, c"/", 0)
}

/// Whether names mean what they meant at the start.
pub fn has_its_root() -> bool {
    ROOT.get().is_some_and(|root| *root == self::root())
}

/// A file that overlaps a range.
pub fn over(from: usize, len: usize) -> Option<Arc<Mapped>> {
    let end = from.saturating_add(len.max(1));
    if !may_be_within(from, end - 1) {
        return None;
    }
    read(&PLACES).open.iter().find(|file| file.is_within(from, end)).cloned()
}

/// The file that is mapped at an address, and the offset in it.
pub fn at(address: usize) -> Option<(Arc<Mapped>, u64)> {
    if !may_be_within(address, address) {
        return None;
    }
    // The file's own lock must not be waited for while the lock of the places is held: see
    // `forking.rs`.
    let found = read(&PLACES).open.iter().find(|f| f.is_within(address, address + 1)).cloned()?;
    let at = found.offset(address)?;
    Some((found, at))
}

/// The description of a descriptor of ours.
#[inline]
pub fn desc(fd: c_int) -> Option<Held> {
    match is_ours(fd) {
        true => desc_of(fd),
        false => None,
    }
}

/// Like [`desc`], for a call that is a cancellation point.
#[inline]
pub fn desc_or_end(fd: c_int) -> Option<Held> {
    match is_ours(fd) {
        true => {
            signals::cancellation_point();
            desc_of(fd)
        }
        false => None,
    }
}

#[inline]
pub fn is_ours(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < MOST && OURS[fd].load(Ordering::Relaxed) != 0)
}

/// Whether a descriptor of ours is still what it was, in this process.
pub fn is_current(fd: c_int) -> bool {
    !is_child() && desc(fd).is_some()
}

#[cold]
fn desc_of(fd: c_int) -> Option<Held> {
    let _busy = hold();
    if is_child() {
        let what = "a file of the parent is used in a child, which does not have its memory";
        once(About::Child, format_args!(
            "{what}; open files after the fork (no daemon mode), or run another program in the child"
        ));
        // The kernel refuses the descriptor itself.
        return None;
    }
    // The number may belong to another file by now, if the program has closed ours without us.
    // SAFETY: the call only queries.
    let flags =
        unsafe { real::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    if (flags < 0 || flags & libc::O_PATH as isize == 0) && !planted::is(Planted::NumberStale) {
        // No one can get its error, as for a descriptor that dup2 closes.  A child of vfork has
        // its own descriptors, and this table is its parent's.
        if !is_elsewhere() {
            let _ = take(fd);
        }
        return None;
    }
    let table = read(&TABLE);
    let desc = table.as_ref()?.get(&fd).cloned()?;
    drop(table);
    Some(Held { desc, _busy })
}

/// Adds a descriptor to a description that has one already.  If its last one was closed
/// meanwhile, the file may be closed too: EBADF, as if the close had come first.
pub fn put(fd: c_int, desc: Arc<Desc>) -> Result<(), c_int> {
    put_as(fd, desc, false)
}

fn put_as(fd: c_int, desc: Arc<Desc>, first: bool) -> Result<(), c_int> {
    let Some(ours) = usize::try_from(fd).ok().and_then(|fd| OURS.get(fd)) else {
        once(
            About::Descriptors,
            format_args!(
                "{}: descriptor {fd}; those from {MOST} on are not followed: lower ulimit -n",
                desc.file.path.display()
            ),
        );
        return Err(libc::EMFILE);
    };
    let mut table = write(&TABLE);
    if !first && desc.numbers.load(Ordering::SeqCst) == 0 {
        return Err(libc::EBADF);
    }
    desc.numbers.fetch_add(1, Ordering::SeqCst);
    let before = table.get_or_insert_default().insert(fd, desc).map(one_less);
    ours.store(1, Ordering::SeqCst);
    drop(table);
    before.map_or(Ok(()), forget_desc)
}

/// Removes a descriptor that is closed.
pub fn take(fd: c_int) -> Result<(), c_int> {
    let _busy = hold();
    let taken = {
        let mut table = write(&TABLE);
        let taken = table.as_mut().and_then(|t| t.remove(&fd)).map(one_less);
        if let Some(ours) = usize::try_from(fd).ok().and_then(|fd| OURS.get(fd)) {
            ours.store(0, Ordering::SeqCst);
        }
        taken
    };
    taken.map_or(Ok(()), forget_desc)
}

/// Removes one entry of a description from the table, which is held for writing: of several
/// that leave at once exactly one is the last.  Calls that are under way hold the description
/// for a moment too.
fn one_less(desc: Arc<Desc>) -> (Arc<Desc>, bool) {
    let was_last = desc.numbers.fetch_sub(1, Ordering::SeqCst) == 1;
    (desc, was_last)
}

fn forget_desc((desc, was_last): (Arc<Desc>, bool)) -> Result<(), c_int> {
    inside(|| desc.file.locks.closed());
    match was_last {
        true => release(&desc.file),
        false => Ok(()),
    }
}

/// In a child: forgets a descriptor that is closed there.
pub fn forget_in_child(fd: c_int) {
    if is_child() {
        if let Some(ours) = usize::try_from(fd).ok().and_then(|fd| OURS.get(fd)) {
            ours.store(0, Ordering::SeqCst);
        }
    }
}

/// The descriptors of ours in a range.
pub fn within(first: u32, last: u32) -> Vec<c_int> {
    let table = read(&TABLE);
    let all = table.iter().flat_map(HashMap::keys).copied();
    all.filter(|&fd| (first..=last).contains(&(fd as u32))).collect()
}

/// The number of descriptions of a file.
pub fn descriptions(file: &Arc<Mapped>) -> usize {
    let table = read(&TABLE);
    let mut found: Vec<*const Desc> = table
        .iter()
        .flat_map(HashMap::values)
        .filter(|d| Arc::ptr_eq(&d.file, file))
        .map(Arc::as_ptr)
        .collect();
    found.sort_unstable();
    found.dedup();
    found.len()
}

/// An open file.  Waits only for an open or a close of that file.
fn opened(id: (u64, u64)) -> Option<Arc<Mapped>> {
    {
        let places = read(&PLACES);
        if !places.changes(id) {
            match places.open.iter().find(|f| f.id == id) {
                // Its last user closes it next.
                Some(file) if file.is_closed() => {}
                found => return found.cloned(),
            }
        }
    }
    let _turn = Turn::of(id);
    let found = lock_open().pool.as_ref().and_then(|opened| opened.files.get(&id)).cloned();
    found
}

pub fn is_open(id: (u64, u64)) -> bool {
    any_files() && opened(id).is_some()
}

/// Finds an open file by a path.
pub fn opened_at(dir: c_int, path: &CStr, follow: bool) -> Option<Arc<Mapped>> {
    if !any_files() || is_inside() || is_child() {
        return None;
    }
    let id = identity_at(dir, path, if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW })?;
    opened(id)
}

/// Makes a call of an open file, which a path names.  None: the file is not open, or it was closed
/// before the call.
pub fn call_at<R>(
    dir: c_int,
    path: &CStr,
    follow: bool,
    call: impl Fn(&Arc<Mapped>) -> Result<R, c_int>,
) -> Option<Result<R, c_int>> {
    loop {
        let file = opened_at(dir, path, follow)?;
        match call(&file) {
            Err(libc::EBADF) if file.is_closed() => {}
            done => return Some(done),
        }
    }
}

/// Truncates a file by its path without the library.  None: it is open or being opened, or its
/// close is under way.
pub fn truncate_closed(path: &CStr, truncate: impl FnOnce() -> c_int) -> Option<c_int> {
    ending::stay_if_begun();
    let id = match config() {
        Some(_) if !is_inside() && !is_child() => identity_at(libc::AT_FDCWD, path, 0),
        _ => None,
    };
    let Some(id) = id else { return Some(truncate()) };
    inside(|| {
        let mut places = write(&PLACES);
        let is_open = places.changes(id) || places.open.iter().any(|file| file.id == id);
        (!is_open).then(|| places.truncated.push(id))
    })?;
    let done = truncate();
    let errno = real::errno();
    inside(|| {
        let mut places = write(&PLACES);
        let at = places.truncated.iter().position(|other| *other == id);
        at.map(|at| places.truncated.swap_remove(at));
    });
    Some(if done == 0 { 0 } else { real::fail(errno) })
}

/// Opens a file for the program; `fd` is the kernel's descriptor for it.
pub fn open(
    fd: c_int,
    id: (u64, u64),
    size: u64,
    real: &CStr,
    flags: c_int,
) -> Result<(), Refusal> {
    let Some(config) = config() else { return Err(Refusal::Errno(libc::EIO)) };
    let path = Path::new(std::ffi::OsStr::from_bytes(real.to_bytes()));
    if !planted::is(Planted::LimitNotRead) {
        limit::look();
    }
    let turn = Turn::unless_ends(id);
    if is_elsewhere() {
        return Err(Refusal::Errno(libc::EIO));
    }
    let known = lock_open().pool.as_ref().and_then(|o| o.files.get(&id)).cloned();
    let file = match known {
        Some(file) => file,
        None => {
            let _opening = Opening::of(id);
            let room = config.room.max(size.saturating_mul(2));
            // The library opens the file by its name.  Another file there may have its turn now.
            if !is_at(path, id) {
                return Err(Refusal::Replaced);
            }
            let map = quietly(|| first(config, tending::watch, path, id, size, room))
                .map_err(Refusal::Error)?;
            if !is_at(path, id) {
                let _ending = inside(|| lease::ends(&map));
                let _ = inside(|| map.close());
                return Err(Refusal::Replaced);
            }
            let locks = match config.shared {
                true => inside(|| Locks::of_shared_file(fd)),
                false => Ok(Locks::of_own_file()),
            };
            let locks = match locks {
                Ok(locks) => locks,
                Err(e) => {
                    let _ = inside(|| map.close());
                    return Err(Refusal::Errno(e.raw_os_error().unwrap_or(libc::EIO)));
                }
            };
            extent::add(map.address().addr(), map.room() as usize);
            let place = Place::of(&map);
            let file = Arc::new(Mapped {
                id,
                path: path.to_owned(),
                map: RwLock::new(Some(map)),
                place,
                views: Mutex::default(),
                users: AtomicUsize::new(0),
                copies: AtomicUsize::new(0),
                locks,
                pins: Mutex::default(),
                close_failed: AtomicBool::new(false),
                tended: lease::Tended::default(),
            });
            inside(|| {
                if let Some(opened) = lock_open().pool.as_mut() {
                    opened.files.insert(id, Arc::clone(&file));
                }
            });
            FILES.fetch_add(1, Ordering::SeqCst);
            inside(|| tending::watch_over(&file));
            // An allocator may call the library too.
            inside(|| write(&PLACES).open.push(Arc::clone(&file)));
            file
        }
    };
    file.users.fetch_add(1, Ordering::SeqCst);
    drop(turn);
    // The end of the program has not seen the file there, or closes it.
    ending::stay_if_begun();
    let flags =
        AtomicI32::new(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC));
    let desc = Desc { file, flags, at: Mutex::new(0), numbers: AtomicUsize::new(0) };
    let file = Arc::clone(&desc.file);
    put_as(fd, Arc::new(desc), true).map_err(|errno| {
        let _ = release(&file);
        Refusal::Errno(errno)
    })
}

/// The reason why a file is not opened.
#[derive(Debug)]
pub enum Refusal {
    Errno(c_int),
    /// Another file has its name by now.
    Replaced,
    Error(Error),
}
