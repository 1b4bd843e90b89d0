// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory tree shown through FUSE, whose fsync is an append to a log of a pool.
//! docs/manual/mount.md says what that is worth to whom; here is how it is parted:
//!
//! ```text
//! record   what the log holds
//! tree     the tree as both parts below use it; on a file system, or simulated
//! unix     the one on a file system
//! live     operations: what is logged when, and when the tree is synced
//! replay   what the tree should be, from the log, and making it so
//! mark     on a tree, while a log may hold what it lacks
//! recover  a replay from a log of a pool
//! front    FUSE, above live
//! attach   how it is mounted
//! rights   whose rights the tree is changed with
//! service  mounts as services of a pool's server
//! ```

#![forbid(unsafe_code)]

mod acl;
mod affinity;
mod answer;
mod attach;
mod cut_off;
mod front;
mod holders;
mod known;
mod latency;
pub mod live;
mod log;
pub mod mark;
mod mount;
mod namespaces;
mod needs;
pub mod record;
pub mod recover;
pub mod replay;
mod rights;
pub mod service;
mod shown;
pub mod tree;
pub mod unix;

pub use attach::Flags;
pub use mount::{
    clear_dead_mount, is_dead, Mount, MountError, MountOptions, MountStatus, ENDING_WAIT,
};
pub use unix::is_mounted;
