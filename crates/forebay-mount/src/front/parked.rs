// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that wait for the disk of the log.
//!
//! An answer is made when its entry is durable, and needs no thread until then.  The first thread
//! whose entry is not durable waits for it, which is quickest for a single program.  While it
//! waits, others leave their answers here and read the next request, so that the entries of many
//! programs share a write of the disk.  The thread that waits makes the answers of those that one
//! write made durable, and then waits for the next one that is left.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rooms;
use crate::tree::Result;

/// Something that becomes durable.
pub(crate) trait Awaited: Send {
    /// A request with a lower number is durable no later.
    fn number(&self) -> u64;
    /// A wait would return at once.
    fn is_settled(&self) -> bool;
    fn wait(self) -> Result<()>;
}

type Done = Box<dyn FnOnce(Result<()>) + Send>;

struct Answer<A> {
    awaited: A,
    done: Done,
}

impl<A: Awaited> Answer<A> {
    fn make(self) {
        let Answer { awaited, done } = self;
        let done = move || done(awaited.wait());
        // A reply that is dropped is EIO, and the other answers must be made.
        let _ = catch_unwind(AssertUnwindSafe(done));
    }
}

pub(crate) struct Parked<A>(Mutex<State<A>>);

struct State<A> {
    /// A thread waits, and will look for answers before it goes.
    waits: bool,
    answers: Vec<Answer<A>>,
}

impl<A> Default for Parked<A> {
    fn default() -> Self {
        Parked(Mutex::new(State { waits: false, answers: Vec::new() }))
    }
}

impl<A: Awaited> Parked<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the answer when it is durable: now, on this thread after a wait, or on another one.
    pub fn answer(&self, awaited: A, done: impl FnOnce(Result<()>) + Send + 'static) {
        if awaited.is_settled() {
            return done(awaited.wait());
        }
        let answer = Answer { awaited, done: Box::new(done) };
        {
            let mut state = self.lock();
            if state.waits {
                state.answers.push(answer);
                return;
            }
            state.waits = true;
        }
        let _slot = rooms::replies_and_waits();
        let mut next = Some(answer);
        while let Some(answer) = next {
            answer.make();
            next = self.make_settled();
        }
    }

    /// Makes the answers that are settled.  Returns the one that is settled next; `None`: there
    /// is none, and this thread waits no more.
    fn make_settled(&self) -> Option<Answer<A>> {
        loop {
            let settled = {
                let mut state = self.lock();
                let all = std::mem::take(&mut state.answers).into_iter();
                let (settled, left): (Vec<_>, Vec<_>) =
                    all.partition(|answer| answer.awaited.is_settled());
                state.answers = left;
                if settled.is_empty() {
                    let numbers = state.answers.iter().map(|answer| answer.awaited.number());
                    let next = numbers.enumerate().min_by_key(|(_, number)| *number);
                    let next = next.map(|(at, _)| state.answers.remove(at));
                    state.waits = next.is_some();
                    return next;
                }
                settled
            };
            settled.into_iter().for_each(Answer::make);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{mpsc, Arc, Condvar};
    use std::thread;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(60);

    /// A disk that makes durable what the test says.
    #[derive(Default)]
    struct Disk {
        /// The last number that is durable, and how many wait.
        state: Mutex<(u64, u64)>,
        changed: Condvar,
    }

    impl Disk {
        fn durable(&self, number: u64) {
            self.state.lock().unwrap().0 = number;
            self.changed.notify_all();
        }

        fn has_waiting(&self, many: u64) {
            let state = self.state.lock().unwrap();
            let (_state, late) =
                self.changed.wait_timeout_while(state, SOON, |s| s.1 != many).unwrap();
            assert!(!late.timed_out(), "{many} do not wait");
        }
    }

    struct Entry(Arc<Disk>, u64);

    impl Awaited for Entry {
        fn number(&self) -> u64 {
            self.1
        }

        fn is_settled(&self) -> bool {
            self.1 <= self.0.state.lock().unwrap().0
        }

        fn wait(self) -> Result<()> {
            let mut state = self.0.state.lock().unwrap();
            state.1 += 1;
            self.0.changed.notify_all();
            let mut state = self.0.changed.wait_while(state, |s| s.0 < self.1).unwrap();
            state.1 -= 1;
            self.0.changed.notify_all();
            Ok(())
        }
    }

    /// The thread that waits makes its own reply and those of others.  It has its slot all the time.
    #[test]
    fn who_waits_for_others_keeps_the_slot() {
        let (disk, parked) = (Arc::<Disk>::default(), Arc::<Parked<Entry>>::default());
        let rooms = Arc::new(rooms::Rooms::new(1, true));
        let (first, at) = (Entry(disk.clone(), 1), rooms.clone());
        let (of, replied) = (parked.clone(), mpsc::channel());
        let waits = thread::spawn(move || {
            let _here = at.here().expect("a slot");
            of.answer(first, move |_| {
                rooms::replies();
                replied.0.send(()).unwrap();
            });
        });
        disk.has_waiting(1);
        parked.answer(Entry(disk.clone(), 2), |_| rooms::replies());
        disk.durable(1);
        replied.1.recv_timeout(SOON).expect("the first reply");
        disk.has_waiting(1);
        assert!(rooms.here().is_none(), "it waits for the second without a slot");
        disk.durable(2);
        waits.join().unwrap();
        assert!(rooms.here().is_some(), "the slot is never released");
    }

    /// One thread waits, all others return at once, and no answer is made too early or lost.
    #[test]
    fn one_thread_waits_for_all() {
        let (disk, parked) = (Arc::<Disk>::default(), Arc::<Parked<Entry>>::default());
        let (tell, told) = mpsc::channel();
        let answer = |number: u64| {
            let (parked, disk, tell) = (parked.clone(), disk.clone(), tell.clone());
            thread::spawn(move || {
                parked.answer(Entry(disk, number), move |done| {
                    assert_eq!(done, Ok(()));
                    if number == 4 {
                        panic!("an answer that is lost, which is on purpose");
                    }
                    let _ = tell.send(number);
                });
            })
        };
        let first = answer(1);
        disk.has_waiting(1);
        for number in 2..=6 {
            answer(number).join().expect("it does not wait");
        }
        assert!(told.try_recv().is_err(), "nothing is durable");
        disk.durable(3);
        for number in 1..=3 {
            assert_eq!(told.recv_timeout(SOON), Ok(number));
        }
        disk.has_waiting(1);
        assert!(told.try_recv().is_err() && !first.is_finished());
        disk.durable(6);
        for number in [5, 6] {
            assert_eq!(told.recv_timeout(SOON), Ok(number));
        }
        first.join().expect("the one that waits");
        // The next one finds nobody that waits.
        let next = answer(7);
        disk.has_waiting(1);
        disk.durable(7);
        assert_eq!(told.recv_timeout(SOON), Ok(7));
        next.join().expect("the next one");
        answer(7).join().expect("what is durable");
        assert_eq!(told.recv_timeout(SOON), Ok(7));
    }

    /// Answers are left in another order than that of their entries.
    #[test]
    fn an_answer_that_is_durable_waits_for_none_that_is_not() {
        let (disk, parked) = (Arc::<Disk>::default(), Arc::<Parked<Entry>>::default());
        let (tell, told) = mpsc::channel();
        let answer = |number: u64| {
            let (parked, disk, tell) = (parked.clone(), disk.clone(), tell.clone());
            thread::spawn(move || {
                parked.answer(Entry(disk, number), move |_| {
                    let _ = tell.send(number);
                });
            })
        };
        let first = answer(1);
        disk.has_waiting(1);
        for number in [5, 3, 4, 2] {
            answer(number).join().expect("it does not wait");
        }
        for durable in 1..=5 {
            disk.durable(durable);
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(durable));
        }
        first.join().expect("the one that waits");
    }
}
