// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications of a mount to the kernel, and the guard of the server's end.
//!
//! A notification that makes the kernel write back a file's pages waits in the kernel for this
//! server's answers, without regard to signals.  A server that is killed in it cannot end: the
//! waiting thread keeps /dev/fuse open, and nobody answers.  So before the first such notification
//! the server starts another process, the guard.  It has the connection's file `abort` of fusectl,
//! and not /dev/fuse.  When it sees that the server was killed and does not end, it ends the
//! connection.  Then the kernel ends the wait.

use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::known::Known;

/// Makes the command that runs [`guard_as_process`] with the number of a server.
static GUARD: OnceLock<fn(u32) -> Command> = OnceLock::new();

/// From now on mounts have a guard.
pub fn guards_by(guard: fn(u32) -> Command) {
    let _ = GUARD.set(guard);
}

/// The kernel, as a mount notifies it.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: OnceLock<Notifier>,
    known: OnceLock<Arc<Known>>,
    /// `None`: nothing has waited in the kernel yet, or fusectl cannot be opened.
    guard: Mutex<Option<Guard>>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// The process ends when its standard input does, which this end of the pipe holds open.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    fn start(known: &Known) -> Option<Guard> {
        let (make, abort) = (GUARD.get()?, known.abort_file()?);
        let mut command = make(std::process::id());
        command.current_dir("/").stdin(Stdio::piped()).stdout(abort).stderr(Stdio::null());
        // A signal to the server's group, such as that of a terminal, is none for the guard.
        Some(Guard(command.process_group(0).spawn().ok()?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It may be stopped, and has nothing left to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kernel {
    /// Once the mount is there, and before the first request.
    pub fn set(&self, notifier: Notifier, known: Option<Arc<Known>>) {
        let _ = self.notifier.set(notifier);
        if let Some(known) = known {
            let _ = self.known.set(known);
        }
    }

    /// Makes the kernel write back and drop its pages of a part of a file, and waits for it.
    /// `length` 0: to the end of the file.  The kernel does it by requests, so a thread that reads
    /// requests must not wait for it.
    pub fn write_back(&self, ino: INodeNo, start: i64, length: i64) -> io::Result<()> {
        let notifier = self.notifier.get().ok_or(Errno::IO)?;
        self.guarded();
        notifier.inval_inode(ino, start, length)
    }

    /// Makes the kernel forget the attributes of a file.  It waits for nothing.
    pub fn forget_attributes(&self, ino: INodeNo) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_inode(ino, -1, 0);
        }
    }

    fn guarded(&self) {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = guard.as_mut().is_some_and(|guard| matches!(guard.0.try_wait(), Ok(None)));
        if !lives {
            *guard = self.known.get().and_then(|known| Guard::start(known));
        }
    }
}

/// How often the guard looks whether the server was killed.
const LOOK: Duration = Duration::from_secs(1);

/// How long the kernel may take to end a server that was killed and waits for nothing.  It removes
/// the memory in about 0.2 s a GiB.
const ENDS: Duration = Duration::from_secs(5);

/// What the guard does: standard input is a pipe that `server` holds open, standard output the file
/// that ends its connection.
pub fn guard_as_process(server: u32) {
    // The /proc of another PID namespace shows other processes by these numbers.
    let own = std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.to_str().and_then(|own| own.parse().ok()) == Some(std::process::id()));
    let mut dying: Option<Instant> = None;
    while !has_ended() {
        dying = match own && forebay::is_dying(server) {
            true => dying.or_else(|| Some(Instant::now())),
            false => None,
        };
        if dying.is_some_and(|since| since.elapsed() >= ENDS) {
            let _ = io::stdout().write(b"1").and_then(|_| io::stdout().flush());
        }
    }
}

/// Waits for a moment until nobody holds the other end of standard input.
fn has_ended() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&limit)), Ok(1..))
}
