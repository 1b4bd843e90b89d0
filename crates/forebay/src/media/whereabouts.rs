// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is the file of an open pool still what somebody can open after a crash?

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::{Media, Written};
use crate::procfs::path_now;
use crate::report::{FileFate, FileTrouble, MediaKind};

const WRITTEN_BACK: &str = "volumes and mounts take no more changes, and what the pool holds is \
                            being written to the origins and trees. Keep the server running until";

/// The extent of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The open file alone.
    File,
    /// ... and its path, which may lead over other file systems.
    WithPath,
}

/// The names that NFS, libfuse and SMB give to a file that is removed while it is open.  It is gone
/// when it is closed.
const REMOVED_NAMES: [&str; 3] = [".nfs", ".fuse_hidden", ".__smb"];

/// The name of a file when it was opened, as its file system says.
#[derive(Debug)]
pub(super) struct FirstName {
    /// It had one.
    is_counted: bool,
    /// The last part of the path, as the kernel knows it.
    name: Option<OsString>,
}

impl FirstName {
    pub fn of<F: AsFd>(fd: Option<&F>) -> FirstName {
        let fd = fd.map(AsFd::as_fd);
        let is_counted = fd.is_some_and(|fd| rustix::fs::fstat(fd).is_ok_and(|st| st.st_nlink > 0));
        let name = fd.and_then(|fd| Some(path_now(fd)?.file_name()?.to_owned()));
        FirstName { is_counted, name }
    }

    /// Whether the file is removed.  A file system that counts no names says nothing by a count of 0.
    /// A new pool gets its name after the open.  `given`: another name by which it was opened.
    pub fn is_gone(&self, fd: BorrowedFd<'_>, st: &Stat, given: Option<&OsStr>) -> bool {
        (self.is_counted && st.st_nlink == 0) || self.is_hidden(fd, given)
    }

    /// Whether its name is one for a removed file, and was not given to it by its user.
    fn is_hidden(&self, fd: BorrowedFd<'_>, given: Option<&OsStr>) -> bool {
        let name = path_now(fd).and_then(|path| Some(path.file_name()?.to_owned()));
        let given = [self.name.as_deref(), given];
        name.filter(|name| !given.contains(&Some(name))).is_some_and(|name| {
            REMOVED_NAMES.iter().any(|hidden| name.as_bytes().starts_with(hidden.as_bytes()))
        })
    }
}

impl Media {
    fn is_removed(&self, st: &Stat) -> bool {
        let Some(fd) = &self.fd else { return false };
        self.first.is_gone(fd.as_fd(), st, self.at.file_name())
    }

    /// The size of its file, if that is smaller than it was when it was opened.
    fn cut_short(&self, st: &Stat) -> Option<u64> {
        let size_bytes = u64::try_from(st.st_size).ok()?;
        (size_bytes < self.info.size_bytes).then_some(size_bytes)
    }

    /// Looks whether its file is lost or moved; a loss comes before a move.  It may wait for the
    /// file system.  `own`: of the pool that is open.
    pub(crate) fn file_trouble(&self, look: Look, own: Written) -> Option<FileTrouble> {
        self.trouble_by(rustix::fs::fstat(self.fd.as_ref()?.as_fd()), look, own)
    }

    /// `st`: the answer for the open file.
    fn trouble_by(
        &self,
        st: rustix::io::Result<Stat>,
        look: Look,
        own: Written,
    ) -> Option<FileTrouble> {
        let is_file = |st: &Stat| FileType::from_raw_mode(st.st_mode).is_file();
        let st = match st {
            // Another machine has removed it.
            Err(Errno::STALE) => {
                return Some(self.trouble(FileFate::Removed, self.removed(false)));
            }
            st => st.ok().filter(is_file)?,
        };
        let at_path = || (look == Look::WithPath).then(|| rustix::fs::stat(&self.at));
        let is_other = |found: &Stat| (found.st_dev, found.st_ino) != (st.st_dev, st.st_ino);
        if self.is_removed(&st) {
            let replaced = at_path().is_some_and(|found| found.as_ref().is_ok_and(is_other));
            return Some(self.trouble(FileFate::Removed, self.removed(replaced)));
        }
        // First: a copy over the file cuts it short, and writes its beginning then.
        if let Some((fate, by)) = self.overwritten(own, look) {
            return Some(self.trouble(fate, self.foreign(fate, &by)));
        }
        if let Some(now) = self.cut_short(&st) {
            return Some(self.trouble(FileFate::CutShort, self.short(now)));
        }
        let found = at_path()?;
        let replaced = found.as_ref().is_ok_and(is_other);
        let gone = matches!(found, Err(Errno::NOENT | Errno::NOTDIR));
        (replaced || gone).then(|| self.trouble(FileFate::Moved, self.moved(replaced)))
    }

    fn trouble(&self, what: FileFate, (cause, way_out): (String, String)) -> FileTrouble {
        FileTrouble { what, path: self.at.clone(), cause, way_out }
    }

    fn descriptor(&self) -> i32 {
        self.fd.as_ref().map_or(-1, |fd| fd.as_fd().as_raw_fd())
    }

    /// A path to the open file, if there is one: /proc may be that of another PID namespace.
    fn in_proc(&self) -> Option<PathBuf> {
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.descriptor()));
        let (there, own) =
            (rustix::fs::stat(&path).ok()?, rustix::fs::fstat(self.fd.as_ref()?.as_fd()));
        own.is_ok_and(|own| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
            .then_some(path)
    }

    fn name_now(&self) -> Option<PathBuf> {
        path_now(self.fd.as_ref()?.as_fd())
    }

    /// Cause and way out, here and below.
    fn removed(&self, replaced: bool) -> (String, String) {
        let by = if replaced { ", and another file has its path now" } else { "" };
        let (read_only, in_proc) = (self.read_only(), self.in_proc());
        let cause =
            format!("its file was deleted{by}: all that it holds is gone when its server ends");
        let by = match in_proc {
            Some(path) if read_only => format!("cp {} NEW", path.display()),
            Some(path) => format!("forebay drain {}", path.display()),
            None => format!(
                "descriptor {} of process {}, in its PID namespace",
                self.descriptor(),
                std::process::id()
            ),
        };
        let way_out = match read_only {
            true => format!("copy it while the server runs ({by})"),
            false => format!(
                "{WRITTEN_BACK} all of it is there ({by}), then unmount and end it, and make a new \
                 pool"
            ),
        };
        (cause, way_out)
    }

    fn short(&self, now: u64) -> (String, String) {
        let was = self.info.size_bytes;
        let cause = format!(
            "its file was cut short to {now} bytes of {was}: it cannot be opened as it is, and \
             what it held there is lost"
        );
        let restore =
            format!("restore the size of the file (truncate -s {was}), then forebay check");
        let way_out = match self.read_only() {
            true => restore,
            false => format!(
                "{WRITTEN_BACK} all of it is there (forebay drain), then unmount and end it, and \
                 make a new pool; if the server ends before, {restore}"
            ),
        };
        (cause, way_out)
    }

    fn foreign(&self, fate: FileFate, by: &str) -> (String, String) {
        let cause = format!(
            "its file was overwritten: {by} lies there now, and what the pool held there is lost"
        );
        let end = match (self.read_only(), fate) {
            (true, _) => "end its server, and restore the pool from a copy".into(),
            // What is read there may be older than what was acknowledged, and has a valid checksum.
            (_, FileFate::SetBack) if self.info.kind != MediaKind::Disk => "volumes and mounts \
                take no more changes, and the trees of mounts are being completed. Compare the \
                origins of volumes with a backup: nothing tells old data from new there. Unmount \
                and end it, and make a new pool"
                .into(),
            _ => format!(
                "{WRITTEN_BACK} all that is left is there (forebay drain), then unmount and end \
                 it, and make a new pool; checksums refuse what is not the pool's"
            ),
        };
        (cause, end)
    }

    fn moved(&self, replaced: bool) -> (String, String) {
        let by = if replaced { ", and another file has its path now" } else { "" };
        let now = self.name_now().map_or("find -inum finds it".into(), |now| {
            format!("it is {} now", crate::printable(&now.to_string_lossy()))
        });
        (
            format!("its file was moved{by}"),
            format!(
                "nothing is lost: move it back, or end its server and open it by its new name ({now})"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::MediaOptions;
    use crate::report::Uuid;

    /// A server of files answers so for one that another of its clients has removed.
    #[test]
    fn a_stale_file_is_a_removed_one() {
        let name = format!("forebay-stale-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let media = Media::open(&path, &MediaOptions::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let own = Written { uuid: Uuid([0; 16]), generation: 1 };
        let found = |errno| media.trouble_by(Err(errno), Look::File, own).map(|found| found.what);
        assert_eq!(found(Errno::STALE), Some(FileFate::Removed));
        assert_eq!(found(Errno::IO), None, "one wrong answer says nothing");
    }

    /// A user may give a file such a name, and open it by a symlink with another one.
    #[test]
    fn a_name_for_removed_files_is_none_at_the_open() {
        let name = |prefix| format!("{prefix}forebay-hidden-{}", std::process::id());
        let directory = std::env::temp_dir();
        let [link, file, renamed] = ["", ".nfs", ".fuse_hidden"].map(|p| directory.join(name(p)));
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let media = Media::open(&link, &MediaOptions::default()).unwrap();
        let own = Written { uuid: Uuid([0; 16]), generation: 1 };
        let found = || media.file_trouble(Look::File, own).map(|found| found.what);
        let as_opened = found();
        std::fs::rename(&file, &renamed).unwrap();
        let removed = found();
        std::fs::remove_file(&renamed).unwrap();
        std::fs::remove_file(&link).unwrap();
        assert_ne!(as_opened, Some(FileFate::Removed));
        assert_eq!(removed, Some(FileFate::Removed));
    }
}
