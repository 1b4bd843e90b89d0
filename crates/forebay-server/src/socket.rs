// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Unix socket that its owner alone may use, and that is taken away only by the
//! process that made it.
//!
//! Processes start and end beside each other, so looking and acting has to be one
//! step: both happen under a lock of the socket's directory.  The path is removed
//! while the socket still listens and only if it is still this socket's, so a new
//! process finds an answer, or nothing, or a socket of the dead; and the path
//! never belongs to two.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use forebay::{Error, Result};

/// Others hold the lock for as long as one looks and acts.
const LOCK_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
const LOCK_LOOK: Duration = Duration::from_millis(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens; the path is removed when it is dropped.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Locked for the time of a look and what follows from it.
    directory: File,
    inode: (u64, u64),
}

impl PrivateSocket {
    /// Listens at the path, whose directory exists.  A socket that nobody answers
    /// on any more is replaced; whatever else is there is left alone.
    pub fn bind(path: &Path) -> Result<PrivateSocket> {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let directory = File::open(parent).map_err(|e| Error::system(parent, "opening it", e))?;
        let listener = locked(&directory, parent, || {
            remove_stale(path)?;
            listen(path).map_err(|e| Error::system(path, "making the socket", e))
        })??;
        let found = fs::symlink_metadata(path);
        let found = found.map_err(|e| Error::system(path, "looking at it", e))?;
        let inode = (found.dev(), found.ino());
        Ok(PrivateSocket { listener, path: path.into(), directory, inode })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        let ours =
            || fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.inode);
        // A path that stays is stale: the next one replaces it.
        let _ = locked(&self.directory, &self.path, || {
            if ours() {
                let _ = fs::remove_file(&self.path);
            }
        });
    }
}

/// Whoever may read the directory can lock it, as any user can lock /tmp, and keep it so.
fn locked<T>(directory: &File, path: &Path, f: impl FnOnce() -> T) -> Result<T> {
    let lock = |operation| rustix::fs::flock(directory, operation);
    let start = Instant::now();
    loop {
        match lock(FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_LOOK);
            }
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Busy {
                    path: path.into(),
                    holder: None,
                    way_out: "another process keeps the directory of the socket locked: end it, or choose a directory that is yours alone".into(),
                })
            }
            Err(e) => {
                return Err(Error::system(path, "locking the directory of the socket", e.into()))
            }
        }
    }
    let result = f();
    let _ = lock(FlockOperation::Unlock);
    Ok(result)
}

fn remove_stale(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::system(path, "looking at it", e)),
    };
    if !found.file_type().is_socket() {
        return Err(Error::Unsuitable {
            path: path.into(),
            what: "something other than a socket".into(),
            way_out: "it was left as it is; choose another path for the socket".into(),
        });
    }
    match connect(path, Duration::ZERO) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| Error::system(path, "removing a stale socket", e))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // Any other answer: somebody has it.
        _ => Err(Error::Busy {
            path: path.into(),
            holder: None,
            way_out: "another process answers there: stop it, or choose another path".into(),
        }),
    }
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Connects; a process that accepts nobody, since it is stopped, is not waited for
/// longer than this.
pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    let start = Instant::now();
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if start.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The mode is set before the socket has a name.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket(SocketFlags::empty())?;
    rustix::fs::fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let name = format!("fby-socket-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_is_private_answers_and_goes() {
        let directory = Directory::new("life");
        let path = directory.0.join("s");
        let socket = PrivateSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(matches!(PrivateSocket::bind(&path), Err(Error::Busy { .. })));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let directory = Directory::new("stale");
        let path = directory.0.join("s");
        drop(UnixListener::bind(&path).unwrap()); // as one that was killed
        drop(PrivateSocket::bind(&path).unwrap());
        let target = directory.0.join("file");
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        for path in [&path, &target] {
            let e = PrivateSocket::bind(path).unwrap_err();
            assert!(matches!(e, Error::Unsuitable { .. }), "{e}");
        }
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }

    /// Anybody may lock /tmp.
    #[test]
    fn a_directory_that_stays_locked_holds_up_neither_start_nor_end() {
        let directory = Directory::new("locked");
        let path = directory.0.join("s");
        let (tell, told) = std::sync::mpsc::channel();
        let socket = PrivateSocket::bind(&path).unwrap();
        let other = File::open(&directory.0).unwrap();
        rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
        let second = directory.0.join("second");
        std::thread::spawn(move || {
            let refused = PrivateSocket::bind(&second);
            drop(socket);
            tell.send(refused.map(drop))
        });
        let refused = told.recv_timeout(Duration::from_secs(30)).expect("it waits for the lock");
        assert!(matches!(&refused, Err(Error::Busy { .. })), "{refused:?}");
        drop(other);
        // The socket that stayed is stale.
        drop(PrivateSocket::bind(&path).unwrap());
        assert!(!path.exists());
    }

    /// One that lost its path to another must not take that one's away.
    #[test]
    fn it_removes_its_own_path_only() {
        let directory = Directory::new("own");
        let path = directory.0.join("s");
        let old = PrivateSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let new = PrivateSocket::bind(&path).unwrap();
        drop(old);
        UnixStream::connect(&path).unwrap();
        drop(new);
        assert!(!path.exists());
    }
}
