// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server looks at again and again: the pool's file and disk, the origins, and services that
//! lack something.
//!
//! The looks have a thread of their own, since the server's thread may wait for a service that ended.
//! Each look that may wait for a disk has a thread of its own, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::failed::Told;
use crate::server::{Shared, TICK};
use crate::warn;

/// How often a service tries again what it could not do.
const RETRY: Duration = Duration::from_secs(3);
/// How soon it is seen what has happened to the pool's file, and to origins.
const LOOK: Duration = Duration::from_secs(1);

/// The thread of the looks.
pub(crate) struct Looking {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

impl Shared {
    pub(crate) fn begin_to_look(self: &Arc<Self>) -> Looking {
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, ends) = (self.clone(), stop.clone());
        let look = move || {
            let mut looks = Looks::new(shared);
            while !ends.load(Ordering::Acquire) {
                std::thread::sleep(TICK);
                looks.look();
            }
            looks.threads()
        };
        let thread = Builder::new().name("fby-look".into()).spawn(look);
        if let Err(e) = &thread {
            warn(format_args!("no thread looks at the pool's file and at origins: {e}"));
        }
        Looking { stop, thread: thread.ok() }
    }
}

impl Looking {
    /// No further look begins.  The threads of those that have begun may wait for a disk.
    pub fn end(self) -> Vec<JoinHandle<()>> {
        self.stop.store(true, Ordering::Release);
        let looks = self.thread.and_then(|thread| thread.join().ok());
        looks.unwrap_or_default()
    }
}

struct Looks {
    shared: Arc<Shared>,
    told: Told,
    looked: Instant,
    retried: Instant,
    file: Option<JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
    retry: Option<JoinHandle<()>>,
}

impl Looks {
    fn new(shared: Arc<Shared>) -> Looks {
        let (told, now) = (Told::default(), Instant::now());
        Looks { shared, told, looked: now, retried: now, file: None, watch: None, retry: None }
    }

    fn look(&mut self) {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.told.look(self.shared.pool());
            let shared = self.shared.clone();
            unless_busy(&mut self.file, "fby-file", move || shared.look_at_file());
            // A file system may hang that an origin lies on.
            let shared = self.shared.clone();
            unless_busy(&mut self.watch, "fby-watch", move || shared.warn_of_changes());
        }
        if self.retried.elapsed() >= RETRY {
            let lacking = self.shared.lacking();
            if !lacking.is_empty() {
                // It may ask an origin that hangs, and the end waits so long for no origin.
                let shared = self.shared.clone();
                let again = move || lacking.iter().for_each(|s| s.retry(shared.pool()));
                if !unless_busy(&mut self.retry, "fby-retry", again) {
                    return;
                }
            }
            self.retried = Instant::now();
        }
    }

    fn threads(self) -> Vec<JoinHandle<()>> {
        [self.retry, self.watch, self.file].into_iter().flatten().collect()
    }
}

/// False: the one before it still works.
fn unless_busy(
    thread: &mut Option<JoinHandle<()>>,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> bool {
    let idle = thread.as_ref().is_none_or(JoinHandle::is_finished);
    if idle {
        *thread = Builder::new().name(name.into()).spawn(work).ok();
    }
    idle
}
