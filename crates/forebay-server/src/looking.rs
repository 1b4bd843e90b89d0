// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server looks at again and again: the pool's file and disk, the origins, and services that
//! lack something.
//!
//! Each look has a thread of its own: it may wait for a disk, and the server's thread may wait for a
//! service that ended.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::failed::Told;
use crate::server::Shared;
use crate::warn;

/// How often a service tries again what it could not do.
const RETRY: Duration = Duration::from_secs(3);
/// How soon it is seen what has happened to the pool's file, and to origins.
const LOOK: Duration = Duration::from_secs(1);

/// The threads of the looks.  All are started with the server: one that is started for a look
/// might not be had when there is something to see.
pub(crate) struct Looking {
    ends: Arc<Ends>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Ends {
    came: Mutex<bool>,
    changed: Condvar,
}

impl Ends {
    /// Whether the end comes within this time.
    fn within(&self, time: Duration) -> bool {
        let came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(came, time, |came| !*came);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Shared {
    pub(crate) fn begin_to_look(self: &Arc<Self>) -> Looking {
        let mut looking = Looking { ends: Arc::default(), threads: Vec::new() };
        let shared = self.clone();
        looking.begin("fby-file", "at the pool's file", LOOK, move || shared.look_at_file());
        // A file system may hang that an origin lies on.
        let shared = self.clone();
        looking.begin("fby-watch", "at origins", LOOK, move || shared.warn_of_changes());
        // It may ask an origin that hangs, and the end waits so long for no origin.
        let shared = self.clone();
        looking.begin("fby-retry", "for what services lack", RETRY, move || {
            shared.lacking().iter().for_each(|service| service.retry(shared.pool()));
        });
        let (shared, mut told) = (self.clone(), Told::default());
        looking.begin("fby-look", "at the pool", LOOK, move || told.look(shared.pool()));
        looking
    }
}

impl Looking {
    fn begin(
        &mut self,
        name: &str,
        at: &str,
        between: Duration,
        mut look: impl FnMut() + Send + 'static,
    ) {
        let ends = self.ends.clone();
        let work = move || {
            while !ends.within(between) {
                look();
            }
        };
        match Builder::new().name(name.into()).spawn(work) {
            Ok(thread) => self.threads.push(thread),
            Err(e) => warn(format_args!("no thread looks {at}: {e}")),
        }
    }

    /// No further look begins.  The threads of those that have begun may wait for a disk.
    pub fn end(self) -> Vec<JoinHandle<()>> {
        *self.ends.came.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.changed.notify_all();
        self.threads
    }
}
