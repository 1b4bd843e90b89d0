// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unmount of a mountpoint, for root and for others.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{unmount, UnmountFlags};

/// How long a use of the mount may take to end.  The kernel closes files of a process that has
/// ended, and those of its rings, a moment after its parent has been told.
const USE_ENDS: Duration = Duration::from_secs(1);

/// Unmounts, if the use of the mount ends soon.
pub(crate) fn take_away_soon(path: &Path) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match take_away(path, UnmountFlags::empty()) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && begun.elapsed() < USE_ENDS => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Unmounts.  A user other than root mounts by fusermount3, which may unmount that user's
/// mounts too.
pub(crate) fn take_away(path: &Path, how: UnmountFlags) -> io::Result<()> {
    match unmount(path, how) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    let flags = if how.contains(UnmountFlags::DETACH) { "-uz" } else { "-u" };
    let ran = Command::new("fusermount3").env("LC_ALL", "C").args([flags, "--"]).arg(path).output();
    let ran = ran.map_err(|e| io::Error::new(e.kind(), format!("fusermount3: {e}")))?;
    match ran.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&ran.stderr).trim().to_string();
            let busy = said.ends_with("Device or resource busy");
            let kind = if busy { ErrorKind::ResourceBusy } else { ErrorKind::Other };
            Err(io::Error::new(kind, said))
        }
    }
}
