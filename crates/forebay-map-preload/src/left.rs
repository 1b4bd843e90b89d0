// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resources of calls in which signals arrive as usual.  A handler may leave such a call by siglongjmp,
//! and then nothing of the call is run any more.  So a thread has a list of what its calls hold, and
//! a jump releases what it leaves.

use std::cell::Cell;

/// A resource that a call of a thread holds.
struct One {
    /// An address in the call's frame.
    at: usize,
    /// The handlers that ran already when the call was made.
    handlers: usize,
    what: *mut (),
    drop: unsafe fn(*mut ()),
    next: *mut One,
}

thread_local! {
    /// The last call.
    static LAST: Cell<*mut One> = const { Cell::new(std::ptr::null_mut()) };
}

/// The greatest depth of a call's own calls.
const DEEP: usize = 8 << 20;

/// # Safety
/// It is a box of that type, which nobody uses.
unsafe fn drop_box<T>(what: *mut ()) {
    // SAFETY: the caller guarantees it.
    drop(unsafe { Box::from_raw(what.cast::<T>()) });
}

/// Removes a call from the thread's list.  Returns whether it was there.
fn remove(one: *mut One) -> bool {
    let mut before: *mut One = std::ptr::null_mut();
    let mut at = LAST.get();
    // SAFETY: what is in the list was made by `with`, and is freed after it was removed.
    unsafe {
        while !at.is_null() && at != one {
            (before, at) = (at, (*at).next);
        }
        match (at.is_null(), before.is_null()) {
            (true, _) => return false,
            (_, true) => LAST.set((*at).next),
            (_, false) => (*before).next = (*at).next,
        }
        drop(Box::from_raw(at));
    }
    true
}

/// Runs `f`, in which a handler may jump away: then `what` is dropped.  The caller has handlers held
/// off, and `f` lets them through.  `handlers`: that run in the thread now.
///
/// Returns none of it if it was dropped all the same.
pub fn with<T: 'static, R>(
    what: Box<T>,
    handlers: usize,
    f: impl FnOnce(&T) -> R,
) -> (Option<Box<T>>, R) {
    /// A thread that is cancelled in `f` is unwound.
    struct Unwound<T>(*mut One, *mut T);
    impl<T> Drop for Unwound<T> {
        fn drop(&mut self) {
            if remove(self.0) {
                // SAFETY: it was in the list, so nobody has dropped it.
                drop(unsafe { Box::from_raw(self.1) });
            }
        }
    }
    let at = (&raw const handlers).addr();
    let what = Box::into_raw(what);
    let next = LAST.get();
    let one = One { at, handlers, what: what.cast(), drop: drop_box::<T>, next };
    let one = Box::into_raw(Box::new(one));
    LAST.set(one);
    let unwound = Unwound(one, what);
    // SAFETY: it lives until it is taken from the list.
    let done = f(unsafe { &*what });
    std::mem::forget(unwound);
    // SAFETY: it was in the list, so nobody has dropped it.
    (remove(one).then(|| unsafe { Box::from_raw(what) }), done)
}

/// Whether a call of this thread holds something.
pub fn any() -> bool {
    !LAST.get().is_null()
}

/// Drops what calls hold that a jump leaves.  The caller has handlers held off.  `to`: the stack
/// there.  `handlers`: that still run.  `other`: whether two addresses are in different stacks of
/// the thread.
pub fn leave(to: usize, handlers: usize, other: impl Fn(usize, usize) -> bool) {
    // SAFETY: what is in the list was made by `with`, and nobody else frees it.
    unsafe {
        while let Some(&One { at, handlers: before, what, drop, .. }) = LAST.get().as_ref() {
            // A handler of a fault is in no list, and may jump within itself.
            let is_deeper = to <= at && at - to < DEEP;
            let leaves = handlers < before || handlers == before && !is_deeper && !other(to, at);
            if !leaves || !remove(LAST.get()) {
                return;
            }
            drop(what);
        }
    }
}
