// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of a file that were written and that no entry has yet.

/// The most ranges; with more, the whole file counts as written.
const MOST: usize = 1024;

/// Sorted ranges with gaps between them.
#[derive(Debug, Default)]
pub struct Ranges {
    parts: Vec<(u64, u64)>,
    everywhere: bool,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        !self.everywhere && self.parts.is_empty()
    }

    pub fn clear(&mut self) {
        self.parts.clear();
        self.everywhere = false;
    }

    /// The ranges.  `None`: there were too many, and all of the file counts.
    pub fn parts(&self) -> Option<&[(u64, u64)]> {
        (!self.everywhere).then_some(&self.parts)
    }

    /// Adds everything, present and future.
    pub fn add_all(&mut self) {
        self.parts.clear();
        self.everywhere = true;
    }

    /// Adds [start, end).
    pub fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end || self.everywhere {
            return;
        }
        let first = self.parts.partition_point(|p| p.1 < start);
        let last = first + self.parts[first..].partition_point(|p| p.0 <= end);
        if let [touched_first, ..] = self.parts[first..last] {
            start = start.min(touched_first.0);
            end = end.max(self.parts[last - 1].1);
        }
        self.parts.splice(first..last, [(start, end)]);
        if self.parts.len() > MOST {
            self.add_all();
        }
    }

    /// Whether the set overlaps [start, end).
    pub fn overlap(&self, start: u64, end: u64) -> bool {
        let first = self.parts.partition_point(|p| p.1 <= start);
        start < end && (self.everywhere || self.parts.get(first).is_some_and(|p| p.0 < end))
    }

    /// Removes everything after `size`.
    pub fn cut(&mut self, size: u64) {
        self.parts.retain(|p| p.0 < size);
        if let Some(last) = self.parts.last_mut() {
            last.1 = last.1.min(size);
        }
        if size == 0 {
            self.everywhere = false;
        }
    }

    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.1 - p.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The result equals that of a set of bytes.
        #[test]
        fn ranges_are_a_set_of_bytes(steps in proptest::collection::vec((0u64..64, 0u64..20, 0u8..8), 0..60)) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 128]);
            for (start, length, what) in steps {
                if what == 0 {
                    ranges.cut(start);
                    bytes[start as usize..].fill(false);
                } else {
                    ranges.add(start, start + length);
                    bytes[start as usize..(start + length) as usize].fill(true);
                }
                let parts = ranges.parts().unwrap();
                prop_assert!(parts.windows(2).all(|w| w[0].1 < w[1].0));
                let mut told = [false; 128];
                for &(a, b) in parts {
                    prop_assert!(a < b);
                    told[a as usize..b as usize].fill(true);
                }
                prop_assert_eq!(told, bytes);
                let end = (start + length) as usize;
                let any = bytes[start as usize..end].contains(&true);
                prop_assert_eq!(ranges.overlap(start, start + length), any);
                prop_assert_eq!(ranges.bytes(), bytes.iter().filter(|b| **b).count() as u64);
            }
        }
    }

    #[test]
    fn too_many_ranges_cover_the_whole_file_until_it_is_empty() {
        let mut ranges = Ranges::default();
        for i in 0..2000 {
            ranges.add(i * 10, i * 10 + 1);
        }
        assert!(ranges.parts().is_none() && !ranges.is_empty());
        ranges.cut(5);
        assert!(ranges.parts().is_none());
        ranges.cut(0);
        assert!(ranges.is_empty());
    }
}
