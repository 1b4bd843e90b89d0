// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one error type of the library.
//!
//! Each message names the thing (a path, a volume), the cause, and the way
//! out.  [`Error::errno`] is what a block layer answers with, and
//! [`Error::exit_code`] what a command exits with; [`EXIT_CODES`] has the table.

mod engine;

use std::io;
use std::path::PathBuf;

use forebay_engine::Code;
use rustix::io::Errno;

use crate::errno::{errno_of, limit_way_out};
use crate::report::{blocks_text, HeldByDetached, ParseError, RESCUED};
pub(crate) use engine::{log_error, open_error, unknown_error, volume_error};

/// Exit codes of a command and their meaning: a contract for scripts.  The command's help and
/// man page are made from this.
pub const EXIT_CODES: [(u8, &str); 21] = [
    (0, "done"),
    (1, "anything that has no code of its own"),
    (2, "usage: an option or argument cannot be right"),
    (3, "not found: no such file, no pool there, no such volume"),
    (4, "busy: another process or handle uses the pool, the volume or the origin"),
    (5, "damaged: the pool, or a part of it, cannot be trusted"),
    (6, "wrong origin: not the recorded one or size, known by name alone, or marked by another"),
    (7, "I/O error of the media or of an origin"),
    (8, "no space: disk full, media too small, cache full"),
    (9, "permission denied, or read-only"),
    (10, "not supported: newer format, missing kernel or CPU feature"),
    (11, "lost data: blocks or entries known to be gone"),
    (12, "holds data: not overwritten or removed without --force, --overwrite or --discard"),
    (13, "interrupted, also by the end of the server"),
    (14, "not complete: a pool still holds what an origin, or a mounted tree, lacks"),
    (15, "media-test: blocks are torn that the disk said were durable"),
    (16, "media-test: blocks are damaged that nothing was writing to"),
    (17, "media-test: nothing can be said: no power cut is known, or it is another disk or record"),
    (18, "media-test: the receiver is not to be reached, or ends the connection"),
    (19, "cut off by a second signal, before it had ended in order"),
    (RESCUED, "the pool's disk has failed or its file is lost, and the origins have everything"),
];

/// Result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of [`Error::WrongOrigin`] for an origin that may still appear.
pub(crate) const NOT_THERE: &str = "is not there";

/// An error: the failure, the object, and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or argument that cannot be right.
    #[error("{what}; {way_out}")]
    Usage { what: String, way_out: String },

    /// The path does not exist.
    #[error("{}: no such file or device; {way_out}", path.display())]
    NotFound { path: PathBuf, way_out: String },

    /// The path is a symbolic link that is not followed: another user's, or without end.
    #[error("{}: is a symbolic link {what}{}; name the file or device itself", path.display(),
            target.as_ref().map(|t| format!(" (to {})", t.display())).unwrap_or_default())]
    Symlink { path: PathBuf, what: String, target: Option<PathBuf> },

    /// Neither a regular file nor a device that can hold the content.
    #[error("{}: is {what}; {way_out}", path.display())]
    Unsuitable { path: PathBuf, what: String, way_out: String },

    /// An origin on the network that does not answer, or not as it should.
    #[error("{}: is not to be reached: {cause}; {way_out}", path.display())]
    Unreachable { path: PathBuf, cause: String, way_out: String },

    /// The receiver of `forebay media-test` does not answer, or not as it should.
    #[error("{server}: is not to be reached: {cause}; {way_out}")]
    NoReceiver { server: String, cause: String, way_out: String },

    /// Permission denied by the system.
    #[error("{}: permission denied ({doing}); {way_out}", path.display())]
    Permission { path: PathBuf, doing: &'static str, way_out: String },

    /// Another process has the pool or the origin open.
    #[error("{}: in use{}; {way_out}", path.display(),
            holder.map(|p| format!(" by process {p}")).unwrap_or_default())]
    Busy { path: PathBuf, holder: Option<u32>, way_out: String },

    /// Handles of this process still use the pool.
    #[error("pool {}: {} in use; detach or drop the other handles first", pool.display(),
            if volumes.is_empty() { "other handles are".to_string() }
            else { format!("volume {} is", volumes.join(", ")) })]
    PoolInUse { pool: PathBuf, volumes: Vec<String> },

    /// No room on the file system, or a limit on it.
    #[error("{}: no space left for {bytes_wanted} bytes ({source}); {}", path.display(), no_room_way_out(source))]
    DiskFull { path: PathBuf, bytes_wanted: u64, source: io::Error },

    /// The media cannot hold a pool.
    #[error("{}: {bytes} bytes are too small for a pool with chunks of {chunk_size_bytes} bytes; give it at least {least_bytes} bytes or a smaller chunk size", path.display())]
    TooSmall { path: PathBuf, bytes: u64, chunk_size_bytes: u32, least_bytes: u64 },

    /// The target of a format holds something.
    #[error("{}: holds {found}; nothing was written. If it may be destroyed, format with force (--force)", path.display())]
    NotBlank { path: PathBuf, found: String },

    /// The place to be written holds content.
    #[error("{}: holds {found}; nothing was written. {way_out}", path.display())]
    HoldsData { path: PathBuf, found: String, way_out: String },

    /// No pool at the path.
    #[error("{}: is not a Forebay pool: {found}; create one with `forebay create`, which never overwrites without --force", path.display())]
    NotAPool { path: PathBuf, found: String },

    /// A pool that cannot be trusted.
    #[error("{}: {cause}; {way_out}", path.display())]
    Damaged { path: PathBuf, cause: String, way_out: String },

    /// The pool is of another format version, or needs a feature that is missing.
    #[error("{}: {cause}; {way_out}", path.display())]
    Unsupported { path: PathBuf, cause: String, way_out: String },

    /// A persist method weaker than the media needs was asked for.
    #[error("{}: persist method {asked} is weaker than {kind} needs ({needed}): a write could be acknowledged and lost at a power cut; leave it at auto, or allow it explicitly (--allow-weaker)", path.display())]
    WeakerPersist {
        path: PathBuf,
        kind: crate::report::MediaKind,
        asked: crate::report::Persist,
        needed: crate::report::Persist,
    },

    /// No volume of this name.
    #[error("volume {name}: not in pool {}; {}", pool.display(),
            if known.is_empty() { "it has no volumes yet: add one with `forebay volume add`".to_string() }
            else { format!("it has {}", known.join(", ")) })]
    NoVolume { pool: PathBuf, name: String, known: Vec<String> },

    /// The engine refused something about a volume.
    #[error("volume {name}: {cause}; {way_out}")]
    Volume {
        name: String,
        cause: String,
        way_out: String,
        /// Positive number of the engine's error.
        code: i32,
    },

    /// No log of this name.
    #[error("log {name}: not in pool {}; {}", pool.display(),
            if known.is_empty() { "it has no logs yet: make one with `forebay log create`".to_string() }
            else { format!("it has {}", known.join(", ")) })]
    NoLog { pool: PathBuf, name: String, known: Vec<String> },

    /// The engine refused something about a log.
    #[error("log {name}: {cause}; {way_out}")]
    Log {
        name: String,
        cause: String,
        way_out: String,
        /// Positive number of the engine's error.
        code: i32,
    },

    /// The engine refused something about a map.
    #[error("map {name}: {cause}; {way_out}")]
    Map {
        name: String,
        cause: String,
        way_out: String,
        /// Positive number of the engine's error.
        code: i32,
    },

    /// The pool stayed full for an append, for longer than the caller wanted to wait.
    #[error("log {name}: no space for an append in {waited_ms} ms{}; sync the log, drain volumes, or use a larger pool",
            held_text(held))]
    LogFull { name: String, waited_ms: u64, held: Option<Box<HeldByDetached>> },

    /// A replay that ended, and not all that was appended is replayed.
    #[error("log {name}: replay {report}; read it again when the media is, or give up what is left, and restore its consumer from a backup")]
    LogIncomplete { name: String, report: Box<crate::report::ReplayReport> },

    /// The origin is not what the volume was made for.
    #[error("volume {name}: origin {origin}: {cause}; {way_out}")]
    WrongOrigin { name: String, origin: String, cause: String, way_out: String },

    /// The mark of a volume's origin: nothing is acknowledged without it.
    #[error(
        "volume {name}: the mark of its origin {origin} cannot be {what}: {source}; {}",
        mark_way_out(source)
    )]
    Marking { name: String, origin: String, what: &'static str, source: io::Error },

    /// The mark of an origin that is not attached here.
    #[error("{origin}: its mark cannot be {what}: {source}; {}", mark_way_out(source))]
    Mark { origin: String, what: &'static str, source: io::Error },

    /// An origin, a mapped file or a tree waits for what the pool holds.
    #[error("pool {}: {place} waits for it: {why}", pool.display())]
    Awaited {
        pool: PathBuf,
        place: String,
        /// Its mark, and the way out.
        why: String,
    },

    /// Entries of the volume are lost.
    #[error("volume {name}: {cause}; {way_out}")]
    Holes { name: String, cause: String, way_out: String },

    /// Blocks whose cached data failed its checksum and exists nowhere else.
    #[error("volume {name}: {} lost: the cached copy failed its checksum and the origin holds only older data; overwrite to heal, or restore from a backup",
            blocks_text(.blocks))]
    Lost {
        name: String,
        /// Block numbers, 4 KiB units; at least one.
        blocks: Vec<u64>,
    },

    /// A drain that ended, and the origin alone is not all of the volume.
    #[error("volume {}: {}", .0.volume, .0)]
    Incomplete(Box<crate::report::Completeness>),

    /// The volume was detached, or the server stopped, before a drain ended.
    #[error("volume {name}: the drain did not end, because whoever has the pool open {why}. Data that the origin lacks stays in the pool, or in its server's memory if the pool's disk has failed; drain it again")]
    Stopped { name: String, why: &'static str },

    /// The request reaches beyond the end of the volume.
    #[error("volume {name}: {len} bytes at offset {offset} reach beyond its end at {size}; stay within its size")]
    Range { name: String, offset: u64, len: u64, size: u64 },

    /// The request is not aligned to the logical block size.
    #[error("volume {name}: {len} bytes at offset {offset} are not aligned to its logical block of {block_size} bytes; use multiples of it")]
    Alignment { name: String, offset: u64, len: u64, block_size: u32 },

    /// Something that writes, on what was opened for reading only.
    #[error("{what}: opened read-only; open it for writing")]
    ReadOnly { what: String },

    /// The file system, or the device below it, takes no writes.
    #[error("{}: is on a file system that is mounted read-only, or on a device that is read-only ({doing}); mount it for writing (mount -o remount,rw), or see the system log if an error made it so", path.display())]
    ReadOnlySystem { path: PathBuf, doing: &'static str },

    /// The cache stayed full for longer than the caller wanted to wait.
    #[error("volume {name}: the cache stayed full for {waited_ms} ms{}{}; see that its origin works and is fast enough, or use a larger pool",
            last_error.as_ref().map(|e| format!(" (origin: {e})")).unwrap_or_default(), held_text(held))]
    Full {
        name: String,
        waited_ms: u64,
        last_error: Option<String>,
        held: Option<Box<HeldByDetached>>,
    },

    /// I/O on the origin of a volume failed in the foreground.
    #[error("volume {name}: {doing} of {len} bytes at offset {offset} on its origin failed: {source}; see the log of its device or server, then try again")]
    OriginIo { name: String, doing: &'static str, offset: u64, len: u64, source: io::Error },

    /// A system call failed.
    #[error("{}: {doing}: {source}; {way_out}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error, way_out: String },

    /// The caller's progress function asked to stop.
    #[error("volume {name}: interrupted; data that the origin lacks stays in the pool, or in its server's memory if the pool's disk has failed")]
    Interrupted { name: String },

    /// The pool's file was removed or cut short while it was open.
    #[error("pool {}: {cause}; {way_out}", pool.display())]
    PoolLost { pool: PathBuf, cause: String, way_out: String },

    /// The engine contradicted its own contract: a bug of ours.
    #[error("{what}: internal error {code} ({message}); please report it with the output of `forebay check`")]
    Internal { what: String, code: i32, message: &'static str },
}

/// The way out after a failed system call.
fn way_out(source: &io::Error) -> &'static str {
    if let Some(way_out) = limit_way_out(source) {
        return way_out;
    }
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => "allow more threads and memory (ulimit -u, TasksMax= of a unit)",
        Some(Errno::NOSPC | Errno::DQUOT) => "free space there",
        Some(Errno::NOTCONN) => {
            "it is below a mount whose server has died (findmnt -T shows which): forebay mount or \
             forebay replay, of that tree, removes the mount, and so does umount -l"
        }
        _ => "see the system log for its cause",
    }
}

/// The way out where a pool has no room.
fn no_room_way_out(source: &io::Error) -> String {
    match limit_way_out(source) {
        // A file system has such a limit, too.
        Some(way_out) => format!("{way_out}, or choose a smaller size"),
        None => "free space, choose a smaller size, or another place".into(),
    }
}

fn held_text(held: &Option<Box<HeldByDetached>>) -> String {
    held.as_ref().map(|held| format!("; {held}")).unwrap_or_default()
}

/// The way out if a mark cannot be set or read.
fn mark_way_out(source: &io::Error) -> &'static str {
    match errno_of(source).map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "free space there",
        Some(Errno::BUSY) => "it is in use on this host: detach it there first",
        Some(Errno::ROFS) => {
            "mount its file system for writing; marks that are files go to another directory with --state"
        }
        _ if source.kind() == io::ErrorKind::PermissionDenied => {
            "run as its owner; marks that are files go to another directory with --state"
        }
        _ => "see the system log; marks that are files go to another directory with --state",
    }
}

/// The exit code for a command that fails with an error of the system.
pub fn io_exit_code(error: &io::Error) -> u8 {
    forebay_engine::policy::errno_exit(errno_of(error).unwrap_or(0))
}

impl From<ParseError> for Error {
    fn from(e: ParseError) -> Error {
        Error::usage(e.what, e.way_out)
    }
}

impl Error {
    /// The refusal of a pool that is written in groups.
    pub fn not_in_groups(pool: &std::path::Path, what: &str) -> Error {
        Error::Unsupported {
            path: pool.into(),
            cause: format!("the pool is on a disk and written in groups, and holds no {what}"),
            way_out: format!("for {what} make another pool, on persistent memory, or in a plain file (forebay create --medium memory)"),
        }
    }

    /// The errno number a block device answers with for this error.
    pub fn errno(&self) -> i32 {
        let e = match self {
            Error::Usage { .. } | Error::Alignment { .. } | Error::WeakerPersist { .. } => {
                Errno::INVAL
            }
            Error::NotFound { .. } | Error::NoVolume { .. } | Error::NoLog { .. } => Errno::NOENT,
            Error::Symlink { .. } => Errno::LOOP,
            Error::Unsuitable { .. } | Error::NotAPool { .. } | Error::WrongOrigin { .. } => {
                Errno::INVAL
            }
            Error::Permission { .. } => Errno::ACCESS,
            Error::Busy { .. } | Error::PoolInUse { .. } => Errno::BUSY,
            Error::TooSmall { .. }
            | Error::Range { .. }
            | Error::Full { .. }
            | Error::LogFull { .. } => Errno::NOSPC,
            Error::NotBlank { .. } | Error::HoldsData { .. } => Errno::EXIST,
            Error::Awaited { .. } => Errno::BUSY,
            Error::Damaged { .. } | Error::Holes { .. } => Errno::BADMSG,
            Error::Unsupported { .. } => Errno::OPNOTSUPP,
            Error::Lost { .. } | Error::Incomplete(_) | Error::Unreachable { .. } => Errno::IO,
            Error::NoReceiver { .. } | Error::PoolLost { .. } => Errno::IO,
            Error::LogIncomplete { .. } => Errno::BADMSG,
            Error::ReadOnly { .. } | Error::ReadOnlySystem { .. } => Errno::ROFS,
            Error::Interrupted { .. } | Error::Stopped { .. } => Errno::INTR,
            Error::Volume { code, .. }
            | Error::Log { code, .. }
            | Error::Map { code, .. }
            | Error::Internal { code, .. } => {
                return Code(*code).errno();
            }
            Error::DiskFull { source, .. }
            | Error::OriginIo { source, .. }
            | Error::Marking { source, .. }
            | Error::Mark { source, .. }
            | Error::Io { source, .. } => {
                return errno_of(source).unwrap_or_else(|| Errno::IO.raw_os_error());
            }
        };
        e.raw_os_error()
    }

    /// The exit code for a command that fails with this error, of [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage { .. }
            | Error::Symlink { .. }
            | Error::Unsuitable { .. }
            | Error::WeakerPersist { .. }
            | Error::Range { .. }
            | Error::Alignment { .. } => 2,
            Error::NotFound { .. }
            | Error::NotAPool { .. }
            | Error::NoVolume { .. }
            | Error::NoLog { .. } => 3,
            Error::Busy { .. } | Error::PoolInUse { .. } => 4,
            Error::Damaged { .. } | Error::Internal { .. } => 5,
            Error::WrongOrigin { .. } => 6,
            Error::OriginIo { .. } | Error::Unreachable { .. } | Error::PoolLost { .. } => 7,
            Error::NoReceiver { .. } => 18,
            Error::DiskFull { .. }
            | Error::TooSmall { .. }
            | Error::Full { .. }
            | Error::LogFull { .. } => 8,
            Error::Permission { .. } | Error::ReadOnly { .. } | Error::ReadOnlySystem { .. } => 9,
            Error::Unsupported { .. } => 10,
            Error::Lost { .. } | Error::Holes { .. } | Error::LogIncomplete { .. } => 11,
            Error::NotBlank { .. } | Error::HoldsData { .. } => 12,
            Error::Awaited { .. } => 14,
            Error::Interrupted { .. } | Error::Stopped { .. } => 13,
            Error::Incomplete(judged) => judged.exit_code(),
            Error::Volume { code, .. } | Error::Log { code, .. } | Error::Map { code, .. } => {
                engine::exit_code(*code)
            }
            Error::Io { source, .. }
            | Error::Marking { source, .. }
            | Error::Mark { source, .. } => io_exit_code(source),
        }
    }

    /// Nothing but a person's doing makes another try succeed.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Error::WrongOrigin { cause, .. } => cause != NOT_THERE,
            e => [2, 5, 9, 10, 11].contains(&e.exit_code()),
        }
    }

    /// A failed system call that wanted blocks for so many bytes of a file.
    pub(crate) fn allocating(
        path: &std::path::Path,
        doing: &'static str,
        bytes_wanted: u64,
        source: io::Error,
    ) -> Error {
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => {
                Error::DiskFull { path: path.into(), bytes_wanted, source }
            }
            _ => Error::system(path, doing, source),
        }
    }

    /// A failed system call on a path, told apart by its cause.
    pub fn system(path: &std::path::Path, doing: &'static str, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Error::NotFound { path, way_out: "check the path".into() },
            Some(Errno::ACCESS | Errno::PERM) => Error::Permission {
                path,
                doing,
                way_out: "run as its owner or change its permissions".into(),
            },
            Some(Errno::ROFS) => Error::ReadOnlySystem { path, doing },
            Some(Errno::NOTDIR) => Error::Usage {
                what: format!("{}: a part of the path is not a directory", path.display()),
                way_out: "check the path".into(),
            },
            Some(Errno::NAMETOOLONG) => Error::Usage {
                what: format!("{}: the path, or a name in it, is too long", path.display()),
                way_out: "use a shorter one".into(),
            },
            Some(Errno::LOOP) => Error::Usage {
                what: format!("{}: its symbolic links lead in a circle", path.display()),
                way_out: "check the path".into(),
            },
            _ => {
                let way_out = way_out(&source).into();
                Error::Io { path, doing, source, way_out }
            }
        }
    }

    /// An option or argument that cannot be right.
    pub fn usage(what: impl Into<String>, way_out: impl Into<String>) -> Error {
        Error::Usage { what: what.into(), way_out: way_out.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn errors_of_the_system_by_their_cause() {
        let told = [
            (Errno::ACCESS, 9, "permissions"),
            (Errno::PERM, 9, "permissions"),
            (Errno::ROFS, 9, "mounted read-only"),
            (Errno::NOENT, 3, "check the path"),
            (Errno::NOTDIR, 2, "is not a directory"),
            (Errno::NOSPC, 8, "free space"),
            (Errno::DQUOT, 8, "free space"),
            (Errno::FBIG, 8, "ulimit -f"),
            (Errno::BUSY, 4, "system log"),
            (Errno::MFILE, 7, "ulimit -n"),
            (Errno::NOMEM, 7, "ulimit -v"),
            (Errno::AGAIN, 7, "ulimit -u"),
            (Errno::IO, 7, "system log"),
        ];
        for (errno, exit, text) in told {
            let e = Error::system(Path::new("/a/b"), "opening it", errno.into());
            assert!(e.to_string().starts_with("/a/b: ") && e.to_string().contains(text), "{e}");
            assert_eq!(e.exit_code(), exit, "{e}");
            if errno != Errno::NOTDIR {
                assert_eq!(io_exit_code(&errno.into()), exit, "{e}");
            }
        }
        let said = limit_way_out(&crate::no_thread(&Errno::AGAIN.into()));
        assert!(said.is_some_and(|way_out| way_out.contains("ulimit -v and -u")), "{said:?}");
    }
}
