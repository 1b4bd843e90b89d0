// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools on a block device or plain file: what is stored goes there in groups, and the engine
//! works on an image in memory.
//!
//! - [`GroupedMedium`] opens the device, claims it, and loads the image.
//! - [`Disk`] carries out requests, and keeps flushes and persist apart.
//! - [`Sender`] lets the threads that wait for their entries send them.
//!
//! `core/api/groups.h` and `core/medium/device.h` have the contract of both sides.

mod device;
mod disk;
mod hold;
mod late;
mod layout;
mod medium;
mod sender;
#[cfg(test)]
mod tests;
mod watch;

pub use device::{Device, FileDevice};
pub use disk::Disk;
pub use forebay_engine::groups::Durable;
pub use forebay_engine::Image;
pub(crate) use late::Late;
pub use medium::{GroupedMedium, GroupedOptions, UNREADABLE_MOST};
pub use sender::{Sender, SenderCounts};
