// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's limits on open files and on the size of files that it writes.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::error::{Error, Result};

/// Allows as many open files as this process may have.  If that fails, the present limit has to do.
pub fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Raises the limit on the size of files as far as this process may.  A limit that it inherited is
/// meant for what its user writes, and a pool is no such file.
pub fn raise_file_size() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    // Only CAP_SYS_RESOURCE raises the hard limit.
    let none = setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None });
    if none.is_err() {
        let _ = setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum });
    }
}

/// Refuses a file of which this process could write a part only.
pub(crate) fn allows(path: &Path, bytes: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < bytes => {
            Err(Error::system(path, "writing beyond the limit of this process", Errno::FBIG.into()))
        }
        _ => Ok(()),
    }
}
