// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a mount.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay::Pages;

use super::{clear_failed, session_error, Mount, Shown};
use crate::known;
use crate::rights;

/// Starts a thread of this name.
pub(super) type StartThread<'s> =
    dyn FnMut(&'static str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> + 's;

pub(super) fn start_thread(
    name: &'static str,
    run: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

impl Mount {
    /// Starts the threads, and last the one that answers requests.  If one cannot be started, no
    /// program was answered, and the session has ended.
    pub(super) fn spawn(
        &self,
        shown: Shown,
        pages: Pages,
        start_thread: &mut StartThread<'_>,
    ) -> io::Result<()> {
        let helpers = shown.helpers.clone();
        self.spawn_all(shown, pages, start_thread).inspect_err(|_| {
            helpers.close();
            self.cut_down();
            if let Some(known) = &self.known {
                known.abort();
            }
            self.ended.set();
        })
    }

    fn spawn_all(
        &self,
        shown: Shown,
        mut pages: Pages,
        start_thread: &mut StartThread<'_>,
    ) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, helpers) = (self.live.clone(), shown.helpers.clone());
        // A wait for the session includes the helpers.
        let lead = move || {
            rights::prepare(live.tree().is_remote());
            drop(live);
            helpers.lead();
        };
        start_thread("mount-helpers", Box::new(lead))?;
        let live = self.live.clone();
        threads.push(start_thread("mount-sync", Box::new(move || live.background()))?);
        let (live, ended) = (self.live.clone(), self.ended.clone());
        let (known, mountpoint) = (self.known.clone(), self.mountpoint.clone());
        let beat = move || {
            let second = Duration::from_secs(1);
            // A mount that is abandoned may be in use for longer than it is served.
            while !ended.is_set() && live.beat() {
                ended.wait(second);
                if let Some(known) = &known {
                    known.find_control(&mountpoint);
                }
            }
        };
        threads.push(start_thread("mount-beat", Box::new(beat))?);
        let finishing = self.finishing.clone();
        let map = move || {
            while !finishing.load(Ordering::Relaxed) && pages.map_next() {
                // This limits the work to a fifth of a CPU.
                thread::sleep(Duration::from_micros(200));
            }
        };
        threads.push(start_thread("mount-pages", Box::new(map))?);
        let (live, ended) = (self.live.clone(), self.ended.clone());
        let (known, mountpoint) = (self.known.clone(), self.mountpoint.clone());
        let (failure, cuts_off) = (self.session_failure.clone(), self.cuts_off.clone());
        let begun = self.begun.clone();
        let serve = move || {
            // The threads that answer requests inherit from this one.
            let _ = shown.acts.set(rights::prepare(live.tree().is_remote()));
            drop(live);
            let aborted = Arc::new(OnceLock::new());
            let (of, at) = (known.clone(), mountpoint.clone());
            let own = cuts_off.clone();
            let look = move || known::is_aborted(of.as_deref(), &own, &at);
            let seen = aborted.clone();
            // Runs when the threads have ended: the session then unmounts a mount made by
            // fusermount3.
            let _ = shown.at_end.set(Box::new(move || {
                let _ = seen.set(look());
            }));
            let ran = shown.session.run();
            let reported = known::was_aborted(&ran) && !cuts_off.load(Ordering::Relaxed);
            if reported || aborted.get().copied().unwrap_or(ran.is_err()) {
                let cause = clear_failed(ran, known.as_deref(), &mountpoint);
                if begun.load(Ordering::Relaxed) {
                    let told = session_error(&mountpoint, &cause);
                    forebay::diagnostics::warn(format_args!("forebay: {told}"));
                }
                let _ = failure.set(cause);
            }
            // All requested work is done.
            shown.helpers.wait();
            ended.set();
        };
        threads.push(start_thread("mount-fuse", Box::new(serve))?);
        Ok(())
    }
}
