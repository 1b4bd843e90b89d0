// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files mapped onto a pool's memory, with a sync that costs what was stored to since the
//! last one.
//!
//! A pool is this process's alone, or a server's: then several may map files, each its own or
//! shared ones.
//! `docs/manual/map-files.md` has what is promised.
//!
//! | module | what |
//! |---|---|
//! | [`cache`] | all files mapped onto one share of a pool; write-back, and who gives a frame back |
//! | [`file`] | a file that is mapped: sync, read, write, truncate, lock, drop |
//! | `own` | the same of one that nobody else has |
//! | `track` | what it asks of who knows what was stored |
//! | [`recover`] | what a crash has left, to the files |
//! | [`session`] | a pool to map files onto, by its server or alone |
//! | [`sharing`] | files that several processes map at a time |
//! | [`store`] | what is asked of the pool |
//! | [`pool`] | the same of a real one |
//! | [`served`] | the same of one that a server has, which gives its memory to this process |
//! | [`wire`] | what such a process and its server say to each other |
//! | [`backing`] | what is asked of the file system |
//! | [`tracker`] | segments of a mapping: brought in when they are touched, watched, looked at, taken away |
//! | [`features`] | what the kernel can do, tried |
//! | [`pages`] | sets of pages |
//! | `threads` | threads of the library, whose panics end the process |
//! | `arena` | which addresses mappings get |
//! | [`system`] | Linux made safe: the only module with unsafe code |
#![deny(unsafe_code)]

mod arena;
pub mod backing;
pub mod cache;
mod content;
mod counted;
pub mod error;
pub mod features;
pub mod file;
mod frames;
mod link;
mod marking;
mod own;
pub mod pages;
mod planted;
pub mod pool;
#[cfg(test)]
mod random;
pub mod recover;
pub mod served;
pub mod session;
pub mod sharing;
#[cfg(test)]
mod simulated;
pub mod store;
pub mod system;
#[cfg(test)]
mod tests;
mod threads;
mod track;
pub mod tracker;
pub mod wire;

pub use arena::reserve_within;
pub use cache::{Cache, Options, Unreadable};
pub use error::{Error, Result};
pub use features::Features;
pub use file::MapFile;
pub use forebay_engine::lasting;
pub use pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
pub use pool::PoolStore;
pub use served::ServedStore;
pub use session::{Session, Wanted};
pub use tracker::{most_room, Source, Tracker};
