// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of NBD servers: libnbd, loaded at run time and made safe.
//!
//! A [`Connection`] is one connection, used by one thread, which waits for it itself:
//! [`Connection::fd`] and [`Connection::direction`] say what to poll for.  It owns the
//! buffers of what is in flight, so that nothing of a caller's is written to by a server
//! that answers late.
#![deny(unsafe_code)]

mod connection;
mod library;

use std::fmt;

pub use connection::{Command, Connection, Direction, Done, Export};

/// An error of libnbd.
#[derive(Clone, Debug)]
pub enum Failure {
    /// libnbd is not installed, or lacks a function that is used; the loader's message.
    NoLibrary(String),
    /// libnbd's message, and the number of the error, 0 if it has none.
    Nbd { text: String, errno: i32 },
}

impl Failure {
    /// For an answer to whoever asked for the command.
    pub fn errno(&self) -> i32 {
        match self {
            Failure::Nbd { errno, .. } if *errno > 0 => *errno,
            _ => 5, // EIO
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoLibrary(e) => write!(f, "libnbd cannot be used: {e}"),
            Failure::Nbd { text, .. } => f.write_str(text),
        }
    }
}
