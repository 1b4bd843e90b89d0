// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate mistakes, each of which tests/map/planted.sh has to find: in a build with the
//! feature `planted-mistakes` alone, chosen by `FOREBAY_MAP_RUN_PLANTED`.

#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// msync acknowledges what it has not synced.
    MsyncWithoutSync = 1,
    /// fsync knows nothing of stores and writes.
    FsyncIgnores,
    /// pwrite goes to the file, past the mapping.
    WriteBypasses,
    /// Writes to a descriptor with O_DSYNC are not synced.
    DsyncIgnored,
    /// fallocate acknowledges what it has not done.
    FallocateNothing,
    /// close forgets what was not synced.
    CloseForgets,
    /// A private mapping is made without what was stored.
    PrivateStale,
    /// A duplicate of a descriptor is not known.
    DupForgotten,
    /// ftruncate goes to the file, past the mapping.
    TruncateBypasses,
    /// A child may sync what it does not have.
    ChildAcknowledged,
    /// The end of the program closes nothing.
    EndForgets,
    /// msync of a range that begins before a file's mapping knows nothing of that.
    MsyncAcross,
    /// A file is opened though the program has a descriptor of it that goes past the mapping.
    PlainBeside,
    /// A file that gets more room is the one that has its name now.
    ReopenedByName,
    /// A thread that stores while the program ends is a fault.
    StoresAtEnd,
    /// System calls that a program makes by an instruction of its own at a mapping are not
    /// seen.
    NoFilter,
    /// A child that was made without the C library is taken for its parent.
    ChildUnseen,
    /// The program may close the library's descriptors.
    ClosesOurs,
    /// Nobody looks whether they are what they were.
    ClosedUnseen,
    /// A number whose descriptor was closed past the library stays the file's.
    NumberStale,
    /// msync acknowledges what a server that has ended would have had to record.
    GoneAcknowledged,
}

#[cfg(feature = "planted-mistakes")]
pub fn is(mistake: Planted) -> bool {
    use std::sync::OnceLock;
    static NOW: OnceLock<u8> = OnceLock::new();
    let now = NOW.get_or_init(|| {
        let now = std::env::var("FOREBAY_MAP_RUN_PLANTED").ok();
        now.and_then(|n| n.parse().ok()).unwrap_or(0)
    });
    *now == mistake as u8
}

#[cfg(not(feature = "planted-mistakes"))]
pub const fn is(_: Planted) -> bool {
    false
}
