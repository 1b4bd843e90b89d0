// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a log's entries (`core/log/log_order.c`).

use std::ffi::c_void;

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

/// What the callback of a replay says of an entry: `FBY_LOG_REPLAYED`, `_APPLIED`,
/// `_DAMAGED` or `_STOP`.
pub type Verdict<'a> = &'a mut dyn FnMut(&Node, &Position) -> u32;

/// # Safety
/// `arg` is a living `Verdict`, and both pointers are valid for the call.
pub(crate) unsafe extern "C" fn trampoline(
    arg: *mut c_void,
    node: *const Node,
    next: *const Position,
) -> u32 {
    // SAFETY: the caller, which is the engine for who handed `arg` over, vouches for it.
    unsafe { (*arg.cast::<Verdict>())(&*node, &*next) }
}

pub fn replay(at: &mut Position, nodes: &[Node], mut verdict: Verdict) -> Outcome {
    let (mut nodes, mut outcome) = (nodes.to_vec(), Outcome::default());
    // SAFETY: as many nodes as said, and the callback's argument outlives the call.
    unsafe {
        sys::fby_log_replay_order(
            at,
            nodes.as_mut_ptr(),
            nodes.len() as u64,
            trampoline,
            (&raw mut verdict).cast(),
            &mut outcome,
        );
    }
    outcome
}
