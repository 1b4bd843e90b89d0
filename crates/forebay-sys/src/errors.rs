// SPDX-License-Identifier: MIT OR Apache-2.0
//! `core/api/errors.h`: the numbers, and the engine's own name, message and errno
//! for each.

use std::ffi::{c_char, c_int, CStr};

extern "C" {
    pub fn fby_error_errno(error: c_int) -> c_int;
    pub fn fby_error_message(error: c_int) -> *const c_char;
    pub fn fby_error_name(error: c_int) -> *const c_char;
}

macro_rules! errors {
    ($($name:ident = $value:expr),* $(,)?) => {
        $(pub const $name: c_int = $value;)*
        /// Every error with its C name, in C's order; the tests compare it with C's.
        pub const FBY_ERROR_NAMES: &[(&str, c_int)] = &[$((stringify!($name), $value)),*];
    };
}

// Positive, as in C; functions return them negated.
errors! {
    FBY_E_NO_SUPERBLOCK = 1,
    FBY_E_BAD_SUPERBLOCK = 2,
    FBY_E_VERSION = 3,
    FBY_E_FEATURE = 4,
    FBY_E_FEATURE_RO = 5,
    FBY_E_MEDIA_SIZE = 6,
    FBY_E_GEOMETRY = 7,
    FBY_E_MEDIA_SMALL = 8,
    FBY_E_NO_MEMORY = 9,
    FBY_E_READ_ONLY = 10,
    FBY_E_RECOVERY_INCOMPLETE = 11,
    FBY_E_NO_VOLUME = 12,
    FBY_E_VOLUME_EXISTS = 13,
    FBY_E_VOLUME_TABLE_FULL = 14,
    FBY_E_VOLUME_DAMAGED = 15,
    FBY_E_VOLUME_BUSY = 16,
    FBY_E_VOLUME_DETACHED = 17,
    FBY_E_VOLUME_DIRTY = 18,
    FBY_E_ORIGIN_SIZE = 19,
    FBY_E_ORIGIN_IDENTITY = 20,
    FBY_E_HOLES = 21,
    FBY_E_HOLES_KNOWN = 22,
    FBY_E_NAME = 23,
    FBY_E_RANGE = 24,
    FBY_E_ALIGNMENT = 25,
    FBY_E_LOST = 26,
    FBY_E_ORIGIN_IO = 27,
    FBY_E_BUSY = 28,
    FBY_E_INVARIANT = 29,
    FBY_E_NUMBERS = 30,
    FBY_E_GROUP = 31,
    FBY_E_CHUNK_KIND = 32,
    FBY_E_OWNER_KIND = 33,
    FBY_E_NO_LOG = 34,
    FBY_E_LOG_STATE = 35,
    FBY_E_LOG_UNCLAIMED = 36,
    FBY_E_LOG_OBSOLETE = 37,
    FBY_E_LOG_SKIPS = 38,
    FBY_E_LOG_BACKWARDS = 39,
    FBY_E_LOG_TOO_LARGE = 40,
    FBY_E_LOG_GUID = 41,
    FBY_E_LOG_HEADER = 42,
    FBY_E_LOG_ENTRY = 43,
    FBY_E_LOG_PERIOD = 44,
    FBY_E_STATIC_FULL = 45,
    FBY_E_NO_MAP = 46,
    FBY_E_MAP_FULL = 47,
    FBY_E_MAP_DIRTY = 48,
    FBY_E_MAP_DAMAGED = 49,
    FBY_E_MAP_MEDIA = 50,
    FBY_E_ERAS = 51,
    FBY_E_GROUPED = 52,
    FBY_E_NOT_GROUPED = 53,
    FBY_E_UNIT = 54,
    FBY_E_MEDIUM = 55,
    FBY_E_LOGS_ONLY = 56,
}

/// The engine's sentence for an error it returned.
pub fn error_message(error: c_int) -> &'static str {
    // SAFETY: returns a string constant for every number.
    static_text(unsafe { fby_error_message(error) })
}

/// The engine's name for an error it returned.
pub fn error_name(error: c_int) -> &'static str {
    // SAFETY: returns a string constant for every number.
    static_text(unsafe { fby_error_name(error) })
}

/// The errno number (positive) for an error the engine returned.
pub fn error_errno(error: c_int) -> c_int {
    // SAFETY: takes any number.
    unsafe { fby_error_errno(error) }
}

pub(crate) fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the callers pass string constants of the C code.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}
