// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's C interface as it is: `core/api/forebay.h`, `core/format/format.h`,
//! `core/api/errors.h`, `host/` and `port/posix.h`, written out by hand and compared with C
//! (sizes, offsets, values) by the tests.  The contract of each function is in
//! those headers; the crate `forebay` is the safe way to use them.
//!
//! Enumerations are `u32` constants: what comes from C is a number until it has
//! been looked at.  Names are those of C, so that a search finds both sides.
#![allow(non_camel_case_types)]

mod api;
mod errors;
mod format;
mod groups;
mod host;
mod log;
mod map;
#[cfg(feature = "planted-bugs")]
mod planted;
mod port;

pub use api::*;
pub use errors::*;
pub use format::*;
pub use groups::*;
pub use host::*;
pub use log::*;
pub use map::*;
#[cfg(feature = "planted-bugs")]
pub use planted::*;
pub use port::*;

#[cfg(test)]
mod layout;

/// The text of a zero-terminated C array; all of it where no zero is found.
pub fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
}

/// Puts `text` into a zero-terminated C array of `N` bytes; `None` if it does not
/// fit with its zero or has a zero inside.
pub fn c_text<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() >= N || text.bytes().any(|byte| byte == 0) {
        return None;
    }
    let mut out = [0; N];
    out[..text.len()].copy_from_slice(text.as_bytes());
    Some(out)
}

/// Implements `Default` as all zeroes for structs where that is C's default.
macro_rules! zeroed_default {
    ($($name:ident),* $(,)?) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, arrays of integers, bools and raw pointers
                // only, for all of which zero is a value.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}
pub(crate) use zeroed_default;
