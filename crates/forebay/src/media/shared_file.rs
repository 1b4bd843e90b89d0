// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of a served pool, as a process sees it that has it from the server.  The server looks
//! what has become of it.  Once the server has ended, the process has to look.

use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::overwritten::probed;
use super::whereabouts::FirstName;
use super::Written;
use crate::report::{FileFate, Uuid};

/// What the server had open.
#[derive(Debug)]
pub struct SharedFile {
    size_bytes: u64,
    own: Written,
    first: FirstName,
}

impl SharedFile {
    /// While the server has it.
    pub fn new(file: BorrowedFd<'_>, size_bytes: u64, uuid: Uuid, generation: u64) -> SharedFile {
        let own = Written { uuid, generation };
        SharedFile { size_bytes, own, first: FirstName::of(Some(&file)) }
    }

    /// Whether the file is lost, so that no open would find the pool there.  A server that ended in
    /// order has written the next superblock, and nobody else can open the pool since.  A device is
    /// not looked at.
    pub fn fate(&self, file: BorrowedFd<'_>) -> Option<FileFate> {
        let st = match rustix::fs::fstat(file) {
            Err(Errno::STALE) => return Some(FileFate::Removed),
            st => st.ok().filter(|st| FileType::from_raw_mode(st.st_mode).is_file())?,
        };
        if self.first.is_gone(file, &st, None) {
            return Some(FileFate::Removed);
        }
        if let Some(probe) = probed(file, self.size_bytes, true) {
            let own = probe.superblock.filter(|sb| sb.uuid == self.own.uuid);
            match own {
                None => return Some(FileFate::Overwritten),
                Some(sb) if sb.generation < self.own.generation => return Some(FileFate::SetBack),
                Some(_) => {}
            }
        }
        (u64::try_from(st.st_size).ok()? < self.size_bytes).then_some(FileFate::CutShort)
    }
}
