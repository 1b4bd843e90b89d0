// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine for safe Rust: the only crate that calls `core/api/forebay.h`, and,
//! beside `forebay-sys`, the only one with `unsafe` code for it.
//!
//! It owns the objects that the engine gets (the pool's memory, the media, the memory of
//! attached volumes) for as long as the engine may use them, and it serialises the calls that
//! exclude each other.  It decides nothing: the caller decides when to wait, how to treat an
//! error and what to report.
//!
//! | module | what |
//! |---|---|
//! | [`Engine`] | an open pool; `engine.rs` the requests and destage, `volumes.rs` the volumes, `past.rs` what goes past the cache, `request.rs` whole requests of clients, `open.rs` opening and recovery |
//! | [`Media`], [`Soft`] | what a pool lies on: mapped memory, or a [`Store`] written in Rust |
//! | [`policy`], [`complete`] | what all hosts decide alike |
//! | [`Memory`] | zeroed memory and mappings |
//! | [`forks`], [`lasting`] | what children of the process must not have; descriptors that stay open |
//! | [`handle`] | file handles, which the system has no safe call for |
//! | [`maps`] | files mapped onto the pool's memory |
//! | [`groups`], [`Image`] | pools on a block device: what is to be written, and what is durable; their image in memory |
//! | [`logs`], [`log_order`] | the pool's logs; the order of a log's entries by itself |
//! | [`stderr`] | messages from within a program that is not Forebay's |
//! | `planted` | for the simulator: deliberate mistakes |

mod change;
mod code;
pub mod complete;
mod demand;
mod durable;
mod engine;
pub mod forks;
pub mod groups;
pub mod handle;
mod image;
pub mod lasting;
pub mod log_order;
pub mod logs;
pub mod maps;
mod media;
mod memory;
mod open;
mod past;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod policy;
pub mod request;
mod shared;
mod shown;
mod soft;
pub mod stderr;
mod volumes;

/// Constants and plain structs of the C interface.  Its functions are unsafe to
/// call, and [`Engine`] is the way to them.
pub use forebay_sys as sys;

pub use code::{Code, Decision, Result, Wait};
pub use demand::Source;
pub use engine::{BlockRead, Engine, Io, Step, Write};
pub use image::{Below, Image};
pub use media::{format, probe, Media, Medium, Pace, Persist};
pub use memory::Memory;
pub use open::OpenError;
pub use past::{Bypass, Past, Ticket};
pub use shared::SharedBytes;
pub use soft::{BlockStore, Soft, Store};
pub use volumes::Attach;

/// Bytes of the header line of a page, as they lie on the media.
pub fn line_bytes(line: &sys::fby_page_line) -> &[u8; 64] {
    // SAFETY: 64 bytes of integers without padding, which the tests of forebay-sys
    // compare with C; any of their values is a byte.
    unsafe { &*std::ptr::from_ref(line).cast() }
}

/// Bytes of the header of an entry of a log, as they lie on the media.
pub fn entry_bytes(entry: &sys::fby_log_entry) -> &[u8; 128] {
    // SAFETY: 128 bytes of integers without padding, which the tests of forebay-sys
    // compare with C; any of their values is a byte.
    unsafe { &*std::ptr::from_ref(entry).cast() }
}
