// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate mistakes, each of which the tests have to find.  A server that the tests have
//! built takes one from the environment; no other knows the name.

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // only in a build for tests
pub(crate) enum Planted {
    /// Frames are taken from a process that lives: its connection alone has ended.
    TakenFromTheLiving,
    /// Of a process that has died dirty frames are freed, and not brought home.
    DirtyFreed,
    /// What a process has of the pool does not keep its lock.
    LockNotShared,
    /// Files of a process that has died are nobody's before they have been brought home.
    ForgottenEarly,
    /// A process may change what is another's.
    AnyonesFrames,
    /// A frame is given away while its owner has it.
    FrameGivenTwice,
    /// The mark of a file is taken away before its pages are there.
    UnmarkedFirst,
    /// When a file has been brought home, whoever has its number now loses what he has.
    AnotherForgotten,
    /// A process that has died is not a guest of its files any more, whatever it had stored.
    GuestForgotten,
    /// Who does not answer at once counts as having answered.
    AnsweredForTheStopped,
    /// A disk takes a second for an answer, and the connection hears nothing meanwhile.
    SilentSlowDisk,
    /// Not a mistake: the same, and it hears ten times a second that the server is at it.
    SlowDisk,
    /// Not a mistake: frames are released, and files truncated, a second late.
    DoneLate,
}

#[cfg(feature = "planted")]
pub(crate) fn is(mistake: Planted) -> bool {
    use std::sync::OnceLock;
    static NAME: OnceLock<String> = OnceLock::new();
    let name = NAME.get_or_init(|| std::env::var("FOREBAY_MAP_PLANTED").unwrap_or_default());
    *name == format!("{mistake:?}")
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Planted) -> bool {
    false
}
