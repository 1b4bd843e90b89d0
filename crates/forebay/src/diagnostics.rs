// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a process on standard error.
//!
//! A command writes there itself, and waits for the reader.  A service must not: a reader that
//! stopped would stop requests, and the handling of the signal that ends the process.  After
//! [`never_wait`], lines go through a queue of bounded length to a thread, and only this thread
//! waits.  Lines that find no room are counted, and the count is written when there is room
//! again.
//!
//! A client or an origin that fails can cause a line with each request. Each place in the code
//! that warns has a budget of lines ([`BURST`], then [`PER_SECOND`]), so a flood from one
//! place hides nothing of another, and the next line from there says how many were left out.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::printable;

/// Lines that one place may write at once.
const BURST: f64 = 100.0;
/// Lines a second that it may write in the long run.
const PER_SECOND: f64 = 5.0;
/// Lines that wait for the reader.
const QUEUE: usize = 256;
/// How long a line is waited for that is to be written before what comes after it.
const SETTLE: Duration = Duration::from_millis(50);
/// Bytes of a line; the rest is cut off.
const LINE_MAX: usize = 2048;

static SERVICE: OnceLock<Queue> = OnceLock::new();
static BUDGETS: Mutex<Option<Budgets>> = Mutex::new(None);

/// From now on no thread waits for the reader of standard error; for a process that serves
/// others.  If no writer thread can be started, nothing changes.
pub fn never_wait() {
    SERVICE.get_or_init(|| Queue::new(io::stderr()));
}

/// Writes a line; in a service as far as the budget of the calling place goes.
#[track_caller]
pub fn warn(text: impl Display) {
    let place = Location::caller();
    if SERVICE.get().is_none() {
        return line(&text.to_string());
    }
    let mut budgets = BUDGETS.lock().unwrap_or_else(PoisonError::into_inner);
    let left_out = budgets.get_or_insert_default().take(place, Instant::now());
    drop(budgets);
    let Some(left_out) = left_out else { return };
    if left_out > 0 {
        line(&format!("forebay: {left_out} messages like the next one were left out"));
    }
    line(&text.to_string());
}

/// Writes a line. A line feed of the text begins another; other control characters are
/// written out.
fn line(text: &str) {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let mut bytes = lines.join("\n").into_bytes();
    match SERVICE.get() {
        // Nobody may be there to read it.
        None => {
            bytes.push(b'\n');
            let _ = io::stderr().lock().write_all(&bytes);
        }
        Some(queue) => {
            if bytes.len() > LINE_MAX {
                bytes.truncate(LINE_MAX);
                bytes.extend(" ... (cut)".bytes());
            }
            bytes.push(b'\n');
            queue.push(bytes);
        }
    }
}

/// Waits until all is written, as long as it goes on: a reader that takes nothing for this
/// time is given up.
pub fn flush(patience: Duration) {
    if let Some(queue) = SERVICE.get() {
        queue.flush(patience);
    }
}

// --- how much ------------------------------------------------------------------------

#[derive(Debug)]
struct Budget {
    lines: f64,
    at: Instant,
    left_out: u64,
}

/// By place; there are only so many in a program.
#[derive(Debug, Default)]
struct Budgets(HashMap<&'static Location<'static>, Budget>);

impl Budgets {
    /// How many were left out since the last line of this place; None: this one is, too.
    fn take(&mut self, place: &'static Location<'static>, now: Instant) -> Option<u64> {
        let new = || Budget { lines: BURST, at: now, left_out: 0 };
        let budget = self.0.entry(place).or_insert_with(new);
        let more = now.saturating_duration_since(budget.at).as_secs_f64() * PER_SECOND;
        (budget.lines, budget.at) = ((budget.lines + more).min(BURST), now);
        if budget.lines < 1.0 {
            budget.left_out += 1;
            return None;
        }
        budget.lines -= 1.0;
        Some(std::mem::take(&mut budget.left_out))
    }
}

// --- who waits -------------------------------------------------------------------------

#[derive(Debug, Default)]
struct Lines {
    waiting: VecDeque<Vec<u8>>,
    /// The thread has taken one that is not written yet.
    busy: bool,
    /// A line was not written soon, and some wait still.
    stuck: bool,
    written: u64,
    /// That found no room since the last one that did.
    lost: u64,
}

/// Lines on their way to a writer that may block.
#[derive(Debug)]
struct Queue {
    shared: Arc<(Mutex<Lines>, Condvar)>,
    /// Otherwise whoever has a line writes it.
    has_thread: bool,
}

fn locked(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn new(output: impl Write + Send + 'static) -> Queue {
        let shared = Arc::new((Mutex::new(Lines::default()), Condvar::new()));
        let thread = std::thread::Builder::new().name("fby-stderr".into());
        let of_thread = shared.clone();
        let started = thread.spawn(move || write_out(&of_thread, output));
        Queue { shared, has_thread: started.is_ok() }
    }

    fn push(&self, line: Vec<u8>) {
        if !self.has_thread {
            let _ = io::stderr().lock().write_all(&line);
            return;
        }
        let (lines, changed) = &*self.shared;
        let mut lines = locked(lines);
        // Room for the line that tells of those that were lost.
        match lines.waiting.len() < QUEUE - usize::from(lines.lost > 0) {
            true => {
                if let lost @ 1.. = std::mem::take(&mut lines.lost) {
                    let told = format!("forebay: {lost} messages were lost: nobody read them\n");
                    lines.waiting.push_back(told.into_bytes());
                }
                lines.waiting.push_back(line);
            }
            false => lines.lost += 1,
        }
        changed.notify_all();
        // As a rule the line is written before what comes after it; a reader that keeps one
        // waiting is not waited for again until it has taken all.
        if !lines.stuck {
            drop(lines);
            let written = self.flush(SETTLE);
            locked(&self.shared.0).stuck |= !written;
        }
    }

    /// Whether all is written.
    fn flush(&self, patience: Duration) -> bool {
        let (lines, changed) = &*self.shared;
        let mut lines = locked(lines);
        let (mut written, mut since) = (lines.written, Instant::now());
        while self.has_thread && (lines.busy || !lines.waiting.is_empty()) {
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = changed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
            if lines.written != written {
                (written, since) = (lines.written, Instant::now());
            }
        }
        true
    }
}

fn write_out((lines, changed): &(Mutex<Lines>, Condvar), mut output: impl Write) {
    let mut guard = locked(lines);
    loop {
        let Some(line) = guard.waiting.pop_front() else {
            guard.stuck = false;
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        guard.busy = true;
        drop(guard);
        // A reader that has gone ends no service.
        let _ = output.write_all(&line);
        guard = locked(lines);
        guard.busy = false;
        guard.written += 1;
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A thread that warns does not wait for the reader; the end of the process waits only
    /// briefly.
    #[test]
    fn a_reader_that_stopped_stops_nobody() {
        let (output, _reader) = UnixStream::pair().unwrap();
        let queue = Queue::new(output);
        let start = Instant::now();
        for n in 0..5000 {
            queue.push(format!("{n:0200}\n").into_bytes());
        }
        queue.flush(Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        let lines = locked(&queue.shared.0);
        assert!(lines.busy && lines.waiting.len() <= QUEUE && lines.lost > 0, "it did not wait");
    }

    #[test]
    fn what_was_lost_is_counted_where_there_is_room() {
        let (output, mut reader) = UnixStream::pair().unwrap();
        let queue = Queue::new(output);
        let pushed = 5000;
        for n in 0..pushed {
            queue.push(format!("line {n:0200}\n").into_bytes());
        }
        let counted = std::thread::spawn(move || {
            let (mut seen, mut bytes) = (String::new(), [0; 4096]);
            while !seen.ends_with("the last\n") {
                let n = reader.read(&mut bytes).unwrap();
                seen += std::str::from_utf8(&bytes[..n]).unwrap();
            }
            seen
        });
        queue.flush(Duration::from_secs(60));
        queue.push(b"the last\n".to_vec());
        let seen = counted.join().unwrap();
        let lines = seen.lines().filter(|line| line.starts_with("line ")).count();
        let lost = seen.lines().filter_map(|line| {
            line.strip_prefix("forebay: ")?.split(' ').next()?.parse::<usize>().ok()
        });
        assert_eq!(lines + lost.sum::<usize>(), pushed, "none is lost without a word");
        assert!(lines < pushed, "the stream took all: nothing was shown");
    }

    #[test]
    fn a_flood_from_one_place_hides_nothing_of_another() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let (flood, other) = (Location::caller(), there());
        let (mut told, mut counted) = (0, 0);
        for n in 0..10_000u64 {
            let now = start + Duration::from_millis(n / 10);
            if let Some(left_out) = budgets.take(flood, now) {
                (told, counted) = (told + 1, counted + left_out);
            }
        }
        assert_eq!(told, BURST as u64 + 4, "a burst, and what a second gives");
        assert_eq!(budgets.take(other, start), Some(0));
        let later = start + Duration::from_secs(60);
        assert_eq!(budgets.take(flood, later), Some(10_000 - told - counted));
        assert_eq!(budgets.take(flood, later), Some(0));
    }

    #[track_caller]
    fn there() -> &'static Location<'static> {
        Location::caller()
    }
}
