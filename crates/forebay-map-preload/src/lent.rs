// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lends the rights of the process to threads that have given up theirs.
//!
//! A program may act as another user in a thread (setfsuid, setresuid by syscall(2)), give up
//! capabilities (capset), or act as another user for a while (seteuid).  With an open descriptor the
//! kernel lets it go on.  But the mark of the file, its lease and more room need rights of the
//! thread that asks ([`rights`]).  A thread that was made when the pool was opened has those of the
//! process, and makes a thread for each such piece of work.
//!
//! The C library changes the user of that thread together with all others (setuid).  So a program
//! that gives up its user for good has none of its rights left here (`users.rs`).

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};

use forebay_map::rights::{self, Lender, Opener};

use crate::lease;
use crate::masks;
use crate::planted::{self, Planted};
use crate::real::process;
use crate::signals::hold;
use crate::state::{self, inside, lock};
use crate::who::{self, Who};

/// The desk of a process.
static DESK: Mutex<Option<(i32, Sender<Job>)>> = Mutex::new(None);

thread_local! {
    /// Set in a thread that works with the rights of the process.
    static HAS_THEM: Cell<bool> = const { Cell::new(false) };
}

/// Work for a thread with the rights of the process.
struct Job {
    opener: Option<Who>,
    run: *mut (dyn FnMut() + Send),
    done: SyncSender<()>,
}

// SAFETY: who has made it waits until it is done or dropped.
unsafe impl Send for Job {}

impl Job {
    fn run(self) {
        let _ = HAS_THEM.try_with(|has| has.set(true));
        inside(|| {
            let _acts = Who::acts(self.opener);
            // SAFETY: who has made it waits meanwhile.
            unsafe { (*self.run)() }
        });
        let _ = self.done.send(());
        let _ = HAS_THEM.try_with(|has| has.set(false));
    }
}

/// At the start of the program.
pub fn register() {
    let (of_thread, users, may_differ) = (who::opener, who::openers, who::differs);
    rights::lend_by(Lender { begin, of_thread, users, may_differ, lend });
}

/// Starts the thread that lends.  The caller has blocked signals, and the new thread inherits that.
fn begin() -> io::Result<()> {
    let mut desk = lock(&DESK);
    if desk.as_ref().is_none_or(|(of, _)| *of != process()) {
        let (send, jobs) = channel();
        std::thread::Builder::new().name("map-rights".into()).spawn(move || serve(&jobs))?;
        // A parent's thread may have held a lock of the channel at the fork.
        std::mem::forget(desk.replace((process(), send)));
    }
    Ok(())
}

fn serve(jobs: &Receiver<Job>) {
    lease::block_all_but(lease::IDENTITY | masks::FAULTS);
    // A piece of work may wait for a disk, and the next one must not wait for that.
    while let Ok(job) = jobs.recv() {
        let job = Arc::new(Mutex::new(Some(job)));
        let theirs = Arc::clone(&job);
        let work = move || {
            let job = lock(&theirs).take();
            job.into_iter().for_each(Job::run);
        };
        let made = inside(|| std::thread::Builder::new().name("map-rights-job".into()).spawn(work));
        if made.is_err() {
            // The process may have no more threads.
            let job = lock(&job).take();
            job.into_iter().for_each(Job::run);
        }
    }
}

fn lend(opener: Option<Opener>, f: &mut (dyn FnMut() + Send)) {
    if HAS_THEM.try_with(Cell::get).unwrap_or(false) {
        return f();
    }
    if state::is_elsewhere() || planted::is(Planted::AsOtherUser) {
        return;
    }
    let _busy = hold();
    let (done, is_done) = sync_channel(1);
    let f: *mut (dyn FnMut() + Send + '_) = f;
    // SAFETY: the two types differ in the lifetime alone, and this function waits for the end of
    // the work.
    let run: *mut (dyn FnMut() + Send + 'static) = unsafe { std::mem::transmute(f) };
    let job = Job { opener: opener.map(Who::from), run, done };
    let desk =
        lock(&DESK).as_ref().filter(|(of, _)| *of == process()).map(|(_, desk)| desk.clone());
    if desk.is_some_and(|desk| desk.send(job).is_ok()) {
        // An error: the work was dropped.
        let _ = is_done.recv();
    }
}
