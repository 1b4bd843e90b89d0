// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that may never end, such as a look at a file whose server is away, on threads of its own.
//! Whoever wants the result waits for a short time only.

use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nobody waits longer for what a device of the host says.
const PATIENCE: Duration = Duration::from_secs(3);

fn begin<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Receiver<T>> {
    let (tell, told) = sync_channel(1);
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || tell.send(work())).ok().map(|_| told)
}

/// `work` on a thread of its own, which is left to itself if it takes longer than that.
pub(crate) fn bounded<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    begin(name, work)?.recv_timeout(limit).ok()
}

/// Asks all side by side, and returns each answer; `None` for one that does not answer in time.
pub(crate) fn ask_each<D, T>(
    all: Vec<D>,
    ask: impl Fn(&D) -> T + Send + Sync + 'static,
) -> Vec<(D, Option<T>)>
where
    D: Clone + Send + 'static,
    T: Send + 'static,
{
    let (ask, until) = (Arc::new(ask), Instant::now() + PATIENCE);
    let begun = |of: D| {
        let (ask, asked) = (ask.clone(), of.clone());
        (of, begin("fby-ask", move || ask(&asked)))
    };
    let begun: Vec<_> = all.into_iter().map(begun).collect();
    let answer = |(of, told): (D, Option<Receiver<T>>)| {
        let left = until.saturating_duration_since(Instant::now());
        // Without a thread it is asked all the same: silence is no answer.
        let told = told.map_or_else(|| Some(ask(&of)), |told| told.recv_timeout(left).ok());
        (of, told)
    };
    begun.into_iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_hang_are_waited_for_together() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        let began = Instant::now();
        let told = ask_each(vec![1, 2, 3, 4], move |n| match n {
            1 | 3 => ended.lock().map(|ended| ended.recv().is_ok()).ok(),
            _ => Some(true),
        });
        let told: Vec<_> = told.into_iter().map(|(n, told)| (n, told.is_some())).collect();
        assert_eq!(told, [(1, false), (2, true), (3, false), (4, true)]);
        assert!(PATIENCE <= began.elapsed() && began.elapsed() < 2 * PATIENCE);
        drop(end);
    }
}
