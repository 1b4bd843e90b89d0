// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's media: its kind, and how it is opened, mapped and made durable.
//!
//! | kind | how it is known | persist method | survives |
//! |---|---|---|---|
//! | devdax | character device of the dax subsystem | non-temporal stores, or none needed with eADR | power cut |
//! | DAX file | `mmap(MAP_SYNC)` succeeds | the same | power cut |
//! | fsdax block device | block device with DAX; user space gets its page cache only | msync | power cut |
//! | file | any other regular file: page cache | msync | power cut |
//! | shm | file on tmpfs | non-temporal stores | the process |
//! | disk | its superblock says that the pool is written in groups | writes to the device | power cut |
//!
//! The method is never weaker than the kind needs, unless the caller says so.

mod create;
mod detect;
mod locks;
mod loops;
mod map;
mod names;
mod overwritten;
mod shared_file;
mod signature;
mod unshared;
mod whereabouts;

use crate::report::Persist;

pub(crate) use create::{
    check_options, check_size, create, fill_all, found_on, found_text, inspect, size_of_new,
    summary, too_small, NewFile,
};
pub use create::{CreateOptions, Inspection, InspectionState, PoolSummary};
pub(crate) use detect::{check_link, claim, has_dax, id_of as detect_id, Access};
pub use locks::{file_holder, lease_holder, lock_alone, lock_holders};
pub(crate) use locks::{in_use, lock_soon};
pub(crate) use loops::{backing_of, device_of as loop_device_of};
pub use map::Media;
pub use names::check_other_names;
pub(crate) use names::{claim_other_names, BelowLocks};
pub(crate) use overwritten::Written;
pub use shared_file::SharedFile;
pub(crate) use signature::{found_on_disk as found_at, superblocks, EDGE_BYTES, RUN_MAGIC};
pub(crate) use whereabouts::Look;

/// How to open the media.  Fill in what matters and take the rest from
/// `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct MediaOptions {
    /// Persist method; [`Persist::Auto`] takes what the kind needs.
    pub persist: Persist,
    /// Copy kernel by name (see [`kernels`]); `None`: the best of this CPU.
    pub kernel: Option<String>,
    /// Map read-only: nothing at all is written.
    pub read_only: bool,
    /// Accept a persist method weaker than the kind needs.
    pub allow_weaker: bool,
    /// Touch every page of the mapping at open, so that no later write takes
    /// a page fault.  Costs about 0.2 s a GiB.
    pub populate: bool,
    /// Read of a pool on a disk what is asked for, and not all of it; with `read_only`.
    pub on_demand: bool,
}

/// Names of the copy kernels this CPU can run, best first.
pub fn kernels() -> Vec<&'static str> {
    forebay_engine::sys::posix_kernels()
}
