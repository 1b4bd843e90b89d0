// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the library consistent across a fork, so that the child has a working copy.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;

use crate::signals::{self, hold};
use crate::{ending, kept, private, state, tending, which};

/// The locks that no other thread may hold during a fork: the child has the state whole and
/// unlocked, and none of those threads.  The holder of such a lock takes no other one, so they
/// are taken here in any order.  `OPEN` and the locks of a file are not among them: a child of
/// a process that has files open uses none of them.
struct Unchanged {
    _state: state::Unchanged,
    _kept: MutexGuard<'static, ()>,
    _lists: tending::Lists,
    _descriptors: MutexGuard<'static, Option<which::Proc>>,
    _private: MutexGuard<'static, Vec<private::One>>,
}

thread_local! {
    /// Set by the thread that forks until the fork is done.
    static FORKS: Cell<Option<ManuallyDrop<Unchanged>>> = const { Cell::new(None) };
}

/// The child has only this thread, and the memory as it is now.
extern "C" fn before_fork() {
    std::mem::forget(hold());
    let unchanged = Unchanged {
        _state: state::unchanged(),
        _kept: kept::unchanged(),
        _lists: tending::unchanged(),
        _descriptors: which::unchanged(),
        _private: private::unchanged(),
    };
    let _ = FORKS.try_with(|forks| forks.set(Some(ManuallyDrop::new(unchanged))));
    crate::MEMORY.stop();
}

/// Runs in the parent and in the child.
fn let_change() {
    crate::MEMORY.go_on();
    let unchanged = FORKS.try_with(Cell::take).ok().flatten();
    drop(unchanged.map(ManuallyDrop::into_inner));
}

extern "C" fn after_fork() {
    let_change();
    signals::let_go();
}

extern "C" fn in_child() {
    let_change();
    ending::in_child();
    state::in_child();
    signals::let_go();
}

/// Registers the handlers at the start of the program.  This comes before the engine's own
/// registration, so these handlers run while the engine holds forks back.  The engine holds them
/// back before it opens a descriptor.
pub fn start() -> Result<(), String> {
    // SAFETY: the handlers only take locks and store to places of ours.
    match unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) } {
        0 => Ok(()),
        errno => Err(format!("pthread_atfork: {}", std::io::Error::from_raw_os_error(errno))),
    }
}
