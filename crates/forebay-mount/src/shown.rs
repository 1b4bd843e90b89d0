// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on a file-system tree that only the front needs: lists of directories, and copies
//! within the tree.

use std::mem::MaybeUninit;

use rustix::fs::{self, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::mark;
use crate::record::Kind;
use crate::rights::as_caller;
use crate::tree::Result;
use crate::unix::{kind_of, Node, UnixTree};

/// Bytes of a directory that are read at once.
const LIST: usize = 32 << 10;

impl UnixTree {
    /// Lists a directory from a place on, as its file system counts places.  Calls `each` with
    /// each entry's name, number, kind (if the file system reports it) and the place after it.
    /// Ends when `each` returns false.
    pub fn list(
        &self,
        dir: &Node,
        from: u64,
        mut each: impl FnMut(&[u8], u64, Option<Kind>, u64) -> bool,
    ) -> Result<()> {
        // A descriptor of its own: the place is the descriptor's.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = dir.reading()?;
        let open = |flags| self.room(|| fs::openat(&dir, ".", flags, Mode::empty()));
        let quiet = self.quiet(Kind::Directory);
        let fd = match open(flags | quiet) {
            Err(Errno::PERM) if !quiet.is_empty() => open(flags),
            opened => opened,
        }?;
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
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (from, to) = (from.reading()?, to.writing()?);
        let copied = as_caller(|| {
            let (mut at, mut to_at) = (at, to_at);
            fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), length)
        })?;
        Ok(copied as u64)
    }
}
