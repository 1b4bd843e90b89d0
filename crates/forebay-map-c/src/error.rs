// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error codes, and the text of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};

use forebay_map::Error;

/// Defines the codes of `enum forebay_map_code` with their names.
macro_rules! codes {
    ($($code:ident = $number:literal $name:literal),+ $(,)?) => {
        /// The codes of the header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Code { $($code = $number),+ }

        /// The name of a code.
        pub fn name(code: c_int) -> &'static CStr {
            match code {
                0 => c"FOREBAY_MAP_OK",
                $($number => $name,)+
                _ => c"unknown",
            }
        }
    };
}

codes! {
    Argument = 1 c"FOREBAY_MAP_E_ARGUMENT",
    Handle = 2 c"FOREBAY_MAP_E_HANDLE",
    Child = 3 c"FOREBAY_MAP_E_CHILD",
    System = 4 c"FOREBAY_MAP_E_SYSTEM",
    Pool = 5 c"FOREBAY_MAP_E_POOL",
    Full = 6 c"FOREBAY_MAP_E_FULL",
    Locked = 7 c"FOREBAY_MAP_E_LOCKED",
    Refused = 8 c"FOREBAY_MAP_E_REFUSED",
    InUse = 9 c"FOREBAY_MAP_E_IN_USE",
    Busy = 10 c"FOREBAY_MAP_E_BUSY",
}

/// The outcome of a call that failed.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub errno: c_int,
    pub text: String,
}

impl Failure {
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, errno: 0, text: text.into() }
    }
}

/// The failure of an invalid argument.
pub fn argument(text: String) -> Failure {
    Failure::new(Code::Argument, text)
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let (code, errno) = match e.cause() {
            Error::System { error, .. } => (Code::System, error.raw_os_error().unwrap_or(0)),
            Error::Pool(_) | Error::Unknown(_) => (Code::Pool, 0),
            Error::Busy(_) => (Code::Busy, 0),
            Error::Full(_) => (Code::Full, 0),
            Error::Locked { .. } => (Code::Locked, 0),
            Error::Another { .. } | Error::Refused { .. } => (Code::Refused, 0),
        };
        Failure { code, errno, text: e.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<(CString, c_int)> = RefCell::default();
}

/// Runs a call, and stores its message if it fails.
pub fn tell(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let done = match crate::handles::is_child() {
        true => Err(Failure::new(
            Code::Child,
            "the pool belongs to the process that has opened it, and this is a child of it: \
             open files after the fork, or exec another program",
        )),
        false => call(),
    };
    let Err(failure) = done else { return 0 };
    let mut bytes = failure.text.into_bytes();
    bytes.retain(|&b| b != 0);
    let text = CString::new(bytes).unwrap_or_default();
    // A thread that is ending can no longer ask for the text.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (text, failure.errno));
    failure.code as c_int
}

/// The message of the thread's last failure.  Valid until the thread's next one.
pub fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().0.as_ptr()).unwrap_or(c"".as_ptr())
}

pub fn last_errno() -> c_int {
    LAST.try_with(|last| last.borrow().1).unwrap_or(0)
}
