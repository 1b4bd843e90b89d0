// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private mappings that outlive the last close of their file.
//!
//! The kernel makes such a mapping from the library's open file description, which lives as long as
//! the mapping.  It grants a lease to no other description meanwhile.  So the next open of the file
//! uses the same description again.  A duplicate of its descriptor is kept for that, until no private
//! mapping of the file is left.  Then other programs can have a lease, too.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_map::lasting::{self, Lasting};

use super::POOL;
use crate::kept;
use crate::lease;
use crate::opening;
use crate::state::{inside, lock};
use crate::which;

/// How often mappings are looked for that were removed by an instruction.
const AGAIN: Duration = Duration::from_secs(5);
/// The most ranges of one file that are told apart.
const RANGES: usize = 64;

/// A file with private mappings.
#[derive(Debug)]
pub struct One {
    id: (u64, u64),
    path: PathBuf,
    fd: Arc<Lasting<OwnedFd>>,
    ranges: Vec<Range<usize>>,
    /// The number of mappings that were made.
    made: usize,
}

static ALL: Mutex<Vec<One>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The program has removed such a mapping.
static REMOVED: AtomicBool = AtomicBool::new(false);
static LOOKED: Mutex<Option<Instant>> = Mutex::new(None);

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
}

/// Notes a private mapping that was made by a descriptor of the library.
pub fn made(id: (u64, u64), path: &Path, fd: BorrowedFd<'_>, range: Range<usize>) {
    inside(|| {
        let is_known = lock(&ALL).iter().any(|one| one.id == id);
        let kept = match is_known {
            true => None,
            false => lasting::duplicate(fd).ok(),
        };
        let mut all = lock(&ALL);
        let one = match (all.iter().position(|one| one.id == id), kept) {
            (Some(at), _) => &mut all[at],
            (None, Some(fd)) => {
                let (path, fd) = (path.to_owned(), Arc::new(fd));
                all.push(One { id, path, fd, ranges: vec![], made: 0 });
                COUNT.store(all.len(), Ordering::SeqCst);
                let last = all.len() - 1;
                &mut all[last]
            }
            // The next open of the file waits for the end of the mapping.
            (None, None) => return,
        };
        one.made += 1;
        match one.ranges.len() < RANGES {
            true => one.ranges.push(range),
            // Any range is one of them.
            false => {
                one.ranges.clear();
                one.ranges.push(0..usize::MAX);
            }
        }
    });
}

/// Notes that the program has removed or replaced what was mapped in a range.
pub fn removed(from: usize, len: usize) {
    if !any() {
        return;
    }
    let is_one = |range: &Range<usize>| range.start < from.saturating_add(len) && from < range.end;
    if inside(|| lock(&ALL).iter().any(|one| one.ranges.iter().any(is_one))) {
        REMOVED.store(true, Ordering::SeqCst);
        lease::wake();
    }
}

/// The open file description of a file that has private mappings, if this thread may open the file
/// so.
pub fn description(id: (u64, u64)) -> Option<OwnedFd> {
    if !any() {
        return None;
    }
    let fd = lock(&ALL).iter().find(|one| one.id == id).map(|one| Arc::clone(&one.fd))?;
    let number = fd.as_fd().as_raw_fd();
    let is_same = kept::check(number).is_ok() && which::identity(number) == Some(id);
    let may = is_same && opening::may(number, libc::O_RDWR).is_ok();
    may.then(|| kept::duplicate(number).ok()).flatten()
}

/// Forgets files without private mappings.  For the watching thread.
pub fn look() {
    if !any() {
        return;
    }
    let is_time = lock(&LOOKED).is_none_or(|looked| looked.elapsed() >= AGAIN);
    if !REMOVED.swap(false, Ordering::SeqCst) && !is_time {
        return;
    }
    inside(|| {
        *lock(&LOOKED) = Some(Instant::now());
        let all: Vec<_> =
            lock(&ALL).iter().map(|one| (one.id, one.path.clone(), one.made)).collect();
        let Some(text) = which::maps() else { return };
        for (id, path, made) in all {
            if which::has_mapping(&text, id, &path, b'p') {
                continue;
            }
            let mut all = lock(&ALL);
            // The program may have mapped it meanwhile.
            let gone = all.iter().position(|one| one.id == id && one.made == made);
            let gone = gone.map(|at| all.swap_remove(at));
            COUNT.store(all.len(), Ordering::SeqCst);
            drop(all);
            drop(gone);
        }
        if !any() && !POOL.load(Ordering::SeqCst) {
            which::forget_descriptors();
        }
    });
}
