// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate mistakes of the marks, one at a time, that their tests have to find.

use std::sync::atomic::{AtomicU32, Ordering};

macro_rules! bugs {
    ($($name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Bug { $($name),* }
        pub(crate) const ALL: &[Bug] = &[$(Bug::$name),*];
    };
}

bugs! {
    NeverSet,
    NotSynced,
    NotCounted,
    SetNotCounted,
    ClearedTooEarly,
    FlagStays,
    FailureForgotten,
    PerhapsForgotten,
    OtherPoolTaken,
    OtherHostTaken,
    OlderCopyTaken,
    OlderOriginTaken,
    NotExact,
    NeverAdvanced,
    GoneNotCounted,
    UnsetNumberSkipped,
    OtherLifeTaken,
    LifeNotNamed,
    MissingTaken,
    DamagedIsNothing,
    ChecksumIgnored,
}

/// 0: none.
static PLANTED: AtomicU32 = AtomicU32::new(0);

/// Until it is dropped.
pub(crate) struct Planted;

pub(crate) fn plant(bug: Bug) -> Planted {
    PLANTED.store(bug as u32 + 1, Ordering::SeqCst);
    Planted
}

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.store(0, Ordering::SeqCst);
    }
}

pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.load(Ordering::SeqCst) == bug as u32 + 1
}
