// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processes, as /proc shows them: their names for messages, and whether they die.
//!
//! Between a kill and the moment at which the process is gone, the kernel removes its memory, which
//! takes about 0.2 s a GiB.  It closes the files of the process, with their locks, after that.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{test_kill_process, Pid};

use crate::procfs;

/// PF_EXITING, and PF_SIGNALED: a signal has ended the thread, which comes first.
const EXITING: u64 = 0x4 | 0x400;
/// SIGKILL in a set of pending signals.  The kernel adds it for each thread when a signal or
/// exit_group ends the process.
const KILLED: u64 = 1 << 8;

/// The fields of /proc/PID/task/TID/stat from the state on.
fn fields(stat: &str) -> Option<std::str::Split<'_, char>> {
    // The name before may have spaces and parentheses.
    Some(stat.rsplit_once(") ")?.1.split(' '))
}

/// Whether a thread ends without running again.
fn ends(stat: &str) -> bool {
    let Some(fields) = fields(stat) else { return false };
    let field = |n| fields.clone().nth(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let (flags, pending) = (field(6), field(28));
    flags & EXITING != 0 || pending & KILLED != 0
}

/// Whether a thread is a zombie, which has no files any more.
fn is_over(stat: &str) -> bool {
    fields(stat).and_then(|mut fields| fields.next()).is_some_and(|state| "ZX".contains(state))
}

/// What /proc shows of each thread.  One that has ended since is left out.
fn threads(pid: u32) -> io::Result<Vec<String>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.map_while(Result::ok);
    Ok(threads.filter_map(|thread| procfs::text(thread.path().join("stat")).ok()).collect())
}

/// Looks at the threads until one look finds the condition, three times at most.  Between the end
/// of the pending SIGKILL and the flag, a thread that dies shows neither for a few microseconds.
/// A process never comes back from its end, so that a later look is as good as the first.
fn soon(pid: u32, condition: impl Fn(&[String]) -> bool) -> bool {
    (0..3).any(|look| {
        if look > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        threads(pid).is_ok_and(|all| condition(&all))
    })
}

/// Whether the process is dead, or all of its threads end without running again.  False where
/// that cannot be seen.
pub fn is_dying(pid: u32) -> bool {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let is_gone = || test_kill_process(process) == Err(Errno::SRCH);
    is_gone() || soon(pid, |all| !all.is_empty() && all.iter().all(|stat| ends(stat))) || is_gone()
}

/// Whether the process is dying and may have files still.  What a zombie had is closed, or another
/// process has it.
pub(crate) fn is_ending(pid: u32) -> bool {
    soon(pid, |all| all.iter().all(|s| ends(s)) && all.iter().any(|s| !is_over(s)))
}

/// Names a process for a message: its number, command and user, as far as this process may look at
/// others.
pub fn process_in_words(pid: u32) -> String {
    let command = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let status = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = user.and_then(|ids| ids.split_whitespace().next()).unwrap_or("?");
    format!("process {pid} ({}) of user {user}", crate::printable::printable(command.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    #[test]
    fn a_process_is_dying_from_its_kill_on() {
        assert!(!is_dying(std::process::id()) && !is_ending(std::process::id()));
        let mut child =
            Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        assert!(!is_dying(child.id()) && !is_ending(child.id()));
        child.kill().expect("a signal");
        assert!(is_dying(child.id()), "a process that was just killed, or a zombie");
        // Its end is not waited for yet.
        let start = Instant::now();
        while is_ending(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(10), "a zombie ends for ever");
            std::thread::yield_now();
        }
        assert!(threads(child.id()).is_ok_and(|all| is_over(&all[0])), "it is a zombie");
        child.wait().expect("its end");
        assert!(!is_ending(child.id()), "a process that is not there");
        assert!(is_dying(child.id()), "a process that is not there");
    }

    /// A command is any bytes.
    #[test]
    fn a_command_that_is_not_utf8_is_a_process_all_the_same() {
        let dir = std::env::temp_dir().join(format!("fby-command-{}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        let program = dir.join(OsStr::from_bytes(b"\xff)"));
        fs::copy("/bin/sleep", &program).expect("a copy");
        let mut child = Command::new(&program).arg("60").spawn().expect("sleep");
        assert!(!is_dying(child.id()) && !is_ending(child.id()));
        let own = Command::new("id").arg("-u").output().expect("id").stdout;
        let own = String::from_utf8_lossy(&own);
        let words = process_in_words(child.id());
        assert!(words.ends_with(&format!("(\u{fffd})) of user {}", own.trim())), "{words}");
        child.kill().expect("a signal");
        assert!(is_dying(child.id()));
        child.wait().expect("its end");
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn a_name_that_looks_like_fields_is_no_field() {
        let rest = |flags, pending| {
            let mut fields = vec!["0".to_owned(); 49];
            fields[5] = flags;
            fields[27] = pending;
            format!("7 (a) S 4 ) S {}", fields.join(" "))
        };
        assert!(!ends(&rest("4194304".into(), "0".into())));
        assert!(ends(&rest("4194308".into(), "0".into())));
        assert!(ends(&rest("4195328".into(), "0".into())), "PF_SIGNALED");
        assert!(ends(&rest("4194304".into(), "256".into())));
        assert!(!ends(&rest("4194304".into(), "16384".into())), "SIGTERM");
        assert!(!ends("7 (cut") && !is_over("7 (cut"));
        assert!(!is_over(&rest("0".into(), "0".into())) && is_over("7 (a) Z 1"));
    }
}
