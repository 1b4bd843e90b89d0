// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs of the look before an overwrite, and of the look at an origin that nobody has open,
//! which crates/forebay-cli/tests/awaited.rs has to find.  A command that was built for tests takes
//! one from the environment; no other build has the code.

/// The bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // only in a build for tests
pub(crate) enum Planted {
    /// Nobody looks for the marks of a pool's origins.
    OriginNotAwaited,
    /// The mark of an origin or of a mapped file is not taken for one of the pool.
    PlaceNotAwaited,
    /// Trees and mapped files are not looked for.
    OthersNotAsked,
    /// A pool or an origin that cannot be looked at is taken for one that nobody waits for.
    UnseenIsNotAwaited,
    /// An origin that cannot be looked at is called complete.
    UnseenIsComplete,
}

#[cfg(feature = "planted")]
pub(crate) fn planted(mistake: Planted) -> bool {
    std::env::var("FOREBAY_PLANTED").is_ok_and(|name| name == format!("{mistake:?}"))
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}
