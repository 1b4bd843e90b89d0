// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves a pool: what a program that has one open offers to others.
//!
//! | module | what |
//! |---|---|
//! | [`Server`] | the volumes of a pool, from their attach to their detach, and who is told |
//! | [`nbd`] | the volumes as exports, over a Unix socket |
//! | [`metrics`] | a pool's figures for Prometheus, over [`http`] |
//!
//! The socket that answers for an open pool ([`forebay::control`]) belongs to the
//! library: each pool that is open for writing has one, whether it is served or not.
#![forbid(unsafe_code)]
// They panic where nobody reads any more.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod http;
pub mod metrics;
pub mod nbd;
mod notify;
mod place;
mod server;

pub use place::{default_socket, uri, usable_socket, ReadyFile};
pub use server::{Listening, Server, Unserved};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pool(#[from] forebay::Error),
    #[error("{what}")]
    System { what: String, source: std::io::Error },
}

pub type Result<T> = std::result::Result<T, Error>;

/// What the system did not do.
fn system(what: String) -> impl FnOnce(std::io::Error) -> Error {
    |source| Error::System { what, source }
}
