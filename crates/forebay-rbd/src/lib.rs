// SPDX-License-Identifier: MIT OR Apache-2.0
//! RBD images of a Ceph cluster: librados and librbd, loaded at run time and made safe.
//!
//! An [`Image`] is one image, opened by a client of the cluster of its own and, unless it is
//! for reading only, under the image's exclusive lock.  Commands are asynchronous: what has
//! ended is told from a thread of librbd's.  An image owns the buffers of what is in flight,
//! so that nothing of a caller's is written to by a cluster that answers late.
#![deny(unsafe_code)]

/// Whether a mistake is on: [`fake::Bug`]; without the feature `fake` none is.
#[cfg(feature = "fake")]
#[macro_export]
macro_rules! bug {
    ($name:ident) => {
        $crate::fake::planted($crate::fake::Bug::$name)
    };
}
#[cfg(not(feature = "fake"))]
#[macro_export]
macro_rules! bug {
    ($name:ident) => {
        false
    };
}

#[cfg(feature = "fake")]
pub mod fake;
mod image;
mod library;
mod name;

use std::fmt;

pub use image::{Command, Done, Facts, Image};
pub use name::Name;

/// An error of libnbd.
#[derive(Clone, Debug)]
pub enum Failure {
    /// librados or librbd is not installed, or lacks a function that is used; the loader's
    /// message.
    NoLibrary(String),
    /// The action that failed, and the number of the error.
    Rbd { doing: &'static str, errno: i32 },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoLibrary(e) => write!(f, "librbd cannot be used: {e}"),
            Failure::Rbd { doing, errno } => {
                write!(f, "{doing}: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}
