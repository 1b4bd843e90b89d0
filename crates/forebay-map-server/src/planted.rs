// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs.  The tests must find each of them.  A server that was built for tests takes
//! one from the environment; no other build has the code.

/// The bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // only in a build for tests
pub(crate) enum Planted {
    /// Frames are taken from a living process because its connection has ended.
    TakenFromTheLiving,
    /// Dirty frames of a dead process are freed without being written back.
    DirtyFreed,
    /// The descriptor that a process has does not keep the pool locked.
    LockNotShared,
    /// Files of a dead process become free before they have been written back.
    ForgottenEarly,
    /// A process may change what belongs to another process.
    AnyonesFrames,
    /// A frame is given away while its owner has it.
    FrameGivenTwice,
    /// The descriptor of a dead process's file is closed before the file is written back.
    ReleasedEarly,
    /// The file of a dead process is unlocked between keeping its stores and its recovery.
    OpenedTwice,
    /// A lease that a descriptor has is not released when its file is written back.
    LeaseKept,
    /// The mark of a file is removed before its pages are written.
    UnmarkedFirst,
    /// After a recovery of a file, the new owner of the file's number loses its files.
    AnotherForgotten,
    /// A dead process stops being a guest although its stores are not durable.
    GuestForgotten,
    /// A process that does not answer at once counts as having answered.
    AnsweredForTheStopped,
    /// A slow disk delays an answer by a second, without reports to the connection.
    SilentSlowDisk,
    /// Not a bug: the same delay, with ten reports a second.
    SlowDisk,
    /// Not a bug: frames are released and files truncated a second late.
    DoneLate,
    /// Not a bug: between keeping the stores of a dead process and the recovery of its file, the
    /// server waits until a test lets it continue.
    Paused,
}

#[cfg(feature = "planted")]
pub(crate) fn is(mistake: Planted) -> bool {
    use std::sync::OnceLock;
    static NAME: OnceLock<String> = OnceLock::new();
    let name = NAME.get_or_init(|| std::env::var("FOREBAY_MAP_PLANTED").unwrap_or_default());
    // Several have spaces between them.
    name.split(' ').any(|name| name == format!("{mistake:?}"))
}

/// Makes a file next to the pool's, and waits until a test removes it.
#[cfg(feature = "planted")]
pub(crate) fn pause_at(pool: &str) {
    if is(Planted::Paused) {
        let paused = format!("{pool}.paused");
        let made = std::fs::write(&paused, []);
        while made.is_ok() && std::path::Path::new(&paused).exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn pause_at(_: &str) {}

#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Planted) -> bool {
    false
}
