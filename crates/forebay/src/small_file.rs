// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading what somebody else may have put there.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most that [`small_file`] reads.
const MOST_BYTES: u64 = 1 << 20;

/// The text of a regular file of at most 1 MiB.  A FIFO or a device in its place holds nobody up,
/// and nothing takes more memory.
pub fn small_file(path: &Path) -> Result<String> {
    let wrong = |what| Error::new(ErrorKind::InvalidData, what);
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("it is no file"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MOST_BYTES {
        true => Err(wrong("it has more than 1 MiB")),
        false => Ok(text),
    }
}
