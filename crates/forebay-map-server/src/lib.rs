// SPDX-License-Identifier: MIT OR Apache-2.0
//! The maps of an open pool, for who serves it and for who has it for himself.
//!
//! | module | what |
//! |---|---|
//! | [`orders`] | what a user has done with maps: list, status, recover, salvage, drop |
//! | [`service`] | maps as a service of the pool's server, which takes these orders |
//! | `share` | whose files and frames are, and what a process may have done with them |
//! | `clients` | processes that map files; what they leave when they die is brought home |
//! | `channel` | orders to those that share files |
//! | `own_store` | a share as the server has it for files that are shared |
#![forbid(unsafe_code)]
// They panic where nobody reads any more.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod channel;
mod clients;
pub mod orders;
mod own_store;
mod planted;
pub mod service;
mod share;

pub use orders::{Error, Maps, Order, Result};
pub use service::{MapService, KIND};
