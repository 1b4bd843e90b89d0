// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a group waits for entries that are expected in it.
//!
//! Clients that were told at the end of a group append again soon.  A group that is sent at once
//! misses half of them, and they wait for a whole group more.  So the next group waits until as
//! many are there as were told and had waited, but no longer than an eighth of what the device
//! takes, and not at all where that is short.

use std::time::{Duration, Instant};

use forebay_engine::groups::{Durable, Load};

/// A device that is faster is not waited for.
const SHORT: Duration = Duration::from_micros(100);
const PART: u32 = 8;
const SAMPLES: usize = 8;

/// The mean of the last times.
#[derive(Debug, Default)]
pub(super) struct Mean {
    last: [Duration; SAMPLES],
    n: usize,
}

impl Mean {
    pub(super) fn add(&mut self, took: Duration) {
        self.last[self.n % SAMPLES] = took;
        self.n += 1;
    }

    fn mean(&self) -> Duration {
        match self.n.min(SAMPLES) {
            0 => Duration::ZERO,
            n => self.last[..n].iter().sum::<Duration>() / n as u32,
        }
    }
}

/// Times of the device.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub writes: Mean,
    pub flushes: Mean,
}

impl Times {
    /// The longest wait for entries that are expected.
    pub(super) fn longest(&self, durable: Durable) -> Duration {
        let flush = match durable {
            Durable::Flush => self.flushes.mean(),
            Durable::Through | Durable::Fua => Duration::ZERO,
        };
        match self.writes.mean() + flush {
            mean if mean < SHORT => Duration::ZERO,
            mean => mean / PART,
        }
    }
}

/// The condition that the next group of a log waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// Entries that are expected.
    target: u32,
    until: Instant,
}

impl Hold {
    /// At the end of a group; `None`: the next one is not held.
    pub(super) fn after(load: &Load, now: Instant, longest: Duration) -> Option<Hold> {
        let target = load.last + load.waiting;
        (target > 1 && !longest.is_zero()).then(|| Hold { target, until: now + longest })
    }

    /// How long the group still waits; `None`: it is to be sent now.
    pub(super) fn rest(&self, load: &Load, now: Instant) -> Option<Duration> {
        if load.in_flight || load.waiting >= self.target {
            return None;
        }
        self.until.checked_duration_since(now).filter(|rest| !rest.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(in_flight: bool, waiting: u32, last: u32) -> Load {
        Load { in_flight, waiting, last }
    }

    fn times(write_us: &[u64], flush_us: &[u64]) -> Times {
        let mut times = Times::default();
        write_us.iter().for_each(|us| times.writes.add(Duration::from_micros(*us)));
        flush_us.iter().for_each(|us| times.flushes.add(Duration::from_micros(*us)));
        times
    }

    #[test]
    fn a_group_is_held_for_an_eighth_of_the_last_eight_times() {
        let us = Duration::from_micros;
        let table = [
            (times(&[], &[]), Durable::Through, 0),
            (times(&[99], &[9000]), Durable::Through, 0),
            (times(&[99], &[9000]), Durable::Fua, 0),
            (times(&[100], &[]), Durable::Fua, 12_500),
            (times(&[50], &[49]), Durable::Flush, 0),
            (times(&[100], &[700]), Durable::Flush, 100_000),
            (times(&[80, 800, 800, 800, 800, 800, 800, 800, 800], &[]), Durable::Through, 100_000),
            (times(&[800, 1600], &[]), Durable::Through, 150_000),
        ];
        for (times, durable, ns) in table {
            assert_eq!(times.longest(durable), Duration::from_nanos(ns), "{times:?} {durable:?}");
        }
        assert!(us(100) == SHORT);
    }

    /// One client is never held; eight of eight are waited for; one that has left costs one wait.
    #[test]
    fn those_that_were_told_and_had_waited_are_expected() {
        let (now, eighth) = (Instant::now(), Duration::from_micros(200));
        let after = |last, waiting| Hold::after(&load(false, waiting, last), now, eighth);
        assert_eq!(after(1, 0), None);
        assert_eq!(Hold::after(&load(false, 8, 8), now, Duration::ZERO), None, "a fast device");
        let hold = after(5, 3).unwrap();
        for (there, in_flight, at_us, rest_us) in [
            (3, false, 0, Some(200)),
            (7, false, 150, Some(50)),
            (8, false, 0, None),
            (9, false, 0, None),
            (3, false, 200, None),
            (3, false, 900, None),
            (3, true, 0, None),
        ] {
            let at = now + Duration::from_micros(at_us);
            let rest = hold.rest(&load(in_flight, there, 5), at);
            assert_eq!(rest, rest_us.map(Duration::from_micros), "{there} after {at_us} us");
        }
        // Seven of them came: seven are expected next.
        assert_eq!(after(7, 0).unwrap().rest(&load(false, 7, 7), now), None);
    }
}
