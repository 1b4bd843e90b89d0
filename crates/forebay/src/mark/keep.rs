// SPDX-License-Identifier: MIT OR Apache-2.0
//! The places of marks: the attribute user.forebay of a file; an origin's own means; otherwise
//! a file with the origin's name in a directory of this host.
//!
//! `user.`, because everybody who may write a file may mark it, root or not, and because cp,
//! tar and rsync can copy it; `trusted.` needs CAP_SYS_ADMIN for both.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use forebay_engine::lasting::{self, Lasting};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, XattrFlags, CWD};
use rustix::io::Errno;

use super::content::{Mark, MOST_BYTES};
use super::{Bears, MarkedBy, MarkedOn};
use crate::directories::{set, whole};
use crate::errno::{about, at_path, errno_of};
use crate::media::lock_soon;

#[cfg(test)]
mod tests;

/// The extended attribute of a file that is its mark.
pub const ATTRIBUTE: &CStr = c"user.forebay";
pub(super) const SYSTEM: &str = "/var/lib/forebay";
const MARKS: &str = "marks";
/// Longest name of a file of a mark.
const NAME_MOST: usize = 200;

/// The mark found on an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Marked(Box<Mark>),
    /// Something that is no mark, and why.
    Damaged(String),
}

impl Found {
    pub(crate) fn of(bytes: &[u8]) -> Found {
        match Mark::from_bytes(bytes) {
            Ok(mark) => Found::Marked(Box::new(mark)),
            Err(why) => Found::Damaged(why),
        }
    }
}

/// The store of one origin's mark.
pub trait Keep: Send + Sync + fmt::Debug {
    /// The id of the origin.
    fn name(&self) -> String;
    /// The mark is a part of the origin: copying the origin or restoring an older state of it
    /// does the same to the mark.
    fn is_borne(&self) -> bool;
    fn find(&self) -> io::Result<Found>;
    /// In place of one that is there, whole or not at all; durable after sync.
    fn put(&self, mark: &Mark) -> io::Result<()>;
    /// Durable after sync.
    fn take_away(&self) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

/// Directory for the files of marks: `$FOREBAY_STATE_DIR`, otherwise /var/lib/forebay for root,
/// and for others `$XDG_STATE_HOME/forebay` or ~/.local/state/forebay.
pub fn state_dir() -> PathBuf {
    if let Some(dir) = set("FOREBAY_STATE_DIR") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return SYSTEM.into();
    }
    let home = || whole("HOME").map(|home| home.join(".local/state"));
    whole("XDG_STATE_HOME").or_else(home).map_or_else(|| SYSTEM.into(), |dir| dir.join("forebay"))
}

/// The place of a mark: the origin itself if it can bear one, otherwise a file in a directory.
#[derive(Debug)]
pub(crate) struct Kept {
    name: String,
    on: On,
    /// Marks are put into the first.
    dirs: Vec<PathBuf>,
    /// Held for as long as the origin is in use: nobody else sets its mark, or takes it away.
    lock: Option<Claim>,
    /// The attribute was changed since the last sync, the directory was.
    unsynced: [AtomicBool; 2],
    /// The directories that are known to have no mark of the origin.
    without: [AtomicBool; 2],
}

/// A lock of an origin; its file goes with it.
#[derive(Debug)]
pub(crate) struct Claim {
    dir: OwnedFd,
    name: String,
    _file: OwnedFd,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Still locked: who waits for nothing and finds it gone makes another.
        let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

#[derive(Debug)]
enum On {
    Host,
    File(Lasting<OwnedFd>),
    /// By O_PATH: opened only to change its mark.
    Unopened(Lasting<OwnedFd>),
    Origin(Arc<dyn Bears>),
}

impl Kept {
    /// For as long as the origin is used.
    pub(crate) fn open(by: &MarkedBy<'_>, state: &Path, read_only: bool) -> io::Result<Kept> {
        let mut kept = Kept::look(by, state)?;
        if matches!(by.on, MarkedOn::Host) && !read_only {
            kept.lock = Some(kept.lock()?);
            kept.make_room().map_err(|e| kept.about_file(e))?;
        }
        Ok(kept)
    }

    /// For a look.
    pub(crate) fn look(by: &MarkedBy<'_>, state: &Path) -> io::Result<Kept> {
        let on = match &by.on {
            MarkedOn::Host => On::Host,
            MarkedOn::File(file) => On::File(own_description(*file)?),
            MarkedOn::Shared(file) => On::File(lasting::duplicate(*file)?),
            MarkedOn::Unopened(file) => On::Unopened(lasting::duplicate(*file)?),
            MarkedOn::Origin(bears) => On::Origin(bears.clone()),
        };
        let mut dirs = vec![state.join(MARKS)];
        if state != Path::new(SYSTEM) {
            dirs.push(Path::new(SYSTEM).join(MARKS));
        }
        let name = by.name.clone();
        let (unsynced, without) = Default::default();
        Ok(Kept { name, on, dirs, lock: None, unsynced, without })
    }

    /// Exclusive; busy while somebody else has it.
    pub(crate) fn lock(&self) -> io::Result<Claim> {
        make_dir(&self.dirs[0])?;
        let dir = open_dir(&self.dirs[0])?.ok_or(Errno::NOENT)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = format!(".{}.lock", file_name(&self.name));
        loop {
            let file = rustix::fs::openat(&dir, &name, flags, Mode::from_raw_mode(0o600))?;
            match lock_soon(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Err(Errno::BUSY.into()),
                done => done?,
            }
            // The previous holder may have removed the file in between.
            let locked = rustix::fs::fstat(&file)?;
            match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(st) if (st.st_dev, st.st_ino) == (locked.st_dev, locked.st_ino) => {
                    return Ok(Claim { dir, name, _file: file })
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// In words.
    pub(crate) fn place(&self) -> String {
        match &self.on {
            On::Origin(bears) => bears.place(),
            on if on.attribute().is_ok() => {
                format!("its attribute {}", ATTRIBUTE.to_string_lossy())
            }
            _ => format!("the file {}", self.dirs[0].join(file_name(&self.name)).display()),
        }
    }

    /// It is no file of this host.
    pub(crate) fn is_on_the_origin(&self) -> bool {
        matches!(self.on, On::Origin(_)) || self.on.attribute().is_ok()
    }

    /// The directory for the file that its mark is.  None: the origin bears the mark.
    pub(crate) fn directory(&self) -> Option<&Path> {
        let bears_none = matches!(self.on.attribute(), Err(Errno::OPNOTSUPP));
        bears_none.then(|| &*self.dirs[0])
    }

    /// Changes the file's attribute.  Returns whether it has changed: some file systems have
    /// none, and some files no such attribute.
    fn with_file(
        &self,
        change: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> io::Result<bool> {
        let own = match &self.on {
            On::Host | On::Origin(_) => return Ok(false),
            On::File(_) => None,
            On::Unopened(file) => Some(reopened(file.as_fd())?),
        };
        let file = match (&self.on, &own) {
            (_, Some(own)) => own.as_fd(),
            (On::File(file), None) => file.as_fd(),
            _ => return Ok(false),
        };
        match change(file) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(false),
            done => done?,
        }
        match own {
            Some(own) => synced(own, "origin")?,
            None => self.unsynced[0].store(true, Ordering::Release),
        }
        Ok(true)
    }

    fn in_dirs(&self) -> io::Result<Found> {
        let name = file_name(&self.name);
        for (dir, without) in self.dirs.iter().zip(&self.without) {
            let found = match open_dir(dir)? {
                Some(dir) => read_in(&dir, &name)?,
                None => Found::Nothing,
            };
            match found {
                Found::Nothing => without.store(true, Ordering::Release),
                Found::Marked(mark) if mark.origin != self.name => {
                    return Ok(Found::Damaged(format!("it is that of {}", mark.origin)))
                }
                found => return Ok(found),
            }
        }
        Ok(Found::Nothing)
    }

    /// Finds marks of a part of this origin, or of a device that has it as a part.
    fn beside(&self) -> io::Result<Found> {
        for dir in &self.dirs {
            for mark in marks_in(dir)? {
                if overlap(&self.name, &mark.origin) {
                    return Ok(Found::Marked(Box::new(mark)));
                }
            }
        }
        Ok(Found::Nothing)
    }

    fn about_file(&self, e: io::Error) -> io::Error {
        at_path(&self.dirs[0].join(file_name(&self.name)), e)
    }

    fn put_file(&self, bytes: &[u8]) -> io::Result<()> {
        self.without[0].store(false, Ordering::Release);
        make_dir(&self.dirs[0])?;
        self.put_in_dir(bytes).map_err(|e| self.about_file(e))
    }

    fn put_in_dir(&self, bytes: &[u8]) -> io::Result<()> {
        let dir = open_dir(&self.dirs[0])?.ok_or(Errno::NOENT)?;
        let (name, new) = (file_name(&self.name), self.new_name());
        let file = match self.room(&dir)? {
            Some(room) => room,
            None => new_file(&dir, &new)?,
        };
        write_whole(&file, bytes)?;
        rustix::fs::renameat(&dir, &new, &dir, &name)?;
        self.unsynced[1].store(true, Ordering::Release);
        Ok(())
    }

    /// The name that a file of the mark has before it is the mark.
    fn new_name(&self) -> String {
        format!(".{}.new", file_name(&self.name))
    }

    /// The file that [`make_room`](Self::make_room) has left, if it is that.
    fn room(&self, dir: &OwnedFd) -> io::Result<Option<std::fs::File>> {
        if self.lock.is_none() {
            return Ok(None);
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(dir, self.new_name(), flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            file => file?,
        };
        let st = rustix::fs::fstat(&file)?;
        let own = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile && st.st_nlink == 1;
        Ok(own.then(|| file.into()))
    }

    /// Makes sure that a first mark needs no new space in its file system: a write is not
    /// acknowledged without the mark, but it can already be read.
    fn make_room(&self) -> io::Result<()> {
        let dir = open_dir(&self.dirs[0])?.ok_or(Errno::NOENT)?;
        let made =
            new_file(&dir, &self.new_name()).and_then(|f| write_whole(&f, &[b' '; MOST_BYTES]));
        if made.is_err() {
            let _ = rustix::fs::unlinkat(&dir, self.new_name(), AtFlags::empty());
        }
        made
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.lock.is_some() {
            if let Ok(Some(dir)) = open_dir(&self.dirs[0]) {
                let _ = rustix::fs::unlinkat(&dir, self.new_name(), AtFlags::empty());
            }
        }
    }
}

impl Keep for Kept {
    fn name(&self) -> String {
        self.name.clone()
    }

    /// The metadata of an image is none of its snapshots, so a rollback leaves it as it is.
    fn is_borne(&self) -> bool {
        self.on.attribute().is_ok()
    }

    fn find(&self) -> io::Result<Found> {
        let borne = match &self.on {
            On::Host => Ok(None),
            On::File(_) | On::Unopened(_) => self.on.attribute().or_else(|e| match e {
                Errno::OPNOTSUPP => Ok(None),
                e => Err(e.into()),
            }),
            On::Origin(bears) => bears.read(),
        };
        match borne {
            Ok(None) => {}
            Ok(Some(bytes)) => return Ok(Found::of(&bytes)),
            Err(e) if e.raw_os_error() == Some(Errno::RANGE.raw_os_error()) => {
                return Ok(Found::Damaged("it is too long".into()))
            }
            Err(e) => return Err(e),
        }
        match self.in_dirs()? {
            Found::Nothing => self.beside(),
            found => Ok(found),
        }
    }

    fn put(&self, mark: &Mark) -> io::Result<()> {
        let bytes = mark.to_bytes();
        match &self.on {
            On::Host => {}
            On::File(_) | On::Unopened(_) => {
                let set = self.with_file(|file| {
                    rustix::fs::fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty())
                })?;
                if set {
                    return Ok(());
                }
            }
            On::Origin(bears) => return bears.write(&bytes),
        }
        self.put_file(&bytes)
    }

    fn take_away(&self) -> io::Result<()> {
        match &self.on {
            On::Host => {}
            On::File(_) | On::Unopened(_) => {
                self.with_file(|file| rustix::fs::fremovexattr(file, ATTRIBUTE))?;
            }
            On::Origin(bears) => bears.remove()?,
        }
        for (dir, without) in self.dirs.iter().zip(&self.without) {
            let path = dir.join(file_name(&self.name));
            let is_first = *dir == self.dirs[0];
            let dir = match open_dir(dir) {
                // The rights may be gone, and there is nothing to take away.
                Err(_) if without.load(Ordering::Acquire) => continue,
                dir => dir?,
            };
            let Some(dir) = dir else { continue };
            // The next mark needs the room of this one.
            let gone = match self.lock.is_some() && is_first {
                true => rustix::fs::renameat(&dir, file_name(&self.name), &dir, self.new_name()),
                false => rustix::fs::unlinkat(&dir, file_name(&self.name), AtFlags::empty()),
            };
            match gone {
                Err(Errno::NOENT) => {}
                done => done
                    .map_err(io::Error::from)
                    .and_then(|()| synced(&dir, "directory").map_err(of_mark_sync))
                    .map_err(|e| at_path(&path, e))?,
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.unsynced[0].swap(false, Ordering::AcqRel) {
            // All of the inode: an attribute is none of what fdatasync is for.
            let synced = match &self.on {
                On::File(file) => synced(file, "origin"),
                On::Host | On::Unopened(_) | On::Origin(_) => Ok(()),
            };
            synced
                .inspect_err(|_| self.unsynced[0].store(true, Ordering::Release))
                .map_err(of_mark_sync)?;
        }
        if self.unsynced[1].swap(false, Ordering::AcqRel) {
            let dir = open_dir(&self.dirs[0])?.ok_or(Errno::NOENT)?;
            synced(&dir, "directory")
                .inspect_err(|_| self.unsynced[1].store(true, Ordering::Release))
                .map_err(|e| at_path(&self.dirs[0], of_mark_sync(e)))?;
        }
        Ok(())
    }
}

/// The error of a sync of a mark.  The kernel tells a failure once, and the origin may lack data
/// then.  So it is never a lack of space or of rights for the mark, after which somebody would try
/// again.
pub fn of_mark_sync(e: io::Error) -> io::Error {
    let text = format!("at the sync of its mark: {e}");
    match errno_of(&e) {
        Some(errno) => about(io::ErrorKind::Other, text, errno),
        None => io::Error::other(text),
    }
}

/// Linux reports a failed write-back once to each open file description.  A sync of the mark
/// must not take the report away from the origin's next flush.  Without /proc the description
/// is shared.
fn own_description(file: BorrowedFd<'_>) -> io::Result<Lasting<OwnedFd>> {
    match reopened(file) {
        Ok(own) => Ok(own.into()),
        Err(_) => lasting::duplicate(file),
    }
}

fn reopened(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path_of(file), flags, Mode::empty())
}

fn path_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl On {
    /// The file's attribute.  None: it bears none.
    fn attribute(&self) -> Result<Option<Vec<u8>>, Errno> {
        let mut bytes = vec![0; MOST_BYTES + 1];
        let read = match self {
            On::Host | On::Origin(_) => Err(Errno::OPNOTSUPP),
            On::File(file) => rustix::fs::fgetxattr(file, ATTRIBUTE, &mut bytes[..]),
            // A descriptor by O_PATH is none for fgetxattr(2).
            On::Unopened(file) => {
                rustix::fs::getxattr(path_of(file.as_fd()), ATTRIBUTE, &mut bytes[..])
            }
        };
        match read {
            Err(Errno::NODATA) => Ok(None),
            read => {
                bytes.truncate(read?);
                Ok(Some(bytes))
            }
        }
    }
}

/// None: there is none.  One that others can write to could say anything.
fn open_dir(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        dir => dir.map_err(|e| at_path(path, e.into()))?,
    };
    let st = rustix::fs::fstat(&dir)?;
    let own = st.st_uid == 0 || st.st_uid == rustix::process::geteuid().as_raw();
    match own && st.st_mode & 0o022 == 0 {
        true => Ok(Some(dir)),
        false => {
            let text = format!("{}: others can write to it: chmod 755, chown", path.display());
            Err(about(io::ErrorKind::PermissionDenied, text, Errno::ACCESS.raw_os_error()))
        }
    }
}

/// A directory of state, or the one of marks in it, with what is above it, each durable in the
/// one above.  All may read it, whatever the umask, as that of a unit; the umask counts for what
/// is above.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    let own = if path.ends_with(MARKS) { 2 } else { 1 };
    make_dirs(path, own)
}

/// The last `own` parts of the path are Forebay's.
fn make_dirs(path: &Path, own: u32) -> io::Result<()> {
    if path.as_os_str().is_empty() || rustix::fs::stat(path).is_ok() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    make_dirs(parent, own.saturating_sub(1))?;
    let all_read = Mode::from_raw_mode(0o755);
    match rustix::fs::mkdirat(CWD, path, all_read) {
        Err(Errno::EXIST) => {}
        Ok(()) if own > 0 => {
            rustix::fs::chmod(path, all_read).map_err(|e| at_path(path, e.into()))?;
        }
        done => done.map_err(|e| at_path(path, e.into()))?,
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    std::fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(|e| at_path(parent, e))
}

/// In place of one that is there.  All may read it, whatever the umask.
fn new_file(dir: &OwnedFd, name: &str) -> io::Result<std::fs::File> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => {}
        done => done?,
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let all_read = Mode::from_raw_mode(0o644);
    let file = rustix::fs::openat(dir, name, flags, all_read)?;
    rustix::fs::fchmod(&file, all_read)?;
    Ok(file.into())
}

/// Durable when it returns.
fn write_whole(file: &std::fs::File, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    synced(file, "file")
}

fn read_in(dir: &OwnedFd, name: &str) -> io::Result<Found> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(Errno::LOOP) => return Ok(Found::Damaged("it is a symbolic link".into())),
        Err(Errno::NXIO) => return Ok(Found::Damaged("it is no file".into())),
        file => file?,
    };
    let st = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
        return Ok(Found::Damaged("it is no file".into()));
    }
    let mut bytes = Vec::new();
    let mut file = io::Read::take(std::fs::File::from(file), MOST_BYTES as u64 + 1);
    io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok(Found::of(&bytes))
}

/// Makes changes to it durable; tests count the calls, and make them fail.
fn synced(fd: impl AsFd, what: &'static str) -> io::Result<()> {
    #[cfg(test)]
    tests::note(what)?;
    let _ = what;
    Ok(rustix::fs::fsync(fd)?)
}

/// All readable marks, of any origin.
pub(crate) fn marks_in(dir: &Path) -> io::Result<Vec<Mark>> {
    let Some(open) = open_dir(dir)? else { return Ok(Vec::new()) };
    let mut marks = Vec::new();
    for entry in rustix::fs::Dir::read_from(open.as_fd())? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with('.') {
            continue;
        }
        if let Found::Marked(mark) = read_in(&open, name)? {
            marks.push(*mark);
        }
    }
    Ok(marks)
}

/// The directories that marks are looked for in.
pub(crate) fn dirs(state: &Path) -> Vec<PathBuf> {
    vec![state.join(MARKS), Path::new(SYSTEM).join(MARKS)]
}

/// The name of a file, of any text.
fn file_name(id: &str) -> String {
    let mut name = String::new();
    for b in id.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' => name.push(b.into()),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name += &format!("%{b:02X}"),
        }
    }
    if name.len() > NAME_MOST {
        let crc = forebay_engine::sys::crc32c(0, name.as_bytes());
        name.truncate(NAME_MOST);
        name += &format!("%{crc:08X}");
    }
    name
}

/// One is a partition of the other, or a loop device of the file.
fn overlap(a: &str, b: &str) -> bool {
    let file = |id: &str| {
        let id = id.split("-part").next().unwrap_or(id);
        let id = id.strip_prefix("loop:").unwrap_or(id);
        id.split('+').next().unwrap_or(id).to_string()
    };
    let part = |id: &str| id.rsplit_once("-part").is_some_and(|(_, n)| n.parse::<u32>().is_ok());
    let whole = |id: &str| !part(id) && !id.contains('+');
    a != b && file(a) == file(b) && (whole(a) || whole(b))
}
