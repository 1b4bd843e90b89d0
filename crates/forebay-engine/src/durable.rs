// SPDX-License-Identifier: MIT OR Apache-2.0
//! When writes to a block device are durable.

use forebay_sys as sys;

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// When it has ended.
    Through,
    /// When it has ended, since it has FUA.
    Fua,
    /// When a flush that was sent after its end has succeeded.
    Flush,
}

impl Durable {
    pub(crate) fn number(self) -> u32 {
        match self {
            Durable::Through => sys::FBY_DURABLE_THROUGH,
            Durable::Fua => sys::FBY_DURABLE_FUA,
            Durable::Flush => sys::FBY_DURABLE_FLUSH,
        }
    }
}

/// How a call of persist ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persisted {
    Done,
    WriteFailed,
    /// Requests that had ended before and were not durable may be lost.
    FlushFailed,
}
