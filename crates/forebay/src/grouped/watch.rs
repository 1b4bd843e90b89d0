// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the device answers: requests that have no answer yet, and errors.
//!
//! Its lock is held for no request, so that it can always be asked.

use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::errno::again;

/// A request without an answer for so long is told.
const HANGS: Duration = Duration::from_secs(1);

/// The kind of a request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    Write,
    Flush,
}

#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Numbers requests.
    next: u64,
    waiting: Vec<Waiting>,
    /// The errors of each kind.
    errors: [Option<Errors>; 3],
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    asked: Asked,
    since: Instant,
}

#[derive(Debug)]
struct Errors {
    times: u64,
    last: Instant,
    source: io::Error,
    /// A request of the kind that was sent after the last one has succeeded.
    over: bool,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a request, and waits for its end.
    pub fn request(
        &self,
        asked: Asked,
        request: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let since = Instant::now();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push(Waiting { number, asked, since });
        drop(state);
        let done = request();
        let mut state = self.lock();
        state.waiting.retain(|waiting| waiting.number != number);
        let errors = &mut state.errors[asked as usize];
        match (&done, &mut *errors) {
            (Ok(()), None) => {}
            (Ok(()), Some(errors)) => errors.over |= since > errors.last,
            (Err(e), _) => {
                let times = errors.as_ref().map_or(0, |errors| errors.times) + 1;
                *errors =
                    Some(Errors { times, last: Instant::now(), source: again(e), over: false });
            }
        }
        done
    }

    /// How long the oldest request has had no answer; zero: none is under way.
    pub fn unanswered(&self) -> Duration {
        self.lock().waiting.iter().map(|w| w.since.elapsed()).max().unwrap_or_default()
    }

    /// In words, of a device that hangs.
    pub fn hangs(&self) -> Option<String> {
        let state = self.lock();
        let oldest = state.waiting.iter().min_by_key(|w| w.since)?;
        let time = oldest.since.elapsed();
        let others = match state.waiting.len() {
            1 => String::new(),
            2 => ", nor a later request".into(),
            n => format!(", nor {} later requests", n - 1),
        };
        let what = match oldest.asked {
            Asked::Read => "a read",
            Asked::Write => "a write",
            Asked::Flush => "a flush",
        };
        (time >= HANGS).then(|| {
            format!("has not answered {what} for {}{others}: appends and syncs wait for it. Nothing that was acknowledged is lost. See the system log (dmesg) for the cause; everything goes on when the disk answers or reports an error. If it never does, reset or replace it and restart this host: the pool is recovered when it is opened again", age(time))
        })
    }

    /// The last error, for `told`: whether it is over, what failed, why and how often.
    fn last<T>(&self, told: impl FnOnce(Asked, &io::Error, &str, bool) -> T) -> Option<T> {
        let state = self.lock();
        let all = [Asked::Read, Asked::Write, Asked::Flush].into_iter();
        let all = all.filter_map(|asked| Some((asked, state.errors[asked as usize].as_ref()?)));
        // The failure that persists, or else the last one.
        let (asked, errors) = all.max_by_key(|(_, errors)| (!errors.over, errors.last))?;
        let ago = age(errors.last.elapsed());
        let when = match errors.times {
            1 => format!("once, {ago} ago"),
            n => format!("{n} times, the last {ago} ago"),
        };
        Some(told(asked, &errors.source, &when, errors.over))
    }

    /// The error that is not over.
    pub fn trouble(&self) -> Option<String> {
        self.last(|asked, source, when, over| {
            (!over).then(|| format!("{} failed {when}: {source}", name(asked)))
        })?
    }

    /// The last error, if each of them is over.
    pub fn mended(&self) -> Option<String> {
        self.last(|asked, source, when, over| {
            over.then(|| format!("{} failed {when}: {source}; later ones succeeded", name(asked)))
        })?
    }

    /// The last error, over or not.
    pub fn error(&self) -> Option<(Asked, io::Error)> {
        self.last(|asked, source, _, _| (asked, again(source)))
    }
}

fn name(asked: Asked) -> &'static str {
    match asked {
        Asked::Read => "a read of it",
        Asked::Write => "a write to it",
        Asked::Flush => "a flush of it",
    }
}

/// For people.
fn age(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s if s < 2 * 86400 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> io::Result<()> {
        Err(rustix::io::Errno::IO.into())
    }

    /// A success says something of requests that were sent before it alone.
    #[test]
    fn an_error_is_over_when_a_later_request_succeeds() {
        let watch = Watch::default();
        assert_eq!((watch.trouble(), watch.mended(), watch.unanswered()), Default::default());
        // This one was sent before the error, and ends after it.
        let early = watch.request(Asked::Write, || {
            watch.request(Asked::Write, fails).unwrap_err();
            Ok(())
        });
        early.unwrap();
        let trouble = watch.trouble().unwrap();
        assert!(trouble.starts_with("a write to it failed once, 0 s ago: "), "{trouble}");
        watch.request(Asked::Flush, || Ok(())).unwrap();
        assert!(watch.trouble().is_some() && watch.mended().is_none(), "a flush is no write");
        watch.request(Asked::Write, || Ok(())).unwrap();
        let mended = watch.mended().unwrap();
        assert!(watch.trouble().is_none() && mended.contains("once, 0 s ago"), "{mended}");
        watch.request(Asked::Write, fails).unwrap_err();
        let trouble = watch.trouble().unwrap();
        assert!(trouble.contains("failed 2 times, the last 0 s ago"), "{trouble}");
        watch.request(Asked::Write, || Ok(())).unwrap();
        // A failure that persists comes before one that is over.
        watch.request(Asked::Flush, fails).unwrap_err();
        assert!(watch.trouble().unwrap().starts_with("a flush of it"));
        assert_eq!(watch.error().unwrap().0, Asked::Flush);
    }

    #[test]
    fn the_oldest_request_without_an_answer_is_told() {
        let watch = Watch::default();
        let old = Instant::now().checked_sub(Duration::from_secs(200)).unwrap();
        watch
            .request(Asked::Flush, || {
                assert!(watch.unanswered() > Duration::ZERO && watch.hangs().is_none());
                watch.lock().waiting[0].since = old;
                let hangs = watch.hangs().unwrap();
                assert!(hangs.starts_with("has not answered a flush for 3 min: "), "{hangs}");
                assert!(watch.unanswered() >= Duration::from_secs(200));
                watch.request(Asked::Write, || {
                    let hangs = watch.hangs().unwrap();
                    assert!(hangs.contains("a flush for 3 min, nor a later request"), "{hangs}");
                    Ok(())
                })
            })
            .unwrap();
        assert_eq!((watch.unanswered(), watch.hangs()), Default::default());
    }

    #[test]
    fn ages_are_for_people() {
        let all = [1, 119, 120, 7199, 7200, 172_800].map(|s| age(Duration::from_secs(s)));
        assert_eq!(all, ["1 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
