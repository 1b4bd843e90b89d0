// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of the engine's calls: decisions and errors.

use std::fmt;

use forebay_sys as sys;

/// An error of the engine: the positive number of an `FBY_E_x`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub fn is(self, code: i32) -> bool {
        self.0 == code
    }

    pub fn name(self) -> &'static str {
        sys::error_name(-self.0)
    }

    pub fn message(self) -> &'static str {
        sys::error_message(-self.0)
    }

    /// The errno number.
    pub fn errno(self) -> i32 {
        sys::error_errno(-self.0)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.message())
    }
}

impl std::error::Error for Code {}

pub type Result<T> = std::result::Result<T, Code>;

/// A decision of the engine: `enum fby_decision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Done,
    Wait(Wait),
    Origin,
    Again,
    /// Through the cache, not past it.
    Cached,
}

/// The reason for a request's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Block,
    Slot,
    Space,
    Flush,
    Ticket,
}

/// The decision of a return value.
pub(crate) fn decision(value: i32) -> Result<Decision> {
    Ok(match value {
        sys::FBY_DONE => Decision::Done,
        sys::FBY_WAIT_BLOCK => Decision::Wait(Wait::Block),
        sys::FBY_WAIT_SLOT => Decision::Wait(Wait::Slot),
        sys::FBY_WAIT_SPACE => Decision::Wait(Wait::Space),
        sys::FBY_WAIT_FLUSH => Decision::Wait(Wait::Flush),
        sys::FBY_WAIT_TICKET => Decision::Wait(Wait::Ticket),
        sys::FBY_ORIGIN => Decision::Origin,
        sys::FBY_AGAIN => Decision::Again,
        sys::FBY_CACHED => Decision::Cached,
        e if e < 0 => return Err(Code(-e)),
        _ => return Err(Code(sys::FBY_E_INVARIANT)),
    })
}

/// Converts the result of a call that decides nothing.
pub(crate) fn done(value: i32) -> Result<()> {
    match value {
        e if e < 0 => Err(Code(-e)),
        _ => Ok(()),
    }
}
