// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads for what may wait: for other requests of the kernel, or for the tree.
//!
//! The threads that read the kernel's requests are few.  One that waits for another request to be
//! answered would wait for itself.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

/// As many threads as there is work at once.
#[derive(Clone, Default)]
pub(super) struct Helpers(Arc<Shared>);

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        write!(f, "Helpers {{ jobs: {}, idle: {} }}", state.jobs.len(), state.idle)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (now, waited) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = now;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                return;
            }
        }
    }
}

impl Helpers {
    /// Runs it on another thread; where none can be had, here.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() <= state.idle {
            return self.0.more.notify_one();
        }
        drop(state);
        let shared = self.0.clone();
        let name = "mount-helper".to_string();
        if thread::Builder::new().name(name).spawn(move || shared.work()).is_err() {
            let job = self.0.lock().jobs.pop_back();
            if let Some(job) = job {
                job();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_job_that_waits_keeps_no_other() {
        let helpers = Helpers::default();
        let (tell, told) = mpsc::channel();
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let (go, wait) = mpsc::channel::<()>();
            let tell = tell.clone();
            helpers.run(move || {
                let _ = wait.recv();
                let _ = tell.send(false);
            });
            waiting.push(go);
        }
        let done = tell.clone();
        helpers.run(move || {
            let _ = done.send(true);
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
        drop(waiting);
        for _ in 0..20 {
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(false));
        }
    }
}
