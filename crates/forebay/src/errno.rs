// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of the system's errors, also of those that say more than a number.

use std::io;
use std::path::Path;

use rustix::io::Errno;

/// The object of a system error; every caller that gets the error number gets this text.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct About {
    text: String,
    errno: i32,
}

/// An error of the system that says more than its number.
pub(crate) fn about(kind: io::ErrorKind, text: String, errno: i32) -> io::Error {
    io::Error::new(kind, About { text, errno })
}

/// The number of an error of the system, also where it says what it is about.
pub(crate) fn errno_of(e: &io::Error) -> Option<i32> {
    let about = || Some(e.get_ref()?.downcast_ref::<About>()?.errno);
    e.raw_os_error().or_else(about)
}

/// The number that is answered for an error: EIO for one that has none.
pub(crate) fn errno_or_io(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error())
}

/// Copies the error for another thread that waited for it.
pub(crate) fn again(e: &io::Error) -> io::Error {
    match errno_of(e) {
        Some(errno) => about(e.kind(), e.to_string(), errno),
        None => io::Error::new(e.kind(), e.to_string()),
    }
}

/// The error with the path that it is about.
pub(crate) fn at_path(path: &Path, e: io::Error) -> io::Error {
    let text = format!("{}: {e}", path.display());
    match errno_of(&e) {
        Some(errno) => about(e.kind(), text, errno),
        None => io::Error::new(e.kind(), text),
    }
}

/// The way out of a limit on the size of files.
pub(crate) const LARGER_FILES: &str = "allow larger files (ulimit -f, LimitFSIZE= of a unit)";

/// The way out where memory or a thread cannot be had.
const MORE_MEMORY: &str =
    "free memory, or allow more, and more threads (ulimit -v and -u, MemoryMax= of a unit)";

/// The error of a thread that cannot be started, which the system calls unavailable for a while.
pub fn no_thread(e: &io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("no thread can be started: {e}"))
}

/// The way out of an error that comes from a limit of the process; `None`: it comes from none.
pub fn limit_way_out(error: &io::Error) -> Option<&'static str> {
    match errno_of(error).map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            Some("allow more open files (ulimit -n, LimitNOFILE= of a unit; 1024 is usual)")
        }
        _ => match error.kind() {
            io::ErrorKind::OutOfMemory => Some(MORE_MEMORY),
            io::ErrorKind::FileTooLarge => Some(LARGER_FILES),
            _ => None,
        },
    }
}
