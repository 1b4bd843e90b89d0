// SPDX-License-Identifier: MIT OR Apache-2.0
//! An upper bound of what a planner could reach by one rule: the set of dirty blocks never
//! exceeds a share of the pool, and the longest run of neighbours goes first, in one request.
//! There is no log, there are no rounds, and no clean pages take room.

use std::collections::VecDeque;

use super::pattern::Blocks;

/// Blocks of the largest request.
const MOST: usize = 64;

struct Dirty {
    block: Vec<bool>,
    count: u64,
    /// By length: starts of runs, or of parts of them, when they reached this length.
    runs: Vec<VecDeque<u32>>,
}

impl Dirty {
    /// The run around a dirty block, at most `MOST` blocks before and after it.
    fn run(&self, at: usize) -> (usize, usize) {
        let before = (0..at).rev().take(MOST).take_while(|&b| self.block[b]).count();
        let behind = (at + 1..self.block.len()).take(MOST).take_while(|&b| self.block[b]).count();
        (at - before, (before + behind + 1).min(MOST))
    }

    fn note(&mut self, at: usize) {
        let (first, n) = self.run(at);
        self.runs[n].push_back(first as u32);
    }

    fn add(&mut self, at: usize) {
        if !std::mem::replace(&mut self.block[at], true) {
            self.count += 1;
            self.note(at);
        }
    }

    fn take_longest(&mut self) {
        for n in (1..=MOST).rev() {
            while let Some(at) = self.runs[n].pop_front() {
                if !self.block[at as usize] {
                    continue;
                }
                let (first, now) = self.run(at as usize);
                if now < n {
                    self.runs[now].push_back(first as u32);
                    continue;
                }
                self.block[first..first + now].fill(false);
                self.count -= now as u64;
                if first + now < self.block.len() && self.block[first + now] {
                    self.note(first + now);
                }
                return;
            }
        }
    }
}

/// Writes for each request, of so many after three times as many as are dirty at most.
pub fn writes_per_request(mut from: Blocks, blocks: u64, most_dirty: u64, writes: u64) -> f64 {
    let mut dirty = Dirty {
        block: vec![false; blocks as usize],
        count: 0,
        runs: vec![VecDeque::new(); MOST + 1],
    };
    let mut requests = 0u64;
    for i in 0..3 * most_dirty + writes {
        dirty.add(from.written() as usize);
        while dirty.count > most_dirty {
            dirty.take_longest();
            requests += u64::from(i >= 3 * most_dirty);
        }
    }
    writes as f64 / requests as f64
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::*;

    fn of(sequential: u64, most_dirty: u64) -> f64 {
        let blocks = Blocks::new(Pattern { zipf: 0.0, sequential }, 10_000, 1);
        writes_per_request(blocks, 10_000, most_dirty, 20_000)
    }

    #[test]
    fn a_stream_fills_requests_and_chance_does_not() {
        assert!(of(100, 1_000) > 60.0, "{}", of(100, 1_000));
        assert!((1.3..2.0).contains(&of(0, 1_600)), "{}", of(0, 1_600));
        assert!(of(0, 4_000) > of(0, 1_600));
    }
}
