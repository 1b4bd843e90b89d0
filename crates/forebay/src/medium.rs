// SPDX-License-Identifier: MIT OR Apache-2.0
//! The worth of a disk or file as the medium of a pool.
//!
//! [`MediumFacts::of`] reads what the system says of it, [`MediumFacts::refusals`] names what
//! makes it unfit, [`measure`] times durable writes, and [`judge`] says what kind of medium it
//! is, by which numbers.  Nothing here opens a pool.

mod facts;
mod file_system;
mod judge;
mod measure;
mod refusal;
mod target;
mod users;

pub(crate) use facts::unfilled;
pub use facts::{DeviceFacts, FileFacts, MediumFacts, Place};
pub use file_system::{FileSystemFacts, FsClass};
pub use judge::{judge, Judgement, MediumClass, SLOW_NS};
pub(crate) use measure::{fill_random, mixed};
pub use measure::{measure, MeasureLimits, Measured, Timing, Way};
pub use refusal::Refusal;
pub use target::FuaWay;
pub(crate) use target::{Claim, Target, Used};
