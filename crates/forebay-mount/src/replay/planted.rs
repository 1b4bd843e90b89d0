// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate mistakes of the replay and of the marks, one at a time, that the model has to find.  Only
//! tests can plant one.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Bug {
    ByName,
    UnlinkForgotten,
    RenameOverWithoutData,
    SyncedWithoutEntry,
    CheckpointTooEarly,
    SizeNotRestored,
    VoidIgnored,
    SyncedIgnored,
    OldIdentityTaken,
    StagingForgotten,
    LinkIsACopy,
    ExchangeHalf,
    ReplacedOnItsWay,
    GoneForgotten,
    UnlinkInsteadOfStaging,
    AttributesForgotten,
    RefusedRmdirDone,
    LeftOutLosesName,
    LeftOutForgotten,
    KeptTooLong,
    MarkNotSynced,
    MarkRemovedAtOnce,
    PeriodEndsFirst,
    MarkOfAnyPeriod,
    GroupBeforeTree,
    GroupAfterLog,
    GroupIgnored,
    GroupNotSynced,
    GroupNotHeld,
    AnywhereTaken,
    BirthIgnored,
    AnybodysTaken,
    ContradictionIgnored,
    NeverDoubtful,
    OrphanForgotten,
    StagingOfAnybody,
    DisplacedForgotten,
    EmptyOfAnybody,
    MarkOfAnybody,
    DoneUnproved,
    GroupOfAnybody,
    BusyStopsAll,
    ChangedStopsAll,
    ToldAtTheEnd,
    WalkedAgain,
    InodeTimeIsContent,
    TimesOfOtherContent,
    LeaseNotAwaited,
    AnyRefusalIsASeal,
    PromisesUnkept,
    ProjectForgotten,
    TreeBeforeWait,
    NamesNotWaited,
    CleanIsDurable,
    ErrorOfAnother,
    BusyKeepsAll,
    SilentWrites,
    LateWrites,
    WaitersApart,
    OneEndsTooEarly,
    NamesTwice,
    ContentForgotten,
    ReachedTooLate,
    ReplacedTooEarly,
    LinkReplacedTooEarly,
    SizesTooEarly,
    SyncOfContentAlone,
    OutOfOrder,
    OwnerAtOnce,
    PrivateForgotten,
    KeptTooLate,
    RightsNotNoted,
    ClockGoesOn,
    ClockOfOurs,
    ContentNotSynced,
    NumberBelieved,
    PoolWithin,
    OriginWithin,
    SystemHidden,
    MarksHidden,
    PathAsWritten,
    DeadOverTree,
    DeadOverPool,
    DeadOfOthers,
    OneDeadMount,
}

/// Bugs of the replay, and of what is logged for it.
#[cfg(test)]
pub const ALL: [Bug; 20] = [
    Bug::ByName,
    Bug::UnlinkForgotten,
    Bug::RenameOverWithoutData,
    Bug::SyncedWithoutEntry,
    Bug::CheckpointTooEarly,
    Bug::SizeNotRestored,
    Bug::VoidIgnored,
    Bug::SyncedIgnored,
    Bug::OldIdentityTaken,
    Bug::StagingForgotten,
    Bug::LinkIsACopy,
    Bug::ExchangeHalf,
    Bug::ReplacedOnItsWay,
    Bug::GoneForgotten,
    Bug::UnlinkInsteadOfStaging,
    Bug::AttributesForgotten,
    Bug::RefusedRmdirDone,
    Bug::LeftOutLosesName,
    Bug::LeftOutForgotten,
    Bug::KeptTooLong,
];

/// Bugs of the marks.
#[cfg(test)]
pub const OF_MARKS: [Bug; 4] =
    [Bug::MarkNotSynced, Bug::MarkRemovedAtOnce, Bug::PeriodEndsFirst, Bug::MarkOfAnyPeriod];

/// Bugs of what is appended and not durable yet.
#[cfg(test)]
pub const OF_WAITS: [Bug; 2] = [Bug::TreeBeforeWait, Bug::NamesNotWaited];

/// Bugs of names that become durable with a later sync.
#[cfg(test)]
pub const OF_NAMES: [Bug; 8] = [
    Bug::NamesTwice,
    Bug::ContentForgotten,
    Bug::ReachedTooLate,
    Bug::ReplacedTooEarly,
    Bug::LinkReplacedTooEarly,
    Bug::SizesTooEarly,
    Bug::SyncOfContentAlone,
    Bug::OutOfOrder,
];

/// Bugs that let forged marks through.
#[cfg(test)]
pub const OF_FORGERS: [Bug; 3] = [Bug::MarkOfAnybody, Bug::DoneUnproved, Bug::GroupOfAnybody];

/// Bugs of the number of the last synced group.
#[cfg(test)]
pub const OF_GROUPS: [Bug; 4] =
    [Bug::GroupBeforeTree, Bug::GroupAfterLog, Bug::GroupIgnored, Bug::GroupNotSynced];

/// Bugs in looking for what a mount would hold or hide.
#[cfg(test)]
pub const OF_NEEDS: [Bug; 4] =
    [Bug::PoolWithin, Bug::OriginWithin, Bug::SystemHidden, Bug::MarksHidden];

/// Bugs in removing dead mounts.
#[cfg(test)]
pub const OF_DEAD: [Bug; 4] =
    [Bug::DeadOverTree, Bug::DeadOverPool, Bug::DeadOfOthers, Bug::OneDeadMount];

/// Bugs in handling changes that bypass the mount.
#[cfg(test)]
pub const OF_OTHERS: [Bug; 14] = [
    Bug::AnywhereTaken,
    Bug::BirthIgnored,
    Bug::AnybodysTaken,
    Bug::ContradictionIgnored,
    Bug::NeverDoubtful,
    Bug::OrphanForgotten,
    Bug::StagingOfAnybody,
    Bug::DisplacedForgotten,
    Bug::EmptyOfAnybody,
    Bug::BusyStopsAll,
    Bug::ChangedStopsAll,
    Bug::ToldAtTheEnd,
    Bug::InodeTimeIsContent,
    Bug::TimesOfOtherContent,
];

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// On this thread, from now on.
#[cfg(test)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// For another thread of the same operation.
#[cfg(test)]
pub fn planted_now() -> Option<Bug> {
    PLANTED.get()
}

#[cfg(test)]
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(test))]
#[inline(always)]
pub fn planted(_: Bug) -> bool {
    false
}
