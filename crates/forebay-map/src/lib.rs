// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps files onto a pool's memory.  A sync costs only as much as the stores since the last
//! one.
//!
//! A pool belongs to this process alone or to a server.  With a server, several processes may
//! map files, exclusively or shared.  `docs/manual/map-files.md` states the guarantees.
//!
//! | module | purpose |
//! |---|---|
//! | [`cache`] | all files mapped onto one share of a pool |
//! | `common` | what they have in common: options, write-back, reclaim of frames |
//! | [`file`] | a mapped file: sync, read, write, truncate, lock, drop |
//! | `exclusive` | an exclusive file |
//! | `track` | the interface of an exclusive file to its record of stores |
//! | [`recover`] | writes what a crash left in the pool to the files |
//! | [`session`] | a pool to map files onto, with a server or exclusively |
//! | [`sharing`] | files that several processes map at the same time |
//! | [`store`] | the interface to the pool |
//! | [`pool`] | the store of a pool in this process |
//! | [`served`] | the store of a pool whose server shares its memory with this process |
//! | [`wire`] | the messages between such a process and its server |
//! | [`backing`] | the interface to the file system |
//! | [`tracker`] | the segments of a mapping: brought in on a touch, watched, scanned, evicted |
//! | [`features`] | finds out by trial what the kernel can do |
//! | [`pages`] | sets of pages |
//! | `patience` | how long the kernel delays others while there is a lease |
//! | `threads` | threads of the library, whose panics end the process |
//! | `arena` | the addresses of mappings |
//! | [`system`] | safe wrappers of Linux calls; the only module with unsafe code |
#![deny(unsafe_code)]

mod arena;
mod attributes;
pub mod backing;
pub mod cache;
mod claims;
mod common;
mod content;
mod counted;
pub mod error;
mod exclusive;
mod fair;
pub mod features;
pub mod file;
mod frames;
mod link;
mod locked;
mod marking;
pub mod pages;
mod patience;
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
mod size_lock;
pub mod store;
pub mod system;
#[cfg(test)]
mod tests;
mod threads;
mod track;
pub mod tracker;
pub mod wire;

pub use arena::reserve_within;
pub use cache::Cache;
pub use common::{Options, Unreadable};
pub use error::{Error, Result};
pub use features::Features;
pub use file::MapFile;
pub use forebay_engine::{lasting, stderr};
pub use pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
pub use pool::PoolStore;
pub use served::ServedStore;
pub use session::{Session, Wanted};
pub use system::userfaultfd_as_before;
pub use tracker::{most_room, Source, Tracker};
