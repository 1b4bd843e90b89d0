// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the file of a record that has another name now.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::planted::{self, Planted};
use crate::store::FileRecord;

/// The number of names in one directory that a search looks at.
const LOOKED_AT: usize = 10_000;
/// How often a file is looked for that gets another name meanwhile.
const LOOKS: usize = 3;

/// Opens the file of a record at its path.  If it is not there, looks for the file under a new name
/// of its own or of a directory above it.  A program may rename them while it has the file open.
/// The rest of the tree is not searched.  A file that is found and cannot be opened is an error:
/// another file at the path does not count then.
pub fn open_of(
    open: &dyn Fn(&Path) -> Result<Box<dyn Backing>>,
    record: &FileRecord,
) -> Result<Box<dyn Backing>> {
    let path = Path::new(&record.path);
    let is = |file: &dyn Backing| file.identity() == record.identity;
    for _ in 0..LOOKS {
        let opened = open(path);
        let is_there = match &opened {
            Ok(file) => is(&**file),
            Err(e) if e.is_not_found() => false,
            // It may be another file that is locked.
            Err(_) => is_at(path, &record.identity),
        };
        if is_there || planted::is(Planted::RenamedGone) {
            return opened;
        }
        let Some(now) = renamed(path, &record.identity) else { return opened };
        // The file at the path is another one, and must not stay locked.
        drop(opened);
        match open(&now) {
            Ok(file) if !is(&*file) => {}
            Err(e) if e.is_not_found() => {}
            found => return found,
        }
    }
    Err(Error::Locked { path: path.to_owned(), by: None })
}

/// Whether the file with an identity is at a path.  It is not opened: an open would break another
/// process's lease and wait for it.
fn is_at(path: &Path, identity: &[u8]) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let looked = rustix::fs::open(path, flags, Mode::empty()).ok();
    let regular = |fd: &OwnedFd| {
        let st = rustix::fs::fstat(fd);
        st.is_ok_and(|st| FileType::from_raw_mode(st.st_mode) == FileType::RegularFile)
    };
    let found = looked.filter(regular).and_then(|fd| forebay::file_identity(fd.as_fd()).ok());
    found.is_some_and(|found| found.as_bytes() == identity)
}

/// Finds the file with an identity if one component of its path has a new name.
fn renamed(path: &Path, identity: &[u8]) -> Option<PathBuf> {
    // The search begins at the file's own name: the lowest directory that still exists holds
    // what was renamed.
    for above in path.ancestors().skip(1) {
        let (Ok(names), Ok(rest)) = (std::fs::read_dir(above), path.strip_prefix(above)) else {
            continue;
        };
        let mut rest = rest.components();
        let old = rest.next()?;
        let rest = rest.as_path();
        let names = names.take(LOOKED_AT).filter_map(|entry| Some(entry.ok()?.file_name()));
        let at = |name: std::ffi::OsString| match rest.as_os_str().is_empty() {
            true => above.join(name),
            false => above.join(name).join(rest),
        };
        let others = names.filter(|name| name != old.as_os_str()).map(at);
        if let Some(found) = others.into_iter().find(|at| is_at(at, identity)) {
            return Some(found);
        }
    }
    None
}
