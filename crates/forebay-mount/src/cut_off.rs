// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount that programs use.  Their writes reach the server first.
//!
//! The kernel holds pages of open files (see `front/holes.rs`), and an aborted connection loses
//! them.  syncfs(2) does not help, because the kernel does not wait for the pages of FUSE file
//! systems (Linux 6.18).  So the server does for each file that the kernel knows what a search
//! for a hole does: the kernel writes back its pages of the file and waits for the requests.
//!
//! That wait is in the kernel, without regard to signals.  A server that is killed in it could not
//! end: its descriptor of /dev/fuse stays open, and nobody answers the requests.  So another
//! process, which does not have that descriptor, makes the kernel send all its pages first.  This
//! one waits until they have arrived, and only then notifies the kernel.  By then only what programs
//! have written since makes the kernel wait.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::INodeNo;

use crate::answer;
use crate::front::{kernel_waits, number_for_kernel, TreeLive};
use crate::known::Known;
use crate::notified::Kernel;

/// How long the tree's disk may take for the pages that the kernel holds.
pub(crate) const WRITE_BACK_WAIT: Duration = Duration::from_secs(60);

/// How long active programs may keep it from an end.
const LONGEST: Duration = Duration::from_secs(10);

/// Programs continue to write: a second pass finds what they have written during the first.
const LOOKS: usize = 2;

/// The number of files that are requested at the same time: as many as helpers take their
/// bytes.
const AT_ONCE: usize = 64;

/// The mount that is cut off.
pub(crate) struct Cut {
    pub live: Arc<TreeLive>,
    pub kernel: Arc<Kernel>,
    pub known: Option<Arc<Known>>,
    /// `None`: no path leads to it any more.
    pub mountpoint: Option<PathBuf>,
}

/// Makes the kernel write back its pages of all files.  An error says what is lost.
pub(crate) fn write_back(of: Cut, limit: Duration) -> Result<(), String> {
    let live = of.live.clone();
    let refused = || live.counters.refused_write_backs.load(Ordering::Acquire);
    let before = refused();
    let (tell, told) = mpsc::channel();
    let look = move || {
        // Many files at once are written back sooner than one after another.
        if let Some(at) = &of.mountpoint {
            let _ = answer::write_back(at);
            wait_until_arrived(&of.live, of.known.as_deref());
        }
        let _ = tell.send(look_at_all(&of.live, &of.kernel));
    };
    let named = thread::Builder::new().name("mount-end".into());
    named.spawn(look).map_err(|e| format!("no thread asks the kernel for them: {e}"))?;
    match told.recv_timeout(limit) {
        Ok(done) => done?,
        Err(_) => {
            return Err(format!("the tree's disk did not take them within {limit:?}"));
        }
    }
    match refused() - before {
        0 => Ok(()),
        n => Err(format!("the tree's file system refused {n} requests to write them")),
    }
}

/// Waits until the server has answered the pages that the kernel has sent it.  Programs may write
/// all the time: then it waits for [`LONGEST`], and for longer if none of them is taken.
fn wait_until_arrived(live: &TreeLive, known: Option<&Known>) {
    /// The kernel sends the next ones when it has an answer.
    const QUIET: Duration = Duration::from_millis(100);
    const LOOK: Duration = Duration::from_millis(2);
    let count = |of: &AtomicU64| of.load(Ordering::Acquire);
    let counters = &live.counters;
    // The number that arrived, and the time since when no other did and none was left.
    let mut quiet: Option<(u64, Instant)> = None;
    let (begun, mut taken) = (Instant::now(), (count(&counters.ended_write_backs), Instant::now()));
    // As far as it is known, which it is for root.
    while known.and_then(Known::waiting) != Some(0) {
        let ended = count(&counters.ended_write_backs);
        let arrived = count(&counters.write_backs);
        quiet = match quiet {
            _ if arrived != ended => None,
            Some((before, since)) if before == arrived => Some((before, since)),
            _ => Some((arrived, Instant::now())),
        };
        if quiet.is_some_and(|(_, since)| since.elapsed() >= QUIET) {
            return;
        }
        if ended != taken.0 {
            taken = (ended, Instant::now());
        }
        if begun.elapsed() >= LONGEST && taken.1.elapsed() < LONGEST {
            return;
        }
        thread::sleep(LOOK);
    }
}

fn look_at_all(live: &TreeLive, kernel: &Kernel) -> Result<(), String> {
    for _ in 0..LOOKS {
        each(&live.files_of_kernel(), |ino| {
            let number = INodeNo(number_for_kernel(ino, live.root().ino));
            kernel.write_back(number, 0, 0)
        })
        .map_err(|e| format!("the kernel does not write them back: {e}"))?;
    }
    Ok(())
}

/// Looks at several files at once: a file waits for the disk, and many that wait together take
/// no longer than one.  Looks at all files, whatever happens to others, and returns the first
/// error.
fn each(files: &[u64], look: impl Fn(u64) -> io::Result<()> + Sync) -> io::Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Ok(())));
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = look(*file) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.is_ok() {
                    *failed = Err(e);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(files.len()) {
            // With fewer threads it only takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no request is queued, as far as active programs allow it: Linux before 6.16
/// calls a page written back when its request is queued.
pub(crate) fn wait_for_queue(known: &Known) {
    if kernel_waits() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < LONGEST && !known.is_idle() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a disk that takes 20 ms for each of a thousand files, one after another takes 20 s.
    #[test]
    fn many_files_take_no_longer_than_a_few() {
        let looked = AtomicUsize::new(0);
        let files: Vec<u64> = (0..1000).collect();
        let begun = Instant::now();
        let done = each(&files, |file| {
            thread::sleep(Duration::from_millis(20));
            looked.fetch_add(1, Ordering::Relaxed);
            if file == 3 {
                Err(io::ErrorKind::OutOfMemory.into())
            } else {
                Ok(())
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(looked.into_inner(), files.len(), "an error keeps none from the others");
        assert_eq!(done.expect_err("one failed").kind(), io::ErrorKind::OutOfMemory);
    }
}
