// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories in which processes that have pools are found.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};

use crate::directories::{set, whole};
use crate::media::{check_link, detect_id};
use crate::Uuid;

/// The directory of the sockets: `$FOREBAY_RUNTIME_DIR`, otherwise `$XDG_RUNTIME_DIR/forebay`,
/// otherwise `/run/forebay` for root, and for others a directory of their own.
pub fn runtime_dir() -> PathBuf {
    set("FOREBAY_RUNTIME_DIR")
        .or_else(|| whole("XDG_RUNTIME_DIR").map(|dir| dir.join("forebay")))
        .unwrap_or_else(|| runtime_dir_of(rustix::process::geteuid().as_raw(), Path::new("/run")))
}

/// The control socket of the process that serves a pool with this UUID.
pub fn control_socket(dir: &Path, pool: Uuid) -> PathBuf {
    dir.join(format!("{pool}.sock"))
}

/// A link to the control socket of the process that serves what has this number
/// ([`media_id`]): whoever asks about a pool need not read it, since its disk may hang.
pub fn control_link(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{}.of", id.replace(':', "-")))
}

/// The number of the file or device at the path, as [`crate::MediaInfo::id`] has it, without a
/// read of it.  `None`: it cannot be had.
pub fn media_id(path: &Path) -> Option<String> {
    check_link(path).ok()?;
    detect_id(path)
}

/// The process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `None`: it is outside this PID namespace, as in another container.
    pub pid: Option<u32>,
    pub user: u32,
}

impl Peer {
    /// rustix takes the number of a process for one that is never 0.
    pub fn of(stream: impl AsFd) -> io::Result<Peer> {
        let found = getsockopt(&stream, sockopt::PeerCredentials)?;
        let pid = u32::try_from(found.pid()).ok().filter(|pid| *pid > 0);
        Ok(Peer { pid, user: found.uid() })
    }
}

/// Whether the process that answers at a Unix socket may speak for a pool: one of the same
/// user, of root, or of `owner`, to whom the pool belongs. A directory of sockets in a place
/// where everybody can make one, as `/tmp`, may be another user's, and a server that is not
/// the pool's would tell, for example, that its origins are complete.
pub fn check_peer(stream: impl AsFd, owner: Option<u32>) -> io::Result<()> {
    let peer = Peer::of(stream)?.user;
    let me = rustix::process::geteuid().as_raw();
    match peer == me || peer == 0 || Some(peer) == owner {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {peer} answers there, to whom the pool does not belong: nothing was believed; remove that user's socket, or name the directory of the pool's server with FOREBAY_RUNTIME_DIR"),
        )),
    }
}

/// Root's is closed to everybody else, so they cannot share it.
fn runtime_dir_of(user: u32, run: &Path) -> PathBuf {
    let own = run.join(format!("user/{user}"));
    match user {
        0 => run.join("forebay"),
        _ if own.is_dir() => own.join("forebay"),
        _ => std::env::temp_dir().join(format!("forebay-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn who_answers_has_to_be_this_user_or_root_or_the_owner() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        check_peer(&a, None).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(&a).unwrap(), Peer { pid: Some(std::process::id()), user });
    }

    #[test]
    fn each_user_has_a_directory() {
        let run = std::env::temp_dir().join(format!("fby-run-{}", std::process::id()));
        assert_eq!(runtime_dir_of(0, &run), run.join("forebay"));
        assert_eq!(runtime_dir_of(7, &run), std::env::temp_dir().join("forebay-7"));
        fs::create_dir_all(run.join("user/7")).unwrap();
        assert_eq!(runtime_dir_of(7, &run), run.join("user/7/forebay"));
        fs::remove_dir_all(&run).unwrap();
    }
}
