// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lends the rights of the process to threads that have given up theirs.
//!
//! A program may act as another user in a thread (setfsuid, setresuid by syscall(2)), give up
//! capabilities (capset), or act as another user for a while (seteuid).  With an open descriptor the
//! kernel lets it go on.  But the mark of the file, its lease and more room need rights of the
//! thread that asks ([`rights`]).  Threads that were made when the pool was opened have those of the
//! process, and do such work.
//!
//! One of them is always there, and who waits for work never waits for a thread to be made.  To make
//! one needs a lock and memory of the C library.  A thread of the program may have both while it
//! waits for this one (setuid in all threads), or was interrupted by the handler that asks.  So the
//! work is handed over first.  After that the next thread is made, in case the work takes long.
//!
//! The C library changes the user of these threads together with all others (setuid).  So a program
//! that gives up its user for good has none of its rights left here (`users.rs`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forebay_map::rights::{self, Lender, Opener};

use crate::futex;
use crate::lease;
use crate::masks;
use crate::planted::{self, Planted};
use crate::real::process;
use crate::signals::hold;
use crate::state::{self, inside, lock};
use crate::who::{self, Who};

/// The desk of this process.
static DESK: Mutex<Option<Arc<Desk>>> = Mutex::new(None);
/// The most threads that wait for work.
const IDLE: usize = 2;
/// How long after a failure to try again to make a thread.
const AGAIN: Duration = Duration::from_millis(100);
/// The signals of a thread that does no work.
const BETWEEN: u64 = lease::IDENTITY | masks::FAULTS;

thread_local! {
    /// Set in a thread that works with the rights of the process.
    static HAS_THEM: Cell<bool> = const { Cell::new(false) };
}

/// Work for a thread with the rights of the process.
struct Job {
    opener: Option<Who>,
    run: *mut (dyn FnMut() + Send),
    /// 1: it is done.
    done: Arc<AtomicU32>,
}

// SAFETY: who has made it waits until it is done.
unsafe impl Send for Job {}

impl Job {
    /// Whom the thread acts as meanwhile.
    fn actor(&self) -> Option<Who> {
        static FIRST: OnceLock<Option<Who>> = OnceLock::new();
        if planted::is(Planted::RightsKept) {
            return *FIRST.get_or_init(|| self.opener);
        }
        self.opener.filter(|_| !planted::is(Planted::RightsOfProcess))
    }

    fn run(self) {
        let _ = HAS_THEM.try_with(|has| has.set(true));
        inside(|| {
            let _acts = Who::acts(self.actor());
            // SAFETY: who has made it waits meanwhile.
            unsafe { (*self.run)() }
        });
        let _ = HAS_THEM.try_with(|has| has.set(false));
        self.done.store(1, Ordering::SeqCst);
        futex::wake(&self.done, 1);
    }
}

/// At the start of the program.
pub fn register() {
    let (of_thread, users, may_differ) = (who::opener, who::openers, who::differs);
    rights::lend_by(Lender { begin, of_thread, users, may_differ, lend });
}

/// Queue of the work for the threads.  It is no channel: a thread that waits for one has the C
/// library allocate.
struct Desk {
    of: i32,
    state: Mutex<State>,
    /// There is work.
    given: Condvar,
    /// All threads work.
    wanted: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    /// The number of threads that wait for work, or are being made.
    idle: usize,
    /// There will be no work.
    is_given_up: bool,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a thread that works.
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let desk = Arc::clone(self);
        self.state().idle += 1;
        let work = move || desk.work();
        let made = std::thread::Builder::new().name("map-rights-job".into()).spawn(work);
        if made.is_err() {
            self.state().idle -= 1;
        }
        made.map(drop)
    }

    fn give(&self, job: Job) {
        self.state().jobs.push_back(job);
        self.given.notify_one();
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        while !state.is_given_up {
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                if state.idle == 0 {
                    self.wanted.notify_one();
                }
                return Some(job);
            }
            state = self.given.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn work(&self) {
        lease::block_all_but(BETWEEN);
        while let Some(job) = self.next() {
            // If the C library changes the user of all threads, this one's changes after the work.
            // It has another one now.
            lease::block_all_but(masks::FAULTS);
            if planted::is(Planted::WorkWaits) {
                let _ = std::thread::Builder::new().spawn(|| ());
            }
            job.run();
            lease::block_all_but(BETWEEN);
            let mut state = self.state();
            if state.idle >= IDLE {
                return;
            }
            state.idle += 1;
        }
    }

    /// Makes a thread when all others work.
    fn keep(self: &Arc<Self>) {
        lease::block_all_but(BETWEEN);
        loop {
            let mut state = self.state();
            while state.idle > 0 {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            if inside(|| self.start()).is_err() {
                // The process may have no more threads.  Work waits for the others meanwhile.
                std::thread::sleep(AGAIN);
            }
        }
    }
}

/// Starts the threads that lend.  The caller has blocked signals, and the new threads inherit that.
fn begin() -> io::Result<()> {
    let mut desk = lock(&DESK);
    if desk.as_ref().is_none_or(|desk| desk.of != process()) {
        let state = Mutex::new(State { jobs: VecDeque::new(), idle: 0, is_given_up: false });
        let (given, wanted) = (Condvar::new(), Condvar::new());
        let new = Arc::new(Desk { of: process(), state, given, wanted });
        new.start()?;
        let keeper = Arc::clone(&new);
        let keep = move || keeper.keep();
        if let Err(e) = std::thread::Builder::new().name("map-rights".into()).spawn(keep) {
            new.state().is_given_up = true;
            new.given.notify_all();
            return Err(e);
        }
        // A parent's thread may have held a lock of its desk at the fork.
        std::mem::forget(desk.replace(new));
    }
    Ok(())
}

fn lend(opener: Option<Opener>, f: &mut (dyn FnMut() + Send)) {
    if HAS_THEM.try_with(Cell::get).unwrap_or(false) {
        return f();
    }
    if state::is_elsewhere() || planted::is(Planted::AsOtherUser) {
        return;
    }
    let _busy = hold();
    let desk = lock(&DESK).as_ref().filter(|desk| desk.of == process()).cloned();
    let Some(desk) = desk else { return };
    let done = Arc::new(AtomicU32::new(0));
    let f: *mut (dyn FnMut() + Send + '_) = f;
    // SAFETY: the two types differ in the lifetime alone, and this function waits for the end of
    // the work.
    let run: *mut (dyn FnMut() + Send + 'static) = unsafe { std::mem::transmute(f) };
    desk.give(Job { opener: opener.map(Who::from), run, done: Arc::clone(&done) });
    while done.load(Ordering::SeqCst) == 0 {
        futex::wait(&done, 0);
    }
}
