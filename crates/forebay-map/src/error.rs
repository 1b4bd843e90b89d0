// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: each names the thing, the cause and the way out.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{path}: {doing}: {error}")]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The pool refuses the request.
    #[error("the pool: {0}")]
    Pool(String),
    /// Another process has the pool and shares none of it.
    #[error("the pool: {0}")]
    Busy(String),
    /// The server has not answered.  It may have done what was asked, or may still do it.
    #[error("the pool: {0}")]
    Unknown(String),
    /// All frames are in use, and none became free within the time limit.
    #[error("no frame of the pool is free, and none could be made free: {0}")]
    Full(String),
    /// The file at the path is not the one that was mapped.
    #[error(
        "{path}: {why}; what was synced to the file that was mapped there is kept in the pool"
    )]
    Another {
        /// The path that the file had.
        path: PathBuf,
        /// A description of what is at the path now.
        why: String,
    },
    /// Another process has the file.
    #[error("{path}: {}", holds(*.by))]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process, if it is known.
        by: Option<u32>,
    },
    /// The request is not possible with this file or these numbers.
    #[error("{path}: {why}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

impl Error {
    /// The exit code of a command that ends with this error: one of [`forebay::EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self.cause() {
            Error::System { error, .. } => forebay::io_exit_code(error),
            Error::Pool(_) | Error::Unknown(_) => 5,
            Error::Full(_) => 8,
            Error::Another { .. } | Error::Refused { .. } => 6,
            Error::Busy(_) | Error::Locked { .. } => 4,
        }
    }

    /// The error that caused this one.  For example, a segment that cannot be brought in
    /// because the pool's server has ended is an error of the pool.
    pub fn cause(&self) -> &Error {
        match self {
            Error::System { error, .. } => {
                let inner = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
                inner.map_or(self, Error::cause)
            }
            _ => self,
        }
    }

    /// There is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::System { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn system(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |error| Error::System { path, doing, error }
    }
}

impl From<forebay::Error> for Error {
    fn from(e: forebay::Error) -> Error {
        match e {
            forebay::Error::Busy { .. } => Error::Busy(e.to_string()),
            e => Error::Pool(e.to_string()),
        }
    }
}

/// Why a file cannot be mapped whose path the pool's record could not have.
pub(crate) fn not_text() -> String {
    "its path is not UTF-8, and the pool records a path as text: rename the file, or the directory \
     whose name is not"
        .into()
}

fn holds(by: Option<u32>) -> String {
    let who = match by {
        Some(pid) if pid == std::process::id() => format!("this process ({pid})"),
        Some(pid) if forebay::is_dying(pid) => {
            return format!(
            "process {pid}, which had it, has ended: if its pool is served, the server writes back \
                 what it left, and releases the file then; try again (forebay map list shows it)"
        )
        }
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    };
    format!("{who} has it mapped or locked")
}

/// Whether a file system refused a change for lack of space.
pub(crate) fn lacks_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the kernel refused a change for lack of rights.
pub(crate) fn lacks_rights(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Whether a file cannot be marked, though it may be written: for lack of space or of rights.  It is
/// asked of a change of the mark, and not of its sync.
pub(crate) fn cannot_mark(error: &io::Error) -> bool {
    lacks_space(error) || lacks_rights(error)
}

/// A result of this library.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_holder_is_told_as_one() {
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id();
        child.wait().expect("it ends");
        let told = |by| Error::Locked { path: "f".into(), by }.to_string();
        assert!(told(Some(pid)).contains("has ended: if its pool"), "{}", told(Some(pid)));
        assert!(told(Some(std::process::id())).starts_with("f: this process ("));
        assert_eq!(told(None), "f: another process has it mapped or locked");
    }
}
