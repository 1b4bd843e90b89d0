// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files mapped onto a pool's memory, with a sync that costs what was stored to since the
//! last one.
//!
//! Within one process; `docs/map-files.md` has what is promised.
//!
//! | module | what |
//! |---|---|
//! | [`cache`] | all files mapped onto one share of a pool; write-back, and who gives a frame back |
//! | [`file`] | a file: sync, read, write, truncate, lock, drop |
//! | [`recover`] | what a crash has left, to the files |
//! | [`store`] | what is asked of the pool |
//! | [`pool`] | the same of a real one |
//! | [`backing`] | what is asked of the file system |
//! | [`tracker`] | segments of a mapping: brought in when they are touched, watched, looked at, taken away |
//! | [`features`] | what the kernel can do, tried |
//! | [`pages`] | sets of pages |
//! | [`system`] | Linux made safe: the only module with unsafe code |
#![deny(unsafe_code)]

pub mod backing;
pub mod cache;
mod content;
mod counted;
pub mod error;
pub mod features;
pub mod file;
mod marking;
pub mod pages;
mod planted;
pub mod pool;
pub mod recover;
#[cfg(test)]
mod simulated;
pub mod store;
pub mod system;
#[cfg(test)]
mod tests;
pub mod tracker;

pub use cache::{Cache, Options};
pub use error::{Error, Result};
pub use features::Features;
pub use file::MapFile;
pub use pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
pub use pool::PoolStore;
pub use tracker::{Source, Tracker};
