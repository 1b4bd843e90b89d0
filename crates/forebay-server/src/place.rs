// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of a server: its socket, the URIs of its exports, and the file that exists
//! while it accepts connections.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{runtime_dir, Uuid};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, CWD};
use rustix::io::Errno;

use crate::{system, Error, Result};

/// sockaddr_un takes no longer ones.
const SOCKET_PATH_MAX: usize = 107;

/// The socket of a pool, if no other is given.
pub fn default_socket(pool: Uuid) -> PathBuf {
    runtime_dir().join(format!("{pool}.nbd"))
}

/// Whole, short enough, and in a directory that is its owner's alone, which is made.
pub fn usable_socket(path: &Path) -> Result<PathBuf> {
    let name = || format!("{}: cannot be made absolute", path.display());
    let path = std::path::absolute(path).map_err(|e| system(name())(e))?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(Error::Pool(forebay::Error::Usage {
            what: format!(
                "{}: longer than the {SOCKET_PATH_MAX} bytes that a Unix socket's path can have",
                path.display()
            ),
            way_out: "give a shorter one with --socket".into(),
        }));
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    private_directory(
        parent,
        "choose another with --socket, and for the control socket with FOREBAY_RUNTIME_DIR",
    )?;
    Ok(path)
}

/// Makes the directory, or finds it to be its owner's alone.
pub(crate) fn private_directory(path: &Path, way_out: &str) -> Result<()> {
    let name = path.display();
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| {
        forebay::Error::Io {
            path: path.into(),
            doing: "making the directory for the socket",
            source,
            way_out: way_out.into(),
        }
    })?;
    let look = |found: io::Result<_>| found.map_err(system(format!("{name}: cannot look at it")));
    let found = look(std::fs::metadata(path))?;
    // A link of another user can lead anywhere.
    let link = look(std::fs::symlink_metadata(path))?;
    let me = rustix::process::geteuid().as_raw();
    let of_others = found.uid() != me || ![0, me].contains(&link.uid());
    if of_others || found.mode() & 0o077 != 0 {
        return Err(Error::Pool(forebay::Error::Permission {
            path: path.into(),
            doing: "making a socket in it",
            way_out: format!(
                "whoever enters it could write to the volumes: chmod 700 it, as user {me}, or {way_out}"
            ),
        }));
    }
    Ok(())
}

/// As in NBD's specification of URIs.
pub fn uri(socket: &Path, volume: &str) -> String {
    let path = socket.as_os_str().as_bytes();
    format!("nbd+unix:///{}?socket={}", escape(volume.as_bytes()), escape(path))
}

fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::new();
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(byte.into());
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

/// An empty file that is there while connections are accepted.
#[derive(Debug)]
pub struct ReadyFile {
    path: PathBuf,
    /// Locked for as long as the file is there, by which another server knows that it is
    /// not one of the dead.  None: not made yet.
    file: Option<File>,
}

impl ReadyFile {
    /// An empty file of this user that nobody has locked is taken for one that a killed server
    /// left, and removed.  Anything else is somebody's.
    pub fn new(path: &Path) -> Result<ReadyFile> {
        let found = match std::fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(ReadyFile { path: path.into(), file: None })
            }
            Err(e) => return Err(system(format!("{}: cannot look at it", path.display()))(e)),
        };
        let unsuitable = |what: &str| {
            Err(Error::Pool(forebay::Error::Unsuitable {
                path: path.into(),
                what: what.into(),
                way_out: "it was left as it is; choose another path for the ready file".into(),
            }))
        };
        if !found.is_file() || found.len() > 0 {
            return unsuitable("something other than an empty file");
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return unsuitable("an empty file of another user");
        }
        let cannot = || system(format!("{}: cannot remove the old ready file", path.display()));
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut how = File::options();
        // NFS locks exclusively what is open for writing alone.
        let file = how
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(cannot())?;
        // Another process has it, or its file system has no such lock.
        if forebay::lock_alone(&file).is_err() {
            return Err(Error::Pool(forebay::Error::Busy {
                path: path.into(),
                holder: forebay::file_holder(&file),
                way_out: "it is the ready file of a server that runs: stop that one, or choose another path".into(),
            }));
        }
        if !is_at(path, &file) {
            return unsuitable("a file that is replaced just now");
        }
        std::fs::remove_file(path).map_err(cannot())?;
        Ok(ReadyFile { path: path.into(), file: None })
    }

    /// A file that appeared there meanwhile is left alone, too.
    pub(crate) fn make(mut self) -> Result<ReadyFile> {
        let cannot = format!("{}: cannot make the ready file", self.path.display());
        let made = match without_a_name(&self.path) {
            Err(Errno::EXIST) => Err(Errno::EXIST.into()),
            // Its file system has no such files, or there is no /proc.
            Err(_) => by_name(&self.path),
            Ok(file) => Ok(file),
        };
        self.file = Some(made.map_err(system(cannot))?);
        Ok(self)
    }
}

/// Who may open it may lock it, so nobody else may.
const MODE: u32 = 0o600;

fn lock(file: &File) -> rustix::io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// A file that is locked before it has its name: another start never finds it without.
fn without_a_name(path: &Path) -> rustix::io::Result<File> {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(dir, flags, Mode::from_raw_mode(MODE))?);
    let _ = lock(&file);
    let held = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, held, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
    Ok(file)
}

/// Another start may find the file before it is locked, and remove it: then there is a new one.
fn by_name(path: &Path) -> io::Result<File> {
    // Who looks at the lock holds it for a moment.
    const TRIES: u32 = 500;
    let mut tries = 0;
    loop {
        let file = File::options().write(true).create_new(true).mode(MODE).open(path)?;
        while lock(&file) == Err(Errno::WOULDBLOCK) && is_at(path, &file) && tries < TRIES {
            tries += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        if tries >= TRIES || is_at(path, &file) {
            return Ok(file);
        }
    }
}

/// The path leads to this file, still empty.
fn is_at(path: &Path, file: &File) -> bool {
    let (Ok(found), Ok(open)) = (std::fs::symlink_metadata(path), file.metadata()) else {
        return false;
    };
    found.is_file() && found.len() == 0 && (found.dev(), found.ino()) == (open.dev(), open.ino())
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if self.file.as_ref().is_some_and(|file| is_at(&self.path, file)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn uris_escape_what_a_uri_cannot_hold() {
        assert_eq!(
            uri(Path::new("/no such dir/a&b"), "my disk?"),
            "nbd+unix:///my%20disk%3F?socket=/no%20such%20dir/a%26b"
        );
        assert_eq!(uri(OsStr::from_bytes(b"/a\xff").as_ref(), "v"), "nbd+unix:///v?socket=/a%FF");
    }

    /// Another start looks at the file all the time, and removes what nobody has locked.
    #[test]
    fn a_ready_file_is_never_without_its_lock() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        const ROUNDS: u32 = 500;
        let dir = std::env::temp_dir().join(format!("fby-ready-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        for with_name in [false, true] {
            let path = dir.join("ready");
            let over = AtomicBool::new(false);
            let lost = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        let _ = ReadyFile::new(&path);
                    }
                });
                let mut lost = 0;
                for _ in 0..ROUNDS {
                    let new = || ReadyFile { path: path.clone(), file: None };
                    let made = match with_name {
                        true => ReadyFile { path: path.clone(), file: by_name(&path).ok() },
                        false => new().make().unwrap(),
                    };
                    let file = made.file.as_ref().expect("it was made");
                    lost += u32::from(!is_at(&path, file));
                    std::thread::yield_now();
                    lost += u32::from(!is_at(&path, file));
                }
                over.store(true, Relaxed);
                lost
            });
            assert_eq!(lost, 0, "of {ROUNDS} files, made by its name: {with_name}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_ready_file_replaces_nothing() {
        let dir = std::env::temp_dir().join(format!("fby-taken-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let path = dir.join("ready");
        fs::write(&path, b"precious").unwrap();
        assert!(ReadyFile { path: path.clone(), file: None }.make().is_err());
        assert!(by_name(&path).is_err());
        std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
        assert!(ReadyFile { path: dir.join("link"), file: None }.make().is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert!(!dir.join("nowhere").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_directory_has_to_be_private() {
        let dir = std::env::temp_dir().join(format!("fby-control-{}", std::process::id()));
        private_directory(&dir, "name another").unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        private_directory(&dir, "name another").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        let e = private_directory(&dir, "name another").unwrap_err();
        assert!(
            e.to_string().contains("chmod 700 it") && e.to_string().contains("name another"),
            "{e}"
        );
        fs::remove_dir(&dir).unwrap();
    }
}
