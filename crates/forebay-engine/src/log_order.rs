// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a log's entries (`core/log/log_order.c`).

use std::any::Any;
use std::ffi::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use forebay_sys as sys;
pub use forebay_sys::{
    fby_log_node as Node, fby_log_position as Position, fby_log_result as Outcome,
};

/// The next entry; or `FBY_LOG_x`, why there can be none.
pub fn append(at: &mut Position, txg: u64, new_generation: bool) -> Result<Node, u32> {
    let mut node = Node::default();
    // SAFETY: both are valid for the call.
    match unsafe { sys::fby_log_append_order(at, txg, new_generation, &mut node) } {
        sys::FBY_LOG_OK => Ok(node),
        refusal => Err(refusal),
    }
}

pub fn sync(at: &mut Position, txg: u64) -> Result<(), u32> {
    // SAFETY: `at` is valid for the call.
    match unsafe { sys::fby_log_sync_order(at, txg) } {
        sys::FBY_LOG_OK => Ok(()),
        refusal => Err(refusal),
    }
}

pub fn claim(synced: u64, nodes: &[Node]) -> Position {
    let (mut at, mut nodes) = (Position::default(), nodes.to_vec());
    // SAFETY: as many nodes as said.
    unsafe { sys::fby_log_claim_order(&mut at, synced, nodes.as_mut_ptr(), nodes.len() as u64) };
    at
}

/// The callback's verdict on an entry of a replay: `FBY_LOG_REPLAYED`, `_APPLIED`, `_DAMAGED`
/// or `_STOP`.
pub type Verdict<'a> = &'a mut dyn FnMut(&Node, &Position) -> u32;

/// The state for the callback that C calls during a replay.  A panic ends the replay, and
/// continues after it: nothing unwinds through C.
struct Guarded<'a> {
    verdict: Verdict<'a>,
    panic: Option<Box<dyn Any + Send>>,
}

/// `call` gets the callback and its argument, and hands both to the engine.
pub(crate) fn guarded<T>(
    verdict: Verdict<'_>,
    call: impl FnOnce(sys::fby_log_replay_fn, *mut c_void) -> T,
) -> T {
    let mut guarded = Guarded { verdict, panic: None };
    let done = call(trampoline, (&raw mut guarded).cast());
    match guarded.panic {
        Some(panic) => resume_unwind(panic),
        None => done,
    }
}

/// # Safety
/// `arg` is a living `Guarded`, and both pointers are valid for the call.
unsafe extern "C" fn trampoline(arg: *mut c_void, node: *const Node, next: *const Position) -> u32 {
    // SAFETY: the caller, which is the engine for who handed `arg` over, vouches for it.
    let (guarded, node, next) = unsafe { (&mut *arg.cast::<Guarded<'_>>(), &*node, &*next) };
    catch_unwind(AssertUnwindSafe(|| (guarded.verdict)(node, next))).unwrap_or_else(|panic| {
        guarded.panic = Some(panic);
        sys::FBY_LOG_STOP
    })
}

pub fn replay(at: &mut Position, nodes: &[Node], verdict: Verdict) -> Outcome {
    let (mut nodes, mut outcome) = (nodes.to_vec(), Outcome::default());
    let (node, n) = (nodes.as_mut_ptr(), nodes.len() as u64);
    guarded(verdict, |callback, arg| {
        // SAFETY: as many nodes as said, and the callback's argument outlives the call.
        unsafe { sys::fby_log_replay_order(at, node, n, callback, arg, &mut outcome) };
    });
    outcome
}
