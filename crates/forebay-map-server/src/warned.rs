// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warnings of the server of maps.

/// Prints a warning.  Standard error may be closed, which is no error.
#[track_caller]
pub(crate) fn warn(text: &str) {
    forebay::diagnostics::warn(format_args!("forebay: {}", forebay::printable(text)));
}
