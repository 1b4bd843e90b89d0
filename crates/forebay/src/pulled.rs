// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test that pulls the plug: does a disk keep what it said is durable?
//!
//! A [writer](write_until_cut) fills a disk with numbered, checksummed blocks, step by step.  When
//! a step is durable it tells its number to a [`Receiver`] on another machine, and begins the next
//! one only when the receiver has it.  So, when the power goes, the receiver knows all that was
//! acknowledged but for one step, and [`verify`] compares the disk with it.
//!
//! | step | of FUA mode | of flush mode |
//! |---|---|---|
//! | writes | one, of 1 to 16 blocks | 1 to 32, of 1 to 4 blocks each |
//! | durable by | FUA, as [`FuaWay`](crate::FuaWay) says | one flush (`fdatasync`) after all of them |
//!
//! The run's seed and the number of a step determine what it writes.  So the receiver keeps only
//! the number of the last step.
//!
//! "Kept" needs a cut.  The machine that wrote has started again since, or the disk failed under a
//! writer that still told the receiver.  A writer that ends in another way says so, to the receiver
//! and in the disk's first block; the end of its connection says so too.  Then nothing was tested.
//!
//! An accusation needs the run's disk: the same model and serial number, or sectors of the run.
//!
//! The table judges the content of a block; `a` is the last acknowledged step that wrote it:
//!
//! | content | in the step that was cut | elsewhere |
//! |---|---|---|
//! | of step `a` | kept | kept |
//! | of an older step, or from before the run | lost | lost |
//! | zeroes | allowed | lost |
//! | partly of an older step | torn, if any of it is older than `a` | torn |
//! | of the step that was cut, or partly | allowed | the record is older than the disk |
//! | anything else, or unreadable | allowed | collateral damage |

mod block;
mod check;
mod journal;
mod receiver;
mod run;
mod verify;
mod wire;
mod writer;

pub use check::DiskIs;
pub use check::{Example, InFlight, ModeReport, PullReport, PullVerdict};
pub use journal::{Journal, RunEnd};
pub use receiver::{ReceiveEvent, Receiver, ReceiverLimits};
pub use run::{Modes, PullMode, Run};
pub use verify::{run_on, verify};
pub use wire::ask;
pub use writer::{write_until_cut, PullEnd, PullOptions, PullProgress};
