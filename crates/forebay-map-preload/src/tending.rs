// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work of the watching thread: what is done about a lease that somebody waits for
//! (`lease.rs`), and when private mappings are looked for (`private.rs`).

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use forebay_map::MapFile;

use crate::closing;
use crate::guarded::{inside, lock};
use crate::kept;
use crate::lease::{control, set, set_alone, set_to, tell, unset, F_GETLEASE, LEASE_GIVEN};
use crate::mapped::Mapped;
use crate::masks;
use crate::planted::{self, Planted};
use crate::private;
use crate::real::process;
use crate::say::{once, About};
use crate::turns::try_lock_open;
use crate::watcher;
use crate::which;

/// How long after a release for a reader a lease is requested again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long after an open that was refused a broken lease is restored, if stores could not be
/// written to the file.  No one is notified of an open that comes meanwhile.
const LATER: Duration = Duration::from_millis(500);
/// How long a reader may take to turn out to be this process.
const SETTLES: Duration = Duration::from_millis(50);
/// How long after a failed try the next one is.
const SOON: Duration = Duration::from_millis(20);

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
        let later = private::look().or_else(forget);
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

/// Closes what is kept open of /proc, unless the pool is open.  Does not wait for a thread that opens
/// it.
fn forget() -> Option<Duration> {
    if !private::LEFT.load(Ordering::SeqCst) {
        return None;
    }
    let open = match try_lock_open() {
        Ok(open) => open,
        Err(TryLockError::Poisoned(e)) => e.into_inner(),
        Err(TryLockError::WouldBlock) => return Some(SOON),
    };
    private::LEFT.store(false, Ordering::SeqCst);
    // The end of the pool does that otherwise.
    if open.pool.is_none() && !private::any() {
        inside(which::forget_descriptors);
    }
    None
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
