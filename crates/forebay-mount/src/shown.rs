// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only the front asks of a tree on a file system: lists, and copies within it.

use std::mem::MaybeUninit;

use rustix::fs::{self, Mode, OFlags, RawDir, SeekFrom};

use crate::mark;
use crate::record::Kind;
use crate::tree::Result;
use crate::unix::{kind_of, Node, UnixTree};

/// Bytes of a directory that are read at once.
const LIST: usize = 32 << 10;

impl UnixTree {
    /// The entries of a directory from a place on, as its file system counts them: each
    /// with its name, number, kind if the file system says it, and the place behind it.
    /// Ends when `each` says false.
    pub fn list(
        &self,
        dir: &Node,
        from: u64,
        mut each: impl FnMut(&[u8], u64, Option<Kind>, u64) -> bool,
    ) -> Result<()> {
        // A descriptor of its own: the place is the descriptor's.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = dir.reading()?;
        let fd = self.room(|| fs::openat(&dir, ".", flags, Mode::empty()))?;
        if from != 0 {
            fs::seek(&fd, SeekFrom::Start(from))?;
        }
        let mut room = [MaybeUninit::uninit(); LIST];
        let mut entries = RawDir::new(&fd, &mut room);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if mark::is_own(name) {
                continue;
            }
            let (kind, next) = (kind_of(entry.file_type()), entry.next_entry_cookie());
            if !each(name, entry.ino(), kind, next) {
                break;
            }
        }
        Ok(())
    }

    /// Copies bytes from file to file, as the file system can; less than asked for at the
    /// end of the first.
    pub fn copy(&self, from: &Node, at: u64, to: &Node, to_at: u64, length: u64) -> Result<u64> {
        let (mut at, mut to_at) = (at, to_at);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let copied = fs::copy_file_range(
            from.reading()?,
            Some(&mut at),
            to.writing()?,
            Some(&mut to_at),
            length,
        )?;
        Ok(copied as u64)
    }
}
