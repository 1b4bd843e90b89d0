// SPDX-License-Identifier: MIT OR Apache-2.0
//! The maps of an open pool, for the server of the pool and for a process that has it
//! exclusively.
//!
//! | module | purpose |
//! |---|---|
//! | [`orders`] | users' orders: list, status, recover, salvage, drop, pin |
//! | [`service`] | maps as a service of the pool's server, which takes these orders |
//! | `share` | which process owns which files and frames, and what it may do with them |
//! | `clients` | the processes that map files, and recovery of what they leave when they die |
//! | `late` | requests that may wait for a disk |
//! | `channel` | orders to processes that share files |
//! | `own_store` | the server's own store for shared files |
#![forbid(unsafe_code)]
// The print macros panic if no one reads the stream.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod channel;
mod clients;
mod frame_registry;
mod handed;
mod late;
mod locked;
pub mod orders;
mod own_store;
mod planted;
pub mod service;
mod warned;

pub use orders::{Error, Maps, Order, Result};
pub use service::{MapService, KIND};
