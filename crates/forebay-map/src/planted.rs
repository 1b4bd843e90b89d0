// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate mistakes, each of which the tests have to find.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Planted {
    /// A new mapping is protected as a whole, and what was stored before that is forgotten.
    ProtectWithoutLook = 1,
    /// A segment becomes watched or absent without a comparison of its content.
    NotCompared,
    /// A store to a watched segment is over before a sync knows that it has to look.
    LookAfterStore,
    /// Another sync can end while the pages that this one has taken are not yet durable.
    UnlockedWhileDurable,
    /// Pages are protected again after they were made durable.
    ProtectedAfterDurable,
    /// A thread that takes pages away goes on before that counts.
    EventNotAwaited,
    /// A sync passes by a segment that is taken away, before its last pages are durable.
    LookedTooEarly,
    /// A file's new size is told to the pool before it is durable.
    SizeNotSynced,
    /// Pages count as written before the file was synced.
    ClearedBeforeSync,
    /// A file is truncated, and the pool does not know.
    CutNotTold,
    /// What lies behind the end is not made zero when the file grows again.
    TailKept,
    /// A frame is given back though it has what its file lacks.
    DirtyDiscarded,
    /// What is stored past the mapping is not told.
    WriteNotTold,
    /// A sync leaves out the last page.
    LastPageLeft,
    /// A page is dirty before its file is marked.
    MarkedAfter,
    /// A file's mark is taken away while the pool has what it lacks.
    UnmarkedEarly,
    /// A file is changed before that is announced in its record.
    NotStamped,
    /// Recovery writes to a file that others have changed.
    ChangedTaken,
    /// Recovery writes to a file that does not bear the mark.
    UnmarkedTaken,
    /// Recovery frees a record without a look at who has its file.
    RecordFreedEarly,
    /// Recovery drops pages of a file that is gone.
    GoneDropped,
    /// Recovery writes to another file of the same name.
    AnotherTaken,
    /// Recovery writes to a file that has become shorter.
    ShorterTaken,
    /// A sync of the file that another call has seen fail counts.
    FailureForgotten,
    /// A truncation that has failed half way is not ended.
    CutNotEnded,
    /// A truncation is told to the pool though the file is not marked.
    CutNotMarked,
    /// A segment that was locked meanwhile is given back.
    PinNotSeen,
    /// A write goes behind the end that another call has set meanwhile.
    WrittenBehind,
    /// Blocks are had ahead, and not durable.
    BlocksNotSynced,
    /// Blocks that were cut off count as there.
    BlocksKept,
    /// A file's record goes though its size is only promised.
    PromiseNotMade,
    /// Recovery leaves a file shorter than was promised.
    PromiseIgnored,
    /// Recovery leaves the zeroes by which a file was longer than was promised.
    AheadLeft,
    /// Recovery cuts what others have appended.
    AppendedCut,
    /// What was known of a frame before its file has grown is kept after that.
    KnownTooLong,
    /// Blocks that were asked for count as durable.
    BlocksNotAsked,
    /// Salvage cuts off what it has copied behind the end that the record tells.
    SalvageCutOff,
    /// What a server has not answered counts as not done.
    UnansweredKept,
    /// Where nothing is, the program's order that all is locked puts pages.
    EmptyLocked,
    /// A guest's sync does not ask the others.
    OthersNotSynced,
    /// What a guest that has died had stored and not synced is forgotten.
    StoresOfTheDeadLost,
    /// A guest that gives a segment up forgets what was stored meanwhile.
    LateForgotten,
    /// A file's size changes while calls of guests are under way.
    GuestsNotStopped,
    /// A file's mark is taken away while it has guests.
    UnmarkedUnderGuests,
    /// A guest syncs pages whose blocks it does not know of.
    NothingGranted,
    /// Recovery does not look for a file whose directory was renamed.
    RenamedGone,
    /// The thread that handles events panics.
    EventsPanic,
    /// A file that is closed stays locked until nobody is at it.
    LockKept,
    /// Who reads beside an append sees the size before the bytes.
    SizeBeforeBytes,
    /// Not a mistake: the kernel cannot keep a mapping from children.
    AdviceFails,
    /// Not a mistake: the kernel protects a half of a segment, and fails.
    ProtectFails,
}

#[cfg(test)]
pub(crate) use on::{is, plant, wait};

#[cfg(test)]
mod on {
    use super::Planted;
    use std::sync::atomic::{AtomicU8, Ordering};

    static NOW: AtomicU8 = AtomicU8::new(0);

    pub(crate) fn plant(mistake: Option<Planted>) {
        NOW.store(mistake.map_or(0, |m| m as u8), Ordering::SeqCst);
    }

    pub(crate) fn is(mistake: Planted) -> bool {
        NOW.load(Ordering::Relaxed) == mistake as u8
    }

    /// Makes a moment longer in which something else has to happen for a mistake to show.
    pub(crate) fn wait() {
        let now = NOW.load(Ordering::Relaxed);
        let waits = (1..=Planted::LookedTooEarly as u8).contains(&now);
        let others = [
            Planted::PinNotSeen,
            Planted::WrittenBehind,
            Planted::KnownTooLong,
            Planted::LateForgotten,
            Planted::SizeBeforeBytes,
        ];
        if waits || others.iter().any(|&p| p as u8 == now) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

#[cfg(not(test))]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

#[cfg(not(test))]
pub(crate) const fn wait() {}
