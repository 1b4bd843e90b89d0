// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the answers of a mount's server with a limit on the wait.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Looks at a path that may be a mount with a stopped server.  Such a look fails after 10 s and
/// never waits forever.
pub(crate) fn answer<T: Send + 'static>(
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (tell, told) = mpsc::channel();
    thread::Builder::new().spawn(move || tell.send(look()))?;
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let what = "no answer for 10 s: the server of a mount there is stopped or hangs; see it \
                    with ps, continue it (kill -CONT) or end it";
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    })
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
