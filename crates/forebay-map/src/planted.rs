// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs.  The tests must find each of them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Planted {
    /// A new mapping is protected as a whole, and what was stored before that is forgotten.
    ProtectWithoutLook = 1,
    /// A segment becomes watched or absent without a comparison of its content.
    NotCompared,
    /// A store to a watched segment completes before a sync knows that it must look.
    LookAfterStore,
    /// Another sync can end while the pages that this one took are not yet durable.
    UnlockedWhileDurable,
    /// Pages are protected again after they were made durable.
    ProtectedAfterDurable,
    /// A thread that evicts pages continues before its event was handled.
    EventNotAwaited,
    /// A sync skips a segment that is being evicted before its last pages are durable.
    LookedTooEarly,
    /// The pool learns a file's new size before the size is durable.
    SizeNotSynced,
    /// Pages count as written before the sync of the file.
    ClearedBeforeSync,
    /// The pool does not learn of a truncation.
    CutNotTold,
    /// The bytes after the end are not zeroed when the file grows again.
    TailKept,
    /// A frame is released although it has data that its file lacks.
    DirtyDiscarded,
    /// Writes that bypass the mapping are not reported.
    WriteNotTold,
    /// A sync leaves out the last page.
    LastPageLeft,
    /// A page is dirty before its file is marked.
    MarkedAfter,
    /// A file's mark is removed while the pool has data that the file lacks.
    UnmarkedEarly,
    /// A file is changed before its record says so.
    NotStamped,
    /// Recovery writes to a file that others have changed.
    ChangedTaken,
    /// Recovery writes to a file that does not bear the mark.
    UnmarkedTaken,
    /// Recovery frees a record without checking who has its file.
    RecordFreedEarly,
    /// Recovery drops pages of a file that is gone.
    GoneDropped,
    /// Recovery writes to another file of the same name.
    AnotherTaken,
    /// Recovery writes to a file that has become shorter.
    ShorterTaken,
    /// A sync counts although another call has seen a sync of the file fail.
    FailureForgotten,
    /// A write to the file itself forgets that a sync has failed since an earlier one.
    FirstCountLost,
    /// Of two writes to the file itself, the one that ends last does not count.
    LastCountLost,
    /// A truncation that failed halfway is not ended.
    CutNotEnded,
    /// The pool learns of a truncation although the file is not marked.
    CutNotMarked,
    /// A segment that has been locked meanwhile is released.
    PinNotSeen,
    /// A write goes past the end that a concurrent call has set.
    WrittenBehind,
    /// Blocks are allocated ahead but not made durable.
    BlocksNotSynced,
    /// Blocks that were cut off count as present.
    BlocksKept,
    /// A file's record is removed while its size is only promised.
    PromiseNotMade,
    /// Recovery leaves a file shorter than its promised size.
    PromiseIgnored,
    /// Recovery leaves zeroes after the promised size.
    AheadLeft,
    /// Recovery cuts off what others have appended.
    AppendedCut,
    /// Facts about a frame from before its file grew are kept.
    KnownTooLong,
    /// Blocks that were asked for count as durable.
    BlocksNotAsked,
    /// Salvage cuts off copied pages after the end that the record gives.
    SalvageCutOff,
    /// A request that the server has not answered counts as not done.
    UnansweredKept,
    /// Locking all memory of the program (mlockall) fills absent segments with pages.
    EmptyLocked,
    /// A guest's sync does not ask the other guests.
    OthersNotSynced,
    /// Stores of a dead guest that it had not synced are lost.
    StoresOfTheDeadLost,
    /// A guest that gives up a segment loses stores that arrived meanwhile.
    LateForgotten,
    /// A file's size changes while calls of guests are under way.
    GuestsNotStopped,
    /// A file's mark is removed while the file has guests.
    UnmarkedUnderGuests,
    /// A guest syncs pages without knowing that their blocks exist.
    NothingGranted,
    /// Recovery does not search for a file whose directory was renamed.
    RenamedGone,
    /// The thread that handles events panics.
    EventsPanic,
    /// A closed file stays locked until no thread holds it.
    LockKept,
    /// A concurrent reader of an append sees the size before the bytes.
    SizeBeforeBytes,
    /// A page is written back up to the end of a file that grows, and counts as clean.
    EndWritten,
    /// A process that stores bytes after the end releases them.
    EndReleased,
    /// Changes of a file's size wait for no round.
    NoTurn,
    /// A file is closed while threads can still store to it.
    NotWithdrawn,
    /// Whoever keeps stores of a dead process replaces any mark of its file.
    MarkedOver,
    /// The size that a dead process set is not kept.
    GrowthForgotten,
    /// Whoever keeps stores of a dead process needs the mark.
    MarkNeeded,
    /// A failed sync of the mark counts as a lack of rights or of space for it.
    MarkSyncJudged,
    /// Not a bug: the kernel cannot keep a mapping from children.
    AdviceFails,
    /// Not a bug: the kernel protects half of a segment and then fails.
    ProtectFails,
}

#[cfg(test)]
pub(crate) use on::{is, plant, tell, wait, wait_until_told, waits};

#[cfg(test)]
mod on {
    use super::Planted;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    static NOW: AtomicU8 = AtomicU8::new(0);
    static WAITS: AtomicBool = AtomicBool::new(false);
    static HAPPENED: AtomicBool = AtomicBool::new(false);

    pub(crate) fn plant(mistake: Option<Planted>) {
        NOW.store(mistake.map_or(0, |m| m as u8), Ordering::SeqCst);
    }

    pub(crate) fn is(mistake: Planted) -> bool {
        NOW.load(Ordering::Relaxed) == mistake as u8
    }

    /// Prolongs a moment during which another event must happen for a bug to show.
    pub(crate) fn wait() {
        let now = NOW.load(Ordering::Relaxed);
        let waits = (1..=Planted::LookedTooEarly as u8).contains(&now);
        let others = [
            Planted::WrittenBehind,
            Planted::KnownTooLong,
            Planted::LateForgotten,
            Planted::SizeBeforeBytes,
        ];
        if waits || others.iter().any(|&p| p as u8 == now) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Waits until the test has made an event happen, for a second at most, if `mistake` is planted.
    /// The event belongs between two steps of the caller.
    pub(crate) fn wait_until_told(mistake: Planted) {
        let begun = std::time::Instant::now();
        HAPPENED.store(false, Ordering::SeqCst);
        while is(mistake) && !HAPPENED.load(Ordering::SeqCst) && begun.elapsed().as_secs() < 1 {
            WAITS.store(true, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        WAITS.store(false, Ordering::SeqCst);
    }

    /// A thread waits in [`wait_until_told`].
    pub(crate) fn waits() -> bool {
        WAITS.load(Ordering::SeqCst)
    }

    /// The test has made the event happen.
    pub(crate) fn tell() {
        HAPPENED.store(true, Ordering::SeqCst);
    }
}

#[cfg(not(test))]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

#[cfg(not(test))]
pub(crate) const fn wait() {}

#[cfg(not(test))]
pub(crate) const fn wait_until_told(_: Planted) {}
