// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is an origin, alone, all of its volume?  As every host of the engine decides it:
//! host/drained.h.

use forebay_sys as sys;

/// The first that holds, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    RecordDamaged,
    OriginChanged,
    LostEntries,
    LostBlocks,
    NotAttached,
    OriginFails,
    Cached,
    /// It is not known how much the pool holds.
    Unknown,
    Whole,
}

/// Judges by all facts that matter.
pub fn judge(of: &sys::fby_complete) -> Completeness {
    // SAFETY: a plain computation.
    match unsafe { sys::fby_complete_judge(of) } {
        sys::FBY_IS_RECORD_DAMAGED => Completeness::RecordDamaged,
        sys::FBY_IS_ORIGIN_CHANGED => Completeness::OriginChanged,
        sys::FBY_IS_LOST_ENTRIES => Completeness::LostEntries,
        sys::FBY_IS_LOST_BLOCKS => Completeness::LostBlocks,
        sys::FBY_IS_NOT_ATTACHED => Completeness::NotAttached,
        sys::FBY_IS_ORIGIN_FAILS => Completeness::OriginFails,
        sys::FBY_IS_CACHED => Completeness::Cached,
        sys::FBY_IS_WHOLE => Completeness::Whole,
        _ => Completeness::Unknown,
    }
}
