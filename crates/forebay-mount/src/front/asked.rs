// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out whether a request asks for more than itself: that its bytes are durable when it
//! returns.
//!
//! After a synchronous write the kernel sends an FSYNC itself, except for two kinds:
//!
//! - A write of O_DIRECT that a program does not wait for (aio, io_uring).  The request has the
//!   flags of O_SYNC, O_DSYNC, RWF_SYNC, RWF_DSYNC or of the mount, so the server acts on those.
//! - A copy_file_range, whose request has no flags at all.  The descriptors of its caller show
//!   how the file was opened.

use std::fs;
use std::io;

use forebay::procfs;
use fuser::{OpenFlags, WriteFlags};

use crate::rights;

const O_ACCMODE: i32 = 0o3;
const O_DSYNC: i32 = 0o10000;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Whether a write must be durable before it returns.  For pages that the kernel writes back
/// from its page cache, it sends a separate request.
pub(super) fn write_syncs(write: WriteFlags, flags: OpenFlags) -> bool {
    // O_SYNC is O_DSYNC with another bit.
    flags.0 & O_DSYNC != 0 && !write.contains(WriteFlags::FUSE_WRITE_CACHE)
}

/// Whether the kernel accepts a write only as a whole.  It does not count what it writes back,
/// and it reports a short direct write as EIO.
pub(super) fn write_is_whole(write: WriteFlags, flags: OpenFlags) -> bool {
    write.contains(WriteFlags::FUSE_WRITE_CACHE) || flags.0 & O_DIRECT != 0
}

/// Whether the caller of a copy writes synchronously to the inode, which the kernel knows by
/// this number; `true` if that cannot be known.
pub(super) fn copy_syncs(pid: u32, ino: u64) -> bool {
    rights::as_server(|| descriptors_sync(pid, ino))
}

fn descriptors_sync(pid: u32, ino: u64) -> bool {
    let Ok(infos) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return true };
    let mut known = false;
    for info in infos.flatten() {
        let text = match procfs::text(info.path()) {
            Ok(text) => text,
            // Another thread has closed it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => return true,
        };
        let Some((flags, found)) = descriptor(&text) else { return true };
        if found != ino || flags & O_ACCMODE == 0 {
            continue;
        }
        if flags & O_DSYNC != 0 {
            return true;
        }
        known = true;
    }
    // Another thread may have closed it meanwhile, or the caller is in another PID namespace.
    !known
}

/// The flags and the inode number (Linux 5.14) of a file in fdinfo.
fn descriptor(text: &str) -> Option<(i32, u64)> {
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((i32::from_str_radix(field("flags:")?, 8).ok()?, field("ino:")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{open, Mode, OFlags};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_direct_write_that_asks_is_told_from_write_back() {
        let sync = OpenFlags(0o4010000 | 0o40000 | 1);
        assert!(write_syncs(WriteFlags::empty(), sync));
        assert!(write_syncs(WriteFlags::empty(), OpenFlags(O_DSYNC | 1)));
        assert!(!write_syncs(WriteFlags::empty(), OpenFlags(1)));
        assert!(!write_syncs(WriteFlags::FUSE_WRITE_CACHE, sync));
    }

    #[test]
    fn a_copy_asks_by_how_its_file_was_opened() {
        let path = std::env::temp_dir().join(format!("forebay-asked-{}", std::process::id()));
        let opened = |flags| open(&path, OFlags::CREATE | flags, Mode::RUSR | Mode::WUSR).unwrap();
        let me = std::process::id();
        let plain = opened(OFlags::WRONLY);
        let ino = std::fs::metadata(&path).unwrap().ino();
        assert!(!copy_syncs(me, ino));
        let reads = opened(OFlags::RDONLY | OFlags::SYNC);
        assert!(!copy_syncs(me, ino), "nothing is written by one that reads");
        let synchronous = opened(OFlags::RDWR | OFlags::DSYNC);
        assert!(copy_syncs(me, ino));
        drop(synchronous);
        assert!(!copy_syncs(me, ino));
        drop(plain);
        assert!(copy_syncs(me, ino), "nobody says how it was opened");
        drop(reads);
        std::fs::remove_file(&path).unwrap();
        assert!(copy_syncs(0, ino) && copy_syncs(u32::MAX, ino), "no such process");
    }

    #[test]
    fn a_kernel_that_does_not_name_the_inode_is_not_believed() {
        assert_eq!(descriptor("pos:\t0\nflags:\t0100002\nmnt_id:\t29\n"), None);
        let text = "pos:\t0\nflags:\t02010002\nmnt_id:\t29\nino:\t77\n";
        assert_eq!(descriptor(text), Some((0o2010002, 77)));
    }
}
