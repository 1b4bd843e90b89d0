// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a mount that programs use: what they have written reaches the server first.
//!
//! The kernel holds pages of open files (see `front/holes.rs`), and an aborted connection loses them.
//! syncfs(2) does not help: the kernel does not wait for the pages of FUSE file systems (Linux 6.18).
//! So the server asks for each file that the kernel knows, as for a hole: the kernel writes back its
//! pages of the file, and waits for the requests.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use crate::front::{kernel_waits, number_for_kernel, TreeLive};

/// How long the tree's disk may take for what the kernel holds.
pub(crate) const WRITE_BACK_WAIT: Duration = Duration::from_secs(60);

/// Programs write on meanwhile: a second look finds what they have written during the first.
const LOOKS: usize = 2;

/// The kernel writes back what it holds of all files; an error says what is lost.
pub(crate) fn write_back(
    live: &Arc<TreeLive>,
    kernel: &Arc<OnceLock<Notifier>>,
    mountpoint: Option<&Path>,
    limit: Duration,
) -> Result<(), String> {
    let refused = || live.counters.refused_write_backs.load(Ordering::Acquire);
    let before = refused();
    let (tell, told) = mpsc::channel();
    let (of, kernel) = (live.clone(), kernel.clone());
    let mountpoint = mountpoint.map(Path::to_path_buf);
    thread::spawn(move || {
        // Many files at once are written back sooner than one after the other.
        let _ = mountpoint.and_then(|at| rustix::fs::syncfs(fs::File::open(at).ok()?).ok());
        let _ = tell.send(look_at_all(&of, &kernel));
    });
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

fn look_at_all(live: &TreeLive, kernel: &OnceLock<Notifier>) -> Result<(), String> {
    let Some(kernel) = kernel.get() else { return Ok(()) };
    for _ in 0..LOOKS {
        for ino in live.files_of_kernel() {
            let number = INodeNo(number_for_kernel(ino, live.root().ino));
            let asked = kernel.inval_inode(number, 0, 0);
            asked.map_err(|e| format!("the kernel does not write them back: {e}"))?;
        }
    }
    Ok(())
}

/// Linux before 6.16 calls a page written back when its request is queued.  So no request may be
/// left, as far as programs that go on allow that.
pub(crate) fn wait_for_queue(connection: u32) {
    const LONGEST: Duration = Duration::from_secs(10);
    if kernel_waits() {
        return;
    }
    let begun = Instant::now();
    let path = format!("/sys/fs/fuse/connections/{connection}/waiting");
    while begun.elapsed() < LONGEST {
        match fs::read_to_string(&path) {
            Ok(waiting) if waiting.trim() != "0" => thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}
