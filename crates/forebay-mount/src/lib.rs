// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory tree shown through FUSE, whose fsync is an append to a log of a pool.
//! docs/manual/mount.md says who benefits and how.  The modules:
//!
//! ```text
//! record   the content of the log
//! tree     the interface to the tree; on a file system, or simulated
//! unix     a tree on a file system
//! live     operations: what is logged and when, and when the tree is synced
//! replay   derives from the log what the tree should be, and makes it so
//! mark     a mark on a tree while a log may hold data that it lacks
//! recover  a replay from a log of a pool
//! front    FUSE, on top of live
//! attach   mounting
//! options  the options and the flags of a mount
//! within   what a mount must neither hold nor hide
//! rights   the rights with which the tree is changed
//! service  mounts as services of a pool's server
//! ```

#![forbid(unsafe_code)]

mod acl;
mod affinity;
mod answer;
mod attach;
mod cut_off;
mod dead;
mod front;
mod known;
mod latency;
pub mod live;
mod log;
pub mod mark;
mod mount;
mod namespaces;
mod needs;
mod notified;
mod options;
pub mod record;
pub mod recover;
pub mod replay;
mod rights;
pub mod service;
mod shown;
pub mod tree;
mod turns;
pub mod unix;
mod unmounting;
mod waiters;
pub mod waiting;
mod within;

pub use answer::{ask_as_process, asks_by, Question};
pub use dead::{clear_dead_mount, clear_dead_mounts, is_dead, unanswered, Unanswered};
pub use mount::{Completion, Mount, MountError, MountStatus, ENDING_WAIT};
pub use notified::{guard_as_process, guards_by};
pub use options::{Flags, MountOptions, SLOW_LOG};
pub use unix::{is_mounted, is_mounted_at};
