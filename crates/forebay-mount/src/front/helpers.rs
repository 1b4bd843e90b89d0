// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads for requests that may wait: for the tree's disk, for space in the pool, or for other
//! requests of the kernel.
//!
//! Only a few threads read the kernel's requests, and the last free one answers none
//! ([`rooms`](super::rooms)), so that one always reads the next request.
//!
//! Helpers have classes.  Each class has its own queue and its own bound, so a wait holds up
//! only its own class.  A class may wait for one that is listed before it, and for none after
//! it.
//!
//! One thread starts all helpers.  So helpers inherit the state of the server, and neither the
//! user nor the CPU of a client that a session's thread has served.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::waiters::MOST_EVER;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);
/// How often a thread is requested again if the system grants none.
const AGAIN: Duration = Duration::from_millis(100);

/// The resource that an answer may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Reads the kernel's caches of the tree.  It waits for nothing, and hands the rest to
    /// another class.
    Cached,
    /// Changes the tree or makes something durable.  It may wait for space in the log, the sync
    /// of the tree, and the tree's disk.
    Changes,
    /// Looks up a name or an attribute.  It may wait for the tree's disk.
    Names,
    /// Reads files and directories.  It may wait for the tree's disk.
    Reads,
    /// Finds data and holes, and waits for write-backs of the kernel, which are changes.
    WriteBacks,
    /// Waits for write-backs too, and then changes names.
    Renames,
}

const CLASSES: usize = 6;
/// The most threads of each class.
const MOST: [usize; CLASSES] = [64, 256, 256, 256, MOST_WRITE_BACKS, 256];
pub(crate) const MOST_WRITE_BACKS: usize = 64;
/// Whatever users withhold from each other, so many helpers are left of each class that waits.
const LEFT: usize = 64;
const _: () = {
    assert!(MOST_EVER + LEFT <= MOST[Class::Changes as usize]);
    assert!(MOST_EVER + LEFT <= MOST[Class::Names as usize]);
    assert!(MOST_EVER + LEFT <= MOST[Class::Reads as usize]);
    assert!(MOST_EVER + LEFT <= MOST[Class::Renames as usize]);
};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that have not taken their first job yet, and threads that wait for one.
    starting: usize,
    idle: usize,
}

impl Queue {
    fn lacks_threads(&self) -> bool {
        self.jobs.len() > self.idle + self.starting
    }
}

#[derive(Default)]
struct State {
    queues: [Queue; CLASSES],
    closed: bool,
}

impl State {
    /// Whether nothing is left and nothing will come.
    fn is_over(&self) -> bool {
        self.closed && self.queues.iter().all(|q| q.jobs.is_empty() && q.threads == 0)
    }

    /// A class that needs one more thread and may have it.
    fn wants(&self) -> Option<usize> {
        (0..CLASSES).find(|&i| self.queues[i].lacks_threads() && self.queues[i].threads < MOST[i])
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A queue has one more job.
    more: [Condvar; CLASSES],
    /// For the thread that starts the others: a thread is needed, or has ended.
    grow: Condvar,
    over: Condvar,
}

/// As many threads as there is concurrent work, up to a bound.
#[derive(Clone, Default)]
pub(crate) struct Helpers(Arc<Shared>);

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        let of = state.queues.iter().map(|q| (q.jobs.len(), q.threads));
        f.debug_list().entries(of).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, class: usize) {
        let mut state = self.lock();
        state.queues[class].starting -= 1;
        loop {
            if let Some(job) = state.queues[class].jobs.pop_front() {
                drop(state);
                // The reply of a dropped job is EIO, and the next job must run.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.queues[class].idle += 1;
            let waited = self.more[class].wait_timeout(state, IDLE);
            let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            state.queues[class].idle -= 1;
            if waited.timed_out() && state.queues[class].jobs.is_empty() {
                break;
            }
        }
        state.queues[class].threads -= 1;
        if state.closed {
            self.grow.notify_one();
            self.over.notify_all();
        }
    }
}

impl Helpers {
    /// Runs a job on another thread.  Never waits.
    pub fn run(&self, class: Class, job: impl FnOnce() + Send + 'static) {
        let class = class as usize;
        let mut state = self.0.lock();
        let queue = &mut state.queues[class];
        queue.jobs.push_back(Box::new(job));
        match queue.lacks_threads() {
            false => self.0.more[class].notify_one(),
            true if queue.threads < MOST[class] => self.0.grow.notify_one(),
            true => {}
        }
    }

    /// Starts helpers when they are needed, until [`Helpers::close`] and the last job.
    pub fn lead(&self) {
        let mut state = self.0.lock();
        while !state.is_over() {
            let Some(class) = state.wants() else {
                state = self.0.grow.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.queues[class].threads += 1;
            state.queues[class].starting += 1;
            drop(state);
            let shared = self.0.clone();
            let named = thread::Builder::new().name("mount-helper".into());
            let started = named.spawn(move || shared.work(class)).is_ok();
            state = self.0.lock();
            if !started {
                state.queues[class].threads -= 1;
                state.queues[class].starting -= 1;
                let waited = self.0.grow.wait_timeout(state, AGAIN);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        self.0.over.notify_all();
    }

    /// Accepts jobs only from present jobs from here on.
    pub fn close(&self) {
        self.0.lock().closed = true;
        self.0.grow.notify_one();
        self.0.more.iter().for_each(Condvar::notify_all);
    }

    /// Waits for the last job after a close.
    pub fn wait(&self) {
        let state = self.0.lock();
        let goes_on = |state: &mut State| state.closed && !state.is_over();
        drop(self.0.over.wait_while(state, goes_on).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(60);

    fn led() -> (Helpers, thread::JoinHandle<()>) {
        let helpers = Helpers::default();
        let leads = helpers.clone();
        (helpers, thread::spawn(move || leads.lead()))
    }

    /// All threads of a class wait, with more jobs than threads.  The other classes go on, and
    /// in the end every job is done.
    #[test]
    fn what_waits_keeps_its_like_alone() {
        const CLASSES: [Class; 4] = [Class::Changes, Class::Names, Class::Reads, Class::WriteBacks];
        for stuck in CLASSES {
            let (helpers, leader) = led();
            let (tell, told) = mpsc::channel();
            let mut waiting = Vec::new();
            let jobs = MOST[stuck as usize] + 20;
            for _ in 0..jobs {
                let (go, wait) = mpsc::channel::<()>();
                let tell = tell.clone();
                helpers.run(stuck, move || {
                    let _ = wait.recv();
                    let _ = tell.send(stuck);
                });
                waiting.push(go);
            }
            for other in CLASSES.into_iter().filter(|other| *other != stuck) {
                let tell = tell.clone();
                helpers.run(other, move || {
                    let _ = tell.send(other);
                });
                assert_eq!(told.recv_timeout(SOON), Ok(other));
            }
            assert!(helpers.0.lock().queues[stuck as usize].threads <= MOST[stuck as usize]);
            drop(waiting);
            for _ in 0..jobs {
                assert_eq!(told.recv_timeout(SOON), Ok(stuck));
            }
            helpers.close();
            helpers.wait();
            leader.join().expect("the leader");
        }
    }

    #[test]
    fn an_idle_thread_is_used_again() {
        let (helpers, leader) = led();
        let (tell, told) = mpsc::channel();
        for _ in 0..100 {
            let tell = tell.clone();
            helpers.run(Class::Reads, move || {
                let _ = tell.send(());
            });
            told.recv_timeout(SOON).expect("an answer");
            while helpers.0.lock().queues[Class::Reads as usize].idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(helpers.0.lock().queues[Class::Reads as usize].threads, 1);
        helpers.close();
        leader.join().expect("the leader");
    }

    /// The end waits for queued jobs, and for the jobs that those add.
    #[test]
    fn the_end_comes_after_the_last_job() {
        let (helpers, leader) = led();
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let more = helpers.clone();
        helpers.run(Class::Names, move || {
            let _ = wait.recv();
            more.run(Class::WriteBacks, move || {
                let _ = tell.send(());
            });
        });
        helpers.run(Class::Names, || panic!("a job that is lost, which is on purpose"));
        helpers.close();
        let waits = helpers.clone();
        let waiter = thread::spawn(move || waits.wait());
        assert!(!leader.is_finished());
        drop(go);
        waiter.join().expect("one who waits");
        assert_eq!(told.try_recv(), Ok(()));
        leader.join().expect("the leader");
    }
}
