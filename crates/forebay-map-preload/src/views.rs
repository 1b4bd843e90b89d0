// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of a file that the program has mapped, with counts.
//!
//! A file has one range of addresses, and each mmap of the same bytes returns the same
//! addresses.  So each page counts the program's mappings of it.  munmap removes one of them,
//! and the file stays mapped until each of its pages counts zero.

use std::collections::BTreeMap;
use std::ops::Range;

/// Counts by ranges of addresses: each entry holds from its key to the next key.  Neighbours
/// differ. Nothing is mapped before the first key or from the last key on.
#[derive(Debug, Default)]
pub struct Views(BTreeMap<usize, u32>);

impl Views {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn count(&self, at: usize) -> u32 {
        self.0.range(..=at).next_back().map_or(0, |(_, &n)| n)
    }

    /// Whether every page of a range is mapped.
    pub fn have(&self, range: &Range<usize>) -> bool {
        self.count(range.start) > 0 && self.0.range(range.clone()).all(|(_, &n)| n > 0)
    }

    /// Adds a mapping of a range.
    pub fn add(&mut self, range: Range<usize>) {
        self.change(range, |n| n + 1);
    }

    /// Removes a mapping of a range, where there is one.
    pub fn remove(&mut self, range: Range<usize>) {
        self.change(range, |n| n.saturating_sub(1));
    }

    fn change(&mut self, range: Range<usize>, to: impl Fn(u32) -> u32) {
        if range.is_empty() {
            return;
        }
        for edge in [range.start, range.end] {
            let n = self.count(edge);
            self.0.insert(edge, n);
        }
        for (_, n) in self.0.range_mut(range.clone()) {
            *n = to(*n);
        }
        // Only the changed entries, and the entry after them, may equal their neighbour.
        let touched: Vec<usize> =
            self.0.range(range.start..=range.end).map(|(&at, _)| at).collect();
        for at in touched {
            let before = self.0.range(..at).next_back().map_or(0, |(_, &n)| n);
            if self.0.get(&at) == Some(&before) {
                self.0.remove(&at);
            }
        }
    }
}
