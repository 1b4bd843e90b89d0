// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects opens of a file that bypass the library while the library has the file.  Such opens are:
//! a system call by an instruction, cgo, a library that is bound to the C library alone
//! (RTLD_DEEPBIND), a file handle, io_uring, and another program.
//!
//! The library has a lease of each such file (fcntl(2), F_SETLEASE).  The kernel grants one
//! only if no one else has the file open or mapped, so an earlier descriptor or mapping is
//! found.  The kernel then blocks each later open or truncation until the lease is released,
//! and notifies a thread of ours by a signal:
//!
//! | who opens | what happens |
//! |---|---|
//! | another program, to read | everything is synced and written to the file, then the open continues |
//! | this process, to read | the same, and then the program ends with one message |
//! | anyone, to write or to truncate | the program ends in the same way before the open continues |
//!
//! The server of the pool gets a duplicate of the descriptor.  So the lease outlasts a program
//! that is killed, until the server has written the file back.
//!
//! A shared file is open in several processes, so it has no lease.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_map::lasting::{self, Lasting};
use forebay_map::{Error, MapFile};

use crate::closing::{self, private};
use crate::kept;
use crate::mapped::Mapped;
use crate::masks;
use crate::planted::{self, Planted};
use crate::real::{process, raw};
use crate::say::{once, About};
use crate::state::{inside, lock};
use crate::watcher;
use crate::which;

const F_SETSIG: usize = 10;
const F_SETOWN_EX: usize = 15;
const F_OWNER_TID: c_int = 0;
pub const F_SETLEASE: usize = 1024;
const F_GETLEASE: usize = 1025;

/// How long to wait for a process that has the file open for a moment.  An example is a child that
/// is about to run another program.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long after a release for a reader a lease is requested again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long after an open that was refused a broken lease is restored, if stores could not be
/// written to the file.  No one is notified of an open that comes meanwhile.
const LATER: Duration = Duration::from_millis(500);
/// How long a reader may take to turn out to be this process.
const SETTLES: Duration = Duration::from_millis(50);

/// Files that have a lease, or had one and should get it again.
static LEASED: Mutex<Vec<Weak<Mapped>>> = Mutex::new(Vec::new());

/// Both lists.
pub type Lists = (
    MutexGuard<'static, Vec<Weak<Mapped>>>,
    MutexGuard<'static, Vec<(u64, u64)>>,
    MutexGuard<'static, ()>,
);

/// For a fork: the caller holds signal handlers off meanwhile.
pub fn unchanged() -> Lists {
    let leased = LEASED.lock().unwrap_or_else(PoisonError::into_inner);
    let given = LEASE_GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    (leased, given, watcher::unchanged())
}

/// In a child that may open files: it has no watching thread and no lease.
pub fn in_child() {
    watcher::in_child();
    kept::nothing_changes();
    lock(&LEASED).clear();
    lock(&LEASE_GIVEN).clear();
}

pub fn control(fd: RawFd, what: usize, argument: usize) -> Result<isize, c_int> {
    // SAFETY: these take numbers, or the address of a struct that is valid for the call.
    match unsafe { raw(libc::SYS_fcntl, [fd as usize, what, argument, 0, 0, 0]) } {
        e @ -4095..=-1 => Err(-e as c_int),
        done => Ok(done),
    }
}

/// Sets the thread that is notified, and the signal.
fn tell(fd: RawFd) -> Result<(), c_int> {
    let owner = [F_OWNER_TID, watcher::number()];
    control(fd, F_SETOWN_EX, owner.as_ptr().addr())?;
    control(fd, F_SETSIG, kept::SIGN).map(drop)
}

/// Takes or releases the lease of a file, which needs the right to have one.
fn set_to(fd: RawFd, kind: c_int) -> Result<(), c_int> {
    control(fd, F_SETLEASE, kind as usize).map(drop)
}

fn set(fd: RawFd) -> Result<(), c_int> {
    tell(fd)?;
    set_to(fd, libc::F_WRLCK)
}

/// Like `set`.  On overlayfs the kernel would give a lease although the file is mapped.
/// `others`: also by other processes.
fn set_alone(fd: RawFd, others: bool) -> Result<(), c_int> {
    set(fd)?;
    if planted::is(Planted::OverlayUnseen) || !which::is_on_overlay(fd) {
        return Ok(());
    }
    let (Some(id), Some(path)) = (which::identity(fd), which::path_of(fd)) else { return Ok(()) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    let by_others = || others && which::is_mapped_by_others(id, path);
    if !(which::is_mapped_plainly(id, path) || by_others()) {
        return Ok(());
    }
    unset(fd, fd);
    Err(libc::EAGAIN)
}

/// Releases a lease.  The kernel removes the mark of our descriptor together with it.
fn unset(fd: RawFd, known_as: RawFd) {
    let mut all = vec![known_as];
    all.extend(private::numbers(fd));
    kept::changing(&all, || {
        let _ = set_to(fd, libc::F_UNLCK);
        let _ = tell(fd);
    });
}

/// A lease of a file that was just opened, whose size is known.  False: the file was changed since.
pub fn take(map: &MapFile) -> Result<bool, Error> {
    let Some(file) = map.file() else { return Ok(true) };
    let refused = |why: String| Error::Refused { path: path_of(file), why };
    let fd = file.as_raw_fd();
    let begun = Instant::now();
    loop {
        match set_alone(fd, true) {
            Ok(()) => break,
            Err(libc::EAGAIN) if planted::is(Planted::PlainBeside) => return Ok(true),
            Err(libc::EAGAIN) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(libc::EAGAIN) => {
                return Err(Error::Busy(format!(
                    "{}: it is open or mapped by what goes past the pool's memory (stdio, mkstemp, \
                     an inherited or older descriptor or mapping, another program): close that \
                     before, or leave it out of --files",
                    path_of(file).display()
                )))
            }
            Err(errno) => {
                let why = io::Error::from_raw_os_error(errno);
                return Err(refused(format!(
                    "the kernel gives no lease of it ({why}), so what opens it past the library \
                     would not be seen: run as its owner, on a local file system, with \
                     fs.leases-enable=1"
                )));
            }
        }
    }
    // Another process may have come and gone between the open and the lease.
    match which::regular(fd) {
        Some((id, size)) if size == map.size() => {
            lock(&LEASE_GIVEN).retain(|given| *given != id);
            map.leased(Some(Instant::now()));
            outlast(map);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Notes the lease of a file that was opened again by an open file description that may have
/// one.  Another process may wait for the lease since before that: its patience goes on.
pub fn inherit(map: &MapFile, from: &Ending) {
    let id = map.file().and_then(|file| which::identity(file.as_raw_fd()));
    let given = id.is_some_and(|id| lock(&LEASE_GIVEN).contains(&id));
    map.leased(from.seen.filter(|_| !given));
    outlast(map);
}

/// Has the lease and the locks outlast a kill.  Where the server keeps no more descriptors, or has
/// ended, they end with the program.
fn outlast(map: &MapFile) {
    let _ = map.outlast();
}

fn path_of(file: BorrowedFd<'_>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let path = which::path_of(file.as_raw_fd()).unwrap_or_default();
    std::ffi::OsString::from_vec(path.into_bytes()).into()
}

/// A duplicate of a file's descriptor.
#[derive(Debug)]
struct Kept {
    fd: Lasting<OwnedFd>,
    /// The file's descriptor.
    first: RawFd,
    id: Option<(u64, u64)>,
}

impl Kept {
    /// Its number, unless the program has closed it.  When the kernel revokes the lease, it removes the
    /// mark of the descriptor, too.
    fn number(&self) -> Option<RawFd> {
        let fd = self.fd.as_raw_fd();
        let is_same = || self.id.is_some() && which::identity(fd) == self.id;
        (kept::check(fd).is_ok() || is_same()).then_some(fd)
    }
}

/// Releases the lease of a file when it is dropped, after the file is closed.  Until then the
/// lease is held.  Without this it would last as long as anything has the file open: a child, a
/// private mapping, a thread that writes back.
#[derive(Debug)]
pub struct Ending {
    fd: Option<Kept>,
    /// When the lease was last seen with no one waiting for it.
    seen: Option<Instant>,
}

impl Ending {
    /// The file's open file description, which has the lease, for opening the file again.
    pub fn file(&self) -> Option<OwnedFd> {
        kept::duplicate(self.fd.as_ref()?.number()?).ok()
    }

    /// Keeps the lease, because the file was opened again by that description.
    pub fn stays(mut self) {
        self.fd = None;
    }
}

/// Frees the locks that the library has of a file.
fn free(fd: RawFd) {
    // SAFETY: all zeroes is a value of it: the whole file.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = libc::F_UNLCK as i16;
    let _ = control(fd, libc::F_OFD_SETLK as usize, (&raw const all).addr());
    // SAFETY: it takes numbers.
    unsafe { raw(libc::SYS_flock, [fd as usize, libc::LOCK_UN as usize, 0, 0, 0, 0]) };
}

pub fn ends(map: &MapFile) -> Ending {
    let kept = |file: BorrowedFd<'_>| {
        let first = file.as_raw_fd();
        kept::check(first).ok()?;
        let fd = lasting::duplicate(file).ok()?;
        let id = which::identity(first);
        Some(Kept { fd, first, id })
    };
    let fd = map.file().and_then(kept);
    Ending { fd, seen: map.lease_seen() }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(kept) = self.fd.take() else { return };
        inside(|| {
            if let Some(fd) = kept.number() {
                // A thread may still use the descriptor for a moment and close it then.
                unset(fd, kept.first);
                // Its locks were kept in case the file would be opened again.
                free(fd);
            }
            drop(kept);
        });
    }
}

/// The state of the work on the lease of a file.
#[derive(Debug, Default)]
pub struct Tended {
    /// A thread of its own writes the file back.
    is_busy: AtomicBool,
    /// The lease was released for a reader, and has to be taken again.
    is_given: AtomicBool,
    /// When the file was last written to, at the moment of that release.
    given_at: Mutex<Option<(i64, i64, i64)>>,
    /// When the mappings of the process were first looked at since then, and when to do so again.
    looks: Mutex<Option<(Instant, Instant)>>,
}

impl Tended {
    /// Whether to look at all mappings now.  That takes the longer the more there are, so it is done
    /// less and less often.
    fn is_time_to_look(&self) -> bool {
        let now = Instant::now();
        let mut looks = lock(&self.looks);
        let (first, next) = looks.unwrap_or((now, now));
        let is_time = next <= now;
        if is_time {
            let pause = (now - first).clamp(Duration::from_millis(1), Duration::from_secs(1));
            *looks = Some((first, now + pause));
        }
        is_time
    }
}

/// Begins to watch a file.
pub fn watch_over(file: &Arc<Mapped>) {
    {
        let mut all = lock(&LEASED);
        all.retain(|f| f.strong_count() > 0);
        all.push(Arc::downgrade(file));
    }
    watcher::wake();
}

/// The work of the watching thread, until it has to end.
pub fn watch() {
    let mut most = Duration::from_secs(5);
    loop {
        watcher::wait(most);
        if watcher::ends() {
            return;
        }
        most = Duration::from_secs(5);
        let later = private::look();
        most = later.map_or(most, |later| most.min(later));
        let files: Vec<_> = inside(|| lock(&LEASED).iter().filter_map(Weak::upgrade).collect());
        for file in files {
            // The thread of a busy file wakes this one when it is done.
            if !file.tended.is_busy.load(Ordering::SeqCst) {
                most = most.min(look_at(&file).unwrap_or(most));
            }
            inside(|| drop(file));
        }
    }
}

/// Looks at the lease of a file without waiting for its storage.  Returns after what time the file
/// has to be looked at again.
fn look_at(file: &Arc<Mapped>) -> Option<Duration> {
    let given = &file.tended.is_given;
    match state_of(file) {
        // A close may take long, and the other files must not wait for it.
        Some(State::Changes) => return Some(AGAIN),
        Some(State::Broken { .. } | State::Taken) => return tend_apart(file),
        // The file was opened again for more room and has a new lease.
        Some(State::Held) => given.store(false, Ordering::SeqCst),
        Some(State::None) if given.load(Ordering::SeqCst) && retake(file) => {
            given.store(false, Ordering::SeqCst);
        }
        _ => {}
    }
    given.load(Ordering::SeqCst).then_some(AGAIN)
}

/// Tends to a file in a thread of its own.  A write-back may take as long as the file's storage
/// likes, and other files must not wait for that.  A file has one such thread at most, and only
/// while another process waits for the file.
fn tend_apart(file: &Arc<Mapped>) -> Option<Duration> {
    file.tended.is_busy.store(true, Ordering::SeqCst);
    let theirs = inside(|| Arc::clone(file));
    let tends = move || {
        watcher::block_all_but(watcher::IDENTITY | masks::FAULTS);
        while let Some(pause) = tend(&theirs) {
            // The kernel notifies the watching thread of the next open only if the lease is whole.
            if matches!(state_of(&theirs), Some(State::Held)) {
                break;
            }
            std::thread::sleep(pause);
        }
        theirs.tended.is_busy.store(false, Ordering::SeqCst);
        inside(|| drop(theirs));
        watcher::wake();
    };
    let made = inside(|| std::thread::Builder::new().name("map-lease-file".into()).spawn(tends));
    if made.is_ok() {
        return None;
    }
    // The process may have no more threads.
    let pause = tend(file);
    file.tended.is_busy.store(false, Ordering::SeqCst);
    pause.or(Some(AGAIN))
}

/// Writes back a file that another process waits for.  Returns after what time the file has to be
/// tended to again.
fn tend(file: &Arc<Mapped>) -> Option<Duration> {
    match state_of(file)? {
        State::Changes => Some(AGAIN),
        State::Broken { to_write: true } if was_refused(file) => Some(LATER),
        State::Taken if !is_whole_again(file) => Some(AGAIN),
        State::Broken { to_write } => {
            give_back(file, to_write);
            file.tended.is_given.store(!settle(file), Ordering::SeqCst);
            None
        }
        State::Taken | State::Held | State::None => None,
    }
}

enum State {
    /// It is being closed, or opened for more room.
    Changes,
    /// No one else has the file.
    Held,
    /// Another process waits to open it.
    Broken {
        to_write: bool,
    },
    /// The kernel has waited too long and has revoked the lease.
    Taken,
    None,
}

/// None: the file is closed.
fn state_of(file: &Mapped) -> Option<State> {
    // With this lock held no thread closes the file or opens it again.
    let Some(map) = file.map_now() else { return Some(State::Changes) };
    let fd = map.as_ref()?.file()?.as_raw_fd();
    let lease = control(fd, F_GETLEASE, 0);
    let was_given = lock(&LEASE_GIVEN).contains(&file.id);
    if kept::check(fd).is_err() {
        // The kernel has waited too long.  It has revoked the lease, and with it the mark of
        // our descriptor.
        let is_same = which::identity(fd) == Some(file.id);
        if was_given || !is_same || lease != Ok(libc::F_UNLCK as isize) {
            return None;
        }
        return Some(State::Taken);
    }
    Some(match lease {
        Ok(l) if l == libc::F_WRLCK as isize => State::Held,
        Ok(l) if l == libc::F_RDLCK as isize => State::Broken { to_write: false },
        _ if was_given => State::None,
        _ => State::Broken { to_write: true },
    })
}

/// Files whose lease was released.
static LEASE_GIVEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Releases a lease that another process waits for.  The program's stores are written to the
/// file before.
fn give_back(file: &Arc<Mapped>, to_write: bool) {
    let path = file.path.display();
    // A refused open counts as a writer until the lease is released, also where only readers wait.
    let to_write = to_write && !only_readers_wait(file);
    let all = file.call(About::Sync, |map| map.sync(0, u64::MAX).and_then(|()| map.write_back()));
    // A writer may have come during the write-back.
    let to_write = to_write || writer_waits(file);
    let who = match to_write {
        true => "to be written or truncated ",
        false => "",
    };
    // The file was closed meanwhile, and with that its lease was released.
    if all == Err(libc::EBADF) {
        return;
    }
    if all.is_err() {
        // The waiting process may change the file once the program has ended.
        inside(|| file.map().as_ref().map(MapFile::leave));
        closing::stop(format_args!(
            "{path}: it is opened past the library, {who}and what the program has stored cannot be \
             written to it: the program ends, and what was synced is kept in the pool: forebay map \
             recover --accept, when nobody uses the file any more"
        ));
    }
    let ends = || -> ! {
        closing::stop(format_args!(
            "{path}: it is opened past the library, to be written or truncated (by an instruction of the program's own, by \
             a library that is bound to the C library alone, or by another program): all that was \
             stored is in the file, and the program ends; leave it out of --files"
        ))
    };
    if to_write {
        ends();
    }
    // A close that is under way releases the lease, and after an opening for more room the lease is
    // looked at again.
    let Some(held) = file.map_now() else { return };
    let Some(map) = held.as_ref() else { return };
    let fd = descriptor(map);
    if fd.is_some_and(|fd| has_writer(fd, file)) {
        drop(held);
        ends();
    }
    inside(|| {
        lock(&LEASE_GIVEN).push(file.id);
        map.leased(None);
    });
    *lock(&file.tended.looks) = None;
    // While there is a lease, only a change of times by the file's name alters this.
    *lock(&file.tended.given_at) = fd.and_then(which::written);
    if let Some(fd) = fd {
        unset(fd, fd);
    }
}

/// Whether another process waits to write to the file or to truncate it.
fn writer_waits(file: &Mapped) -> bool {
    let held = file.map_now();
    let fd = held.as_ref().and_then(|map| descriptor(map.as_ref()?));
    fd.is_some_and(|fd| has_writer(fd, file))
}

fn has_writer(fd: RawFd, file: &Mapped) -> bool {
    !planted::is(Planted::WriterUnseen)
        && control(fd, F_GETLEASE, 0) == Ok(libc::F_UNLCK as isize)
        && !only_readers_wait(file)
}

/// Whether /proc/locks shows processes that wait for a lease of this process on such an inode, and
/// all of them to read.  It shows none in another PID namespace.
fn only_readers_wait(file: &Mapped) -> bool {
    let Some(text) = inside(which::locks) else { return false };
    let text = String::from_utf8_lossy(&text);
    let (me, inode) = (process().to_string(), file.id.1.to_string());
    let (mut is_ours, mut readers) = (false, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        match words[..] {
            ["->", "LEASE", _, kind, ..] if is_ours => match kind {
                "READ" => readers += 1,
                _ => return false,
            },
            ["->", ..] => {}
            ["LEASE", _, _, pid, place, ..] => {
                is_ours = pid == me && place.rsplit(':').next() == Some(&inode);
            }
            _ => is_ours = false,
        }
    }
    readers > 0
}

/// Tries to restore a lease that the kernel has revoked, as after a refused open and a
/// write-back that has failed since.  False: the file is being closed or opened again.  If no
/// one has the file and no one has changed it, the lease is taken again, and the program goes on.
/// The kernel lets no one else change the file before it revokes the lease, and nothing of ours
/// is written until the outcome is known.
fn is_whole_again(file: &Arc<Mapped>) -> bool {
    let Some(held) = file.map_now() else { return false };
    let Some(map) = held.as_ref() else { return true };
    let Some(fd) = map.file().map(|file| file.as_raw_fd()) else { return true };
    inside(|| map.leave());
    // The descriptor counts as ours again.
    let _ = tell(fd);
    let is_whole = map.is_own() && set(fd).is_ok() && map.is_own();
    if is_whole {
        inside(|| {
            map.leased(Some(Instant::now()));
            map.go_on();
        });
        return true;
    }
    drop(held);
    give_up(file)
}

/// Gives up a file that others have and may have changed: nothing is written over their data.
fn give_up(file: &Arc<Mapped>) -> ! {
    file.close_failed.store(true, Ordering::SeqCst);
    let synced = file.call(About::Sync, |map| {
        map.leave();
        map.sync(0, u64::MAX)
    });
    let kept = match synced {
        Ok(()) => "what the program has stored",
        Err(_) => "what the program has synced",
    };
    closing::stop(format_args!(
        "{}: it was opened past the library before the library could know, and may have been changed: \
         nothing more is written to it, and the program ends; {kept} since is kept in the pool: \
         forebay map recover --accept, when nobody uses the file any more",
        file.path.display()
    ));
}

/// The descriptor of an open file.
fn descriptor(map: &MapFile) -> Option<RawFd> {
    let fd = map.file()?.as_raw_fd();
    kept::check(fd).ok().map(|()| fd)
}

/// Whether the open that broke the lease did not wait (O_NONBLOCK), so that the kernel refused
/// it.  Then the lease is restored.  Another `map-run` opens so if /proc/locks does not show it
/// who has the file.
///
/// The kernel counts the openers of a file, including those that wait, and grants no lease
/// while there is one.  To be restored, the lease has to be released for a moment in which
/// anyone may open the file.  Such an opener is counted, or has come and gone, with or without
/// a write.  So before that moment everything is in the file, and an open that has come by then
/// is waited for.
fn was_refused(file: &Arc<Mapped>) -> bool {
    // The file is looked at again after a close or an opening for more room.
    let Some(held) = file.map_now() else { return true };
    let Some((map, fd)) = held.as_ref().and_then(|map| Some((map, map.file()?.as_raw_fd()))) else {
        return false;
    };
    let is_ours = || kept::check(fd).is_ok();
    let free = || set_to(fd, libc::F_WRLCK).is_ok();
    // Without the mark the lease was revoked meanwhile, and this is a new one.
    if !is_ours() || !within(SETTLES, free) || !is_ours() {
        return false;
    }
    let mut again = Again::Waits;
    let exposed = inside(|| {
        map.expose(|| {
            let before = which::written(fd);
            // The write-back before this may have taken long.
            if before.is_none() || !free() || !is_ours() {
                return true;
            }
            unset(fd, fd);
            let whole = within(SETTLES, || set(fd).is_ok()) && which::written(fd) == before;
            again = if whole { Again::Whole } else { Again::Lost };
            whole
        })
    });
    // The stores cannot be written to the file now.  While no one waits, that does not end the
    // program.
    let later = exposed.is_err() && is_ours() && within(SETTLES, free) && is_ours();
    drop(held);
    match again {
        Again::Lost => give_up(file),
        Again::Whole => exposed.is_ok(),
        Again::Waits => later,
    }
}

/// The state of a lease after an open that was refused.
enum Again {
    /// Another process waits for it.
    Waits,
    Whole,
    /// Another process has the file or has changed it.
    Lost,
}

/// Tries `f` for this time.
fn within(time: Duration, mut f: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if f() {
            return true;
        }
        if begun.elapsed() > time {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tries to take the lease again.  Whether no one else has the file any more.
fn retake(file: &Arc<Mapped>) -> bool {
    let Some(held) = file.map_now() else { return false };
    let Some(map) = held.as_ref() else { return true };
    let Some(fd) = descriptor(map) else { return true };
    match set_alone(fd, false) {
        Ok(()) => {
            let given_at = *lock(&file.tended.given_at);
            let is_own = || map.is_own() || given_at.is_some() && which::written(fd) == given_at;
            if !within(SETTLES, is_own) {
                drop(held);
                give_up(file);
            }
            inside(|| {
                lock(&LEASE_GIVEN).retain(|id| *id != file.id);
                map.leased(Some(Instant::now()));
            });
            return true;
        }
        Err(libc::EACCES | libc::EPERM) => once(
            About::Lease,
            format_args!(
                "{}: the kernel gives its lease no more, since the program has changed its user: what \
                 opens it past the library is not seen from now on; run the program as that user from \
                 its start, or give it CAP_LEASE",
                file.path.display()
            ),
        ),
        Err(_) => {}
    }
    // Looking at all descriptors may take long, and the file is used meanwhile.
    drop(held);
    let found = which::open_plainly(file.id);
    // A file that was closed since may be open plainly.  While a file gets more room, a new
    // descriptor of it is for a moment not known as the library's. With this lock there is no such
    // descriptor.
    let is_plain = found.is_some_and(|fd| {
        let held = file.map_now();
        held.is_some_and(|map| map.is_some() && which::is_open_plainly(fd, file.id))
    });
    // The program may end next, and that closes the file.
    let is_mapped =
        || file.tended.is_time_to_look() && which::is_mapped_plainly(file.id, &file.path);
    if is_plain || is_mapped() {
        closing::stop(format_args!(
            "{}: the program itself has opened it past the library (by an instruction of its own, \
             or a library that is bound to the C library alone), and would not see what is stored: \
             all is in the file, and the program ends; leave it out of --files",
            file.path.display()
        ));
    }
    false
}

/// Waits briefly.  Whether no one else has the file any more.
fn settle(file: &Arc<Mapped>) -> bool {
    within(SETTLES, || retake(file))
}
