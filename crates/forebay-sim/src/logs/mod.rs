// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs: their state after a crash, at any cut of any of their operations.

pub mod beside;
pub mod damage;
mod explore;
mod known;
pub(crate) mod script;
mod silent;

pub use explore::{explore, Bounds};
pub use known::Explored;
pub(crate) use known::Known;
pub use script::{random, small, Op, Script};
pub use silent::silent;
