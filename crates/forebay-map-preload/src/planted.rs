// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs, only in a build with the feature `planted-mistakes`, chosen by
//! `FOREBAY_MAP_RUN_PLANTED`.  tests/map/planted.sh must find each of them.

#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// msync acknowledges without a sync.
    MsyncWithoutSync = 1,
    /// fsync ignores stores and writes.
    FsyncIgnores,
    /// pwrite goes to the file and bypasses the mapping.
    WriteBypasses,
    /// Writes to a descriptor with O_DSYNC are not synced.
    DsyncIgnored,
    /// fallocate acknowledges without doing anything.
    FallocateNothing,
    /// close loses data that was not synced.
    CloseForgets,
    /// A private mapping lacks earlier stores.
    PrivateStale,
    /// A duplicate of a descriptor is unknown.
    DupForgotten,
    /// ftruncate goes to the file and bypasses the mapping.
    TruncateBypasses,
    /// A child may acknowledge a sync of memory that it does not have.
    ChildAcknowledged,
    /// The end of the program closes nothing.
    EndForgets,
    /// msync ignores a file's mapping if the range begins before it.
    MsyncAcross,
    /// A file is opened although the program has a descriptor of it that bypasses the mapping.
    PlainBeside,
    /// A file that gets more room is opened again by its name.
    ReopenedByName,
    /// A store while the program ends is a fault.
    StoresAtEnd,
    /// System calls that a program makes by an instruction of its own at a mapping are not
    /// seen.
    NoFilter,
    /// A child that was made without the C library is taken for its parent.
    ChildUnseen,
    /// The program may close the library's descriptors.
    ClosesOurs,
    /// The library does not check whether its descriptors are still its own.
    ClosedUnseen,
    /// A number whose descriptor was closed without the library stays the file's.
    NumberStale,
    /// msync acknowledges although a server that has ended would have had to record it.
    GoneAcknowledged,
    /// A write is not held to the process's limit for the size of files.
    LimitIgnored,
    /// A private mapping of a file takes the place of its shared one.
    PrivateOver,
    /// A change of rights while a file is open is not looked at.
    RightsUnseen,
    /// The end of the program syncs its files and does not close them, while threads store.
    EndSyncs,
    /// The name of an open file is given to another one, or removed.
    SecondNameFree,
    /// The thread that watches leases outlasts the last close.
    WatcherStays,
    /// A limit that is set by syscall(2) is not seen.
    LimitByNumber,
    /// Calls leave out the part of a range that follows a mapping.
    RestIgnored,
    /// The limit for the size of files is unknown until the program sets it.
    LimitNotRead,
    /// fsync makes changes of the file's attributes and names not durable.
    AttributesForgotten,
    /// syncfs by a file's descriptor leaves out the rest of its file system.
    SyncfsForgotten,
    /// A writer that waits behind a reader is let in as a reader.
    WriterUnseen,
    /// A socket may send memory of a mapping later.
    ZerocopyLetThrough,
    /// What a socket sends later from a mapping is not copied.
    ZerocopyNotCopied,
    /// vmsplice by syscall(2) gives a mapping's memory to a pipe.
    VmspliceByNumber,
    /// dprintf goes to the descriptor with which the kernel does nothing.
    PrintedPast,
    /// SIGSYS stays in the masks of the program.
    SigsysBlocked,
    /// Direct I/O uses the memory of a mapping.
    DirectUnseen,
    /// So does io_submit.
    AioUnseen,
    /// A program that has a file mapped may have rings.
    RingsKept,
    /// The kernel copies to and from the process's own mappings (process_vm_writev).
    RemoteUnseen,
    /// An older plain mapping on overlayfs is not looked for.
    OverlayUnseen,
    /// A file that has a private mapping still is opened by another description.
    PrivateAnew,
    /// The description that is kept for a private mapping is never closed.
    PrivateKept,
    /// Only one of the signals that come at the same moment is kept.
    OneSignal,
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
