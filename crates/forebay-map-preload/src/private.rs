// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private mappings that outlive the last close of their file.
//!
//! The kernel makes such a mapping from the library's open file description, which lives as long as
//! the mapping.  It grants a lease to no other description meanwhile.  So the next open of the file
//! uses the same description again.  A duplicate of its descriptor is kept for that, until no private
//! mapping of the file is left.  Then other programs can have a lease, too.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_map::lasting::{self, Lasting};
use forebay_map::PAGE;

use crate::guarded::{inside, lock};
use crate::kept;
use crate::planted::{self, Planted};
use crate::watcher;
use crate::which;
use crate::who;

/// How often mappings are looked for that were removed by an instruction.
const AGAIN: Duration = Duration::from_secs(5);
/// How long after a look the next one is, if a mapping was removed.  A look reads all of /proc's maps.
const PAUSE: Duration = Duration::from_millis(200);
/// The most ranges of one file that are told apart.
const RANGES: usize = 64;

/// A file with private mappings.
#[derive(Debug)]
pub struct One {
    id: (u64, u64),
    path: PathBuf,
    /// None: no mapping is left, and the descriptor is being closed.
    fd: Option<Arc<Kept>>,
    number: RawFd,
    ranges: Ranges,
    /// The number of mappings that were made.
    made: usize,
}

/// A duplicate of a file's descriptor.
#[derive(Debug)]
struct Kept(Option<Lasting<OwnedFd>>, RawFd);

impl Drop for Kept {
    fn drop(&mut self) {
        inside(|| {
            drop(self.0.take());
            // Its number was known until now: whoever clears the sign of the open file description
            // has noted that for this number, too.
            let mut all = lock(&ALL);
            all.retain(|one| one.fd.is_some() || one.number != self.1);
            COUNT.store(all.len(), Ordering::SeqCst);
            if all.is_empty() {
                LEFT.store(true, Ordering::SeqCst);
            }
        });
    }
}

/// Addresses at which a file is mapped, or was.
#[derive(Debug, Default)]
struct Ranges(Vec<Range<usize>>);

impl Ranges {
    fn add(&mut self, range: Range<usize>) {
        if self.0.len() >= RANGES {
            // Any range is one of them.
            self.0.clear();
            self.0.push(0..usize::MAX);
            return;
        }
        self.0.push(range);
    }

    /// Whether there was something.
    fn remove(&mut self, gone: &Range<usize>) -> bool {
        let is_over = |range: &Range<usize>| range.start < gone.end && gone.start < range.end;
        if !self.0.iter().any(is_over) {
            return false;
        }
        for range in std::mem::take(&mut self.0) {
            let rest =
                [range.start..range.end.min(gone.start), range.start.max(gone.end)..range.end];
            rest.into_iter().filter(|rest| !rest.is_empty()).for_each(|rest| self.add(rest));
        }
        true
    }
}

static ALL: Mutex<Vec<One>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The program has removed such a mapping.
static REMOVED: AtomicBool = AtomicBool::new(false);
static LOOKED: Mutex<Option<Instant>> = Mutex::new(None);
/// No such mapping is left, and what is kept open of /proc may be of no use any more.
pub static LEFT: AtomicBool = AtomicBool::new(false);

pub fn any() -> bool {
    COUNT.load(Ordering::SeqCst) > 0
}

/// For a fork.
pub fn unchanged() -> MutexGuard<'static, Vec<One>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child that may open files: it has no descriptor of its parent's.
pub fn in_child() {
    let all = std::mem::take(&mut *lock(&ALL));
    COUNT.store(0, Ordering::SeqCst);
    drop(all);
    LEFT.store(false, Ordering::SeqCst);
}

/// Notes a private mapping that was made by a descriptor of the library.
pub fn made(id: (u64, u64), path: &Path, fd: BorrowedFd<'_>, range: Range<usize>) {
    inside(|| {
        let range = range.start..range.end.next_multiple_of(PAGE);
        let is_one = |one: &One| one.id == id && one.fd.is_some();
        let is_known = lock(&ALL).iter().any(is_one);
        let mut fd = match is_known {
            true => None,
            false => lasting::duplicate::<OwnedFd>(fd).ok(),
        };
        {
            let mut all = lock(&ALL);
            let mut at = all.iter().position(is_one);
            let new = if at.is_none() { fd.take() } else { None };
            if let Some(new) = new {
                let number = new.as_raw_fd();
                let fd = Some(Arc::new(Kept(Some(new), number)));
                let (path, ranges) = (path.to_owned(), Ranges::default());
                at = Some(all.len());
                all.push(One { id, path, fd, number, ranges, made: 0 });
                COUNT.store(all.len(), Ordering::SeqCst);
            }
            // Otherwise the next open of the file waits for the end of the mapping.
            if let Some(one) = at.map(|at| &mut all[at]) {
                one.made += 1;
                one.ranges.add(range);
            }
        }
        drop(fd);
    });
}

/// Notes that the program has removed or replaced what was mapped in a range.
pub fn removed(from: usize, len: usize) {
    if !any() {
        return;
    }
    let gone = from..from.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    let is_one = inside(|| {
        let mut all = lock(&ALL);
        // All of them, not only the first one.
        all.iter_mut().filter_map(|one| one.ranges.remove(&gone).then_some(())).count() > 0
    });
    if is_one {
        REMOVED.store(true, Ordering::SeqCst);
        watcher::wake();
    }
}

/// The numbers of descriptors that are kept of a descriptor's file.
pub fn numbers(fd: RawFd) -> Vec<RawFd> {
    if !any() {
        return Vec::new();
    }
    let id = which::identity(fd);
    inside(|| lock(&ALL).iter().filter(|one| Some(one.id) == id).map(|one| one.number).collect())
}

/// The open file description of a file that has private mappings, if this thread may open the file
/// so.
pub fn description(id: (u64, u64)) -> Option<OwnedFd> {
    if !any() || planted::is(Planted::PrivateAnew) {
        return None;
    }
    let is_one = |one: &&One| one.id == id && one.fd.is_some();
    let fd = lock(&ALL).iter().find(is_one).and_then(|one| one.fd.clone())?;
    let number = fd.1;
    let is_same = kept::check(number).is_ok() && which::identity(number) == Some(id);
    let may = is_same && who::may(number, libc::O_RDWR).is_ok();
    may.then(|| kept::duplicate(number).ok()).flatten()
}

/// Forgets files without private mappings.  For the watching thread.  Returns after what time to
/// look again.
pub fn look() -> Option<Duration> {
    if !any() {
        return None;
    }
    let pause = match REMOVED.load(Ordering::SeqCst) {
        true => PAUSE,
        false => AGAIN,
    };
    let looked = *lock(&LOOKED);
    let left = looked.and_then(|looked| pause.checked_sub(looked.elapsed()));
    if let Some(left) = left.filter(|left| !left.is_zero()) {
        return Some(left);
    }
    inside(|| {
        REMOVED.store(false, Ordering::SeqCst);
        let all: Vec<_> =
            lock(&ALL).iter().map(|one| (one.id, one.path.clone(), one.made)).collect();
        let text = which::maps();
        *lock(&LOOKED) = Some(Instant::now());
        let Some(text) = text else { return };
        for (id, path, made) in all {
            let is_left = planted::is(Planted::PrivateKept);
            if is_left || which::has_mapping(&text, id, &path, b'p') {
                continue;
            }
            let gone = {
                let mut all = lock(&ALL);
                // The program may have mapped it meanwhile.
                let one = all.iter_mut().find(|one| one.id == id && one.made == made);
                one.and_then(|one| one.fd.take())
            };
            drop(gone);
        }
    });
    any().then_some(AGAIN)
}
