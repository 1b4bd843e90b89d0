// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts kinds, times and errors between FUSE and the tree.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, ReplyEmpty, TimeOrNow};
use rustix::io::Errno;

use super::rooms;
use crate::record::{Kind, Time};
use crate::tree::Result;

const S_IFMT: u32 = 0o170000;

/// The answer that a name does not exist: an inode without a number.  The kernel caches it like
/// existing names.
pub(super) fn no_inode() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(super) fn system_time(t: Time) -> SystemTime {
    let part = Duration::from_nanos(t.nanoseconds.into());
    match t.seconds {
        0.. => UNIX_EPOCH + Duration::from_secs(t.seconds as u64) + part,
        before => UNIX_EPOCH - Duration::from_secs(before.unsigned_abs()) + part,
    }
}

/// A time of a request as the kernel meant it: for times before 1970 fuser subtracts the
/// nanoseconds instead of adding them.
fn requested(t: SystemTime) -> Time {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Time { seconds: d.as_secs() as i64, nanoseconds: d.subsec_nanos() },
        Err(before) => {
            let d = before.duration();
            Time { seconds: (d.as_secs() as i64).wrapping_neg(), nanoseconds: d.subsec_nanos() }
        }
    }
}

pub(super) fn time_or_now(t: TimeOrNow) -> Time {
    match t {
        TimeOrNow::SpecificTime(t) => requested(t),
        TimeOrNow::Now => requested(SystemTime::now()),
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind in a mode of mknod.
pub(super) fn kind_of(mode: u32) -> Result<Kind> {
    Ok(match mode & S_IFMT {
        0o100000 | 0 => Kind::File,
        0o010000 => Kind::Fifo,
        0o140000 => Kind::Socket,
        0o020000 => Kind::CharDevice,
        0o060000 => Kind::BlockDevice,
        _ => return Err(Errno::INVAL),
    })
}

pub(super) fn empty(reply: ReplyEmpty, done: Result<()>) {
    rooms::replies();
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

pub(super) fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error())
}
