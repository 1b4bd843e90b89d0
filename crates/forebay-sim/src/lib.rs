// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes losing data something that the tests find.  All of it runs the real
//! engine, on simulated media and simulated origins:
//!
//! * [`device`] is an SSD with a volatile cache: what a cut leaves of its writes;
//! * [`explore`] builds the media images that a power cut may leave, and
//!   recovers each;
//! * [`dst`] drives geometry, workload, interleaving, faults and crashes from
//!   one seed, and judges every read by a model;
//! * [`flips`] flips each bit of what recovery trusts, and many of the data;
//! * [`golden`] counts stores, lines, fences and bytes of each operation;
//! * [`pace`] has a full cache and a disk of a steady rate in virtual time;
//! * [`requests`] has many clients' requests in flight on one thread, by begin and resume;
//! * [`planted`] proves that the others would find the mistakes they look for.
//!
//! docs/design/testing.md has the fault model.
#![deny(unsafe_code)]
// Nothing here is for others to print; media and pools are megabytes.
#![allow(missing_debug_implementations)]

mod bed;
pub mod beyond;
pub mod damage;
pub mod device;
pub mod drains;
pub mod dst;
pub mod engine;
pub mod explore;
pub mod flips;
pub mod gate;
pub mod golden;
pub mod groups;
pub mod held;
pub mod hooks;
pub mod images;
pub mod isolation;
pub mod keeping;
pub mod kept_cases;
pub mod log_order;
pub mod logs;
pub mod marks;
pub mod media;
pub mod model;
pub mod origin;
pub mod pace;
pub mod pattern;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod reading;
pub mod refused_cases;
pub mod requests;
pub mod rng;
pub mod script;
pub mod slow_origin;
pub mod static_cases;
pub mod static_workloads;
pub mod workloads;
mod wrapped;
