// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and names that the simulated tree never takes.

use rustix::io::Errno;

use crate::tree::Result;

/// The largest file.
pub fn fits(size: u64) -> Result<()> {
    match size > 1 << 20 {
        true => Err(Errno::FBIG),
        false => Ok(()),
    }
}

/// Names that it never takes.
pub fn refused(name: &[u8]) -> Result<()> {
    match name {
        b"many" => Err(Errno::MLINK),
        b"long" => Err(Errno::NAMETOOLONG),
        b"quota" => Err(Errno::DQUOT),
        _ => Ok(()),
    }
}
