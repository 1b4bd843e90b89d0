// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests for frames and for blocks, and about growth.  They may wait for a file's disk, and a process makes
//! them for all of its files on one connection.  So threads work on them.  A process whose
//! request takes longer is told to ask again, and can ask about other files meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_map::wire::Answer;

use crate::locked::lock;

/// How long a connection waits for the answer to a request that is new.  Most disks answer
/// within this time.
const NEW: Duration = Duration::from_millis(10);
/// How long it waits if the request is asked again.
const AGAIN: Duration = Duration::from_millis(1);
/// How long a failure is kept for a process that asks again.
const FAILED: Duration = Duration::from_secs(1);
/// The most threads that work for one file.
const OF_FILE: usize = 8;
/// The most threads.  A file for which none works gets one nevertheless.
const THREADS: usize = 256;
/// The most requests of a process whose answers are kept for it.
const KEPT: usize = 64;

/// A request: the process, the file, the segment, and whether it is for a frame.  Without a segment
/// that is one about a growth.
pub(crate) type Key = (u64, u32, Option<u64>, bool);

#[derive(Debug)]
enum State {
    /// A thread works on it.
    Work,
    /// A thread works on it, and nobody gets its answer.
    Forgotten,
    /// The answer, which was too late, and the time when it was ready.
    Done(Answer, Instant),
}

type All = BTreeMap<Key, State>;

fn take_done(all: &mut All, key: &Key) -> Option<(Answer, Instant)> {
    if !matches!(all.get(key), Some(State::Done(..))) {
        return None;
    }
    match all.remove(key) {
        Some(State::Done(answer, since)) => Some((answer, since)),
        _ => None,
    }
}

fn is_done(state: &State) -> bool {
    matches!(state, State::Done(..))
}

/// The requests that are being worked on.
#[derive(Debug, Default)]
pub(crate) struct Late {
    all: Mutex<All>,
    done: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Its drop gives the answer, also after a panic.
struct Works {
    late: Arc<Late>,
    key: Key,
    answer: Option<Answer>,
}

impl Drop for Works {
    fn drop(&mut self) {
        let mut all = lock(&self.late.all);
        let forgotten = matches!(all.get(&self.key), Some(State::Forgotten));
        match self.answer.take() {
            Some(answer) if !forgotten => {
                all.insert(self.key, State::Done(answer, Instant::now()));
            }
            _ => drop(all.remove(&self.key)),
        }
        self.late.done.notify_all();
    }
}

impl Late {
    /// Returns the answer, or `Wait`.  If an answer was too late, the work is done again when the
    /// process asks again, which is fast.  The old answer does not count: a frame may have been
    /// reclaimed meanwhile, because the process holds the segment's lock only while it asks.  A
    /// failure is kept, since the disk would have to fail again.
    pub fn answer(
        self: &Arc<Late>,
        key: Key,
        work: impl FnOnce() -> Answer + Send + 'static,
    ) -> Answer {
        let mut all = lock(&self.all);
        if let Some((answer, since)) = take_done(&mut all, &key) {
            if matches!(answer, Answer::Failed { .. }) && since.elapsed() < FAILED {
                return answer;
            }
        }
        let is_new = !all.contains_key(&key);
        if is_new {
            let works = |of: &dyn Fn(&Key) -> bool| {
                all.iter().filter(|(key, state)| !is_done(state) && of(key)).count()
            };
            let of_file = works(&|other| other.1 == key.1);
            if of_file >= OF_FILE || of_file > 0 && works(&|_| true) >= THREADS {
                return Answer::Wait;
            }
            // The process does not ask for these answers any more.
            if all.keys().filter(|other| other.0 == key.0).count() >= KEPT {
                all.retain(|other, state| other.0 != key.0 || !is_done(state));
            }
            let late = Arc::clone(self);
            let mut threads = lock(&self.threads);
            threads.retain(|thread| !thread.is_finished());
            let thread = std::thread::Builder::new().name("fby-map-disk".into());
            let works = move || {
                let mut works = Works { late, key, answer: None };
                works.answer = Some(work());
            };
            // The thread cannot end before the lock is released below.
            let Ok(thread) = thread.spawn(works) else { return Answer::Wait };
            threads.push(thread);
            all.insert(key, State::Work);
        }
        let patience = if is_new { NEW } else { AGAIN };
        let is_at_work = |all: &mut All| all.get(&key).is_some_and(|state| !is_done(state));
        let waited = self.done.wait_timeout_while(all, patience, is_at_work);
        let (mut all, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let failed = matches!(all.get(&key), Some(State::Done(Answer::Failed { .. }, _)));
        let done = if is_new || failed { take_done(&mut all, &key) } else { None };
        done.map_or(Answer::Wait, |(answer, _)| answer)
    }

    /// Forgets the answers for a process that has ended, or about a file that it has left.  This
    /// includes answers that are not ready yet: the file's number may soon belong to another file.
    pub fn forget(&self, who: u64, file: Option<u32>) {
        let mut all = lock(&self.all);
        let of = |key: &Key| key.0 == who && file.is_none_or(|file| key.1 == file);
        all.retain(|key, state| !of(key) || !is_done(state));
        for (_, state) in all.iter_mut().filter(|(key, _)| of(key)) {
            *state = State::Forgotten;
        }
    }

    /// Waits for the threads.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;

    /// Asks as a process does, which asks again.
    fn answered(late: &Arc<Late>, key: Key) -> Answer {
        loop {
            match late.answer(key, || Answer::Done) {
                Answer::Wait => {}
                answer => return answer,
            }
        }
    }

    /// The number of the file that the process has left belongs to another file by then.
    #[test]
    fn an_answer_about_a_file_that_was_left_is_for_nobody() {
        let late = Arc::<Late>::default();
        let (end, ends) = channel::<()>();
        let key = (1, 1, Some(0), true);
        let fails = move || {
            let _ = ends.recv();
            Answer::Failed { refused: false, why: "the old file's disk".into() }
        };
        assert_eq!(late.answer(key, fails), Answer::Wait);
        late.forget(1, Some(1));
        // The first thread still works, and counts as one of the file's threads.
        assert_eq!(late.answer(key, || Answer::Done), Answer::Wait);
        drop(end);
        late.join();
        assert!(lock(&late.all).is_empty(), "the old answer");
        assert_eq!(answered(&late, key), Answer::Done);
    }

    /// Requests about one file wait for its disk.
    #[test]
    fn a_slow_file_holds_up_no_other_and_has_its_threads() {
        let late = Arc::<Late>::default();
        let held: Vec<_> = (0..3 * OF_FILE as u64)
            .map(|segment| {
                let (end, ends) = channel::<()>();
                let work = move || {
                    let _ = ends.recv();
                    match segment {
                        4 => Answer::Failed { refused: false, why: "as ordered".into() },
                        _ => Answer::Number(segment as u32),
                    }
                };
                assert_eq!(late.answer((1, 1, Some(segment), true), work), Answer::Wait);
                end
            })
            .collect();
        assert_eq!(lock(&late.threads).len(), OF_FILE, "threads of one file");
        assert_eq!(answered(&late, (1, 2, Some(0), true)), Answer::Done);
        assert_eq!(answered(&late, (2, 2, Some(0), true)), Answer::Done);
        drop(held);
        late.join();
        assert_eq!(answered(&late, (1, 1, Some(3), true)), Answer::Done, "an old frame");
        let failed = || panic!("it has failed already");
        let told = late.answer((1, 1, Some(4), true), failed);
        assert!(matches!(told, Answer::Failed { .. }), "{told:?}");
        late.forget(1, None);
        assert!(lock(&late.all).is_empty());
        // A thread that panics leaves nothing.
        assert_eq!(late.answer((1, 1, Some(3), true), failed), Answer::Wait);
        late.join();
        assert_eq!(answered(&late, (1, 1, Some(3), true)), Answer::Done);
        // Nobody asks for these answers again.
        for segment in 0..KEPT as u64 {
            lock(&late.all)
                .insert((3, 1, Some(segment), false), State::Done(Answer::Done, Instant::now()));
        }
        assert_eq!(answered(&late, (3, 1, None, false)), Answer::Done);
        assert!(lock(&late.all).is_empty());
    }
}
