// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves a pool: what a program that has one open offers to others.
//!
//! | module | what |
//! |---|---|
//! | [`Server`] | a pool, its services from their start to their end, and who is told |
//! | [`Service`] | the seam: what each kind of service is to the server |
//! | [`exports`] | a kind: the volumes as exports over [`nbd`], at a Unix socket |
//! | [`control`] | the socket that answers for the pool, and the client that asks there |
//! | [`metrics`] | the figures of pool and services for Prometheus, over [`http`] |
#![forbid(unsafe_code)]
// They panic when the reader has gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::path::PathBuf;

pub mod control;
mod end;
pub mod exports;
mod failed;
pub mod http;
mod looking;
mod lost;
pub mod metrics;
pub mod nbd;
mod notify;
mod place;
mod server;
mod service;
mod socket;

pub use exports::{Exports, Unserved};
pub use failed::Patience;
pub use forebay::runtime_dir;
pub use place::{default_socket, uri, usable_socket, ReadyFile};
pub use server::{Ready, Server};
pub use service::{Figure, Progress, ServerStatus, Service, ServiceStatus, Starter, Stop, Work};
pub use socket::PrivateSocket;

/// A log that takes nothing any more ends no request, and holds none up.
#[track_caller]
pub(crate) fn warn(text: impl Display) {
    let text = text.to_string();
    forebay::diagnostics::warn(format_args!("forebay: {}", forebay::printable(&text)));
}

/// Errors of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Pool(#[from] forebay::Error),

    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },

    /// A service cannot do what is asked.
    #[error("{what}; {way_out}")]
    Service {
        what: String,
        way_out: String,
        /// One of [`forebay::EXIT_CODES`].
        code: u8,
    },

    /// Another file or device of the same UUID is served.
    #[error("{}: is not the pool that is served: process {pid} serves {}, which has the same UUID, as a copy has; name that one, or stop its server before the copy is used", asked.display(), served.display())]
    OtherPool { asked: PathBuf, served: PathBuf, pid: u32 },

    /// Talking to the process that serves the pool failed.
    #[error("control socket {}: {cause}; {way_out}", socket.display())]
    Control {
        socket: PathBuf,
        cause: String,
        way_out: String,
        /// Exit code the other side named, or 0.
        code: u8,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A service cannot do what is asked, with an exit code of [`forebay::EXIT_CODES`].
    pub fn service(code: u8, what: impl Into<String>, way_out: impl Into<String>) -> Error {
        Error::Service { what: what.into(), way_out: way_out.into(), code }
    }

    /// For a command that fails with this error, of [`forebay::EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Pool(e) => e.exit_code(),
            // An I/O error of the library may not concern a device here.
            Error::System { source, .. } => match forebay::io_exit_code(source) {
                7 => 1,
                code => code,
            },
            Error::OtherPool { .. } => 4,
            Error::Service { code, .. } => *code,
            Error::Control { code: 0, .. } => 7,
            Error::Control { code, .. } => *code,
        }
    }
}

/// A failed system call.
fn system(what: String) -> impl FnOnce(std::io::Error) -> Error {
    |source| Error::System { what, source }
}
