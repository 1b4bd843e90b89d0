// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies of a run, in nanoseconds.

pub type Histogram = hdrhistogram::Histogram<u64>;

/// Makes a histogram of times up to a minute, with a precision of two digits.
pub fn new() -> Histogram {
    let mut h = Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("the bounds are in order");
    h.auto(true);
    h
}
