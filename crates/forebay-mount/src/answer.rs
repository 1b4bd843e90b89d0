// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the answers of a mount's server with a limit on the wait.
//!
//! A thread that asks a FUSE server waits in the kernel without regard to any signal, once the server
//! has read its question.  A server that is stopped in that moment keeps the thread, and the
//! process cannot end.  If the server is in the same process and is killed, nobody ends the wait at
//! all: the thread keeps the process's descriptors open, /dev/fuse among them.  So another process
//! asks ([`ask`]), which has nothing open that this program has opened.  It is left to itself if no
//! answer comes.  Until it ends no other process asks the same: a server that looks at a silent
//! mount again and again would leave one each time, and the stop of its unit waits for all of them.
//! The write-back at the end of a mount is such a question, too ([`write_back`]).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{mpsc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebay::no_thread;
use rustix::fs::{statfs, syncfs};
use rustix::io::Errno;

use crate::turns::Turns;
use crate::unix::mounts_of_fuse;

/// A question of another process to the server of the mount at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Its free space: the kernel may still have its attributes cached.
    FreeSpace,
    /// To take what the kernel has not written back yet.
    WriteBack,
}

/// Makes the command that runs [`ask_as_process`].
static ASKER: OnceLock<fn(Question, &Path) -> Command> = OnceLock::new();

/// From now on another process asks the servers of mounts.  Until then a thread does.
pub fn asks_by(asker: fn(Question, &Path) -> Command) {
    let _ = ASKER.set(asker);
}

/// What that process does, and what it prints.  Its exit code says nothing: a linker, a panic, a
/// signal to the group or an ignored SIGCHLD would be taken for an answer.
pub fn ask_as_process(question: Question, path: &Path) -> String {
    format!("{ANSWERED}{}", question.ask(path).map_or_else(Errno::raw_os_error, |()| 0))
}

impl Question {
    fn ask(self, path: &Path) -> rustix::io::Result<()> {
        match self {
            Question::FreeSpace => statfs(path).map(drop),
            Question::WriteBack => {
                let at =
                    File::open(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
                at.and_then(syncfs)
            }
        }
    }
}

const ANSWERED: &str = "answered ";

/// `None`: no process could ask.
fn by_process(question: Question, path: &Path) -> Option<io::Result<()>> {
    let mut command = ASKER.get()?(question, path);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // What ends this process by a signal to its group ends that one by the answer.
    let mut process = command.process_group(0).spawn().ok()?;
    let mut said = String::new();
    let read = process.stdout.take()?.read_to_string(&mut said);
    let _ = process.wait();
    read.ok()?;
    match said.trim_end().strip_prefix(ANSWERED)?.parse().ok()? {
        0 => Some(Ok(())),
        error => Some(Err(io::Error::from_raw_os_error(error))),
    }
}

fn by_any(question: Question, path: &Path) -> io::Result<()> {
    by_process(question, path).unwrap_or_else(|| Ok(question.ask(path)?))
}

/// Makes the kernel send what it has not written back of the mount at the path to this server.  The
/// server may be killed meanwhile.
pub(crate) fn write_back(path: &Path) -> io::Result<()> {
    by_any(Question::WriteBack, path)
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The questions that wait for an answer, by path and the FUSE mounts there.  A mount that was
/// unmounted or made since makes another question.  A question keeps its mount, so that no other gets the number.
static ASKED: Turns<(PathBuf, Vec<u64>)> = Turns::new();

/// Starts a thread that is left to itself if it takes too long.
fn start<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
    let started = thread::Builder::new().name("mount-ask".into()).spawn(look);
    started.map(drop).map_err(|e| no_thread(&e))
}

/// Asks the server of the mount at the path, if one is there.  With a patience, an earlier question
/// that has waited for that long is not repeated.
fn ask_in(path: &Path, patience: Option<Duration>) -> io::Result<mpsc::Receiver<io::Result<()>>> {
    let (tell, told) = mpsc::channel();
    let path = std::path::absolute(path)?;
    let mounts = mounts_of_fuse(&path);
    let question = (path, mounts);
    let look = move || {
        let answer = match ASKED.take(&question, patience) {
            // No server can be asked.
            Some(_turn) if question.1.is_empty() => {
                Question::FreeSpace.ask(&question.0).map_err(io::Error::from)
            }
            Some(_turn) => by_any(Question::FreeSpace, &question.0),
            None => Err(no_answer()),
        };
        tell.send(answer)
    };
    start(look)?;
    Ok(told)
}

/// Asks the server of the mount at the path, if one is there, however long the answer takes.
pub(crate) fn ask(path: &Path) -> io::Result<mpsc::Receiver<io::Result<()>>> {
    ask_in(path, None)
}

/// As [`ask`], for 10 s at most.
pub(crate) fn asked(path: &Path) -> io::Result<()> {
    in_time(&ask_in(path, Some(PATIENCE))?)
}

/// Looks at a path that may be a mount with a stopped server.  Such a look fails after 10 s and
/// never waits forever.
pub(crate) fn answer<T: Send + 'static>(
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = mpsc::channel();
    start(move || tell.send(look()))?;
    in_time(&told)
}

fn in_time<T>(told: &mpsc::Receiver<io::Result<T>>) -> io::Result<T> {
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(no_answer()))
}

fn no_answer() -> io::Error {
    let what = "no answer for 10 s: the server of a mount there is stopped or hangs; see it with \
                ps, continue it (kill -CONT) or end it; if it was killed already and stays: umount -f";
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Waits for what a session answers as long as the session runs and nobody interrupts that: its
/// tree's disk may be slow.  `None`: it was interrupted.
pub(crate) fn answered<T>(
    told: &mpsc::Receiver<io::Result<T>>,
    ended: impl Fn() -> Option<io::Error>,
    interrupted: &mut dyn FnMut() -> bool,
    patience: Duration,
    slow: impl FnOnce(),
) -> io::Result<Option<T>> {
    const LOOK: Duration = Duration::from_millis(50);
    let (begun, mut slow) = (Instant::now(), Some(slow));
    loop {
        if interrupted() {
            return Ok(None);
        }
        match told.recv_timeout(LOOK) {
            Ok(Err(_)) if interrupted() => return Ok(None),
            Ok(answer) => return ended().map_or(answer.map(Some), Err),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(e) => return Err(io::Error::other(e)),
        }
        if let Some(e) = ended() {
            return Err(e);
        }
        if begun.elapsed() >= patience {
            if let Some(slow) = slow.take() {
                slow();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow first answer is waited for, with one message.  Only the end of the session makes
    /// it an error.
    #[test]
    fn a_slow_first_answer_is_no_failure() {
        let patience = Duration::from_millis(60);
        let mut slow = 0;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            thread::sleep(5 * Duration::from_millis(60));
            tell.send(Ok(7))
        });
        let mut goes_on = || false;
        let answer = answered(&told, || None, &mut goes_on, patience, || slow += 1);
        assert_eq!((answer.ok(), slow), (Some(Some(7)), 1));
        let (_tell, told) = mpsc::channel::<io::Result<()>>();
        let ended = || Some(io::Error::other("the session has failed"));
        let answer = answered(&told, ended, &mut goes_on, patience, || ());
        assert_eq!(answer.expect_err("no session").to_string(), "the session has failed");
        // Who is asked to end does not wait for a disk that never answers.
        let mut asked = 0;
        let mut interrupted = || {
            asked += 1;
            asked > 3
        };
        let answer = answered(&told, || None, &mut interrupted, patience, || ());
        assert!(matches!(answer, Ok(None)), "{answer:?}");
    }
}
