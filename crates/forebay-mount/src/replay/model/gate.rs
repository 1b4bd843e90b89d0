// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds one operation between two of its changes of the tree, while another one runs.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// So many changes are left before this thread is held.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static WHO: Cell<Who> = const { Cell::new(Who::Alone) };
}

/// The one whose operation makes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Alone,
    /// The one that is held.
    First,
    Second,
}

impl Who {
    /// The one whose changes this thread makes.
    pub fn now() -> Who {
        WHO.get()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Shut,
    /// The first is held, or it has ended.
    Reached,
    Open,
}

#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(State) -> bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(state, |state| !until(*state)));
    }

    /// Before each change of the tree.
    pub fn pass(&self) {
        let left = LEFT.get();
        LEFT.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) {
            self.set(State::Reached);
            self.wait(|state| state == State::Open);
        }
    }

    /// Runs the first up to so many changes, and then the second.  The first goes on when the second
    /// has ended, or waits for it.
    pub fn run<A: Send, B: Send>(
        &self,
        changes: usize,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        const WAITS: Duration = Duration::from_millis(20);
        self.set(State::Shut);
        std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                LEFT.set(Some(changes));
                WHO.set(Who::First);
                let done = first();
                // It may have fewer changes.
                if LEFT.take().is_some() {
                    self.set(State::Reached);
                }
                done
            });
            self.wait(|state| state == State::Reached);
            let (ended, told) = std::sync::mpsc::channel();
            let second = scope.spawn(move || {
                WHO.set(Who::Second);
                let done = second();
                let _ = ended.send(());
                done
            });
            let _ = told.recv_timeout(WAITS);
            self.set(State::Open);
            (first.join().unwrap(), second.join().unwrap())
        })
    }
}
