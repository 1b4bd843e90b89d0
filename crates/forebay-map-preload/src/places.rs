// SPDX-License-Identifier: MIT OR Apache-2.0
//! The places where files are mapped, and the files whose open or close is under way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use crate::child::is_child;
use crate::extent;
use crate::guarded::{inside, is_inside, read, write};
use crate::mapped::Mapped;

/// The places where files are mapped.
pub static PLACES: RwLock<Places> =
    RwLock::new(Places { open: vec![], closing: vec![], opening: vec![], truncated: vec![] });
/// The number of open files, including those that are being closed.
pub static FILES: AtomicUsize = AtomicUsize::new(0);

/// Files whose stores may not be in the file yet.  A file is in one of the lists until they
/// are.
#[derive(Debug)]
pub struct Places {
    /// Files that have an address.
    pub open: Vec<Arc<Mapped>>,
    /// Files whose close is under way, or was when the program began to end.
    pub closing: Vec<Arc<Mapped>>,
    /// Files whose open is under way.
    opening: Vec<(u64, u64)>,
    /// Files that were not open and that the kernel truncates by a path, one for each thread.
    pub truncated: Vec<(u64, u64)>,
}

impl Places {
    /// Whether an open or a close of a file is under way.
    pub fn changes(&self, id: (u64, u64)) -> bool {
        self.opening.contains(&id) || self.closing.iter().any(|f| f.id == id)
    }
}

/// An open that is under way until this is dropped.
#[derive(Debug)]
pub struct Opening((u64, u64));

impl Opening {
    /// Begins an open.  The caller has the file's turn.
    pub fn of(id: (u64, u64)) -> Opening {
        inside(|| write(&PLACES).opening.push(id));
        let opening = Opening(id);
        // A truncation would break the lease that is taken next.  A handler may have left it by a
        // jump.
        let begun = Instant::now();
        while read(&PLACES).truncated.contains(&id) && begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_micros(100));
        }
        opening
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        write(&PLACES).opening.retain(|id| *id != self.0);
    }
}

pub fn any_files() -> bool {
    FILES.load(Ordering::Relaxed) > 0
}

pub fn may_be_within(from: usize, last: usize) -> bool {
    extent::may_have(from, last.saturating_sub(from).saturating_add(1))
        && !is_child()
        && !is_inside()
}
