// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files mapped onto a pool's memory, with a sync that costs what was stored to since the
//! last one.
//!
//! So far there is the lower half: [`Tracker`] knows which pages of a mapping were stored
//! to.  `docs/map-tracking.md` has what it is built on, and what it costs.
//!
//! | module | what |
//! |---|---|
//! | [`tracker`] | segments of a mapping: brought in when they are touched, watched, looked at, taken away |
//! | [`features`] | what the kernel can do, tried |
//! | [`pages`] | sets of pages |
//! | [`system`] | Linux made safe: the only module with unsafe code |
#![deny(unsafe_code)]

pub mod features;
pub mod pages;
pub mod system;
pub mod tracker;

pub use features::Features;
pub use pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
pub use tracker::{Source, Tracker};
