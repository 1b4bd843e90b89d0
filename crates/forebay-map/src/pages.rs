// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments of 2 MiB, and sets of their pages.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a segment, the unit in which pages are brought in and evicted.
pub const SEGMENT: usize = 2 << 20;
/// Pages of a segment.
pub const SEGMENT_PAGES: usize = SEGMENT / PAGE;

const WORDS: usize = SEGMENT_PAGES / 64;

/// A set of pages of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSet([u64; WORDS]);

impl PageSet {
    /// No pages.
    pub const EMPTY: PageSet = PageSet([0; WORDS]);
    /// All pages of the segment.
    pub const ALL: PageSet = PageSet([!0; WORDS]);

    /// The set as words.  The first page is the lowest bit of the first word.
    pub fn bits(&self) -> [u64; 8] {
        self.0
    }

    /// The set from words in the form of [`PageSet::bits`].
    pub fn of_bits(bits: [u64; 8]) -> PageSet {
        PageSet(bits)
    }

    /// The pages of a range.
    pub fn of(pages: Range<usize>) -> PageSet {
        let mut set = PageSet::EMPTY;
        set.insert(pages);
        set
    }

    /// Adds a range.  Panics if the range leaves the segment.
    pub fn insert(&mut self, pages: Range<usize>) {
        assert!(pages.end <= SEGMENT_PAGES);
        for (i, word) in self.0.iter_mut().enumerate() {
            let start = pages.start.saturating_sub(i * 64).min(64);
            let end = pages.end.saturating_sub(i * 64).min(64);
            if start < end {
                *word |= (!0 >> (64 - (end - start))) << start;
            }
        }
    }

    /// Whether the set has a page.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == PageSet::EMPTY.0
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The union.
    #[must_use]
    pub fn with(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The intersection.
    #[must_use]
    pub fn within(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The pages that are not in the other set.
    #[must_use]
    pub fn without(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// The set as ranges, in order.
    pub fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in self.iter() {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// The pages in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(i * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_of_pages_is_a_set() {
        let ends = [0, 1, 63, 64, 65, 127, 128, 300, 511, 512];
        for start in ends {
            for end in ends.into_iter().filter(|&e| e >= start) {
                let set = PageSet::of(start..end);
                let model: BTreeSet<usize> = (start..end).collect();
                assert_eq!(set.iter().collect::<BTreeSet<_>>(), model, "{start}..{end}");
                let runs: Vec<_> = Some(start..end).filter(|r| !r.is_empty()).into_iter().collect();
                assert_eq!(set.runs(), runs);
                assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
                let other = PageSet::of(60..130);
                assert!(set.with(&other).iter().all(|p| set.contains(p) || other.contains(p)));
                assert_eq!(set.within(&other).len() + set.without(&other).len(), set.len());
            }
        }
    }
}
